/*
 * A pull parser for the two JSON files that can be tens of megabytes (tokenizer.json and a safetensors header):
 * no tree, no allocation but one string buffer, strict (RFC 8259, UTF-8, no duplicate handling: the caller sees
 * every key). Small files and requests become a jansson tree (json_tree.h).
 *
 *     nb_json j; nb_json_init(&j, text, n);
 *     if (nb_json_next(&j) != NB_J_OBJECT) ...
 *     while (nb_json_next(&j) == NB_J_KEY) { ...j.str, j.len...; nb_json_skip(&j) or nb_json_next(&j) ... }
 *
 * After NB_J_OBJECT come NB_J_KEY, value, NB_J_KEY, value … NB_J_END; after NB_J_ARRAY values … NB_J_END.
 * NB_J_ERROR is final; j.error says why and j.pos where.
 */
#ifndef NB_BASE_JSON_H
#define NB_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

typedef enum nb_json_event {
    NB_J_ERROR = 0,
    NB_J_OBJECT,
    NB_J_ARRAY,
    NB_J_END,    /* of the innermost object or array */
    NB_J_KEY,    /* str, len */
    NB_J_STRING, /* str, len: unescaped UTF-8, may hold NUL */
    NB_J_NUMBER, /* str, len: the number as written; nb_json_u64 / nb_json_f64 read it */
    NB_J_TRUE,
    NB_J_FALSE,
    NB_J_NULL,
    NB_J_EOF, /* after the one top-level value and trailing white space */
} nb_json_event;

#define NB_JSON_MAX_DEPTH 64

typedef struct nb_json {
    const char *text;
    size_t n, pos;   /* pos: byte offset of the event just returned, then of the error */
    const char *str; /* valid until the next call */
    size_t len;
    const char *error; /* static text, NULL when fine */
    int depth;
    /* private */
    size_t at;
    unsigned char stack[NB_JSON_MAX_DEPTH]; /* '{' or '[' */
    unsigned char state;
    nb_buf scratch;
} nb_json;

/* text is borrowed and need not be NUL-terminated. nb_json_free releases the string buffer. */
void nb_json_init(nb_json *j, const char *text, size_t n);
void nb_json_free(nb_json *j);
nb_json_event nb_json_next(nb_json *j);
/* Skips the value that comes next (whole objects and arrays). False on error; so is a next event that is no value. */
bool nb_json_skip(nb_json *j);
/* After NB_J_ERROR: true when memory ran out, false when the text is at fault. */
static inline bool nb_json_nomem(const nb_json *j)
{
    return j->scratch.bad;
}
/* The number just returned as an exact unsigned integer (false: negative, fraction, exponent or too large). */
bool nb_json_u64(const nb_json *j, uint64_t *out);
/* The same with a sign. */
bool nb_json_i64(const nb_json *j, int64_t *out);
/* The number just returned, nearest. False when it overflows, or has more than 511 characters. */
bool nb_json_f64(const nb_json *j, double *out);

#endif
