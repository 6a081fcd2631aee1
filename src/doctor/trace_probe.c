/*
 * The probe: single linears fed with random rows. No forward pass and no table are needed, so it works for any architecture; what
 * a stack reduces over siblings is known only where the architecture's table is.
 */
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "doctor/modules.h"
#include "doctor/trace_internal.h"
#include "numerics/formats.h"

#define TILE 64 /* weight rows dequantised at once */

typedef struct probe {
    const nb_trace_options *o;
    const nb_trace_probe_options *p;
    nb_trace *t;
    nb_ckpt *ckpt;
    nb_config cfg;
    nb_stack_load stack;
    uint64_t random;
} probe;

/* xorshift64*: the same rows for the same seed on every machine. */
static double uniform(probe *p)
{
    p->random ^= p->random >> 12;
    p->random ^= p->random << 25;
    p->random ^= p->random >> 27;
    return (double)((p->random * 0x2545F4914F6CDD1Dull) >> 11) * 0x1p-53;
}

/* Normal numbers, scaled so that the largest magnitude of all is amax. */
static void random_rows(probe *p, float *x, size_t n)
{
    double top = 0;
    for (size_t i = 0; i < n; i++) {
        double r = sqrt(-2 * log(1 - uniform(p))), v = r * cos(6.283185307179586 * uniform(p));
        x[i] = (float)v;
        top = fmax(top, fabs((double)x[i]));
    }
    for (size_t i = 0; i < n && top > 0; i++) x[i] = (float)((double)x[i] * (p->p->amax / top));
}

/* What the arithmetic makes of the inputs, multiplier included. */
static void quantise(const probe *p, const nb_linear_src *s, const nb_stack_view *v, const float *x, float *q,
                     size_t rows)
{
    size_t n = rows * s->k;
    bool fp4 = s->format == NB_FMT_NVFP4;
    memcpy(q, x, n * sizeof *q);
    if (p->t->arith == NB_ARITH_BF16 || p->t->act_bf16)
        for (size_t i = 0; i < n; i++) q[i] = nb_bf16_round(q[i]);
    if (p->t->arith == NB_ARITH_W4A4_DYNAMIC && fp4) nb_trace_quant_dynamic(q, rows, s->k, q);
    if (p->t->arith != NB_ARITH_W4A4 || !v->has_input) return;
    for (size_t r = 0; r < rows; r++)
        nb_nvfp4_quantise_row(q + r * s->k, s->k, v->input.gs, nb_stack_kernel(&p->stack), !p->t->cast_nosat,
                              q + r * s->k);
    for (size_t i = 0; i < n; i++) q[i] *= v->input.value;
}

/* y [rows][cols n] = x W^T with W's rows from the checkpoint. */
static nb_status product(const probe *p, const nb_linear_src *s, const float *x, size_t rows, float *tile,
                         float *y, nb_error *err)
{
    for (size_t n0 = 0; n0 < s->n; n0 += TILE) {
        size_t n = s->n - n0 < TILE ? s->n - n0 : TILE;
        nb_status st = nb_linear_dequantise(p->ckpt, s, n0, n, tile, err);
        if (st != NB_OK) return st;
        for (size_t i = 0; s->to_bf16 && i < n * s->k; i++) tile[i] = nb_bf16_round(tile[i]);
        for (size_t r = 0; r < rows; r++) {
            for (size_t i = 0; i < n; i++) {
                const float *a = x + r * s->k, *b = tile + i * s->k;
                float sum = 0;
                for (size_t k = 0; k < s->k; k++) sum += a[k] * b[k];
                y[r * s->n + n0 + i] = p->t->act_bf16 ? nb_bf16_round(sum) : sum;
            }
        }
    }
    return NB_OK;
}

static nb_status probe_linear(probe *p, const nb_linear_src *plain, const nb_arch_tensor *row, int64_t l,
                              int64_t e, nb_error *err)
{
    nb_linear_src s = *plain;
    nb_stack_view v;
    size_t rows = p->p->rows, k = s.k, n = s.n, in, out;
    nb_status st = nb_stack_look(&p->stack, p->ckpt, &p->cfg, row, l, e, plain, &v, err);
    if (st == NB_OK) st = nb_stack_adjust(&p->stack, p->ckpt, &p->cfg, row, l, e, &s, err);
    if (st != NB_OK) return st;
    if (!nb_mul(rows, k, &in) || !nb_mul(rows, n, &out) || in > SIZE_MAX / 16 || out > SIZE_MAX / 16)
        return nb_fail_nomem(err, "a probe", SIZE_MAX);
    float *x = calloc(in, 4), *q = calloc(in, 4), *want = malloc(out * 4), *got = malloc(out * 4);
    float *tile = k <= SIZE_MAX / (4 * TILE) ? calloc(TILE * k, 4) : NULL;
    nb_trace_row *r = nb_trace_add(p->t);
    if (!x || !q || !want || !got || !tile || !r || !(r->module = strdup(s.module))) {
        st = nb_fail_nomem(err, "a probe", (in + out) * 8);
        goto out;
    }
    r->layer = (int)l;
    r->op = "linear";
    r->expert = e;
    r->param[0] = row;
    r->rows = rows;
    r->has_in = true;
    r->weight_ratio = (double)s.multiplier / (double)plain->multiplier;
    random_rows(p, x, in);
    r->in_amax = nb_trace_amax(x, in, &r->nonfinite);
    if ((st = product(p, plain, x, rows, tile, want, err))) goto out;
    quantise(p, &s, &v, x, q, rows);
    if ((st = product(p, &s, q, rows, tile, got, err))) goto out;
    r->out_amax = nb_trace_amax(got, out, &r->nonfinite);
    nb_agreement a = nb_trace_agree(got, want, rows, n);
    r->cos_local = r->cos_total = a.cos;
    r->snr_local_db = r->snr_total_db = r->snr_best_db = a.snr_db;
    uint64_t hidden;
    nb_trace_amax(want, out, &hidden);
    if (p->t->arith == NB_ARITH_W4A4 && v.has_input) {
        nb_quant_loss loss = nb_trace_quant_loss(x, rows, k, v.input.gs);
        r->clipped = loss.clipped;
        r->flushed = loss.flushed;
        r->saturated = loss.saturated;
        nb_trace_quant_dynamic(x, rows, k, q);
        if ((st = product(p, plain, q, rows, tile, got, err))) goto out;
        r->snr_best_db = nb_trace_agree(got, want, rows, n).snr_db;
    }
    nb_trace_judge(r, s.format == NB_FMT_NVFP4 && p->t->arith >= NB_ARITH_W4A4);
    if (hidden && !r->nonfinite) r->bad = true;
out:
    free(x);
    free(q);
    free(want);
    free(got);
    free(tile);
    return st;
}

/* Modules that are linears by their tensors; those that are not are passed over. */
static nb_status probe_all(probe *p, const nb_modules *modules, const nb_sink *sink, nb_error *err)
{
    size_t hits = 0;
    nb_status s = NB_OK;
    for (size_t i = 0; s == NB_OK && i < modules->count; i++) {
        const nb_module *m = &modules->items[i];
        nb_linear_src src;
        int64_t l = -1, e = -1;
        bool skipped = false;
        const nb_tensor_info *codes = nb_module_codes(m);
        if (fnmatch(p->p->pattern, m->name, 0) != 0 || !codes || codes->rank != 2) continue;
        if ((s = nb_linear_describe(p->ckpt, m->name, 0, 0, &src, err))) break;
        const nb_arch_tensor *row = p->cfg.arch ? nb_arch_identify(&p->cfg, m->name, &l, &e, &skipped) : NULL;
        hits++;
        s = probe_linear(p, &src, row, l, e, err);
        if (sink && sink->progress)
            sink->progress(sink->ctx, "probing linears", (uint64_t)i + 1, (uint64_t)modules->count);
    }
    if (s == NB_OK && !hits) {
        nb_fail(err, NB_ERR_ARGUMENT, "no linear's stored name matches '%s'", p->p->pattern);
        nb_error_at(err, nb_ckpt_dir(p->ckpt), NULL, -1);
        nb_error_remedy(err, "a pattern is a glob on whole names, for example '*attn*'");
        return NB_ERR_ARGUMENT;
    }
    return s;
}

nb_status nb_trace_probe(const char *path, const nb_trace_options *opt, const nb_trace_probe_options *po,
                         const nb_sink *sink, nb_trace *out, nb_error *err)
{
    probe p = {.o = opt, .p = po, .t = out, .stack = {.stack = opt->stack}};
    nb_modules modules = {0};
    nb_status s = nb_ckpt_open(path, NULL, NULL, &p.ckpt, err);
    if (s != NB_OK) return s;
    nb_error unknown;
    if (nb_config_init(p.ckpt, &p.cfg, &unknown) != NB_OK) p.cfg.arch = NULL; /* no table is needed */
    if ((s = nb_modules_build(p.ckpt, &modules, err))) goto out;
    nb_stack_begin(&p.stack, p.ckpt);
    p.random = (po->seed + 1) * 0x9E3779B97F4A7C15ull | 1;
    out->probe = true;
    out->stack = opt->stack;
    out->arith = opt->stack ? nb_stack_arith(&p.stack) : opt->arith;
    out->act_bf16 = opt->act_bf16 || opt->stack;
    out->cast_nosat = opt->cast_nosat;
    out->weight_only = p.stack.weight_only;
    out->tokens = po->rows;
    out->architecture = p.cfg.arch ? strdup(p.cfg.arch->name) : NULL;
    if ((s = probe_all(&p, &modules, sink, err))) goto out;
    s = nb_trace_explain(out, &(nb_trace_context){p.ckpt, &p.cfg, &p.stack}, err);
out:
    nb_modules_free(&modules);
    nb_ckpt_close(p.ckpt);
    return s;
}
