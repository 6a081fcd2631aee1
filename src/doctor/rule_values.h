/* What the rules about values share: who is an expert, where a scalar lies, findings that name one tensor. */
#ifndef NB_DOCTOR_RULE_VALUES_H
#define NB_DOCTOR_RULE_VALUES_H

#include "doctor/rules.h"

/* Global scales that differ by rounding alone: a divisor turned to a multiplier and back (vLLM PR 42549). */
#define NB_SCALE_ULPS (4 * 1.2e-7)

bool nb_nearly(double a, double b);
/* True for a linear of one routed expert: its faults show for tokens routed there only. */
bool nb_is_expert(const char *module);
/* Finite, positive, and its reciprocal is finite: not denormal. */
bool nb_scale_usable(float v);
/* The last part of a module's name: "q_proj". */
const char *nb_last_part(const char *module);

/* Last parts of linears that loaders fuse into one; unused places are NULL. */
#define NB_MAX_FUSED 3
extern const char *const nb_fused[][NB_MAX_FUSED];
extern const size_t nb_fused_count;

/* A finding that names t and its bytes [begin, end) within the tensor. */
size_t nb_value_finding(const nb_check *c, nb_findings *out, const char *rule, nb_severity severity,
                        const nb_tensor_info *t, uint64_t begin, uint64_t end, const char *message);
/* Sets what w4a4, w4a16 and marlin make of it; a NULL text claims nothing for that family. */
void nb_value_effects(nb_findings *out, size_t i, nb_effect w4a4, nb_effect w4a16, nb_effect marlin);

#endif
