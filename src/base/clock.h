/* The clock that measures: seconds that never go back (CLOCK_MONOTONIC). */
#ifndef NB_BASE_CLOCK_H
#define NB_BASE_CLOCK_H

#include <time.h>

static inline double nb_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
