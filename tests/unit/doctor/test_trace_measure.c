/* The numbers of a trace against hand computations. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "doctor/trace_internal.h"

static void test_agreement(void **state)
{
    /* rows (3, 4) against (4, 3): cosine 24/25; (1, 0) against itself: 1. Signal 25 + 1, error 2: 10 log10(13). */
    const float got[] = {3, 4, 1, 0}, want[] = {4, 3, 1, 0};
    nb_agreement a = nb_trace_agree(got, want, 2, 2);
    assert_float_equal(a.cos, (0.96 + 1) / 2, 1e-12);
    assert_float_equal(a.snr_db, 10 * log10(13), 1e-12);
    /* both zero agree; zero against something does not; NaN is NaN */
    const float zero[] = {0, 0}, one[] = {1, 0}, nan[] = {NAN, 0};
    a = nb_trace_agree(zero, zero, 1, 2);
    assert_true(a.cos == 1 && isinf(a.snr_db) && a.snr_db > 0);
    a = nb_trace_agree(zero, one, 1, 2);
    assert_true(a.cos == 0 && a.snr_db == 0);
    a = nb_trace_agree(nan, one, 1, 2);
    assert_true(isnan(a.cos) && isnan(a.snr_db));
}

static void test_quant_loss(void **state)
{
    /* gs 3977.566: blocks up to 0.676 fit. First block: one 8 needs 5303 and is cut, fifteen 0.1 are not. Second fits. */
    float x[32];
    for (int i = 0; i < 32; i++) x[i] = 0.1f;
    x[3] = 8;
    nb_quant_loss q = nb_trace_quant_loss(x, 1, 32, 3977.566f);
    assert_float_equal(q.saturated, 0.5, 0);
    assert_float_equal(q.clipped, 1.0 / 32, 1e-12);
    assert_float_equal(q.flushed, 0, 0);
    /* gs 0.00025141: blocks up to 23.31 become zero; zeros in them are not lost */
    x[3] = 23.25f;
    x[4] = 0;
    x[20] = 23.375f;
    q = nb_trace_quant_loss(x, 1, 32, 0.00025141f);
    assert_float_equal(q.flushed, 15.0 / 32, 1e-12);
    assert_float_equal(q.saturated + q.clipped, 0, 0);
}

static void test_judgement(void **state)
{
    nb_trace_row fine = {.rows = 16,
                         .cos_local = 0.98,
                         .snr_local_db = 17,
                         .snr_best_db = 18,
                         .weight_ratio = 1},
                 r = fine;
    nb_trace_judge(&r, true);
    assert_false(r.bad);
    r = fine; /* 7 dB lost and blocks saturate */
    r.snr_best_db = 24;
    r.saturated = 0.4;
    nb_trace_judge(&r, true);
    assert_true(r.bad);
    r.rows = 3; /* too few to tell an outlier from a scale */
    nb_trace_judge(&r, true);
    assert_false(r.bad);
    r.cos_local = 0.9;
    nb_trace_judge(&r, true);
    assert_true(r.bad);
    r.rows = 16;
    r.saturated = 0; /* by chance: nothing saturates */
    nb_trace_judge(&r, true);
    assert_false(r.bad);
    r = fine; /* 17 dB without quantised activations is no rounding */
    nb_trace_judge(&r, false);
    assert_true(r.bad);
    r = fine;
    r.weight_ratio = 0.79;
    nb_trace_judge(&r, true);
    assert_true(r.bad);
    r = fine;
    r.nonfinite = 1;
    nb_trace_judge(&r, true);
    assert_true(r.bad);
}

static void test_tiles(void **state)
{
    /* Rows of 2 and 1: the same numbers as over all three at once. */
    const float got[] = {3, 4, 1, 0, 2, 2}, want[] = {4, 3, 1, 0, 2, 1};
    const nb_agreement all = nb_trace_agree(got, want, 3, 2), one = nb_trace_agree(got, want, 2, 2),
                       two = nb_trace_agree(got + 4, want + 4, 1, 2);
    nb_trace_row a = {.rows = 2,
                      .has_in = true,
                      .in_amax = 4,
                      .out_amax = 5,
                      .clipped = 0.25,
                      .weight_ratio = 1,
                      .cos_local = one.cos,
                      .cos_total = one.cos,
                      .local = one.energy,
                      .best = one.energy,
                      .total = one.energy},
                 b = {.rows = 1,
                      .has_in = true,
                      .in_amax = 8,
                      .out_amax = 2,
                      .clipped = 1,
                      .nonfinite = 0,
                      .weight_ratio = 1,
                      .cos_local = two.cos,
                      .cos_total = two.cos,
                      .local = two.energy,
                      .best = two.energy,
                      .total = two.energy};
    nb_trace_merge(&a, &b);
    assert_int_equal(a.rows, 3);
    assert_float_equal(a.cos_local, all.cos, 1e-12);
    assert_float_equal(a.cos_total, all.cos, 1e-12);
    assert_float_equal(a.snr_local_db, all.snr_db, 1e-12);
    assert_float_equal(a.snr_total_db, all.snr_db, 1e-12);
    assert_float_equal(a.in_amax, 8, 0);
    assert_float_equal(a.out_amax, 5, 0);
    assert_float_equal(a.clipped, 0.5, 1e-12);
    assert_true(a.bad); /* 11 dB without quantised activations */
    b.nonfinite = 2;
    nb_trace_merge(&a, &b);
    assert_int_equal(a.nonfinite, 2);
}

static void test_amax(void **state)
{
    uint64_t n;
    const float x[] = {1, NAN, -3, 2}, inf[] = {-INFINITY, 1}, nan[] = {NAN, NAN};
    assert_float_equal(nb_trace_amax(x, 4, &n), 3, 0);
    assert_int_equal(n, 1);
    assert_true(isinf(nb_trace_amax(inf, 2, &n)));
    assert_int_equal(n, 1);
    assert_true(isnan(nb_trace_amax(nan, 2, &n)));
    assert_int_equal(n, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agreement), cmocka_unit_test(test_quant_loss), cmocka_unit_test(test_judgement),
        cmocka_unit_test(test_tiles),     cmocka_unit_test(test_amax),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
