/* NB103 and NB104: global scales that are no usable number. What comes of it depends on the flavour (a divisor of zero is a
 * multiplier of infinity) and, for inputs, on the kernel: specs/nvfp4.md §2.4. */
#include <math.h>
#include <stdlib.h>

#include "doctor/rule_values.h"

#define E(cls, text) ((nb_effect){NB_EFFECT_##cls, text})

typedef enum fault {
    FAULT_NONE,
    FAULT_ZERO,
    FAULT_NEGATIVE,
    FAULT_INFINITE,
    FAULT_NAN,
    FAULT_DENORMAL
} fault;

static fault fault_of(float v)
{
    if (isnan(v)) return FAULT_NAN;
    if (v == 0) return FAULT_ZERO;
    if (v < 0) return FAULT_NEGATIVE;
    if (isinf(v)) return FAULT_INFINITE;
    return nb_scale_usable(v) ? FAULT_NONE : FAULT_DENORMAL;
}

static const char *const words[] = {"",         "zero", "negative",
                                    "infinite", "NaN",  "denormal: its reciprocal overflows"};

static void report_weight(const nb_check *c, const nb_module *m, float v, fault f, nb_findings *out)
{
    const bool ct = m->kind == NB_KIND_NVFP4_CT, expert = nb_is_expert(m->name);
    /* What the multiplier is: infinite or NaN gives NaN, zero gives zero. */
    const bool zero = ct ? f == FAULT_INFINITE : f == FAULT_ZERO || f == FAULT_DENORMAL;
    const nb_tensor_info *t = nb_module_global(m);
    size_t i = nb_findings_add(out, "NB103", NB_SEVERITY_ERROR, "the weight's global scale is %s", words[f]);
    nb_findings_tensor(out, i, t->name);
    nb_findings_file(out, i, nb_check_file_of(c, t));
    nb_findings_bytes(out, i, t->begin, t->end);
    nb_findings_measured(out, i, "%g, a %s", (double)v, ct ? "divisor" : "multiplier");
    nb_findings_expected(out, i,
                         ct ? "2688 / amax of the weight: about 1e2 to 1e6"
                            : "amax of the weight / 2688: about 1e-6 to 1e-2");
    nb_findings_remedy(out, i, expert,
                       expert ? "take the maximum of the layer's other experts, or export this expert again"
                              : "export this linear again");
    nb_effect e = f == FAULT_NEGATIVE ? E(WRONG, "the linear's output changes its sign")
                  : zero
                      ? expert ? E(WRONG, "the expert gives nothing") : E(ZERO, "the linear's output is zero")
                  : expert ? E(PROMPT, "NaN in every token that is routed to this expert")
                           : E(NAN, "infinity or NaN in every output, for every token");
    nb_value_effects(out, i, e, e, f == FAULT_DENORMAL ? E(FINE, NULL) : e);
}

static nb_effect input_effect(bool ct, fault f)
{
    static const char prompt[] =
        "the kernel's factor is infinite: blocks with values come out as zero, a block of "
        "zeros gives a NaN scale and NaN in its row: for some prompts only";
    switch (f) {
    case FAULT_NAN: return E(NAN, "every scale of the activations is NaN");
    case FAULT_DENORMAL: return ct ? E(ZERO, "every activation is flushed to zero") : E(PROMPT, prompt);
    case FAULT_ZERO:
        return ct ? E(NAN, "activations become zero and are multiplied by infinity") : E(PROMPT, prompt);
    case FAULT_INFINITE:
        return ct ? E(PROMPT, prompt) : E(NAN, "activations become zero and are multiplied by infinity");
    default: return E(FINE, NULL); /* of a negative scale nothing is proved */
    }
}

static void report_input(const nb_check *c, const nb_module *m, float v, fault f, nb_findings *out)
{
    const bool ct = m->kind == NB_KIND_NVFP4_CT, expert = nb_is_expert(m->name);
    const nb_tensor_info *t = nb_module_input(m);
    size_t i = nb_findings_add(out, "NB104", NB_SEVERITY_ERROR, "the input scale is %s", words[f]);
    nb_findings_tensor(out, i, t->name);
    nb_findings_file(out, i, nb_check_file_of(c, t));
    nb_findings_bytes(out, i, t->begin, t->end);
    nb_findings_measured(out, i, "%g, a %s", (double)v, ct ? "divisor" : "multiplier");
    nb_findings_expected(out, i,
                         ct ? "2688 / amax of the input: about 1 to 1e5"
                            : "amax of the input / 2688: about 1e-5 to 1");
    nb_findings_remedy(out, i, expert,
                       expert ? "take the maximum of the layer's other experts, or measure: nibble calibrate"
                              : "measure it: nibble calibrate, then nibble repair --scales");
    nb_value_effects(out, i, input_effect(ct, f), E(FINE, "input scales are not read"),
                     E(FINE, "input scales are not read"));
}

/* Scales of FP8 weights are tensors of floats: only a NaN or infinity is certainly wrong. */
static void report_fp8(const nb_check *c, const nb_tensor_info *t, const nb_mark *k, nb_findings *out)
{
    const unsigned size = nb_dtype_bits(t->dtype) / 8;
    size_t i = nb_value_finding(c, out, "NB103", NB_SEVERITY_ERROR, t, k->first, k->first + size,
                                "scales of an FP8 weight are NaN or infinite");
    nb_findings_measured(out, i, "%llu of %llu values", (unsigned long long)k->count,
                         (unsigned long long)nb_tensor_elements(t));
    nb_findings_expected(out, i, "finite numbers");
    nb_findings_remedy(out, i, false, "export this linear again");
    const nb_effect e = E(NAN, "NaN in the outputs of these blocks");
    nb_value_effects(out, i, e, e, e);
}

nb_status nb_rule_globals(const nb_check *c, nb_findings *out, nb_error *err)
{
    for (size_t i = 0; i < c->modules.count; i++) {
        const nb_module *m = &c->modules.items[i];
        const nb_block_values *v = &c->scan.modules[i];
        fault f = v->has_weight ? fault_of(v->weight) : FAULT_NONE;
        if (f != FAULT_NONE) report_weight(c, m, v->weight, f, out);
        f = v->has_input ? fault_of(v->input) : FAULT_NONE;
        if (f != FAULT_NONE) report_input(c, m, v->input, f, out);
    }
    for (size_t i = 0; i < nb_ckpt_count(c->ckpt); i++) {
        const nb_tensor_info *t = nb_ckpt_at(c->ckpt, i);
        size_t len;
        const nb_member k = nb_member_of(t->name, &len);
        if (c->scan.bad[i].count && (k == NB_MEMBER_SCALE || k == NB_MEMBER_SCALE_INV))
            report_fp8(c, t, &c->scan.bad[i], out);
    }
    return NB_OK;
}
