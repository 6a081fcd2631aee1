/*
 * Writing the repaired copy. A shard in which only bytes change keeps its header and every offset; one whose tensors change name,
 * type or number gets a new header, in the old order, so that one pass over the old file writes the new one and the log.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/json_tree.h"
#include "checkpoint/internal.h"
#include "doctor/repair_log.h"
#include "doctor/repair_plan.h"

#define CHUNK ((size_t)1 << 20)

/* ---- one shard ---- */

typedef struct shard {
    nb_plan *p;
    uint32_t file;
    const char *name;
    nb_safetensors *st;
    nb_relog *log;
    nb_writer *w;
    uint64_t at; /* bytes of the new file so far */
    nb_buf header, old_header;
    bool structural;
    unsigned char *chunk;
} shard;

static nb_status put(shard *s, const void *bytes, size_t n, nb_error *err)
{
    s->at += n;
    return nb_writer_put(s->w, bytes, n, err);
}

/* The raw text of __metadata__ in a header that the reader accepted; empty: it has none. */
static nb_status metadata(const nb_buf *old, nb_buf *out, nb_error *err)
{
    nb_json j;
    nb_json_init(&j, old->data + 8, old->len - 8);
    nb_json_event e = nb_json_next(&j);
    bool ok = e == NB_J_OBJECT;
    while (ok && (e = nb_json_next(&j)) == NB_J_KEY) {
        if (j.len != 12 || memcmp(j.str, "__metadata__", 12) != 0) {
            ok = nb_json_skip(&j);
            continue;
        }
        ok = nb_json_next(&j) == NB_J_OBJECT;
        const size_t begin = j.pos;
        while (ok && (e = nb_json_next(&j)) == NB_J_KEY) ok = nb_json_skip(&j);
        ok = ok && e == NB_J_END;
        nb_buf_clear(out);
        if (ok) nb_buf_add(out, old->data + 8 + begin, j.pos + 1 - begin);
    }
    const bool nomem = nb_json_nomem(&j) || !nb_buf_ok(out);
    nb_json_free(&j);
    if (nomem) return nb_fail_nomem(err, "a safetensors header", old->len);
    return ok ? NB_OK : nb_fail(err, NB_ERR_FORMAT, "the header changed while it was read");
}

static void header_entry(nb_buf *b, const char *name, nb_dtype dtype, size_t rank, const uint64_t *shape,
                         uint64_t bytes, uint64_t *at)
{
    if (b->len > 9) nb_buf_addc(b, ',');
    nb_buf_add_json(b, name, strlen(name));
    nb_buf_addf(b, ":{\"dtype\":\"%s\",\"shape\":[", nb_dtype_name(dtype));
    for (size_t i = 0; i < rank; i++) nb_buf_addf(b, i ? ",%llu" : "%llu", (unsigned long long)shape[i]);
    const unsigned long long begin = *at, end = begin + bytes;
    nb_buf_addf(b, "],\"data_offsets\":[%llu,%llu]}", begin, end);
    *at = end;
}

/* The new header with its length. New tensors come first: they are wide, and offset 0 is aligned. */
static nb_status make_header(shard *s, nb_error *err)
{
    nb_buf *b = &s->header, meta = {0};
    uint64_t at = 0;
    nb_status st = metadata(&s->old_header, &meta, err);
    if (st != NB_OK) goto out;
    nb_buf_add(b, "\0\0\0\0\0\0\0\0{", 9);
    if (meta.len) {
        nb_buf_adds(b, "\"__metadata__\":");
        nb_buf_add(b, meta.data, meta.len);
    }
    for (size_t i = 0; i < s->p->n_edits; i++) {
        const nb_edit *e = s->p->edits[i];
        if (!e->from && e->file == s->file)
            header_entry(b, e->name, e->dtype, e->rank, e->shape, nb_edit_bytes(e), &at);
    }
    for (size_t i = 0; i < nb_safetensors_count(s->st); i++) {
        const nb_tensor_info *t = nb_safetensors_at(s->st, i);
        const nb_edit *e = nb_plan_edited(s->p, t);
        if (e && (e->file != s->file || e->from->begin != t->begin)) e = NULL; /* a tensor in two shards */
        if (e && e->removed) continue;
        if (e)
            header_entry(b, e->name ? e->name : t->name, e->dtype, e->rank, e->shape, nb_edit_bytes(e), &at);
        else
            header_entry(b, t->name, t->dtype, t->rank, t->shape, t->end - t->begin, &at);
    }
    nb_buf_addc(b, '}');
    while (nb_buf_ok(b) && b->len % 8) nb_buf_addc(b, ' ');
    if (!nb_buf_ok(b)) {
        st = nb_fail_nomem(err, "a safetensors header", b->len);
        goto out;
    }
    for (int i = 0; i < 8; i++) b->data[i] = (char)((uint64_t)(b->len - 8) >> (8 * i));
    if (b->len - 8 > NB_SAFETENSORS_MAX_HEADER) {
        st = nb_fail(err, NB_ERR_LIMIT, "the header would have %zu bytes; the format's limit is %u",
                     b->len - 8, NB_SAFETENSORS_MAX_HEADER);
        nb_error_at(err, s->name, NULL, -1);
    }
out:
    nb_buf_free(&meta);
    return st;
}

static nb_status emit(void *ctx, const void *bytes, const void *old, size_t n, nb_error *err)
{
    shard *s = ctx;
    nb_status st = old ? nb_relog_changed(s->log, old, bytes, n, s->at, err) : NB_OK;
    return st == NB_OK ? put(s, bytes, n, err) : st;
}

/* Old bytes [begin, end) of the file: copied to the new one (keep), or to the log alone. */
static nb_status pass(shard *s, uint64_t begin, uint64_t end, bool keep, nb_error *err)
{
    nb_status st = NB_OK;
    while (begin < end && st == NB_OK) {
        size_t n = end - begin < CHUNK ? (size_t)(end - begin) : CHUNK;
        st = nb_file_read(nb_safetensors_file(s->st), begin, s->chunk, n, err);
        if (st != NB_OK) break;
        if (keep) {
            nb_relog_keep(s->log, s->chunk, n, s->at);
            st = put(s, s->chunk, n, err);
        } else {
            st = nb_relog_lost(s->log, s->chunk, n, err);
        }
        begin += n;
    }
    return st;
}

static nb_status write_tensors(shard *s, nb_error *err)
{
    nb_status st = NB_OK;
    for (size_t i = 0; i < s->p->n_edits && st == NB_OK; i++) {
        const nb_edit *e = s->p->edits[i];
        if (!e->from && e->file == s->file) st = nb_edit_produce(s->p, e, emit, s, err);
    }
    for (size_t i = 0; i < nb_safetensors_count(s->st) && st == NB_OK; i++) {
        const nb_tensor_info *t = nb_safetensors_at(s->st, i);
        const nb_edit *e = nb_plan_edited(s->p, t);
        if (e && (e->file != s->file || e->from->begin != t->begin)) e = NULL;
        if (!e || (e->content == NB_CONTENT_STORED && !e->removed)) {
            st = pass(s, t->begin, t->end, true, err);
            continue;
        }
        if (e->removed || !nb_edit_in_place(e)) st = pass(s, t->begin, t->end, false, err);
        if (st == NB_OK && !e->removed) st = nb_edit_produce(s->p, e, emit, s, err);
    }
    return st;
}

static nb_status read_header(shard *s, nb_error *err)
{
    const nb_file *f = nb_safetensors_file(s->st);
    unsigned char length[8];
    uint64_t n = 0;
    nb_status st = nb_file_read(f, 0, length, 8, err);
    if (st != NB_OK) return st;
    for (int i = 0; i < 8; i++) n |= (uint64_t)length[i] << (8 * i);
    if (n > NB_SAFETENSORS_MAX_HEADER)
        return nb_fail(err, NB_ERR_FORMAT, "the header changed while it was read");
    n += 8;
    if (!nb_buf_reserve(&s->old_header, (size_t)n))
        return nb_fail_nomem(err, "a safetensors header", (size_t)n);
    st = nb_file_read(f, 0, s->old_header.data, (size_t)n, err);
    s->old_header.len = (size_t)n;
    return st;
}

static nb_status write_shard(nb_plan *p, uint32_t file, const char *dir, nb_relog *log, nb_error *err)
{
    shard s = {.p = p, .file = file, .name = nb_ckpt_file_name(p->ckpt, file), .log = log};
    char *path = nb_path_join(dir, s.name);
    s.chunk = malloc(CHUNK);
    nb_status st = path && s.chunk ? NB_OK : nb_fail_nomem(err, "a shard", CHUNK);
    for (size_t i = 0; i < p->n_edits; i++)
        s.structural = s.structural || (p->edits[i]->file == file && nb_edit_structural(p->edits[i]));
    if (st == NB_OK) st = nb_safetensors_open(nb_ckpt_file_path(p->ckpt, file), &s.st, err);
    if (st == NB_OK) st = read_header(&s, err);
    if (st == NB_OK && s.structural) st = make_header(&s, err);
    if (st == NB_OK) st = nb_writer_open(path, &s.w, err);
    if (st != NB_OK) goto out;
    nb_relog_begin(log, s.name);
    if (s.structural) {
        st = nb_relog_lost(log, s.old_header.data, s.old_header.len, err);
        if (st == NB_OK) st = put(&s, s.header.data, s.header.len, err);
    } else {
        nb_relog_keep(log, s.old_header.data, s.old_header.len, 0);
        st = put(&s, s.old_header.data, s.old_header.len, err);
    }
    if (st == NB_OK) st = write_tensors(&s, err);
    nb_relog_end(log);
    if (st == NB_OK) {
        nb_writer *w = s.w;
        s.w = NULL;
        st = nb_writer_commit(w, err);
    }
out:
    nb_writer_abort(s.w);
    nb_safetensors_close(s.st);
    nb_buf_free(&s.header);
    nb_buf_free(&s.old_header);
    free(s.chunk);
    free(path);
    return st;
}

/* ---- the index ---- */

static bool place(json_t *map, const char *name, const char *file)
{
    return json_object_set_new_nocheck(map, name, json_string_nocheck(file)) == 0;
}

/* The new weight_map: the old one's order, with names changed, taken out and added. */
static json_t *new_map(const nb_plan *p, json_t *old)
{
    json_t *map = json_object(), *value;
    const char *name;
    bool ok = map != NULL;
    json_object_foreach(old, name, value)
    {
        const nb_tensor_info *t = nb_ckpt_find(p->ckpt, name);
        const nb_edit *e = t ? nb_plan_edited(p, t) : NULL;
        if (e && e->removed) continue;
        ok = ok && json_object_set_nocheck(map, e && e->name ? e->name : name, value) == 0;
    }
    for (size_t i = 0; i < p->n_edits && ok; i++) {
        const nb_edit *e = p->edits[i];
        if (!e->from) ok = place(map, e->name, nb_ckpt_file_name(p->ckpt, e->file));
    }
    if (ok) return map;
    json_decref(map);
    return NULL;
}

/* Adds tensors that shards of the new folder hold and the map omits, and sums up all of them. */
static nb_status complete_map(const nb_plan *p, const char *dir, json_t *map, uint64_t *total, nb_error *err)
{
    nb_status st = NB_OK;
    *total = 0;
    for (uint32_t f = 0; f < nb_ckpt_files(p->ckpt) && st == NB_OK; f++) {
        const char *name = nb_ckpt_file_name(p->ckpt, f);
        nb_safetensors *s = NULL;
        char *path = nb_path_join(dir, name);
        st = path ? nb_safetensors_open(path, &s, err) : nb_fail_nomem(err, "a shard's path", strlen(dir));
        for (size_t i = 0; st == NB_OK && i < nb_safetensors_count(s); i++) {
            const nb_tensor_info *t = nb_safetensors_at(s, i);
            *total += t->end - t->begin;
            if (!json_object_get(map, t->name) && !place(map, t->name, name))
                st = nb_fail_nomem(err, "the index", 0);
        }
        nb_safetensors_close(s);
        free(path);
    }
    return st;
}

static nb_status write_text(const char *dir, const char *name, const void *text, size_t n, nb_error *err)
{
    nb_writer *w = NULL;
    char *path = nb_path_join(dir, name);
    nb_status st = path ? nb_writer_open(path, &w, err) : nb_fail_nomem(err, "a file's path", strlen(dir));
    if (st == NB_OK) {
        st = nb_writer_put(w, text, n, err);
        if (st == NB_OK)
            st = nb_writer_commit(w, err);
        else
            nb_writer_abort(w);
    }
    free(path);
    return st;
}

/* Writes a file that replaces the source's of the same name, or is new. */
static nb_status replace_file(const nb_plan *p, const char *dir, const char *name, const void *text, size_t n,
                              nb_relog *log, nb_error *err)
{
    nb_buf old = {0};
    char *path = nb_path_join(p->dir, name);
    nb_status st = path ? NB_OK : nb_fail_nomem(err, "a file's path", strlen(p->dir));
    if (st == NB_OK && access(path, F_OK) != 0) {
        nb_relog_created(log, name);
    } else if (st == NB_OK) {
        st = nb_file_slurp(path, (size_t)1 << 30, &old, err);
        nb_relog_begin(log, name);
        if (st == NB_OK) st = nb_relog_lost(log, nb_buf_str(&old), old.len, err);
        nb_relog_end(log);
    }
    if (st == NB_OK) st = write_text(dir, name, text, n, err);
    nb_buf_free(&old);
    free(path);
    return st;
}

static nb_status write_index(const nb_plan *p, const char *dir, nb_relog *log, nb_error *err)
{
    nb_buf old = {0};
    json_t *root = NULL, *map = NULL;
    char *text = NULL, *path = nb_path_join(p->dir, NB_INDEX_NAME);
    uint64_t total = 0;
    nb_status st = path ? NB_OK : nb_fail_nomem(err, "a path", 0);
    if (st == NB_OK && p->no_index) {
        root = json_pack("{s:{s:i},s:{}}", "metadata", "total_size", 0, "weight_map");
        if (!root) st = nb_fail_nomem(err, "the index", 0);
    } else if (st == NB_OK) {
        st = nb_file_slurp(path, (size_t)256 << 20, &old, err);
        if (st == NB_OK) st = nb_json_tree(path, nb_buf_str(&old), old.len, &root, err);
    }
    if (st != NB_OK) goto out;
    map = new_map(p, json_object_get(root, "weight_map"));
    if (!map) {
        st = nb_fail_nomem(err, "the index", old.len);
        goto out;
    }
    if (p->index && (st = complete_map(p, dir, map, &total, err))) goto out;
    if (!p->index && !p->blind) {
        json_t *scratch = json_deep_copy(map); /* only the sum is wanted: the rest is as it was */
        st = scratch && json_equal(scratch, map) ? complete_map(p, dir, scratch, &total, err)
                                                 : nb_fail_nomem(err, "the index", old.len);
        json_decref(scratch);
        if (st != NB_OK) goto out;
    }
    json_t *meta = json_object_get(root, "metadata");
    bool ok = json_object_set_nocheck(root, "weight_map", map) == 0;
    if ((!p->blind || p->no_index) && json_is_object(meta) && json_object_get(meta, "total_size"))
        ok = ok && json_object_set_new(meta, "total_size", json_integer((json_int_t)total)) == 0;
    text = ok ? json_dumps(root, JSON_INDENT(2)) : NULL;
    st = text ? replace_file(p, dir, NB_INDEX_NAME, text, strlen(text), log, err)
              : nb_fail_nomem(err, "the index", 0);
out:
    free(text);
    free(path);
    json_decref(map);
    json_decref(root);
    nb_buf_free(&old);
    return st;
}

/* ---- the folder ---- */

typedef struct touched {
    const nb_plan *p;
    const bool *shard; /* [files] */
    bool index;
} touched;

static bool is_touched(void *ctx, const char *name)
{
    const touched *t = ctx;
    if (strcmp(name, NB_REPAIR_LOG) == 0 || strcmp(name, NB_REPAIR_OLD) == 0) return true;
    if (t->index && strcmp(name, NB_INDEX_NAME) == 0) return true;
    for (size_t i = 0; i < t->p->n_files; i++) {
        if (strcmp(t->p->files[i].name, name) == 0) return true;
    }
    for (uint32_t i = 0; i < nb_ckpt_files(t->p->ckpt); i++) {
        if (t->shard[i] && strcmp(nb_ckpt_file_name(t->p->ckpt, i), name) == 0) return true;
    }
    return false;
}

/* The log of an earlier repair is kept in this one's, so that undoing twice gives the first source back. */
static nb_status keep_earlier(const nb_plan *p, nb_relog *log, const char *name, nb_error *err)
{
    nb_file f = {.fd = -1};
    unsigned char *bytes = malloc(CHUNK);
    char *path = nb_path_join(p->dir, name);
    nb_status st = path && bytes ? NB_OK : nb_fail_nomem(err, "an earlier log", CHUNK);
    if (st == NB_OK && access(path, F_OK) == 0) {
        st = nb_file_open(path, &f, err);
        nb_relog_begin(log, name);
        for (uint64_t at = 0; st == NB_OK && at < f.size;) {
            size_t n = f.size - at < CHUNK ? (size_t)(f.size - at) : CHUNK;
            st = nb_file_read(&f, at, bytes, n, err);
            if (st == NB_OK) st = nb_relog_lost(log, bytes, n, err);
            at += n;
        }
        nb_relog_end(log);
    }
    nb_file_close(&f);
    free(path);
    free(bytes);
    return st;
}

nb_status nb_plan_write(nb_plan *p, const char *dir, const nb_sink *sink, nb_error *err)
{
    nb_relog log = {0};
    const uint32_t files = (uint32_t)nb_ckpt_files(p->ckpt);
    bool *shards = calloc(files + 1, sizeof *shards), structural = false;
    touched t = {.p = p, .shard = shards};
    char *index = nb_path_join(p->dir, NB_INDEX_NAME);
    nb_status st = shards && index ? NB_OK : nb_fail_nomem(err, "a list of shards", files);
    if (st != NB_OK) goto out;
    for (size_t i = 0; i < p->n_edits; i++) {
        shards[p->edits[i]->file] = true;
        structural = structural || nb_edit_structural(p->edits[i]);
    }
    t.index = (structural || p->index) && (p->no_index || access(index, F_OK) == 0);
    if ((st = nb_relog_open(&log, dir, err))) goto out;
    if ((st = keep_earlier(p, &log, NB_REPAIR_LOG, err))) goto out;
    if ((st = keep_earlier(p, &log, NB_REPAIR_OLD, err))) goto out;
    if ((st = nb_copy_tree(p->dir, dir, is_touched, &t, sink, err))) goto out;
    for (uint32_t f = 0; f < files && st == NB_OK; f++) {
        if (shards[f]) st = write_shard(p, f, dir, &log, err);
    }
    if (st == NB_OK && t.index) st = write_index(p, dir, &log, err);
    for (size_t i = 0; i < p->n_files && st == NB_OK; i++) {
        nb_buf *text = &p->files[i].text;
        st = replace_file(p, dir, p->files[i].name, nb_buf_str(text), text->len, &log, err);
    }
    if (st == NB_OK) st = nb_relog_close(&log, dir, p, err);
out:
    nb_relog_free(&log);
    free(shards);
    free(index);
    return st;
}
