/*
 * The scheduler: which sequences compute how many tokens in the next step. Pure bookkeeping over KV blocks: it runs no model, has
 * no clock and no thread, so that a test can drive it through millions of steps. vLLM's V1 scheduler is the model (no prefill
 * and decode phases: each request catches up with its tokens), with reservation so that nothing needs to be evicted.
 *
 * Its invariants, each with a test (specs/serving.md, part 3): conservation of blocks and seats; what can never fit is refused
 * at once; every plan schedules a token or there is no work; decodes first, then arrival order within the budget; one long
 * prompt cannot starve others nor be starved.
 */
#ifndef NB_ENGINE_SCHED_H
#define NB_ENGINE_SCHED_H

#include "engine/pages.h"

typedef struct nb_sched nb_sched;

typedef enum nb_reserve {
    NB_RESERVE_FULL, /* prompt and max_tokens are reserved; open-ended requests grow by the free blocks, and are preempted last
                        * come first when there are none */
    NB_RESERVE_PROMPT, /* the prompt must fit; preemption by recompute when blocks run out (vLLM) */
} nb_reserve;

typedef struct nb_sched_options {
    size_t max_seqs;    /* sequences that run at once: slots 0 … max_seqs - 1 */
    size_t max_rows;    /* tokens of one step (max_num_batched_tokens) */
    size_t max_context; /* tokens of one sequence */
    size_t
        chunk_limit; /* most tokens of one prompt in a step while others wait (long_prefill_token_threshold); 0: no limit */
    nb_reserve reserve;
    size_t queue_requests; /* requests that may live at once (running and waiting); 0: no bound */
    size_t queue_tokens;   /* prompt tokens that may wait at once; 0: no bound */
    double
        bypass_seconds; /* a head that does not fit may be passed by smaller requests until it has waited this long */
    bool priorities; /* by (priority, arrival) instead of arrival */
} nb_sched_options;

typedef enum nb_sched_state { NB_SCHED_NONE, NB_SCHED_WAITING, NB_SCHED_RUNNING } nb_sched_state;

/* One sequence, embedded in its owner's request. The first part is the owner's, the second the scheduler's. */
typedef struct nb_sched_seq {
    const uint32_t *tokens;    /* prompt and output so far; the owner appends */
    size_t n_prompt, n_tokens; /* n_tokens >= n_prompt */
    size_t max_tokens;         /* of output */
    bool open_ended;           /* no max_tokens of the client's */
    bool no_cache_read;        /* prompt_logprobs: every prompt token is computed */
    bool parked;               /* the owner's ring is full: passed over, keeps its seat */
    int64_t priority;
    double arrival;
    const char *salt; /* cache_salt, "" for none */

    nb_sched_state state;
    uint32_t slot;   /* while running */
    size_t computed; /* committed tokens */
    size_t cached;   /* of them, from the prefix cache at the first admission */
    size_t reserved; /* blocks */
    unsigned preempted;
    struct nb_sched_seq *prev, *next;
} nb_sched_seq;

nb_status nb_sched_new(const nb_sched_options *opt, nb_pages *pages, nb_sched **out, nb_error *err);
void nb_sched_free(nb_sched *s);

/* NB_ERR_LIMIT: it can never fit in the context or in all blocks there are. Tested without touching the scheduler: any thread. */
nb_status nb_sched_fits(const nb_sched_options *opt, size_t blocks, size_t n_prompt, size_t max_tokens,
                        bool open_ended, nb_error *err);
/* Puts q at its place in the queue. */
void nb_sched_submit(nb_sched *s, nb_sched_seq *q);

typedef struct nb_sched_part {
    nb_sched_seq *q;
    size_t from, n; /* tokens [from, from + n) of q */
    bool opened; /* q has just been given its slot, with `from` tokens of the cache in place: open it there */
    bool last;   /* from + n == n_tokens: its logits make a token */
} nb_sched_part;

/* Plans the next step into parts [max_seqs]. Pages for the rows are in place. 0: nothing can run (no work, or all parked). now:
 * seconds of a clock that does not go back. Preempted sequences lose slot and pages and wait again at the front. */
size_t nb_sched_plan(nb_sched *s, double now, nb_sched_part *parts);
/* After the step: the first n of the part's rows count. publish: they were finite, so that full blocks may be shared. */
void nb_sched_commit(nb_sched *s, const nb_sched_part *part, size_t n, bool publish);
/* Takes q out, wherever it is: slot and pages go back. */
void nb_sched_finish(nb_sched *s, nb_sched_seq *q);

size_t nb_sched_running(const nb_sched *s);
size_t nb_sched_waiting(const nb_sched *s);
uint64_t nb_sched_preemptions(const nb_sched *s);
/* Every invariant of conservation; NB_ERR_FORMAT names the one that is broken. O(everything): tests, and when idle. */
nb_status nb_sched_check(const nb_sched *s, nb_error *err);

#endif
