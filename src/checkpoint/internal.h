/* What the files of this folder share, and the fuzz targets call; nobody else includes it. */
#ifndef NB_CHECKPOINT_INTERNAL_H
#define NB_CHECKPOINT_INTERNAL_H

#include <jansson.h>

#include "base/map.h"
#include "checkpoint/safetensors.h"

#define NB_INDEX_NONE UINT32_MAX

typedef struct nb_index_entry {
    const char *name; /* of the tensor */
    uint32_t file;    /* where the index says it is: into nb_index.files */
    uint32_t other;   /* another shard that holds it, or NB_INDEX_NONE. Set while opening, like `here` */
    bool here;        /* `file` holds it */
} nb_index_entry;

/* model.safetensors.index.json. Names are in order of the file, shards in alphabetical order. */
typedef struct nb_index {
    nb_index_entry *entries;
    size_t count, cap;
    const char **files; /* as written: not yet checked to be plain names */
    size_t n_files, files_cap;
    bool has_total;
    double total_size; /* metadata.total_size */
    nb_map by_name;    /* tensor -> entry */
    char *text;        /* owns all names */
    size_t text_len;
} nb_index;

/* Parses an index. Text that is not JSON, lacks weight_map, maps a name twice or to something that is no string is
 * NB_ERR_FORMAT naming path and byte. On success free *out with nb_index_free. */
nb_status nb_index_parse(const char *path, const char *text, size_t n, nb_index *out, nb_error *err);
void nb_index_free(nb_index *x);

/* True for a name that stays in its folder: not empty, no '/', not "." or "..". */
bool nb_index_plain_name(const char *name);

/* Parses config.json. Bare Infinity, -Infinity and NaN outside strings, which Python writes and JSON forbids, become
 * the strings "Infinity", "-Infinity" and "NaN". *out is an object; json_decref it. */
nb_status nb_config_parse(const char *path, const char *text, size_t n, json_t **out, nb_error *err);

#endif
