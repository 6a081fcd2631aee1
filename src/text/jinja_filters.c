/* Filters of texts and numbers, and the table of all filters by name. */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "text/jinja_internal.h"

/* ---- text ---- */

static jv upper(jx *x, jv v, const jv *a, const jcall *c)
{
    return nb_j_case(x, nb_j_text(x, v), 'u');
}
static jv lower(jx *x, jv v, const jv *a, const jcall *c)
{
    return nb_j_case(x, nb_j_text(x, v), 'l');
}
static jv capitalize(jx *x, jv v, const jv *a, const jcall *c)
{
    return nb_j_case(x, nb_j_text(x, v), 'c');
}

/* Words begin after white space and -({[<, unlike str.title()'s. */
static jv title(jx *x, jv v, const jv *a, const jcall *c)
{
    jv s = nb_j_text(x, v);
    nb_buf b = {0};
    uint32_t cp;
    bool start = true;
    for (size_t i = 0, w; i < s.n && nb_j_charge(x, 1); i += w) {
        w = nb_j_char(s.u.s + i, s.n - i, &cp);
        jv one = nb_j_case(x, nb_j_str(s.u.s + i, w), start ? 'u' : 'l');
        nb_j_emit(x, &b, one.u.s, one.n);
        start = nb_j_is_space(cp) || (cp < 0x80 && cp && strchr("-({[<", (int)cp));
    }
    return nb_j_take(x, &b);
}

static jv trim(jx *x, jv v, const jv *a, const jcall *c)
{
    return nb_j_strip(x, nb_j_text(x, v), a[0], 3);
}

static jv string(jx *x, jv v, const jv *a, const jcall *c)
{
    return nb_j_text(x, v);
}

static jv replace(jx *x, jv v, const jv *a, const jcall *c)
{
    int64_t count = a[2].type == J_NONE ? -1 : nb_j_int_arg(x, a[2], -1, "count");
    return nb_j_replace(x, nb_j_text(x, v), nb_j_text(x, a[0]), nb_j_text(x, a[1]), count);
}

static jv escape(jx *x, jv v, const jv *a, const jcall *c)
{
    static const char from[] = "&<>\"'", *const to[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    jv s = nb_j_text(x, v);
    nb_buf b = {0};
    for (size_t i = 0; i < s.n && nb_j_charge(x, 1); i++) {
        const char *found = s.u.s[i] ? strchr(from, s.u.s[i]) : NULL;
        if (found)
            nb_j_emits(x, &b, to[found - from]);
        else
            nb_j_emit(x, &b, s.u.s + i, 1);
    }
    return nb_j_take(x, &b);
}

/* Lines but the first get the indentation in front; empty ones only if blank. */
static jv indent(jx *x, jv v, const jv *a, const jcall *c)
{
    if (v.type == J_UNDEFINED) return nb_j_undefined_error(x, v);
    if (v.type != J_STR) return J_ERROR(x, "indent needs a str, not %s", nb_j_type(v));
    jv in = a[0];
    if (in.type != J_STR)
        in = nb_j_binary(x, J_MUL, nb_j_str(" ", 1), nb_j_int(nb_j_int_arg(x, in, 4, "width")));
    bool blank = nb_j_bool_arg(x, a[2], false), unsafe;
    jv lines = nb_j_method(v, "splitlines", 10, &unsafe)
                   ->fn(x, nb_j_concat(x, v, nb_j_str("\n", 1)), &(jv){0}, NULL);
    nb_buf b = {0};
    for (size_t i = 0; i < lines.n && nb_j_charge(x, 1); i++) {
        jv line = lines.u.v[i];
        nb_j_emits(x, &b, i ? "\n" : "");
        if (i ? blank || line.n : nb_j_bool_arg(x, a[1], false)) nb_j_emit(x, &b, in.u.s, in.n);
        nb_j_emit(x, &b, line.u.s, line.n);
    }
    return nb_j_take(x, &b);
}

static jv format(jx *x, jv v, const jv *a, const jcall *c)
{
    jdict *named = c->n_named ? nb_j_dict_new(x, c->n_named) : NULL;
    if (c->n && c->n_named)
        return J_ERROR(x, "can't handle positional and keyword arguments at the same time");
    for (size_t i = 0; i < c->n_named; i++) nb_j_dict_put(x, named, c->names[i], c->values[i]);
    return nb_j_percent(x, nb_j_text(x, v),
                        named ? (jv){.type = J_DICT, .u.dict = named} : nb_j_seq(J_TUPLE, c->args, c->n));
}

/* ---- numbers ---- */

static int digit(char c)
{
    return c >= '0' && c <= '9'                     ? c - '0'
           : (c | 0x20) >= 'a' && (c | 0x20) <= 'z' ? (c | 0x20) - 'a' + 10
                                                    : 99;
}

/* int(text, base). */
static bool read_int(jx *x, jv s, int64_t base, int64_t *out)
{
    s = nb_j_strip(x, s, (jv){0}, 3);
    nb_j_charge(x, s.n / 16);
    size_t i = 0;
    bool minus = s.n && s.u.s[0] == '-', any = false, over = false;
    int64_t v = 0;
    if (s.n && (minus || s.u.s[0] == '+')) i = 1;
    if (s.n - i > 2 && s.u.s[i] == '0') {
        char letter = (char)(s.u.s[i + 1] | 0x20);
        if ((base == 16 && letter == 'x') || (base == 8 && letter == 'o') || (base == 2 && letter == 'b'))
            i += 2;
    }
    for (; i < s.n; i++) {
        if (s.u.s[i] == '_' && any && i + 1 < s.n && s.u.s[i - 1] != '_') continue;
        int d = digit(s.u.s[i]);
        if (d >= base) return false;
        over = over || __builtin_mul_overflow(v, base, &v) ||
               __builtin_sub_overflow(v, d, &v); /* negative holds more */
        any = true;
    }
    if (any && (over || (!minus && __builtin_sub_overflow((int64_t)0, v, &v))))
        nb_j_raise(x, NB_ERR_LIMIT, "an integer leaves 64 bits");
    *out = v;
    return any;
}

/* float(text). */
static bool read_float(jx *x, jv s, double *out)
{
    static const char *const words[] = {"inf", "infinity", "nan"};
    char text[400], *end = NULL;
    size_t n = 0;
    s = nb_j_strip(x, s, (jv){0}, 3);
    for (size_t i = 0; i < s.n; i++) {
        if (s.u.s[i] == '_' && i && i + 1 < s.n && digit(s.u.s[i - 1]) < 10 && digit(s.u.s[i + 1]) < 10)
            continue;
        if (n + 1 == sizeof text || !s.u.s[i]) return false;
        text[n++] = s.u.s[i];
    }
    text[n] = '\0';
    const char *body = text + (text[0] == '-' || text[0] == '+');
    bool word = false;
    for (size_t i = 0; i < 3; i++) word = word || strcasecmp(body, words[i]) == 0;
    if (!n || (!word && text[strspn(text, "0123456789+-.eE")])) return false;
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c) {
        if (x->status == NB_OK) x->status = nb_fail_nomem(x->err, "a number", n);
        return false;
    }
    *out = strtod_l(text, &end, c);
    freelocale(c);
    return end && !*end;
}

static jv to_int(jx *x, jv v, const jv *a, const jcall *c)
{
    double f = 0;
    int64_t i = 0, base = nb_j_int_arg(x, a[1], 10, "base");
    jv fallback = a[0].type == J_MISSING ? nb_j_int(0) : a[0];
    if (v.type == J_UNDEFINED) return nb_j_undefined_error(x, v);
    if (v.type == J_INT || v.type == J_BOOL) return nb_j_int(v.type == J_INT ? v.u.i : v.u.b);
    if (v.type != J_STR && v.type != J_FLOAT) return fallback;
    if (base < 2 || base > 36) return nb_j_raise(x, NB_ERR_UNSUPPORTED, "int() in a base outside of 2 to 36");
    if (v.type == J_STR && read_int(x, v, base, &i)) return nb_j_int(i);
    if (v.type == J_FLOAT)
        f = v.u.f;
    else if (!read_float(x, v, &f))
        return fallback;
    if (!isfinite(f))
        return v.type == J_STR || isnan(f) ? fallback
                                           : J_ERROR(x, "cannot convert float infinity to integer");
    return fabs(f) < 9.2e18 ? nb_j_int((int64_t)f) : nb_j_raise(x, NB_ERR_LIMIT, "an integer leaves 64 bits");
}

static jv to_float(jx *x, jv v, const jv *a, const jcall *c)
{
    double f = 0;
    if (v.type == J_UNDEFINED) return nb_j_undefined_error(x, v);
    if (v.type == J_FLOAT) return v;
    if (v.type == J_INT || v.type == J_BOOL) return nb_j_float(v.type == J_INT ? (double)v.u.i : v.u.b);
    if (v.type == J_STR && read_float(x, v, &f)) return nb_j_float(f);
    return a[0].type == J_MISSING ? nb_j_float(0) : a[0];
}

static jv absolute(jx *x, jv v, const jv *a, const jcall *c)
{
    if (v.type == J_FLOAT) return nb_j_float(fabs(v.u.f));
    if (v.type == J_UNDEFINED) return nb_j_undefined_error(x, v);
    if (v.type != J_INT && v.type != J_BOOL)
        return J_ERROR(x, "bad operand type for abs(): '%s'", nb_j_type(v));
    int64_t i = v.type == J_INT ? v.u.i : v.u.b;
    return i < 0 ? nb_j_binary(x, J_SUB, nb_j_int(0), v) : nb_j_int(i);
}

static jv round_to(jx *x, jv v, const jv *a, const jcall *c)
{
    int64_t digits = nb_j_int_arg(x, a[0], 0, "precision");
    bool ceiling = a[1].type != J_MISSING && nb_j_equals_text(a[1], "ceil");
    bool flooring = a[1].type != J_MISSING && nb_j_equals_text(a[1], "floor");
    if (a[1].type != J_MISSING && !ceiling && !flooring && !nb_j_equals_text(a[1], "common"))
        return J_ERROR(x, "method must be common, ceil or floor");
    if (v.type == J_UNDEFINED) return nb_j_undefined_error(x, v);
    if (v.type != J_INT && v.type != J_BOOL && v.type != J_FLOAT)
        return J_ERROR(x, "type %s doesn't define __round__ method", nb_j_type(v));
    if (digits < 0 || digits > 300)
        return nb_j_raise(x, NB_ERR_UNSUPPORTED, "rounding to %lld digits", (long long)digits);
    double f = v.type == J_FLOAT ? v.u.f
               : v.type == J_INT ? (double)v.u.i
                                 : v.u.b,
           scale = pow(10, (double)digits);
    if (ceiling || flooring) return nb_j_float((ceiling ? ceil(f * scale) : floor(f * scale)) / scale);
    if (v.type != J_FLOAT) return nb_j_int(v.type == J_INT ? v.u.i : v.u.b);
    char text[700]; /* printf rounds the exact value, halves to even, as round() does */
    if (!isfinite(f)) return v;
    snprintf(text, sizeof text, "%.*f", (int)digits, f);
    return nb_j_float(strtod(text, NULL));
}

/* ---- anything ---- */

static jv length(jx *x, jv v, const jv *a, const jcall *c)
{
    int64_t n = nb_j_length(x, v, true);
    return nb_j_int(n);
}

static jv otherwise(jx *x, jv v, const jv *a, const jcall *c)
{
    bool take = v.type == J_UNDEFINED || (nb_j_bool_arg(x, a[1], false) && !nb_j_truth(x, v));
    return !take ? v : a[0].type == J_MISSING ? nb_j_str("", 0) : a[0];
}

static const jbuiltin filters[] = {
    {"abs", "", absolute},
    {"capitalize", "", capitalize},
    {"count", "", length},
    {"d", "default_value? boolean?", otherwise},
    {"default", "default_value? boolean?", otherwise},
    {"e", "", escape},
    {"escape", "", escape},
    {"float", "default?", to_float},
    {"format", "*", format},
    {"indent", "width? first? blank?", indent},
    {"int", "default? base?", to_int},
    {"length", "", length},
    {"lower", "", lower},
    {"replace", "old new count?", replace},
    {"round", "precision? method?", round_to},
    {"safe", "", string},
    {"string", "", string},
    {"title", "", title},
    {"tojson", "ensure_ascii? indent? separators? sort_keys?", nb_j_tojson},
    {"trim", "chars?", trim},
    {"upper", "", upper},
    /* Jinja has these; they are not here. */
    {"attr", "*", NULL},
    {"batch", "*", NULL},
    {"center", "*", NULL},
    {"filesizeformat", "*", NULL},
    {"forceescape", "*", NULL},
    {"groupby", "*", NULL},
    {"pprint", "*", NULL},
    {"random", "*", NULL},
    {"slice", "*", NULL},
    {"striptags", "*", NULL},
    {"truncate", "*", NULL},
    {"urlencode", "*", NULL},
    {"urlize", "*", NULL},
    {"wordcount", "*", NULL},
    {"wordwrap", "*", NULL},
    {"xmlattr", "*", NULL},
    {0},
};

const jbuiltin *nb_j_filter(const char *name, size_t n)
{
    const jbuiltin *f = nb_j_find(filters, name, n);
    return f ? f : nb_j_find(nb_j_sequence_filters, name, n);
}
