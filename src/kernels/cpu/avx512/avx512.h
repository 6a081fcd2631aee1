/* What the files of the AVX-512 table share. */
#ifndef NB_KERNELS_AVX512_H
#define NB_KERNELS_AVX512_H

#include "kernels/cpu/kernels.h"

/* As nb_kernels.linear. */
void nb_avx512_linear(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,
                      float *y, size_t ldy, size_t p0, size_t p1);
/* As nb_kernels.linear_i8. */
void nb_avx512_linear_i8(const nb_packed *w, const float *x, size_t ldx, size_t rows, float *y, size_t ldy,
                         size_t p0, size_t p1);
/* As nb_kernels.scores, nb_kernels.weigh, nb_kernels.softmax. */
void nb_avx512_scores(const nb_attend_args *a, size_t r0, size_t r1);
void nb_avx512_weigh(const nb_attend_args *a, size_t c0, size_t c1);
void nb_avx512_softmax(float *x, size_t n, const float *sink);

#endif
