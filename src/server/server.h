/*
 * The server: transport, routes, workers and the jobs under way, put together. It answers /health from the moment it is made,
 * before there is a model; nb_server_ready hands it the model. Three kinds of threads meet here: the loop, which owns every
 * connection and polls the jobs; the workers; and the engine, which only rings nb_server_wake.
 */
#ifndef NB_SERVER_SERVER_H
#define NB_SERVER_SERVER_H

#include "server/api.h"
#include "server/http.h"
#include "server/serve_log.h"

typedef struct nb_server nb_server;

/* Everything is copied but metrics, and must be valid only during the call. */
typedef struct nb_server_options {
    const char *host; /* NULL: every address */
    uint16_t port;    /* 0: one that is free */
    const char *uds;  /* a Unix socket's path instead; NULL: none */
    const char *const *api_keys;
    size_t n_api_keys;     /* 0: everybody may */
    const char *root_path; /* a prefix that a proxy left in the path; "" or NULL: none */
    /* CORS; NULL: all. */
    const char *const *allowed_origins;
    size_t n_allowed_origins;
    const char *allowed_methods, *allowed_headers; /* comma-separated; NULL: all */
    bool allow_credentials;
    bool request_id_headers; /* answers carry X-Request-Id */
    bool access_log, throughput_log;
    const char *version;
    size_t workers;
    double health_seconds; /* a step that takes longer while there is work: /health says 503 */
    double ping_seconds;   /* a stream with nothing to send gets a comment this often */
    nb_http_options http;
    nb_metrics *metrics;
    nb_serve_log log;
} nb_server_options;

/* Listens and starts the loop. NB_ERR_BUSY: the port is in use. */
nb_status nb_server_new(const nb_server_options *opt, nb_server **out, nb_error *err);
uint16_t nb_server_port(const nb_server *s);
/* The model is there. Both are borrowed until nb_server_free. */
nb_status nb_server_ready(nb_server *s, nb_api *api, nb_core *core, nb_error *err);
/* Some request has events: nb_core_options.wake, with the server as wake_ctx. Any thread, never waits. */
void nb_server_wake(void *server);

/* Stops taking work: /health and new requests are answered 503, what is under way goes on. Any thread. */
void nb_server_drain(nb_server *s);
/* Nothing is under way and every answer is sent. Any thread. */
bool nb_server_idle(const nb_server *s);
/* Ends the threads and closes every connection. Only when idle, or before nb_server_ready. s may be NULL. */
void nb_server_free(nb_server *s);

#endif
