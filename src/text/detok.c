/* Ids back to text. With byte-level tokens that is a concatenation of bytes; the one question is what to do with bytes
 * that are not UTF-8. Each longest run that could have begun a character becomes one U+FFFD (Unicode 15, 3.9, "maximal
 * subparts"), as soon as it is certain: one state machine serves whole texts and streams, so that they agree. */
#include <string.h>

#include "text/internal.h"

#define STAGE "decoder"
#define REPLACEMENT "\xEF\xBF\xBD"

/* ByteLevel gives one string, so a Fuse behind it has nothing to do. Before it, Fuse would join the tokens first, and
 * one character outside the byte alphabet would change how all of them are read. */
static nb_status check(const json_t *spec, bool *bytes, nb_error *err)
{
    const char *type;
    nb_status s = nb_component_type(spec, STAGE, &type, err);
    if (s) return s;
    if (strcmp(type, "ByteLevel") == 0 && !*bytes) {
        *bytes = true;
        return NB_OK;
    }
    if (strcmp(type, "Fuse") == 0 && *bytes) return NB_OK;
    if (strcmp(type, "Sequence") != 0) return nb_tok_unsupported(err, STAGE, type);
    const json_t *list = json_object_get(spec, "decoders"), *each;
    if (!json_is_array(list))
        return nb_fail(err, NB_ERR_FORMAT, STAGE " Sequence: 'decoders' is not an array");
    size_t i;
    json_array_foreach(list, i, each) if ((s = check(each, bytes, err))) return s;
    return NB_OK;
}

nb_status nb_decoder_check(const json_t *spec, nb_error *err)
{
    bool bytes = false;
    if (spec && !json_is_null(spec)) {
        nb_status s = check(spec, &bytes, err);
        if (s) return s;
    }
    return bytes ? NB_OK : nb_tok_unsupported(err, STAGE, "without ByteLevel");
}

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

static void push_byte(nb_detok *d, unsigned char b, nb_buf *out)
{
    if (d->n_pending && !continues(d->pending, d->n_pending, b)) {
        nb_buf_adds(out, REPLACEMENT);
        d->n_pending = 0;
    }
    if (!d->n_pending && width(b) == 0) {
        nb_buf_adds(out, REPLACEMENT);
        return;
    }
    d->pending[d->n_pending++] = b;
    if (d->n_pending == width(d->pending[0])) {
        nb_buf_add(out, d->pending, d->n_pending);
        d->n_pending = 0;
    }
}

void nb_detok_init(nb_detok *d, const nb_tokenizer *t, bool skip_special, bool has_prompt)
{
    *d = (nb_detok){.t = t, .skip_special = skip_special, .started = has_prompt};
}

void nb_detok_push(nb_detok *d, uint32_t id, nb_buf *out)
{
    size_t n, ascii;
    const char *s = nb_tokenizer_bytes(d->t, id, &n);
    if (!s || (d->skip_special && nb_tokenizer_is_special(d->t, id))) return;
    d->started = true;
    for (size_t i = 0; i < n; i += ascii) {
        for (ascii = 0; i + ascii < n && (unsigned char)s[i + ascii] < 0x80 && !d->n_pending;) ascii++;
        if (ascii) {
            nb_buf_add(out, s + i, ascii);
        } else {
            push_byte(d, (unsigned char)s[i], out);
            ascii = 1;
        }
    }
}

void nb_detok_flush(nb_detok *d, nb_buf *out)
{
    if (d->n_pending) nb_buf_adds(out, REPLACEMENT);
    d->n_pending = 0;
}

nb_status nb_tokenizer_decode(const nb_tokenizer *t, const uint32_t *ids, size_t n, bool skip_special,
                              nb_buf *out, nb_error *err)
{
    nb_detok d;
    nb_detok_init(&d, t, skip_special, false);
    for (size_t i = 0; i < n; i++) nb_detok_push(&d, ids[i], out);
    nb_detok_flush(&d, out);
    return nb_buf_ok(out) ? NB_OK : nb_fail_nomem(err, "decoded text", out->len);
}
