/* Undoing a repair: files that it changed are put together again from their pieces and compared with their hash; all others are
 * copied. A copy that somebody changed afterwards does not come out right and is refused. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/json_tree.h"
#include "checkpoint/internal.h"
#include "doctor/repair_plan.h"

#define CHUNK ((size_t)1 << 20)

static bool in_log(void *ctx, const char *name)
{
    const json_t *files = ctx, *f;
    size_t i;
    if (strcmp(name, NB_REPAIR_LOG) == 0 || strcmp(name, NB_REPAIR_OLD) == 0) return true;
    json_array_foreach(files, i, f)
    {
        const char *entry = json_string_value(json_object_get(f, "name"));
        if (entry && strcmp(entry, name) == 0) return true;
    }
    return false;
}

static nb_status bad_log(nb_error *err, const char *name)
{
    nb_fail(err, NB_ERR_FORMAT, "this is not a log that repair wrote");
    nb_error_at(err, NB_REPAIR_LOG, name, -1);
    return NB_ERR_FORMAT;
}

typedef struct builder {
    nb_file now; /* the repaired file, while one is rebuilt */
    const nb_file *old;
    nb_writer *w;
    XXH3_state_t *hash;
    unsigned char *chunk;
} builder;

static nb_status copy_piece(builder *b, const json_t *piece, nb_error *err)
{
    const char *kind = json_string_value(json_array_get(piece, 0));
    const json_int_t begin = json_integer_value(json_array_get(piece, 1)),
                     end = json_integer_value(json_array_get(piece, 2));
    const nb_file *f = kind && strcmp(kind, "new") == 0   ? &b->now
                       : kind && strcmp(kind, "old") == 0 ? b->old
                                                          : NULL;
    if (!f || begin < 0 || end < begin) return bad_log(err, NULL);
    nb_status s = NB_OK;
    for (uint64_t at = (uint64_t)begin; at < (uint64_t)end && s == NB_OK;) {
        size_t n = (uint64_t)end - at < CHUNK ? (size_t)((uint64_t)end - at) : CHUNK;
        s = nb_file_read(f, at, b->chunk, n, err);
        if (s == NB_OK) s = nb_writer_put(b->w, b->chunk, n, err);
        if (s == NB_OK) XXH3_64bits_update(b->hash, b->chunk, n);
        at += n;
    }
    return s;
}

static nb_status rebuild(const json_t *entry, const char *from, const char *to, builder *b, nb_error *err)
{
    const char *name = json_string_value(json_object_get(entry, "name")),
               *want = json_string_value(json_object_get(entry, "xxh3"));
    const json_t *pieces = json_object_get(entry, "pieces"), *piece;
    char have[17], *path = NULL, *target = NULL;
    size_t i;
    if (!name || !nb_index_plain_name(name)) return bad_log(err, name);
    if (json_is_true(json_object_get(entry, "created"))) return NB_OK;
    if (!want || !json_is_array(pieces)) return bad_log(err, name);
    path = nb_path_join(from, name);
    target = nb_path_join(to, name);
    nb_status s =
        path && target ? nb_file_open(path, &b->now, err) : nb_fail_nomem(err, "a file's path", strlen(from));
    if (s == NB_OK) s = nb_writer_open(target, &b->w, err);
    XXH3_64bits_reset(b->hash);
    json_array_foreach(pieces, i, piece)
    {
        if (s == NB_OK) s = copy_piece(b, piece, err);
    }
    if (s == NB_OK) {
        snprintf(have, sizeof have, "%016llx", (unsigned long long)XXH3_64bits_digest(b->hash));
        if (strcmp(have, want) != 0) {
            s = nb_fail(err, NB_ERR_FORMAT,
                        "the file was changed after the repair: what comes back is not what was");
            nb_error_at(err, path, NULL, -1);
        }
    }
    nb_writer *w = b->w;
    b->w = NULL;
    if (s == NB_OK)
        s = nb_writer_commit(w, err);
    else
        nb_writer_abort(w);
    nb_file_close(&b->now);
    free(path);
    free(target);
    return s;
}

nb_status nb_repair_undo(const char *from, const char *to, const nb_sink *sink, nb_error *err)
{
    nb_new_folder folder = {0};
    nb_buf text = {0};
    nb_file old = {.fd = -1};
    json_t *log = NULL, *entry;
    char *log_path = nb_path_join(from, NB_REPAIR_LOG), *old_path = nb_path_join(from, NB_REPAIR_OLD);
    builder b = {.now = {.fd = -1}, .old = &old, .chunk = malloc(CHUNK), .hash = XXH3_createState()};
    size_t i;
    nb_status s =
        log_path && old_path && b.chunk && b.hash ? NB_OK : nb_fail_nomem(err, "undoing a repair", CHUNK);
    if (s != NB_OK) goto out;
    s = nb_file_slurp(log_path, (size_t)1 << 30, &text, err);
    if (s == NB_ERR_MISSING) {
        nb_fail(err, s, "the folder has no log of a repair");
        nb_error_at(err, log_path, NULL, -1);
        nb_error_remedy(err, "give a folder that `nibble repair` wrote");
    }
    if (s != NB_OK) goto out;
    if ((s = nb_json_tree(log_path, nb_buf_str(&text), text.len, &log, err))) goto out;
    json_t *files = json_object_get(log, "files");
    if (json_integer_value(json_object_get(log, "nibble_repair")) != 1 || !json_is_array(files)) {
        s = bad_log(err, NULL);
        goto out;
    }
    if ((s = nb_file_open(old_path, &old, err))) goto out;
    if ((s = nb_new_folder_make(to, from, &folder, err))) goto out;
    s = nb_copy_tree(from, folder.temp, in_log, files, sink, err);
    json_array_foreach(files, i, entry)
    {
        if (s == NB_OK) s = rebuild(entry, from, folder.temp, &b, err);
    }
    if (s == NB_OK) s = nb_new_folder_commit(&folder, err);
out:
    nb_new_folder_abort(&folder);
    nb_file_close(&old);
    json_decref(log);
    nb_buf_free(&text);
    free(b.chunk);
    XXH3_freeState(b.hash);
    free(log_path);
    free(old_path);
    return s;
}
