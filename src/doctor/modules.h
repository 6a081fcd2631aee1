/*
 * The tensors of a folder, put together by module: what lies under "layers.0.attn.wq_a", which format that makes, and which
 * members of it are missing. Names, dtypes and shapes alone, no architecture: so it works for models nobody has a table for.
 * Modules whose names differ in numbers only form a class; siblings of a class tell how a missing member would be spelled.
 */
#ifndef NB_DOCTOR_MODULES_H
#define NB_DOCTOR_MODULES_H

#include "base/map.h"
#include "checkpoint/checkpoint.h"

typedef enum nb_member {
    NB_MEMBER_PACKED,       /* .weight_packed */
    NB_MEMBER_WEIGHT,       /* .weight */
    NB_MEMBER_BLOCKS,       /* _blocks: gpt-oss' stacks of MXFP4 experts */
    NB_MEMBER_SCALE,        /* .weight_scale */
    NB_MEMBER_SCALE_INV,    /* .weight_scale_inv */
    NB_MEMBER_DOT_SCALE,    /* .scale */
    NB_MEMBER_SCALES,       /* _scales, beside _blocks */
    NB_MEMBER_GLOBAL,       /* .weight_global_scale */
    NB_MEMBER_SCALE_2,      /* .weight_scale_2 */
    NB_MEMBER_INPUT_GLOBAL, /* .input_global_scale */
    NB_MEMBER_INPUT,        /* .input_scale */
    NB_MEMBER_BIAS,         /* .bias */
    NB_MEMBER_COUNT
} nb_member;

typedef enum nb_kind {
    NB_KIND_NONE,  /* nothing that a linear would have: a lone bias or activation scale */
    NB_KIND_OTHER, /* a scheme these rules do not know (INT4, INT8, bitsandbytes): not judged */
    NB_KIND_FLOAT,
    NB_KIND_FP8,
    NB_KIND_MXFP4,
    NB_KIND_MXFP4_BLOCKS,
    NB_KIND_NVFP4_CT, /* compressed-tensors */
    NB_KIND_NVFP4_MODELOPT,
    NB_KIND_COUNT
} nb_kind;

typedef struct nb_module {
    const char *name; /* owned by the table */
    const nb_tensor_info *member[NB_MEMBER_COUNT];
    nb_kind kind;
    uint32_t cls; /* its class */
} nb_module;

typedef struct nb_module_class {
    char *pattern;                   /* "layers.#.attn.wq_a" */
    uint32_t count[NB_KIND_COUNT];   /* modules of each kind */
    uint32_t example[NB_KIND_COUNT]; /* one of them, complete if any is; valid where count is not 0 */
} nb_module_class;

typedef struct nb_modules {
    nb_module *items;
    size_t count;
    nb_module_class *classes;
    size_t n_classes, classes_cap;
    uint32_t total[NB_KIND_COUNT], example[NB_KIND_COUNT]; /* as in a class, over the whole folder */
    nb_map by_name, by_pattern;
    char *text; /* all names */
} nb_modules;

/* Builds the table from the folder's tensors, which must outlive it. Fails only when memory runs out. */
nb_status nb_modules_build(const nb_ckpt *c, nb_modules *out, nb_error *err);
void nb_modules_free(nb_modules *m);

const nb_module *nb_modules_find(const nb_modules *m, const char *name); /* NULL: not there */
/* The class that a module of this name belongs to, stored or not; NULL: none like it. */
const nb_module_class *nb_modules_class(const nb_modules *m, const char *name);
/* The most frequent kind of a class; NB_KIND_NONE when none of its modules has one. */
nb_kind nb_module_class_kind(const nb_module_class *c);

/* The member that a tensor's name ends with; *len is the length of the module's name before it. NB_MEMBER_COUNT: none. */
nb_member nb_member_of(const char *tensor, size_t *len);
const char *nb_member_suffix(nb_member m); /* ".weight_scale" */
const char *nb_kind_name(nb_kind k);       /* "NVFP4 (compressed-tensors)" */

/* The codes or float weight; the block scales; the weight's and the activation's global scale. NULL: absent. */
const nb_tensor_info *nb_module_codes(const nb_module *m);
const nb_tensor_info *nb_module_scale(const nb_module *m);
const nb_tensor_info *nb_module_global(const nb_module *m);
const nb_tensor_info *nb_module_input(const nb_module *m);
static inline bool nb_kind_nvfp4(nb_kind k)
{
    return k == NB_KIND_NVFP4_CT || k == NB_KIND_NVFP4_MODELOPT;
}
/* Columns that one block scale covers: 16 or 32; 0 for kinds without. */
unsigned nb_kind_group(nb_kind k);

/* Which members the module's format needs and it lacks, spelled as its siblings spell theirs. Returns how many. */
size_t nb_module_missing(const nb_modules *t, const nb_module *m, nb_member missing[3]);
/* True when the format has a use for this member. */
bool nb_module_uses(const nb_module *m, nb_member member);
/* Output rows and input columns. False when codes and scales do not agree on them, or there are no 2-D codes. */
bool nb_module_shape(const nb_module *m, uint64_t *n, uint64_t *k);

#endif
