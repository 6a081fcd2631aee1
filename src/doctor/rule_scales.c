/* NB101, NB102, NB113: single bytes of the block scales that are NaN, negative, or zero where they must not be. */
#include "doctor/rule_values.h"

#define E(cls, text) ((nb_effect){NB_EFFECT_##cls, text})

static void report_nan(const nb_check *c, const nb_module *m, const nb_mark *k, nb_findings *out)
{
    const nb_tensor_info *t = nb_module_scale(m);
    size_t i = nb_value_finding(c, out, "NB101", NB_SEVERITY_ERROR, t, k->first, k->first + 1,
                                nb_is_expert(m->name) ? "block scales of an expert are NaN"
                                                      : "block scales are NaN");
    nb_findings_measured(out, i, "%llu of %llu bytes are 0x7F or 0xFF", (unsigned long long)k->count,
                         (unsigned long long)nb_tensor_elements(t));
    nb_findings_expected(out, i, "0x00 to 0x7E: 448 is the largest value of E4M3");
    nb_findings_remedy(out, i, true,
                       "set them to 0x7E: a quantiser that did not saturate turned values above 448 to NaN");
    if (nb_is_expert(m->name))
        nb_value_effects(out, i, E(PROMPT, "NaN in every token that is routed to this expert"),
                         E(PROMPT, "NaN in every token that is routed to this expert"), E(FINE, NULL));
    else
        nb_value_effects(out, i, E(NAN, "the output rows of these blocks are NaN for every token"),
                         E(NAN, "the output rows of these blocks are NaN for every token"), E(FINE, NULL));
}

static void report_sign(const nb_check *c, const nb_module *m, const nb_mark *k, nb_findings *out)
{
    const nb_tensor_info *t = nb_module_scale(m);
    size_t i = nb_value_finding(c, out, "NB102", NB_SEVERITY_ERROR, t, k->first, k->first + 1,
                                "block scales have the sign bit set");
    nb_findings_measured(out, i, "%llu of %llu bytes are 0x80 to 0xFE", (unsigned long long)k->count,
                         (unsigned long long)nb_tensor_elements(t));
    nb_findings_expected(out, i, "0x00 to 0x7E: the codes carry the sign");
    nb_findings_remedy(out, i, true,
                       "clear the bit, and flip the sign of the block's codes if the exporter meant it");
    nb_value_effects(out, i, E(FINE, NULL), E(WRONG, "the block's weights change their sign"),
                     E(WRONG, "scales are kept without sign (S0E5M3): the byte decodes to another number"));
}

static void report_e8m0(const nb_check *c, const nb_module *m, const nb_block_values *v, nb_findings *out)
{
    const nb_tensor_info *t = nb_module_scale(m);
    const bool nan = v->nan.count != 0, expert = nb_is_expert(m->name) || m->kind == NB_KIND_MXFP4_BLOCKS;
    const nb_mark *k = nan ? &v->nan : &v->zero;
    size_t i =
        nb_value_finding(c, out, "NB113", NB_SEVERITY_ERROR, t, k->first, k->first + 1,
                         nan ? "E8M0 scales are NaN" : "E8M0 scales are 2^-127 over codes that are not zero");
    nb_findings_measured(out, i, "%llu of %llu bytes are 0x%s", (unsigned long long)k->count,
                         (unsigned long long)nb_tensor_elements(t), nan ? "FF" : "00");
    nb_findings_expected(
        out, i, nan ? "0x00 to 0xFE: powers of two" : "about 0x70 to 0x80; 0x00 under zero codes only");
    nb_findings_remedy(out, i, false, "export this tensor again");
    const nb_effect e = !nan     ? E(WRONG, "the block's weights vanish")
                        : expert ? E(PROMPT, "NaN in every token that is routed to this expert")
                                 : E(NAN, "the output rows of these blocks are NaN for every token");
    nb_value_effects(out, i, e, e, e);
}

nb_status nb_rule_scale_bytes(const nb_check *c, nb_findings *out, nb_error *err)
{
    for (size_t i = 0; i < c->modules.count; i++) {
        const nb_module *m = &c->modules.items[i];
        const nb_block_values *v = &c->scan.modules[i];
        if (!nb_kind_nvfp4(m->kind)) {
            if (v->nan.count || v->zero.count) report_e8m0(c, m, v, out);
            continue;
        }
        if (v->nan.count) report_nan(c, m, &v->nan, out);
        if (v->sign.count) report_sign(c, m, &v->sign, out);
    }
    return NB_OK;
}
