/* JSON as Python's json.dumps(v, ensure_ascii=False) writes it, which is what models saw in training: ", " and ": " between
 * members, floats as repr gives them, keys in their order. Used by chat encodings. */
#ifndef NB_TEXT_PYJSON_H
#define NB_TEXT_PYJSON_H

#include <jansson.h>

#include "base/buf.h"

void nb_pyjson_add(nb_buf *out, const json_t *v);
/* One string, quotes included. s is valid UTF-8. */
void nb_pyjson_add_string(nb_buf *out, const char *s, size_t n);
/* A finite float as repr gives it. */
void nb_pyjson_add_real(nb_buf *out, double v);

#endif
