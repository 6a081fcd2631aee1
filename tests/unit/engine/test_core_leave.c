/* Leaving: cancellation at any moment, slow readers, stopping, an engine that fails. Whatever happens, everything is given back. */
#include "engine/serve.h"

#define MODEL SERVE_MODELS "llama_modelopt"
static uint32_t prompt[64];

static int fill(void **unused)
{
    for (uint32_t i = 0; i < 64; i++) prompt[i] = i * 7 % 200 + 3;
    return 0;
}

/* 200 requests cancelled at random moments (queued, in their prompt, answering, over), then one: it is answered as if alone. */
static void cancelled_at_random(void **unused)
{
    enum { N = 200 };
    static nb_request *r[N];
    static answer a[N];
    static int patience[N]; /* events to take before leaving */
    serve s;
    answer before, after;
    nb_request_spec q = serve_spec(prompt, 9, 12);
    serve_start(&s, MODEL, NB_ARITH_BF16, 16);
    serve_all(&s, &q, &before, 1);
    memset(a, 0, sizeof a);
    uint32_t seed = 7;
    for (size_t i = 0; i < N; i++) {
        nb_request_spec o = serve_spec(prompt, 1 + i * 11 % 60, 1 + i * 5 % 80);
        seed = seed * 1664525 + 1013904223;
        patience[i] = (int)(seed >> 24) % 40 - 10;
        r[i] = serve_submit(&s, &o);
        if (patience[i] < 0) nb_request_cancel(r[i]);
    }
    for (size_t left = N; left;) {
        for (size_t i = 0; i < N; i++) {
            if (!r[i]) continue;
            bool over = serve_take(r[i], &a[i]);
            if (!over && (int)a[i].n >= patience[i]) nb_request_cancel(r[i]);
            if (!over) continue;
            assert_true(a[i].finish == NB_FINISH_ABORT || a[i].finish == NB_FINISH_LENGTH);
            nb_request_free(r[i]);
            r[i] = NULL;
            left--;
        }
        if (left) serve_wait(&s);
    }
    nb_core_stats st;
    nb_core_read(s.core, &st);
    assert_int_equal(st.running + st.waiting + st.blocks_used, 0);
    serve_all(&s, &q, &after, 1);
    serve_same_tokens(&after, &before, "after 200 cancellations");
    serve_stop(&s);
}

/* A cancelled request ends within a step: it had at most the token of the step that ran. */
static void cancelled_within_a_step(void **unused)
{
    serve s;
    static answer a;
    nb_request_spec q = serve_spec(prompt, 4, 200);
    memset(&a, 0, sizeof a);
    serve_start(&s, MODEL, NB_ARITH_BF16, 16);
    nb_request *r = serve_submit(&s, &q);
    while (a.n < 5) {
        serve_take(r, &a);
        if (a.n < 5) serve_wait(&s);
    }
    nb_core_stats before, after;
    nb_request_cancel(r);
    nb_core_read(s.core, &before);
    serve_finish(&s, &r, &a, 1);
    nb_core_read(s.core, &after);
    assert_int_equal(a.finish, NB_FINISH_ABORT);
    assert_true(after.steps - before.steps <= 2); /* the one that ran, and one that began as it was said */
    serve_stop(&s);
}

/* One that nobody reads is parked, keeps its seat and stops nobody; read later, it is complete. */
static void slow_reader(void **unused)
{
    serve s;
    nb_request_spec slow = serve_spec(prompt, 4, 380), quick = serve_spec(prompt, 6, 100);
    static answer a, b, want;
    nb_engine *e = serve_engine(MODEL, NB_ARITH_BF16, 16, NULL);
    assert_true(serve_alone(e, &slow, &want));
    nb_engine_free(e);
    serve_start(&s, MODEL, NB_ARITH_BF16, 16);
    memset(&a, 0, sizeof a);
    nb_request *r = serve_submit(&s, &slow);
    for (int i = 0; i < 5; i++) {
        serve_all(&s, &quick, &b, 1);
        assert_int_equal(b.n, 100);
    }
    nb_core_stats st;
    nb_core_read(s.core, &st);
    assert_int_equal(st.running, 1);
    assert_true(st.generation_tokens < 500 + 380); /* it stands still */
    uint64_t steps = st.steps; /* of the last answer's, too: a step is counted before it is heard of */
    struct timespec nap = {.tv_nsec = 100000000};
    nanosleep(&nap, NULL);
    nb_core_read(s.core, &st);
    assert_int_equal(st.steps, steps); /* no step was made of nothing */
    serve_finish(&s, &r, &a, 1);
    serve_same_tokens(&a, &want, "a slow reader");
    /* and one that is never read can be cancelled */
    memset(&a, 0, sizeof a);
    r = serve_submit(&s, &slow);
    for (int i = 0; i < 5; i++) serve_all(&s, &quick, &b, 1);
    nb_request_cancel(r);
    serve_finish(&s, &r, &a, 1);
    assert_int_equal(a.finish, NB_FINISH_ABORT);
    assert_memory_equal(a.tokens, want.tokens, a.n * sizeof *a.tokens);
    serve_stop(&s);
}

static void stopping(void **unused)
{
    enum { N = 20 };
    for (int abort = 0; abort < 2; abort++) {
        serve s;
        static answer a[N];
        nb_request *r[N], *more = NULL;
        nb_error err;
        /* long ones to abort: none is over before it is said, since who is not read is parked */
        nb_request_spec q = serve_spec(prompt, 10, abort ? 380 : 30);
        serve_start(&s, MODEL, NB_ARITH_BF16, 16);
        memset(a, 0, sizeof a);
        for (size_t i = 0; i < N; i++) r[i] = serve_submit(&s, &q);
        nb_core_stop(s.core, abort);
        assert_int_equal(nb_core_submit(s.core, &q, &more, &err), NB_ERR_BUSY);
        assert_int_equal(nb_core_enter(s.core, 1, &err), NB_ERR_BUSY);
        assert_null(more);
        serve_finish(&s, r, a, N);
        for (size_t i = 0; i < N; i++) {
            if (!abort) assert_int_equal(a[i].n, 30);
            if (abort) assert_true(a[i].finish == NB_FINISH_ABORT);
        }
        serve_stop(&s);
    }
}

static void seats(void **unused)
{
    serve s;
    nb_error err;
    nb_core_options o = serve_options(&s, 16);
    o.sched.queue_requests = 3;
    o.sched.queue_tokens = 100;
    serve_start_with(&s, MODEL, NB_ARITH_BF16, 16, &o);
    assert_int_equal(nb_core_enter(s.core, 2, &err), NB_OK);
    assert_int_equal(nb_core_enter(s.core, 2, &err), NB_ERR_BUSY);
    assert_int_equal(nb_core_enter(s.core, 1, &err), NB_OK);
    assert_int_equal(nb_core_enter(s.core, 1, &err), NB_ERR_BUSY);
    nb_core_leave(s.core, 3);
    assert_int_equal(nb_core_enter(s.core, 3, &err), NB_OK);
    nb_core_leave(s.core, 3);
    /* more prompt tokens at once than may wait are refused until some have begun; the answers, which nobody reads, are not over before */
    static answer a[40];
    nb_request *r[40];
    memset(a, 0, sizeof a);
    size_t busy = 0, n = 0;
    for (size_t i = 0; i < 40; i++) {
        nb_request_spec q = serve_spec(prompt, 60, 340);
        nb_status st = nb_core_submit(s.core, &q, &r[n], &err);
        assert_true(st == NB_OK || st == NB_ERR_BUSY);
        busy += st == NB_ERR_BUSY;
        n += st == NB_OK;
    }
    assert_true(busy > 0 && n > 0);
    serve_finish(&s, r, a, n);
    static uint32_t longer[150];
    nb_request_spec q = serve_spec(longer, 150, 3); /* more than the bound alone: nobody else waits */
    serve_all(&s, &q, a, 1);
    assert_int_equal(a[0].n, 3);
    /* a request of many sequences is looked at once: the bound is no reason to refuse the rest of it, which waiting would not help */
    q = serve_spec(prompt, 60, 3);
    for (size_t i = 0; i < 40; i++) {
        assert_int_equal(nb_core_submit(s.core, &q, &r[i], &err), NB_OK);
        q.follows = true;
    }
    memset(a, 0, sizeof a);
    serve_finish(&s, r, a, 40);
    for (size_t i = 0; i < 40; i++) assert_int_equal(a[i].n, 3);
    serve_stop(&s);
}

/* w4a4 on a folder without input scales: every step fails. Requests are told which linear, again and again: what a model lacks is no
 * failure of the engine, and other prompts might do without it. */
static void missing_scale(void **unused)
{
    serve s;
    static answer a[3];
    nb_core_stats st;
    nb_request_spec q = serve_spec(prompt, 10, 5), many[3] = {q, q, q};
    serve_start(&s, SERVE_MODELS "llama_nvfp4a16", NB_ARITH_W4A4, 16);
    for (int round = 0; round < 2; round++) {
        serve_all(&s, many, a, 3);
        for (size_t i = 0; i < 3; i++) {
            assert_int_equal(a[i].finish, NB_FINISH_ERROR);
            assert_int_equal(a[i].error.status, NB_ERR_MISSING);
            assert_string_equal(a[i].error.tensor, "model.layers.0.self_attn.q_proj");
        }
    }
    nb_core_read(s.core, &st);
    assert_false(st.failed);
    serve_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cancelled_at_random),
        cmocka_unit_test(cancelled_within_a_step),
        cmocka_unit_test(slow_reader),
        cmocka_unit_test(stopping),
        cmocka_unit_test(seats),
        cmocka_unit_test(missing_scale),
    };
    return cmocka_run_group_tests(tests, fill, NULL);
}
