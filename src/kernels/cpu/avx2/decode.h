/*
 * Codes of every weight format as F32 in registers: 4 consecutive k of the 16 rows of a panel at a time, lane = row. Exact,
 * subnormals and NaN included, by table look-ups and shifts alone: no arithmetic, so nothing to round and no slow path for
 * subnormal operands.
 *
 * The upper 16 bits of an F32 (a BF16) hold all of E2M1 and E4M3, so two look-ups in 16-byte tables give the two bytes of a
 * value, an unpack joins them, and a shift or a mask makes the F32. What costs is everything that is not the FMA: grouping
 * bytes by rows before the look-ups lets the unpack deliver the rows in order, and taking 16 rows x 4 k rather than 8 x 8 gives
 * the FMAs twice as many independent chains with the same number of registers.
 */
#ifndef NB_KERNELS_AVX2_DECODE_H
#define NB_KERNELS_AVX2_DECODE_H

#include <immintrin.h>
#include <string.h>

#include "kernels/packed.h"
#include "numerics/formats.h"

#define NB_INLINE static inline __attribute__((always_inline))

/* In front of a loop whose bounds are constants once everything is inlined: arrays of vectors become registers. Clang needs to
 * hear "full", not a number, to do so before it splits arrays. */
#if defined(__clang__)
#define NB_UNROLL _Pragma("clang loop unroll(full)")
#else
#define NB_UNROLL _Pragma("GCC unroll 16")
#endif

/* After each add to a sum of several products. GCC would form all products first and then add them as a tree, for which there are not
 * registers enough. */
#if defined(__clang__)
#define NB_IN_PLACE(v) (void)(v)
#else
#define NB_IN_PLACE(v) __asm__("" : "+x"(v))
#endif

/* 4 k of 16 rows on the way to F32; nb_take turns them into vectors, in most formats with one instruction each. */
typedef struct nb_quad {
    __m256i w[8];
} nb_quad;

NB_INLINE __m256i nb_load_i(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

NB_INLINE __m256i nb_table(__m128i t)
{
    return _mm256_broadcastsi128_si256(t);
}

/* In each half of the register: the lower 16 bits of its four words, then the upper. */
NB_INLINE __m256i nb_group(__m256i w)
{
    return _mm256_shuffle_epi8(w,
                               nb_table(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15)));
}

/* p: the words of 16 rows, each 8 nibbles. second: k 4..7 in place of 0..3. w[0] = rows 0..7: (k 0, k 2) as BF16, w[1] = (k 1, k 3);
 * w[2], w[3] = rows 8..15. */
NB_INLINE void nb_open_e2m1(const uint8_t *p, bool second, nb_quad *q)
{
    const __m256i high = nb_table(_mm_setr_epi8(0x00, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40, -0x80, -0x41,
                                                -0x41, -0x41, -0x40, -0x40, -0x40, -0x40));
    const __m256i low = nb_table(_mm_setr_epi8(0x00, 0x00, -0x80, -0x40, 0x00, 0x40, -0x80, -0x40, 0x00, 0x00,
                                               -0x80, -0x40, 0x00, 0x40, -0x80, -0x40));
    const __m256i nibble = _mm256_set1_epi8(0x0F);
    /* 16 bits of row r beside 16 bits of row r + 8. Loading two bytes off does the shift, within one cache line. */
    __m256i w = second ? _mm256_blend_epi16(nb_load_i(p + 2), nb_load_i(p + 32), 0xAA)
                       : _mm256_blend_epi16(nb_load_i(p), nb_load_i(p + 30), 0xAA);
    w = nb_group(w);
    __m256i even = _mm256_and_si256(w, nibble), odd = _mm256_and_si256(_mm256_srli_epi16(w, 4), nibble);
    __m256i he = _mm256_shuffle_epi8(high, even), le = _mm256_shuffle_epi8(low, even);
    __m256i ho = _mm256_shuffle_epi8(high, odd), lo = _mm256_shuffle_epi8(low, odd);
    q->w[0] = _mm256_unpacklo_epi8(le, he);
    q->w[1] = _mm256_unpacklo_epi8(lo, ho);
    q->w[2] = _mm256_unpackhi_epi8(le, he);
    q->w[3] = _mm256_unpackhi_epi8(lo, ho);
}

/* The words of 8 rows as bytes 12 + 2 * value, which are never negative: k 0 2 4 6 of their eight, then k 1 3 5 7. */
NB_INLINE void nb_open_word(const uint8_t *p, __m256i out[2])
{
    const __m256i table = nb_table(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m256i nibble = _mm256_set1_epi8(0x0F);
    __m256i w = nb_load_i(p);
    out[0] = _mm256_shuffle_epi8(table, _mm256_and_si256(w, nibble));
    out[1] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(w, 4), nibble));
}

/* Four bytes of activations for every row of a vector. */
NB_INLINE __m256i nb_four_bytes(const void *q)
{
    int32_t word;
    memcpy(&word, q, 4);
    return _mm256_set1_epi32(word);
}

/* w: the words of 8 rows, each 4 E4M3 bytes s eeee mmm. out[0] = (k 0, k 1) as BF16, out[1] = (k 2, k 3). The upper nibble s eee
 * gives the upper byte and the lower nibble e mmm, moved up, is the lower one; where the exponent is 0 two
 * further look-ups by the lower nibble correct both bytes. */
NB_INLINE void nb_open_e4m3(__m256i w, __m256i out[2])
{
    const __m256i high = nb_table(_mm_setr_epi8(0x3C, 0x3D, 0x3E, 0x3F, 0x40, 0x41, 0x42, 0x43, -0x44, -0x43,
                                                -0x42, -0x41, -0x40, -0x3F, -0x3E, -0x3D));
    /* A set top bit in the index makes a look-up give 0: no correction but for eee = 000. */
    const __m256i normal = nb_table(_mm_setr_epi8(0, -0x80, -0x80, -0x80, -0x80, -0x80, -0x80, -0x80, 0,
                                                  -0x80, -0x80, -0x80, -0x80, -0x80, -0x80, -0x80));
    const __m256i fix_high =
        nb_table(_mm_setr_epi8(0x3C, 0x07, 0x07, 0x07, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
    const __m256i fix_low =
        nb_table(_mm_setr_epi8(0, 0x10, -0x60, -0x10, 0x40, 0x70, 0x20, 0x10, 0, 0, 0, 0, 0, 0, 0, 0));
    const __m256i nibble = _mm256_set1_epi8(0x0F);
    w = nb_group(w);
    __m256i upper = _mm256_and_si256(_mm256_srli_epi16(w, 4), nibble), lower = _mm256_and_si256(w, nibble);
    __m256i fix = _mm256_or_si256(lower, _mm256_shuffle_epi8(normal, upper));
    __m256i h = _mm256_xor_si256(_mm256_shuffle_epi8(high, upper), _mm256_shuffle_epi8(fix_high, fix));
    __m256i l = _mm256_xor_si256(_mm256_slli_epi16(lower, 4), _mm256_shuffle_epi8(fix_low, fix));
    /* 0x7F and 0xFF: with an upper byte of ones, and the lower one 0xF0, the BF16 is NaN. */
    h = _mm256_or_si256(h,
                        _mm256_cmpeq_epi8(_mm256_or_si256(w, _mm256_set1_epi8(-0x80)), _mm256_set1_epi8(-1)));
    out[0] = _mm256_unpacklo_epi8(l, h);
    out[1] = _mm256_unpackhi_epi8(l, h);
}

/* k 4 * quad to 4 * quad + 3 of the panel at codes. f is a constant where this is used, here and below. */
NB_INLINE void nb_open(nb_format f, const uint8_t *codes, size_t quad, nb_quad *q)
{
    switch (f) {
    case NB_FMT_NVFP4:
    case NB_FMT_MXFP4: nb_open_e2m1(codes + quad / 2 * 64, quad & 1, q); break;
    case NB_FMT_FP8:
        nb_open_e4m3(nb_load_i(codes + quad * 64), q->w);
        nb_open_e4m3(nb_load_i(codes + quad * 64 + 32), q->w + 2);
        break;
    case NB_FMT_BF16:
    case NB_FMT_F16:
        NB_UNROLL
        for (size_t i = 0; i < 4; i++) { /* rows 0..7: words 0 and 1, then rows 8..15 */
            __m256i w = nb_load_i(codes + (quad * 2 + i % 2) * 64 + i / 2 * 32);
            q->w[i] = f == NB_FMT_BF16 ? w : _mm256_permute4x64_epi64(nb_group(w), 0xD8);
        }
        break;
    default:
        NB_UNROLL
        for (size_t i = 0; i < 8; i++) q->w[i] = nb_load_i(codes + (quad * 4 + i % 4) * 64 + i / 4 * 32);
        break;
    }
}

/* k number j of an opened quad, rows 8 * half to 8 * half + 7. */
NB_INLINE __m256 nb_take(nb_format f, const nb_quad *q, size_t j, size_t half)
{
    bool fp4 = f == NB_FMT_NVFP4 || f == NB_FMT_MXFP4;
    if (f == NB_FMT_F32) return _mm256_castsi256_ps(q->w[half * 4 + j]);
    __m256i w = q->w[half * 2 + (fp4 ? j % 2 : j / 2)];
    bool upper = fp4 ? j / 2 : j % 2;
    if (f == NB_FMT_F16)
        return _mm256_cvtph_ps(upper ? _mm256_extracti128_si256(w, 1) : _mm256_castsi256_si128(w));
    return _mm256_castsi256_ps(upper ? _mm256_and_si256(w, _mm256_set1_epi32((int)0xFFFF0000))
                                     : _mm256_slli_epi32(w, 16));
}

/* 8 scale bytes that are E4M3 without sign or NaN: moved to where F16 has exponent and mantissa they stand for value * 2^-8. */
NB_INLINE __m256 nb_plain_e4m3(__m128i bytes)
{
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 7)),
                         _mm256_set1_ps(256.0f));
}

NB_INLINE __m256 nb_e8m0(__m128i bytes)
{
    __m256i b = _mm256_cvtepu8_epi32(bytes);
    /* 2^-127 and NaN differ from the plain shift in the top bit of the mantissa. */
    __m256i ends = _mm256_or_si256(_mm256_cmpeq_epi32(b, _mm256_setzero_si256()),
                                   _mm256_cmpeq_epi32(b, _mm256_set1_epi32(255)));
    return _mm256_castsi256_ps(
        _mm256_or_si256(_mm256_slli_epi32(b, 23), _mm256_and_si256(ends, _mm256_set1_epi32(0x00400000))));
}

/* The scales of rows 8 * half to 8 * half + 7 for the 16 k of `block`; ones where the format has none. odd (constant, too): NVFP4
 * bytes may have a sign or be NaN; then they go through the reference's table. */
NB_INLINE __m256 nb_scale(nb_format f, bool odd, const nb_packed *w, const uint8_t *scales, size_t block,
                          size_t half)
{
    __m128i bytes;
    switch (f) {
    case NB_FMT_NVFP4:
        bytes = _mm_loadl_epi64((const __m128i *)(scales + block * NB_PANEL + half * 8));
        return odd ? _mm256_i32gather_ps(nb_e4m3_table, _mm256_cvtepu8_epi32(bytes), 4)
                   : nb_plain_e4m3(bytes);
    case NB_FMT_MXFP4:
        return nb_e8m0(_mm_loadl_epi64((const __m128i *)(scales + block / 2 * NB_PANEL + half * 8)));
    case NB_FMT_FP8:
        return _mm256_castsi256_ps(nb_load_i(scales + (block * 16 / w->scale_k * NB_PANEL + half * 8) * 4));
    default: return _mm256_set1_ps(1.0f);
    }
}

/* The same of all 16 rows. */
NB_INLINE void nb_scales_of(nb_format f, bool odd, const nb_packed *w, const uint8_t *scales, size_t block,
                            __m256 out[2])
{
    if (f == NB_FMT_NVFP4 && !odd) { /* as nb_plain_e4m3 */
        __m128i bytes = _mm_loadu_si128((const __m128i *)(scales + block * NB_PANEL));
        __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 7);
        out[0] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_set1_ps(256.0f));
        out[1] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)), _mm256_set1_ps(256.0f));
        return;
    }
    out[0] = nb_scale(f, odd, w, scales, block, 0);
    out[1] = nb_scale(f, odd, w, scales, block, 1);
}

/* A block scale for sums that are integers: E8M0's times `factor` (int8.h). */
NB_INLINE __m256 nb_fit_scale(nb_format f, __m256 scale, float factor)
{
    return f == NB_FMT_MXFP4 ? _mm256_mul_ps(scale, _mm256_set1_ps(factor)) : scale;
}

/* Asks for the codes `ahead` bytes after those of block b. */
NB_INLINE void nb_ask_codes(const uint8_t *codes, size_t b, size_t ahead)
{
    _mm_prefetch((const char *)codes + b * 128 + ahead, _MM_HINT_T0);
    _mm_prefetch((const char *)codes + b * 128 + ahead + 64, _MM_HINT_T0);
}

#endif
