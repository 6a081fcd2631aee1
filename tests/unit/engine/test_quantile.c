/* The log-spaced histogram: quantiles within one bin (1/64) of the exact ones, whatever the range and the signs. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/quantile.h"

static nb_quantile bins;

static int fresh(void **unused)
{
    nb_quantile_free(&bins);
    return 0;
}

static void near(float got, double want)
{
    if (fabs(got - want) > want / 64) fail_msg("%g, expected %g within 1/64", (double)got, want);
}

/* k / 100000 for k = 1 … 100000, half of them negative: the share q of the magnitudes is at most q. */
static void uniform(void **unused)
{
    for (int k = 1; k <= 100000; k++) {
        float v = (float)k / 100000.0f;
        if (k % 2) v = -v;
        nb_quantile_add(&bins, &v, 1);
    }
    near(nb_quantile_at(&bins, 1.0f, 0.9999), 0.9999);
    near(nb_quantile_at(&bins, 1.0f, 0.5), 0.5);
    near(nb_quantile_at(&bins, 1.0f, 0.001), 0.001);
    assert_true(nb_quantile_at(&bins, 1.0f, 1.0) == 1.0f);
}

/* 2^x for x = -20 … 20 in 40,001 steps of 1/1000: the quantile q is 2^(-20 + 40 q). */
static void forty_octaves(void **unused)
{
    for (int k = 0; k <= 40000; k++) {
        float v = exp2f(-20.0f + (float)k / 1000.0f);
        nb_quantile_add(&bins, &v, 1);
    }
    for (double q = 0.1; q < 1; q += 0.1) near(nb_quantile_at(&bins, 1048576.0f, q), exp2(-20 + 40 * q));
}

/* Of 10,000 values one is not zero: 0.9999 of them are at most 0, all are at most 5. */
static void mostly_zero(void **unused)
{
    float x[100] = {0};
    for (int i = 0; i < 99; i++) nb_quantile_add(&bins, x, 100);
    x[7] = -5;
    nb_quantile_add(&bins, x, 100);
    assert_true(nb_quantile_at(&bins, 5, 0.9999) == 0);
    assert_true(nb_quantile_at(&bins, 5, 0.99995) == 5);
}

/* With fewer than 10,000 values the rank of 0.9999 is the last: the maximum itself. */
static void few(void **unused)
{
    const float x[] = {1, 2, 3};
    nb_quantile_add(&bins, x, 3);
    assert_true(nb_quantile_at(&bins, 3, 0.9999) == 3);
    assert_true(nb_quantile_at(&bins, 3, 0.5) <= 2 * (1 + 1.0f / 64));
}

/* One value many times: never above the maximum, within a bin below it. */
static void constant(void **unused)
{
    float v = 7.3f;
    for (int i = 0; i < 20000; i++) nb_quantile_add(&bins, &v, 1);
    float q = nb_quantile_at(&bins, v, 0.9999);
    assert_true(q <= v);
    near(q, 7.3);
}

/* Beyond the histogram's range the caller's maximum still bounds the answer, and nothing is written outside. */
static void out_of_range(void **unused)
{
    const float x[] = {1e-30f, 3e38f, 1e20f};
    nb_quantile_add(&bins, x, 3);
    assert_int_equal(bins.low, 1);
    assert_int_equal(bins.octave[NB_QUANTILE_OCTAVES - 1][63], 2);
    assert_true(nb_quantile_at(&bins, 3e38f, 1) == 3e38f);
    assert_true(nb_quantile_at(&bins, 3e38f, 0.3) == 0);
}

static void nothing(void **unused)
{
    assert_true(nb_quantile_at(&bins, 0, 0.9999) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(uniform, fresh),     cmocka_unit_test_setup(forty_octaves, fresh),
        cmocka_unit_test_setup(mostly_zero, fresh), cmocka_unit_test_setup(few, fresh),
        cmocka_unit_test_setup(constant, fresh),    cmocka_unit_test_setup(out_of_range, fresh),
        cmocka_unit_test_setup(nothing, fresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
