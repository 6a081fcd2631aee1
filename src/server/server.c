/* The server's life: made, ready, draining, gone; and the loop thread with what wakes it. */
#include "server/server.h"

#include <errno.h>
#include <event2/event.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "server/server_internal.h"

#define TICK_MS 100
#define TELL_SECONDS 10.0

/* ---- What the transport reports ---- */

static void on_request(void *ctx, nb_exchange *x)
{
    nb_answer(ctx, x);
}

/* One line an exchange; machines that ask all the time are left out. */
static void tell_access(const nb_server *s, const nb_call *c, const char *outcome)
{
    if (!s->opt.access_log || (c->route && c->route->quiet)) return;
    const nb_http_request *r = nb_exchange_request(c->x);
    double seconds = nb_now() - c->arrival;
    nb_log_field f[] = {{"client", nb_exchange_peer(c->x), 0},
                        {"method", r->method, 0},
                        {"path", r->path, 0},
                        {"status", NULL, nb_exchange_status(c->x)},
                        {"seconds", NULL, (double)(int64_t)(seconds * 1e6 + .5) / 1e6},
                        {"bytes", NULL, (double)nb_exchange_sent(c->x)},
                        {"id", c->request_id, 0}};
    nb_serve_log_line(&s->opt.log, NB_LOG_INFO, outcome, f, sizeof f / sizeof *f - !c->request_id);
}

static void count(const nb_server *s, const nb_call *c)
{
    if (c->route && c->route->quiet) return;
    nb_metrics_http(s->opt.metrics, &(nb_http_record){.handler = c->route ? c->route->path : "none",
                                                      .method = c->method,
                                                      .status = nb_exchange_status(c->x),
                                                      .seconds = nb_now() - c->arrival,
                                                      .received = nb_exchange_received(c->x),
                                                      .sent = nb_exchange_sent(c->x)});
}

static void on_gone(void *ctx, nb_exchange *x)
{
    nb_call *c = nb_exchange_user(x);
    tell_access(ctx, c, "client gone");
    nb_call_gone(c);
}

static void on_done(void *ctx, nb_exchange *x)
{
    nb_call *c = nb_exchange_user(x);
    tell_access(ctx, c, "access");
    count(ctx, c);
    nb_call_gone(c);
}

/* ---- The loop ---- */

/* A line each ten seconds while there is work, and one when it has just ended. */
static void tell_throughput(nb_server *s, double now)
{
    nb_core_stats st;
    double seconds = now - s->told;
    if (!s->opt.throughput_log || seconds < TELL_SECONDS || atomic_load(&s->state) == NB_SERVE_LOADING)
        return;
    nb_core_read(s->core, &st);
    uint64_t prompt = st.prompt_tokens - s->told_prompt, generated = st.generation_tokens - s->told_generated;
    uint64_t queries = st.prefix_queries - s->told_queries, hits = st.prefix_hits - s->told_hits;
    if (prompt || generated || st.running || st.waiting) {
        const nb_log_field f[] = {
            {"prompt_tokens_per_s", NULL, (double)(int64_t)((double)prompt / seconds * 10 + .5) / 10},
            {"generation_tokens_per_s", NULL, (double)(int64_t)((double)generated / seconds * 10 + .5) / 10},
            {"running", NULL, (double)st.running},
            {"waiting", NULL, (double)st.waiting},
            {"kv_cache_percent", NULL,
             st.blocks ? (double)(int64_t)(1000.0 * (double)st.blocks_used / (double)st.blocks + .5) / 10
                       : 0},
            {"prefix_hit_percent", NULL,
             queries ? (double)(int64_t)(1000.0 * (double)hits / (double)queries + .5) / 10 : 0}};
        nb_serve_log_line(&s->opt.log, NB_LOG_INFO, "throughput", f, sizeof f / sizeof *f);
    }
    s->told = now;
    s->told_prompt = st.prompt_tokens;
    s->told_generated = st.generation_tokens;
    s->told_queries = st.prefix_queries;
    s->told_hits = st.prefix_hits;
}

static void on_wake(evutil_socket_t fd, short what, void *ctx)
{
    nb_server *s = ctx;
    uint64_t n;
    ssize_t got = read(fd, &n, sizeof n); /* any number of rings is one wake */
    if (got < 0 && errno != EAGAIN) return;
    if (atomic_load(&s->quit)) {
        event_base_loopbreak(s->base);
        return;
    }
    if (atomic_load(&s->state) == NB_SERVE_DRAINING) nb_http_close_after_answers(s->http);
    nb_calls_returned(s);
    nb_calls_poll(s, false);
}

static void on_tick(evutil_socket_t fd, short what, void *ctx)
{
    nb_server *s = ctx;
    nb_calls_poll(s, true);
    tell_throughput(s, nb_now());
}

static void *run_loop(void *ctx)
{
    nb_server *s = ctx;
    pthread_setname_np(pthread_self(), "nibble-loop");
    event_base_loop(s->base, EVLOOP_NO_EXIT_ON_EMPTY);
    return NULL;
}

void nb_server_wake(void *server)
{
    nb_server *s = server;
    uint64_t one = 1;
    ssize_t n = write(s->wake_fd, &one, sizeof one);
    (void)n; /* it fails only when the counter is full: then a wake is under way */
}

/* ---- Life ---- */

static nb_status copy_list(const char *const *list, size_t n, char ***out, nb_error *err)
{
    if (!list || !n) return NB_OK;
    *out = calloc(n, sizeof **out);
    for (size_t i = 0; *out && i < n; i++)
        if (!((*out)[i] = strdup(list[i]))) return nb_fail_nomem(err, "options", 0);
    return *out ? NB_OK : nb_fail_nomem(err, "options", n * sizeof **out);
}

static nb_status copy_string(const char **s, nb_error *err)
{
    if (!*s) return NB_OK;
    *s = strdup(*s);
    return *s ? NB_OK : nb_fail_nomem(err, "options", 0);
}

static nb_status copy_options(nb_server *s, nb_error *err)
{
    nb_server_options *o = &s->opt;
    const char **strings[] = {
        &o->host,    &o->uds,        &o->root_path, &o->allowed_methods, &o->allowed_headers,
        &o->version, &o->http.server};
    nb_status st = NB_OK;
    if (!o->root_path) o->root_path = "";
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        if (st != NB_OK)
            *strings[i] = NULL; /* the caller's: not to be freed */
        else
            st = copy_string(strings[i], err);
    }
    if (st == NB_OK) st = copy_list(o->api_keys, o->n_api_keys, &s->api_keys, err);
    if (st == NB_OK) st = copy_list(o->allowed_origins, o->n_allowed_origins, &s->origins, err);
    o->api_keys = o->allowed_origins = NULL;
    return st;
}

static nb_status make_loop(nb_server *s, nb_error *err)
{
    struct timeval tick = {.tv_usec = TICK_MS * 1000};
    s->base = event_base_new();
    s->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (!s->base || s->wake_fd < 0) return nb_fail(err, NB_ERR_NOMEM, "cannot make an event loop");
    s->wake_event = event_new(s->base, s->wake_fd, EV_READ | EV_PERSIST, on_wake, s);
    s->tick = event_new(s->base, -1, EV_PERSIST, on_tick, s);
    if (!s->wake_event || !s->tick || event_add(s->wake_event, NULL) != 0 || event_add(s->tick, &tick) != 0)
        return nb_fail(err, NB_ERR_NOMEM, "cannot make an event loop");
    return NB_OK;
}

nb_status nb_server_new(const nb_server_options *opt, nb_server **out, nb_error *err)
{
    nb_status st;
    nb_server *s = calloc(1, sizeof *s);
    if (!s) return nb_fail_nomem(err, "the server", sizeof *s);
    s->opt = *opt;
    s->wake_fd = -1;
    s->done_last = &s->done;
    s->told = nb_now();
    pthread_mutex_init(&s->done_lock, NULL);
    if (s->opt.workers > NB_MAX_WORKERS) s->opt.workers = NB_MAX_WORKERS;
    if ((st = copy_options(s, err))) goto out;
    if ((st = make_loop(s, err))) goto out;
    nb_http_handler handler = {on_request, on_gone, on_done, s};
    if ((st = nb_http_new(s->base, &s->opt.http, &handler, &s->http, err))) goto out;
    st = s->opt.uds ? nb_http_listen_unix(s->http, s->opt.uds, err)
                    : nb_http_listen(s->http, s->opt.host, s->opt.port, err);
    if (st != NB_OK) goto out;
    if ((st = nb_workers_new(s->opt.workers, &s->workers, err))) goto out;
    s->looping = nb_thread_start(&s->loop, run_loop, s) == 0;
    if (!s->looping) st = nb_fail(err, NB_ERR_NOMEM, "cannot start the loop's thread");
out:
    if (st == NB_OK)
        *out = s;
    else
        nb_server_free(s);
    return st;
}

uint16_t nb_server_port(const nb_server *s)
{
    return nb_http_port(s->http);
}

nb_status nb_server_ready(nb_server *s, nb_api *api, nb_core *core, nb_error *err)
{
    nb_serve_state loading = NB_SERVE_LOADING;
    s->api = api;
    s->core = core;
    for (size_t i = 0; i < s->opt.workers; i++) {
        nb_status st = nb_api_work_new(api, &s->work[i], err);
        if (st != NB_OK) return st;
    }
    atomic_compare_exchange_strong(&s->state, &loading, NB_SERVE_READY); /* unless it is to stop already */
    return NB_OK;
}

void nb_server_drain(nb_server *s)
{
    nb_serve_state ready = NB_SERVE_READY;
    atomic_compare_exchange_strong(&s->state, &ready, NB_SERVE_DRAINING);
    nb_server_wake(s);
}

bool nb_server_idle(const nb_server *s)
{
    return atomic_load(&s->calls) == 0 && nb_http_busy(s->http) == 0;
}

void nb_server_free(nb_server *s)
{
    if (!s) return;
    if (s->looping) {
        atomic_store(&s->quit, true);
        nb_server_wake(s);
        pthread_join(s->loop, NULL);
    }
    nb_workers_free(s->workers);
    nb_http_free(s->http);
    for (size_t i = 0; i < NB_MAX_WORKERS; i++) nb_api_work_free(s->work[i]);
    if (s->wake_event) event_free(s->wake_event);
    if (s->tick) event_free(s->tick);
    if (s->base) event_base_free(s->base);
    if (s->wake_fd >= 0) close(s->wake_fd);
    for (size_t i = 0; s->api_keys && i < s->opt.n_api_keys; i++) free(s->api_keys[i]);
    for (size_t i = 0; s->origins && i < s->opt.n_allowed_origins; i++) free(s->origins[i]);
    free(s->api_keys);
    free(s->origins);
    free((char *)s->opt.host);
    free((char *)s->opt.uds);
    free((char *)s->opt.root_path);
    free((char *)s->opt.allowed_methods);
    free((char *)s->opt.allowed_headers);
    free((char *)s->opt.version);
    free((char *)s->opt.http.server);
    pthread_mutex_destroy(&s->done_lock);
    free(s);
}
