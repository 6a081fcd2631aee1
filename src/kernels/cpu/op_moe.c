/* Mixture of experts on the CPU: who computes a row, and how the parts are put together. The experts' products are op_linear.c. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/exec.h"

float nb_cpu_softplus(float v)
{
    return v > 20.0f ? v : log1pf(expf(v));
}

static void softmax(float *v, size_t n, const nb_kernels *k)
{
    float max, sum = k->exps(v, n, &max);
    for (size_t i = 0; i < n; i++) v[i] = max == -INFINITY ? 0 : v[i] / sum;
}

static void scores(float *v, size_t n, nb_score how, const nb_kernels *k)
{
    switch (how) {
    case NB_SCORE_SQRTSOFTPLUS:
        for (size_t e = 0; e < n; e++) v[e] = sqrtf(nb_cpu_softplus(v[e]));
        break;
    case NB_SCORE_SIGMOID:
        for (size_t e = 0; e < n; e++) v[e] = 1.0f / (1.0f + expf(-v[e]));
        break;
    case NB_SCORE_SOFTMAX: softmax(v, n, k); break;
    case NB_SCORE_SOFTMAX_CHOSEN: break;
    }
}

/* The value by which expert e is chosen; a NaN counts as the lowest, so that every row gets distinct valid experts. */
static float choice(const float *score, const nb_tensor *bias, size_t e)
{
    float v = score[e] + (bias ? bias->f[e] : 0.0f);
    return isnan(v) ? -INFINITY : v;
}

/* How good the group of n experts from e on is. */
static float group_choice(const nb_route_call *c, const float *score, size_t e, size_t n)
{
    float first = -INFINITY, second = -INFINITY;
    for (size_t end = e + n; e < end; e++) {
        float v = choice(score, c->bias, e);
        if (v > first) {
            second = first;
            first = v;
        } else if (v > second) {
            second = v;
        }
    }
    return c->group_max ? first : first + second;
}

/* True when fewer than top_groups groups of n are better than group `own`; the earlier is the better of equals. */
static bool group_allowed(const nb_route_call *c, const float *score, size_t n, size_t own)
{
    size_t better = 0;
    float mine = group_choice(c, score, own * n, n);
    for (size_t g = 0; g < c->groups; g++) {
        float v = group_choice(c, score, g * n, n);
        better += v > mine || (v == mine && g < own);
    }
    return better < c->top_groups;
}

/* The `slots` best experts, best first, the lower index among equals: one pass with insertion. */
static void choose_by_score(const nb_route_call *c, const float *score, int32_t *ids)
{
    size_t experts = c->logits->cols, slots = c->ids->cols, kept = 0;
    size_t n = c->groups > 1 ? experts / c->groups : 0; /* of a group; 0: there are none */
    bool allowed = true;
    for (size_t e = 0; e < experts; e++) {
        if (n && e % n == 0) allowed = group_allowed(c, score, n, e / n);
        if (!allowed) continue;
        float v = choice(score, c->bias, e);
        if (kept == slots && !(v > choice(score, c->bias, (size_t)ids[slots - 1]))) continue;
        size_t at = kept < slots ? kept++ : slots - 1;
        for (; at > 0 && v > choice(score, c->bias, (size_t)ids[at - 1]); at--) ids[at] = ids[at - 1];
        ids[at] = (int32_t)e;
    }
}

/* w [slots] from the scores of the chosen. */
static void weigh(const nb_route_call *c, const float *score, const int32_t *ids, const nb_kernels *k,
                  float *w)
{
    size_t slots = c->ids->cols;
    float sum = 0;
    for (size_t s = 0; s < slots; s++) w[s] = score[ids[s]];
    for (size_t s = 0; s < slots; s++) sum += w[s];
    if (c->score == NB_SCORE_SOFTMAX_CHOSEN)
        softmax(w, slots, k);
    else if (!c->keep)
        for (size_t s = 0; s < slots; s++) w[s] /= sum + 1e-20f;
    for (size_t s = 0; s < slots; s++)
        w[s] *= c->scaling * (c->expert_scale ? c->expert_scale->f[ids[s]] : 1.0f);
}

typedef struct route_job {
    nb_exec *x;
    const nb_route_call *c;
} route_job;

static void route_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const route_job *j = ctx;
    const nb_route_call *c = j->c;
    const nb_kernels *k = nb_cpu_of(j->x)->k;
    size_t experts = c->logits->cols, slots = c->ids->cols;
    for (size_t t = begin; t < end; t++) {
        float *score = c->logits->f + t * experts; /* the logits are not needed any more */
        int32_t *ids = c->ids->i + t * slots;
        scores(score, experts, c->score, k);
        if (c->hash)
            memcpy(ids, c->hash->i + j->x->rows.token[t] * slots, slots * sizeof *ids);
        else
            choose_by_score(c, score, ids);
        weigh(c, score, ids, k, c->weights->f + t * slots);
    }
}

void nb_cpu_route(nb_exec *x, const nb_route_call *c)
{
    if (x->err.status) return;
    route_job j = {x, c};
    nb_cpu_rows(x, x->rows.n, c->logits->cols * 16, route_rows, &j);
    nb_cpu_tell_of(x, "route", c->weights, x->rows.n, c->bias, c->expert_scale, NULL);
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
