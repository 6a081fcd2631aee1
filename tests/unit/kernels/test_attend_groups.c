/* Attention of one row, whose heads are dealt out to threads: groups of every size, which no number of threads need divide, against
 * sums in F64. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/exec_bench.h"

enum { MOST = 2 * 13, D = 4, LAST = BENCH_ROWS - 1 };
enum { PAGES = BENCH_ROWS / NB_PAGE_ROWS + 1 };

static float q[BENCH_ROWS * MOST * D], k[BENCH_ROWS * 2 * D], v[BENCH_ROWS * 2 * D], out[MOST * D];

static void compare(size_t heads, size_t kv_heads)
{
    for (size_t h = 0; h < heads; h++) {
        double sum = 0, want[D] = {0};
        for (size_t p = 0; p < BENCH_ROWS; p++) {
            const size_t row = (p * kv_heads + h / (heads / kv_heads)) * D;
            double s = 0;
            for (size_t i = 0; i < D; i++) s += (double)q[h * D + i] * (double)k[row + i];
            s = exp(s * 0.5);
            sum += s;
            for (size_t i = 0; i < D; i++) want[i] += s * (double)v[row + i];
        }
        for (size_t i = 0; i < D; i++) assert_true(fabs((double)out[h * D + i] - want[i] / sum) < 1e-5);
    }
}

static void attend_last(size_t threads, size_t heads, size_t kv_heads)
{
    static float memory[2][(PAGES + 1) * NB_PAGE_ROWS * 2 * D];
    uint32_t pages[PAGES], *tables[] = {pages}, last = LAST;
    exec_bench b;
    for (uint32_t i = 0; i < PAGES; i++) pages[i] = PAGES - i;
    exec_bench_open_on(&b, threads, D);
    const nb_kv_stream streams[] = {
        {{.cols = kv_heads * D, .tokens_per_row = 1, .heads = kv_heads}, memory[0], tables},
        {{.cols = kv_heads * D, .tokens_per_row = 1, .heads = kv_heads}, memory[1], tables}};
    const nb_kv kv = {streams, 2};
    b.x->kv = &kv;
    nb_tensor *tq = exec_tensor(&b, false, 1, heads * D, q), *to = exec_tensor(&b, false, 1, heads * D, NULL);
    nb_tensor *tk = exec_tensor(&b, false, BENCH_ROWS, kv_heads * D, k);
    nb_tensor *tv = exec_tensor(&b, false, BENCH_ROWS, kv_heads * D, v);
    b.x->ops->store(b.x, 0, tk, NULL);
    b.x->ops->store(b.x, 1, tv, NULL);
    b.x->rows.n = 1;
    b.x->rows.pos = &last;
    b.x->ops->attend(b.x, &(nb_attend_call){.q = tq,
                                            .out = to,
                                            .heads = heads,
                                            .kv_heads = kv_heads,
                                            .dk = D,
                                            .dv = D,
                                            .v_stream = 1,
                                            .scale = 0.5f});
    b.x->ops->tensor_read(b.x, to, 0, 1, out);
    compare(heads, kv_heads);
    b.x->ops->tensor_free(tq);
    b.x->ops->tensor_free(to);
    b.x->ops->tensor_free(tk);
    b.x->ops->tensor_free(tv);
    exec_bench_close(&b);
}

static void test_groups(void **unused)
{
    uint32_t state = 7;
    for (size_t i = 0; i < sizeof q / sizeof *q; i++) q[i] = exec_draw(&state);
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) k[i] = exec_draw(&state);
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) v[i] = exec_draw(&state);
    for (size_t threads = 1; threads <= 16; threads *= 2)
        for (size_t group = 1; group <= 13; group++)
            for (size_t kv_heads = 1; kv_heads <= 2; kv_heads++)
                attend_last(threads, group * kv_heads, kv_heads);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_groups)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
