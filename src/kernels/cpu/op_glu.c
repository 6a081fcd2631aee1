/* Gated units on the CPU, and the columns that they and fused projections are cut into and put together from. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/exec.h"

static float sigmoid(float v)
{
    return 1.0f / (1.0f + expf(-v));
}

/* One value of every kind but SILU, which has a kernel. Comparisons are written so that NaN stays NaN. */
static float unit(nb_act act, float g, float u, float limit)
{
    switch (act) {
    case NB_ACT_GELU_TANH: return 0.5f * g * (1.0f + tanhf(0.79788456f * (g + 0.044715f * g * g * g))) * u;
    case NB_ACT_RELU2: return g < 0 ? 0.0f * u : g * g * u;
    case NB_ACT_SIGMOID: return sigmoid(g) * u;
    default: break;
    }
    if (limit > 0) {
        g = g > limit ? limit : g;
        u = u > limit ? limit : u < -limit ? -limit : u;
    }
    return g * sigmoid(act == NB_ACT_SILU_PLUS ? 1.702f * g : g) * (act == NB_ACT_SILU_PLUS ? u + 1.0f : u);
}

typedef struct glu_job {
    nb_exec *x;
    nb_act act;
    const nb_tensor *gate, *up;
    float limit;
    nb_tensor *y;
} glu_job;

static void glu_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const glu_job *j = ctx;
    size_t n = j->y->cols, step = j->gate->cols == 1 && n != 1 ? 0 : 1;
    for (size_t r = begin; r < end; r++) {
        const float *g = j->gate->f + r * j->gate->cols, *u = j->up ? j->up->f + r * n : NULL;
        float *y = j->y->f + r * n;
        if (j->act == NB_ACT_SILU && u && step)
            nb_cpu_of(j->x)->k->swiglu(g, u, j->limit, n, y);
        else
            for (size_t i = 0; i < n; i++) y[i] = unit(j->act, g[i * step], u ? u[i] : 1.0f, j->limit);
        nb_cpu_round(j->x, y, n);
    }
}

void nb_cpu_glu(nb_exec *x, nb_act act, const nb_tensor *gate, const nb_tensor *up, size_t rows, float limit,
                nb_tensor *y)
{
    if (x->err.status) return;
    glu_job j = {x, act, gate, up, limit, y};
    nb_cpu_rows(x, rows, y->cols * 8, glu_rows, &j);
    nb_cpu_tell(x, "glu", y, rows);
}

typedef struct columns_job {
    const nb_tensor *in;
    size_t d, from;
    nb_tensor *y;
} columns_job;

static void columns_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const columns_job *j = ctx;
    size_t groups = j->in->cols / j->d, n = j->y->cols / groups;
    for (size_t i = begin * groups; i < end * groups; i++)
        memcpy(j->y->f + i * n, j->in->f + i * j->d + j->from, n * sizeof *j->y->f);
}

void nb_cpu_columns(nb_exec *x, const nb_tensor *in, size_t rows, size_t d, size_t from, nb_tensor *y)
{
    if (x->err.status) return;
    columns_job j = {in, d, from, y};
    nb_cpu_rows(x, rows, y->cols, columns_rows, &j);
    nb_cpu_tell(x, "columns", y, rows);
}

typedef struct join_job {
    const nb_tensor *const *in;
    size_t n;
    nb_tensor *y;
} join_job;

static void join_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const join_job *j = ctx;
    for (size_t t = begin; t < end; t++) {
        float *y = j->y->f + t * j->y->cols;
        for (size_t i = 0; i < j->n; i++) {
            size_t cols = j->in[i]->cols;
            memcpy(y, j->in[i]->f + t * cols, cols * sizeof *y);
            y += cols;
        }
    }
}

void nb_cpu_join(nb_exec *x, const nb_tensor *const *in, size_t n, size_t rows, nb_tensor *y)
{
    if (x->err.status) return;
    join_job j = {in, n, y};
    nb_cpu_rows(x, rows, y->cols, join_rows, &j);
    nb_cpu_tell(x, "join", y, rows);
}
