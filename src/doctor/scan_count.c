/*
 * The counting loops. The reference makes each block an entry of a histogram. The fast ones look at 32 or 64 blocks at once and
 * send only groups with something odd in them (NaN, zero, the largest scales, dead or uniform blocks) to the histogram: of the
 * others four sums are all that the rules need.
 */
#include "doctor/scan_count.h"

#include <immintrin.h>
#include <string.h>

#include "base/cpu.h"

#define NIBBLES(x) ((uint64_t)0x1111111111111111 * (x))
#define PLAIN_MIN 0x08 /* the least normal scale */
#define PLAIN_MAX 0x7D /* above it stand the largest and NaN */
#define NEARLY 0x7D    /* nb_block_values.near begins here and goes down */

static inline unsigned class_of(uint64_t codes)
{
    const uint64_t four = (codes & codes >> 1) >> 1 & NIBBLES(1);
    const uint64_t six = four & codes;
    const uint64_t magnitudes = codes & NIBBLES(7), smaller = magnitudes & ~(six * 7);
    return (unsigned)(magnitudes != 0) + (four != 0) + (six != 0) + (six && smaller);
}

static inline uint64_t load(const unsigned char *p)
{
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

void nb_count_16_generic(const unsigned char *codes, const unsigned char *scales, size_t n, nb_counts *c)
{
    c->any = c->any || n;
    for (size_t i = 0; i < n; i++) {
        const uint64_t x = load(codes + 8 * i);
        c->uniform += x == (x << 4 | x >> 60);
        c->n[i & 1][class_of(x)][scales[i]]++;
    }
}

/* A group with something odd in it, four blocks at a time: comparisons give -1 in each lane where a class is not reached. */
__attribute__((target("avx2"))) static void count_odd(const unsigned char *codes, const unsigned char *scales,
                                                      size_t n, nb_counts *c)
{
    const __m256i zero = _mm256_setzero_si256();
    const __m256i magnitude = _mm256_set1_epi8(0x77), ones = _mm256_set1_epi8(0x11);
    __m256i uniform = zero;
    uint64_t cls[4], same[4];
    c->any = true;
    for (size_t i = 0; i + 4 <= n; i += 4) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(codes + 8 * i));
        const __m256i pair = _mm256_and_si256(x, _mm256_srli_epi64(x, 1));
        const __m256i four = _mm256_and_si256(_mm256_srli_epi64(pair, 1), ones),
                      six = _mm256_and_si256(four, x);
        const __m256i turned = _mm256_or_si256(_mm256_slli_epi64(x, 4), _mm256_srli_epi64(x, 60));
        __m256i k = _mm256_cmpeq_epi64(_mm256_and_si256(x, magnitude), zero);
        k = _mm256_add_epi64(k, _mm256_cmpeq_epi64(four, zero));
        const __m256i sixes =
            _mm256_or_si256(_mm256_or_si256(six, _mm256_slli_epi64(six, 1)), _mm256_slli_epi64(six, 2));
        const __m256i smaller = _mm256_andnot_si256(sixes, _mm256_and_si256(x, magnitude));
        const __m256i none = _mm256_cmpeq_epi64(six, zero);
        k = _mm256_add_epi64(k, none);
        k = _mm256_add_epi64(k, _mm256_or_si256(none, _mm256_cmpeq_epi64(smaller, zero)));
        uniform = _mm256_sub_epi64(uniform, _mm256_cmpeq_epi64(x, turned));
        _mm256_storeu_si256((__m256i *)(void *)cls,
                            _mm256_add_epi64(k, _mm256_set1_epi64x(NB_COUNT_MIXED_6)));
        c->n[0][cls[0]][scales[i]]++;
        c->n[1][cls[1]][scales[i + 1]]++;
        c->n[0][cls[2]][scales[i + 2]]++;
        c->n[1][cls[3]][scales[i + 3]]++;
    }
    _mm256_storeu_si256((__m256i *)(void *)same, uniform);
    c->uniform += same[0] + same[1] + same[2] + same[3];
}

/* A group of plain blocks under ordinary scales: adds how many stand under each of the scales just below the largest. Most groups
 * have none there. */
__attribute__((target("avx2,popcnt"))) static void count_near_avx2(__m256i scales, nb_counts *c)
{
    const __m256i first = _mm256_set1_epi8(NEARLY - NB_NEAR + 1);
    if (!_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(scales, first), scales))) return;
    for (int k = 0; k < NB_NEAR; k++) {
        const __m256i equal = _mm256_cmpeq_epi8(scales, _mm256_set1_epi8((char)(NEARLY - k)));
        c->plain_near[k] += (unsigned)__builtin_popcount((unsigned)_mm256_movemask_epi8(equal));
    }
}

/* 32 blocks under ordinary scales, of which some have no code of 6 or nothing else. False: one is dead or uniform. A magnitude
 * plus 2 has bit 3 set where the code stands for 4 or 6, plus 1 where it stands for 6. A block whose bytes are all equal may be
 * uniform. */
__attribute__((target("avx2,popcnt"))) static bool count_some_avx2(const unsigned char *codes, nb_counts *c)
{
    const __m256i zero = _mm256_setzero_si256(), magnitude = _mm256_set1_epi8(0x77);
    const __m256i to_4 = _mm256_set1_epi8(0x22), to_6 = _mm256_set1_epi8(0x11),
                  bit = _mm256_set1_epi8((char)0x88);
    const __m256i turn = _mm256_setr_epi8(1, 2, 3, 4, 5, 6, 7, 0, 9, 10, 11, 12, 13, 14, 15, 8, 1, 2, 3, 4, 5,
                                          6, 7, 0, 9, 10, 11, 12, 13, 14, 15, 8);
    __m256i odd = zero, none_4 = zero, none_6 = zero;
    uint64_t no_4[4], no_6[4];
    for (size_t k = 0; k < 8; k++) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(codes + 32 * k));
        const __m256i m = _mm256_and_si256(x, magnitude);
        const __m256i four = _mm256_and_si256(_mm256_add_epi8(m, to_4), bit),
                      six = _mm256_and_si256(_mm256_add_epi8(m, to_6), bit);
        odd = _mm256_or_si256(odd, _mm256_cmpeq_epi64(m, zero));
        odd = _mm256_or_si256(odd, _mm256_cmpeq_epi64(x, _mm256_shuffle_epi8(x, turn)));
        none_4 = _mm256_sub_epi64(none_4, _mm256_cmpeq_epi64(four, zero));
        none_6 = _mm256_sub_epi64(none_6, _mm256_cmpeq_epi64(six, zero));
    }
    if (!_mm256_testz_si256(odd, odd)) return false;
    _mm256_storeu_si256((__m256i *)(void *)no_4, none_4);
    _mm256_storeu_si256((__m256i *)(void *)no_6, none_6);
    const uint64_t without_6 = no_6[0] + no_6[1] + no_6[2] + no_6[3];
    c->plain_6 += 32 - without_6;
    c->plain_4 += without_6 - (no_4[0] + no_4[1] + no_4[2] + no_4[3]);
    return true;
}

/* Blocks as quantisers leave them have a code of 6 and another one: such are neither dead nor uniform, and need no closer look. */
__attribute__((target("avx2,popcnt"))) void
nb_count_16_avx2(const unsigned char *codes, const unsigned char *scales, size_t n, nb_counts *c)
{
    const __m256i zero = _mm256_setzero_si256(), magnitude = _mm256_set1_epi8(0x77),
                  to_6 = _mm256_set1_epi8(0x11), bit = _mm256_set1_epi8((char)0x88);
    const __m256i least = _mm256_set1_epi8(PLAIN_MIN), span = _mm256_set1_epi8(PLAIN_MAX - PLAIN_MIN);
    __m256i top = zero;
    uint8_t tops[32];
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const __m256i s = _mm256_loadu_si256((const __m256i *)(const void *)(scales + i));
        const __m256i odd = _mm256_subs_epu8(_mm256_sub_epi8(s, least), span);
        __m256i other = zero;
#pragma GCC unroll 8
        for (size_t k = 0; k < 8; k++) {
            const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(codes + 8 * i + 32 * k));
            const __m256i six = _mm256_and_si256(_mm256_add_epi8(_mm256_and_si256(x, magnitude), to_6), bit);
            other = _mm256_or_si256(
                other, _mm256_or_si256(_mm256_cmpeq_epi64(six, zero), _mm256_cmpeq_epi64(six, bit)));
        }
        if (_mm256_testz_si256(odd, odd) && _mm256_testz_si256(other, other)) {
            c->plain_6 += 32;
        } else if (!_mm256_testz_si256(odd, odd) || !count_some_avx2(codes + 8 * i, c)) {
            count_odd(codes + 8 * i, scales + i, 32, c);
            continue;
        }
        c->plain += 32;
        count_near_avx2(s, c);
        top = _mm256_max_epu8(top, s);
    }
    _mm256_storeu_si256((__m256i *)(void *)tops, top);
    for (size_t k = 0; k < 32; k++) c->plain_top = tops[k] > c->plain_top ? tops[k] : c->plain_top;
    if (i < n) nb_count_16_generic(codes + 8 * i, scales + i, n - i, c);
}

/* The same with a mask where AVX2 has a vector of -1 and 0. */
__attribute__((target("avx512f,avx512bw,popcnt"))) static void count_near_avx512(__m512i scales, nb_counts *c)
{
    if (!_mm512_cmpge_epu8_mask(scales, _mm512_set1_epi8(NEARLY - NB_NEAR + 1))) return;
    for (int k = 0; k < NB_NEAR; k++) {
        const __mmask64 equal = _mm512_cmpeq_epi8_mask(scales, _mm512_set1_epi8((char)(NEARLY - k)));
        c->plain_near[k] += (unsigned)__builtin_popcountll(equal);
    }
}

__attribute__((target("avx512f,avx512bw,popcnt"))) static bool count_some_avx512(const unsigned char *codes,
                                                                                 nb_counts *c)
{
    const __m512i magnitude = _mm512_set1_epi8(0x77), to_4 = _mm512_set1_epi8(0x22),
                  to_6 = _mm512_set1_epi8(0x11), bit = _mm512_set1_epi8((char)0x88);
    const __m512i turn = _mm512_set4_epi32(0x080F0E0D, 0x0C0B0A09, 0x00070605, 0x04030201);
    __mmask8 odd = 0;
    unsigned with_4 = 0, with_6 = 0;
    for (size_t k = 0; k < 8; k++) {
        const __m512i x = _mm512_loadu_si512(codes + 64 * k), m = _mm512_and_si512(x, magnitude);
        odd |= _mm512_testn_epi64_mask(m, m);
        odd |= _mm512_cmpeq_epi64_mask(x, _mm512_shuffle_epi8(x, turn));
        with_4 += (unsigned)__builtin_popcount(_mm512_test_epi64_mask(_mm512_add_epi8(m, to_4), bit));
        with_6 += (unsigned)__builtin_popcount(_mm512_test_epi64_mask(_mm512_add_epi8(m, to_6), bit));
    }
    if (odd) return false;
    c->plain_6 += with_6;
    c->plain_4 += with_4 - with_6;
    return true;
}

__attribute__((target("avx512f,avx512bw,popcnt"))) void
nb_count_16_avx512(const unsigned char *codes, const unsigned char *scales, size_t n, nb_counts *c)
{
    const __m512i magnitude = _mm512_set1_epi8(0x77), to_6 = _mm512_set1_epi8(0x11),
                  bit = _mm512_set1_epi8((char)0x88);
    const __m512i least = _mm512_set1_epi8(PLAIN_MIN), span = _mm512_set1_epi8(PLAIN_MAX - PLAIN_MIN);
    __m512i top = _mm512_setzero_si512();
    uint8_t tops[64];
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        const __m512i s = _mm512_loadu_si512(scales + i);
        const __mmask64 odd = _mm512_cmpgt_epu8_mask(_mm512_sub_epi8(s, least), span);
        __m512i fewest = bit, most = _mm512_setzero_si512(); /* bits of 6 in a block, as numbers */
#pragma GCC unroll 8
        for (size_t k = 0; k < 8; k++) {
            const __m512i x = _mm512_loadu_si512(codes + 8 * i + 64 * k);
            const __m512i six = _mm512_and_si512(_mm512_add_epi8(_mm512_and_si512(x, magnitude), to_6), bit);
            fewest = _mm512_min_epu64(fewest, six);
            most = _mm512_max_epu64(most, six);
        }
        const bool other = _mm512_testn_epi64_mask(fewest, fewest) || _mm512_cmpeq_epi64_mask(most, bit);
        if (!odd && !other) {
            c->plain_6 += 64;
        } else if (odd || !count_some_avx512(codes + 8 * i, c)) {
            count_odd(codes + 8 * i, scales + i, 64, c);
            continue;
        }
        c->plain += 64;
        count_near_avx512(s, c);
        top = _mm512_max_epu8(top, s);
    }
    _mm512_storeu_si512(tops, top);
    for (size_t k = 0; k < 64; k++) c->plain_top = tops[k] > c->plain_top ? tops[k] : c->plain_top;
    if (i < n) nb_count_16_generic(codes + 8 * i, scales + i, n - i, c);
}

nb_count_16_fn nb_count_16_best(void)
{
    nb_cpu cpu;
    nb_cpu_detect(&cpu);
    return cpu.avx512 ? nb_count_16_avx512 : cpu.avx2 ? nb_count_16_avx2 : nb_count_16_generic;
}

void nb_count_32(const unsigned char *codes, const unsigned char *scales, size_t n, nb_counts *c)
{
    c->any = c->any || n;
    for (size_t i = 0; i < n; i++) {
        const uint64_t x = codes ? load(codes + 16 * i) | load(codes + 16 * i + 8) : 0;
        c->n[i & 1][(x & NIBBLES(7)) != 0][scales[i]]++;
    }
}

/* ---- floats ---- */

/* The bits that are all set in a NaN or infinity (FP8: in a NaN). */
static uint64_t exponent(nb_dtype d)
{
    switch (d) {
    case NB_DT_F8_E4M3: return 0x7F;
    case NB_DT_F16: return 0x7C00;
    case NB_DT_BF16: return 0x7F80;
    case NB_DT_F32: return 0x7F800000;
    default: return 0x7FF0000000000000;
    }
}

size_t nb_count_bad_generic(const unsigned char *p, size_t n, nb_dtype d)
{
    const uint64_t e = exponent(d);
    const size_t size = nb_dtype_bits(d) / 8;
    size_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t v = 0;
        memcpy(&v, p + i * size, size);
        bad += (v & e) == e;
    }
    return bad;
}

/* True when one of 128 bytes' elements has all bits of e, which is repeated over the vector. */
#define ANY_BAD(bits)                                                                                        \
    __attribute__((target("avx2"))) static bool any_bad_##bits(const unsigned char *p, __m256i e)            \
    {                                                                                                        \
        __m256i bad = _mm256_setzero_si256();                                                                \
        for (size_t k = 0; k < 4; k++) {                                                                     \
            const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(p + 32 * k));               \
            bad = _mm256_or_si256(bad, _mm256_cmpeq_epi##bits(_mm256_and_si256(x, e), e));                   \
        }                                                                                                    \
        return !_mm256_testz_si256(bad, bad);                                                                \
    }
ANY_BAD(8)
ANY_BAD(16)
ANY_BAD(32)
ANY_BAD(64)

/* Only pieces with something bad in them are counted. */
__attribute__((target("avx2"))) size_t nb_count_bad_avx2(const unsigned char *p, size_t n, nb_dtype d)
{
    enum { PIECE = 128 };
    const size_t bits = nb_dtype_bits(d), per = PIECE * 8 / bits;
    uint64_t e = exponent(d);
    for (size_t b = bits; b < 64; b *= 2) e |= e << b;
    const __m256i mask = _mm256_set1_epi64x((long long)e);
    size_t bad = 0, i = 0;
    for (; i + per <= n; i += per) {
        const unsigned char *at = p + i * bits / 8;
        const bool any = bits == 8    ? any_bad_8(at, mask)
                         : bits == 16 ? any_bad_16(at, mask)
                         : bits == 32 ? any_bad_32(at, mask)
                                      : any_bad_64(at, mask);
        if (any) bad += nb_count_bad_generic(at, per, d);
    }
    return bad + nb_count_bad_generic(p + i * bits / 8, n - i, d);
}

nb_count_bad_fn nb_count_bad_best(void)
{
    nb_cpu cpu;
    nb_cpu_detect(&cpu);
    return cpu.avx2 ? nb_count_bad_avx2 : nb_count_bad_generic;
}

/* ---- from counts to values ---- */

typedef enum odd { ODD_NAN, ODD_SIGN, ODD_ZERO, ODD_SUBNORMAL, ODD_NONE } odd;

static odd odd_nvfp4(bool live, uint8_t byte)
{
    const uint8_t m = byte & 0x7F;
    if (m == 0x7F) return ODD_NAN;
    if (byte & 0x80) return ODD_SIGN;
    if (live && m == 0) return ODD_ZERO;
    return live && m < 8 ? ODD_SUBNORMAL : ODD_NONE;
}

static odd odd_e8m0(bool live, uint8_t byte)
{
    return byte == 0xFF ? ODD_NAN : live && byte == 0 ? ODD_ZERO : ODD_NONE;
}

static nb_mark *mark_of(nb_block_values *v, odd o)
{
    nb_mark *const marks[] = {&v->nan, &v->sign, &v->zero, &v->subnormal};
    return marks[o];
}

static void add_nvfp4(nb_block_values *v, unsigned cls, uint8_t byte, uint64_t n)
{
    const uint8_t m = byte & 0x7F;
    if (cls == NB_COUNT_DEAD) {
        v->dead_odd += byte != 0 && byte != 0x20 && byte != 0x38 && byte != 0x7E ? n : 0;
        return;
    }
    v->live += n;
    if (m == 0x7F) return;
    if (m > v->top) v->top = m;
    if (m >= 0x08 && m < 0x7E) {
        v->normal += n;
        v->normal_6 += cls >= NB_COUNT_HAS_6 ? n : 0;
        v->normal_4 += cls == NB_COUNT_HAS_4 ? n : 0;
    }
    v->full += m == 0x7E ? n : 0;
    v->full_mixed += m == 0x7E && cls == NB_COUNT_MIXED_6 ? n : 0;
    if (m <= NEARLY && m > NEARLY - NB_NEAR) v->near[NEARLY - m] += n;
}

static bool is_live(const unsigned char *codes, bool nvfp4, size_t i)
{
    const uint64_t x = nvfp4 ? load(codes + 8 * i) : load(codes + 16 * i) | load(codes + 16 * i + 8);
    return (x & NIBBLES(7)) != 0;
}

/* True when 16 entries of a histogram are all 0. */
static bool none_of_16(const uint32_t *n)
{
    __m128i any = _mm_setzero_si128();
    for (size_t i = 0; i < 16; i += 4)
        any = _mm_or_si128(any, _mm_loadu_si128((const __m128i *)(const void *)(n + i)));
    return _mm_movemask_epi8(_mm_cmpeq_epi8(any, _mm_setzero_si128())) == 0xFFFF;
}

/* Adds the histogram to v, and to counts how many blocks are odd in which way. */
static void fold_histogram(nb_block_values *v, const nb_counts *c, bool nvfp4, uint64_t counts[ODD_NONE + 1])
{
    for (unsigned i = 0; i < NB_COUNT_CLASSES * 256; i++) {
        const unsigned k = i / 256;
        const uint8_t b = (uint8_t)i;
        if (b % 16 == 0 && none_of_16(&c->n[0][k][b]) && none_of_16(&c->n[1][k][b])) {
            i += 15;
            continue;
        }
        const uint32_t some = c->n[0][k][b] + c->n[1][k][b];
        if (!some) continue;
        counts[nvfp4 ? odd_nvfp4(k != NB_COUNT_DEAD, b) : odd_e8m0(k != NB_COUNT_DEAD, b)] += some;
        if (nvfp4)
            add_nvfp4(v, k, b, some);
        else
            v->live += k != NB_COUNT_DEAD ? some : 0;
    }
}

void nb_counts_fold(nb_block_values *v, const nb_counts *c, bool nvfp4, const unsigned char *codes,
                    const unsigned char *scales, uint64_t first, size_t n)
{
    uint64_t counts[ODD_NONE + 1] = {0};
    if (c->any) fold_histogram(v, c, nvfp4, counts);
    v->blocks += n;
    v->uniform += c->uniform;
    v->live += c->plain;
    v->normal += c->plain;
    v->normal_6 += c->plain_6;
    v->normal_4 += c->plain_4;
    for (size_t k = 0; k < NB_NEAR; k++) v->near[k] += c->plain_near[k];
    v->top = c->plain_top > v->top ? c->plain_top : v->top;
    for (int o = 0; o < ODD_NONE; o++) {
        nb_mark *m = mark_of(v, (odd)o);
        size_t i = 0;
        if (!counts[o]) continue;
        while (m->count == 0 && i < n) { /* search for the first only */
            const bool live = codes && is_live(codes, nvfp4, i);
            if ((nvfp4 ? odd_nvfp4(live, scales[i]) : odd_e8m0(live, scales[i])) == (odd)o) break;
            i++;
        }
        nb_mark_add(m, counts[o], m->count ? m->first : first + i);
    }
}
