/*
 * Opening a model folder. Three things can say which files hold the tensors: the index, a lone model.safetensors, and (only
 * when opening leniently, for `check`) the names of the files in the folder. Whatever disagrees is a problem, reported one
 * by one to the caller; without a listener the first that is no mere warning ends the call.
 *
 * A tensor that the index does not name is kept apart: loaders that follow the index never see it, so a model that needs
 * it must not load, but the error can say where it is.
 */
#include "checkpoint/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/pool.h"
#include "checkpoint/internal.h"

#define MAX_INDEX ((size_t)256 << 20)
#define MAX_CONFIG ((size_t)16 << 20)

typedef struct shard {
    char *name;         /* base name, as the index writes it */
    nb_safetensors *st; /* NULL: could not be opened */
    bool absent;        /* no such file, or its name leaves the folder */
} shard;

struct nb_ckpt {
    char *dir, *config_path;
    json_t *config;
    shard *shards;
    size_t n_shards, shards_cap;
    nb_tensor_info *tensors; /* the model's, then those that the index omits */
    size_t count, total;
    nb_map by_name;
};

typedef struct opener {
    nb_ckpt *c;
    nb_problem_fn on_problem;
    void *ctx;
    nb_error *err;
    nb_index index;
    bool indexed; /* index holds a parsed one */
    uint32_t
        *entries; /* of the index, for each tensor shard by shard, or NB_INDEX_NONE; NULL without an index */
} opener;

/* Hands one problem to the listener; without one, a problem that is no warning becomes the call's error. */
static nb_status report(opener *o, nb_problem_kind kind, const nb_error *what)
{
    if (what->status == NB_ERR_NOMEM || (!o->on_problem && kind != NB_PROBLEM_INDEX_WARNING)) {
        if (o->err) *o->err = *what;
        return what->status;
    }
    if (o->on_problem) o->on_problem(o->ctx, kind, what);
    return NB_OK;
}

/* A problem of the index: what is wrong with tensor (may be NULL), and in which file. */
static nb_status index_problem(opener *o, nb_problem_kind kind, const char *file, const char *tensor,
                               nb_status status, const char *remedy, const char *fmt, ...)
    __attribute__((format(printf, 7, 8)));
static nb_status index_problem(opener *o, nb_problem_kind kind, const char *file, const char *tensor,
                               nb_status status, const char *remedy, const char *fmt, ...)
{
    nb_error e;
    va_list ap;
    va_start(ap, fmt);
    nb_vfail(&e, status, fmt, ap);
    va_end(ap);
    nb_error_at(&e, file, tensor, -1);
    nb_error_remedy(&e, "%s", remedy);
    return report(o, kind, &e);
}

static nb_status add_shard(nb_ckpt *c, const char *name, nb_error *err)
{
    if (c->n_shards == c->shards_cap) {
        size_t cap = c->shards_cap ? 2 * c->shards_cap : 4;
        shard *p = realloc(c->shards, cap * sizeof *p);
        if (!p) return nb_fail_nomem(err, "the list of shards", cap * sizeof *p);
        c->shards = p;
        c->shards_cap = cap;
    }
    c->shards[c->n_shards] = (shard){.name = strdup(name)};
    if (!c->shards[c->n_shards].name) return nb_fail_nomem(err, "a shard's name", strlen(name) + 1);
    c->n_shards++;
    return NB_OK;
}

static int by_shard_name(const void *a, const void *b)
{
    return strcmp(((const shard *)a)->name, ((const shard *)b)->name);
}

/* Lenient opening without a usable index: every model*.safetensors there is. */
static nb_status scan_folder(opener *o)
{
    nb_status s = NB_OK;
    DIR *d = opendir(o->c->dir);
    if (!d) {
        s = nb_fail(o->err, errno == ENOMEM ? NB_ERR_NOMEM : NB_ERR_IO, "cannot list the folder");
        nb_error_at(o->err, o->c->dir, NULL, -1);
        return s;
    }
    for (struct dirent *e = readdir(d); e && s == NB_OK; e = readdir(d)) {
        size_t n = strlen(e->d_name), suffix = strlen(".safetensors");
        if (n > suffix && strncmp(e->d_name, "model", 5) == 0 &&
            strcmp(e->d_name + n - suffix, ".safetensors") == 0)
            s = add_shard(o->c, e->d_name, o->err);
    }
    closedir(d);
    if (s == NB_OK && o->c->n_shards) qsort(o->c->shards, o->c->n_shards, sizeof(shard), by_shard_name);
    return s;
}

static nb_status in_folder(const nb_ckpt *c, const char *name, bool *there, nb_error *err)
{
    char *path = nb_path_join(c->dir, name);
    if (!path) return nb_fail_nomem(err, "a file's path", strlen(c->dir) + strlen(name));
    *there = access(path, F_OK) == 0;
    free(path);
    return NB_OK;
}

/* Reads the index, which exists. Not usable: reported, and the names of the files in the folder must do. */
static nb_status read_index(opener *o, const char *path, const nb_file *f)
{
    nb_buf text = {0};
    nb_error e;
    nb_problem_kind kind = NB_PROBLEM_NOT_DATA;
    nb_status s = nb_file_check_data(f, &e);
    if (s == NB_OK) {
        kind = NB_PROBLEM_INDEX;
        s = nb_file_slurp(path, MAX_INDEX, &text, &e);
    }
    if (s == NB_OK) s = nb_index_parse(path, nb_buf_str(&text), text.len, &o->index, &e);
    nb_buf_free(&text);
    if (s == NB_OK) {
        o->indexed = true;
        return NB_OK;
    }
    s = report(o, kind, &e);
    return s == NB_OK ? scan_folder(o) : s;
}

/* The shards that the index names. */
static nb_status take_indexed(opener *o, const char *path)
{
    static const char single[] = "model.safetensors";
    bool stray, named = false;
    nb_status s = in_folder(o->c, single, &stray, o->err);
    for (size_t i = 0; i < o->index.n_files && s == NB_OK; i++) {
        s = add_shard(o->c, o->index.files[i], o->err);
        named = named || strcmp(o->index.files[i], single) == 0;
    }
    if (s == NB_OK && stray && !named)
        s = index_problem(
            o, NB_PROBLEM_INDEX_WARNING, path, NULL, NB_ERR_FORMAT, "delete one of the two",
            "beside the index lies a model.safetensors that it does not name; the index counts here, "
            "and transformers loads the other");
    return s;
}

/* There is no index: model.safetensors, or else (leniently) the files that look like shards. */
static nb_status take_unindexed(opener *o, const char *path)
{
    nb_ckpt *c = o->c;
    bool single;
    nb_status s = in_folder(c, "model.safetensors", &single, o->err);
    if (s == NB_OK && single) return add_shard(c, "model.safetensors", o->err);
    if (s == NB_OK && o->on_problem) s = scan_folder(o);
    if (s != NB_OK) return s;
    if (c->n_shards)
        return index_problem(o, NB_PROBLEM_INDEX, path, NULL, NB_ERR_MISSING, "download it again",
                             "shards are there, but not the index that names them");
    nb_fail(o->err, NB_ERR_MISSING,
            "the folder has neither model.safetensors nor model.safetensors.index.json");
    nb_error_at(o->err, c->dir, NULL, -1);
    nb_error_remedy(o->err, "download the model again, its index included (`hf download`)");
    return NB_ERR_MISSING;
}

/* Which files hold the tensors: fills shards, and the index where there is one. */
static nb_status find_shards(opener *o)
{
    nb_file f = {.fd = -1};
    nb_error e;
    char *path = nb_path_join(o->c->dir, "model.safetensors.index.json");
    if (!path) return nb_fail_nomem(o->err, "the index's path", strlen(o->c->dir));
    nb_status s = nb_file_open(path, &f, &e);
    if (s == NB_ERR_MISSING) {
        s = take_unindexed(o, path);
    } else if (s != NB_OK) {
        s = report(o, NB_PROBLEM_INDEX, &e);
        if (s == NB_OK) s = scan_folder(o);
    } else {
        s = read_index(o, path, &f);
        if (s == NB_OK && o->indexed) s = take_indexed(o, path);
    }
    nb_file_close(&f);
    free(path);
    return s;
}

/* Headers of so many shards are read at a time, by several threads: an index of 256 MiB may name millions of files that are not there,
 * and an error takes over a kilobyte. */
#define AT_ONCE 256

/* What is wrong with each of them, to be reported in their order. */
typedef struct headers {
    nb_ckpt *c;
    size_t first;
    nb_error errors[AT_ONCE];
} headers;

static void open_files(void *ctx, size_t thread, size_t begin, size_t end)
{
    headers *h = ctx;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        shard *sh = &h->c->shards[h->first + i];
        if (!nb_index_plain_name(sh->name)) continue; /* reported with each tensor that it should hold */
        char *path = nb_path_join(h->c->dir, sh->name);
        if (path)
            nb_safetensors_open(path, &sh->st, &h->errors[i]);
        else
            nb_fail_nomem(&h->errors[i], "a shard's path", strlen(sh->name));
        free(path);
    }
}

static nb_status judge_shard(opener *o, shard *sh, nb_error *e)
{
    if (sh->st) return NB_OK;
    if (!nb_index_plain_name(sh->name)) {
        sh->absent = true;
        return NB_OK;
    }
    if (e->status != NB_ERR_MISSING) return report(o, NB_PROBLEM_FILE, e);
    char *path = nb_path_join(o->c->dir, sh->name);
    if (!path) return nb_fail_nomem(o->err, "a shard's path", strlen(sh->name));
    nb_problem_kind kind = NB_PROBLEM_NOT_DATA;
    if (access(path, F_OK) != 0) {
        sh->absent = true;
        kind = NB_PROBLEM_INDEX;
        nb_fail(e, NB_ERR_MISSING, "the index names this shard; the folder does not have it");
        nb_error_at(e, path, NULL, -1);
        nb_error_remedy(e, "download it (`hf download` fetches what is missing)");
    }
    free(path);
    return report(o, kind, e);
}

/* Threads for headers of this many tensors: of fewer one thread reads them sooner than a second has started. */
#define MANY_TENSORS 10000
#define MAX_OPENERS 8

/* Those from h->first on, n of them. */
static nb_status open_some(opener *o, headers *h, size_t n, nb_pool *pool)
{
    memset(h->errors, 0, n * sizeof *h->errors);
    nb_pool_share(pool, n, 1, open_files, h);
    for (size_t i = 0; i < n; i++) { /* before what was found with the memory there was */
        if (h->errors[i].status != NB_ERR_NOMEM) continue;
        if (o->err) *o->err = h->errors[i];
        return NB_ERR_NOMEM;
    }
    nb_status s = NB_OK;
    for (size_t i = 0; i < n && s == NB_OK; i++)
        s = judge_shard(o, &o->c->shards[h->first + i], &h->errors[i]);
    return s;
}

static nb_status open_shards(opener *o)
{
    nb_ckpt *c = o->c;
    nb_status s = NB_OK;
    headers *h = calloc(1, sizeof *h);
    nb_pool *pool = NULL;
    if (!h) return nb_fail_nomem(o->err, "the shards' headers", sizeof *h);
    h->c = c;
    if (o->indexed && o->index.count >= MANY_TENSORS && c->n_shards > 1) {
        size_t threads = c->n_shards < MAX_OPENERS ? c->n_shards : MAX_OPENERS, most = 0;
        s = nb_pool_default(&most, o->err);
        if (s == NB_OK) s = nb_pool_new(most < threads ? most : threads, &pool, o->err);
        if (s != NB_ERR_NOMEM) s = NB_OK; /* threads that the system refuses only make it slower */
    }
    for (; h->first < c->n_shards && s == NB_OK; h->first += AT_ONCE)
        s = open_some(o, h, c->n_shards - h->first < AT_ONCE ? c->n_shards - h->first : AT_ONCE, pool);
    nb_pool_free(pool);
    free(h);
    return s;
}

/* Compares each tensor that a shard holds with what the index says of it; *entry is where that stands. */
static nb_status match_tensor(opener *o, uint32_t file, const nb_tensor_info *t, uint32_t *entry)
{
    if (!nb_map_get(&o->index.by_name, t->name, strlen(t->name), entry)) {
        *entry = NB_INDEX_NONE;
        return index_problem(
            o, NB_PROBLEM_INDEX_WARNING, nb_ckpt_file_path(o->c, file), t->name, NB_ERR_FORMAT,
            "add it to weight_map, or remove it from the shard",
            "the shard holds this tensor, the index does not name it, so loaders may not see it");
    }
    nb_index_entry *e = &o->index.entries[*entry];
    if (e->file == file)
        e->here = true;
    else
        e->other = file;
    return NB_OK;
}

/* Compares what the index says of each tensor with where it was found. */
static nb_status match_entry(opener *o, const nb_index_entry *e)
{
    nb_ckpt *c = o->c;
    const shard *sh = &c->shards[e->file];
    if (!nb_index_plain_name(sh->name))
        return index_problem(o, NB_PROBLEM_INDEX, sh->name, e->name, NB_ERR_FORMAT,
                             "download the index again; do not trust where this one came from",
                             "the index names a file outside the model's folder");
    if (e->other != NB_INDEX_NONE && e->here)
        return index_problem(o, NB_PROBLEM_INDEX, nb_ckpt_file_path(c, e->other), e->name, NB_ERR_FORMAT,
                             "remove it from the shard that the index does not name",
                             "%s holds this tensor too", sh->name);
    if (e->other != NB_INDEX_NONE)
        return index_problem(o, NB_PROBLEM_INDEX, nb_ckpt_file_path(c, e->other), e->name, NB_ERR_FORMAT,
                             "download the index again, or correct this entry",
                             "the tensor is here; the index says that it is in %s", sh->name);
    if (e->here) return NB_OK;
    if (sh->absent)
        return index_problem(o, NB_PROBLEM_INDEX, sh->name, e->name, NB_ERR_MISSING,
                             "download it (`hf download` fetches what is missing)",
                             "the tensor's shard is missing");
    if (!sh->st) return NB_OK; /* the shard itself was reported */
    return index_problem(o, NB_PROBLEM_INDEX, nb_ckpt_file_path(c, e->file), e->name, NB_ERR_MISSING,
                         "download shard and index again",
                         "the index says that this shard holds the tensor; it does not");
}

static size_t count_all(const nb_ckpt *c)
{
    size_t total = 0;
    for (size_t f = 0; f < c->n_shards; f++)
        total += c->shards[f].st ? nb_safetensors_count(c->shards[f].st) : 0;
    return total;
}

static nb_status match_index(opener *o)
{
    nb_ckpt *c = o->c;
    nb_status s = NB_OK;
    bool whole = true;
    double bytes = 0;
    size_t at = 0;
    o->entries = calloc(count_all(c) + 1, sizeof *o->entries);
    if (!o->entries) return nb_fail_nomem(o->err, "the list of tensors", count_all(c) * sizeof *o->entries);
    for (size_t f = 0; f < c->n_shards; f++) {
        const nb_safetensors *st = c->shards[f].st;
        whole = whole && st;
        for (size_t i = 0; st && i < nb_safetensors_count(st); i++) {
            const nb_tensor_info *t = nb_safetensors_at(st, i);
            s = match_tensor(o, (uint32_t)f, t, &o->entries[at++]);
            if (s != NB_OK) return s;
            bytes += (double)(t->end - t->begin);
        }
    }
    for (size_t i = 0; i < o->index.count; i++) {
        s = match_entry(o, &o->index.entries[i]);
        if (s != NB_OK) return s;
    }
    if (whole && o->index.has_total && bytes != o->index.total_size)
        s = index_problem(o, NB_PROBLEM_INDEX_WARNING, "model.safetensors.index.json", NULL, NB_ERR_FORMAT,
                          "write the right sum (`nibble repair`); no loader depends on it",
                          "metadata.total_size is %.0f; the tensors have %.0f bytes", o->index.total_size,
                          bytes);
    return s;
}

/* True when loaders that follow the index take the at-th tensor, which is in this file. */
static bool is_listed(const opener *o, uint32_t file, size_t at)
{
    if (!o->indexed) return true;
    if (o->entries[at] == NB_INDEX_NONE) return false;
    const nb_index_entry *e = &o->index.entries[o->entries[at]];
    return e->here ? e->file == file : e->other == file;
}

/* Makes one table of the shards' tensors. */
static nb_status gather(opener *o)
{
    nb_ckpt *c = o->c;
    const size_t total = count_all(c);
    if (total >= NB_INDEX_NONE) return nb_fail(o->err, NB_ERR_LIMIT, "%zu tensors are too many", total);
    c->tensors = calloc(total ? total : 1, sizeof *c->tensors);
    if (!c->tensors || !nb_map_reserve(&c->by_name, total))
        return nb_fail_nomem(o->err, "the list of tensors",
                             total * (sizeof *c->tensors + sizeof(nb_map_slot)));
    for (int listed = 1; listed >= 0 && c->total < total; listed--) {
        size_t at = 0;
        for (size_t f = 0; f < c->n_shards; f++) {
            const nb_safetensors *st = c->shards[f].st;
            for (size_t i = 0; st && i < nb_safetensors_count(st); i++) {
                const nb_tensor_info *t = nb_safetensors_at(st, i);
                size_t len = strlen(t->name);
                if (is_listed(o, (uint32_t)f, at++) != listed) continue;
                /* The index names each tensor once, in one file. */
                if (!(o->indexed && listed) && nb_map_get(&c->by_name, t->name, len, NULL)) {
                    if (o->indexed) continue; /* reported by match_entry */
                    nb_status s = index_problem(o, NB_PROBLEM_INDEX, nb_ckpt_file_path(c, (uint32_t)f),
                                                t->name, NB_ERR_FORMAT, "remove it from one of them",
                                                "another shard holds this tensor too");
                    if (s != NB_OK) return s;
                    continue;
                }
                c->tensors[c->total] = *t;
                c->tensors[c->total].file = (uint32_t)f;
                nb_map_put(&c->by_name, t->name, len, (uint32_t)c->total,
                           NULL); /* reserved above: cannot fail */
                c->total++;
            }
        }
        if (listed) c->count = c->total;
    }
    return NB_OK;
}

static nb_status read_config(opener *o)
{
    nb_ckpt *c = o->c;
    nb_buf text = {0};
    nb_file f = {.fd = -1};
    nb_error e;
    nb_problem_kind kind = NB_PROBLEM_CONFIG;
    nb_status s = nb_file_open(c->config_path, &f, &e);
    if (s == NB_ERR_MISSING)
        nb_error_remedy(&e, "download config.json; without it the architecture is unknown");
    if (s == NB_OK) {
        s = nb_file_check_data(&f, &e);
        if (s != NB_OK) kind = NB_PROBLEM_NOT_DATA;
    }
    if (s == NB_OK) s = nb_file_slurp(c->config_path, MAX_CONFIG, &text, &e);
    if (s == NB_OK) s = nb_config_parse(c->config_path, nb_buf_str(&text), text.len, &c->config, &e);
    if (s != NB_OK) s = report(o, kind, &e);
    nb_buf_free(&text);
    nb_file_close(&f);
    return s;
}

nb_status nb_ckpt_open(const char *path, nb_problem_fn on_problem, void *ctx, nb_ckpt **out, nb_error *err)
{
    nb_ckpt *c = calloc(1, sizeof *c);
    if (!c) return nb_fail_nomem(err, "a checkpoint", sizeof *c);
    opener o = {.c = c, .on_problem = on_problem, .ctx = ctx, .err = err};
    nb_status s = nb_hub_resolve(path, &c->dir, err);
    if (s != NB_OK) goto out;
    c->config_path = nb_path_join(c->dir, "config.json");
    if (!c->config_path) {
        s = nb_fail_nomem(err, "config.json's path", strlen(c->dir));
        goto out;
    }
    s = read_config(&o);
    if (s == NB_OK) s = find_shards(&o);
    if (s == NB_OK) s = open_shards(&o);
    if (s == NB_OK && o.indexed) s = match_index(&o);
    if (s == NB_OK) s = gather(&o);
out:
    nb_index_free(&o.index);
    free(o.entries);
    if (s == NB_OK)
        *out = c;
    else
        nb_ckpt_close(c);
    return s;
}

void nb_ckpt_close(nb_ckpt *c)
{
    if (!c) return;
    for (size_t i = 0; i < c->n_shards; i++) {
        free(c->shards[i].name);
        nb_safetensors_close(c->shards[i].st);
    }
    free(c->shards);
    free(c->tensors);
    nb_map_free(&c->by_name);
    json_decref(c->config);
    free(c->config_path);
    free(c->dir);
    free(c);
}

const char *nb_ckpt_dir(const nb_ckpt *c)
{
    return c->dir;
}

const json_t *nb_ckpt_config(const nb_ckpt *c)
{
    return c->config;
}

const char *nb_ckpt_config_path(const nb_ckpt *c)
{
    return c->config_path;
}

size_t nb_ckpt_count(const nb_ckpt *c)
{
    return c->count;
}

const nb_tensor_info *nb_ckpt_at(const nb_ckpt *c, size_t i)
{
    return &c->tensors[i];
}

static const nb_tensor_info *find(const nb_ckpt *c, const char *name, bool listed)
{
    uint32_t i;
    if (!nb_map_get(&c->by_name, name, strlen(name), &i) || (i < c->count) != listed) return NULL;
    return &c->tensors[i];
}

const nb_tensor_info *nb_ckpt_find(const nb_ckpt *c, const char *name)
{
    return find(c, name, true);
}

const nb_tensor_info *nb_ckpt_unlisted(const nb_ckpt *c, const char *name)
{
    return find(c, name, false);
}

size_t nb_ckpt_files(const nb_ckpt *c)
{
    return c->n_shards;
}

const char *nb_ckpt_file_name(const nb_ckpt *c, uint32_t file)
{
    return c->shards[file].name;
}

const char *nb_ckpt_file_path(const nb_ckpt *c, uint32_t file)
{
    const shard *sh = &c->shards[file];
    return sh->st ? nb_safetensors_file(sh->st)->path : sh->name;
}

const nb_file *nb_ckpt_file(const nb_ckpt *c, uint32_t file)
{
    return nb_safetensors_file(c->shards[file].st);
}

uint64_t nb_ckpt_bytes(const nb_ckpt *c)
{
    uint64_t n = 0;
    for (size_t i = 0; i < c->n_shards; i++)
        n += c->shards[i].st ? nb_safetensors_file(c->shards[i].st)->size : 0;
    return n;
}

nb_status nb_ckpt_read(const nb_ckpt *c, const nb_tensor_info *t, uint64_t offset, void *dst, size_t n,
                       nb_error *err)
{
    return nb_safetensors_read(c->shards[t->file].st, t, offset, dst, n, err);
}
