/* The linear operator's three forms against plain dot products: dense with several weights, diagonal blocks, and experts with one
 * and more slots a row, more rows of one expert than it computes at a time. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/ops.h"
#include "numerics/formats.h"

enum { K = 40, ROWS = 150, EXPERTS = 5 };

static uint32_t state = 7;
static float draw(void)
{
    state = state * 1664525u + 1013904223u;
    return (float)(int32_t)(state >> 8 & 0xFF) / 64 -
           2; /* a few bits: sums of 40 products are exact in F32 */
}

typedef struct matrix {
    size_t n, k;
    float *v;
    nb_linear lin;
} matrix;

static nb_status read_rows(void *ctx, size_t row, size_t rows, uint8_t *codes, void *scales, nb_error *err)
{
    const matrix *m = ctx;
    memcpy(codes, m->v + row * m->k, rows * m->k * sizeof(float));
    return NB_OK;
}

static void make_matrix(nb_exec *x, size_t n, size_t k, size_t blocks, matrix *m)
{
    *m = (matrix){n,
                  k,
                  malloc(n * k * sizeof(float)),
                  {.module = "m", .n = n, .k = k, .blocks = blocks, .format = NB_FMT_F32}};
    assert_non_null(m->v);
    for (size_t i = 0; i < n * k; i++) m->v[i] = draw();
    assert_int_equal(x->ops->weight_new(x, NB_FMT_F32, n, k, 0, 1, blocks, k * sizeof(float), 0, read_rows, m,
                                        &m->lin.w, NULL),
                     NB_OK);
}

static void free_matrix(nb_exec *x, matrix *m)
{
    x->ops->weight_free(m->lin.w);
    free(m->v);
}

static float dot(const matrix *m, size_t row, const float *x)
{
    float sum = 0;
    for (size_t i = 0; i < m->k; i++) sum += m->v[row * m->k + i] * x[i];
    return sum;
}

typedef struct bench {
    nb_pool *pool;
    nb_exec *x;
    uint32_t zero[ROWS];
} bench;

static void open_bench(bench *b)
{
    *b = (bench){0};
    assert_int_equal(nb_pool_new(2, &b->pool, NULL), NB_OK);
    assert_int_equal(nb_cpu_exec_new("auto", b->pool, ROWS, &b->x, NULL), NB_OK);
    b->x->rows = (nb_rows){ROWS, b->zero, b->zero, b->zero};
}

static void close_bench(bench *b)
{
    nb_cpu_exec_free(b->x);
    nb_pool_free(b->pool);
}

static nb_tensor *tensor(nb_exec *x, bool i32, size_t rows, size_t cols, const void *values)
{
    nb_tensor *t = NULL;
    assert_int_equal(x->ops->tensor_new(x, i32, rows, cols, &t, NULL), NB_OK);
    if (values) x->ops->tensor_write(x, t, values);
    return t;
}

static float input[ROWS * 3 * K * 2], output[ROWS * 3 * 64];

static void test_dense(void **unused)
{
    bench b;
    matrix m[2];
    open_bench(&b);
    make_matrix(b.x, 33, K, 1, &m[0]);
    make_matrix(b.x, 16, K, 1, &m[1]);
    assert_int_equal(b.x->ops->ready(b.x, &(nb_work){.max_k = K, .max_context = 1}, NULL), NB_OK);
    for (size_t i = 0; i < ROWS * K; i++) input[i] = draw();
    nb_tensor *x = tensor(b.x, false, ROWS, K, input);
    nb_tensor *y[] = {tensor(b.x, false, ROWS, 33, NULL), tensor(b.x, false, ROWS, 16, NULL)};
    const nb_linear *w[] = {&m[0].lin, &m[1].lin};
    b.x->ops->linear(b.x, &(nb_linear_call){.w = w, .count = 2, .x = x, .y = y});
    for (size_t i = 0; i < 2; i++) {
        b.x->ops->tensor_read(b.x, y[i], 0, ROWS, output);
        for (size_t r = 0; r < ROWS; r++)
            for (size_t n = 0; n < m[i].n; n++)
                assert_true(output[r * m[i].n + n] == dot(&m[i], n, input + r * K));
        b.x->ops->tensor_free(y[i]);
        free_matrix(b.x, &m[i]);
    }
    b.x->ops->tensor_free(x);
    close_bench(&b);
}

static void test_blocks(void **unused)
{
    bench b;
    matrix m;
    open_bench(&b);
    make_matrix(b.x, 2 * 24, K, 2, &m); /* two blocks of 24 rows, each on its own half of the input */
    assert_int_equal(b.x->ops->ready(b.x, &(nb_work){.max_k = K, .max_context = 1}, NULL), NB_OK);
    for (size_t i = 0; i < ROWS * 2 * K; i++) input[i] = draw();
    nb_tensor *x = tensor(b.x, false, ROWS, 2 * K, input), *y = tensor(b.x, false, ROWS, 48, NULL);
    const nb_linear *w = &m.lin;
    b.x->ops->linear(b.x, &(nb_linear_call){.w = &w, .count = 1, .x = x, .y = &y});
    b.x->ops->tensor_read(b.x, y, 0, ROWS, output);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t n = 0; n < 48; n++)
            assert_true(output[r * 48 + n] == dot(&m, n, input + r * 2 * K + n / 24 * K));
    b.x->ops->tensor_free(x);
    b.x->ops->tensor_free(y);
    free_matrix(b.x, &m);
    close_bench(&b);
}

static void experts(size_t slots, bool per_slot)
{
    bench b;
    matrix m[EXPERTS];
    int32_t ids[ROWS * 3];
    nb_linear lin[EXPERTS];
    const nb_linear *w = lin;
    open_bench(&b);
    for (size_t e = 0; e < EXPERTS; e++) {
        make_matrix(b.x, 40, K, 1, &m[e]);
        lin[e] = m[e].lin;
    }
    assert_int_equal(b.x->ops->ready(b.x, &(nb_work){slots, EXPERTS, 40, K, 1}, NULL), NB_OK);
    /* expert 3 gets nothing, expert 0 more rows than it computes at a time */
    for (size_t r = 0; r < ROWS; r++)
        for (size_t s = 0; s < slots; s++) ids[r * slots + s] = s == 0 ? (r % 4 == 3 ? 4 : 0) : (int32_t)s;
    size_t in_rows = per_slot ? ROWS * slots : ROWS;
    for (size_t i = 0; i < in_rows * K; i++) input[i] = draw();
    nb_tensor *x = tensor(b.x, false, in_rows, K, input), *y = tensor(b.x, false, ROWS * slots, 40, NULL),
              *t = tensor(b.x, true, ROWS, slots, ids);
    b.x->ops->linear(b.x, &(nb_linear_call){.w = &w,
                                            .count = 1,
                                            .n_experts = EXPERTS,
                                            .x = x,
                                            .y = &y,
                                            .ids = t,
                                            .slots = slots,
                                            .x_per_slot = per_slot});
    b.x->ops->tensor_read(b.x, y, 0, ROWS * slots, output);
    for (size_t i = 0; i < ROWS * slots; i++)
        for (size_t n = 0; n < 40; n++)
            assert_true(output[i * 40 + n] == dot(&m[ids[i]], n, input + (per_slot ? i : i / slots) * K));
    for (size_t e = 0; e < EXPERTS; e++) free_matrix(b.x, &m[e]);
    b.x->ops->tensor_free(x);
    b.x->ops->tensor_free(y);
    b.x->ops->tensor_free(t);
    close_bench(&b);
}

static void test_experts(void **unused)
{
    for (size_t slots = 1; slots <= 3; slots++) {
        experts(slots, false);
        experts(slots, true);
    }
}

/* --quant-input bf16 changes what the quantiser gets and nothing else, its dynamic scale included: a row rounded beforehand
 * gives the same bits. */
static void test_dynamic_scale_is_of_the_rounded_row(void **unused)
{
    enum { WIDE = 32, N = 16 };
    static float rounded[ROWS * N];
    bench b;
    matrix m;
    open_bench(&b);
    make_matrix(b.x, N, WIDE, 1, &m);
    m.lin.fp4_input = true;
    b.x->arith = NB_ARITH_W4A4_DYNAMIC;
    assert_int_equal(b.x->ops->ready(b.x, &(nb_work){.max_k = WIDE, .max_context = 1}, NULL), NB_OK);
    const nb_linear *w = &m.lin;
    nb_tensor *x = tensor(b.x, false, ROWS, WIDE, NULL), *y = tensor(b.x, false, ROWS, N, NULL);
    for (size_t i = 0; i < ROWS * WIDE; i++) input[i] = draw() + draw() / 300; /* no BF16 numbers */
    for (int again = 0; again < 2; again++) {
        b.x->quant_bf16 = !again;
        b.x->ops->tensor_write(b.x, x, input);
        b.x->ops->linear(b.x, &(nb_linear_call){.w = &w, .count = 1, .x = x, .y = &y});
        b.x->ops->tensor_read(b.x, y, 0, ROWS, again ? output : rounded);
        for (size_t i = 0; i < ROWS * WIDE; i++) input[i] = nb_bf16_round(input[i]);
    }
    assert_memory_equal(output, rounded, sizeof rounded);
    b.x->ops->tensor_free(x);
    b.x->ops->tensor_free(y);
    free_matrix(b.x, &m);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_dynamic_scale_is_of_the_rounded_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
