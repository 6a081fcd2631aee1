/* Factors, caps and biases on the CPU: what Gemma multiplies its streams by, and the biases of gpt-oss' experts. */
#include <math.h>

#include "kernels/cpu/exec.h"

typedef struct scale_job {
    nb_exec *x;
    const nb_tensor *in, *w;
    float factor;
    nb_tensor *y;
} scale_job;

static void scale_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const scale_job *j = ctx;
    size_t n = j->y->cols, step = j->w && j->w->cols > 1;
    for (size_t r = begin; r < end; r++) {
        const float *v = j->in->f + r * n;
        float *y = j->y->f + r * n;
        for (size_t i = 0; i < n; i++) y[i] = v[i] * (j->w ? j->w->f[i * step] : 1.0f) * j->factor;
        nb_cpu_round(j->x, y, n);
    }
}

void nb_cpu_scale(nb_exec *x, const nb_tensor *in, size_t rows, const nb_tensor *w, float factor,
                  nb_tensor *y)
{
    if (x->err.status) return;
    scale_job j = {x, in, w, factor, y};
    nb_cpu_rows(x, rows, y->cols, scale_rows, &j);
    nb_cpu_tell_of(x, "scale", y, rows, w, NULL, NULL);
}

static void softcap_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const scale_job *j = ctx;
    float *y = j->y->f + begin * j->y->cols;
    size_t n = (end - begin) * j->y->cols;
    for (size_t i = 0; i < n; i++) y[i] = j->factor * tanhf(y[i] / j->factor);
    nb_cpu_round(j->x, y, n);
}

void nb_cpu_softcap(nb_exec *x, nb_tensor *t, size_t rows, float cap)
{
    if (x->err.status) return;
    scale_job j = {.x = x, .factor = cap, .y = t};
    nb_cpu_rows(x, rows, t->cols * 8, softcap_rows, &j);
    nb_cpu_tell(x, "softcap", t, rows);
}

typedef struct bias_job {
    nb_exec *x;
    nb_tensor *t;
    const nb_tensor *ids, *bias;
    size_t from, step;
} bias_job;

static void bias_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const bias_job *j = ctx;
    size_t n = j->t->cols;
    for (size_t r = begin; r < end; r++) {
        const float *b = j->bias->f + (size_t)j->ids->i[r] * j->bias->cols + j->from;
        float *y = j->t->f + r * n;
        for (size_t i = 0; i < n; i++) y[i] += b[i * j->step];
        nb_cpu_round(j->x, y, n);
    }
}

void nb_cpu_expert_bias(nb_exec *x, nb_tensor *t, const nb_tensor *ids, const nb_tensor *bias, size_t from,
                        size_t step)
{
    if (x->err.status) return;
    bias_job j = {x, t, ids, bias, from, step};
    size_t rows = x->rows.n * ids->cols;
    nb_cpu_rows(x, rows, t->cols, bias_rows, &j);
    nb_cpu_tell_of(x, "expert_bias", t, rows, bias, NULL, NULL);
}
