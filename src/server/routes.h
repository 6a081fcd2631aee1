/* Which path means what, and who may ask: decided from the request's head alone. */
#ifndef NB_SERVER_ROUTES_H
#define NB_SERVER_ROUTES_H

#include <stdbool.h>

#include "server/http_parse.h"

typedef enum nb_route_kind {
    NB_SERVE_PAGE,
    NB_SERVE_HEALTH,
    NB_SERVE_LOAD,
    NB_SERVE_VERSION,
    NB_SERVE_METRICS,
    NB_SERVE_OPENAPI,
    NB_SERVE_MODELS, /* from here on the model is needed */
    NB_SERVE_MODEL,
    NB_SERVE_TOKENIZE,
    NB_SERVE_DETOKENIZE,
    NB_SERVE_COMPLETIONS, /* from here on the engine is */
    NB_SERVE_CHAT,
    NB_SERVE_INVOCATIONS,
} nb_route_kind;

typedef struct nb_route_entry {
    const char
        *path; /* the pattern, also the label in metrics; one that ends in '}' matches what begins like it */
    nb_route_kind kind;
    bool get, post;
    bool guarded; /* needs an API key when there are any */
    bool quiet;   /* asked all the time by machines: not in http_requests_total nor in the access log */
} nb_route_entry;

/* The entry for a path without root path; NULL: there is none. *arg: what stood in the braces, "" when there are none. */
const nb_route_entry *nb_route_find(const char *path, const char **arg);
/* path after the root path's prefix is taken off; path itself when it does not begin with it. */
const char *nb_route_strip(const char *path, const char *root);
/* Whether a path needs a key even when no route has it: all that begins like the API does (as vLLM). */
bool nb_route_guarded(const char *path);
/* Whether one of the keys is what "Authorization: Bearer KEY" says. Takes as long for a wrong key as for a right one. */
bool nb_route_authorized(const char *authorization, char *const *keys, size_t n);
/* Whether the media type of a Content-Type header is application/json. value may be NULL. */
bool nb_route_is_json(const char *value);

#endif
