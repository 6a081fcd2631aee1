/* Connections over libevent's bufferevents: accepted, read until a request is whole, timed, and ended. */
#include "server/http_internal.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "server/http_listen.h"

#define SWEEP_MS 250
#define LINGER_SECONDS 2.0        /* for the client to read the last answer before the connection goes */
#define PIPELINE_BYTES 65536      /* that a client may send while it is being answered */
#define DISCARD_BYTES (64u << 20) /* of a refused body that are read, so that the refusal can be */

static void advance(nb_exchange *x);

/* ---- Connections ---- */

static bool is_busy(nb_http_state s)
{
    return s == NB_HTTP_ANSWERING || s == NB_HTTP_FLUSHING;
}

void nb_http_enter(nb_exchange *x, nb_http_state s)
{
    if (is_busy(s) && !is_busy(x->state)) atomic_fetch_add(&x->h->busy, 1);
    if (!is_busy(s) && is_busy(x->state)) atomic_fetch_sub(&x->h->busy, 1);
    x->state = s;
    x->since = nb_now();
    x->behind = x->since;
    x->taken = x->owed = 0;
}

static void drop_body(nb_exchange *x)
{
    nb_buf_free(&x->body);
    x->h->bodies -= x->counted;
    x->counted = 0;
}

static void free_exchange(nb_exchange *x)
{
    nb_http *h = x->h;
    if (x->state == NB_HTTP_ANSWERING && x->user) h->handler.gone(h->handler.ctx, x);
    nb_http_enter(x, NB_HTTP_READ_HEAD);
    if (x->prev)
        x->prev->next = x->next;
    else
        h->first = x->next;
    if (x->next)
        x->next->prev = x->prev;
    else
        h->last = x->prev;
    h->connections--;
    bufferevent_free(x->bev);
    nb_http_request_free(&x->request);
    drop_body(x);
    nb_buf_free(&x->headers);
    free(x);
}

/* At a safe point: nothing on the stack uses x any more. */
static bool freed_if_dead(nb_exchange *x)
{
    if (!x->dead || x->inside) return x->dead;
    free_exchange(x);
    return true;
}

/* Ready for the next request of the connection. */
static void next_request(nb_exchange *x)
{
    nb_http_enter(x, NB_HTTP_READ_HEAD);
    nb_http_request_free(&x->request);
    drop_body(x);
    nb_buf_clear(&x->headers);
    x->chunks = (nb_http_chunks){0};
    x->scanned = 0;
    x->sent = 0;
    x->chunked = x->head_only = false;
    x->status = 0;
    x->user = NULL;
}

static void linger(nb_exchange *x)
{
    nb_http_enter(x, NB_HTTP_LINGERING);
    if (shutdown(bufferevent_getfd(x->bev), SHUT_WR) != 0) x->dead = true;
}

void nb_http_flushed(nb_exchange *x)
{
    if (x->state != NB_HTTP_FLUSHING || nb_exchange_pending(x)) return;
    if (x->eof) {
        x->dead = true;
        return;
    }
    if (x->close) {
        linger(x);
        return;
    }
    next_request(x);
    advance(x);
}

/* ---- Requests ---- */

static struct evbuffer *input(const nb_exchange *x)
{
    return bufferevent_get_input(x->bev);
}

/* Room for n more bytes of a body, in the sum of all. They have come: what is only announced holds no room. */
static bool count_body(nb_exchange *x, size_t n)
{
    nb_http *h = x->h;
    if (n > h->opt.max_bodies - h->bodies) {
        nb_http_refuse(x, 503, "too many large requests at once: try again later");
        return false;
    }
    h->bodies += n;
    x->counted += n;
    return true;
}

static void hand_over(nb_exchange *x)
{
    nb_http *h = x->h;
    nb_http_enter(x, NB_HTTP_ANSWERING);
    x->arrival = x->since;
    x->received = x->body.len;
    h->handler.request(h->handler.ctx, x);
}

/* True: the state has changed, go on. */
static bool read_head(nb_exchange *x)
{
    struct evbuffer *in = input(x);
    if (!x->scanned) { /* empty lines before a request are allowed (RFC 9112 2.2) */
        char two[2];
        while (evbuffer_copyout(in, two, 2) == 2 && two[0] == '\r' && two[1] == '\n') evbuffer_drain(in, 2);
    }
    size_t n = evbuffer_get_length(in);
    if (n && !x->scanned) x->since = nb_now();
    struct evbuffer_ptr from, end;
    evbuffer_ptr_set(in, &from, x->scanned > 3 ? x->scanned - 3 : 0, EVBUFFER_PTR_SET);
    end = n ? evbuffer_search(in, "\r\n\r\n", 4, &from) : (struct evbuffer_ptr){.pos = -1};
    x->scanned = n;
    if (end.pos < 0) {
        if (n <= NB_HTTP_MAX_HEAD) return false;
        nb_http_refuse(x, 431, "the headers are longer than 64 KiB");
        return true;
    }
    size_t head = (size_t)end.pos + 4;
    nb_http_refusal no;
    const char *bytes = (const char *)evbuffer_pullup(in, (ev_ssize_t)head);
    bool ok = bytes && nb_http_parse_head(bytes, head, &x->request, &no);
    if (!bytes) no = (nb_http_refusal){503, "no memory for the request"};
    evbuffer_drain(in, head);
    if (!ok) {
        nb_http_refuse(x, no.status, no.why);
        return true;
    }
    if (!x->request.chunked && x->request.length > x->h->opt.max_body) {
        nb_http_refuse(x, 413, "the body is too large");
        return true;
    }
    if (!x->request.chunked && !x->request.length) {
        hand_over(x);
        return true;
    }
    nb_http_enter(x, NB_HTTP_READ_BODY);
    if (x->request.wants_continue && !evbuffer_get_length(in))
        nb_http_put(x, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    return true;
}

static bool read_chunks(nb_exchange *x)
{
    struct evbuffer *in = input(x);
    for (;;) {
        size_t n = evbuffer_get_contiguous_space(in), used;
        if (!n) return false;
        nb_http_refusal no;
        size_t before = x->body.len;
        nb_http_more more = nb_http_chunks_feed(&x->chunks, (const char *)evbuffer_pullup(in, (ev_ssize_t)n),
                                                n, x->h->opt.max_body, &used, &x->body, &no);
        evbuffer_drain(in, used);
        if (!count_body(x, x->body.len - before)) return true;
        if (more == NB_HTTP_REFUSED) nb_http_refuse(x, no.status, no.why);
        if (more == NB_HTTP_DONE) hand_over(x);
        if (more != NB_HTTP_MORE) return true;
    }
}

static bool read_body(nb_exchange *x)
{
    struct evbuffer *in = input(x);
    if (x->request.chunked) return read_chunks(x);
    size_t left = (size_t)x->request.length - x->body.len, n = evbuffer_get_length(in);
    if (n > left) n = left;
    if (!n) return false;
    if (!count_body(x, n)) return true;
    if (!nb_buf_reserve(&x->body, n)) {
        nb_http_refuse(x, 503, "no memory for the body");
        return true;
    }
    evbuffer_remove(in, x->body.data + x->body.len, n);
    x->body.len += n;
    x->body.data[x->body.len] = '\0';
    if (n < left) return false;
    hand_over(x);
    return true;
}

/* Bytes after a connection's last request. */
static void discard(nb_exchange *x)
{
    x->discarded += evbuffer_get_length(input(x));
    evbuffer_drain(input(x), evbuffer_get_length(input(x)));
    if (x->discarded > DISCARD_BYTES) x->dead = true;
}

/* Goes on with what has been read, request after request. May mark x dead, never frees it. */
static void advance(nb_exchange *x)
{
    if (x->inside) return;
    x->inside = true;
    for (bool more = true; more && !x->dead;) {
        switch (x->state) {
        case NB_HTTP_READ_HEAD: more = read_head(x); break;
        case NB_HTTP_READ_BODY: more = read_body(x); break;
        case NB_HTTP_LINGERING:
            discard(x);
            more = false;
            break;
        default:
            if (x->state == NB_HTTP_FLUSHING && x->close)
                discard(x);
            else if (evbuffer_get_length(input(x)) > PIPELINE_BYTES)
                x->dead = true;
            more = false;
        }
    }
    x->inside = false;
}

static void on_read(struct bufferevent *bev, void *ctx)
{
    nb_exchange *x = ctx;
    advance(x);
    freed_if_dead(x);
}

static void on_write(struct bufferevent *bev, void *ctx)
{
    nb_exchange *x = ctx;
    nb_http_flushed(x);
    freed_if_dead(x);
}

static void on_event(struct bufferevent *bev, short what, void *ctx)
{
    nb_exchange *x = ctx;
    if (!(what & (BEV_EVENT_EOF | BEV_EVENT_ERROR))) return;
    x->eof = true;
    /* A whole answer is still delivered to who has closed only his half; one that is still being made is not. */
    if (x->state == NB_HTTP_FLUSHING && !(what & BEV_EVENT_ERROR)) return;
    x->dead = true;
    freed_if_dead(x);
}

static void on_drain(struct evbuffer *buffer, const struct evbuffer_cb_info *info, void *ctx)
{
    nb_exchange *x = ctx;
    x->taken += info->n_deleted;
    x->owed -= info->n_deleted < x->owed ? info->n_deleted : x->owed;
}

/* ---- Accepting ---- */

/* Makes room by closing the connection that has idled longest. */
static bool make_room(nb_http *h)
{
    nb_exchange *idle = NULL;
    for (nb_exchange *x = h->first; x; x = x->next)
        if (x->state == NB_HTTP_READ_HEAD && !x->inside && !evbuffer_get_length(input(x)) &&
            (!idle || x->since < idle->since))
            idle = x;
    if (idle) free_exchange(idle);
    return idle != NULL;
}

static void on_accept(void *ctx, int fd, const char *peer)
{
    nb_http *h = ctx;
    bool full = h->connections >= h->opt.max_connections && !make_room(h);
    nb_exchange *x = calloc(1, sizeof *x);
    struct bufferevent *bev = x ? bufferevent_socket_new(h->base, fd, BEV_OPT_CLOSE_ON_FREE) : NULL;
    if (!bev) {
        free(x);
        evutil_closesocket(fd);
        return;
    }
    x->h = h;
    x->bev = bev;
    x->since = nb_now();
    snprintf(x->peer, sizeof x->peer, "%s", peer);
    x->prev = h->last;
    if (h->last)
        h->last->next = x;
    else
        h->first = x;
    h->last = x;
    h->connections++;
    bufferevent_setcb(bev, on_read, on_write, on_event, x);
    if (!evbuffer_add_cb(bufferevent_get_output(bev), on_drain, x) ||
        bufferevent_enable(bev, EV_READ | EV_WRITE) != 0)
        x->dead = true;
    if (full) nb_http_refuse(x, 503, "too many connections: try again later");
    freed_if_dead(x);
}

static void on_starved(void *ctx)
{
    make_room(ctx);
}

/* ---- Time ---- */

static void check_time(nb_exchange *x, double t)
{
    const nb_http_options *o = &x->h->opt;
    const double slow = o->slow_seconds;
    const bool behind = x->owed; /* what came since the last look may only wait for the loop to pass */
    switch (x->state) {
    case NB_HTTP_READ_HEAD:
        if (!evbuffer_get_length(input(x)))
            x->dead = t - x->since > o->idle_seconds;
        else if (t - x->since > slow)
            nb_http_refuse(x, 408, "the headers took too long to come");
        break;
    case NB_HTTP_READ_BODY:
        if (t - x->since > slow + (double)x->body.len / o->slow_rate)
            nb_http_refuse(x, 408, "the body came too slowly");
        break;
    case NB_HTTP_ANSWERING:
    case NB_HTTP_FLUSHING:
        x->owed = nb_exchange_pending(x);
        if (behind && t - x->behind <= slow) break;
        x->dead = behind && (double)x->taken < slow * o->slow_rate;
        x->behind = t;
        x->taken = 0;
        break;
    case NB_HTTP_LINGERING: x->dead = t - x->since > LINGER_SECONDS; break;
    }
}

static void on_sweep(evutil_socket_t fd, short what, void *ctx)
{
    nb_http *h = ctx;
    double t = nb_now();
    for (nb_exchange *x = h->first, *next; x; x = next) {
        next = x->next;
        if (!x->dead) check_time(x, t);
        freed_if_dead(x);
    }
}

/* ---- The server ---- */

nb_status nb_http_new(struct event_base *base, const nb_http_options *opt, const nb_http_handler *handler,
                      nb_http **out, nb_error *err)
{
    nb_http *h = calloc(1, sizeof *h);
    if (!h) return nb_fail_nomem(err, "the HTTP server", sizeof *h);
    *h = (nb_http){.base = base, .opt = *opt, .handler = *handler};
    struct timeval period = {.tv_usec = SWEEP_MS * 1000};
    h->sweep = event_new(base, -1, EV_PERSIST, on_sweep, h);
    if (!h->sweep || event_add(h->sweep, &period) != 0) {
        nb_http_free(h);
        return nb_fail_nomem(err, "the HTTP server's timer", 0);
    }
    *out = h;
    return NB_OK;
}

void nb_http_free(nb_http *h)
{
    if (!h) return;
    for (nb_exchange *x = h->first, *next; x; x = next) {
        next = x->next;
        free_exchange(x);
    }
    nb_listener_free(h->listener);
    if (h->sweep) event_free(h->sweep);
    free(h);
}

nb_status nb_http_listen(nb_http *h, const char *host, uint16_t port, nb_error *err)
{
    const nb_listener_events events = {on_accept, on_starved, h};
    return nb_listener_open(h->base, &events, host, port, &h->listener, err);
}

nb_status nb_http_listen_unix(nb_http *h, const char *path, nb_error *err)
{
    const nb_listener_events events = {on_accept, on_starved, h};
    return nb_listener_open_unix(h->base, &events, path, &h->listener, err);
}

uint16_t nb_http_port(const nb_http *h)
{
    return nb_listener_port(h->listener);
}

size_t nb_http_busy(const nb_http *h)
{
    return atomic_load(&h->busy);
}

void nb_http_close_after_answers(nb_http *h)
{
    h->close_all = true;
}

void nb_http_body_freed(nb_http *h, size_t counted)
{
    h->bodies -= counted;
}
