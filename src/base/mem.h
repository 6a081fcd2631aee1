/* Size arithmetic that cannot wrap, and aligned memory. Everything else uses malloc and free directly, so that
 * the allocation-failure tests can wrap them at link time. */
#ifndef NB_BASE_MEM_H
#define NB_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NB_ALIGN 64 /* cache line, and the widest vector */

/* *out = a * b, or a + b. False (and *out untouched) when the result does not fit size_t. */
static inline bool nb_mul(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}
static inline bool nb_add(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

static inline size_t nb_ceil_div(size_t a, size_t b)
{
    return a / b + (a % b != 0);
}
/* a rounded up to a multiple of b; a must be at most SIZE_MAX - b. */
static inline size_t nb_round_up(size_t a, size_t b)
{
    return nb_ceil_div(a, b) * b;
}

static inline size_t nb_larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static inline size_t nb_smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* count * size bytes aligned to NB_ALIGN, zeroed; NULL when out of memory or the product overflows. free() it. */
void *nb_calloc_aligned(size_t count, size_t size);

#endif
