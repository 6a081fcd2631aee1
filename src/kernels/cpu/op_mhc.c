/*
 * Manifold-constrained hyper-connections (DeepSeek-V4) on the CPU: M residual streams, a doubly stochastic mixing matrix per
 * row from Sinkhorn iterations. All F32. Formulas: DeepSeek-V4 inference/model.py (hc_pre, hc_post, hc_head).
 */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/exec.h"

#define MAX_STREAMS 16
#define MAX_MIX ((2 + MAX_STREAMS) * MAX_STREAMS)

enum {
    FEW =
        8, /* rows that go to the threads product by product: fn is larger than many a weight, and one thread reads it slowly */
    COLS = 64 /* of a row that one thread mixes at a time */
};

typedef struct mhc_job {
    nb_exec *x;
    const nb_tensor *in, *mixed;
    const nb_mhc *p;
    size_t streams;
    nb_tensor *y, *mix;
    float *dots; /* [rows][fn->rows] fn . v, where they are made beforehand; else NULL */
} mhc_job;

static float sigmoid(float v)
{
    return 1.0f / (1.0f + expf(-v));
}

/* Products [begin, end) of fn's rows and the rows of in. */
static void dot_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const mhc_job *j = ctx;
    const nb_kernels *k = nb_cpu_of(j->x)->k;
    const size_t n = j->in->cols, mix = j->p->fn->rows;
    for (size_t i = begin; i < end; i++)
        j->dots[i] = k->dot(j->p->fn->f + i % mix * n, j->in->f + i / mix * n, n);
}

/* out[i] = (fn[i] . v) * rsqrt(mean(v^2) + eps), over all streams of row t. */
static void mixes(const mhc_job *j, size_t t, float *out)
{
    const nb_kernels *k = nb_cpu_of(j->x)->k;
    const nb_tensor *fn = j->p->fn;
    const size_t n = j->in->cols;
    const float *v = j->in->f + t * n;
    const float rs = 1.0f / sqrtf(k->dot(v, v, n) / (float)n + j->p->norm_eps);
    for (size_t i = 0; i < fn->rows; i++)
        out[i] = (j->dots ? j->dots[t * fn->rows + i] : k->dot(fn->f + i * n, v, n)) * rs;
}

/* Runs fn over the step's rows, few of them with their products made by all threads. */
static void run_rows(nb_exec *x, mhc_job *j, nb_pool_fn fn)
{
    float dots[FEW * MAX_MIX];
    const size_t rows = x->rows.n, mix = j->p->fn->rows, n = j->in->cols;
    if (rows > FEW) {
        nb_cpu_rows(x, rows, mix * n, fn, j);
        return;
    }
    j->dots = dots;
    nb_cpu_rows(x, rows * mix, n, dot_rows, j);
    fn(j, 0, 0, rows);
}

/* Rows first (softmax), then columns and rows in turn, ending with columns. C is [M][M]. */
static void sinkhorn(float *C, size_t M, int iters, float eps)
{
    for (size_t i = 0; i < M; i++) {
        float top = C[i * M], sum = 0;
        for (size_t j = 1; j < M; j++) top = C[i * M + j] > top ? C[i * M + j] : top;
        for (size_t j = 0; j < M; j++) sum += C[i * M + j] = expf(C[i * M + j] - top);
        for (size_t j = 0; j < M; j++) C[i * M + j] = C[i * M + j] / sum + eps;
    }
    for (int it = 0; it < iters; it++) {
        for (size_t i = 0; it > 0 && i < M; i++) {
            float sum = eps;
            for (size_t j = 0; j < M; j++) sum += C[i * M + j];
            for (size_t j = 0; j < M; j++) C[i * M + j] /= sum;
        }
        for (size_t j = 0; j < M; j++) {
            float sum = eps;
            for (size_t i = 0; i < M; i++) sum += C[i * M + j];
            for (size_t i = 0; i < M; i++) C[i * M + j] /= sum;
        }
    }
}

static void expand_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const mhc_job *j = ctx;
    size_t d = j->in->cols;
    for (size_t t = begin; t < end; t++)
        for (size_t i = 0; i < j->streams; i++)
            memcpy(j->y->f + (t * j->streams + i) * d, j->in->f + t * d, d * sizeof(float));
}

void nb_cpu_mhc_expand(nb_exec *x, const nb_tensor *h, size_t streams, nb_tensor *X)
{
    if (x->err.status) return;
    mhc_job j = {.x = x, .in = h, .streams = streams, .y = X};
    nb_cpu_rows(x, x->rows.n, X->cols, expand_rows, &j);
}

static void pre_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const mhc_job *j = ctx;
    const nb_mhc *p = j->p;
    const nb_kernels *k = nb_cpu_of(j->x)->k;
    size_t M = p->streams, d = j->y->cols;
    const float *base = p->base->f, *scale = p->scale->f;
    float mix[MAX_MIX];
    for (size_t t = begin; t < end; t++) {
        const float *v = j->in->f + t * M * d;
        float *post = j->mix->f + t * j->mix->cols, *C = post + M, *y = j->y->f + t * d;
        mixes(j, t, mix);
        memset(y, 0, d * sizeof *y);
        for (size_t i = 0; i < M; i++) {
            k->axpy(sigmoid(mix[i] * scale[0] + base[i]) + p->eps, v + i * d, d, y);
            post[i] = 2.0f * sigmoid(mix[M + i] * scale[1] + base[M + i]);
        }
        for (size_t i = 0; i < M * M; i++) C[i] = mix[2 * M + i] * scale[2] + base[2 * M + i];
        sinkhorn(C, M, p->sinkhorn_iters, p->eps);
        nb_cpu_round(j->x, y, d);
    }
}

void nb_cpu_mhc_pre(nb_exec *x, const nb_tensor *X, const nb_mhc *p, nb_tensor *y, nb_tensor *mix)
{
    if (x->err.status) return;
    if (p->streams > MAX_STREAMS) {
        nb_fail(&x->err, NB_ERR_UNSUPPORTED, "hc_mult %zu is above %d", p->streams, MAX_STREAMS);
        return;
    }
    mhc_job j = {.x = x, .in = X, .p = p, .y = y, .mix = mix};
    run_rows(x, &j, pre_rows);
    nb_cpu_tell_of(x, "mhc_pre", y, x->rows.n, p->fn, p->base, p->scale);
}

/* Pieces of COLS columns, of every row in turn: X[k] = post[k] o + sum over i of C[i][k] X[i] (transposed: over C's first index). */
static void post_pieces(void *ctx, size_t thread, size_t begin, size_t end)
{
    const mhc_job *j = ctx;
    const size_t M = j->streams, d = j->in->cols, pieces = nb_ceil_div(d, COLS);
    for (size_t piece = begin; piece < end; piece++) {
        const size_t t = piece / pieces, from = piece % pieces * COLS, n = d - from < COLS ? d - from : COLS;
        const float *o = j->in->f + t * d + from, *post = j->mixed->f + t * j->mixed->cols, *C = post + M;
        float *X = j->y->f + t * M * d + from;
        float old[MAX_STREAMS][COLS];
        for (size_t i = 0; i < M; i++) memcpy(old[i], X + i * d, n * sizeof *X);
        for (size_t k = 0; k < M; k++) {
            float *y = X + k * d;
            for (size_t c = 0; c < n; c++) y[c] = post[k] * o[c];
            for (size_t i = 0; i < M; i++)
                for (size_t c = 0; c < n; c++) y[c] += C[i * M + k] * old[i][c];
            nb_cpu_round(j->x, y, n);
        }
    }
}

void nb_cpu_mhc_post(nb_exec *x, const nb_tensor *o, const nb_tensor *mix, size_t streams, nb_tensor *X)
{
    if (x->err.status) return;
    mhc_job j = {.x = x, .in = o, .mixed = mix, .streams = streams, .y = X};
    nb_cpu_rows(x, x->rows.n * nb_ceil_div(o->cols, COLS), COLS * streams * streams, post_pieces, &j);
    nb_cpu_tell(x, "mhc_post", X, x->rows.n);
}

static void head_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const mhc_job *j = ctx;
    const nb_mhc *p = j->p;
    const nb_kernels *k = nb_cpu_of(j->x)->k;
    size_t M = p->streams, d = j->y->cols;
    float mix[MAX_STREAMS] = {0};
    for (size_t t = begin; t < end; t++) {
        const float *v = j->in->f + t * M * d;
        float *y = j->y->f + t * d;
        mixes(j, t, mix);
        memset(y, 0, d * sizeof *y);
        for (size_t i = 0; i < M; i++)
            k->axpy(sigmoid(mix[i] * p->scale->f[0] + p->base->f[i]) + p->eps, v + i * d, d, y);
        nb_cpu_round(j->x, y, d);
    }
}

void nb_cpu_mhc_head(nb_exec *x, const nb_tensor *X, const nb_mhc *p, nb_tensor *y)
{
    if (x->err.status) return;
    mhc_job j = {.x = x, .in = X, .p = p, .y = y};
    run_rows(x, &j, head_rows);
    nb_cpu_tell_of(x, "mhc_head", y, x->rows.n, p->fn, p->base, p->scale);
}
