/* Text from patterns: "..." % values, and str.format() without format specifications. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja_internal.h"

typedef struct spec {
    bool left, zero, plus, space, alt;
    int64_t width, precision; /* -1: none */
} spec;

/* Pads text to the width with blanks, or zeros after the sign. */
static void put_padded(jx *x, nb_buf *out, const spec *k, const char *s, size_t n, bool number)
{
    int64_t more = k->width - (int64_t)nb_j_chars(s, n);
    bool zero = k->zero && !k->left && number;
    size_t sign = zero && n && (s[0] == '-' || s[0] == '+' || s[0] == ' ') ? 1 : 0;
    if (more > (int64_t)x->limits.output) {
        nb_j_raise(x, NB_ERR_LIMIT, "a width of %" PRId64, k->width);
        return;
    }
    nb_j_emit(x, out, s, sign);
    for (int64_t i = 0; i < more && !k->left && nb_j_charge(x, 1); i++) nb_j_emits(x, out, zero ? "0" : " ");
    nb_j_emit(x, out, s + sign, n - sign);
    for (int64_t i = 0; i < more && k->left && nb_j_charge(x, 1); i++) nb_j_emits(x, out, " ");
}

static void put_integer(jx *x, nb_buf *out, const spec *k, int64_t v, char type)
{
    char digits[80], text[160];
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    const char *form = type == 'x'   ? "%.*" PRIx64
                       : type == 'X' ? "%.*" PRIX64
                       : type == 'o' ? "%.*" PRIo64
                                     : "%.*" PRIu64;
    const char *prefix = !k->alt ? "" : type == 'x' ? "0x" : type == 'X' ? "0X" : type == 'o' ? "0o" : "";
    if (k->precision > 60) {
        nb_j_raise(x, NB_ERR_UNSUPPORTED, "a number with more than 60 digits");
        return;
    }
    snprintf(digits, sizeof digits, form, k->precision < 1 ? 1 : (int)k->precision, u);
    snprintf(text, sizeof text, "%s%s%s", v < 0 ? "-" : k->plus ? "+" : k->space ? " " : "", prefix, digits);
    put_padded(x, out, k, text, strlen(text), true);
}

static void put_real(jx *x, nb_buf *out, const spec *k, double v, char type)
{
    char form[16], text[512];
    int precision = k->precision < 0 ? 6 : k->precision > 100 ? 101 : (int)k->precision;
    if (precision > 100) {
        nb_j_raise(x, NB_ERR_UNSUPPORTED, "a number with more than 100 decimals");
        return;
    }
    snprintf(form, sizeof form, "%%%s%s.*%c", k->plus ? "+" : k->space ? " " : "", k->alt ? "#" : "", type);
    int n = snprintf(text, sizeof text, form, precision, v);
    char *comma = memchr(text, ',', n > 0 ? (size_t)n : 0); /* the host program's locale */
    if (comma) *comma = '.';
    put_padded(x, out, k, text, n > 0 ? (size_t)n : 0, isfinite(v));
}

/* One conversion of "..." % values. */
static void convert(jx *x, nb_buf *out, const spec *k, char type, jv v)
{
    nb_buf text = {0};
    if (type == 's' || type == 'r') {
        if (type == 's')
            nb_j_write(x, &text, v);
        else
            nb_j_write_repr(x, &text, v);
        jv s = nb_j_take(x, &text);
        if (k->precision >= 0) s = nb_j_slice(x, s, nb_j_none(), nb_j_int(k->precision), nb_j_none());
        if (x->status == NB_OK) put_padded(x, out, k, s.u.s, s.n, false);
        return;
    }
    if (v.type == J_BOOL) v = nb_j_int(v.u.b);
    if (v.type != J_INT && v.type != J_FLOAT) {
        J_ERROR(x, "%%%c format: a real number is required, not %s", type, nb_j_type(v));
    } else if (strchr("fFeEgG", type)) {
        put_real(x, out, k, v.type == J_INT ? (double)v.u.i : v.u.f, type);
    } else if (v.type == J_FLOAT && strchr("diu", type) && fabs(v.u.f) < 9e18) {
        put_integer(x, out, k, (int64_t)v.u.f, 'd');
    } else if (v.type == J_FLOAT) {
        J_ERROR(x, "%%%c format: an integer is required, not float", type);
    } else {
        put_integer(x, out, k, v.u.i, type);
    }
}

static int64_t read_number(const char *s, size_t n, size_t *at)
{
    int64_t v = 0;
    for (; *at < n && s[*at] >= '0' && s[*at] <= '9'; ++*at)
        if (v < 1000000000) v = v * 10 + (s[*at] - '0');
    return v;
}

static void read_spec(const char *s, size_t n, size_t *at, spec *k)
{
    for (; *at < n && s[*at] && strchr("-+ 0#", s[*at]); ++*at) {
        if (s[*at] == '-') k->left = true;
        if (s[*at] == '+') k->plus = true;
        if (s[*at] == ' ') k->space = true;
        if (s[*at] == '0') k->zero = true;
        if (s[*at] == '#') k->alt = true;
    }
    k->width = read_number(s, n, at);
    if (*at < n && s[*at] == '.') {
        ++*at;
        k->precision = read_number(s, n, at);
    }
}

jv nb_j_percent(jx *x, jv format, jv values)
{
    const char *s = format.u.s;
    nb_buf out = {0};
    size_t n = format.n, next = 0, have = values.type == J_TUPLE ? values.n : 1;
    const jv *v = values.type == J_TUPLE ? values.u.v : &values;
    bool named = false;
    for (size_t i = 0; i < n && nb_j_charge(x, 1);) {
        const char *sign = memchr(s + i, '%', n - i);
        size_t end = sign ? (size_t)(sign - s) : n;
        nb_j_emit(x, &out, s + i, end - i);
        if ((i = end) >= n) break;
        if (++i < n && s[i] == '%') {
            nb_j_emits(x, &out, "%");
            i++;
            continue;
        }
        spec k = {.precision = -1};
        jv value = {0};
        if (i < n && s[i] == '(' && values.type == J_DICT) {
            const char *close = memchr(s + i, ')', n - i);
            const jv *found =
                close ? nb_j_dict_get(x, values.u.dict, nb_j_str(s + i + 1, (size_t)(close - s) - i - 1))
                      : NULL;
            if (!found) {
                J_ERROR(x, "a format asks for a key that is not there");
                break;
            }
            value = *found;
            named = true;
            i = (size_t)(close - s) + 1;
        }
        read_spec(s, n, &i, &k);
        if (i >= n || !s[i] || !strchr("sdiurxXofFeEgG", s[i])) {
            J_ERROR(x, i >= n ? "incomplete format" : "unsupported format character '%c'",
                    i < n ? s[i] : ' ');
            break;
        }
        if (value.type == J_MISSING) {
            if (next == have) {
                J_ERROR(x, "not enough arguments for format string");
                break;
            }
            value = v[next++];
        }
        convert(x, &out, &k, s[i++], value);
    }
    /* What can be subscripted need not be used. */
    bool spare = values.type == J_DICT || values.type == J_LIST || values.type == J_UNDEFINED;
    bool all = named || next == have || spare;
    if (!all) J_ERROR(x, "not all arguments converted during string formatting");
    return nb_j_take(x, &out);
}

/* The value that a field of str.format() names: "", "1", "name", and members of it after dots. *next counts the empty ones. */
static jv field_value(jx *x, jv field, const jcall *c, size_t *next, bool *numbered)
{
    jv value = {0};
    size_t name = 0, digits = 0;
    while (name < field.n && field.u.s[name] != '.') name++;
    if (memchr(field.u.s, '[', field.n) || memchr(field.u.s, ':', field.n) || memchr(field.u.s, '!', field.n))
        return nb_j_raise(x, NB_ERR_UNSUPPORTED, "str.format with '%.*s'", (int)(field.n < 40 ? field.n : 40),
                          field.u.s);
    int64_t at = name ? read_number(field.u.s, name, &digits) : (int64_t)(*next)++;
    if (name && digits == name) *numbered = true;
    if (*numbered && *next) return J_ERROR(x, "a format numbers its fields by hand and by itself");
    if (digits == name && at < (int64_t)c->n) value = c->args[at];
    for (size_t k = 0; k < c->n_named && digits < name; k++)
        if (c->names[k].n == name && memcmp(c->names[k].u.s, field.u.s, name) == 0) value = c->values[k];
    if (value.type == J_MISSING) return J_ERROR(x, "a format asks for an argument that is not there");
    if (name == field.n) return value;
    return nb_j_path(x, value, nb_j_str(field.u.s + name + 1, field.n - name - 1));
}

jv nb_j_format(jx *x, jv format, const jcall *c)
{
    const char *s = format.u.s;
    size_t n = format.n, next = 0;
    bool numbered = false;
    nb_buf out = {0};
    for (size_t i = 0; i < n && nb_j_charge(x, 1);) {
        size_t end = i;
        while (end < n && s[end] != '{' && s[end] != '}') end++;
        nb_j_emit(x, &out, s + i, end - i);
        if (end == n) break;
        if (end + 1 < n && s[end + 1] == s[end]) {
            nb_j_emit(x, &out, s + end, 1);
            i = end + 2;
            continue;
        }
        const char *close = s[end] == '{' ? memchr(s + end, '}', n - end) : NULL;
        if (!close) {
            J_ERROR(x, "Single '%c' encountered in format string", s[end]);
            break;
        }
        jv field = nb_j_str(s + end + 1, (size_t)(close - s) - end - 1);
        nb_j_write(x, &out, field_value(x, field, c, &next, &numbered));
        i = (size_t)(close - s) + 1;
    }
    return nb_j_take(x, &out);
}
