/* Attention over latent rows, whose first columns are the value too: over all tokens and over selected ones, against sums in F64.
 * Pages lie out of order. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/exec_bench.h"

enum { HEADS = 3, DK = 12, DV = 8, TOP = 4, PAGES = BENCH_ROWS / NB_PAGE_ROWS + 1 };

static float q[BENCH_ROWS * HEADS * DK], row[BENCH_ROWS * DK], out[BENCH_ROWS * HEADS * DV];
static int32_t chosen[BENCH_ROWS * TOP];

static bool sees(size_t t, size_t p, bool selected)
{
    if (!selected) return p <= t;
    for (size_t i = 0; i < TOP; i++)
        if (chosen[t * TOP + i] == (int32_t)p) return true;
    return false;
}

static void compare(bool selected)
{
    for (size_t t = 0; t < BENCH_ROWS; t++)
        for (size_t h = 0; h < HEADS; h++) {
            double sum = 0, want[DV] = {0};
            for (size_t p = 0; p < BENCH_ROWS; p++) {
                double s = 0;
                if (!sees(t, p, selected)) continue;
                for (size_t i = 0; i < DK; i++)
                    s += (double)q[(t * HEADS + h) * DK + i] * (double)row[p * DK + i];
                s = exp(s * 0.25);
                sum += s;
                for (size_t i = 0; i < DV; i++) want[i] += s * (double)row[p * DK + i];
            }
            for (size_t i = 0; i < DV; i++)
                assert_true(fabs((double)out[(t * HEADS + h) * DV + i] - want[i] / sum) < 1e-5);
        }
}

static void test_latent(void **unused)
{
    uint32_t state = 5, pages[PAGES], *tables[] = {pages};
    static float memory[(PAGES + 1) * NB_PAGE_ROWS * DK];
    exec_bench b;
    for (uint32_t i = 0; i < PAGES; i++) pages[i] = PAGES - i;
    exec_bench_open(&b, DK);
    const nb_kv_stream stream = {{DK, 1, 0}, memory, tables};
    const nb_kv kv = {&stream, 1};
    b.x->kv = &kv;
    for (size_t i = 0; i < BENCH_ROWS * HEADS * DK; i++) q[i] = exec_draw(&state);
    for (size_t i = 0; i < BENCH_ROWS * DK; i++) row[i] = exec_draw(&state);
    for (size_t t = 0; t < BENCH_ROWS; t++) /* some of the tokens up to t in ascending order, padded */
        for (size_t i = 0; i < TOP; i++) {
            size_t p = t < TOP ? i : i * t / TOP;
            chosen[t * TOP + i] = p <= t ? (int32_t)p : -1;
        }
    nb_tensor *tq = exec_tensor(&b, false, BENCH_ROWS, HEADS * DK, q);
    nb_tensor *c = exec_tensor(&b, false, BENCH_ROWS, DK, row);
    nb_tensor *select = exec_tensor(&b, true, BENCH_ROWS, TOP, chosen);
    nb_tensor *to = exec_tensor(&b, false, BENCH_ROWS, HEADS * DV, NULL);
    b.x->ops->store(b.x, 0, c, NULL);
    nb_attend_call call = {
        .q = tq, .out = to, .heads = HEADS, .kv_heads = 1, .dk = DK, .dv = DV, .scale = 0.25f};
    b.x->ops->attend(b.x, &call);
    b.x->ops->tensor_read(b.x, to, 0, BENCH_ROWS, out);
    compare(false);
    call.select = select;
    b.x->ops->attend(b.x, &call);
    b.x->ops->tensor_read(b.x, to, 0, BENCH_ROWS, out);
    compare(true);
    b.x->ops->tensor_free(tq);
    b.x->ops->tensor_free(c);
    b.x->ops->tensor_free(select);
    b.x->ops->tensor_free(to);
    exec_bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_latent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
