/*
 * Finding "org/name[@revision]" in the local Hugging Face cache, laid out as huggingface_hub does it:
 * CACHE/models--org--name/refs/REVISION holds a commit, CACHE/models--org--name/snapshots/COMMIT the files.
 * Nothing is downloaded: what is not there is an error with the command that fetches it.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* n characters of a repository or owner name: [A-Za-z0-9._-], no "..", not starting with a dot. */
static bool good_part(const char *s, size_t n)
{
    if (!n || n > 96 || s[0] == '.') return false;
    for (size_t i = 0; i < n; i++) {
        if (!isalnum((unsigned char)s[i]) && !strchr("._-", s[i])) return false;
        if (s[i] == '.' && i + 1 < n && s[i + 1] == '.') return false;
    }
    return true;
}

/* A branch, tag, commit or "refs/pr/1": parts of good_part joined by '/'. */
static bool good_revision(const char *s)
{
    for (;;) {
        size_t n = strcspn(s, "/");
        if (!good_part(s, n)) return false;
        if (!s[n]) return true;
        s += n + 1;
    }
}

/* huggingface_hub's order: HF_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub. */
static void add_cache(nb_buf *b)
{
    static const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", ""}, {"HF_HOME", "/hub"}, {"XDG_CACHE_HOME", "/huggingface/hub"}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *v = getenv(places[i].variable);
        if (!v || !*v) continue;
        nb_buf_adds(b, v);
        nb_buf_adds(b, places[i].below);
        return;
    }
    const char *home = getenv("HOME");
    nb_buf_adds(b, home ? home : "");
    nb_buf_adds(b, "/.cache/huggingface/hub");
}

/* The commit that the file refs/REVISION names, without the newline. *commit stays empty when there is no such ref, or it
 * holds something else. */
static nb_status read_ref(const char *path, nb_buf *commit)
{
    nb_status s = nb_file_slurp(path, 256, commit, NULL);
    while (commit->len && isspace((unsigned char)commit->data[commit->len - 1]))
        commit->data[--commit->len] = '\0';
    if (!good_part(nb_buf_str(commit), commit->len)) nb_buf_clear(commit);
    return s == NB_ERR_NOMEM ? s : NB_OK;
}

static nb_status not_cached(const char *id, size_t name, const char *revision, const char *repo,
                            nb_error *err)
{
    nb_fail(err, NB_ERR_MISSING,
            "there is no such folder, and no such model in the local Hugging Face cache (%s)", repo);
    nb_error_at(err, id, NULL, -1);
    nb_error_remedy(err, "correct the path, or: hf download %.*s%s%s", (int)name, id,
                    revision ? " --revision " : "", revision ? revision : "");
    return NB_ERR_MISSING;
}

nb_status nb_hub_resolve(const char *path_or_id, char **out, nb_error *err)
{
    struct stat st;
    nb_buf repo = {0}, path = {0}, commit = {0};
    nb_status s = NB_OK;
    if (stat(path_or_id, &st) == 0) {
        if (!S_ISDIR(st.st_mode)) {
            nb_fail(err, NB_ERR_ARGUMENT, "this is a file; expected the model's folder");
            nb_error_at(err, path_or_id, NULL, -1);
            return NB_ERR_ARGUMENT;
        }
        *out = strdup(path_or_id);
        return *out ? NB_OK : nb_fail_nomem(err, "a folder's path", strlen(path_or_id) + 1);
    }
    const char *slash = strchr(path_or_id, '/'), *at = strchr(path_or_id, '@');
    const char *revision = at ? at + 1 : NULL;
    size_t len = at ? (size_t)(at - path_or_id) : strlen(path_or_id);
    size_t owner = slash ? (size_t)(slash - path_or_id) : len;
    if (owner >= len || !good_part(path_or_id, owner) || !good_part(slash + 1, len - owner - 1) ||
        (revision && !good_revision(revision))) {
        nb_fail(err, NB_ERR_MISSING, "there is no such folder");
        nb_error_at(err, path_or_id, NULL, -1);
        nb_error_remedy(err,
                        "give a model folder, or a Hugging Face id such as org/name or org/name@revision");
        return NB_ERR_MISSING;
    }
    add_cache(&repo);
    nb_buf_addf(&repo, "/models--%.*s--%.*s", (int)owner, path_or_id, (int)(len - owner - 1), slash + 1);
    nb_buf_addf(&path, "%s/refs/%s", nb_buf_str(&repo), revision ? revision : "main");
    if (!nb_buf_ok(&repo) || !nb_buf_ok(&path)) goto nomem;
    if (read_ref(nb_buf_str(&path), &commit) != NB_OK) goto nomem;
    nb_buf_clear(&path);
    /* Without a ref the revision may itself be a commit. */
    if (commit.len || revision)
        nb_buf_addf(&path, "%s/snapshots/%s", nb_buf_str(&repo), commit.len ? nb_buf_str(&commit) : revision);
    if (!nb_buf_ok(&path)) goto nomem;
    if (!path.len || !is_folder(nb_buf_str(&path))) {
        s = not_cached(path_or_id, len, revision, nb_buf_str(&repo), err);
        goto out;
    }
    *out = strdup(nb_buf_str(&path));
    if (*out) goto out;
nomem:
    s = nb_fail_nomem(err, "a path in the model cache", repo.len + path.len);
out:
    nb_buf_free(&repo);
    nb_buf_free(&path);
    nb_buf_free(&commit);
    return s;
}
