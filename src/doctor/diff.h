/*
 * diff: what differs between two model folders, tensor by tensor, in values and not only in bytes; or between two traces (of
 * `trace --format json`, or of tools/torch_taps.py), row by row, and where they part first.
 */
#ifndef NB_DOCTOR_DIFF_H
#define NB_DOCTOR_DIFF_H

#include "base/buf.h"
#include "base/log.h"

/* One tensor of either folder. The codes of a linear stand for the whole linear: their values are dequantised, so that the same
 * weight in two formats can be compared. */
typedef struct nb_diff_tensor {
    char *name;  /* as A stores it, as B where A has none */
    char only;   /* 'a' or 'b': in one folder alone; 0: in both */
    bool values; /* cosine and max_abs are known */
    double cosine, max_abs;
    uint64_t bytes_changed; /* all of the larger, where type or shape differ */
} nb_diff_tensor;

/* One difference of the small files (configs, tokenizer, template). Of a config each key that differs, else the file as a whole. */
typedef struct nb_diff_file {
    const char *file; /* static */
    char *key;        /* "quantization_config.quant_method"; NULL: the file as a whole */
    char *a, *b;      /* the values as JSON; NULL: absent, or the file as a whole */
    char only;        /* 'a' or 'b': key or file are in one folder alone; 0: in both */
} nb_diff_file;

typedef struct nb_diff {
    nb_diff_tensor *items;
    size_t count, cap;
    size_t changed; /* items with changed bytes, or in one folder alone */
    nb_diff_file *files;
    size_t n_files, cap_files;
} nb_diff; /* zero-initialise; nb_diff_free */

/* Compares two folders (or hub ids), a few rows at a time. Linears whose sets are not whole are compared by bytes alone. */
nb_status nb_diff_folders(const char *a, const char *b, const nb_sink *sink, nb_diff *out, nb_error *err);
void nb_diff_free(nb_diff *d);
/* Compares the small files of two folders (paths) and adds what differs to d->files. */
nb_status nb_diff_small_files(const char *a, const char *b, nb_diff *d, nb_error *err);
/* d->files as a member `,"files":[{"file","key","a","b"}]` of a JSON object ("only" as below), and as lines of text. */
void nb_diff_files_json(const nb_diff *d, nb_buf *out);
void nb_diff_files_text(const nb_diff *d, nb_buf *out);
/* {"tensors":[{"name","cosine","max_abs","bytes_changed"}],"files":[…]}, with "only" where a tensor is in one folder alone; and for people,
 * what changed alone. Test nb_buf_ok(out) afterwards. */
void nb_diff_json(const nb_diff *d, nb_buf *out);
void nb_diff_text(const nb_diff *d, nb_buf *out);

/* Compares the rows of two trace files. Rows belong together by module, operator and expert; their order is A's. A row differs
 * when its in_amax or out_amax differ by more than tolerance (relative to the larger), or when one alone is not finite. Writes
 * {"rows":[…],"first_difference":…} or text for people. */
nb_status nb_diff_traces(const char *a, const char *b, double tolerance, bool json, nb_buf *out,
                         nb_error *err);

#endif
