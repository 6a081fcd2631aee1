/* The tokenizer as its users see it: text to ids through the stages in turn, and look-ups. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/internal.h"

bool nb_ids_add(nb_ids *ids, uint32_t id)
{
    if (ids->len == ids->cap) {
        size_t cap = ids->cap ? ids->cap * 2 : 64;
        uint32_t *p = cap < SIZE_MAX / sizeof *p ? realloc(ids->data, cap * sizeof *p) : NULL;
        if (!p) return false;
        ids->data = p;
        ids->cap = cap;
    }
    ids->data[ids->len++] = id;
    return true;
}

void nb_tokenizer_free(nb_tokenizer *t)
{
    if (!t) return;
    nb_template_free(&t->template);
    nb_bpe_free(&t->bpe);
    nb_pretokeniser_free(&t->pre);
    nb_normaliser_free(&t->normaliser);
    nb_added_free(&t->added);
    nb_vocab_free(&t->vocab);
    free(t);
}

uint32_t nb_tokenizer_size(const nb_tokenizer *t)
{
    return t->vocab.n;
}

int64_t nb_tokenizer_id(const nb_tokenizer *t, const char *text, size_t n)
{
    uint32_t id;
    if (nb_map_get(&t->vocab.added_by_text, text, n, &id) || nb_map_get(&t->vocab.by_bytes, text, n, &id) ||
        nb_map_get(&t->vocab.by_text, text, n, &id))
        return id;
    return -1;
}

const char *nb_tokenizer_bytes(const nb_tokenizer *t, uint32_t id, size_t *n)
{
    if (id >= t->vocab.n || !t->vocab.tokens[id].s) return NULL;
    *n = t->vocab.tokens[id].n;
    return t->vocab.tokens[id].s;
}

bool nb_tokenizer_spell(const nb_tokenizer *t, uint32_t id, nb_buf *out)
{
    return nb_vocab_spell(&t->vocab, id, out);
}

bool nb_tokenizer_is_special(const nb_tokenizer *t, uint32_t id)
{
    if (id >= t->vocab.n) return false;
    uint32_t added = t->vocab.tokens[id].added;
    return added && t->added.tokens[added - 1].special;
}

int64_t nb_tokenizer_bos(const nb_tokenizer *t)
{
    return t->bos;
}

int64_t nb_tokenizer_eos(const nb_tokenizer *t)
{
    return t->eos;
}

nb_tok_scratch *nb_tok_scratch_new(const nb_tokenizer *t)
{
    nb_tok_scratch *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->t = t;
    if (nb_match_scratch_init(&s->match) && nb_bpe_scratch_init(&s->bpe)) return s;
    nb_tok_scratch_free(s);
    return NULL;
}

void nb_tok_scratch_free(nb_tok_scratch *s)
{
    if (!s) return;
    nb_match_scratch_free(&s->match);
    nb_bpe_scratch_free(&s->bpe);
    free(s);
}

/* ---- encoding ---- */

typedef struct encoding {
    const nb_tokenizer *t;
    nb_tok_scratch *s;
    nb_ids *out;
    nb_error *err;
    const char *text;    /* the whole */
    const char *stretch; /* in work, normalised */
    bool first;          /* it is the beginning of the text */
} encoding;

static nb_status put_id(const encoding *e, int64_t id)
{
    if (nb_ids_add(e->out, (uint32_t)id)) return NB_OK;
    return nb_fail_nomem(e->err, "token ids", e->out->cap * 2 * sizeof *e->out->data);
}

/* Where no merge can pass, a piece is cut further: words come again, and their ids are kept. The ids are the same. */
static size_t word_end(const nb_bpe *b, const char *s, size_t n)
{
    for (size_t i = 1; b->cuts && i < n; i++) {
        const char *p = memchr(s + i, 0xE2, n - i); /* the mark's first byte */
        if (!p) break;
        i = (size_t)(p - s);
        if (n - i >= 3 && memcmp(p, NB_SPACE_MARK, 3) == 0 && !b->joins[(unsigned char)p[-1]]) return i;
    }
    return n;
}

static nb_status on_piece(void *ctx, const char *s, size_t n, int64_t id)
{
    const encoding *e = ctx;
    const nb_bpe *b = &e->t->bpe;
    nb_status status = NB_OK;
    for (size_t at = 0, w; at < n && !status; at += w) {
        w = word_end(b, s + at, n - at);
        status = nb_bpe_encode(b, &e->t->vocab, &e->s->bpe, s + at, w, e->out, e->err);
    }
    return status;
}

/* A stretch between the added tokens of the second pass. */
static nb_status on_normalised(void *ctx, const char *s, size_t n, int64_t id)
{
    const encoding *e = ctx;
    if (id >= 0) return put_id(e, id);
    bool first = e->first && s == e->stretch;
    return nb_pretokenise(&e->t->pre, &e->s->match, s, n, first, on_piece, ctx, e->err);
}

/* A stretch between the added tokens of the first pass. */
static nb_status on_raw(void *ctx, const char *s, size_t n, int64_t id)
{
    encoding *e = ctx;
    char *owned = NULL;
    if (id >= 0) return put_id(e, id);
    e->first = s == e->text;
    nb_status status = nb_normalise(&e->t->normaliser, s, n, &s, &n, &owned, e->err);
    e->stretch = s;
    if (!status) status = nb_added_scan(&e->t->added, &e->t->added.normalised, s, n, on_normalised, ctx);
    free(owned);
    return status;
}

/* The first byte that is not UTF-8, or n. */
static size_t valid_utf8(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint64_t eight;
        uint32_t c;
        while (n - i >= 8 && (memcpy(&eight, s + i, 8), !(eight & 0x8080808080808080ULL))) i += 8;
        if (i == n) break;
        size_t w = nb_utf8_decode(s + i, n - i, &c);
        if (!w) return i;
        i += w;
    }
    return n;
}

nb_status nb_tokenizer_encode(const nb_tokenizer *t, nb_tok_scratch *s, const char *text, size_t n,
                              bool add_special, nb_ids *out, nb_error *err)
{
    encoding e = {.t = t, .s = s, .out = out, .err = err, .text = text};
    size_t before = out->len, bad = valid_utf8(text, n);
    nb_status status = NB_OK;
    if (s->t != t) return nb_fail(err, NB_ERR_ARGUMENT, "the scratch memory belongs to another tokenizer");
    if (bad < n) {
        nb_fail(err, NB_ERR_ARGUMENT, "the text is not UTF-8 at byte %zu", bad);
        nb_error_at(err, NULL, NULL, (int64_t)bad);
        return NB_ERR_ARGUMENT;
    }
    for (size_t i = 0; add_special && !status && i < t->template.before.len; i++)
        status = put_id(&e, t->template.before.data[i]);
    if (!status) status = nb_added_scan(&t->added, &t->added.raw, text, n, on_raw, &e);
    for (size_t i = 0; add_special && !status && i < t->template.after.len; i++)
        status = put_id(&e, t->template.after.data[i]);
    if (status) out->len = before;
    return status;
}
