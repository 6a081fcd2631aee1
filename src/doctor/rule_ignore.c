/* NB202: which modules the config leaves out, or names, against which are quantised: both ways, and fused ones in part. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "doctor/rule_values.h"

#define E(cls, text) ((nb_effect){NB_EFFECT_##cls, text})

typedef enum fault {
    FAULT_EXCLUDED,
    FAULT_FORGOTTEN,
    FAULT_PREFIX,
    FAULT_UNNAMED,
    FAULT_PART,
    FAULT_COUNT
} fault;

static const struct {
    const char *message, *expected, *effect;
} faults[FAULT_COUNT] = {
    [FAULT_EXCLUDED] = {"linears are on the list of modules to leave out, and are quantised",
                        "float weights, or no entry that names them",
                        "the loader makes a float layer and finds codes"},
    [FAULT_FORGOTTEN] = {"linears are float, and nothing leaves them out",
                         "an entry in ignore or exclude_modules",
                         "the loader makes a quantised layer and finds no codes"},
    [FAULT_PREFIX] =
        {"entries lack the prefix that the tensors' names have, so that the linear is not left out",
         "the module's whole name", "the loader makes a quantised layer and finds no codes"},
    [FAULT_UNNAMED] = {"linears are quantised, and the config names other modules: no target fits them",
                       "targets that match the names in the file",
                       "loaders that go by the config make float layers and find codes"},
    [FAULT_PART] = {"of linears that loaders fuse, some are left out and some quantised",
                    "all of them in one format", "vLLM refuses fused layers in two formats"},
};

static void report(const nb_check *c, fault f, const char *tensor, const char *entry,
                   size_t found[FAULT_COUNT], nb_findings *out)
{
    if (found[f] == SIZE_MAX) {
        found[f] = nb_findings_add(out, "NB202", NB_SEVERITY_ERROR, "%s", faults[f].message);
        nb_findings_file(out, found[f], "config.json");
        if (entry) nb_findings_measured(out, found[f], "entry \"%.200s\"", entry);
        nb_findings_expected(out, found[f], "%s", faults[f].expected);
        nb_findings_remedy(out, found[f], true, "write what the tensors are into the config's lists");
        const nb_effect e = {NB_EFFECT_REFUSED, faults[f].effect};
        nb_value_effects(out, found[f], e, e, e);
    }
    nb_findings_tensor(out, found[f], tensor);
}

static bool is_quantised(nb_kind k)
{
    return nb_kind_nvfp4(k) || k == NB_KIND_MXFP4 || k == NB_KIND_FP8 || k == NB_KIND_MXFP4_BLOCKS;
}

/* True when the like of this float module is quantised elsewhere, or the architecture has a linear here; where that is not
 * known, the name must do. */
static bool is_linear(const nb_check *c, const nb_module *m)
{
    const nb_module_class *k = &c->modules.classes[m->cls];
    int64_t l, e;
    bool skipped;
    if (k->count[NB_KIND_NVFP4_CT] + k->count[NB_KIND_NVFP4_MODELOPT] + k->count[NB_KIND_MXFP4] +
        k->count[NB_KIND_FP8])
        return true;
    const char *last = nb_last_part(m->name);
    const size_t n = strlen(last);
    if (!c->table) return n > 5 && strcmp(last + n - 5, "_proj") == 0;
    const nb_arch_tensor *row = nb_arch_identify(&c->config, m->name, &l, &e, &skipped);
    return row && row->role == NB_ROLE_LINEAR;
}

/* A module that loaders fuse with m and that is quantised. */
static bool has_quantised_sibling(const nb_check *c, const nb_module *m, nb_buf *name)
{
    const char *last = nb_last_part(m->name);
    for (size_t g = 0; g < nb_fused_count; g++) {
        bool mine = false;
        for (size_t k = 0; k < NB_MAX_FUSED && nb_fused[g][k]; k++)
            mine = mine || strcmp(last, nb_fused[g][k]) == 0;
        for (size_t k = 0; mine && k < NB_MAX_FUSED && nb_fused[g][k]; k++) {
            nb_buf_clear(name);
            nb_buf_add(name, m->name, (size_t)(last - m->name));
            nb_buf_adds(name, nb_fused[g][k]);
            const nb_module *s = nb_modules_find(&c->modules, nb_buf_str(name));
            if (s && s != m && nb_kind_nvfp4(s->kind)) return true;
        }
    }
    return false;
}

/* An expert beyond the config's number is NB005's matter. */
static bool is_surplus(const nb_check *c, const char *module)
{
    static const char *const keys[] = {"n_routed_experts", "num_local_experts", "num_experts"};
    const char *p = nb_is_expert(module) ? strstr(module, "experts.") : NULL;
    int64_t n;
    for (size_t i = 0; p && i < sizeof keys / sizeof *keys; i++) {
        if (nb_config_int(&c->config, keys[i], -1, 1, 1 << 20, &n, NULL) == NB_OK)
            return strtoll(p + strlen("experts."), NULL, 10) >= n;
    }
    return false;
}

static void judge(const nb_check *c, size_t i, size_t found[FAULT_COUNT], nb_buf *name, nb_findings *out)
{
    const nb_module *m = &c->modules.items[i];
    const nb_claim *k = &c->quant.claims[i];
    const nb_tensor_info *t = nb_module_codes(m);
    const bool whole = c->quant.method == NB_QUANT_CT || c->quant.method == NB_QUANT_MODELOPT;
    if (!t || t->rank != 2 || nb_tensor_skipped(c, t)) return;
    if (nb_kind_nvfp4(m->kind) || (whole && is_quantised(m->kind))) {
        if (k->entry >= 0)
            report(c, FAULT_EXCLUDED, t->name, nb_quant_entry(&c->quant, (size_t)k->entry), found, out);
        else if (k->format == NB_CLAIM_NONE && !is_surplus(c, m->name))
            report(c, FAULT_UNNAMED, t->name, NULL, found, out);
        return;
    }
    if (m->kind != NB_KIND_FLOAT || !whole) return;
    if (k->entry >= 0) {
        if (has_quantised_sibling(c, m, name))
            report(c, FAULT_PART, t->name, nb_quant_entry(&c->quant, (size_t)k->entry), found, out);
    } else if (k->suffix >= 0) {
        report(c, FAULT_PREFIX, t->name, nb_quant_entry(&c->quant, (size_t)k->suffix), found, out);
    } else if (k->format != NB_CLAIM_OPEN && k->format != NB_CLAIM_NONE && is_linear(c, m)) {
        report(c, FAULT_FORGOTTEN, t->name, NULL, found, out);
    }
}

/* Entries for parts that exporters list whether a model has them or not. */
static bool may_be_absent(const nb_check *c, const char *entry)
{
    if (strstr(entry, "mtp") || strstr(entry, "eh_proj") || strstr(entry, "nextn")) return true;
    return strstr(entry, "head") && json_is_true(nb_config_get(&c->config, "tie_word_embeddings"));
}

/* Patterns that loaders fail to compile: Python's re.error ends the load. */
static void judge_patterns(const nb_check *c, nb_findings *out)
{
    for (size_t i = 0; i < c->quant.n_entries; i++) {
        const char *why = nb_quant_entry_broken(&c->quant, i);
        if (!why) continue;
        size_t f =
            nb_findings_add(out, "NB202", NB_SEVERITY_ERROR, "an entry of the list is no pattern: %s", why);
        nb_findings_file(out, f, "config.json");
        nb_findings_measured(out, f, "\"%.200s\"", nb_quant_entry(&c->quant, i));
        nb_findings_expected(out, f, "re: and a regular expression of Python's, or a module's name");
        nb_findings_remedy(out, f, true, "write what the tensors are into the config's lists");
        const nb_effect e = {NB_EFFECT_REFUSED, "loaders that compile the pattern stop there"};
        nb_value_effects(out, f, e, e, e);
    }
}

/* Entries that name a tensor: no loader has a module of that name. */
static void judge_tensor_names(const nb_check *c, nb_findings *out)
{
    size_t f = SIZE_MAX;
    for (size_t i = 0; i < c->quant.n_entries; i++) {
        const char *entry = nb_quant_entry(&c->quant, i);
        const nb_tensor_info *t = nb_ckpt_find(c->ckpt, entry);
        size_t len;
        if (!t || nb_member_of(entry, &len) != NB_MEMBER_WEIGHT) continue;
        if (f == SIZE_MAX) {
            f = nb_findings_add(out, "NB202", NB_SEVERITY_WARNING,
                                "entries name tensors; loaders compare them with names of modules");
            nb_findings_file(out, f, "config.json");
            nb_findings_measured(out, f, "entry \"%.200s\"", entry);
            nb_findings_expected(out, f, "the name without .weight");
            nb_findings_remedy(out, f, false, "take .weight off the entries");
            const nb_effect e =
                E(REFUSED, "the entry leaves nothing out: a loader that quantises this module "
                           "finds no codes");
            nb_value_effects(out, f, e, e, e);
        }
        nb_findings_tensor(out, f, t->name);
    }
}

static void judge_entries(const nb_check *c, nb_findings *out)
{
    nb_buf unused = {0};
    size_t n = 0;
    for (size_t i = 0; i < c->quant.n_entries; i++) {
        const char *entry = nb_quant_entry(&c->quant, i);
        if (nb_quant_entry_used(&c->quant, i) || nb_quant_entry_broken(&c->quant, i) ||
            may_be_absent(c, entry))
            continue;
        if (n++ < 8) nb_buf_addf(&unused, "%s%.200s", n > 1 ? ", " : "", entry);
    }
    if (n) {
        size_t f = nb_findings_add(out, "NB202", NB_SEVERITY_WARNING,
                                   "entries of ignore or exclude_modules match nothing");
        nb_findings_file(out, f, "config.json");
        nb_findings_measured(out, f, "%zu: %s", n, nb_buf_str(&unused));
        nb_findings_expected(out, f, "names of the file's modules");
        nb_findings_remedy(out, f, true,
                           "remove them; or, if they were meant for something here, correct the names");
        const nb_effect e = E(FINE, "loaders pass over them");
        nb_value_effects(out, f, e, e, e);
    }
    out->bad = out->bad || !nb_buf_ok(&unused);
    nb_buf_free(&unused);
}

nb_status nb_rule_ignore(const nb_check *c, nb_findings *out, nb_error *err)
{
    size_t found[FAULT_COUNT];
    nb_buf name = {0};
    const uint32_t ct = c->modules.total[NB_KIND_NVFP4_CT], mo = c->modules.total[NB_KIND_NVFP4_MODELOPT];
    for (int f = 0; f < FAULT_COUNT; f++) found[f] = SIZE_MAX;
    /* With the other flavour's quant_method (NB201) the lists are matched by the wrong rules. */
    if ((c->quant.method == NB_QUANT_CT && mo && !ct) || (c->quant.method == NB_QUANT_MODELOPT && ct && !mo))
        return NB_OK;
    for (size_t i = 0; i < c->modules.count && nb_buf_ok(&name); i++) judge(c, i, found, &name, out);
    judge_patterns(c, out);
    judge_tensor_names(c, out);
    if (nb_check_complete(c)) judge_entries(c, out);
    const bool ok = nb_buf_ok(&name);
    nb_buf_free(&name);
    return ok ? NB_OK : nb_fail_nomem(err, "a sibling's name", 0);
}
