/*
 * Reading a config into hyper-parameters, for the open functions of the families. Every function names the key it stumbles over
 * and leaves *to alone then; an absent key is an error unless the comment says what its absence means.
 */
#ifndef NB_MODELS_SETTINGS_H
#define NB_MODELS_SETTINGS_H

#include "models/model.h"

typedef struct nb_size_setting {
    const char *key;
    size_t *to;
} nb_size_setting;

/* Integers in [1, 2^30]. */
nb_status nb_read_sizes(const nb_model *m, const nb_size_setting *list, size_t n, nb_error *err);
/* True when the table has a row of this part and some layer has that row. */
bool nb_has_part(const nb_model *m, nb_part p);
/* Layer l. */
bool nb_layer_has_part(const nb_model *m, nb_part p, int l);
/* A number in [min, max]. */
nb_status nb_read_number(const nb_model *m, const char *key, double min, double max, float *to,
                         nb_error *err);

/* Switches that change the arithmetic and that the family takes in one way only. Absent or null: that way. NB_ERR_UNSUPPORTED. */
nb_status nb_only_word(const nb_model *m, const char *key, const char *only, nb_error *err);
nb_status nb_only_bool(const nb_model *m, const char *key, bool only, nb_error *err);
nb_status nb_only_number(const nb_model *m, const char *key, double only, nb_error *err);

/* The rope settings of layers of `type` ("sliding_attention"; NULL: of all), in either spelling: rope_theta with rope_scaling, or
 * rope_parameters, which may hold one object a layer type. *params may come out NULL: plain frequencies. */
nb_status nb_read_rope(const nb_model *m, const char *type, double *theta, const json_t **params,
                       nb_error *err);
/* How much of each head a family rotates. Configs of the first kind that say otherwise mean another model (transformers ignores
 * the key, other engines do not), and are refused. */
typedef enum nb_rotates {
    NB_ROTATES_ALL,
    NB_ROTATES_SHARE,        /* the config must say which */
    NB_ROTATES_SHARE_OR_ALL, /* or say nothing: all */
} nb_rotates;

/* Columns of a head of d that rotate: d * partial_rotary_factor, which stands by itself or in rope_parameters; or rotary_dim. */
nb_status nb_read_rotary(const nb_model *m, const char *type, size_t d, nb_rotates how, size_t *to,
                         nb_error *err);
/* Both, and the frequencies. */
nb_status nb_rope_open(const nb_model *m, const char *type, size_t d, nb_rotates how, nb_rope *out,
                       nb_error *err);

/* A switch that must be there. */
nb_status nb_read_bool(const nb_model *m, const char *key, bool *to, nb_error *err);

/* Window of layer l in tokens, 0 for full attention. sliding_window null or absent, or use_sliding_window false: no layer has one.
 * Otherwise those that layer_types calls "sliding_attention"; without layer_types those from max_window_layers on; without that
 * key all. Where max_window_layers is given, use_sliding_window must be true (Qwen). */
nb_status nb_read_window(const nb_model *m, int l, size_t *to, nb_error *err);

#endif
