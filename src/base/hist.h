/* Counters that one thread writes and others read without a lock: what /metrics shows. */
#ifndef NB_BASE_HIST_H
#define NB_BASE_HIST_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define NB_HIST_MAX 32

/* A Prometheus histogram: bucket i counts values <= bound[i] and above bound[i - 1]; count[n] the rest. */
typedef struct nb_hist {
    const double *bound; /* [n] ascending, static storage */
    size_t n;            /* <= NB_HIST_MAX */
    _Atomic uint64_t count[NB_HIST_MAX + 1];
    _Atomic uint64_t total;
    _Atomic double sum;
} nb_hist;

void nb_hist_init(nb_hist *h, const double *bound, size_t n);
/* Adds a value times n. One writer at a time; readers at any time (count and sum may be one value apart). */
void nb_hist_add(nb_hist *h, double value, uint64_t n);

#endif
