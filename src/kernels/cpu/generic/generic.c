/* The reference of every other inner loop: the formula, written down. */
#include "kernels/cpu/generic/generic.h"

#include <math.h>
#include <string.h>

static void rmsnorm(const float *x, const float *w, float eps, size_t n, float *y)
{
    float sum = 0;
    for (size_t i = 0; i < n; i++) sum += x[i] * x[i];
    float inv = 1.0f / sqrtf(sum / (float)n + eps);
    for (size_t i = 0; i < n; i++) y[i] = w ? x[i] * inv * w[i] : x[i] * inv;
}

static void rope(float *x, const float *cos, const float *sin, size_t pairs, bool interleaved, float sign)
{
    for (size_t i = 0; i < pairs; i++) {
        float *a = interleaved ? x + 2 * i : x + i, *b = interleaved ? a + 1 : a + pairs;
        float re = *a, im = *b, s = sign * sin[i];
        *a = re * cos[i] - im * s;
        *b = im * cos[i] + re * s;
    }
}

/* The larger of two numbers; NaN when either is, unlike fmaxf. */
static float max_nan(float a, float b)
{
    return isnan(a) || a > b ? a : b;
}

static float exps(float *x, size_t n, float *max)
{
    float m = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++) m = max_nan(m, x[i]);
    for (size_t i = 0; i < n; i++) {
        x[i] = m == -INFINITY ? 0 : expf(x[i] - m);
        sum += x[i];
    }
    *max = m;
    return sum;
}

static float dot(const float *a, const float *b, size_t n)
{
    float sum = 0;
    for (size_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static void axpy(float a, const float *x, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++) y[i] += a * x[i];
}

static void mix(const float *const *a, const float *const *x, size_t n, size_t d, float *const *y,
                size_t rows)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < n; i++) axpy(a[r][i], x[i], d, y[r]);
}

static void scores(const nb_attend_args *a, size_t r0, size_t r1)
{
    for (size_t i = 0; i < a->n_queries; i++)
        for (size_t r = r0; r < r1; r++)
            a->queries[i].scores[r] = dot(a->queries[i].q, a->k_rows[r], a->dk) * a->scale;
}

static void weigh(const nb_attend_args *a, size_t c0, size_t c1)
{
    for (size_t i = 0; i < a->n_queries; i++) {
        const nb_query *q = &a->queries[i];
        memset(q->out, 0, (c1 - c0) * sizeof *q->out);
        for (size_t r = q->begin; r < q->end; r++) axpy(q->scores[r], a->v_rows[r] + c0, c1 - c0, q->out);
    }
}

static void swiglu(const float *g, const float *u, float limit, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++) {
        float gate = g[i], up = u[i];
        if (limit > 0) { /* written so that NaN stays NaN */
            gate = gate > limit ? limit : gate;
            up = up > limit ? limit : up < -limit ? -limit : up;
        }
        y[i] = gate / (1.0f + expf(-gate)) * up;
    }
}

const nb_kernels *nb_kernels_generic(void)
{
    static const nb_kernels table = {.name = "generic",
                                     .linear = nb_generic_linear,
                                     .linear_bf16 = nb_generic_linear,
                                     .quantise_i8 = nb_generic_quantise_i8,
                                     .linear_i8 = nb_generic_linear_i8,
                                     .rmsnorm = rmsnorm,
                                     .rope = rope,
                                     .exps = exps,
                                     .scores = scores,
                                     .weigh = weigh,
                                     .swiglu = swiglu,
                                     .dot = dot,
                                     .axpy = axpy,
                                     .mix = mix};
    return &table;
}
