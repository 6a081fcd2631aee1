/* config.json: parsing it as leniently as transformers does and no more, and the typed look-ups behind nb_config. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json_tree.h"
#include "checkpoint/arch_rows.h"
#include "checkpoint/internal.h"

#define MAX_LAYERS 10000

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '+' || c == '.';
}

/* The length of a bare non-finite number at s (n bytes), 0 when there is none. */
static size_t non_finite(const char *s, size_t n)
{
    static const char *const words[] = {"-Infinity", "Infinity", "NaN"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t len = strlen(words[i]);
        if (n >= len && memcmp(s, words[i], len) == 0 && (n == len || !is_word(s[len]))) return len;
    }
    return 0;
}

/* Copies text, with quotes put around bare non-finite numbers outside strings. */
static bool quote_non_finite(const char *text, size_t n, nb_buf *out)
{
    bool string = false;
    if (!nb_buf_reserve(out, n)) return false;
    for (size_t i = 0; i < n;) {
        char c = text[i];
        size_t w = string || (i && is_word(text[i - 1])) ? 0 : non_finite(text + i, n - i);
        if (w) {
            nb_buf_addc(out, '"');
            nb_buf_add(out, text + i, w);
            nb_buf_addc(out, '"');
        } else {
            w = string && c == '\\' && i + 1 < n ? 2 : 1;
            nb_buf_add(out, text + i, w);
            if (c == '"') string = !string;
        }
        i += w;
    }
    return nb_buf_ok(out);
}

nb_status nb_config_parse(const char *path, const char *text, size_t n, json_t **out, nb_error *err)
{
    nb_buf b = {0};
    json_t *root = NULL;
    nb_status s;
    if (quote_non_finite(text, n, &b))
        s = nb_json_tree(path, nb_buf_str(&b), b.len, &root, err);
    else
        s = nb_fail_nomem(err, "config.json", n);
    if (s == NB_OK && !json_is_object(root)) {
        s = nb_fail(err, NB_ERR_FORMAT, "expected a JSON object");
        nb_error_at(err, path, NULL, 0);
    }
    if (s == NB_ERR_FORMAT) nb_error_remedy(err, "download config.json again");
    if (s == NB_OK)
        *out = root;
    else
        json_decref(root);
    nb_buf_free(&b);
    return s;
}

/* An error about a key of config.json. */
static nb_status bad_key(const nb_config *cfg, nb_status status, nb_error *err, const char *remedy,
                         const char *fmt, ...) __attribute__((format(printf, 5, 6)));
static nb_status bad_key(const nb_config *cfg, nb_status status, nb_error *err, const char *remedy,
                         const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    nb_vfail(err, status, fmt, ap);
    va_end(ap);
    nb_error_at(err, cfg->file, NULL, -1);
    nb_error_remedy(err, "%s", remedy);
    return status;
}

static const char from_original[] =
    "take the value from the original model's config.json (re-saved configs drop keys)";

static const json_t *at_path(const json_t *v, const char *path)
{
    char key[128];
    for (;;) {
        size_t n = strcspn(path, ".");
        if (n >= sizeof key) return NULL;
        memcpy(key, path, n);
        key[n] = '\0';
        v = json_is_array(v) && key[0] >= '0' && key[0] <= '9' ? json_array_get(v, strtoul(key, NULL, 10))
                                                               : json_object_get(v, key);
        if (!v || json_is_null(v)) return NULL;
        if (!path[n]) return v;
        path += n + 1;
    }
}

const json_t *nb_config_get(const nb_config *cfg, const char *path)
{
    const json_t *v = at_path(cfg->text, path);
    return v || cfg->text == cfg->root ? v : at_path(cfg->root, path);
}

const nb_arch_default *nb_config_default(const nb_config *cfg, const char *key)
{
    const nb_arch_default *d = cfg->arch ? cfg->arch->defaults : NULL;
    while (d && d->key && strcmp(d->key, key) != 0) d++;
    return d && d->key ? d : NULL;
}

nb_status nb_config_int(const nb_config *cfg, const char *key, int layer, int64_t min, int64_t max,
                        int64_t *out, nb_error *err)
{
    int64_t v;
    if (!cfg->arch || !cfg->arch->symbol || !cfg->arch->symbol(cfg, key, layer, &v)) {
        const json_t *j = nb_config_get(cfg, key);
        const nb_arch_default *d = j ? NULL : nb_config_default(cfg, key);
        if (!j && !d)
            return bad_key(cfg, NB_ERR_MISSING, err, from_original, "the key \"%s\" is missing", key);
        if (j && !json_is_integer(j))
            return bad_key(cfg, NB_ERR_FORMAT, err, from_original, "\"%s\" must be an integer", key);
        v = j ? json_integer_value(j) : (int64_t)d->value;
    }
    if (v < min || v > max)
        return bad_key(cfg, NB_ERR_FORMAT, err, from_original, "\"%s\" is %lld; expected %lld to %lld", key,
                       (long long)v, (long long)min, (long long)max);
    *out = v;
    return NB_OK;
}

/* A JSON number, or one of the spellings of a non-finite one: bare (a string after parsing) or {"__float__": "Infinity"}. */
static bool number(const json_t *j, double *out)
{
    if (json_is_object(j)) j = json_object_get(j, "__float__");
    if (json_is_number(j)) {
        *out = json_number_value(j);
        return true;
    }
    const char *s = json_string_value(j);
    if (!s) return false;
    if (strcmp(s, "Infinity") == 0)
        *out = INFINITY;
    else if (strcmp(s, "-Infinity") == 0)
        *out = -INFINITY;
    else if (strcmp(s, "NaN") == 0)
        *out = NAN;
    else
        return false;
    return true;
}

nb_status nb_config_num(const nb_config *cfg, const char *key, double min, double max, double *out,
                        nb_error *err)
{
    double v;
    const json_t *j = nb_config_get(cfg, key);
    const nb_arch_default *d = j ? NULL : nb_config_default(cfg, key);
    if (!j && !d) return bad_key(cfg, NB_ERR_MISSING, err, from_original, "the key \"%s\" is missing", key);
    if (d)
        v = d->value;
    else if (!number(j, &v))
        return bad_key(cfg, NB_ERR_FORMAT, err, from_original, "\"%s\" must be a number", key);
    if (!(v >= min && v <= max))
        return bad_key(cfg, NB_ERR_FORMAT, err, from_original, "\"%s\" is %g; expected %g to %g", key, v, min,
                       max);
    *out = v;
    return NB_OK;
}

/* One dimension: products and quotients of integers and names, added up. *p moves past it. */
typedef struct shape_reader {
    const nb_config *cfg;
    const char *expr, *p;
    int layer;
    nb_error *err;
} shape_reader;

static nb_status bad_shape(shape_reader *r, const char *why)
{
    return bad_key(r->cfg, NB_ERR_FORMAT, r->err, from_original, "the shape %s: %s", r->expr, why);
}

static nb_status atom(shape_reader *r, uint64_t *out)
{
    char name[64];
    int64_t v = 0;
    size_t n = strcspn(r->p, "*/+,");
    if (!n || n >= sizeof name) return bad_shape(r, "expected a number or a key");
    memcpy(name, r->p, n);
    name[n] = '\0';
    r->p += n;
    if (name[0] >= '0' && name[0] <= '9') {
        v = strtoll(name, NULL, 10);
    } else {
        nb_status s = nb_config_int(r->cfg, name, r->layer, 0, (int64_t)1 << 40, &v, r->err);
        if (s != NB_OK) return s;
    }
    *out = (uint64_t)v;
    return NB_OK;
}

static nb_status product(shape_reader *r, uint64_t *out)
{
    nb_status s = atom(r, out);
    while (s == NB_OK && (*r->p == '*' || *r->p == '/')) {
        uint64_t v = 0;
        char op = *r->p++;
        s = atom(r, &v);
        if (s != NB_OK) return s;
        if (op == '*' && __builtin_mul_overflow(*out, v, out)) return bad_shape(r, "the product overflows");
        if (op == '/' && (!v || *out % v)) return bad_shape(r, "the quotient is no integer");
        if (op == '/') *out /= v;
    }
    return s;
}

size_t nb_config_shape(const nb_config *cfg, const char *expr, int layer, uint64_t dims[4], nb_error *err)
{
    shape_reader r = {cfg, expr, expr, layer, err};
    for (size_t rank = 0; rank < 4; rank++) {
        bool more = true;
        for (dims[rank] = 0; more;) {
            uint64_t v = 0;
            if (product(&r, &v) != NB_OK) return 0;
            if (__builtin_add_overflow(dims[rank], v, &dims[rank])) {
                bad_shape(&r, "the sum overflows");
                return 0;
            }
            more = *r.p == '+';
            r.p += more;
        }
        if (!*r.p) return rank + 1;
        r.p++; /* ',' */
    }
    bad_shape(&r, "more than four dimensions");
    return 0;
}

static const nb_arch *arch_of(const char *model_type)
{
    for (const nb_arch *const *a = nb_archs; model_type && *a; a++) {
        for (const char *const *t = (*a)->model_types; *t; t++) {
            if (strcmp(*t, model_type) == 0) return *a;
        }
    }
    return NULL;
}

static nb_status unknown_arch(const nb_config *cfg, nb_error *err)
{
    char known[1024] = "";
    size_t at = 0;
    for (const nb_arch *const *a = nb_archs; *a; a++) {
        for (const char *const *t = (*a)->model_types; *t && at < sizeof known; t++)
            at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", at ? ", " : "", *t);
    }
    if (!cfg->model_type)
        return bad_key(cfg, NB_ERR_UNSUPPORTED, err, from_original, "no model_type is given; known ones: %s",
                       known);
    return bad_key(cfg, NB_ERR_UNSUPPORTED, err,
                   "`nibble check` still reads the file; a newer nibble may run it",
                   "model_type \"%.64s\" is not known; known ones: %s", cfg->model_type, known);
}

/* Keys that are read by whether they are true, or above some number, and that nobody misses: of another type they would be passed
 * over, and the tensors blamed for it. */
static nb_status check_types(const nb_config *cfg, nb_error *err)
{
    enum { FLAG, INTEGER, INTEGERS };
    static const struct {
        const char *key;
        int type;
    } keys[] = {
        {"tie_word_embeddings", FLAG},       {"use_sliding_window", FLAG},
        {"attention_k_eq_v", FLAG},          {"use_double_wide_mlp", FLAG},
        {"enable_moe_block", FLAG},          {"hidden_size_per_layer_input", INTEGER},
        {"max_window_layers", INTEGER},      {"decoder_sparse_step", INTEGER},
        {"sliding_window_pattern", INTEGER}, {"_sliding_window_pattern", INTEGER},
        {"mlp_only_layers", INTEGERS},
    };
    static const char *const must_be[] = {"true or false", "an integer", "a list of integers"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *v = nb_config_get(cfg, keys[i].key);
        bool ok = !v || (keys[i].type == FLAG      ? json_is_boolean(v)
                         : keys[i].type == INTEGER ? json_is_integer(v)
                                                   : json_is_array(v));
        for (size_t k = 0; keys[i].type == INTEGERS && k < json_array_size(v); k++)
            ok = ok && json_is_integer(json_array_get(v, k));
        if (!ok)
            return bad_key(cfg, NB_ERR_FORMAT, err, from_original, "\"%s\" must be %s", keys[i].key,
                           must_be[keys[i].type]);
    }
    return NB_OK;
}

nb_status nb_config_from_json(const json_t *root, const char *file, nb_config *out, nb_error *err)
{
    const json_t *text = json_object_get(root, "text_config");
    *out = (nb_config){.root = root, .text = json_is_object(text) ? text : root, .file = file};
    const char *outer = json_string_value(json_object_get(root, "model_type"));
    const char *inner = json_string_value(json_object_get(out->text, "model_type"));
    out->arch = arch_of(inner);
    out->model_type = out->arch || !outer ? inner : outer;
    if (!out->arch) out->arch = arch_of(outer);
    nb_status s = nb_config_int(out, "num_hidden_layers", -1, 1, MAX_LAYERS, &out->n_layers, err);
    if (!out->arch) return unknown_arch(out, err);
    if (s == NB_OK) s = check_types(out, err);
    if (s == NB_OK) s = out->arch->validate(out, err);
    if (s == NB_OK) s = nb_arch_check_lists(out, err);
    if (s != NB_OK) nb_error_at(err, file, NULL, -1);
    return s;
}

nb_status nb_config_init(const nb_ckpt *c, nb_config *out, nb_error *err)
{
    return nb_config_from_json(nb_ckpt_config(c), nb_ckpt_config_path(c), out, err);
}
