/* What the files of the tables with AVX-512 share. */
#ifndef NB_KERNELS_AVX512_H
#define NB_KERNELS_AVX512_H

#include "kernels/cpu/avx2/avx2.h"

/* As nb_kernels.linear. */
void nb_avx512_linear(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,
                      float *y, size_t ldy, size_t p0, size_t p1);
/* As nb_kernels.linear_bf16, on rows in fixed point. */
void nb_avx512_linear_bf16(const nb_packed *w, const float *x, size_t ldx, size_t rows,
                           const float *row_scale, float *y, size_t ldy, size_t p0, size_t p1);
/* As nb_kernels.linear_i8. */
void nb_avx512_linear_i8(const nb_packed *w, const float *x, size_t ldx, size_t rows, float *y, size_t ldy,
                         size_t p0, size_t p1);
/* As nb_kernels.scores, nb_kernels.weigh, nb_kernels.exps. */
void nb_avx512_scores(const nb_attend_args *a, size_t r0, size_t r1);
void nb_avx512_weigh(const nb_attend_args *a, size_t c0, size_t c1);
float nb_avx512_exps(float *x, size_t n, float *max);

/* The table of a machine with AVX-512, whose rows that BF16 holds have the form `form`, as `prepare` makes them, and go through `bf16`, and
 * whose int8 rows through `i8`. What 512 bits do not make faster is AVX2's. */
#define NB_AVX512_TABLE(name_, form, prepare, bf16, i8)                                                      \
    {                                                                                                        \
        .name = (name_), .linear = nb_avx512_linear, .bf16_form = (form), .prepare_bf16 = (prepare),         \
        .linear_bf16 = (bf16), .quantise_i8 = nb_avx2_quantise_i8, .linear_i8 = (i8),                        \
        .rmsnorm = nb_avx2_rmsnorm, .rope = nb_avx2_rope, .exps = nb_avx512_exps,                            \
        .scores = nb_avx512_scores, .weigh = nb_avx512_weigh, .swiglu = nb_avx2_swiglu, .dot = nb_avx2_dot,  \
        .axpy = nb_avx2_axpy, .mix = nb_avx2_mix                                                             \
    }

#endif
