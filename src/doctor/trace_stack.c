/* The loaders' rules. A reduction keeps which tensor won, because that is the tensor to blame. */
#include "doctor/trace_stack.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numerics/formats.h"

#define F16_MAX 65504.0f
#define BF16_MAX 3.3895314e38f

static const char *const names[NB_STACK_COUNT] = {NULL,          "vllm-cutlass",   "vllm-flashinfer",
                                                  "vllm-marlin", "vllm-emulation", "llama.cpp"};

const char *nb_stack_name(nb_stack s)
{
    return names[s];
}

bool nb_stack_find(const char *name, nb_stack *out)
{
    for (int i = 1; i < NB_STACK_COUNT; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (nb_stack)i;
        return true;
    }
    return false;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* True when the config, or where it does not say the tensors, give activations 16 bits. */
static bool weight_only(const nb_ckpt *c)
{
    const json_t *q = json_object_get(nb_ckpt_config(c), "quantization_config"), *group;
    const char *algo = json_string_value(json_object_get(q, "quant_algo")), *key;
    if (algo && strncmp(algo, "W4A16", 5) == 0) return true;
    const json_t *groups = json_object_get(q, "config_groups");
    bool four = false; /* a group of four-bit weights: FP8 ones beside it do not count */
    json_object_foreach((json_t *)groups, key, group)
    {
        const json_t *bits = json_object_get(json_object_get(group, "weights"), "num_bits");
        if (json_integer_value(bits) != 4) continue;
        if (json_is_object(json_object_get(group, "input_activations"))) return false;
        four = true;
    }
    if (four) return true;
    for (size_t i = 0; !algo && i < nb_ckpt_count(c); i++) {
        const char *name = nb_ckpt_at(c, i)->name;
        if (ends_with(name, ".input_scale") || ends_with(name, ".input_global_scale")) return false;
    }
    return !algo;
}

void nb_stack_begin(nb_stack_load *s, const nb_ckpt *c)
{
    s->weight_only = weight_only(c);
    s->w4a4 = (s->stack == NB_STACK_VLLM_CUTLASS || s->stack == NB_STACK_VLLM_FLASHINFER ||
               s->stack == NB_STACK_VLLM_EMULATION) &&
              !s->weight_only;
    for (unsigned b = 0; b < 256; b++) {
        /* ggml's UE4M3 has no sign and takes the byte 0x7F for 0; it reads 0xFF as 480, the nearest that E4M3 can say is 448. */
        s->llama_map[b] = b == 0x7F ? 0 : b == 0xFF ? 0x7E : (uint8_t)(b & 0x7F);
        /* Marlin goes through F16 (times 2^7 and the factor 2^f) and keeps no sign. A NaN byte stays NaN here: what S0E5M3 makes
         * of one is nothing to rely on. */
        float v = nb_e4m3_table[b & 0x7F];
        for (unsigned f = 0; f < 4; f++)
            s->marlin_map[f][b] = v * 128.0f * (float)(1u << f) > F16_MAX ? 0x7F : (uint8_t)(b & 0x7F);
    }
}

nb_arith nb_stack_arith(const nb_stack_load *s)
{
    return s->w4a4 ? NB_ARITH_W4A4 : NB_ARITH_BF16;
}

nb_act_kernel nb_stack_kernel(const nb_stack_load *s)
{
    return s->stack == NB_STACK_VLLM_FLASHINFER  ? NB_ACT_FLASHINFER
           : s->stack == NB_STACK_VLLM_EMULATION ? NB_ACT_EMULATION
                                                 : NB_ACT_CUTLASS;
}

/* A maximum as torch has it: NaN wins. `divisors`: the larger divisor is the smaller multiplier. */
static void join(nb_stack_scale *best, bool first, float value, float gs, const nb_tensor_info *from,
                 bool divisors)
{
    bool wins = first || isnan(value) || (divisors ? gs > best->gs : value > best->value);
    if (!first && (isnan(best->value) || !wins)) return;
    best->value = value;
    best->gs = gs;
    best->from = from;
}

static void join_input(nb_stack_scale *best, bool first, const nb_linear_src *m, bool divisors)
{
    if (m->has_input) {
        join(best, first, m->input_multiplier, m->input_gs, m->input, divisors);
        return;
    }
    if (!best->missing[0])
        snprintf(best->missing, sizeof best->missing, "%s.%s", m->module,
                 m->scheme == NB_SCHEME_NVFP4_CT ? "input_global_scale" : "input_scale");
    join(best, first, NAN, NAN, NULL, divisors);
}

/* Calls each for the NVFP4 linears that the stack puts into one with this: fused shards, and all experts when `experts`. */
typedef struct members {
    const nb_ckpt *c;
    const nb_config *cfg;
    const nb_arch_tensor *row;
    int64_t layer, expert;
    bool experts;
} members;

static bool is_expert(const nb_arch_tensor *row)
{
    return strstr(row->name, "{e}") != NULL;
}

static nb_status each_member(const members *m,
                             nb_status (*each)(void *ctx, const nb_linear_src *, nb_error *), void *ctx,
                             nb_error *err)
{
    const nb_arch *a = m->cfg->arch;
    int64_t e0 = m->experts ? 0 : m->expert,
            e1 = m->experts ? nb_arch_experts(m->cfg, m->row) : m->expert + 1;
    for (size_t i = 0; i < a->n_tensors; i++) {
        const nb_arch_tensor *t = &a->tensors[i];
        bool same = t == m->row || (m->row->fused && t->fused && strcmp(t->fused, m->row->fused) == 0 &&
                                    is_expert(t) == is_expert(m->row)); /* an MLP may stand beside experts */
        if (!same || (t->when && !t->when(m->cfg, (int)m->layer))) continue;
        for (int64_t e = e0; e < e1; e++) {
            char module[256];
            const nb_tensor_info *unused = NULL;
            nb_linear_src src;
            if (!nb_arch_find(m->c, m->cfg, t, m->layer, e, module, sizeof module, &unused)) continue;
            nb_status s = nb_linear_describe(m->c, module, 0, 0, &src, err);
            if (s == NB_OK && src.format == NB_FMT_NVFP4) s = each(ctx, &src, err);
            if (s != NB_OK) return s;
        }
    }
    return NB_OK;
}

typedef struct reduction {
    const nb_ckpt *c;
    nb_stack_scale *weight, *input; /* NULL: not wanted */
    bool first_weight;              /* take the first member's (a mixture's gate), not the largest */
    bool divisors;                  /* the stack reduces divisors (compressed-tensors outside mixtures) */
    size_t seen;
    uint8_t least; /* smallest block scale that is not zero, when wanted */
    bool want_least;
} reduction;

static nb_status scan_least(reduction *r, const nb_linear_src *src, nb_error *err)
{
    uint8_t bytes[4096];
    uint64_t n = src->scale->end - src->scale->begin;
    for (uint64_t at = 0; at < n;) {
        size_t step = n - at < sizeof bytes ? (size_t)(n - at) : sizeof bytes;
        nb_status s = nb_ckpt_read(r->c, src->scale, at, bytes, step, err);
        if (s != NB_OK) return s;
        for (size_t i = 0; i < step; i++) {
            uint8_t b = bytes[i] & 0x7F;
            if (b && b < r->least) r->least = b;
        }
        at += step;
    }
    return NB_OK;
}

static nb_status reduce_one(void *ctx, const nb_linear_src *src, nb_error *err)
{
    reduction *r = ctx;
    bool first = r->seen++ == 0;
    if (r->weight && (first || !r->first_weight)) {
        /* the divisor again, as it is stored: 1/(1/x) may differ from x */
        float gs = src->multiplier;
        if (src->scheme == NB_SCHEME_NVFP4_CT) {
            nb_status s = nb_ckpt_read_f32(r->c, src->global, &gs, err);
            if (s != NB_OK) return s;
        }
        join(r->weight, first, src->multiplier, gs, src->global, r->divisors);
    }
    if (r->input) join_input(r->input, first, src, r->divisors);
    return r->want_least ? scan_least(r, src, err) : NB_OK;
}

/* The power of two that brings every scale times 2^7 to 2 and above (nvfp4.md 4.6): by the smallest byte. */
static unsigned marlin_shift(uint8_t least)
{
    float v = nb_e4m3_table[least] * 128.0f;
    unsigned f = 0;
    while (f < 3 && v < 2.0f) {
        v *= 2.0f;
        f++;
    }
    return f;
}

static nb_status look_vllm(nb_stack_load *s, const members *m, const nb_linear_src *src, nb_stack_view *out,
                           nb_error *err)
{
    bool moe = m->expert >= 0, ct = src->scheme == NB_SCHEME_NVFP4_CT;
    bool marlin = s->stack == NB_STACK_VLLM_MARLIN;
    nb_stack_scale weight = {0}, input = {0};
    reduction r = {.c = m->c,
                   .weight = &weight,
                   .input = out->has_input ? &input : NULL,
                   .first_weight = moe,
                   .divisors = ct && !moe,
                   .want_least = marlin && !moe,
                   .least = 0x7F};
    nb_status st = each_member(m, reduce_one, &r, err);
    if (st != NB_OK) return st;
    /* FlashInfer takes one input scale, Marlin one factor, for all experts of the layer. */
    if (moe && (marlin || (s->stack == NB_STACK_VLLM_FLASHINFER && out->has_input))) {
        if (s->memo_row != m->row || s->memo_layer != m->layer) {
            members all = *m;
            all.experts = true;
            s->memo_input = (nb_stack_scale){0};
            reduction ra = {
                .c = m->c, .input = marlin ? NULL : &s->memo_input, .want_least = marlin, .least = 0x7F};
            if ((st = each_member(&all, reduce_one, &ra, err))) return st;
            s->memo_row = m->row;
            s->memo_layer = m->layer;
            s->memo_shift = marlin_shift(ra.least);
        }
        input = s->memo_input;
    }
    if (moe && out->has_input) input.gs = 1.0f / input.value; /* what the loader keeps is the multiplier */
    weight.reduced = weight.from != src->global;
    input.reduced = input.from != src->input;
    if (marlin) {
        unsigned f = moe ? s->memo_shift : marlin_shift(r.least);
        out->scale_map = s->marlin_map[f];
        weight.value = nb_bf16_round(weight.value); /* kept in the activations' dtype, times 2^119 / 2^f */
        if (fabsf(weight.value) * 0x1p119f / (float)(1u << f) > BF16_MAX) weight.value = INFINITY;
    }
    out->weight = weight;
    if (out->has_input) out->input = input;
    return NB_OK;
}

nb_status nb_stack_look(nb_stack_load *s, const nb_ckpt *c, const nb_config *cfg, const nb_arch_tensor *row,
                        int64_t layer, int64_t expert, const nb_linear_src *src, nb_stack_view *out,
                        nb_error *err)
{
    *out =
        (nb_stack_view){.weight = {.value = src->multiplier, .from = src->global},
                        .input = {.value = src->input_multiplier, .gs = src->input_gs, .from = src->input}};
    if (src->format != NB_FMT_NVFP4) return NB_OK;
    out->has_input = s->stack == NB_STACK_NONE ? !s->weight_only || src->has_input : s->w4a4;
    if (out->has_input) {
        out->input = (nb_stack_scale){0};
        join_input(&out->input, true, src, false);
    }
    if (s->stack == NB_STACK_NONE) return NB_OK;
    if (s->stack == NB_STACK_LLAMA_CPP) {
        out->scale_map = s->llama_map;
        return NB_OK;
    }
    if (row) {
        members m = {c, cfg, row, layer, expert, false};
        return look_vllm(s, &m, src, out, err);
    }
    if (s->stack == NB_STACK_VLLM_MARLIN) {
        reduction r = {.c = c, .want_least = true, .least = 0x7F};
        nb_status st = scan_least(&r, src, err);
        if (st != NB_OK) return st;
        out->scale_map = s->marlin_map[marlin_shift(r.least)];
    }
    return NB_OK;
}

nb_status nb_stack_adjust(nb_stack_load *s, const nb_ckpt *c, const nb_config *cfg, const nb_arch_tensor *row,
                          int64_t layer, int64_t expert, nb_linear_src *src, nb_error *err)
{
    nb_stack_view v;
    if (src->format != NB_FMT_NVFP4) return NB_OK;
    nb_status st = nb_stack_look(s, c, cfg, row, layer, expert, src, &v, err);
    if (st != NB_OK) return st;
    src->multiplier = v.weight.value;
    src->scale_map = v.scale_map;
    src->has_input = v.has_input;
    src->input_multiplier = v.input.value;
    src->input_gs = v.input.gs;
    src->to_bf16 = src->fp4_input = s->stack == NB_STACK_VLLM_EMULATION;
    return NB_OK;
}
