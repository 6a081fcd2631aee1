/* AVX512-BF16's one operator of its own. */
#ifndef NB_KERNELS_AVX512BF16_H
#define NB_KERNELS_AVX512BF16_H

#include "kernels/cpu/kernels.h"

/* As nb_kernels.linear_bf16. */
void nb_avx512bf16_linear(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,
                          float *y, size_t ldy, size_t p0, size_t p1);

#endif
