/*
 * Added tokens: strings that are found in the text before anything else is done, special tokens above all. Two passes:
 * those that are not normalised are looked for in the text as it came, the others in what normalisation makes of the
 * rest. The leftmost match wins, of those the longest; a trie walk from each byte that can begin one finds it.
 *
 * Ids are not taken from the file: a token that the model's vocabulary has keeps that id, others count up from the
 * vocabulary's size. tokenizers, tokenizer/added_vocabulary.rs.
 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "text/internal.h"

/* ---- the trie ---- */

static uint32_t new_node(nb_trie *t, unsigned char byte)
{
    if (t->n == t->cap) {
        if (t->cap > UINT32_MAX / 4) return 0;
        uint32_t cap = t->cap ? t->cap * 2 : 256;
        nb_trie_node *p = realloc(t->nodes, cap * sizeof *p);
        if (!p) return 0;
        t->nodes = p;
        t->cap = cap;
        if (!t->n) t->nodes[t->n++] = (nb_trie_node){0}; /* the root, whose index means "none" */
    }
    t->nodes[t->n] = (nb_trie_node){.byte = byte};
    return t->n++;
}

static uint32_t child_of(const nb_trie *t, uint32_t node, unsigned char byte)
{
    uint32_t c = node ? t->nodes[node].child : t->first[byte];
    while (c && t->nodes[c].byte != byte) c = t->nodes[c].sibling;
    return c;
}

static nb_status trie_add(nb_trie *t, const nb_added_token *token, uint32_t index, nb_error *err)
{
    uint32_t node = 0;
    for (uint32_t i = 0; i < token->n; i++) {
        unsigned char byte = (unsigned char)token->text[i];
        uint32_t c = child_of(t, node, byte);
        if (!c) {
            c = new_node(t, byte);
            if (!c) return nb_fail_nomem(err, "the added tokens", t->cap * 2 * sizeof *t->nodes);
            if (node) {
                t->nodes[c].sibling = t->nodes[node].child;
                t->nodes[node].child = c;
            } else {
                t->first[byte] = c;
            }
        }
        node = c;
    }
    if (t->nodes[node].token)
        return nb_fail(err, NB_ERR_FORMAT, "added_tokens: ids %u and %u look for the same text",
                       t->nodes[node].token - 1, index);
    t->nodes[node].token = index + 1;
    return NB_OK;
}

/* ---- loading ---- */

static nb_status read_flags(const json_t *spec, nb_added_token *t, nb_error *err)
{
    static const char *const names[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};
    bool *const flags[] = {&t->single_word, &t->lstrip, &t->rstrip, &t->normalized, &t->special};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *v = json_object_get(spec, names[i]);
        if (!json_is_boolean(v))
            return nb_fail(err, NB_ERR_FORMAT, "added_tokens: '%.60s': %s is not true or false",
                           json_string_value(json_object_get(spec, "content")), names[i]);
        *flags[i] = json_is_true(v);
    }
    return NB_OK;
}

/* The id that tokenizers gives to content: an added token's, the model's, or the next free one. */
static nb_status id_of(const nb_vocab *v, const char *content, size_t n, uint32_t *next, nb_buf *work,
                       uint32_t *id, nb_error *err)
{
    if (nb_map_get(&v->added_by_text, content, n, id) || nb_vocab_find(v, content, n, work, id)) return NB_OK;
    if (!nb_buf_ok(work)) return nb_fail_nomem(err, "an added token", n);
    *id = (*next)++;
    return NB_OK;
}

static nb_status add_token(nb_added *a, nb_vocab *v, const nb_normaliser *m, const json_t *spec,
                           uint32_t *next, nb_buf *work, nb_error *err)
{
    const json_t *content = json_object_get(spec, "content");
    nb_added_token t = {0};
    char *owned = NULL;
    if (!json_is_string(content))
        return nb_fail(err, NB_ERR_FORMAT, "added_tokens: an entry without content");
    size_t n = json_string_length(content);
    if (!n) return NB_OK; /* tokenizers ignores it */
    nb_status s = read_flags(spec, &t, err);
    if (!s) s = id_of(v, json_string_value(content), n, next, work, &t.id, err);
    if (s) return s;

    const char *text = json_string_value(content);
    size_t text_n = n;
    if (t.normalized && (s = nb_normalise(m, text, n, &text, &text_n, &owned, err))) return s;
    bool changed = text_n != n || memcmp(text, json_string_value(content), n) != 0;
    const char *kept = nb_arena_copy(&v->strings, text, text_n);
    const char *key = changed ? nb_arena_copy(&v->strings, json_string_value(content), n) : kept;
    free(owned);
    if (!kept || !key || !nb_map_put(&v->added_by_text, key, n, t.id, NULL))
        return nb_fail_nomem(err, "an added token", n);
    if ((s = nb_vocab_set(v, t.id, kept, text_n, err))) return s;
    t.text = kept;
    t.n = (uint32_t)text_n;
    /* Decoding asks whether the token's text is one of the special contents: a text that normalisation changed is not,
     * and a content that stands twice is, once either entry said so. */
    if (changed) t.special = false;
    nb_token *token = &v->tokens[t.id];
    if (token->added) {
        const nb_added_token *old = &a->tokens[token->added - 1];
        if (old->special && old->n == t.n && memcmp(old->text, t.text, t.n) == 0) t.special = true;
    } else {
        token->added = ++a->n;
    }
    a->tokens[token->added - 1] = t;
    return NB_OK;
}

nb_status nb_added_load(nb_added *a, nb_vocab *v, const nb_normaliser *m, const json_t *array, nb_error *err)
{
    size_t count = json_array_size(array), i;
    uint32_t next = v->entries;
    nb_buf work = {0};
    const json_t *spec;
    nb_status s = NB_OK;
    if (!count) return NB_OK;
    a->tokens = calloc(count, sizeof *a->tokens);
    if (!a->tokens) return nb_fail_nomem(err, "the added tokens", count * sizeof *a->tokens);
    json_array_foreach(array, i, spec) if ((s = add_token(a, v, m, spec, &next, &work, err))) break;
    for (uint32_t k = 0; !s && k < a->n; k++)
        s = trie_add(a->tokens[k].normalized ? &a->normalised : &a->raw, &a->tokens[k], k, err);
    nb_buf_free(&work);
    return s;
}

void nb_added_free(nb_added *a)
{
    free(a->tokens);
    free(a->raw.nodes);
    free(a->normalised.nodes);
    *a = (nb_added){0};
}

/* ---- finding ---- */

/* White_Space, which is \s of the regex crate that tokenizers uses here. */
static bool is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

/* \w of that crate: Alphabetic, M, Nd, Pc, Join_Control (UTS 18, annex C). Of Alphabetic, the letters and Nl are
 * categories, its marks are in M, and the rest are circled and squared letters. */
static bool is_word(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default:
        return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
               (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
    }
}

/* The character that ends before byte at (at > 0). */
static uint32_t char_before(const char *s, size_t at, size_t *w)
{
    uint32_t c = 0;
    size_t from = at - 1;
    while (from && ((unsigned char)s[from] & 0xC0) == 0x80) from--;
    *w = at - from;
    nb_utf8_decode(s + from, *w, &c);
    return c;
}

static bool stands_alone(const char *s, size_t n, size_t b, size_t e)
{
    uint32_t c;
    size_t w;
    if (b && is_word(char_before(s, b, &w))) return false;
    return !nb_utf8_decode(s + e, n - e, &c) || !is_word(c);
}

/* The longest token that starts at s[at]: 1 + its index, or 0. */
static uint32_t longest_at(const nb_trie *trie, const char *s, size_t n, size_t at, size_t *end)
{
    uint32_t found = 0, node = trie->first[(unsigned char)s[at]];
    while (node) {
        at++;
        if (trie->nodes[node].token) {
            found = trie->nodes[node].token;
            *end = at;
        }
        node = at < n ? child_of(trie, node, (unsigned char)s[at]) : 0;
    }
    return found;
}

nb_status nb_added_scan(const nb_added *a, const nb_trie *trie, const char *s, size_t n, nb_part_fn part,
                        void *ctx)
{
    nb_status status = NB_OK;
    size_t at = 0, done = 0, end = 0;
    if (!trie->nodes) return n ? part(ctx, s, n, -1) : NB_OK;
    while (at < n) {
        uint32_t found = trie->first[(unsigned char)s[at]] ? longest_at(trie, s, n, at, &end) : 0;
        if (!found) {
            at++;
            continue;
        }
        const nb_added_token *t = &a->tokens[found - 1];
        size_t b = at, e = end, w;
        uint32_t c;
        at =
            end; /* the next search starts behind the match, whatever the token swallows or whether it counts */
        if (t->single_word && !stands_alone(s, n, b, e)) continue;
        if (t->lstrip)
            while (b > done && is_space(char_before(s, b, &w))) b -= w;
        if (t->rstrip)
            while ((w = nb_utf8_decode(s + e, n - e, &c)) && is_space(c)) e += w;
        if (done < b && (status = part(ctx, s + done, b - done, -1))) return status;
        if ((status = part(ctx, s + b, e - b, t->id))) return status;
        done = e;
    }
    return done < n ? part(ctx, s + done, n - done, -1) : NB_OK;
}
