/*
 * A ring of bytes between one thread that writes records and one that reads them: a request's events on their way from the engine
 * to whoever sends them. Neither waits for the other, and nothing is allocated after nb_ring_new.
 */
#ifndef NB_ENGINE_RING_H
#define NB_ENGINE_RING_H

#include <stdatomic.h>

#include "base/error.h"

typedef struct nb_ring {
    unsigned char *bytes;      /* [size], a power of two */
    size_t size, begun;        /* begun: written and not yet published */
    _Atomic size_t head, tail; /* bytes published and taken since the beginning */
} nb_ring;

/* At least `bytes` bytes. */
nb_status nb_ring_new(nb_ring *r, size_t bytes, nb_error *err);
void nb_ring_free(nb_ring *r);

/* The writer's: how many bytes there is room for (what was put and not published is taken). */
size_t nb_ring_room(const nb_ring *r);
/* Adds n bytes; there must be room. They are seen after nb_ring_publish. */
void nb_ring_put(nb_ring *r, const void *bytes, size_t n);
void nb_ring_publish(nb_ring *r);

/* The reader's: bytes that are there, and taking n of them. */
size_t nb_ring_ready(const nb_ring *r);
void nb_ring_take(nb_ring *r, void *out, size_t n);

#endif
