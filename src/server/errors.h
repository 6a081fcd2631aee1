/* How requests are refused: vLLM's words and shapes (specs/http_api.md, "Error object"), for the files that look at bodies. */
#ifndef NB_SERVER_ERRORS_H
#define NB_SERVER_ERRORS_H

#include "server/api.h"

/* A semantic check of vLLM's (VLLMValidationError): 400 BadRequestError, and the suffix " (parameter=…, value=…)" that is part of the
 * message there. value NULL: without it. Returns false, for `return nb_api_bad(…)`. */
bool nb_api_bad(nb_api_error *e, const char *param, const char *value, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* 400 BadRequestError of a ValueError: no parameter, the text alone. Returns false. */
bool nb_api_bad_text(nb_api_error *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* What the library below said: busy is 503, what a client can mend 400, the rest 500. Returns false. */
bool nb_api_bad_status(nb_api_error *e, const nb_error *err);
bool nb_api_nomem(nb_api_error *e);

/* A value as Python prints it, cut to fit. Returns buf. */
#define NB_VALUE_TEXT 96
const char *nb_value_text(const json_t *v, char buf[NB_VALUE_TEXT]);
const char *nb_value_real(double v, char buf[NB_VALUE_TEXT]);
const char *nb_value_int(int64_t v, char buf[NB_VALUE_TEXT]);

/* The type errors of a body, as pydantic lists them. Zero-initialise; nb_field_errors_free. */
typedef struct nb_field_errors {
    nb_buf text;
    size_t count;
    char param[160]; /* of the first */
} nb_field_errors;

/* One error. loc: the path below body with dots, "" for the body itself; parts of digits are numbers. ctx: NULL or the inside of a
 * Python dict. After the eighth none is added: a list of a million wrong things is no message. */
void nb_field_error(nb_field_errors *f, const char *loc, const char *type, const char *msg,
                    const json_t *input, const char *ctx);
/* Those of from (the branches of a union), after the others. */
void nb_field_errors_add(nb_field_errors *f, const nb_field_errors *from);
/* True when there are none; else *e is filled (400 Bad Request). */
bool nb_field_errors_none(nb_field_errors *f, nb_api_error *e);
void nb_field_errors_free(nb_field_errors *f);

#endif
