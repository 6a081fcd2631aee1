/* The pool: pages of every class, who names them, and the tables of the sequences. Sharing is in pages_share.c. */
#include "engine/pages.h"

#include <stdlib.h>
#include <string.h>

#include "base/huge.h"
#include "base/mem.h"
#include "engine/pages_internal.h"

#define HUGE_FROM ((size_t)8 << 20) /* bytes of a table or a stream */

/* Takes memory, or only counts it: nb_pages_bytes_for is nb_pages_new without the taking. */
typedef struct builder {
    bool dry, failed;
    size_t bytes; /* SIZE_MAX: too much to count */
} builder;

static void *get(builder *b, size_t count, size_t size)
{
    size_t n;
    if (!nb_mul(count, size, &n) || !nb_add(b->bytes, n, &b->bytes)) b->bytes = SIZE_MAX;
    if (b->dry || b->failed || b->bytes == SIZE_MAX) return NULL;
    /* calloc: zero pages cost nothing until written, and a row never written reads as zeros */
    void *p = calloc(count ? count : 1, size);
    b->failed = !p;
    /* Attention to a long context waits for translations of small pages. Where huge ones are few a begun one would cost too much. */
    if (p && n >= HUGE_FROM) nb_prefer_huge_pages(p, n);
    return p;
}

static size_t rows_a_page(const nb_stream_decl *d)
{
    return d->page_rows ? d->page_rows : NB_PAGE_ROWS;
}

static page_class *class_of(nb_pages *p, const nb_stream_decl *d)
{
    for (size_t i = 0; i < p->n_classes; i++) {
        page_class *c = &p->classes[i];
        if (c->tokens_per_row == d->tokens_per_row && c->window == d->window &&
            c->page_rows == rows_a_page(d))
            return c;
    }
    return NULL;
}

/*
 * Pages that cover any set of sequences holding p->blocks blocks together; rows are counted in pages of P = 16 tokens_per_row tokens.
 *
 * No window: a sequence's last page is begun, and where two part inside a page both have their own: one more each, the second
 * only with sharing. A window: the rows behind a sequence's end, which begin and end inside pages, and the rows of one step,
 * which all sequences share. With a row a page nothing is begun: from the first row that the token NB_BLOCK - 1 before the one at
 * length sees (nb_pages_trim keeps it for the cache) to the last that n more complete are at most
 * window - 1 + ceil((NB_BLOCK + n) / tokens_per_row). The cache's marks have room of their own, so that it never starves the
 * sequences.
 */
static size_t count_pages(nb_pages *p, page_class *c, size_t max_rows)
{
    size_t page_tokens = c->tokens_per_row * c->page_rows, most = p->max_seqs * c->table_len, n;
    if (c->window && c->page_rows == 1) {
        n = p->max_seqs * c->window + (max_rows + p->max_seqs * (NB_BLOCK - 1)) / c->tokens_per_row;
        c->mark_pages = c->window - 1;
    } else if (c->window) {
        bool ragged = c->tokens_per_row > 1; /* boundaries of blocks lie inside pages */
        n = p->max_seqs * (nb_ceil_div(c->window, NB_PAGE_ROWS) + (ragged ? 3 : 2)) +
            nb_ceil_div(max_rows, page_tokens);
        c->mark_pages = nb_ceil_div(c->window - 1 + (ragged ? NB_PAGE_ROWS - 1 : 0), NB_PAGE_ROWS);
    } else if (class_is_coarse(c)) {
        n = nb_ceil_div(p->blocks, c->tokens_per_row) + (p->cache ? 2 : 1) * p->max_seqs;
        c->mark_pages = 1;
    } else {
        return p->blocks;
    }
    c->mark_at = p->mark_len;
    p->mark_len += c->mark_pages;
    return (n < most ? n : most) + p->n_marks * c->mark_pages;
}

static bool build_class(nb_pages *p, page_class *c, size_t max_rows, builder *b)
{
    c->table_len = nb_ceil_div(nb_ceil_div(p->max_context, c->tokens_per_row), c->page_rows);
    c->n_pages = 1 + count_pages(p, c, max_rows);
    if (c->n_pages > UINT32_MAX) b->bytes = SIZE_MAX;
    c->fresh = 1;
    c->free = get(b, c->n_pages, sizeof *c->free);
    c->held = get(b, c->n_pages, sizeof *c->held);
    c->kept = get(b, c->n_pages, sizeof *c->kept);
    c->tables = get(b, p->max_seqs, sizeof *c->tables);
    size_t entries;
    if (!nb_mul(p->max_seqs, c->table_len, &entries)) entries = SIZE_MAX;
    c->entries = get(b, entries, sizeof *c->entries);
    for (size_t i = 0; c->entries && i < p->max_seqs; i++) c->tables[i] = c->entries + i * c->table_len;
    return c->entries != NULL;
}

/* The declared streams' classes, class 0 first. False: more than MAX_CLASSES. */
static bool find_classes(nb_pages *p, const nb_stream_decl *decl, size_t n)
{
    p->classes[p->n_classes++] = (page_class){.tokens_per_row = 1, .page_rows = NB_PAGE_ROWS};
    for (size_t i = 0; i < n; i++) {
        if (class_of(p, &decl[i])) continue;
        if (p->n_classes == MAX_CLASSES) return false;
        p->classes[p->n_classes++] = (page_class){.tokens_per_row = decl[i].tokens_per_row,
                                                  .window = decl[i].window,
                                                  .page_rows = rows_a_page(&decl[i])};
    }
    return true;
}

/* What the cache needs besides pages. Marks: an end of prompt and one of answer for every sequence, and some to come back to. */
static void build_cache(nb_pages *p, builder *b)
{
    size_t nodes = p->blocks + 1;
    p->coarse = get(b, nodes, p->n_classes * sizeof *p->coarse);
    p->mark_of = get(b, nodes, sizeof *p->mark_of);
    p->marks = get(b, p->n_marks + 1, sizeof *p->marks);
    p->mark_pages = get(b, p->n_marks + 1, p->mark_len * sizeof *p->mark_pages);
    for (size_t i = p->n_marks; p->marks && i > 0; i--) {
        p->marks[i].older = p->free_mark;
        p->free_mark = (uint32_t)i;
    }
}

static void build(nb_pages *p, const nb_stream_decl *decl, size_t n, const nb_pages_options *opt, builder *b)
{
    size_t most = 0;
    p->max_seqs = opt->max_seqs;
    p->max_context = opt->max_context;
    p->cache = opt->prefix_cache;
    p->blocks = opt->blocks;
    if (!p->blocks && !nb_mul(nb_ceil_div(p->max_context, NB_BLOCK), p->max_seqs, &p->blocks))
        b->bytes = SIZE_MAX;
    if (p->blocks >= UINT32_MAX) b->bytes = SIZE_MAX;
    if (b->bytes == SIZE_MAX) return;
    if (p->cache && p->n_classes > 1) p->n_marks = 2 * p->max_seqs + 8;
    for (size_t i = 0; i < p->n_classes; i++) {
        if (!build_class(p, &p->classes[i], opt->max_rows, b) && !b->dry) return;
        if (p->classes[i].n_pages > most) most = p->classes[i].n_pages;
    }
    p->seqs = get(b, p->max_seqs, sizeof *p->seqs);
    p->tally = get(b, most, sizeof *p->tally);
    if (p->cache) build_cache(p, b);
    p->streams = get(b, n, sizeof *p->streams);
    p->class_of = get(b, n, sizeof *p->class_of);
    p->memory = get(b, n, sizeof *p->memory);
    for (size_t i = 0; i < n; i++) {
        page_class *c = class_of(p, &decl[i]);
        size_t bytes;
        if (!nb_mul(decl[i].cols, c->page_rows * sizeof(float), &bytes) ||
            !nb_mul(bytes, c->n_pages, &bytes) || !nb_add(bytes, NB_ALIGN - 1, &bytes))
            bytes = SIZE_MAX;
        unsigned char *memory = get(b, 1, bytes);
        if (!memory) continue;
        float *base = (float *)(void *)(memory + (NB_ALIGN - (uintptr_t)memory % NB_ALIGN) % NB_ALIGN);
        p->memory[i] = memory;
        p->streams[i] = (nb_kv_stream){decl[i], base, c->tables};
        p->class_of[i] = c;
    }
    p->view = (nb_kv){p->streams, n};
}

nb_status nb_pages_new(const nb_stream_decl *decl, size_t n, const nb_pages_options *opt, nb_pages **out,
                       nb_error *err)
{
    builder b = {.bytes = sizeof(nb_pages)};
    nb_status s = NB_OK;
    nb_pages *p = calloc(1, sizeof *p);
    if (!p) return nb_fail_nomem(err, "the KV cache", sizeof *p);
    if (!find_classes(p, decl, n)) {
        s = nb_fail(err, NB_ERR_UNSUPPORTED, "the model caches rows in more than %d ways", MAX_CLASSES - 1);
        goto out;
    }
    build(p, decl, n, opt, &b);
    if (b.failed || b.bytes == SIZE_MAX) {
        s = nb_fail_nomem(err, "the KV cache", b.bytes);
        goto out;
    }
    if (p->cache) s = nb_prefix_init(&p->tree, p->blocks, err);
    p->bytes = b.bytes + nb_prefix_bytes(p->cache ? p->blocks : 0);
out:
    if (s == NB_OK)
        *out = p;
    else
        nb_pages_free(p);
    return s;
}

uint64_t nb_pages_bytes_for(const nb_stream_decl *decl, size_t n, const nb_pages_options *opt)
{
    builder b = {.dry = true, .bytes = sizeof(nb_pages)};
    nb_pages p = {0};
    if (!find_classes(&p, decl, n)) return UINT64_MAX;
    build(&p, decl, n, opt, &b);
    return b.bytes == SIZE_MAX ? UINT64_MAX : b.bytes + nb_prefix_bytes(p.cache ? p.blocks : 0);
}

void nb_pages_free(nb_pages *p)
{
    if (!p) return;
    for (size_t i = 0; p->memory && i < p->view.n_streams; i++) free(p->memory[i]);
    for (size_t i = 0; i < p->n_classes; i++) {
        free(p->classes[i].free);
        free(p->classes[i].held);
        free(p->classes[i].kept);
        free(p->classes[i].tables);
        free(p->classes[i].entries);
    }
    nb_prefix_free(&p->tree);
    free(p->coarse);
    free(p->mark_of);
    free(p->marks);
    free(p->mark_pages);
    free(p->seqs);
    free(p->tally);
    free(p->streams);
    free(p->memory);
    free(p->class_of);
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

size_t nb_pages_blocks(const nb_pages *p)
{
    return p->blocks;
}

size_t nb_pages_cached(const nb_pages *p)
{
    return p->classes[0].cache_alone;
}

size_t nb_pages_used(const nb_pages *p)
{
    return p->blocks - class_available(&p->classes[0]) - p->classes[0].cache_alone;
}

size_t nb_pages_held(const nb_pages *p, uint32_t seq)
{
    return nb_ceil_div(p->seqs[seq].grown, NB_BLOCK);
}

static void put_back(page_class *c, uint32_t page)
{
    c->free[c->n_free++] = page;
}

uint32_t nb_page_take(nb_pages *p, page_class *c)
{
    if (!c->n_free) return (uint32_t)c->fresh++;
    uint32_t page = c->free[--c->n_free];
    for (size_t i = 0; c->page_rows > 1 && i < p->view.n_streams; i++) {
        size_t floats = c->page_rows * p->streams[i].decl.cols;
        if (p->class_of[i] == c) memset(p->streams[i].base + page * floats, 0, floats * sizeof(float));
    }
    return page;
}

void nb_page_hold(page_class *c, uint32_t page)
{
    if (!c->held[page]++ && c->kept[page]) c->cache_alone--;
}

void nb_page_release(page_class *c, uint32_t page)
{
    if (--c->held[page]) return;
    if (c->kept[page])
        c->cache_alone++;
    else
        put_back(c, page);
}

void nb_page_keep(page_class *c, uint32_t page)
{
    if (!c->kept[page]++ && !c->held[page]) c->cache_alone++;
}

void nb_page_forget(page_class *c, uint32_t page)
{
    if (--c->kept[page] || c->held[page]) return;
    c->cache_alone--;
    put_back(c, page);
}

/* Pages [*first, *end) of the rows that tokens [from, to) complete. */
static void pages_of_tokens(const page_class *c, size_t from, size_t to, size_t *first, size_t *end)
{
    *first = from / c->tokens_per_row / c->page_rows;
    *end = nb_ceil_div(to / c->tokens_per_row, c->page_rows);
}

bool nb_pages_grow(nb_pages *p, uint32_t seq, size_t from, size_t to)
{
    if (from >= to) return true;
    if (to > p->max_context) return false;
    for (size_t i = 0; i < p->n_classes; i++) {
        page_class *c = &p->classes[i];
        size_t need = 0, first, end;
        pages_of_tokens(c, from, to, &first, &end);
        for (size_t page = first; page < end; page++) need += !c->tables[seq][page];
        if (!nb_share_make_room(p, c, need)) return false;
    }
    for (size_t i = 0; i < p->n_classes; i++) {
        page_class *c = &p->classes[i];
        size_t first, end;
        pages_of_tokens(c, from, to, &first, &end);
        for (size_t page = first; page < end; page++) {
            uint32_t *entry = &c->tables[seq][page];
            if (*entry) continue;
            *entry = nb_page_take(p, c);
            nb_page_hold(c, *entry);
        }
    }
    if (to > p->seqs[seq].grown) p->seqs[seq].grown = to;
    return true;
}

static void drop(page_class *c, uint32_t *entry)
{
    if (*entry) nb_page_release(c, *entry);
    *entry = 0;
}

void nb_pages_trim(nb_pages *p, uint32_t seq, size_t length)
{
    /* the cache may want what the first token after the last whole block below length sees */
    size_t seen_from = p->cache && length ? (length - 1) / NB_BLOCK * NB_BLOCK : length;
    for (size_t i = 0; i < p->n_classes; i++) {
        page_class *c = &p->classes[i];
        uint32_t *table = c->tables[seq];
        size_t first, used;
        pages_of_tokens(c, 0, length, &first, &used);
        for (size_t page = used; page < c->table_len && table[page]; page++) drop(c, &table[page]);
        size_t behind = class_first_row(c, seen_from) / c->page_rows;
        for (size_t page = behind; page-- > 0 && table[page];) drop(c, &table[page]);
    }
    if (length < p->seqs[seq].grown) p->seqs[seq].grown = length;
}

void nb_pages_clear(nb_pages *p, uint32_t seq)
{
    page_seq *s = &p->seqs[seq];
    nb_share_leave(p, seq);
    for (size_t i = 0; s->grown && i < p->n_classes; i++) {
        page_class *c = &p->classes[i];
        size_t first, end;
        pages_of_tokens(c, 0, s->grown, &first, &end);
        for (size_t page = first; page < end; page++) drop(c, &c->tables[seq][page]);
    }
    *s = (page_seq){0};
}

void nb_pages_count(const nb_pages *p, size_t *used, size_t *total)
{
    bool rows_of_blocks = false; /* without, class 0 is numbers alone */
    for (size_t i = 0; i < p->view.n_streams; i++) rows_of_blocks |= p->class_of[i] == p->classes;
    *used = *total = 0;
    for (size_t i = !rows_of_blocks; i < p->n_classes; i++) {
        *total += p->classes[i].n_pages - 1;
        *used += p->classes[i].n_pages - 1 - class_available(&p->classes[i]);
    }
}

size_t nb_pages_freed_by(const nb_pages *p, const uint32_t *seqs, size_t n)
{
    const page_class *c = &p->classes[0];
    size_t freed = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t b = 0; b < nb_pages_held(p, seqs[i]); b++) p->tally[c->tables[seqs[i]][b]] = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t b = 0; b < nb_pages_held(p, seqs[i]); b++) {
            uint32_t page = c->tables[seqs[i]][b];
            freed += ++p->tally[page] == c->held[page];
        }
    return freed;
}

/* Names of pages in the tables, and the free list, against the counts. */
static nb_status check_class(const nb_pages *p, const page_class *c, nb_error *err)
{
    size_t alone = 0, busy = 0, number = (size_t)(c - p->classes);
    memset(p->tally, 0, c->n_pages * sizeof *p->tally);
    for (size_t i = 0; i < p->max_seqs * c->table_len; i++) p->tally[c->entries[i]]++;
    for (size_t page = 1; page < c->n_pages; page++) {
        if (p->tally[page] != c->held[page])
            return nb_fail(err, NB_ERR_FORMAT, "class %zu, page %zu: %u table entries, %u counted", number,
                           page, p->tally[page], c->held[page]);
        alone += !c->held[page] && c->kept[page];
        busy += c->held[page] || c->kept[page];
        p->tally[page] = 0;
    }
    for (size_t i = 0; i < c->n_free; i++) {
        uint32_t page = c->free[i];
        if (!page || page >= c->fresh || c->held[page] || c->kept[page] || p->tally[page]++)
            return nb_fail(err, NB_ERR_FORMAT, "class %zu, page %u is free and is not", number, page);
    }
    if (1 + busy + class_available(c) != c->n_pages || alone != c->cache_alone)
        return nb_fail(err, NB_ERR_FORMAT,
                       "class %zu: 1 + %zu in use + %zu free of %zu pages, %zu of %zu alone", number, busy,
                       class_available(c), c->n_pages, alone, c->cache_alone);
    return NB_OK;
}

nb_status nb_pages_check(const nb_pages *p, nb_error *err)
{
    nb_status s = NB_OK;
    for (size_t i = 0; s == NB_OK && i < p->n_classes; i++) s = check_class(p, &p->classes[i], err);
    return s == NB_OK && p->cache ? nb_share_check(p, err) : s;
}
