/* The scheduler's decisions, one by one, over a pool of 16-token blocks of one plain stream without a cache (unless a test asks). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/sched.h"

enum { SEQS = 4, CONTEXT = 1024, MANY = 12 };

typedef struct bench {
    nb_sched_options opt;
    nb_pages *pages;
    nb_sched *s;
    nb_sched_seq q[MANY];
    uint32_t ids[MANY][CONTEXT + 1];
    nb_sched_part parts[SEQS];
    size_t n;
} bench;

static bench *open_windowed(nb_sched_options opt, size_t blocks, bool cache, size_t window)
{
    bench *b = calloc(1, sizeof *b);
    const nb_stream_decl decl = {1, 1, window};
    assert_non_null(b);
    opt.max_seqs = SEQS;
    if (!opt.max_context) opt.max_context = CONTEXT;
    if (!opt.max_rows) opt.max_rows = 256;
    b->opt = opt;
    const nb_pages_options po = {SEQS, opt.max_context, opt.max_rows, blocks, cache};
    assert_int_equal(nb_pages_new(&decl, 1, &po, &b->pages, NULL), NB_OK);
    assert_int_equal(nb_sched_new(&opt, b->pages, &b->s, NULL), NB_OK);
    for (uint32_t i = 0; i < MANY; i++)
        for (uint32_t t = 0; t <= CONTEXT; t++) b->ids[i][t] = i * 10000 + t; /* no two begin alike */
    return b;
}

static bench *open_bench(nb_sched_options opt, size_t blocks, bool cache)
{
    return open_windowed(opt, blocks, cache, 0);
}

static void close_bench(bench *b)
{
    nb_error err;
    if (nb_sched_check(b->s, &err) != NB_OK) fail_msg("%s", err.cause);
    if (nb_pages_check(b->pages, &err) != NB_OK) fail_msg("%s", err.cause);
    nb_sched_free(b->s);
    nb_pages_free(b->pages);
    free(b);
}

/* max_tokens 0: open-ended. */
static nb_sched_seq *submit(bench *b, size_t i, size_t n_prompt, size_t max_tokens, double arrival)
{
    nb_sched_seq *q = &b->q[i];
    *q = (nb_sched_seq){.tokens = b->ids[i],
                        .n_prompt = n_prompt,
                        .n_tokens = n_prompt,
                        .max_tokens = max_tokens ? max_tokens : b->opt.max_context - n_prompt,
                        .open_ended = max_tokens == 0,
                        .arrival = arrival,
                        .salt = ""};
    nb_sched_submit(b->s, q);
    return q;
}

static const nb_sched_part *part_of(const bench *b, const nb_sched_seq *q)
{
    for (size_t i = 0; i < b->n; i++)
        if (b->parts[i].q == q) return &b->parts[i];
    return NULL;
}

static void plan(bench *b, double now)
{
    b->n = nb_sched_plan(b->s, now, b->parts);
    nb_error err;
    if (nb_sched_check(b->s, &err) != NB_OK) fail_msg("%s", err.cause);
}

/* Commits the plan; who has computed all its tokens gets another. */
static void commit(bench *b)
{
    for (size_t i = 0; i < b->n; i++) {
        nb_pages_trim(b->pages, b->parts[i].q->slot, b->parts[i].from + b->parts[i].n);
        nb_sched_commit(b->s, &b->parts[i], b->parts[i].n, true);
        b->parts[i].q->n_tokens += b->parts[i].last;
    }
}

static void steps(bench *b, size_t n, double now)
{
    while (n-- > 0) {
        plan(b, now);
        commit(b);
    }
}

static void test_what_never_fits_is_refused(void **unused)
{
    const nb_sched_options opt = {.max_context = 1000};
    nb_error err;
    assert_int_equal(nb_sched_fits(&opt, 100, 900, 100, false, &err), NB_OK);
    assert_int_equal(nb_sched_fits(&opt, 100, 900, 101, false, &err), NB_ERR_LIMIT);
    assert_non_null(strstr(err.cause, "the context of 1000 tokens"));
    assert_int_equal(nb_sched_fits(&opt, 100, 999, 5000, true, &err), NB_OK); /* one token of answer */
    assert_int_equal(nb_sched_fits(&opt, 100, 1000, 1, true, &err), NB_ERR_LIMIT);
    assert_int_equal(nb_sched_fits(&opt, 10, 150, 10, false, &err), NB_OK); /* ten blocks: 160 tokens */
    assert_int_equal(nb_sched_fits(&opt, 10, 150, 11, false, &err), NB_ERR_LIMIT);
    assert_non_null(strstr(err.cause, "the KV memory of 160 tokens"));
    assert_int_equal(nb_sched_fits(&opt, 100, SIZE_MAX, 1, false, &err), NB_ERR_LIMIT);
    assert_int_equal(nb_sched_fits(&opt, 100, 1, SIZE_MAX, false, &err), NB_ERR_LIMIT);
}

static void test_too_small_steps_are_refused(void **unused)
{
    bench *b = open_bench((nb_sched_options){0}, 64, false);
    nb_sched *s = NULL;
    nb_error err;
    const nb_sched_options opt = {.max_seqs = 8, .max_rows = 7, .max_context = CONTEXT};
    assert_int_equal(nb_sched_new(&opt, b->pages, &s, &err), NB_ERR_ARGUMENT);
    assert_null(s);
    close_bench(b);
}

static void test_decodes_first_then_arrival(void **unused)
{
    bench *b = open_bench((nb_sched_options){.max_rows = 64}, 128, false);
    nb_sched_seq *late = submit(b, 0, 10, 20, 5), *early = submit(b, 1, 100, 20, 1);
    plan(b, 6); /* all rows go to who came first */
    assert_int_equal(b->n, 1);
    assert_int_equal(part_of(b, early)->n, 64);
    commit(b);
    plan(b, 6); /* the rest of its prompt, and the other's prompt */
    assert_int_equal(part_of(b, early)->n, 36);
    assert_true(part_of(b, early)->last && !part_of(b, early)->opened);
    assert_int_equal(part_of(b, late)->n, 10);
    assert_true(part_of(b, late)->opened && part_of(b, late)->last);
    commit(b);
    nb_sched_seq *third = submit(b, 2, 200, 20, 0); /* arrived before all, and is a prompt */
    plan(b, 6);
    assert_int_equal(b->n, 3);
    assert_ptr_equal(b->parts[0].q, early);
    assert_ptr_equal(b->parts[1].q, late);
    assert_int_equal(part_of(b, third)->n, 62);
    commit(b);
    plan(b, 6);
    assert_ptr_equal(b->parts[2].q, third); /* still after the decodes */
    assert_int_equal(part_of(b, third)->from, 62);
    close_bench(b);
}

static void test_a_long_prompt_leaves_room(void **unused)
{
    bench *b = open_bench((nb_sched_options){.max_rows = 100, .chunk_limit = 40}, 128, false);
    nb_sched_seq *big = submit(b, 0, 500, 10, 0);
    plan(b, 0);
    assert_int_equal(part_of(b, big)->n, 100); /* alone it may have all */
    commit(b);
    nb_sched_seq *small = submit(b, 1, 30, 10, 1);
    plan(b, 1);
    assert_int_equal(part_of(b, big)->n, 40);
    assert_int_equal(part_of(b, small)->n, 30);
    commit(b);
    plan(b, 1); /* the small one decodes, the big one is not starved */
    assert_int_equal(part_of(b, small)->n, 1);
    assert_int_equal(part_of(b, big)->n, 40);
    close_bench(b);
}

/* 40 blocks; the first holds 25 of them to its end, so the second (30) waits while a third (5) fits. */
static void test_who_does_not_fit_is_passed_for_a_while(void **unused)
{
    bench *b = open_bench((nb_sched_options){.bypass_seconds = 10, .max_rows = 512}, 40, false);
    nb_sched_seq *holder = submit(b, 0, 300, 100, 0);
    plan(b, 0);
    assert_non_null(part_of(b, holder));
    commit(b);
    nb_sched_seq *big = submit(b, 1, 380, 100, 1), *small = submit(b, 2, 60, 20, 2);
    plan(b, 2);
    assert_null(part_of(b, big));
    assert_non_null(part_of(b, small));
    commit(b);
    nb_sched_finish(b->s, small);
    nb_sched_seq *later = submit(b, 3, 60, 20, 3);
    plan(b, 11.5); /* the big one has waited 10.5 seconds: nobody passes it any more */
    assert_null(part_of(b, later));
    commit(b);
    nb_sched_finish(b->s, holder);
    plan(b, 12); /* 30 and 5 of 40 */
    assert_non_null(part_of(b, big));
    assert_non_null(part_of(b, later));
    close_bench(b);
}

/* 20 blocks and three times 128 tokens of prompt and answer, 8 blocks each: two run from the start to the end. */
static void test_what_is_reserved_is_never_taken(void **unused)
{
    bench *b = open_bench((nb_sched_options){0}, 20, false);
    nb_sched_seq *q[3];
    for (size_t i = 0; i < 3; i++) q[i] = submit(b, i, 28, 100, (double)i);
    for (int i = 0; i < 100; i++) {
        plan(b, 100);
        assert_true(b->n == 2 && part_of(b, q[0]) && part_of(b, q[1]));
        commit(b);
    }
    assert_int_equal(q[0]->n_tokens, 128);
    nb_sched_finish(b->s, q[0]);
    plan(b, 100);
    assert_non_null(part_of(b, q[2]));
    assert_int_equal(nb_sched_preemptions(b->s), 0);
    close_bench(b);
}

/* 20 blocks. Two chats without max_tokens begin with 4 each of them and some more and grow by what is free; then the later one has to go. */
static void test_open_ended_growth_and_preemption(void **unused)
{
    bench *b = open_bench((nb_sched_options){0}, 20, false);
    nb_sched_seq *first = submit(b, 0, 60, 0, 0), *second = submit(b, 1, 60, 0, 1);
    plan(b, 1);
    assert_int_equal(b->n, 2); /* it did not reserve all of the context */
    commit(b);
    while (nb_sched_preemptions(b->s) == 0) {
        plan(b, 1);
        assert_true(b->n > 0);
        assert_non_null(part_of(b, first)); /* it came first: it never has to wait */
        commit(b);
    }
    assert_int_equal(second->state, NB_SCHED_WAITING);
    assert_null(part_of(b, second)); /* not in the step that preempted it */
    assert_int_equal(second->computed, 0);
    assert_true(second->n_tokens > 60); /* its answer so far is kept, to be computed again */
    nb_sched_seq *third = submit(b, 2, 5, 5, 2);
    while (first->n_tokens < 320) { /* 20 blocks: all there are */
        plan(b, 2);
        assert_non_null(part_of(b, first));
        commit(b);
    }
    assert_int_equal(nb_sched_context(&b->opt, 20), 320);
    nb_sched_finish(b->s, first);
    plan(b, 1000); /* the preempted one is in front, and nobody passes it */
    assert_true(b->n == 2 && b->parts[0].q == second && b->parts[0].opened && b->parts[0].from == 0);
    assert_non_null(part_of(b, third));
    close_bench(b);
}

/* Who was preempted three times waits until all that it can ever need is free. */
static void test_three_times_is_enough(void **unused)
{
    bench *b = open_bench((nb_sched_options){0}, 20, false);
    nb_sched_seq *victim = submit(b, 1, 60, 0, 1);
    victim->max_tokens = 230; /* 290 tokens: 19 blocks */
    steps(b, 1, 1);
    victim->preempted = 2;
    nb_sched_seq *first = submit(b, 0, 60, 0, 0);
    while (nb_sched_preemptions(b->s) == 0) steps(b, 1, 1);
    assert_int_equal(victim->preempted, 3);
    nb_sched_finish(b->s, first);
    nb_sched_seq *two = submit(b, 2, 10, 20, 0); /* 2 blocks: 18 are left */
    steps(b, 1, 1);
    assert_non_null(part_of(b, victim)); /* in front */
    assert_int_equal(victim->reserved, 19);
    assert_null(part_of(b, two)); /* one block is left */
    close_bench(b);
}

/* As vLLM: the prompt must fit, then blocks are taken as they are needed. */
static void test_reserving_the_prompt_alone(void **unused)
{
    bench *b = open_bench((nb_sched_options){.reserve = NB_RESERVE_PROMPT}, 20, false);
    nb_sched_seq *q[3];
    for (size_t i = 0; i < 3; i++) q[i] = submit(b, i, 90, 200, (double)i);
    plan(b, 5);
    assert_int_equal(b->n, 3); /* 18 blocks of prompts, though 54 may be needed */
    commit(b);
    for (int i = 0; i < 200; i++) {
        plan(b, 5);
        assert_non_null(part_of(b, q[0]));
        commit(b);
    }
    assert_int_equal(q[0]->preempted, 0);
    assert_true(q[2]->preempted > 0 && q[2]->preempted >= q[1]->preempted);
    close_bench(b);
}

/* Four sequences hold the four blocks there are, and all need another in the same step: the oldest takes the youngest's, and the
 * two between wait; nobody comes in although a queued one would fit what is left. */
static void test_one_set_of_victims_a_step(void **unused)
{
    bench *b = open_bench((nb_sched_options){.reserve = NB_RESERVE_PROMPT}, 4, false);
    nb_sched_seq *q[4], *later;
    for (size_t i = 0; i < 4; i++) q[i] = submit(b, i, 15, 30, (double)i);
    steps(b, 2, 5); /* the prompts, and a 16th token */
    later = submit(b, 5, 3, 2, 9);
    plan(b, 9);
    assert_true(b->n == 1 && b->parts[0].q == q[0] && nb_sched_preemptions(b->s) == 1);
    assert_int_equal(q[3]->state, NB_SCHED_WAITING);
    assert_true(q[1]->state == NB_SCHED_RUNNING && q[2]->state == NB_SCHED_RUNNING);
    commit(b);
    nb_sched_finish(b->s, q[1]); /* its block goes to the next that needs one */
    plan(b, 9);
    assert_true(b->n == 2 && part_of(b, q[0]) && part_of(b, q[2]) && nb_sched_preemptions(b->s) == 1);
    assert_int_equal(later->state, NB_SCHED_WAITING);
    commit(b);
    close_bench(b);
}

/* The victim frees three blocks and one is needed: the other two are not for the queue in the same step. */
static void test_nobody_comes_in_on_a_victims_blocks(void **unused)
{
    bench *b = open_bench((nb_sched_options){.reserve = NB_RESERVE_PROMPT, .bypass_seconds = 100}, 5, false);
    nb_sched_seq *first = submit(b, 0, 30, 40, 0), *victim = submit(b, 1, 40, 20, 1), *small;
    steps(b, 3, 1); /* 32 tokens of the first: its two blocks are full */
    small = submit(b, 2, 3, 2, 2);
    plan(b, 1);
    assert_int_equal(victim->state, NB_SCHED_WAITING);
    assert_true(b->n == 1 && part_of(b, first) && small->state == NB_SCHED_WAITING);
    commit(b);
    plan(b, 1); /* the victim still does not fit; the small one passes it */
    assert_true(b->n == 2 && part_of(b, small));
    close_bench(b);
}

/* The last come needs a block and those before it are no victims: it keeps what it has and waits. */
static void test_the_last_come_waits(void **unused)
{
    bench *b = open_bench((nb_sched_options){0}, 10, false);
    nb_sched_seq *q[2] = {submit(b, 0, 30, 98, 0), submit(b, 1, 20, 0, 1)}; /* 8 blocks for good; 2 */
    while (q[0]->n_tokens < 60) {
        plan(b, 1);
        assert_non_null(part_of(b, q[0]));
        commit(b);
    }
    assert_true(q[1]->state == NB_SCHED_RUNNING && q[1]->computed == 32 && nb_sched_preemptions(b->s) == 0);
    nb_sched_finish(b->s, q[0]);
    plan(b, 1);
    assert_non_null(part_of(b, q[1]));
    close_bench(b);
}

/* Two parked sequences hold a block each and are promised one more, as is one that runs and came first; two blocks are the
 * sequence's that needs some. */
static void test_as_few_victims_as_free_enough_or_none(void **unused)
{
    static const uint64_t victims[] = {0, 1, 1, 2, 2, 0}; /* nobody goes when all of them are not enough */
    for (size_t need = 1; need <= 5; need++) {
        bench *b = open_bench((nb_sched_options){0}, 8, false);
        for (size_t k = 0; k < 3; k++) submit(b, k, 10, 22, k ? (double)k : -1);
        steps(b, 1, 5);
        nb_sched_seq *q = submit(b, 3, 17, 0, 0);
        steps(b, 1, 5);
        assert_int_equal(q->reserved, 2);
        b->q[1].parked = b->q[2].parked = true;
        q->n_tokens = (2 + need) * NB_BLOCK;
        plan(b, 5);
        assert_int_equal(nb_sched_preemptions(b->s), victims[need]);
        assert_int_equal(part_of(b, q) != NULL, need < 5);
        assert_non_null(part_of(b, &b->q[0]));
        close_bench(b);
    }
}

/* A younger sequence that this plan runs already is no victim, or its part would point to nothing. */
static void test_who_is_planned_stays(void **unused)
{
    bench *b = open_bench((nb_sched_options){.reserve = NB_RESERVE_PROMPT}, 4, false);
    nb_sched_seq *older = submit(b, 0, 20, 40, 0), *younger = submit(b, 1, 20, 10, 1);
    steps(b, 1, 1);
    older->n_tokens = 40; /* several at once: no decode, so it comes after the other's */
    plan(b, 1);
    assert_true(b->n == 1 && b->parts[0].q == younger && younger->state == NB_SCHED_RUNNING);
    close_bench(b);
}

/* With windows, where two prompts part is found by the second, kept by it, and a hit for the third. */
static void test_where_prompts_part_is_kept(void **unused)
{
    bench *b = open_windowed((nb_sched_options){0}, 64, true, 32);
    for (size_t i = 1; i < 3; i++) memcpy(b->ids[i], b->ids[0], 100 * sizeof **b->ids);
    nb_sched_seq *q[3];
    for (size_t i = 0; i < 3; i++) {
        q[i] = submit(b, i, 208, 20, (double)i);
        plan(b, 9);
        static const size_t from[] = {0, 0, 96}, n[] = {208, 96, 112};
        assert_int_equal(part_of(b, q[i])->from, from[i]);
        assert_int_equal(part_of(b, q[i])->n, n[i]);
        commit(b);
        steps(b, 1, 9);
        nb_sched_finish(b->s, q[i]);
    }
    nb_sched_seq *again =
        submit(b, 3, 208, 20, 9); /* the first prompt once more: its last block is computed */
    again->tokens = b->ids[0];
    plan(b, 9);
    assert_int_equal(part_of(b, again)->from, 192);
    close_bench(b);
}

/* Three times one prompt in a step, and another: the second and third wait for the first's blocks, with windows for its end. */
static void test_what_is_coming_is_waited_for(void **unused)
{
    for (size_t kind = 0; kind < 4; kind++) {
        bench *b = open_windowed((nb_sched_options){.max_rows = 1000, .bypass_seconds = 100}, 128, kind < 3,
                                 kind == 1 ? 32 : 0);
        nb_sched_seq *q[4];
        for (size_t i = 0; i < 4; i++) {
            q[i] = submit(b, i, i == 3 ? 40 : 200, 20, (double)i);
            if (i < 3) q[i]->tokens = b->ids[0];
        }
        if (kind == 2) q[1]->salt = "another"; /* which finds nothing of the first's */
        plan(b, 9);
        assert_true(part_of(b, q[0]) && part_of(b, q[3]));
        assert_int_equal(part_of(b, q[1]) != NULL, kind >= 2);
        assert_int_equal(part_of(b, q[2]) != NULL, kind == 3);
        commit(b);
        plan(b, 9);
        assert_int_equal(b->n, 4);
        if (kind < 3) assert_int_equal(part_of(b, q[2])->from, 192);
        if (kind < 2) assert_int_equal(part_of(b, q[1])->from, 192);
        close_bench(b);
    }
}

/* A prompt that goes on as another's does is waited for while it comes; where it parts, only without windows. */
static void test_what_is_coming_in_part(void **unused)
{
    for (size_t window = 0; window <= 32; window += 32) {
        bench *b = open_windowed((nb_sched_options){.max_rows = 128}, 128, true, window);
        memcpy(b->ids[1], b->ids[0], 150 * sizeof **b->ids);
        nb_sched_seq *first = submit(b, 0, 300, 20, 0), *second = submit(b, 1, 300, 20, 1);
        plan(b, 9);
        assert_true(b->n == 1 && b->parts[0].q == first);
        commit(b);
        plan(b, 9); /* 128 of 144 are there, and 16 are not worth another wait; there are no rows left */
        assert_true(b->n == 1 && part_of(b, first)->from == 128);
        commit(b);
        plan(b, 9); /* 256 */
        assert_int_equal(part_of(b, first)->n, 44);
        assert_int_equal(part_of(b, second)->from, window ? 0 : 144);
        close_bench(b);
    }
}

/* A decode that came later does not take the memory of a prompt that is not through. */
static void test_who_came_first_is_no_victim(void **unused)
{
    bench *b = open_bench((nb_sched_options){.reserve = NB_RESERVE_PROMPT, .max_rows = 20}, 9, false);
    nb_sched_seq *younger = submit(b, 1, 30, 60, 1), *older;
    steps(b, 3, 1);
    assert_int_equal(younger->computed, 31);
    older = submit(b, 0, 110, 2, 0);
    steps(b, 1, 1);
    plan(b, 1); /* the 33rd token needs a third block, and the other holds or is promised seven of nine */
    assert_true(b->n == 1 && b->parts[0].q == older && younger->state == NB_SCHED_RUNNING);
    assert_int_equal(nb_sched_preemptions(b->s), 0);
    close_bench(b);
}

static void test_priorities(void **unused)
{
    bench *b = open_bench((nb_sched_options){.priorities = true, .max_rows = 32}, 20, false);
    nb_sched_seq *low = submit(b, 0, 32, 8, 0), *high = &b->q[1];
    *high = *low;
    high->tokens = b->ids[1];
    high->priority = -1;
    high->arrival = 1;
    high->state = NB_SCHED_NONE;
    nb_sched_submit(b->s, high);
    plan(b, 2);
    assert_true(b->n == 1 && b->parts[0].q == high);
    commit(b);
    plan(b, 2);
    assert_int_equal(part_of(b, high)->n, 1);
    assert_int_equal(part_of(b, low)->n, 31);
    close_bench(b);
}

static void test_parked_sequences(void **unused)
{
    bench *b = open_bench((nb_sched_options){0}, 20, false);
    nb_sched_seq *slow = submit(b, 0, 100, 0, 0), *other = submit(b, 1, 20, 0, 1);
    nb_sched_seq *third = submit(b, 2, 10, 70, 2);
    steps(b, 1, 1);
    slow->parked = true;
    plan(b, 1);
    assert_true(b->n == 2 && b->parts[0].q == other);
    assert_int_equal(slow->state, NB_SCHED_RUNNING); /* it keeps its seat … */
    commit(b);
    while (nb_sched_preemptions(b->s) == 0) {
        plan(b, 1);
        assert_non_null(part_of(b, other));
        assert_non_null(part_of(b, third)); /* the preempted one stood before it */
        commit(b);
    }
    nb_sched_finish(b->s, third);
    assert_int_equal(slow->state,
                     NB_SCHED_WAITING); /* … until who can run needs its memory, whoever came first */
    other->parked = true;
    plan(b, 1);
    assert_int_equal(b->n, 0); /* all are parked */
    slow->parked = other->parked = false;
    plan(b, 1);
    assert_true(b->n > 0);
    close_bench(b);
}

static void test_cancelled_anywhere(void **unused)
{
    bench *b = open_bench((nb_sched_options){0}, 40, false);
    nb_sched_seq *q[6];
    for (size_t i = 0; i < 6; i++) q[i] = submit(b, i, 40, 10, (double)i);
    plan(b, 9);
    assert_true(b->n == 4 && nb_sched_running(b->s) == 4 && nb_sched_waiting(b->s) == 2);
    nb_sched_finish(b->s, q[1]); /* between plan and commit */
    nb_sched_finish(b->s, q[5]);
    assert_int_equal(nb_sched_running(b->s) + nb_sched_waiting(b->s), 4);
    for (size_t i = 0; i < 6; i++)
        if (q[i]->state != NB_SCHED_NONE) nb_sched_finish(b->s, q[i]);
    nb_sched_finish(b->s, q[0]); /* once more changes nothing */
    assert_int_equal(nb_sched_running(b->s) + nb_sched_waiting(b->s) + nb_pages_used(b->pages), 0);
    plan(b, 9);
    assert_int_equal(b->n, 0);
    close_bench(b);
}

/* What a sequence published before a bad row may be had; nothing from the bad row on, healed or not. */
static void test_published_only_when_finite(void **unused)
{
    bench *b = open_bench((nb_sched_options){.max_rows = 32}, 64, true);
    nb_sched_seq *q = submit(b, 0, 96, 10, 0);
    steps(b, 1, 0); /* 32 sound tokens */
    plan(b, 0);
    nb_sched_commit(b->s, b->parts, b->parts[0].n, false);
    steps(b, 1, 0); /* sound again, but behind healed rows */
    assert_int_equal(q->computed, 96);
    nb_sched_finish(b->s, q);
    nb_sched_seq *again = submit(b, 1, 97, 10, 0);
    again->tokens = b->ids[0];
    plan(b, 0);
    assert_int_equal(part_of(b, again)->from, 32);
    assert_int_equal(again->cached, 32);
    assert_int_equal(nb_pages_cached(b->pages), 0); /* the 64 tokens after them were dropped */
    commit(b);
    nb_sched_finish(b->s, again);
    nb_sched_seq *blind = submit(b, 2, 60, 10, 0);
    blind->tokens = b->ids[0];
    blind->no_cache_read = true;
    plan(b, 0);
    assert_int_equal(part_of(b, blind)->from, 0);
    close_bench(b);
}

/* A healed sequence that was preempted takes from the cache what is before its healing, though another has published what follows. */
static void test_healed_rows_are_not_taken_from_the_cache(void **unused)
{
    bench *b = open_bench((nb_sched_options){.max_rows = 33, .reserve = NB_RESERVE_PROMPT}, 14, true);
    nb_sched_seq *plain = submit(b, 0, 97, 200, 0), *q;
    steps(b, 4, 0);
    q = submit(b, 1, 97, 200, 1);
    q->tokens = b->ids[0];
    q->no_cache_read = true; /* so that it computes what it could have */
    steps(b, 2, 1);
    assert_int_equal(q->computed, 64);
    plan(b, 1);
    nb_sched_commit(b->s, part_of(b, q), part_of(b, q)->n, false); /* healed from 64 on */
    nb_sched_commit(b->s, part_of(b, plain), 1, true);
    plain->n_tokens++;
    q->no_cache_read = false;
    for (int i = 0; i < 200 && !q->preempted; i++) steps(b, 1, 1);
    assert_int_equal(q->preempted, 1);
    assert_true(plain->computed > 112); /* of the same tokens as q's */
    nb_sched_finish(b->s, plain);
    plan(b, 1);
    assert_non_null(part_of(b, q));
    assert_int_equal(part_of(b, q)->from, 64);
    close_bench(b);
}

/* Slow readers on every seat: who waits and can run gets one of them, last come first, and all go on when they read again. */
static void test_parked_sequences_give_way(void **unused)
{
    bench *b = open_bench((nb_sched_options){0}, 64, false);
    for (size_t i = 0; i < SEQS; i++) submit(b, i, 20, 30, (double)i);
    steps(b, 1, 4);
    assert_int_equal(nb_sched_running(b->s), SEQS);
    for (size_t i = 0; i < SEQS; i++) b->q[i].parked = true;
    nb_sched_seq *late = submit(b, SEQS, 20, 30, 5);
    plan(b, 5);
    assert_int_equal(b->n, 1);
    assert_non_null(part_of(b, late));
    assert_int_equal(b->q[SEQS - 1].state, NB_SCHED_WAITING);
    assert_int_equal(b->q[0].state, NB_SCHED_RUNNING);
    nb_sched_commit(b->s, &b->parts[0], b->parts[0].n, true);
    nb_sched_finish(b->s, late);
    for (size_t i = 0; i < SEQS; i++) b->q[i].parked = false;
    plan(b, 6);
    assert_int_equal(nb_sched_running(b->s), SEQS);
    for (size_t i = 0; i < SEQS; i++) nb_sched_finish(b->s, &b->q[i]);
    close_bench(b);
}

/* Beyond 20 tokens a sequence is computed anew: whoever is running gives up what it has, whoever comes in takes nothing. */
static void test_grown_beyond_a_turn(void **unused)
{
    bench *b = open_bench((nb_sched_options){.turns_at = 20}, 16, true);
    nb_sched_seq *q = submit(b, 0, 18, 40, 0);
    plan(b, 0);
    assert_int_equal(part_of(b, q)->n, 18);
    commit(b); /* 19 tokens, then 20 */
    steps(b, 1, 0);
    plan(b, 0);
    assert_int_equal(part_of(b, q)->n, 1); /* the 20th */
    commit(b);
    assert_int_equal(q->n_tokens, 21);
    plan(b, 0);
    assert_true(part_of(b, q)->opened);
    assert_int_equal(part_of(b, q)->from, 0);
    assert_int_equal(part_of(b, q)->n, 21);
    commit(b);
    plan(b, 0); /* once */
    assert_int_equal(part_of(b, q)->from, 21);
    commit(b);
    memcpy(b->ids[1], b->ids[0], sizeof b->ids[0]);
    nb_sched_seq *other = submit(b, 1, 30, 4, 1);
    plan(b, 1);
    assert_int_equal(part_of(b, other)->from, 0);
    commit(b);
    memcpy(b->ids[2], b->ids[0], sizeof b->ids[0]);
    nb_sched_seq *small = submit(b, 2, 18, 1, 2); /* the short rows of the first are there for a short one */
    plan(b, 2);
    assert_int_equal(part_of(b, small)->from, 16);
    close_bench(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_never_fits_is_refused),
        cmocka_unit_test(test_too_small_steps_are_refused),
        cmocka_unit_test(test_decodes_first_then_arrival),
        cmocka_unit_test(test_a_long_prompt_leaves_room),
        cmocka_unit_test(test_who_does_not_fit_is_passed_for_a_while),
        cmocka_unit_test(test_what_is_reserved_is_never_taken),
        cmocka_unit_test(test_open_ended_growth_and_preemption),
        cmocka_unit_test(test_three_times_is_enough),
        cmocka_unit_test(test_reserving_the_prompt_alone),
        cmocka_unit_test(test_one_set_of_victims_a_step),
        cmocka_unit_test(test_nobody_comes_in_on_a_victims_blocks),
        cmocka_unit_test(test_the_last_come_waits),
        cmocka_unit_test(test_as_few_victims_as_free_enough_or_none),
        cmocka_unit_test(test_who_is_planned_stays),
        cmocka_unit_test(test_where_prompts_part_is_kept),
        cmocka_unit_test(test_what_is_coming_is_waited_for),
        cmocka_unit_test(test_what_is_coming_in_part),
        cmocka_unit_test(test_who_came_first_is_no_victim),
        cmocka_unit_test(test_priorities),
        cmocka_unit_test(test_parked_sequences),
        cmocka_unit_test(test_parked_sequences_give_way),
        cmocka_unit_test(test_grown_beyond_a_turn),
        cmocka_unit_test(test_cancelled_anywhere),
        cmocka_unit_test(test_published_only_when_finite),
        cmocka_unit_test(test_healed_rows_are_not_taken_from_the_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
