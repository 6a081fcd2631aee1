/* Blocks are cut from a slab one after another; what a freed one leaves is used again only with the whole slab. */
#include "base/slab.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/huge.h"
#include "base/mem.h"

#define HUGE_BYTES ((size_t)2 << 20)
#define FIRST_BYTES ((size_t)8 << 20) /* small, for models of a few MB */
#define MOST_BYTES ((size_t)256 << 20)

struct nb_slab {
    void *memory;
    uint8_t *next;     /* the first byte that no block has */
    size_t left, uses; /* bytes from there; blocks, and the nb_slabs that cuts them */
};

/* calloc gives pages that nobody has touched; what is left at the end costs addresses alone. */
static nb_slab *slab_new(size_t bytes, size_t align)
{
    size_t all;
    nb_slab *s = nb_add(bytes, align, &all) ? malloc(sizeof *s) : NULL;
    void *memory = s ? calloc(1, all) : NULL;
    if (!memory) {
        free(s);
        return NULL;
    }
    nb_prefer_huge_pages(memory, all);
    size_t skip = align - (uintptr_t)memory % align;
    *s = (nb_slab){memory, (uint8_t *)memory + skip, all - skip, 1};
    return s;
}

void nb_slab_release(nb_slab *slab)
{
    if (!slab || --slab->uses) return;
    free(slab->memory);
    free(slab);
}

void nb_slabs_close(nb_slabs *s)
{
    nb_slab_release(s->open);
    *s = (nb_slabs){0};
}

/* Whether so much memory is to be had at once. */
static bool to_be_had(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p != MAP_FAILED && munmap(p, bytes) == 0;
}

/* A new slab to cut blocks from, of at least `bytes`. Near a limit of memory or addresses (ulimit -v, strict overcommit) it takes no more
 * than half of what is left, so that there is some for everything else, down to the one block. */
static nb_slab *open_slab(nb_slabs *s, size_t bytes)
{
    size_t size = s->size < MOST_BYTES / 2 ? 2 * s->size : MOST_BYTES;
    if (size < FIRST_BYTES) size = FIRST_BYTES;
    nb_slab_release(s->open);
    while (size > bytes && !to_be_had(2 * (size + HUGE_BYTES))) size /= 2;
    s->open = slab_new(nb_larger(bytes, size), HUGE_BYTES);
    s->size = size;
    return s->open;
}

void *nb_slabs_take(nb_slabs *s, size_t bytes, nb_slab **slab)
{
    if (bytes > SIZE_MAX - NB_ALIGN) return NULL;
    bytes = nb_round_up(bytes ? bytes : 1, NB_ALIGN);
    if (bytes < NB_SLAB_LEAST) s = NULL;
    nb_slab *from = s ? s->open : NULL;
    if (!s)
        from = slab_new(bytes, NB_ALIGN);
    else if (!from || from->uses == 1 ||
             from->left < bytes) /* the open one alone: all of its blocks are gone */
        from = open_slab(s, bytes);
    if (!from) return NULL;
    void *block = from->next;
    from->next += bytes;
    from->left -= bytes;
    if (s) from->uses++;
    *slab = from;
    return block;
}
