/*
 * KV pages. Streams with the same tokens_per_row, window and page_rows form a
 * class; a page of a class holds page_rows rows (NB_PAGE_ROWS if it says 0) of
 * each of its streams. Each sequence has one page table per class. Page 0 is
 * never handed out.
 *
 * Sequences and the prefix cache share pages by counting references. The unit
 * of accounting is the block of NB_BLOCK tokens: a pool of B blocks has, in
 * every class, pages enough for any set of sequences that hold B blocks
 * together, and what the cache alone holds is given up for them, least recently
 * used first.
 *
 * The prefix cache: a block's key chains over (parent's key, its 16 ids, salt),
 * rooted in random bytes of this process; the ids are kept and compared, so
 * that a collision is a miss. A sequence that starts with cached blocks gets
 * their pages; rows of a page that it will go on writing (a compressed row
 * spans many tokens) are copied, never shared. Windowed classes keep the rows
 * that the next token can still see, at the boundaries where a hit is likely:
 * the ends of prompts and of answers.
 */
#ifndef NB_ENGINE_PAGES_H
#define NB_ENGINE_PAGES_H

#include "base/error.h"
#include "kernels/kv.h"

#define NB_BLOCK 16

typedef struct nb_pages nb_pages;

typedef struct nb_pages_options {
    size_t max_seqs, max_context, max_rows;
    size_t blocks;     /* 0: the worst case of every sequence */
    bool prefix_cache; /* false: publish and adopt do nothing */
} nb_pages_options;

/* Takes all memory: no other function allocates. NB_ERR_NOMEM; NB_ERR_UNSUPPORTED: more kinds of streams than there is room for. */
nb_status nb_pages_new(const nb_stream_decl *decl, size_t n, const nb_pages_options *opt, nb_pages **out,
                       nb_error *err);
void nb_pages_free(nb_pages *p);
/* The rows, for a back end. */
const nb_kv *nb_pages_view(const nb_pages *p);
uint64_t nb_pages_bytes(const nb_pages *p);
/* What nb_pages_new would take for these options; UINT64_MAX: too much to
 * count. */
uint64_t nb_pages_bytes_for(const nb_stream_decl *decl, size_t n, const nb_pages_options *opt);

size_t nb_pages_blocks(const nb_pages *p);             /* in all */
size_t nb_pages_used(const nb_pages *p);               /* held by sequences (shared ones once) */
size_t nb_pages_cached(const nb_pages *p);             /* held by the cache alone: free for the asking */
size_t nb_pages_held(const nb_pages *p, uint32_t seq); /* by this sequence, shared ones too */
/* How many blocks nobody would hold any more if these n sequences were cleared. */
size_t nb_pages_freed_by(const nb_pages *p, const uint32_t *seqs, size_t n);

/* Pages for the rows that tokens [from, to) of a sequence complete. False:
 * there are not enough, and nothing has changed. Rows of a fresh page read as
 * zeros (a stale NaN times a masked 0 would be NaN), except where a page is one
 * row, which nobody reads before it is written whole. */
bool nb_pages_grow(nb_pages *p, uint32_t seq, size_t from, size_t to);
/* Gives back pages that no token at or beyond length will read, and those that
 * hold only rows of tokens at or beyond length (which is not below what was
 * adopted or published). */
void nb_pages_trim(nb_pages *p, uint32_t seq, size_t length);
/* Gives everything back. What was published stays in the cache. */
void nb_pages_clear(nb_pages *p, uint32_t seq);

/* Where a sequence can begin that another published. */
typedef enum nb_sharing {
    NB_SHARE_NOTHING,
    NB_SHARE_BLOCKS, /* after any block */
    NB_SHARE_ENDS,   /* after blocks that were published as ends alone: the model has windows */
} nb_sharing;
nb_sharing nb_pages_sharing(const nb_pages *p);
/* Looks the first n ids up and puts what the cache has into seq's (empty)
 * tables. Returns how many tokens that is: a multiple of NB_BLOCK, less than n.
 */
size_t nb_pages_adopt(nb_pages *p, uint32_t seq, const uint32_t *ids, size_t n, const char *salt);
/* How many of those ids the cache recognised: more than nb_pages_adopt returned
 * where a model with windows has no rows there to go on from. A boundary worth
 * keeping, since another prompt parts there. */
size_t nb_pages_known(const nb_pages *p, uint32_t seq);
/* The first n ids of seq are computed and finite: its full blocks may be
 * shared, and where the cache has a block already, seq takes the cache's for
 * its own. Cheap when nothing new is full. end: a boundary worth keeping (end of
 * a prompt, of an answer); its rows must still be there. */
void nb_pages_publish(nb_pages *p, uint32_t seq, const uint32_t *ids, size_t n, const char *salt, bool end);

/* For tests and when idle, O(everything): pages in use and in all, over every class; and conservation of pages and references
 * (NB_ERR_FORMAT names what is wrong). */
void nb_pages_count(const nb_pages *p, size_t *used, size_t *total);
nb_status nb_pages_check(const nb_pages *p, nb_error *err);

#endif
