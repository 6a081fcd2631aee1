/* JSON text and Python's spelling of values (api_json.h). */
#include "server/api_json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/utf8.h"

/* Digits and exponent of the shortest text that reads back as v: 15 digits hold every shorter one (behind zeros), 17 are always
 * enough. Only digits and exponent are taken from printf's text: the host program's locale may have put a comma. */
static int digits_of(double v, char digit[18], int *exponent)
{
    char text[40];
    int n = 0;
    for (int p = 14; p < 17; p++) {
        snprintf(text, sizeof text, "%.*e", p, v);
        if (strtod(text, NULL) == v) break;
    }
    for (const char *c = text; *c; c++) {
        if (*c >= '0' && *c <= '9' && n < 17) digit[n++] = *c;
        if (*c == 'e') {
            *exponent = (int)strtol(c + 1, NULL, 10);
            break;
        }
    }
    while (n > 1 && digit[n - 1] == '0') n--;
    return n;
}

void nb_out_repr(nb_buf *out, double v)
{
    char digit[18] = "0", text[48];
    int exponent = 0;
    size_t at = 0;
    if (!isfinite(v)) {
        nb_buf_adds(out, isnan(v) ? "nan" : v < 0 ? "-inf" : "inf");
        return;
    }
    int n = digits_of(v, digit, &exponent);
    if (signbit(v)) text[at++] = '-';
    if (exponent < -4 || exponent >= 16) {
        text[at++] = digit[0];
        if (n > 1) text[at++] = '.';
        memcpy(text + at, digit + 1, (size_t)n - 1);
        at += (size_t)n - 1;
        nb_buf_add(out, text, at);
        nb_buf_addf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    for (int i = exponent < 0 ? exponent : 0; i < n || i <= exponent + 1; i++) { /* from the first digit */
        if (i == exponent + 1) text[at++] = '.';
        text[at++] = (char)(i < 0 || i >= n ? '0' : digit[i]);
    }
    nb_buf_add(out, text, at);
}

void nb_out_logprob(nb_buf *out, float v)
{
    nb_out_repr(out, v >= -9999.0F && v < INFINITY ? (double)v : -9999.0);
}

void nb_out_int(nb_buf *out, int64_t v)
{
    char text[24];
    nb_buf_add(out, text, (size_t)snprintf(text, sizeof text, "%" PRId64, v));
}

void nb_out_inside(nb_buf *out, const char *s, size_t n)
{
    size_t run = 0; /* start of the bytes not yet copied */
    if (!n) return; /* s may be NULL then */
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        uint32_t cp;
        size_t w = c < 0x80 ? 1 : nb_utf8_decode(s + i, n - i, &cp);
        if (w && c >= 0x20 && c != '"' && c != '\\') {
            i += w;
            continue;
        }
        nb_buf_add(out, s + run, i - run);
        if (!w)
            nb_buf_adds(out, "\xEF\xBF\xBD");
        else if (c == '"' || c == '\\')
            nb_buf_addf(out, "\\%c", c);
        else if (c == '\n')
            nb_buf_adds(out, "\\n");
        else
            nb_buf_addf(out, "\\u%04x", c);
        run = ++i;
    }
    nb_buf_add(out, s + run, n - run);
}

void nb_out_string(nb_buf *out, const char *s)
{
    if (s)
        nb_buf_add_json(out, s, strlen(s));
    else
        nb_buf_adds(out, "null");
}

/* str.__repr__: single quotes, unless the text has those and no double ones. */
static void python_string(nb_buf *out, const char *s, size_t n, size_t limit)
{
    bool cut = n > limit;
    if (cut)
        for (n = limit; n && ((unsigned char)s[n] & 0xC0) == 0x80;) n--;
    char quote = memchr(s, '\'', n) && !memchr(s, '"', n) ? '"' : '\'';
    nb_buf_addc(out, quote);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == (unsigned char)quote || c == '\\')
            nb_buf_addf(out, "\\%c", c);
        else if (c == '\n' || c == '\r' || c == '\t')
            nb_buf_addf(out, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (c < 0x20 || c == 0x7F)
            nb_buf_addf(out, "\\x%02x", c);
        else
            nb_buf_addc(out, (char)c);
    }
    nb_buf_adds(out, cut ? "..." : "");
    nb_buf_addc(out, quote);
}

void nb_out_python(nb_buf *out, const json_t *v, size_t limit)
{
    size_t start = out->len, i = 0;
    const char *key;
    json_t *each;
    switch (json_typeof(v)) {
    case JSON_NULL: nb_buf_adds(out, "None"); return;
    case JSON_TRUE: nb_buf_adds(out, "True"); return;
    case JSON_FALSE: nb_buf_adds(out, "False"); return;
    case JSON_INTEGER: nb_out_int(out, json_integer_value(v)); return;
    case JSON_REAL: nb_out_repr(out, json_real_value(v)); return;
    case JSON_STRING: python_string(out, json_string_value(v), json_string_length(v), limit); return;
    case JSON_ARRAY:
        nb_buf_addc(out, '[');
        json_array_foreach(v, i, each)
        {
            size_t used = out->len - start;
            nb_buf_adds(out, i ? ", " : "");
            if (used >= limit || out->bad) {
                nb_buf_adds(out, "...");
                break;
            }
            nb_out_python(out, each, limit - used);
        }
        nb_buf_addc(out, ']');
        return;
    case JSON_OBJECT:
        nb_buf_addc(out, '{');
        json_object_foreach((json_t *)v, key, each)
        {
            size_t used = out->len - start;
            nb_buf_adds(out, i++ ? ", " : "");
            if (used >= limit || out->bad) {
                nb_buf_adds(out, "...");
                break;
            }
            python_string(out, key, strlen(key), limit - used);
            nb_buf_adds(out, ": ");
            nb_out_python(out, each, limit - used);
        }
        nb_buf_addc(out, '}');
        return;
    }
}

bool nb_out_random(nb_buf *out, size_t n)
{
    unsigned char bytes[32];
    if (n > sizeof bytes || getrandom(bytes, n, 0) != (ssize_t)n) return false;
    for (size_t i = 0; i < n; i++) nb_buf_addf(out, "%02x", bytes[i]);
    return true;
}

size_t nb_count_chars(const char *s, size_t n)
{
    size_t chars = 0;
    for (size_t i = 0; i < n; i++) chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    return chars;
}
