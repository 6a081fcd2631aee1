#include "engine/ring.h"

#include <stdlib.h>
#include <string.h>

nb_status nb_ring_new(nb_ring *r, size_t bytes, nb_error *err)
{
    size_t size = 1024;
    while (size < bytes && size <= SIZE_MAX / 2) size *= 2;
    *r = (nb_ring){.bytes = size < bytes ? NULL : malloc(size), .size = size};
    return r->bytes ? NB_OK : nb_fail_nomem(err, "a ring of events", bytes);
}

void nb_ring_free(nb_ring *r)
{
    free(r->bytes);
    r->bytes = NULL;
}

/* Counters run on and wrap with size_t; their difference is what is in the ring. Sequentially consistent where the two sides ask
 * each other (core_request.c parks and wakes on it), acquire and release for the bytes. */
size_t nb_ring_room(const nb_ring *r)
{
    return r->size -
           (atomic_load_explicit(&r->head, memory_order_relaxed) + r->begun - atomic_load(&r->tail));
}

void nb_ring_put(nb_ring *r, const void *bytes, size_t n)
{
    size_t at = (atomic_load_explicit(&r->head, memory_order_relaxed) + r->begun) & (r->size - 1);
    size_t first = n < r->size - at ? n : r->size - at;
    memcpy(r->bytes + at, bytes, first);
    memcpy(r->bytes, (const unsigned char *)bytes + first, n - first);
    r->begun += n;
}

void nb_ring_publish(nb_ring *r)
{
    size_t head = atomic_load_explicit(&r->head, memory_order_relaxed) + r->begun;
    r->begun = 0; /* before the reader may know: the writer's owner may be gone after the last record */
    atomic_store(&r->head, head);
}

size_t nb_ring_ready(const nb_ring *r)
{
    return atomic_load(&r->head) - atomic_load_explicit(&r->tail, memory_order_relaxed);
}

void nb_ring_take(nb_ring *r, void *out, size_t n)
{
    size_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed), at = tail & (r->size - 1);
    size_t first = n < r->size - at ? n : r->size - at;
    memcpy(out, r->bytes + at, first);
    memcpy((unsigned char *)out + first, r->bytes, n - first);
    atomic_store(&r->tail, tail + n);
}
