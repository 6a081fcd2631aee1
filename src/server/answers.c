/* From a request's head to what answers it: path, method, key, content type; then at once, or through a worker. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "base/clock.h"
#include "server/server_internal.h"

#define MAX_QUEUED 1024 /* calls that wait for a worker or are with one, their clients there or not */

extern const unsigned char nb_page_html[], nb_openapi_json[];
extern const size_t nb_page_html_size, nb_openapi_json_size;

#define JSON "application/json"

static const char *const methods[] = {"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"};

/* The method as static storage, for metrics; what nobody uses is "OTHER". */
static const char *method_name(const char *method)
{
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (strcmp(method, methods[i]) == 0) return methods[i];
    return "OTHER";
}

void nb_answer_error(nb_exchange *x, int status, const char *type, const char *message)
{
    nb_buf body = {0};
    nb_http_error_body(&body, status, type, message);
    nb_exchange_send(x, status, JSON, body.data, body.len);
    nb_buf_free(&body);
}

static void unavailable(nb_exchange *x, const char *message, const char *retry_after)
{
    nb_exchange_header(x, "retry-after", retry_after);
    nb_answer_error(x, 503, "ServiceUnavailableError", message);
}

void nb_answer_id(nb_call *c)
{
    unsigned char bytes[16] = {0};
    char id[33];
    if (!c->s->opt.request_id_headers) return;
    const char *given = c->returned && c->job ? nb_job_request_id(c->job) : c->request_id;
    if (!given) {
        if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) return;
        for (size_t i = 0; i < sizeof bytes; i++) snprintf(id + 2 * i, 3, "%02x", bytes[i]);
        given = id;
    }
    nb_exchange_header(c->x, "x-request-id", given);
}

/* ---- CORS ---- */

static bool origin_allowed(const nb_server *s, const char *origin)
{
    if (!s->origins) return true;
    for (size_t i = 0; i < s->opt.n_allowed_origins; i++)
        if (strcmp(s->origins[i], "*") == 0 || strcmp(s->origins[i], origin) == 0) return true;
    return false;
}

static bool any_origin(const nb_server *s)
{
    return !s->origins || (s->opt.n_allowed_origins == 1 && strcmp(s->origins[0], "*") == 0);
}

/* Headers for a page from elsewhere that reads this answer. False: it may not. */
static bool cors(const nb_server *s, nb_exchange *x)
{
    const char *origin = nb_http_field_of(nb_exchange_request(x), "origin");
    if (!origin) return true;
    if (!origin_allowed(s, origin)) return false;
    bool star = any_origin(s) && !s->opt.allow_credentials;
    nb_exchange_header(x, "access-control-allow-origin", star ? "*" : origin);
    if (!star) nb_exchange_header(x, "vary", "Origin");
    if (s->opt.allow_credentials) nb_exchange_header(x, "access-control-allow-credentials", "true");
    if (s->opt.request_id_headers) nb_exchange_header(x, "access-control-expose-headers", "x-request-id");
    return true;
}

/* OPTIONS: what a browser asks before the request itself (with Access-Control-Request-Method), or a list of methods. */
static void answer_options(const nb_call *c, bool allowed)
{
    const nb_server *s = c->s;
    nb_exchange *x = c->x;
    const nb_http_request *r = nb_exchange_request(x);
    const char *asked = nb_http_field_of(r, "access-control-request-headers");
    if (!nb_http_field_of(r, "origin") || !nb_http_field_of(r, "access-control-request-method")) {
        bool get = !c->route || c->route->get, post = !c->route || c->route->post;
        nb_exchange_header(x, "allow",
                           get && post ? "GET, HEAD, POST, OPTIONS"
                           : get       ? "GET, HEAD, OPTIONS"
                                       : "POST, OPTIONS");
        nb_exchange_send(x, 200, NULL, NULL, 0);
        return;
    }
    if (!allowed) {
        nb_exchange_send(x, 400, "text/plain; charset=utf-8", "Disallowed CORS origin", 22);
        return;
    }
    nb_exchange_header(x, "access-control-allow-methods",
                       s->opt.allowed_methods ? s->opt.allowed_methods
                                              : "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT");
    nb_exchange_header(x, "access-control-max-age", "600");
    if (s->opt.allowed_headers)
        nb_exchange_header(x, "access-control-allow-headers", s->opt.allowed_headers);
    else if (asked)
        nb_exchange_header(x, "access-control-allow-headers", asked);
    nb_exchange_send(x, 200, "text/plain; charset=utf-8", "OK", 2);
}

/* ---- Answers at once ---- */

/* 200 when requests are served; else 503 and why. Takes no lock, so that it answers whatever the engine is doing. */
static void answer_health(const nb_server *s, nb_exchange *x)
{
    const char *status = NULL, *message = NULL;
    nb_serve_state state = atomic_load(&s->state);
    if (state == NB_SERVE_LOADING) {
        status = "loading";
        message = "The model is loading";
    } else if (state == NB_SERVE_DRAINING) {
        status = "stopping";
        message = "The server is stopping";
    } else {
        nb_core_stats st;
        nb_core_read(s->core, &st);
        if (st.failed) {
            status = "failed";
            message = "The engine has failed";
        } else if (st.running + st.waiting && nb_now() - st.last_step > s->opt.health_seconds) {
            status = "stalled";
            message = "The engine has work but has not finished a step for too long";
        }
    }
    if (!status) {
        nb_exchange_send(x, 200, NULL, NULL, 0);
        return;
    }
    nb_buf body = {0};
    nb_http_error_body(&body, 503, "ServiceUnavailableError", message);
    if (body.len && body.data[body.len - 1] == '}') body.len--;
    nb_buf_addf(&body, ",\"status\":\"%s\"}", status);
    nb_exchange_header(x, "retry-after", "1");
    nb_exchange_send(x, 503, JSON, body.data, body.len);
    nb_buf_free(&body);
}

static void answer_metrics(const nb_server *s, nb_exchange *x)
{
    nb_buf page = {0};
    nb_metrics_write(s->opt.metrics, atomic_load(&s->state) == NB_SERVE_LOADING ? NULL : s->core, &page);
    if (nb_buf_ok(&page))
        nb_exchange_send(x, 200, "text/plain; version=0.0.4; charset=utf-8", page.data, page.len);
    else
        nb_answer_error(x, 500, "InternalServerError", "no memory for the metrics");
    nb_buf_free(&page);
}

static void answer_here(const nb_call *c)
{
    nb_server *s = c->s;
    nb_exchange *x = c->x;
    char text[128];
    int n;
    switch (c->route->kind) {
    case NB_SERVE_HEALTH: answer_health(s, x); return;
    case NB_SERVE_METRICS: answer_metrics(s, x); return;
    case NB_SERVE_LOAD:
        n = snprintf(text, sizeof text, "{\"server_load\":%zu}", atomic_load(&s->load));
        nb_exchange_send(x, 200, JSON, text, (size_t)n);
        return;
    case NB_SERVE_VERSION:
        n = snprintf(text, sizeof text, "{\"version\":\"%s\",\"server\":\"nibble\"}", s->opt.version);
        nb_exchange_send(x, 200, JSON, text, (size_t)n);
        return;
    case NB_SERVE_OPENAPI: nb_exchange_send(x, 200, JSON, nb_openapi_json, nb_openapi_json_size); return;
    default: /* the page; nothing in it comes from elsewhere, and nothing may */
        nb_exchange_header(
            x, "content-security-policy",
            "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
        nb_exchange_header(x, "x-content-type-options", "nosniff");
        nb_exchange_header(x, "cache-control", "no-cache");
        nb_exchange_send(x, 200, "text/html; charset=utf-8", nb_page_html, nb_page_html_size);
    }
}

/* ---- The way in ---- */

static char *copy(const char *s)
{
    return s ? strdup(s) : NULL;
}

/* Through a worker, if this is the time for it. */
static void answer_through_worker(nb_call *c)
{
    nb_server *s = c->s;
    nb_exchange *x = c->x;
    nb_serve_state state = atomic_load(&s->state);
    const nb_http_request *r = nb_exchange_request(x);
    if (state == NB_SERVE_LOADING) {
        unavailable(x, "The model is loading: try again later", "5");
        return;
    }
    if (state == NB_SERVE_DRAINING && c->route->kind >= NB_SERVE_COMPLETIONS) {
        unavailable(x, "The server is stopping", "5");
        return;
    }
    if (s->queued >= MAX_QUEUED) {
        unavailable(x, "too many requests wait for a worker: try again later", "1");
        return;
    }
    if (c->route->post && !nb_route_is_json(nb_http_field_of(r, "content-type"))) {
        nb_answer_error(x, 400, "Bad Request",
                        "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed");
        return;
    }
    const char *priority = nb_http_field_of(r, "x-vllm-priority");
    c->priority = copy(priority);
    if (priority && !c->priority) {
        unavailable(x, "no memory for the request", "1");
        return;
    }
    c->counted = nb_exchange_take_body(x, &c->body);
    nb_call_post(c);
}

static bool method_fits(const nb_route_entry *e, const char *method)
{
    if (strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0) return e->get;
    return strcmp(method, "POST") == 0 && e->post;
}

void nb_answer(nb_server *s, nb_exchange *x)
{
    const nb_http_request *r = nb_exchange_request(x);
    const char *path = nb_route_strip(r->path, s->opt.root_path), *arg;
    nb_call *c = calloc(1, sizeof *c);
    if (c) {
        *c = (nb_call){.s = s, .x = x, .method = method_name(r->method), .arrival = nb_exchange_arrival(x)};
        c->route = nb_route_find(path, &arg);
        c->arg = copy(arg);
        const char *id = nb_http_field_of(r, "x-request-id");
        c->request_id = copy(id);
        if (!c->arg || (id && !c->request_id)) {
            nb_call_free(c);
            c = NULL;
        }
    }
    if (!c) {
        unavailable(x, "no memory for the request", "1");
        return;
    }
    nb_exchange_set_user(x, c);
    bool allowed = cors(s, x);
    if (strcmp(r->method, "OPTIONS") == 0) {
        answer_options(c, allowed);
        return;
    }
    bool here = !c->route || c->route->kind < NB_SERVE_MODELS;
    if (here) nb_answer_id(c);
    if (s->opt.n_api_keys && nb_route_guarded(path) &&
        !nb_route_authorized(nb_http_field_of(r, "authorization"), s->api_keys, s->opt.n_api_keys)) {
        static const char body[] = "{\"error\":\"Unauthorized\"}";
        nb_exchange_send(x, 401, JSON, body, sizeof body - 1);
        return;
    }
    if (!c->route) {
        nb_answer_error(x, 404, "Not Found", "Not Found");
    } else if (!method_fits(c->route, r->method)) {
        nb_exchange_header(x, "allow",
                           c->route->get && c->route->post ? "GET, HEAD, POST"
                           : c->route->get                 ? "GET, HEAD"
                                                           : "POST");
        nb_answer_error(x, 405, "Method Not Allowed", "Method Not Allowed");
    } else if (here) {
        answer_here(c);
    } else {
        answer_through_worker(c);
    }
}
