/* What pages.c (the pool) and pages_share.c (sharing through the prefix cache) have in common. */
#ifndef NB_ENGINE_PAGES_INTERNAL_H
#define NB_ENGINE_PAGES_INTERNAL_H

#include "engine/pages.h"
#include "engine/prefix.h"

#define MAX_CLASSES 16

/* Streams of one tokens_per_row, window and page_rows. Class 0 is one row a token without a window, whether or not a stream has it: its
 * pages are the blocks. A page is free when neither a table nor the cache names it. */
typedef struct page_class {
    size_t tokens_per_row, window, page_rows;
    size_t table_len;           /* entries of one sequence's table */
    size_t n_pages;             /* page 0 included */
    uint32_t **tables;          /* [max_seqs] */
    uint32_t *entries;          /* the tables' memory */
    uint32_t *free;             /* stack of free pages that have been used */
    size_t n_free, fresh;       /* pages fresh … n_pages - 1 have never been used and hold zeros */
    uint32_t *held;             /* [n_pages] table entries that name a page */
    uint32_t *kept;             /* [n_pages] how often the cache names it */
    size_t cache_alone;         /* pages with held == 0 and kept > 0 */
    size_t mark_at, mark_pages; /* where a mark has this class's pages, and how many at most */
} page_class;

typedef struct page_seq {
    size_t grown;     /* tokens that have pages */
    size_t published; /* blocks that are in the cache; the last of them is pinned */
    size_t known;     /* nb_pages_known */
} page_seq;

/* What the next token after a cached block needs besides whole pages: begun pages of coarse classes, pages of windows. */
typedef struct page_mark {
    uint32_t node;         /* 0: free */
    uint32_t newer, older; /* by last use; older links the free ones */
} page_mark;

struct nb_pages {
    page_class classes[MAX_CLASSES];
    size_t n_classes, max_seqs, max_context, blocks;
    bool cache;
    nb_kv_stream *streams;
    page_class **class_of; /* [streams] */
    void **memory;         /* [streams] of their rows, which begin on a cache line: calloc gives less */
    nb_kv view;
    uint64_t bytes;
    page_seq *seqs;
    uint32_t *tally; /* [most pages of a class] for counting: nb_pages_check, nb_pages_freed_by */

    nb_prefix tree;
    uint32_t *coarse;     /* [blocks + 1][n_classes] the page of a coarse class that ends with this block */
    uint32_t *mark_of;    /* [blocks + 1] 0: none */
    page_mark *marks;     /* [n_marks + 1] */
    uint32_t *mark_pages; /* [n_marks + 1][mark_len] */
    size_t n_marks, mark_len;
    uint32_t newest_mark, oldest_mark, free_mark;
};

static inline bool class_is_coarse(const page_class *c)
{
    return !c->window && c->tokens_per_row > 1;
}
/* Row of the first token that the token at position n can see; 0 without a window. */
static inline size_t class_first_row(const page_class *c, size_t n)
{
    size_t next = n / c->tokens_per_row + 1;
    return c->window && next > c->window ? next - c->window : 0;
}
static inline size_t class_available(const page_class *c)
{
    return c->n_free + (c->n_pages - c->fresh);
}

/* A page of class c that reads as zeros, not yet held by anyone. There must be one. */
uint32_t nb_page_take(nb_pages *p, page_class *c);
void nb_page_hold(page_class *c, uint32_t page);
void nb_page_release(page_class *c, uint32_t page);
void nb_page_keep(page_class *c, uint32_t page);   /* by the cache */
void nb_page_forget(page_class *c, uint32_t page); /* by the cache */

/* Makes the cache give up what it must so that class c has need pages. False: it cannot; the cache is as it was. */
bool nb_share_make_room(nb_pages *p, page_class *c, size_t need);
/* The sequence's tables are about to be cleared: its pin goes. */
void nb_share_leave(nb_pages *p, uint32_t seq);
/* The cache's half of nb_pages_check. */
nb_status nb_share_check(const nb_pages *p, nb_error *err);

#endif
