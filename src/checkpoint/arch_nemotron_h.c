/*
 * The Nemotron-H table: every layer is one mixer, by a letter of hybrid_override_pattern or a word of layers_block_type: Mamba-2,
 * attention without positions, a mixture of experts (whose input may be a projection of the row: a latent), or an MLP.
 */
#include <string.h>

#include "checkpoint/arch_rows.h"

static const char *const model_types[] = {"nemotron_h", NULL};
static const char *const prefixes[] = {"backbone.", "model.", "", NULL};
static const char *const skip[] = {"*.k_scale", "*.v_scale", "mtp.*", NULL};

/* 'M' Mamba-2, '*' attention, 'E' experts, '-' MLP; 0: the config does not say. */
static char kind(const nb_config *cfg, int layer)
{
    static const struct {
        const char *word;
        char letter;
    } words[] = {{"mamba", 'M'},     {"linear_attention", 'M'},
                 {"attention", '*'}, {"full_attention", '*'},
                 {"moe", 'E'},       {"mlp", '-'}};
    const char *pattern = json_string_value(nb_config_get(cfg, "hybrid_override_pattern"));
    const char *word =
        json_string_value(json_array_get(nb_config_get(cfg, "layers_block_type"), (size_t)layer));
    if (pattern) return layer < (int)strlen(pattern) && strchr("M*E-", pattern[layer]) ? pattern[layer] : 0;
    for (size_t i = 0; word && i < sizeof words / sizeof *words; i++)
        if (strcmp(word, words[i].word) == 0) return words[i].letter;
    return 0;
}

static bool mamba(const nb_config *cfg, int layer)
{
    return kind(cfg, layer) == 'M';
}
static bool conv_bias(const nb_config *cfg, int layer)
{
    return mamba(cfg, layer) && !json_is_false(nb_config_get(cfg, "use_conv_bias"));
}
static bool attention(const nb_config *cfg, int layer)
{
    return kind(cfg, layer) == '*';
}
static bool experts(const nb_config *cfg, int layer)
{
    return kind(cfg, layer) == 'E';
}
static bool latent(const nb_config *cfg, int layer)
{
    return experts(cfg, layer) && nb_config_get(cfg, "moe_latent_size");
}
static bool mlp(const nb_config *cfg, int layer)
{
    return kind(cfg, layer) == '-';
}

#define MIXER NB_L "mixer."
#define INNER "mamba_num_heads*mamba_head_dim"
#define CONV INNER "+2*n_groups*ssm_state_size"
static const nb_arch_tensor tensors[] = {
    {"(embeddings|embed_tokens)", "vocab_size,hidden_size", NB_ROLE_EMBED, .part = NB_PART_EMBED},
    NB_ROW_VECTOR(NB_PART_ATTN_NORM, NB_L "norm.weight", "hidden_size", NB_ROLE_NORM, NULL),

    NB_ROW_LINEAR(NB_PART_MIX_IN, MIXER "in_proj", INNER "+" CONV "+mamba_num_heads,hidden_size",
                  NB_SPLIT_COLUMN, NULL, mamba),
    NB_ROW_VECTOR(NB_PART_CONV, MIXER "conv1d.weight", CONV ",1,conv_kernel", NB_ROLE_PARAM, mamba),
    NB_ROW_VECTOR(NB_PART_CONV_BIAS, MIXER "conv1d.bias", CONV, NB_ROLE_PARAM, conv_bias),
    NB_ROW_VECTOR(NB_PART_A_LOG, MIXER "A_log", "mamba_num_heads", NB_ROLE_PARAM, mamba),
    NB_ROW_VECTOR(NB_PART_SKIP, MIXER "D", "mamba_num_heads", NB_ROLE_PARAM, mamba),
    NB_ROW_VECTOR(NB_PART_DT_BIAS, MIXER "dt_bias", "mamba_num_heads", NB_ROLE_PARAM, mamba),
    NB_ROW_VECTOR(NB_PART_MIX_NORM, MIXER "norm.weight", INNER, NB_ROLE_NORM, mamba),
    NB_ROW_LINEAR(NB_PART_MIX_OUT, MIXER "out_proj", "hidden_size," INNER, NB_SPLIT_ROW, NULL, mamba),

    NB_ROW_LINEAR(NB_PART_Q, MIXER "q_proj", NB_Q_COLS ",hidden_size", NB_SPLIT_COLUMN, "qkv", attention),
    NB_ROW_LINEAR(NB_PART_K, MIXER "k_proj", NB_KV_COLS ",hidden_size", NB_SPLIT_COLUMN, "qkv", attention),
    NB_ROW_LINEAR(NB_PART_V, MIXER "v_proj", NB_KV_COLS ",hidden_size", NB_SPLIT_COLUMN, "qkv", attention),
    NB_ROW_LINEAR(NB_PART_O, MIXER "o_proj", "hidden_size," NB_Q_COLS, NB_SPLIT_ROW, NULL, attention),

    NB_ROW_ROUTER("mixer.", "n_routed_experts", experts),
    NB_ROW_VECTOR(NB_PART_CHOICE_BIAS, MIXER "gate.e_score_correction_bias", "n_routed_experts",
                  NB_ROLE_PARAM, experts),
    NB_ROW_LINEAR(NB_PART_LATENT_IN, MIXER "fc1_latent_proj", "moe_latent_size,hidden_size", NB_SPLIT_NONE,
                  NULL, latent),
    NB_ROW_LINEAR(NB_PART_EXPERT_UP, MIXER "experts.{e}.up_proj", "moe_intermediate_size,expert_hidden_size",
                  NB_SPLIT_COLUMN, NULL, experts),
    NB_ROW_LINEAR(NB_PART_EXPERT_DOWN, MIXER "experts.{e}.down_proj",
                  "expert_hidden_size,moe_intermediate_size", NB_SPLIT_ROW, NULL, experts),
    NB_ROW_LINEAR(NB_PART_LATENT_OUT, MIXER "fc2_latent_proj", "hidden_size,moe_latent_size", NB_SPLIT_NONE,
                  NULL, latent),
    NB_ROW_LINEAR(NB_PART_SHARED_UP, MIXER "shared_experts.up_proj",
                  "moe_shared_expert_intermediate_size,hidden_size", NB_SPLIT_COLUMN, NULL, experts),
    NB_ROW_LINEAR(NB_PART_SHARED_DOWN, MIXER "shared_experts.down_proj",
                  "hidden_size,moe_shared_expert_intermediate_size", NB_SPLIT_ROW, NULL, experts),

    NB_ROW_LINEAR(NB_PART_UP, MIXER "up_proj", "intermediate_size,hidden_size", NB_SPLIT_COLUMN, NULL, mlp),
    NB_ROW_LINEAR(NB_PART_DOWN, MIXER "down_proj", "hidden_size,intermediate_size", NB_SPLIT_ROW, NULL, mlp),

    NB_ROW_VECTOR(NB_PART_NORM, "(norm_f|norm).weight", "hidden_size", NB_ROLE_NORM, NULL),
    NB_ROW_HEAD(nb_arch_untied),
};

/* The width of what experts read; head_dim under its older name; transformers 5 saves no number of layers beside their list. */
static bool symbol(const nb_config *cfg, const char *name, int layer, int64_t *out)
{
    const json_t *list = nb_config_get(cfg, "layers_block_type");
    if (strcmp(name, "num_hidden_layers") == 0 && !nb_config_get(cfg, name) && list) {
        *out = (int64_t)json_array_size(list);
        return true;
    }
    if (strcmp(name, "expert_hidden_size") == 0) {
        const char *key = nb_config_get(cfg, "moe_latent_size") ? "moe_latent_size" : "hidden_size";
        return nb_config_int(cfg, key, -1, 1, NB_MAX_SIZE, out, NULL) == NB_OK;
    }
    if (strcmp(name, "head_dim") == 0 && !nb_config_get(cfg, name) &&
        nb_config_get(cfg, "attention_head_dim"))
        return nb_config_int(cfg, "attention_head_dim", -1, 1, 1 << 16, out, NULL) == NB_OK;
    return nb_arch_head_symbol(cfg, name, layer, out);
}

static nb_status validate(const nb_config *cfg, nb_error *err)
{
    /* The narrower limits are for what memory depends on before a tensor's shape confirms it. */
    static const nb_arch_size all[] = {{"mamba_num_heads", 1 << 16},
                                       {"mamba_head_dim", 1 << 12},
                                       {"n_groups", 1 << 16},
                                       {"ssm_state_size", 1 << 12},
                                       {"conv_kernel", 1 << 10}};
    static const nb_arch_size moe[] = {{"n_routed_experts", NB_MAX_EXPERTS},
                                       {"num_experts_per_tok", 1 << 10},
                                       {"moe_intermediate_size", NB_MAX_SIZE},
                                       {"moe_shared_expert_intermediate_size", NB_MAX_SIZE}};
    static const nb_arch_size dense[] = {{"intermediate_size", NB_MAX_SIZE}};
    bool any_moe = false, any_mlp = false;
    nb_status s = nb_arch_check_decoder(cfg, err);
    if (s == NB_OK) s = nb_arch_check_sizes(cfg, all, sizeof all / sizeof *all, err);
    for (int l = 0; s == NB_OK && l < cfg->n_layers; l++) {
        any_moe = any_moe || experts(cfg, l);
        any_mlp = any_mlp || mlp(cfg, l);
        if (kind(cfg, l)) continue;
        s = nb_fail(err, NB_ERR_FORMAT,
                    "neither hybrid_override_pattern nor layers_block_type says what layer %d is", l);
        nb_error_remedy(err, "take them from the original model's config.json");
    }
    if (s == NB_OK && any_moe) s = nb_arch_check_sizes(cfg, moe, sizeof moe / sizeof *moe, err);
    return s == NB_OK && any_mlp ? nb_arch_check_sizes(cfg, dense, 1, err) : s;
}

const nb_arch nb_arch_nemotron_h = {
    .name = "nemotron_h",
    .model_types = model_types,
    .prefixes = prefixes,
    .skip = skip,
    .tensors = tensors,
    .n_tensors = sizeof tensors / sizeof *tensors,
    .n_experts_key = "n_routed_experts",
    .defaults = nb_arch_heads_128,
    .symbol = symbol,
    .validate = validate,
};
