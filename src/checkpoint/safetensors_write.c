/*
 * The safetensors writer. All shapes are declared before the first byte of data, so the header can be written at once
 * and the data streamed after it, in the order declared: memory does not grow with the data. The header is padded with
 * spaces to 8 bytes, as the reference writer does; declare wide dtypes first to keep every tensor aligned.
 */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "checkpoint/safetensors.h"

struct nb_st_writer {
    char *path;
    nb_writer *file; /* NULL until begin */
    nb_buf header;   /* "{"a":{...},"b":{...}" so far, without the closing brace */
    nb_map by_name;  /* its keys are the names below */
    char **names;
    size_t count, cap;
    uint64_t declared, put; /* bytes of data */
};

static void writer_free(nb_st_writer *w)
{
    for (size_t i = 0; i < w->count; i++) free(w->names[i]);
    free(w->names);
    nb_map_free(&w->by_name);
    nb_buf_free(&w->header);
    free(w->path);
    free(w);
}

static nb_status refuse(const nb_st_writer *w, const char *tensor, const char *why, nb_error *err)
{
    nb_fail(err, NB_ERR_ARGUMENT, "%s", why);
    nb_error_at(err, w->path, tensor, -1);
    return NB_ERR_ARGUMENT;
}

nb_status nb_st_writer_open(const char *path, nb_st_writer **out, nb_error *err)
{
    nb_st_writer *w = calloc(1, sizeof *w);
    if (w) w->path = strdup(path);
    if (!w || !w->path) {
        free(w);
        return nb_fail_nomem(err, "a safetensors writer", sizeof *w);
    }
    *out = w;
    return NB_OK;
}

/* Bytes of a tensor; false when they do not fit, or are no whole number. */
static bool tensor_bytes(nb_dtype dtype, size_t rank, const uint64_t *shape, uint64_t *out)
{
    uint64_t n = nb_dtype_bits(dtype);
    for (size_t i = 0; i < rank; i++) {
        if (__builtin_mul_overflow(n, shape[i], &n)) return false;
    }
    *out = n / 8;
    return n % 8 == 0;
}

/* Keeps a copy of name, which must be new. */
static nb_status add_name(nb_st_writer *w, const char *name, nb_error *err)
{
    size_t len = strlen(name);
    if (nb_map_get(&w->by_name, name, len, NULL)) return refuse(w, name, "the tensor is declared twice", err);
    if (w->count == w->cap) {
        size_t cap = w->cap ? 2 * w->cap : 64;
        char **p = realloc(w->names, cap * sizeof *p);
        if (!p) return nb_fail_nomem(err, "tensor names", cap * sizeof *p);
        w->names = p;
        w->cap = cap;
    }
    char *copy = strdup(name);
    if (!copy || !nb_map_put(&w->by_name, copy, len, 0, NULL)) {
        free(copy);
        return nb_fail_nomem(err, "a tensor's name", len + 1);
    }
    w->names[w->count++] = copy;
    return NB_OK;
}

nb_status nb_st_writer_declare(nb_st_writer *w, const char *name, nb_dtype dtype, size_t rank,
                               const uint64_t *shape, nb_error *err)
{
    uint64_t bytes, end;
    size_t len = strlen(name);
    if (w->file) return refuse(w, name, "a tensor must be declared before the data begins", err);
    if (strcmp(name, "__metadata__") == 0)
        return refuse(w, name, "the format keeps this name for itself", err);
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        size_t n = nb_utf8_decode(name + i, len - i, &cp);
        if (!n) return refuse(w, name, "the name is not UTF-8", err);
        i += n;
    }
    if (!tensor_bytes(dtype, rank, shape, &bytes) || __builtin_add_overflow(w->declared, bytes, &end))
        return refuse(w, name, "the shape does not fill whole bytes, or overflows", err);
    nb_status s = add_name(w, name, err);
    if (s != NB_OK) return s;

    nb_buf *b = &w->header;
    nb_buf_addc(b, w->count == 1 ? '{' : ',');
    nb_buf_add_json(b, name, len);
    nb_buf_addf(b, ":{\"dtype\":\"%s\",\"shape\":[", nb_dtype_name(dtype));
    for (size_t i = 0; i < rank; i++) nb_buf_addf(b, i ? ",%llu" : "%llu", (unsigned long long)shape[i]);
    nb_buf_addf(b, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)w->declared,
                (unsigned long long)end);
    if (!nb_buf_ok(b)) return nb_fail_nomem(err, "a safetensors header", b->len);
    w->declared = end;
    return NB_OK;
}

nb_status nb_st_writer_begin(nb_st_writer *w, nb_error *err)
{
    unsigned char length[8];
    nb_buf *b = &w->header;
    if (w->file) return refuse(w, NULL, "the data has begun already", err);
    if (!w->count) nb_buf_addc(b, '{');
    nb_buf_addc(b, '}');
    while (nb_buf_ok(b) && b->len % 8) nb_buf_addc(b, ' ');
    if (!nb_buf_ok(b)) return nb_fail_nomem(err, "a safetensors header", b->len);
    if (b->len > NB_SAFETENSORS_MAX_HEADER) {
        nb_fail(err, NB_ERR_LIMIT, "the header has %zu bytes; the format's limit is %u", b->len,
                NB_SAFETENSORS_MAX_HEADER);
        nb_error_at(err, w->path, NULL, -1);
        nb_error_remedy(err, "spread the tensors over several files");
        return NB_ERR_LIMIT;
    }
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)((uint64_t)b->len >> (8 * i));
    nb_status s = nb_writer_open(w->path, &w->file, err);
    if (s == NB_OK) s = nb_writer_put(w->file, length, 8, err);
    if (s == NB_OK) s = nb_writer_put(w->file, b->data, b->len, err);
    return s;
}

nb_status nb_st_writer_put(nb_st_writer *w, const void *bytes, size_t n, nb_error *err)
{
    if (!w->file) return refuse(w, NULL, "the data has not begun", err);
    if (n > w->declared - w->put) return refuse(w, NULL, "more bytes than the declared tensors hold", err);
    w->put += n;
    return nb_writer_put(w->file, bytes, n, err);
}

nb_status nb_st_writer_commit(nb_st_writer *w, nb_error *err)
{
    nb_status s;
    if (!w->file) {
        s = refuse(w, NULL, "the data has not begun", err);
    } else if (w->put != w->declared) {
        s = refuse(w, NULL, "fewer bytes than the declared tensors hold", err);
        nb_writer_abort(w->file);
    } else {
        s = nb_writer_commit(w->file, err);
    }
    writer_free(w);
    return s;
}

void nb_st_writer_abort(nb_st_writer *w)
{
    if (!w) return;
    nb_writer_abort(w->file);
    writer_free(w);
}
