/* The server's own state, shared by server.c (life and loop), calls.c (what runs on the engine) and answers.c (the rest). */
#ifndef NB_SERVER_SERVER_INTERNAL_H
#define NB_SERVER_SERVER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "server/routes.h"
#include "server/server.h"
#include "server/workers.h"

#define NB_MAX_WORKERS 16

typedef enum nb_serve_state { NB_SERVE_LOADING, NB_SERVE_READY, NB_SERVE_DRAINING } nb_serve_state;

/* One request from head to last byte. The loop owns it, but while a worker has it. */
typedef struct nb_call {
    nb_task task; /* first */
    nb_server *s;
    nb_exchange *x;              /* NULL: the client is gone */
    const nb_route_entry *route; /* NULL: no such path */
    const char *method;          /* static storage */
    char *arg, *request_id, *priority;
    double arrival;
    nb_buf body;
    size_t counted;    /* of body, among the transport's bodies, until the worker has freed it */
    _Atomic bool gone; /* for the worker */
    bool working;      /* a worker or a job has it: it outlives its exchange */
    bool returned;     /* the worker is through with it */
    /* What the worker found. */
    nb_job *job;
    int status; /* of an answer that is complete in out; 0: there is a job */
    nb_buf out;
    /* While its job runs. */
    bool begun;                  /* the stream's headers are sent */
    double last_sent;            /* when the stream last got bytes */
    struct nb_call *prev, *next; /* among those that run; next also while it comes back from the worker */
} nb_call;

struct nb_server {
    nb_server_options opt; /* strings are the server's own */
    char **api_keys, **origins;
    struct event_base *base;
    struct event *wake_event, *tick;
    int wake_fd;
    nb_http *http;
    nb_workers *workers;
    pthread_t loop;
    bool looping;
    _Atomic nb_serve_state state;
    _Atomic bool quit;
    nb_api *api;   /* once READY */
    nb_core *core; /* likewise */
    nb_api_work *work[NB_MAX_WORKERS];
    pthread_mutex_t done_lock; /* workers hand calls back */
    nb_call *done, **done_last;
    nb_call *running;     /* calls with a job */
    size_t queued;        /* calls that wait for a worker or are with one */
    _Atomic size_t calls; /* with a worker or a job, their clients there or not */
    _Atomic size_t load;  /* requests for the engine under way */
    /* Of the throughput line. */
    double told;
    uint64_t told_prompt, told_generated, told_queries, told_hits;
};

/* calls.c: requests that need a worker. Post it; calls come back through nb_calls_returned; nb_calls_poll on each wake and tick. */
void nb_call_post(nb_call *c);
void nb_calls_returned(nb_server *s);
void nb_calls_poll(nb_server *s, bool tick);
/* The exchange is over (the client went away, or has its answer). */
void nb_call_gone(nb_call *c);
void nb_call_free(nb_call *c);

/* answers.c: a request has come whole. */
void nb_answer(nb_server *s, nb_exchange *x);
/* X-Request-Id, where answers carry it. Before the answer begins. */
void nb_answer_id(nb_call *c);
/* An error in the API's shape. */
void nb_answer_error(nb_exchange *x, int status, const char *type, const char *message);

#endif
