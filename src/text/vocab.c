/* The tokens: their bytes by id, and ids by bytes. A byte-level vocabulary spells each byte as one printable character
 * (GPT-2's alphabet); its entries are kept as the bytes they stand for, so that encoding works on the text itself. The entries of
 * others are found as they are spelled, which is how the normaliser leaves the text. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/internal.h"

#define ARENA_BLOCK ((size_t)256 << 10)

struct nb_arena_block {
    struct nb_arena_block *next;
    size_t used, cap;
    char data[];
};

char *nb_arena_copy(nb_arena *a, const char *s, size_t n)
{
    struct nb_arena_block *b = a->head;
    if (!b || b->cap - b->used < n) {
        size_t cap = n > ARENA_BLOCK ? n : ARENA_BLOCK;
        if (n > SIZE_MAX - sizeof *b) return NULL;
        b = malloc(sizeof *b + cap);
        if (!b) return NULL;
        b->next = a->head;
        b->used = 0;
        b->cap = cap;
        a->head = b;
    }
    char *p = b->data + b->used;
    if (n) memcpy(p, s, n);
    b->used += n;
    return p;
}

void nb_arena_free(nb_arena *a)
{
    while (a->head) {
        struct nb_arena_block *b = a->head;
        a->head = b->next;
        free(b);
    }
}

/* GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the 68 others are U+0100 … U+0143 in order.
 * -1: not in it. tokenizers, pre_tokenizers/byte_level.rs (bytes_char). */
static int alphabet_byte(uint32_t cp)
{
    if ((cp >= 33 && cp <= 126) || (cp >= 161 && cp <= 172) || (cp >= 174 && cp <= 255)) return (int)cp;
    if (cp < 256 || cp > 323) return -1;
    if (cp < 256 + 33) return (int)(cp - 256);           /* 0 … 32 */
    if (cp < 323) return (int)(127 + (cp - (256 + 33))); /* 127 … 160 */
    return 173;
}

bool nb_byte_alphabet(const char *s, size_t n, char *dst, size_t *dst_n)
{
    size_t m = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t w = nb_utf8_decode(s + i, n - i, &cp);
        int b = w ? alphabet_byte(cp) : -1;
        if (b < 0) return false;
        dst[m++] = (char)b;
        i += w;
    }
    *dst_n = m;
    return true;
}

/* The character that stands for a byte: the other way round. */
static uint32_t alphabet_char(unsigned char byte)
{
    if (byte < 33) return 256u + byte;
    if (byte >= 127 && byte <= 160) return 256u + 33 + (byte - 127u);
    return byte == 173 ? 323 : byte;
}

static bool grow(nb_vocab *v, uint32_t id)
{
    if (id >= v->cap) {
        uint32_t cap = v->cap ? v->cap : 1024;
        while (cap <= id) cap *= 2;
        nb_token *p = realloc(v->tokens, cap * sizeof *p);
        if (!p) return false;
        memset(p + v->cap, 0, (cap - v->cap) * sizeof *p);
        v->tokens = p;
        v->cap = cap;
    }
    if (id >= v->n) v->n = id + 1;
    return true;
}

/* The bytes of a token, in the arena: as the decoder gives them. */
static nb_status token_bytes(nb_vocab *v, const char *text, size_t n, nb_token *t, bool *alphabet,
                             nb_error *err)
{
    if (v->decoder.byte_level) {
        /* The decoder turns a token back into bytes only when all its characters are in the alphabet. */
        size_t m = n;
        char *bytes = nb_arena_copy(&v->strings, text, n);
        if (!bytes) return nb_fail_nomem(err, "a token", n);
        *alphabet = nb_byte_alphabet(text, n, bytes, &m);
        if (!*alphabet && n) memcpy(bytes, text, n);
        t->s = bytes;
        t->n = (uint32_t)m;
        return NB_OK;
    }
    nb_buf bytes = {0};
    nb_status s = nb_decoder_apply(&v->decoder, text, n, &bytes, &t->byte, err);
    if (!s && bytes.len > UINT32_MAX) s = nb_fail(err, NB_ERR_LIMIT, "a token of %zu bytes", bytes.len);
    if (!s) {
        t->s = nb_arena_copy(&v->strings, nb_buf_str(&bytes), bytes.len);
        t->n = (uint32_t)bytes.len;
        if (!t->s) s = nb_fail_nomem(err, "a token", n);
    }
    nb_buf_free(&bytes);
    return s;
}

/* nb_vocab_set; *alphabet: it is spelled in the byte alphabet. */
static nb_status set(nb_vocab *v, uint32_t id, const char *text, size_t n, bool *alphabet, nb_error *err)
{
    nb_token t = {0};
    if (id >= NB_TOK_MAX_IDS)
        return nb_fail(err, NB_ERR_LIMIT, "token id %u; ids up to %u are supported", id, NB_TOK_MAX_IDS - 1);
    if (n > UINT32_MAX) return nb_fail(err, NB_ERR_LIMIT, "a token of %zu bytes", n);
    if (!grow(v, id)) return nb_fail_nomem(err, "the tokens", (size_t)id * sizeof *v->tokens);
    nb_status s = token_bytes(v, text, n, &t, alphabet, err);
    if (s) return s;
    t.added = v->tokens[id].added;
    v->tokens[id] = t;
    return NB_OK;
}

nb_status nb_vocab_set(nb_vocab *v, uint32_t id, const char *text, size_t n, nb_error *err)
{
    bool alphabet;
    return set(v, id, text, n, &alphabet, err);
}

bool nb_vocab_find(const nb_vocab *v, const char *text, size_t n, nb_buf *work, uint32_t *id)
{
    size_t m;
    if (!v->decoder.byte_level) return nb_map_get(&v->by_bytes, text, n, id);
    nb_buf_clear(work);
    if (!nb_buf_reserve(work, n)) return false;
    if (nb_byte_alphabet(text, n, work->data, &m)) return nb_map_get(&v->by_bytes, work->data, m, id);
    return nb_map_get(&v->by_text, text, n, id);
}

bool nb_vocab_spell(const nb_vocab *v, uint32_t id, nb_buf *out)
{
    char utf8[4];
    uint32_t found;
    if (id >= v->n || !v->tokens[id].s) return false;
    const nb_token *t = &v->tokens[id];
    size_t start = out->len;
    if (t->byte && !t->added) {
        nb_buf_addf(out, "<0x%02X>", (unsigned char)t->s[0]);
        return true;
    }
    for (size_t i = 0; i < t->n && !t->added; i++) {
        unsigned char b = (unsigned char)t->s[i];
        if (v->decoder.byte_level)
            nb_buf_add(out, utf8, nb_utf8_encode(alphabet_char(b), utf8));
        else
            nb_buf_add(out, b == ' ' ? "\xE2\x96\x81" : t->s + i, b == ' ' ? 3 : 1);
    }
    bool key = v->decoder.byte_level; /* by what the vocabulary finds it: its bytes, else its spelling */
    if (!t->added && !out->bad &&
        nb_map_get(&v->by_bytes, key ? t->s : out->data + start, key ? t->n : out->len - start, &found) &&
        found == id)
        return true;
    out->len = start; /* an added token, or one that no text becomes, is spelled as it is */
    nb_buf_add(out, t->s, t->n);
    return true;
}

/* One entry; key holds its spelling, the next event is its id. */
static nb_status load_entry(nb_vocab *v, nb_json *j, nb_buf *key, nb_error *err)
{
    uint64_t id;
    const char *text = nb_buf_str(key);
    int shown = key->len < 40 ? (int)key->len : 40;
    nb_json_event e = nb_json_next(j);
    if (e == NB_J_ERROR) return NB_OK; /* the caller reports it */
    if (e != NB_J_NUMBER || !nb_json_u64(j, &id))
        return nb_fail(err, NB_ERR_FORMAT, "model.vocab: the id of '%.*s' is not a whole number", shown,
                       text);
    if (id >= NB_TOK_MAX_IDS)
        return nb_fail(err, NB_ERR_LIMIT, "model.vocab: '%.*s' has the id %llu; ids up to %u are supported",
                       shown, text, (unsigned long long)id, NB_TOK_MAX_IDS - 1);
    if (id < v->n && v->tokens[id].s)
        return nb_fail(err, NB_ERR_FORMAT, "model.vocab: '%.*s' has the id %llu, which another token has",
                       shown, text, (unsigned long long)id);
    bool alphabet = false, was;
    nb_status s = set(v, (uint32_t)id, text, key->len, &alphabet, err);
    if (s) return s;
    const nb_token *t = &v->tokens[id];
    bool same = t->n == key->len && memcmp(t->s, text, t->n) == 0;
    bool apart = !v->decoder.byte_level && !same; /* its spelling is not what it decodes to */
    const char *spelling = apart ? nb_arena_copy(&v->strings, text, key->len) : t->s;
    size_t spelling_n = apart ? key->len : t->n;
    nb_map *map = alphabet || !v->decoder.byte_level ? &v->by_bytes : &v->by_text;
    if (!spelling || !nb_map_put(map, spelling, spelling_n, (uint32_t)id, &was))
        return nb_fail_nomem(err, "the vocabulary", (size_t)v->entries * sizeof(nb_map_slot));
    if (was) return nb_fail(err, NB_ERR_FORMAT, "model.vocab: '%.*s' stands there twice", shown, text);
    v->entries++;
    return NB_OK;
}

nb_status nb_vocab_load(nb_vocab *v, const char *json, size_t n, nb_error *err)
{
    nb_status s = NB_OK;
    nb_buf key = {0}; /* the parser's string ends with its next event */
    nb_json j;
    nb_json_init(&j, json, n);
    nb_json_event e = nb_json_next(&j);
    while (!s && e != NB_J_ERROR && (e = nb_json_next(&j)) == NB_J_KEY) {
        nb_buf_clear(&key);
        nb_buf_add(&key, j.str, j.len);
        s = nb_buf_ok(&key) ? load_entry(v, &j, &key, err) : nb_fail_nomem(err, "a token", j.len);
    }
    if (!s && e == NB_J_ERROR) s = nb_tok_json_error(&j, "model.vocab", err);
    if (s) nb_error_at(err, NULL, NULL, (int64_t)j.pos);
    nb_buf_free(&key);
    nb_json_free(&j);
    return s;
}

void nb_vocab_free(nb_vocab *v)
{
    free(v->tokens);
    nb_decoder_free(&v->decoder);
    nb_map_free(&v->by_bytes);
    nb_map_free(&v->by_text);
    nb_map_free(&v->added_by_text);
    nb_arena_free(&v->strings);
    *v = (nb_vocab){0};
}
