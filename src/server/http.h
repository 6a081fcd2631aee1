/*
 * The transport: connections and what goes over them, on one event loop. It only moves bytes; what a request means is the
 * handler's (server.c). Everything here runs on the thread of the event_base.
 *
 * A connection carries one exchange at a time: a request that has come whole, then its answer. It is bounded in every direction:
 * size of heads and bodies, time that a slow client may take to send or to read, bytes that wait to be sent, number of
 * connections, bytes of bodies in all. A client that closes its side, even half of it, is gone: its exchange ends at once.
 */
#ifndef NB_SERVER_HTTP_H
#define NB_SERVER_HTTP_H

#include "base/error.h"
#include "server/http_answer.h"
#include "server/http_parse.h"

struct event_base;

typedef struct nb_http nb_http;
typedef struct nb_exchange nb_exchange;

typedef struct nb_http_options {
    size_t max_connections; /* one more takes the place of the one that idles longest, or gets 503 */
    size_t max_body;        /* bytes of one request's body */
    size_t max_bodies;      /* bytes of all bodies that are held at once */
    double idle_seconds;    /* a connection without a request under way is closed after this */
    double slow_seconds;    /* for a head to come; for a body or a reader to be slower than slow_rate */
    double slow_rate;       /* bytes a second, > 0 */
    const char *server;     /* the Server header */
} nb_http_options;

typedef struct nb_http_handler {
    /* A request has come whole. Answer it now, or later through the same x. */
    void (*request)(void *ctx, nb_exchange *x);
    /* The client went away before the answer was complete. x is invalid after this returns. This and done are called only
     * for exchanges that have a user. */
    void (*gone)(void *ctx, nb_exchange *x);
    /* The answer is complete and handed over. x is invalid after this returns. */
    void (*done)(void *ctx, nb_exchange *x);
    void *ctx;
} nb_http_handler;

/* base is borrowed, options' string too. */
nb_status nb_http_new(struct event_base *base, const nb_http_options *opt, const nb_http_handler *handler,
                      nb_http **out, nb_error *err);
/* Closes every connection without a word; gone is called for exchanges that are under way. */
void nb_http_free(nb_http *h);

/* Listens as http_listen.h says: nb_listener_open, nb_listener_open_unix. Once for each nb_http. nb_http_port tells the port. */
nb_status nb_http_listen(nb_http *h, const char *host, uint16_t port, nb_error *err);
nb_status nb_http_listen_unix(nb_http *h, const char *path, nb_error *err);
uint16_t nb_http_port(const nb_http *h);

/* Exchanges whose answer is not complete or not yet taken by the kernel. Any thread. */
size_t nb_http_busy(const nb_http *h);
/* From now on each answer closes its connection. */
void nb_http_close_after_answers(nb_http *h);

const nb_http_request *nb_exchange_request(const nb_exchange *x);
/* Gives the body to the handler, with its place among max_bodies: returns the bytes to tell nb_http_body_freed, whether or not
 * the exchange is still there then. */
size_t nb_exchange_take_body(nb_exchange *x, nb_buf *to);
void nb_http_body_freed(nb_http *h, size_t counted);
const char *nb_exchange_peer(const nb_exchange *x); /* "127.0.0.1:4711" */
double nb_exchange_arrival(const nb_exchange *x);   /* CLOCK_MONOTONIC seconds when the request was whole */
int nb_exchange_status(const nb_exchange *x);       /* of the answer, once it began */
size_t nb_exchange_received(const nb_exchange *x);  /* bytes of the request's body */
uint64_t nb_exchange_sent(const nb_exchange *x);    /* bytes of the answer's body so far */
void nb_exchange_set_user(nb_exchange *x, void *user);
void *nb_exchange_user(const nb_exchange *x);

/* Adds a header to the answer, before it begins. Values with control characters are dropped: they would be headers of their own. */
void nb_exchange_header(nb_exchange *x, const char *name, const char *value);
/* A whole answer. type may be NULL when n is 0. To HEAD the body is not sent, but its length is. */
void nb_exchange_send(nb_exchange *x, int status, const char *type, const void *body, size_t n);
/* An answer in pieces: begin, write …, end. */
void nb_exchange_begin(nb_exchange *x, int status, const char *type);
void nb_exchange_write(nb_exchange *x, const void *bytes, size_t n);
void nb_exchange_end(nb_exchange *x);
/* Breaks the connection off in the middle of the answer; neither gone nor done is called. x is invalid after this returns. */
void nb_exchange_abort(nb_exchange *x);
/* Bytes that wait for the client to read. */
size_t nb_exchange_pending(const nb_exchange *x);

#endif
