/*
 * Passes over one row of logits that sampling and log-probabilities share. The row is cut into chunks of 64, and the largest value of
 * each is kept, so that whoever looks for the best ones reads few chunks again; nothing sorts a vocabulary. Plain loops of constant
 * length that the compiler turns into vector instructions; every sum has one order, whatever the instruction set.
 */
#ifndef NB_ENGINE_ROW_H
#define NB_ENGINE_ROW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NB_ROW_CHUNK 64

/* Fills peak [ceil(n / NB_ROW_CHUNK)] with each chunk's largest value and *best with the index of the row's, the lowest among equals.
 * Returns n, or the index of the first NaN or +inf; peak and *best mean nothing then. n may not be 0. */
size_t nb_row_scan(const float *v, size_t n, float *peak, uint32_t *best);

/* The k largest (all when n is less), equals by index: a heap in best [k] whose root best[0] is the least of them. Returns their
 * number. peak is nb_row_scan's of the same row. */
size_t nb_row_select(const float *v, size_t n, const float *peak, size_t k, uint32_t *best);

/* Sorts indices by their values: the largest first, equals by index. */
void nb_row_sort(const float *v, uint32_t *best, size_t k);

/* out[i] = exp((v[i] - top) / temperature) with top the row's largest value; 0 below e^-87. sum [chunks] gets the sum of each chunk of
 * out. out may be v. Returns the sum of all. Relative error of an exponential: below 3e-7 where temperature is 1. */
double nb_row_exp(const float *v, size_t n, float top, float temperature, float *out, float *sum);

/* How many are at least x. */
size_t nb_row_count(const float *v, size_t n, float x);

/* True when v[a] comes before v[b]: larger, equals by index. */
static inline bool nb_row_before(const float *v, uint32_t a, uint32_t b)
{
    return v[a] > v[b] || (a < b && v[a] == v[b]);
}

#endif
