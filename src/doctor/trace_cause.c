/*
 * From the first bad row to the tensor and byte to blame. The order of questions is that of certainty: what the file holds (NaN
 * bytes, impossible scales, nothing at all), then what the stack made of it, then sizes.
 */
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/trace_internal.h"
#include "numerics/formats.h"

typedef struct doctor {
    nb_trace *t;
    const nb_trace_context *c;
    const nb_trace_row *row;
    char why[1024]; /* the argument, after the operator's name */
    nb_error *err;
    nb_status status;
} doctor;

static void blame(doctor *d, nb_cause cause, const char *tensor, const nb_tensor_info *info, int64_t offset,
                  const char *fmt, ...) __attribute__((format(printf, 6, 7)));
static void blame(doctor *d, nb_cause cause, const char *tensor, const nb_tensor_info *info, int64_t offset,
                  const char *fmt, ...)
{
    nb_trace_fault *f = &d->t->fault;
    va_list ap;
    f->cause = cause;
    f->offset = offset;
    snprintf(f->tensor, sizeof f->tensor, "%s", tensor ? tensor : info ? info->name : "");
    if (info) snprintf(f->file, sizeof f->file, "%s", nb_ckpt_file_name(d->c->ckpt, info->file));
    va_start(ap, fmt);
    vsnprintf(d->why, sizeof d->why, fmt, ap);
    va_end(ap);
}

/* The first byte of a tensor that a test accepts; -1: none. */
static int64_t find_byte(doctor *d, const nb_tensor_info *t, bool (*test)(const void *ctx, uint8_t b),
                         const void *ctx, uint8_t *found)
{
    uint8_t bytes[8192];
    uint64_t n = t->end - t->begin;
    for (uint64_t at = 0; at < n && d->status == NB_OK;) {
        size_t step = n - at < sizeof bytes ? (size_t)(n - at) : sizeof bytes;
        d->status = nb_ckpt_read(d->c->ckpt, t, at, bytes, step, d->err);
        for (size_t i = 0; d->status == NB_OK && i < step; i++) {
            if (!test(ctx, bytes[i])) continue;
            *found = bytes[i];
            return (int64_t)(at + i);
        }
        at += step;
    }
    return -1;
}

static bool e4m3_nan(const void *ctx, uint8_t b)
{
    return (b & 0x7F) == 0x7F;
}
static bool e8m0_nan(const void *ctx, uint8_t b)
{
    return b == 0xFF;
}
static bool e4m3_sign(const void *ctx, uint8_t b)
{
    return b & 0x80;
}
/* A number that the stack's form of it is not. */
static bool lost_in_map(const void *ctx, uint8_t b)
{
    return ((const uint8_t *)ctx)[b] == 0x7F && (b & 0x7F) != 0x7F;
}

/* The first element of a float tensor that is not finite; -1: none. *value is it. */
static int64_t find_nonfinite(doctor *d, const nb_tensor_info *t, float *value)
{
    float v[2048];
    uint64_t n = nb_tensor_elements(t);
    for (uint64_t at = 0; at < n && d->status == NB_OK;) {
        size_t step = n - at < 2048 ? (size_t)(n - at) : 2048;
        d->status = nb_ckpt_read_floats(d->c->ckpt, t, at, step, v, d->err);
        for (size_t i = 0; d->status == NB_OK && i < step; i++) {
            if (isfinite(v[i])) continue;
            *value = v[i];
            return (int64_t)(at + i);
        }
        at += step;
    }
    return -1;
}

static bool is_float(nb_dtype t)
{
    return t == NB_DT_BF16 || t == NB_DT_F16 || t == NB_DT_F32 || t == NB_DT_F64;
}

/* A float tensor with something in it that is not finite. */
static bool blame_float(doctor *d, nb_cause cause, const nb_tensor_info *t)
{
    float v = 0;
    int64_t at = t && is_float(t->dtype) ? find_nonfinite(d, t, &v) : -1;
    if (at < 0) return false;
    size_t cols = t->rank ? (size_t)t->shape[t->rank - 1] : 1;
    blame(d, cause, NULL, t, (int64_t)t->begin + at * (int64_t)(nb_dtype_bits(t->dtype) / 8),
          "%s holds %s at [%lld, %lld]", t->name,
          isnan(v) ? "NaN"
          : v > 0  ? "inf"
                   : "-inf",
          (long long)((size_t)at / cols), (long long)((size_t)at % cols));
    return true;
}

/* A part of a stack: only its own rows can be to blame. */
static bool blame_part(doctor *d, const nb_linear_src *s)
{
    const bool scale = s->format == NB_FMT_MXFP4;
    const nb_tensor_info *t = scale ? s->scale : s->weight;
    const size_t step = 1 + 65536 / s->k;
    bool found = false;
    float *v = malloc(step * s->k * sizeof *v);
    if (!v) d->status = nb_fail_nomem(d->err, s->module, step * s->k * sizeof *v);
    for (size_t row = 0; d->status == NB_OK && row < s->n && !found; row += step) {
        const size_t rows = s->n - row < step ? s->n - row : step;
        d->status = nb_linear_dequantise(d->c->ckpt, s, row, rows, v, d->err);
        for (size_t i = 0; d->status == NB_OK && i < rows * s->k && !found; i++) {
            found = !isfinite(v[i]);
            if (!found) continue;
            blame(d, scale ? NB_CAUSE_NAN_SCALE : NB_CAUSE_NAN_WEIGHT, NULL, t,
                  (int64_t)(t->begin + nb_linear_offset(s, scale, row + i / s->k, i % s->k)),
                  "%s makes row %zu, column %zu of the linear %s", t->name, row + i / s->k, i % s->k,
                  isnan(v[i]) ? "NaN" : "infinite");
        }
    }
    free(v);
    return found;
}

/* What is wrong with the bytes of a linear's weight and block scales. */
static bool blame_bytes(doctor *d, const nb_linear_src *s)
{
    uint8_t b = 0;
    if (nb_linear_stack(s->module)) return blame_part(d, s);
    if (s->format == NB_FMT_NVFP4 || s->format == NB_FMT_MXFP4) {
        bool e8 = s->format != NB_FMT_NVFP4;
        int64_t at = find_byte(d, s->scale, e8 ? e8m0_nan : e4m3_nan, NULL, &b);
        if (at >= 0) {
            size_t cols = (size_t)s->scale->shape[s->scale->rank - 1];
            blame(
                d, NB_CAUSE_NAN_SCALE, NULL, s->scale, (int64_t)s->scale->begin + at,
                "byte 0x%02X of %s, block [%zu, %zu], is NaN in %s: output column %zu is NaN for every token",
                b, s->scale->name, (size_t)at / cols, (size_t)at % cols, e8 ? "E8M0" : "E4M3",
                (size_t)at / cols);
            return true;
        }
    }
    if (s->format == NB_FMT_FP8) {
        int64_t at = find_byte(d, s->weight, e4m3_nan, NULL, &b);
        if (at >= 0) {
            blame(d, NB_CAUSE_NAN_WEIGHT, NULL, s->weight, (int64_t)s->weight->begin + at,
                  "byte 0x%02X of %s, row %zu, is NaN in E4M3", b, s->weight->name, (size_t)at / s->k);
            return true;
        }
        return blame_float(d, NB_CAUSE_BAD_GLOBAL, s->scale);
    }
    return s->scheme == NB_SCHEME_FLOAT && blame_float(d, NB_CAUSE_NAN_WEIGHT, s->weight);
}

/* A scale whose value or reciprocal is no number, or that is negative or zero. */
static bool impossible(float v)
{
    return !(v > 0) || !isfinite(v) || v < FLT_MIN || !isfinite(1.0f / v) || 1.0f / v < FLT_MIN;
}

static const char *shared(const nb_stack_scale *s, const nb_trace *t)
{
    return !s->reduced                            ? ""
           : t->stack == NB_STACK_VLLM_FLASHINFER ? " (the stack takes the largest of all shards and experts)"
                                                  : " (the stack takes one scale for the fused shards)";
}

static float stored_value(doctor *d, const nb_tensor_info *t)
{
    float v = NAN;
    if (t && nb_tensor_elements(t) == 1) d->status = nb_ckpt_read_f32(d->c->ckpt, t, &v, d->err);
    return v;
}

static bool blame_global(doctor *d, const nb_linear_src *s, const nb_stack_view *v)
{
    const nb_tensor_info *from = v->weight.from;
    if (s->format != NB_FMT_NVFP4 || !from) return false;
    float stored = stored_value(d, from);
    if (impossible(stored)) {
        blame(d, NB_CAUSE_BAD_GLOBAL, NULL, from, (int64_t)from->begin,
              "%s is %g, and a weight's global scale has to be finite and above zero%s", from->name, stored,
              shared(&v->weight, d->t));
        return true;
    }
    if (s->global && s->global != from && impossible(stored_value(d, s->global))) {
        blame(
            d, NB_CAUSE_BAD_GLOBAL, NULL, s->global, (int64_t)s->global->begin,
            "%s is %g, and a weight's global scale has to be finite and above zero; this stack does not see "
            "it, because it takes that of %s for both: finite here, not elsewhere",
            s->global->name, stored_value(d, s->global), from->name);
        return true;
    }
    if (!isfinite(v->weight.value)) {
        blame(d, NB_CAUSE_OVERFLOW16, NULL, from, (int64_t)from->begin,
              "%s is %g; Marlin keeps the multiplier %g times 2^119 in BF16, which overflows to infinity",
              from->name, stored, s->multiplier);
        return true;
    }
    return false;
}

static bool blame_input(doctor *d, const nb_stack_view *v)
{
    const nb_stack_scale *in = &v->input;
    if (d->t->arith != NB_ARITH_W4A4 || !v->has_input) return false;
    if (in->missing[0] && (isnan(in->value) || !in->from)) {
        blame(
            d, NB_CAUSE_MISSING_TENSOR, in->missing, NULL, -1,
            "%s is not in the checkpoint, so the stack quantises with memory that nobody filled (shown here "
            "as NaN)%s",
            in->missing, shared(in, d->t));
        return true;
    }
    float stored = stored_value(d, in->from);
    if (!in->from || !impossible(stored)) return false;
    blame(d, NB_CAUSE_BAD_INPUT_SCALE, NULL, in->from, (int64_t)in->from->begin,
          stored == 0
              ? "%s is %g: the quantiser's global scale is infinite, so a block of zeros gives inf × 0 "
                "= NaN (for some prompts only) and every other block times alpha 0 is zero%s"
              : "%s is %g, and an input scale has to be finite and above zero%s",
          in->from->name, stored, shared(in, d->t));
    return true;
}

/* The scale bytes that Marlin's form cannot hold. */
static bool blame_map(doctor *d, const nb_linear_src *s, const nb_stack_view *v)
{
    uint8_t b = 0;
    if (!v->scale_map) return false;
    int64_t at = find_byte(d, s->scale, lost_in_map, v->scale_map, &b);
    if (at >= 0)
        blame(d, NB_CAUSE_OVERFLOW16, NULL, s->scale, (int64_t)s->scale->begin + at,
              "the block scale %g (byte 0x%02X of %s) beside subnormal ones overflows F16 when Marlin "
              "multiplies "
              "all of them by 2^7 and the factor that the smallest needs",
              nb_e4m3_table[b], b, s->scale->name);
    return at >= 0;
}

static const char *text_of(double v, char buf[32])
{
    snprintf(buf, 32,
             fabs(v) >= 0.001 && fabs(v) < 10 ? "%.3g"
             : fabs(v) < 1e5 && fabs(v) >= 10 ? "%.1f"
                                              : "%.4g",
             v);
    return buf;
}

static void count_alike(const doctor *d, char *buf, size_t cap)
{
    size_t bad = 0, all = 0;
    for (size_t i = 0; i < d->t->n; i++) {
        if (!d->t->rows[i].has_in) continue;
        all++;
        bad += d->t->rows[i].bad;
    }
    snprintf(buf, cap, "%zu of %zu linears go wrong", bad, all);
}

static void blame_size(doctor *d, const nb_stack_view *v)
{
    const nb_trace_row *r = d->row;
    const nb_tensor_info *from = v->input.from;
    double gs = v->input.gs, need = r->in_amax * gs / 6, limit = 2688 / gs;
    char a[32], g[32], n[32], l[32], alike[64];
    count_alike(d, alike, sizeof alike);
    text_of(r->in_amax, a);
    text_of(gs, g);
    text_of(need, n);
    text_of(limit, l);
    if (r->saturated >= r->flushed)
        blame(d, NB_CAUSE_CLIP, NULL, from, from ? (int64_t)from->begin : -1,
              "amax %s × %s needs a block scale of %s, E4M3 holds 448: clipped to %s, %.1f times too small; "
              "finite (local cosine %.4f; %s)%s",
              a, g, n, l, r->in_amax / limit, r->cos_local, alike, shared(&v->input, d->t));
    else
        blame(
            d, NB_CAUSE_FLUSH, NULL, from, from ? (int64_t)from->begin : -1,
            "amax %s × %s makes a block scale of %s, and E4M3 rounds 0.000977 and less to zero: every block "
            "whose amax is at most %.4g becomes exactly zero, %.1f %% of the elements here; finite (local "
            "cosine %.4f; %s)%s",
            a, g, n, 6 * 0x1p-10 / gs, 100 * r->flushed, r->cos_local, alike, shared(&v->input, d->t));
}

static void explain_finite(doctor *d, const nb_linear_src *s, const nb_stack_view *v)
{
    const nb_trace_row *r = d->row;
    double ratio = (double)v->weight.value / (double)s->multiplier;
    bool quantised = d->t->arith == NB_ARITH_W4A4 && v->has_input;
    bool sized = quantised && r->saturated + r->flushed > 0.1; /* the input scale does more harm */
    if (v->weight.reduced && fabs(ratio - 1) > 0.05 && !sized) {
        blame(d, NB_CAUSE_BAD_GLOBAL, NULL, v->weight.from, (int64_t)v->weight.from->begin,
              "the stack keeps one weight scale for the fused shards and takes that of %s: this one's "
              "weights come "
              "out %.3g times their size; finite",
              v->weight.from->name, ratio);
        return;
    }
    if (quantised) {
        blame_size(d, v);
        return;
    }
    uint8_t b = 0;
    int64_t at = v->scale_map ? find_byte(d, s->scale, e4m3_sign, NULL, &b) : -1;
    if (at >= 0)
        blame(d, NB_CAUSE_OVERFLOW16, NULL, s->scale, (int64_t)s->scale->begin + at,
              "byte 0x%02X of %s has the sign bit set, and the stack's form of block scales has no sign: "
              "finite, "
              "wrong",
              b, s->scale->name);
}

static void explain_linear(doctor *d)
{
    const nb_trace_row *r = d->row;
    nb_linear_src s;
    nb_stack_view v;
    d->status = nb_linear_describe(d->c->ckpt, r->module, 0, 0, &s, d->err);
    if (d->status == NB_OK)
        d->status = nb_stack_look(d->c->stack, d->c->ckpt, d->c->cfg, r->param[0], r->layer, r->expert, &s,
                                  &v, d->err);
    if (d->status != NB_OK) return;
    bool broken = r->nonfinite || isnan(r->snr_local_db);
    if (broken && blame_bytes(d, &s)) return;
    if (d->status != NB_OK || blame_global(d, &s, &v) || blame_input(d, &v)) return;
    if (!r->nonfinite) {
        explain_finite(d, &s, &v);
        return;
    }
    if (blame_map(d, &s, &v)) return;
    if (d->t->cast_nosat && d->t->arith == NB_ARITH_W4A4 && v.has_input && v.input.from &&
        r->in_amax * v.input.gs / 6 > 464) {
        char a[32], g[32], n[32];
        blame(d, NB_CAUSE_NONSATURATING_CAST, NULL, v.input.from, (int64_t)v.input.from->begin,
              "amax %s × %s needs a block scale of %s; E4M3 ends at 448, and a cast that does not saturate "
              "makes "
              "NaN of what is above 464",
              text_of(r->in_amax, a), text_of(v.input.gs, g), text_of(r->in_amax * v.input.gs / 6, n));
        return;
    }
    if (r->bad_input)
        blame(d, NB_CAUSE_NAN_UPSTREAM, NULL, NULL, -1,
              "its input is not finite, and no operator before it that was watched is to blame");
    else
        blame(d, NB_CAUSE_OVERFLOW16, NULL, s.weight, (int64_t)s.weight->begin,
              "input (amax %.4g), weights and scales are finite, and the sum is not: it passes what %s holds",
              r->in_amax, d->t->act_bf16 ? "BF16" : "F32");
}

/* Norms, attention, mixing: the parameters that it read, then any of the layer's. */
static void explain_other(doctor *d)
{
    const nb_trace_row *r = d->row;
    const nb_config *cfg = d->c->cfg;
    const nb_arch *a = cfg->arch;
    char name[256];
    for (size_t i = 0; i < 3 + a->n_tensors && d->status == NB_OK; i++) {
        const nb_arch_tensor *p = i < 3 ? r->param[i] : &a->tensors[i - 3];
        const nb_tensor_info *info = NULL;
        nb_linear_src s;
        if (!p || (p->when && !p->when(cfg, r->layer))) continue;
        bool layered = strstr(p->name, "{l}") != NULL, inside = r->layer >= 0 && r->layer < cfg->n_layers;
        if (layered != inside) continue;
        if (p->role == NB_ROLE_EMBED && strcmp(r->op, "embed") == 0) {
            if (!nb_arch_find(d->c->ckpt, cfg, p, -1, -1, name, sizeof name, &info)) continue;
            d->status = nb_linear_describe(d->c->ckpt, name, 0, 0, &s, d->err);
            if (d->status == NB_OK && blame_bytes(d, &s)) return;
        }
        if (p->role != NB_ROLE_NORM && p->role != NB_ROLE_PARAM) continue;
        if (!nb_arch_find(d->c->ckpt, cfg, p, layered ? r->layer : -1, -1, name, sizeof name, &info))
            continue;
        if (blame_float(d, NB_CAUSE_NAN_WEIGHT, info)) return;
    }
    blame(d, NB_CAUSE_OVERFLOW16, NULL, NULL, -1,
          "its inputs and parameters are finite, and its output is not: it passes what %s holds",
          d->t->act_bf16 ? "BF16" : "F32");
}

static const char *elsewhere(nb_stack s)
{
    static const char *const texts[NB_STACK_COUNT] = {
        "see what a serving stack makes of the file (--as vllm-cutlass, vllm-flashinfer, vllm-marlin, "
        "vllm-emulation, llama.cpp)",
        "look outside the file: padded rows and columns of the block scales left unset, the KV cache's dtype "
        "and "
        "scales, fused norm-and-quantise kernels, the tensor-parallel split",
        "look outside the file: which kernel autotuning chose, the order of gate and up in the fused weight, "
        "padded scale rows left unset, the KV cache's dtype and scales, the tensor-parallel split",
        "look outside the file: --dtype float16 where bfloat16 was meant, columns not a multiple of 64, "
        "atomic "
        "sums, the KV cache's dtype and scales",
        "look outside the file: no FP4 kernel runs there, so the attention back end, the KV cache's dtype "
        "and "
        "scales, the model's own code",
        "look outside the file: the conversion to GGUF (order of nibbles, global scales kept as tensors of "
        "their "
        "own), the KV cache's type, the back end",
    };
    return texts[s];
}

/* Linears of experts that no token was sent to: nothing can be said of them. */
static size_t unseen_experts(const nb_trace *t, const nb_config *cfg)
{
    size_t all = 0, seen = 0;
    for (size_t i = 0; !t->probe && cfg->arch && i < cfg->arch->n_tensors; i++) {
        const nb_arch_tensor *row = &cfg->arch->tensors[i];
        for (int l = 0; strstr(row->name, "{e}") && l < t->n_layers; l++)
            if (!row->when || row->when(cfg, l)) all += (size_t)nb_arch_experts(cfg, row);
    }
    for (size_t i = 0; i < t->n; i++) seen += t->rows[i].expert >= 0;
    return all > seen ? all - seen : 0;
}

static void say_clean(nb_trace *t, const nb_config *cfg)
{
    const nb_trace_row *worst = NULL;
    const char *as = t->stack ? nb_stack_name(t->stack) : nb_arith_name(t->arith);
    for (size_t i = 0; i < t->n; i++)
        if (t->rows[i].has_in && (!worst || t->rows[i].cos_local < worst->cos_local)) worst = &t->rows[i];
    const nb_trace_row *full = NULL;
    for (size_t i = 0; i < t->n; i++)
        if (t->rows[i].saturated > 0 && (!full || t->rows[i].saturated > full->saturated)) full = &t->rows[i];
    char run[96], some[400] = "", idle[64] = "";
    size_t unseen = unseen_experts(t, cfg);
    if (unseen) snprintf(idle, sizeof idle, "; %zu expert linears saw no token", unseen);
    if (full)
        snprintf(some, sizeof some, " (a few blocks pass their scale: at most %.2g %% of them, in %s)",
                 100 * full->saturated, full->module);
    if (t->probe)
        snprintf(run, sizeof run, "random rows");
    else
        snprintf(run, sizeof run, "these %zu tokens", t->tokens);
    snprintf(
        t->verdict, sizeof t->verdict,
        "nothing in this file goes wrong on %s as %s runs it%s: every output is finite and the worst local "
        "cosine is %.4f (%s)%s%s; whether the stored weights are the model's own a trace cannot see: `nibble "
        "run "
        "DIR --arith exact` shows it; if that answers well and it goes wrong there, %s",
        run, as, t->stack && t->weight_only ? " (weight-only file: activations keep 16 bits)" : "",
        worst ? worst->cos_local : 1.0, worst ? worst->module : "no linear", some, idle, elsewhere(t->stack));
}

nb_status nb_trace_explain(nb_trace *t, const nb_trace_context *c, nb_error *err)
{
    size_t first = t->n;
    t->fault = (nb_trace_fault){.offset = -1};
    for (size_t i = 0; i < t->n && first == t->n; i++)
        if (t->rows[i].nonfinite) first = i;
    bool nan = first < t->n;
    for (size_t i = 0; i < t->n && first == t->n; i++)
        if (t->rows[i].bad) first = i;
    if (first == t->n) {
        say_clean(t, c->cfg);
        return NB_OK;
    }
    doctor d = {.t = t, .c = c, .row = &t->rows[first], .err = err};
    t->fault.row = first;
    if (d.row->has_in)
        explain_linear(&d);
    else
        explain_other(&d);
    if (d.status != NB_OK) return d.status;
    if (t->fault.cause == NB_CAUSE_NONE)
        blame(&d, NB_CAUSE_OVERFLOW16, NULL, NULL, -1,
              "its output is off (local SNR %.1f dB) by more than its scales explain", d.row->snr_local_db);
    snprintf(t->verdict, sizeof t->verdict, "%s (%s%s): %s", d.row->module, d.row->op,
             nan ? ", the first output that is not finite" : "", d.why);
    return NB_OK;
}
