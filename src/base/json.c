/* The pull parser: a small state machine over the text. Its stack holds one byte per open object or array, so a
 * depth bomb costs nothing; strings without escapes are handed out where they lie in the text. */
#include "base/json.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

enum state {
    AT_VALUE,       /* a value must come */
    AT_FIRST_VALUE, /* after '[': a value or ']' */
    AT_FIRST_KEY,   /* after '{': a key or '}' */
    AT_KEY,         /* after ',' in an object: a key */
    AT_COLON,       /* after a key */
    AT_COMMA,       /* after a member: ',' or the closing bracket */
    AT_END,         /* after the top-level value */
    AT_ERROR,
};

void nb_json_init(nb_json *j, const char *text, size_t n)
{
    *j = (nb_json){.text = text, .n = n, .state = AT_VALUE};
}

void nb_json_free(nb_json *j)
{
    nb_buf_free(&j->scratch);
}

static nb_json_event fail(nb_json *j, const char *why, size_t pos)
{
    j->error = why;
    j->pos = pos;
    j->state = AT_ERROR;
    return NB_J_ERROR;
}

static void skip_space(nb_json *j)
{
    while (j->at < j->n) {
        char c = j->text[j->at];
        if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
        j->at++;
    }
}

/* The state after a whole value, or after a closed object or array. */
static void value_done(nb_json *j)
{
    j->state = j->depth ? AT_COMMA : AT_END;
}

/* Four hexadecimal digits at byte `at`; false when there are not four. */
static bool hex4(const nb_json *j, size_t at, uint32_t *out)
{
    if (j->n - at < 4) return false;
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        char c = j->text[at + (size_t)i];
        uint32_t d;
        if (c >= '0' && c <= '9')
            d = (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            d = (uint32_t)(c - 'a' + 10);
        else if (c >= 'A' && c <= 'F')
            d = (uint32_t)(c - 'A' + 10);
        else
            return false;
        v = v << 4 | d;
    }
    *out = v;
    return true;
}

/* The escape whose backslash is at j->at: appends its character to scratch and moves past it. NULL, or why not. */
static const char *unescape(nb_json *j)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    size_t at = j->at + 1;
    if (at >= j->n) return "string does not end";
    char c = j->text[at++];
    if (c != 'u') {
        const char *p = c ? strchr(from, c) : NULL;
        if (!p) return "unknown escape";
        nb_buf_addc(&j->scratch, to[p - from]);
        j->at = at;
        return NULL;
    }
    uint32_t cp, low;
    if (!hex4(j, at, &cp)) return "\\u needs four hexadecimal digits";
    at += 4;
    if (cp >= 0xDC00 && cp < 0xE000) return "lone surrogate";
    if (cp >= 0xD800 && cp < 0xDC00) {
        if (j->n - at < 6 || j->text[at] != '\\' || j->text[at + 1] != 'u') return "lone surrogate";
        if (!hex4(j, at + 2, &low)) return "\\u needs four hexadecimal digits";
        if (low < 0xDC00 || low >= 0xE000) return "lone surrogate";
        cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
        at += 6;
    }
    char utf8[4];
    nb_buf_add(&j->scratch, utf8, nb_utf8_encode(cp, utf8));
    j->at = at;
    return NULL;
}

/* The string whose opening quote is at j->at. */
static nb_json_event string(nb_json *j, nb_json_event event)
{
    size_t run = ++j->at; /* start of the bytes not yet copied to scratch */
    bool copied = false;
    nb_buf_clear(&j->scratch);
    for (;;) {
        if (j->at >= j->n) return fail(j, "string does not end", j->at);
        unsigned char c = (unsigned char)j->text[j->at];
        if (c == '"') break;
        if (c < 0x20) return fail(j, "control character in a string", j->at);
        if (c == '\\') {
            copied = true;
            nb_buf_add(&j->scratch, j->text + run, j->at - run);
            const char *why = unescape(j);
            if (why) return fail(j, why, j->at);
            run = j->at;
        } else if (c < 0x80) {
            j->at++;
        } else {
            uint32_t cp;
            size_t w = nb_utf8_decode(j->text + j->at, j->n - j->at, &cp);
            if (!w) return fail(j, "bytes that are not UTF-8", j->at);
            j->at += w;
        }
    }
    if (copied) {
        nb_buf_add(&j->scratch, j->text + run, j->at - run);
        if (!nb_buf_ok(&j->scratch)) return fail(j, "no memory for a string", j->pos);
        j->str = nb_buf_str(&j->scratch);
        j->len = j->scratch.len;
    } else {
        j->str = j->text + run;
        j->len = j->at - run;
    }
    j->at++;
    return event;
}

static size_t digits(nb_json *j)
{
    size_t from = j->at;
    while (j->at < j->n && j->text[j->at] >= '0' && j->text[j->at] <= '9') j->at++;
    return j->at - from;
}

static nb_json_event number(nb_json *j)
{
    size_t from = j->at;
    if (j->text[j->at] == '-') j->at++;
    if (j->at < j->n && j->text[j->at] == '0')
        j->at++;
    else if (!digits(j))
        return fail(j, "expected a digit", j->at);
    if (j->at < j->n && j->text[j->at] == '.') {
        j->at++;
        if (!digits(j)) return fail(j, "expected a digit", j->at);
    }
    if (j->at < j->n && (j->text[j->at] == 'e' || j->text[j->at] == 'E')) {
        j->at++;
        if (j->at < j->n && (j->text[j->at] == '+' || j->text[j->at] == '-')) j->at++;
        if (!digits(j)) return fail(j, "expected a digit", j->at);
    }
    j->str = j->text + from;
    j->len = j->at - from;
    value_done(j);
    return NB_J_NUMBER;
}

static nb_json_event word(nb_json *j, const char *w, nb_json_event event)
{
    size_t n = strlen(w);
    if (j->n - j->at < n || memcmp(j->text + j->at, w, n) != 0) return fail(j, "expected a value", j->at);
    j->at += n;
    value_done(j);
    return event;
}

static nb_json_event open_bracket(nb_json *j, unsigned char bracket)
{
    if (j->depth == NB_JSON_MAX_DEPTH) return fail(j, "nested more than 64 deep", j->at);
    j->stack[j->depth++] = bracket;
    j->at++;
    j->state = bracket == '{' ? AT_FIRST_KEY : AT_FIRST_VALUE;
    return bracket == '{' ? NB_J_OBJECT : NB_J_ARRAY;
}

static nb_json_event close_bracket(nb_json *j)
{
    j->at++;
    j->depth--;
    value_done(j);
    return NB_J_END;
}

static nb_json_event value(nb_json *j)
{
    nb_json_event e;
    char c = j->text[j->at];
    switch (c) {
    case '{': return open_bracket(j, '{');
    case '[': return open_bracket(j, '[');
    case '"':
        e = string(j, NB_J_STRING);
        if (e != NB_J_ERROR) value_done(j);
        return e;
    case 't': return word(j, "true", NB_J_TRUE);
    case 'f': return word(j, "false", NB_J_FALSE);
    case 'n': return word(j, "null", NB_J_NULL);
    default:
        if (c == '-' || (c >= '0' && c <= '9')) return number(j);
        return fail(j, "expected a value", j->at);
    }
}

static nb_json_event key(nb_json *j)
{
    if (j->text[j->at] != '"') return fail(j, "expected a key in quotes", j->at);
    nb_json_event e = string(j, NB_J_KEY);
    if (e != NB_J_ERROR) j->state = AT_COLON;
    return e;
}

nb_json_event nb_json_next(nb_json *j)
{
    j->str = NULL;
    j->len = 0;
    if (j->state == AT_ERROR) return NB_J_ERROR;
    skip_space(j);
    j->pos = j->at;
    if (j->state == AT_END)
        return j->at == j->n ? NB_J_EOF : fail(j, "text after the end of the value", j->at);
    if (j->at == j->n) return fail(j, "text ends too early", j->at);
    char c = j->text[j->at];

    if (j->state == AT_COLON || j->state == AT_COMMA) {
        bool object = j->stack[j->depth - 1] == '{';
        if (j->state == AT_COMMA && c == (object ? '}' : ']')) return close_bracket(j);
        if (j->state == AT_COLON && c != ':') return fail(j, "expected ':'", j->at);
        if (j->state == AT_COMMA && c != ',')
            return fail(j, object ? "expected ',' or '}'" : "expected ',' or ']'", j->at);
        j->state = j->state == AT_COMMA && object ? AT_KEY : AT_VALUE;
        j->at++;
        skip_space(j);
        j->pos = j->at;
        if (j->at == j->n) return fail(j, "text ends too early", j->at);
        c = j->text[j->at];
    }
    if ((j->state == AT_FIRST_KEY && c == '}') || (j->state == AT_FIRST_VALUE && c == ']'))
        return close_bracket(j);
    return j->state == AT_FIRST_KEY || j->state == AT_KEY ? key(j) : value(j);
}

bool nb_json_skip(nb_json *j)
{
    int depth = j->depth;
    nb_json_event e = nb_json_next(j);
    if (e == NB_J_KEY || e == NB_J_END || e == NB_J_EOF) fail(j, "expected a value", j->pos);
    while (j->state != AT_ERROR && j->depth > depth) nb_json_next(j);
    return j->state != AT_ERROR;
}

/* n decimal digits and nothing else; false when they do not fit. */
static bool decimal(const char *s, size_t n, uint64_t *out)
{
    uint64_t v = 0;
    if (!n) return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        if (__builtin_mul_overflow(v, (uint64_t)10, &v)) return false;
        if (__builtin_add_overflow(v, (uint64_t)(s[i] - '0'), &v)) return false;
    }
    *out = v;
    return true;
}

bool nb_json_u64(const nb_json *j, uint64_t *out)
{
    return decimal(j->str, j->len, out);
}

bool nb_json_i64(const nb_json *j, int64_t *out)
{
    bool negative = j->len && j->str[0] == '-';
    uint64_t v;
    if (!decimal(j->str + negative, j->len - negative, &v) || v > (uint64_t)INT64_MAX + negative)
        return false;
    *out = negative ? (int64_t)(~v + 1) : (int64_t)v;
    return true;
}

bool nb_json_f64(const nb_json *j, double *out)
{
    char text[512];
    if (!j->len || j->len >= sizeof text) return false;
    memcpy(text, j->str, j->len);
    text[j->len] = '\0';
    /* The host program may have set a locale with a decimal comma; glibc's "C" locale object is static. */
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c) return false;
    char *end;
    double v = strtod_l(text, &end, c);
    freelocale(c);
    if (*end || !isfinite(v)) return false;
    *out = v;
    return true;
}
