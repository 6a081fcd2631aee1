/*
 * The tree of blocks that the prefix cache knows: which block holds which 16 ids after which parent. It knows nothing of pages;
 * a node is named by the block that holds it (1 … blocks; 0 is the root, and no block).
 *
 * A node's key is XXH3-128 over (parent's key, ids, salt) under a secret of random bytes, so that nobody can aim at a
 * collision; parent, ids and salt are compared besides, so that one is a miss. Sequences pin the last node of their path, which
 * pins those before it. Nodes that nobody pins are in order of last use: a child was let go before its parent, so the oldest
 * never has children, and giving it up is O(1).
 */
#ifndef NB_ENGINE_PREFIX_H
#define NB_ENGINE_PREFIX_H

#include "engine/pages.h"

typedef struct nb_prefix_key {
    uint64_t lo, hi;
} nb_prefix_key;

typedef struct nb_prefix_node {
    nb_prefix_key key;
    uint64_t salt; /* hash of the salt in a first block, 0 elsewhere */
    uint32_t ids[NB_BLOCK];
    uint32_t parent;
    uint32_t next;         /* in its bucket */
    uint32_t newer, older; /* while nobody pins it */
    uint32_t pins;         /* sequences that end here, and pinned children */
    bool known;            /* the block is in the tree */
} nb_prefix_node;

typedef struct nb_prefix {
    nb_prefix_node *nodes; /* [blocks + 1] */
    uint32_t *buckets;     /* [mask + 1] */
    size_t mask;
    uint32_t newest, oldest;
    size_t idle;       /* nodes that nobody pins */
    uint64_t key_bits; /* all ones, but in tests of collisions */
    unsigned char secret[192];
} nb_prefix;

/* All zero is a valid empty tree for blocks = 0, and for nb_prefix_free. */
nb_status nb_prefix_init(nb_prefix *t, size_t blocks, nb_error *err);
void nb_prefix_free(nb_prefix *t);
uint64_t nb_prefix_bytes(size_t blocks);

/* Hash of a salt; 0 for NULL and "". */
uint64_t nb_prefix_salt(const nb_prefix *t, const char *salt);
/* The node with these ids after parent; 0: none. key: where to put such a node. */
uint32_t nb_prefix_find(const nb_prefix *t, uint32_t parent, const uint32_t *ids, uint64_t salt,
                        nb_prefix_key *key);
/* Adds a node (not known yet; its parent is the root or pinned) and pins it: the pin that was at parent moves on. */
void nb_prefix_insert(nb_prefix *t, uint32_t node, uint32_t parent, const uint32_t *ids, uint64_t salt,
                      nb_prefix_key key);
/* A sequence's pin on its last node (0: nothing): O(1) for a child of a pinned node, else O(depth). */
void nb_prefix_pin(nb_prefix *t, uint32_t node);
void nb_prefix_unpin(nb_prefix *t, uint32_t node);
/* Takes the node that has not been used for longest out of the tree; 0: every node is pinned. */
uint32_t nb_prefix_evict(nb_prefix *t);

#endif
