/* The rules, one file each or one a family, for the table in rules.c. What a rule does is told in its explain text there. */
#ifndef NB_DOCTOR_RULES_H
#define NB_DOCTOR_RULES_H

#include "doctor/check.h"

/* What opening a folder reports (NB001, NB002, NB008, NB200), as findings. */
typedef struct nb_container {
    const char *dir; /* borrowed */
    nb_findings found;
    bool blind; /* some shard could not be read */
} nb_container;
/* An nb_problem_fn; ctx is an nb_container. */
void nb_container_problem(void *ctx, nb_problem_kind kind, const nb_error *what);

/* True for tensors of parts that these rules leave alone: drafting (MTP) layers, vision and audio towers, rotary tables. */
bool nb_tensor_skipped(const nb_check *c, const nb_tensor_info *t);

nb_status nb_rule_not_data(const nb_check *c, nb_findings *out,
                           nb_error *err); /* NB008 of the files beside the shards */
nb_status nb_rule_strays(const nb_check *c, nb_findings *out,
                         nb_error *err); /* NB002 of files beside the shards */
nb_status nb_rule_sets(const nb_check *c, nb_findings *out, nb_error *err);    /* NB003 */
nb_status nb_rule_shapes(const nb_check *c, nb_findings *out, nb_error *err);  /* NB004 */
nb_status nb_rule_swizzle(const nb_check *c, nb_findings *out, nb_error *err); /* NB004 that no shape shows */
nb_status nb_rule_experts(const nb_check *c, nb_findings *out, nb_error *err); /* NB005 */
nb_status nb_rule_names(const nb_check *c, nb_findings *out, nb_error *err);   /* NB006 */
nb_status nb_rule_arch(const nb_check *c, nb_findings *out, nb_error *err);    /* NB007 */
nb_status nb_rule_drafts(const nb_check *c, nb_findings *out,
                         nb_error *err); /* NB007 of blocks called mtp.N; needs the table */
nb_status nb_rule_config_known(const nb_check *c, nb_findings *out, nb_error *err); /* NB200 */
nb_status nb_rule_config_keys(const nb_check *c, nb_findings *out, nb_error *err);  /* NB212 */

nb_status nb_rule_scale_bytes(const nb_check *c, nb_findings *out, nb_error *err); /* NB101, NB102, NB113 */
nb_status nb_rule_globals(const nb_check *c, nb_findings *out, nb_error *err);     /* NB103, NB104 */
nb_status nb_rule_inputs(const nb_check *c, nb_findings *out,
                         nb_error *err); /* NB105, NB106 of inputs, NB108, NB211 */
nb_status nb_rule_blocks(const nb_check *c, nb_findings *out,
                         nb_error *err); /* NB106 of weights, NB109, NB110 */
nb_status nb_rule_clipped(const nb_check *c, nb_findings *out, nb_error *err); /* NB114 */
nb_status nb_rule_columns(const nb_check *c, nb_findings *out,
                          nb_error *err); /* NB110 of the order in a byte */
nb_status nb_rule_integers(const nb_check *c, nb_findings *out,
                           nb_error *err); /* NB110 of integers as codes */
nb_status nb_rule_quant_method(const nb_check *c, nb_findings *out, nb_error *err);  /* NB201 */
nb_status nb_rule_ignore(const nb_check *c, nb_findings *out, nb_error *err);        /* NB202 */
nb_status nb_rule_scheme(const nb_check *c, nb_findings *out, nb_error *err);        /* NB203 */
nb_status nb_rule_overlap(const nb_check *c, nb_findings *out, nb_error *err);       /* NB204 */
nb_status nb_rule_tied(const nb_check *c, nb_findings *out, nb_error *err);          /* NB205 */
nb_status nb_rule_parallel(const nb_check *c, nb_findings *out, nb_error *err);      /* NB206 */
nb_status nb_rule_draft_config(const nb_check *c, nb_findings *out, nb_error *err);  /* NB207 */
nb_status nb_rule_kv(const nb_check *c, nb_findings *out, nb_error *err);            /* NB208 */
nb_status nb_rule_configs_agree(const nb_check *c, nb_findings *out, nb_error *err); /* NB209 */
nb_status nb_rule_tokenizer(const nb_check *c, nb_findings *out, nb_error *err);     /* NB210 */
nb_status nb_rule_activations(const nb_check *c, nb_findings *out, nb_error *err);   /* NB111 */
/* The part of NB210 that a tokenizer tells. vocab: vocab_size or 0; generation, config: generation_config.json and
 * tokenizer_config.json, NULL where absent. */
nb_status nb_judge_tokens(const nb_check *c, int64_t vocab, const json_t *generation, const json_t *config,
                          nb_findings *out, nb_error *err);
nb_status nb_rule_siblings(const nb_check *c, nb_findings *out, nb_error *err); /* NB107 */
nb_status nb_rule_floats(const nb_check *c, nb_findings *out, nb_error *err);   /* NB112, NB008 of reading */

/* Kinds of tensors that a drafting block may lack and still be judged as a layer. */
#define NB_DRAFT_ABSENT 2
/* What becomes of a model whose drafting block lacks a tensor. */
extern const nb_effect nb_draft_effects[NB_FAMILY_COUNT];

#endif
