/* Findings of one cause as one: same rule and severity, and the same message and effects but for the numbers in them. The reports
 * for people are made of groups. */
#ifndef NB_DOCTOR_GROUPS_H
#define NB_DOCTOR_GROUPS_H

#include "base/buf.h"
#include "doctor/check.h"

typedef struct nb_groups {
    const nb_findings *l; /* borrowed */
    uint32_t *next;       /* [count]: the group's next finding, UINT32_MAX at its end */
    bool *first;          /* [count]: a group begins here */
} nb_groups;              /* zero-initialise; nb_groups_free */

/* False: out of memory. */
bool nb_groups_make(const nb_findings *l, nb_groups *out);
void nb_groups_free(nb_groups *g);

typedef enum nb_field {
    NB_FIELD_FILE,
    NB_FIELD_MEASURED,
    NB_FIELD_EXPECTED,
    NB_FIELD_REMEDY,
    NB_FIELD_MESSAGE,
} nb_field;
/* Appends the field that the group's findings have in common: where they differ in numbers only, each number as "least..greatest";
 * where they differ in words, "for example: " and the first finding's. False, and nothing appended: the first has none. */
bool nb_group_field(const nb_groups *g, uint32_t first, nb_field field, nb_buf *out);
/* What `repair` can do about the group in folder dir, with the command. */
void nb_group_repair(const nb_groups *g, uint32_t first, const char *dir, nb_buf *out);
/* The names of all its tensors, folded as nb_fold_names does. False: out of memory. */
bool nb_group_names(const nb_groups *g, uint32_t first,
                    void (*line)(void *ctx, const char *text, size_t count), void *ctx);
/* What the families of kernels make of a finding; those that agree are told once, as "w4a16, marlin". */
void nb_effects_each(const nb_finding *f,
                     void (*each)(void *ctx, const char *families, const char *text, nb_effect_class cls),
                     void *ctx);
/* "2 errors, 1 note in 880 tensors of 1 file (6.5 MB, deepseek_v4)" */
void nb_report_summary(const nb_check_result *r, nb_buf *out);

#endif
