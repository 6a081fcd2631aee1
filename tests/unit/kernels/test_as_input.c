/* What an arithmetic makes of a linear's input, as values: the same as the input that the linear's own product reads. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/exec_bench.h"
#include "numerics/formats.h"
#include "numerics/nvfp4.h"

enum { K = 48 };

static float in[BENCH_ROWS * K], out[BENCH_ROWS * K];

static nb_linear linear(exec_bench *b)
{
    static const float zero[16 * K];
    nb_linear l = {.module = "m",
                   .n = 16,
                   .k = K,
                   .blocks = 1,
                   .format = NB_FMT_NVFP4,
                   .fp4_input = true,
                   .has_input = true,
                   .input_gs = 448,
                   .input_multiplier = 1.0f / 448};
    l.w = exec_weight(b, zero, 16, K, 1); /* only its width counts */
    return l;
}

/* Runs the operator in place and reads what it made. */
static void run(exec_bench *b, const nb_linear *l, nb_arith arith)
{
    nb_tensor *t = exec_tensor(b, false, BENCH_ROWS, K, in);
    b->x->arith = arith;
    b->x->ops->as_input(b->x, l, t, t);
    b->x->ops->tensor_read(b->x, t, 0, BENCH_ROWS, out);
    b->x->ops->tensor_free(t);
}

static void open_bench(exec_bench *b, nb_linear *l)
{
    uint32_t state = 9;
    exec_bench_open(b, K);
    *l = linear(b);
    for (size_t i = 0; i < BENCH_ROWS * K; i++) in[i] = exec_draw(&state) * 1.001f;
}

static void close_bench(exec_bench *b, nb_linear *l)
{
    b->x->ops->weight_free(l->w);
    exec_bench_close(b);
}

static void test_exact_and_bf16(void **unused)
{
    exec_bench b;
    nb_linear l;
    open_bench(&b, &l);
    run(&b, &l, NB_ARITH_EXACT);
    assert_memory_equal(out, in, sizeof in);
    run(&b, &l, NB_ARITH_BF16);
    for (size_t i = 0; i < BENCH_ROWS * K; i++) assert_true(out[i] == nb_bf16_round(in[i]));
    close_bench(&b, &l);
}

static void test_w4a4(void **unused)
{
    exec_bench b;
    nb_linear l;
    float want[K];
    open_bench(&b, &l);
    for (int dynamic = 0; dynamic < 2; dynamic++) {
        run(&b, &l, dynamic ? NB_ARITH_W4A4_DYNAMIC : NB_ARITH_W4A4);
        for (size_t r = 0; r < BENCH_ROWS; r++) {
            float gs = dynamic ? nb_nvfp4_row_scale(in + r * K, K) : 448;
            nb_nvfp4_quantise_row(in + r * K, K, gs, NB_ACT_CUTLASS, true, want);
            for (size_t i = 0; i < K; i++) assert_true(out[r * K + i] == want[i] * (1.0f / gs));
        }
    }
    close_bench(&b, &l);
}

/* A block's largest magnitude is 127 steps, and every value the nearest step: half of one away at most. */
static void test_int8(void **unused)
{
    exec_bench b;
    nb_linear l;
    open_bench(&b, &l);
    run(&b, &l, NB_ARITH_INT8);
    for (size_t i = 0; i < BENCH_ROWS * K; i += 16) {
        float amax = 0;
        for (size_t j = 0; j < 16; j++) amax = fmaxf(amax, fabsf(in[i + j]));
        for (size_t j = 0; j < 16; j++) assert_true(fabsf(out[i + j] - in[i + j]) <= amax / 127 * 0.5001f);
    }
    close_bench(&b, &l);
}

/* An override changes how the input is made; a static scale that is not there is an error that names the linear. */
static void test_override_and_missing_scale(void **unused)
{
    exec_bench b;
    nb_linear l;
    open_bench(&b, &l);
    nb_override o = {&l, l};
    o.as.input = NB_INPUT_PLAIN;
    o.as.w = NULL;
    b.x->overrides = &o;
    b.x->n_overrides = 1;
    run(&b, &l, NB_ARITH_W4A4);
    assert_memory_equal(out, in, sizeof in);
    b.x->n_overrides = 0;
    l.has_input = false;
    run(&b, &l, NB_ARITH_W4A4);
    assert_int_equal(b.x->err.status, NB_ERR_MISSING);
    assert_string_equal(b.x->err.tensor, "m");
    close_bench(&b, &l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_exact_and_bf16), cmocka_unit_test(test_w4a4),
                                       cmocka_unit_test(test_int8),
                                       cmocka_unit_test(test_override_and_missing_scale)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
