/*
 * What config.json and hf_quant_config.json claim about each module: its format, whether activations are quantised, whether a
 * list excludes it. The rules compare this with what the tensors are. specs/nvfp4.md §3.3 and §3.4 tell how loaders match names.
 */
#ifndef NB_DOCTOR_QUANT_H
#define NB_DOCTOR_QUANT_H

#include <jansson.h>

#include "doctor/modules.h"

typedef enum nb_quant_method {
    NB_QUANT_NONE, /* no quantization_config and no hf_quant_config.json */
    NB_QUANT_CT,
    NB_QUANT_MODELOPT,
    NB_QUANT_FP8,
    NB_QUANT_MXFP4,
    NB_QUANT_UNKNOWN,
} nb_quant_method;

typedef enum nb_format_claim {
    NB_CLAIM_OPEN, /* nothing that these rules understand */
    NB_CLAIM_NONE, /* excluded, or named by no target */
    NB_CLAIM_NVFP4,
    NB_CLAIM_MXFP4,
    NB_CLAIM_FP8,
    NB_CLAIM_OTHER,
} nb_format_claim;

typedef struct nb_claim {
    nb_format_claim format;
    bool weight_only;
    int32_t entry;        /* of the exclusion list that names it, -1 without */
    int32_t suffix;       /* an entry that would name it, had it the prefix of the tensors; -1 without */
    int32_t group, other; /* config groups that claim it, -1 without; other: a second one in another format */
} nb_claim;

typedef struct nb_name_pattern nb_name_pattern;

typedef struct nb_quant {
    nb_quant_method method;
    const char *method_name;  /* borrowed; NULL: none given */
    const json_t *config;     /* quantization_config, borrowed; NULL: none */
    json_t *hf_root;          /* hf_quant_config.json; NULL: none */
    const json_t *hf;         /* its "quantization" */
    const char *hf_error;     /* the file is there and no JSON */
    const char *algo;         /* ModelOpt's quant_algo, of config.json first; NULL: none */
    nb_name_pattern *entries; /* of the exclusion list */
    size_t n_entries;
    nb_claim *claims; /* [modules.count] */
    struct nb_quant_group *groups;
    size_t n_groups;
} nb_quant;

/* Reads the claims of c's configs about its modules. Fails only when memory runs out. Free *out with nb_quant_free. */
nb_status nb_quant_build(const nb_ckpt *c, const nb_modules *modules, nb_quant *out, nb_error *err);
void nb_quant_free(nb_quant *q);

/* An entry of the exclusion list as written, and whether it names anything that is stored. */
const char *nb_quant_entry(const nb_quant *q, size_t i);
/* Why an entry can name nothing in any loader; NULL: it is well formed. */
const char *nb_quant_entry_broken(const nb_quant *q, size_t i);
bool nb_quant_entry_used(const nb_quant *q, size_t i);
/* Name ("group_0") and weights/input_activations of a config group. */
const char *nb_quant_group_name(const nb_quant *q, size_t i);
const json_t *nb_quant_group_json(const nb_quant *q, size_t i);
/* True when some group or the algorithm claims this format. */
bool nb_quant_says(const nb_quant *q, nb_format_claim format);
const char *nb_format_claim_name(nb_format_claim f); /* "NVFP4" */

#endif
