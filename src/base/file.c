/* Files by descriptor and position. Reading never moves a shared offset, so any number of threads may read one file;
 * writing goes to a file without a name, or with a temporary one, in the same folder, so that a reader (or a crash) sees the old
 * file or the new one, and a file that someone still reads is never overwritten in place. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

/* One pread or write moves at most this much: Linux itself stops at 2 GiB less a page. */
#define CHUNK ((size_t)1 << 30)

static nb_status fail_errno(nb_error *err, const char *what, const char *path, int64_t offset)
{
    int e = errno;
    char text[128];
    const char *why = strerror_r(e, text, sizeof text);
    nb_status s = e == ENOMEM ? NB_ERR_NOMEM : e == ENOENT ? NB_ERR_MISSING : NB_ERR_IO;
    nb_fail(err, s, "cannot %s: %s", what, why);
    nb_error_at(err, path, NULL, offset);
    if (e == ENOENT)
        nb_error_remedy(err, "check the path; if a download is running, wait until it is complete");
    if (e == EACCES || e == EPERM) nb_error_remedy(err, "give this user permission to it");
    if (e == ENOSPC || e == EDQUOT) nb_error_remedy(err, "free space on that disk, or choose another output");
    if (e == EMFILE) nb_error_remedy(err, "raise the limit of open files (ulimit -n)");
    return s;
}

nb_status nb_file_open(const char *path, nb_file *out, nb_error *err)
{
    nb_status s;
    struct stat st;
    char *copy = NULL;
    /* O_NONBLOCK: opening a FIFO must not wait for its writer. It has no effect on a regular file. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return fail_errno(err, "open", path, -1);
    if (fstat(fd, &st) != 0) {
        s = fail_errno(err, "examine", path, -1);
        goto out;
    }
    if (!S_ISREG(st.st_mode)) {
        s = nb_fail(err, NB_ERR_FORMAT, "%s; expected a regular file",
                    S_ISDIR(st.st_mode) ? "this is a folder" : "this is a device, pipe or socket");
        nb_error_at(err, path, NULL, -1);
        goto out;
    }
    copy = strdup(path);
    if (!copy) {
        s = nb_fail_nomem(err, "a file's path", strlen(path) + 1);
        goto out;
    }
    *out = (nb_file){.fd = fd, .size = (uint64_t)st.st_size, .path = copy};
    return NB_OK;
out:
    close(fd);
    return s;
}

void nb_file_close(nb_file *f)
{
    if (f->fd >= 0) close(f->fd);
    free(f->path);
    *f = (nb_file){.fd = -1};
}

nb_status nb_file_read(const nb_file *f, uint64_t offset, void *dst, size_t n, nb_error *err)
{
    unsigned char *p = dst;
    if (offset > INT64_MAX || n > (uint64_t)INT64_MAX - offset) {
        nb_fail(err, NB_ERR_ARGUMENT, "byte range beyond what a file can hold");
        nb_error_at(err, f->path, NULL, -1);
        return NB_ERR_ARGUMENT;
    }
    while (n) {
        ssize_t got = pread(f->fd, p, n < CHUNK ? n : CHUNK, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_errno(err, "read", f->path, (int64_t)offset);
        if (got == 0) {
            nb_fail(err, NB_ERR_IO, "the file ends here; it had %llu bytes when it was opened",
                    (unsigned long long)f->size);
            nb_error_at(err, f->path, NULL, (int64_t)offset);
            nb_error_remedy(err, "it was cut short or replaced while in use: restore it and start again");
            return NB_ERR_IO;
        }
        p += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return NB_OK;
}

static const char pointer[] = "version https://git-lfs.github.com/spec/";

static nb_status no_data(const char *path, nb_status status, bool lfs, nb_error *err)
{
    nb_fail(err, status, "%s", lfs ? "this is a Git LFS pointer, not the file itself" : "the file is empty");
    nb_error_at(err, path, NULL, 0);
    nb_error_remedy(err, lfs ? "run `git lfs pull` in its folder, or `hf download` the model"
                             : "download it again; the last attempt left nothing");
    return status;
}

nb_status nb_file_check_data(const nb_file *f, nb_error *err)
{
    char start[sizeof pointer - 1];
    bool lfs = false;
    if (f->size >= sizeof start) {
        nb_status s = nb_file_read(f, 0, start, sizeof start, err);
        if (s != NB_OK) return s;
        lfs = memcmp(start, pointer, sizeof start) == 0;
    }
    return f->size && !lfs ? NB_OK : no_data(f->path, NB_ERR_MISSING, lfs, err);
}

nb_status nb_file_slurp(const char *path, size_t max, nb_buf *out, nb_error *err)
{
    nb_file f = {.fd = -1};
    nb_buf b = {0};
    nb_status s = nb_file_open(path, &f, err);
    if (s != NB_OK) return s;
    if (f.size > max) {
        s = nb_fail(err, NB_ERR_LIMIT, "the file has %llu bytes; at most %zu are read",
                    (unsigned long long)f.size, max);
        nb_error_at(err, path, NULL, -1);
        goto out;
    }
    if (!nb_buf_reserve(&b, (size_t)f.size)) {
        s = nb_fail_nomem(err, path, (size_t)f.size);
        goto out;
    }
    s = nb_file_read(&f, 0, b.data, (size_t)f.size, err);
    if (s != NB_OK) goto out;
    if (f.size >= sizeof pointer - 1 && memcmp(b.data, pointer, sizeof pointer - 1) == 0) {
        s = no_data(path, NB_ERR_FORMAT, true, err);
        goto out;
    }
    b.len = (size_t)f.size;
    b.data[b.len] = '\0';
    *out = b;
    b = (nb_buf){0};
out:
    nb_buf_free(&b);
    nb_file_close(&f);
    return s;
}

#define BUFFERED ((size_t)64 << 10)
#define TEMP_ROOM 48 /* of a temporary name behind the final one */

struct nb_writer {
    int fd;
    char *path, *temp;
    uint64_t written; /* bytes that reached the file */
    size_t held;      /* bytes that wait in buffer */
    bool failed;      /* some bytes are lost, so it must not be committed */
    bool named;       /* the file stands under temp */
    unsigned char buffer[BUFFERED];
};

static void writer_free(nb_writer *w)
{
    free(w->path);
    free(w->temp);
    free(w);
}

/* Puts the i-th temporary name into w->temp. Not mkstemp: its mode 0600 would stay on the finished file. */
static const char *temp_name(nb_writer *w, unsigned i)
{
    snprintf(w->temp, strlen(w->path) + TEMP_ROOM, "%s.tmp-%ld-%u", w->path, (long)getpid(), i);
    return w->temp;
}

/* Gives a file without a name, w->fd, a temporary one. */
static bool give_name(nb_writer *w)
{
    char self[40];
    snprintf(self, sizeof self, "/proc/self/fd/%d", w->fd);
    for (unsigned i = 0; !w->named; i++) {
        w->named = linkat(AT_FDCWD, self, AT_FDCWD, temp_name(w, i), AT_SYMLINK_FOLLOW) == 0;
        if (!w->named && errno != EEXIST) return false;
    }
    return true;
}

static int begin_nameless(nb_writer *w)
{
    const char *slash = strrchr(w->path, '/');
    const size_t n = slash ? (size_t)(slash - w->path) + 1 : 0;
    memcpy(w->temp, w->path, n);
    memcpy(w->temp + n, ".", 2);
    return open(w->temp, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
}

/* Opens w->fd as a file without a name: a program that is killed leaves no gigabytes behind. False: this file system has none, or
 * (tried with an empty one) they cannot be given a name. */
static bool open_nameless(nb_writer *w)
{
    w->fd = begin_nameless(w);
    if (w->fd < 0) return false;
    const bool ok = give_name(w);
    if (ok) unlink(w->temp);
    w->named = false;
    close(w->fd);
    w->fd = ok ? begin_nameless(w) : -1;
    return w->fd >= 0;
}

nb_status nb_writer_open(const char *path, nb_writer **out, nb_error *err)
{
    size_t cap = strlen(path) + TEMP_ROOM;
    nb_writer *w = calloc(1, sizeof *w);
    if (w) {
        w->path = strdup(path);
        w->temp = malloc(cap);
    }
    if (!w || !w->path || !w->temp) {
        if (w) writer_free(w);
        return nb_fail_nomem(err, "writing a file", sizeof *w + cap);
    }
    const bool nameless = open_nameless(w);
    for (unsigned i = 0; !nameless && !w->named; i++) {
        w->fd = open(temp_name(w, i), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        w->named = w->fd >= 0;
        if (!w->named && errno != EEXIST) break;
    }
    if (w->fd < 0) {
        nb_status s = fail_errno(err, "create", w->temp, -1);
        if (s == NB_ERR_MISSING) {
            nb_fail(err, s, "the folder to write into does not exist");
            nb_error_at(err, path, NULL, -1);
            nb_error_remedy(err, "make the folder first");
        }
        writer_free(w);
        return s;
    }
    *out = w;
    return NB_OK;
}

static nb_status write_all(nb_writer *w, const unsigned char *p, size_t n, nb_error *err)
{
    while (n) {
        ssize_t put = write(w->fd, p, n < CHUNK ? n : CHUNK);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) {
            w->failed = true;
            return fail_errno(err, "write", w->path, (int64_t)w->written);
        }
        p += put;
        n -= (size_t)put;
        w->written += (uint64_t)put;
    }
    return NB_OK;
}

static nb_status flush(nb_writer *w, nb_error *err)
{
    size_t n = w->held;
    w->held = 0;
    return write_all(w, w->buffer, n, err);
}

nb_status nb_writer_put(nb_writer *w, const void *bytes, size_t n, nb_error *err)
{
    if (n > BUFFERED - w->held) {
        nb_status s = flush(w, err);
        if (s != NB_OK) return s;
        if (n > BUFFERED) return write_all(w, bytes, n, err);
    }
    if (n) memcpy(w->buffer + w->held, bytes, n);
    w->held += n;
    return NB_OK;
}

/* A rename survives a crash only when the folder that holds the name is written too. Cuts path down to its folder in place: an
 * allocation that fails here would report failure with the file already there. */
static nb_status sync_folder(char *path, nb_error *err)
{
    char *slash = strrchr(path, '/');
    const char *dir = slash ? path : ".";
    if (slash) slash[slash == path] = '\0';
    nb_status s = NB_OK;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* EINVAL: a file system that cannot sync a folder, which then has nothing to lose. */
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL)) s = fail_errno(err, "sync the folder", dir, -1);
    if (fd >= 0) close(fd);
    return s;
}

nb_status nb_writer_commit(nb_writer *w, nb_error *err)
{
    nb_status s =
        w->failed ? nb_fail(err, NB_ERR_ARGUMENT, "an earlier write to this file failed") : flush(w, err);
    if (s == NB_OK && fsync(w->fd) != 0) s = fail_errno(err, "sync", w->path, -1);
    if (s == NB_OK && !give_name(w)) s = fail_errno(err, "name", w->temp, -1);
    if (close(w->fd) != 0 && s == NB_OK) s = fail_errno(err, "close", w->path, -1);
    if (s == NB_OK && rename(w->temp, w->path) != 0)
        s = fail_errno(err, "rename the finished file to", w->path, -1);
    if (s == NB_OK)
        s = sync_folder(w->path, err);
    else if (w->named)
        unlink(w->temp);
    writer_free(w);
    return s;
}

void nb_writer_abort(nb_writer *w)
{
    if (!w) return;
    close(w->fd);
    if (w->named) unlink(w->temp);
    writer_free(w);
}

nb_status nb_writer_try(const char *path, nb_error *err)
{
    nb_writer *w = NULL;
    nb_status s = nb_writer_open(path, &w, err);
    nb_writer_abort(w);
    return s;
}

char *nb_path_join(const char *dir, const char *name)
{
    size_t a = strlen(dir), b = strlen(name), n;
    bool slash = a && dir[a - 1] != '/';
    if (!nb_add(a, b, &n) || !nb_add(n, 2, &n)) return NULL;
    char *path = malloc(n);
    if (!path) return NULL;
    memcpy(path, dir, a);
    if (slash) path[a] = '/';
    memcpy(path + a + slash, name, b + 1);
    return path;
}
