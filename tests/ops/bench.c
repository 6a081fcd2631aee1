/*
 * Speed as a share of the roof that this machine showed a moment before. Weights are rotated over more memory than any cache
 * holds, as a model's layers are. Tables take turns, so that a busy neighbour slows all of them alike; each shows its best round.
 */
#include "base/clock.h"
#include "ops.h"

#include "base/mem.h"
#include "bench/roof.h"

enum { ROUNDS = 7, GAP = 16 };     /* GAP: floats between two rows, as op_linear.c leaves */
#define ROTATE ((size_t)384 << 20) /* bytes of weights in turn */

typedef enum row_form {
    F32_ROWS,
    BF16_ROWS,
    INT8_ROWS
} row_form; /* what x holds: linear, linear_bf16, linear_i8 */
static const char *const form_names[] = {"linear", "bf16", "int8"};

typedef struct job {
    const nb_kernels *k;
    const nb_packed *w;
    const float *x;
    float *y;
    size_t rows;
    row_form form;
} job;

static void panels(void *ctx, size_t thread, size_t begin, size_t end)
{
    job *j = ctx;
    if (j->form == INT8_ROWS)
        j->k->linear_i8(j->w, j->x, j->w->k_pad + GAP, j->rows, j->y, j->w->n, begin, end);
    else
        (j->form == BF16_ROWS ? j->k->linear_bf16 : j->k->linear)(j->w, j->x, j->w->k_pad + GAP, j->rows,
                                                                  NULL, j->y, j->w->n, begin, end);
}

static void fill(void *ctx, size_t thread, size_t begin, size_t end)
{
    nb_packed *w = ctx;
    uint64_t z = begin + 1;
    for (size_t i = begin * w->code_bytes; i < end * w->code_bytes; i += 8) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        uint64_t bits = z ^ z >> 29;
        if (w->format == NB_FMT_BF16 || w->format == NB_FMT_F16)
            bits = (bits & 0x83FF83FF83FF83FFu) | 0x3C003C003C003C00u;
        if (w->format == NB_FMT_FP8) bits &= 0xF7F7F7F7F7F7F7F7u; /* no NaN */
        if (w->format == NB_FMT_F32) bits = (bits & 0x807FFFFF807FFFFFu) | 0x3F0000003F000000u;
        memcpy(w->codes + i, &bits, 8);
    }
    if (w->scales && w->format == NB_FMT_FP8) {
        for (size_t i = begin * w->scale_bytes; i < end * w->scale_bytes; i += 4)
            memcpy(w->scales + i, &(float){1}, 4);
    } else if (w->scales) {
        memset(w->scales + begin * w->scale_bytes, w->format == NB_FMT_NVFP4 ? 0x38 : 127,
               (end - begin) * w->scale_bytes);
    }
}

/* Rows of floats at x as the kernel of their form takes them. */
static void make_rows(const nb_kernels *k, const nb_packed *w, const float *x, size_t rows, row_form form,
                      float *out)
{
    for (size_t r = 0; r < rows; r++, x += w->k_pad + GAP, out += w->k_pad + GAP) {
        if (form == INT8_ROWS)
            k->quantise_i8(x, w->k, w->k_pad, out);
        else if (form == BF16_ROWS && k->prepare_bf16)
            k->prepare_bf16(x, w->k, w->k_pad, out);
        else
            memcpy(out, x, w->k_pad * sizeof *x);
    }
}

/* Seconds a call, the best of a few rounds, for each table. One that takes longer than 0.2 s is called once only. */
static void time_linear(ops *o, nb_packed *w, size_t count, size_t rows, row_form form, double *seconds)
{
    const size_t ld = w->k_pad + GAP;
    float *x = nb_calloc_aligned(rows * ld, sizeof *x), *y = nb_calloc_aligned(rows * w->n, sizeof *y);
    if (!x || !y) exit(2);
    for (size_t i = 0; i < rows * ld; i++) x[i] = i % ld < w->k ? ops_normal(o) : 0;
    float *q = nb_calloc_aligned(rows * ld, sizeof *q);
    if (!q) exit(2);
    size_t next = 0;
    for (size_t t = 0; t < o->n_tables; t++) seconds[t] = 1e9;
    for (int round = 0; round < ROUNDS; round++)
        for (size_t t = 0; t < o->n_tables; t++) {
            if (seconds[t] < 1e9 && seconds[t] > 0.2) continue;
            make_rows(o->tables[t], w, x, rows, form, q);
            size_t calls = 0;
            double start = nb_now(), spent;
            do {
                job j = {o->tables[t], &w[next++ % count], q, y, rows, form};
                nb_pool_run(o->pool, w->panels, 1, panels, &j);
                calls++;
                spent = nb_now() - start;
            } while (spent < 0.05);
            if (spent / (double)calls < seconds[t]) seconds[t] = spent / (double)calls;
        }
    free(q);
    free(x);
    free(y);
}

static bool bench_format(ops *o, const nb_roof *roof, nb_format f, row_form form, size_t n, size_t k,
                         const size_t *rows, size_t n_rows)
{
    nb_packed w[64] = {{.format = f}};
    size_t count = 0;
    bool ok = true;
    do {
        nb_error err;
        if (nb_packed_alloc(f, n, k, 0, &w[count], &err) != NB_OK) {
            fprintf(stderr, "nb_ops: %s\n", err.cause);
            ok = false;
            goto out;
        }
        nb_pool_run(o->pool, w[count].panels, 1, fill, &w[count]);
        count++;
    } while (count < COUNT(w) && nb_packed_bytes(w) * count < ROTATE);
    for (size_t i = 0; i < n_rows; i++) {
        double seconds[COUNT(o->tables)];
        time_linear(o, w, count, rows[i], form, seconds);
        for (size_t t = 0; t < o->n_tables; t++) {
            double gbs = (double)nb_packed_bytes(w) / seconds[t] * 1e-9;
            double gflops = 2.0 * (double)n * (double)k * (double)rows[i] / seconds[t] * 1e-9;
            printf("%-8s %-5s %5zu x %-5zu rows %-4zu %-8s %9.3f ms %7.2f GB/s %4.0f %% of read %8.1f "
                   "GFLOP/s %4.0f %% of FMA  "
                   "x %.1f\n",
                   form_names[form], nb_format_name(f), n, k, rows[i], o->tables[t]->name, seconds[t] * 1e3,
                   gbs, 100 * gbs / roof->read_gbs, gflops, 100 * gflops / roof->fma_gflops,
                   seconds[0] / seconds[t]);
            fflush(stdout);
        }
    }
out:
    for (size_t i = 0; i < count; i++) nb_packed_free(&w[i]);
    return ok;
}

/* One thread; everything in the second-level cache. */
static void bench_rows(ops *o)
{
    enum { N = 4096, HEADS = 8, D = 128, CONTEXT = 512 };
    static float x[N], u[N], y[N], c[N / 2], s[N / 2], kv[CONTEXT * D], scores[HEADS][CONTEXT];
    nb_query queries[HEADS];
    static const float *kv_rows[CONTEXT + NB_AHEAD];
    for (size_t i = 0; i < N; i++) x[i] = ops_normal(o), u[i] = ops_normal(o);
    for (size_t i = 0; i < N / 2; i++) c[i] = 0.6f, s[i] = 0.8f;
    for (size_t i = 0; i < CONTEXT * D; i++) kv[i] = ops_normal(o);
    for (size_t i = 0; i < CONTEXT + NB_AHEAD; i++) kv_rows[i] = kv + i % CONTEXT * D;
    for (size_t h = 0; h < HEADS; h++) queries[h] = (nb_query){x + h * D, y + h * D, scores[h], 0, CONTEXT};
    static const char *const names[] = {"rmsnorm", "rope", "exps", "swiglu", "dot", "axpy", "attend"};
    for (size_t op = 0; op < COUNT(names); op++) {
        if (!ops_wants(o, names[op])) continue;
        double seconds[COUNT(o->tables)];
        for (size_t t = 0; t < o->n_tables; t++) seconds[t] = 1e9;
        for (int round = 0; round < 2 * ROUNDS; round++)
            for (size_t t = 0; t < o->n_tables; t++) {
                const nb_kernels *k = o->tables[t];
                const nb_attend_args a = {queries, HEADS, kv_rows, kv_rows, D, D, 0.09f};
                size_t calls = 0;
                float max;
                double start = nb_now(), spent;
                do {
                    switch (op) {
                    case 0: k->rmsnorm(x, u, 1e-6f, N, y); break;
                    case 1: k->rope(x, c, s, N / 2, true, 1); break;
                    case 2:
                        memcpy(y, u, sizeof y);
                        k->exps(y, N, &max);
                        break;
                    case 3: k->swiglu(x, u, 7, N, y); break;
                    case 4: y[0] = k->dot(x, u, N); break;
                    case 5: k->axpy(1e-6f, x, N, y); break;
                    default:
                        k->scores(&a, 0, CONTEXT);
                        for (size_t h = 0; h < HEADS; h++) k->exps(scores[h], CONTEXT, &max);
                        k->weigh(&a, 0, D);
                        break;
                    }
                    calls++;
                    spent = nb_now() - start;
                } while (spent < 0.01);
                if (spent / (double)calls < seconds[t]) seconds[t] = spent / (double)calls;
            }
        for (size_t t = 0; t < o->n_tables; t++)
            printf("%-8s %-38s %-8s %9.3f us  x %.1f\n", names[op],
                   op == 6 ? "8 heads of 128 over 512 rows" : "4096 values", o->tables[t]->name,
                   seconds[t] * 1e6, seconds[0] / seconds[t]);
    }
}

int ops_bench(ops *o)
{
    nb_roof roof;
    nb_error err;
    if (nb_roof_measure(o->pool, 0, &roof, &err) != NB_OK) {
        fprintf(stderr, "nb_ops: %s\n", err.cause);
        return 2;
    }
    printf("%zu threads: read %.1f GB/s, copy %.1f GB/s, FMA %.0f GFLOP/s\n", roof.threads, roof.read_gbs,
           roof.copy_gbs, roof.fma_gflops);
    static const size_t all[] = {1, 2, 4, 8, 16, 32, 64, 512}, few[] = {1, 8, 64};
    bool ok = true;
    if (ops_wants(o, "linear")) {
        ok = bench_format(o, &roof, NB_FMT_NVFP4, F32_ROWS, 4096, 14336, all, COUNT(all));
        for (nb_format f = NB_FMT_MXFP4; ok && f < NB_FMT_COUNT; f++)
            ok = bench_format(o, &roof, f, F32_ROWS, 4096, 4096, few, COUNT(few));
    }
    if (ok && ops_wants(o, "bf16"))
        ok = bench_format(o, &roof, NB_FMT_NVFP4, BF16_ROWS, 4096, 14336, all, COUNT(all));
    if (ok && ops_wants(o, "int8")) {
        ok = bench_format(o, &roof, NB_FMT_NVFP4, INT8_ROWS, 4096, 14336, all, COUNT(all));
        if (ok) ok = bench_format(o, &roof, NB_FMT_MXFP4, INT8_ROWS, 4096, 4096, few, COUNT(few));
    }
    bench_rows(o);
    return ok ? 0 : 2;
}
