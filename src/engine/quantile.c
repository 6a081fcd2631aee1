/* The log-spaced histogram behind calibrate's p9999. */
#include "engine/quantile.h"

#include <math.h>
#include <stdlib.h>

#include "numerics/formats.h"

#define SHIFT 17 /* of 23 mantissa bits, six stay */
#define PER_OCTAVE 64
#define BINS (PER_OCTAVE * NB_QUANTILE_OCTAVES)
#define BASE ((uint32_t)(127 + NB_QUANTILE_LOW) << 6)

bool nb_quantile_add(nb_quantile *h, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t at = (nb_f32_bits(x[i]) & 0x7FFFFFFF) >> SHIFT;
        if (at < BASE) {
            h->low++;
            continue;
        }
        at = at - BASE < BINS ? at - BASE : BINS - 1;
        uint64_t **octave = &h->octave[at / PER_OCTAVE];
        if (!*octave) *octave = calloc(PER_OCTAVE, sizeof **octave);
        if (!*octave) return false;
        (*octave)[at % PER_OCTAVE]++;
    }
    return true;
}

static uint64_t count(const nb_quantile *h, size_t bin)
{
    const uint64_t *octave = h->octave[bin / PER_OCTAVE];
    return octave ? octave[bin % PER_OCTAVE] : 0;
}

/* The lower edge of a bin; the upper edge of a bin is the lower one of the next. */
static double edge(size_t bin)
{
    return nb_f32_from_bits((BASE + (uint32_t)bin) << SHIFT);
}

float nb_quantile_at(const nb_quantile *h, float amax, double q)
{
    uint64_t n = h->low, below = h->low;
    for (size_t i = 0; i < BINS; i++) n += count(h, i);
    if (!n) return 0;
    double rank = ceil(q * (double)n);
    if (rank < 1) rank = 1;
    if (rank >= (double)n) return amax;
    if ((double)below >= rank) return 0;
    size_t b = 0;
    while ((double)(below + count(h, b)) < rank) below += count(h, b++);
    double inside = (rank - (double)below - 0.5) / (double)count(h, b),
           v = edge(b) + inside * (edge(b + 1) - edge(b));
    return v < amax ? (float)v : amax;
}

void nb_quantile_free(nb_quantile *h)
{
    for (size_t i = 0; i < NB_QUANTILE_OCTAVES; i++) free(h->octave[i]);
    *h = (nb_quantile){0};
}
