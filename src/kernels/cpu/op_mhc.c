/*
 * Manifold-constrained hyper-connections (DeepSeek-V4) on the CPU: M residual streams, a doubly stochastic mixing matrix per
 * row from Sinkhorn iterations. All F32. Formulas: DeepSeek-V4 inference/model.py (hc_pre, hc_post, hc_head).
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/exec.h"

#define MAX_STREAMS 16

typedef struct mhc_job {
    nb_exec *x;
    const nb_tensor *in, *mixed;
    const nb_mhc *p;
    size_t streams;
    nb_tensor *y, *mix;
} mhc_job;

static float sigmoid(float v)
{
    return 1.0f / (1.0f + expf(-v));
}

/* out[i] = (fn[i] . v) * rsqrt(mean(v^2) + eps), over all streams of one row. */
static void mixes(const nb_kernels *k, const nb_mhc *p, const float *v, size_t n, float *out)
{
    float rs = 1.0f / sqrtf(k->dot(v, v, n) / (float)n + p->norm_eps);
    for (size_t i = 0; i < p->fn->rows; i++) out[i] = k->dot(p->fn->f + i * n, v, n) * rs;
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
    float mix[(2 + MAX_STREAMS) * MAX_STREAMS];
    for (size_t t = begin; t < end; t++) {
        const float *v = j->in->f + t * M * d;
        float *post = j->mix->f + t * j->mix->cols, *C = post + M, *y = j->y->f + t * d;
        mixes(k, p, v, M * d, mix);
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
    nb_cpu_rows(x, x->rows.n, p->fn->rows * X->cols, pre_rows, &j);
    nb_cpu_tell_of(x, "mhc_pre", y, x->rows.n, p->fn, p->base, p->scale);
}

static void post_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const mhc_job *j = ctx;
    size_t M = j->streams, d = j->in->cols;
    for (size_t t = begin; t < end; t++) {
        const float *o = j->in->f + t * d, *post = j->mixed->f + t * j->mixed->cols, *C = post + M;
        float *X = j->y->f + t * M * d;
        for (size_t c = 0; c < d; c++) { /* column by column, so that X can be replaced in place */
            float old[MAX_STREAMS];
            for (size_t i = 0; i < M; i++) old[i] = X[i * d + c];
            for (size_t k = 0; k < M; k++) {
                float v = post[k] * o[c];
                for (size_t i = 0; i < M; i++)
                    v += C[i * M + k] * old[i]; /* transposed: over C's first index */
                X[k * d + c] = v;
            }
        }
        nb_cpu_round(j->x, X, M * d);
    }
}

void nb_cpu_mhc_post(nb_exec *x, const nb_tensor *o, const nb_tensor *mix, size_t streams, nb_tensor *X)
{
    if (x->err.status) return;
    mhc_job j = {.x = x, .in = o, .mixed = mix, .streams = streams, .y = X};
    nb_cpu_rows(x, x->rows.n, X->cols * streams, post_rows, &j);
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
        mixes(k, p, v, M * d, mix);
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
    nb_cpu_rows(x, x->rows.n, p->fn->rows * X->cols, head_rows, &j);
    nb_cpu_tell_of(x, "mhc_head", y, x->rows.n, p->fn, p->base, p->scale);
}
