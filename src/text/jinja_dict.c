/* Dicts in order of insertion; a hash of the keys once there are more than a few. */
#include <string.h>

#include "base/mem.h"
#include "text/jinja_internal.h"

#define FEW 8 /* keys that a linear search finds sooner */

jdict *nb_j_dict_new(jx *x, size_t room)
{
    jdict *d = nb_j_new(x, 1, sizeof *d);
    if (!d || !room) return d;
    d->keys = nb_j_new(x, room, sizeof *d->keys);
    d->values = nb_j_new(x, room, sizeof *d->values);
    d->cap = room;
    return d->values ? d : NULL;
}

/* The slot of key, or the empty one where it belongs. */
static uint32_t *slot_of(jx *x, const jdict *d, jv key)
{
    size_t i = nb_j_hash(x, key) & (d->n_slots - 1);
    while (d->slots[i] && !nb_j_equal(x, d->keys[d->slots[i] - 1], key) && x->status == NB_OK)
        i = (i + 1) & (d->n_slots - 1);
    return &d->slots[i];
}

static void build_slots(jx *x, jdict *d, size_t n_slots)
{
    if (!(d->slots = nb_j_new(x, n_slots, sizeof *d->slots))) return;
    d->n_slots = n_slots;
    for (size_t i = 0; i < d->n && x->status == NB_OK; i++) *slot_of(x, d, d->keys[i]) = (uint32_t)i + 1;
}

/* The index of key, or n. */
static size_t find(jx *x, const jdict *d, jv key)
{
    if (d->slots) {
        uint32_t slot = *slot_of(x, d, key);
        return slot ? slot - 1 : d->n;
    }
    size_t i = 0;
    if (key.type != J_STR) nb_j_hash(x, key); /* complains of what cannot be a key */
    nb_j_charge(x, 1);
    while (i < d->n && !nb_j_equal(x, d->keys[i], key)) i++;
    return i;
}

const jv *nb_j_dict_get(jx *x, const jdict *d, jv key)
{
    size_t i = find(x, d, key);
    return i < d->n && x->status == NB_OK ? &d->values[i] : NULL;
}

static void grow(jx *x, jdict *d)
{
    size_t cap = d->cap ? d->cap * 2 : 4;
    jv *keys = nb_j_new(x, cap, sizeof *keys), *values = nb_j_new(x, cap, sizeof *values);
    if (!keys || !values) return;
    if (d->n) {
        memcpy(keys, d->keys, d->n * sizeof *keys);
        memcpy(values, d->values, d->n * sizeof *values);
    }
    d->keys = keys;
    d->values = values;
    d->cap = cap;
}

void nb_j_dict_put(jx *x, jdict *d, jv key, jv value)
{
    if (x->status != NB_OK) return;
    size_t i = find(x, d, key);
    if (x->status != NB_OK) return;
    if (i < d->n) {
        d->values[i] = value;
        return;
    }
    if (d->n == d->cap) grow(x, d);
    if (x->status != NB_OK) return;
    d->keys[d->n] = key;
    d->values[d->n] = value;
    d->n++;
    if (d->n <= FEW) return;
    if (d->n * 2 > d->n_slots)
        build_slots(x, d, d->n_slots ? d->n_slots * 2 : 32);
    else
        *slot_of(x, d, key) = (uint32_t)d->n;
}
