/*
 * The linear of every weight format. Decoding differs per format, the arithmetic does not: each output is a chain of FMAs over
 * 16 k from zero, and these block sums are folded into the output by one FMA with the block's scale. The paths below only
 * choose what is kept in registers, so one row and many rows give the same bits.
 *
 *   one row:   two panels at once, codes go from memory to the FMA in registers; four independent chains and the next block's
 *              hide the FMA's latency
 *   more rows: a block is decoded once into 1 KB of scratch and multiplied with up to 48 rows, six at a time. The activations
 *              are copied into groups of six first: rows of the caller may lie a multiple of 4 KB apart, where a few of
 *              them would evict each other from the cache
 */
#include "kernels/cpu/avx2/avx2.h"

#include <stdalign.h>

#include "base/mem.h"
#include "kernels/cpu/avx2/decode.h"

#ifndef PANELS
#define PANELS 2
#endif
enum {
    BLOCK = 16,     /* k in one sum from zero */
    GROUP = 6,      /* rows in the micro-kernel: 12 sums, 2 weights and 1 activation fill the 16 registers */
    TILE = 48,      /* rows that share a decoded block */
    PACKED = 12288, /* activations copied at a time: 48 KB */
    AHEAD = 1024,   /* bytes of codes fetched in advance */
};

/* Lanes of rows 8 * half.. of panel p that exist. */
static size_t lanes_of(const nb_packed *w, size_t p, size_t half)
{
    size_t first = p * NB_PANEL + half * 8;
    return first >= w->n ? 0 : w->n - first < 8 ? w->n - first : 8;
}

static void store_lanes(float *y, __m256 v, size_t lanes)
{
    if (lanes == 8)
        _mm256_storeu_ps(y, v);
    else if (lanes)
        _mm256_maskstore_ps(y, nb_lane_mask(lanes), v);
}

static __m256 load_lanes(const float *y, size_t lanes)
{
    return lanes == 8 ? _mm256_loadu_ps(y)
           : lanes    ? _mm256_maskload_ps(y, nb_lane_mask(lanes))
                      : _mm256_setzero_ps();
}

/* `count` panels from p on, one row. */
NB_INLINE void one_row(nb_format f, const nb_packed *w, const float *x, float row_scale, float *y, size_t p, size_t count)
{
    const uint8_t *codes = w->codes + p * w->code_bytes;
    const uint8_t *scales = w->scale_k ? w->scales + p * w->scale_bytes : codes;
    __m256 acc[2 * PANELS];
#pragma GCC unroll 8
    for (size_t i = 0; i < 2 * count; i++) acc[i] = _mm256_setzero_ps();
    for (size_t b = 0; b < w->k_pad / BLOCK; b++) {
        __m256 sum[2 * PANELS];
#pragma GCC unroll 8
        for (size_t i = 0; i < 2 * count; i++) sum[i] = _mm256_setzero_ps();
#pragma GCC unroll 4
        for (size_t quad = 0; quad < BLOCK / 4; quad++) {
            nb_quad q[PANELS];
#pragma GCC unroll 4
            for (size_t i = 0; i < count; i++) nb_open(f, codes + i * w->code_bytes, b * (BLOCK / 4) + quad, &q[i]);
#pragma GCC unroll 4
            for (size_t j = 0; j < 4; j++) {
                __m256 v = _mm256_broadcast_ss(x + b * BLOCK + quad * 4 + j);
#pragma GCC unroll 8
                for (size_t i = 0; i < 2 * count; i++) sum[i] = _mm256_fmadd_ps(v, nb_take(f, &q[i / 2], j, i % 2), sum[i]);
            }
        }
#pragma GCC unroll 8
        for (size_t i = 0; i < 2 * count; i++)
            acc[i] = _mm256_fmadd_ps(sum[i], nb_scale(f, w, scales + i / 2 * w->scale_bytes, b, i % 2), acc[i]);
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < 2 * count; i++)
        store_lanes(y + p * NB_PANEL + i * 8, _mm256_mul_ps(acc[i], _mm256_set1_ps(row_scale)),
                    lanes_of(w, p + i / 2, i % 2));
}

/* acc[r] += scale * (16 k of `rows` activations times the decoded block). x [16][GROUP], tile [16][16], acc [rows][16]. */
NB_INLINE void micro(size_t rows, const float *x, const float *tile, __m256 scale0, __m256 scale1, float *acc)
{
    __m256 s0[GROUP], s1[GROUP];
    for (size_t r = 0; r < rows; r++) s0[r] = s1[r] = _mm256_setzero_ps();
    for (size_t k = 0; k < BLOCK; k++) {
        __m256 w0 = _mm256_load_ps(tile + k * NB_PANEL), w1 = _mm256_load_ps(tile + k * NB_PANEL + 8);
        for (size_t r = 0; r < rows; r++) {
            __m256 v = _mm256_broadcast_ss(x + k * GROUP + r);
            s0[r] = _mm256_fmadd_ps(v, w0, s0[r]);
            s1[r] = _mm256_fmadd_ps(v, w1, s1[r]);
        }
    }
    for (size_t r = 0; r < rows; r++) {
        float *a = acc + r * NB_PANEL;
        _mm256_store_ps(a, _mm256_fmadd_ps(s0[r], scale0, _mm256_load_ps(a)));
        _mm256_store_ps(a + 8, _mm256_fmadd_ps(s1[r], scale1, _mm256_load_ps(a + 8)));
    }
}

static void micro_rows(size_t rows, const float *x, const float *tile, __m256 scale0, __m256 scale1,
                       float *acc)
{
    switch (rows) {
    case 1: micro(1, x, tile, scale0, scale1, acc); break;
    case 2: micro(2, x, tile, scale0, scale1, acc); break;
    case 3: micro(3, x, tile, scale0, scale1, acc); break;
    case 4: micro(4, x, tile, scale0, scale1, acc); break;
    case 5: micro(5, x, tile, scale0, scale1, acc); break;
    default: micro(6, x, tile, scale0, scale1, acc); break;
    }
}

/* x[rows][k0 .. k0 + len) as out[group][k][GROUP]. */
static void pack_rows(const float *x, size_t ldx, size_t rows, size_t k0, size_t len, float *out)
{
    for (size_t r = 0; r < rows; r++) {
        const float *src = x + r * ldx + k0;
        float *dst = out + r / GROUP * len * GROUP + r % GROUP;
        for (size_t k = 0; k < len; k++) dst[k * GROUP] = src[k];
    }
}

/* Blocks b0 to b1 of panel p times the packed rows, added to acc [rows][16]. */
NB_INLINE void panel_rows(nb_format f, const nb_packed *w, size_t p, size_t b0, size_t b1,
                          const float *packed, size_t rows, float *acc)
{
    const uint8_t *codes = w->codes + p * w->code_bytes,
                  *scales = w->scale_k ? w->scales + p * w->scale_bytes : codes;
    size_t len = (b1 - b0) * BLOCK;
    alignas(64) float tile[BLOCK * NB_PANEL];
    for (size_t b = b0; b < b1; b++) {
#pragma GCC unroll 4
        for (size_t quad = 0; quad < BLOCK / 4; quad++) {
            nb_quad q;
            nb_open(f, codes, b * (BLOCK / 4) + quad, &q);
#pragma GCC unroll 8
            for (size_t i = 0; i < 8; i++)
                _mm256_store_ps(tile + (quad * 4 + i / 2) * NB_PANEL + i % 2 * 8, nb_take(f, &q, i / 2, i % 2));
        }
        __m256 scale0 = nb_scale(f, w, scales, b, 0), scale1 = nb_scale(f, w, scales, b, 1);
        for (size_t r = 0; r < rows; r += GROUP)
            micro_rows(rows - r < GROUP ? rows - r : GROUP, packed + r * len + (b - b0) * BLOCK * GROUP, tile,
                       scale0, scale1, acc + r * NB_PANEL);
    }
}

/* Up to TILE rows. Between two slices of k the unfinished sums of existing outputs wait in y. */
NB_INLINE void many_rows(nb_format f, const nb_packed *w, const float *x, size_t ldx, size_t rows,
                         const float *row_scale, float *y, size_t ldy, size_t p0, size_t p1)
{
    alignas(64) float packed[PACKED], acc[TILE * NB_PANEL];
    size_t slice = PACKED / nb_round_up(rows, GROUP) / BLOCK, blocks = w->k_pad / BLOCK;
    for (size_t b0 = 0; b0 < blocks; b0 += slice) {
        size_t b1 = blocks - b0 < slice ? blocks : b0 + slice;
        pack_rows(x, ldx, rows, b0 * BLOCK, (b1 - b0) * BLOCK, packed);
        for (size_t p = p0; p < p1; p++) {
            size_t lanes[2] = {lanes_of(w, p, 0), lanes_of(w, p, 1)};
            float *out = y + p * NB_PANEL;
            for (size_t i = 0; i < 2 * rows; i++)
                _mm256_store_ps(acc + i * 8, b0 ? load_lanes(out + i / 2 * ldy + i % 2 * 8, lanes[i % 2])
                                                : _mm256_setzero_ps());
            panel_rows(f, w, p, b0, b1, packed, rows, acc);
            for (size_t i = 0; i < 2 * rows; i++) {
                __m256 v = _mm256_load_ps(acc + i * 8);
                if (b1 == blocks)
                    v = _mm256_mul_ps(
                        v, _mm256_set1_ps(row_scale ? w->multiplier * row_scale[i / 2] : w->multiplier));
                store_lanes(out + i / 2 * ldy + i % 2 * 8, v, lanes[i % 2]);
            }
        }
    }
}

NB_INLINE void linear(nb_format f, const nb_packed *w, const float *x, size_t ldx, size_t rows,
                      const float *row_scale, float *y, size_t ldy, size_t p0, size_t p1)
{
    if (rows == 1) {
        float scale = row_scale ? w->multiplier * row_scale[0] : w->multiplier;
        size_t p = p0;
        for (; p + PANELS <= p1; p += PANELS) one_row(f, w, x, scale, y, p, PANELS);
        for (; p < p1; p++) one_row(f, w, x, scale, y, p, 1);
        return;
    }
    for (size_t r = 0; r < rows; r += TILE)
        many_rows(f, w, x + r * ldx, ldx, rows - r < TILE ? rows - r : TILE, row_scale ? row_scale + r : NULL,
                  y + r * ldy, ldy, p0, p1);
}

/* One instance per format, so that the decoder is a constant in each. */
#define INSTANCE(name, f)                                                                                    \
    static __attribute__((noinline)) void name(const nb_packed *w, const float *x, size_t ldx, size_t rows,  \
                                               const float *row_scale, float *y, size_t ldy, size_t p0,      \
                                               size_t p1)                                                    \
    {                                                                                                        \
        linear(f, w, x, ldx, rows, row_scale, y, ldy, p0, p1);                                               \
    }
INSTANCE(linear_nvfp4, NB_FMT_NVFP4)
INSTANCE(linear_mxfp4, NB_FMT_MXFP4)
INSTANCE(linear_fp8, NB_FMT_FP8)
INSTANCE(linear_bf16, NB_FMT_BF16)
INSTANCE(linear_f16, NB_FMT_F16)
INSTANCE(linear_f32, NB_FMT_F32)

void nb_avx2_linear(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,
                    float *y, size_t ldy, size_t p0, size_t p1)
{
    switch (w->format) {
    case NB_FMT_NVFP4: linear_nvfp4(w, x, ldx, rows, row_scale, y, ldy, p0, p1); break;
    case NB_FMT_MXFP4: linear_mxfp4(w, x, ldx, rows, row_scale, y, ldy, p0, p1); break;
    case NB_FMT_FP8: linear_fp8(w, x, ldx, rows, row_scale, y, ldy, p0, p1); break;
    case NB_FMT_BF16: linear_bf16(w, x, ldx, rows, row_scale, y, ldy, p0, p1); break;
    case NB_FMT_F16: linear_f16(w, x, ldx, rows, row_scale, y, ldy, p0, p1); break;
    default: linear_f32(w, x, ldx, rows, row_scale, y, ldy, p0, p1); break;
    }
}
