/*
 * NB114: a weight that was clipped when it was quantised. Blocks that are too large for the global scale all get the largest block
 * scale, 0x7E. A quantiser that divides by the weight's own maximum leaves there only the blocks within 3.6 % of it, and their
 * number follows from the numbers at the scales just below: a pile of saturated blocks shows as more than chance explains, on a
 * linear of a few hundred blocks as on a large one.
 */
#include <math.h>

#include "doctor/rule_values.h"

#define E(cls, text) ((nb_effect){NB_EFFECT_##cls, text})
#define LEAST_BLOCKS 10  /* under 0x7E */
#define LEAST_SHARE .005 /* of the linear's; search for the best global scale clips fewer on purpose */
#define NEARLY_ALL .9    /* uniform weights, the flattest there are, have under half of their blocks there */
#define TIMES                                                                                                \
    2 /* as many as there should be: blocks of a row may be alike, and come in larger lumps than chance's */
#define FALSE_ALARMS 1e-3 /* healthy folders that may be accused */
#define ERRORS 1.645      /* standard errors by which the slope may be steeper than the best fit */
#define STEEPEST 3.0      /* of slopes looked at: e^3 times as many blocks from one scale to the next */
#define STEPS 40          /* bisections of the slope: far below its standard error */

/* Blocks fall by e^-slope from each scale to the next larger one: weights of the scales 0x7D, 0x7C, …, that of 0x7D being 1. */
static void moments(double slope, double *sum, double *mean, double *variance)
{
    const double ratio = exp(slope);
    double w = 1, s = 0, first = 0, second = 0;
    for (int j = 0; j < NB_NEAR; j++) {
        s += w;
        first += j * w;
        second += j * j * w;
        w *= ratio;
    }
    *sum = s;
    *mean = first / s;
    *variance = second / s - *mean * *mean;
}

/* The share that 0x7E should have of the blocks under it and under the scales below, at most: the density of blocks is taken to go
 * on as it went, by the slope of greatest likelihood less ERRORS of its standard errors. Logarithms of the densities of Gaussian,
 * Laplacian and uniform weights curve downwards, so that a straight line lies above them. Only half a step rounds to 0x7E. */
static double share_of_largest(const uint64_t near[NB_NEAR], double n)
{
    double low = -STEEPEST, high = STEEPEST, want = 0, sum, mean, variance;
    for (int j = 0; j < NB_NEAR; j++) want += j * (double)near[j] / n;
    for (int i = 0; i < STEPS; i++) {
        const double middle = (low + high) / 2;
        moments(middle, &sum, &mean, &variance);
        if (mean < want)
            low = middle;
        else
            high = middle;
    }
    const double slope = fmax(low - ERRORS / sqrt(n * variance), -STEEPEST);
    moments(slope, &sum, &mean, &variance);
    const double half = exp(-slope) / (1 + exp(-slope / 2));
    return half / (half + sum);
}

/* Natural logarithm of an upper bound of the chance that of n things k or more are of a kind that has the share q. Stirling's bound
 * of the binomial coefficient, and a geometric series above the terms that follow the first. */
static double log_tail(double n, double k, double q)
{
    const double f = k / n, rest = n - k;
    if (f <= q) return 0;
    if (rest < 1) return n * log(q);
    const double information = f * log(f / q) + (1 - f) * log((1 - f) / (1 - q));
    const double next = rest * q / ((k + 1) * (1 - q));
    return .5 * log(n / (2 * 3.141592653589793 * k * rest)) - n * information - log(1 - next);
}

/* True when the blocks under 0x7E are more than chance makes of `judged` linears. *expected: how many there should be. */
static bool is_clipped(const nb_block_values *v, size_t judged, double *expected)
{
    const double full = (double)v->full_mixed, blocks = (double)v->blocks;
    double n = 0;
    size_t scales = 0;
    if (full < LEAST_BLOCKS || full < LEAST_SHARE * blocks) return false;
    *expected = blocks / 2;
    if (full > NEARLY_ALL * blocks) return true;
    for (int j = 0; j < NB_NEAR; j++) {
        n += (double)v->near[j];
        scales += v->near[j] > 0;
    }
    /* Weights that once were MXFP4 are a comb of sizes: the scales below say nothing of the largest. */
    if (scales < 2) return false;
    const double q = share_of_largest(v->near, n);
    *expected = 1 + n * q / (1 - q); /* the weight's maximum always stands there */
    return full > TIMES * *expected &&
           log_tail(n + full - 1, full - 1, q) < log(FALSE_ALARMS / (double)judged);
}

static void report(const nb_check *c, const nb_module *m, const nb_block_values *v, double expected,
                   nb_findings *out)
{
    const nb_tensor_info *t = nb_module_scale(m);
    size_t i = nb_value_finding(c, out, "NB114", NB_SEVERITY_WARNING, t, 0, t->end - t->begin,
                                "the weight was clipped when it was quantised");
    nb_findings_measured(out, i, "%llu of %llu block scales are 0x7E (448), %llu are 0x7D, %llu are 0x7C",
                         (unsigned long long)v->full, (unsigned long long)v->blocks,
                         (unsigned long long)v->near[0], (unsigned long long)v->near[1]);
    nb_findings_expected(out, i, "at most about %.0f at 448, by the numbers at 0x79 to 0x7D", ceil(expected));
    nb_findings_remedy(out, i, false, "export the linear again with a global scale of amax / 2688");
    const nb_effect e = E(WRONG, "the largest weights are cut to the same smaller value");
    nb_value_effects(out, i, e, e, e);
}

nb_status nb_rule_clipped(const nb_check *c, nb_findings *out, nb_error *err)
{
    size_t judged = 0;
    double expected;
    (void)err;
    for (size_t i = 0; i < c->modules.count; i++)
        judged += nb_kind_nvfp4(c->modules.items[i].kind) && c->scan.modules[i].scanned;
    for (size_t i = 0; i < c->modules.count; i++) {
        const nb_module *m = &c->modules.items[i];
        const nb_block_values *v = &c->scan.modules[i];
        if (nb_kind_nvfp4(m->kind) && v->scanned && is_clipped(v, judged, &expected))
            report(c, m, v, expected, out);
    }
    return NB_OK;
}
