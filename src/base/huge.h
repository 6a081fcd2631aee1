/* Huge pages: what is read once a step, or at places far apart, waits for translations of small ones. */
#ifndef NB_BASE_HUGE_H
#define NB_BASE_HUGE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

/* Asks for huge pages where the memory has room for whole ones. A hint: where it is refused nothing changes. A page that is touched then
 * takes 2 MiB. */
static inline void nb_prefer_huge_pages(void *memory, size_t bytes)
{
    const uintptr_t huge = (uintptr_t)2 << 20;
    const uintptr_t begin = ((uintptr_t)memory + huge - 1) & ~(huge - 1),
                    end = ((uintptr_t)memory + bytes) & ~(huge - 1);
    if (begin < end) madvise((void *)begin, end - begin, MADV_HUGEPAGE);
}

#endif
