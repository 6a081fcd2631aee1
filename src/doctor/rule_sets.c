/* NB003: a quantised linear whose set of tensors is not whole. */
#include <string.h>

#include "base/buf.h"
#include "doctor/rules.h"

static const nb_effect effects[NB_FAMILY_COUNT] = {
    {NB_EFFECT_UNDEFINED, "vLLM's parameter keeps uninitialised memory"},
    {NB_EFFECT_UNDEFINED,
     "the linear cannot be dequantised; a loader that does not check computes with whatever is there"},
    {NB_EFFECT_UNDEFINED, "vLLM's parameter keeps uninitialised memory"},
    {NB_EFFECT_REFUSED, "no GGUF can be made of it"},
};

static const char *role_of(nb_member m)
{
    switch (m) {
    case NB_MEMBER_PACKED:
    case NB_MEMBER_WEIGHT:
    case NB_MEMBER_BLOCKS: return "codes";
    case NB_MEMBER_GLOBAL:
    case NB_MEMBER_SCALE_2: return "weight global scale";
    default: return "scales";
    }
}

/* What an absent member should be, told from the members that are there. */
static void describe_absent(const nb_module *m, nb_member member, nb_buf *b)
{
    const nb_tensor_info *w = nb_module_codes(m), *s = nb_module_scale(m);
    const unsigned group = nb_kind_group(m->kind);
    const bool whole = w && w->rank == 2 && group && w->shape[1] <= UINT64_MAX / 2;
    const char *dtype = nb_kind_nvfp4(m->kind)   ? "F8_E4M3"
                        : m->kind == NB_KIND_FP8 ? "F32, BF16 or F8_E8M0"
                                                 : "F8_E8M0 or U8";
    nb_buf_addf(b, "%s%s: ", b->len ? "; " : "", nb_member_suffix(member) + 1);
    switch (member) {
    case NB_MEMBER_GLOBAL: nb_buf_adds(b, "F32 [1], a divisor"); break;
    case NB_MEMBER_SCALE_2: nb_buf_adds(b, "F32 [], a multiplier"); break;
    case NB_MEMBER_PACKED:
    case NB_MEMBER_WEIGHT:
    case NB_MEMBER_BLOCKS:
        nb_buf_adds(b, m->kind == NB_KIND_FP8 ? "F8_E4M3" : "U8");
        if (s && s->rank == 2 && group && s->shape[1] <= UINT64_MAX / group)
            nb_buf_addf(b, " [%llu, %llu]", (unsigned long long)s->shape[0],
                        (unsigned long long)(s->shape[1] * group / 2));
        break;
    default:
        nb_buf_adds(b, dtype);
        if (whole)
            nb_buf_addf(b, " [%llu, %llu]", (unsigned long long)w->shape[0],
                        (unsigned long long)(w->shape[1] * 2 / group));
        break;
    }
}

static void describe_present(const nb_module *m, nb_buf *b)
{
    char shape[96];
    for (int k = 0; k < NB_MEMBER_COUNT; k++) {
        const nb_tensor_info *t = m->member[k];
        if (t && k != NB_MEMBER_BIAS)
            nb_buf_addf(b, "%s%s %s %s", b->len ? ", " : "beside it ", nb_member_suffix((nb_member)k) + 1,
                        nb_dtype_name(t->dtype), nb_tensor_shape_text(t, shape, sizeof shape));
    }
}

/* Which file would hold it: that of the module's first member. */
static const char *file_of(const nb_check *c, const nb_module *m)
{
    for (int k = 0; k < NB_MEMBER_COUNT; k++) {
        if (m->member[k]) return nb_check_file_of(c, m->member[k]);
    }
    return NULL;
}

/* One finding for a module that lacks n members. */
static void report(const nb_check *c, const nb_module *m, const nb_member *missing, size_t n,
                   nb_findings *out)
{
    nb_buf roles = {0}, name = {0}, expected = {0}, present = {0};
    const char *unlisted = NULL;
    for (size_t i = 0; i < n; i++) {
        nb_buf_addf(&roles, "%s its %s", i ? " and" : "", role_of(missing[i]));
        describe_absent(m, missing[i], &expected);
    }
    describe_present(m, &present);
    size_t f = nb_findings_add(out, "NB003", NB_SEVERITY_ERROR, "a linear in %s lacks%s",
                               nb_kind_name(m->kind), nb_buf_str(&roles));
    for (size_t i = 0; i < n; i++) {
        nb_buf_clear(&name);
        nb_buf_addf(&name, "%s%s", m->name, nb_member_suffix(missing[i]));
        nb_findings_tensor(out, f, nb_buf_str(&name));
        const nb_tensor_info *t = nb_ckpt_unlisted(c->ckpt, nb_buf_str(&name));
        if (t) unlisted = nb_check_file_of(c, t);
    }
    nb_findings_file(out, f, file_of(c, m));
    nb_findings_measured(out, f, "%s", nb_buf_str(&present));
    nb_findings_expected(out, f, "%s", nb_buf_str(&expected));
    if (unlisted)
        nb_findings_remedy(out, f, true, "%s has it, the index does not name it: add it to weight_map",
                           unlisted);
    else if (m->member[NB_MEMBER_DOT_SCALE] && !nb_module_uses(m, NB_MEMBER_DOT_SCALE))
        nb_findings_remedy(out, f, true, "rename .scale to .weight_scale");
    else
        nb_findings_remedy(out, f, false, "download the shard again, or export this layer again");
    nb_findings_effects(out, f, effects);
    out->bad =
        out->bad || !nb_buf_ok(&roles) || !nb_buf_ok(&name) || !nb_buf_ok(&expected) || !nb_buf_ok(&present);
    nb_buf_free(&roles);
    nb_buf_free(&name);
    nb_buf_free(&expected);
    nb_buf_free(&present);
}

nb_status nb_rule_sets(const nb_check *c, nb_findings *out, nb_error *err)
{
    nb_buf name = {0};
    for (size_t i = 0; i < c->modules.count && nb_buf_ok(&name); i++) {
        const nb_module *m = &c->modules.items[i];
        nb_member missing[3], news[3];
        size_t n = nb_module_missing(&c->modules, m, missing), kept = 0;
        for (size_t k = 0; k < n; k++) {
            nb_buf_clear(&name);
            nb_buf_addf(&name, "%s%s", m->name, nb_member_suffix(missing[k]));
            if (nb_check_absent(c, nb_buf_str(&name))) news[kept++] = missing[k];
        }
        if (kept) report(c, m, news, kept, out);
    }
    const bool ok = nb_buf_ok(&name);
    nb_buf_free(&name);
    return ok ? NB_OK : nb_fail_nomem(err, "a tensor's name", 0);
}
