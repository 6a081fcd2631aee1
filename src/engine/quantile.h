/*
 * A quantile of |x| over a stream too long to keep: a histogram of bins that are evenly spaced in the logarithm, 64 to an
 * octave, from 2^-24 to 2^24. A bin's number is the exponent and the top six bits of the mantissa, so finding it is a shift. The
 * quantile is interpolated inside the bin where its rank falls: the answer is within one bin, 1/64 of its value. What lies
 * below the range is counted as zero, what lies above in the topmost bin; the caller knows the exact maximum and gives it.
 * A model has a histogram for each of its linears, and a linear sees some twenty octaves: an octave's bins are taken when the
 * first value falls into it.
 */
#ifndef NB_ENGINE_QUANTILE_H
#define NB_ENGINE_QUANTILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NB_QUANTILE_LOW (-24)
#define NB_QUANTILE_OCTAVES 48

typedef struct nb_quantile {
    uint64_t low;                          /* values below the range */
    uint64_t *octave[NB_QUANTILE_OCTAVES]; /* [64], NULL: nothing counted there */
} nb_quantile;                             /* zero-initialise; nb_quantile_free */

/* Counts n values by magnitude. NaN and infinity must not be among them. False: out of memory, and some were not counted. */
bool nb_quantile_add(nb_quantile *h, const float *x, size_t n);

/* The smallest v such that a share q in (0, 1] of the counted magnitudes are at most v; amax is the largest magnitude counted
 * (it is the answer when the rank is the last). 0 when nothing was counted. */
float nb_quantile_at(const nb_quantile *h, float amax, double q);
void nb_quantile_free(nb_quantile *h);

#endif
