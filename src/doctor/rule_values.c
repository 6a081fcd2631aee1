/* The small questions that several rules about values ask. */
#include "doctor/rule_values.h"

#include <float.h>
#include <math.h>
#include <string.h>

const char *const nb_fused[][NB_MAX_FUSED] = {
    {"q_proj", "k_proj", "v_proj"},
    {"gate_proj", "up_proj"},
    {"w1", "w3"},
    {"wgate", "up_proj"},
    {"wq_a", "wkv"},
    {"q_a_proj", "kv_proj"},
    {"q_a_proj", "kv_a_proj_with_mqa"},
};
const size_t nb_fused_count = sizeof nb_fused / sizeof *nb_fused;

bool nb_nearly(double a, double b)
{
    return fabs(a - b) <= NB_SCALE_ULPS * fmax(fabs(a), fabs(b));
}

bool nb_is_expert(const char *module)
{
    for (const char *p = strstr(module, "experts."); p; p = strstr(p + 1, "experts.")) {
        const size_t digits = strspn(p + 8, "0123456789");
        if ((p == module || p[-1] == '.') && digits && p[8 + digits] == '.') return true;
    }
    return false;
}

bool nb_scale_usable(float v)
{
    return isfinite(v) && v >= FLT_MIN;
}

const char *nb_last_part(const char *module)
{
    const char *dot = strrchr(module, '.');
    return dot ? dot + 1 : module;
}

size_t nb_value_finding(const nb_check *c, nb_findings *out, const char *rule, nb_severity severity,
                        const nb_tensor_info *t, uint64_t begin, uint64_t end, const char *message)
{
    const size_t i = nb_findings_add(out, rule, severity, "%s", message);
    nb_findings_tensor(out, i, t->name);
    nb_findings_file(out, i, nb_check_file_of(c, t));
    nb_findings_bytes(out, i, t->begin + begin, t->begin + end);
    return i;
}

void nb_value_effects(nb_findings *out, size_t i, nb_effect w4a4, nb_effect w4a16, nb_effect marlin)
{
    const nb_effect all[NB_FAMILY_COUNT] = {w4a4, w4a16, marlin, {NB_EFFECT_FINE, NULL}};
    nb_findings_effects(out, i, all);
}
