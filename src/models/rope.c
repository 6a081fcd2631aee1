/* Rotary frequencies from a config, in F32 as transformers computes them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/model.h"

static nb_status number(const json_t *params, const char *key, double *out, nb_error *err)
{
    const json_t *v = json_object_get(params, key);
    if (json_is_number(v) && isfinite(json_number_value(v)) && json_number_value(v) > 0) {
        *out = json_number_value(v);
        return NB_OK;
    }
    nb_fail(err, NB_ERR_MISSING, "rope scaling needs a positive number '%s'", key);
    nb_error_at(err, "config.json", NULL, -1);
    nb_error_remedy(err, "restore rope_scaling (or rope_parameters) from the original model's config.json");
    return NB_ERR_MISSING;
}

/* The same for a key that may be absent, null or (as transformers reads it) 0: *out then keeps its value. */
static nb_status optional(const json_t *params, const char *key, double *out, nb_error *err)
{
    const json_t *v = json_object_get(params, key);
    bool absent = !v || json_is_null(v) || (json_is_number(v) && json_number_value(v) == 0);
    return absent ? NB_OK : number(params, key, out, err);
}

/* Llama 3.1: long wavelengths are divided by factor, short ones kept, those between blended. */
static nb_status llama3(const json_t *p, nb_rope *r, nb_error *err)
{
    double factor, low, high, orig;
    nb_status s;
    if ((s = number(p, "factor", &factor, err)) || (s = number(p, "low_freq_factor", &low, err)) ||
        (s = number(p, "high_freq_factor", &high, err)) ||
        (s = number(p, "original_max_position_embeddings", &orig, err)))
        return s;
    for (size_t i = 0; i < r->pairs; i++) {
        double f = r->inv_freq[i], wave = 2 * M_PI / f;
        if (wave > orig / low) {
            r->inv_freq[i] = (float)(f / factor);
        } else if (wave >= orig / high) {
            double mix = (orig / wave - low) / (high - low);
            r->inv_freq[i] = (float)((1 - mix) * f / factor + mix * f);
        }
    }
    return NB_OK;
}

/* YaRN (arXiv 2309.00071): dimensions that turn often are kept, slow ones divided by factor, a ramp between. */
static nb_status yarn(const json_t *p, double theta, double force_factor, nb_rope *r, nb_error *err)
{
    double factor, orig, dims = 2.0 * (double)r->pairs;
    double fast = 32, slow = 1; /* YaRN's own constants */
    double mscale = 0, all = 0, attention = 0;
    nb_status s;
    if ((s = number(p, "factor", &factor, err)) ||
        (s = number(p, "original_max_position_embeddings", &orig, err)) ||
        (s = optional(p, "beta_fast", &fast, err)) || (s = optional(p, "beta_slow", &slow, err)) ||
        (s = optional(p, "mscale", &mscale, err)) || (s = optional(p, "mscale_all_dim", &all, err)) ||
        (s = optional(p, "attention_factor", &attention, err)))
        return s;
    double low = dims * log(orig / (fast * 2 * M_PI)) / (2 * log(theta));
    double high = dims * log(orig / (slow * 2 * M_PI)) / (2 * log(theta));
    if (!json_is_false(json_object_get(p, "truncate"))) {
        low = floor(low);
        high = ceil(high);
    }
    if (low < 0) low = 0;
    if (high > dims - 1) high = dims - 1;
    if (low == high) high += 0.001;
    for (size_t i = 0; i < r->pairs; i++) {
        double ramp = ((double)i - low) / (high - low);
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        double f = r->inv_freq[i];
        r->inv_freq[i] = (float)(f / factor * ramp + f * (1 - ramp));
    }
    double plain = factor <= 1 ? 1 : 0.1 * log(factor) + 1;
    double ratio = factor <= 1 ? 1 : (0.1 * mscale * log(factor) + 1) / (0.1 * all * log(factor) + 1);
    if (attention == 0) attention = mscale != 0 && all != 0 ? ratio : plain;
    r->factor = (float)(force_factor > 0 ? force_factor : attention);
    return NB_OK;
}

/* Gemma 4: the first pairs of the whole head rotate, a share of them, at the frequencies that they have in it; others stand still. */
static nb_status proportional(const json_t *p, nb_rope *r, nb_error *err)
{
    double factor = 1, share = 1;
    nb_status s;
    if ((s = optional(p, "factor", &factor, err)) || (s = optional(p, "partial_rotary_factor", &share, err)))
        return s;
    for (size_t i = 0; i < r->pairs; i++)
        r->inv_freq[i] = (double)i < floor(share * (double)r->pairs) ? (float)(r->inv_freq[i] / factor) : 0;
    return NB_OK;
}

/* Odd parameters (theta 1, low_freq_factor equal to high_freq_factor) divide by zero somewhere above. */
static nb_status check_finite(const nb_rope *r, nb_error *err)
{
    bool finite = isfinite(r->factor);
    for (size_t i = 0; i < r->pairs; i++) finite = finite && isfinite(r->inv_freq[i]);
    if (finite) return NB_OK;
    nb_fail(err, NB_ERR_FORMAT, "the rope parameters contradict each other: a frequency is not finite");
    nb_error_at(err, "config.json", NULL, -1);
    nb_error_remedy(err, "restore rope_theta and rope_scaling (or rope_parameters) from the original model");
    return NB_ERR_FORMAT;
}

/* Tables for rows, and the frequencies theta^(-2i/dims). */
static nb_status plain(double theta, size_t dims, size_t max_rows, nb_rope *r, nb_error *err)
{
    *r = (nb_rope){.pairs = dims / 2, .factor = 1.0f};
    r->inv_freq = calloc(r->pairs + 1, sizeof(float));
    r->cos = calloc(max_rows * r->pairs + 1, sizeof(float));
    r->sin = calloc(max_rows * r->pairs + 1, sizeof(float));
    if (!r->inv_freq || !r->cos || !r->sin)
        return nb_fail_nomem(err, "rotary tables", (2 * max_rows + 1) * r->pairs * sizeof(float));
    for (size_t i = 0; i < r->pairs; i++)
        r->inv_freq[i] = (float)(1.0 / pow(theta, 2.0 * (double)i / (double)dims));
    return NB_OK;
}

const char *nb_rope_type(const json_t *params)
{
    const char *type = json_string_value(json_object_get(params, "rope_type"));
    return type ? type : json_string_value(json_object_get(params, "type"));
}

/* A type that is no word would be passed over as if there were none. */
static nb_status check_type(const json_t *params, nb_error *err)
{
    static const char *const keys[] = {"rope_type", "type"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *v = json_object_get(params, keys[i]);
        if (!v || json_is_null(v) || json_is_string(v)) continue;
        nb_fail(err, NB_ERR_FORMAT, "'%s' of the rope parameters is no word", keys[i]);
        nb_error_at(err, "config.json", NULL, -1);
        nb_error_remedy(err,
                        "restore rope_scaling (or rope_parameters) from the original model's config.json");
        return NB_ERR_FORMAT;
    }
    return NB_OK;
}

nb_status nb_rope_init(const json_t *params, double theta, size_t dims, double force_factor, size_t max_rows,
                       nb_rope *out, nb_error *err)
{
    nb_rope r = {0};
    nb_status s = NB_OK;
    if (params && !json_is_object(params)) {
        nb_fail(err, NB_ERR_FORMAT, "rope_scaling (or rope_parameters) must be an object or null");
        nb_error_at(err, "config.json", NULL, -1);
        nb_error_remedy(err, "restore it from the original model's config.json");
        return NB_ERR_FORMAT;
    }
    if ((s = plain(theta, dims, max_rows, &r, err)) || (s = check_type(params, err))) goto out;
    const char *type = nb_rope_type(params);
    if (!type || strcmp(type, "default") == 0) {
        if (params && !type && json_object_get(params, "factor")) {
            s = nb_fail(err, NB_ERR_MISSING, "rope scaling has a factor but no rope_type");
            nb_error_at(err, "config.json", NULL, -1);
            nb_error_remedy(
                err, "add \"rope_type\": \"linear\", \"llama3\" or \"yarn\", as the original model has it");
        }
    } else if (strcmp(type, "linear") == 0) {
        double factor;
        s = number(params, "factor", &factor, err);
        for (size_t i = 0; s == NB_OK && i < r.pairs; i++) r.inv_freq[i] = (float)(r.inv_freq[i] / factor);
    } else if (strcmp(type, "llama3") == 0) {
        s = llama3(params, &r, err);
    } else if (strcmp(type, "yarn") == 0) {
        s = yarn(params, theta, force_factor, &r, err);
    } else if (strcmp(type, "proportional") == 0) {
        s = proportional(params, &r, err);
    } else {
        s = nb_fail(err, NB_ERR_UNSUPPORTED,
                    "rope type '%s' is not known here (default, linear, llama3, yarn, proportional are)",
                    type);
        nb_error_at(err, "config.json", NULL, -1);
    }
    if (s == NB_OK) s = check_finite(&r, err);
out:
    if (s == NB_OK)
        *out = r;
    else
        nb_rope_free(&r);
    return s;
}

/* Each pair's plain frequency divided by its own factor. */
static nb_status divided(const json_t *params, const char *key, const nb_rope *plain, float *to,
                         nb_error *err)
{
    const json_t *list = json_object_get(params, key);
    bool fits = json_array_size(list) == plain->pairs;
    for (size_t i = 0; fits && i < plain->pairs; i++) {
        const json_t *v = json_array_get(list, i);
        fits = json_is_number(v) && json_number_value(v) > 0;
        if (fits) to[i] = plain->inv_freq[i] / (float)json_number_value(v);
    }
    if (fits) return NB_OK;
    nb_fail(err, NB_ERR_FORMAT, "longrope needs '%s' with %zu positive numbers", key, plain->pairs);
    nb_error_at(err, "config.json", NULL, -1);
    nb_error_remedy(err, "restore rope_scaling (or rope_parameters) from the original model's config.json");
    return NB_ERR_FORMAT;
}

/* LongRoPE (arXiv 2402.13753) as Phi-3 has it: cos and sin are multiplied by sqrt(1 + ln(longest / original) / ln(original)). */
nb_status nb_rope_init_long(const json_t *params, double theta, size_t dims, size_t original, size_t longest,
                            size_t max_rows, nb_rope *out, nb_error *err)
{
    nb_rope r = {0};
    nb_status s;
    double ratio = (double)longest / (double)original, attention = 0;
    if ((s = plain(theta, dims, max_rows, &r, err))) goto out;
    r.far_inv_freq = calloc(r.pairs + 1, sizeof(float));
    if (!r.far_inv_freq) {
        s = nb_fail_nomem(err, "rotary tables", r.pairs * sizeof(float));
        goto out;
    }
    r.turns_at = original;
    if ((s = divided(params, "long_factor", &r, r.far_inv_freq, err)) ||
        (s = divided(params, "short_factor", &r, r.inv_freq, err)) ||
        (s = optional(params, "factor", &ratio, err)) ||
        (s = optional(params, "attention_factor", &attention, err)))
        goto out;
    if (attention == 0) attention = ratio <= 1 ? 1 : sqrt(1 + log(ratio) / log((double)original));
    r.factor = (float)attention;
    s = check_finite(&r, err);
out:
    if (s == NB_OK)
        *out = r;
    else
        nb_rope_free(&r);
    return s;
}

void nb_rope_free(nb_rope *r)
{
    free(r->inv_freq);
    free(r->far_inv_freq);
    free(r->cos);
    free(r->sin);
    *r = (nb_rope){0};
}
