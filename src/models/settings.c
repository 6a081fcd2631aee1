/* Config keys as the forward passes need them, in the spellings of transformers 4 and 5. */
#include "models/settings.h"

#include <math.h>
#include <string.h>

/* Puts the config's name to an error that was just made. */
static nb_status in_config(const nb_model *m, nb_error *err, nb_status s)
{
    nb_error_at(err, m->cfg.file, NULL, -1);
    return s;
}

nb_status nb_read_sizes(const nb_model *m, const nb_size_setting *list, size_t n, nb_error *err)
{
    for (size_t i = 0; i < n; i++) {
        int64_t v;
        nb_status s = nb_config_int(&m->cfg, list[i].key, -1, 1, 1 << 30, &v, err);
        if (s != NB_OK) return s;
        *list[i].to = (size_t)v;
    }
    return NB_OK;
}

bool nb_layer_has_part(const nb_model *m, nb_part p, int l)
{
    if (m->part[p] < 0) return false;
    const nb_arch_tensor *row = &m->cfg.arch->tensors[m->part[p]];
    return !row->when || row->when(&m->cfg, l);
}

bool nb_has_part(const nb_model *m, nb_part p)
{
    for (int l = 0; l < m->cfg.n_layers; l++)
        if (nb_layer_has_part(m, p, l)) return true;
    return false;
}

nb_status nb_read_bool(const nb_model *m, const char *key, bool *to, nb_error *err)
{
    const json_t *v = nb_config_get(&m->cfg, key);
    *to = json_is_true(v);
    if (json_is_boolean(v)) return NB_OK;
    nb_fail(err, v ? NB_ERR_FORMAT : NB_ERR_MISSING, "%s is not true or false", key);
    nb_error_remedy(err, "take it from the original model's config.json");
    return in_config(m, err, v ? NB_ERR_FORMAT : NB_ERR_MISSING);
}

nb_status nb_read_number(const nb_model *m, const char *key, double min, double max, float *to, nb_error *err)
{
    double v;
    nb_status s = nb_config_num(&m->cfg, key, min, max, &v, err);
    if (s == NB_OK) *to = (float)v;
    return s;
}

nb_status nb_only_word(const nb_model *m, const char *key, const char *only, nb_error *err)
{
    const json_t *v = nb_config_get(&m->cfg, key);
    const char *name = json_is_string(v) ? json_string_value(v) : "no string";
    if (!v || strcmp(name, only) == 0) return NB_OK;
    return in_config(m, err,
                     nb_fail(err, NB_ERR_UNSUPPORTED, "%s is '%.64s', expected '%s'", key, name, only));
}

nb_status nb_only_bool(const nb_model *m, const char *key, bool only, nb_error *err)
{
    const json_t *v = nb_config_get(&m->cfg, key);
    if (!v || (only ? json_is_true(v) : json_is_false(v))) return NB_OK;
    return in_config(m, err,
                     nb_fail(err, NB_ERR_UNSUPPORTED, "%s is not %s; %s models with it are not supported",
                             key, only ? "true" : "false", m->cfg.arch->name));
}

nb_status nb_only_number(const nb_model *m, const char *key, double only, nb_error *err)
{
    const json_t *v = nb_config_get(&m->cfg, key);
    if (!v || (json_is_number(v) && json_number_value(v) == only)) return NB_OK;
    return in_config(m, err,
                     nb_fail(err, NB_ERR_UNSUPPORTED,
                             "%s is not %g; %s models with another are not supported", key, only,
                             m->cfg.arch->name));
}

nb_status nb_read_rope(const nb_model *m, const char *type, double *theta, const json_t **params,
                       nb_error *err)
{
    char path[96] = "rope_parameters.", key[128];
    if (type) strncat(path, type, sizeof path - strlen(path) - 1);
    const json_t *p = type ? nb_config_get(&m->cfg, path) : NULL;
    if (!p) { /* one for all types of layers */
        strcpy(path, "rope_parameters");
        p = nb_config_get(&m->cfg, "rope_scaling");
    }
    *params = p ? p : nb_config_get(&m->cfg, path);
    snprintf(key, sizeof key, "%s.rope_theta", path);
    const bool outside = !nb_config_get(&m->cfg, key) &&
                         (nb_config_get(&m->cfg, "rope_theta") || nb_config_default(&m->cfg, "rope_theta"));
    return nb_config_num(&m->cfg, outside ? "rope_theta" : key, 1, 1e12, theta, err);
}

static nb_status read_share(const nb_model *m, const char *type, size_t d, nb_rotates how, size_t *to,
                            nb_error *err)
{
    double theta, factor;
    const json_t *params;
    nb_status s = nb_read_rope(m, type, &theta, &params, err);
    if (s != NB_OK) return s;
    if (!type && nb_config_get(&m->cfg, "rotary_dim")) {
        if ((s = nb_read_sizes(m, &(nb_size_setting){"rotary_dim", to}, 1, err))) return s;
        if (*to <= d && *to % 2 == 0) return NB_OK;
        nb_fail(err, NB_ERR_FORMAT, "rotary_dim %zu is no even number of columns of a head of %zu", *to, d);
        nb_error_remedy(err, "take both from the original model's config.json");
        return in_config(m, err, NB_ERR_FORMAT);
    }
    const char *kind = json_string_value(json_object_get(params, "rope_type"));
    if (kind && strcmp(kind, "proportional") == 0) { /* the share is of frequencies, and all pairs have one */
        *to = d;
        return NB_OK;
    }
    const json_t *v = json_object_get(params, "partial_rotary_factor");
    if (!v) v = nb_config_get(&m->cfg, "rope_parameters.partial_rotary_factor");
    if (!v && how != NB_ROTATES_SHARE && !nb_config_get(&m->cfg, "partial_rotary_factor")) {
        *to = d;
        return NB_OK;
    }
    if (json_is_number(v))
        factor = json_number_value(v);
    else if ((s = nb_config_num(&m->cfg, "partial_rotary_factor", 0, 1, &factor, err)))
        return s;
    const double dims = (double)d * factor;
    *to = dims >= 2 && dims <= (double)d ? (size_t)dims : 0; /* cut, as transformers does */
    if (*to && *to % 2 == 0) return NB_OK;
    nb_fail(err, NB_ERR_FORMAT, "partial_rotary_factor %g of head_dim %zu is no even number of columns",
            factor, d);
    nb_error_remedy(err, "take both from the original model's config.json");
    return in_config(m, err, NB_ERR_FORMAT);
}

nb_status nb_read_rotary(const nb_model *m, const char *type, size_t d, nb_rotates how, size_t *to,
                         nb_error *err)
{
    nb_status s = read_share(m, type, d, how, to, err);
    if (s || how != NB_ROTATES_ALL || *to == d) return s;
    return in_config(m, err,
                     nb_fail(err, NB_ERR_UNSUPPORTED,
                             "the config rotates %zu of a head's %zu columns (partial_rotary_factor, "
                             "rotary_dim); %s models rotate all",
                             *to, d, m->cfg.arch->name));
}

nb_status nb_rope_open(const nb_model *m, const char *type, size_t d, nb_rotates how, nb_rope *out,
                       nb_error *err)
{
    double theta;
    const json_t *params;
    size_t dims;
    nb_status s;
    if ((s = nb_read_rope(m, type, &theta, &params, err)) ||
        (s = nb_read_rotary(m, type, d, how, &dims, err)))
        return s;
    const char *kind = nb_rope_type(params);
    if (!kind || (strcmp(kind, "longrope") != 0 && strcmp(kind, "su") != 0)) /* its first name */
        return nb_rope_init(params, theta, dims, 0, m->x->max_rows, out, err);
    size_t original, longest;
    const bool inside = json_object_get(params, "original_max_position_embeddings");
    char key[64];
    snprintf(key, sizeof key, "%soriginal_max_position_embeddings",
             nb_config_get(&m->cfg, "original_max_position_embeddings") || !inside ? ""
             : nb_config_get(&m->cfg, "rope_scaling")                              ? "rope_scaling."
                                                                                   : "rope_parameters.");
    const nb_size_setting sizes[] = {{key, &original}, {"max_position_embeddings", &longest}};
    if ((s = nb_read_sizes(m, sizes, 2, err))) return s;
    return nb_rope_init_long(params, theta, dims, original, longest, m->x->max_rows, out, err);
}

/* What the config says of windows at layer l; *has comes out false where the layer has none. */
static nb_status has_window(const nb_model *m, int l, bool *has, nb_error *err)
{
    const nb_config *c = &m->cfg;
    const json_t *types = nb_config_get(c, "layer_types"), *from = nb_config_get(c, "max_window_layers"),
                 *use = nb_config_get(c, "use_sliding_window");
    const char *type = json_string_value(json_array_get(types, (size_t)l));
    *has = nb_config_get(c, "sliding_window") && (from ? json_is_true(use) : !json_is_false(use));
    if (!*has) return NB_OK;
    if (!types) {
        *has = l >= json_integer_value(from);
        return NB_OK;
    }
    if (type && strcmp(type, "sliding_attention") == 0) return NB_OK;
    *has = false;
    if (type && strcmp(type, "full_attention") == 0) return NB_OK;
    nb_fail(err, NB_ERR_UNSUPPORTED,
            "layer_types[%d] is '%.64s', expected full_attention or sliding_attention", l,
            type ? type : "absent");
    return in_config(m, err, NB_ERR_UNSUPPORTED);
}

nb_status nb_read_window(const nb_model *m, int l, size_t *to, nb_error *err)
{
    bool has;
    nb_status s = has_window(m, l, &has, err);
    *to = 0;
    return s || !has ? s : nb_read_sizes(m, &(nb_size_setting){"sliding_window", to}, 1, err);
}
