/* Histograms for /metrics: plain atomics, because a scrape must never wait for a step nor a step for a scrape. */
#include "base/hist.h"

void nb_hist_init(nb_hist *h, const double *bound, size_t n)
{
    h->bound = bound;
    h->n = n;
    for (size_t i = 0; i <= n; i++) atomic_init(&h->count[i], 0);
    atomic_init(&h->total, 0);
    atomic_init(&h->sum, 0);
}

void nb_hist_add(nb_hist *h, double value, uint64_t n)
{
    size_t i = 0;
    while (i < h->n && value > h->bound[i]) i++;
    atomic_fetch_add_explicit(&h->count[i], n, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->total, n, memory_order_relaxed);
    /* the one writer may load and store */
    double sum = atomic_load_explicit(&h->sum, memory_order_relaxed);
    atomic_store_explicit(&h->sum, sum + value * (double)n, memory_order_relaxed);
}
