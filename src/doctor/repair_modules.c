/* What options ask for, whatever check says: modules dequantised to BF16, and measured input scales written. */
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/arch.h"
#include "checkpoint/linear.h"
#include "doctor/repair_plan.h"
#include "engine/policy.h"

/* A glob on the stored name or, where the architecture is known, on its table's: "layers.0.attn.wq_a". */
static bool matches(const nb_config *cfg, const char *glob, const nb_module *m)
{
    char canonical[256];
    int64_t l, e;
    bool skipped;
    if (fnmatch(glob, m->name, 0) == 0) return true;
    const nb_arch_tensor *row = cfg->arch ? nb_arch_identify(cfg, m->name, &l, &e, &skipped) : NULL;
    if (!row) return false;
    nb_arch_name(row, l, e, canonical, sizeof canonical);
    return fnmatch(glob, canonical, 0) == 0;
}

nb_status nb_plan_choose(nb_plan *p, nb_error *err)
{
    nb_config cfg;
    nb_error why;
    p->bf16 = calloc(p->modules.count + 1, sizeof *p->bf16);
    p->measured = calloc(p->modules.count + 1, sizeof *p->measured);
    if (!p->bf16 || !p->measured) return nb_fail_nomem(err, "a plan", p->modules.count);
    nb_config_init(p->ckpt, &cfg, &why); /* an unknown architecture has stored names alone */
    for (size_t k = 0; k < p->opt->n_dequant; k++) {
        bool any = false;
        for (size_t i = 0; i < p->modules.count; i++) {
            const nb_module *m = &p->modules.items[i];
            if (!nb_kind_nvfp4(m->kind) && m->kind != NB_KIND_MXFP4 && m->kind != NB_KIND_FP8) continue;
            if (!matches(&cfg, p->opt->dequant[k], m)) continue;
            any = p->bf16[i] = true;
        }
        if (any) continue;
        nb_fail(err, NB_ERR_ARGUMENT, "no quantised linear matches --dequant '%s'", p->opt->dequant[k]);
        nb_error_remedy(err, "it is a glob on whole module names: '*.self_attn.*'");
        return NB_ERR_ARGUMENT;
    }
    return NB_OK;
}

static nb_status to_bf16(nb_plan *p, const nb_module *m, nb_error *err)
{
    const nb_tensor_info *w = nb_module_codes(m), *s = nb_module_scale(m), *g = nb_module_global(m);
    uint64_t n, k;
    const nb_edit *scales = s ? nb_plan_edited(p, s) : NULL;
    const bool mended = scales && scales->content == NB_CONTENT_SCALES;
    if (!w || !s || (nb_kind_nvfp4(m->kind) && !g) || w->rank != 2 ||
        (!mended && !nb_module_shape(m, &n, &k)) || (nb_kind_nvfp4(m->kind) && w->shape[1] % 8)) {
        nb_repair_note(&p->refused, "", m->name, -1,
                       "the linear's set is not complete; it cannot be dequantised");
        return NB_OK;
    }
    n = w->shape[0];
    k = w->shape[1] * (m->kind == NB_KIND_FP8 ? 1 : 2);
    if (!nb_kind_nvfp4(m->kind)) {
        nb_linear_src src;
        nb_status st = nb_linear_describe(p->ckpt, m->name, 0, 0, &src, err);
        if (st != NB_OK) return st;
    }
    for (int i = 0; i < NB_MEMBER_COUNT; i++) {
        const nb_tensor_info *t = m->member[i];
        if (!t || i == NB_MEMBER_BIAS || t == w || !nb_module_uses(m, (nb_member)i)) continue;
        nb_edit *e = nb_plan_edit(p, t);
        if (!e) return nb_fail_nomem(err, "a plan", sizeof *e);
        e->removed = true;
    }
    nb_edit *e = nb_plan_edit(p, w);
    nb_buf name = {0};
    nb_buf_addf(&name, "%s.weight", m->name);
    if (!e || !nb_buf_ok(&name)) {
        nb_buf_free(&name);
        return nb_fail_nomem(err, "a plan", sizeof *e);
    }
    free(e->name);
    e->name = name.data;
    e->content = NB_CONTENT_BF16;
    e->module = m;
    e->dtype = NB_DT_BF16;
    e->rank = 2;
    e->own[0] = n;
    e->own[1] = k;
    e->shape = e->own;
    p->fix_ignore = true;
    /* Half a unit in the last place of BF16's 8 bits. */
    nb_repair_note(&p->applied, "", m->name, 0x1p-9,
                   "dequantised to BF16, and named in the config's ignore list");
    return NB_OK;
}

nb_status nb_plan_dequantise(nb_plan *p, nb_error *err)
{
    nb_status st = NB_OK;
    for (size_t i = 0; i < p->modules.count && st == NB_OK; i++) {
        if (p->bf16[i]) st = to_bf16(p, &p->modules.items[i], err);
    }
    return st;
}

/* The finding that doubts or misses the module's input scale; NULL: none. name is scratch. */
static const nb_finding *doubt(const nb_plan *p, const nb_module *m, nb_buf *name)
{
    uint32_t i;
    nb_buf_clear(name);
    nb_buf_addf(name, "%s%s", m->name,
                nb_member_suffix(m->kind == NB_KIND_NVFP4_CT ? NB_MEMBER_INPUT_GLOBAL : NB_MEMBER_INPUT));
    if (!nb_buf_ok(name) || !nb_map_get(&p->suspects, name->data, name->len, &i)) return NULL;
    return &p->check->findings.items[i];
}

/* True when --only narrows measured scales to those that a finding doubts: it names such a rule. Not NB111, which the measuring
 * itself is the mending of. */
static bool narrowed(const nb_plan *p)
{
    static const char *const rules[] = {"NB104", "NB105", "NB106", "NB108"};
    bool any = false;
    for (size_t k = 0; p->opt->n_only && k < sizeof rules / sizeof *rules; k++)
        any = any || nb_plan_chosen(p, rules[k]);
    return any && !nb_plan_chosen(p, "NB111");
}

static nb_status set_input(nb_plan *p, const nb_module *m, const char *rule, float amax, nb_error *err)
{
    const bool ct = m->kind == NB_KIND_NVFP4_CT;
    const nb_tensor_info *t = nb_module_input(m);
    nb_input_scale scale;
    if (amax == 0 || !nb_input_scale_of(amax, &scale) || !nb_repair_usable(scale.multiplier)) {
        nb_repair_note(&p->refused, rule, t ? t->name : m->name, -1,
                       "measured no activation: its input was always zero, or no token reached it");
        return NB_OK;
    }
    p->measured[m - p->modules.items] = true;
    nb_repair_note(&p->applied, rule, t ? t->name : m->name, -1, "input scale set to the measured maximum");
    if (t) return nb_plan_set_value(p, t, ct ? scale.gs : scale.multiplier, err);
    nb_edit *e = nb_plan_new(p, m, nb_member_suffix(ct ? NB_MEMBER_INPUT_GLOBAL : NB_MEMBER_INPUT),
                             nb_module_codes(m));
    if (!e) return nb_fail_nomem(err, "a plan", sizeof *e);
    e->content = NB_CONTENT_VALUE;
    e->dtype = NB_DT_F32;
    e->rank = ct;
    e->own[0] = 1;
    e->value = ct ? scale.gs : scale.multiplier;
    return NB_OK;
}

/* The module's measured maximum; fused siblings have one input, so the largest of theirs. *found: there is one. */
static nb_status largest(const nb_plan *p, const nb_safetensors *f, const nb_module *m, float *out,
                         bool *found, nb_error *err)
{
    const nb_module *group[3];
    *found = false;
    *out = 0;
    for (size_t i = 0, n = nb_plan_siblings(p, m, group); i < n; i++) {
        nb_buf name = {0};
        float v = 0;
        nb_buf_addf(&name, "%s.input_amax", group[i]->name);
        nb_status st = nb_buf_ok(&name) ? NB_OK : nb_fail_nomem(err, "a tensor's name", name.len);
        const nb_tensor_info *t = st == NB_OK ? nb_safetensors_find(f, nb_buf_str(&name)) : NULL;
        nb_buf_free(&name);
        if (st != NB_OK) return st;
        if (!t) continue;
        if (t->dtype != NB_DT_F32 || nb_tensor_elements(t) != 1)
            st = nb_fail(err, NB_ERR_FORMAT, "expected one F32");
        else
            st = nb_safetensors_read(f, t, 0, &v, sizeof v, err);
        if (st == NB_OK && !(v >= 0 && v < INFINITY))
            st = nb_fail(err, NB_ERR_FORMAT, "a measured maximum must be a finite number, not %g", (double)v);
        if (st != NB_OK) {
            nb_error_at(err, nb_safetensors_file(f)->path, t->name, (int64_t)t->begin);
            return st;
        }
        *found = true;
        *out = fmaxf(*out, v);
    }
    return NB_OK;
}

nb_status nb_plan_input_scales(nb_plan *p, const char *file, nb_error *err)
{
    nb_safetensors *f = NULL;
    nb_buf name = {0};
    const bool narrow = narrowed(p);
    bool any = false, set = false;
    nb_status st = nb_safetensors_open(file, &f, err);
    for (size_t i = 0; i < p->modules.count && st == NB_OK; i++) {
        const nb_module *m = &p->modules.items[i];
        float amax;
        bool found;
        if (!nb_kind_nvfp4(m->kind) || !nb_module_codes(m) || nb_plan_dequantised(p, m)) continue;
        st = largest(p, f, m, &amax, &found, err);
        any = any || found;
        const nb_finding *why = doubt(p, m, &name);
        if (st != NB_OK || !found || (narrow && !(why && nb_plan_chosen(p, why->rule)))) continue;
        st = set_input(p, m, why ? why->rule : "", amax, err);
        set = true;
    }
    nb_safetensors_close(f);
    if (!nb_buf_ok(&name) && st == NB_OK) st = nb_fail_nomem(err, "a tensor's name", name.len);
    nb_buf_free(&name);
    if (st == NB_OK && !any) {
        nb_fail(err, NB_ERR_ARGUMENT, "the file has no MODULE.input_amax of any NVFP4 linear of this model");
        nb_error_at(err, file, NULL, -1);
        nb_error_remedy(err, "make it with `nibble calibrate` from this very model");
        st = NB_ERR_ARGUMENT;
    }
    if (st == NB_OK && !set)
        nb_repair_note(
            &p->refused, "", NULL, -1,
            "measured scales were not written: no finding of the rules that --only names is about an input "
            "scale; leave --only out, or add NB111 to it");
    return st;
}
