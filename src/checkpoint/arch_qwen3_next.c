/*
 * The table of Qwen3-Next, Qwen3.5, 3.6 and 3.8: three layers in four mix tokens by Gated DeltaNet, the others by gated attention.
 * Qwen3-Next has the projections of a DeltaNet layer in two, the later ones in four linears; with num_experts
 * feed-forward blocks have experts.
 */
#include <string.h>

#include "checkpoint/arch_rows.h"

static const char *const model_types[] = {"qwen3_next",  "qwen3_5",          "qwen3_5_text",
                                          "qwen3_5_moe", "qwen3_5_moe_text", NULL};
static const char *const skip[] = {
    "*rotary_emb.inv_freq", "*.k_scale", "*.v_scale", "visual.*", "mtp.*", NULL};

/* layer_types, or without it every full_attention_interval-th. NULL: neither says. */
static const char *type_of(const nb_config *cfg, int layer)
{
    const json_t *types = nb_config_get(cfg, "layer_types"),
                 *every = nb_config_get(cfg, "full_attention_interval");
    if (types) return json_string_value(json_array_get(types, (size_t)layer));
    if (!json_is_integer(every) || json_integer_value(every) < 1) return NULL;
    return (layer + 1) % json_integer_value(every) ? "linear_attention" : "full_attention";
}

static bool full(const nb_config *cfg, int layer)
{
    const char *type = type_of(cfg, layer);
    return type && strcmp(type, "full_attention") == 0;
}
static bool linear(const nb_config *cfg, int layer)
{
    return !full(cfg, layer);
}
static bool split(const nb_config *cfg, int layer)
{
    return linear(cfg, layer) && strcmp(cfg->model_type, "qwen3_next") != 0;
}
static bool joined(const nb_config *cfg, int layer)
{
    return linear(cfg, layer) && !split(cfg, layer);
}
static bool experts(const nb_config *cfg, int layer)
{
    return nb_config_get(cfg, "num_experts") && nb_arch_sparse(cfg, layer);
}
static bool dense(const nb_config *cfg, int layer)
{
    return !experts(cfg, layer);
}

#define MIX NB_L "linear_attn."
#define KEYS "linear_num_key_heads*linear_key_head_dim"
#define VALUES "linear_num_value_heads*linear_value_head_dim"
#define HEADS "linear_num_value_heads"
static const nb_arch_tensor tensors[] = {
    NB_ROW_EMBED,
    NB_ROW_NORM_PLUS(NB_PART_ATTN_NORM, NB_L "input_layernorm.weight", "hidden_size", NULL),
    NB_ROW_NORM_PLUS(NB_PART_FFN_NORM, NB_L "post_attention_layernorm.weight", "hidden_size", NULL),

    /* q_proj makes a query and a gate for each head */
    NB_ROW_LINEAR(NB_PART_Q, NB_ATTN "q_proj", "2*" NB_Q_COLS ",hidden_size", NB_SPLIT_COLUMN, "qkv", full),
    NB_ROW_LINEAR(NB_PART_K, NB_ATTN "k_proj", NB_KV_COLS ",hidden_size", NB_SPLIT_COLUMN, "qkv", full),
    NB_ROW_LINEAR(NB_PART_V, NB_ATTN "v_proj", NB_KV_COLS ",hidden_size", NB_SPLIT_COLUMN, "qkv", full),
    NB_ROW_LINEAR(NB_PART_O, NB_ATTN "o_proj", "hidden_size," NB_Q_COLS, NB_SPLIT_ROW, NULL, full),
    NB_ROW_NORM_PLUS(NB_PART_Q_NORM, NB_ATTN "q_norm.weight", "head_dim", full),
    NB_ROW_NORM_PLUS(NB_PART_K_NORM, NB_ATTN "k_norm.weight", "head_dim", full),

    NB_ROW_LINEAR(NB_PART_MIX_QKV, MIX "in_proj_qkv", "2*" KEYS "+" VALUES ",hidden_size", NB_SPLIT_COLUMN,
                  "qkvz", split),
    NB_ROW_LINEAR(NB_PART_MIX_Z, MIX "in_proj_z", VALUES ",hidden_size", NB_SPLIT_COLUMN, "qkvz", split),
    NB_ROW_LINEAR(NB_PART_MIX_BETA, MIX "in_proj_b", HEADS ",hidden_size", NB_SPLIT_COLUMN, "ba", split),
    NB_ROW_LINEAR(NB_PART_MIX_DECAY, MIX "in_proj_a", HEADS ",hidden_size", NB_SPLIT_COLUMN, "ba", split),
    NB_ROW_LINEAR(NB_PART_MIX_IN, MIX "in_proj_qkvz", "2*" KEYS "+2*" VALUES ",hidden_size", NB_SPLIT_COLUMN,
                  NULL, joined),
    NB_ROW_LINEAR(NB_PART_MIX_BA, MIX "in_proj_ba", "2*" HEADS ",hidden_size", NB_SPLIT_COLUMN, NULL, joined),
    NB_ROW_VECTOR(NB_PART_CONV, MIX "conv1d.weight", "2*" KEYS "+" VALUES ",1,linear_conv_kernel_dim",
                  NB_ROLE_PARAM, linear),
    NB_ROW_VECTOR(NB_PART_A_LOG, MIX "A_log", HEADS, NB_ROLE_PARAM, linear),
    NB_ROW_VECTOR(NB_PART_DT_BIAS, MIX "dt_bias", HEADS, NB_ROLE_PARAM, linear),
    NB_ROW_VECTOR(NB_PART_MIX_NORM, MIX "norm.weight", "linear_value_head_dim", NB_ROLE_NORM, linear),
    NB_ROW_LINEAR(NB_PART_MIX_OUT, MIX "out_proj", "hidden_size," VALUES, NB_SPLIT_ROW, NULL, linear),

    NB_ROWS_MLP(dense),
    NB_ROW_ROUTER("mlp.", "num_experts", experts),
    NB_ROWS_EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj", "moe_intermediate_size", experts),
    NB_ROWS_SHARED("mlp.shared_expert", "shared_expert_intermediate_size", experts),
    NB_ROW_LINEAR(NB_PART_SHARED_SWITCH, NB_L "mlp.shared_expert_gate", "1,hidden_size", NB_SPLIT_NONE, NULL,
                  experts),

    NB_ROW_NORM_PLUS(NB_PART_NORM, "norm.weight", "hidden_size", NULL),
    NB_ROW_HEAD(nb_arch_untied),
};

static nb_status validate(const nb_config *cfg, nb_error *err)
{
    /* The narrower limits are for what memory depends on before a tensor's shape confirms it. */
    static const nb_arch_size keys[] = {{"linear_num_key_heads", 1 << 16},
                                        {"linear_num_value_heads", 1 << 16},
                                        {"linear_key_head_dim", 1 << 12},
                                        {"linear_value_head_dim", 1 << 12},
                                        {"linear_conv_kernel_dim", 1 << 10}};
    static const nb_arch_size moe[] = {{"num_experts", NB_MAX_EXPERTS},
                                       {"num_experts_per_tok", 1 << 10},
                                       {"moe_intermediate_size", NB_MAX_SIZE},
                                       {"shared_expert_intermediate_size", NB_MAX_SIZE}};
    nb_status s = nb_arch_check_decoder(cfg, err);
    if (s == NB_OK) s = nb_arch_check_sizes(cfg, keys, sizeof keys / sizeof *keys, err);
    if (s == NB_OK && nb_config_get(cfg, "num_experts"))
        s = nb_arch_check_sizes(cfg, moe, sizeof moe / sizeof *moe, err);
    for (int l = 0; s == NB_OK && l < cfg->n_layers; l++) {
        const char *type = type_of(cfg, l);
        if (type && (strcmp(type, "full_attention") == 0 || strcmp(type, "linear_attention") == 0)) continue;
        s = nb_fail(err, NB_ERR_FORMAT,
                    "layer %d is neither linear_attention nor full_attention by layer_types or "
                    "full_attention_interval",
                    l);
        nb_error_remedy(err, "take layer_types from the original model's config.json");
    }
    return s;
}

const nb_arch nb_arch_qwen3_next = {
    .name = "qwen3_next",
    .model_types = model_types,
    .prefixes = nb_arch_prefixes,
    .skip = skip,
    .tensors = tensors,
    .n_tensors = sizeof tensors / sizeof *tensors,
    .n_experts_key = "num_experts",
    .defaults = nb_arch_heads_256,
    .symbol = nb_arch_head_symbol,
    .validate = validate,
};
