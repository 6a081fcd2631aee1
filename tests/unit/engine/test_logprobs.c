/* Log-probabilities: values against a sum in long double, ranks as vLLM counts them, and the same bits wherever a token is told. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/sampler.h"

enum { N = 1000 };

static void fill(float *v, uint32_t state, float scale)
{
    for (size_t i = 0; i < N; i++) {
        state = state * 1664525u + 1013904223u;
        v[i] = scale * ((float)(state >> 8) * 0x1p-24f - 0.5f);
    }
}

static void test_values(void **unused)
{
    static float v[N];
    static nb_logprob top[N];
    nb_sample_work *w = NULL;
    nb_logprob chosen;
    size_t n_top;
    assert_int_equal(nb_sample_work_new(N, &w, NULL), NB_OK);
    for (uint32_t round = 0; round < 20; round++) {
        fill(v, round, round < 10 ? 30 : 300);
        if (round == 3) v[5] = -INFINITY;
        long double sum = 0, best = -INFINITY;
        for (size_t i = 0; i < N; i++) best = v[i] > best ? v[i] : best;
        for (size_t i = 0; i < N; i++) sum += expl((long double)v[i] - best);
        uint32_t token = round * 50 + 5;
        assert_int_equal(nb_logprobs_of(w, v, token, NB_LOGPROBS_ALL, &chosen, top, N, &n_top, NULL), NB_OK);
        assert_int_equal(n_top, N);
        for (size_t i = 0; i < N; i++) {
            float want = (float)((long double)v[top[i].id] - best - logl(sum)), got = top[i].logprob;
            /* the error of the norm, 1e-7, and half a unit in the last place */
            if (!(want == got || fabsf(want - got) <= 2e-7f + 6e-8f * fabsf(want)))
                fail_msg("round %u token %u: %.9g, not %.9g", round, top[i].id, got, want);
            assert_int_equal(top[i].rank, i + 1);
            if (i) /* best first, equals by id */
                assert_true(v[top[i - 1].id] > v[top[i].id] ||
                            (v[top[i - 1].id] == v[top[i].id] && top[i - 1].id < top[i].id));
            if (top[i].id == token) assert_memory_equal(&top[i].logprob, &chosen.logprob, 4);
        }
    }
    nb_sample_work_free(w);
}

/* A rank counts those that are at least as probable. */
static void test_ranks(void **unused)
{
    const float v[] = {1, 3, 2, 3, -INFINITY, 2};
    const uint32_t want[] = {5, 2, 4, 2, 6, 4};
    nb_sample_work *w = NULL;
    nb_logprob chosen, top[2];
    size_t n_top;
    assert_int_equal(nb_sample_work_new(6, &w, NULL), NB_OK);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(nb_logprobs_of(w, v, i, 2, &chosen, top, 2, &n_top, NULL), NB_OK);
        assert_int_equal(chosen.id, i);
        assert_int_equal(chosen.rank, want[i]);
        assert_int_equal(n_top, 2);
        assert_int_equal(top[0].id, 1);
        assert_int_equal(top[1].id, 3);
    }
    assert_int_equal(nb_logprobs_of(w, v, 4, 0, &chosen, NULL, 0, &n_top, NULL), NB_OK);
    assert_true(chosen.logprob == -INFINITY);
    assert_int_equal(n_top, 0);
    assert_int_equal(nb_logprobs_of(w, v, 6, 0, &chosen, NULL, 0, &n_top, NULL), NB_ERR_ARGUMENT);
    nb_sample_work_free(w);
}

/* Chosen, top and prompt: one token, the same float; of the raw logits, whatever the request changes. */
static void test_same_bits_everywhere(void **unused)
{
    static float v[N];
    nb_sample_work *w = NULL;
    size_t n_top, seen = 0;
    assert_int_equal(nb_sample_work_new(N, &w, NULL), NB_OK);
    for (uint32_t round = 0; round < 50; round++) {
        nb_sample_params p;
        nb_sampler *s = NULL;
        nb_sampled out;
        nb_logprob top[20], prompt, prompt_top[5];
        nb_sample_defaults(&p);
        p.seed = round;
        p.top_k = 25;
        p.temperature = 0.7f;
        p.logprobs = 20;
        p.repetition_penalty = 1.3f;
        p.bias_ids = (const uint32_t[]){17};
        p.bias = (const float[]){50};
        p.n_bias = round % 2;
        fill(v, 1000 + round, 30);
        assert_int_equal(nb_sampler_new(&p, N, (const uint32_t[]){1, 2, 3}, 3, &s, NULL), NB_OK);
        assert_int_equal(nb_sampler_choose(s, w, v, &out, top, 20, &n_top, NULL), NB_OK);
        assert_int_equal(n_top, 20);
        if (round % 2) assert_int_equal(out.chosen.id, 17);
        assert_int_equal(nb_logprobs_of(w, v, out.chosen.id, 5, &prompt, prompt_top, 5, &n_top, NULL), NB_OK);
        assert_memory_equal(&out.chosen.logprob, &prompt.logprob, 4);
        assert_int_equal(out.chosen.rank, prompt.rank);
        for (size_t i = 0; i < 5; i++) assert_memory_equal(&top[i].logprob, &prompt_top[i].logprob, 4);
        for (size_t i = 0; i < 20; i++)
            if (top[i].id == out.chosen.id) {
                assert_memory_equal(&top[i].logprob, &out.chosen.logprob, 4);
                seen++;
            }
        nb_sampler_free(s);
    }
    assert_in_range(seen, 10, 50); /* it was among the top in most of the unbiased rounds */
    nb_sample_work_free(w);
}

static void test_refuses_nan(void **unused)
{
    static float v[N];
    nb_sample_work *w = NULL;
    nb_logprob chosen;
    size_t n_top = 9;
    fill(v, 1, 10);
    v[N - 1] = NAN;
    assert_int_equal(nb_sample_work_new(N, &w, NULL), NB_OK);
    assert_int_equal(nb_logprobs_of(w, v, 0, 0, &chosen, NULL, 0, &n_top, NULL), NB_ERR_FORMAT);
    assert_int_equal(n_top, 0);
    nb_sample_work_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_same_bits_everywhere),
        cmocka_unit_test(test_refuses_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
