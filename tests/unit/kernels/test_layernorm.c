/* Layer normalisation against a hand computation. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/exec_bench.h"

/* 1 2 3 6: mean 3, variance (4 + 1 + 0 + 9) / 4 = 3.5; eps 0.5 makes the deviation 2: -1 -0.5 0 1.5, times w, plus b. */
static void test_hand(void **unused)
{
    static const float w[4] = {1, 2, 3, -4}, bias[4] = {10, 0, 7, 1}, want[4] = {9, -1, 7, -5};
    float in[BENCH_ROWS * 4], out[BENCH_ROWS * 4];
    exec_bench b;
    exec_bench_open(&b, 4);
    for (size_t r = 0; r < BENCH_ROWS; r++) /* a shift of the whole row changes nothing */
        for (size_t i = 0; i < 4; i++) in[r * 4 + i] = (float)(i == 3 ? 6 : i + 1) + (float)r;
    nb_tensor *x = exec_tensor(&b, false, BENCH_ROWS, 4, in),
              *y = exec_tensor(&b, false, BENCH_ROWS, 4, NULL);
    nb_tensor *tw = exec_tensor(&b, false, 1, 4, w), *tb = exec_tensor(&b, false, 1, 4, bias);
    b.x->ops->layernorm(b.x, x, BENCH_ROWS, tw, tb, 0.5f, y);
    b.x->ops->tensor_read(b.x, y, 0, BENCH_ROWS, out);
    for (size_t i = 0; i < BENCH_ROWS * 4; i++) assert_true(fabsf(out[i] - want[i % 4]) < 1e-5f);
    b.x->ops->layernorm(b.x, x, BENCH_ROWS, tw, tb, 0.5f, x); /* in place */
    b.x->ops->tensor_read(b.x, x, 0, BENCH_ROWS, in);
    assert_memory_equal(in, out, sizeof in);
    b.x->ops->tensor_free(x);
    b.x->ops->tensor_free(y);
    b.x->ops->tensor_free(tw);
    b.x->ops->tensor_free(tb);
    exec_bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hand)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
