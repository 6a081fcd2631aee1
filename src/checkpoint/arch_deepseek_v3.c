/*
 * The table of latent attention with a mixture of experts: DeepSeek-V2, V3, V3.1, R1 and V3.2, Kimi-K2, GLM-4.7-Flash, GLM-5.
 * Names are the same in all; which rows a layer has follows from the config.
 */
#include "checkpoint/arch_deepseek_v3.h"

#include <string.h>

#include "checkpoint/arch_rows.h"

static const nb_ds3_kind kinds[] = {{"deepseek_v2", .softmax = true},
                                    {"deepseek_v3"},
                                    {"kimi_k2"},
                                    {"glm4_moe_lite"},
                                    {"deepseek_v32", .indexed = true},
                                    {"glm_moe_dsa", .indexed = true, .index_interleaved = true}};
static const char *const model_types[] = {"deepseek_v3",  "deepseek_v2", "kimi_k2", "glm4_moe_lite",
                                          "deepseek_v32", "glm_moe_dsa", NULL};
static const char *const skip[] = {"*rotary_emb.inv_freq", "*.k_scale",      "*.v_scale",
                                   "vision_tower.*",       "mm_projector.*", NULL}; /* Kimi's towers */

const nb_ds3_kind *nb_ds3_kind_of(const nb_config *cfg)
{
    size_t i = 0; /* nb_config chose this table by its model types, which are these */
    while (i + 1 < sizeof kinds / sizeof *kinds && strcmp(kinds[i].model_type, cfg->model_type) != 0) i++;
    return &kinds[i];
}

/* The number at key, 0 when it is absent or no integer above zero. */
static int64_t count(const nb_config *cfg, const char *key)
{
    const json_t *v = nb_config_get(cfg, key);
    return json_is_integer(v) && json_integer_value(v) > 0 ? json_integer_value(v) : 0;
}

bool nb_ds3_is_dense(const nb_config *cfg, int layer)
{
    const json_t *types = nb_config_get(cfg, "mlp_layer_types");
    if (types) {
        const char *type = json_string_value(json_array_get(types, (size_t)layer));
        return type && strcmp(type, "dense") == 0;
    }
    int64_t every = count(cfg, "moe_layer_freq");
    return layer < count(cfg, "first_k_dense_replace") || (every > 1 && layer % every);
}

/* "full" or "shared" for an indexed kind. The pattern's and the schedule's keys: transformers models/glm_moe_dsa. */
bool nb_ds3_has_indexer(const nb_config *cfg, int layer)
{
    if (!nb_ds3_kind_of(cfg)->indexed) return false;
    const json_t *types = nb_config_get(cfg, "indexer_types");
    const json_t *pattern = types ? types : nb_config_get(cfg, "index_topk_pattern");
    if (json_is_string(pattern))
        return (size_t)layer >= json_string_length(pattern) || json_string_value(pattern)[layer] == 'F';
    if (json_is_array(pattern)) {
        const char *type = json_string_value(json_array_get(pattern, (size_t)layer));
        return !type || type[0] == 'f' || type[0] == 'F';
    }
    int64_t every = count(cfg, "index_topk_freq"), after = layer + 1;
    after -= nb_config_get(cfg, "index_skip_topk_offset") ? count(cfg, "index_skip_topk_offset") : 2;
    return every < 2 || after <= 0 || after % every == 0;
}

static bool low_rank_query(const nb_config *cfg, int layer)
{
    return nb_config_get(cfg, "q_lora_rank") != NULL;
}
static bool plain_query(const nb_config *cfg, int layer)
{
    return !low_rank_query(cfg, layer);
}
static bool sparse(const nb_config *cfg, int layer)
{
    return !nb_ds3_is_dense(cfg, layer);
}
static bool biased(const nb_config *cfg, int layer)
{
    return sparse(cfg, layer) && !nb_ds3_kind_of(cfg)->softmax;
}

#define HEAD_COLS "num_attention_heads*qk_nope_head_dim+num_attention_heads*qk_rope_head_dim"
#define KV_B_ROWS "num_attention_heads*qk_nope_head_dim+num_attention_heads*v_head_dim"
#define INDEXER NB_ATTN "indexer."

static const nb_arch_tensor tensors[] = {
    NB_ROW_EMBED,
    NB_ROWS_NORMS,
    NB_ROW_LINEAR(NB_PART_Q, NB_ATTN "q_proj", HEAD_COLS ",hidden_size", NB_SPLIT_COLUMN, NULL, plain_query),
    NB_ROW_LINEAR(NB_PART_Q_A, NB_ATTN "q_a_proj", "q_lora_rank,hidden_size", NB_SPLIT_NONE, "qkv_a",
                  low_rank_query),
    NB_ROW_VECTOR(NB_PART_Q_A_NORM, NB_ATTN "q_a_layernorm.weight", "q_lora_rank", NB_ROLE_NORM,
                  low_rank_query),
    NB_ROW_LINEAR(NB_PART_Q_B, NB_ATTN "q_b_proj", HEAD_COLS ",q_lora_rank", NB_SPLIT_COLUMN, NULL,
                  low_rank_query),
    NB_ROW_LINEAR(NB_PART_KV_A, NB_ATTN "kv_a_proj_with_mqa", "kv_lora_rank+qk_rope_head_dim,hidden_size",
                  NB_SPLIT_NONE, "qkv_a", NULL),
    NB_ROW_VECTOR(NB_PART_KV_A_NORM, NB_ATTN "kv_a_layernorm.weight", "kv_lora_rank", NB_ROLE_NORM, NULL),
    NB_ROW_LINEAR(NB_PART_KV_B, NB_ATTN "kv_b_proj", KV_B_ROWS ",kv_lora_rank", NB_SPLIT_COLUMN, NULL, NULL),
    NB_ROW_LINEAR(NB_PART_O, NB_ATTN "o_proj", "hidden_size,num_attention_heads*v_head_dim", NB_SPLIT_ROW,
                  NULL, NULL),
    NB_ROW_LINEAR(NB_PART_INDEX_Q, INDEXER "wq_b", "index_n_heads*index_head_dim,q_lora_rank", NB_SPLIT_NONE,
                  NULL, nb_ds3_has_indexer),
    NB_ROW_LINEAR(NB_PART_INDEX_K, INDEXER "wk", "index_head_dim,hidden_size", NB_SPLIT_NONE, NULL,
                  nb_ds3_has_indexer),
    NB_ROW_VECTOR(NB_PART_INDEX_K_NORM, INDEXER "k_norm.weight", "index_head_dim", NB_ROLE_NORM,
                  nb_ds3_has_indexer),
    NB_ROW_VECTOR(NB_PART_INDEX_K_BIAS, INDEXER "k_norm.bias", "index_head_dim", NB_ROLE_PARAM,
                  nb_ds3_has_indexer),
    NB_ROW_LINEAR(NB_PART_INDEX_WEIGHTS, INDEXER "weights_proj", "index_n_heads,hidden_size", NB_SPLIT_NONE,
                  NULL, nb_ds3_has_indexer),
    NB_ROWS_MLP(nb_ds3_is_dense),
    NB_ROW_ROUTER("mlp.", "n_routed_experts", sparse),
    NB_ROW_VECTOR(NB_PART_CHOICE_BIAS, NB_L "mlp.gate.e_score_correction_bias", "n_routed_experts",
                  NB_ROLE_PARAM, biased),
    NB_ROWS_EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj", "moe_intermediate_size", sparse),
    NB_ROWS_SHARED("mlp.shared_experts", "n_shared_experts*moe_intermediate_size", sparse),
    NB_ROWS_HEAD,
};

static nb_status missing(const nb_config *cfg, nb_error *err, const char *key, const char *fmt, int layer)
{
    nb_fail(err, NB_ERR_MISSING, fmt, key, layer);
    nb_error_at(err, cfg->file, NULL, -1);
    nb_error_remedy(err, "restore it from the original model's config.json (re-saved configs drop keys)");
    return NB_ERR_MISSING;
}

/* Every layer must be of a known type, and the first indexed one must have an indexer. */
static nb_status check_layers(const nb_config *cfg, nb_error *err)
{
    const json_t *types = nb_config_get(cfg, "mlp_layer_types");
    if (!types && !json_is_integer(nb_config_get(cfg, "first_k_dense_replace")))
        return missing(cfg, err, "first_k_dense_replace", "neither %s nor mlp_layer_types is given", 0);
    for (int l = 0; types && l < cfg->n_layers; l++) {
        const char *type = json_string_value(json_array_get(types, (size_t)l));
        if (!type || (strcmp(type, "dense") != 0 && strcmp(type, "sparse") != 0))
            return missing(cfg, err, "mlp_layer_types", "%s has neither dense nor sparse for layer %d", l);
    }
    if (nb_ds3_kind_of(cfg)->indexed && !nb_ds3_has_indexer(cfg, 0))
        return missing(cfg, err, "indexer_types", "%s: layer %d must be full, there is none before it", 0);
    return NB_OK;
}

static nb_status validate(const nb_config *cfg, nb_error *err)
{
    /* The narrower limits are for what no tensor's shape confirms before memory or time depends on it. */
    static const nb_arch_size keys[] = {{"vocab_size", NB_MAX_SIZE},
                                        {"hidden_size", NB_MAX_SIZE},
                                        {"num_attention_heads", 1 << 16},
                                        {"kv_lora_rank", 1 << 16},
                                        {"qk_nope_head_dim", 1 << 16},
                                        {"qk_rope_head_dim", 1 << 16},
                                        {"v_head_dim", 1 << 16},
                                        {"intermediate_size", NB_MAX_SIZE},
                                        {"n_routed_experts", NB_MAX_EXPERTS},
                                        {"n_shared_experts", 1 << 20},
                                        {"num_experts_per_tok", 1 << 10},
                                        {"moe_intermediate_size", NB_MAX_SIZE}};
    static const nb_arch_size rank[] = {{"q_lora_rank", NB_MAX_SIZE}};
    static const nb_arch_size index[] = {{"q_lora_rank", NB_MAX_SIZE},
                                         {"index_n_heads", 1 << 20},
                                         {"index_head_dim", 1 << 16},
                                         {"index_topk", 1 << 16}};
    nb_status s = nb_arch_check_sizes(cfg, keys, sizeof keys / sizeof *keys, err);
    if (s == NB_OK && low_rank_query(cfg, -1)) s = nb_arch_check_sizes(cfg, rank, 1, err);
    if (s == NB_OK && nb_ds3_kind_of(cfg)->indexed)
        s = nb_arch_check_sizes(cfg, index, sizeof index / sizeof *index, err);
    return s ? s : check_layers(cfg, err);
}

const nb_arch nb_arch_deepseek_v3 = {
    .name = "deepseek_v3",
    .model_types = model_types,
    .prefixes = nb_arch_prefixes,
    .skip = skip,
    .tensors = tensors,
    .n_tensors = sizeof tensors / sizeof *tensors,
    .n_experts_key = "n_routed_experts",
    .validate = validate,
};
