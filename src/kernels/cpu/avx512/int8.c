/*
 * Arithmetic int8 with AVX-512 VNNI: a vector is the 16 rows of a panel, a lane one row. Codes of E2M1 go through a table as
 * 12 + 2 * value, and vpdpbusd adds four products a lane to a sum that starts at the bias; then one conversion, one product and one
 * FMA a block of 16 k. Lane for lane these are the operations of avx2/int8_loops.h.
 *
 * Codes go from the look-ups straight to the products of up to eight rows. For more rows they are looked up again: opening them once into
 * memory and reading them from there was 15 % slower on Zen 4, and sums of twelve rows do not fit the registers.
 */
#include "kernels/cpu/int8.h"
#include "kernels/cpu/avx512/avx512.h"
#include "kernels/cpu/avx512/decode.h"

enum {
    FEW = 8,     /* rows whose sums stay in registers */
    TILE = 32,   /* rows that a panel meets one after another */
    AHEAD = 4096 /* bytes of codes that are asked for in advance */
};

/* acc += block sum * weight scale * activation scale, one row. In this order: the product of two large scales may be infinite where the
 * sum is 0. */
INLINE __m512 add_block(const __m512i code[4], const float *row, size_t k_pad, size_t b, __m512 scale,
                        __m512 acc)
{
    const int8_t *q = nb_i8_codes(row) + b * NB_E2M1_BLOCK;
    __m512i sum = _mm512_set1_epi32(nb_i8_bias(row, k_pad)[b]);
    UNROLL
    for (size_t i = 0; i < 4; i++) sum = _mm512_dpbusd_epi32(sum, code[i], nb_four_bytes(q + 4 * i));
    __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale);
    return _mm512_fmadd_ps(scaled, _mm512_set1_ps(nb_i8_scale(row, k_pad)[b]), acc);
}

INLINE void few_rows(nb_scales kind, size_t rows, const nb_packed *w, const float *x, size_t ldx, float *y,
                     size_t ldy, size_t p)
{
    const uint8_t *codes = w->codes + p * w->code_bytes, *s = w->scales + p * w->scale_bytes;
    __m512 acc[FEW];
    UNROLL
    for (size_t r = 0; r < rows; r++) acc[r] = _mm512_setzero_ps();
    for (size_t b = 0; b < w->k_pad / NB_E2M1_BLOCK; b++) {
        __m512i code[4];
        nb_ask_codes(codes, b, AHEAD);
        nb_ask_scales(kind, s, b, AHEAD);
        nb_open_block(codes, b, code);
        __m512 scale = nb_fit_scale16(kind, s, b, NB_I8_E8M0);
        UNROLL
        for (size_t r = 0; r < rows; r++) acc[r] = add_block(code, x + r * ldx, w->k_pad, b, scale, acc[r]);
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        _mm512_mask_storeu_ps(y + r * ldy + p * NB_PANEL, nb_lanes16(w, p),
                              _mm512_mul_ps(acc[r], _mm512_set1_ps(nb_i8_multiplier(w))));
}

INLINE void some_rows(nb_scales kind, size_t rows, const nb_packed *w, const float *x, size_t ldx, float *y,
                      size_t ldy, size_t p)
{
    switch (rows) {
    case 1: few_rows(kind, 1, w, x, ldx, y, ldy, p); break;
    case 2: few_rows(kind, 2, w, x, ldx, y, ldy, p); break;
    case 3: few_rows(kind, 3, w, x, ldx, y, ldy, p); break;
    case 4: few_rows(kind, 4, w, x, ldx, y, ldy, p); break;
    case 5: few_rows(kind, 5, w, x, ldx, y, ldy, p); break;
    case 6: few_rows(kind, 6, w, x, ldx, y, ldy, p); break;
    case 7: few_rows(kind, 7, w, x, ldx, y, ldy, p); break;
    default: few_rows(kind, 8, w, x, ldx, y, ldy, p); break;
    }
}

INLINE void panels(nb_scales kind, const nb_packed *w, const float *x, size_t ldx, size_t rows, float *y,
                   size_t ldy, size_t p0, size_t p1)
{
    for (size_t r = 0; r < rows; r += TILE) {
        size_t end = rows - r < TILE ? rows : r + TILE;
        for (size_t p = p0; p < p1; p++)
            for (size_t i = r; i < end; i += FEW)
                some_rows(kind, end - i < FEW ? end - i : FEW, w, x + i * ldx, ldx, y + i * ldy, ldy, p);
    }
}

void nb_avx512_linear_i8(const nb_packed *w, const float *x, size_t ldx, size_t rows, float *y, size_t ldy,
                         size_t p0, size_t p1)
{
    if (!rows) return;
    if (w->format == NB_FMT_MXFP4)
        panels(E8M0, w, x, ldx, rows, y, ldy, p0, p1);
    else if (w->odd_scales)
        panels(ANY_E4M3, w, x, ldx, rows, y, ldy, p0, p1);
    else
        panels(PLAIN_E4M3, w, x, ldx, rows, y, ldy, p0, p1);
}
