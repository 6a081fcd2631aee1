/* Values as Python has them: truth, equality, order, hash, length, iteration, str() and repr(). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>
#include <xxhash.h>

#include "text/jinja_internal.h"
#include "text/pyjson.h"

const jv nb_j_missing = {.type = J_MISSING};

static const char *type_name(jtype t)
{
    static const char *const names[] = {
        [J_MISSING] = "missing",   [J_UNDEFINED] = "Undefined",
        [J_NONE] = "NoneType",     [J_BOOL] = "bool",
        [J_INT] = "int",           [J_FLOAT] = "float",
        [J_STR] = "str",           [J_LIST] = "list",
        [J_TUPLE] = "tuple",       [J_RANGE] = "range",
        [J_VIEW] = "dict view",    [J_ITER] = "generator",
        [J_DICT] = "dict",         [J_NAMESPACE] = "Namespace",
        [J_LOOP] = "LoopContext",  [J_MACRO] = "Macro",
        [J_FUNCTION] = "function",
    };
    return names[t];
}

const char *nb_j_type(jv v)
{
    static const char *const views[] = {
        [JV_KEYS] = "dict_keys", [JV_VALUES] = "dict_values", [JV_ITEMS] = "dict_items"};
    if (v.type == J_VIEW) return views[v.why];
    return type_name((jtype)v.type);
}

bool nb_j_equals_text(jv v, const char *s)
{
    return v.type == J_STR && v.n == strlen(s) && memcmp(v.u.s, s, v.n) == 0;
}

jv nb_j_undefined_error(jx *x, jv v)
{
    int n = (int)(v.n < 200 ? v.n : 200);
    const char *object = v.of == J_NONE ? "" : " object", *of = v.of == J_NONE ? "None" : type_name(v.of);
    switch ((jwhy)v.why) {
    case JU_NAME: return J_ERROR(x, "'%.*s' is undefined", n, v.u.s);
    case JU_MEMBER: return J_ERROR(x, "'%s%s' has no attribute '%.*s'", of, object, n, v.u.s);
    case JU_ITEM: return J_ERROR(x, "%s%s has no element %.*s", of, object, n, v.u.s);
    case JU_UNSAFE:
        return J_ERROR(x, "access to attribute '%.*s' of '%s' object is unsafe.", n, v.u.s, type_name(v.of));
    case JU_HINT: return J_ERROR(x, "%.*s", n, v.u.s);
    }
    return v;
}

bool nb_j_truth(jx *x, jv v)
{
    switch ((jtype)v.type) {
    case J_MISSING:
    case J_UNDEFINED:
    case J_NONE: return false;
    case J_BOOL: return v.u.b;
    case J_INT: return v.u.i != 0;
    case J_FLOAT: return v.u.f != 0;
    case J_STR:
    case J_LIST:
    case J_TUPLE:
    case J_RANGE:
    case J_VIEW: return v.n > 0;
    case J_DICT: return v.u.dict->n > 0;
    case J_LOOP: return v.u.loop->n > 0;
    default: return true;
    }
}

static bool is_number(jv v)
{
    return v.type == J_BOOL || v.type == J_INT || v.type == J_FLOAT;
}

/* Exact for integers and floats alike: an x87 long double has 64 bits of mantissa. */
static long double as_number(jv v)
{
    return v.type == J_FLOAT ? (long double)v.u.f : v.type == J_INT ? (long double)v.u.i : v.u.b ? 1 : 0;
}

static bool equal_dicts(jx *x, const jdict *a, const jdict *b)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n && x->status == NB_OK; i++) {
        const jv *other = nb_j_dict_get(x, b, a->keys[i]);
        if (!other || !nb_j_equal(x, a->values[i], *other)) return false;
    }
    return true;
}

static bool equal_elements(jx *x, jv a, jv b)
{
    if (a.n != b.n) return false;
    for (size_t i = 0; i < a.n && x->status == NB_OK; i++)
        if (!nb_j_equal(x, a.u.v[i], b.u.v[i])) return false;
    return true;
}

bool nb_j_equal(jx *x, jv a, jv b)
{
    bool same = false;
    if (is_number(a) && is_number(b)) return as_number(a) == as_number(b);
    if (a.type != b.type || !nb_j_deeper(x)) return false;
    switch ((jtype)a.type) {
    case J_STR: same = a.n == b.n && nb_j_charge(x, a.n / 16) && memcmp(a.u.s, b.u.s, a.n) == 0; break;
    case J_LIST:
    case J_TUPLE:
    case J_RANGE:
    case J_VIEW: same = equal_elements(x, a, b); break;
    case J_DICT: same = equal_dicts(x, a.u.dict, b.u.dict); break;
    case J_FUNCTION: same = a.u.fn->fn == b.u.fn->fn && (!a.u.fn->self.type || a.u.fn == b.u.fn); break;
    case J_ITER: same = a.u.iter == b.u.iter; break;
    case J_NAMESPACE: same = a.u.dict == b.u.dict; break;
    case J_LOOP: same = a.u.loop == b.u.loop; break;
    case J_MACRO: same = a.u.macro == b.u.macro; break;
    default: same = true; /* None, undefined */
    }
    x->depth--;
    return same;
}

int nb_j_order(jx *x, jv a, jv b, const char *op)
{
    int order = 0;
    if (is_number(a) && is_number(b)) {
        long double p = as_number(a), q = as_number(b);
        return p < q ? -1 : p > q ? 1 : p == q ? 0 : 2;
    }
    if (!nb_j_deeper(x)) return 0;
    if (a.type == J_STR && b.type == J_STR) { /* UTF-8 sorts as its code points do */
        size_t n = a.n < b.n ? a.n : b.n;
        nb_j_charge(x, n / 16);
        order = memcmp(a.u.s, b.u.s, n);
        order = order ? order : a.n < b.n ? -1 : a.n > b.n;
    } else if (a.type == b.type && (a.type == J_LIST || a.type == J_TUPLE)) {
        size_t n = a.n < b.n ? a.n : b.n, i = 0;
        while (i < n && x->status == NB_OK && nb_j_equal(x, a.u.v[i], b.u.v[i])) i++;
        order = i < n ? nb_j_order(x, a.u.v[i], b.u.v[i], op) : a.n < b.n ? -1 : a.n > b.n;
    } else if (a.type == J_UNDEFINED || b.type == J_UNDEFINED) {
        nb_j_undefined_error(x, a.type == J_UNDEFINED ? a : b);
    } else {
        J_ERROR(x, "'%s' not supported between instances of '%s' and '%s'", op, nb_j_type(a), nb_j_type(b));
    }
    x->depth--;
    return order < 0 ? -1 : order > 1 ? (order == 2 ? 2 : 1) : order;
}

uint64_t nb_j_hash(jx *x, jv v)
{
    uint64_t h = x->seed ^ v.type;
    if (is_number(v)) { /* True, 1 and 1.0 are one key */
        double d = (double)as_number(v);
        return XXH3_64bits_withSeed(&d, d == 0 ? 0 : sizeof d, x->seed);
    }
    if (v.type == J_STR) return nb_j_charge(x, v.n / 16) ? XXH3_64bits_withSeed(v.u.s, v.n, x->seed) : 0;
    if (v.type == J_LIST || v.type == J_DICT) {
        J_ERROR(x, "unhashable type: '%s'", nb_j_type(v));
    } else if (v.type == J_TUPLE && nb_j_deeper(x)) {
        for (size_t i = 0; i < v.n; i++) h = h * 0x9E3779B97F4A7C15u + nb_j_hash(x, v.u.v[i]);
        x->depth--;
    }
    return h;
}

size_t nb_j_chars(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)s[i] & 0xC0) != 0x80;
    return count;
}

int64_t nb_j_length(jx *x, jv v, bool complain)
{
    switch ((jtype)v.type) {
    case J_UNDEFINED: return 0;
    case J_STR: return nb_j_charge(x, v.n / 16) ? (int64_t)nb_j_chars(v.u.s, v.n) : -1;
    case J_LIST:
    case J_TUPLE:
    case J_RANGE:
    case J_VIEW: return (int64_t)v.n;
    case J_DICT: return (int64_t)v.u.dict->n;
    case J_LOOP: return (int64_t)v.u.loop->n;
    default:
        if (complain) J_ERROR(x, "object of type '%s' has no len()", nb_j_type(v));
        return -1;
    }
}

/* A string's characters as strings of their own. */
static bool characters(jx *x, jv v, const jv **items, size_t *n)
{
    uint32_t cp;
    *n = nb_j_chars(v.u.s, v.n);
    jv *out = nb_j_charge(x, *n) ? nb_j_new(x, *n, sizeof *out) : NULL;
    if (!out) return false;
    for (size_t i = 0, at = 0, w; i < *n; i++, at += w) {
        w = nb_j_char(v.u.s + at, v.n - at, &cp);
        out[i] = nb_j_str(v.u.s + at, w);
    }
    *items = out;
    return true;
}

bool nb_j_elements(jx *x, jv v, const jv **items, size_t *n)
{
    if (x->status != NB_OK) return false;
    *items = &nb_j_missing;
    *n = 0;
    switch ((jtype)v.type) {
    case J_UNDEFINED: break;
    case J_STR: return characters(x, v, items, n);
    case J_LIST:
    case J_TUPLE:
    case J_RANGE:
    case J_VIEW:
        *items = v.u.v;
        *n = v.n;
        break;
    case J_ITER:
        *items = v.u.iter->v + v.u.iter->at;
        *n = v.u.iter->n - v.u.iter->at;
        v.u.iter->at = v.u.iter->n;
        break;
    case J_DICT:
        if ((*n = v.u.dict->n)) *items = v.u.dict->keys;
        break;
    default: J_ERROR(x, "'%s' object is not iterable", nb_j_type(v));
    }
    return x->status == NB_OK;
}

/* ---- text ---- */

void nb_j_write_float(jx *x, nb_buf *b, double v)
{
    nb_buf text = {0};
    if (isnan(v))
        nb_buf_adds(&text, "nan");
    else if (isinf(v))
        nb_buf_adds(&text, v > 0 ? "inf" : "-inf");
    else
        nb_pyjson_add_real(&text, v);
    nb_j_emit(x, b, nb_buf_str(&text), text.len);
    if (!nb_buf_ok(&text) && x->status == NB_OK) x->status = nb_fail_nomem(x->err, "a number", 32);
    nb_buf_free(&text);
}

/* str.isprintable() of one character. */
static bool printable(uint32_t cp)
{
    if (cp < 0x7F) return cp >= 0x20;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

static void write_quoted(jx *x, nb_buf *b, jv v)
{
    char quote = memchr(v.u.s, '\'', v.n) && !memchr(v.u.s, '"', v.n) ? '"' : '\'', text[16];
    uint32_t cp;
    nb_j_emit(x, b, &quote, 1);
    for (size_t i = 0, w; i < v.n && nb_j_charge(x, 1); i += w) {
        w = nb_j_char(v.u.s + i, v.n - i, &cp);
        if (cp == (uint32_t)quote || cp == '\\')
            snprintf(text, sizeof text, "\\%c", (char)cp);
        else if (cp == '\n' || cp == '\r' || cp == '\t')
            snprintf(text, sizeof text, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        else if (printable(cp))
            snprintf(text, sizeof text, "%.*s", (int)w, v.u.s + i);
        else
            snprintf(text, sizeof text, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
        nb_j_emits(x, b, text);
    }
    nb_j_emit(x, b, &quote, 1);
}

static void write_elements(jx *x, nb_buf *b, jv v, const char *open, const char *close)
{
    nb_j_emits(x, b, open);
    for (size_t i = 0; i < v.n && x->status == NB_OK; i++) {
        nb_j_emits(x, b, i ? ", " : "");
        nb_j_write_repr(x, b, v.u.v[i]);
    }
    nb_j_emits(x, b, v.type == J_TUPLE && v.n == 1 ? "," : "");
    nb_j_emits(x, b, close);
}

static void write_dict(jx *x, nb_buf *b, const jdict *d, const char *open, const char *close)
{
    nb_j_emits(x, b, open);
    for (size_t i = 0; i < d->n && x->status == NB_OK; i++) {
        nb_j_emits(x, b, i ? ", " : "");
        nb_j_write_repr(x, b, d->keys[i]);
        nb_j_emits(x, b, ": ");
        nb_j_write_repr(x, b, d->values[i]);
    }
    nb_j_emits(x, b, close);
}

static void write_range(jx *x, nb_buf *b, jv v)
{
    char text[64];
    int64_t from = v.n ? v.u.v[0].u.i : 0;
    if (v.n > 1 && v.u.v[1].u.i != from + 1) {
        nb_j_raise(x, NB_ERR_UNSUPPORTED, "a range with steps has no text");
        return;
    }
    snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64 ")", from, from + (int64_t)v.n);
    nb_j_emits(x, b, text);
}

void nb_j_write_repr(jx *x, nb_buf *b, jv v)
{
    char text[64];
    if (!nb_j_deeper(x)) return;
    switch ((jtype)v.type) {
    case J_UNDEFINED: nb_j_emits(x, b, "Undefined"); break;
    case J_NONE: nb_j_emits(x, b, "None"); break;
    case J_BOOL: nb_j_emits(x, b, v.u.b ? "True" : "False"); break;
    case J_INT:
        snprintf(text, sizeof text, "%lld", (long long)v.u.i);
        nb_j_emits(x, b, text);
        break;
    case J_LOOP:
        snprintf(text, sizeof text, "<LoopContext %zu/%zu>", v.u.loop->index0 + 1, v.u.loop->n);
        nb_j_emits(x, b, text);
        break;
    case J_FLOAT: nb_j_write_float(x, b, v.u.f); break;
    case J_STR: write_quoted(x, b, v); break;
    case J_LIST: write_elements(x, b, v, "[", "]"); break;
    case J_TUPLE: write_elements(x, b, v, "(", ")"); break;
    case J_RANGE: write_range(x, b, v); break;
    case J_VIEW:
        nb_j_emits(x, b, nb_j_type(v));
        write_elements(x, b, v, "([", "])");
        break;
    case J_MACRO:
        nb_j_emits(x, b, "<Macro ");
        if (v.u.macro->node->kind == JN_MACRO)
            nb_j_write_repr(x, b, x->t->names[v.u.macro->node->sym]);
        else
            nb_j_emits(x, b, "anonymous");
        nb_j_emits(x, b, ">");
        break;
    case J_DICT: write_dict(x, b, v.u.dict, "{", "}"); break;
    case J_NAMESPACE: write_dict(x, b, v.u.dict, "<Namespace {", "}>"); break;
    default: /* Python prints an address */ J_ERROR(x, "a %s has no text", nb_j_type(v));
    }
    x->depth--;
}

void nb_j_write(jx *x, nb_buf *b, jv v)
{
    if (v.type == J_STR)
        nb_j_emit(x, b, v.u.s, v.n);
    else if (v.type != J_UNDEFINED)
        nb_j_write_repr(x, b, v);
}

jv nb_j_text(jx *x, jv v)
{
    nb_buf b = {0};
    if (v.type == J_STR) return v;
    nb_j_write(x, &b, v);
    return nb_j_take(x, &b);
}

/* ---- from JSON ---- */

jv nb_j_from_json(jx *x, const json_t *j)
{
    jv v = nb_j_none();
    const char *key;
    json_t *each;
    size_t i;
    if (!nb_j_deeper(x)) return v;
    switch (json_typeof(j)) {
    case JSON_NULL: break;
    case JSON_TRUE:
    case JSON_FALSE: v = nb_j_bool(json_is_true(j)); break;
    case JSON_INTEGER: v = nb_j_int(json_integer_value(j)); break;
    case JSON_REAL: v = nb_j_float(json_real_value(j)); break;
    case JSON_STRING: v = nb_j_str(json_string_value(j), json_string_length(j)); break;
    case JSON_ARRAY: {
        jv *items = nb_j_new(x, json_array_size(j), sizeof *items);
        if (!items) break;
        json_array_foreach(j, i, each)
        {
            items[i] = nb_j_from_json(x, each);
        }
        v = nb_j_seq(J_LIST, items, json_array_size(j));
        break;
    }
    case JSON_OBJECT: {
        jdict *d = nb_j_dict_new(x, json_object_size(j));
        if (!d) break;
        json_object_foreach((json_t *)j, key, each)
        {
            nb_j_dict_put(x, d, nb_j_str(key, strlen(key)), nb_j_from_json(x, each));
        }
        v = (jv){.type = J_DICT, .u.dict = d};
        break;
    }
    }
    x->depth--;
    return v;
}
