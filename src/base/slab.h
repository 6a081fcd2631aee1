/*
 * Memory for many blocks that are taken one after another and read side by side: they share large pieces, slabs, and so huge pages, of
 * which a block with memory of its own has none at its ends. A slab is freed with the last of its blocks. Small blocks do have memory of
 * their own: huge pages are nothing to them, and tools see where they end.
 */
#ifndef NB_BASE_SLAB_H
#define NB_BASE_SLAB_H

#include <stddef.h>

#define NB_SLAB_LEAST ((size_t)64 << 10)

typedef struct nb_slab nb_slab;

/* Where blocks come from. Zero: nothing taken yet. One thread at a time, frees of its blocks included. */
typedef struct nb_slabs {
    nb_slab *open; /* the one that blocks are cut from, or NULL */
    size_t size;   /* bytes of the last one made: the next is twice as large, up to a limit */
} nb_slabs;

/* `bytes` zeroed bytes aligned to NB_ALIGN, not yet touched, so that each page is placed near the thread that writes it first. *slab is
 * what they lie in, for nb_slab_release. s NULL, or less than NB_SLAB_LEAST: a slab of their own. NULL without memory. */
void *nb_slabs_take(nb_slabs *s, size_t bytes, nb_slab **slab);
/* Gives one block of the slab back; NULL: nothing. s may have been closed before. */
void nb_slab_release(nb_slab *slab);
/* No more blocks are taken; those that there are stay. */
void nb_slabs_close(nb_slabs *s);

#endif
