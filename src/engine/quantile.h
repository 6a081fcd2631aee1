/*
 * A quantile of |x| over a stream too long to keep: a histogram of bins that are evenly spaced in the logarithm, 64 to an
 * octave, from 2^-24 to 2^24. A bin's number is the exponent and the top six bits of the mantissa, so finding it is a shift. The
 * quantile is interpolated inside the bin where its rank falls: the answer is within one bin, 1/64 of its value. What lies
 * below the range is counted as zero, what lies above in the topmost bin; the caller knows the exact maximum and gives it.
 */
#ifndef NB_ENGINE_QUANTILE_H
#define NB_ENGINE_QUANTILE_H

#include <stddef.h>
#include <stdint.h>

#define NB_QUANTILE_LOW (-24)
#define NB_QUANTILE_OCTAVES 48
#define NB_QUANTILE_BINS (64 * NB_QUANTILE_OCTAVES + 1) /* bin 0: below the range */

/* Counts n values by magnitude into bins [NB_QUANTILE_BINS], zero at first. NaN and infinity must not be among them. */
void nb_quantile_add(uint64_t *bins, const float *x, size_t n);

/* The smallest v such that a share q in (0, 1] of the counted magnitudes are at most v; amax is the largest magnitude counted
 * (it is the answer when the rank is the last). 0 when nothing was counted. */
float nb_quantile_at(const uint64_t *bins, float amax, double q);

#endif
