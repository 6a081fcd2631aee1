/* JSON values as pydantic reads them in its lax mode: "5" and 5.0 are ints, "yes" is a bool. What does not fit is told in its words. */
#ifndef NB_SERVER_PARAMS_TYPES_H
#define NB_SERVER_PARAMS_TYPES_H

#include "server/errors.h"

/* All return false after adding to f. loc as in nb_field_error. */
bool nb_get_int(nb_field_errors *f, const char *loc, const json_t *v, int64_t min, int64_t max, int64_t *out);
bool nb_get_real(nb_field_errors *f, const char *loc, const json_t *v, double *out);
bool nb_get_bool(nb_field_errors *f, const char *loc, const json_t *v, bool *out);
bool nb_is_text(nb_field_errors *f, const char *loc, const json_t *v);
bool nb_is_object(nb_field_errors *f, const char *loc, const json_t *v);
/* Of at most `most` elements. */
bool nb_is_list(nb_field_errors *f, const char *loc, const json_t *v, size_t most);
bool nb_is_text_list(nb_field_errors *f, const char *loc, const json_t *v, size_t most);
/* One of the words in names, which are separated by spaces. */
bool nb_is_choice(nb_field_errors *f, const char *loc, const json_t *v, const char *names);
/* A string of digits (key of logit_bias) as Python's int() reads it. */
bool nb_text_int(const char *s, size_t n, int64_t *out);

#endif
