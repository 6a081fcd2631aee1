/* Types of request fields (params_types.h). The messages were compared with pydantic 2.14 (tests/unit/server/test_api_fields.c). */
#include "server/params_types.h"

#include <ctype.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A number's text as Python's int and float read it, without white space and underscores. False: it is none. */
static bool number_text(const char *s, size_t n, char out[64])
{
    size_t k = 0;
    while (n && isspace((unsigned char)s[n - 1])) n--;
    while (n && isspace((unsigned char)*s)) s++, n--;
    if (!n || n > 62) return false;
    for (size_t i = 0; i < n; i++) {
        bool between = i && i + 1 < n && isdigit((unsigned char)s[i - 1]) && isdigit((unsigned char)s[i + 1]);
        if (s[i] == '_' && between) continue;
        if (!s[i] || s[i] == 'x' || s[i] == 'X') return false; /* no hexadecimal */
        if (!isalnum((unsigned char)s[i]) && !strchr("+-.", s[i])) return false;
        out[k++] = s[i];
    }
    out[k] = '\0';
    return true;
}

/* strtod reads by the host program's locale: its decimal point takes the place of ours. */
static bool read_real(const char *text, double *out)
{
    char copy[80], *end;
    const char *dot = strchr(text, '.');
    if (dot)
        snprintf(copy, sizeof copy, "%.*s%s%s", (int)(dot - text), text, localeconv()->decimal_point,
                 dot + 1);
    else
        snprintf(copy, sizeof copy, "%s", text);
    *out = strtod(copy, &end);
    return end != copy && *end == '\0';
}

bool nb_text_int(const char *s, size_t n, int64_t *out)
{
    char text[64], *end;
    if (!number_text(s, n, text)) return false;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return end != text && !*end && !errno;
}

static void out_of_range(nb_field_errors *f, const char *loc, const json_t *v, bool low, int64_t bound)
{
    char msg[96], ctx[48];
    snprintf(msg, sizeof msg, "Input should be %s than or equal to %lld", low ? "greater" : "less",
             (long long)bound);
    snprintf(ctx, sizeof ctx, "'%s': %lld", low ? "ge" : "le", (long long)bound);
    nb_field_error(f, loc, low ? "greater_than_equal" : "less_than_equal", msg, v, ctx);
}

static bool any_int(nb_field_errors *f, const char *loc, const json_t *v, int64_t *out)
{
    double real;
    switch (json_typeof(v)) {
    case JSON_TRUE:
    case JSON_FALSE: *out = json_is_true(v); return true;
    case JSON_INTEGER: *out = json_integer_value(v); return true;
    case JSON_REAL:
        real = json_real_value(v);
        if (real != floor(real)) {
            nb_field_error(f, loc, "int_from_float",
                           "Input should be a valid integer, got a number with a fractional part", v, NULL);
            return false;
        }
        /* -2^63 itself fits an integer: as a real it is what lies below, rounded. */
        if (!(real > -9223372036854775808.0 && real < 9223372036854775808.0)) {
            out_of_range(f, loc, v, real < 0, real < 0 ? INT64_MIN : INT64_MAX);
            return false;
        }
        *out = (int64_t)real;
        return true;
    case JSON_STRING: {
        const char *s = json_string_value(v);
        size_t n = json_string_length(v), whole = strcspn(s, ".");
        if (whole < n && strspn(s + whole + 1, "0") == n - whole - 1) n = whole; /* "5.0" is 5 */
        if (nb_text_int(s, n, out)) return true;
        nb_field_error(f, loc, "int_parsing",
                       "Input should be a valid integer, unable to parse string as an integer", v, NULL);
        return false;
    }
    default: nb_field_error(f, loc, "int_type", "Input should be a valid integer", v, NULL); return false;
    }
}

bool nb_get_int(nb_field_errors *f, const char *loc, const json_t *v, int64_t min, int64_t max, int64_t *out)
{
    if (!any_int(f, loc, v, out)) return false;
    bool low = *out < min;
    if (!low && *out <= max) return true;
    out_of_range(f, loc, v, low, low ? min : max);
    return false;
}

bool nb_get_real(nb_field_errors *f, const char *loc, const json_t *v, double *out)
{
    char text[64];
    switch (json_typeof(v)) {
    case JSON_TRUE:
    case JSON_FALSE: *out = json_is_true(v); return true;
    case JSON_INTEGER:
    case JSON_REAL: *out = json_number_value(v); return true;
    case JSON_STRING:
        if (number_text(json_string_value(v), json_string_length(v), text) && read_real(text, out))
            return true;
        nb_field_error(f, loc, "float_parsing",
                       "Input should be a valid number, unable to parse string as a number", v, NULL);
        return false;
    default: nb_field_error(f, loc, "float_type", "Input should be a valid number", v, NULL); return false;
    }
}

bool nb_get_bool(nb_field_errors *f, const char *loc, const json_t *v, bool *out)
{
    static const char *const yes[] = {"true", "1", "on", "yes", "t", "y"};
    static const char *const no[] = {"false", "0", "off", "no", "f", "n"};
    const char *s = json_string_value(v);
    bool number = json_is_number(v) && (json_number_value(v) == 0 || json_number_value(v) == 1);
    if (json_is_boolean(v) || number) {
        *out = json_is_true(v) || json_number_value(v) == 1;
        return true;
    }
    for (size_t i = 0; s && i < sizeof yes / sizeof *yes; i++) {
        *out = strcasecmp(s, yes[i]) == 0;
        if (*out || strcasecmp(s, no[i]) == 0) return true;
    }
    if (s || json_is_integer(v))
        nb_field_error(f, loc, "bool_parsing", "Input should be a valid boolean, unable to interpret input",
                       v, NULL);
    else
        nb_field_error(f, loc, "bool_type", "Input should be a valid boolean", v, NULL);
    return false;
}

bool nb_is_text(nb_field_errors *f, const char *loc, const json_t *v)
{
    if (json_is_string(v)) return true;
    nb_field_error(f, loc, "string_type", "Input should be a valid string", v, NULL);
    return false;
}

bool nb_is_object(nb_field_errors *f, const char *loc, const json_t *v)
{
    if (json_is_object(v)) return true;
    nb_field_error(f, loc, "dict_type", "Input should be a valid dictionary", v, NULL);
    return false;
}

bool nb_is_list(nb_field_errors *f, const char *loc, const json_t *v, size_t most)
{
    char msg[96], ctx[96];
    if (!json_is_array(v)) {
        nb_field_error(f, loc, "list_type", "Input should be a valid list", v, NULL);
        return false;
    }
    size_t n = json_array_size(v);
    if (n <= most) return true;
    snprintf(msg, sizeof msg, "List should have at most %zu items after validation, not %zu", most, n);
    snprintf(ctx, sizeof ctx, "'field_type': 'List', 'max_length': %zu, 'actual_length': %zu", most, n);
    nb_field_error(f, loc, "too_long", msg, v, ctx);
    return false;
}

bool nb_is_text_list(nb_field_errors *f, const char *loc, const json_t *v, size_t most)
{
    char each[160];
    bool ok = nb_is_list(f, loc, v, most);
    for (size_t i = 0; ok && i < json_array_size(v); i++) {
        snprintf(each, sizeof each, "%s.%zu", loc, i);
        ok = nb_is_text(f, each, json_array_get(v, i));
    }
    return ok;
}

bool nb_is_choice(nb_field_errors *f, const char *loc, const json_t *v, const char *names)
{
    nb_buf expected = {0}, msg = {0}, ctx = {0};
    const char *s = json_string_value(v);
    for (const char *p = names; *p;) {
        size_t n = strcspn(p, " ");
        bool last = !p[n];
        if (s && json_string_length(v) == n && memcmp(s, p, n) == 0) {
            nb_buf_free(&expected);
            return true;
        }
        nb_buf_adds(&expected, p == names ? "'" : last ? " or '" : ", '");
        nb_buf_add(&expected, p, n);
        nb_buf_addc(&expected, '\'');
        p += last ? n : n + 1;
    }
    nb_buf_addf(&msg, "Input should be %s", nb_buf_str(&expected));
    nb_buf_addf(&ctx, "'expected': \"%s\"", nb_buf_str(&expected));
    nb_field_error(f, loc, "literal_error", nb_buf_str(&msg), v, nb_buf_str(&ctx));
    nb_buf_free(&expected);
    nb_buf_free(&msg);
    nb_buf_free(&ctx);
    return false;
}
