/*
 * What codes and block scales say about each other. A quantiser maps the largest weight of a block to the code 6 and the largest
 * block of a tensor to a scale near 448, so bytes that nobody quantised, or a global scale that belongs to other bytes, show in
 * counts alone: NB106 of weights, NB109, NB110.
 */
#include <stdlib.h>
#include <string.h>

#include "doctor/rule_values.h"

#define E(cls, text) ((nb_effect){NB_EFFECT_##cls, text})
#define TOP_OF_ANY 0x70 /* 128: every producer's largest byte is 0x78 (256), 0x7C (384) or 0x7E (448) */

static double share(uint64_t a, uint64_t b)
{
    return b ? (double)a / (double)b : 0;
}

static float decode(uint8_t magnitude)
{
    const int e = magnitude >> 3, m = magnitude & 7;
    float v = e ? (float)(8 + m) : (float)m;
    for (int k = e ? e : 1; k < 10; k++) v /= 2;
    for (int k = 10; k < e; k++) v *= 2;
    return v;
}

/* ---- NB106 of the weight's global scale ---- */

/* Linears under one parent (experts of a layer count as under one) with one global scale: only together do they reach 448. */
typedef struct kin {
    const nb_module *module;
    const nb_block_values *values;
    const char *name;
    size_t parent; /* length of the parent's name */
    double multiplier;
} kin;

static int by_kin(const void *pa, const void *pb)
{
    const kin *a = pa, *b = pb;
    const size_t n = a->parent < b->parent ? a->parent : b->parent;
    const int d = memcmp(a->name, b->name, n);
    if (d) return d;
    if (a->parent != b->parent) return a->parent < b->parent ? -1 : 1;
    return a->multiplier < b->multiplier ? -1 : a->multiplier > b->multiplier;
}

static bool same_kin(const kin *a, const kin *b)
{
    return a->parent == b->parent && memcmp(a->name, b->name, a->parent) == 0 &&
           nb_nearly(a->multiplier, b->multiplier);
}

static size_t parent_of(const char *name)
{
    const char *p = nb_is_expert(name) ? strstr(name, "experts.") : strrchr(name, '.');
    return p ? (size_t)(p - name) : 0;
}

static void report_direction(const nb_check *c, const kin *k, nb_findings *out)
{
    const nb_tensor_info *t = nb_module_global(k->module);
    const bool ct = k->module->kind == NB_KIND_NVFP4_CT;
    size_t i = nb_value_finding(c, out, "NB106", NB_SEVERITY_ERROR, t, 0, t->end - t->begin,
                                "the weight's global scale is the wrong way round");
    nb_findings_measured(out, i, "%g: the weight's largest value would be %.4g", (double)k->values->weight,
                         k->multiplier * 2688);
    nb_findings_expected(
        out, i, ct ? "a divisor, 2688 / amax: far above 1" : "a multiplier, amax / 2688: far below 1");
    nb_findings_remedy(out, i, true, "store its reciprocal, %.9g", 1 / (double)k->values->weight);
    const nb_effect e = E(WRONG, "every weight of the linear is wrong by the square of the scale");
    nb_value_effects(out, i, e, e, e);
}

static void report_low(const nb_check *c, const kin *k, uint8_t top, nb_findings *out)
{
    const nb_tensor_info *t = nb_module_global(k->module);
    size_t i = nb_value_finding(c, out, "NB106", NB_SEVERITY_ERROR, t, 0, t->end - t->begin,
                                "the weight's global scale does not belong to its block scales");
    nb_findings_measured(
        out, i, "the largest block scale is 0x%02X (%g), of all linears that share this global scale", top,
        (double)decode(top));
    nb_findings_expected(out, i, "0x7E (448), 0x7C (384) or 0x78 (256): the global scale is made so");
    nb_findings_remedy(out, i, false,
                       "take the scale that was stored with these bytes, or export the linear again");
    const nb_effect e =
        E(WRONG,
          "if the scale is another's, all weights are too large or too small by one factor; if both were "
          "rescaled, small blocks have lost bits");
    nb_value_effects(out, i, e, e, e);
}

/* ---- NB106: sizes that no weight has ---- */

#define FAR 100.0
#define HUGE_WEIGHT 100.0 /* no network whose inputs are normed has such weights in most of its linears */

static void report_size(const nb_check *c, const kin *k, const char *message, const char *expected,
                        nb_findings *out)
{
    const nb_tensor_info *t = nb_module_global(k->module);
    size_t i = nb_value_finding(c, out, "NB106", NB_SEVERITY_WARNING, t, 0, t->end - t->begin, message);
    nb_findings_measured(out, i, "%g: the weight's largest value would be %.4g", (double)k->values->weight,
                         k->multiplier * 2688);
    nb_findings_expected(out, i, "%s", expected);
    nb_findings_remedy(out, i, false,
                       "compare a few dequantised weights with the original's; export the linear again");
    const nb_effect e = E(WRONG, "every weight of the linear is wrong by one factor");
    nb_value_effects(out, i, e, e, e);
}

static int by_class(const void *pa, const void *pb)
{
    const kin *a = pa, *b = pb;
    if (a->module->cls != b->module->cls) return a->module->cls < b->module->cls ? -1 : 1;
    return a->multiplier < b->multiplier ? -1 : a->multiplier > b->multiplier;
}

/* A linear over 100 times from its like in the other layers and experts, x ascending: by itself, not at the end of a slope. */
static void judge_class(const nb_check *c, const kin *x, size_t n, nb_findings *out)
{
    const double middle = x[n / 2].multiplier;
    double low = middle, high = middle;
    for (size_t i = 0; i < n; i++) {
        if (x[i].multiplier < middle / FAR || x[i].multiplier > middle * FAR) continue;
        low = x[i].multiplier < low ? x[i].multiplier : low;
        high = x[i].multiplier > high ? x[i].multiplier : high;
    }
    for (size_t i = 0; i < n && n >= 3; i++) {
        const double m = x[i].multiplier;
        if (m > 1 + NB_SCALE_ULPS || (m >= middle / FAR && m <= middle * FAR)) continue;
        if (m < 10 * high && m > low / 10) continue;
        report_size(c, &x[i], "the weight's global scale is over 100 times from its like in the other layers",
                    "a size like that of the same linear elsewhere", out);
    }
}

/* all: n scales; sorted anew. Those above 1 were reported as the wrong way round. */
static void sizes(const nb_check *c, kin *all, size_t n, nb_findings *out)
{
    size_t huge = 0, inverted = 0;
    for (size_t i = 0; i < n; i++) {
        huge += all[i].multiplier * 2688 > HUGE_WEIGHT;
        inverted += all[i].multiplier > 1 + NB_SCALE_ULPS;
    }
    if (n >= 3 && 2 * huge > n) {
        for (size_t i = 0; i < n; i++) {
            if (all[i].multiplier * 2688 <= HUGE_WEIGHT || all[i].multiplier > 1 + NB_SCALE_ULPS) continue;
            report_size(
                c, &all[i],
                "most weights of the file would reach beyond 100: the global scales are not amax / 2688",
                all[i].module->kind == NB_KIND_NVFP4_CT ? "2688 / amax: weights seldom exceed 10"
                                                        : "amax / 2688: weights seldom exceed 10",
                out);
        }
        return;
    }
    if (n) qsort(all, n, sizeof *all, by_class);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && all[end].module->cls == all[i].module->cls;) end++;
        if (2 * inverted <= n) judge_class(c, all + i, end - i, out);
    }
}

static nb_status directions(const nb_check *c, nb_findings *out, nb_error *err)
{
    size_t n = 0;
    kin *all = malloc((c->modules.count + 1) * sizeof *all);
    if (!all) return nb_fail_nomem(err, "the list of global scales", c->modules.count * sizeof *all);
    for (size_t i = 0; i < c->modules.count; i++) {
        const nb_module *m = &c->modules.items[i];
        const nb_block_values *v = &c->scan.modules[i];
        if (!nb_kind_nvfp4(m->kind) || !v->has_weight || !nb_scale_usable(v->weight)) continue;
        kin k = {m, v, m->name, parent_of(m->name), (double)v->weight};
        if (m->kind == NB_KIND_NVFP4_CT) k.multiplier = 1 / k.multiplier;
        all[n++] = k;
    }
    if (n) qsort(all, n, sizeof *all, by_kin);
    for (size_t i = 0, end; i < n; i = end) {
        uint64_t live = 0;
        uint8_t top = 0;
        for (end = i; end < n && same_kin(&all[i], &all[end]); end++) {
            live += all[end].values->live;
            if (all[end].values->top > top) top = all[end].values->top;
        }
        for (size_t k = i; k < end; k++) {
            if (all[k].multiplier > 1 + NB_SCALE_ULPS)
                report_direction(c, &all[k], out);
            else if (live && all[k].values->live && top < TOP_OF_ANY)
                report_low(c, &all[k], top, out);
        }
    }
    sizes(c, all, n, out);
    free(all);
    return NB_OK;
}

/* ---- NB109 ---- */

static void judge_small(const nb_check *c, const nb_module *m, const nb_block_values *v, nb_findings *out)
{
    const nb_tensor_info *t = nb_module_scale(m);
    if (v->zero.count) {
        size_t i = nb_value_finding(c, out, "NB109", NB_SEVERITY_WARNING, t, v->zero.first, v->zero.first + 1,
                                    "block scales are zero over codes that are not");
        nb_findings_measured(out, i, "%llu of %llu blocks", (unsigned long long)v->zero.count,
                             (unsigned long long)v->blocks);
        nb_findings_expected(out, i, "a zero scale over zero codes only");
        nb_findings_remedy(out, i, false, "export the linear again");
        const nb_effect e = E(WRONG, "the weights of these blocks are lost: read as zero");
        nb_value_effects(out, i, e, e, e);
    }
    const bool most = 2 * v->subnormal.count > v->blocks;
    if (!most && !(v->subnormal.count && v->top >= TOP_OF_ANY)) return;
    size_t i = nb_value_finding(
        c, out, "NB109", NB_SEVERITY_WARNING, t, v->subnormal.first, v->subnormal.first + 1,
        most ? "most block scales are subnormal: they have lost bits"
             : "block scales span more than Marlin's format holds: subnormal beside the largest");
    nb_findings_measured(out, i, "%llu of %llu blocks are below 2^-6, the largest scale is %g",
                         (unsigned long long)v->subnormal.count, (unsigned long long)v->blocks,
                         (double)decode(v->top));
    nb_findings_expected(out, i, "scales of 2^-6 to 448; the smallest of a trained weight are near 1");
    nb_findings_remedy(out, i, false,
                       most ? "export the linear again with a global scale of amax / 2688"
                            : "fine outside Marlin; there, export the linear again or keep it in BF16");
    nb_value_effects(
        out, i, E(FINE, "read as stored"), E(FINE, "read as stored"),
        most ? E(WRONG, "S0E5M3 has no such small scales: what is below its range is lost")
             : E(WRONG, "the factor that lifts the smallest scales overflows the largest in F16"));
}

/* ---- NB110 ---- */

/* Blocks of ordinary scales whose largest code is neither 6 nor 4. */
static uint64_t strange(const nb_block_values *v)
{
    return v->normal - v->normal_6 - v->normal_4;
}

/* True when the file's blocks map their maximum to 4 as often as it suits: four-over-six, or a search over scales. Told from the
 * largest byte (256 or 384 in four-over-six files), or from most linears doing so while hardly any block has less than 4. */
static bool picks_four(const nb_check *c)
{
    uint64_t linears = 0, picking = 0;
    uint8_t top = 0;
    for (size_t i = 0; i < c->modules.count; i++) {
        const nb_block_values *v = &c->scan.modules[i];
        if (!nb_kind_nvfp4(c->modules.items[i].kind) || !v->normal) continue;
        linears++;
        if (v->top > top) top = v->top;
        picking += share(v->normal_4, v->normal) > .02 && share(strange(v), v->normal) < .002;
    }
    return top <= 0x7C || 2 * picking > linears;
}

static void judge_codes(const nb_check *c, const nb_module *m, const nb_block_values *v, bool four,
                        nb_findings *out)
{
    const nb_tensor_info *t = nb_module_codes(m);
    const uint64_t off = v->normal - v->normal_6;
    const char *message;
    nb_effect e = E(WRONG, "the weights are not those of the model");
    if (!v->blocks) return;
    if (!v->live) {
        message = "all codes of the weight are zero";
        e = E(ZERO, "the linear gives nothing but its bias");
    } else if (share(v->uniform, v->live) > .97) {
        message = "all codes of the weight are the same";
    } else if (share(v->dead_odd, v->blocks) > .02) {
        message = "blocks of zeros lie under scales that no producer writes for them";
    } else if (share(off, v->normal) > .005 && !(four && share(strange(v), v->normal) <= .02)) {
        message = "the codes are not what a quantiser makes: blocks do not reach 6";
    } else {
        return;
    }
    size_t i = nb_value_finding(c, out, "NB110", NB_SEVERITY_WARNING, t, 0, t->end - t->begin, message);
    nb_findings_measured(
        out, i,
        "of %llu blocks %llu are all zero, %llu hold one code only; of %llu blocks under ordinary "
        "scales %llu do not reach 6",
        (unsigned long long)v->blocks, (unsigned long long)(v->blocks - v->live),
        (unsigned long long)v->uniform, (unsigned long long)v->normal, (unsigned long long)off);
    nb_findings_expected(out, i, "a code of 6 in every block; zero blocks under 0x00, 0x20, 0x38 or 0x7E");
    nb_findings_remedy(
        out, i, false,
        "download the shard again, or export the linear again; `nibble trace` shows what it does");
    nb_value_effects(out, i, e, e, e);
}

nb_status nb_rule_blocks(const nb_check *c, nb_findings *out, nb_error *err)
{
    const bool four = picks_four(c);
    for (size_t i = 0; i < c->modules.count; i++) {
        const nb_module *m = &c->modules.items[i];
        const nb_block_values *v = &c->scan.modules[i];
        if (!nb_kind_nvfp4(m->kind) || !v->scanned) continue;
        judge_small(c, m, v, out);
        judge_codes(c, m, v, four, out);
    }
    return directions(c, out, err);
}
