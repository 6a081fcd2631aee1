/*
 * HTTP/1.1 requests as bytes: the head of a request, and the decoder of chunked bodies. Pure functions, strict after RFC 9112,
 * because what a proxy and a server read differently is how requests are smuggled. libevent's own evhttp is not used above the
 * sockets: it answers bad requests in HTML, cannot bound the time of a body that comes a byte a second, and hides connections
 * until their first request is whole.
 */
#ifndef NB_SERVER_HTTP_PARSE_H
#define NB_SERVER_HTTP_PARSE_H

#include <stdint.h>

#include "base/buf.h"

#define NB_HTTP_MAX_HEADERS 256
#define NB_HTTP_MAX_TARGET ((size_t)16 << 10)
#define NB_HTTP_MAX_HEAD ((size_t)64 << 10)

typedef struct nb_http_field {
    const char *name; /* lower case */
    const char *value;
} nb_http_field;

typedef struct nb_http_request {
    const char *method; /* as sent: methods are case-sensitive */
    const char *path;   /* percent-decoded, begins with '/'; or "*" */
    const char *query;  /* as sent, "" when there is none */
    nb_http_field field[NB_HTTP_MAX_HEADERS];
    size_t n_fields;
    int minor;           /* of HTTP/1.x */
    bool keep_alive;     /* the client would send more requests on this connection */
    bool chunked;        /* the body comes in chunks; else it has length bytes */
    bool wants_continue; /* it waits for 100 Continue before it sends the body */
    uint64_t length;
    char *head; /* what the strings point into */
} nb_http_request;

/* Why a request is refused: the status of the answer and a sentence (static storage). */
typedef struct nb_http_refusal {
    int status;
    const char *why;
} nb_http_refusal;

/* Parses a head: n bytes that end with the empty line. False: *no says why. Free with nb_http_request_free either way. */
bool nb_http_parse_head(const char *bytes, size_t n, nb_http_request *out, nb_http_refusal *no);
void nb_http_request_free(nb_http_request *r);
/* The value of a header (name in lower case), the first of several; NULL: not sent. */
const char *nb_http_field_of(const nb_http_request *r, const char *name);

/* A chunked body on its way in. Zero-initialise. */
typedef struct nb_http_chunks {
    int state;
    uint64_t left; /* bytes of the chunk still to come */
    size_t line;   /* bytes of the size line or the trailers so far */
} nb_http_chunks;

typedef enum nb_http_more { NB_HTTP_MORE, NB_HTTP_DONE, NB_HTTP_REFUSED } nb_http_more;
/* Takes bytes of a chunked body; *used of the n are consumed (all of them unless it is done). Data is appended to body, at most
 * limit bytes in all. */
nb_http_more nb_http_chunks_feed(nb_http_chunks *c, const char *bytes, size_t n, size_t limit, size_t *used,
                                 nb_buf *body, nb_http_refusal *no);

#endif
