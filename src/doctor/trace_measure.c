/* The numbers of a trace: agreement of two outputs, what a quantiser loses, and when that is more than it must be. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/trace_internal.h"
#include "numerics/formats.h"

/* A scale is at fault when it costs this much against each row's own (6 dB are one bit) and blocks saturate or vanish; without
 * either, few rows differ by a few dB by chance, and only a loss beyond that counts. */
#define SCALE_LOSS_DB 3.0
#define BLIND_LOSS_DB 9.0
/* A mean over rows above this is no fault, though one token's outlier may be cut: no calibration has seen every text. Of few rows, as
 * an expert sees, the outlier may be all. */
#define FINE_COSINE 0.993
#define FEW_ROWS 4
#define FEW_COSINE 0.95
/* Rounding a global scale to BF16 moves it by 0.4 %; another shard's scale is further off. */
#define WEIGHT_RATIO 0.05
/* Weight-only arithmetic has no excuse: a healthy one is beyond 40 dB. */
#define PLAIN_SNR_DB 20.0

static double decibels(nb_energy e)
{
    if (!isfinite(e.signal) || !isfinite(e.error)) return NAN;
    return e.error == 0 ? INFINITY : 10 * log10(e.signal / e.error);
}

nb_agreement nb_trace_agree(const float *got, const float *want, size_t rows, size_t cols)
{
    double sum = 0, signal = 0, error = 0;
    for (size_t r = 0; r < rows; r++) {
        double gg = 0, ww = 0, gw = 0, ee = 0;
        for (size_t i = r * cols; i < (r + 1) * cols; i++) {
            double g = got[i], w = want[i];
            gg += g * g;
            ww += w * w;
            gw += g * w;
            ee += (g - w) * (g - w);
        }
        sum += gg == 0 && ww == 0 ? 1 : gg == 0 || ww == 0 ? 0 : gw / (sqrt(gg) * sqrt(ww));
        signal += ww;
        error += ee;
    }
    nb_agreement a = {rows ? sum / (double)rows : NAN, decibels((nb_energy){signal, error}), {signal, error}};
    if (a.cos > 1) a.cos = 1;
    if (!isfinite(a.cos)) a.cos = NAN;
    return a;
}

nb_quant_loss nb_trace_quant_loss(const float *x, size_t rows, size_t k, float gs)
{
    size_t clipped = 0, flushed = 0, saturated = 0, n = rows * k;
    for (size_t b = 0; b + NB_NVFP4_BLOCK <= n; b += NB_NVFP4_BLOCK) {
        float amax = 0;
        for (size_t i = b; i < b + NB_NVFP4_BLOCK; i++) amax = fmaxf(amax, fabsf(x[i]));
        float sf = fabsf(gs * (amax / 6.0f));
        /* 464 is where rounding to 448 ends; beyond, the block's largest element has no code */
        bool over = sf > 464.0f, zero = sf <= 0x1p-10f;
        saturated += over;
        for (size_t i = b; (over || zero) && i < b + NB_NVFP4_BLOCK; i++) {
            clipped += over && fabsf(x[i]) * fabsf(gs) > NB_NVFP4_RANGE;
            flushed += zero && x[i] != 0;
        }
    }
    const size_t whole = n / NB_NVFP4_BLOCK;
    double blocks = (double)whole;
    if (!n) return (nb_quant_loss){0};
    return (nb_quant_loss){(double)clipped / (double)n, (double)flushed / (double)n,
                           (double)saturated / blocks};
}

void nb_trace_quant_dynamic(const float *x, size_t rows, size_t k, float *out)
{
    for (size_t r = 0; r < rows; r++) {
        float gs = nb_nvfp4_row_scale(x + r * k, k), m = 1.0f / gs;
        nb_nvfp4_quantise_row(x + r * k, k, gs, NB_ACT_CUTLASS, true, out + r * k);
        for (size_t i = r * k; i < (r + 1) * k; i++) out[i] *= m;
    }
}

double nb_trace_amax(const float *x, size_t n, uint64_t *nonfinite)
{
    double amax = -1;
    *nonfinite = 0;
    for (size_t i = 0; i < n; i++) {
        double a = fabs((double)x[i]);
        if (!isfinite(a)) ++*nonfinite;
        if (a > amax) amax = a;
    }
    return amax < 0 && n ? NAN : amax < 0 ? 0 : amax;
}

void nb_trace_judge(nb_trace_row *row, bool quantised)
{
    if (row->nonfinite || !(fabs(row->weight_ratio - 1) <= WEIGHT_RATIO)) /* 0/0: a scale of zero */
        row->bad = true;
    else if (quantised)
        row->bad =
            row->cos_local < (row->rows < FEW_ROWS ? FEW_COSINE : FINE_COSINE) &&
            row->snr_local_db <
                row->snr_best_db - (row->saturated > 0 || row->flushed > 0 ? SCALE_LOSS_DB : BLIND_LOSS_DB);
    else
        row->bad = row->snr_local_db < PLAIN_SNR_DB;
}

static nb_energy sum(nb_energy a, nb_energy b)
{
    return (nb_energy){a.signal + b.signal, a.error + b.error};
}

void nb_trace_merge(nb_trace_row *into, const nb_trace_row *from)
{
    const double a = (double)into->rows, b = (double)from->rows, n = a + b;
    into->in_amax = fmax(into->in_amax, from->in_amax);
    into->out_amax = fmax(into->out_amax, from->out_amax);
    into->nonfinite += from->nonfinite;
    into->clipped = (a * into->clipped + b * from->clipped) / n;
    into->flushed = (a * into->flushed + b * from->flushed) / n;
    into->saturated = (a * into->saturated + b * from->saturated) / n;
    into->cos_local = (a * into->cos_local + b * from->cos_local) / n;
    into->cos_total = (a * into->cos_total + b * from->cos_total) / n;
    into->total = sum(into->total, from->total);
    into->snr_total_db = decibels(into->total);
    into->bad_input = into->bad_input || from->bad_input;
    into->masked = into->masked || from->masked;
    into->rows += from->rows;
    if (!into->has_in) {
        into->bad = into->nonfinite > 0;
        return;
    }
    into->local = sum(into->local, from->local);
    into->best = sum(into->best, from->best);
    into->snr_local_db = decibels(into->local);
    into->snr_best_db = decibels(into->best);
    nb_trace_judge(into, into->quantised);
    into->bad = into->bad || into->masked;
}

nb_trace_row *nb_trace_add(nb_trace *t)
{
    if (t->n == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 256;
        nb_trace_row *p = cap <= SIZE_MAX / sizeof *p ? realloc(t->rows, cap * sizeof *p) : NULL;
        if (!p) return NULL;
        t->rows = p;
        t->cap = cap;
    }
    nb_trace_row *r = &t->rows[t->n++];
    *r = (nb_trace_row){.expert = -1,
                        .in_amax = NAN,
                        .cos_local = 1,
                        .snr_local_db = INFINITY,
                        .cos_total = NAN,
                        .snr_total_db = NAN,
                        .snr_best_db = NAN,
                        .weight_ratio = 1};
    return r;
}

void nb_trace_free(nb_trace *t)
{
    for (size_t i = 0; i < t->n; i++) free(t->rows[i].module);
    free(t->rows);
    free(t->architecture);
    nb_findings_free(&t->findings);
    *t = (nb_trace){0};
}
