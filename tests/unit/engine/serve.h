/* A model behind the engine thread, and the same model driven step by step, for tests that compare the two. */
#ifndef NB_TESTS_SERVE_H
#define NB_TESTS_SERVE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <semaphore.h>
#include <time.h>

#include "engine/core.h"

#define SERVE_MODELS NB_TEST_DATA "/fixtures/models/"
enum { SERVE_TOKENS = 400, SERVE_TEXT = 8192, SERVE_SEQS = 16, SERVE_CONTEXT = 400 };

static size_t serve_threads = 2; /* a test of many small engines takes one */
static size_t serve_blocks;      /* of the cache; 0: as many as could ever be needed */

typedef struct serve {
    nb_engine *e;
    nb_tokenizer *t;
    nb_core *core;
    sem_t woken;
    int logged; /* lines */
    char last_line[1280];
} serve;

typedef struct answer {
    uint32_t tokens[SERVE_TOKENS], prompt[SERVE_TOKENS]; /* prompt: tokens of prompt events */
    nb_logprob chosen[SERVE_TOKENS], prompt_chosen[SERVE_TOKENS];
    size_t n, n_prompt, n_top, cached;
    char text[SERVE_TEXT];
    size_t len;
    nb_finish finish;
    int stop_string;
    nb_error error;
    nb_request_times times;
    bool over;
} answer;

static inline void serve_woken(void *ctx)
{
    serve *s = ctx;
    sem_post(&s->woken);
}

static inline void serve_line(void *ctx, nb_log_level level, const char *line)
{
    serve *s = ctx;
    s->logged++;
    snprintf(s->last_line, sizeof s->last_line, "%s", line);
}

static inline nb_engine *serve_engine(const char *path, nb_arith arith, size_t rows, const nb_sink *sink)
{
    nb_engine *e = NULL;
    nb_error err = {0};
    nb_engine_options o = {.threads = serve_threads,
                           .kernels = "auto",
                           .arith = arith,
                           .max_seqs = SERVE_SEQS,
                           .max_context = SERVE_CONTEXT,
                           .max_rows = rows,
                           .kv_blocks = serve_blocks,
                           .prefix_cache = true};
    if (nb_engine_new(path, &o, sink, &e, &err) != NB_OK) fail_msg("%s: %s", path, err.cause);
    return e;
}

static inline nb_core_options serve_options(serve *s, size_t rows)
{
    return (nb_core_options){.sched = {.max_seqs = rows < SERVE_SEQS ? rows : SERVE_SEQS,
                                       .max_rows = rows,
                                       .max_context = SERVE_CONTEXT,
                                       .reserve = NB_RESERVE_FULL,
                                       .bypass_seconds = 1},
                             .guard = true,
                             .wake = serve_woken,
                             .wake_ctx = s,
                             .sink = {.log = serve_line, .ctx = s}};
}

static inline void serve_start_with(serve *s, const char *path, nb_arith arith, size_t rows,
                                    const nb_core_options *opt)
{
    nb_error err = {0};
    *s = (serve){0};
    sem_init(&s->woken, 0, 0);
    s->e = serve_engine(path, arith, rows, NULL);
    if (nb_tokenizer_open(path, &s->t, &err) != NB_OK) fail_msg("%s", err.cause);
    if (nb_core_new(s->e, s->t, opt, &s->core, &err) != NB_OK) fail_msg("%s", err.cause);
}

static inline void serve_start(serve *s, const char *path, nb_arith arith, size_t rows)
{
    nb_core_options o = serve_options(s, rows);
    serve_start_with(s, path, arith, rows, &o);
}

/* Every test ends with nothing live and nothing held. */
static inline void serve_stop(serve *s)
{
    nb_core_stats st;
    assert_true(nb_core_idle(s->core));
    nb_core_read(s->core, &st);
    assert_int_equal(st.running, 0);
    assert_int_equal(st.waiting, 0);
    assert_int_equal(st.blocks_used, 0);
    nb_core_free(s->core);
    nb_error err = {0};
    if (nb_pages_check(nb_engine_pages(s->e), &err) != NB_OK) fail_msg("%s", err.cause);
    nb_tokenizer_free(s->t);
    nb_engine_free(s->e);
    sem_destroy(&s->woken);
}

static inline nb_request_spec serve_spec(const uint32_t *prompt, size_t n, size_t max_tokens)
{
    nb_request_spec q = {.id = "test",
                         .prompt = prompt,
                         .n_prompt = n,
                         .max_tokens = max_tokens,
                         .skip_special = true,
                         .prompt_logprobs = -1};
    nb_sample_defaults(&q.sampling);
    q.sampling.temperature = 0;
    return q;
}

static inline nb_request *serve_submit(serve *s, const nb_request_spec *q)
{
    nb_request *r = NULL;
    nb_error err = {0};
    if (nb_core_submit(s->core, q, &r, &err) != NB_OK) fail_msg("%s", err.cause);
    return r;
}

/* Takes what events r has; true when the last was among them. */
static inline bool serve_take(nb_request *r, answer *a)
{
    nb_event ev;
    while (nb_request_next(r, &ev)) {
        assert_false(a->over);
        assert_true(a->len + ev.n_text < SERVE_TEXT);
        memcpy(a->text + a->len, ev.text, ev.n_text);
        a->len += ev.n_text;
        a->text[a->len] = '\0';
        a->n_top = ev.n_top;
        a->cached = ev.cached_tokens;
        if (ev.kind == NB_EVENT_TOKEN) {
            assert_true(a->n < SERVE_TOKENS);
            a->chosen[a->n] = ev.chosen;
            a->tokens[a->n++] = ev.token;
        } else if (ev.kind == NB_EVENT_PROMPT) {
            assert_true(a->n_prompt < SERVE_TOKENS);
            a->prompt_chosen[a->n_prompt] = ev.chosen;
            a->prompt[a->n_prompt++] = ev.token;
        }
        if (!ev.finish) continue;
        a->over = true;
        a->finish = ev.finish;
        a->stop_string = ev.stop_string;
        a->times = ev.times;
        if (ev.error) a->error = *ev.error;
    }
    return a->over;
}

/* Sleeps until the core has woken; a test that hangs fails instead. */
static inline void serve_wait(serve *s)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += 60;
    if (sem_timedwait(&s->woken, &t)) fail_msg("the engine thread has not woken for a minute");
}

static inline void serve_finish(serve *s, nb_request **r, answer *a, size_t n)
{
    for (size_t left = n; left;) {
        for (size_t i = 0; i < n; i++) {
            if (!r[i] || !serve_take(r[i], &a[i])) continue;
            nb_request_free(r[i]);
            r[i] = NULL;
            left--;
        }
        if (left) serve_wait(s);
    }
}

static inline void serve_all(serve *s, const nb_request_spec *q, answer *a, size_t n)
{
    nb_request *r[64];
    assert_true(n <= 64);
    memset(a, 0, n * sizeof *a);
    for (size_t i = 0; i < n; i++) r[i] = serve_submit(s, &q[i]);
    serve_finish(s, r, a, n);
}

typedef struct alone {
    size_t vocab;
    float *logits;
} alone;

static inline void alone_row(void *ctx, size_t part, size_t row, const float *logits)
{
    alone *a = ctx;
    memcpy(a->logits, logits, a->vocab * sizeof *logits);
}

/* The oracle: one sequence through nb_engine_step and nb_sampler alone. False: some row of it was not finite. */
static inline bool serve_alone(nb_engine *e, const nb_request_spec *q, answer *out)
{
    alone a = {.vocab = nb_engine_model(e)->vocab};
    nb_step_out so = {.logits = alone_row, .ctx = &a, .check = true};
    nb_sample_work *w = NULL;
    nb_sampler *sampler = NULL;
    nb_sampled next;
    uint32_t seq;
    size_t n_top;
    bool finite = true;
    a.logits = calloc(a.vocab, sizeof *a.logits);
    assert_non_null(a.logits);
    memset(out, 0, sizeof *out);
    assert_int_equal(nb_sample_work_new(a.vocab, &w, NULL), NB_OK);
    assert_int_equal(nb_sampler_new(&q->sampling, a.vocab, q->prompt, q->n_prompt, &sampler, NULL), NB_OK);
    assert_int_equal(nb_seq_open(e, &seq, NULL), NB_OK);
    size_t most = nb_engine_limits(e)->max_rows;
    for (size_t i = 0; i < q->n_prompt; i += most) {
        nb_step_part p = {seq, q->prompt + i, q->n_prompt - i < most ? q->n_prompt - i : most, false, false};
        assert_int_equal(nb_engine_step(e, &p, 1, &so, NULL), NB_OK);
        finite = finite && nb_step_bad(e, 0) == p.n;
        nb_seq_commit(e, seq, p.n);
    }
    while (finite) {
        finite = nb_sampler_choose(sampler, w, a.logits, &next, NULL, 0, &n_top, NULL) == NB_OK;
        if (!finite) break;
        out->tokens[out->n++] = next.chosen.id;
        nb_sampler_push(sampler, next.chosen.id, NULL);
        if (next.stop || out->n == q->max_tokens || q->n_prompt + out->n == SERVE_CONTEXT) break;
        nb_step_part p = {seq, &next.chosen.id, 1, false, false};
        assert_int_equal(nb_engine_step(e, &p, 1, &so, NULL), NB_OK);
        finite = nb_step_bad(e, 0) == 1;
        nb_seq_commit(e, seq, 1);
    }
    nb_seq_close(e, seq);
    nb_sampler_free(sampler);
    nb_sample_work_free(w);
    free(a.logits);
    return finite;
}

static inline void serve_same_tokens(const answer *have, const answer *want, const char *what)
{
    if (have->n != want->n || memcmp(have->tokens, want->tokens, want->n * sizeof *want->tokens) != 0)
        fail_msg("%s: other tokens than alone (%zu, not %zu)", what, have->n, want->n);
}

#endif
