/* What a request changes in the logits, and in which order: masks, bias, penalties. Greedy, so that the largest changed logit shows. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/sampler.h"

enum { V = 6 };
static const float falling[V] = {6, 5, 4, 3, 2, 1};

typedef struct sequence {
    nb_sample_work *w;
    nb_sampler *s;
} sequence;

static nb_sample_params greedy(void)
{
    nb_sample_params p;
    nb_sample_defaults(&p);
    p.temperature = 0;
    return p;
}

static sequence begin(nb_sample_params p, const uint32_t *prompt, size_t n)
{
    sequence q = {0};
    assert_int_equal(nb_sample_check(&p, V, NULL), NB_OK);
    assert_int_equal(nb_sample_work_new(V, &q.w, NULL), NB_OK);
    assert_int_equal(nb_sampler_new(&p, V, prompt, n, &q.s, NULL), NB_OK);
    return q;
}

static void end(sequence q)
{
    nb_sampler_free(q.s);
    nb_sample_work_free(q.w);
}

static nb_sampled choose(sequence q, const float *logits)
{
    nb_sampled out;
    size_t n_top;
    assert_int_equal(nb_sampler_choose(q.s, q.w, logits, &out, NULL, 0, &n_top, NULL), NB_OK);
    return out;
}

static uint32_t next(sequence q)
{
    return choose(q, falling).chosen.id;
}

static void test_allowed(void **unused)
{
    nb_sample_params p = greedy();
    p.allowed = (const uint32_t[]){4, 3};
    p.n_allowed = 2;
    sequence q = begin(p, NULL, 0);
    assert_int_equal(next(q), 3);
    end(q);
}

static void test_bias_is_clamped(void **unused)
{
    nb_sample_params p = greedy();
    p.bias_ids = (const uint32_t[]){0, 5, 4};
    p.bias = (const float[]){-7, 3.5f, 2.5f}; /* -1, 4.5 and 4.5 beside 5, 4, 3 */
    p.n_bias = 3;
    sequence q = begin(p, NULL, 0);
    assert_int_equal(next(q), 1);
    end(q);
    p.bias = (const float[]){0, 1e9f, 1000}; /* both 100: 101 and 102 */
    q = begin(p, NULL, 0);
    assert_int_equal(next(q), 4);
    end(q);
}

/* A word of several tokens masks its last one only where the output ends with the others. */
static void test_bad_words(void **unused)
{
    nb_sample_params p = greedy();
    p.bad = (const uint32_t[]){0, 2, 3, 1};
    p.bad_len = (const size_t[]){1, 3};
    p.n_bad = 2;
    sequence q = begin(p, (const uint32_t[]){2, 3}, 2); /* the prompt does not count */
    assert_int_equal(next(q), 1);
    nb_sampler_push(q.s, 3, NULL);
    assert_int_equal(next(q), 1);
    nb_sampler_push(q.s, 2, NULL);
    assert_int_equal(next(q), 1);
    nb_sampler_push(q.s, 3, NULL);
    assert_int_equal(next(q), 2); /* 2 3 → not 1; 0 never */
    nb_sampler_push(q.s, 3, NULL);
    assert_int_equal(next(q), 1);
    end(q);
}

static void test_min_tokens_and_stop(void **unused)
{
    nb_sample_params p = greedy();
    p.stop_ids = (const uint32_t[]){0, 4000000000u, 1};
    p.n_stop_ids = 3;
    p.min_tokens = 2;
    p.bias_ids = (const uint32_t[]){1};
    p.bias = (const float[]){100}; /* no bias brings back what is masked */
    p.n_bias = 1;
    sequence q = begin(p, NULL, 0);
    for (size_t i = 0; i < 2; i++) {
        nb_sampled out = choose(q, falling);
        assert_int_equal(out.chosen.id, 2);
        assert_false(out.stop);
        nb_sampler_push(q.s, 2, NULL);
    }
    nb_sampled out = choose(q, falling);
    assert_int_equal(out.chosen.id, 1);
    assert_true(out.stop);
    end(q);
}

/* l > 0: l / 2, else l * 2, once whatever the number of times, for prompt and output. */
static void test_repetition(void **unused)
{
    nb_sample_params p = greedy();
    p.repetition_penalty = 2;
    sequence q = begin(p, (const uint32_t[]){0, 0, 0}, 3); /* 6 → 3 */
    assert_int_equal(next(q), 1);
    nb_sampler_push(q.s, 1, NULL); /* 5 → 2.5 */
    nb_sampler_push(q.s, 1, NULL);
    assert_int_equal(next(q), 2);
    nb_sampler_push(q.s, 2, NULL); /* 4 → 2: now 3 2.5 2 3 */
    assert_int_equal(next(q), 0);
    const float negative[V] = {-1, -1.5f, -2.5f, -9, -9, -9}; /* -2 -3 -5: 0 stays first … */
    assert_int_equal(choose(q, negative).chosen.id, 0);
    const float near[V] = {-1, -9, -9, -1.9f, -9, -9}; /* … until one not seen is above -2 */
    assert_int_equal(choose(q, near).chosen.id, 3);
    end(q);
}

/* A tiny penalty must not make the infinity that stands for a broken model. */
static void test_repetition_stays_finite(void **unused)
{
    nb_sample_params p = greedy();
    p.temperature = 1;
    p.repetition_penalty = 1e-38f;
    sequence q = begin(p, (const uint32_t[]){3}, 1);
    assert_int_equal(next(q), 3);
    end(q);
}

/* Frequency: per time in the output. Presence: once. Neither for the prompt. */
static void test_frequency_and_presence(void **unused)
{
    nb_sample_params p = greedy();
    p.frequency_penalty = 0.75f;
    sequence q = begin(p, (const uint32_t[]){0, 0}, 2);
    nb_sampler_push(q.s, 0, NULL); /* 5.25 */
    assert_int_equal(next(q), 0);
    nb_sampler_push(q.s, 0, NULL); /* 4.5 */
    assert_int_equal(next(q), 1);
    end(q);

    p = greedy();
    p.presence_penalty = 0.75f;
    q = begin(p, (const uint32_t[]){0, 0}, 2);
    nb_sampler_push(q.s, 0, NULL);
    nb_sampler_push(q.s, 0, NULL); /* 5.25 still */
    assert_int_equal(next(q), 0);
    end(q);
    p.presence_penalty = 1.25f;
    q = begin(p, (const uint32_t[]){0, 0}, 2);
    assert_int_equal(next(q), 0);
    nb_sampler_push(q.s, 0, NULL); /* 4.75 */
    assert_int_equal(next(q), 1);
    end(q);
}

/* (6 + 4) / 2 - 1 - 0.5 = 3.5 for the token seen once. Any other order of bias, repetition and the two others differs: (6 - 1.5 + 4) / 2
 * = 4.25, 6 / 2 + 4 - 1.5 = 5.5. */
static void test_order(void **unused)
{
    nb_sample_params p = greedy();
    p.repetition_penalty = 2;
    p.frequency_penalty = 1;
    p.presence_penalty = 0.5f;
    p.bias_ids = (const uint32_t[]){0};
    p.bias = (const float[]){4};
    p.n_bias = 1;
    sequence q = begin(p, NULL, 0);
    nb_sampler_push(q.s, 0, NULL);
    const float below[V] = {6, 3.4f, 0, 0, 0, 0}, above[V] = {6, 3.6f, 0, 0, 0, 0};
    assert_int_equal(choose(q, below).chosen.id, 0);
    assert_int_equal(choose(q, above).chosen.id, 1);
    end(q);
}

/* The filters see the changed logits: top-k 1 takes the best that is left. */
static void test_filters_follow(void **unused)
{
    nb_sample_params p = greedy();
    p.temperature = 1;
    p.top_k = 1;
    p.bad = (const uint32_t[]){0};
    p.bad_len = (const size_t[]){1};
    p.n_bad = 1;
    sequence q = begin(p, NULL, 0);
    for (size_t i = 0; i < 32; i++) {
        assert_int_equal(next(q), 1);
        nb_sampler_push(q.s, 1, NULL);
    }
    end(q);
}

static void test_nothing_left(void **unused)
{
    nb_sample_params p = greedy();
    nb_sampled out;
    size_t n_top;
    p.allowed = p.stop_ids = (const uint32_t[]){2};
    p.n_allowed = p.n_stop_ids = 1;
    p.min_tokens = 1;
    sequence q = begin(p, NULL, 0); /* the request's doing, not the model's */
    assert_int_equal(nb_sampler_choose(q.s, q.w, falling, &out, NULL, 0, &n_top, NULL), NB_ERR_ARGUMENT);
    end(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allowed),
        cmocka_unit_test(test_bias_is_clamped),
        cmocka_unit_test(test_bad_words),
        cmocka_unit_test(test_min_tokens_and_stop),
        cmocka_unit_test(test_repetition),
        cmocka_unit_test(test_repetition_stays_finite),
        cmocka_unit_test(test_frequency_and_presence),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_filters_follow),
        cmocka_unit_test(test_nothing_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
