/*
 * Input scales: absent (NB105, NB211), the wrong way round (NB106), never measured (NB108). The file alone holds no activations,
 * so a scale is judged by what it claims (amax = 2688 * multiplier) against its like: the linears whose names differ in numbers
 * only.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "doctor/rule_values.h"

#define E(cls, text) ((nb_effect){NB_EFFECT_##cls, text})
#define RANGE 2688.0                 /* 6 * 448: the largest activation is the multiplier times this */
#define BEYOND_F16 (65504.0 / RANGE) /* no network that ever ran in F16 has larger activations */
#define FAR 100.0
#define FALLBACK (0.5 / RANGE) /* ModelOpt's scale for experts that no token reached */

/* An input scale that can be judged. */
typedef struct input {
    const nb_module *m;
    const nb_tensor_info *t;
    double multiplier;
    size_t layer;  /* of the name, what the experts of its layer have in common; 0: no expert */
    bool inverted; /* NB106 says so */
} input;

static size_t experts_prefix(const char *name)
{
    const char *p = nb_is_expert(name) ? strstr(name, "experts.") : NULL;
    return p ? (size_t)(p - name) + strlen("experts.") : 0;
}

static int by_class(const void *pa, const void *pb)
{
    const input *a = pa, *b = pb;
    if (a->m->cls != b->m->cls) return a->m->cls < b->m->cls ? -1 : 1;
    return a->multiplier < b->multiplier ? -1 : a->multiplier > b->multiplier;
}

static int by_layer(const void *pa, const void *pb)
{
    const input *a = pa, *b = pb;
    if (a->m->cls != b->m->cls) return a->m->cls < b->m->cls ? -1 : 1;
    const size_t n = a->layer, k = b->layer;
    const int d = memcmp(a->m->name, b->m->name, n < k ? n : k);
    return d ? d : n < k ? -1 : n > k;
}

static bool same_layer(const input *a, const input *b)
{
    return a->m->cls == b->m->cls && by_layer(a, b) == 0;
}

/* ---- NB106 ---- */

static void report_direction(const nb_check *c, const input *x, nb_findings *out)
{
    const bool ct = x->m->kind == NB_KIND_NVFP4_CT;
    size_t i = nb_value_finding(c, out, "NB106", NB_SEVERITY_ERROR, x->t, 0, x->t->end - x->t->begin,
                                "the input scale is the wrong way round");
    const double stored = ct ? 1 / x->multiplier : x->multiplier, right = 1 / x->multiplier;
    nb_findings_measured(out, i, "%g: stands for activations up to %.4g", stored, RANGE * x->multiplier);
    nb_findings_expected(out, i, "%s; its reciprocal stands for activations up to %.4g",
                         ct ? "a divisor, 2688 / amax" : "a multiplier, amax / 2688", RANGE * right);
    nb_findings_remedy(out, i, true, "store its reciprocal, %.9g; then measure it (nibble calibrate)",
                       1 / stored);
    /* The kernel's factor is then the right multiplier: a block is flushed when factor * amax / 6 <= 2^-10. */
    const bool zero = right * right * RANGE / 6 <= 0x1p-10;
    char text[160];
    snprintf(text, sizeof text, "blocks whose largest value is at most %.4g become exactly zero",
             6 * 0x1p-10 / right);
    nb_value_effects(out, i, zero ? E(ZERO, text) : E(WRONG, text), E(FINE, "input scales are not read"),
                     E(FINE, "input scales are not read"));
}

/* others: the median of the class, or 0 where there is nothing to compare with. */
static bool is_inverted(double m, double others, bool most_are)
{
    if (m <= 1 + NB_SCALE_ULPS) return false;
    if (m > BEYOND_F16 || most_are) return true;
    /* The reciprocal would fit its like four times better than the value does. */
    return others > 0 && others < 1 && fabs(log(1 / m / others)) + log(4) <= fabs(log(m / others));
}

/* ---- NB108 ---- */

static void report_default(const nb_check *c, const input *x, size_t n, const char *message, nb_findings *out)
{
    size_t i =
        nb_value_finding(c, out, "NB108", NB_SEVERITY_WARNING, x->t, 0, x->t->end - x->t->begin, message);
    if (n > 1) out->items[i].has_bytes = out->bad; /* of several tensors */
    for (size_t k = 1; k < n; k++) nb_findings_tensor(out, i, x[k].t->name);
    nb_findings_measured(out, i, "multiplier %.6g: stands for activations up to %.4g", x->multiplier,
                         RANGE * x->multiplier);
    nb_findings_expected(out, i, "amax / 2688 of measured activations");
    nb_findings_remedy(
        out, i, false,
        "measure it: nibble calibrate, then nibble repair --scales; or keep the linear in BF16");
    nb_value_effects(
        out, i,
        E(CLIPPED, "activations beyond what the scale stands for are clipped; far smaller ones lose bits or "
                   "become zero"),
        E(FINE, "input scales are not read"), E(FINE, "input scales are not read"));
}

/* What a clamped SwiGLU gives at most: experts that saturate have equal maxima. 0: no clamp. */
static double clamp_of(const nb_check *c)
{
    double limit;
    if (nb_config_num(&c->config, "swiglu_limit", 1e-3, 1e6, &limit, NULL) != NB_OK) return 0;
    return limit / (1 + exp(-limit)) * limit;
}

static bool is_down(const char *module)
{
    const char *last = nb_last_part(module);
    return strcmp(last, "down_proj") == 0 || strcmp(last, "w2") == 0;
}

static bool all_same(const input *x, size_t n)
{
    size_t i = 1;
    while (i < n && x[i].multiplier == x[0].multiplier) i++;
    return i >= n;
}

/* ModelOpt can give the experts of a layer their common maximum: then every projection of every layer has one value. A layer that was
 * rewritten in the other flavour keeps it. x: all inputs, by layer. */
static bool are_synced(const input *x, size_t n)
{
    bool modelopt = false;
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && same_layer(&x[i], &x[end]);) end++;
        if (!x[i].layer) continue;
        modelopt = modelopt || x[i].m->kind == NB_KIND_NVFP4_MODELOPT;
        if (!all_same(x + i, end - i)) return false;
    }
    return modelopt;
}

/* Experts [x, x + n) of one layer's down projection. */
static void judge_experts(const nb_check *c, const input *x, size_t n, double clamp, bool synced,
                          nb_findings *out)
{
    const bool same = n >= 4 && !synced && all_same(x, n);
    bool fallback = n >= 2;
    for (size_t i = 0; i < n; i++) fallback = fallback && nb_nearly(x[i].multiplier, FALLBACK);
    if (fallback) {
        report_default(
            c, x, n,
            "the experts' input scales are what ModelOpt writes when no token reached them (amax 0.5)", out);
        return;
    }
    if (!same || x[0].multiplier == 1 || fabs(RANGE * x[0].multiplier - clamp) <= .01 * clamp) return;
    report_default(c, x, n, "the down projections of all experts have one input scale: not measured", out);
}

/* One number for inputs that are not the same: a class over three layers and more, or all linears of the file. What the experts
 * of a layer share, and what a clamp limits, is not meant. */
static bool is_constant(const input *x, size_t n, size_t least, double clamp)
{
    return n >= least && all_same(x, n) && x[0].multiplier < 1 && !nb_nearly(x[0].multiplier, FALLBACK) &&
           fabs(RANGE * x[0].multiplier - clamp) > .01 * clamp;
}

static const char constant[] = "linears of all layers have one input scale to the last bit: not measured";

/* x: the class, ascending by multiplier. */
static void judge_class(const nb_check *c, input *x, size_t n, bool file_inverted, nb_findings *out)
{
    const double middle = n % 2 ? x[n / 2].multiplier : (x[n / 2 - 1].multiplier + x[n / 2].multiplier) / 2;
    double low = INFINITY, high = 0; /* of those that are near the median */
    for (size_t i = 0; i < n; i++) {
        const double r = x[i].multiplier / middle;
        if (r < 1 / FAR || r > FAR) continue;
        low = fmin(low, x[i].multiplier);
        high = fmax(high, x[i].multiplier);
    }
    const bool most = n >= 2 && middle > BEYOND_F16;
    for (size_t i = 0; i < n; i++) {
        const double m = x[i].multiplier;
        if (is_inverted(m, n >= 3 ? middle : 0, file_inverted || (most && m > BEYOND_F16))) {
            report_direction(c, &x[i], out);
            x[i].inverted = true;
        } else if (m == 1) {
            report_default(c, &x[i], 1,
                           "the input scale is exactly 1: what an exporter writes that measured nothing",
                           out);
        } else if (n >= 3 && (m < middle / FAR || m > middle * FAR) && (m > 10 * high || m < low / 10)) {
            report_default(c, &x[i], 1, "the input scale is over 100 times from its like in the other layers",
                           out);
        }
    }
}

static nb_status judge_values(const nb_check *c, nb_findings *out, nb_error *err)
{
    const double clamp = clamp_of(c);
    size_t n = 0, above = 0;
    input *x = malloc((c->modules.count + 1) * sizeof *x);
    if (!x) return nb_fail_nomem(err, "the list of input scales", c->modules.count * sizeof *x);
    for (size_t i = 0; i < c->modules.count; i++) {
        const nb_module *m = &c->modules.items[i];
        const nb_block_values *v = &c->scan.modules[i];
        if (!nb_kind_nvfp4(m->kind) || !v->has_input || !nb_scale_usable(v->input)) continue;
        const double stored = (double)v->input;
        x[n] = (input){m, nb_module_input(m), stored, experts_prefix(m->name), false};
        if (m->kind == NB_KIND_NVFP4_CT) x[n].multiplier = 1 / stored;
        above += x[n++].multiplier > 1 + NB_SCALE_ULPS;
    }
    if (n) qsort(x, n, sizeof *x, by_class);
    bool layers = false; /* more than one of some class */
    for (size_t i = 1; i < n; i++) layers = layers || x[i].m->cls == x[i - 1].m->cls;
    const bool flat = layers && is_constant(x, n, 6, clamp);
    if (flat) report_default(c, x, n, constant, out);
    for (size_t i = 0, end; i < n && !flat; i = end) {
        for (end = i + 1; end < n && x[end].m->cls == x[i].m->cls;) end++;
        if (is_constant(x + i, end - i, 4, clamp) && !strstr(x[i].m->name, "experts."))
            report_default(c, x + i, end - i, constant, out);
        else
            judge_class(c, x + i, end - i, above >= 3 && 2 * above > n, out);
    }
    if (flat) goto out;
    /* A layer's experts are judged as they will be: what a clamp made equal shows only the right way round. */
    for (size_t i = 0; i < n; i++) x[i].multiplier = x[i].inverted ? 1 / x[i].multiplier : x[i].multiplier;
    if (n) qsort(x, n, sizeof *x, by_layer);
    const bool synced = are_synced(x, n);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && same_layer(&x[i], &x[end]);) end++;
        if (x[i].layer && is_down(x[i].m->name)) judge_experts(c, x + i, end - i, clamp, synced, out);
    }
out:
    free(x);
    return NB_OK;
}

/* ---- NB105, NB211 ---- */

/* A whole NVFP4 linear without an input scale. */
static bool lacks_input(const nb_check *c, const nb_module *m)
{
    nb_member missing[3];
    return nb_kind_nvfp4(m->kind) && !nb_module_input(m) && nb_module_missing(&c->modules, m, missing) == 0;
}

static void report_unlabelled(const nb_check *c, size_t n, nb_findings *out)
{
    size_t i =
        nb_findings_add(out, "NB211", NB_SEVERITY_ERROR,
                        "the config says W4A4, and no linear has an input scale: the file is weight-only");
    nb_findings_measured(out, i, "none in %zu NVFP4 linears", n);
    nb_findings_expected(out, i,
                         c->quant.method == NB_QUANT_CT
                             ? "input_activations: null"
                             : "quant_algo: W4A16_NVFP4, or an input_scale a linear");
    nb_findings_remedy(out, i, true, "say weight-only in the config: it then runs as W4A16 everywhere");
    nb_value_effects(out, i, E(UNDEFINED, "vLLM's input scales keep uninitialised memory"),
                     E(FINE, "input scales are not read"), E(FINE, "input scales are not read"));
}

/* The name with its expert's number left out: what the experts of a layer have in common. */
static bool expert_key(const char *module, nb_buf *out)
{
    const char *number = nb_is_expert(module) ? strstr(module, "experts.") + strlen("experts.") : NULL;
    nb_buf_clear(out);
    if (number)
        nb_buf_addf(out, "%.*s#%s", (int)(number - module), module, number + strspn(number, "0123456789"));
    return number != NULL;
}

/* Modules from which `repair` can take a missing input scale: other experts' projections with a usable one, and any module with
 * one, by its name. text holds the keys of experts; its room is taken at once, since the map borrows them. */
static bool index_donors(const nb_check *c, nb_map *donors, nb_buf *key, nb_buf *text)
{
    size_t room = 0;
    for (size_t i = 0; i < c->modules.count; i++) room += strlen(c->modules.items[i].name) + 2;
    bool ok = nb_buf_reserve(text, room);
    for (size_t i = 0; i < c->modules.count && ok; i++) {
        const nb_module *m = &c->modules.items[i];
        const nb_block_values *v = &c->scan.modules[i];
        if (!nb_kind_nvfp4(m->kind) || !v->has_input || !nb_scale_usable(v->input)) continue;
        ok = nb_map_put(donors, m->name, strlen(m->name), 0, NULL);
        if (!ok || !expert_key(m->name, key) || nb_map_get(donors, nb_buf_str(key), key->len, NULL)) continue;
        const size_t at = text->len;
        nb_buf_add(text, nb_buf_str(key), key->len);
        ok = nb_buf_ok(text) && nb_map_put(donors, text->data + at, key->len, 0, NULL);
    }
    return ok && nb_buf_ok(key);
}

/* True when a fused sibling, or another expert of the layer, has an input scale. */
static bool can_be_filled(const nb_map *donors, const nb_module *m, nb_buf *key)
{
    const char *last = nb_last_part(m->name);
    if (expert_key(m->name, key) && nb_map_get(donors, nb_buf_str(key), key->len, NULL)) return true;
    for (size_t g = 0; g < nb_fused_count; g++) {
        bool mine = false;
        for (size_t k = 0; k < NB_MAX_FUSED && nb_fused[g][k]; k++)
            mine = mine || strcmp(last, nb_fused[g][k]) == 0;
        for (size_t k = 0; mine && k < NB_MAX_FUSED && nb_fused[g][k]; k++) {
            nb_buf_clear(key);
            nb_buf_addf(key, "%.*s%s", (int)(last - m->name), m->name, nb_fused[g][k]);
            if (nb_map_get(donors, nb_buf_str(key), key->len, NULL)) return true;
        }
    }
    return false;
}

static nb_status judge_absent(const nb_check *c, nb_findings *out, nb_error *err)
{
    size_t with = 0, without = 0, labelled = 0;
    size_t found[2] = {SIZE_MAX, SIZE_MAX}; /* of those that `repair` can fill, and of the others */
    nb_buf name = {0}, key = {0}, text = {0};
    nb_map donors = {0};
    bool *kin = calloc(c->modules.n_classes + 1, sizeof *kin); /* a class has input scales somewhere */
    if (!kin) return nb_fail_nomem(err, "the classes with input scales", c->modules.n_classes);
    for (size_t i = 0; i < c->modules.count; i++) {
        const nb_module *m = &c->modules.items[i];
        if (!nb_kind_nvfp4(m->kind)) continue;
        with += nb_module_input(m) != NULL;
        kin[m->cls] = kin[m->cls] || nb_module_input(m);
        if (!lacks_input(c, m)) continue;
        without++;
        labelled += c->quant.claims[i].format == NB_CLAIM_NVFP4 && !c->quant.claims[i].weight_only;
    }
    const bool moe_w4a4 = nb_quant_says(&c->quant, NB_CLAIM_NVFP4) && c->quant.method == NB_QUANT_FP8;
    if (!with && (labelled || moe_w4a4) && without && nb_check_complete(c))
        report_unlabelled(c, without, out);
    bool ok = !with || !without || index_donors(c, &donors, &key, &text);
    for (size_t i = 0; i < c->modules.count && with && without && ok && nb_buf_ok(&name); i++) {
        const nb_module *m = &c->modules.items[i];
        const nb_claim *claim = &c->quant.claims[i];
        if (!lacks_input(c, m) || claim->format == NB_CLAIM_NONE) continue;
        if (claim->format == NB_CLAIM_NVFP4 ? claim->weight_only : !kin[m->cls] && !moe_w4a4) continue;
        nb_buf_clear(&name);
        nb_buf_addf(&name, "%s%s", m->name,
                    nb_member_suffix(m->kind == NB_KIND_NVFP4_CT ? NB_MEMBER_INPUT_GLOBAL : NB_MEMBER_INPUT));
        if (!nb_buf_ok(&name) || !nb_check_absent(c, nb_buf_str(&name))) continue;
        const bool fill = can_be_filled(&donors, m, &key);
        size_t last = found[!fill];
        if (last == SIZE_MAX) {
            last = found[!fill] = nb_findings_add(out, "NB105", NB_SEVERITY_ERROR,
                                                  "linears have no input scale, others have one");
            nb_findings_file(out, last, nb_check_file_of(c, nb_module_codes(m)));
            nb_findings_measured(out, last, "%zu of %zu NVFP4 linears have one", with, with + without);
            nb_findings_expected(out, last, "one F32 number a linear: W4A4 needs it");
            nb_findings_remedy(
                out, last, fill, "%s",
                fill ? "take that of its fused sibling, or the maximum of the layer's other experts; "
                       "better, measure it: nibble calibrate, then nibble repair --scales"
                     : "measure it: nibble calibrate, then nibble repair --scales");
            nb_value_effects(out, last,
                             E(UNDEFINED, "vLLM's parameter keeps uninitialised memory: where that is 0, "
                                          "blocks of zeros give NaN"),
                             E(FINE, "input scales are not read"), E(FINE, "input scales are not read"));
        }
        nb_findings_tensor(out, last, nb_buf_str(&name));
    }
    ok = ok && nb_buf_ok(&name) && nb_buf_ok(&key);
    nb_buf_free(&name);
    nb_buf_free(&key);
    nb_map_free(&donors);
    nb_buf_free(&text);
    free(kin);
    return ok ? NB_OK : nb_fail_nomem(err, "a tensor's name", 0);
}

nb_status nb_rule_inputs(const nb_check *c, nb_findings *out, nb_error *err)
{
    nb_status s = judge_absent(c, out, err);
    return s == NB_OK ? judge_values(c, out, err) : s;
}
