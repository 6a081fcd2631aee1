/*
 * The linear for FP4 and BF16 weights in F32: a vector is the 16 rows of a panel, a lane one row. E2M1 codes become values by one
 * look-up in a register (vpermps), so that almost all that is left is FMAs. The operations of an output and their order are
 * those of avx2/linear.c: chains of FMAs over 16 k from zero, folded by one FMA with the block's scale.
 *
 * Codes go from the look-up straight to the FMAs of up to eight rows. For more rows they are looked up again: a panel stays in the
 * second-level cache, and two cheap operations for eight FMAs cost less than tiles of decoded weights and copied activations
 * (88 % of the FMA roof against 73 % on Zen 4).
 */
#include <immintrin.h>

#include "kernels/cpu/avx2/avx2.h"
#include "kernels/cpu/avx512/avx512.h"
#include "kernels/cpu/avx512/decode.h"

enum {
    BLOCK = 16,
    FEW = 8,  /* rows whose sums stay in registers */
    TILE = 64 /* rows that a panel meets one after another */
};

/* What differs between weights. A constant wherever it is used. */
typedef enum kind { NVFP4, NVFP4_ANY_SCALE, MXFP4, BF16 } kind;

INLINE __m512 block_scale(kind f, const uint8_t *s, size_t b)
{
    return f == NVFP4   ? nb_scale16(PLAIN_E4M3, s, b)
           : f == MXFP4 ? nb_scale16(E8M0, s, b)
                        : nb_scale16(ANY_E4M3, s, b);
}

/* k number `at` of the 16 of block b, all rows of the panel. */
INLINE __m512 weight(kind f, const uint8_t *codes, size_t b, size_t at)
{
    const __m512 e2m1 = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    if (f == BF16) {
        __m512i w = _mm512_loadu_si512(codes + (b * 8 + at / 2) * 64);
        return _mm512_castsi512_ps(at % 2 ? _mm512_and_si512(w, _mm512_set1_epi32((int)0xFFFF0000))
                                          : _mm512_slli_epi32(w, 16));
    }
    __m512i w = _mm512_loadu_si512(codes + (b * 2 + at / 8) * 64);
    return _mm512_permutexvar_ps(_mm512_srli_epi32(w, (unsigned)(at % 8) * 4), e2m1); /* of four bits */
}

/* rows (1 to 8) times `count` panels from p on. */
INLINE void few_rows(kind f, size_t rows, size_t count, const nb_packed *w, const float *x, size_t ldx,
                     const float *scale, float *y, size_t ldy, size_t p)
{
    __m512 acc[2 * FEW];
    UNROLL
    for (size_t i = 0; i < rows * count; i++) acc[i] = _mm512_setzero_ps();
    for (size_t b = 0; b < w->k_pad / BLOCK; b++) {
        UNROLL
        for (size_t i = 0; i < count; i++) {
            const uint8_t *codes = w->codes + (p + i) * w->code_bytes;
            __m512 sum[FEW];
            UNROLL
            for (size_t r = 0; r < rows; r++) sum[r] = _mm512_setzero_ps();
            UNROLL
            for (size_t k = 0; k < BLOCK; k++) {
                __m512 v = weight(f, codes, b, k);
                UNROLL
                for (size_t r = 0; r < rows; r++)
                    sum[r] = _mm512_fmadd_ps(_mm512_set1_ps(x[r * ldx + b * BLOCK + k]), v, sum[r]);
            }
            __m512 s =
                f == BF16 ? _mm512_set1_ps(1.0f) : block_scale(f, w->scales + (p + i) * w->scale_bytes, b);
            UNROLL
            for (size_t r = 0; r < rows; r++)
                acc[r * count + i] = _mm512_fmadd_ps(sum[r], s, acc[r * count + i]);
        }
    }
    UNROLL
    for (size_t i = 0; i < rows * count; i++)
        _mm512_mask_storeu_ps(y + i / count * ldy + (p + i % count) * NB_PANEL, nb_lanes16(w, p + i % count),
                              _mm512_mul_ps(acc[i], _mm512_set1_ps(scale[i / count])));
}

/* rows (1 to 8) times one panel. */
INLINE void some_rows(kind f, size_t rows, const nb_packed *w, const float *x, size_t ldx, const float *scale,
                      float *y, size_t ldy, size_t p)
{
    switch (rows) {
    case 1: few_rows(f, 1, 1, w, x, ldx, scale, y, ldy, p); break;
    case 2: few_rows(f, 2, 1, w, x, ldx, scale, y, ldy, p); break;
    case 3: few_rows(f, 3, 1, w, x, ldx, scale, y, ldy, p); break;
    case 4: few_rows(f, 4, 1, w, x, ldx, scale, y, ldy, p); break;
    case 5: few_rows(f, 5, 1, w, x, ldx, scale, y, ldy, p); break;
    case 6: few_rows(f, 6, 1, w, x, ldx, scale, y, ldy, p); break;
    case 7: few_rows(f, 7, 1, w, x, ldx, scale, y, ldy, p); break;
    default: few_rows(f, 8, 1, w, x, ldx, scale, y, ldy, p); break;
    }
}

/* Up to TILE rows. */
INLINE void tile_rows(kind f, const nb_packed *w, const float *x, size_t ldx, size_t rows,
                      const float *row_scale, float *y, size_t ldy, size_t p0, size_t p1)
{
    float s[TILE];
    for (size_t r = 0; r < rows; r++) s[r] = row_scale ? w->multiplier * row_scale[r] : w->multiplier;
    size_t p = p0;
    for (; rows <= 2 && p + 2 <= p1; p += 2) { /* two panels are the more chains */
        if (rows == 1)
            few_rows(f, 1, 2, w, x, ldx, s, y, ldy, p);
        else
            few_rows(f, 2, 2, w, x, ldx, s, y, ldy, p);
    }
    for (; p < p1; p++)
        for (size_t r = 0; r < rows; r += FEW)
            some_rows(f, rows - r < FEW ? rows - r : FEW, w, x + r * ldx, ldx, s + r, y + r * ldy, ldy, p);
}

#define FORMAT(name, f)                                                                                      \
    static void name(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,    \
                     float *y, size_t ldy, size_t p0, size_t p1)                                             \
    {                                                                                                        \
        for (size_t r = 0; r < rows; r += TILE)                                                              \
            tile_rows(f, w, x + r * ldx, ldx, rows - r < TILE ? rows - r : TILE,                             \
                      row_scale ? row_scale + r : NULL, y + r * ldy, ldy, p0, p1);                           \
    }
FORMAT(nvfp4, NVFP4)
FORMAT(nvfp4_any_scale, NVFP4_ANY_SCALE)
FORMAT(mxfp4, MXFP4)
FORMAT(bf16, BF16)

void nb_avx512_linear(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,
                      float *y, size_t ldy, size_t p0, size_t p1)
{
    if (!rows) return;
    switch (w->format) {
    case NB_FMT_NVFP4:
        (w->odd_scales ? nvfp4_any_scale : nvfp4)(w, x, ldx, rows, row_scale, y, ldy, p0, p1);
        break;
    case NB_FMT_MXFP4: mxfp4(w, x, ldx, rows, row_scale, y, ldy, p0, p1); break;
    case NB_FMT_BF16: bf16(w, x, ldx, rows, row_scale, y, ldy, p0, p1); break;
    default:
        nb_avx2_linear(w, x, ldx, rows, row_scale, y, ldy, p0, p1);
        break; /* decoding is the work there */
    }
}
