/* Mixture of experts on the CPU: who computes a row, and how the parts are put together. The experts' products are op_linear.c. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/exec.h"

/* log(1 + exp(v)) without overflow; torch's softplus switches to v above 20. */
static float softplus(float v)
{
    return v > 20.0f ? v : log1pf(expf(v));
}

/* The score by which expert e is chosen; a NaN counts as the lowest, so that every row gets distinct valid experts. */
static float choice(const float *score, const nb_tensor *bias, size_t e)
{
    float v = score[e] + (bias ? bias->f[e] : 0.0f);
    return isnan(v) ? -INFINITY : v;
}

/* The `slots` best experts, best first, the lower index among equals: one pass with insertion. */
static void choose_by_score(const float *score, const nb_tensor *bias, size_t experts, size_t slots,
                            int32_t *ids)
{
    size_t kept = 0;
    for (size_t e = 0; e < experts; e++) {
        float v = choice(score, bias, e);
        if (kept == slots && !(v > choice(score, bias, (size_t)ids[slots - 1]))) continue;
        size_t at = kept < slots ? kept++ : slots - 1;
        for (; at > 0 && v > choice(score, bias, (size_t)ids[at - 1]); at--) ids[at] = ids[at - 1];
        ids[at] = (int32_t)e;
    }
}

typedef struct route_job {
    nb_exec *x;
    const nb_route_call *c;
} route_job;

static void route_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const route_job *j = ctx;
    const nb_route_call *c = j->c;
    size_t experts = c->logits->cols, slots = c->ids->cols;
    for (size_t t = begin; t < end; t++) {
        float *score = c->logits->f + t * experts; /* the logits are not needed any more */
        int32_t *ids = c->ids->i + t * slots;
        float *w = c->weights->f + t * slots, sum = 0;
        for (size_t e = 0; e < experts; e++) score[e] = sqrtf(softplus(score[e]));
        if (c->hash)
            memcpy(ids, c->hash->i + j->x->rows.token[t] * slots, slots * sizeof *ids);
        else
            choose_by_score(score, c->bias, experts, slots, ids);
        for (size_t s = 0; s < slots; s++) sum += score[ids[s]];
        for (size_t s = 0; s < slots; s++) w[s] = score[ids[s]] / (sum + 1e-20f) * c->scaling;
    }
}

void nb_cpu_route(nb_exec *x, const nb_route_call *c)
{
    if (x->err.status) return;
    route_job j = {x, c};
    nb_cpu_rows(x, x->rows.n, c->logits->cols * 16, route_rows, &j);
    nb_cpu_tell_of(x, "route", c->weights, x->rows.n, c->bias, NULL, NULL);
}

typedef struct combine_job {
    nb_exec *x;
    const nb_tensor *parts, *weights, *extra;
    size_t slots;
    nb_tensor *y;
} combine_job;

static void combine_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const combine_job *j = ctx;
    const nb_kernels *k = nb_cpu_of(j->x)->k;
    size_t n = j->y->cols;
    for (size_t t = begin; t < end; t++) {
        float *y = j->y->f + t * n;
        memset(y, 0, n * sizeof *y);
        for (size_t s = 0; s < j->slots; s++)
            k->axpy(j->weights->f[t * j->slots + s], j->parts->f + (t * j->slots + s) * n, n, y);
        if (j->extra) k->axpy(1.0f, j->extra->f + t * n, n, y);
        nb_cpu_round(j->x, y, n);
    }
}

void nb_cpu_combine(nb_exec *x, const nb_tensor *parts, const nb_tensor *weights, size_t slots,
                    const nb_tensor *extra, nb_tensor *y)
{
    if (x->err.status) return;
    combine_job j = {x, parts, weights, extra, slots, y};
    nb_cpu_rows(x, x->rows.n, slots * y->cols, combine_rows, &j);
    nb_cpu_tell(x, "combine", y, x->rows.n);
}
