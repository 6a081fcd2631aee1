/*
 * NB001, NB002, NB008: the files themselves. Most of it is found by the reader while it opens the folder leniently, and
 * arrives here one problem at a time; what belongs together (all tensors of one lost shard) becomes one finding.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "doctor/rules.h"

static const nb_effect refused[NB_FAMILY_COUNT] = {
    {NB_EFFECT_REFUSED, "the file does not load"},
    {NB_EFFECT_REFUSED, "the file does not load"},
    {NB_EFFECT_REFUSED, "the file does not load"},
    {NB_EFFECT_REFUSED, "no GGUF can be made of it"},
};
static const nb_effect unseen[NB_FAMILY_COUNT] = {
    {NB_EFFECT_REFUSED, "loaders that follow the index do not see the tensor"},
    {NB_EFFECT_REFUSED, "loaders that follow the index do not see the tensor"},
    {NB_EFFECT_REFUSED, "loaders that follow the index do not see the tensor"},
    {NB_EFFECT_REFUSED, "a converter that follows the index does not see the tensor"},
};
static const nb_effect as_named[NB_FAMILY_COUNT] = {
    {NB_EFFECT_FINE, "what the index names is loaded"},
    {NB_EFFECT_FINE, "what the index names is loaded"},
    {NB_EFFECT_FINE, "what the index names is loaded"},
    {NB_EFFECT_FINE, "what the index names is converted"},
};

static const nb_effect either[NB_FAMILY_COUNT] = {
    {NB_EFFECT_WRONG, "loaders that read every *.safetensors take one of the two tensors, others the other"},
    {NB_EFFECT_WRONG, "loaders that read every *.safetensors take one of the two tensors, others the other"},
    {NB_EFFECT_WRONG, "loaders that read every *.safetensors take one of the two tensors, others the other"},
    {NB_EFFECT_WRONG,
     "converters that read every *.safetensors take one of the two tensors, others the other"},
};

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* path as seen from the model's folder. A path too long for nb_error has lost its beginning: its base name, then. */
static const char *relative(const char *dir, const char *path)
{
    size_t n = strlen(dir);
    while (n && dir[n - 1] == '/') n--;
    if (n && strncmp(path, dir, n) == 0 && path[n] == '/') return path + n + 1;
    return strncmp(path, "...", 3) == 0 ? base_name(path) : path;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* How far back a finding is looked for that one more tensor may join: more would make 100,000 odd file names cost a square. */
#define LOOK_BACK 256

/* A finding of this rule, severity and file with the same message, or SIZE_MAX. */
static size_t joinable(const nb_findings *l, const char *rule, nb_severity severity, const char *file,
                       const char *message)
{
    for (size_t k = 0; k < LOOK_BACK && k < l->count; k++) {
        const nb_finding *f = &l->items[l->count - 1 - k];
        if (f->severity == severity && f->file && strcmp(f->rule, rule) == 0 && strcmp(f->file, file) == 0 &&
            strcmp(f->message, message) == 0)
            return l->count - 1 - k;
    }
    return SIZE_MAX;
}

/* True when the problem is that `file` is not there, whether said of the shard or of a tensor in it. */
static bool is_lost_shard(nb_container *c, const nb_error *e, const char *file)
{
    if (e->status != NB_ERR_MISSING || !ends_with(file, ".safetensors")) return false;
    char *path = nb_path_join(c->dir, file);
    if (!path) c->found.bad = true;
    bool lost = path && access(path, F_OK) != 0;
    free(path);
    return lost;
}

static void index_problem(nb_container *c, nb_severity severity, const nb_error *e)
{
    nb_findings *l = &c->found;
    const char *file = relative(c->dir, e->file);
    const bool lost = is_lost_shard(c, e, file);
    const char *message = lost ? "the index names this shard; the folder does not have it" : e->cause;
    if (l->bad) return;
    size_t i = joinable(l, "NB002", severity, file, message);
    if (i == SIZE_MAX) {
        i = nb_findings_add(l, "NB002", severity, "%s", message);
        nb_findings_file(l, i, file);
        if (lost)
            nb_findings_expected(l, i, "a file of this name in the folder");
        else
            nb_findings_expected(l, i, "every tensor in exactly one shard, the one that the index names");
        nb_findings_remedy(l, i, severity == NB_SEVERITY_WARNING, "%s", e->remedy);
        nb_findings_effects(l, i, severity == NB_SEVERITY_ERROR ? refused : e->tensor[0] ? unseen : as_named);
        if (e->offset >= 0) nb_findings_bytes(l, i, (uint64_t)e->offset, (uint64_t)e->offset + 1);
    }
    if (e->tensor[0]) nb_findings_tensor(l, i, e->tensor);
}

static void file_problem(nb_findings *l, const char *dir, const char *rule, const char *message,
                         const char *expected, const nb_error *e)
{
    size_t i = nb_findings_add(l, rule, NB_SEVERITY_ERROR, "%s", message);
    nb_findings_file(l, i, relative(dir, e->file));
    if (e->tensor[0]) nb_findings_tensor(l, i, e->tensor);
    if (e->offset >= 0) nb_findings_bytes(l, i, (uint64_t)e->offset, (uint64_t)e->offset + 1);
    nb_findings_measured(l, i, "%s", e->cause);
    nb_findings_expected(l, i, "%s", expected);
    nb_findings_remedy(l, i, false, "%s", e->remedy[0] ? e->remedy : "download or export the file again");
    nb_findings_effects(l, i, refused);
}

static void not_data_problem(nb_findings *l, const char *dir, const nb_error *e)
{
    file_problem(l, dir, "NB008", "the file is not here: a Git LFS pointer, empty, or cut while it was read",
                 "the file's own content", e);
}

void nb_container_problem(void *ctx, nb_problem_kind kind, const nb_error *what)
{
    nb_container *c = ctx;
    switch (kind) {
    case NB_PROBLEM_FILE:
        file_problem(&c->found, c->dir, "NB001", "the file breaks the safetensors format",
                     "a header and data by the format's rules: every byte belongs to exactly one tensor",
                     what);
        c->blind = true;
        break;
    case NB_PROBLEM_INDEX: index_problem(c, NB_SEVERITY_ERROR, what); break;
    case NB_PROBLEM_INDEX_WARNING: index_problem(c, NB_SEVERITY_WARNING, what); break;
    case NB_PROBLEM_NOT_DATA:
        not_data_problem(&c->found, c->dir, what);
        c->blind = c->blind || ends_with(what->file, ".safetensors");
        break;
    case NB_PROBLEM_CONFIG:
        file_problem(&c->found, c->dir, "NB200",
                     "config.json cannot be read, so the architecture is not known",
                     "a JSON object that names model_type and the model's sizes", what);
        break;
    }
}

static bool is_shard(const nb_check *c, const char *name)
{
    for (size_t i = 0; i < nb_ckpt_files(c->ckpt); i++) {
        if (strcmp(nb_ckpt_file_name(c->ckpt, (uint32_t)i), name) == 0) return true;
    }
    return false;
}

/* A safetensors file that is no shard of the model. What it holds is only judged by name: Mistral's consolidated.safetensors and
 * adapters have names of their own and disturb nobody. */
static nb_status judge_stray(const nb_check *c, const char *name, nb_findings *out, nb_error *err)
{
    nb_safetensors *st = NULL;
    nb_error why = {0};
    size_t f = SIZE_MAX, n = 0;
    char *path = nb_path_join(c->dir, name);
    if (!path) return nb_fail_nomem(err, "a file's path", strlen(name));
    const nb_status s = nb_safetensors_open(path, &st, &why);
    free(path);
    if (s == NB_ERR_NOMEM && err) *err = why;
    if (s != NB_OK) return s == NB_ERR_NOMEM ? s : NB_OK; /* nobody needs it */
    for (size_t i = 0; i < nb_safetensors_count(st) && !out->bad; i++) {
        const nb_tensor_info *t = nb_safetensors_at(st, i);
        if (!nb_ckpt_find(c->ckpt, t->name)) continue;
        if (f == SIZE_MAX) {
            f = nb_findings_add(out, "NB002", NB_SEVERITY_WARNING,
                                "a file that is no shard of the model holds tensors of the same names");
            nb_findings_file(out, f, name);
            nb_findings_expected(out, f, "one file for each tensor");
            nb_findings_remedy(
                out, f, false,
                "an older upload or another revision: find out which is right and remove the other");
            nb_findings_effects(out, f, either);
        }
        nb_findings_tensor(out, f, t->name);
        n++;
    }
    if (f != SIZE_MAX)
        nb_findings_measured(out, f, "%zu of its %zu tensors are in the model's shards, too", n,
                             nb_safetensors_count(st));
    nb_safetensors_close(st);
    return NB_OK;
}

nb_status nb_rule_strays(const nb_check *c, nb_findings *out, nb_error *err)
{
    nb_status s = NB_OK;
    DIR *d = opendir(c->dir);
    if (!d) return NB_OK; /* nb_rule_not_data says why */
    for (struct dirent *e = readdir(d); e && s == NB_OK; e = readdir(d)) {
        if (ends_with(e->d_name, ".safetensors") && !is_shard(c, e->d_name))
            s = judge_stray(c, e->d_name, out, err);
    }
    closedir(d);
    return s;
}

/* True for files that a loader reads besides the shards; what else lies in the folder (pictures, other frameworks' weights)
 * harms nobody when it is a pointer. */
static bool is_read(const char *name)
{
    static const char *const ends[] = {".json", ".jinja", ".model", ".tiktoken", "merges.txt", "vocab.txt"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        if (ends_with(name, ends[i])) return true;
    }
    return false;
}

nb_status nb_rule_not_data(const nb_check *c, nb_findings *out, nb_error *err)
{
    static const char *const opened[] = {"config.json",
                                         "model.safetensors.index.json"}; /* reported when opened */
    nb_status s = NB_OK;
    DIR *d = opendir(c->dir);
    if (!d) {
        s = nb_fail(err, errno == ENOMEM ? NB_ERR_NOMEM : NB_ERR_IO, "cannot list the folder: %s",
                    strerror(errno));
        nb_error_at(err, c->dir, NULL, -1);
        return s;
    }
    for (struct dirent *e = readdir(d); e && s == NB_OK; e = readdir(d)) {
        nb_file f = {.fd = -1};
        nb_error why;
        if (!is_read(e->d_name) || strcmp(e->d_name, opened[0]) == 0 || strcmp(e->d_name, opened[1]) == 0)
            continue;
        char *path = nb_path_join(c->dir, e->d_name);
        if (!path) {
            s = nb_fail_nomem(err, "a file's path", strlen(e->d_name));
            break;
        }
        nb_status opening = nb_file_open(path, &f, &why);
        if (opening == NB_OK && nb_file_check_data(&f, &why) == NB_ERR_MISSING)
            not_data_problem(out, c->dir, &why);
        nb_file_close(&f);
        free(path);
        if (opening == NB_ERR_NOMEM) {
            s = NB_ERR_NOMEM;
            if (err) *err = why;
        }
    }
    closedir(d);
    return s;
}
