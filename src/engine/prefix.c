/* The tree of cached blocks: a hash table for finding, a list for forgetting. No function but init allocates. */
#include "engine/prefix.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

#include "base/mem.h"

static size_t bucket_count(size_t blocks)
{
    size_t n = 1;
    while (n < blocks) n *= 2;
    return n;
}

uint64_t nb_prefix_bytes(size_t blocks)
{
    return blocks ? (uint64_t)(blocks + 1) * sizeof(nb_prefix_node) +
                        (uint64_t)bucket_count(blocks) * sizeof(uint32_t)
                  : 0;
}

nb_status nb_prefix_init(nb_prefix *t, size_t blocks, nb_error *err)
{
    *t = (nb_prefix){.key_bits = UINT64_MAX};
    if (getrandom(t->secret, sizeof t->secret, 0) != (ssize_t)sizeof t->secret)
        return nb_fail(err, NB_ERR_IO, "the system gave no random bytes for the prefix cache's keys");
    t->mask = bucket_count(blocks) - 1;
    t->nodes = calloc(blocks + 1, sizeof *t->nodes);
    t->buckets = calloc(t->mask + 1, sizeof *t->buckets);
    if (t->nodes && t->buckets) return NB_OK;
    nb_prefix_free(t);
    return nb_fail_nomem(err, "the prefix cache", (blocks + 1) * sizeof *t->nodes);
}

void nb_prefix_free(nb_prefix *t)
{
    free(t->nodes);
    free(t->buckets);
    *t = (nb_prefix){0};
}

uint64_t nb_prefix_salt(const nb_prefix *t, const char *salt)
{
    if (!salt || !*salt) return 0;
    return XXH3_64bits_withSecret(salt, strlen(salt), t->secret, sizeof t->secret);
}

uint32_t nb_prefix_find(const nb_prefix *t, uint32_t parent, const uint32_t *ids, uint64_t salt,
                        nb_prefix_key *key)
{
    struct {
        nb_prefix_key parent;
        uint64_t salt;
        uint32_t ids[NB_BLOCK];
    } text = {.parent = t->nodes[parent].key, .salt = salt};
    memcpy(text.ids, ids, sizeof text.ids);
    XXH128_hash_t h = XXH3_128bits_withSecret(&text, sizeof text, t->secret, sizeof t->secret);
    *key = (nb_prefix_key){h.low64 & t->key_bits, h.high64 & t->key_bits};
    for (uint32_t i = t->buckets[key->lo & t->mask]; i; i = t->nodes[i].next) {
        const nb_prefix_node *n = &t->nodes[i];
        if (n->key.lo == key->lo && n->key.hi == key->hi && n->parent == parent && n->salt == salt &&
            memcmp(n->ids, ids, sizeof n->ids) == 0)
            return i;
    }
    return 0;
}

static void list_add(nb_prefix *t, uint32_t i)
{
    nb_prefix_node *n = &t->nodes[i];
    n->newer = 0;
    n->older = t->newest;
    if (t->newest)
        t->nodes[t->newest].newer = i;
    else
        t->oldest = i;
    t->newest = i;
    t->idle++;
}

static void list_remove(nb_prefix *t, uint32_t i)
{
    const nb_prefix_node *n = &t->nodes[i];
    if (n->newer)
        t->nodes[n->newer].older = n->older;
    else
        t->newest = n->older;
    if (n->older)
        t->nodes[n->older].newer = n->newer;
    else
        t->oldest = n->newer;
    t->idle--;
}

void nb_prefix_pin(nb_prefix *t, uint32_t node)
{
    for (; node; node = t->nodes[node].parent) {
        if (t->nodes[node].pins++) return; /* those before it are pinned already */
        list_remove(t, node);
    }
}

void nb_prefix_unpin(nb_prefix *t, uint32_t node)
{
    for (; node; node = t->nodes[node].parent) {
        if (--t->nodes[node].pins) return;
        list_add(t, node);
    }
}

void nb_prefix_insert(nb_prefix *t, uint32_t node, uint32_t parent, const uint32_t *ids, uint64_t salt,
                      nb_prefix_key key)
{
    nb_prefix_node *n = &t->nodes[node];
    uint32_t *bucket = &t->buckets[key.lo & t->mask];
    /* one pin, the sequence's; parent's pin by the sequence becomes its pin by this child */
    *n = (nb_prefix_node){
        .key = key, .salt = salt, .parent = parent, .next = *bucket, .pins = 1, .known = true};
    memcpy(n->ids, ids, sizeof n->ids);
    *bucket = node;
}

uint32_t nb_prefix_evict(nb_prefix *t)
{
    uint32_t node = t->oldest;
    if (!node) return 0;
    nb_prefix_node *n = &t->nodes[node];
    list_remove(t, node);
    uint32_t *at = &t->buckets[n->key.lo & t->mask];
    while (*at != node) at = &t->nodes[*at].next;
    *at = n->next;
    n->known = false;
    return node;
}
