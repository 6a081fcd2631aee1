/* Config look-ups that the tables of many architectures share. */
#include "checkpoint/arch_rows.h"

#include <string.h>

const char *const nb_arch_prefixes[] = {
    "model.", "", "language_model.model.", "model.language_model.", "language_model.", NULL};
const char *const nb_arch_skip[] = {"*rotary_emb.inv_freq",    "*.k_scale", "*.v_scale", "vision_tower.*",
                                    "multi_modal_projector.*", NULL};

const nb_arch_default nb_arch_heads_64[] = {{"head_dim", 64}, {NULL, 0}};
const nb_arch_default nb_arch_heads_128[] = {{"head_dim", 128}, {NULL, 0}};
const nb_arch_default nb_arch_heads_256[] = {{"head_dim", 256}, {NULL, 0}};

bool nb_arch_untied(const nb_config *cfg, int layer)
{
    return !json_is_true(nb_config_get(cfg, "tie_word_embeddings"));
}

bool nb_arch_attention_bias(const nb_config *cfg, int layer)
{
    return json_is_true(nb_config_get(cfg, "attention_bias"));
}

bool nb_arch_after_dense(const nb_config *cfg, int layer)
{
    return layer >= json_integer_value(nb_config_get(cfg, "first_k_dense_replace"));
}

bool nb_arch_dense_first(const nb_config *cfg, int layer)
{
    return !nb_arch_after_dense(cfg, layer);
}

bool nb_arch_sparse(const nb_config *cfg, int layer)
{
    const json_t *only = nb_config_get(cfg, "mlp_only_layers"),
                 *step = nb_config_get(cfg, "decoder_sparse_step");
    for (size_t i = 0; i < json_array_size(only); i++)
        if (json_integer_value(json_array_get(only, i)) == layer) return false;
    return json_integer_value(step) <= 1 || (layer + 1) % json_integer_value(step) == 0;
}

bool nb_arch_not_sparse(const nb_config *cfg, int layer)
{
    return !nb_arch_sparse(cfg, layer);
}

bool nb_arch_head_symbol(const nb_config *cfg, const char *name, int layer, int64_t *out)
{
    int64_t heads, hidden;
    bool head_dim = strcmp(name, "head_dim") == 0;
    if (!head_dim && strcmp(name, "num_key_value_heads") != 0) return false;
    if (nb_config_get(cfg, name) || nb_config_default(cfg, name)) return false;
    if (nb_config_int(cfg, "num_attention_heads", -1, 1, 1 << 20, &heads, NULL) != NB_OK) return false;
    if (!head_dim) {
        *out = heads;
        return true;
    }
    if (nb_config_int(cfg, "hidden_size", -1, 1, NB_MAX_SIZE, &hidden, NULL) != NB_OK || hidden % heads)
        return false;
    *out = hidden / heads;
    return true;
}

bool nb_arch_experts_symbol(const nb_config *cfg, const char *name, int layer, int64_t *out)
{
    if (strcmp(name, "num_experts") != 0 || nb_config_get(cfg, name))
        return nb_arch_head_symbol(cfg, name, layer, out);
    const json_t *v = nb_config_get(cfg, "num_local_experts");
    *out = json_integer_value(v);
    return json_is_integer(v);
}

nb_status nb_arch_check_sizes(const nb_config *cfg, const nb_arch_size *keys, size_t n, nb_error *err)
{
    for (size_t i = 0; i < n; i++) {
        int64_t v;
        nb_status s = nb_config_int(cfg, keys[i].key, -1, 1, keys[i].max, &v, err);
        if (s != NB_OK) return s;
    }
    return NB_OK;
}

nb_status nb_arch_check_layer_types(const nb_config *cfg, nb_error *err)
{
    const json_t *types = nb_config_get(cfg, "layer_types");
    for (int64_t l = 0; l < cfg->n_layers; l++) {
        const char *type = json_string_value(json_array_get(types, (size_t)l));
        if (type && (strcmp(type, "full_attention") == 0 || strcmp(type, "sliding_attention") == 0)) continue;
        nb_fail(err, types ? NB_ERR_FORMAT : NB_ERR_MISSING,
                "layer_types[%lld] is %.64s; expected full_attention or sliding_attention", (long long)l,
                type ? type : "no word");
        nb_error_remedy(err, "take layer_types from the original model's config.json");
        return types ? NB_ERR_FORMAT : NB_ERR_MISSING;
    }
    return NB_OK;
}

static const char *const lists[] = {"layer_types",     "mlp_layer_types",   "indexer_types",
                                    "compress_ratios", "layers_block_type", "hybrid_override_pattern"};
enum { LISTS = sizeof lists / sizeof *lists };

/* Entries of a list, or letters of a pattern; -1: there is none. */
static int64_t entries(const nb_config *cfg, const char *key)
{
    const json_t *v = nb_config_get(cfg, key);
    return json_is_array(v)    ? (int64_t)json_array_size(v)
           : json_is_string(v) ? (int64_t)json_string_length(v)
                               : -1;
}

/* Entries behind the last layer's are taken, and not read. */
static bool takes_more(const nb_config *cfg, const char *key)
{
    return cfg->arch == &nb_arch_deepseek_v4 || strcmp(key, "indexer_types") == 0 ||
           (strcmp(key, "mlp_layer_types") == 0 && strcmp(cfg->model_type, "glm4_moe_lite") == 0);
}

nb_status nb_arch_check_lists(const nb_config *cfg, nb_error *err)
{
    for (size_t i = 0; i < LISTS; i++) {
        const int64_t n = entries(cfg, lists[i]);
        if (n < 0 || n == cfg->n_layers || (n > cfg->n_layers && takes_more(cfg, lists[i]))) continue;
        nb_fail(err, NB_ERR_FORMAT, "%s has %lld entries, and num_hidden_layers is %lld", lists[i],
                (long long)n, (long long)cfg->n_layers);
        nb_error_remedy(err, "take both from the original model's config.json");
        return NB_ERR_FORMAT;
    }
    return NB_OK;
}

const char *nb_config_spare(const nb_config *cfg, int64_t *n)
{
    const json_t *v = nb_config_get(cfg, "num_nextn_predict_layers");
    const int64_t drafts = json_is_integer(v) && json_integer_value(v) > 0 ? json_integer_value(v) : 0;
    for (size_t i = 0; i < LISTS; i++) {
        *n = entries(cfg, lists[i]) - cfg->n_layers;
        if (*n > drafts) return lists[i];
    }
    return NULL;
}

nb_status nb_arch_check_decoder(const nb_config *cfg, nb_error *err)
{
    static const nb_arch_size keys[] = {{"vocab_size", NB_MAX_SIZE},
                                        {"hidden_size", NB_MAX_SIZE},
                                        {"num_attention_heads", NB_MAX_SIZE},
                                        {"num_key_value_heads", NB_MAX_SIZE},
                                        {"head_dim", 1 << 16}};
    return nb_arch_check_sizes(cfg, keys, sizeof keys / sizeof *keys, err);
}

nb_status nb_arch_check_dense(const nb_config *cfg, nb_error *err)
{
    static const nb_arch_size width = {"intermediate_size", NB_MAX_SIZE};
    nb_status s = nb_arch_check_decoder(cfg, err);
    return s ? s : nb_arch_check_sizes(cfg, &width, 1, err);
}

nb_status nb_arch_check_experts(const nb_config *cfg, nb_error *err)
{
    const char *own = "moe_intermediate_size";
    const nb_arch_size keys[] = {{cfg->arch->n_experts_key, NB_MAX_EXPERTS},
                                 {"num_experts_per_tok", 1 << 10},
                                 {nb_config_get(cfg, own) ? own : "intermediate_size", NB_MAX_SIZE}};
    nb_status s = nb_arch_check_decoder(cfg, err);
    return s ? s : nb_arch_check_sizes(cfg, keys, sizeof keys / sizeof *keys, err);
}
