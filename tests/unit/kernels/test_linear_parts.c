/* Products that one call makes of several weights, blocks or experts, whatever ranges of work they become: the bits of each weight and row
 * alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/exec_bench.h"

enum { K = 64, INNER = 48, EXPERTS = 5, SLOTS = 2, BLOCKS = 3, WIDEST = 2 * EXPERTS * K, WEIGHTS = 4 };

static const size_t row_counts[] = {1, 2, 8, 9, BENCH_ROWS};
static const nb_arith ariths[] = {NB_ARITH_EXACT, NB_ARITH_BF16, NB_ARITH_INT8, NB_ARITH_W4A4,
                                  NB_ARITH_W4A4_DYNAMIC};

typedef struct codes {
    nb_format format;
    uint32_t seed;
    size_t k;
} codes;

/* Every row from a seed of its own: threads read ranges of them. */
static nb_status draw_rows(void *ctx, size_t row, size_t rows, uint8_t *out, void *scales, nb_error *err)
{
    const codes *c = ctx;
    for (size_t r = 0; r < rows; r++) {
        uint32_t state = c->seed + (uint32_t)(row + r) * 977;
        for (size_t i = 0; i < c->k; i++) {
            const float v = exec_draw(&state);
            if (c->format == NB_FMT_F32)
                memcpy(out + (r * c->k + i) * sizeof v, &v, sizeof v);
            else if (i % 2 == 0)
                out[(r * c->k + i) / 2] = (uint8_t)(state >> 24);
        }
        for (size_t i = 0; c->format == NB_FMT_NVFP4 && i < c->k / 16; i++)
            ((uint8_t *)scales)[r * c->k / 16 + i] = (uint8_t)(0x30 + (state + i) % 13);
    }
    return NB_OK;
}

static void open_threads(exec_bench *b, size_t threads)
{
    *b = (exec_bench){0};
    assert_int_equal(nb_pool_new(threads, &b->pool, NULL), NB_OK);
    assert_int_equal(nb_cpu_exec_new("auto", b->pool, BENCH_ROWS, &b->x, NULL), NB_OK);
    const nb_work w = {.slots = SLOTS, .n_experts = EXPERTS, .expert_n = K, .max_k = K, .max_context = 1};
    assert_int_equal(b->x->ops->ready(b->x, &w, NULL), NB_OK);
}

/* gs: of the input, in w4a4 */
static nb_linear draw_linear(exec_bench *b, nb_format format, size_t n, size_t k, size_t blocks, float gs,
                             uint32_t seed)
{
    codes c = {format, seed, k};
    nb_linear l = {.module = "m",
                   .n = n,
                   .k = k,
                   .blocks = blocks,
                   .format = format,
                   .has_input = true,
                   .input_gs = gs,
                   .input_multiplier = 1 / gs,
                   .fp4_input = format == NB_FMT_NVFP4};
    const bool f32 = format == NB_FMT_F32;
    assert_int_equal(b->x->ops->weight_new(b->x, format, n, k, 0, 0.5f, blocks, f32 ? 4 * k : k / 2,
                                           f32 ? 0 : k / 16, draw_rows, &c, &l.w, NULL),
                     NB_OK);
    return l;
}

static nb_tensor *draw_tensor(exec_bench *b, size_t rows, size_t cols, uint32_t seed)
{
    static float v[BENCH_ROWS * SLOTS * BLOCKS * K];
    for (size_t i = 0; i < rows * cols; i++) v[i] = exec_draw(&seed);
    return exec_tensor(b, false, rows, cols, v);
}

/* One row of the input through one weight; `from` of its columns. */
static void alone(exec_bench *b, const nb_linear *l, const nb_tensor *x, size_t row, size_t from, float *y)
{
    static float all[BENCH_ROWS * SLOTS * BLOCKS * K];
    const size_t cols = b->x->ops->tensor_cols(x);
    b->x->ops->tensor_read(b->x, x, row, 1, all);
    nb_tensor *in = exec_tensor(b, false, 1, l->k, all + from), *out = exec_tensor(b, false, 1, l->n, NULL);
    assert_true(from + l->k <= cols);
    b->x->ops->linear(b->x, &(nb_linear_call){.w = &l, .count = 1, .rows = 1, .x = in, .y = &out});
    assert_int_equal(b->x->err.status, NB_OK);
    b->x->ops->tensor_read(b->x, out, 0, 1, y);
    b->x->ops->tensor_free(in);
    b->x->ops->tensor_free(out);
}

/* Row `row` of y, from column `col` on, is what x's row gives alone. */
static void check_row(exec_bench *b, const nb_linear *l, const nb_tensor *x, size_t x_row, size_t from,
                      const nb_tensor *y, size_t row, size_t col)
{
    float got[WIDEST], want[WIDEST];
    b->x->ops->tensor_read(b->x, y, row, 1, got);
    alone(b, l, x, x_row, from, want);
    if (memcmp(got + col, want, l->n * sizeof *want) != 0)
        fail_msg("arithmetic %s, %zu rows: row %zu differs", nb_arith_name(b->x->arith), b->x->rows.n, row);
}

/* Calls fn for every arithmetic and number of rows, with one thread and with three. */
static void for_all(void (*fn)(exec_bench *b))
{
    for (size_t threads = 1; threads <= 3; threads += 2)
        for (size_t a = 0; a < sizeof ariths / sizeof *ariths; a++)
            for (size_t r = 0; r < sizeof row_counts / sizeof *row_counts; r++) {
                exec_bench b;
                open_threads(&b, threads);
                b.x->arith = ariths[a];
                b.x->rows.n = row_counts[r];
                fn(&b);
                exec_bench_close(&b);
            }
}

/* Inputs of three kinds: as they are, and quantised with either of two scales. */
static void check_group(exec_bench *b)
{
    nb_linear l[WEIGHTS] = {
        draw_linear(b, NB_FMT_NVFP4, 40, K, 1, 3, 1), draw_linear(b, NB_FMT_F32, 16, K, 1, 3, 2),
        draw_linear(b, NB_FMT_NVFP4, 24, K, 1, 3, 3), draw_linear(b, NB_FMT_NVFP4, 70, K, 1, 5, 4)};
    const nb_linear *w[WEIGHTS];
    nb_tensor *x = draw_tensor(b, BENCH_ROWS, K, 5), *y[WEIGHTS];
    for (size_t i = 0; i < WEIGHTS; i++) {
        w[i] = &l[i];
        y[i] = exec_tensor(b, false, BENCH_ROWS, l[i].n, NULL);
    }
    b->x->ops->linear(b->x, &(nb_linear_call){.w = w, .count = WEIGHTS, .x = x, .y = y});
    assert_int_equal(b->x->err.status, NB_OK);
    for (size_t i = 0; i < WEIGHTS; i++) {
        for (size_t t = 0; t < b->x->rows.n; t++) check_row(b, &l[i], x, t, 0, y[i], t, 0);
        b->x->ops->tensor_free(y[i]);
        b->x->ops->weight_free(l[i].w);
    }
    b->x->ops->tensor_free(x);
}

static void check_blocks(exec_bench *b)
{
    nb_linear l = draw_linear(b, NB_FMT_NVFP4, BLOCKS * 32, K, BLOCKS, 3, 1), one[BLOCKS];
    const nb_linear *w = &l;
    nb_tensor *x = draw_tensor(b, BENCH_ROWS, BLOCKS * K, 2),
              *y = exec_tensor(b, false, BENCH_ROWS, l.n, NULL);
    b->x->ops->linear(b->x, &(nb_linear_call){.w = &w, .count = 1, .x = x, .y = &y});
    assert_int_equal(b->x->err.status, NB_OK);
    for (size_t i = 0; i < BLOCKS; i++) {
        one[i] = draw_linear(b, NB_FMT_NVFP4, 32, K, 1, 3, 1 + (uint32_t)i * 32 * 977);
        for (size_t t = 0; t < b->x->rows.n; t++) check_row(b, &one[i], x, t, i * K, y, t, i * 32);
        b->x->ops->weight_free(one[i].w);
    }
    b->x->ops->weight_free(l.w);
    b->x->ops->tensor_free(x);
    b->x->ops->tensor_free(y);
}

/* Gate and up, of which one expert's read different inputs, then down beside linears of another input, one after the other
 * in w4a4. */
static void check_experts(exec_bench *b)
{
    nb_linear gate[EXPERTS], up[EXPERTS], down[EXPERTS],
        shared[] = {draw_linear(b, NB_FMT_NVFP4, K, INNER, 1, 2, 98),
                    draw_linear(b, NB_FMT_NVFP4, K, INNER, 1, 7, 99)};
    int32_t ids[BENCH_ROWS * SLOTS];
    for (uint32_t e = 0; e < EXPERTS; e++) {
        gate[e] = draw_linear(b, NB_FMT_NVFP4, INNER, K, 1, 3, 10 + e);
        up[e] = draw_linear(b, e == 1 ? NB_FMT_F32 : NB_FMT_NVFP4, INNER, K, 1, e == 3 ? 5 : 3, 20 + e);
        down[e] = draw_linear(b, NB_FMT_NVFP4, K, INNER, 1, 3, 30 + e);
    }
    for (int32_t t = 0; t < BENCH_ROWS; t++) {
        ids[t * SLOTS] = t % EXPERTS;
        ids[t * SLOTS + 1] = (t + 1 + t % 3) % EXPERTS;
    }
    const nb_linear *w[] = {gate, up}, *d = down, *s[] = {&shared[0], &shared[1]};
    nb_tensor *x = draw_tensor(b, BENCH_ROWS, K, 1), *h = draw_tensor(b, BENCH_ROWS * SLOTS, INNER, 2),
              *sh = draw_tensor(b, BENCH_ROWS, INNER, 3),
              *parts = exec_tensor(b, false, BENCH_ROWS * SLOTS, K, NULL),
              *sy[] = {exec_tensor(b, false, BENCH_ROWS, K, NULL),
                       exec_tensor(b, false, BENCH_ROWS, K, NULL)},
              *to = exec_tensor(b, true, BENCH_ROWS, SLOTS, ids),
              *y[] = {exec_tensor(b, false, BENCH_ROWS * SLOTS, INNER, NULL),
                      exec_tensor(b, false, BENCH_ROWS * SLOTS, INNER, NULL)};
    const nb_linear_call beside = {.w = s, .count = 2, .x = sh, .y = sy};
    nb_linear_call c = {.w = w, .count = 2, .n_experts = EXPERTS, .x = x, .y = y, .ids = to, .slots = SLOTS};
    b->x->ops->linear(b->x, &c);
    c = (nb_linear_call){.w = &d,
                         .count = 1,
                         .n_experts = EXPERTS,
                         .x = h,
                         .y = &parts,
                         .ids = to,
                         .slots = SLOTS,
                         .x_per_slot = true,
                         .beside = &beside};
    b->x->ops->linear(b->x, &c);
    assert_int_equal(b->x->err.status, NB_OK);
    for (size_t i = 0; i < b->x->rows.n * SLOTS; i++) {
        check_row(b, &gate[ids[i]], x, i / SLOTS, 0, y[0], i, 0);
        check_row(b, &up[ids[i]], x, i / SLOTS, 0, y[1], i, 0);
        check_row(b, &down[ids[i]], h, i, 0, parts, i, 0);
    }
    for (size_t t = 0; t < b->x->rows.n; t++)
        for (size_t i = 0; i < 2; i++) check_row(b, &shared[i], sh, t, 0, sy[i], t, 0);
    for (size_t e = 0; e < EXPERTS; e++) {
        b->x->ops->weight_free(gate[e].w);
        b->x->ops->weight_free(up[e].w);
        b->x->ops->weight_free(down[e].w);
    }
    nb_tensor *all[] = {x, h, sh, parts, to, sy[0], sy[1], y[0], y[1]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) b->x->ops->tensor_free(all[i]);
    for (size_t i = 0; i < 2; i++) b->x->ops->weight_free(shared[i].w);
}

static void weights_of_one_input(void **state)
{
    for_all(check_group);
}

static void diagonal_blocks(void **state)
{
    for_all(check_blocks);
}

static void experts_beside_a_shared_one(void **state)
{
    for_all(check_experts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_of_one_input),
        cmocka_unit_test(diagonal_blocks),
        cmocka_unit_test(experts_beside_a_shared_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
