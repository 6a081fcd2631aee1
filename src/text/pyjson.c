#include "text/pyjson.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void nb_pyjson_add_string(nb_buf *out, const char *s, size_t n)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    size_t run = 0; /* start of the bytes not yet copied */
    nb_buf_addc(out, '"');
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        const char *known = c ? strchr(from, c) : NULL;
        if (!known && c >= 0x20) continue;
        nb_buf_add(out, s + run, i - run);
        if (known)
            nb_buf_addf(out, "\\%c", to[known - from]);
        else
            nb_buf_addf(out, "\\u%04x", c);
        run = i + 1;
    }
    nb_buf_add(out, s + run, n - run);
    nb_buf_addc(out, '"');
}

/* float.__repr__: the fewest digits that read back as v; positional for exponents -4 … 15. */
void nb_pyjson_add_real(nb_buf *out, double v)
{
    char text[40], digit[20] = "0";
    int n = 0, exponent = 0;
    for (int p = 0; p < 17; p++) {
        snprintf(text, sizeof text, "%.*e", p, v);
        if (strtod(text, NULL) == v) break;
    }
    /* The host program's locale may have put a comma, so only digits and the exponent are taken from it. */
    for (const char *c = text; *c; c++) {
        if (*c >= '0' && *c <= '9') digit[n++] = *c;
        if (*c == 'e') {
            exponent = (int)strtol(c + 1, NULL, 10);
            break;
        }
    }
    if (text[0] == '-') nb_buf_addc(out, '-');
    if (exponent < -4 || exponent >= 16) {
        nb_buf_addc(out, digit[0]);
        if (n > 1) nb_buf_addc(out, '.');
        nb_buf_add(out, digit + 1, (size_t)n - 1);
        nb_buf_addf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    for (int i = exponent < 0 ? exponent : 0; i < n || i <= exponent + 1;
         i++) { /* i counts from the first digit */
        if (i == exponent + 1) nb_buf_addc(out, '.');
        nb_buf_addc(out, i < 0 || i >= n ? '0' : digit[i]);
    }
}

void nb_pyjson_add(nb_buf *out, const json_t *v)
{
    const char *key, *between = "";
    json_t *each;
    size_t i;
    switch (json_typeof(v)) {
    case JSON_NULL: nb_buf_adds(out, "null"); break;
    case JSON_TRUE: nb_buf_adds(out, "true"); break;
    case JSON_FALSE: nb_buf_adds(out, "false"); break;
    case JSON_INTEGER: nb_buf_addf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(v)); break;
    case JSON_REAL: nb_pyjson_add_real(out, json_real_value(v)); break;
    case JSON_STRING: nb_pyjson_add_string(out, json_string_value(v), json_string_length(v)); break;
    case JSON_ARRAY:
        nb_buf_addc(out, '[');
        json_array_foreach(v, i, each)
        {
            nb_buf_adds(out, i ? ", " : "");
            nb_pyjson_add(out, each);
        }
        nb_buf_addc(out, ']');
        break;
    case JSON_OBJECT:
        nb_buf_addc(out, '{');
        json_object_foreach((json_t *)v, key, each)
        {
            nb_buf_adds(out, between);
            nb_pyjson_add_string(out, key, strlen(key));
            nb_buf_adds(out, ": ");
            nb_pyjson_add(out, each);
            between = ", ";
        }
        nb_buf_addc(out, '}');
        break;
    }
}
