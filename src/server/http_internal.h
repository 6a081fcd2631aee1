/* What the files of the transport share: a connection with its exchange, and the steps that lead from one to the other (http.h). */
#ifndef NB_SERVER_HTTP_INTERNAL_H
#define NB_SERVER_HTTP_INTERNAL_H

#include <stdatomic.h>

#include "server/http.h"

struct bufferevent;
struct event;
typedef struct nb_listener nb_listener;

typedef enum nb_http_state {
    NB_HTTP_READ_HEAD,
    NB_HTTP_READ_BODY,
    NB_HTTP_ANSWERING, /* the handler has it */
    NB_HTTP_FLUSHING,  /* the answer is complete, the kernel has not all of it */
    NB_HTTP_LINGERING, /* sent the end; reads and drops what still comes */
} nb_http_state;

struct nb_exchange { /* a connection, with its exchange */
    nb_http *h;
    struct bufferevent *bev;
    nb_exchange *prev, *next;
    nb_http_state state;
    bool dead;               /* to be freed at the next safe point */
    bool eof;                /* the client will send no more */
    bool inside;             /* its read loop runs: do not enter it again */
    bool close;              /* after this answer */
    bool chunked, head_only; /* of the answer */
    /* When the state began; while a head is read: when its first byte came, or the connection idles. */
    double since;
    /* Since when bytes have waited for the client to read, or were last found to go fast enough. */
    double behind;
    size_t taken;   /* by the kernel since then */
    size_t owed;    /* of what waited at the last look, what the kernel has not taken yet */
    size_t scanned; /* bytes of the head searched for its end */
    nb_http_request request;
    nb_http_chunks chunks;
    nb_buf body, headers;
    size_t counted;  /* of body, in h->bodies */
    size_t received; /* of body, when the handler got it */
    uint64_t discarded, sent;
    double arrival;
    int status;
    void *user;
    char peer[64];
};

struct nb_http {
    struct event_base *base;
    nb_http_options opt;
    nb_http_handler handler;
    nb_listener *listener;
    struct event *sweep;
    nb_exchange *first, *last; /* of all connections, the oldest first */
    size_t connections, bodies;
    _Atomic size_t busy;
    bool close_all;
};

/* Enters a state: its clocks begin anew. */
void nb_http_enter(nb_exchange *x, nb_http_state s);
/* The answer is complete: once it is sent, the connection goes on with its next request, or ends. */
void nb_http_flushed(nb_exchange *x);
/* Bytes on their way to the client. Out of memory: x is dead. */
void nb_http_put(nb_exchange *x, const void *bytes, size_t n);
/* A request that cannot be read: an answer without the handler, and the end of the connection. */
void nb_http_refuse(nb_exchange *x, int status, const char *why);

#endif
