/*
 * Folders as wholes: a new one is filled under a temporary name beside its final one and gets that in one rename, so that a
 * crash, a full disk or kill -9 leaves either nothing under the final name or all of it.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "doctor/repair_plan.h"
#include "models/packed_cache.h"

#define MAX_DEPTH 32

static nb_status fail_at(nb_error *err, const char *what, const char *path)
{
    int e = errno;
    nb_status s = e == ENOMEM ? NB_ERR_NOMEM : e == ENOENT ? NB_ERR_MISSING : NB_ERR_IO;
    nb_fail(err, s, "cannot %s: %s", what,
            strerror(e)); /* NOLINT(concurrency-mt-unsafe): glibc's is per thread */
    nb_error_at(err, path, NULL, -1);
    if (e == ENOENT) nb_error_remedy(err, "make the folder that it is to lie in first");
    if (e == EACCES || e == EPERM || e == EROFS)
        nb_error_remedy(err, "choose a place that can be written to");
    if (e == ENOSPC || e == EDQUOT) nb_error_remedy(err, "free space on that disk, or choose another target");
    return s;
}

static nb_status refuse(nb_error *err, const char *path, const char *why, const char *remedy)
{
    nb_fail(err, NB_ERR_ARGUMENT, "%s", why);
    nb_error_at(err, path, NULL, -1);
    nb_error_remedy(err, "%s", remedy);
    return NB_ERR_ARGUMENT;
}

/* The real path of the folder that `path` is to lie in. NULL with errno set. */
static char *real_parent(const char *path)
{
    char *copy = strdup(path), *slash = copy ? strrchr(copy, '/') : NULL;
    if (!copy) {
        errno = ENOMEM;
        return NULL;
    }
    if (slash) slash[slash == copy ? 1 : 0] = '\0';
    char *real = realpath(slash ? copy : ".", NULL);
    free(copy);
    return real;
}

static nb_status check_target(const char *path, const char *source, nb_error *err)
{
    struct stat st;
    nb_status s = NB_OK;
    char *from = realpath(source, NULL), *to = NULL, *parent = NULL;
    if (!from) {
        s = fail_at(err, "find the source folder", source);
        goto out;
    }
    if (lstat(path, &st) == 0) {
        to = realpath(path, NULL);
        if (to && strcmp(from, to) == 0)
            s = refuse(err, path,
                       "the target is the source itself; a repair never writes into the model's folder",
                       "give another folder with -o");
        else
            s = refuse(err, path, "the target exists", "remove it, or give another folder with -o");
        goto out;
    }
    parent = real_parent(path);
    const size_t n = strlen(from);
    if (!parent)
        s = fail_at(err, "make the target folder", path);
    else if (strncmp(parent, from, n) == 0 && (parent[n] == '/' || parent[n] == '\0'))
        s = refuse(err, path, "the target lies inside the source folder",
                   "give a folder outside of it with -o");
out:
    free(from);
    free(to);
    free(parent);
    return s;
}

nb_status nb_new_folder_make(const char *path, const char *source, nb_new_folder *out, nb_error *err)
{
    nb_new_folder f = {0};
    nb_status s = NB_OK;
    nb_buf temp = {0};
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    f.path = strndup(path, n);
    if (!f.path || !n) {
        s = n ? nb_fail_nomem(err, "the target's path", n)
              : nb_fail(err, NB_ERR_ARGUMENT, "the target has no name");
        goto out;
    }
    if ((s = check_target(f.path, source, err))) goto out;
    for (unsigned i = 0;; i++) {
        nb_buf_clear(&temp);
        nb_buf_addf(&temp, "%s.tmp-%ld-%u", f.path, (long)getpid(), i);
        if (!nb_buf_ok(&temp)) {
            s = nb_fail_nomem(err, "the target's path", n);
            goto out;
        }
        if (mkdir(nb_buf_str(&temp), 0777) == 0) break;
        if (errno == EEXIST) continue;
        s = fail_at(err, "make the target folder", f.path);
        goto out;
    }
    f.temp = temp.data;
    temp = (nb_buf){0};
    *out = f;
    f = (nb_new_folder){0};
out:
    nb_buf_free(&temp);
    free(f.path);
    return s;
}

static void remove_tree(const char *path, int depth)
{
    DIR *d = depth < MAX_DEPTH ? opendir(path) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        char *p = nb_path_join(path, e->d_name);
        if (p && lstat(p, &st) == 0 && S_ISDIR(st.st_mode))
            remove_tree(p, depth + 1);
        else if (p)
            unlink(p);
        free(p);
    }
    if (d) closedir(d);
    rmdir(path);
}

static void folder_free(nb_new_folder *f)
{
    free(f->path);
    free(f->temp);
    *f = (nb_new_folder){0};
}

void nb_new_folder_abort(nb_new_folder *f)
{
    if (!f->temp) return;
    remove_tree(f->temp, 0);
    folder_free(f);
}

nb_status nb_new_folder_commit(nb_new_folder *f, nb_error *err)
{
    nb_status s = NB_OK;
    char *parent = real_parent(f->path);
    int fd = -1;
    if (!parent) {
        s = fail_at(err, "find the target's folder", f->path);
        nb_new_folder_abort(f);
        return s;
    }
    /* NOREPLACE: someone may have made a folder of that name meanwhile. File systems without it (EINVAL) refuse to rename onto a
     * folder that is not empty, which is all that is lost then. */
    int failed = renameat2(AT_FDCWD, f->temp, AT_FDCWD, f->path, RENAME_NOREPLACE);
    if (failed && errno == EINVAL) failed = rename(f->temp, f->path);
    if (failed) {
        s = fail_at(err, "give the finished folder its name", f->path);
        nb_new_folder_abort(f);
        free(parent);
        return s;
    }
    fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd); /* only a power cut could still lose the name; the files themselves are safe */
        close(fd);
    }
    free(parent);
    folder_free(f);
    return s;
}

static nb_status copy_file(const char *from, const char *to, const nb_sink *sink, nb_error *err)
{
    nb_file f = {.fd = -1};
    nb_writer *w = NULL;
    const size_t chunk = (size_t)1 << 20;
    unsigned char *bytes = malloc(chunk);
    nb_status s = bytes ? nb_file_open(from, &f, err) : nb_fail_nomem(err, "a copy buffer", chunk);
    if (s == NB_OK) s = nb_writer_open(to, &w, err);
    for (uint64_t at = 0; s == NB_OK && at < f.size;) {
        size_t n = f.size - at < chunk ? (size_t)(f.size - at) : chunk;
        s = nb_file_read(&f, at, bytes, n, err);
        if (s == NB_OK) s = nb_writer_put(w, bytes, n, err);
        at += n;
    }
    if (s == NB_OK) {
        s = nb_writer_commit(w, err);
    } else {
        nb_writer_abort(w);
    }
    nb_file_close(&f);
    free(bytes);
    return s;
}

typedef struct copier {
    bool (*skip)(void *ctx, const char *name);
    void *ctx;
    const nb_sink *sink;
} copier;

/* The cache of packed weights, and what a start that was killed left of one: of other files than the copy's. */
static bool is_cache(const char *name)
{
    const size_t n = sizeof NB_PACKED_CACHE_NAME - 1;
    return strncmp(name, NB_PACKED_CACHE_NAME, n) == 0 && (!name[n] || strncmp(name + n, ".tmp-", 5) == 0);
}

/* rel: the path below the model's folder, "" at its top. */
static nb_status copy_tree(const copier *c, const char *from, const char *to, const char *rel, int depth,
                           nb_error *err)
{
    nb_status s = NB_OK;
    DIR *d = opendir(from);
    if (!d) return fail_at(err, "list the folder", from);
    if (depth >= MAX_DEPTH) {
        closedir(d);
        return refuse(err, from, "folders are nested more than 32 deep",
                      "remove what does not belong to the model");
    }
    for (struct dirent *e; s == NB_OK && (e = readdir(d));) {
        struct stat st;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 || strcmp(e->d_name, ".git") == 0 ||
            is_cache(e->d_name))
            continue;
        nb_buf name = {0};
        nb_buf_addf(&name, "%s%s%s", rel, *rel ? "/" : "", e->d_name);
        char *a = nb_path_join(from, e->d_name), *b = nb_path_join(to, e->d_name);
        if (!a || !b || !nb_buf_ok(&name)) {
            s = nb_fail_nomem(err, "a file's path", strlen(from));
        } else if (stat(a, &st) != 0) {
            s = fail_at(err, "examine", a);
        } else if (S_ISDIR(st.st_mode)) {
            s = mkdir(b, 0777) == 0 ? copy_tree(c, a, b, nb_buf_str(&name), depth + 1, err)
                                    : fail_at(err, "make the folder", b);
        } else if (S_ISREG(st.st_mode) && !c->skip(c->ctx, nb_buf_str(&name))) {
            s = copy_file(a, b, c->sink, err);
        }
        free(a);
        free(b);
        nb_buf_free(&name);
    }
    closedir(d);
    return s;
}

nb_status nb_copy_tree(const char *from, const char *to, bool (*skip)(void *ctx, const char *name), void *ctx,
                       const nb_sink *sink, nb_error *err)
{
    const copier c = {skip, ctx, sink};
    return copy_tree(&c, from, to, "", 0, err);
}
