#include "engine/pages.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

typedef struct page_class {
    size_t tokens_per_row, window;
    size_t table_len; /* entries of one sequence's table */
    size_t n_pages;   /* page 0 included */
    uint32_t *free;   /* stack of free pages */
    size_t n_free;
    uint32_t **tables; /* [max_seqs] */
    uint32_t *entries; /* the tables' memory */
} page_class;

struct nb_pages {
    page_class *classes;
    size_t n_classes, max_seqs;
    nb_kv_stream *streams;
    nb_kv view;
    uint64_t bytes;
};

/* Pages that one sequence can hold at once. A windowed class keeps the window before the committed end and a step's rows. */
static size_t pages_per_seq(const page_class *c, size_t max_rows)
{
    if (!c->window) return c->table_len;
    size_t rows = nb_ceil_div(c->window + max_rows, c->tokens_per_row);
    size_t pages = nb_ceil_div(rows, NB_PAGE_ROWS) + 1;
    return pages < c->table_len ? pages : c->table_len;
}

static nb_status make_class(nb_pages *p, page_class *c, size_t max_context, size_t max_rows, nb_error *err)
{
    c->table_len = nb_ceil_div(nb_ceil_div(max_context, c->tokens_per_row), NB_PAGE_ROWS);
    size_t per_seq = pages_per_seq(c, max_rows);
    c->n_pages = 1 + per_seq * p->max_seqs;
    if (c->n_pages > UINT32_MAX) return nb_fail_nomem(err, "page tables", SIZE_MAX);
    c->free = calloc(c->n_pages, sizeof *c->free);
    c->tables = calloc(p->max_seqs, sizeof *c->tables);
    c->entries = calloc(p->max_seqs * c->table_len, sizeof *c->entries);
    if (!c->free || !c->tables || !c->entries)
        return nb_fail_nomem(err, "page tables", c->n_pages * sizeof *c->free);
    for (size_t i = 0; i < p->max_seqs; i++) c->tables[i] = c->entries + i * c->table_len;
    for (size_t i = c->n_pages - 1; i > 0; i--) c->free[c->n_free++] = (uint32_t)i;
    return NB_OK;
}

static page_class *class_of(nb_pages *p, const nb_stream_decl *d)
{
    for (size_t i = 0; i < p->n_classes; i++)
        if (p->classes[i].tokens_per_row == d->tokens_per_row && p->classes[i].window == d->window)
            return &p->classes[i];
    return NULL;
}

nb_status nb_pages_new(const nb_stream_decl *decl, size_t n, size_t max_seqs, size_t max_context,
                       size_t max_rows, nb_pages **out, nb_error *err)
{
    nb_status s = NB_OK;
    nb_pages *p = calloc(1, sizeof *p);
    if (!p) return nb_fail_nomem(err, "KV pages", sizeof *p);
    p->max_seqs = max_seqs;
    p->classes = calloc(n, sizeof *p->classes);
    p->streams = calloc(n, sizeof *p->streams);
    if (!p->classes || !p->streams) {
        s = nb_fail_nomem(err, "KV streams", n * sizeof *p->streams);
        goto out;
    }
    p->view = (nb_kv){p->streams, n};
    for (size_t i = 0; i < n; i++) {
        if (class_of(p, &decl[i])) continue;
        page_class *c = &p->classes[p->n_classes++];
        c->tokens_per_row = decl[i].tokens_per_row;
        c->window = decl[i].window;
        if ((s = make_class(p, c, max_context, max_rows, err))) goto out;
    }
    for (size_t i = 0; i < n; i++) {
        const page_class *c = class_of(p, &decl[i]);
        size_t bytes;
        if (!nb_mul(c->n_pages, NB_PAGE_ROWS * sizeof(float), &bytes) || !nb_mul(bytes, decl[i].cols, &bytes))
            bytes = SIZE_MAX;
        /* calloc: zero pages cost nothing until written, and a row never written reads as zeros */
        p->streams[i] = (nb_kv_stream){decl[i], bytes == SIZE_MAX ? NULL : calloc(1, bytes), c->tables};
        if (!p->streams[i].base) {
            s = nb_fail_nomem(err, "the KV cache", bytes);
            goto out;
        }
        p->bytes += bytes;
    }
out:
    if (s == NB_OK)
        *out = p;
    else
        nb_pages_free(p);
    return s;
}

void nb_pages_free(nb_pages *p)
{
    if (!p) return;
    for (size_t i = 0; i < p->view.n_streams; i++) free(p->streams[i].base);
    for (size_t i = 0; i < p->n_classes; i++) {
        free(p->classes[i].free);
        free(p->classes[i].tables);
        free(p->classes[i].entries);
    }
    free(p->classes);
    free(p->streams);
    free(p);
}

const nb_kv *nb_pages_view(const nb_pages *p)
{
    return &p->view;
}

uint64_t nb_pages_bytes(const nb_pages *p)
{
    return p->bytes;
}

void nb_pages_grow(nb_pages *p, uint32_t seq, size_t from, size_t to)
{
    for (size_t i = 0; from < to && i < p->n_classes; i++) {
        page_class *c = &p->classes[i];
        size_t last = (to - 1) / c->tokens_per_row / NB_PAGE_ROWS;
        for (size_t page = from / c->tokens_per_row / NB_PAGE_ROWS; page <= last; page++)
            if (!c->tables[seq][page]) c->tables[seq][page] = c->free[--c->n_free];
    }
}

static void drop(page_class *c, uint32_t *entry)
{
    if (*entry) c->free[c->n_free++] = *entry;
    *entry = 0;
}

void nb_pages_trim(nb_pages *p, uint32_t seq, size_t length)
{
    for (size_t i = 0; i < p->n_classes; i++) {
        page_class *c = &p->classes[i];
        uint32_t *table = c->tables[seq];
        /* row of token length is the next to be written; a compressed row may already be begun by earlier tokens */
        size_t rows = nb_ceil_div(length, c->tokens_per_row), used = nb_ceil_div(rows, NB_PAGE_ROWS);
        size_t behind = c->window && length + 1 > c->window
                            ? (length + 1 - c->window) / c->tokens_per_row / NB_PAGE_ROWS
                            : 0;
        for (size_t page = used; page < c->table_len && table[page]; page++) drop(c, &table[page]);
        for (size_t page = behind; page-- > 0 && table[page];) drop(c, &table[page]);
    }
}

void nb_pages_clear(nb_pages *p, uint32_t seq)
{
    for (size_t i = 0; i < p->n_classes; i++)
        for (size_t page = 0; page < p->classes[i].table_len; page++)
            drop(&p->classes[i], &p->classes[i].tables[seq][page]);
}

void nb_pages_count(const nb_pages *p, size_t *used, size_t *total)
{
    *used = *total = 0;
    for (size_t i = 0; i < p->n_classes; i++) {
        *total += p->classes[i].n_pages - 1;
        *used += p->classes[i].n_pages - 1 - p->classes[i].n_free;
    }
}
