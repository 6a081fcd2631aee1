/*
 * Where a sequence's cached rows are. A model declares streams; the engine owns pages and page tables; back ends only look rows
 * up through this view. A stream holds one row per `tokens_per_row` tokens, row w at absolute index w whatever the chunking,
 * written when the last of its tokens is computed. Streams of one class (same tokens_per_row, window and page_rows) share page
 * tables. Page 0 is never written: it stands for rows that left a window.
 */
#ifndef NB_KERNELS_KV_H
#define NB_KERNELS_KV_H

#include <stddef.h>
#include <stdint.h>

#define NB_PAGE_ROWS 16

typedef struct nb_stream_decl {
    size_t cols;           /* F32 values a row */
    size_t tokens_per_row; /* >= 1 */
    /* Rows that a token may read: its own (not there yet where tokens_per_row > 1) and those before it; 0: all before it. */
    size_t window;
    /* Rows a page: 0 is NB_PAGE_ROWS. 1, which needs a window, is for rows of megabytes; those pages are not cleared, so that
     * each row must be written whole before it is read. */
    size_t page_rows;
    /* Heads whose parts of a row, of cols / heads values each, are read apart: within a page the rows of one head lie side by side,
     * since memory is slow to give small pieces of each row. 0 is 1. */
    size_t heads;
} nb_stream_decl;

typedef struct nb_kv_stream {
    nb_stream_decl decl;
    float *base;             /* [pages][heads][rows a page][cols / heads] */
    uint32_t *const *tables; /* [sequence slot] -> pages in the order of their rows */
} nb_kv_stream;

typedef struct nb_kv {
    const nb_kv_stream *streams; /* [n_streams], numbered as the model declared them */
    size_t n_streams;
} nb_kv;

static inline size_t nb_kv_heads(const nb_kv_stream *s)
{
    return s->decl.heads ? s->decl.heads : 1;
}

/* Head `head` of row `row` of sequence slot `seq`, in page_rows rows side by side. The engine made its page before the step began. */
static inline float *nb_kv_head(const nb_kv_stream *s, uint32_t seq, size_t row, size_t head)
{
    size_t rows = s->decl.page_rows ? s->decl.page_rows : NB_PAGE_ROWS, heads = nb_kv_heads(s);
    size_t page = s->tables[seq][row / rows];
    return s->base + page * rows * s->decl.cols + (head * rows + row % rows) * (s->decl.cols / heads);
}

/* The whole row, of a stream whose heads are 1. */
static inline float *nb_kv_row(const nb_kv_stream *s, uint32_t seq, size_t row)
{
    if (s->decl.page_rows == 1) return s->base + s->tables[seq][row] * s->decl.cols;
    size_t page = s->tables[seq][row / NB_PAGE_ROWS];
    return s->base + (page * NB_PAGE_ROWS + row % NB_PAGE_ROWS) * s->decl.cols;
}

#endif
