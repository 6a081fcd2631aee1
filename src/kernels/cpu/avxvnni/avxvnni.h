/* AVX-VNNI's one operator of its own. */
#ifndef NB_KERNELS_AVXVNNI_H
#define NB_KERNELS_AVXVNNI_H

#include "kernels/cpu/kernels.h"

/* As nb_kernels.linear_i8. */
void nb_avxvnni_linear_i8(const nb_packed *w, const float *x, size_t ldx, size_t rows, float *y, size_t ldy,
                          size_t p0, size_t p1);

#endif
