/*
 * One step: the planned parts run as one batch, their rows are checked and sampled, good rows are committed, tokens become events.
 * Sequences that the guard has healed run in steps of their own, so that no bit of the others depends on them.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "engine/core_internal.h"

#define MOST_FAILURES 3 /* requests in a row whose steps failed until the engine counts as broken */

static nb_request *request_of(nb_sched_seq *q)
{
    return (nb_request *)(void *)((char *)q - offsetof(nb_request, seq));
}

/* Its prompt does not wait any more. */
static void unqueue(nb_core *c, nb_request *r)
{
    if (r->queued) atomic_fetch_sub(&c->count.queued_tokens, r->seq.n_prompt);
    r->queued = false;
}

/* Takes r out of everything and puts its last event. */
static void close_with(nb_core *c, nb_request *r, nb_event *last)
{
    unqueue(c, r);
    nb_sched_finish(c->sched, &r->seq);
    *(r->prev ? &r->prev->next : &c->live) = r->next;
    *(r->next ? &r->next->prev : &c->newest) = r->prev;
    atomic_store(&c->count.running, nb_sched_running(c->sched));
    atomic_store(&c->count.blocks_used, nb_pages_used(nb_engine_pages(c->e)));
    atomic_fetch_sub(&c->count.live, 1);
    c->told = true;
    nb_request_put(r, last);
}

void nb_core_end(nb_core *c, nb_request *r, nb_finish finish, const nb_error *reason)
{
    nb_event ev = {.kind = NB_EVENT_END, .finish = finish, .stop_string = -1};
    if (reason) r->error = *reason;
    nb_output_finish(r->output);
    ev.text = nb_output_take(r->output, &ev.n_text);
    close_with(c, r, &ev);
}

/* ---- tokens ---- */

/* Room for one more token. */
static nb_status grow(const nb_core *c, nb_request *r, nb_error *err)
{
    if (r->seq.n_tokens < r->cap) return NB_OK;
    size_t most = c->most_tokens, cap = r->cap < most / 2 ? 2 * r->cap : most;
    uint32_t *t = realloc(r->tokens, cap * sizeof *t);
    if (!t) return nb_fail_nomem(err, "an answer's tokens", cap * sizeof *t);
    r->tokens = t;
    r->seq.tokens = t;
    r->cap = cap;
    return NB_OK;
}

/* The sampled token becomes the sequence's and an event. In the order of vLLM's check_stop: end and stop tokens, then the length; a
 * stop string in the text comes before both, as in its output processor. False: that was the last, and r is gone. */
static bool deliver(nb_core *c, nb_request *r)
{
    const uint32_t id = r->sampled.chosen.id;
    nb_error err;
    if (grow(c, r, &err) != NB_OK || nb_sampler_push(r->sampler, id, &err) != NB_OK) {
        nb_core_end(c, r, NB_FINISH_ERROR, &err);
        return false;
    }
    r->tokens[r->seq.n_tokens++] = id;
    size_t output = r->seq.n_tokens - r->seq.n_prompt;
    r->times.last_token = nb_now();
    if (output == 1) {
        r->times.first_token = r->times.last_token;
        atomic_fetch_add(&c->count.prompt_tokens, r->seq.n_prompt);
        atomic_fetch_add(&c->count.prompt_cached, r->seq.cached);
    }
    atomic_fetch_add(&c->count.generation_tokens, 1);

    nb_event ev = {.kind = NB_EVENT_TOKEN, .token = id};
    if (r->logprobs != -1) {
        ev.chosen = r->sampled.chosen;
        ev.top = r->top;
        ev.n_top = r->n_top;
    }
    ev.stop_string = nb_output_push(r->output, id, r->sampled.stop && !r->include_stop);
    if (ev.stop_string >= 0 || r->sampled.stop)
        ev.finish = NB_FINISH_STOP;
    else if (output >= r->seq.max_tokens || r->seq.n_tokens >= c->most_tokens)
        ev.finish = NB_FINISH_LENGTH;
    if (ev.finish) nb_output_finish(r->output);
    ev.text = nb_output_take(r->output, &ev.n_text);
    c->told = true;
    if (ev.finish) {
        close_with(c, r, &ev);
        return false;
    }
    nb_request_put(r, &ev);
    return true;
}

static void put_prompt_event(nb_core *c, nb_request *r, nb_logprob chosen, size_t n_top)
{
    nb_event ev = {.kind = NB_EVENT_PROMPT,
                   .token = r->tokens[r->prompt_next++],
                   .chosen = chosen,
                   .top = r->top,
                   .n_top = n_top,
                   .stop_string = -1};
    c->told = true;
    nb_request_put(r, &ev);
}

/* ---- logits ---- */

static void sample_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    nb_core *c = ctx;
    for (size_t i = begin; i < end; i++) {
        nb_core_part *p = c->sampled[i];
        nb_request *r = p->r;
        nb_status s = nb_sampler_choose(r->sampler, c->work[thread], c->logits[i], &r->sampled, r->top,
                                        r->top_cap, &r->n_top, NULL);
        p->masked = s == NB_ERR_ARGUMENT; /* the client's doing, and nothing for the guard */
        if (s != NB_OK && !p->masked && p->bad == p->step.n) p->bad = p->step.n - 1;
    }
}

/* Logits of prompt token `row` of p speak of the token after it. */
static void prompt_row(nb_core *c, nb_core_part *p, size_t row, const float *logits)
{
    nb_request *r = p->r;
    nb_logprob chosen;
    size_t n_top, next = p->plan.from + p->done + row + 1;
    if (next != r->prompt_next || p->bad < p->step.n)
        return; /* told before, or after a row that is not finite */
    if (nb_logprobs_of(c->work[0], logits, r->tokens[next], r->prompt_logprobs, &chosen, r->top, r->top_cap,
                       &n_top, NULL) == NB_OK)
        put_prompt_event(c, r, chosen, n_top);
    else
        p->bad = row;
}

static void take_tile(void *ctx, const nb_logit_row *rows, size_t n, const float *logits)
{
    nb_core *c = ctx;
    size_t samples = 0;
    for (size_t i = 0; i < n; i++) {
        nb_core_part *p = c->run[rows[i].part];
        const float *v = logits + i * c->vocab;
        size_t next = p->plan.from + p->done + rows[i].row + 1;
        if (next < p->r->seq.n_prompt) {
            prompt_row(c, p, rows[i].row, v);
        } else if (next == p->r->seq.n_tokens) {
            c->sampled[samples] = p;
            c->logits[samples++] = v;
        }
    }
    nb_pool_run(nb_engine_pool(c->e), samples, 1, sample_rows, c);
}

/* ---- running ---- */

/* What of p is run next: n rows from `done` on, with the logits that somebody wants. */
static void aim(nb_core_part *p, size_t n)
{
    const nb_request *r = p->r;
    size_t from = p->plan.from + p->done;
    bool prompt = r->prompt_next < r->seq.n_prompt && from + 1 < r->seq.n_prompt;
    p->step = (nb_step_part){.seq = r->seq.slot,
                             .tokens = r->tokens + from,
                             .n = n,
                             .all_logits = prompt,
                             .no_logits = !prompt && from + n != r->seq.n_tokens,
                             .known = r->seq.n_tokens};
    p->bad = n;
}

/* The first n rows of p's step count. */
static void keep_rows(nb_core *c, nb_core_part *p, size_t n)
{
    nb_seq_commit(c->e, p->r->seq.slot, n);
    p->done += n;
}

/* Runs c->run[0 … n) as one batch. Alone, a sequence runs under what heals it. */
static nb_status run(nb_core *c, size_t n, nb_error *err)
{
    const nb_step_out out = {.tile = take_tile, .ctx = c, .check = true};
    for (size_t i = 0; i < n; i++) c->steps[i] = c->run[i]->step;
    nb_status s = n == 1 ? nb_guard_step(c->guard, &c->run[0]->r->heal, c->steps, &out, err)
                         : nb_engine_step(c->e, c->steps, n, &out, err);
    for (size_t i = 0; i < n && s == NB_OK; i++) {
        size_t bad = nb_step_bad(c->e, i);
        if (bad < c->run[i]->bad) c->run[i]->bad = bad;
    }
    return s;
}

static nb_status run_alone(nb_core *c, nb_core_part *p, nb_error *err)
{
    c->run[0] = p;
    return run(c, 1, err);
}

/* Rows from p->bad on are not finite: heals the first, runs the rest with what healed it, until none is left. Rows before it
 * count as they are, so that the outcome does not depend on how the prompt was cut. */
static nb_status heal(nb_core *c, nb_core_part *p, nb_error *err)
{
    nb_request *r = p->r;
    nb_status s;
    if (!r->corrupted) atomic_fetch_add(&c->count.corrupted, 1);
    r->corrupted = true;
    keep_rows(c, p, p->bad);
    while (p->done < p->n) {
        if (!c->opt.guard)
            return nb_fail(err, NB_ERR_FORMAT,
                           "non-finite logits: token %zu of the sequence gave NaN or infinity, and the guard "
                           "that would look for the cause is off",
                           p->plan.from + p->done);
        aim(p, 1);
        if ((s = nb_guard_heal(c->guard, &p->step, &r->heal, err))) return s;
        aim(p, p->n - p->done);
        if ((s = run_alone(c, p, err))) return s;
        if (!p->bad)
            return nb_fail(err, NB_ERR_FORMAT, "non-finite logits, which another look did not find again");
        keep_rows(c, p, p->bad);
    }
    return NB_OK;
}

/* The engine gave up on this request. Enough of them in a row: it is the engine. What the model or the request lacks is no reason:
 * other prompts may do without it. */
static void failed(nb_core *c, nb_request *r, const nb_error *why)
{
    nb_core_end(c, r, NB_FINISH_ERROR, why);
    if (why->status != NB_ERR_IO && why->status != NB_ERR_NOMEM) return;
    if (++c->failures < MOST_FAILURES) return;
    c->why = *why;
    atomic_store(&c->failed, true); /* the next pass ends all the others */
    nb_log(&c->opt.sink, NB_LOG_ERROR, "the engine failed and serves no more: %s", why->cause);
}

/* A reader that is behind: its request keeps its seat and is passed over. */
static void park(nb_request *r)
{
    if (nb_request_has_room(r)) return;
    r->seq.parked = true;
    atomic_store(&r->full, true); /* now the reader rings, or has made room before it could see this */
    if (!nb_request_has_room(r)) return;
    atomic_store(&r->full, false);
    r->seq.parked = false;
}

/* p ran: its rows count, or are healed, or it fails. */
static void settle(nb_core *c, nb_core_part *p)
{
    nb_request *r = p->r;
    nb_error err = {0};
    c->failures = 0;
    if (p->bad == p->step.n) {
        /* the scheduler first: what it shares must not have left its window yet */
        nb_sched_commit(c->sched, &p->plan, p->n, !r->heal.n);
        keep_rows(c, p, p->n);
    } else if (heal(c, p, &err) == NB_OK) {
        nb_sched_commit(c->sched, &p->plan, p->n, false);
    } else {
        nb_sched_commit(c->sched, &p->plan, 0, false); /* nothing of it is shared from now on */
        nb_core_end(c, r, NB_FINISH_ERROR, &err);
        return;
    }
    bool token = p->plan.last && p->n == p->plan.n;
    if (token && p->masked) {
        nb_fail(&err, NB_ERR_ARGUMENT,
                "allowed_token_ids, bad_words and min_tokens leave no token to choose from");
        nb_core_end(c, r, NB_FINISH_ERROR, &err);
    } else if (!token || deliver(c, r)) {
        park(r);
    }
}

/* Events for prompt tokens: no more rows than the reader has room for, one event a row, and one kept for the last. */
static size_t rows_with_room(nb_core *c, nb_request *r, size_t n)
{
    if (r->prompt_next >= r->seq.n_prompt) return n;
    if (!r->prompt_next) put_prompt_event(c, r, (nb_logprob){0}, 0); /* nothing comes before the first */
    size_t room = nb_ring_room(&r->ring) / r->max_event - 1;
    return n < room ? n : room;
}

/* False: it could not be opened, and was ended. */
static bool begin(nb_core *c, nb_core_part *p, const nb_sched_part *plan)
{
    nb_request *r = request_of(plan->q);
    nb_error err;
    *p = (nb_core_part){.plan = *plan};
    if (plan->opened) {
        if (nb_seq_start(c->e, r->seq.slot, plan->from, &err) != NB_OK) {
            nb_core_end(c, r, NB_FINISH_ERROR, &err);
            return false;
        }
        unqueue(c, r);
        if (!r->times.scheduled) {
            r->times.scheduled = nb_now();
            if (!r->seq.no_cache_read) atomic_fetch_add(&c->count.prefix_queries, r->seq.n_prompt);
            atomic_fetch_add(&c->count.prefix_hits, r->seq.cached);
        }
    }
    p->r = r;
    p->n = nb_heal_span(&r->heal, plan->from, rows_with_room(c, r, plan->n));
    aim(p, p->n);
    return true;
}

/* As vLLM counts a step's tokens: one for each that is generated, and a prompt whole with its answer's first, whatever was cached or came
 * in chunks before. Counted before anybody hears of the tokens, so that who has the answer finds it counted. */
static size_t step_tokens(const nb_core *c, size_t n)
{
    size_t tokens = 0;
    for (size_t i = 0; i < n; i++) {
        const nb_core_part *p = &c->parts[i];
        if (!p->r || p->masked || !p->plan.last || p->n != p->plan.n) continue;
        const nb_sched_seq *s = &p->r->seq;
        tokens += 1 + (s->n_tokens == s->n_prompt ? s->n_prompt : 0);
    }
    return tokens;
}

void nb_core_step(nb_core *c, size_t n)
{
    nb_error err = {0};
    size_t batch = 0;
    for (size_t i = 0; i < n; i++) {
        nb_core_part *p = &c->parts[i];
        if (!begin(c, p, &c->plan[i])) continue;
        if (!p->r->heal.n) c->run[batch++] = p;
    }
    nb_status together = batch ? run(c, batch, &err) : NB_OK;
    nb_hist_add(&c->iteration, (double)step_tokens(c, n), 1);
    atomic_fetch_add(&c->count.steps, 1);
    for (size_t i = 0; i < n && together == NB_OK;
         i++) { /* good ones first: others may take a while to heal */
        nb_core_part *p = &c->parts[i];
        if (!p->r || p->r->heal.n || p->bad < p->step.n) continue;
        settle(c, p);
        p->r = NULL;
    }
    for (size_t i = 0; i < n; i++) {
        nb_core_part *p = &c->parts[i];
        if (!p->r) continue;
        nb_status s = together;
        /* healed ones each alone; after a failure the others too, so that those that cause it are found */
        if (p->r->heal.n || (together != NB_OK && batch > 1)) {
            aim(p, p->n);
            s = run_alone(c, p, &err);
        }
        if (s == NB_OK)
            settle(c, p); /* what it may now be healed by has it run alone from the next step on */
        else
            failed(c, p->r, &err);
    }
}
