/* tojson: json.dumps(value, ensure_ascii, indent, separators, sort_keys) as transformers gives it to templates. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja_internal.h"
#include "text/pyjson.h"

typedef struct dump {
    jx *x;
    nb_buf *out;
    bool ascii, sort, pretty;
    jv indent, between, colon; /* one level's indentation; the separators */
    size_t level;
} dump;

static void put_string(dump *d, jv s)
{
    char text[16];
    uint32_t cp;
    nb_buf b = {0};
    if (!nb_j_charge(d->x, 1 + s.n / 4)) return;
    nb_pyjson_add_string(&b, s.u.s, s.n);
    if (!nb_buf_ok(&b)) {
        d->x->status = nb_fail_nomem(d->x->err, "a chat template's text", s.n);
    } else if (!d->ascii) {
        nb_j_emit(d->x, d->out, b.data, b.len);
    } else {
        for (size_t i = 0, w; i < b.len && d->x->status == NB_OK; i += w) {
            w = nb_j_char(b.data + i, b.len - i, &cp);
            if (cp < 0x7F)
                snprintf(text, sizeof text, "%c", (char)cp);
            else if (cp < 0x10000)
                snprintf(text, sizeof text, cp == 0x7F ? "\x7F" : "\\u%04x", cp);
            else
                snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD7C0 + (cp >> 10), 0xDC00 + (cp & 0x3FF));
            nb_j_emits(d->x, d->out, text);
        }
    }
    nb_buf_free(&b);
}

static void new_line(dump *d)
{
    if (!d->pretty) return;
    nb_j_emits(d->x, d->out, "\n");
    for (size_t i = 0; i < d->level && d->x->status == NB_OK; i++)
        nb_j_emit(d->x, d->out, d->indent.u.s, d->indent.n);
}

static void put(dump *d, jv v);

static void put_float(dump *d, double f)
{
    if (isfinite(f))
        nb_j_write_float(d->x, d->out, f);
    else
        nb_j_emits(d->x, d->out, isnan(f) ? "NaN" : f > 0 ? "Infinity" : "-Infinity");
}

/* A key as JSON's string: numbers, booleans and None by their JSON text. */
static void put_key(dump *d, jv key)
{
    if (key.type == J_STR) {
        put_string(d, key);
    } else if (key.type == J_NONE || key.type == J_BOOL || key.type == J_INT || key.type == J_FLOAT) {
        nb_j_emits(d->x, d->out, "\"");
        put(d, key);
        nb_j_emits(d->x, d->out, "\"");
    } else {
        J_ERROR(d->x, "keys must be str, int, float, bool or None, not %s", nb_j_type(key));
    }
}

static void put_dict(dump *d, const jdict *v)
{
    jx *x = d->x;
    size_t *order = nb_j_new(x, v->n, sizeof *order);
    if (!order) return;
    for (size_t i = 0; i < v->n; i++) order[i] = i;
    if (d->sort) nb_j_sort(x, v->keys, order, v->n, false);
    nb_j_emits(x, d->out, "{");
    d->level++;
    for (size_t i = 0; i < v->n && x->status == NB_OK; i++) {
        if (i) nb_j_emit(x, d->out, d->between.u.s, d->between.n);
        new_line(d);
        put_key(d, v->keys[order[i]]);
        nb_j_emit(x, d->out, d->colon.u.s, d->colon.n);
        put(d, v->values[order[i]]);
    }
    d->level--;
    if (v->n) new_line(d);
    nb_j_emits(x, d->out, "}");
}

static void put_list(dump *d, jv v)
{
    nb_j_emits(d->x, d->out, "[");
    d->level++;
    for (size_t i = 0; i < v.n && d->x->status == NB_OK; i++) {
        if (i) nb_j_emit(d->x, d->out, d->between.u.s, d->between.n);
        new_line(d);
        put(d, v.u.v[i]);
    }
    d->level--;
    if (v.n) new_line(d);
    nb_j_emits(d->x, d->out, "]");
}

static void put(dump *d, jv v)
{
    jx *x = d->x;
    if (!nb_j_deeper(x)) return;
    switch ((jtype)v.type) {
    case J_NONE: nb_j_emits(x, d->out, "null"); break;
    case J_BOOL: nb_j_emits(x, d->out, v.u.b ? "true" : "false"); break;
    case J_INT: nb_j_write(x, d->out, v); break;
    case J_FLOAT: put_float(d, v.u.f); break;
    case J_STR: put_string(d, v); break;
    case J_LIST:
    case J_TUPLE: put_list(d, v); break;
    case J_DICT: put_dict(d, v.u.dict); break;
    default: J_ERROR(x, "Object of type %s is not JSON serializable", nb_j_type(v));
    }
    x->depth--;
}

jv nb_j_tojson(jx *x, jv self, const jv *a, const jcall *c)
{
    nb_buf out = {0};
    dump d = {
        .x = x, .out = &out, .ascii = nb_j_bool_arg(x, a[0], false), .sort = nb_j_bool_arg(x, a[3], false)};
    jv indent = a[1], separators = a[2];
    d.pretty = indent.type != J_MISSING && indent.type != J_NONE;
    if (indent.type == J_STR) {
        d.indent = indent;
    } else if (d.pretty) {
        d.indent = nb_j_binary(x, J_MUL, nb_j_str(" ", 1), nb_j_int(nb_j_int_arg(x, indent, 0, "indent")));
    }
    d.between = d.pretty ? nb_j_str(",", 1) : nb_j_str(", ", 2);
    d.colon = nb_j_str(": ", 2);
    if (separators.type == J_TUPLE || separators.type == J_LIST) {
        if (separators.n != 2 || separators.u.v[0].type != J_STR || separators.u.v[1].type != J_STR)
            return J_ERROR(x, "separators must be two strings");
        d.between = separators.u.v[0];
        d.colon = separators.u.v[1];
    } else if (separators.type != J_MISSING && separators.type != J_NONE) {
        return J_ERROR(x, "separators must be two strings");
    }
    if (x->status == NB_OK) put(&d, self);
    return nb_j_take(x, &out);
}
