/* The form of BF16 activations as fixed point, which tables without products of BF16 multiply as integers. */
#ifndef NB_KERNELS_CPU_FIXED16_H
#define NB_KERNELS_CPU_FIXED16_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/packed.h"

/*
 * 16 k of a row, which take the place of 16 floats: x = q * 2 * scale with a power of two as the scale and q = 256 * hi + lo. The scale
 * is as small as it can be for |q| <= 32639, what two signed bytes hold, but 2^-126 at least: the largest |q| is 16320 (255 * 64) or more,
 * unless all are below 2^-111. A BF16 has eight significant bits, so that every x down to 2^-6 of the largest's power of two is exact, an
 * E2M1 code times the block's E4M3 scale among them; what is smaller is off by half a step, 2^-15 * 256/255 of the largest at most, or by
 * 2^-126 where that is more.
 */
typedef struct nb_fixed16 {
    /* Of 8 k, those at 0 2 4 6 1 3 5 7: the order in which a word's nibbles come apart. */
    int8_t hi[16], lo[16];
    /* Half the step: the codes of E2M1 count halves. NaN when a value of the block is not finite. */
    float scale;
    int32_t bias; /* -12 * the sum of q: kernels look codes up as 12 + 2 * value, which is never negative */
} nb_fixed16;

/* The blocks of a row: they fill the first 40 of each 64 bytes, one after another. */
static inline const nb_fixed16 *nb_fixed16_row(const float *row)
{
    return (const nb_fixed16 *)(const void *)row;
}

/* The activation that element i stands for. */
static inline float nb_fixed16_value(const float *row, size_t i)
{
    const nb_fixed16 *b = nb_fixed16_row(row) + i / 16;
    size_t place = i % 16 / 8 * 8 + i % 2 * 4 + i % 8 / 2;
    return (float)(256 * b->hi[place] + b->lo[place]) * (2 * b->scale);
}

/* As NB_I8_E8M0 in int8.h: |sum| <= 16 * 12 * 32639 < 2^22.6, so that sum * 2^127 * 2^-22 stays below 2^128, and sum * 2^-127 * 2^-22 is a
 * whole number of F32's smallest steps. Steps of the output are 2^-127 then. */
#define NB_FIXED16_E8M0 0x1p-22f
static inline float nb_fixed16_multiplier(const nb_packed *w)
{
    return w->format == NB_FMT_MXFP4 ? w->multiplier / NB_FIXED16_E8M0 : w->multiplier;
}

#endif
