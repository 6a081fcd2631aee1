/* NB107: linears that loaders fuse into one (q/k/v, gate/up, …) have one global scale there; where the stored ones differ, vLLM
 * takes the largest of the numbers as stored, or the gate's for experts (specs/nvfp4.md §4.1 and §4.2). */
#include <string.h>

#include "base/buf.h"
#include "doctor/rule_values.h"

#define E(cls, text) ((nb_effect){NB_EFFECT_##cls, text})
#define LARGE 1.25

typedef struct group {
    const nb_module *m[NB_MAX_FUSED];
    const nb_block_values *v[NB_MAX_FUSED];
    size_t n;
} group;

static void judge(const nb_check *c, const group *g, bool input, nb_findings *out)
{
    double least = 0, most = 0;
    const nb_tensor_info *t[NB_MAX_FUSED] = {NULL};
    float stored[NB_MAX_FUSED] = {0};
    const bool ct = g->m[0]->kind == NB_KIND_NVFP4_CT, expert = nb_is_expert(g->m[0]->name);
    const nb_module *named[NB_MAX_FUSED] = {NULL};
    size_t n = 0;
    for (size_t i = 0; i < g->n; i++) {
        const bool has = input ? g->v[i]->has_input : g->v[i]->has_weight;
        const float v = input ? g->v[i]->input : g->v[i]->weight;
        if (!has || !nb_scale_usable(v) || g->m[i]->kind != g->m[0]->kind) continue;
        t[n] = input ? nb_module_input(g->m[i]) : nb_module_global(g->m[i]);
        stored[n] = v;
        least = n && least < (double)v ? least : (double)v;
        most = n && most > (double)v ? most : (double)v;
        named[n++] = g->m[i];
    }
    if (n < 2 || nb_nearly(least, most)) return;
    const double ratio = most / least;
    size_t first = 0;
    while (first + 1 < n && nb_nearly((double)stored[first], (double)stored[0])) first++;
    size_t i = nb_value_finding(c, out, "NB107", ratio > LARGE ? NB_SEVERITY_ERROR : NB_SEVERITY_WARNING,
                                t[first], 0, t[first]->end - t[first]->begin,
                                input ? "linears that loaders fuse have different input scales"
                                      : "linears that loaders fuse have different weight global scales");
    for (size_t k = 0; k < n; k++) {
        if (k != first) nb_findings_tensor(out, i, t[k]->name);
    }
    nb_buf text = {0};
    for (size_t k = 0; k < n; k++)
        nb_buf_addf(&text, "%s%s %.6g", k ? ", " : "", nb_last_part(named[k]->name), (double)stored[k]);
    nb_findings_measured(out, i, "%s: ratio %.4g", nb_buf_str(&text), ratio);
    nb_findings_expected(out, i, "one value");
    out->bad = out->bad || !nb_buf_ok(&text);
    nb_buf_free(&text);
    if (input) {
        nb_findings_remedy(out, i, true, "give all of them the scale of the largest maximum");
        nb_value_effects(out, i,
                         ct ? E(CLIPPED,
                                "vLLM takes the largest divisor, hence the smallest of the maxima: what lies "
                                "above it is clipped")
                            : E(FINE, "vLLM takes the largest: nothing is clipped"),
                         E(FINE, "input scales are not read"), E(FINE, "input scales are not read"));
        return;
    }
    nb_findings_remedy(out, i, true,
                       "give all of them the largest multiplier and rescale the block bytes by the ratio "
                       "(exact for powers of two)");
    char effect[160];
    snprintf(effect, sizeof effect, "%s: the others' weights come out wrong by up to %.4g",
             expert ? "vLLM takes the gate's scale for both"
             : ct   ? "vLLM takes the largest divisor for all"
                    : "vLLM takes the largest multiplier for all",
             ratio);
    nb_value_effects(out, i, E(WRONG, effect), E(FINE, "each linear is read by its own scale"),
                     E(WRONG, effect));
}

/* last: the last part of m's name. */
static bool collect(const nb_check *c, const nb_module *m, const char *last,
                    const char *const names[NB_MAX_FUSED], nb_buf *name, group *g)
{
    g->n = 0;
    if (strcmp(last, names[0]) != 0) return true;
    for (size_t k = 0; k < NB_MAX_FUSED && names[k]; k++) {
        nb_buf_clear(name);
        nb_buf_add(name, m->name, (size_t)(last - m->name));
        nb_buf_adds(name, names[k]);
        const nb_module *s = nb_modules_find(&c->modules, nb_buf_str(name));
        if (!nb_buf_ok(name)) return false;
        if (!s || !nb_kind_nvfp4(s->kind)) continue;
        g->m[g->n] = s;
        g->v[g->n++] = &c->scan.modules[s - c->modules.items];
    }
    return true;
}

nb_status nb_rule_siblings(const nb_check *c, nb_findings *out, nb_error *err)
{
    nb_buf name = {0};
    bool ok = true;
    for (size_t i = 0; i < c->modules.count && ok; i++) {
        const nb_module *m = &c->modules.items[i];
        const char *last = nb_last_part(m->name);
        for (size_t k = 0; k < nb_fused_count && ok; k++) {
            group g;
            ok = collect(c, m, last, nb_fused[k], &name, &g);
            if (!ok || g.n < 2) continue;
            judge(c, &g, false, out);
            judge(c, &g, true, out);
        }
    }
    nb_buf_free(&name);
    return ok ? NB_OK : nb_fail_nomem(err, "a sibling's name", 0);
}
