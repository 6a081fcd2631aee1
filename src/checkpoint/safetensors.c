/*
 * The safetensors reader. A file is: u64 N (little endian), N bytes of JSON, data. The checks are those of the reference
 * reader (safetensors/src/tensor.rs) in its order, and one more: a name given twice is an error, because readers disagree on
 * which of the two counts. The one rule "sorted by offset, each tensor begins where the one before ended" forbids holes,
 * overlaps and reordering at once.
 *
 * Nothing in the header is trusted: its length is checked before a byte of it is read, and everything kept from it
 * (names, shapes) is smaller than a fixed multiple of its length.
 */
#include "checkpoint/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"

static const struct {
    const char *name;
    unsigned bits;
} dtypes[NB_DT_COUNT] = {
    [NB_DT_F4] = {"F4", 4},           [NB_DT_F6_E2M3] = {"F6_E2M3", 6},
    [NB_DT_F6_E3M2] = {"F6_E3M2", 6}, [NB_DT_BOOL] = {"BOOL", 8},
    [NB_DT_U8] = {"U8", 8},           [NB_DT_I8] = {"I8", 8},
    [NB_DT_F8_E5M2] = {"F8_E5M2", 8}, [NB_DT_F8_E4M3] = {"F8_E4M3", 8},
    [NB_DT_F8_E8M0] = {"F8_E8M0", 8}, [NB_DT_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
    [NB_DT_I16] = {"I16", 16},        [NB_DT_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
    [NB_DT_U16] = {"U16", 16},        [NB_DT_F16] = {"F16", 16},
    [NB_DT_BF16] = {"BF16", 16},      [NB_DT_I32] = {"I32", 32},
    [NB_DT_U32] = {"U32", 32},        [NB_DT_F32] = {"F32", 32},
    [NB_DT_I64] = {"I64", 64},        [NB_DT_U64] = {"U64", 64},
    [NB_DT_F64] = {"F64", 64},        [NB_DT_C64] = {"C64", 64},
};

const char *nb_dtype_name(nb_dtype d)
{
    return dtypes[d].name;
}

unsigned nb_dtype_bits(nb_dtype d)
{
    return dtypes[d].bits;
}

uint64_t nb_tensor_elements(const nb_tensor_info *t)
{
    uint64_t n = 1;
    for (size_t i = 0; i < t->rank; i++) n *= t->shape[i];
    return n;
}

const char *nb_tensor_shape_text(const nb_tensor_info *t, char *buf, size_t cap)
{
    size_t at = 0;
    if (cap) buf[0] = '\0';
    for (size_t i = 0; i <= t->rank && at < cap; i++) {
        int n;
        if (i == t->rank)
            n = snprintf(buf + at, cap - at, i ? "]" : "[]");
        else
            n = snprintf(buf + at, cap - at, "%s%llu", i ? ", " : "[", (unsigned long long)t->shape[i]);
        at += n > 0 ? (size_t)n : 0;
    }
    return buf;
}

#define TYPICAL_ENTRY 160 /* bytes of a header for one tensor: room for names is reserved by it */

struct nb_safetensors {
    nb_file file;
    nb_tensor_info *tensors; /* sorted by begin */
    size_t count, cap;
    char *names; /* one block: every name with its NUL, never longer than the header */
    size_t names_len;
    uint64_t *dims; /* all shapes, one after another */
    size_t dims_len, dims_cap;
    nb_map by_name;
};

/* What the header's text is being read with. */
typedef struct header {
    nb_safetensors *st;
    nb_json j;
    const char *path;
    nb_error *err;
} header;

static nb_status bad(header *h, const char *tensor, const char *why)
{
    nb_fail(h->err, NB_ERR_FORMAT, "%s", why);
    nb_error_at(h->err, h->path, tensor, (int64_t)(8 + h->j.pos));
    nb_error_remedy(h->err, "download or export the file again");
    return NB_ERR_FORMAT;
}

/* Another event came than `wanted`: the text is at fault, or memory ran out while reading it. */
static nb_status unexpected(header *h, nb_json_event event, const char *tensor, const char *wanted)
{
    char why[160];
    if (event != NB_J_ERROR) return bad(h, tensor, wanted);
    if (nb_json_nomem(&h->j)) return nb_fail_nomem(h->err, "a name in a safetensors header", h->j.n);
    snprintf(why, sizeof why, "the header is not JSON: %s", h->j.error);
    return bad(h, tensor, why);
}

/* Copies the key just read into the block of names; *out ends with NUL. */
static nb_status keep_name(header *h, const char **out)
{
    nb_safetensors *st = h->st;
    if (memchr(h->j.str, '\0', h->j.len)) return bad(h, NULL, "a name holds a NUL character");
    char *name = st->names + st->names_len;
    memcpy(name, h->j.str, h->j.len);
    name[h->j.len] = '\0';
    st->names_len += h->j.len + 1;
    *out = name;
    return NB_OK;
}

/* "__metadata__": an object of strings, each key once. The content is not needed for reading tensors. */
static nb_status read_metadata(header *h)
{
    nb_map keys = {0};
    nb_json_event e = nb_json_next(&h->j);
    nb_status s = NB_OK;
    if (e != NB_J_OBJECT) return unexpected(h, e, "__metadata__", "__metadata__ must be an object");
    while ((e = nb_json_next(&h->j)) == NB_J_KEY) {
        const char *key;
        bool twice;
        s = keep_name(h, &key);
        if (s != NB_OK) goto out;
        if (!nb_map_put(&keys, key, strlen(key), 0, &twice)) {
            s = nb_fail_nomem(h->err, "the keys of __metadata__", h->j.n);
            goto out;
        }
        if (twice) {
            s = bad(h, "__metadata__", "a key is given twice");
            goto out;
        }
        e = nb_json_next(&h->j);
        if (e != NB_J_STRING) {
            s = unexpected(h, e, "__metadata__", "__metadata__ may hold strings only");
            goto out;
        }
    }
    if (e != NB_J_END) s = unexpected(h, e, "__metadata__", "expected a key");
out:
    nb_map_free(&keys);
    return s;
}

static nb_status read_dtype(header *h, nb_tensor_info *t)
{
    nb_json_event e = nb_json_next(&h->j);
    if (e != NB_J_STRING) return unexpected(h, e, t->name, "dtype must be a string");
    for (int d = 0; d < NB_DT_COUNT; d++) {
        if (strlen(dtypes[d].name) == h->j.len && memcmp(dtypes[d].name, h->j.str, h->j.len) == 0) {
            t->dtype = (nb_dtype)d;
            return NB_OK;
        }
    }
    char why[96];
    snprintf(why, sizeof why, "dtype \"%.*s\" is not one of the format's 22",
             h->j.len < 32 ? (int)h->j.len : 32, h->j.str);
    return bad(h, t->name, why);
}

static nb_status add_dim(header *h, uint64_t d)
{
    nb_safetensors *st = h->st;
    if (st->dims_len == st->dims_cap) {
        size_t cap = st->dims_cap ? 2 * st->dims_cap : 64;
        uint64_t *p = realloc(st->dims, cap * sizeof *p);
        if (!p) return nb_fail_nomem(h->err, "tensor shapes", cap * sizeof *p);
        st->dims = p;
        st->dims_cap = cap;
    }
    st->dims[st->dims_len++] = d;
    return NB_OK;
}

/* An array of unsigned integers. They go to st->dims; *n says how many. */
static nb_status read_integers(header *h, const char *tensor, const char *key, size_t *n)
{
    char why[96];
    snprintf(why, sizeof why, "%s must be an array of integers from 0 to 2^64-1", key);
    nb_json_event e = nb_json_next(&h->j);
    if (e != NB_J_ARRAY) return unexpected(h, e, tensor, why);
    for (*n = 0; (e = nb_json_next(&h->j)) == NB_J_NUMBER; ++*n) {
        uint64_t v;
        if (!nb_json_u64(&h->j, &v)) return bad(h, tensor, why);
        nb_status s = add_dim(h, v);
        if (s != NB_OK) return s;
    }
    return e == NB_J_END ? NB_OK : unexpected(h, e, tensor, why);
}

/* One entry {"dtype", "shape", "data_offsets"}; other keys are ignored, as the reference reader does. Until the whole header
 * is read, begin and end count from the start of the data, and shape is not set: st->dims may still move. */
static nb_status read_entry(header *h, nb_tensor_info *t)
{
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4, ALL = 7 };
    static const char *const names[] = {"dtype", "shape", "data_offsets"};
    nb_json *j = &h->j;
    unsigned seen = 0;
    nb_json_event e = nb_json_next(j);
    if (e != NB_J_OBJECT) return unexpected(h, e, t->name, "a tensor's entry must be an object");
    while ((e = nb_json_next(j)) == NB_J_KEY) {
        unsigned field = 0;
        for (unsigned i = 0; i < 3; i++) {
            if (strlen(names[i]) == j->len && memcmp(names[i], j->str, j->len) == 0) field = 1u << i;
        }
        if (seen & field) return bad(h, t->name, "dtype, shape or data_offsets is given twice");
        seen |= field;
        nb_status s = NB_OK;
        size_t n, first = h->st->dims_len;
        if (field == DTYPE) {
            s = read_dtype(h, t);
        } else if (field == SHAPE) {
            s = read_integers(h, t->name, "shape", &t->rank);
        } else if (field == OFFSETS) {
            s = read_integers(h, t->name, "data_offsets", &n);
            if (s == NB_OK && n != 2) s = bad(h, t->name, "data_offsets must be two integers");
            if (s != NB_OK) return s;
            t->begin = h->st->dims[first];
            t->end = h->st->dims[first + 1];
            h->st->dims_len = first;
        } else if (!nb_json_skip(j)) {
            s = unexpected(h, NB_J_ERROR, t->name, NULL);
        }
        if (s != NB_OK) return s;
    }
    if (e != NB_J_END) return unexpected(h, e, t->name, "expected a key");
    return seen == ALL ? NB_OK : bad(h, t->name, "the entry needs dtype, shape and data_offsets");
}

static nb_status add_tensor(header *h, const char *name)
{
    nb_safetensors *st = h->st;
    if (st->count == st->cap) {
        size_t cap = st->cap ? 2 * st->cap : 64;
        nb_tensor_info *p = realloc(st->tensors, cap * sizeof *p);
        if (!p) return nb_fail_nomem(h->err, "the list of tensors", cap * sizeof *p);
        st->tensors = p;
        st->cap = cap;
    }
    nb_tensor_info *t = &st->tensors[st->count];
    bool twice;
    *t = (nb_tensor_info){.name = name};
    nb_status s = read_entry(h, t);
    if (s != NB_OK) return s;
    if (!nb_map_put(&st->by_name, name, strlen(name), (uint32_t)st->count, &twice))
        return nb_fail_nomem(h->err, "the index of tensor names", st->count * sizeof(nb_map_slot));
    if (twice) return bad(h, name, "the header names this tensor twice");
    st->count++;
    return NB_OK;
}

static nb_status read_header(header *h)
{
    bool metadata = false;
    nb_json_event e = nb_json_next(&h->j);
    if (e != NB_J_OBJECT) return unexpected(h, e, NULL, "the header must be a JSON object");
    while ((e = nb_json_next(&h->j)) == NB_J_KEY) {
        const char *name;
        nb_status s = keep_name(h, &name);
        if (s != NB_OK) return s;
        if (strcmp(name, "__metadata__") == 0) {
            if (metadata) return bad(h, name, "__metadata__ is given twice");
            metadata = true;
            s = read_metadata(h);
        } else {
            s = add_tensor(h, name);
        }
        if (s != NB_OK) return s;
    }
    if (e != NB_J_END) return unexpected(h, e, NULL, "expected a tensor's name");
    e = nb_json_next(&h->j);
    return e == NB_J_EOF ? NB_OK : unexpected(h, e, NULL, "expected the end of the header");
}

static int by_offset(const void *a, const void *b)
{
    const nb_tensor_info *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* An error about the layout of the data: byte is where in the file. */
static nb_status bad_layout(const char *path, const nb_tensor_info *t, uint64_t byte, const char *why,
                            nb_error *err)
{
    nb_fail(err, NB_ERR_FORMAT, "%s", why);
    nb_error_at(err, path, t ? t->name : NULL, byte <= INT64_MAX ? (int64_t)byte : -1);
    nb_error_remedy(err, "download or export the file again");
    return NB_ERR_FORMAT;
}

/* Checks one tensor's size against its shape. */
static nb_status check_size(const char *path, const nb_tensor_info *t, uint64_t data, nb_error *err)
{
    char shape[128], why[320];
    uint64_t n = 1, bits;
    bool fits = true;
    for (size_t i = 0; i < t->rank && fits; i++) fits = !__builtin_mul_overflow(n, t->shape[i], &n);
    if (!fits || __builtin_mul_overflow(n, (uint64_t)nb_dtype_bits(t->dtype), &bits)) {
        snprintf(why, sizeof why, "shape %s is larger than 2^64 bits",
                 nb_tensor_shape_text(t, shape, sizeof shape));
        return bad_layout(path, t, UINT64_MAX, why, err);
    }
    if (bits % 8) {
        snprintf(why, sizeof why, "%s of shape %s does not fill whole bytes", nb_dtype_name(t->dtype),
                 nb_tensor_shape_text(t, shape, sizeof shape));
        return bad_layout(path, t, UINT64_MAX, why, err);
    }
    if (bits / 8 != t->end - t->begin) {
        snprintf(why, sizeof why, "%s of shape %s needs %llu bytes; data_offsets give %llu",
                 nb_dtype_name(t->dtype), nb_tensor_shape_text(t, shape, sizeof shape),
                 (unsigned long long)(bits / 8), (unsigned long long)(t->end - t->begin));
        return bad_layout(path, t, t->begin <= INT64_MAX - data ? data + t->begin : UINT64_MAX, why, err);
    }
    return NB_OK;
}

/* Sorts the tensors and checks that they tile the file from byte `data` to its end. */
static nb_status check_layout(nb_safetensors *st, const char *path, uint64_t data, uint64_t file_size,
                              nb_error *err)
{
    char why[240];
    uint64_t at = 0;
    bool sorted = true; /* most files list their tensors as they lie */
    for (size_t i = 1; i < st->count && sorted; i++)
        sorted = by_offset(&st->tensors[i - 1], &st->tensors[i]) <= 0;
    if (!sorted) qsort(st->tensors, st->count, sizeof *st->tensors, by_offset);
    for (size_t i = 0; i < st->count; i++) {
        nb_tensor_info *t = &st->tensors[i];
        if (t->begin != at || t->end < t->begin) {
            snprintf(why, sizeof why,
                     "data_offsets are [%llu, %llu]; the tensor before ends at %llu, and there may be no "
                     "hole or overlap",
                     (unsigned long long)t->begin, (unsigned long long)t->end, (unsigned long long)at);
            return bad_layout(path, t, at <= INT64_MAX - data ? data + at : UINT64_MAX, why, err);
        }
        nb_status s = check_size(path, t, data, err);
        if (s != NB_OK) return s;
        at = t->end;
    }
    if (at != file_size - data) {
        snprintf(why, sizeof why, "the header describes %llu bytes of data; the file holds %llu%s",
                 (unsigned long long)at, (unsigned long long)(file_size - data),
                 at > file_size - data ? ": it was cut short" : "");
        return bad_layout(path, NULL, file_size, why, err);
    }
    for (size_t i = 0; i < st->count; i++) {
        nb_tensor_info *t = &st->tensors[i];
        t->begin += data;
        t->end += data;
        /* Sorting moved the tensors; the keys are known, so this takes no memory. */
        if (!sorted) nb_map_put(&st->by_name, t->name, strlen(t->name), (uint32_t)i, NULL);
    }
    return NB_OK;
}

/* The length of the header from the file's first 8 bytes, checked against the file's size. */
static nb_status header_length(const char *path, const char *bytes, uint64_t file_size, uint64_t *out,
                               nb_error *err)
{
    char why[128];
    uint64_t n = 0;
    if (file_size < 8) {
        snprintf(why, sizeof why, "a file of %llu bytes cannot hold a header's length",
                 (unsigned long long)file_size);
        return bad_layout(path, NULL, 0, why, err);
    }
    for (int i = 7; i >= 0; i--) n = n << 8 | (unsigned char)bytes[i];
    if (n > NB_SAFETENSORS_MAX_HEADER) {
        snprintf(why, sizeof why, "the header's length is %llu; the format's limit is %u",
                 (unsigned long long)n, NB_SAFETENSORS_MAX_HEADER);
        return bad_layout(path, NULL, 0, why, err);
    }
    if (n + 8 > file_size) {
        snprintf(why, sizeof why, "the header's length is %llu, the file's %llu bytes", (unsigned long long)n,
                 (unsigned long long)file_size);
        return bad_layout(path, NULL, 0, why, err);
    }
    *out = n;
    return NB_OK;
}

/* How many bytes from the first on are ASCII: nearly always all of a header. */
static size_t ascii(const char *p, size_t n)
{
    size_t i = 0;
    for (uint64_t word; i + sizeof word <= n; i += sizeof word) {
        memcpy(&word, p + i, sizeof word);
        if (word & 0x8080808080808080) break;
    }
    return i;
}

nb_status nb_safetensors_parse(const char *path, const char *bytes, size_t n, uint64_t file_size,
                               nb_safetensors **out, nb_error *err)
{
    uint64_t length;
    if (n < 8 && n < file_size) return nb_fail(err, NB_ERR_ARGUMENT, "the first 8 bytes are needed");
    nb_status s = header_length(path, bytes, file_size, &length, err);
    if (s != NB_OK) return s;
    if (n - 8 < length) return nb_fail(err, NB_ERR_ARGUMENT, "the whole header is needed");

    nb_safetensors *st = calloc(1, sizeof *st);
    if (!st) return nb_fail_nomem(err, "a safetensors file", sizeof *st);
    st->file.fd = -1;
    header h = {.st = st, .path = path, .err = err};
    nb_json_init(&h.j, bytes + 8, (size_t)length);
    /* A name with its NUL is shorter than the quotes and the text that it came from. */
    st->names = malloc((size_t)length + 1);
    st->file.path = strdup(path);
    if (!st->names || !st->file.path || !nb_map_reserve(&st->by_name, (size_t)length / TYPICAL_ENTRY)) {
        s = nb_fail_nomem(err, "a safetensors header", (size_t)length);
        goto out;
    }
    for (size_t i = ascii(bytes + 8, (size_t)length); i < length;) {
        uint32_t cp;
        size_t w = nb_utf8_decode(bytes + 8 + i, (size_t)length - i, &cp);
        if (!w) {
            s = bad_layout(path, NULL, 8 + i, "the header is not UTF-8", err);
            goto out;
        }
        i += w;
    }
    s = read_header(&h);
    if (s != NB_OK) goto out;
    static const uint64_t no_dims[1]; /* of a file that has scalars alone */
    const uint64_t *shape = st->dims ? st->dims : no_dims;
    for (size_t i = 0; i < st->count; shape += st->tensors[i++].rank) st->tensors[i].shape = shape;
    s = check_layout(st, path, 8 + length, file_size, err);
out:
    nb_json_free(&h.j);
    if (s == NB_OK)
        *out = st;
    else
        nb_safetensors_close(st);
    return s;
}

nb_status nb_safetensors_open(const char *path, nb_safetensors **out, nb_error *err)
{
    nb_file f;
    nb_safetensors *st = NULL;
    char *bytes = NULL, start[8] = {0};
    uint64_t length;
    nb_status s = nb_file_open(path, &f, err);
    if (s != NB_OK) return s;
    s = nb_file_check_data(&f, err);
    if (s == NB_OK && f.size >= 8) s = nb_file_read(&f, 0, start, 8, err);
    if (s == NB_OK) s = header_length(path, start, f.size, &length, err);
    if (s != NB_OK) goto out;
    bytes = malloc((size_t)length + 8);
    if (!bytes) {
        s = nb_fail_nomem(err, "a safetensors header", (size_t)length + 8);
        goto out;
    }
    s = nb_file_read(&f, 0, bytes, (size_t)length + 8, err);
    if (s == NB_OK) s = nb_safetensors_parse(path, bytes, (size_t)length + 8, f.size, &st, err);
    if (s != NB_OK) goto out;
    nb_file_close(&st->file);
    st->file = f;
    f = (nb_file){.fd = -1};
    *out = st;
out:
    free(bytes);
    nb_file_close(&f);
    return s;
}

void nb_safetensors_close(nb_safetensors *s)
{
    if (!s) return;
    nb_file_close(&s->file);
    free(s->tensors);
    free(s->names);
    free(s->dims);
    nb_map_free(&s->by_name);
    free(s);
}

size_t nb_safetensors_count(const nb_safetensors *s)
{
    return s->count;
}

const nb_tensor_info *nb_safetensors_at(const nb_safetensors *s, size_t i)
{
    return &s->tensors[i];
}

const nb_tensor_info *nb_safetensors_find(const nb_safetensors *s, const char *name)
{
    uint32_t i;
    return nb_map_get(&s->by_name, name, strlen(name), &i) ? &s->tensors[i] : NULL;
}

const nb_file *nb_safetensors_file(const nb_safetensors *s)
{
    return &s->file;
}

nb_status nb_safetensors_read(const nb_safetensors *s, const nb_tensor_info *t, uint64_t offset, void *dst,
                              size_t n, nb_error *err)
{
    nb_status st;
    uint64_t size = t->end - t->begin;
    if (offset > size || n > size - offset)
        st = nb_fail(err, NB_ERR_ARGUMENT, "bytes [%llu, +%zu) of a tensor of %llu bytes",
                     (unsigned long long)offset, n, (unsigned long long)size);
    else
        st = nb_file_read(&s->file, t->begin + offset, dst, n, err);
    if (st != NB_OK) nb_error_at(err, s->file.path, t->name, -1);
    return st;
}
