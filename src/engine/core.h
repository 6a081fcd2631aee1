/*
 * The engine thread: the one owner of engine, scheduler and KV state. Others submit requests and cancel them through bounded
 * queues and read a request's events from a ring of its own; they share no lock with it, so that /health, /metrics and signals
 * never wait for a step.
 *
 *     submit -> [queue] -> scheduler -> step -> guard -> sample -> detokenise, match stop strings -> [ring] -> next
 */
#ifndef NB_ENGINE_CORE_H
#define NB_ENGINE_CORE_H

#include "base/hist.h"
#include "engine/guard.h"
#include "engine/sampler.h"
#include "engine/sched.h"
#include "text/tokenizer.h"

typedef struct nb_core nb_core;
typedef struct nb_request nb_request;

typedef struct nb_core_options {
    nb_sched_options sched;
    bool guard; /* heal or fail rows that are not finite; false: they fail without a look for the culprit */
    /* Called on the engine thread after it has put events into rings, once a step: must only signal (an eventfd). */
    void (*wake)(void *ctx);
    void *wake_ctx;
    nb_sink sink;
} nb_core_options;

/* Starts the thread. e and t are borrowed; nobody else may step e until nb_core_free. */
nb_status nb_core_new(nb_engine *e, const nb_tokenizer *t, const nb_core_options *opt, nb_core **out,
                      nb_error *err);
/* Takes no new requests (submit is then NB_ERR_BUSY) and returns at once. Requests that live go on; nb_core_idle tells when
 * none does. With abort, every live request ends now with NB_FINISH_ABORT. Safe from any thread. */
void nb_core_stop(nb_core *c, bool abort);
bool nb_core_idle(const nb_core *c);
/* Ends the thread. Requests not yet freed must be freed before. */
void nb_core_free(nb_core *c);

#define NB_MAX_STOP 16

/* One sequence to complete (a request with n choices is n of them). Copied by nb_core_submit. */
typedef struct nb_request_spec {
    const char *id;         /* for log lines */
    const uint32_t *prompt; /* [n_prompt], at least one */
    size_t n_prompt;
    nb_sample_params sampling;
    size_t max_tokens; /* >= 1; prompt and answer fit max_context */
    bool open_ended;   /* the client named no max_tokens: memory is not reserved for all of them */
    const char *stop[NB_MAX_STOP]; /* strings that end the answer, matched on bytes across tokens */
    size_t stop_len[NB_MAX_STOP], n_stop;
    bool include_stop;    /* the match stays in the text */
    bool skip_special;    /* special tokens are no text … */
    const uint32_t *keep; /* … but for these (think and tool-call marks that a parser needs) */
    size_t n_keep;
    int prompt_logprobs; /* -1: none; k or NB_LOGPROBS_ALL: events for prompt tokens, and the prefix cache is not read */
    int64_t priority;       /* lower first; 0 */
    const char *cache_salt; /* NULL or "": none */
    double arrival;         /* CLOCK_MONOTONIC seconds when the client's request came */
    /* Another sequence of its request has been taken: the queue's bound in prompt tokens was looked at then. */
    bool follows;
} nb_request_spec;

/*
 * Seats are taken before the expensive work (template, tokeniser): NB_ERR_BUSY when n more requests would pass the queue's bound,
 * or when stopping; NB_ERR_LIMIT when n alone would. Each seat taken goes back by nb_core_leave, whatever became of the request. Any thread, no lock.
 */
nb_status nb_core_enter(nb_core *c, size_t n, nb_error *err);
void nb_core_leave(nb_core *c, size_t n);

/*
 * Hands a sequence over. NB_ERR_LIMIT: it can never fit (context, KV memory); NB_ERR_ARGUMENT: nb_sample_check's, or a bad id;
 * NB_ERR_BUSY: the queue's bound in prompt tokens, or stopping. Any thread. *out lives until nb_request_free.
 */
nb_status nb_core_submit(nb_core *c, const nb_request_spec *spec, nb_request **out, nb_error *err);
/* Asks that r end: within a step its last event is NB_FINISH_ABORT. Any thread, any time before nb_request_free. */
void nb_request_cancel(nb_request *r);
/* Only after its last event was taken. */
void nb_request_free(nb_request *r);

typedef enum nb_finish {
    NB_FINISH_NONE,
    NB_FINISH_STOP,   /* an end token, a stop token or a stop string */
    NB_FINISH_LENGTH, /* max_tokens, or the context's end */
    NB_FINISH_ABORT,  /* cancelled, or the server stopped */
    NB_FINISH_ERROR,  /* not finite and not healed, or the engine failed: event.error says why */
} nb_finish;

typedef enum nb_event_kind {
    NB_EVENT_PROMPT, /* one prompt token with log-probabilities, in order; the first has none */
    NB_EVENT_TOKEN,  /* one output token; the last event of a request when finish is set */
    NB_EVENT_END,    /* no token: the request ended by itself (abort, error) */
} nb_event_kind;

/* CLOCK_MONOTONIC seconds; 0: it never came to it. */
typedef struct nb_request_times {
    double arrival, scheduled, first_token, last_token;
} nb_request_times;

typedef struct nb_event {
    nb_event_kind kind;
    uint32_t token;
    const char *
        text; /* [n_text] what this token made certain: whole characters, empty while one is incomplete or a stop string
                       * may be coming; bytes that were held come with the last event. Valid until the next nb_request_next */
    size_t n_text;
    nb_logprob chosen;     /* when log-probabilities were asked for */
    const nb_logprob *top; /* [n_top], best first */
    size_t n_top;
    size_t cached_tokens;  /* prompt tokens that the prefix cache gave, on every event */
    nb_finish finish;      /* not NONE: this is the last event */
    int stop_string;       /* index in stop; -1: with NB_FINISH_STOP it was the token that ended it */
    const nb_error *error; /* NB_FINISH_ERROR: valid until nb_request_free */
    nb_request_times times;
} nb_event;

/* Takes the next event; false: there is none yet. One consumer at a time. A consumer that lets its ring fill makes the engine pass
 * its request over (it keeps its seat), never wait. */
bool nb_request_next(nb_request *r, nb_event *ev);

typedef struct nb_core_stats {
    size_t running, waiting, seats;       /* seats: nb_core_enter less leave */
    size_t blocks, blocks_used;           /* KV blocks in all, and those that live requests hold */
    uint64_t prefix_queries, prefix_hits; /* tokens */
    uint64_t preemptions, prompt_tokens, prompt_cached, generation_tokens, steps;
    uint64_t corrupted; /* requests with a row that was not finite, healed or not */
    double
        last_step; /* CLOCK_MONOTONIC seconds when a step last ended, or the thread last had nothing to do */
    bool failed;   /* the engine gave up: nothing is served any more */
} nb_core_stats;
/* A snapshot. Any thread, no lock. */
void nb_core_read(const nb_core *c, nb_core_stats *out);
/* Tokens of each step: those it generated, and the prompts that it began to answer. */
const nb_hist *nb_core_iteration_tokens(const nb_core *c);

/* What the guard did (guard.h). Copies at most cap entries; returns how many there are. Any thread. */
size_t nb_core_guard(const nb_core *c, nb_guard_count *out, size_t cap);

#endif
