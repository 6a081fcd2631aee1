/* Hyper-connections: pre and post against the formulas in F64, and each row's bits whatever the rows beside it and the threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "kernels/exec_bench.h"

enum { M = 4, MIX = (2 + M) * M, WIDEST = 1040 };

static const size_t widths[] = {24, 72,
                                WIDEST}; /* too small for threads; with a rest of columns; for threads */

typedef struct streams {
    exec_bench b;
    size_t d;
    nb_tensor *X, *o, *y, *mix, *fn, *base, *scale;
    nb_mhc p;
} streams;

static nb_tensor *drawn(streams *s, size_t rows, size_t cols, float size, uint32_t seed)
{
    float *v = malloc(rows * cols * sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < rows * cols; i++) v[i] = exec_draw(&seed) * size;
    nb_tensor *t = exec_tensor(&s->b, false, rows, cols, v);
    free(v);
    return t;
}

static void open_streams(streams *s, size_t threads, size_t d)
{
    *s = (streams){.d = d};
    exec_bench_open_on(&s->b, threads, 16);
    s->X = drawn(s, BENCH_ROWS, M * d, 1, 1);
    s->o = drawn(s, BENCH_ROWS, d, 1, 2);
    s->y = drawn(s, BENCH_ROWS, d, 0, 3);
    s->mix = drawn(s, BENCH_ROWS, M + M * M, 0, 3);
    s->fn = drawn(s, MIX, M * d, 0.02f, 4);
    s->base = drawn(s, 1, MIX, 0.5f, 5);
    s->scale = drawn(s, 1, 3, 0.5f, 6);
    s->p = (nb_mhc){s->fn, s->base, s->scale, M, 20, 1e-6f, 1e-6f};
}

static void close_streams(streams *s)
{
    nb_tensor *all[] = {s->X, s->o, s->y, s->mix, s->fn, s->base, s->scale};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) s->b.x->ops->tensor_free(all[i]);
    exec_bench_close(&s->b);
}

static void take(streams *s, const nb_tensor *t, float *out)
{
    s->b.x->ops->tensor_read(s->b.x, t, 0, s->b.x->rows.n, out);
}

static void step(streams *s, size_t rows)
{
    s->b.x->rows.n = rows;
    s->b.x->ops->mhc_pre(s->b.x, s->X, &s->p, s->y, s->mix);
    s->b.x->ops->mhc_post(s->b.x, s->o, s->mix, M, s->X);
    assert_int_equal(s->b.x->err.status, NB_OK);
}

static double sigmoid(double v)
{
    return 1 / (1 + exp(-v));
}

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-5 * (1 + fabs(want)))) fail_msg("%.9g, expected %.9g", got, want);
}

/* Row 0: DeepSeek-V4 inference/model.py, hc_pre and hc_post. */
static void formulas(void **state)
{
    static float X[BENCH_ROWS * M * WIDEST], fn[MIX * M * WIDEST], o[BENCH_ROWS * WIDEST],
        y[BENCH_ROWS * WIDEST], after[BENCH_ROWS * M * WIDEST];
    float base[MIX], scale[3];
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        streams s;
        open_streams(&s, 2, widths[w]);
        const size_t d = s.d;
        s.b.x->rows.n = 1;
        take(&s, s.X, X);
        take(&s, s.o, o);
        take(&s, s.base, base);
        take(&s, s.scale, scale);
        s.b.x->ops->tensor_read(s.b.x, s.fn, 0, MIX, fn);
        step(&s, 1);
        take(&s, s.y, y);
        take(&s, s.X, after);
        double mix[MIX], square = 0, C[M][M];
        for (size_t i = 0; i < M * d; i++) square += (double)X[i] * X[i];
        for (size_t r = 0; r < MIX; r++) {
            mix[r] = 0;
            for (size_t i = 0; i < M * d; i++) mix[r] += (double)fn[r * M * d + i] * X[i];
            mix[r] /= sqrt(square / (double)(M * d) + 1e-6);
        }
        for (size_t i = 0; i < M; i++) {
            double top = -INFINITY, sum = 0;
            for (size_t k = 0; k < M; k++)
                C[i][k] = mix[2 * M + i * M + k] * scale[2] + base[2 * M + i * M + k];
            for (size_t k = 0; k < M; k++) top = fmax(top, C[i][k]);
            for (size_t k = 0; k < M; k++) sum += C[i][k] = exp(C[i][k] - top);
            for (size_t k = 0; k < M; k++) C[i][k] = C[i][k] / sum + 1e-6;
        }
        for (int it = 0; it < 20; it++) {
            for (size_t i = 0; it && i < M; i++) {
                double sum = 1e-6;
                for (size_t k = 0; k < M; k++) sum += C[i][k];
                for (size_t k = 0; k < M; k++) C[i][k] /= sum;
            }
            for (size_t k = 0; k < M; k++) {
                double sum = 1e-6;
                for (size_t i = 0; i < M; i++) sum += C[i][k];
                for (size_t i = 0; i < M; i++) C[i][k] /= sum;
            }
        }
        for (size_t c = 0; c < d; c++) {
            double in = 0;
            for (size_t i = 0; i < M; i++) in += (sigmoid(mix[i] * scale[0] + base[i]) + 1e-6) * X[i * d + c];
            near(y[c], in);
            for (size_t k = 0; k < M; k++) {
                double out = 2 * sigmoid(mix[M + k] * scale[1] + base[M + k]) * o[c];
                for (size_t i = 0; i < M; i++) out += C[i][k] * X[i * d + c];
                near(after[k * d + c], out);
            }
        }
        close_streams(&s);
    }
}

/* BENCH_ROWS at once by one thread, against other numbers of them by three. */
static void rows_and_threads_change_no_bit(void **state)
{
    static float want[BENCH_ROWS * M * WIDEST], got[BENCH_ROWS * M * WIDEST], y[2][BENCH_ROWS * WIDEST];
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (size_t rows = 1; rows <= BENCH_ROWS; rows += rows < 9 ? 1 : 11) {
            streams s;
            open_streams(&s, 1, widths[w]);
            step(&s, BENCH_ROWS);
            take(&s, s.X, want);
            take(&s, s.y, y[0]);
            close_streams(&s);
            open_streams(&s, 3, widths[w]);
            step(&s, rows);
            take(&s, s.X, got);
            take(&s, s.y, y[1]);
            close_streams(&s);
            assert_memory_equal(got, want, rows * M * widths[w] * sizeof *got);
            assert_memory_equal(y[1], y[0], rows * widths[w] * sizeof **y);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formulas),
        cmocka_unit_test(rows_and_threads_change_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
