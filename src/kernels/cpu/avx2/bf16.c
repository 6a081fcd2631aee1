/*
 * E2M1 weights times rows of BF16 in fixed point (fixed16.h), as integers: sums of a block of 16 k are exact, then one FMA folds them
 * into the output by both scales, the weights' first. The order of the FMAs is all that the bits depend on, so few rows and many may be
 * multiplied in ways of their own:
 *
 *   up to four rows: codes go from the look-ups straight to the products, as 12 + 2 * value in unsigned bytes, times the signed bytes of
 *                    both halves of q by vpmaddubsw. A pair is at most 2 * 24 * 128 = 6144, and the four pairs of a block 24576: they add
 *                    up in 16 bits without saturating. Two vpmaddwd weigh and join the halves, and the bias is added
 *   more rows:       256 k of two panels are looked up once into 16 KB, as signed words that vpmaddwd multiplies with pairs of q
 *
 * The sums are below 2^24 (16 * 12 * 32639), so that F32 holds them, too. 128 products take 22 instructions where there are many rows,
 * 46 where there is one; F32 FMAs took 27 and 85.
 */
#include <math.h>
#include <stdalign.h>
#include <string.h>

#include "kernels/cpu/avx2/avx2.h"
#include "kernels/cpu/avx2/decode.h"
#include "kernels/cpu/fixed16.h"

enum {
    BLOCK = 16,
    FEW = 4,    /* rows whose sums stay in registers */
    PAIRS = 8,  /* pairs of k in a block */
    SLICE = 16, /* blocks that are looked up at a time */
    SLICES = 8, /* slices of activations that are copied at a time: 400 KB of TILE rows */
    TILE = 96,  /* rows that share what is looked up */
    MOST = 4,   /* vectors of eight outputs in two panels */
    SLICE_K = SLICE * BLOCK,
    AHEAD = 4096 /* bytes of codes that are asked for in advance */
};

/* The magnitude of 8 floats as BF16, rounded to nearest even; what is not finite stays above all numbers. */
NB_INLINE __m256i round_magnitude(__m256 v)
{
    __m256i m = _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7FFFFFFF));
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(m, 16), _mm256_set1_epi32(1));
    m = _mm256_add_epi32(_mm256_add_epi32(m, odd), _mm256_set1_epi32(0x7FFF));
    return _mm256_and_si256(m, _mm256_set1_epi32((int)0xFFFF0000));
}

NB_INLINE int32_t sum_lanes(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}

/* q0, q1: 16 values in the order of k, as the bytes of a block. */
NB_INLINE void store_halves(__m256i q0, __m256i q1, nb_fixed16 *out)
{
    const __m128i parts = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    const __m256i half = _mm256_set1_epi32(128);
    __m256i h0 = _mm256_srai_epi32(_mm256_add_epi32(q0, half), 8);
    __m256i h1 = _mm256_srai_epi32(_mm256_add_epi32(q1, half), 8);
    __m256i l0 = _mm256_sub_epi32(q0, _mm256_slli_epi32(h0, 8));
    __m256i l1 = _mm256_sub_epi32(q1, _mm256_slli_epi32(h1, 8));
    __m256i h = _mm256_permute4x64_epi64(_mm256_packs_epi32(h0, h1), 0xD8);
    __m256i l = _mm256_permute4x64_epi64(_mm256_packs_epi32(l0, l1), 0xD8);
    __m128i hi = _mm_packs_epi16(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
    __m128i lo = _mm_packs_epi16(_mm256_castsi256_si128(l), _mm256_extracti128_si256(l, 1));
    _mm_storeu_si128((__m128i *)out->hi, _mm_shuffle_epi8(hi, parts));
    _mm_storeu_si128((__m128i *)out->lo, _mm_shuffle_epi8(lo, parts));
    out->bias = -12 * sum_lanes(_mm256_add_epi32(q0, q1));
}

void nb_avx2_prepare_bf16(const float *x, size_t k, size_t k_pad, float *row)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    nb_fixed16 *out = (nb_fixed16 *)(void *)row;
    for (size_t b = 0; b < k_pad / BLOCK; b++) {
        __m256 v[2];
        nb_load_block(x, k, b, v);
        __m256i m0 = round_magnitude(v[0]), m1 = round_magnitude(v[1]);
        uint32_t amax = nb_largest_bits(_mm256_max_epu32(m0, m1));
        nb_fixed16 block = {.scale = NAN};
        if (amax < 0x7F800000) {
            /* A significand of all ones would round up to a byte more than there is: it counts as the next power of two. */
            uint32_t e = (amax + 0x10000) >> 23, low = 127 - 111;
            if (e < low) e = low;
            uint32_t up = (254 + 14 - e) << 23, down = (e - 15) << 23; /* 2^(14 - e), 2^(e - 15) */
            float f;
            memcpy(&f, &up, 4);
            memcpy(&block.scale, &down, 4);
            v[0] = _mm256_or_ps(_mm256_castsi256_ps(m0), _mm256_and_ps(v[0], sign));
            v[1] = _mm256_or_ps(_mm256_castsi256_ps(m1), _mm256_and_ps(v[1], sign));
            store_halves(_mm256_cvtps_epi32(_mm256_mul_ps(v[0], _mm256_set1_ps(f))),
                         _mm256_cvtps_epi32(_mm256_mul_ps(v[1], _mm256_set1_ps(f))), &block);
        }
        out[b] = block;
    }
}

/* acc[r][half] += block b of `halves` halves of a panel times that of `rows` rows. codes: of the first half. */
NB_INLINE void add_block(size_t rows, size_t halves, const uint8_t *codes, const float *x, size_t ldx,
                         size_t b, const __m256 *scale, __m256 *acc)
{
    __m256i hi[FEW], lo[FEW];
    NB_UNROLL
    for (size_t i = 0; i < 2; i++) {
        __m256i code[2][2];
        NB_UNROLL
        for (size_t h = 0; h < halves; h++) nb_open_word(codes + b * 128 + i * 64 + h * 32, code[h]);
        NB_UNROLL
        for (size_t j = 0; j < 2; j++) {
            NB_UNROLL
            for (size_t r = 0; r < rows; r++) {
                const nb_fixed16 *q = nb_fixed16_row(x + r * ldx) + b;
                __m256i qh = nb_four_bytes(q->hi + 8 * i + 4 * j), ql = nb_four_bytes(q->lo + 8 * i + 4 * j);
                NB_UNROLL
                for (size_t h = 0; h < halves; h++) {
                    size_t at = r * halves + h;
                    __m256i ph = _mm256_maddubs_epi16(code[h][j], qh);
                    __m256i pl = _mm256_maddubs_epi16(code[h][j], ql);
                    hi[at] = i + j > 0 ? _mm256_add_epi16(hi[at], ph) : ph;
                    lo[at] = i + j > 0 ? _mm256_add_epi16(lo[at], pl) : pl;
                    NB_IN_PLACE(hi[at]);
                    NB_IN_PLACE(lo[at]);
                }
            }
        }
    }
    NB_UNROLL
    for (size_t at = 0; at < rows * halves; at++) {
        const nb_fixed16 *q = nb_fixed16_row(x + at / halves * ldx) + b;
        __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(hi[at], _mm256_set1_epi16(256)),
                                       _mm256_madd_epi16(lo[at], _mm256_set1_epi16(1)));
        sum = _mm256_add_epi32(sum, _mm256_set1_epi32(q->bias));
        acc[at * (2 / halves)] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale[at % halves]),
                                                 _mm256_broadcast_ss(&q->scale), acc[at * (2 / halves)]);
    }
}

/* One row takes both halves of a panel side by side, more rows one after another: so many sums fit the registers. */
NB_INLINE void few_rows(nb_format f, bool odd, size_t rows, const nb_packed *w, const float *x, size_t ldx,
                        const float *row_scale, float *y, size_t ldy, size_t p)
{
    const uint8_t *codes = w->codes + p * w->code_bytes, *scales = w->scales + p * w->scale_bytes;
    __m256 acc[2 * FEW];
    NB_UNROLL
    for (size_t i = 0; i < 2 * rows; i++) acc[i] = _mm256_setzero_ps();
    for (size_t b = 0; b < w->k_pad / BLOCK; b++) {
        nb_ask_codes(codes, b, AHEAD);
        __m256 scale[2];
        nb_scales_of(f, odd, w, scales, b, scale);
        for (size_t h = 0; h < 2; h++) scale[h] = nb_fit_scale(f, scale[h], NB_FIXED16_E8M0);
        if (rows == 1) {
            add_block(1, 2, codes, x, ldx, b, scale, acc);
        } else {
            add_block(rows, 1, codes, x, ldx, b, scale, acc);
            add_block(rows, 1, codes + 32, x, ldx, b, scale + 1, acc + 1);
        }
    }
    NB_UNROLL
    for (size_t i = 0; i < 2 * rows; i++) {
        float m = nb_fixed16_multiplier(w) * (row_scale ? row_scale[i / 2] : 1.0f);
        nb_store_lanes(y + i / 2 * ldy + p * NB_PANEL + i % 2 * 8, _mm256_mul_ps(acc[i], _mm256_set1_ps(m)),
                       nb_lanes_of(w, p, i % 2));
    }
}

/* A slice of k of one or two panels, looked up: 2 * value in pairs of k (0, 4), (2, 6), (1, 5), (3, 7) of 8. */
typedef struct opened {
    alignas(64) int16_t codes[SLICE][PAIRS][MOST][16]; /* [block][pair][half of a panel][8 rows][2 k] */
    float scale[SLICE][MOST][8];
} opened;

/* The same k of up to TILE rows, in the same pairs. */
typedef struct slice {
    alignas(64) int16_t q[TILE][SLICE_K];
    float scale[TILE][SLICE];
} slice;

static void copy_slice(const float *x, size_t ldx, size_t rows, size_t b0, size_t n, slice *s)
{
    const __m128i pairs = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    for (size_t r = 0; r < rows; r++) {
        const nb_fixed16 *q = nb_fixed16_row(x + r * ldx) + b0;
        for (size_t b = 0; b < n; b++) {
            __m128i hi = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)q[b].hi), pairs);
            __m128i lo = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)q[b].lo), pairs);
            __m256i v =
                _mm256_add_epi16(_mm256_slli_epi16(_mm256_cvtepi8_epi16(hi), 8), _mm256_cvtepi8_epi16(lo));
            _mm256_store_si256((__m256i *)(s->q[r] + b * BLOCK), v);
            s->scale[r][b] = q[b].scale;
        }
    }
}

/* Blocks [b0, b0 + n) of panel p as the first or second one of o. The next slice's are asked for. */
NB_INLINE void open_panel(nb_format f, bool odd, const nb_packed *w, size_t p, size_t b0, size_t n,
                          size_t second, opened *o)
{
    const uint8_t *codes = w->codes + p * w->code_bytes + b0 * 128;
    for (size_t b = 0; b < n; b++) {
        nb_ask_codes(codes, b + SLICE, 0);
        for (size_t half = 0; half < 2; half++) {
            NB_UNROLL
            for (size_t i = 0; i < 2; i++) {
                __m256i code[2];
                nb_open_word(codes + b * 128 + i * 64 + half * 32, code);
                NB_UNROLL
                for (size_t j = 0; j < 2; j++) {
                    __m256i c = _mm256_sub_epi8(code[j], _mm256_set1_epi8(12));
                    /* bytes k, k+2, k+4, k+6: pairs (k, k+4) and (k+2, k+6) */
                    _mm256_store_si256((__m256i *)o->codes[b][4 * i + 2 * j][2 * second + half],
                                       _mm256_srai_epi16(_mm256_slli_epi16(c, 8), 8));
                    _mm256_store_si256((__m256i *)o->codes[b][4 * i + 2 * j + 1][2 * second + half],
                                       _mm256_srai_epi16(c, 8));
                }
            }
            __m256 scale = nb_scale(f, odd, w, w->scales + p * w->scale_bytes, b0 + b, half);
            _mm256_store_ps(o->scale[b][2 * second + half], nb_fit_scale(f, scale, NB_FIXED16_E8M0));
        }
    }
}

/* Row r of a slice times what is opened of `count` panels. Sums of all vectors grow side by side, so that the codes are the products'
 * memory operands and a pair of q is loaded once. */
NB_INLINE void opened_row(size_t count, const opened *o, const slice *s, size_t r, size_t n, float (*sums)[8])
{
    const size_t vectors = 2 * count;
    __m256 acc[MOST];
    NB_UNROLL
    for (size_t i = 0; i < vectors; i++) acc[i] = _mm256_load_ps(sums[i]);
    for (size_t b = 0; b < n; b++) {
        const int16_t *pairs = s->q[r] + b * BLOCK;
        __m256i sum[MOST];
        NB_UNROLL
        for (size_t i = 0; i < vectors; i++)
            sum[i] = _mm256_madd_epi16(nb_four_bytes(pairs), nb_load_i((const uint8_t *)o->codes[b][0][i]));
        NB_UNROLL
        for (size_t j = 1; j < PAIRS; j++) {
            __m256i q = nb_four_bytes(pairs + 2 * j);
            NB_UNROLL
            for (size_t i = 0; i < vectors; i++) {
                sum[i] = _mm256_add_epi32(
                    sum[i], _mm256_madd_epi16(q, nb_load_i((const uint8_t *)o->codes[b][j][i])));
                NB_IN_PLACE(sum[i]);
            }
        }
        __m256 scale = _mm256_broadcast_ss(&s->scale[r][b]);
        NB_UNROLL
        for (size_t i = 0; i < vectors; i++)
            acc[i] = _mm256_fmadd_ps(
                _mm256_mul_ps(_mm256_cvtepi32_ps(sum[i]), _mm256_load_ps(o->scale[b][i])), scale, acc[i]);
    }
    NB_UNROLL
    for (size_t i = 0; i < vectors; i++) _mm256_store_ps(sums[i], acc[i]);
}

/* What up to TILE rows are multiplied with: panels [p0, p1), and where the outputs go. */
typedef struct part {
    const nb_packed *w;
    const float *row_scale; /* or NULL */
    float *y;
    size_t ldy, rows;
} part;

/* The sums of panels p to p + count between two pieces of k wait in y. */
NB_INLINE void load_sums(const part *a, size_t p, size_t count, bool first, float (*sums)[MOST][8])
{
    for (size_t r = 0; r < a->rows; r++)
        for (size_t i = 0; i < 2 * count; i++)
            _mm256_store_ps(sums[r][i], first ? _mm256_setzero_ps()
                                              : nb_load_lanes(a->y + r * a->ldy + p * NB_PANEL + i * 8,
                                                              nb_lanes_of(a->w, p, i)));
}

NB_INLINE void store_sums(const part *a, size_t p, size_t count, bool last, float (*sums)[MOST][8])
{
    for (size_t r = 0; r < a->rows; r++) {
        /* Unfinished sums stay as they are. */
        float m = !last ? 1.0f : nb_fixed16_multiplier(a->w) * (a->row_scale ? a->row_scale[r] : 1.0f);
        for (size_t i = 0; i < 2 * count; i++)
            nb_store_lanes(a->y + r * a->ldy + p * NB_PANEL + i * 8,
                           _mm256_mul_ps(_mm256_load_ps(sums[r][i]), _mm256_set1_ps(m)),
                           nb_lanes_of(a->w, p, i));
    }
}

NB_INLINE void many_rows(nb_format f, bool odd, const part *a, const float *x, size_t ldx, size_t p0,
                         size_t p1)
{
    opened o;
    slice s[SLICES];
    alignas(64) float sums[TILE][MOST][8];
    size_t blocks = a->w->k_pad / BLOCK;
    for (size_t c0 = 0, c1; c0 < blocks; c0 = c1) {
        c1 = blocks - c0 < SLICES * SLICE ? blocks : c0 + SLICES * SLICE;
        for (size_t b = c0; b < c1; b += SLICE)
            copy_slice(x, ldx, a->rows, b, c1 - b < SLICE ? c1 - b : SLICE, &s[(b - c0) / SLICE]);
        for (size_t p = p0, count; p < p1; p += count) {
            count = p1 - p < 2 ? 1 : 2;
            load_sums(a, p, count, c0 == 0, sums);
            for (size_t b = c0; b < c1; b += SLICE) {
                size_t n = c1 - b < SLICE ? c1 - b : SLICE;
                for (size_t i = 0; i < count; i++) open_panel(f, odd, a->w, p + i, b, n, i, &o);
                for (size_t r = 0; r < a->rows; r++) {
                    if (count == 2)
                        opened_row(2, &o, &s[(b - c0) / SLICE], r, n, sums[r]);
                    else
                        opened_row(1, &o, &s[(b - c0) / SLICE], r, n, sums[r]);
                }
            }
            store_sums(a, p, count, c1 == blocks, sums);
        }
    }
}

/* One function for each kind of scales and number of rows, so that each loop has the registers for itself. */
typedef void (*rows_fn)(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,
                        float *y, size_t ldy, size_t p0, size_t p1);
#define FEW_INSTANCE(name, f, odd, n)                                                                        \
    static void name##_##n(const nb_packed *w, const float *x, size_t ldx, size_t rows,                      \
                           const float *row_scale, float *y, size_t ldy, size_t p0, size_t p1)               \
    {                                                                                                        \
        for (size_t p = p0; p < p1; p++) few_rows(f, odd, n, w, x, ldx, row_scale, y, ldy, p);               \
    }
#define INSTANCE(name, f, odd)                                                                               \
    FEW_INSTANCE(name, f, odd, 1)                                                                            \
    FEW_INSTANCE(name, f, odd, 2)                                                                            \
    FEW_INSTANCE(name, f, odd, 3)                                                                            \
    FEW_INSTANCE(name, f, odd, 4)                                                                            \
    static void name##_many(const nb_packed *w, const float *x, size_t ldx, size_t rows,                     \
                            const float *row_scale, float *y, size_t ldy, size_t p0, size_t p1)              \
    {                                                                                                        \
        for (size_t r = 0; r < rows; r += TILE) {                                                            \
            part a = {w, row_scale ? row_scale + r : NULL, y + r * ldy, ldy,                                 \
                      rows - r < TILE ? rows - r : TILE};                                                    \
            many_rows(f, odd, &a, x + r * ldx, ldx, p0, p1);                                                 \
        }                                                                                                    \
    }                                                                                                        \
    static const rows_fn name[FEW + 1] = {name##_many, name##_1, name##_2, name##_3, name##_4};
INSTANCE(nvfp4, NB_FMT_NVFP4, false)
INSTANCE(nvfp4_odd, NB_FMT_NVFP4, true)
INSTANCE(mxfp4, NB_FMT_MXFP4, false)

void nb_avx2_linear_bf16(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,
                         float *y, size_t ldy, size_t p0, size_t p1)
{
    const rows_fn *by_rows = w->format == NB_FMT_MXFP4 ? mxfp4 : w->odd_scales ? nvfp4_odd : nvfp4;
    by_rows[rows <= FEW ? rows : 0](w, x, ldx, rows, row_scale, y, ldy, p0, p1);
}
