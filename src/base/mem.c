#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

void *nb_calloc_aligned(size_t count, size_t size)
{
    size_t n;
    if (!nb_mul(count, size, &n) || n > SIZE_MAX - NB_ALIGN) return NULL;
    n = nb_round_up(n ? n : 1, NB_ALIGN);
    void *p = aligned_alloc(NB_ALIGN, n);
    if (p) memset(p, 0, n);
    return p;
}
