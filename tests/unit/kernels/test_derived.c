/* Products with derived forms of a weight: which columns each block reads and writes, on inputs that need padding and on those that
 * do not, and that a row's override brings its own forms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/exec_bench.h"

enum { GROUPS = 3, MAX = 96 };

static float in[BENCH_ROWS * GROUPS * MAX], out[BENCH_ROWS * GROUPS * MAX], v[2][GROUPS * MAX * MAX];

/* Two forms with n rows of k columns a block; form 1 of `as` is that of the override. */
static void check(size_t n, size_t k, bool overridden)
{
    const size_t x_step = k + 5, y_step = n + 3; /* two columns go along, one is left alone */
    uint32_t state = 3;
    exec_bench b;
    exec_bench_open(&b, MAX);
    const nb_derive forms[2] = {{GROUPS, 0, n, false}, {GROUPS, 0, n, false}};
    nb_linear l = {.module = "m", .n = n, .k = k, .blocks = 1, .derive = forms, .n_derived = 2};
    for (size_t i = 0; i < 2 * GROUPS * n * k; i++) v[i % 2][i / 2] = exec_draw(&state);
    for (size_t i = 0; i < BENCH_ROWS * GROUPS * x_step; i++) in[i] = exec_draw(&state);
    l.w = exec_weight(&b, v[0], n, k, 1);
    nb_weight *other = exec_weight(&b, v[0], n, k, 1);
    for (size_t d = 0; d < 2; d++) {
        b.x->ops->weight_attach(l.w, exec_weight(&b, v[d], GROUPS * n, k, GROUPS));
        b.x->ops->weight_attach(other, exec_weight(&b, v[1 - d], GROUPS * n, k, GROUPS));
    }
    assert_int_equal(b.x->ops->derived_bytes(l.w),
                     2 * GROUPS * ((n + 15) / 16 * 16) * ((k + 31) / 32 * 32) * 4);
    nb_override o = {&l, l};
    o.as.w = other;
    b.x->overrides = &o;
    b.x->n_overrides = overridden;
    for (size_t i = 0; i < BENCH_ROWS * GROUPS * y_step; i++) out[i] = 77;
    nb_tensor *x = exec_tensor(&b, false, BENCH_ROWS, GROUPS * x_step, in);
    nb_tensor *y = exec_tensor(&b, false, BENCH_ROWS, GROUPS * y_step, out);
    b.x->ops->derived(
        b.x, &(nb_derived_call){
                 .of = &l, .form = 1, .x = x, .y = y, .x_step = x_step, .y_step = y_step, .along = 2});
    assert_int_equal(b.x->err.status, NB_OK);
    b.x->ops->tensor_read(b.x, y, 0, BENCH_ROWS, out);
    const float *w = v[overridden ? 0 : 1];
    for (size_t r = 0; r < BENCH_ROWS; r++)
        for (size_t c = 0; c < GROUPS * y_step; c++) {
            size_t g = c / y_step, i = c % y_step;
            float want = i < n ? 0 : i < n + 2 ? in[(r * GROUPS + g) * x_step + k + i - n] : 77;
            for (size_t j = 0; i < n && j < k; j++)
                want += in[(r * GROUPS + g) * x_step + j] * w[(g * n + i) * k + j];
            assert_true(out[r * GROUPS * y_step + c] == want);
        }
    b.x->ops->tensor_free(x);
    b.x->ops->tensor_free(y);
    b.x->ops->weight_free(l.w);
    b.x->ops->weight_free(other);
    exec_bench_close(&b);
}

static void test_padded(void **unused)
{
    check(24, 40, false);
}

static void test_direct(void **unused)
{
    check(40, 64, false);
}

static void test_override(void **unused)
{
    check(16, 32, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_padded), cmocka_unit_test(test_direct),
                                       cmocka_unit_test(test_override)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
