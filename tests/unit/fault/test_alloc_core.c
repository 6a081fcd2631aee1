/* Memory runs out at each allocation of starting the engine thread, of submitting, of healing and of a long answer in turn:
 * NB_ERR_NOMEM for who asked, nothing left behind (the sanitizer build sees leaks), and the next request is answered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "fault/alloc.h"

#include "engine/broken.h"
#include "engine/serve.h"

#define MODEL NB_TEST_DATA "/fixtures/models/llama_modelopt"
static uint32_t prompt[8] = {5, 9, 17, 33, 65, 70, 71, 72};

static nb_request_spec full_spec(void)
{
    static const uint32_t some[] = {7, 8};
    nb_request_spec q = serve_spec(prompt, 8, 6);
    q.stop[0] = "never this";
    q.stop_len[0] = 10;
    q.n_stop = 1;
    q.keep = some;
    q.n_keep = 2;
    q.cache_salt = "salt";
    q.sampling.logprobs = 2;
    q.sampling.frequency_penalty = 0.5f;
    q.sampling.stop_ids = some;
    q.sampling.n_stop_ids = 2;
    return q;
}

static void starting(void **unused)
{
    serve s = {0};
    nb_error err = {0};
    sem_init(&s.woken, 0, 0);
    s.e = serve_engine(MODEL, NB_ARITH_BF16, 16, NULL);
    assert_int_equal(nb_tokenizer_open(MODEL, &s.t, &err), NB_OK);
    nb_core_options o = serve_options(&s, 16);
    size_t n = 0;
    for (;; n++) {
        fault_arm(n);
        nb_status st = nb_core_new(s.e, s.t, &o, &s.core, &err);
        bool fired = fault_disarm();
        if (st == NB_OK) {
            assert_false(fired);
            break;
        }
        assert_int_equal(st, NB_ERR_NOMEM);
        assert_null(s.core);
    }
    assert_true(n > 15);
    serve_stop(&s);
}

static void submitting(void **unused)
{
    serve s;
    static answer want, a;
    nb_request_spec q = full_spec();
    serve_start(&s, MODEL, NB_ARITH_BF16, 16);
    serve_all(&s, &q, &want, 1);
    size_t n = 0;
    for (;; n++) {
        nb_request *r = NULL;
        nb_error err = {0};
        nb_core_stats st;
        fault_arm(n);
        nb_status status = nb_core_submit(s.core, &q, &r, &err);
        bool fired = fault_disarm();
        if (status == NB_OK) {
            assert_false(fired);
            memset(&a, 0, sizeof a);
            serve_finish(&s, &r, &a, 1);
            break;
        }
        assert_int_equal(status, NB_ERR_NOMEM);
        assert_null(r);
        nb_core_read(s.core, &st);
        assert_int_equal(st.running + st.waiting, 0);
    }
    assert_true(n > 10);
    serve_same_tokens(&a, &want, "after memory was short");
    serve_stop(&s);
}

/* How many requests of a server of their own fail for want of memory once they run, each at another allocation; the next is answered.
 * Armed before the engine thread has the request, which might be over before it is. */
static size_t failing(const char *folder, const nb_request_spec *q)
{
    serve s;
    static answer want, a;
    memset(&want, 0, sizeof want);
    serve_start(&s, folder, NB_ARITH_BF16, 16);
    serve_all(&s, q, &want, 1);
    serve_stop(&s);
    size_t n = 0, failed = 0;
    for (;; n++) {
        nb_request *r = NULL;
        nb_error err = {0};
        serve_start(&s, folder, NB_ARITH_BF16, 16);
        memset(&a, 0, sizeof a);
        fault_arm(n);
        if (nb_core_submit(s.core, q, &r, &err) == NB_OK) serve_finish(&s, &r, &a, 1);
        bool fired = fault_disarm();
        if (!a.over) {
            assert_true(fired && err.status == NB_ERR_NOMEM);
            serve_stop(&s);
            continue;
        }
        if (a.finish == NB_FINISH_ERROR) {
            assert_int_equal(a.error.status, NB_ERR_NOMEM);
            failed++;
            memset(&a, 0, sizeof a);
            serve_all(&s, q, &a, 1);
        }
        assert_int_equal(a.finish, NB_FINISH_LENGTH);
        serve_same_tokens(&a, &want, "after memory was short");
        serve_stop(&s);
        if (!fired) return failed;
    }
}

/* The guard takes memory while a request runs: that request fails, later ones are healed. */
static void healing(void **unused)
{
    tempdir t;
    const uint8_t nan = 0x7F;
    nb_request_spec q = serve_spec(prompt, 8, 6);
    broken_copy(&t, MODEL);
    broken_poke(&t, "model.layers.1.mlp.down_proj.weight_scale", 1, &nan, 1, NULL);
    assert_true(failing(t.path, &q) > 3);
    tempdir_remove(&t);
}

/* What penalties remember grows with the answer, by two allocations at the 65th token that is another. */
static void a_long_answer(void **unused)
{
    nb_request_spec q = serve_spec(prompt, 8, 100);
    q.sampling.presence_penalty = q.sampling.frequency_penalty = 2;
    assert_int_equal(failing(MODEL, &q), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(starting), cmocka_unit_test(submitting),
                                       cmocka_unit_test(healing), cmocka_unit_test(a_long_answer)};
    fault_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
