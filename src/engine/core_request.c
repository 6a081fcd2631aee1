/* Requests as others see them: seats, handing a sequence over, cancelling it, taking its events. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "engine/core_internal.h"

#define OPEN_TOKENS 256        /* output tokens that an open-ended request has room for at first */
#define RING_BYTES (16 * 1024) /* some 70 tokens of plain text may wait for a slow reader */

/* ---- seats ---- */

static nb_status refuse(nb_core *c, nb_error *err)
{
    if (atomic_load(&c->failed)) return nb_fail(err, NB_ERR_BUSY, "the engine failed and serves no more");
    if (atomic_load(&c->stopping)) return nb_fail(err, NB_ERR_BUSY, "the server is stopping");
    return NB_OK;
}

/* Adds n unless that would pass the bound (0: none). */
static bool add_within(_Atomic size_t *to, size_t n, size_t bound)
{
    size_t have = atomic_load(to);
    do {
        if (bound && (have > bound || n > bound - have)) return false;
    } while (!atomic_compare_exchange_weak(to, &have, have + n));
    return true;
}

nb_status nb_core_enter(nb_core *c, size_t n, nb_error *err)
{
    nb_status s = refuse(c, err);
    if (s != NB_OK) return s;
    size_t bound = c->opt.sched.queue_requests;
    if (bound && n > bound) /* no waiting helps */
        return nb_fail(err, NB_ERR_LIMIT, "%zu sequences in one request; this server takes %zu at once", n,
                       bound);
    if (add_within(&c->count.seats, n, bound)) return NB_OK;
    return nb_fail(err, NB_ERR_BUSY, "%zu requests are running or waiting, and %zu may",
                   atomic_load(&c->count.seats), bound);
}

void nb_core_leave(nb_core *c, size_t n)
{
    atomic_fetch_sub(&c->count.seats, n);
}

/* ---- submitting ---- */

static nb_status check(const nb_core *c, const nb_request_spec *q, nb_error *err)
{
    uint32_t cp;
    if (!q->n_prompt) return nb_fail(err, NB_ERR_ARGUMENT, "the prompt has no tokens");
    if (!q->max_tokens) return nb_fail(err, NB_ERR_ARGUMENT, "max_tokens must be at least 1");
    if (q->n_stop > NB_MAX_STOP)
        return nb_fail(err, NB_ERR_ARGUMENT, "%zu stop strings; at most %d are possible", q->n_stop,
                       NB_MAX_STOP);
    if (q->prompt_logprobs < -1 && q->prompt_logprobs != NB_LOGPROBS_ALL)
        return nb_fail(err, NB_ERR_ARGUMENT, "prompt_logprobs must be at least 0, or all");
    for (size_t i = 0; i < q->n_stop; i++) {
        size_t at = 0, w = 1;
        while (w && at < q->stop_len[i]) at += w = nb_utf8_decode(q->stop[i] + at, q->stop_len[i] - at, &cp);
        if (!at || !w) return nb_fail(err, NB_ERR_ARGUMENT, "stop string %zu is empty or no UTF-8", i);
    }
    for (size_t i = 0; i < q->n_prompt; i++)
        if (q->prompt[i] >= c->vocab)
            return nb_fail(err, NB_ERR_ARGUMENT, "token id %u is outside the vocabulary of %zu", q->prompt[i],
                           c->vocab);
    return nb_sample_check(&q->sampling, c->vocab, err);
}

/* How many entries an event has for this many log-probabilities. */
static size_t entries(const nb_core *c, int k)
{
    if (k == NB_LOGPROBS_ALL || (k > 0 && (size_t)k > c->vocab)) return c->vocab;
    return k > 0 ? (size_t)k : 0;
}

static nb_status take_memory(nb_core *c, nb_request *r, const nb_request_spec *q, nb_error *err)
{
    nb_status s;
    size_t answer = q->open_ended && q->max_tokens > OPEN_TOKENS ? OPEN_TOKENS : q->max_tokens;
    size_t a = entries(c, q->sampling.logprobs), b = entries(c, q->prompt_logprobs), ring;
    const nb_output_options oo = {.tokenizer = c->tok,
                                  .token_bytes = c->token_bytes,
                                  .skip_special = q->skip_special,
                                  .keep = q->keep,
                                  .n_keep = q->n_keep,
                                  .stop = q->stop,
                                  .stop_len = q->stop_len,
                                  .n_stop = q->n_stop,
                                  .include_stop = q->include_stop,
                                  .min_tokens = q->sampling.min_tokens};
    r->top_cap = a > b ? a : b;
    r->cap = q->n_prompt + answer; /* both within the context */
    r->tokens = malloc(r->cap * sizeof *r->tokens);
    r->top = calloc(r->top_cap + 1, sizeof *r->top);
    r->id = strdup(q->id ? q->id : "");
    r->salt = strdup(q->cache_salt ? q->cache_salt : "");
    if (!r->tokens || !r->top || !r->id || !r->salt)
        return nb_fail_nomem(err, "a request", r->cap * sizeof *r->tokens);
    memcpy(r->tokens, q->prompt, q->n_prompt * sizeof *r->tokens);
    if ((s = nb_output_new(&oo, &r->output, err))) return s;
    if ((s = nb_sampler_new(&q->sampling, c->vocab, q->prompt, q->n_prompt, &r->sampler, err))) return s;
    r->max_event = sizeof(nb_event) + r->top_cap * sizeof(nb_logprob) + nb_output_most(r->output);
    if (!nb_mul(r->max_event, 4, &ring)) return nb_fail_nomem(err, "a ring of events", SIZE_MAX);
    r->scratch = malloc(r->max_event);
    if (!r->scratch) return nb_fail_nomem(err, "an event", r->max_event);
    return nb_ring_new(&r->ring, ring > RING_BYTES ? ring : RING_BYTES, err);
}

void nb_request_drop(nb_request *r)
{
    if (!r) return;
    free(r->tokens);
    free(r->top);
    free(r->id);
    free(r->salt);
    nb_output_free(r->output);
    nb_sampler_free(r->sampler);
    nb_heal_free(&r->heal);
    nb_ring_free(&r->ring);
    free(r->scratch);
    free(r);
}

/* A prompt longer than the whole bound may wait when no other does, and the rest of a request waits with its first sequence: they would
 * never be served otherwise. */
static bool queue_prompt(nb_core *c, const nb_request_spec *q)
{
    size_t none = 0, bound = q->follows ? 0 : c->opt.sched.queue_tokens;
    return add_within(&c->count.queued_tokens, q->n_prompt, bound) ||
           atomic_compare_exchange_strong(&c->count.queued_tokens, &none, q->n_prompt);
}

nb_status nb_core_submit(nb_core *c, const nb_request_spec *q, nb_request **out, nb_error *err)
{
    nb_status s;
    if ((s = refuse(c, err)) || (s = check(c, q, err)) ||
        (s = nb_sched_fits(&c->opt.sched, nb_pages_blocks(nb_engine_pages(c->e)), q->n_prompt, q->max_tokens,
                           q->open_ended, err)))
        return s;
    nb_request *r = calloc(1, sizeof *r);
    if (!r) return nb_fail_nomem(err, "a request", sizeof *r);
    if ((s = take_memory(c, r, q, err))) {
        nb_request_drop(r);
        return s;
    }
    r->core = c;
    r->logprobs = q->sampling.logprobs;
    r->prompt_logprobs = q->prompt_logprobs;
    r->include_stop = q->include_stop;
    r->prompt_next = q->prompt_logprobs == -1 ? q->n_prompt : 0;
    r->times.arrival = q->arrival;
    r->seq = (nb_sched_seq){.tokens = r->tokens,
                            .n_prompt = q->n_prompt,
                            .n_tokens = q->n_prompt,
                            .max_tokens = q->max_tokens,
                            .open_ended = q->open_ended,
                            .no_cache_read = q->prompt_logprobs != -1,
                            .priority = q->priority,
                            .arrival = q->arrival,
                            .salt = r->salt};
    if (!(r->queued = queue_prompt(c, q))) {
        nb_request_drop(r);
        return nb_fail(err, NB_ERR_BUSY, "prompts of %zu tokens wait, and %zu may",
                       atomic_load(&c->count.queued_tokens), c->opt.sched.queue_tokens);
    }
    *out = r; /* before the thread has it: its events may be taken as soon as it does */
    atomic_fetch_add(&c->count.live, 1);
    r->next = atomic_load(&c->inbox);
    while (!atomic_compare_exchange_weak(&c->inbox, &r->next, r)) {}
    nb_core_ring_bell(c);
    return NB_OK;
}

void nb_request_cancel(nb_request *r)
{
    nb_core *c = r->core;
    atomic_store(&r->cancelled, true);
    nb_core_ring_bell(c);
}

void nb_request_free(nb_request *r)
{
    nb_request_drop(r);
}

/* ---- events ---- */

bool nb_request_has_room(const nb_request *r)
{
    return nb_ring_room(&r->ring) >= 2 * r->max_event;
}

void nb_request_put(nb_request *r, nb_event *e)
{
    const size_t top = e->n_top * sizeof *e->top;
    e->times = r->times;
    e->cached_tokens = r->seq.cached;
    e->error = e->finish == NB_FINISH_ERROR ? &r->error : NULL;
    nb_ring_put(&r->ring, e, sizeof *e);
    if (top) nb_ring_put(&r->ring, e->top, top);
    if (e->n_text) nb_ring_put(&r->ring, e->text, e->n_text);
    nb_ring_publish(&r->ring);
}

bool nb_request_next(nb_request *r, nb_event *ev)
{
    if (r->over || !nb_ring_ready(&r->ring)) return false;
    nb_ring_take(&r->ring, ev, sizeof *ev);
    const size_t top = ev->n_top * sizeof *ev->top;
    nb_ring_take(&r->ring, r->scratch, top + ev->n_text); /* published with its head */
    ev->top = (const nb_logprob *)(const void *)r->scratch;
    ev->text = (const char *)r->scratch + top;
    r->over = ev->finish != NB_FINISH_NONE;
    /* The engine says "full" and then looks at the room; here room is made before "full" is read: one of the two sees the other. */
    if (!r->over && atomic_load(&r->full) && r->ring.size - nb_ring_ready(&r->ring) >= 2 * r->max_event &&
        atomic_exchange(&r->full, false))
        nb_core_ring_bell(r->core);
    return true;
}
