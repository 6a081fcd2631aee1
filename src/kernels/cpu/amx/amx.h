/* What the files of the AMX table share. */
#ifndef NB_KERNELS_AMX_H
#define NB_KERNELS_AMX_H

#include "kernels/cpu/kernels.h"

/* As nb_kernels.prepare_bf16, as k_pad half-words. */
void nb_amx_prepare_bf16(const float *x, size_t k, size_t k_pad, float *row);
/* As nb_kernels.linear_bf16. */
void nb_amx_linear_bf16(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,
                        float *y, size_t ldy, size_t p0, size_t p1);
/* As nb_kernels.linear_i8: the same bits as nb_avx512_linear_i8. */
void nb_amx_linear_i8(const nb_packed *w, const float *x, size_t ldx, size_t rows, float *y, size_t ldy,
                      size_t p0, size_t p1);

#endif
