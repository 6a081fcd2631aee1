/* Attention to more rows than a tile has: each query against sums in F64, and to the bit whoever else is computed with it, whatever
 * the number of threads; with a window, with sinks, with a compressed stream, with rows selected from it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/exec_bench.h"

/* dk: columns that kernels take in whole vectors; dv: some are left over */
enum { N = 900, FIRST = N - BENCH_ROWS, HEADS = 6, D = 128, DV = 120, PER = 3, TOP = 280 };
enum { IN = HEADS * D, OUT = HEADS * DV };

typedef struct variant {
    size_t kv_heads, window;
    bool sinks, compressed, selected;
} variant;

typedef struct memory {
    float k[N / NB_PAGE_ROWS + 2][NB_PAGE_ROWS * 2 * D], v[N / NB_PAGE_ROWS + 2][NB_PAGE_ROWS * 2 * D],
        c[N / PER / NB_PAGE_ROWS + 2][NB_PAGE_ROWS * D];
} memory;

static memory m;
static float q[BENCH_ROWS * IN], sinks[HEADS], all[BENCH_ROWS * OUT], one[OUT];
static int32_t chosen[BENCH_ROWS * TOP];
static float first_q[BENCH_ROWS * IN]; /* of one token alone */
static int32_t first_chosen[BENCH_ROWS * TOP];

static void add(const float *query, const float *k, const float *v, double *sum, double *want)
{
    double s = 0;
    for (size_t i = 0; i < D; i++) s += (double)query[i] * (double)k[i];
    s = exp(s * 0.02);
    *sum += s;
    for (size_t i = 0; i < DV; i++) want[i] += s * (double)v[i];
}

static void compare(const variant *w, const nb_kv *all_kv)
{
    for (size_t t = 0; t < BENCH_ROWS; t++)
        for (size_t h = 0; h < HEADS; h++) {
            const float *query = q + t * IN + h * D;
            size_t last = FIRST + t, kv = h / (HEADS / w->kv_heads);
            double sum = w->sinks ? exp((double)sinks[h]) : 0, want[DV] = {0};
            for (size_t p = w->window && last + 1 > w->window ? last + 1 - w->window : 0; p <= last; p++)
                add(query, nb_kv_head(&all_kv->streams[0], 0, p, kv),
                    nb_kv_head(&all_kv->streams[1], 0, p, kv), &sum, want);
            for (size_t i = 0; w->compressed && i < (w->selected ? TOP : (last + 1) / PER); i++) {
                int32_t p = w->selected ? chosen[t * TOP + i] : (int32_t)i;
                const float *row = p < 0 ? NULL : nb_kv_row(&all_kv->streams[2], 0, (size_t)p);
                if (row) add(query, row, row, &sum, want);
            }
            for (size_t i = 0; i < DV; i++)
                assert_true(fabs((double)all[t * OUT + h * DV + i] - want[i] / sum) < 1e-5);
        }
}

/* The last BENCH_ROWS tokens together, then each alone. */
static void attend(const variant *w, const nb_kv *kv, size_t threads, bool first)
{
    exec_bench b;
    memset(&b, 0, sizeof b);
    assert_int_equal(nb_pool_new(threads, &b.pool, NULL), NB_OK);
    assert_int_equal(nb_cpu_exec_new("auto", b.pool, BENCH_ROWS, &b.x, NULL), NB_OK);
    assert_int_equal(b.x->ops->ready(b.x, &(nb_work){.max_k = IN, .max_context = N}, NULL), NB_OK);
    for (uint32_t i = 0; i < BENCH_ROWS; i++) b.pos[i] = FIRST + i;
    b.x->kv = kv;
    nb_tensor *tq = exec_tensor(&b, false, BENCH_ROWS, IN, q), *ts = exec_tensor(&b, false, 1, HEADS, sinks),
              *to = exec_tensor(&b, false, BENCH_ROWS, OUT, NULL),
              *select = exec_tensor(&b, true, BENCH_ROWS, TOP, chosen);
    const nb_attend_call call = {.q = tq,
                                 .out = to,
                                 .heads = HEADS,
                                 .kv_heads = w->kv_heads,
                                 .dk = D,
                                 .dv = DV,
                                 .v_stream = 1,
                                 .window = w->window,
                                 .compressed = w->compressed,
                                 .comp_stream = 2,
                                 .select = w->selected ? select : NULL,
                                 .scale = 0.02f,
                                 .sink = w->sinks ? ts : NULL};
    b.x->rows = (nb_rows){BENCH_ROWS, b.seq, b.pos, b.seq};
    b.x->ops->attend(b.x, &call);
    if (first) {
        b.x->ops->tensor_read(b.x, to, 0, BENCH_ROWS, all);
        compare(w, kv);
    }
    for (size_t t = 0; t < BENCH_ROWS; t++) {
        b.x->ops->tensor_read(b.x, to, t, 1, one);
        assert_memory_equal(one, all + t * OUT, sizeof one);
    }
    b.x->rows.n = 1;
    for (size_t t = 0; t < BENCH_ROWS; t++) {
        b.x->rows.pos = b.pos + t;
        memcpy(first_q, q + t * IN, IN * sizeof *q);
        memcpy(first_chosen, chosen + t * TOP, TOP * sizeof *chosen);
        b.x->ops->tensor_write(b.x, tq, first_q);
        b.x->ops->tensor_write(b.x, select, first_chosen);
        b.x->ops->attend(b.x, &call);
        b.x->ops->tensor_read(b.x, to, 0, 1, one);
        assert_memory_equal(one, all + t * OUT, sizeof one);
    }
    b.x->ops->tensor_free(tq);
    b.x->ops->tensor_free(ts);
    b.x->ops->tensor_free(to);
    b.x->ops->tensor_free(select);
    exec_bench_close(&b);
}

static void test_tiles(void **unused)
{
    static const variant variants[] = {{1, 0, false, false, false},  {2, 0, false, false, false},
                                       {2, 0, true, false, false},   {2, 300, true, false, false},
                                       {1, 300, false, true, false}, {1, 300, true, true, true}};
    uint32_t state = 3, pages[N / NB_PAGE_ROWS + 1], *tables[] = {pages};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        pages[i] = (uint32_t)(sizeof pages / sizeof *pages - i); /* out of order */
    uint32_t few[N / PER / NB_PAGE_ROWS + 1], *few_tables[] = {few};
    for (size_t i = 0; i < sizeof few / sizeof *few; i++) few[i] = (uint32_t)(sizeof few / sizeof *few - i);
    for (size_t i = 0; i < sizeof m / sizeof(float); i++) ((float *)&m)[i] = exec_draw(&state);
    for (size_t i = 0; i < sizeof q / sizeof *q; i++) q[i] = exec_draw(&state);
    for (size_t i = 0; i < HEADS; i++) sinks[i] = exec_draw(&state);
    for (size_t t = 0; t < BENCH_ROWS; t++)
        for (size_t i = 0; i < TOP; i++) chosen[t * TOP + i] = i < TOP - t ? (int32_t)(i + i / 100) : -1;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        const variant *w = &variants[i];
        const nb_kv_stream streams[] = {{{w->kv_heads * D, 1, w->window, 0, w->kv_heads}, m.k[0], tables},
                                        {{w->kv_heads * D, 1, w->window, 0, w->kv_heads}, m.v[0], tables},
                                        {{D, PER, 0}, m.c[0], few_tables}};
        const nb_kv kv = {streams, 3};
        for (size_t threads = 1; threads <= 8; threads++) attend(w, &kv, threads, threads == 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tiles)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
