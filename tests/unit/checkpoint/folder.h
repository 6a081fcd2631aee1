/* Small model folders for tests: named tensors with their bytes, in one file or several. */
#ifndef NB_TESTS_FOLDER_H
#define NB_TESTS_FOLDER_H

#include "checkpoint/checkpoint.h"
#include "tempdir.h"

typedef struct folder_tensor {
    const char *name;
    nb_dtype dtype;
    size_t rank;
    uint64_t shape[4];
    const void *bytes; /* NULL: zeros */
} folder_tensor;

static inline void folder_require(nb_status s)
{
    if (s != NB_OK) abort();
}

/* Writes n tensors as the file `name` of the folder. */
static inline void folder_write(tempdir *t, const char *name, const folder_tensor *tensors, size_t n)
{
    nb_st_writer *w = NULL;
    folder_require(nb_st_writer_open(tempdir_path(t, name), &w, NULL));
    for (size_t i = 0; i < n; i++)
        folder_require(nb_st_writer_declare(w, tensors[i].name, tensors[i].dtype, tensors[i].rank,
                                            tensors[i].shape, NULL));
    folder_require(nb_st_writer_begin(w, NULL));
    for (size_t i = 0; i < n; i++) {
        nb_tensor_info info = {.rank = tensors[i].rank, .shape = tensors[i].shape};
        size_t size = (size_t)nb_tensor_elements(&info) * nb_dtype_bits(tensors[i].dtype) / 8;
        void *zeros = calloc(1, size + 1);
        if (!zeros) abort();
        folder_require(nb_st_writer_put(w, tensors[i].bytes ? tensors[i].bytes : zeros, size, NULL));
        free(zeros);
    }
    folder_require(nb_st_writer_commit(w, NULL));
}

static inline void folder_text(tempdir *t, const char *name, const char *text)
{
    tempdir_write(t, name, text, strlen(text));
}

/* A folder of one file with an empty config.json, opened. */
static inline nb_ckpt *folder_open(tempdir *t, const folder_tensor *tensors, size_t n)
{
    nb_ckpt *c = NULL;
    folder_text(t, "config.json", "{}");
    folder_write(t, "model.safetensors", tensors, n);
    folder_require(nb_ckpt_open(t->path, NULL, NULL, &c, NULL));
    return c;
}

#endif
