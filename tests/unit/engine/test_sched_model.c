/*
 * The scheduler and the pages together, through a million random operations: submit, cancel, stop, fail, heal, park, preempt,
 * adopt, commit, discard; both ways of reserving; the streams of llama, of DeepSeek-V4 and of recurrent models. After every step conservation is
 * checked, and what a plan must keep to. Rows hold a function of all tokens up to their last one, so a page that was shared,
 * copied, given back or overwritten wrongly is seen by whoever may read it next.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "engine/pages_internal.h"
#include "engine/sched.h"

enum { CONTEXT = 320, MAX_ROWS = 48, MAX_SEQS = 5, LIVE = 12, OPERATIONS = 1200000 };

typedef struct shape {
    const char *name;
    nb_stream_decl decl[5];
    size_t n;
} shape;

/* Llama: keys and values of all tokens. DeepSeek-V4: a window, what compressors pool (8 of 4, 128 of 128), entries of 4 and of
 * 128 tokens, the indexer's; no class that has one row for each token. Mixed: rows of 2 tokens in a window besides. Recurrent:
 * keys, a convolution's tail, the tokens of a chunk of 24, and the states between chunks, of which a page holds one. */
static const shape shapes[] = {
    {"llama", {{1, 1, 0}, {2, 1, 0}}, 2},
    {"deepseek_v4", {{1, 1, 24}, {1, 1, 8}, {2, 4, 0}, {1, 128, 0}, {1, 1, 128}}, 5},
    {"mixed", {{1, 1, 0}, {1, 4, 0}, {1, 1, 20}, {1, 2, 12}}, 4},
    {"recurrent", {{1, 1, 0}, {1, 1, 4}, {2, 1, 24}, {3, 24, 2, 1}}, 4},
};
#define SHAPES (sizeof shapes / sizeof *shapes)

typedef struct request {
    nb_sched_seq q;
    uint32_t tokens[CONTEXT + 1], history[CONTEXT + 1]; /* history[t]: hash of tokens 0 … t and the salt */
    bool live;
} request;

typedef struct world {
    const shape *sh;
    nb_sched_options opt;
    nb_pages *pages;
    nb_sched *sched;
    request r[LIVE];
    uint32_t old[CONTEXT]; /* tokens of a sequence that ended: chats go on */
    size_t n_old;
    double now;
    uint64_t random, operations, steps, hits, failures, preempted, verified;
} world;

static uint32_t draw(world *w, uint32_t n)
{
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((w->random >> 33) % n);
}

static uint32_t mix(uint32_t h, uint32_t v)
{
    h = (h ^ v) * 0x9E3779B1u;
    return h ^ (h >> 15);
}

static float content(const request *r, size_t stream, size_t last_token)
{
    return (float)(1 + (mix(r->history[last_token], (uint32_t)stream + 77) >> 9)); /* below 2^23: exact */
}

static void append(request *r, uint32_t token)
{
    size_t t = r->q.n_tokens++;
    r->tokens[t] = token;
    r->history[t] = mix(t ? r->history[t - 1] : mix(17, *r->q.salt), token);
}

/* Every row that the token at position n can see. */
static void verify(world *w, const request *r, size_t n)
{
    const nb_kv *kv = nb_pages_view(w->pages);
    for (size_t i = 0; i < w->sh->n; i++) {
        size_t per = w->sh->decl[i].tokens_per_row, window = w->sh->decl[i].window;
        size_t first = window && n / per + 1 > window ? n / per + 1 - window : 0;
        for (size_t row = first; row < n / per; row++) {
            float have = *nb_kv_row(&kv->streams[i], r->q.slot, row),
                  want = content(r, i, (row + 1) * per - 1);
            if (have != want)
                fail_msg("%s: stream %zu, row %zu of %zu tokens: %g, not %g", w->sh->name, i, row, n,
                         (double)have, (double)want);
        }
    }
    w->verified++;
}

static void compute(world *w, const request *r, size_t from, size_t n)
{
    const nb_kv *kv = nb_pages_view(w->pages);
    for (size_t i = 0; i < w->sh->n; i++) {
        size_t per = w->sh->decl[i].tokens_per_row;
        for (size_t t = from; t < from + n; t++)
            if ((t + 1) % per == 0)
                for (size_t c = 0; c < w->sh->decl[i].cols; c++)
                    nb_kv_row(&kv->streams[i], r->q.slot, t / per)[c] = content(r, i, t);
    }
}

static void finish(world *w, request *r)
{
    w->n_old = r->q.n_tokens < CONTEXT ? r->q.n_tokens : CONTEXT;
    memcpy(w->old, r->tokens, w->n_old * sizeof *w->old);
    nb_sched_finish(w->sched, &r->q);
    r->live = false;
    w->operations++;
}

static void submit(world *w)
{
    static const char *const salts[] = {"", "", "", "a", "b"};
    size_t i = 0, limit = nb_sched_context(&w->opt, nb_pages_blocks(w->pages));
    while (i < LIVE && w->r[i].live) i++;
    if (i == LIVE) return;
    request *r = &w->r[i];
    *r = (request){.q = {.tokens = r->tokens, .salt = salts[draw(w, 5)]}};
    size_t n = draw(w, 3) ? 1 + draw(w, 60) : 1 + draw(w, (uint32_t)limit - 1), shared = 0;
    uint32_t family = draw(w, 3);
    if (draw(w, 3) == 0) /* the next turn of a chat */
        for (; shared < w->n_old && shared < n; shared++) append(r, w->old[shared]);
    else /* a prompt that others begin with, too */
        for (shared = 0; shared < n && draw(w, 90); shared++) append(r, family * 1000 + (uint32_t)shared);
    for (; shared < n; shared++) append(r, draw(w, 2));
    r->q.n_prompt = n;
    r->q.open_ended = draw(w, 2) == 0;
    r->q.max_tokens = r->q.open_ended ? limit - n : 1 + draw(w, 40);
    if (!r->q.open_ended && r->q.max_tokens > limit - n) r->q.max_tokens = limit - n;
    assert_int_equal(
        nb_sched_fits(&w->opt, nb_pages_blocks(w->pages), n, r->q.max_tokens, r->q.open_ended, NULL), NB_OK);
    r->q.no_cache_read = draw(w, 12) == 0;
    r->q.priority = (int64_t)draw(w, 3);
    r->q.arrival = w->now;
    r->live = true;
    nb_sched_submit(w->sched, &r->q);
    w->operations++;
}

/* What the engine and its owner do with one part of a step. */
static void carry_out(world *w, const nb_sched_part *part)
{
    request *r = (request *)part->q; /* q is the first member */
    size_t keep = part->n;
    uint32_t fate = draw(w, 64);
    if (part->opened) {
        w->hits += part->from > 0;
        assert_true(!r->q.no_cache_read || part->from == 0);
        assert_true(part->from < r->q.n_tokens);
    }
    if (part->opened || draw(w, 4) == 0) verify(w, r, part->from);
    compute(w, r, part->from, part->n);
    if (fate < 4) keep = draw(w, (uint32_t)part->n + 1); /* the rest is discarded */
    bool fails = fate == 4, healed = fate == 5;
    if (fails) keep = 0;
    bool trimmed = draw(w, 2); /* either may come first */
    if (trimmed) nb_pages_trim(w->pages, r->q.slot, part->from + keep);
    nb_sched_commit(w->sched, part, keep, !fails && !healed);
    if (!trimmed) nb_pages_trim(w->pages, r->q.slot, part->from + keep);
    assert_int_equal(r->q.computed, part->from + keep);
    w->operations++;
    if (fails) {
        w->failures++;
        finish(w, r);
        return;
    }
    if (!part->last || keep < part->n) return;
    size_t limit = nb_sched_context(&w->opt, nb_pages_blocks(w->pages));
    if (r->q.n_tokens - r->q.n_prompt + 1 >= r->q.max_tokens || r->q.n_tokens + 1 >= limit ||
        draw(w, 150) == 0)
        finish(w, r);
    else
        append(r, r->history[r->q.n_tokens - 1] % 3);
}

/* What every plan must keep to, whatever the order of events. */
static void check_plan(world *w, const nb_sched_part *parts, size_t n, uint64_t preemptions)
{
    size_t rows = 0, live = 0, running = nb_sched_running(w->sched);
    bool prefills = false;
    for (size_t i = 0; i < n; i++) {
        const nb_sched_seq *q = parts[i].q;
        rows += parts[i].n;
        assert_true(parts[i].n > 0 && q->state == NB_SCHED_RUNNING && !q->parked);
        assert_int_equal(parts[i].from, q->computed);
        assert_int_equal(parts[i].last, parts[i].from + parts[i].n == q->n_tokens);
        bool decode = q->n_tokens - q->computed == 1;
        assert_true(!decode || !prefills || parts[i].opened); /* decodes first */
        prefills = prefills || !decode;
        if (w->opt.chunk_limit && running + nb_sched_waiting(w->sched) > 1)
            assert_true(parts[i].n <= w->opt.chunk_limit);
        for (size_t k = 0; k < i; k++) assert_ptr_not_equal(parts[k].q, q);
    }
    assert_true(rows <= w->opt.max_rows);
    for (size_t i = 0; i < LIVE; i++) {
        live += w->r[i].live;
        const nb_sched_seq *q = &w->r[i].q;
        if (!w->r[i].live || n) continue;
        assert_true(q->state != NB_SCHED_RUNNING || q->parked); /* progress */
        assert_true(q->parked || running > 0);
    }
    assert_int_equal(live, running + nb_sched_waiting(w->sched)); /* seats */
    assert_true(n > 0 || nb_sched_preemptions(w->sched) == preemptions);
}

static void check_books(world *w)
{
    nb_error err;
    if (nb_sched_check(w->sched, &err) != NB_OK || nb_pages_check(w->pages, &err) != NB_OK)
        fail_msg("%s, after %llu operations: %s", w->sh->name, (unsigned long long)w->operations, err.cause);
}

static void step(world *w)
{
    nb_sched_part parts[MAX_SEQS];
    uint64_t preemptions = nb_sched_preemptions(w->sched);
    w->now += 0.01;
    if (draw(w, 3) == 0) submit(w);
    request *r = &w->r[draw(w, LIVE)];
    uint32_t event = draw(w, 60);
    if (r->live && event == 0) finish(w, r); /* cancelled */
    if (r->live && event == 1) r->q.parked = true;
    if (r->live && event > 50) r->q.parked = false;
    size_t n = nb_sched_plan(w->sched, w->now, parts);
    w->operations++;
    w->steps++;
    check_plan(w, parts, n, preemptions);
    check_books(w);
    for (size_t i = 0; i < n; i++) carry_out(w, &parts[i]);
    check_books(w);
}

static void live_through(const shape *sh, size_t blocks, nb_reserve reserve, bool cache, bool priorities,
                         bool collide, uint64_t operations, world *w)
{
    nb_error err;
    *w = (world){.sh = sh, .random = blocks * 2 + (uint64_t)reserve * 7 + cache};
    w->opt = (nb_sched_options){.max_seqs = MAX_SEQS,
                                .max_rows = MAX_ROWS,
                                .max_context = CONTEXT,
                                .chunk_limit = priorities ? 0 : 20,
                                .reserve = reserve,
                                .bypass_seconds = 0.5,
                                .priorities = priorities};
    const nb_pages_options po = {MAX_SEQS, CONTEXT, MAX_ROWS, blocks, cache};
    assert_int_equal(nb_pages_new(sh->decl, sh->n, &po, &w->pages, &err), NB_OK);
    assert_int_equal(nb_sched_new(&w->opt, w->pages, &w->sched, &err), NB_OK);
    if (collide) w->pages->tree.key_bits = 1; /* two keys for all blocks */
    while (w->operations < operations) step(w);
    w->preempted = nb_sched_preemptions(w->sched);
    for (size_t i = 0; i < LIVE; i++)
        if (w->r[i].live) finish(w, &w->r[i]);
    check_books(w);
    assert_int_equal(nb_pages_used(w->pages), 0);
    assert_int_equal(nb_sched_running(w->sched) + nb_sched_waiting(w->sched), 0);
    nb_sched_free(w->sched);
    nb_pages_free(w->pages);
}

static void test_a_million_operations(void **unused)
{
    struct timespec a, b;
    uint64_t operations = 0, hits = 0, preempted = 0, runs = 0;
    world *w = malloc(sizeof *w);
    assert_non_null(w);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    for (size_t s = 0; s < SHAPES; s++)
        for (int reserve = 0; reserve < 2; reserve++)
            for (size_t blocks = 24; blocks <= 48; blocks += 24) {
                live_through(&shapes[s], blocks, (nb_reserve)reserve, true, s == 2, blocks == 48,
                             OPERATIONS / 16, w);
                assert_true(w->hits > 100 && w->failures > 100 && w->verified > 1000);
                operations += w->operations;
                hits += w->hits;
                preempted += w->preempted;
                runs++;
            }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    double seconds = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9;
    assert_true(operations >= 1000000 && preempted > 1000);
    print_message("%llu operations in %llu worlds, %llu hits, %llu preemptions: %.1f s of CPU\n",
                  (unsigned long long)operations, (unsigned long long)runs, (unsigned long long)hits,
                  (unsigned long long)preempted, seconds);
    free(w);
}

static void test_without_a_cache(void **unused)
{
    world *w = malloc(sizeof *w);
    assert_non_null(w);
    for (size_t s = 0; s < SHAPES; s++) {
        live_through(&shapes[s], 30, NB_RESERVE_PROMPT, false, false, false, 20000, w);
        assert_int_equal(w->hits, 0);
    }
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_million_operations),
        cmocka_unit_test(test_without_a_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
