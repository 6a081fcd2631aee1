/* Layer normalisation on the CPU: what sparse attention's indexers do to their keys. RMS norms are exec.c's. */
#include <math.h>

#include "kernels/cpu/exec.h"

typedef struct layernorm_job {
    nb_exec *x;
    const float *in, *w, *b;
    float *y, eps;
    size_t cols;
} layernorm_job;

static void layernorm_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const layernorm_job *j = ctx;
    size_t n = j->cols;
    for (size_t r = begin; r < end; r++) {
        const float *v = j->in + r * n;
        float *y = j->y + r * n, mean = 0, var = 0;
        for (size_t i = 0; i < n; i++) mean += v[i];
        mean /= (float)n;
        for (size_t i = 0; i < n; i++) var += (v[i] - mean) * (v[i] - mean);
        float scale = 1.0f / sqrtf(var / (float)n + j->eps);
        for (size_t i = 0; i < n; i++) y[i] = (v[i] - mean) * scale * j->w[i] + j->b[i];
        nb_cpu_round(j->x, y, n);
    }
}

void nb_cpu_layernorm(nb_exec *x, const nb_tensor *in, size_t rows, const nb_tensor *w, const nb_tensor *b,
                      float eps, nb_tensor *y)
{
    if (x->err.status) return;
    layernorm_job j = {x, in->f, w->f, b->f, y->f, eps, in->cols};
    nb_cpu_rows(x, rows, in->cols, layernorm_rows, &j);
    nb_cpu_tell_of(x, "layernorm", y, rows, w, b, NULL);
}
