/*
 * One safetensors file: header parsed by the strict rules of the reference reader (safetensors/src/tensor.rs), data read
 * on demand with pread. Cost is O(n log n) in the number of tensors, memory bounded by the header's size.
 * Also the writer, which streams tensors in the order declared.
 */
#ifndef NB_CHECKPOINT_SAFETENSORS_H
#define NB_CHECKPOINT_SAFETENSORS_H

#include "base/error.h"
#include "base/file.h"

#define NB_SAFETENSORS_MAX_HEADER 100000000u /* bytes; the format's own limit */

typedef enum nb_dtype {
    NB_DT_F4,
    NB_DT_F6_E2M3,
    NB_DT_F6_E3M2,
    NB_DT_BOOL,
    NB_DT_U8,
    NB_DT_I8,
    NB_DT_F8_E5M2,
    NB_DT_F8_E4M3,
    NB_DT_F8_E8M0,
    NB_DT_F8_E4M3FNUZ,
    NB_DT_F8_E5M2FNUZ,
    NB_DT_I16,
    NB_DT_U16,
    NB_DT_F16,
    NB_DT_BF16,
    NB_DT_I32,
    NB_DT_U32,
    NB_DT_F32,
    NB_DT_I64,
    NB_DT_U64,
    NB_DT_F64,
    NB_DT_C64,
    NB_DT_COUNT
} nb_dtype;

const char *nb_dtype_name(nb_dtype d); /* as in the file: "F8_E4M3" */
unsigned nb_dtype_bits(nb_dtype d);

typedef struct nb_tensor_info {
    const char *name; /* owned by the file object; any UTF-8 without NUL */
    nb_dtype dtype;
    uint32_t file; /* index of the shard in its checkpoint, 0 in a lone file */
    size_t rank;
    const uint64_t *shape; /* [rank] */
    uint64_t begin, end;   /* absolute byte range in the file */
} nb_tensor_info;

/* Product of the shape (1 for a scalar). It fits: the reader checked. */
uint64_t nb_tensor_elements(const nb_tensor_info *t);
/* "[2, 3]" into buf (cap bytes, always terminated); returns buf. */
const char *nb_tensor_shape_text(const nb_tensor_info *t, char *buf, size_t cap);

typedef struct nb_safetensors nb_safetensors;

/* Opens and validates. NB_ERR_FORMAT names file, byte, tensor, what was expected; a Git LFS pointer or an empty file is
 * NB_ERR_MISSING and says how to get the real one. */
nb_status nb_safetensors_open(const char *path, nb_safetensors **out, nb_error *err);
void nb_safetensors_close(nb_safetensors *s);
size_t nb_safetensors_count(const nb_safetensors *s);
const nb_tensor_info *nb_safetensors_at(const nb_safetensors *s, size_t i);           /* in order of begin */
const nb_tensor_info *nb_safetensors_find(const nb_safetensors *s, const char *name); /* NULL: not there */
const nb_file *nb_safetensors_file(const nb_safetensors *s);
/* Reads n bytes at offset within the tensor's data. */
nb_status nb_safetensors_read(const nb_safetensors *s, const nb_tensor_info *t, uint64_t offset, void *dst,
                              size_t n, nb_error *err);

/* Parses a header alone (fuzzing): bytes are the whole file's first n bytes, file_size its length. */
nb_status nb_safetensors_parse(const char *path, const char *bytes, size_t n, uint64_t file_size,
                               nb_safetensors **out, nb_error *err);

/* Writer: open, declare every tensor, begin (writes the header; base/file.h says where), put the data of each in order of
 * declaration, and end with exactly one of commit and abort; both free the writer. The file gets its name at commit. Misuse
 * (a name twice or not UTF-8, a shape that overflows, more or fewer bytes than declared) is NB_ERR_ARGUMENT. */
typedef struct nb_st_writer nb_st_writer;
nb_status nb_st_writer_open(const char *path, nb_st_writer **out, nb_error *err);
nb_status nb_st_writer_declare(nb_st_writer *w, const char *name, nb_dtype dtype, size_t rank,
                               const uint64_t *shape, nb_error *err);
nb_status nb_st_writer_begin(nb_st_writer *w, nb_error *err);
nb_status nb_st_writer_put(nb_st_writer *w, const void *bytes, size_t n, nb_error *err);
nb_status nb_st_writer_commit(nb_st_writer *w, nb_error *err);
void nb_st_writer_abort(nb_st_writer *w); /* w may be NULL */

#endif
