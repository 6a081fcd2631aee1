/* A scratch folder for one test program, and small files in it. Test code: any failure ends the test. */
#ifndef NB_TESTS_TEMPDIR_H
#define NB_TESTS_TEMPDIR_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct tempdir {
    char path[256];
    char file[600]; /* the last path made by tempdir_path */
} tempdir;

static inline void tempdir_make(tempdir *t)
{
    const char *base = getenv("TMPDIR");
    snprintf(t->path, sizeof t->path, "%s/nibble-test-XXXXXX", base && strlen(base) < 200 ? base : "/tmp");
    if (!mkdtemp(t->path)) abort();
}

static inline const char *tempdir_path(tempdir *t, const char *name)
{
    snprintf(t->file, sizeof t->file, "%s/%s", t->path, name);
    return t->file;
}

/* Writes n bytes as the file `name`; returns its path. */
static inline const char *tempdir_write(tempdir *t, const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(tempdir_path(t, name), "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) abort();
    return t->file;
}

static inline int tempdir_entries(tempdir *t)
{
    int n = 0;
    DIR *d = opendir(t->path);
    if (!d) abort();
    for (struct dirent *e = readdir(d); e; e = readdir(d)) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* Removes the folder and what is in it, sub-folders too. */
static inline void tempdir_remove_tree(const char *path)
{
    DIR *d = opendir(path);
    if (!d) abort();
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        char p[1024];
        struct stat st;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (snprintf(p, sizeof p, "%s/%s", path, e->d_name) >= (int)sizeof p) abort();
        if (lstat(p, &st) == 0 && S_ISDIR(st.st_mode))
            tempdir_remove_tree(p);
        else
            unlink(p);
    }
    closedir(d);
    rmdir(path);
}
static inline void tempdir_remove(tempdir *t)
{
    tempdir_remove_tree(t->path);
}

#endif
