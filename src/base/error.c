/* The error object: a fixed-size value, because it must be fillable when memory is out. */
#include "base/error.h"

#include <stdio.h>
#include <string.h>

#ifdef __clang_analyzer__ /* the definitions are below */
#undef nb_fail
#undef nb_fail_nomem
#endif

const char *nb_status_name(nb_status s)
{
    switch (s) {
    case NB_OK: return "ok";
    case NB_ERR_NOMEM: return "out of memory";
    case NB_ERR_IO: return "I/O error";
    case NB_ERR_FORMAT: return "bad format";
    case NB_ERR_MISSING: return "missing";
    case NB_ERR_UNSUPPORTED: return "unsupported";
    case NB_ERR_ARGUMENT: return "bad argument";
    case NB_ERR_LIMIT: return "limit reached";
    case NB_ERR_CANCELLED: return "cancelled";
    case NB_ERR_BUSY: return "busy";
    }
    return "unknown status";
}

nb_status nb_vfail(nb_error *err, nb_status status, const char *fmt, va_list ap)
{
    if (!err) return status;
    err->status = status;
    err->offset = -1;
    err->file[0] = err->tensor[0] = err->remedy[0] = '\0';
    vsnprintf(err->cause, sizeof err->cause, fmt, ap);
    return status;
}

nb_status nb_fail(nb_error *err, nb_status status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    nb_vfail(err, status, fmt, ap);
    va_end(ap);
    return status;
}

/* Copies src into dst, keeping the end of src (the part of a path that tells files apart) when it is longer. */
static void keep_end(char *dst, size_t cap, const char *src)
{
    size_t n = strlen(src);
    if (n < cap) {
        memcpy(dst, src, n + 1);
        return;
    }
    memcpy(dst, "...", 3);
    memcpy(dst + 3, src + n - (cap - 4), cap - 3);
}

void nb_error_at(nb_error *err, const char *file, const char *tensor, int64_t offset)
{
    if (!err) return;
    if (file) keep_end(err->file, sizeof err->file, file);
    if (tensor) keep_end(err->tensor, sizeof err->tensor, tensor);
    if (offset >= 0) err->offset = offset;
}

void nb_error_remedy(nb_error *err, const char *fmt, ...)
{
    if (!err) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->remedy, sizeof err->remedy, fmt, ap);
    va_end(ap);
}

nb_status nb_fail_nomem(nb_error *err, const char *what, size_t bytes)
{
    nb_fail(err, NB_ERR_NOMEM, "no memory for %s (%zu bytes)", what, bytes);
    nb_error_remedy(err, "free memory, or run this on a machine that has more");
    return NB_ERR_NOMEM;
}

size_t nb_error_format(const nb_error *err, char *buf, size_t cap)
{
    char at[40] = "";
    if (err->offset >= 0)
        snprintf(at, sizeof at, "%sat byte %lld", err->tensor[0] ? " " : "", (long long)err->offset);
    const char *sep1 = err->file[0] ? ": " : "";
    const char *sep2 = err->tensor[0] || at[0] ? ": " : "";
    int n = snprintf(buf, cap, "%s%s%s%s%s%s%s%s", err->file, sep1, err->tensor, at, sep2, err->cause,
                     err->remedy[0] ? "; " : "", err->remedy);
    return n < 0 ? 0 : (size_t)n;
}
