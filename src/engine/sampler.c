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

/* True when a is drawn before b: more probable, equals by id, so that the order is one. */
static bool before(candidate a, candidate b)
{
    return a.p > b.p || (a.p == b.p && a.id < b.id);
}

static void sift_down(candidate *heap, size_t n, size_t i)
{
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= n) return;
        if (c + 1 < n && before(heap[c + 1], heap[c])) c++;
        if (!before(heap[c], heap[i])) return;
        candidate t = heap[i];
        heap[i] = heap[c];
        heap[c] = t;
        i = c;
    }
}

/* Takes the most probable of the heap c[0 .. *n) and puts it where the heap ends now, c[*n - 1]; *n shrinks by one. */
static double pop(candidate *c, size_t *n)
{
    candidate best = c[0];
    c[0] = c[--*n];
    sift_down(c, *n, 0);
    c[*n] = best;
    return best.p;
}

/* Applies top-k, then top-p to what it left. The kept ones end up at the end of c, the most probable last; the rest is never
 * sorted. Returns their number and mass. */
static size_t keep_best(candidate *c, size_t n, const nb_sampling *p, double *mass)
{
    double total = 0;
    size_t left = n, kept = 0;
    bool few = p->top_k && p->top_k < n;
    *mass = 0;
    if (!few) {
        for (size_t i = 0; i < n; i++) total += c[i].p;
        if (p->top_p >= 1) {
            *mass = total;
            return n;
        }
    }
    for (size_t i = n / 2; i-- > 0;) sift_down(c, n, i);
    while (few && n - left < p->top_k) total += pop(c, &left);
    while (kept < (few ? p->top_k : n) && *mass < p->top_p * total)
        *mass += few ? c[n - 1 - kept].p : pop(c, &left), kept++;
    return kept;
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
        nb_fail(err, NB_ERR_FORMAT, "the logit of token %zu is %s: the model gives no answer", i,
                isnan(logits[i]) ? "nan" : "inf");
        nb_error_remedy(err, "run `nibble check` on the folder to find the tensor at fault");
        return NB_ERR_FORMAT;
    }
    uint32_t best = nb_argmax(logits, s->vocab);
    if (logits[best] == -INFINITY)
        return nb_fail(err, NB_ERR_FORMAT, "every token is masked: there is nothing to choose from");
    *token = best;
    if (p->temperature == 0) return NB_OK;

    float top = logits[best], t = p->temperature;
    size_t n = 0;
    for (size_t i = 0; i < s->vocab; i++) {
        float q = expf((logits[i] - top) / t); /* relative to the best, whose q is 1 */
        if (q > 0 && q >= p->min_p) s->c[n++] = (candidate){q, (uint32_t)i};
    }
    double mass;
    size_t kept = keep_best(s->c, n, p, &mass), i = n - 1;
    double u = uniform(p->seed, step) * mass;
    while (i > n - kept && u >= s->c[i].p) u -= s->c[i--].p;
    *token = s->c[i].id;
    return NB_OK;
}
