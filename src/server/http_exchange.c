/* An exchange as its handler uses it: what was asked, and the answer, whole or in pieces. */
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "server/http_internal.h"

static struct evbuffer *output(const nb_exchange *x)
{
    return bufferevent_get_output(x->bev);
}

size_t nb_exchange_pending(const nb_exchange *x)
{
    return evbuffer_get_length(output(x));
}

void nb_http_put(nb_exchange *x, const void *bytes, size_t n)
{
    if (n && evbuffer_add(output(x), bytes, n) != 0) x->dead = true; /* no memory: the sweep ends it */
}

void nb_exchange_header(nb_exchange *x, const char *name, const char *value)
{
    for (const char *c = value; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) return;
    nb_buf_addf(&x->headers, "%s: %s\r\n", name, value);
}

/* Status line and headers. length < 0: it is not known. */
static void send_head(nb_exchange *x, int status, const char *type, int64_t length)
{
    nb_buf head = {0};
    if (x->h->close_all || !x->request.keep_alive) x->close = true;
    x->status = status;
    x->head_only = x->request.method && strcmp(x->request.method, "HEAD") == 0;
    x->chunked = length < 0 && x->request.minor == 1;
    if (length < 0 && !x->chunked) x->close = true;
    nb_http_answer_head(&(nb_http_answer){.status = status,
                                          .server = x->h->opt.server,
                                          .type = type,
                                          .length = length,
                                          .chunked = x->chunked,
                                          .close = x->close,
                                          .keep_alive = !x->close && x->request.minor == 0,
                                          .date = time(NULL),
                                          .more = nb_buf_str(&x->headers)},
                        &head);
    if (!nb_buf_ok(&head) || !nb_buf_ok(&x->headers)) x->dead = true;
    nb_http_put(x, head.data, head.len);
    nb_buf_free(&head);
}

/* The exchange is over for the handler. */
static void complete(nb_exchange *x)
{
    nb_http *h = x->h;
    nb_http_enter(x, NB_HTTP_FLUSHING);
    if (x->user) h->handler.done(h->handler.ctx, x);
    x->user = NULL;
    nb_http_flushed(x);
}

void nb_exchange_send(nb_exchange *x, int status, const char *type, const void *body, size_t n)
{
    send_head(x, status, type, (int64_t)n);
    if (!x->head_only) nb_http_put(x, body, n);
    x->sent = n;
    complete(x);
}

void nb_exchange_begin(nb_exchange *x, int status, const char *type)
{
    send_head(x, status, type, -1);
}

void nb_exchange_write(nb_exchange *x, const void *bytes, size_t n)
{
    char size[32];
    if (!n || x->head_only) return;
    x->sent += n;
    if (x->chunked) {
        int len = snprintf(size, sizeof size, "%zx\r\n", n);
        nb_http_put(x, size, (size_t)len);
    }
    nb_http_put(x, bytes, n);
    if (x->chunked) nb_http_put(x, "\r\n", 2);
}

void nb_exchange_end(nb_exchange *x)
{
    if (x->chunked && !x->head_only) nb_http_put(x, "0\r\n\r\n", 5);
    complete(x);
}

void nb_exchange_abort(nb_exchange *x)
{
    x->user = NULL;
    x->dead = true;
}

void nb_http_refuse(nb_exchange *x, int status, const char *why)
{
    nb_buf body = {0};
    const char *type = status == 503 ? "ServiceUnavailableError" : nb_http_phrase(status);
    nb_http_error_body(&body, status, type, why);
    x->close = true;
    nb_buf_clear(&x->headers);
    if (status == 503) nb_exchange_header(x, "retry-after", "1");
    x->user = NULL;
    nb_exchange_send(x, status, "application/json", body.data, body.len);
    nb_buf_free(&body);
}

/* ---- What was asked ---- */

const nb_http_request *nb_exchange_request(const nb_exchange *x)
{
    return &x->request;
}

size_t nb_exchange_take_body(nb_exchange *x, nb_buf *to)
{
    size_t counted = x->counted;
    *to = x->body;
    x->body = (nb_buf){0};
    x->counted = 0;
    return counted;
}

const char *nb_exchange_peer(const nb_exchange *x)
{
    return x->peer;
}

double nb_exchange_arrival(const nb_exchange *x)
{
    return x->arrival;
}

int nb_exchange_status(const nb_exchange *x)
{
    return x->status;
}

size_t nb_exchange_received(const nb_exchange *x)
{
    return x->received;
}

uint64_t nb_exchange_sent(const nb_exchange *x)
{
    return x->sent;
}

void nb_exchange_set_user(nb_exchange *x, void *user)
{
    x->user = user;
}

void *nb_exchange_user(const nb_exchange *x)
{
    return x->user;
}
