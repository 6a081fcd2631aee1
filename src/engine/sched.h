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
    /* nb_model.turns_at: a sequence that grows beyond so many tokens is computed anew, and shares nothing from then on. 0: none. */
    size_t turns_at;
} nb_sched_options;

typedef enum nb_sched_state { NB_SCHED_NONE, NB_SCHED_WAITING, NB_SCHED_RUNNING } nb_sched_state;

/* One sequence, embedded in its owner's request. The first part is the owner's, the second the scheduler's. */
typedef struct nb_sched_seq {
    const uint32_t *tokens;    /* prompt and output so far; the owner appends */
    size_t n_prompt, n_tokens; /* n_tokens >= n_prompt */
    size_t max_tokens;         /* of output */
    bool open_ended;           /* no max_tokens of the client's */
    bool no_cache_read;        /* prompt_logprobs: every prompt token is computed */
    bool parked; /* the owner's ring is full: passed over; keeps its seat until another needs its blocks */
    int64_t priority;
    double arrival;
    const char *salt; /* cache_salt, "" for none; not NULL */

    nb_sched_state state;
    uint32_t slot;   /* while running */
    size_t computed; /* committed tokens */
    size_t cached;   /* of them, from the prefix cache at the first admission */
    size_t reserved; /* blocks */
    size_t boundary; /* a chunk ends here, where another prompt parts; 0: nowhere */
    unsigned preempted;
    bool turned;      /* it has more than turns_at tokens, and has begun anew for that */
    bool unshared;    /* a row was not finite, or healed: nothing from here on may be shared */
    size_t plain;     /* tokens before the part that made it unshared: no others may come from the cache */
    uint64_t planned; /* the last plan that had a part of it; 0: none since it has its slot */
    struct nb_sched_seq *prev, *next;
} nb_sched_seq;

/* pages are borrowed; all their slots are the scheduler's from now on. NB_ERR_ARGUMENT: max_rows < max_seqs (every decode has
 * its row in every step). */
nb_status nb_sched_new(const nb_sched_options *opt, nb_pages *pages, nb_sched **out, nb_error *err);
void nb_sched_free(nb_sched *s);

/* NB_ERR_LIMIT: it can never fit in the context or in all blocks there are. Tested without touching the scheduler: any thread. */
nb_status nb_sched_fits(const nb_sched_options *opt, size_t blocks, size_t n_prompt, size_t max_tokens,
                        bool open_ended, nb_error *err);
/* Tokens that one sequence may have: the context, or what all blocks hold. Its owner ends an open-ended sequence there. */
size_t nb_sched_context(const nb_sched_options *opt, size_t blocks);
/* Puts q (which fits) at its place in the queue. Its memory must not move until nb_sched_finish. */
void nb_sched_submit(nb_sched *s, nb_sched_seq *q);

typedef struct nb_sched_part {
    nb_sched_seq *q;
    size_t from, n; /* tokens [from, from + n) of q */
    bool
        opened; /* q has just been given its slot, with `from` tokens of the cache in place: nb_seq_start it there */
    bool last; /* from + n == n_tokens: its logits make a token */
} nb_sched_part;

/* Plans the next step into parts [max_seqs], decodes first. Pages for the rows are in place. 0: nothing can run (no work, or all
 * that runs is parked). now: seconds on arrival's clock. Preempted sequences lose slot and pages and wait again at the front; the
 * engine needs no word of it, since a slot is started anew for its next owner. */
size_t nb_sched_plan(nb_sched *s, double now, nb_sched_part *parts);
/* After the step, before or after nb_seq_commit: the first n of the part's rows count. publish: they were finite and what plain
 * computing gives, so that full blocks may be shared; once false, this sequence shares no more, and if it is preempted takes nothing
 * from the cache but tokens before this part. */
void nb_sched_commit(nb_sched *s, const nb_sched_part *part, size_t n, bool publish);
/* Takes q out, wherever it is: slot and pages go back (nb_seq_close is not needed; called before, it would take the rows that
 * the cache is to keep). */
void nb_sched_finish(nb_sched *s, nb_sched_seq *q);

size_t nb_sched_running(const nb_sched *s);
size_t nb_sched_waiting(const nb_sched *s);
uint64_t nb_sched_preemptions(const nb_sched *s);
/* Every invariant of conservation; NB_ERR_FORMAT names the one that is broken. O(everything): tests, and when idle. */
nb_status nb_sched_check(const nb_sched *s, nb_error *err);

#endif
