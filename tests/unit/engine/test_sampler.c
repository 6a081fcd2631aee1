/* Draws: each filter against hand-computed distributions, and all of them together against a reference that sorts the vocabulary and
 * follows the formulas in double. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/sampler.h"

/* probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625 at temperature 1 */
static const float five[] = {-0.6931472f, -1.3862944f, -2.0794415f, -2.7725887f, -2.7725887f};
enum { V = 5, DRAWS = 20000 };

static nb_sample_params defaults(void)
{
    nb_sample_params p;
    nb_sample_defaults(&p);
    return p;
}

/* How often each of n tokens is drawn in `draws` steps of one sequence without penalties. */
static void draw_many(nb_sample_params p, const float *logits, size_t n, size_t draws, size_t *count)
{
    nb_sample_work *w = NULL;
    nb_sampler *s = NULL;
    nb_sampled out;
    size_t n_top;
    assert_int_equal(nb_sample_work_new(n, &w, NULL), NB_OK);
    assert_int_equal(nb_sampler_new(&p, n, NULL, 0, &s, NULL), NB_OK);
    memset(count, 0, n * sizeof *count);
    for (size_t i = 0; i < draws; i++) {
        assert_int_equal(nb_sampler_choose(s, w, logits, &out, NULL, 0, &n_top, NULL), NB_OK);
        assert_true(out.chosen.id < n);
        count[out.chosen.id]++;
        nb_sampler_push(s, out.chosen.id, NULL);
    }
    assert_int_equal(nb_sampler_output(s), draws);
    nb_sampler_free(s);
    nb_sample_work_free(w);
}

/* 20,000 draws: the standard deviation of a share is at most 0.0036; 0.02 is more than five of them */
static void expect_shares(nb_sample_params p, const double *want)
{
    size_t count[V];
    draw_many(p, five, V, DRAWS, count);
    for (size_t i = 0; i < V; i++) {
        if (want[i] == 0)
            assert_int_equal(count[i], 0);
        else
            assert_true(fabs((double)count[i] / DRAWS - want[i]) < 0.02);
    }
}

static void test_plain(void **unused)
{
    nb_sample_params p = defaults();
    p.seed = 1;
    expect_shares(p, (const double[]){0.5, 0.25, 0.125, 0.0625, 0.0625});
}

static void test_temperature(void **unused)
{
    nb_sample_params p = defaults(); /* at 0.5 the probabilities are squared: 64 16 4 1 1 of 86 */
    p.temperature = 0.5f;
    expect_shares(p, (const double[]){64 / 86.0, 16 / 86.0, 4 / 86.0, 1 / 86.0, 1 / 86.0});
}

static void test_top_k(void **unused)
{
    nb_sample_params p = defaults();
    p.top_k = 2;
    expect_shares(p, (const double[]){2 / 3.0, 1 / 3.0, 0, 0, 0});
    p.top_k = 4; /* the fifth equals the fourth and stays */
    expect_shares(p, (const double[]){0.5, 0.25, 0.125, 0.0625, 0.0625});
}

static void test_top_p(void **unused)
{
    nb_sample_params p = defaults();
    p.top_p = 0.7f; /* 0.5 + 0.25 reach 0.7: two tokens stay */
    expect_shares(p, (const double[]){2 / 3.0, 1 / 3.0, 0, 0, 0});
    p.top_p = 0.9f; /* 0.875 do not, with the first of the last two they do */
    expect_shares(p, (const double[]){8 / 15.0, 4 / 15.0, 2 / 15.0, 1 / 15.0, 0});
    p.top_p = 1e-6f;
    expect_shares(p, (const double[]){1, 0, 0, 0, 0});
    p.top_p = 0.7f; /* of the three that top-k leaves, 4/7 and 2/7 reach 0.7 */
    p.top_k = 3;
    expect_shares(p, (const double[]){2 / 3.0, 1 / 3.0, 0, 0, 0});
}

static void test_min_p(void **unused)
{
    nb_sample_params p = defaults();
    p.min_p = 0.2f; /* at least 0.2 of the best: 0.5, 0.25, 0.125 stay */
    expect_shares(p, (const double[]){4 / 7.0, 2 / 7.0, 1 / 7.0, 0, 0});
    p.top_p =
        0.6f; /* of what min-p leaves: 4/7 and 2/7 reach 0.6, of all 0.5 and 0.25 would, too; 0.57 tells them apart */
    expect_shares(p, (const double[]){2 / 3.0, 1 / 3.0, 0, 0, 0});
    p.top_p = 0.57f; /* 4/7 = 0.571 */
    expect_shares(p, (const double[]){1, 0, 0, 0, 0});
}

static void test_a_temperature_near_zero_acts_as_a_hundredth(void **unused)
{
    const float close[V] = {0, -0.01f, -20, -20, -20}; /* at 0.01: e^0 and e^-1 */
    size_t count[V];
    nb_sample_params p = defaults();
    p.temperature = 1e-7f;
    draw_many(p, close, V, DRAWS, count);
    assert_true(fabs((double)count[0] / DRAWS - 1 / (1 + exp(-1))) < 0.02);
}

static void test_greedy_takes_the_first_of_equals(void **unused)
{
    const float equal[] = {1, 3, 3, 2, 3}, zeros[] = {-1, -0.0f, 0.0f, -1, 0.0f};
    size_t count[V];
    nb_sample_params p = defaults();
    p.temperature = 0;
    p.top_k = 2;
    draw_many(p, equal, V, 3, count);
    assert_int_equal(count[1], 3);
    draw_many(p, zeros, V, 3, count); /* -0 equals 0 */
    assert_int_equal(count[1], 3);
    assert_int_equal(nb_argmax(equal, V), 1);
}

static uint32_t random_bits(uint32_t *state)
{
    return *state = *state * 1664525u + 1013904223u;
}

static double random_unit(uint32_t *state)
{
    return (random_bits(state) >> 8) * 0x1p-24;
}

static const float *sort_key;
static int larger_first(const void *a, const void *b)
{
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    if (sort_key[i] != sort_key[j]) return sort_key[i] > sort_key[j] ? -1 : 1;
    return i < j ? -1 : 1;
}

/* The distribution that the formulas give. */
static void reference(const nb_sample_params *p, const float *logits, size_t n, double *share)
{
    uint32_t *order = calloc(n, sizeof *order);
    for (size_t i = 0; i < n; i++) {
        order[i] = (uint32_t)i;
        share[i] = 0;
    }
    sort_key = logits;
    qsort(order, n, sizeof *order, larger_first);
    double top = logits[order[0]], mass = 0, have = 0;
    size_t kept = n, last = 0;
    while (kept > 1 && exp((logits[order[kept - 1]] - top) / p->temperature) < p->min_p) kept--;
    while (p->top_k && kept > p->top_k && logits[order[kept - 1]] < logits[order[p->top_k - 1]]) kept--;
    for (size_t i = 0; i < kept; i++)
        mass += share[order[i]] = exp((logits[order[i]] - top) / p->temperature);
    for (; last < kept && have < p->top_p * mass; last++) have += share[order[last]];
    for (size_t i = 0; i < n; i++) share[order[i]] = i < last ? share[order[i]] / have : 0;
    free(order);
}

/* Chi-square with tokens expected fewer than 5 times pooled. The bound is five standard deviations above its mean, and 10 for the long
 * tail that few degrees of freedom have: one round in 3 million passes it. */
static void test_all_filters_against_a_reference(void **unused)
{
    enum { MOST = 333, TIMES = 8000 };
    static float logits[MOST];
    static double share[MOST];
    static size_t count[MOST];
    uint32_t state = 7;
    for (size_t round = 0; round < 120; round++) {
        size_t n = 1 + random_bits(&state) % MOST;
        nb_sample_params p = defaults();
        p.seed = round;
        p.temperature = 0.3f + 1.5f * (float)random_unit(&state);
        if (random_bits(&state) >> 31) p.top_k = 1 + (random_bits(&state) >> 8) % (uint32_t)n;
        if (random_bits(&state) >> 31) p.top_p = 0.02f + 0.97f * (float)random_unit(&state);
        if (random_bits(&state) >> 31) p.min_p = 0.3f * (float)random_unit(&state);
        float step = random_bits(&state) >> 31 ? 0.5f : 1e-4f; /* with many equals, and with few */
        for (size_t i = 0; i < n; i++) logits[i] = step * rintf(8 * (float)random_unit(&state) / step);
        if (n > 3) logits[n / 2] = -INFINITY;
        reference(&p, logits, n, share);
        draw_many(p, logits, n, TIMES, count);
        double chi = 0, rest = 0, rest_count = 0;
        size_t bins = 0;
        for (size_t i = 0; i < n; i++) {
            double want = share[i] * TIMES, have = (double)count[i];
            if (share[i] == 0 && count[i]) fail_msg("round %zu: token %zu was drawn", round, i);
            if (want < 5) {
                rest += want;
                rest_count += have;
            } else {
                chi += (have - want) * (have - want) / want;
                bins++;
            }
        }
        if (rest >= 5) {
            chi += (rest_count - rest) * (rest_count - rest) / rest;
            bins++;
        }
        double df = bins > 1 ? (double)bins - 1 : 0;
        if (chi > df + 5 * sqrt(2 * df) + 10) fail_msg("round %zu: chi-square %g of %g", round, chi, df);
    }
}

static void test_same_seed_same_token(void **unused)
{
    nb_sample_params p = defaults();
    nb_sample_work *w[2];
    nb_sampler *s[2];
    nb_sampled a, b;
    size_t n_top, differ = 0;
    p.seed = 77;
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(nb_sample_work_new(V, &w[i], NULL), NB_OK);
        assert_int_equal(nb_sampler_new(&p, V, NULL, 0, &s[i], NULL), NB_OK);
    }
    for (size_t i = 0; i < 64; i++) {
        assert_int_equal(nb_sampler_choose(s[0], w[0], five, &a, NULL, 0, &n_top, NULL), NB_OK);
        for (size_t j = 0; j < i % 3;
             j++) /* looking again, and what else went through the memory, changes nothing */
            assert_int_equal(nb_sampler_choose(s[1], w[0], five, &b, NULL, 0, &n_top, NULL), NB_OK);
        assert_int_equal(nb_sampler_choose(s[1], w[1], five, &b, NULL, 0, &n_top, NULL), NB_OK);
        assert_int_equal(a.chosen.id, b.chosen.id);
        differ += a.chosen.id != 0;
        nb_sampler_push(s[0], a.chosen.id, NULL);
        nb_sampler_push(s[1], 3, NULL); /* which token came before does not matter */
    }
    assert_in_range(differ, 16, 48); /* half of the draws are token 0 */
    for (size_t i = 0; i < 2; i++) {
        nb_sampler_free(s[i]);
        nb_sample_work_free(w[i]);
    }
}

static void test_no_token_from_nan(void **unused)
{
    enum { N = 200 };
    const float bad[] = {NAN, -NAN, INFINITY};
    const size_t at[] = {0, 63, 64, 130, 192, 199};
    float logits[N];
    nb_sample_work *w = NULL;
    nb_error err;
    nb_sampled out;
    size_t n_top;
    assert_int_equal(nb_sample_work_new(N, &w, NULL), NB_OK);
    for (int greedy = 0; greedy < 2; greedy++) {
        nb_sample_params p = defaults();
        nb_sampler *s = NULL;
        p.temperature = greedy ? 0 : 1;
        assert_int_equal(nb_sampler_new(&p, N, NULL, 0, &s, NULL), NB_OK);
        for (size_t i = 0; i < 6 * 3; i++) {
            char named[40];
            for (size_t j = 0; j < N; j++) logits[j] = (float)(j % 7);
            logits[at[i / 3]] = bad[i % 3];
            if (at[i / 3] + 1 < N) logits[N - 1] = NAN; /* the first is named */
            snprintf(named, sizeof named, "token %zu is %s", at[i / 3], i % 3 < 2 ? "nan" : "inf");
            assert_int_equal(nb_sampler_choose(s, w, logits, &out, NULL, 0, &n_top, &err), NB_ERR_FORMAT);
            if (!strstr(err.cause, named)) fail_msg("'%s' does not name '%s'", err.cause, named);
        }
        for (size_t j = 0; j < N; j++) logits[j] = -INFINITY;
        assert_int_equal(nb_sampler_choose(s, w, logits, &out, NULL, 0, &n_top, &err), NB_ERR_FORMAT);
        logits[150] = -3e38f; /* all others are masked */
        assert_int_equal(nb_sampler_choose(s, w, logits, &out, NULL, 0, &n_top, &err), NB_OK);
        assert_int_equal(out.chosen.id, 150);
        nb_sampler_free(s);
    }
    nb_sample_work_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_temperature),
        cmocka_unit_test(test_top_k),
        cmocka_unit_test(test_top_p),
        cmocka_unit_test(test_min_p),
        cmocka_unit_test(test_a_temperature_near_zero_acts_as_a_hundredth),
        cmocka_unit_test(test_greedy_takes_the_first_of_equals),
        cmocka_unit_test(test_all_filters_against_a_reference),
        cmocka_unit_test(test_same_seed_same_token),
        cmocka_unit_test(test_no_token_from_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
