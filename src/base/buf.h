/* A growable byte buffer. One failed allocation makes it "bad" and later appends do nothing, so that a caller
 * may append many times and test nb_buf_ok() once. Zero-initialise it (`nb_buf b = {0};`), nb_buf_free() it. */
#ifndef NB_BASE_BUF_H
#define NB_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

typedef struct nb_buf {
    char *data; /* NUL-terminated when len > 0 or after nb_buf_str */
    size_t len, cap;
    bool bad;
} nb_buf;

/* Makes room for n more bytes (and a NUL). False when out of memory; the content stays as it was. */
bool nb_buf_reserve(nb_buf *b, size_t n);
void nb_buf_add(nb_buf *b, const void *bytes, size_t n);
void nb_buf_adds(nb_buf *b, const char *s);
void nb_buf_addc(nb_buf *b, char c);
void nb_buf_addf(nb_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Appends s (n bytes of UTF-8; bad bytes become U+FFFD) as a JSON string, quotes included. */
void nb_buf_add_json(nb_buf *b, const char *s, size_t n);
static inline bool nb_buf_ok(const nb_buf *b)
{
    return !b->bad;
}
/* The content as a C string ("" when empty); owned by the buffer. */
const char *nb_buf_str(nb_buf *b);
/* Empties it, keeping the memory. */
void nb_buf_clear(nb_buf *b);
void nb_buf_free(nb_buf *b);

#endif
