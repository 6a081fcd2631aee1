/* Gated units and the cutting of columns against hand computations. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/exec_bench.h"

/* One row of five gates and factors under act, beside what must come out. */
static void check(nb_act act, float limit, const float *gate, const float *up, const float *want)
{
    float out[5];
    exec_bench b;
    exec_bench_open(&b, 5);
    nb_tensor *g = exec_tensor(&b, false, 1, 5, gate), *u = up ? exec_tensor(&b, false, 1, 5, up) : NULL;
    nb_tensor *y = exec_tensor(&b, false, 1, 5, NULL);
    b.x->ops->glu(b.x, act, g, u, 1, limit, y);
    b.x->ops->tensor_read(b.x, y, 0, 1, out);
    for (size_t i = 0; i < 5; i++) assert_true(fabsf(out[i] - want[i]) <= 2e-6f * (1 + fabsf(want[i])));
    b.x->ops->glu(b.x, act, g, u, 1, limit, g); /* over the gate */
    float again[5];
    b.x->ops->tensor_read(b.x, g, 0, 1, again);
    for (size_t i = 0; i < 5; i++) assert_true(again[i] == out[i]);
    b.x->ops->tensor_free(g);
    b.x->ops->tensor_free(u);
    b.x->ops->tensor_free(y);
    exec_bench_close(&b);
}

/* sigmoid: 1 -> 0.7310585786, 2 -> 0.8807970780, -1 -> 0.2689414214 */
static void test_silu(void **unused)
{
    static const float g[5] = {0, 1, 2, -1, 9}, u[5] = {3, 2, -9, 1, 1};
    check(NB_ACT_SILU, 0, g, u, (float[]){0, 1.4621171573f, -15.854347404f, -0.2689414214f, 8.998889459f});
    /* a limit of 2: gates at most 2, factors within -2 and 2 */
    check(NB_ACT_SILU, 2, g, u, (float[]){0, 1.4621171573f, -3.523188312f, -0.2689414214f, 1.761594156f});
    check(NB_ACT_SILU, 0, g, NULL, (float[]){0, 0.7310585786f, 1.761594156f, -0.2689414214f, 8.998889459f});
}

/* g / 2 (1 + tanh(0.7978845608 (g + 0.044715 g^3))): at 1, tanh 0.8335620 = 0.6823841 */
static void test_gelu_tanh(void **unused)
{
    static const float g[5] = {0, 1, 2, -1, -20}, u[5] = {3, 2, 1, 1, 1};
    check(NB_ACT_GELU_TANH, 0, g, u, (float[]){0, 1.682383981f, 1.954597694f, -0.158808009f, 0});
}

static void test_relu2(void **unused)
{
    static const float g[5] = {0, 1, 3, -1, 0.5f}, u[5] = {3, 2, -1, 1, 4};
    check(NB_ACT_RELU2, 0, g, u, (float[]){0, 2, -9, 0, 1});
    check(NB_ACT_RELU2, 0, g, NULL, (float[]){0, 1, 9, 0, 0.25f});
}

/* gpt-oss: g sigmoid(1.702 g) (u + 1) with gates at most 7 and factors within -7 and 7; sigmoid(1.702) = 0.845795765 */
static void test_silu_plus(void **unused)
{
    static const float g[5] = {0, 1, 1, 9, 1}, u[5] = {3, 2, 9, 0, -9};
    check(NB_ACT_SILU_PLUS, 7, g, u, (float[]){0, 2.537387295f, 6.76636612f, 6.99995321f, -5.07477459f});
}

/* A gate of one column weighs all columns of its row. */
static void test_gate_of_rows(void **unused)
{
    static const float gate[2] = {0, 1}, in[6] = {2, 4, 6, 1, 2, 3};
    float out[6];
    exec_bench b;
    exec_bench_open(&b, 5);
    nb_tensor *g = exec_tensor(&b, false, 2, 1, gate), *y = exec_tensor(&b, false, 2, 3, in);
    b.x->ops->glu(b.x, NB_ACT_SIGMOID, g, y, 2, 0, y);
    b.x->ops->tensor_read(b.x, y, 0, 2, out);
    for (size_t i = 0; i < 3; i++) assert_true(out[i] == in[i] / 2);
    for (size_t i = 3; i < 6; i++) assert_true(fabsf(out[i] - in[i] * 0.7310585786f) < 1e-6f);
    b.x->ops->tensor_free(g);
    b.x->ops->tensor_free(y);
    exec_bench_close(&b);
}

/* What is not a number does not vanish. */
static void test_nan_stays(void **unused)
{
    static const float g[1] = {NAN}, u[1] = {1};
    exec_bench b;
    exec_bench_open(&b, 5);
    nb_tensor *bad = exec_tensor(&b, false, 1, 1, g), *one = exec_tensor(&b, false, 1, 1, u),
              *y = exec_tensor(&b, false, 1, 1, NULL);
    for (nb_act act = NB_ACT_SILU; act <= NB_ACT_SILU_PLUS; act++) {
        float out;
        b.x->ops->glu(b.x, act, bad, one, 1, 7, y);
        b.x->ops->tensor_read(b.x, y, 0, 1, &out);
        assert_true(isnan(out));
        b.x->ops->glu(b.x, act, one, bad, 1, 7, y);
        b.x->ops->tensor_read(b.x, y, 0, 1, &out);
        assert_true(isnan(out));
    }
    b.x->ops->tensor_free(bad);
    b.x->ops->tensor_free(one);
    b.x->ops->tensor_free(y);
    exec_bench_close(&b);
}

/* Two rows of two groups of three columns: the last two of each, and the first of each. */
static void test_columns(void **unused)
{
    static const float in[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, last[8] = {1, 2, 4, 5, 7, 8, 10, 11},
                       first[4] = {0, 3, 6, 9};
    float out[8];
    exec_bench b;
    exec_bench_open(&b, 5);
    nb_tensor *x = exec_tensor(&b, false, 2, 6, in), *y = exec_tensor(&b, false, 2, 4, NULL),
              *z = exec_tensor(&b, false, 2, 2, NULL);
    b.x->ops->columns(b.x, x, 2, 3, 1, y);
    b.x->ops->tensor_read(b.x, y, 0, 2, out);
    assert_memory_equal(out, last, sizeof last);
    b.x->ops->columns(b.x, x, 2, 3, 0, z);
    b.x->ops->tensor_read(b.x, z, 0, 2, out);
    assert_memory_equal(out, first, sizeof first);
    b.x->ops->tensor_free(x);
    b.x->ops->tensor_free(y);
    b.x->ops->tensor_free(z);
    exec_bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_silu),         cmocka_unit_test(test_gelu_tanh),
        cmocka_unit_test(test_relu2),        cmocka_unit_test(test_silu_plus),
        cmocka_unit_test(test_gate_of_rows), cmocka_unit_test(test_nan_stays),
        cmocka_unit_test(test_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
