/*
 * What a repair will do, and what the files of `repair` share. A plan is a set of edits, at most one for each stored tensor: its
 * new name, type and shape, and how its bytes come from the old ones. Fixes only add to edits, so that several may meet on one
 * tensor; bytes are made when the shard is written, a few rows at a time. Nobody else includes this.
 */
#ifndef NB_DOCTOR_REPAIR_PLAN_H
#define NB_DOCTOR_REPAIR_PLAN_H

#include "base/buf.h"
#include "base/file.h"
#include "doctor/repair.h"

#define NB_INDEX_NAME "model.safetensors.index.json"
#define NB_CHUNK_ROWS 128 /* rows made at a time: one tile of the swizzled order */

typedef enum nb_content {
    NB_CONTENT_STORED, /* the old bytes */
    NB_CONTENT_SCALES, /* NVFP4 block scales of `module`, changed */
    NB_CONTENT_CODES,  /* NVFP4 codes of `module`, negated where the scale is negative */
    NB_CONTENT_VALUE,  /* one F32 */
    NB_CONTENT_BF16,   /* `module` dequantised */
} nb_content;

typedef struct nb_edit {
    const nb_tensor_info *from; /* NULL: a tensor that was not there */
    uint32_t file;              /* shard of the checkpoint */
    char *name;                 /* its new name; NULL: as stored */
    bool removed;
    nb_dtype dtype;
    size_t rank;
    const uint64_t *shape; /* from's, or own */
    uint64_t own[2];
    nb_content content;
    const nb_module *module;
    float value;
    /* NB_CONTENT_SCALES: how they are stored, and what becomes of them, in this order. */
    bool swizzled;   /* 128x4 order; else rows of `stride` bytes */
    uint64_t stride; /* bytes from one stored row to the next */
    uint64_t n, kb;  /* rows and blocks in a row that the codes have */
    bool nan_to_max; /* 0x7F, 0xFF -> 0x7E */
    bool unsign;     /* the sign goes to the codes */
    float ratio;     /* 1: none */
} nb_edit;

/* A file that is replaced as a whole: config.json, the index. */
typedef struct nb_new_file {
    const char *name; /* static */
    nb_buf text;
} nb_new_file;

typedef struct nb_plan {
    const nb_repair_options *opt;
    const nb_check_result *check;
    char *dir;
    nb_ckpt *ckpt;
    nb_modules modules;
    nb_edit **edits;
    size_t n_edits, cap_edits;
    nb_map by_tensor; /* stored name -> edit */
    nb_map
        suspects; /* tensors that a finding says hold no measured value, or that are missing -> the finding */
    bool *bf16, *measured; /* [modules] become BF16; got a measured input scale */
    nb_repair_list applied, refused;
    nb_new_file files[4];
    size_t n_files;
    bool index;    /* the index must be written anew */
    bool no_index; /* there is none, or none that can be read */
    bool blind;    /* some shard could not be read */
    /* What the config is to say anew, and the rules that asked for it. */
    bool fix_scheme, fix_ignore, fix_tie, fix_drafts;
    bool drop_unused; /* entries of the ignore list that name nothing */
    char config_rules[16][8];
    size_t n_config_rules;
} nb_plan;

/* ---- the list of things done and refused (repair_report.c) ---- */

/* Adds tensor (NULL: none) to the item of this rule and text, made if there is none. error < 0: not known. */
void nb_repair_note(nb_repair_list *l, const char *rule, const char *tensor, double error, const char *fmt,
                    ...) __attribute__((format(printf, 5, 6)));
void nb_repair_list_free(nb_repair_list *l);

/* ---- edits (repair_edit.c) ---- */

/* The edit of a stored tensor, made if there is none yet; NULL: out of memory. */
nb_edit *nb_plan_edit(nb_plan *p, const nb_tensor_info *t);
/* The same without making one; NULL: unchanged. */
nb_edit *nb_plan_edited(const nb_plan *p, const nb_tensor_info *t);
/* A new tensor named MODULE + suffix (a copy is kept) in the shard of `beside`. NULL: out of memory. */
nb_edit *nb_plan_new(nb_plan *p, const nb_module *m, const char *suffix, const nb_tensor_info *beside);
/* The edit of an NVFP4 module's block scales, its layout filled in from the shapes. NULL: out of memory. */
nb_edit *nb_plan_scales(nb_plan *p, const nb_module *m);
/* The module that a stored or missing tensor belongs to, and as which member. NULL: none. */
const nb_module *nb_plan_module(const nb_plan *p, const char *tensor, nb_member *member);

/* A one-number tensor as it will be. */
nb_status nb_plan_value(const nb_plan *p, const nb_tensor_info *t, float *out, nb_error *err);
/* Gives it another value; its type becomes F32, its shape stays [] or becomes [1]. */
nb_status nb_plan_set_value(nb_plan *p, const nb_tensor_info *t, float value, nb_error *err);
/* The multiplier that a stored scale stands for, and back: compressed-tensors stores divisors. */
float nb_as_multiplier(const nb_module *m, float stored);
/* True when v can be used as a scale in either direction: finite, positive, and so is its reciprocal. */
bool nb_repair_usable(float v);

/* Rows [row, row + rows) of the module's block scales as they will be; row is a multiple of NB_CHUNK_ROWS and rows at most
 * that. signs: leave the sign bits where they are. old (may be NULL): the stored bytes, when they have the same layout.
 * out [rows][kb]. */
nb_status nb_plan_scale_rows(const nb_plan *p, const nb_module *m, size_t row, size_t rows, bool signs,
                             uint8_t *out, uint8_t *old, nb_error *err);

/* Where an edited tensor's bytes go. old: the bytes that were in this very place, NULL when the layout is another. */
typedef nb_status (*nb_emit_fn)(void *ctx, const void *bytes, const void *old, size_t n, nb_error *err);
/* Makes the new bytes of an edit that is not NB_CONTENT_STORED. */
nb_status nb_edit_produce(const nb_plan *p, const nb_edit *e, nb_emit_fn emit, void *ctx, nb_error *err);
/* True when old and new bytes lie in the same places. */
bool nb_edit_in_place(const nb_edit *e);
/* True when the shard's header must change. */
bool nb_edit_structural(const nb_edit *e);
uint64_t nb_edit_bytes(const nb_edit *e);

/* One new byte E4M3 of a scale multiplied by ratio, nearest even. */
uint8_t nb_rescale_byte(uint8_t byte, float ratio);

/* ---- fixes: each looks at one finding ---- */

typedef nb_status (*nb_fix_fn)(nb_plan *p, const nb_finding *f, nb_error *err);
nb_status nb_fix_nan_bytes(nb_plan *p, const nb_finding *f, nb_error *err); /* NB101 */
nb_status nb_fix_signs(nb_plan *p, const nb_finding *f, nb_error *err);     /* NB102 */
nb_status nb_fix_globals(nb_plan *p, const nb_finding *f, nb_error *err);   /* NB103, NB104, NB105 */
nb_status nb_fix_direction(nb_plan *p, const nb_finding *f, nb_error *err); /* NB106 */
nb_status nb_fix_siblings(nb_plan *p, const nb_finding *f, nb_error *err);  /* NB107 */
nb_status nb_fix_shapes(nb_plan *p, const nb_finding *f, nb_error *err);    /* NB004 */
nb_status nb_fix_names(nb_plan *p, const nb_finding *f, nb_error *err);     /* NB006 */
nb_status nb_fix_index(nb_plan *p, const nb_finding *f, nb_error *err);     /* NB002 */
nb_status nb_fix_config(nb_plan *p, const nb_finding *f,
                        nb_error *err); /* NB201 to NB211: what is to be rewritten */

/* True when findings of this rule are to be mended (--only). */
bool nb_plan_chosen(const nb_plan *p, const char *rule);
/* The modules that loaders fuse with m, m among them, all NVFP4; at most 3. */
size_t nb_plan_siblings(const nb_plan *p, const nb_module *m, const nb_module *out[3]);

/* ---- what options ask for (repair_modules.c) ---- */

/* Finds the modules that --dequant names. NB_ERR_ARGUMENT when a pattern matches none. */
nb_status nb_plan_choose(nb_plan *p, nb_error *err);
/* Input scales from the file that --scales names. */
nb_status nb_plan_input_scales(nb_plan *p, const char *file, nb_error *err);
/* Makes the chosen modules BF16. */
nb_status nb_plan_dequantise(nb_plan *p, nb_error *err);
static inline bool nb_plan_dequantised(const nb_plan *p, const nb_module *m)
{
    return p->bf16[m - p->modules.items];
}
static inline bool nb_plan_measured(const nb_plan *p, const nb_module *m)
{
    return p->measured[m - p->modules.items];
}

/* Rewrites config.json and hf_quant_config.json as fix_scheme and fix_ignore ask (repair_config.c). */
nb_status nb_plan_config(nb_plan *p, nb_error *err);
/* text with the value of the top-level key of its object replaced, or the pair added at its end; every other byte stays, so that
 * what no JSON library would write back as it was (bare Infinity, long numbers) does. False: the text is no object. */
bool nb_json_splice(const char *text, size_t n, const char *key, const char *value, nb_buf *out);

/* ---- writing (repair_write.c) and the log (repair_log.c) ---- */

/* Writes the repaired copy into the new folder `dir`, which exists and is empty. */
nb_status nb_plan_write(nb_plan *p, const char *dir, const nb_sink *sink, nb_error *err);

/* A folder under a temporary name beside its final one (repair_folder.c). */
typedef struct nb_new_folder {
    char *path, *temp;
} nb_new_folder;
/* Refuses a target that exists, that is `source`, or lies in it. */
nb_status nb_new_folder_make(const char *path, const char *source, nb_new_folder *out, nb_error *err);
/* Gives it its name; fails when that is taken by now. */
nb_status nb_new_folder_commit(nb_new_folder *f, nb_error *err);
/* Removes it and what is in it. */
void nb_new_folder_abort(nb_new_folder *f);
/* Copies every regular file below `from` but those that skip() names (relative paths); .git is left out. */
nb_status nb_copy_tree(const char *from, const char *to, bool (*skip)(void *ctx, const char *name), void *ctx,
                       const nb_sink *sink, nb_error *err);

#endif
