/*
 * E2M1 weights times rows of BF16 in fixed point (fixed16.h) with AVX-512 VNNI: as int8.c, with both halves of q. A block of 16 k takes
 * eight vpdpbusd a row, where FMAs take sixteen and vpdpbf16ps eight of half their rate on Zen 4. Sums are below 2^24, which F32 holds.
 */
#include "kernels/cpu/avx512/avx512.h"
#include "kernels/cpu/avx512/decode.h"
#include "kernels/cpu/fixed16.h"

enum {
    FEW = 8,     /* rows whose sums stay in registers */
    TILE = 32,   /* rows that a panel meets one after another */
    AHEAD = 4096 /* bytes of codes that are asked for in advance */
};

/* acc += block sum * weight scale * activation scale, one row. In this order: the product of two large scales may be infinite where the
 * sum is 0. */
INLINE __m512 add_block(const __m512i code[4], const nb_fixed16 *q, __m512 scale, __m512 acc)
{
    __m512i hi = _mm512_setzero_si512(), lo = _mm512_set1_epi32(q->bias);
    UNROLL
    for (size_t i = 0; i < 4; i++) {
        hi = _mm512_dpbusd_epi32(hi, code[i], nb_four_bytes(q->hi + 4 * i));
        lo = _mm512_dpbusd_epi32(lo, code[i], nb_four_bytes(q->lo + 4 * i));
    }
    __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(hi, 8), lo);
    return _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale), _mm512_set1_ps(q->scale), acc);
}

/* What rows are multiplied with: panel p of w, and where the outputs go. */
typedef struct part {
    const nb_packed *w;
    const float *row_scale; /* or NULL */
    float *y;
    size_t ldy, p;
} part;

INLINE void few_rows(nb_scales kind, size_t rows, const part *a, const float *x, size_t ldx)
{
    const nb_packed *w = a->w;
    const uint8_t *codes = w->codes + a->p * w->code_bytes, *s = w->scales + a->p * w->scale_bytes;
    __m512 acc[FEW];
    UNROLL
    for (size_t r = 0; r < rows; r++) acc[r] = _mm512_setzero_ps();
    for (size_t b = 0; b < w->k_pad / NB_E2M1_BLOCK; b++) {
        __m512i code[4];
        nb_ask_codes(codes, b, AHEAD);
        nb_ask_scales(kind, s, b, AHEAD);
        nb_open_block(codes, b, code);
        __m512 scale = nb_fit_scale16(kind, s, b, NB_FIXED16_E8M0);
        UNROLL
        for (size_t r = 0; r < rows; r++)
            acc[r] = add_block(code, nb_fixed16_row(x + r * ldx) + b, scale, acc[r]);
    }
    UNROLL
    for (size_t r = 0; r < rows; r++) {
        float m = nb_fixed16_multiplier(w) * (a->row_scale ? a->row_scale[r] : 1.0f);
        _mm512_mask_storeu_ps(a->y + r * a->ldy + a->p * NB_PANEL, nb_lanes16(w, a->p),
                              _mm512_mul_ps(acc[r], _mm512_set1_ps(m)));
    }
}

INLINE void some_rows(nb_scales kind, size_t rows, const part *a, const float *x, size_t ldx)
{
    switch (rows) {
    case 1: few_rows(kind, 1, a, x, ldx); break;
    case 2: few_rows(kind, 2, a, x, ldx); break;
    case 3: few_rows(kind, 3, a, x, ldx); break;
    case 4: few_rows(kind, 4, a, x, ldx); break;
    case 5: few_rows(kind, 5, a, x, ldx); break;
    case 6: few_rows(kind, 6, a, x, ldx); break;
    case 7: few_rows(kind, 7, a, x, ldx); break;
    default: few_rows(kind, 8, a, x, ldx); break;
    }
}

INLINE void panels(nb_scales kind, const nb_packed *w, const float *x, size_t ldx, size_t rows,
                   const float *row_scale, float *y, size_t ldy, size_t p0, size_t p1)
{
    for (size_t r = 0; r < rows; r += TILE) {
        size_t end = rows - r < TILE ? rows : r + TILE;
        for (size_t p = p0; p < p1; p++)
            for (size_t i = r; i < end; i += FEW) {
                const part a = {w, row_scale ? row_scale + i : NULL, y + i * ldy, ldy, p};
                some_rows(kind, end - i < FEW ? end - i : FEW, &a, x + i * ldx, ldx);
            }
    }
}

void nb_avx512_linear_bf16(const nb_packed *w, const float *x, size_t ldx, size_t rows,
                           const float *row_scale, float *y, size_t ldy, size_t p0, size_t p1)
{
    if (!rows) return;
    if (w->format == NB_FMT_MXFP4)
        panels(E8M0, w, x, ldx, rows, row_scale, y, ldy, p0, p1);
    else if (w->odd_scales)
        panels(ANY_E4M3, w, x, ldx, rows, row_scale, y, ldy, p0, p1);
    else
        panels(PLAIN_E4M3, w, x, ldx, rows, row_scale, y, ldy, p0, p1);
}
