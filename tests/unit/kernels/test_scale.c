/* Factors, the cap of logits and the biases of experts against hand computations. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/exec_bench.h"

static void read_all(exec_bench *b, const nb_tensor *t, size_t rows, float *out)
{
    b->x->ops->tensor_read(b->x, t, 0, rows, out);
}

/* in = row, 1, -2: by a constant; by a constant and one weight a column; by one weight for all. */
static void test_scale(void **unused)
{
    static const float columns[3] = {1, 2, 3}, one = -4;
    float in[BENCH_ROWS * 3], out[BENCH_ROWS * 3];
    exec_bench b;
    exec_bench_open(&b, 4);
    for (size_t i = 0; i < BENCH_ROWS * 3; i++) in[i] = i % 3 == 0 ? (float)(i / 3) : i % 3 == 1 ? 1 : -2;
    nb_tensor *x = exec_tensor(&b, false, BENCH_ROWS, 3, in),
              *y = exec_tensor(&b, false, BENCH_ROWS, 3, NULL);
    nb_tensor *w = exec_tensor(&b, false, 1, 3, columns), *s = exec_tensor(&b, false, 1, 1, &one);
    b.x->ops->scale(b.x, x, BENCH_ROWS, NULL, 0.5f, y);
    read_all(&b, y, BENCH_ROWS, out);
    for (size_t i = 0; i < BENCH_ROWS * 3; i++) assert_true(out[i] == in[i] / 2);
    b.x->ops->scale(b.x, x, BENCH_ROWS, w, 0.5f, y);
    read_all(&b, y, BENCH_ROWS, out);
    for (size_t i = 0; i < BENCH_ROWS * 3; i++) assert_true(out[i] == in[i] * columns[i % 3] / 2);
    b.x->ops->scale(b.x, x, BENCH_ROWS, s, 1, x); /* in place */
    read_all(&b, x, BENCH_ROWS, out);
    for (size_t i = 0; i < BENCH_ROWS * 3; i++) assert_true(out[i] == in[i] * -4);
    b.x->ops->tensor_free(x);
    b.x->ops->tensor_free(y);
    b.x->ops->tensor_free(w);
    b.x->ops->tensor_free(s);
    exec_bench_close(&b);
}

/* 30 tanh(v / 30): 0 stays, 30 becomes 30 tanh 1 = 22.8478, large values become 30; NaN stays NaN. */
static void test_softcap(void **unused)
{
    static const float in[5] = {0, 30, -30, 1e9f, NAN}, want[4] = {0, 22.847825f, -22.847825f, 30};
    float out[5];
    exec_bench b;
    exec_bench_open(&b, 4);
    nb_tensor *t = exec_tensor(&b, false, 1, 5, in);
    b.x->ops->softcap(b.x, t, 1, 30);
    read_all(&b, t, 1, out);
    for (size_t i = 0; i < 4; i++) assert_true(fabsf(out[i] - want[i]) < 1e-5f);
    assert_true(isnan(out[4]));
    b.x->ops->tensor_free(t);
    exec_bench_close(&b);
}

/* Two slots a row, three experts, biases [3, 4] of which every other column, from 1 on, belongs to this linear. */
static void test_expert_bias(void **unused)
{
    static const float bias[12] = {0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23};
    int32_t ids[BENCH_ROWS * 2];
    float out[BENCH_ROWS * 4];
    exec_bench b;
    exec_bench_open(&b, 4);
    for (size_t i = 0; i < BENCH_ROWS * 2; i++) ids[i] = (int32_t)(i * i % 3);
    nb_tensor *chosen = exec_tensor(&b, true, BENCH_ROWS, 2, ids), *all = exec_tensor(&b, false, 3, 4, bias);
    nb_tensor *t = exec_tensor(&b, false, BENCH_ROWS * 2, 2, NULL);
    b.x->ops->expert_bias(b.x, t, chosen, all, 1, 2);
    read_all(&b, t, BENCH_ROWS * 2, out);
    for (size_t i = 0; i < BENCH_ROWS * 2; i++) {
        assert_true(out[2 * i] == (float)(10 * ids[i] + 1));
        assert_true(out[2 * i + 1] == (float)(10 * ids[i] + 3));
    }
    b.x->ops->tensor_free(t);
    b.x->ops->tensor_free(chosen);
    b.x->ops->tensor_free(all);
    exec_bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scale), cmocka_unit_test(test_softcap),
                                       cmocka_unit_test(test_expert_bias)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
