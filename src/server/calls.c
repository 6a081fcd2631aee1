/*
 * Requests on their way through worker and engine. A worker makes the job (or the whole answer); then the loop takes what the
 * engine has made, as often as it is woken, and sends it. A client that goes away leaves a call without an exchange, which is
 * cancelled and polled until the engine has let go of it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "server/server_internal.h"

/* Bytes that wait for a slow reader; with more, its job is left alone, and the engine passes it over. */
#define MAX_PENDING ((size_t)256 << 10)

/* Which of the two a body for /invocations is for: the first of these keys at its top level tells. */
static nb_route invocation(const nb_buf *body)
{
    nb_route route = NB_ROUTE_COMPLETIONS;
    nb_json j;
    nb_json_init(&j, body->data ? body->data : "", body->len);
    if (nb_json_next(&j) == NB_J_OBJECT)
        while (nb_json_next(&j) == NB_J_KEY) {
            if (j.len == 8 && memcmp(j.str, "messages", 8) == 0) {
                route = NB_ROUTE_CHAT;
                break;
            }
            if (!nb_json_skip(&j)) break;
        }
    nb_json_free(&j);
    return route;
}

static nb_route route_of(const nb_call *c)
{
    switch (c->route->kind) {
    case NB_SERVE_MODELS:
    case NB_SERVE_MODEL: return NB_ROUTE_MODELS;
    case NB_SERVE_TOKENIZE: return NB_ROUTE_TOKENIZE;
    case NB_SERVE_DETOKENIZE: return NB_ROUTE_DETOKENIZE;
    case NB_SERVE_CHAT: return NB_ROUTE_CHAT;
    case NB_SERVE_INVOCATIONS: return invocation(&c->body);
    default: return NB_ROUTE_COMPLETIONS;
    }
}

/* On a worker. */
static void work(nb_task *task, size_t worker)
{
    nb_call *c = (nb_call *)task;
    nb_server *s = c->s;
    const char *body = c->body.data ? c->body.data : "";
    if (!atomic_load(&c->gone)) {
        nb_route route = route_of(c);
        if (c->route->kind < NB_SERVE_COMPLETIONS) {
            const char *arg = c->route->kind == NB_SERVE_MODEL ? c->arg : NULL;
            c->status = nb_api_answer(s->api, s->work[worker], route, arg, body, c->body.len, &c->out);
        } else {
            nb_api_error e = {0};
            nb_job_meta meta = {.request_id = c->request_id, .priority = c->priority, .arrival = c->arrival};
            if (!nb_job_new(s->api, s->work[worker], route, &meta, body, c->body.len, &c->job, &e)) {
                c->status = e.status;
                nb_api_error_body(&e, &c->out);
            }
            nb_buf_free(&e.message);
        }
    }
    nb_buf_free(&c->body);
    pthread_mutex_lock(&s->done_lock);
    *s->done_last = c;
    s->done_last = &c->next;
    pthread_mutex_unlock(&s->done_lock);
    nb_server_wake(s);
}

void nb_call_post(nb_call *c)
{
    nb_server *s = c->s;
    c->working = true;
    s->queued++;
    atomic_fetch_add(&s->calls, 1);
    if (c->route->kind >= NB_SERVE_COMPLETIONS) atomic_fetch_add(&s->load, 1);
    c->task.run = work;
    nb_workers_post(s->workers, &c->task);
}

/* The call is through with worker and engine; its exchange, if it is still there, has its whole answer. */
static void finish(nb_call *c)
{
    nb_server *s = c->s;
    atomic_fetch_sub(&s->calls, 1);
    if (c->route->kind >= NB_SERVE_COMPLETIONS) atomic_fetch_sub(&s->load, 1);
    c->working = false;
    if (!c->x) nb_call_free(c); /* else the exchange's end frees it */
}

/* A whole answer, made by a worker or by the job. */
static void send_whole(nb_call *c, int status)
{
    nb_exchange *x = c->x;
    if (!nb_buf_ok(&c->out)) {
        nb_answer_error(x, 500, "InternalServerError", "no memory for the answer");
        return;
    }
    if (status == 503) nb_exchange_header(x, "retry-after", "1");
    nb_answer_id(c);
    nb_exchange_send(x, status, "application/json", c->out.data, c->out.len);
}

static void begin_stream(nb_call *c)
{
    nb_exchange_header(c->x, "cache-control", "no-cache");
    nb_exchange_header(c->x, "x-accel-buffering", "no"); /* nginx would gather the frames */
    nb_answer_id(c);
    nb_exchange_begin(c->x, 200, "text/event-stream; charset=utf-8");
    c->begun = true;
}

static void send_stream(nb_call *c, const char *bytes, size_t n)
{
    if (!c->begun) begin_stream(c);
    nb_exchange_write(c->x, bytes, n);
    c->last_sent = nb_now();
}

/* What the job has made so far, to a client that is there. */
static void deliver(nb_call *c, bool over)
{
    bool streams = nb_job_streams(c->job);
    if (c->begun &&
        !streams) { /* it failed after a comment had begun the stream: its error becomes the only frame */
        if (!over) return;
        send_stream(c, "data: ", 6);
        send_stream(c, c->out.data, c->out.len);
        send_stream(c, "\n\ndata: [DONE]\n\n", 16);
    } else if (streams && c->out.len) {
        send_stream(c, c->out.data, c->out.len);
        nb_buf_clear(&c->out);
    }
    if (!over) return;
    if (c->begun)
        nb_exchange_end(c->x);
    else
        send_whole(c, nb_job_status(c->job));
}

/* A stream that has had nothing to say for a while gets a comment, so that nobody between here and the client cuts it. */
static void ping(nb_call *c)
{
    if (nb_now() - c->last_sent < c->s->opt.ping_seconds || !nb_job_streams(c->job)) return;
    send_stream(c, ": keep-alive\n\n", 14);
}

static void poll_call(nb_call *c, bool tick)
{
    nb_server *s = c->s;
    if (c->x && nb_exchange_pending(c->x) > MAX_PENDING) return;
    size_t before = c->out.len;
    bool over = nb_job_poll(c->job, &c->out);
    if (!over && c->out.len - before >= NB_JOB_POLL_BYTES) nb_server_wake(s); /* there may be more */
    if (!nb_buf_ok(&c->out) && c->begun &&
        c->x) { /* no memory: the stream breaks off, which is how a client can tell */
        nb_exchange_abort(c->x);
        c->x = NULL;
        nb_job_cancel(c->job);
    }
    if (c->x && (over || c->out.len)) deliver(c, over);
    if (c->x && !over && tick) ping(c);
    if (!over) return;
    nb_job *job = c->job;
    c->job = NULL;
    if (c->prev)
        c->prev->next = c->next;
    else
        s->running = c->next;
    if (c->next) c->next->prev = c->prev;
    finish(c);
    nb_job_free(job);
}

void nb_calls_poll(nb_server *s, bool tick)
{
    for (nb_call *c = s->running, *next; c; c = next) {
        next = c->next;
        poll_call(c, tick);
    }
}

void nb_calls_returned(nb_server *s)
{
    pthread_mutex_lock(&s->done_lock);
    nb_call *c = s->done;
    s->done = NULL;
    s->done_last = &s->done;
    pthread_mutex_unlock(&s->done_lock);
    for (nb_call *next; c; c = next) {
        next = c->next;
        c->next = NULL;
        c->returned = true;
        s->queued--;
        nb_http_body_freed(s->http, c->counted);
        c->counted = 0;
        if (!c->job) {
            if (c->x) send_whole(c, c->status);
            finish(c);
            continue;
        }
        c->last_sent = nb_now();
        c->next = s->running;
        if (s->running) s->running->prev = c;
        s->running = c;
        if (!c->x) nb_job_cancel(c->job);
    }
}

void nb_call_gone(nb_call *c)
{
    c->x = NULL;
    atomic_store(&c->gone, true);
    if (c->returned && c->job) nb_job_cancel(c->job);
    if (!c->working) nb_call_free(c);
}

void nb_call_free(nb_call *c)
{
    nb_buf_free(&c->body);
    nb_buf_free(&c->out);
    free(c->arg);
    free(c->request_id);
    free(c->priority);
    free(c);
}
