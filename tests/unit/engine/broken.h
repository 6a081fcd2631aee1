/* Copies of a fixture's folder with some bytes of a tensor changed. */
#ifndef NB_TESTS_BROKEN_H
#define NB_TESTS_BROKEN_H

#include "checkpoint/checkpoint.h"
#include "tempdir.h"

static inline void broken_copy(tempdir *t, const char *from)
{
    static const char *const skip[] = {"expected", "fixture"};
    DIR *d = opendir(from);
    if (!d) abort();
    tempdir_make(t);
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        char path[1024];
        if (e->d_name[0] == '.' || strncmp(e->d_name, skip[0], 8) == 0 || strncmp(e->d_name, skip[1], 7) == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", from, e->d_name);
        FILE *in = fopen(path, "rb"), *out = fopen(tempdir_path(t, e->d_name), "wb");
        char block[65536];
        size_t n;
        if (!in || !out) abort();
        while ((n = fread(block, 1, sizeof block, in)) > 0)
            if (fwrite(block, 1, n, out) != n) abort();
        if (fclose(in) != 0 || fclose(out) != 0) abort();
    }
    closedir(d);
}

/* Writes n bytes at byte `at` of the tensor; `was` (may be NULL) gets what stood there. */
static inline void broken_poke(tempdir *t, const char *tensor, size_t at, const void *bytes, size_t n,
                               void *was)
{
    nb_ckpt *c = NULL;
    if (nb_ckpt_open(t->path, NULL, NULL, &c, NULL) != NB_OK) abort();
    const nb_tensor_info *i = nb_ckpt_find(c, tensor);
    if (!i || at + n > i->end - i->begin) abort();
    FILE *f = fopen(nb_ckpt_file_path(c, i->file), "r+b");
    if (!f) abort();
    if (was && (fseek(f, (long)(i->begin + at), SEEK_SET) != 0 || fread(was, 1, n, f) != n)) abort();
    if (fseek(f, (long)(i->begin + at), SEEK_SET) != 0 || fwrite(bytes, 1, n, f) != n || fclose(f) != 0)
        abort();
    nb_ckpt_close(c);
}

#endif
