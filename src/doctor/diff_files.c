/* The small files of two folders compared: weights that agree say little when the configs beside them do not. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_tree.h"
#include "doctor/diff.h"

#define MAX_FILE ((size_t)1 << 28)

/* Compared key by key where both are JSON objects, else as bytes. */
static const char *const files[] = {"config.json",
                                    "hf_quant_config.json",
                                    "generation_config.json",
                                    "tokenizer_config.json",
                                    "special_tokens_map.json",
                                    "tokenizer.json",
                                    "tokenizer.model",
                                    "chat_template.jinja",
                                    "chat_template.json",
                                    "vocab.json",
                                    "merges.txt"};
#define BY_KEY 5 /* the first so many; the others are data */

static bool add(nb_diff *d, const char *file, const char *key, char *a, char *b, char only)
{
    if (d->n_files == d->cap_files) {
        size_t cap = d->cap_files ? 2 * d->cap_files : 16;
        nb_diff_file *p = realloc(d->files, cap * sizeof *p);
        if (!p) return false;
        d->files = p;
        d->cap_files = cap;
    }
    nb_diff_file *f = &d->files[d->n_files];
    *f = (nb_diff_file){.file = file, .key = key ? strdup(key) : NULL, .a = a, .b = b, .only = only};
    if (key && !f->key) return false;
    d->n_files++;
    return true;
}

/* One key whose values differ; NULL: it is in the other alone. */
static bool add_key(nb_diff *d, const char *file, const char *key, const json_t *a, const json_t *b)
{
    char *x = a ? json_dumps(a, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    char *y = b ? json_dumps(b, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    bool ok = (!a || x) && (!b || y) && add(d, file, key, x, y, a && b ? 0 : a ? 'a' : 'b');
    if (ok) return true;
    free(x);
    free(y);
    return false;
}

/* path: the keys so far, "text_config."; the parser bounds the depth. */
static bool compare_objects(nb_diff *d, const char *file, nb_buf *path, json_t *a, json_t *b)
{
    const size_t had = path->len;
    const char *key;
    json_t *v;
    bool ok = true;
    for (int pass = 0; pass < 2 && ok; pass++) {
        json_object_foreach(pass ? b : a, key, v)
        {
            json_t *other = json_object_get(pass ? a : b, key);
            if (pass && other) continue; /* done in the first pass */
            if (other && json_equal(v, other)) continue;
            nb_buf_adds(path, key);
            if (json_is_object(v) && json_is_object(other)) {
                nb_buf_addc(path, '.');
                ok = nb_buf_ok(path) && compare_objects(d, file, path, v, other);
            } else {
                ok = nb_buf_ok(path) && add_key(d, file, nb_buf_str(path), pass ? NULL : v, pass ? v : other);
            }
            if (!ok) return false;
            path->len = had;
            if (path->data) path->data[had] = '\0'; /* "" is a key, too */
        }
    }
    return ok;
}

/* Absent: *there is false and that is no error. */
static nb_status slurp(const char *dir, const char *name, nb_buf *out, bool *there, nb_error *err)
{
    char *path = nb_path_join(dir, name);
    if (!path) return nb_fail_nomem(err, "a file's path", strlen(dir));
    nb_status s = nb_file_slurp(path, MAX_FILE, out, err);
    free(path);
    *there = s == NB_OK;
    return s == NB_ERR_MISSING ? NB_OK : s;
}

static nb_status compare_file(const char *a, const char *b, const char *name, bool by_key, nb_diff *d,
                              nb_error *err)
{
    nb_buf x = {0}, y = {0}, path = {0};
    json_t *p = NULL, *q = NULL;
    bool in_a, in_b, ok = true;
    nb_status s = slurp(a, name, &x, &in_a, err);
    if (s == NB_OK) s = slurp(b, name, &y, &in_b, err);
    if (s != NB_OK || (!in_a && !in_b)) goto out;
    if (in_a && in_b && x.len == y.len && (!x.len || memcmp(x.data, y.data, x.len) == 0)) goto out;
    if (in_a && in_b && by_key) {
        if (nb_json_tree(NULL, nb_buf_str(&x), x.len, &p, NULL) == NB_ERR_NOMEM ||
            nb_json_tree(NULL, nb_buf_str(&y), y.len, &q, NULL) == NB_ERR_NOMEM)
            ok = false;
    }
    if (ok && json_is_object(p) && json_is_object(q))
        ok = compare_objects(d, name, &path, p, q); /* other white space alone is no difference */
    else if (ok)
        ok = add(d, name, NULL, NULL, NULL, !in_a ? 'b' : !in_b ? 'a' : 0);
    if (!ok) s = nb_fail_nomem(err, "a list of files", d->n_files * sizeof *d->files);
out:
    json_decref(p);
    json_decref(q);
    nb_buf_free(&x);
    nb_buf_free(&y);
    nb_buf_free(&path);
    return s;
}

nb_status nb_diff_small_files(const char *a, const char *b, nb_diff *d, nb_error *err)
{
    nb_status s = NB_OK;
    for (size_t i = 0; i < sizeof files / sizeof *files && s == NB_OK; i++)
        s = compare_file(a, b, files[i], i < BY_KEY, d, err);
    return s;
}

static void json_or_null(const char *key, const char *json, nb_buf *out)
{
    nb_buf_addf(out, ",\"%s\":%s", key, json ? json : "null");
}

void nb_diff_files_json(const nb_diff *d, nb_buf *out)
{
    nb_buf_adds(out, ",\n\"files\":[");
    for (size_t i = 0; i < d->n_files; i++) {
        const nb_diff_file *f = &d->files[i];
        nb_buf_addf(out, "%s\n{\"file\":\"%s\",\"key\":", i ? "," : "", f->file);
        if (f->key)
            nb_buf_add_json(out, f->key, strlen(f->key));
        else
            nb_buf_adds(out, "null");
        json_or_null("a", f->a, out);
        json_or_null("b", f->b, out);
        if (f->only) nb_buf_addf(out, ",\"only\":\"%c\"", f->only);
        nb_buf_addc(out, '}');
    }
    nb_buf_addc(out, ']');
}

/* At most so many bytes of a value, not cutting a character. */
static void shortened(const char *text, nb_buf *out)
{
    enum { MOST = 60 };
    size_t n = text ? strlen(text) : 0;
    if (!text) {
        nb_buf_adds(out, "(absent)");
        return;
    }
    if (n <= MOST) {
        nb_buf_adds(out, text);
        return;
    }
    for (n = MOST; n && ((unsigned char)text[n] & 0xC0) == 0x80;) n--;
    nb_buf_add(out, text, n);
    nb_buf_adds(out, "…");
}

void nb_diff_files_text(const nb_diff *d, nb_buf *out)
{
    for (size_t i = 0; i < d->n_files; i++) {
        const nb_diff_file *f = &d->files[i];
        nb_buf_adds(out, f->file);
        if (f->key) {
            nb_buf_addf(out, "  %s: ", f->key);
            shortened(f->a, out);
            nb_buf_adds(out, " / ");
            shortened(f->b, out);
            nb_buf_addc(out, '\n');
        } else {
            nb_buf_adds(out, f->only == 'a'   ? "  is in the first folder alone\n"
                             : f->only == 'b' ? "  is in the second folder alone\n"
                                              : "  differs\n");
        }
    }
}
