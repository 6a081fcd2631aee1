/* UTF-8, strict: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef NB_BASE_UTF8_H
#define NB_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Decodes the character at s (n bytes available). Returns its length 1..4 and stores the code point, or 0 when
 * the bytes are not a whole valid character. */
static inline size_t nb_utf8_decode(const char *s, size_t n, uint32_t *cp)
{
    const unsigned char *p = (const unsigned char *)s;
    if (n == 0) return 0;
    if (p[0] < 0x80) return *cp = p[0], 1;
    size_t w = p[0] >= 0xF0 ? 4 : p[0] >= 0xE0 ? 3 : 2;
    if (p[0] < 0xC2 || p[0] > 0xF4 || n < w) return 0;
    uint32_t c = p[0] & (0xFFu >> (w + 1));
    for (size_t i = 1; i < w; i++) {
        if ((p[i] & 0xC0) != 0x80) return 0;
        c = c << 6 | (p[i] & 0x3F);
    }
    if ((w == 3 && (c < 0x800 || (c >= 0xD800 && c < 0xE000))) || (w == 4 && (c < 0x10000 || c > 0x10FFFF)))
        return 0;
    *cp = c;
    return w;
}

/* Writes cp (a valid scalar value) to out; returns its length 1..4. */
static inline size_t nb_utf8_encode(uint32_t cp, char out[4])
{
    unsigned char *p = (unsigned char *)out;
    if (cp < 0x80) return p[0] = (unsigned char)cp, 1;
    if (cp < 0x800) {
        p[0] = (unsigned char)(0xC0 | cp >> 6);
        p[1] = (unsigned char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        p[0] = (unsigned char)(0xE0 | cp >> 12);
        p[1] = (unsigned char)(0x80 | (cp >> 6 & 0x3F));
        p[2] = (unsigned char)(0x80 | (cp & 0x3F));
        return 3;
    }
    p[0] = (unsigned char)(0xF0 | cp >> 18);
    p[1] = (unsigned char)(0x80 | (cp >> 12 & 0x3F));
    p[2] = (unsigned char)(0x80 | (cp >> 6 & 0x3F));
    p[3] = (unsigned char)(0x80 | (cp & 0x3F));
    return 4;
}

#endif
