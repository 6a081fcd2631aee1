/*
 * Sharing pages through the prefix cache.
 *
 * A node of the tree keeps its block, and where a page of a coarse class ends with it, that page: whole pages are shared as they
 * are, and a sequence that publishes a block which the cache has already takes the cache's in exchange for its own. So the blocks
 * and whole pages behind a sequence's pin are those of its path, and what is held by the cache alone belongs to idle nodes.
 *
 * What the next token needs besides (begun pages, windows) is kept in marks, at boundaries that publish was told of. A begun page
 * is shared with the sequence that goes on writing it, in rows beyond the boundary; who adopts it copies the rows before.
 */
#include <string.h>

#include "base/mem.h"
#include "engine/pages_internal.h"

static uint32_t *pages_of_mark(const nb_pages *p, uint32_t mark, const page_class *c)
{
    return p->mark_pages + mark * p->mark_len + c->mark_at;
}

/* Pages of class c that the token at `length` (whole blocks) reads through a mark: [first, end) of the table. */
static void marked_pages(const page_class *c, size_t length, size_t *first, size_t *end)
{
    size_t rows = length / c->tokens_per_row;
    *end = nb_ceil_div(rows, c->page_rows);
    *first = c->window ? class_first_row(c, length) / c->page_rows : rows / c->page_rows;
}

static void mark_list_add(nb_pages *p, uint32_t m)
{
    p->marks[m].newer = 0;
    p->marks[m].older = p->newest_mark;
    if (p->newest_mark)
        p->marks[p->newest_mark].newer = m;
    else
        p->oldest_mark = m;
    p->newest_mark = m;
}

static void mark_list_remove(nb_pages *p, uint32_t m)
{
    const page_mark *k = &p->marks[m];
    if (k->newer)
        p->marks[k->newer].older = k->older;
    else
        p->newest_mark = k->older;
    if (k->older)
        p->marks[k->older].newer = k->newer;
    else
        p->oldest_mark = k->newer;
}

static void drop_mark(nb_pages *p, uint32_t m)
{
    for (size_t i = 1; i < p->n_classes; i++) {
        page_class *c = &p->classes[i];
        uint32_t *pages = pages_of_mark(p, m, c);
        for (size_t k = 0; k < c->mark_pages; k++) {
            if (pages[k]) nb_page_forget(c, pages[k]);
            pages[k] = 0;
        }
    }
    mark_list_remove(p, m);
    p->mark_of[p->marks[m].node] = 0;
    p->marks[m] = (page_mark){.older = p->free_mark};
    p->free_mark = m;
}

/* The node that nobody has used for longest goes, with what it keeps. */
static bool drop_node(nb_pages *p)
{
    uint32_t node = nb_prefix_evict(&p->tree);
    if (!node) return false;
    if (p->mark_of[node]) drop_mark(p, p->mark_of[node]);
    for (size_t i = 1; i < p->n_classes; i++) {
        uint32_t *page = &p->coarse[node * p->n_classes + i];
        if (*page) nb_page_forget(&p->classes[i], *page);
        *page = 0;
    }
    nb_page_forget(&p->classes[0], node);
    return true;
}

bool nb_share_make_room(nb_pages *p, page_class *c, size_t need)
{
    if (class_available(c) + c->cache_alone < need) return false;
    while (class_available(c) < need) {
        if (!c->window && drop_node(p)) continue;
        if (!p->oldest_mark) return false;
        drop_mark(p, p->oldest_mark);
    }
    return true;
}

void nb_share_leave(nb_pages *p, uint32_t seq)
{
    size_t published = p->seqs[seq].published;
    if (published) nb_prefix_unpin(&p->tree, p->classes[0].tables[seq][published - 1]);
}

/* Whether a sequence can go on after node with `length` tokens before it. */
static bool boundary(const nb_pages *p, uint32_t node, size_t length)
{
    if (p->mark_of[node]) return true;
    for (size_t i = 1; i < p->n_classes; i++) {
        size_t first, end;
        marked_pages(&p->classes[i], length, &first, &end);
        if (first < end) return false;
    }
    return true;
}

/* Puts pages of class c for `length` tokens into the table: whole ones of the path, and those of the mark. */
static void adopt_class(nb_pages *p, page_class *c, uint32_t seq, size_t length, const uint32_t *marked)
{
    uint32_t *table = c->tables[seq];
    const uint32_t *blocks = p->classes[0].tables[seq];
    size_t rows = length / c->tokens_per_row, first, end;
    for (size_t i = 0; !c->window && i < rows / c->page_rows; i++) {
        uint32_t node = blocks[(i + 1) * c->tokens_per_row - 1];
        table[i] = p->coarse[node * p->n_classes + (size_t)(c - p->classes)];
        nb_page_hold(c, table[i]);
    }
    marked_pages(c, length, &first, &end);
    for (size_t i = first; i < end; i++) {
        table[i] = marked[i - first];
        nb_page_hold(c, table[i]);
    }
}

static void exchange(page_class *c, uint32_t *entry, uint32_t page)
{
    nb_page_hold(c, page);
    nb_page_release(c, *entry);
    *entry = page;
}

/* A begun page, which others write on, becomes one of the sequence's own with the rows before `length`. */
static bool copy_begun(nb_pages *p, page_class *c, uint32_t seq, size_t length)
{
    size_t rows = length / c->tokens_per_row, begun = rows % c->page_rows;
    if (!begun) return true;
    if (!nb_share_make_room(p, c, 1)) return false;
    uint32_t *entry = &c->tables[seq][rows / c->page_rows], page = nb_page_take(p, c);
    for (size_t i = 0; i < p->view.n_streams; i++) {
        const nb_kv_stream *s = &p->streams[i];
        size_t heads = nb_kv_heads(s), cols = s->decl.cols / heads;
        for (size_t h = 0; p->class_of[i] == c && h < heads; h++)
            memcpy(s->base + (page * heads + h) * c->page_rows * cols,
                   s->base + (*entry * heads + h) * c->page_rows * cols, begun * cols * sizeof(float));
    }
    exchange(c, entry, page);
    return true;
}

nb_sharing nb_pages_sharing(const nb_pages *p)
{
    if (!p->cache) return NB_SHARE_NOTHING;
    return p->n_marks ? NB_SHARE_ENDS : NB_SHARE_BLOCKS;
}

size_t nb_pages_adopt(nb_pages *p, uint32_t seq, const uint32_t *ids, size_t n, const char *salt)
{
    page_seq *s = &p->seqs[seq];
    if (!p->cache || !n) return 0;
    uint32_t *blocks = p->classes[0].tables[seq], node = 0;
    size_t found = 0, use = 0;
    nb_prefix_key key;
    for (; found < (n - 1) / NB_BLOCK; found++) {
        uint64_t salted = found ? 0 : nb_prefix_salt(&p->tree, salt);
        node = nb_prefix_find(&p->tree, node, ids + found * NB_BLOCK, salted, &key);
        if (!node) break;
        blocks[found] = node;
        if (boundary(p, node, (found + 1) * NB_BLOCK)) use = found + 1;
    }
    memset(blocks + use, 0, (found - use) * sizeof *blocks);
    s->known = found * NB_BLOCK;
    if (!use) return 0;

    nb_prefix_pin(&p->tree, blocks[use - 1]);
    s->published = use;
    s->grown = use * NB_BLOCK;
    for (size_t b = 0; b < use; b++) nb_page_hold(&p->classes[0], blocks[b]);
    uint32_t mark = p->mark_of[blocks[use - 1]]; /* 0: nothing of it is needed */
    if (mark) {
        mark_list_remove(p, mark);
        mark_list_add(p, mark);
    }
    for (size_t i = 1; i < p->n_classes; i++) {
        page_class *c = &p->classes[i];
        adopt_class(p, c, seq, s->grown, pages_of_mark(p, mark, c));
    }
    /* all of it is held now, so that making room for copies takes none of it */
    for (size_t i = 1; i < p->n_classes; i++) {
        if (copy_begun(p, &p->classes[i], seq, s->grown)) continue;
        nb_pages_clear(p, seq);
        return 0;
    }
    return s->grown;
}

size_t nb_pages_known(const nb_pages *p, uint32_t seq)
{
    return p->seqs[seq].known;
}

/* Block b of seq is new to the cache: it stays, and with it the page that ends with it. */
static void keep_block(nb_pages *p, uint32_t seq, size_t b)
{
    uint32_t node = p->classes[0].tables[seq][b];
    nb_page_keep(&p->classes[0], node);
    for (size_t i = 1; i < p->n_classes; i++) {
        page_class *c = &p->classes[i];
        if (!class_is_coarse(c) || (b + 1) % c->tokens_per_row) continue;
        uint32_t page = c->tables[seq][b / c->tokens_per_row];
        p->coarse[node * p->n_classes + i] = page;
        nb_page_keep(c, page);
    }
}

/* The cache has a block with the same rows as block b of seq: seq gives its own back. */
static void share_block(nb_pages *p, uint32_t seq, size_t b, uint32_t node)
{
    exchange(&p->classes[0], &p->classes[0].tables[seq][b], node);
    for (size_t i = 1; i < p->n_classes; i++) {
        page_class *c = &p->classes[i];
        if (class_is_coarse(c) && (b + 1) % c->tokens_per_row == 0)
            exchange(c, &c->tables[seq][b / c->tokens_per_row], p->coarse[node * p->n_classes + i]);
    }
}

static void mark(nb_pages *p, uint32_t seq, size_t length)
{
    uint32_t node = p->classes[0].tables[seq][length / NB_BLOCK - 1], m = p->mark_of[node];
    size_t first, end;
    if (m) {
        mark_list_remove(p, m);
        mark_list_add(p, m);
        return;
    }
    for (size_t i = 1; i < p->n_classes; i++) { /* rows that have left a window cannot be had again */
        marked_pages(&p->classes[i], length, &first, &end);
        for (size_t k = first; k < end; k++)
            if (!p->classes[i].tables[seq][k]) return;
    }
    if (!p->free_mark) drop_mark(p, p->oldest_mark);
    m = p->free_mark;
    p->free_mark = p->marks[m].older;
    p->marks[m].node = node;
    p->mark_of[node] = m;
    mark_list_add(p, m);
    for (size_t i = 1; i < p->n_classes; i++) {
        page_class *c = &p->classes[i];
        uint32_t *pages = pages_of_mark(p, m, c);
        marked_pages(c, length, &first, &end);
        for (size_t k = first; k < end; k++) {
            pages[k - first] = c->tables[seq][k];
            nb_page_keep(c, pages[k - first]);
        }
    }
}

void nb_pages_publish(nb_pages *p, uint32_t seq, const uint32_t *ids, size_t n, const char *salt, bool end)
{
    page_seq *s = &p->seqs[seq];
    if (!p->cache) return;
    uint32_t *blocks = p->classes[0].tables[seq];
    size_t whole = (n < s->grown ? n : s->grown) / NB_BLOCK;
    for (size_t b = s->published; b < whole; b++, s->published++) {
        uint32_t parent = b ? blocks[b - 1] : 0;
        uint64_t salted = b ? 0 : nb_prefix_salt(&p->tree, salt);
        nb_prefix_key key;
        uint32_t node = nb_prefix_find(&p->tree, parent, ids + b * NB_BLOCK, salted, &key);
        if (node) {
            share_block(p, seq, b, node);
            nb_prefix_pin(&p->tree, node);
            nb_prefix_unpin(&p->tree, parent);
        } else {
            nb_prefix_insert(&p->tree, blocks[b], parent, ids + b * NB_BLOCK, salted, key);
            keep_block(p, seq, b);
        }
    }
    if (end && whole && p->n_marks) mark(p, seq, whole * NB_BLOCK);
}

/* Names of pages by nodes and marks against the counts of one class. */
static nb_status check_kept(const nb_pages *p, size_t number, nb_error *err)
{
    const page_class *c = &p->classes[number];
    memset(p->tally, 0, c->n_pages * sizeof *p->tally);
    for (uint32_t node = 1; node <= p->blocks; node++) {
        uint32_t page = number ? p->coarse[node * p->n_classes + number] : node;
        if (p->tree.nodes[node].known && page) p->tally[page]++;
    }
    for (uint32_t m = 1; number && m <= p->n_marks; m++)
        for (size_t k = 0; k < c->mark_pages; k++) p->tally[pages_of_mark(p, m, c)[k]]++;
    for (size_t page = 1; page < c->n_pages; page++)
        if (p->tally[page] != c->kept[page])
            return nb_fail(err, NB_ERR_FORMAT, "class %zu, page %zu: kept %u times, %u counted", number, page,
                           p->tally[page], c->kept[page]);
    return NB_OK;
}

/* Pins against the sequences' paths and the children, and the list of idle nodes: children before parents. */
static nb_status check_tree(const nb_pages *p, nb_error *err)
{
    const nb_prefix *t = &p->tree;
    size_t idle = 0, listed = 0;
    memset(p->tally, 0, (p->blocks + 1) * sizeof *p->tally);
    for (size_t s = 0; s < p->max_seqs; s++) {
        const uint32_t *blocks = p->classes[0].tables[s];
        size_t n = p->seqs[s].published;
        if (n) p->tally[blocks[n - 1]]++;
        for (size_t b = 0; b < n; b++)
            if (!t->nodes[blocks[b]].known || t->nodes[blocks[b]].parent != (b ? blocks[b - 1] : 0))
                return nb_fail(err, NB_ERR_FORMAT, "sequence %zu: block %zu is not on its path", s, b);
    }
    for (uint32_t i = 1; i <= p->blocks; i++) {
        const nb_prefix_node *n = &t->nodes[i];
        if (!n->known) continue;
        if (n->parent && !t->nodes[n->parent].known)
            return nb_fail(err, NB_ERR_FORMAT, "node %u outlived its parent %u", i, n->parent);
        if (n->pins) p->tally[n->parent]++;
    }
    for (uint32_t i = 1; i <= p->blocks; i++) {
        const nb_prefix_node *n = &t->nodes[i];
        if (n->known && (n->pins != p->tally[i] || (n->pins == 0) == (p->classes[0].held[i] != 0)))
            return nb_fail(err, NB_ERR_FORMAT, "node %u: %u pins, %u counted, held %u times", i, n->pins,
                           p->tally[i], p->classes[0].held[i]);
        idle += n->known && !n->pins;
    }
    memset(p->tally, 0, (p->blocks + 1) * sizeof *p->tally);
    for (uint32_t i = t->oldest; i && listed <= idle; i = t->nodes[i].newer, listed++) {
        const nb_prefix_node *n = &t->nodes[i];
        if (n->pins || p->tally[n->parent])
            return nb_fail(err, NB_ERR_FORMAT, "node %u is out of order in the list of idle ones", i);
        p->tally[i] = 1;
    }
    if (listed != idle || idle != t->idle || idle != p->classes[0].cache_alone)
        return nb_fail(err, NB_ERR_FORMAT, "%zu idle nodes, %zu listed, %zu counted, %zu blocks alone", idle,
                       listed, t->idle, p->classes[0].cache_alone);
    return NB_OK;
}

nb_status nb_share_check(const nb_pages *p, nb_error *err)
{
    nb_status s = check_tree(p, err);
    for (size_t i = 0; s == NB_OK && i < p->n_classes; i++) s = check_kept(p, i, err);
    size_t marks = 0;
    for (uint32_t m = p->free_mark; m && marks <= p->n_marks; m = p->marks[m].older) marks++;
    for (uint32_t m = p->oldest_mark; m && marks <= p->n_marks; m = p->marks[m].newer) {
        marks++;
        if (s == NB_OK && (p->mark_of[p->marks[m].node] != m || !p->tree.nodes[p->marks[m].node].known))
            s = nb_fail(err, NB_ERR_FORMAT, "mark %u is not its node's", m);
    }
    if (s == NB_OK && p->n_marks && marks != p->n_marks)
        s = nb_fail(err, NB_ERR_FORMAT, "%zu marks of %zu", marks, p->n_marks);
    return s;
}
