/* Sampling: greedy, each filter against hand-computed distributions, refusal of bad numbers, and no token from a NaN. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/sampler.h"

/* probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625 at temperature 1 */
static const float logits[] = {-0.6931472f, -1.3862944f, -2.0794415f, -2.7725887f, -2.7725887f};
enum { V = 5, DRAWS = 20000 };

static void frequencies(const nb_sampling *p, double share[V])
{
    nb_sampler *s = NULL;
    nb_error err;
    size_t count[V] = {0};
    assert_int_equal(nb_sampler_new(V, &s, &err), NB_OK);
    for (uint64_t i = 0; i < DRAWS; i++) {
        uint32_t token;
        assert_int_equal(nb_sample(s, p, logits, i, &token, &err), NB_OK);
        count[token]++;
    }
    for (size_t i = 0; i < V; i++) share[i] = (double)count[i] / DRAWS;
    nb_sampler_free(s);
}

/* 20,000 draws: the standard deviation of a share is at most 0.0036; 0.02 is more than five of them */
static void expect(const double *share, const double *want)
{
    for (size_t i = 0; i < V; i++) {
        if (want[i] == 0)
            assert_true(share[i] == 0);
        else
            assert_true(fabs(share[i] - want[i]) < 0.02);
    }
}

static void test_plain(void **unused)
{
    double share[V];
    frequencies(&(nb_sampling){.temperature = 1, .top_p = 1, .seed = 1}, share);
    expect(share, (const double[]){0.5, 0.25, 0.125, 0.0625, 0.0625});
}

static void test_temperature(void **unused)
{
    double share[V]; /* at 0.5 the probabilities are squared: 64 16 4 1 1 of 86 */
    frequencies(&(nb_sampling){.temperature = 0.5f, .top_p = 1, .seed = 2}, share);
    expect(share, (const double[]){64 / 86.0, 16 / 86.0, 4 / 86.0, 1 / 86.0, 1 / 86.0});
}

static void test_top_k(void **unused)
{
    double share[V];
    frequencies(&(nb_sampling){.temperature = 1, .top_p = 1, .top_k = 2, .seed = 3}, share);
    expect(share, (const double[]){2 / 3.0, 1 / 3.0, 0, 0, 0});
}

static void test_top_p(void **unused)
{
    double share[V]; /* 0.5 + 0.25 reach 0.7: two tokens stay */
    frequencies(&(nb_sampling){.temperature = 1, .top_p = 0.7f, .seed = 4}, share);
    expect(share, (const double[]){2 / 3.0, 1 / 3.0, 0, 0, 0});
}

static void test_min_p(void **unused)
{
    double share[V]; /* at least 0.2 of the best: 0.5, 0.25, 0.125 stay */
    frequencies(&(nb_sampling){.temperature = 1, .top_p = 1, .min_p = 0.2f, .seed = 5}, share);
    expect(share, (const double[]){4 / 7.0, 2 / 7.0, 1 / 7.0, 0, 0});
}

static void test_greedy_takes_the_first_of_equals(void **unused)
{
    const float equal[] = {1, 3, 3, 2, 3};
    nb_sampler *s = NULL;
    uint32_t token = 9;
    assert_int_equal(nb_sampler_new(V, &s, NULL), NB_OK);
    assert_int_equal(nb_sample(s, &(nb_sampling){.top_p = 1}, equal, 0, &token, NULL), NB_OK);
    assert_int_equal(token, 1);
    nb_sampler_free(s);
}

static void test_same_seed_same_token(void **unused)
{
    nb_sampler *s = NULL;
    const nb_sampling p = {.temperature = 1, .top_p = 1, .seed = 77};
    uint32_t first[64], again;
    assert_int_equal(nb_sampler_new(V, &s, NULL), NB_OK);
    for (uint64_t i = 0; i < 64; i++) assert_int_equal(nb_sample(s, &p, logits, i, &first[i], NULL), NB_OK);
    for (uint64_t i = 64; i-- > 0;) { /* in another order: the draw depends on the step alone */
        assert_int_equal(nb_sample(s, &p, logits, i, &again, NULL), NB_OK);
        assert_int_equal(again, first[i]);
    }
    nb_sampler_free(s);
}

static void test_no_token_from_nan(void **unused)
{
    nb_sampler *s = NULL;
    nb_error err;
    uint32_t token;
    float bad[V] = {0, 1, NAN, 3, 4};
    assert_int_equal(nb_sampler_new(V, &s, NULL), NB_OK);
    assert_int_equal(nb_sample(s, &(nb_sampling){.top_p = 1}, bad, 0, &token, &err), NB_ERR_FORMAT);
    bad[2] = INFINITY;
    assert_int_equal(nb_sample(s, &(nb_sampling){.top_p = 1}, bad, 0, &token, &err), NB_ERR_FORMAT);
    bad[2] = -INFINITY; /* a masked token */
    assert_int_equal(nb_sample(s, &(nb_sampling){.top_p = 1}, bad, 0, &token, &err), NB_OK);
    assert_int_equal(token, 4);
    nb_sampler_free(s);
}

static void test_bad_settings(void **unused)
{
    const nb_sampling bad[] = {
        {.temperature = -1, .top_p = 1}, {.temperature = NAN, .top_p = 1}, {.top_p = 0}, {.top_p = 1.5f},
        {.top_p = 1, .min_p = -0.1f},    {.top_p = 1, .min_p = 2}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(nb_sampling_check(&bad[i], NULL), NB_ERR_ARGUMENT);
    assert_int_equal(nb_sampling_check(&(nb_sampling){.temperature = 2, .top_p = 0.5f, .min_p = 1}, NULL),
                     NB_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_temperature),
        cmocka_unit_test(test_top_k),
        cmocka_unit_test(test_top_p),
        cmocka_unit_test(test_min_p),
        cmocka_unit_test(test_greedy_takes_the_first_of_equals),
        cmocka_unit_test(test_same_seed_same_token),
        cmocka_unit_test(test_no_token_from_nan),
        cmocka_unit_test(test_bad_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
