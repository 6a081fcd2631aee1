/* A hash map from byte strings to uint32 values (XXH3, open addressing). Keys are borrowed: they must outlive the
 * map and not move. Zero-initialise; nb_map_free. */
#ifndef NB_BASE_MAP_H
#define NB_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nb_map_slot {
    const char *key; /* NULL: empty */
    uint32_t len, value;
    uint64_t hash;
} nb_map_slot;

typedef struct nb_map {
    nb_map_slot *slots;
    size_t cap, count; /* cap is a power of two */
    uint64_t seed;     /* of the hash */
} nb_map;

/* Room for n keys without rehashing. False when out of memory. */
bool nb_map_reserve(nb_map *m, size_t n);
/* Adds key (not NULL), or replaces its value. *was (may be NULL) tells whether it was there before. False: out of
 * memory. */
bool nb_map_put(nb_map *m, const char *key, size_t len, uint32_t value, bool *was);
/* False: not there. value may be NULL. */
bool nb_map_get(const nb_map *m, const char *key, size_t len, uint32_t *value);
void nb_map_free(nb_map *m);

#endif
