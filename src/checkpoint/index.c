/*
 * model.safetensors.index.json: {"metadata": {"total_size": bytes}, "weight_map": {tensor: file}}. Large models name
 * over 100,000 tensors, so it is read with the pull parser straight into two tables.
 */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "checkpoint/internal.h"

#define TYPICAL_ENTRY 80 /* bytes of an index for one tensor: room for names is reserved by it */

typedef struct reader {
    nb_index *x;
    nb_json j;
    nb_map by_file; /* file name -> into x->files */
    const char *path;
    nb_error *err;
} reader;

static nb_status bad(reader *r, const char *tensor, const char *why)
{
    nb_fail(r->err, NB_ERR_FORMAT, "%s", why);
    nb_error_at(r->err, r->path, tensor, (int64_t)r->j.pos);
    nb_error_remedy(r->err, "download the index again, or export the model again");
    return NB_ERR_FORMAT;
}

static nb_status unexpected(reader *r, nb_json_event event, const char *tensor, const char *wanted)
{
    char why[160];
    if (event != NB_J_ERROR) return bad(r, tensor, wanted);
    if (nb_json_nomem(&r->j)) return nb_fail_nomem(r->err, "a name in the shard index", r->j.n);
    snprintf(why, sizeof why, "the index is not JSON: %s", r->j.error);
    return bad(r, tensor, why);
}

/* Copies the string just read into the index's block of text; NULL when it holds a NUL. */
static const char *keep(reader *r)
{
    if (memchr(r->j.str, '\0', r->j.len)) return NULL;
    char *s = r->x->text + r->x->text_len;
    memcpy(s, r->j.str, r->j.len);
    s[r->j.len] = '\0';
    r->x->text_len += r->j.len + 1;
    return s;
}

/* The number of the file just named by the text; a new one is added. */
static nb_status file_number(reader *r, const char *tensor, uint32_t *out)
{
    nb_index *x = r->x;
    if (nb_map_get(&r->by_file, r->j.str, r->j.len, out)) return NB_OK;
    const char *name = keep(r);
    if (!name) return bad(r, tensor, "a file name holds a NUL character");
    if (x->n_files == x->files_cap) {
        size_t cap = x->files_cap ? 2 * x->files_cap : 16;
        const char **p = realloc(x->files, cap * sizeof *p);
        if (!p) return nb_fail_nomem(r->err, "the list of shards", cap * sizeof *p);
        x->files = p;
        x->files_cap = cap;
    }
    *out = (uint32_t)x->n_files;
    if (!nb_map_put(&r->by_file, name, strlen(name), *out, NULL))
        return nb_fail_nomem(r->err, "the list of shards", x->n_files * sizeof(nb_map_slot));
    x->files[x->n_files++] = name;
    return NB_OK;
}

static nb_status read_weight_map(reader *r)
{
    nb_index *x = r->x;
    nb_json_event e = nb_json_next(&r->j);
    if (e != NB_J_OBJECT) return unexpected(r, e, NULL, "weight_map must be an object");
    while ((e = nb_json_next(&r->j)) == NB_J_KEY) {
        nb_index_entry entry = {.name = keep(r), .other = NB_INDEX_NONE};
        bool twice;
        if (!entry.name) return bad(r, NULL, "a tensor's name holds a NUL character");
        if (!nb_map_put(&x->by_name, entry.name, strlen(entry.name), (uint32_t)x->count, &twice))
            return nb_fail_nomem(r->err, "the shard index", x->count * sizeof(nb_map_slot));
        if (twice) return bad(r, entry.name, "the index names this tensor twice");
        e = nb_json_next(&r->j);
        if (e != NB_J_STRING)
            return unexpected(r, e, entry.name, "expected the name of the file that holds it");
        nb_status s = file_number(r, entry.name, &entry.file);
        if (s != NB_OK) return s;
        if (x->count == x->cap) {
            size_t cap = x->cap ? 2 * x->cap : 256;
            nb_index_entry *p = realloc(x->entries, cap * sizeof *p);
            if (!p) return nb_fail_nomem(r->err, "the shard index", cap * sizeof *p);
            x->entries = p;
            x->cap = cap;
        }
        x->entries[x->count++] = entry;
    }
    return e == NB_J_END ? NB_OK : unexpected(r, e, NULL, "expected a tensor's name");
}

static bool key_is(const nb_json *j, const char *key)
{
    return strlen(key) == j->len && memcmp(key, j->str, j->len) == 0;
}

/* total_size is the only part of the metadata that says something; other keys are the exporter's own. */
static nb_status read_metadata(reader *r)
{
    nb_json_event e = nb_json_next(&r->j);
    if (e == NB_J_NULL) return NB_OK;
    if (e != NB_J_OBJECT) return unexpected(r, e, NULL, "metadata must be an object");
    while ((e = nb_json_next(&r->j)) == NB_J_KEY) {
        bool total = key_is(&r->j, "total_size");
        if (!total) {
            if (!nb_json_skip(&r->j)) return unexpected(r, NB_J_ERROR, NULL, NULL);
            continue;
        }
        e = nb_json_next(&r->j);
        if (e != NB_J_NUMBER || !nb_json_f64(&r->j, &r->x->total_size))
            return unexpected(r, e, NULL, "metadata.total_size must be a number of bytes");
        r->x->has_total = true;
    }
    return e == NB_J_END ? NB_OK : unexpected(r, e, NULL, "expected a key");
}

static nb_status read_index(reader *r)
{
    bool map = false, metadata = false;
    nb_json_event e = nb_json_next(&r->j);
    if (e != NB_J_OBJECT) return unexpected(r, e, NULL, "the index must be a JSON object");
    while ((e = nb_json_next(&r->j)) == NB_J_KEY) {
        nb_status s = NB_OK;
        if (key_is(&r->j, "weight_map")) {
            if (map) return bad(r, NULL, "weight_map is given twice");
            map = true;
            s = read_weight_map(r);
        } else if (key_is(&r->j, "metadata")) {
            if (metadata) return bad(r, NULL, "metadata is given twice");
            metadata = true;
            s = read_metadata(r);
        } else if (!nb_json_skip(&r->j)) {
            s = unexpected(r, NB_J_ERROR, NULL, NULL);
        }
        if (s != NB_OK) return s;
    }
    if (e != NB_J_END) return unexpected(r, e, NULL, "expected a key");
    e = nb_json_next(&r->j);
    if (e != NB_J_EOF) return unexpected(r, e, NULL, "expected the end of the index");
    return map ? NB_OK : bad(r, NULL, "the index has no weight_map");
}

typedef struct named {
    const char *name;
    uint32_t number;
} named;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const named *)a)->name, ((const named *)b)->name);
}

/* Shards in alphabetical order, so that a tensor's file number does not depend on which tensor the index names first. */
static nb_status sort_files(nb_index *x, nb_error *err)
{
    if (!x->n_files) return NB_OK;
    named *order = malloc(x->n_files * sizeof *order);
    uint32_t *place = malloc(x->n_files * sizeof *place);
    nb_status s = NB_OK;
    if (!order || !place) {
        s = nb_fail_nomem(err, "the list of shards", x->n_files * sizeof *order);
        goto out;
    }
    for (size_t i = 0; i < x->n_files; i++) order[i] = (named){x->files[i], (uint32_t)i};
    qsort(order, x->n_files, sizeof *order, by_name);
    for (size_t i = 0; i < x->n_files; i++) {
        x->files[i] = order[i].name;
        place[order[i].number] = (uint32_t)i;
    }
    for (size_t i = 0; i < x->count; i++) x->entries[i].file = place[x->entries[i].file];
out:
    free(order);
    free(place);
    return s;
}

nb_status nb_index_parse(const char *path, const char *text, size_t n, nb_index *out, nb_error *err)
{
    nb_index x = {0};
    reader r = {.x = &x, .path = path, .err = err};
    nb_status s;
    nb_json_init(&r.j, text, n);
    /* A string with its NUL is shorter than its quotes and the text that it came from. */
    x.text = malloc(n + 1);
    if (!x.text || !nb_map_reserve(&x.by_name, n / TYPICAL_ENTRY))
        s = nb_fail_nomem(err, "the shard index", n + 1);
    else
        s = read_index(&r);
    if (s == NB_OK) s = sort_files(&x, err);
    nb_json_free(&r.j);
    nb_map_free(&r.by_file);
    if (s == NB_OK)
        *out = x;
    else
        nb_index_free(&x);
    return s;
}

void nb_index_free(nb_index *x)
{
    free(x->entries);
    free(x->files);
    free(x->text);
    nb_map_free(&x->by_name);
    *x = (nb_index){0};
}

bool nb_index_plain_name(const char *name)
{
    return *name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}
