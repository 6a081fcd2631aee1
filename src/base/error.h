/* Filling in nb_error. Library code reports by returning nb_fail(...); nothing in here prints or exits. */
#ifndef NB_BASE_ERROR_H
#define NB_BASE_ERROR_H

#include <stdarg.h>

#include "nibble.h"

/* Sets status and cause (printf format), clears the other fields, returns status so that a caller can write
 * `return nb_fail(err, NB_ERR_IO, "...")`. err may be NULL. */
nb_status nb_fail(nb_error *err, nb_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
nb_status nb_vfail(nb_error *err, nb_status status, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));

/* Add detail to an error already set by nb_fail. NULL or -1 leaves a field as it is. All return err->status
 * (NB_OK if err is NULL: do not use their result then). A path longer than the field keeps its end. */
void nb_error_at(nb_error *err, const char *file, const char *tensor, int64_t offset);
void nb_error_remedy(nb_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* NB_ERR_NOMEM with a message that names what and how many bytes. */
nb_status nb_fail_nomem(nb_error *err, const char *what, size_t bytes);

#ifdef __clang_analyzer__
/* The analyzer sees one file at a time: this tells it that failing never returns NB_OK. */
#define nb_fail(err, status, ...) (nb_fail(err, status, __VA_ARGS__), (status))
#define nb_fail_nomem(err, what, bytes) (nb_fail_nomem(err, what, bytes), NB_ERR_NOMEM)
#endif

#endif
