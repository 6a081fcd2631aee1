#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>

typedef struct candidate {
    float p;
    uint32_t id;
} candidate;

struct nb_sampler {
    size_t vocab;
    candidate *c;
};

nb_status nb_sampler_new(size_t vocab, nb_sampler **out, nb_error *err)
{
    nb_sampler *s = calloc(1, sizeof *s);
    if (s) s->c = calloc(vocab, sizeof *s->c);
    if (!s || !s->c) {
        free(s);
        return nb_fail_nomem(err, "a sampler", vocab * sizeof *s->c);
    }
    s->vocab = vocab;
    *out = s;
    return NB_OK;
}

void nb_sampler_free(nb_sampler *s)
{
    if (!s) return;
    free(s->c);
    free(s);
}

nb_status nb_sampling_check(const nb_sampling *p, nb_error *err)
{
    if (!(p->temperature >= 0) || isinf(p->temperature))
        return nb_fail(err, NB_ERR_ARGUMENT, "temperature must be 0 or more, got %g", (double)p->temperature);
    if (!(p->top_p > 0 && p->top_p <= 1))
        return nb_fail(err, NB_ERR_ARGUMENT, "top_p must be in (0, 1], got %g", (double)p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return nb_fail(err, NB_ERR_ARGUMENT, "min_p must be in [0, 1], got %g", (double)p->min_p);
    return NB_OK;
}

uint32_t nb_argmax(const float *v, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (v[i] > v[best]) best = i;
    return (uint32_t)best;
}

/* Most probable first; equals by id, so that the order is one. */
static int by_probability(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->p != y->p) return x->p < y->p ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

/* A uniform number in [0, 1) for one draw: splitmix64 of (seed, step). */
static double uniform(uint64_t seed, uint64_t step)
{
    uint64_t z = seed + (step + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

nb_status nb_sample(nb_sampler *s, const nb_sampling *p, const float *logits, uint64_t step, uint32_t *token,
                    nb_error *err)
{
    for (size_t i = 0; i < s->vocab; i++) {
        if (!isnan(logits[i]) && logits[i] != INFINITY) continue;
        nb_fail(err, NB_ERR_FORMAT, "the logit of token %zu is %g: the model gives no answer", i,
                (double)logits[i]);
        nb_error_remedy(err, "run `nibble check` on the folder to find the tensor at fault");
        return NB_ERR_FORMAT;
    }
    uint32_t best = nb_argmax(logits, s->vocab);
    *token = best;
    if (p->temperature == 0) return NB_OK;

    float top = logits[best], t = p->temperature;
    size_t n = 0;
    for (size_t i = 0; i < s->vocab; i++) {
        float q = expf((logits[i] - top) / t); /* relative to the best, whose q is 1 */
        if (q > 0 && q >= p->min_p) s->c[n++] = (candidate){q, (uint32_t)i};
    }
    qsort(s->c, n, sizeof *s->c, by_probability);
    if (p->top_k && p->top_k < n) n = p->top_k;
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += s->c[i].p;
    if (p->top_p < 1) {
        double kept = 0;
        size_t k = 0;
        while (k < n && kept < p->top_p * sum) kept += s->c[k++].p;
        n = k;
        sum = kept;
    }
    double u = uniform(p->seed, step) * sum;
    size_t i = 0;
    while (i + 1 < n && u >= s->c[i].p) u -= s->c[i++].p;
    *token = s->c[i].id;
    return NB_OK;
}
