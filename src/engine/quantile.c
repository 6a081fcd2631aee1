/* The log-spaced histogram behind calibrate's p9999. */
#include "engine/quantile.h"

#include <math.h>

#include "numerics/formats.h"

#define SHIFT 17 /* of 23 mantissa bits, six stay */
#define BASE ((uint32_t)(127 + NB_QUANTILE_LOW) << 6)

void nb_quantile_add(uint64_t *bins, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t at = (nb_f32_bits(x[i]) & 0x7FFFFFFF) >> SHIFT;
        at = at < BASE ? 0 : at - BASE + 1;
        bins[at < NB_QUANTILE_BINS ? at : NB_QUANTILE_BINS - 1]++;
    }
}

/* The lower edge of a bin above 0; the upper edge of a bin is the lower one of the next. */
static double edge(size_t bin)
{
    return nb_f32_from_bits((BASE + (uint32_t)bin - 1) << SHIFT);
}

float nb_quantile_at(const uint64_t *bins, float amax, double q)
{
    uint64_t n = 0, below = 0;
    for (size_t i = 0; i < NB_QUANTILE_BINS; i++) n += bins[i];
    if (!n) return 0;
    double rank = ceil(q * (double)n);
    if (rank < 1) rank = 1;
    if (rank >= (double)n) return amax;
    size_t b = 0;
    while ((double)(below + bins[b]) < rank) below += bins[b++];
    if (!b) return 0;
    double inside = (rank - (double)below - 0.5) / (double)bins[b],
           v = edge(b) + inside * (edge(b + 1) - edge(b));
    return v < amax ? (float)v : amax;
}
