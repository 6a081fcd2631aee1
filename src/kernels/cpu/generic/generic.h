/* The parts of the reference that other tables' tests and fall-backs may name. */
#ifndef NB_KERNELS_GENERIC_H
#define NB_KERNELS_GENERIC_H

#include "kernels/cpu/kernels.h"

/* As nb_kernels.linear. */
void nb_generic_linear(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,
                       float *y, size_t ldy, size_t p0, size_t p1);

/* As nb_kernels.quantise_i8, nb_kernels.linear_i8. */
void nb_generic_quantise_i8(const float *x, size_t k, size_t k_pad, float *row);
void nb_generic_linear_i8(const nb_packed *w, const float *x, size_t ldx, size_t rows, float *y, size_t ldy,
                          size_t p0, size_t p1);

#endif
