/*
 * `repair`: a copy of a model folder in which faults that `check` found are mended. Planned first (which tensor gets which
 * bytes, from the findings), then written under a temporary name beside the target, then checked again and run; only then does
 * the folder get its name. What the file's own bytes cannot prove is refused, with the reason. The log in the copy
 * (nibble_repair.json, and the bytes that were replaced in nibble_repair.old) makes it reversible.
 */
#ifndef NB_DOCTOR_REPAIR_H
#define NB_DOCTOR_REPAIR_H

#include "doctor/check.h"

#define NB_REPAIR_LOG "nibble_repair.json"
#define NB_REPAIR_OLD "nibble_repair.old" /* not .bin: loaders take such files for weights */

typedef struct nb_repair_options {
    const char *out;         /* the new folder; must not exist. May be NULL with dry_run */
    const char *const *only; /* rules to apply; n_only 0: all */
    size_t n_only;
    const char *const *dequant; /* globs on module names: these become BF16 */
    size_t n_dequant;
    const char *scales; /* calibrate's file: MODULE.input_amax, F32. NULL: none */
    bool calibrate;     /* measure the input scales: */
    const char *data;   /* on these texts (JSON lines), NULL: the built-in ones. Not with scales or dry_run */
    bool dry_run;       /* plan only: nothing is written */
} nb_repair_options;

/* One thing done, or not done, to a list of tensors. */
typedef struct nb_repair_item {
    char rule[8]; /* "" for what an option asked for */
    char **tensors;
    size_t n, cap;
    char *text;     /* the action, or why not */
    bool has_error; /* the worst relative change of a dequantised weight or of a scale is known */
    double error;
} nb_repair_item;

/* One failed allocation makes it "bad"; later calls do nothing. */
typedef struct nb_repair_list {
    nb_repair_item *items;
    size_t count, cap;
    bool bad;
} nb_repair_list;

typedef struct nb_repair_result {
    nb_repair_list applied, refused;
    nb_check_result check; /* of the new folder; of the source in a dry run */
    bool dry_run;          /* `applied` is the plan */
    bool written;          /* the folder has its name */
    char *forward;         /* what the forward pass gave, or why none was made; NULL: not reached */
} nb_repair_result;

/* Repairs the folder (or hub id) `path`. A fault that is refused does not fail the call; nothing is written when there is none,
 * or none of them could be mended. Fails, and leaves nothing behind, when the folder cannot be read, when the target exists, cannot be written,
 * is the source or lies in it, or when the finished copy does not check as planned or its forward pass is not finite. Memory is
 * bounded by the headers and a few rows of the widest linear. sink may be NULL. Free *out with nb_repair_result_free, also after
 * a failure. */
nb_status nb_repair_folder(const char *path, const nb_repair_options *opt, const nb_sink *sink,
                           nb_repair_result *out, nb_error *err);
void nb_repair_result_free(nb_repair_result *r);

/* Makes the plan of a repair without options and sets each finding's `repairable` to what comes of it. r is of a folder that is
 * still as it was checked. Fails only when memory runs out. */
nb_status nb_repair_foresee(nb_check_result *r, nb_error *err);

/* Writes the folder that `from` was repaired from, byte for byte, as the new folder `to`. Each file that the repair
 * changed is compared with the hash in the log. */
nb_status nb_repair_undo(const char *from, const char *to, const nb_sink *sink, nb_error *err);

/* The result as specs/interfaces.md has it, and for people. Test nb_buf_ok(out) afterwards. */
void nb_repair_json(const nb_repair_result *r, nb_buf *out);
void nb_repair_text(const nb_repair_result *r, nb_buf *out);

#endif
