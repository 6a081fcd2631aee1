/* The form of int8 activations, which the tables of all instruction sets share. */
#ifndef NB_KERNELS_CPU_INT8_H
#define NB_KERNELS_CPU_INT8_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/packed.h"

/*
 * A row of int8 activations, which takes the place of k_pad floats: for each 16 k a scale of its own.
 *
 *     int8  q[k_pad]           of 8 k, those at 0 2 4 6 1 3 5 7: the order in which a word's nibbles come apart
 *     F32   scale[k_pad / 16]  amax / 254: the codes of E2M1 count halves. NaN when a value of the block is not finite
 *     int32 bias[k_pad / 16]   -12 * the sum of q: kernels look codes up as 12 + 2 * value, which is never negative, and sums start here
 */
static inline int8_t *nb_i8_codes(const float *row)
{
    return (int8_t *)row;
}
static inline float *nb_i8_scale(const float *row, size_t k_pad)
{
    return (float *)row + k_pad / 4;
}
static inline int32_t *nb_i8_bias(const float *row, size_t k_pad)
{
    return (int32_t *)(void *)nb_i8_scale(row, k_pad) + k_pad / 16;
}
/* The activation that element i stands for. */
static inline float nb_i8_value(const float *row, size_t k_pad, size_t i)
{
    size_t place = i / 8 * 8 + i % 2 * 4 + i % 8 / 2;
    return (float)nb_i8_codes(row)[place] * (2 * nb_i8_scale(row, k_pad)[i / 16]);
}
/* A block whose largest magnitude is below this counts as zero: 127 / amax would overflow. */
#define NB_I8_TINY 0x1p-119f

/*
 * A block adds sum * weight scale * activation scale to an output: cvt(sum) * weight scale first, which is exact (15 bits times four), then
 * one FMA with the activation scale. The product of both scales first could be infinite where the sum is 0, and that is NaN.
 *
 * E8M0 reaches 2^127, so that the first product, too, could leave F32's range where the second brings it back. Kernels take E8M0 scales
 * times NB_I8_E8M0, and the finished sum by nb_i8_multiplier: |sum| <= 24384 < 2^15, so that a product stays below 2^127, and at the other
 * end, sum * 2^-127 * 2^-15, it is a whole number of F32's smallest steps, 2^-149. Steps of the output are 2^-134 then, its range 2^15 times
 * F32's until it is finished. (The multiplier of MXFP4 is 1.)
 */
#define NB_I8_E8M0 0x1p-15f
static inline float nb_i8_multiplier(const nb_packed *w)
{
    return w->format == NB_FMT_MXFP4 ? w->multiplier / NB_I8_E8M0 : w->multiplier;
}

#endif
