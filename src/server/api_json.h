/* Writing JSON without a tree: an answer's frames are appended token by token, so nothing is allocated for them but the buffer. */
#ifndef NB_SERVER_API_JSON_H
#define NB_SERVER_API_JSON_H

#include <jansson.h>
#include <stdint.h>

#include "base/buf.h"

/* float.__repr__: the fewest digits that read back as v; "nan", "inf" and "-inf" as Python writes them (which is no JSON). */
void nb_out_repr(nb_buf *out, double v);
/* A number of a log-probability: as nb_out_repr; -inf is -9999.0 as in vLLM, and so is what is no number. */
void nb_out_logprob(nb_buf *out, float v);
void nb_out_int(nb_buf *out, int64_t v);
/* s (n bytes of UTF-8; bad bytes become U+FFFD) as the inside of a JSON string: nb_buf_add_json without the quotes, so that a string
 * may be written in pieces, each of whole characters. */
void nb_out_inside(nb_buf *out, const char *s, size_t n);
/* The same for a NUL-terminated string, with quotes; NULL is null. */
void nb_out_string(nb_buf *out, const char *s);

/* Python's repr of a JSON value (None, True, 'text', …), for messages that quote what a client sent. At most about `limit` bytes:
 * what is longer ends in "...". */
void nb_out_python(nb_buf *out, const json_t *v, size_t limit);

/* Appends n random bytes in hexadecimal. False: the system has none. */
bool nb_out_random(nb_buf *out, size_t n);

/* How many characters the n bytes begin: bytes that are no UTF-8 continuation. */
size_t nb_count_chars(const char *s, size_t n);

#endif
