#include "base/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

bool nb_buf_reserve(nb_buf *b, size_t n)
{
    if (b->bad) return false;
    if (n >= SIZE_MAX / 2 - b->len) {
        b->bad = true;
        return false;
    }
    size_t need = b->len + n + 1;
    if (need <= b->cap) return true;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need) cap *= 2;
    char *p = realloc(b->data, cap);
    if (!p) {
        b->bad = true;
        return false;
    }
    b->data = p;
    b->cap = cap;
    return true;
}

void nb_buf_add(nb_buf *b, const void *bytes, size_t n)
{
    if (!n || !nb_buf_reserve(b, n)) return;
    memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = '\0';
}

void nb_buf_adds(nb_buf *b, const char *s)
{
    nb_buf_add(b, s, strlen(s));
}

void nb_buf_addc(nb_buf *b, char c)
{
    nb_buf_add(b, &c, 1);
}

void nb_buf_addf(nb_buf *b, const char *fmt, ...)
{
    va_list ap, ap2;
    va_start(ap, fmt);
    va_copy(ap2, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n > 0 && nb_buf_reserve(b, (size_t)n)) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap2);
        b->len += (size_t)n;
    }
    va_end(ap2);
}

void nb_buf_add_json(nb_buf *b, const char *s, size_t n)
{
    nb_buf_addc(b, '"');
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\') {
            nb_buf_addc(b, '\\');
            nb_buf_addc(b, (char)c);
            i++;
        } else if (c < 0x20) {
            if (c == '\n')
                nb_buf_adds(b, "\\n");
            else if (c == '\r')
                nb_buf_adds(b, "\\r");
            else if (c == '\t')
                nb_buf_adds(b, "\\t");
            else
                nb_buf_addf(b, "\\u%04x", c);
            i++;
        } else {
            uint32_t cp;
            size_t w = nb_utf8_decode(s + i, n - i, &cp);
            if (w)
                nb_buf_add(b, s + i, w);
            else
                nb_buf_adds(b, "\xEF\xBF\xBD");
            i += w ? w : 1;
        }
    }
    nb_buf_addc(b, '"');
}

const char *nb_buf_str(nb_buf *b)
{
    return b->data && b->len ? b->data : "";
}

void nb_buf_clear(nb_buf *b)
{
    b->len = 0;
    if (b->data) b->data[0] = '\0';
}

void nb_buf_free(nb_buf *b)
{
    free(b->data);
    *b = (nb_buf){0};
}
