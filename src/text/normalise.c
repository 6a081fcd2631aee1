/* What is done to a text before it is cut: NFC (Qwen), a mark in front (Llama 2), spaces that become marks (Llama 2, Gemma). Nearly all
 * text is in NFC already, so a scan decides first whether utf8proc need look at it. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "text/internal.h"

#define STAGE "normalizer"
#define MAX_STEPS 32
#define MAX_GROWTH 16 /* times, in one step and in all, but for */
#define MIN_BOUND ((size_t)64 << 10)

/* ---- replacements ---- */

/* A member that is a string, copied. It may hold NUL. */
static nb_status copy_member(const json_t *v, const char *stage, const char *what, char **out, size_t *n,
                             nb_error *err)
{
    if (!json_is_string(v)) return nb_fail(err, NB_ERR_FORMAT, "%s: %s is not a string", stage, what);
    *n = json_string_length(v);
    *out = malloc(*n + 1);
    if (!*out) return nb_fail_nomem(err, stage, *n + 1);
    memcpy(*out, json_string_value(v), *n + 1);
    return NB_OK;
}

nb_status nb_replacement_load(nb_replacement *r, const json_t *spec, const char *stage, nb_error *err)
{
    const json_t *pattern = json_object_get(spec, "pattern"), *text = json_object_get(pattern, "String");
    if (json_object_get(pattern, "Regex")) return nb_tok_unsupported(err, stage, "Replace with a Regex");
    nb_status s = copy_member(text, stage, "Replace: pattern.String", &r->from, &r->from_n, err);
    if (!s)
        s = copy_member(json_object_get(spec, "content"), stage, "Replace: content", &r->to, &r->to_n, err);
    if (!s && !r->from_n) s = nb_tok_unsupported(err, stage, "Replace with an empty pattern");
    if (!s && r->to_n / MAX_GROWTH > r->from_n)
        s = nb_fail(err, NB_ERR_LIMIT, "%s: a replacement more than %d times as long", stage, MAX_GROWTH);
    return s;
}

void nb_replacement_free(nb_replacement *r)
{
    free(r->from);
    free(r->to);
    *r = (nb_replacement){0};
}

void nb_replace(const nb_replacement *r, const char *s, size_t n, nb_buf *out)
{
    for (size_t at = 0; at < n;) {
        const char *p = memmem(s + at, n - at, r->from, r->from_n);
        size_t end = p ? (size_t)(p - s) : n;
        nb_buf_add(out, s + at, end - at);
        if (p) nb_buf_add(out, r->to, r->to_n);
        at = p ? end + r->from_n : n;
    }
}

/* ---- loading ---- */

static nb_status add_step(nb_normaliser *m, nb_normal_kind kind, nb_normal_step **out, nb_error *err)
{
    if (m->n == MAX_STEPS) return nb_fail(err, NB_ERR_LIMIT, STAGE ": more than %d steps", MAX_STEPS);
    nb_normal_step *steps = realloc(m->steps, (m->n + 1) * sizeof *steps);
    if (!steps) return nb_fail_nomem(err, "a normalizer", (m->n + 1) * sizeof *steps);
    m->steps = steps;
    *out = &steps[m->n++];
    **out = (nb_normal_step){.kind = kind};
    return NB_OK;
}

nb_status nb_normaliser_load(nb_normaliser *m, const json_t *spec, nb_error *err)
{
    const char *type;
    nb_normal_step *step;
    if (!spec || json_is_null(spec)) return NB_OK;
    nb_status s = nb_component_type(spec, STAGE, &type, err);
    if (s) return s;
    if (strcmp(type, "NFC") == 0) return add_step(m, NB_NORMAL_NFC, &step, err);
    if (strcmp(type, "Prepend") == 0) {
        if ((s = add_step(m, NB_NORMAL_PREPEND, &step, err))) return s;
        return copy_member(json_object_get(spec, "prepend"), STAGE, "Prepend: prepend", &step->r.to,
                           &step->r.to_n, err);
    }
    if (strcmp(type, "Replace") == 0) {
        if ((s = add_step(m, NB_NORMAL_REPLACE, &step, err))) return s;
        return nb_replacement_load(&step->r, spec, STAGE, err);
    }
    if (strcmp(type, "Sequence") != 0) return nb_tok_unsupported(err, STAGE, type);
    const json_t *list = json_object_get(spec, "normalizers"), *each;
    if (!json_is_array(list))
        return nb_fail(err, NB_ERR_FORMAT, "normalizer Sequence: 'normalizers' is not an array");
    size_t i;
    json_array_foreach(list, i, each) if ((s = nb_normaliser_load(m, each, err))) return s;
    return NB_OK;
}

void nb_normaliser_free(nb_normaliser *m)
{
    for (size_t i = 0; i < m->n; i++) nb_replacement_free(&m->steps[i].r);
    free(m->steps);
    *m = (nb_normaliser){0};
}

/* ---- NFC ---- */

/* True when no character of s can change or combine, so that s is in NFC. May be false for text that is. Below U+0300
 * every character is its own NFC and none combines with the one before it. */
static bool plainly_nfc(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        if ((unsigned char)s[i] < 0xCC) { /* below U+0300, or a byte within such a character */
            i++;
            continue;
        }
        uint32_t c;
        size_t w = nb_utf8_decode(s + i, n - i, &c);
        if (!w) return false;
        const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)c);
        bool decomposes = p->decomp_type == 0 && p->decomp_seqindex != UINT16_MAX;
        bool joins =
            p->comb_index != UINT16_MAX && p->comb_index >= 0x8000; /* second half of a composition */
        bool jamo = (c >= 0x1161 && c <= 0x1175) || (c >= 0x11A8 && c <= 0x11C2);
        if (p->combining_class || decomposes || joins || jamo) return false;
        i += w;
    }
    return true;
}

static nb_status nfc(const char *s, size_t n, char **out, size_t *out_n, nb_error *err)
{
    utf8proc_uint8_t *text = NULL;
    utf8proc_ssize_t m = n > PTRDIFF_MAX / 8 ? UTF8PROC_ERROR_OVERFLOW
                                             : utf8proc_map((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n,
                                                            &text, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (m == UTF8PROC_ERROR_NOMEM || m == UTF8PROC_ERROR_OVERFLOW)
        return nb_fail_nomem(err, "NFC of a text", n);
    if (m < 0) return nb_fail(err, NB_ERR_ARGUMENT, "NFC: %s", utf8proc_errmsg(m));
    *out = (char *)text;
    *out_n = (size_t)m;
    return NB_OK;
}

/* ---- running ---- */

static nb_status run_step(const nb_normal_step *step, const char *s, size_t n, char **out, size_t *out_n,
                          nb_error *err)
{
    nb_buf text = {0};
    if (step->kind == NB_NORMAL_NFC) return nfc(s, n, out, out_n, err);
    if (step->kind == NB_NORMAL_PREPEND) {
        nb_buf_add(&text, step->r.to, step->r.to_n);
        nb_buf_add(&text, s, n);
    } else {
        nb_replace(&step->r, s, n, &text);
    }
    if (!nb_buf_ok(&text) || !nb_buf_reserve(&text, 1)) {
        nb_buf_free(&text);
        return nb_fail_nomem(err, "a normalised text", n);
    }
    *out = text.data;
    *out_n = text.len;
    return NB_OK;
}

static bool changes(const nb_normal_step *step, const char *s, size_t n)
{
    if (!n) return false;
    if (step->kind == NB_NORMAL_NFC) return !plainly_nfc(s, n);
    return step->kind == NB_NORMAL_PREPEND || memmem(s, n, step->r.from, step->r.from_n);
}

nb_status nb_normalise(const nb_normaliser *m, const char *s, size_t n, const char **out, size_t *out_n,
                       char **owned, nb_error *err)
{
    size_t most = n > (SIZE_MAX - MIN_BOUND) / MAX_GROWTH ? SIZE_MAX : n * MAX_GROWTH + MIN_BOUND;
    *owned = NULL;
    for (size_t i = 0; i < m->n; i++) {
        char *next = NULL;
        if (!changes(&m->steps[i], s, n)) continue;
        nb_status status = run_step(&m->steps[i], s, n, &next, &n, err);
        if (!status && n > most) {
            free(next);
            status = nb_fail(err, NB_ERR_LIMIT, STAGE ": a text grows more than %d times", MAX_GROWTH);
        }
        free(*owned);
        *owned = NULL;
        if (status) return status;
        s = *owned = next;
    }
    *out = s;
    *out_n = n;
    return NB_OK;
}
