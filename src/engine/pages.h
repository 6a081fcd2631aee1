/*
 * KV pages. Streams with the same tokens_per_row and window form a class; a page of a class holds NB_PAGE_ROWS rows of each of
 * its streams. Each sequence has one page table per class. Page 0 is never handed out.
 */
#ifndef NB_ENGINE_PAGES_H
#define NB_ENGINE_PAGES_H

#include "base/error.h"
#include "kernels/kv.h"

typedef struct nb_pages nb_pages;

/* Takes all memory for max_seqs sequences of max_context tokens and steps of max_rows rows. */
nb_status nb_pages_new(const nb_stream_decl *decl, size_t n, size_t max_seqs, size_t max_context,
                       size_t max_rows, nb_pages **out, nb_error *err);
void nb_pages_free(nb_pages *p);
const nb_kv *nb_pages_view(const nb_pages *p);
uint64_t nb_pages_bytes(const nb_pages *p);

/* Makes pages for tokens [from, to) of a sequence. It cannot fail: every sequence's worst case is part of the pool. */
void nb_pages_grow(nb_pages *p, uint32_t seq, size_t from, size_t to);
/* Gives back pages that no token at or beyond length will read, and those that hold only rows of tokens at or beyond length. */
void nb_pages_trim(nb_pages *p, uint32_t seq, size_t length);
void nb_pages_clear(nb_pages *p, uint32_t seq);
/* For tests: pages in use and in all, over every class. */
void nb_pages_count(const nb_pages *p, size_t *used, size_t *total);

#endif
