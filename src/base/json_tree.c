/*
 * Builds jansson's tree from the events of our own parser. jansson 2.14's parser does not notice when memory runs out
 * inside a string (lex_save ignores what strbuffer_append_byte returns): characters are lost and parsing goes on, so a
 * config could silently say something else. Its constructors do report failure, and only those are used here.
 */
#include "base/json_tree.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

typedef struct builder {
    nb_json j;
    const char *path;
    nb_error *err;
    nb_status status;
    size_t left; /* values that may still come */
} builder;

static json_t *fail(builder *b, const char *why)
{
    b->status = nb_fail(b->err, NB_ERR_FORMAT, "not JSON: %s", why);
    nb_error_at(b->err, b->path, NULL, (int64_t)b->j.pos);
    return NULL;
}

static json_t *no_memory(builder *b)
{
    b->status = nb_fail_nomem(b->err, "JSON", b->j.n);
    return NULL;
}

static json_t *value(builder *b, nb_json_event e);

static json_t *object(builder *b)
{
    nb_json *j = &b->j;
    nb_json_event e;
    json_t *o = json_object();
    if (!o) return no_memory(b);
    while ((e = nb_json_next(j)) == NB_J_KEY) {
        if (memchr(j->str, '\0', j->len)) {
            fail(b, "a key holds a NUL character");
            goto bad;
        }
        char *key = malloc(j->len + 1);
        if (!key) {
            no_memory(b);
            goto bad;
        }
        memcpy(key, j->str, j->len);
        key[j->len] = '\0';
        json_t *v = value(b, nb_json_next(j));
        /* Takes v, whether it succeeds or not. */
        int set = v ? json_object_set_new_nocheck(o, key, v) : -1;
        free(key);
        if (set != 0) {
            if (v) no_memory(b);
            goto bad;
        }
    }
    if (e == NB_J_END) return o;
    value(b, e); /* the parser's error */
bad:
    json_decref(o);
    return NULL;
}

static json_t *array(builder *b)
{
    nb_json_event e;
    json_t *a = json_array();
    if (!a) return no_memory(b);
    while ((e = nb_json_next(&b->j)) != NB_J_END) {
        json_t *v = value(b, e);
        if (!v) goto bad;
        if (json_array_append_new(a, v) != 0) {
            no_memory(b);
            goto bad;
        }
    }
    return a;
bad:
    json_decref(a);
    return NULL;
}

static json_t *number(builder *b)
{
    int64_t i;
    double d;
    json_t *v;
    if (nb_json_i64(&b->j, &i))
        v = json_integer(i);
    else if (nb_json_f64(&b->j, &d))
        v = json_real(d);
    else
        return fail(b, "a number too large for a double, or of more than 511 characters");
    return v ? v : no_memory(b);
}

static json_t *string(builder *b)
{
    json_t *v = json_stringn_nocheck(b->j.str, b->j.len);
    return v ? v : no_memory(b);
}

/* The value that starts with event e; NULL with b->status set. Its depth is the parser's, at most NB_JSON_MAX_DEPTH. */
static json_t *value(builder *b, nb_json_event e)
{
    if (!b->left && e != NB_J_ERROR) return fail(b, "too many values");
    b->left -= b->left > 0;
    switch (e) {
    case NB_J_OBJECT: return object(b);
    case NB_J_ARRAY: return array(b);
    case NB_J_STRING: return string(b);
    case NB_J_NUMBER: return number(b);
    case NB_J_TRUE: return json_true();
    case NB_J_FALSE: return json_false();
    case NB_J_NULL: return json_null();
    default: return nb_json_nomem(&b->j) ? no_memory(b) : fail(b, b->j.error);
    }
}

nb_status nb_json_tree(const char *path, const char *text, size_t n, json_t **out, nb_error *err)
{
    return nb_json_tree_bounded(path, text, n, SIZE_MAX, out, err);
}

nb_status nb_json_tree_bounded(const char *path, const char *text, size_t n, size_t most, json_t **out,
                               nb_error *err)
{
    builder b = {.path = path, .err = err, .status = NB_OK, .left = most};
    nb_json_init(&b.j, text, n);
    json_t *root = value(&b, nb_json_next(&b.j));
    nb_json_event e = root ? nb_json_next(&b.j) : NB_J_EOF;
    if (e != NB_J_EOF) value(&b, e); /* text after the value: the parser's error */
    nb_json_free(&b.j);
    if (b.status == NB_OK)
        *out = root;
    else
        json_decref(root);
    return b.status;
}

bool nb_json_truthy(const json_t *v)
{
    if (!v) return false;
    switch (json_typeof(v)) {
    case JSON_NULL:
    case JSON_FALSE: return false;
    case JSON_TRUE: return true;
    case JSON_INTEGER:
    case JSON_REAL: return json_number_value(v) != 0;
    case JSON_STRING: return json_string_length(v) > 0;
    case JSON_ARRAY: return json_array_size(v) > 0;
    case JSON_OBJECT: return json_object_size(v) > 0;
    }
    return false;
}
