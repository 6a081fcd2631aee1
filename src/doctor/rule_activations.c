/* NB111: stored input scales against activations that were measured. Only where `check` was given texts; the numbers are made in
 * activations.c. */
#include <string.h>

#include "doctor/rule_values.h"
#include "numerics/nvfp4.h"

#define E(cls, text) ((nb_effect){NB_EFFECT_##cls, text})

static void report(const nb_check *c, const nb_activation *a, const nb_tensor_info *t, bool ct,
                   nb_findings *out)
{
    const bool small = a->saturated > 0;
    const double right = a->amax / (double)NB_NVFP4_RANGE;
    size_t i =
        nb_value_finding(c, out, "NB111", NB_SEVERITY_ERROR, t, 0, t->end - t->begin,
                         small ? "the input scale is too small for these texts: activations are clipped"
                               : "the input scale is too large for these texts: activations vanish");
    nb_findings_measured(
        out, i,
        "stands for activations up to %.4g, the largest of %llu rows is %.4g: %.3g %% of the blocks "
        "saturate, %.3g %% of the values become zero; output at %.1f dB (cosine %.4f), where "
        "each row's own scale gives %.1f dB",
        a->multiplier * (double)NB_NVFP4_RANGE, (unsigned long long)a->rows, a->amax, 100 * a->saturated,
        100 * a->flushed, a->snr_db, a->cos, a->best_db);
    nb_findings_expected(out, i, "%.6g, %s", ct ? 1 / right : right, ct ? "2688 / amax" : "amax / 2688");
    nb_findings_remedy(out, i, false,
                       "write the measured scales (nibble repair --data F), or keep the linear in BF16 "
                       "(nibble repair --dequant)");
    nb_value_effects(
        out, i,
        small          ? E(CLIPPED, "what is larger than the scale stands for is clipped: finite, too small")
        : a->cos < .01 ? E(ZERO, "every activation becomes zero")
                       : E(WRONG, "blocks of small activations become zero"),
        E(FINE, "input scales are not read"), E(FINE, "input scales are not read"));
}

static void report_unmeasured(const nb_check *c, nb_findings *out)
{
    const nb_error *why = &c->activations.why;
    size_t i = nb_findings_add(out, "NB111", NB_SEVERITY_WARNING,
                               "the model could not be run, so its input scales were not judged");
    if (why->tensor[0]) nb_findings_tensor(out, i, why->tensor);
    nb_findings_measured(out, i, "%s", why->cause);
    nb_findings_expected(out, i, "a model that nibble can run");
    nb_findings_remedy(out, i, false, "%s",
                       why->remedy[0] ? why->remedy : "mend what the other findings say, then check again");
}

/* Input scales of linears that no text reached: nothing is said of them, which is worth knowing. */
static nb_status report_unseen(const nb_check *c, const nb_map *seen, nb_findings *out)
{
    size_t i = SIZE_MAX, n = 0;
    for (size_t k = 0; k < c->modules.count && !out->bad; k++) {
        const nb_module *m = &c->modules.items[k];
        const nb_block_values *v = &c->scan.modules[k];
        if (!nb_kind_nvfp4(m->kind) || !v->has_input || !nb_scale_usable(v->input)) continue;
        if (nb_map_get(seen, m->name, strlen(m->name), NULL) || nb_tensor_skipped(c, nb_module_input(m)))
            continue;
        if (!n++)
            i = nb_findings_add(out, "NB111", NB_SEVERITY_NOTE,
                                "no text reached these linears: their input scales were not judged");
        nb_findings_tensor(out, i, nb_module_input(m)->name);
    }
    if (!n) return NB_OK;
    nb_findings_measured(out, i, "%zu linears without a row in %zu tokens", n, c->activations.tokens);
    nb_findings_expected(out, i, "at least one token routed to every expert");
    nb_findings_remedy(out, i, false, "give more text with --data");
    return NB_OK;
}

nb_status nb_rule_activations(const nb_check *c, nb_findings *out, nb_error *err)
{
    const nb_activations *a = &c->activations;
    nb_map seen = {0};
    nb_status s = NB_OK;
    if (!a->asked) return NB_OK;
    if (a->why.status != NB_OK) {
        report_unmeasured(c, out);
        return NB_OK;
    }
    for (size_t i = 0; i < a->n && s == NB_OK; i++) {
        const nb_module *m = nb_modules_find(&c->modules, a->items[i].module);
        const nb_tensor_info *t = m ? nb_module_input(m) : NULL;
        if (t && a->items[i].bad) report(c, &a->items[i], t, m->kind == NB_KIND_NVFP4_CT, out);
        if (!nb_map_put(&seen, a->items[i].module, strlen(a->items[i].module), 0, NULL))
            s = nb_fail_nomem(err, "the linears that texts reached", 0);
    }
    if (s == NB_OK) s = report_unseen(c, &seen, out);
    nb_map_free(&seen);
    return s;
}
