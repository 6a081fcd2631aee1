/* The hash map. Linear probing at a load of at most 3/4; the stored hash spares most key comparisons. Keys come from
 * files that anyone may have made, so the hash is seeded with an address that the system randomises: names that
 * collide on purpose would otherwise turn a look-up into a scan. */
#include "base/map.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"

static uint64_t hash_of(const nb_map *m, const char *key, size_t len)
{
    return XXH3_64bits_withSeed(key, len, m->seed);
}

/* The slot that holds key, or the empty one where it belongs. cap must not be 0. */
static nb_map_slot *slot_of(const nb_map *m, const char *key, size_t len, uint64_t hash)
{
    size_t i = hash & (m->cap - 1);
    for (;; i = (i + 1) & (m->cap - 1)) {
        nb_map_slot *s = &m->slots[i];
        if (!s->key || (s->hash == hash && s->len == len && memcmp(s->key, key, len) == 0)) return s;
    }
}

bool nb_map_reserve(nb_map *m, size_t n)
{
    if (n > SIZE_MAX / 8) return false;
    size_t cap = 16;
    while (cap / 4 * 3 < n) cap *= 2;
    if (cap <= m->cap) return true;
    nb_map_slot *slots = calloc(cap, sizeof *slots);
    if (!slots) return false;
    nb_map old = *m;
    if (!old.cap) m->seed = (uint64_t)(uintptr_t)slots;
    m->slots = slots;
    m->cap = cap;
    for (size_t i = 0; i < old.cap; i++) {
        const nb_map_slot *s = &old.slots[i];
        if (s->key) *slot_of(m, s->key, s->len, s->hash) = *s;
    }
    free(old.slots);
    return true;
}

bool nb_map_put(nb_map *m, const char *key, size_t len, uint32_t value, bool *was)
{
    if (len > UINT32_MAX || !nb_map_reserve(m, m->count + 1)) return false;
    uint64_t hash = hash_of(m, key, len);
    nb_map_slot *s = slot_of(m, key, len, hash);
    if (was) *was = s->key != NULL;
    if (s->key) {
        s->value = value;
        return true;
    }
    *s = (nb_map_slot){.key = key, .len = (uint32_t)len, .value = value, .hash = hash};
    m->count++;
    return true;
}

bool nb_map_get(const nb_map *m, const char *key, size_t len, uint32_t *value)
{
    if (!m->count) return false;
    const nb_map_slot *s = slot_of(m, key, len, hash_of(m, key, len));
    if (!s->key) return false;
    if (value) *value = s->value;
    return true;
}

void nb_map_free(nb_map *m)
{
    free(m->slots);
    *m = (nb_map){0};
}
