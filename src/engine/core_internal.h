/* What the engine thread (core.c, core_step.c) and the requests that others hold (core_request.c) share. */
#ifndef NB_ENGINE_CORE_INTERNAL_H
#define NB_ENGINE_CORE_INTERNAL_H

#include <pthread.h>

#include "engine/core.h"
#include "engine/output.h"
#include "engine/ring.h"

/* One sequence. Everything is taken by nb_core_submit; then the engine thread's, but for the last part. */
struct nb_request {
    nb_core *core;
    nb_sched_seq seq;
    nb_request *prev, *next; /* among those that live; next also in the queue of new ones */
    char *id, *salt;
    uint32_t *tokens; /* [cap] prompt and output */
    size_t cap;
    int logprobs, prompt_logprobs;
    bool include_stop;
    size_t prompt_next; /* prompt token whose event comes next */
    nb_sampler *sampler;
    nb_output *output;
    nb_sampled sampled; /* of the step that runs */
    nb_logprob *top;    /* [top_cap] */
    size_t top_cap, n_top;
    nb_heal heal;
    bool corrupted, queued; /* queued: its prompt counts against queue_tokens */
    nb_request_times times;
    nb_error error; /* settled before the last event */
    size_t max_event;

    nb_ring ring;
    atomic_bool cancelled;
    atomic_bool full;       /* the engine passes it over until the reader makes room */
    bool over;              /* the reader's: it took the last event */
    unsigned char *scratch; /* the reader's [max_event] */
};

/* What others read without a lock. */
typedef struct nb_core_counters {
    _Atomic size_t running, live, seats, blocks_used, queued_tokens;
    _Atomic uint64_t prefix_queries, prefix_hits, preemptions, prompt_tokens, prompt_cached,
        generation_tokens, steps, corrupted;
    _Atomic double last_step;
} nb_core_counters;

/* One part of the step that runs. */
typedef struct nb_core_part {
    nb_sched_part plan;
    nb_request *r;
    nb_step_part step; /* what of it is run at the moment */
    size_t n, done;    /* rows to run (at most plan.n), rows run and finite */
    size_t bad;        /* of step: the first row whose residual or logits are not finite */
    bool masked;       /* what the request allows leaves no token to choose from */
} nb_core_part;

struct nb_core {
    nb_engine *e;
    const nb_tokenizer *tok;
    nb_core_options opt;
    size_t vocab, token_bytes; /* the longest token's */
    size_t most_tokens;        /* of one sequence: the context, or what all blocks hold */
    nb_sched *sched;
    nb_guard *guard;
    pthread_t thread;

    _Atomic(nb_request *)
        inbox;        /* new requests, the newest first; a request brings the link that it waits on */
    atomic_uint bell; /* futex: changes when there is something to look at */
    atomic_bool asleep, stopping, aborting, quit, failed;
    nb_core_counters count;
    nb_hist iteration;

    /* The thread's own. */
    nb_request *live; /* oldest first */
    nb_request *newest;
    nb_sched_part *plan;      /* [max_seqs] */
    nb_core_part *parts;      /* [max_seqs] */
    nb_core_part **run;       /* [max_seqs] parts of one engine step */
    nb_step_part *steps;      /* [max_seqs] */
    nb_core_part **sampled;   /* [max_seqs] of one tile, and where their logits are */
    const float **logits;     /* [max_seqs] */
    nb_sample_work **work;    /* [threads] */
    size_t threads, failures; /* failures: requests in a row whose steps failed, and no other succeeded */
    nb_error why;             /* why the engine gave up */
    bool told;                /* events were put since the last wake */
};

/* Lets the thread look again. Any thread. */
void nb_core_ring_bell(nb_core *c);

/* Ends r, which must not be touched any more. reason says why with NB_FINISH_ERROR. */
void nb_core_end(nb_core *c, nb_request *r, nb_finish finish, const nb_error *reason);
/* Runs the n parts of c->plan. */
void nb_core_step(nb_core *c, size_t n);

/* Room for at least two events: one of a step, and the last. */
bool nb_request_has_room(const nb_request *r);
/* Puts one event; e's text and top are copied. Publishing a last event gives r away. */
void nb_request_put(nb_request *r, nb_event *e);
/* Memory, when submitting fails and in nb_request_free. */
void nb_request_drop(nb_request *r);

#endif
