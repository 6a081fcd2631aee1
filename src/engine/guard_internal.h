/* What the guard's ladder (guard.c) and its words (guard_cause.c) share. */
#ifndef NB_ENGINE_GUARD_INTERNAL_H
#define NB_ENGINE_GUARD_INTERNAL_H

#include "engine/guard.h"

/* The first operator of a row that is not finite. */
typedef struct nb_culprit {
    const char *op; /* NULL: none */
    int layer;
    const nb_linear *linear; /* NULL unless a linear */
    const nb_tensor *param[3];
    uint32_t token; /* of the row */
} nb_culprit;

/* What is known of a linear that was a culprit once, and its weight in other forms. */
typedef struct nb_patient {
    const nb_linear *linear;
    nb_linear_src src; /* as loaded; its scale_map is set to clean below when there are NaN bytes */
    size_t nan_bytes;  /* among its block scales */
    int64_t bad_row;   /* of the weight, beyond what clean mends: it holds a value that is not finite; -1 */
    uint8_t clean[256];
    nb_weight *cleaned, *bf16; /* made when first needed */
    struct nb_patient *next;
} nb_patient;

/* The stored form of a linear of the model at a layer. */
const nb_linear_src *nb_guard_source(const nb_model *m, const nb_linear *l, int layer);
/* Fills p's counts by a look at every value of the weight. */
nb_status nb_guard_examine(const nb_model *m, nb_patient *p, nb_error *err);
/* Writes the error of a culprit that cannot be healed: NB_ERR_FORMAT. p is its patient when it is a linear. tried: rungs, or "". */
nb_status nb_guard_name(const nb_model *m, const nb_culprit *c, const nb_patient *p, const char *tried,
                        nb_error *err);

#endif
