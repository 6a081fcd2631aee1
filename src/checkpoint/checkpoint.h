/*
 * A model folder: its shards as one set of tensors, its config.json. Opens model.safetensors, or the shards that
 * model.safetensors.index.json names. Immutable and thread-safe after opening.
 */
#ifndef NB_CHECKPOINT_CHECKPOINT_H
#define NB_CHECKPOINT_CHECKPOINT_H

#include <jansson.h>

#include "base/log.h"
#include "checkpoint/safetensors.h"

typedef struct nb_ckpt nb_ckpt;

/* What opening found wrong; only NB_PROBLEM_INDEX_WARNING does not stop a load. */
typedef enum nb_problem_kind {
    NB_PROBLEM_FILE,          /* a safetensors file breaks the format (NB001) */
    NB_PROBLEM_INDEX,         /* shard missing, tensor twice, not where the index says, unsafe name (NB002) */
    NB_PROBLEM_INDEX_WARNING, /* tensor that the index omits, total_size wrong (NB002, warning) */
    NB_PROBLEM_NOT_DATA,      /* Git LFS pointer, empty, shrank (NB008) */
    NB_PROBLEM_CONFIG,        /* config.json missing or not JSON */
} nb_problem_kind;
typedef void (*nb_problem_fn)(void *ctx, nb_problem_kind kind, const nb_error *what);

/* Opens DIR, or a hub id "org/name[@revision]" in the local cache (nb_hub_resolve). With on_problem NULL the first problem
 * (warnings apart) fails the call; otherwise each is reported and opening goes on with what can be read, and the call fails
 * only when the folder itself cannot be read. */
nb_status nb_ckpt_open(const char *path, nb_problem_fn on_problem, void *ctx, nb_ckpt **out, nb_error *err);
void nb_ckpt_close(nb_ckpt *c);

const char *nb_ckpt_dir(const nb_ckpt *c);
/* config.json as parsed (borrowed); bare Infinity, -Infinity and NaN are accepted, as transformers does, and are strings here.
 * NULL when missing (lenient opening only). */
const json_t *nb_ckpt_config(const nb_ckpt *c);
const char *nb_ckpt_config_path(const nb_ckpt *c);

size_t nb_ckpt_count(const nb_ckpt *c);
const nb_tensor_info *nb_ckpt_at(const nb_ckpt *c, size_t i);
const nb_tensor_info *nb_ckpt_find(const nb_ckpt *c, const char *name); /* NULL: not there */
/* A tensor that a shard holds and the index omits (a warning when opening): nb_ckpt_find does not give it. NULL: not there. */
const nb_tensor_info *nb_ckpt_unlisted(const nb_ckpt *c, const char *name);
size_t nb_ckpt_files(const nb_ckpt *c);
const char *nb_ckpt_file_name(const nb_ckpt *c, uint32_t file); /* base name */
const char *nb_ckpt_file_path(const nb_ckpt *c,
                              uint32_t file);                 /* the name alone when it could not be opened */
const nb_file *nb_ckpt_file(const nb_ckpt *c, uint32_t file); /* of a tensor; borrowed */
uint64_t nb_ckpt_bytes(const nb_ckpt *c);                     /* of all shard files */
/* Reads n bytes at offset within t's data. Thread-safe. */
nb_status nb_ckpt_read(const nb_ckpt *c, const nb_tensor_info *t, uint64_t offset, void *dst, size_t n,
                       nb_error *err);
/* A whole small float tensor (F32, BF16, F16, F64) as F32, or an integer one (I64, I32, U8 …, BOOL) as I64. dst has the
 * tensor's element count. Another dtype, or a U64 value of 2^63 and more, is NB_ERR_FORMAT. */
nb_status nb_ckpt_read_f32(const nb_ckpt *c, const nb_tensor_info *t, float *dst, nb_error *err);
nb_status nb_ckpt_read_i64(const nb_ckpt *c, const nb_tensor_info *t, int64_t *dst, nb_error *err);
/* Elements [first, first + n) of a float tensor as F32; E8M0 scales too, as powers of two. */
nb_status nb_ckpt_read_floats(const nb_ckpt *c, const nb_tensor_info *t, uint64_t first, size_t n, float *dst,
                              nb_error *err);

/* A path as it is if it is a folder; else "org/name[@revision]" in the first that is set of HF_HUB_CACHE, HF_HOME/hub,
 * XDG_CACHE_HOME/huggingface/hub and ~/.cache/huggingface/hub (models--org--name/{refs,snapshots}). Not there: NB_ERR_MISSING
 * with the `hf download` command. Caller frees *out. */
nb_status nb_hub_resolve(const char *path_or_id, char **out, nb_error *err);

#endif
