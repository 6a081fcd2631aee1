/*
 * Merging. A piece starts as one symbol per byte, or per character where the vocabulary is not byte-level; the pair of neighbours with the lowest rank is merged, the leftmost
 * first, until no pair has a rank. A heap of (rank, position) over a linked list keeps a piece of n bytes at
 * O(n log n): text of one letter, a megabyte long, is one piece. tokenizers, models/bpe/word.rs (merge_all).
 *
 * Prose repeats its words, so each scratch keeps the ids of pieces it has seen: one slot per hash value, the newer
 * piece takes it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/internal.h"

#define CACHE_SLOTS 32768
#define CACHE_KEY 38 /* bytes of a piece that is worth keeping */
#define CACHE_IDS 6
#define SYMBOLS_KEPT 65536 /* a longer piece's work memory (44 bytes a symbol) is given back */

struct nb_bpe_symbol {
    uint32_t id;         /* NB_TOK_NONE: merged into the symbol before */
    uint32_t prev, next; /* NB_TOK_NONE: none */
    uint32_t rank;       /* of the pair with next; NB_TOK_NONE: no such merge */
    uint32_t merged;     /* what that merge makes */
};

struct nb_bpe_cached {
    unsigned char n; /* 0: empty */
    unsigned char count;
    char key[CACHE_KEY];
    uint32_t ids[CACHE_IDS];
};
_Static_assert(sizeof(nb_bpe_cached) == 64, "one cache line a piece");

/* ---- the table of merges ---- */

/* murmur3's finaliser; the seed keeps a made-up file from filling one run of slots. */
static uint64_t hash_pair(uint64_t pair, uint64_t seed)
{
    uint64_t h = pair ^ seed;
    h = (h ^ h >> 33) * 0xff51afd7ed558ccdULL;
    h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53ULL;
    return h ^ h >> 33;
}

/* The slot of a pair, or the empty one where it belongs. b->cap must not be 0. */
static nb_bpe_slot *slot_of(const nb_bpe *b, uint64_t pair)
{
    size_t i = hash_pair(pair, b->seed) & (b->cap - 1);
    while (b->slots[i].rank != NB_TOK_NONE && b->slots[i].pair != pair) i = (i + 1) & (b->cap - 1);
    return &b->slots[i];
}

static bool reserve(nb_bpe *b)
{
    if (b->count < b->cap / 2) return true;
    nb_bpe next = *b;
    next.cap = b->cap ? b->cap * 2 : 1024;
    next.slots = malloc(next.cap * sizeof *next.slots);
    if (!next.slots) return false;
    next.seed = (uint64_t)(uintptr_t)next.slots;
    for (size_t i = 0; i < next.cap; i++) next.slots[i].rank = NB_TOK_NONE;
    for (size_t i = 0; i < b->cap; i++)
        if (b->slots[i].rank != NB_TOK_NONE) *slot_of(&next, b->slots[i].pair) = b->slots[i];
    free(b->slots);
    *b = next;
    return true;
}

/* What a merge of two tokens says about where no merge passes. Texts of unk and of spelled bytes are not those that they stand for. */
static void note_joins(nb_bpe *b, const nb_buf *pair, const uint32_t half[2])
{
    const char *text = pair->data;
    for (int h = 0; h < 2; h++) {
        if (half[h] == b->unk) b->cuts = false;
        for (int i = 0; b->cuts && i < 256; i++)
            if (half[h] == b->fallback_id[i]) b->cuts = false;
    }
    for (size_t i = 1; b->cuts && i + 3 <= pair->len; i++)
        if (memcmp(text + i, NB_SPACE_MARK, 3) == 0) b->joins[(unsigned char)text[i - 1]] = true;
}

/* A pair that stands twice keeps its later rank, as it does in tokenizers' map. */
static nb_status add_merge(nb_bpe *b, const nb_vocab *v, nb_buf *pair, size_t left_n, uint32_t rank,
                           nb_error *err)
{
    uint32_t half[2], id;
    const char *text = nb_buf_str(pair);
    if (!left_n || left_n == pair->len)
        return nb_fail(err, NB_ERR_FORMAT, "model.merges: merge %u has an empty half", rank);
    bool found = nb_map_get(&v->by_bytes, text, left_n, &half[0]) &&
                 nb_map_get(&v->by_bytes, text + left_n, pair->len - left_n, &half[1]) &&
                 nb_map_get(&v->by_bytes, text, pair->len, &id);
    if (!found)
        return nb_fail(err, NB_ERR_FORMAT,
                       "model.merges: merge %u: a half or the whole is no %stoken of the vocabulary", rank,
                       b->chars ? "" : "byte-level ");
    if (b->cuts) note_joins(b, pair, half);
    if (!reserve(b)) return nb_fail_nomem(err, "the merges", b->cap * 2 * sizeof *b->slots);
    uint64_t key = (uint64_t)half[0] << 32 | half[1];
    nb_bpe_slot *slot = slot_of(b, key);
    if (slot->rank == NB_TOK_NONE) b->count++;
    *slot = (nb_bpe_slot){.pair = key, .rank = rank, .id = id};
    return NB_OK;
}

/* Appends the bytes that a half of a merge stands for. */
static bool add_half(const nb_bpe *b, nb_buf *pair, const char *text, size_t n)
{
    size_t m;
    if (b->chars) {
        nb_buf_add(pair, text, n);
        return nb_buf_ok(pair);
    }
    if (!nb_buf_reserve(pair, n) || !nb_byte_alphabet(text, n, pair->data + pair->len, &m)) return false;
    pair->len += m;
    pair->data[pair->len] = '\0';
    return true;
}

/* One element of "merges": "left right" or ["left", "right"]. *skip: a comment line, which has no rank. */
static nb_status read_merge(const nb_bpe *b, nb_json *j, nb_json_event e, nb_buf *pair, size_t *left_n,
                            bool *skip, nb_error *err)
{
    bool ok = false;
    nb_buf_clear(pair);
    *skip = false;
    if (e == NB_J_STRING) {
        *skip = j->len >= 8 && memcmp(j->str, "#version", 8) == 0;
        const char *space = memchr(j->str, ' ', j->len);
        size_t n = space ? (size_t)(space - j->str) : 0;
        ok = *skip || (space && !memchr(space + 1, ' ', j->len - n - 1) && add_half(b, pair, j->str, n));
        *left_n = pair->len;
        ok = ok && (*skip || add_half(b, pair, space + 1, j->len - n - 1));
    } else if (e == NB_J_ARRAY) {
        ok = nb_json_next(j) == NB_J_STRING && add_half(b, pair, j->str, j->len);
        *left_n = pair->len;
        ok = ok && nb_json_next(j) == NB_J_STRING && add_half(b, pair, j->str, j->len) &&
             nb_json_next(j) == NB_J_END;
    }
    if (!nb_buf_ok(pair)) return nb_fail_nomem(err, "a merge", j->len);
    if (ok) return NB_OK;
    return nb_fail(err, NB_ERR_FORMAT, "model.merges: expected \"left right\" or [\"left\", \"right\"]%s",
                   b->chars ? "" : " in the byte alphabet");
}

/* The tokens that stand for one byte. */
static void find_bytes(nb_bpe *b, const nb_vocab *v)
{
    char name[8];
    for (int i = 0; i < 256; i++) {
        char c = (char)i;
        if (!nb_map_get(&v->by_bytes, &c, 1, &b->byte_id[i])) b->byte_id[i] = NB_TOK_NONE;
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)i);
        if (!b->byte_fallback || !nb_map_get(&v->by_bytes, name, 6, &b->fallback_id[i]))
            b->fallback_id[i] = NB_TOK_NONE;
    }
}

nb_status nb_bpe_load(nb_bpe *b, const nb_vocab *v, const char *json, size_t n, nb_error *err)
{
    nb_status s = NB_OK;
    nb_buf pair = {0};
    nb_json j;
    nb_json_init(&j, json, n);
    find_bytes(b, v);
    b->cuts = b->chars && !b->ignore_merges && nb_map_get(&v->by_bytes, NB_SPACE_MARK, 3, NULL);
    uint32_t rank = 0;
    nb_json_event e = nb_json_next(&j);
    while (!s && e != NB_J_ERROR && (e = nb_json_next(&j)) != NB_J_END && e != NB_J_ERROR) {
        size_t left_n = 0;
        bool skip;
        if (rank == NB_TOK_NONE - 1)
            s = nb_fail(err, NB_ERR_LIMIT, "model.merges: more than %u merges", rank);
        if (!s) s = read_merge(b, &j, e, &pair, &left_n, &skip, err);
        if (!s && !skip) s = add_merge(b, v, &pair, left_n, rank++, err);
    }
    if (j.error) s = nb_tok_json_error(&j, "model.merges", err);
    if (s) nb_error_at(err, NULL, NULL, (int64_t)j.pos);
    nb_buf_free(&pair);
    nb_json_free(&j);
    return s;
}

void nb_bpe_free(nb_bpe *b)
{
    free(b->slots);
    *b = (nb_bpe){0};
}

/* ---- merging one piece ---- */

bool nb_bpe_scratch_init(nb_bpe_scratch *s)
{
    *s = (nb_bpe_scratch){.cache = nb_calloc_aligned(CACHE_SLOTS, sizeof *s->cache)};
    return s->cache != NULL;
}

static void release_symbols(nb_bpe_scratch *s)
{
    free(s->symbols);
    free(s->heap);
    s->symbols = NULL;
    s->heap = NULL;
    s->symbols_cap = 0;
}

void nb_bpe_scratch_free(nb_bpe_scratch *s)
{
    release_symbols(s);
    free(s->cache);
    *s = (nb_bpe_scratch){0};
}

/* Room for n symbols. Each merge of two symbols queues at most two new pairs, so 3 n keys are enough. */
static bool reserve_symbols(nb_bpe_scratch *s, size_t n)
{
    if (n <= s->symbols_cap) return true;
    size_t cap = n < 256 ? 256 : n;
    nb_bpe_symbol *symbols = realloc(s->symbols, cap * sizeof *symbols);
    if (!symbols) return false;
    s->symbols = symbols;
    uint64_t *heap = realloc(s->heap, 3 * cap * sizeof *heap);
    if (!heap) return false;
    s->heap = heap;
    s->symbols_cap = cap;
    return true;
}

static void heap_push(nb_bpe_scratch *s, uint64_t key)
{
    size_t i = s->heap_len++;
    while (i && s->heap[(i - 1) / 2] > key) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = key;
}

static uint64_t heap_pop(nb_bpe_scratch *s)
{
    uint64_t top = s->heap[0], last = s->heap[--s->heap_len];
    size_t i = 0;
    for (size_t c; (c = 2 * i + 1) < s->heap_len; i = c) {
        if (c + 1 < s->heap_len && s->heap[c + 1] < s->heap[c]) c++;
        if (last <= s->heap[c]) break;
        s->heap[i] = s->heap[c];
    }
    s->heap[i] = last;
    return top;
}

/* Looks up the pair that starts at symbol at, and queues it. */
static void rank_pair(const nb_bpe *b, nb_bpe_scratch *s, uint32_t at)
{
    nb_bpe_symbol *y = &s->symbols[at];
    y->rank = NB_TOK_NONE;
    if (y->next == NB_TOK_NONE || !b->cap) return;
    const nb_bpe_slot *slot = slot_of(b, (uint64_t)y->id << 32 | s->symbols[y->next].id);
    y->rank = slot->rank;
    y->merged = slot->id;
    if (slot->rank != NB_TOK_NONE) heap_push(s, (uint64_t)slot->rank << 32 | at);
}

static uint32_t put_symbol(nb_bpe_scratch *s, uint32_t m, uint32_t id)
{
    s->symbols[m] = (nb_bpe_symbol){.id = id, .prev = m - 1, .next = m + 1, .rank = NB_TOK_NONE};
    return m + 1;
}

/* The symbols of one character's bytes; false: one of them has none. */
static bool put_fallback(const nb_bpe *b, nb_bpe_scratch *s, const char *c, size_t w, uint32_t *m)
{
    if (!b->byte_fallback) return false;
    for (size_t i = 0; i < w; i++)
        if (b->fallback_id[(unsigned char)c[i]] == NB_TOK_NONE) return false;
    for (size_t i = 0; i < w; i++) *m = put_symbol(s, *m, b->fallback_id[(unsigned char)c[i]]);
    return true;
}

/* One symbol a character. Of what has neither token nor bytes an unk is kept back until the next character with a token (tokenizers,
 * models/bpe/model.rs, merge_word): bytes that come between stand before it. */
static uint32_t start_chars(const nb_bpe *b, const nb_vocab *v, nb_bpe_scratch *s, const char *piece,
                            size_t n)
{
    uint32_t m = 0, id;
    bool unk = false;
    for (size_t i = 0, w; i < n; i += w) {
        uint32_t c;
        w = (unsigned char)piece[i] < 0x80 ? 1 : nb_utf8_decode(piece + i, n - i, &c);
        id = w == 1 ? b->byte_id[(unsigned char)piece[i]] : NB_TOK_NONE;
        if (w == 1 ? id != NB_TOK_NONE : nb_map_get(&v->by_bytes, piece + i, w, &id)) {
            if (unk) m = put_symbol(s, m, b->unk);
            unk = false;
            m = put_symbol(s, m, id);
        } else if (!put_fallback(b, s, piece + i, w, &m) && b->unk != NB_TOK_NONE) {
            if (unk && !b->fuse_unk) m = put_symbol(s, m, b->unk);
            unk = true;
        }
    }
    if (unk) m = put_symbol(s, m, b->unk);
    if (m) s->symbols[m - 1].next = NB_TOK_NONE;
    return m;
}

/* One symbol a byte; unknown bytes become unk (a run of them one symbol with fuse_unk) or nothing. Returns the count. */
static uint32_t start_symbols(const nb_bpe *b, nb_bpe_scratch *s, const char *piece, size_t n)
{
    uint32_t m = 0;
    bool was_unk = false;
    for (size_t i = 0; i < n; i++) {
        uint32_t id = b->byte_id[(unsigned char)piece[i]];
        bool unk = id == NB_TOK_NONE;
        if (unk) id = b->unk;
        if (id == NB_TOK_NONE || (unk && was_unk && b->fuse_unk)) continue;
        was_unk = unk;
        m = put_symbol(s, m, id);
    }
    if (m) s->symbols[m - 1].next = NB_TOK_NONE;
    return m;
}

static void merge(const nb_bpe *b, nb_bpe_scratch *s, uint32_t n)
{
    s->heap_len = 0;
    for (uint32_t i = 0; i < n; i++) rank_pair(b, s, i);
    while (s->heap_len) {
        uint64_t key = heap_pop(s);
        uint32_t at = (uint32_t)key;
        nb_bpe_symbol *y = &s->symbols[at];
        if (y->id == NB_TOK_NONE || y->rank != key >> 32)
            continue; /* the pair has changed since it was queued */
        nb_bpe_symbol *right = &s->symbols[y->next];
        y->id = y->merged;
        y->next = right->next;
        right->id = NB_TOK_NONE;
        if (y->next != NB_TOK_NONE) s->symbols[y->next].prev = at;
        rank_pair(b, s, at);
        if (y->prev != NB_TOK_NONE) rank_pair(b, s, y->prev);
    }
}

nb_status nb_bpe_encode(const nb_bpe *b, const nb_vocab *v, nb_bpe_scratch *s, const char *piece, size_t n,
                        nb_ids *out, nb_error *err)
{
    nb_bpe_cached *slot = NULL;
    uint32_t id;
    size_t from = out->len;
    bool ok = true;
    if (n <= CACHE_KEY) {
        slot = &s->cache[XXH3_64bits(piece, n) % CACHE_SLOTS];
        if (slot->n == n && memcmp(slot->key, piece, n) == 0) {
            for (int i = 0; i < slot->count; i++) ok = ok && nb_ids_add(out, slot->ids[i]);
            return ok ? NB_OK : nb_fail_nomem(err, "token ids", out->cap * 2 * sizeof *out->data);
        }
    }
    if (b->ignore_merges && nb_map_get(&v->by_bytes, piece, n, &id)) {
        ok = nb_ids_add(out, id);
    } else {
        if (n >= NB_TOK_NONE / 32)
            return nb_fail(err, NB_ERR_LIMIT, "a piece of %zu bytes without a place to cut", n);
        if (!reserve_symbols(s, n)) return nb_fail_nomem(err, "a piece of text", n * sizeof *s->symbols);
        uint32_t m = b->chars ? start_chars(b, v, s, piece, n) : start_symbols(b, s, piece, n);
        merge(b, s, m);
        for (uint32_t i = 0; i < m && ok; i = s->symbols[i].next) ok = nb_ids_add(out, s->symbols[i].id);
    }
    if (s->symbols_cap > SYMBOLS_KEPT) release_symbols(s);
    if (!ok) return nb_fail_nomem(err, "token ids", out->cap * 2 * sizeof *out->data);
    size_t count = out->len - from;
    if (slot && n && count <= CACHE_IDS) {
        slot->n = (unsigned char)n;
        slot->count = (unsigned char)count;
        memcpy(slot->key, piece, n);
        if (count) memcpy(slot->ids, out->data + from, count * sizeof *slot->ids);
    }
    return NB_OK;
}
