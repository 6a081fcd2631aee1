/*
 * The doctor's findings and the rules that make them. A rule looks at a folder and adds findings; it never prints, never
 * stops at the first fault, and never changes anything. Reports (report.h) and exit codes are made from the list alone.
 *
 * To add a rule: copy a neighbour in rule_*.c, declare it below rules.h's others, add one entry to nb_rules in rules.c.
 */
#ifndef NB_DOCTOR_CHECK_H
#define NB_DOCTOR_CHECK_H

#include "checkpoint/arch.h"
#include "doctor/activations.h"
#include "doctor/modules.h"
#include "doctor/quant.h"
#include "doctor/scan.h"

typedef enum nb_severity { NB_SEVERITY_NOTE, NB_SEVERITY_WARNING, NB_SEVERITY_ERROR } nb_severity;

/* What becomes of the model in one family of kernels. */
typedef enum nb_effect_class {
    NB_EFFECT_FINE,
    NB_EFFECT_CLIPPED, /* finite, too small */
    NB_EFFECT_ZERO,
    NB_EFFECT_WRONG, /* finite */
    NB_EFFECT_NAN,
    NB_EFFECT_PROMPT,    /* NaN for some prompts only */
    NB_EFFECT_UNDEFINED, /* memory that nobody filled */
    NB_EFFECT_REFUSED,   /* does not load */
} nb_effect_class;

/* W4A4: FlashInfer and CUTLASS on FP4 tensor cores. W4A16: each linear by its own scales. Marlin: W4A16 as vLLM loads it. */
typedef enum nb_family {
    NB_FAMILY_W4A4,
    NB_FAMILY_W4A16,
    NB_FAMILY_MARLIN,
    NB_FAMILY_LLAMA_CPP,
    NB_FAMILY_COUNT
} nb_family;

typedef struct nb_effect {
    nb_effect_class cls;
    const char *text; /* NULL: nothing is claimed for this family */
} nb_effect;

#define NB_FINDING_TEXT 2048 /* a longer text, made of odd names, is cut and ends in "..." */

/* Every string is owned by the list; NULL where nothing can be said. */
typedef struct nb_finding {
    char rule[8];
    nb_severity severity;
    size_t number;  /* in order of discovery */
    char **tensors; /* stored names; a missing one as it would be stored */
    size_t n_tensors, tensors_cap;
    char *file; /* relative to the model's folder */
    bool has_bytes;
    uint64_t begin, end; /* absolute byte range in file */
    char *message;       /* what is wrong, without names: findings of one cause have one message */
    char *measured, *expected, *remedy;
    char *effect_text[NB_FAMILY_COUNT];
    nb_effect_class effect[NB_FAMILY_COUNT];
    bool repairable; /* `repair` can mend it without new data */
} nb_finding;

/* Zero-initialise; nb_findings_free. One failed allocation makes the list "bad": later calls do nothing, so a rule may build
 * its findings and leave the test to its caller. */
typedef struct nb_findings {
    nb_finding *items;
    size_t count, cap;
    bool bad;
} nb_findings;

/* Adds a finding with its message (printf) and returns its number, for the calls below. */
size_t nb_findings_add(nb_findings *l, const char *rule, nb_severity severity, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Names one more tensor. */
void nb_findings_tensor(nb_findings *l, size_t i, const char *name);
/* The file at fault (NULL: none). */
void nb_findings_file(nb_findings *l, size_t i, const char *file);
void nb_findings_bytes(nb_findings *l, size_t i, uint64_t begin, uint64_t end);
void nb_findings_measured(nb_findings *l, size_t i, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void nb_findings_expected(nb_findings *l, size_t i, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void nb_findings_remedy(nb_findings *l, size_t i, bool repairable, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* What each family makes of it; texts are copied. */
void nb_findings_effects(nb_findings *l, size_t i, const nb_effect effects[NB_FAMILY_COUNT]);
/* Moves all findings of `from`, which is empty then, behind those of l. */
void nb_findings_move(nb_findings *l, nb_findings *from);
/* Worst first, then by rule; the order of discovery within a rule stays. */
void nb_findings_sort(nb_findings *l);
/* Where the finding of another rule on the same tensor is the cause, puts its remedy in place of this one's, or before it. */
void nb_findings_agree(nb_findings *l);
/* Removes the findings of one rule; returns how many there were. */
size_t nb_findings_drop(nb_findings *l, const char *rule);
size_t nb_findings_of(const nb_findings *l, nb_severity severity);
void nb_findings_free(nb_findings *l);

const char *nb_severity_name(nb_severity s);         /* "error" */
const char *nb_effect_class_name(nb_effect_class c); /* "fine" */
const char *nb_family_name(nb_family f);             /* "w4a4" */

/* Where a stored name belongs in the architecture's table. */
typedef struct nb_place {
    const nb_arch_tensor *row; /* NULL: nowhere */
    int64_t l, e;              /* layer and expert, -1 without */
    bool skipped;              /* known, and not needed */
} nb_place;

/* Finds every tensor's place; cfg's architecture is known. *out is [nb_ckpt_count], to be freed. Fails when memory runs out. */
nb_status nb_places_find(const nb_ckpt *c, const nb_config *cfg, nb_place **out, nb_error *err);

typedef struct nb_check_options {
    uint32_t tp;      /* tensor-parallel size to judge shapes for (NB206); 0: none */
    size_t threads;   /* for the pass over the weights; 0: as many as the machine allows, at most 8 */
    bool run;         /* also run the model over texts, and judge its input scales (NB111) */
    const char *data; /* the texts, JSON lines as calibrate reads them; NULL: the built-in prompts */
} nb_check_options;

/* What rules look at. Made by nb_check_folder; immutable while rules run, so that they may run in any order. */
typedef struct nb_check {
    const char *dir;
    const nb_ckpt *ckpt;
    nb_modules modules;
    nb_config config; /* filled as far as config.json allows */
    bool table; /* the architecture is known and its config complete: rules that need the table can run */
    nb_error config_error; /* why not; status NB_OK when `table` */
    nb_place *places;      /* [nb_ckpt_count] when `table`, else NULL */
    /* A shard could not be read, so a tensor that is not seen may well be in it: nothing is called missing then. */
    bool blind;
    nb_map lost;                /* names of tensors that opening already reported as lost */
    nb_quant quant;             /* what the configs claim */
    nb_scan scan;               /* what the weights hold */
    nb_activations activations; /* what texts showed, when options.run */
    nb_check_options options;
    const nb_sink *sink;
} nb_check;

/* True when no shard holds `name` and that is news: not already said of the shards themselves (NB001, NB002, NB008). */
bool nb_check_absent(const nb_check *c, const char *name);
/* True when every tensor that the index names is there to be seen: only then can something be said of the whole. */
static inline bool nb_check_complete(const nb_check *c)
{
    return !c->blind && !c->lost.count;
}
/* The base name of t's file. */
const char *nb_check_file_of(const nb_check *c, const nb_tensor_info *t);
/* Rows and columns that the config asks of the linear stored under `module`. False: not known. */
bool nb_check_wanted(const nb_check *c, const char *module, uint64_t *n, uint64_t *k);

typedef struct nb_rule {
    const char *code;
    nb_severity severity; /* the worst that it reports */
    bool
        after; /* run when all others have been, and *out holds what they found: their list, not one of its own */
    const char *title;
    const char *explain; /* paragraphs: what it is, what comes of it, what to do */
    /* NULL: found while the folder is opened (rule_container.c). A status other than NB_OK means that the rule itself failed
     * (out of memory), not that the folder is bad. */
    nb_status (*run)(const nb_check *c, nb_findings *out, nb_error *err);
} nb_rule;

extern const nb_rule nb_rules[];
extern const size_t nb_rules_count;
/* By its code, in any case ("nb104"). NULL: no such rule. */
const nb_rule *nb_rule_find(const char *code);

typedef struct nb_check_result {
    nb_findings findings; /* sorted */
    char *dir;
    const char *architecture; /* NULL: unknown */
    size_t files, tensors;
    uint64_t bytes;
    bool ran; /* the model ran over texts: input scales were judged */
} nb_check_result;

/* Opens a folder or hub id leniently, passes once over its weights in buffers of fixed size, and runs every rule. Fails only
 * when the folder cannot be read at all (missing, no safetensors in it), options->data cannot be, or memory runs out. options (NULL: none) and sink may
 * be NULL. Free *out with nb_check_result_free. */
nb_status nb_check_folder_with(const char *path, const nb_check_options *options, const nb_sink *sink,
                               nb_check_result *out, nb_error *err);
/* The same without options. */
nb_status nb_check_folder(const char *path, const nb_sink *sink, nb_check_result *out, nb_error *err);
void nb_check_result_free(nb_check_result *r);

#endif
