/* JSON text as a jansson tree, for what is small and looked at in many places (config.json, requests). */
#ifndef NB_BASE_JSON_TREE_H
#define NB_BASE_JSON_TREE_H

#include <jansson.h>

#include "base/error.h"

/* Parses n bytes strictly (base/json.h: RFC 8259, UTF-8, at most 64 deep). Strings may hold NUL (json_string_length), keys
 * may not. Of a key given twice the last counts, as in Python. An integer beyond 64 bits becomes a real. NB_ERR_FORMAT names
 * path (may be NULL) and byte, NB_ERR_NOMEM is certain to be told, unlike by json_loadb. json_decref *out. */
nb_status nb_json_tree(const char *path, const char *text, size_t n, json_t **out, nb_error *err);
/* The same of at most `most` values, for text that anybody may send: a tree takes many times the memory of its text. */
nb_status nb_json_tree_bounded(const char *path, const char *text, size_t n, size_t most, json_t **out,
                               nb_error *err);
/* bool(v) as Python has it: what is empty, zero, null or absent (NULL) is false. */
bool nb_json_truthy(const json_t *v);

#endif
