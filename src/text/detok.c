/*
 * Ids back to text. With byte-level tokens that is a concatenation of bytes; the one question is what to do with bytes
 * that are not UTF-8. Each longest run that could have begun a character becomes one U+FFFD (Unicode 15, 3.9, "maximal
 * subparts"), as soon as it is certain: one state machine serves whole texts and streams, so that they agree.
 *
 * Tokens of SentencePiece's style are text but for those that spell one byte. Of these ByteFallback (tokenizers, decoders/byte_fallback.rs)
 * judges a run as a whole, which a stream cannot wait for: a stream differs from the whole text where good characters and bad bytes
 * stand in one run, and nowhere else.
 */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/internal.h"

#define STAGE "decoder"
#define MAX_REPLACE 8
#define MAX_TOKEN ((size_t)1 << 20)
#define REPLACEMENT "\xEF\xBF\xBD"

/* ---- loading ---- */

/* How far a decoder's components have been read; each stage may only follow those before it. */
typedef enum stage { REPLACE, BYTES, FUSE, STRIP, OVER } stage;

static nb_status add_replace(nb_decoder *d, const json_t *spec, nb_error *err)
{
    if (d->n_replace == MAX_REPLACE)
        return nb_fail(err, NB_ERR_LIMIT, STAGE ": more than %d Replace", MAX_REPLACE);
    nb_replacement *list = realloc(d->replace, (d->n_replace + 1) * sizeof *list);
    if (!list) return nb_fail_nomem(err, "a decoder", (d->n_replace + 1) * sizeof *list);
    d->replace = list;
    list[d->n_replace] = (nb_replacement){0};
    return nb_replacement_load(&list[d->n_replace++], spec, STAGE, err);
}

static nb_status load_strip(nb_decoder *d, const json_t *spec, nb_error *err)
{
    const json_t *content = json_object_get(spec, "content"), *start = json_object_get(spec, "start"),
                 *stop = json_object_get(spec, "stop");
    size_t n = json_string_length(content);
    uint32_t c;
    if (!json_is_string(content) || nb_utf8_decode(json_string_value(content), n, &c) != n || !n ||
        !json_is_integer(start) || !json_is_integer(stop) || json_integer_value(start) < 0)
        return nb_fail(err, NB_ERR_FORMAT, STAGE " Strip: expected content (one character), start and stop");
    if (json_integer_value(stop) != 0 || json_integer_value(start) > UINT8_MAX)
        return nb_tok_unsupported(err, STAGE, "Strip at the end of a text, or of more than 255 characters,");
    memcpy(d->strip, json_string_value(content), n);
    d->strip_n = (unsigned char)n;
    d->strip_count = (unsigned char)json_integer_value(start);
    return NB_OK;
}

/* ByteLevel gives one string, so a Fuse behind it has nothing to do. Before it, Fuse would join the tokens first, and one character
 * outside the byte alphabet would change how all of them are read. Without ByteLevel: Replace, ByteFallback, Fuse, Strip in this
 * order, of which Fuse has to be there (without it tokens would be joined by spaces). */
static nb_status load_component(nb_decoder *d, const json_t *spec, stage *at, nb_error *err)
{
    const char *type;
    nb_status s = nb_component_type(spec, STAGE, &type, err);
    if (s) return s;
    if (strcmp(type, "ByteLevel") == 0 && *at == REPLACE && !d->n_replace && !d->byte_level) {
        d->byte_level = true;
        return NB_OK;
    }
    if (strcmp(type, "Fuse") == 0 && (*at < FUSE || d->byte_level)) {
        *at = FUSE;
        return NB_OK;
    }
    if (strcmp(type, "Replace") == 0 && *at == REPLACE && !d->byte_level) return add_replace(d, spec, err);
    if (strcmp(type, "ByteFallback") == 0 && *at == REPLACE && !d->byte_level) {
        d->byte_fallback = true;
        *at = BYTES;
        return NB_OK;
    }
    if (strcmp(type, "Strip") == 0 && *at == FUSE && !d->byte_level) {
        *at = STRIP;
        return load_strip(d, spec, err);
    }
    if (strcmp(type, "Sequence") != 0) return nb_tok_unsupported(err, STAGE, type);
    const json_t *list = json_object_get(spec, "decoders"), *each;
    if (!json_is_array(list))
        return nb_fail(err, NB_ERR_FORMAT, STAGE " Sequence: 'decoders' is not an array");
    size_t i;
    json_array_foreach(list, i, each) if ((s = load_component(d, each, at, err))) return s;
    return NB_OK;
}

nb_status nb_decoder_load(nb_decoder *d, const json_t *spec, nb_error *err)
{
    stage at = REPLACE;
    if (spec && !json_is_null(spec)) {
        nb_status s = load_component(d, spec, &at, err);
        if (s) return s;
    }
    return d->byte_level || at >= FUSE ? NB_OK : nb_tok_unsupported(err, STAGE, "without ByteLevel or Fuse");
}

void nb_decoder_free(nb_decoder *d)
{
    for (size_t i = 0; i < d->n_replace; i++) nb_replacement_free(&d->replace[i]);
    free(d->replace);
    *d = (nb_decoder){0};
}

/* ---- one token ---- */

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The byte that <0x0A> spells; -1: it spells none. */
static int spelled_byte(const char *s, size_t n)
{
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
    int high = hex(s[3]), low = hex(s[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

nb_status nb_decoder_apply(const nb_decoder *d, const char *text, size_t n, nb_buf *out, bool *byte,
                           nb_error *err)
{
    nb_buf now = {0}, next = {0};
    nb_status s = NB_OK;
    nb_buf_add(&now, text, n);
    for (size_t i = 0; i < d->n_replace && now.len < MAX_TOKEN; i++) {
        nb_buf_clear(&next);
        nb_replace(&d->replace[i], nb_buf_str(&now), now.len, &next);
        nb_buf swap = now;
        now = next;
        next = swap;
    }
    int spelled = d->byte_fallback ? spelled_byte(nb_buf_str(&now), now.len) : -1;
    *byte = spelled >= 0;
    if (*byte)
        nb_buf_addc(out, (char)spelled);
    else
        nb_buf_add(out, nb_buf_str(&now), now.len);
    if (now.len >= MAX_TOKEN) s = nb_fail(err, NB_ERR_LIMIT, "a token of %zu bytes", now.len);
    if (!nb_buf_ok(&now) || !nb_buf_ok(&next) || !nb_buf_ok(out)) s = nb_fail_nomem(err, "a token", n);
    nb_buf_free(&now);
    nb_buf_free(&next);
    return s;
}

/* ---- characters ---- */

/* How many bytes a character that starts with b has; 0: none starts so. */
static unsigned width(unsigned char b)
{
    return b < 0x80 ? 1 : b < 0xC2 ? 0 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : b < 0xF5 ? 4 : 0;
}

/* May b follow the n bytes of p, which begin a character? (Unicode 15, table 3-7.) */
static bool continues(const unsigned char *p, unsigned n, unsigned char b)
{
    unsigned char low = 0x80, high = 0xBF;
    if (n == 1 && p[0] == 0xE0) low = 0xA0;
    if (n == 1 && p[0] == 0xED) high = 0x9F;
    if (n == 1 && p[0] == 0xF0) low = 0x90;
    if (n == 1 && p[0] == 0xF4) high = 0x8F;
    return b >= low && b <= high;
}

/* Appends text, but for what the decoder strips from the front. */
static void emit(nb_detok *d, const char *s, size_t n, nb_buf *out)
{
    const nb_decoder *rule = &d->t->vocab.decoder;
    while (d->strip && n >= rule->strip_n && memcmp(s, rule->strip, rule->strip_n) == 0) {
        s += rule->strip_n;
        n -= rule->strip_n;
        d->strip--;
    }
    if (n) d->strip = 0;
    nb_buf_add(out, s, n);
}

/* What is pending is no character: a byte-level decoder shows it as one U+FFFD, ByteFallback as one for each byte. */
static void give_up(nb_detok *d, nb_buf *out)
{
    unsigned n = d->t->vocab.decoder.byte_level && d->n_pending ? 1 : d->n_pending;
    while (n--) emit(d, REPLACEMENT, sizeof REPLACEMENT - 1, out);
    d->n_pending = 0;
}

static void push_byte(nb_detok *d, unsigned char b, nb_buf *out)
{
    if (d->n_pending && !continues(d->pending, d->n_pending, b)) give_up(d, out);
    if (!d->n_pending && width(b) == 0) {
        emit(d, REPLACEMENT, sizeof REPLACEMENT - 1, out);
        return;
    }
    d->pending[d->n_pending++] = b;
    if (d->n_pending == width(d->pending[0])) {
        emit(d, (const char *)d->pending, d->n_pending, out);
        d->n_pending = 0;
    }
}

void nb_detok_init(nb_detok *d, const nb_tokenizer *t, bool skip_special, bool has_prompt)
{
    *d = (nb_detok){
        .t = t, .skip_special = skip_special, .strip = has_prompt ? 0 : t->vocab.decoder.strip_count};
}

/* The id's token; NULL: it gives nothing. */
static const nb_token *token_of(const nb_tokenizer *t, uint32_t id, bool skip_special)
{
    if (id >= t->vocab.n || !t->vocab.tokens[id].s) return NULL;
    return skip_special && nb_tokenizer_is_special(t, id) ? NULL : &t->vocab.tokens[id];
}

void nb_detok_push(nb_detok *d, uint32_t id, nb_buf *out)
{
    size_t ascii;
    const nb_token *t = token_of(d->t, id, d->skip_special);
    if (!t) return;
    if (!d->t->vocab.decoder.byte_level && !t->byte) { /* whole characters, which end what bytes began */
        give_up(d, out);
        emit(d, t->s, t->n, out);
        return;
    }
    for (size_t i = 0; i < t->n; i += ascii) {
        for (ascii = 0; i + ascii < t->n && (unsigned char)t->s[i + ascii] < 0x80 && !d->n_pending;) ascii++;
        if (ascii) {
            emit(d, t->s + i, ascii, out);
        } else {
            push_byte(d, (unsigned char)t->s[i], out);
            ascii = 1;
        }
    }
}

void nb_detok_flush(nb_detok *d, nb_buf *out)
{
    give_up(d, out);
}

static bool is_utf8(const char *s, size_t n)
{
    uint32_t c;
    for (size_t i = 0, w; i < n; i += w)
        if (!(w = nb_utf8_decode(s + i, n - i, &c))) return false;
    return true;
}

/* ByteFallback judges a run of bytes as a whole: one that is not UTF-8 is shown as U+FFFD for each of its bytes. */
static void end_run(nb_detok *d, nb_buf *run, nb_buf *out)
{
    bool valid = is_utf8(nb_buf_str(run), run->len);
    if (valid) emit(d, nb_buf_str(run), run->len, out);
    for (size_t i = 0; !valid && i < run->len; i++) emit(d, REPLACEMENT, sizeof REPLACEMENT - 1, out);
    nb_buf_clear(run);
}

nb_status nb_tokenizer_decode(const nb_tokenizer *t, const uint32_t *ids, size_t n, bool skip_special,
                              nb_buf *out, nb_error *err)
{
    nb_detok d;
    nb_buf run = {0};
    nb_detok_init(&d, t, skip_special, false);
    for (size_t i = 0; i < n; i++) {
        const nb_token *token = token_of(t, ids[i], skip_special);
        if (token && token->byte) {
            nb_buf_add(&run, token->s, token->n);
            continue;
        }
        if (token) end_run(&d, &run, out);
        nb_detok_push(&d, ids[i], out);
    }
    end_run(&d, &run, out);
    nb_detok_flush(&d, out);
    bool ok = nb_buf_ok(out) && nb_buf_ok(&run);
    nb_buf_free(&run);
    return ok ? NB_OK : nb_fail_nomem(err, "decoded text", out->len);
}
