/* Files: positioned reads that fail with a named file and byte, and writes that are whole or absent. Model files
 * are read with pread, never mapped, so a file that shrinks while in use is an error and not a signal. */
#ifndef NB_BASE_FILE_H
#define NB_BASE_FILE_H

#include <stdio.h>

#include "base/buf.h"
#include "base/error.h"

typedef struct nb_file {
    int fd;        /* -1 when closed */
    uint64_t size; /* at the time of opening */
    char *path;    /* owned */
} nb_file;

/* Opens path for reading. Not there: NB_ERR_MISSING; a directory, a FIFO or a device: NB_ERR_FORMAT. Close with
 * nb_file_close. */
nb_status nb_file_open(const char *path, nb_file *out, nb_error *err);
void nb_file_close(nb_file *f);

/* NB_ERR_MISSING when the file is empty or a Git LFS pointer, with the command that fetches the real one. */
nb_status nb_file_check_data(const nb_file *f, nb_error *err);

/* Reads exactly n bytes at offset. Fewer (the file shrank, the disk failed) is NB_ERR_IO naming file and byte.
 * Thread-safe. */
nb_status nb_file_read(const nb_file *f, uint64_t offset, void *dst, size_t n, nb_error *err);

/* The whole of a small text file, at most max bytes (more is NB_ERR_LIMIT). A Git LFS pointer is NB_ERR_FORMAT: it is there, so it
 * must not pass for an optional file that is not. Caller frees *out with nb_buf_free. */
nb_status nb_file_slurp(const char *path, size_t max, nb_buf *out, nb_error *err);

/* A file being written without a name, which a program that is killed does not leave behind; where the file system has no such files,
 * under a temporary name beside the final one. Finish with exactly one of commit (fsync, rename, fsync of the folder) and abort (it is
 * gone); both free the writer. */
typedef struct nb_writer nb_writer;
nb_status nb_writer_open(const char *path, nb_writer **out, nb_error *err);
nb_status nb_writer_put(nb_writer *w, const void *bytes, size_t n, nb_error *err);
nb_status nb_writer_commit(nb_writer *w, nb_error *err);
void nb_writer_abort(nb_writer *w); /* w may be NULL */
/* Whether such a file can be begun, for work that writes its result at its end. Leaves nothing behind. */
nb_status nb_writer_try(const char *path, nb_error *err);

/* Joins dir and name with one '/'. NULL when out of memory; free() it. */
char *nb_path_join(const char *dir, const char *name);

#endif
