/*
 * One JSON object that arrives byte by byte, checked as it comes (RFC 8259; strings are taken to be UTF-8), with word of where its own
 * members begin and end: for an object whose values are passed on before it is complete. What is there as a whole is read with
 * base/json.h.
 */
#ifndef NB_TEXT_JSON_PUSH_H
#define NB_TEXT_JSON_PUSH_H

#include <stdbool.h>

#define NB_JSON_PUSH_DEPTH 64

/* What a byte did to the outermost object; several can hold. */
enum {
    NB_PUSH_KEY_BEGIN = 1,   /* it is the first of a key, its quote */
    NB_PUSH_KEY_END = 2,     /* it is the last of a key, its quote */
    NB_PUSH_VALUE_BEGIN = 4, /* it is the first of a value */
    NB_PUSH_VALUE_END = 8,   /* it is the last of a value */
    NB_PUSH_VALUE_OVER = 16, /* a value (a number) ended before it */
    NB_PUSH_OBJECT_END = 32, /* it is the last of the object; nothing may be pushed after it */
};

/* Zero-initialise. */
typedef struct nb_json_push {
    int state;
    unsigned depth, hex; /* hex: digits of \u that are still to come */
    bool key;            /* the string in work is a key */
    const char *literal; /* what must come of true, false or null */
    char stack[NB_JSON_PUSH_DEPTH];
} nb_json_push;

/* The next byte. Returns a set of the above, or -1: the text is no JSON object, or deeper than NB_JSON_PUSH_DEPTH. */
int nb_json_push_byte(nb_json_push *p, char c);

#endif
