/*
 * An engine that says what a test tells it to, in place of engine/core.h and server/metrics.h (the linker takes these definitions, not the
 * libraries'). The answer is a text, each byte of it a token. Include in one file of a program only.
 */
#ifndef NB_TESTS_SERVER_FAKE_ENGINE_H
#define NB_TESTS_SERVER_FAKE_ENGINE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "server/api.h"

struct nb_core {
    /* What it is told. */
    const char *answer;
    nb_finish finish;  /* of the last token */
    int stop_string;   /* of the last event */
    int64_t end_token; /* one more token, without text, at the end; -1: none */
    size_t error_at;   /* the sequence fails after this many tokens; SIZE_MAX: never */
    size_t refuse_at;  /* this submission is refused with NB_ERR_BUSY; SIZE_MAX: none */
    bool busy;         /* no seats */
    size_t most_seats; /* of one request; 0: any number */
    float first;       /* log-probability of the first token; each later one is 0.25 lower */
    /* What it saw. */
    size_t entered, left, submitted, freed, cancelled;
    size_t records, tokens, n_sum; /* of metrics; n_sum: over the records */
    nb_request_record last_record; /* likewise */
    nb_request_spec spec;          /* of the newest submission; strings and arrays below */
    uint32_t prompt[4096], bad[64], bias_ids[8], stop_ids[64], keep[16];
    size_t bad_len[16];
    float bias[8];
};

struct nb_request {
    nb_core *core;
    size_t at, n_prompt, prompt_at;
    nb_request_spec spec;
    uint32_t prompt[64];
    nb_detok detok;
    nb_buf text;
    nb_logprob top[32];
    bool cancelled, over;
    nb_error error;
};

static nb_core fake = {.answer = "", .error_at = SIZE_MAX, .refuse_at = SIZE_MAX};
static nb_tokenizer *fake_tokenizer;

static inline void fake_reset(const char *answer, nb_finish finish)
{
    fake = (nb_core){.answer = answer,
                     .finish = finish,
                     .stop_string = -1,
                     .end_token = -1,
                     .error_at = SIZE_MAX,
                     .refuse_at = SIZE_MAX,
                     .first = -0.5F};
}

nb_status nb_core_enter(nb_core *c, size_t n, nb_error *err)
{
    if (c->busy || (c->most_seats && n > c->most_seats))
        return nb_fail(err, NB_ERR_BUSY, "the queue is full");
    c->entered += n;
    return NB_OK;
}

void nb_core_leave(nb_core *c, size_t n)
{
    c->left += n;
}

#define FAKE_COPY(to, from, n)                                                                               \
    do {                                                                                                     \
        for (size_t copy = 0; copy < (n) && copy < sizeof(to) / sizeof *(to); copy++)                        \
            (to)[copy] = (from)[copy];                                                                       \
    } while (0)

nb_status nb_core_submit(nb_core *c, const nb_request_spec *spec, nb_request **out, nb_error *err)
{
    if (c->submitted == c->refuse_at) return nb_fail(err, NB_ERR_BUSY, "the queue is full");
    nb_request *r = calloc(1, sizeof *r);
    if (!r) return nb_fail_nomem(err, "a request", sizeof *r);
    c->submitted++;
    c->spec = *spec;
    FAKE_COPY(c->prompt, spec->prompt, spec->n_prompt);
    FAKE_COPY(c->bias_ids, spec->sampling.bias_ids, spec->sampling.n_bias);
    FAKE_COPY(c->bias, spec->sampling.bias, spec->sampling.n_bias);
    FAKE_COPY(c->stop_ids, spec->sampling.stop_ids, spec->sampling.n_stop_ids);
    FAKE_COPY(c->keep, spec->keep, spec->n_keep);
    FAKE_COPY(c->bad_len, spec->sampling.bad_len, spec->sampling.n_bad);
    size_t words = 0;
    for (size_t i = 0; i < spec->sampling.n_bad; i++) words += spec->sampling.bad_len[i];
    FAKE_COPY(c->bad, spec->sampling.bad, words);
    r->core = c;
    r->spec = *spec;
    r->n_prompt = spec->n_prompt < 64 ? spec->n_prompt : 64;
    FAKE_COPY(r->prompt, spec->prompt, r->n_prompt);
    nb_detok_init(&r->detok, fake_tokenizer, spec->skip_special, true);
    *out = r;
    return NB_OK;
}

void nb_request_cancel(nb_request *r)
{
    r->core->cancelled += !r->cancelled;
    r->cancelled = true;
}

void nb_request_free(nb_request *r)
{
    r->core->freed++;
    nb_buf_free(&r->text);
    free(r);
}

/* The token itself, then its successors, each 1 less probable. */
static inline void fake_logprobs(nb_request *r, nb_event *ev, int k, float chosen)
{
    size_t n = k == NB_LOGPROBS_ALL || k > 32 ? 32 : (size_t)k;
    ev->chosen = (nb_logprob){.id = ev->token, .rank = 1, .logprob = chosen};
    for (size_t i = 0; i < n; i++)
        r->top[i] = (nb_logprob){
            .id = (uint32_t)((ev->token + i) % 256), .rank = (uint32_t)i + 1, .logprob = chosen - (float)i};
    ev->top = r->top;
    ev->n_top = n;
}

bool nb_request_next(nb_request *r, nb_event *ev)
{
    nb_core *c = r->core;
    size_t n = strlen(c->answer), last = n + (c->end_token >= 0);
    *ev = (nb_event){
        .stop_string = -1,
        .text = "",
        .cached_tokens = 2,
        .times = {.arrival = 1, .scheduled = 2, .first_token = 3, .last_token = 4 + (double)r->at}};
    if (r->over) return false;
    if (r->cancelled) {
        ev->kind = NB_EVENT_END;
        ev->finish = NB_FINISH_ABORT;
        return r->over = true;
    }
    if (r->spec.prompt_logprobs != -1 && r->prompt_at < r->n_prompt) {
        ev->kind = NB_EVENT_PROMPT;
        ev->token = r->prompt[r->prompt_at];
        if (r->prompt_at) fake_logprobs(r, ev, r->spec.prompt_logprobs, -2 - (float)r->prompt_at);
        r->prompt_at++;
        return true;
    }
    if (r->at == c->error_at) {
        nb_fail(&r->error, NB_ERR_FORMAT, "non-finite logits");
        ev->kind = NB_EVENT_END;
        ev->finish = NB_FINISH_ERROR;
        ev->error = &r->error;
        return r->over = true;
    }
    ev->kind = NB_EVENT_TOKEN;
    ev->token = r->at < n ? (unsigned char)c->answer[r->at] : (uint32_t)c->end_token;
    nb_buf_clear(&r->text);
    if (r->at < n) nb_detok_push(&r->detok, ev->token, &r->text);
    if (r->spec.sampling.logprobs != -1)
        fake_logprobs(r, ev, r->spec.sampling.logprobs, c->first - 0.25F * (float)r->at);
    if (++r->at >= last) {
        nb_detok_flush(&r->detok, &r->text);
        ev->finish = c->finish;
        ev->stop_string = c->stop_string;
        r->over = true;
    }
    if (!nb_buf_ok(&r->text)) {
        nb_fail_nomem(&r->error, "text", 0);
        ev->finish = NB_FINISH_ERROR;
        ev->error = &r->error;
        r->over = true;
    }
    ev->text = nb_buf_str(&r->text);
    ev->n_text = r->text.len;
    return true;
}

void nb_metrics_request(nb_metrics *m, const nb_request_record *r)
{
    fake.records++;
    fake.n_sum += r->n;
    fake.last_record = *r;
}

void nb_metrics_token(nb_metrics *m, double seconds)
{
    fake.tokens++;
}

#endif
