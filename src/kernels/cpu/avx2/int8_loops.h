/*
 * Arithmetic int8 with vectors of 256 bits, for instruction sets that differ in one thing: how bytes are multiplied and added up. The
 * file that includes this defines it first:
 *
 *     add_products(sum, u, s)   sum + the products of unsigned bytes u[0 … 3] and signed bytes s[0 … 3], in each lane of 32 bits the sum of
 *                               four from each pair of vectors. In magnitude those of two adjacent bytes of all four are below 2^15.
 *
 *   up to four rows: codes go from the look-ups as 12 + 2 * value, unsigned, straight to the products of all rows; the sum starts at
 *                    the row's bias, -12 * the sum of q
 *   more rows:       512 k of two panels are looked up once into 16 KB as signed bytes, and all rows, as 128 + q, are multiplied with them;
 *                    the sum starts at the panel's bias
 */
#ifndef NB_KERNELS_AVX2_INT8_LOOPS_H
#define NB_KERNELS_AVX2_INT8_LOOPS_H

#include <stdalign.h>
#include <string.h>

#include "kernels/cpu/avx2/avx2.h"
#include "kernels/cpu/avx2/decode.h"
#include "kernels/cpu/int8.h"

enum {
    BLOCK = 16,
    FEW = 4,    /* rows whose sums stay in registers */
    SLICE = 32, /* blocks that are looked up at a time */
    TILE = 96,  /* rows that share them: 60 KB of activations */
    MOST = 4,   /* vectors of eight outputs in two panels */
    SLICE_K = SLICE * BLOCK,
    AHEAD = 4096 /* bytes of codes that are asked for in advance */
};

/* Block b of 8 rows as bytes 12 + 2 * value: out[word] has 4 k of each, in the order of nb_i8_codes. */
NB_INLINE void open_block(const uint8_t *codes, size_t b, size_t half, __m256i out[4])
{
    NB_UNROLL
    for (size_t i = 0; i < 2; i++) nb_open_word(codes + (b * 2 + i) * 64 + half * 32, out + 2 * i);
}

/* acc += block sum * weight scale * activation scale, 8 lanes of one row. */
NB_INLINE __m256 add_block(const __m256i code[4], const float *row, size_t k_pad, size_t b, __m256 scale,
                           __m256 acc)
{
    const int8_t *bytes = nb_i8_codes(row) + b * BLOCK;
    const __m256i q[4] = {nb_four_bytes(bytes), nb_four_bytes(bytes + 4), nb_four_bytes(bytes + 8),
                          nb_four_bytes(bytes + 12)};
    __m256i sum = add_products(_mm256_set1_epi32(nb_i8_bias(row, k_pad)[b]), code, q);
    return _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale),
                           _mm256_broadcast_ss(nb_i8_scale(row, k_pad) + b), acc);
}

NB_INLINE void few_rows(nb_format f, bool odd, size_t rows, const nb_packed *w, const float *x, size_t ldx,
                        float *y, size_t ldy, size_t p)
{
    const uint8_t *codes = w->codes + p * w->code_bytes, *scales = w->scales + p * w->scale_bytes;
    __m256 acc[2 * FEW];
    NB_UNROLL
    for (size_t i = 0; i < 2 * rows; i++) acc[i] = _mm256_setzero_ps();
    for (size_t b = 0; b < w->k_pad / BLOCK; b++) {
        nb_ask_codes(codes, b, AHEAD);
        __m256 s[2];
        nb_scales_of(f, odd, w, scales, b, s);
        NB_UNROLL
        for (size_t half = 0; half < 2; half++) {
            __m256i code[4];
            s[half] = nb_fit_scale(f, s[half], NB_I8_E8M0);
            open_block(codes, b, half, code);
            NB_UNROLL
            for (size_t r = 0; r < rows; r++)
                acc[2 * r + half] = add_block(code, x + r * ldx, w->k_pad, b, s[half], acc[2 * r + half]);
        }
    }
    NB_UNROLL
    for (size_t i = 0; i < 2 * rows; i++)
        nb_store_lanes(y + i / 2 * ldy + p * NB_PANEL + i % 2 * 8,
                       _mm256_mul_ps(acc[i], _mm256_set1_ps(nb_i8_multiplier(w))), nb_lanes_of(w, p, i % 2));
}

/* A slice of k of one or two panels, looked up: signed bytes 2 * value. */
typedef struct opened {
    alignas(64) uint8_t codes[SLICE][4][MOST][32]; /* [block][word of 4 k][half of a panel][8 rows][4 k] */
    float scale[SLICE][MOST][8];
    int32_t bias[SLICE][MOST][8]; /* -128 * the sum of the block's codes */
} opened;

/* The same k of up to TILE rows: codes as 128 + q, and their scales. */
typedef struct slice {
    alignas(64) uint8_t q[TILE][SLICE_K];
    float scale[TILE][SLICE];
} slice;

static void copy_slice(const float *x, size_t ldx, size_t rows, size_t k_pad, size_t b0, size_t n, slice *s)
{
    for (size_t r = 0; r < rows; r++) {
        const uint8_t *q = (const uint8_t *)nb_i8_codes(x + r * ldx) + b0 * BLOCK;
        for (size_t i = 0; i < n * BLOCK; i++) s->q[r][i] = q[i] ^ 0x80;
        memcpy(s->scale[r], nb_i8_scale(x + r * ldx, k_pad) + b0, n * sizeof(float));
    }
}

/* Blocks [b0, b0 + n) of panel p as the first or second one of o. Those of the panel that comes after are asked for. */
NB_INLINE void open_panel(nb_format f, bool odd, const nb_packed *w, size_t p, size_t b0, size_t n,
                          size_t second, opened *o)
{
    const __m256i ones = _mm256_set1_epi8(1), wide = _mm256_set1_epi16(-128);
    const uint8_t *after = w->codes + (p + 2) * w->code_bytes;
    for (size_t b = 0; b < n; b++) {
        nb_ask_codes(after, b0 + b, 0);
        for (size_t half = 0; half < 2; half++) {
            __m256i code[4], sum = _mm256_setzero_si256();
            open_block(w->codes + p * w->code_bytes, b0 + b, half, code);
            NB_UNROLL
            for (size_t i = 0; i < 4; i++) {
                code[i] = _mm256_sub_epi8(code[i], _mm256_set1_epi8(12));
                sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(ones, code[i]));
                _mm256_store_si256((__m256i *)o->codes[b][i][2 * second + half], code[i]);
            }
            _mm256_store_si256((__m256i *)o->bias[b][2 * second + half], _mm256_madd_epi16(sum, wide));
            __m256 scale = nb_scale(f, odd, w, w->scales + p * w->scale_bytes, b0 + b, half);
            _mm256_store_ps(o->scale[b][2 * second + half], nb_fit_scale(f, scale, NB_I8_E8M0));
        }
    }
}

/* Row r of a slice times what is opened of `count` panels from p on; the sums go on from y unless this is the first slice. Four
 * products a code vector would be loaded for are not enough to keep it: it is the products' memory operand. */
NB_INLINE void opened_row(size_t count, const opened *o, const slice *s, size_t r, size_t n,
                          const size_t lanes[MOST], bool first, float multiplier, float *y)
{
    const size_t vectors = 2 * count;
    __m256 acc[MOST];
    NB_UNROLL
    for (size_t i = 0; i < vectors; i++)
        acc[i] = first ? _mm256_setzero_ps() : nb_load_lanes(y + 8 * i, lanes[i]);
    for (size_t b = 0; b < n; b++) {
        __m256i q[4];
        NB_UNROLL
        for (size_t i = 0; i < 4; i++) q[i] = nb_four_bytes(s->q[r] + b * BLOCK + 4 * i);
        __m256 scale = _mm256_broadcast_ss(&s->scale[r][b]);
        NB_UNROLL
        for (size_t i = 0; i < vectors; i++) {
            __m256i code[4];
            NB_UNROLL
            for (size_t j = 0; j < 4; j++) code[j] = nb_load_i(o->codes[b][j][i]);
            __m256i sum = add_products(nb_load_i((const uint8_t *)o->bias[b][i]), q, code);
            __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_load_ps(o->scale[b][i]));
            acc[i] = _mm256_fmadd_ps(scaled, scale, acc[i]);
        }
    }
    NB_UNROLL
    for (size_t i = 0; i < vectors; i++)
        nb_store_lanes(y + 8 * i, _mm256_mul_ps(acc[i], _mm256_set1_ps(multiplier)), lanes[i]);
}

/* Up to TILE rows. */
NB_INLINE void many_rows(nb_format f, bool odd, const nb_packed *w, const float *x, size_t ldx, size_t rows,
                         float *y, size_t ldy, size_t p0, size_t p1)
{
    opened o;
    slice s;
    size_t blocks = w->k_pad / BLOCK;
    for (size_t b0 = 0; b0 < blocks; b0 += SLICE) {
        size_t n = blocks - b0 < SLICE ? blocks - b0 : SLICE;
        /* Unfinished sums stay as they are. */
        float multiplier = b0 + n == blocks ? nb_i8_multiplier(w) : 1.0f;
        copy_slice(x, ldx, rows, w->k_pad, b0, n, &s);
        for (size_t p = p0; p < p1; p += 2) {
            size_t lanes[MOST];
            for (size_t i = 0; i < MOST; i++) lanes[i] = nb_lanes_of(w, p, i);
            open_panel(f, odd, w, p, b0, n, 0, &o);
            if (p + 1 < p1) open_panel(f, odd, w, p + 1, b0, n, 1, &o);
            for (size_t r = 0; r < rows; r++) {
                if (p + 1 < p1)
                    opened_row(2, &o, &s, r, n, lanes, b0 == 0, multiplier, y + r * ldy + p * NB_PANEL);
                else
                    opened_row(1, &o, &s, r, n, lanes, b0 == 0, multiplier, y + r * ldy + p * NB_PANEL);
            }
        }
    }
}

/* One function for each kind of scales and number of rows, so that each loop has the registers for itself. */
typedef void (*rows_fn)(const nb_packed *w, const float *x, size_t ldx, size_t rows, float *y, size_t ldy,
                        size_t p0, size_t p1);
#define FEW_INSTANCE(name, f, odd, n)                                                                        \
    static void name##_##n(const nb_packed *w, const float *x, size_t ldx, size_t rows, float *y,            \
                           size_t ldy, size_t p0, size_t p1)                                                 \
    {                                                                                                        \
        for (size_t p = p0; p < p1; p++) few_rows(f, odd, n, w, x, ldx, y, ldy, p);                          \
    }
#define INSTANCE(name, f, odd)                                                                               \
    FEW_INSTANCE(name, f, odd, 1)                                                                            \
    FEW_INSTANCE(name, f, odd, 2)                                                                            \
    FEW_INSTANCE(name, f, odd, 3)                                                                            \
    FEW_INSTANCE(name, f, odd, 4)                                                                            \
    static void name##_many(const nb_packed *w, const float *x, size_t ldx, size_t rows, float *y,           \
                            size_t ldy, size_t p0, size_t p1)                                                \
    {                                                                                                        \
        for (size_t r = 0; r < rows; r += TILE)                                                              \
            many_rows(f, odd, w, x + r * ldx, ldx, rows - r < TILE ? rows - r : TILE, y + r * ldy, ldy, p0,  \
                      p1);                                                                                   \
    }                                                                                                        \
    static const rows_fn name[FEW + 1] = {name##_many, name##_1, name##_2, name##_3, name##_4};
INSTANCE(nvfp4, NB_FMT_NVFP4, false)
INSTANCE(nvfp4_odd, NB_FMT_NVFP4, true)
INSTANCE(mxfp4, NB_FMT_MXFP4, false)

static void linear_i8(const nb_packed *w, const float *x, size_t ldx, size_t rows, float *y, size_t ldy,
                      size_t p0, size_t p1)
{
    const rows_fn *by_rows = w->format == NB_FMT_MXFP4 ? mxfp4 : w->odd_scales ? nvfp4_odd : nvfp4;
    by_rows[rows <= FEW ? rows : 0](w, x, ldx, rows, y, ldy, p0, p1);
}

#endif
