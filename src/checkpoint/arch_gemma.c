/*
 * The tables of Gemma 3 and Gemma 4: norms before and after each block, most layers with a sliding window. Gemma 4 has layers of
 * two shapes, may take values from the keys' projection, keys and values from earlier layers, run experts beside the dense MLP, and
 * add an embedding of its own to each layer.
 */
#include "checkpoint/arch_gemma.h"

#include <string.h>

#include "checkpoint/arch_rows.h"

static const char *const gemma3_types[] = {"gemma3_text", "gemma3", NULL};
static const char *const gemma4_types[] = {"gemma4_text", "gemma4", NULL};
/* Gemma3TextConfig: the published 4B says five numbers, the 12B seven. Its rotary bases and its period of windows are 1e6, 1e4 and 6. */
static const nb_arch_default gemma3_defaults[] = {{"vocab_size", 262208},
                                                  {"num_attention_heads", 8},
                                                  {"num_key_value_heads", 4},
                                                  {"head_dim", 256},
                                                  {"rms_norm_eps", 1e-6},
                                                  {"query_pre_attn_scalar", 256},
                                                  {"max_position_embeddings", 131072},
                                                  {"rope_theta", 1e6},
                                                  {"rope_local_base_freq", 1e4},
                                                  {"sliding_window_pattern", 6},
                                                  {NULL, 0}};
static const char *const skip[] = {"vision_tower.*",
                                   "audio_tower.*",
                                   "embed_vision.*",
                                   "embed_audio.*",
                                   "multi_modal_projector.*",
                                   "*rotary_emb.inv_freq",
                                   "*.k_scale",
                                   "*.v_scale",
                                   NULL};

static int64_t number(const nb_config *cfg, const char *key)
{
    const json_t *v = nb_config_get(cfg, key);
    return json_is_integer(v) ? json_integer_value(v) : 0;
}

/* Of so many layers the last sees everything; 0: the config does not say. */
static int64_t period(const nb_config *cfg)
{
    const nb_arch_default *otherwise = nb_config_default(cfg, "sliding_window_pattern");
    if (nb_config_get(cfg, "sliding_window_pattern")) return number(cfg, "sliding_window_pattern");
    if (nb_config_get(cfg, "_sliding_window_pattern")) return number(cfg, "_sliding_window_pattern");
    return otherwise ? (int64_t)otherwise->value : 0;
}

bool nb_gemma_full(const nb_config *cfg, int layer)
{
    const json_t *types = nb_config_get(cfg, "layer_types");
    const char *type = json_string_value(json_array_get(types, (size_t)layer));
    if (types) return type && strcmp(type, "full_attention") == 0;
    const int64_t every = period(cfg);
    return every > 0 && (layer + 1) % every == 0;
}

static bool is_shared(const nb_config *cfg, int layer)
{
    return layer >= cfg->n_layers - number(cfg, "num_kv_shared_layers");
}

int nb_gemma_kv_of(const nb_config *cfg, int layer)
{
    int l = layer;
    while (l >= 0 && (is_shared(cfg, l) || nb_gemma_full(cfg, l) != nb_gemma_full(cfg, layer)) &&
           is_shared(cfg, layer))
        l--;
    return l;
}

static bool has_k(const nb_config *cfg, int layer)
{
    return !is_shared(cfg, layer);
}

static bool has_v(const nb_config *cfg, int layer)
{
    return has_k(cfg, layer) &&
           !(nb_gemma_full(cfg, layer) && json_is_true(nb_config_get(cfg, "attention_k_eq_v")));
}

static bool has_experts(const nb_config *cfg, int layer)
{
    return json_is_true(nb_config_get(cfg, "enable_moe_block"));
}

static bool has_inputs(const nb_config *cfg, int layer)
{
    return number(cfg, "hidden_size_per_layer_input") > 0;
}

/* A Gemma config without the key is of a tied model, as transformers' classes have it. */
static bool untied(const nb_config *cfg, int layer)
{
    return json_is_false(nb_config_get(cfg, "tie_word_embeddings"));
}

/* Sizes that depend on the layer. */
static bool gemma4_symbol(const nb_config *cfg, const char *name, int layer, int64_t *out)
{
    const char *key = NULL;
    char path[96];
    if (layer < 0) return false;
    /* transformers 5 saves what differs, by layer, in place of the global_ keys */
    snprintf(path, sizeof path, "per_layer_config.%d.%.48s", layer, name);
    if (nb_config_get(cfg, path)) {
        *out = number(cfg, path);
        return true;
    }
    if (nb_gemma_full(cfg, layer) && strcmp(name, "head_dim") == 0) key = "global_head_dim";
    if (nb_gemma_full(cfg, layer) && strcmp(name, "num_key_value_heads") == 0 &&
        json_is_true(nb_config_get(cfg, "attention_k_eq_v")))
        key = "num_global_key_value_heads";
    if (key && nb_config_get(cfg, key) && !nb_config_get(cfg, "per_layer_config")) {
        *out = number(cfg, key);
        return true;
    }
    if (strcmp(name, "intermediate_size") != 0 || !is_shared(cfg, layer) ||
        !json_is_true(nb_config_get(cfg, "use_double_wide_mlp")))
        return false;
    *out = number(cfg, name);
    if (*out <= NB_MAX_SIZE) *out *= 2; /* more is refused as it is */
    return true;
}

/* NORM: how norms are stored. K, V: which layers have keys, and values, of their own. */
#define LAYER_ROWS(NORM, K, V)                                                                               \
    NORM(NB_PART_ATTN_NORM, NB_L "input_layernorm.weight", "hidden_size", NULL),                             \
        NORM(NB_PART_ATTN_POST_NORM, NB_L "post_attention_layernorm.weight", "hidden_size", NULL),           \
        NORM(NB_PART_FFN_NORM, NB_L "pre_feedforward_layernorm.weight", "hidden_size", NULL),                \
        NORM(NB_PART_FFN_POST_NORM, NB_L "post_feedforward_layernorm.weight", "hidden_size", NULL),          \
        NB_ROW_LINEAR(NB_PART_Q, NB_ATTN "q_proj", NB_Q_COLS ",hidden_size", NB_SPLIT_COLUMN, "qkv", NULL),  \
        NB_ROW_LINEAR(NB_PART_K, NB_ATTN "k_proj", NB_KV_COLS ",hidden_size", NB_SPLIT_COLUMN, "qkv", K),    \
        NB_ROW_LINEAR(NB_PART_V, NB_ATTN "v_proj", NB_KV_COLS ",hidden_size", NB_SPLIT_COLUMN, "qkv", V),    \
        NB_ROW_O, NORM(NB_PART_Q_NORM, NB_ATTN "q_norm.weight", "head_dim", NULL),                           \
        NORM(NB_PART_K_NORM, NB_ATTN "k_norm.weight", "head_dim", K), NB_ROWS_MLP(NULL)
#define PLAIN_NORM(PART, NAME, SIZE, WHEN) NB_ROW_VECTOR(PART, NAME, SIZE, NB_ROLE_NORM, WHEN)

static const nb_arch_tensor gemma3_rows[] = {
    NB_ROW_EMBED, LAYER_ROWS(NB_ROW_NORM_PLUS, NULL, NULL),
    NB_ROW_NORM_PLUS(NB_PART_NORM, "norm.weight", "hidden_size", NULL), NB_ROW_HEAD(untied)};

static const nb_arch_tensor gemma4_rows[] = {
    NB_ROW_EMBED,
    LAYER_ROWS(PLAIN_NORM, has_k, has_v),
    NB_ROW_VECTOR(NB_PART_LAYER_SCALAR, NB_L "layer_scalar", "1", NB_ROLE_PARAM, NULL),
    NB_ROW_LINEAR(NB_PART_ROUTER, NB_L "router.proj", "num_experts,hidden_size", NB_SPLIT_NONE, NULL,
                  has_experts),
    NB_ROW_VECTOR(NB_PART_ROUTER_SCALE, NB_L "router.scale", "hidden_size", NB_ROLE_PARAM, has_experts),
    NB_ROW_VECTOR(NB_PART_EXPERT_SCALE, NB_L "router.per_expert_scale", "num_experts", NB_ROLE_PARAM,
                  has_experts),
    NB_ROWS_EXPERTS("(|moe.)", "gate_proj", "up_proj", "down_proj", "moe_intermediate_size", has_experts),
    PLAIN_NORM(NB_PART_MLP_POST_NORM, NB_L "post_feedforward_layernorm_1.weight", "hidden_size", has_experts),
    PLAIN_NORM(NB_PART_MOE_NORM, NB_L "pre_feedforward_layernorm_2.weight", "hidden_size", has_experts),
    PLAIN_NORM(NB_PART_MOE_POST_NORM, NB_L "post_feedforward_layernorm_2.weight", "hidden_size", has_experts),
    {"embed_tokens_per_layer", "vocab_size_per_layer_input,num_hidden_layers*hidden_size_per_layer_input",
     NB_ROLE_EMBED, NB_SPLIT_NONE, NULL, NULL, has_inputs, NB_PART_INPUTS_EMBED},
    NB_ROW_LINEAR(NB_PART_INPUTS_PROJ, "per_layer_model_projection",
                  "num_hidden_layers*hidden_size_per_layer_input,hidden_size", NB_SPLIT_NONE, NULL,
                  has_inputs),
    PLAIN_NORM(NB_PART_INPUTS_NORM, "per_layer_projection_norm.weight", "hidden_size_per_layer_input",
               has_inputs),
    NB_ROW_LINEAR(NB_PART_INPUT_GATE, NB_L "per_layer_input_gate", "hidden_size_per_layer_input,hidden_size",
                  NB_SPLIT_NONE, NULL, has_inputs),
    NB_ROW_LINEAR(NB_PART_INPUT_PROJ, NB_L "per_layer_projection", "hidden_size,hidden_size_per_layer_input",
                  NB_SPLIT_NONE, NULL, has_inputs),
    PLAIN_NORM(NB_PART_INPUT_NORM, NB_L "post_per_layer_input_norm.weight", "hidden_size", has_inputs),
    PLAIN_NORM(NB_PART_NORM, "norm.weight", "hidden_size", NULL),
    NB_ROW_HEAD(untied)};

/* Which layers slide, by layer_types or (Gemma 3 before transformers 5) by a period. */
static nb_status check_types(const nb_config *cfg, nb_error *err)
{
    return period(cfg) > 0 && !nb_config_get(cfg, "layer_types") ? NB_OK
                                                                 : nb_arch_check_layer_types(cfg, err);
}

static nb_status gemma3_validate(const nb_config *cfg, nb_error *err)
{
    static const nb_arch_size window = {"sliding_window", NB_MAX_SIZE};
    nb_status s;
    if ((s = nb_arch_check_dense(cfg, err)) || (s = nb_arch_check_sizes(cfg, &window, 1, err))) return s;
    return check_types(cfg, err);
}

/* Each layer that shares keys and values has one to share them with. */
static nb_status check_sharing(const nb_config *cfg, nb_error *err)
{
    static const char key[] =
        "num_kv_shared_layers"; /* absent or null: none; what is no integer must not count as that */
    int64_t shared = 0;
    nb_status s = nb_config_get(cfg, key) ? nb_config_int(cfg, key, -1, 0, NB_MAX_SIZE, &shared, err) : NB_OK;
    if (s != NB_OK) return s;
    bool ok = shared < cfg->n_layers;
    for (int l = 0; ok && l < cfg->n_layers; l++) ok = nb_gemma_kv_of(cfg, l) >= 0;
    if (ok) return NB_OK;
    nb_fail(err, NB_ERR_FORMAT,
            "num_kv_shared_layers %lld of %lld layers leaves some without keys and values", (long long)shared,
            (long long)cfg->n_layers);
    nb_error_remedy(err, "take it, and layer_types, from the original model's config.json");
    return NB_ERR_FORMAT;
}

/* Nothing but the sizes of heads may depend on the layer, and these on its type alone. */
static bool is_regular(const nb_config *cfg, const json_t *per_layer, int layer)
{
    static const char *const keys[] = {"head_dim", "num_key_value_heads"};
    char index[16];
    int first = 0;
    snprintf(index, sizeof index, "%d", layer);
    const json_t *own = json_object_get(per_layer, index);
    size_t known = 0;
    while (nb_gemma_full(cfg, first) != nb_gemma_full(cfg, layer)) first++;
    for (size_t i = 0; i < 2; i++) {
        int64_t v, as;
        const int like = nb_gemma_full(cfg, layer) ? first : -1; /* layers that slide: as the config says */
        known += json_object_get(own, keys[i]) != NULL;
        if (nb_config_int(cfg, keys[i], layer, 1, 1 << 16, &v, NULL) != NB_OK ||
            nb_config_int(cfg, keys[i], like, 1, 1 << 16, &as, NULL) != NB_OK || v != as)
            return false;
    }
    return json_object_size(own) == known;
}

/* Layers that see everything have heads of their own size; the last layer is one of them (transformers makes it one). */
static nb_status check_full(const nb_config *cfg, nb_error *err)
{
    static const nb_arch_size size = {"global_head_dim", 1 << 16};
    const json_t *per_layer = nb_config_get(cfg, "per_layer_config");
    bool ok = nb_gemma_full(cfg, (int)cfg->n_layers - 1);
    if (!per_layer && ok) return nb_arch_check_sizes(cfg, &size, 1, err);
    for (int l = 0; ok && l < cfg->n_layers; l++) ok = is_regular(cfg, per_layer, l);
    if (ok) return NB_OK;
    nb_fail(
        err, NB_ERR_UNSUPPORTED,
        "the last layer slides, or per_layer_config changes more than head_dim and num_key_value_heads of "
        "all layers with full_attention");
    nb_error_remedy(err, "take layer_types and the sizes of heads from the original model's config.json");
    return NB_ERR_UNSUPPORTED;
}

static nb_status gemma4_validate(const nb_config *cfg, nb_error *err)
{
    static const nb_arch_size window = {"sliding_window", NB_MAX_SIZE};
    static const nb_arch_size moe[] = {
        {"num_experts", NB_MAX_EXPERTS}, {"top_k_experts", 1 << 10}, {"moe_intermediate_size", NB_MAX_SIZE}};
    static const nb_arch_size inputs[] = {{"vocab_size_per_layer_input", NB_MAX_SIZE},
                                          {"hidden_size_per_layer_input", 1 << 16}};
    nb_status s;
    if ((s = nb_arch_check_dense(cfg, err)) || (s = nb_arch_check_sizes(cfg, &window, 1, err)) ||
        (s = check_types(cfg, err)) || (s = check_full(cfg, err)) || (s = check_sharing(cfg, err)))
        return s;
    if (has_experts(cfg, 0) && (s = nb_arch_check_sizes(cfg, moe, 3, err))) return s;
    return has_inputs(cfg, 0) ? nb_arch_check_sizes(cfg, inputs, 2, err) : NB_OK;
}

const nb_arch nb_arch_gemma3 = {
    .name = "gemma3",
    .model_types = gemma3_types,
    .prefixes = nb_arch_prefixes,
    .skip = skip,
    .tensors = gemma3_rows,
    .n_tensors = sizeof gemma3_rows / sizeof *gemma3_rows,
    .defaults = gemma3_defaults,
    .validate = gemma3_validate,
};

const nb_arch nb_arch_gemma4 = {
    .name = "gemma4",
    .model_types = gemma4_types,
    .prefixes = nb_arch_prefixes,
    .skip = skip,
    .tensors = gemma4_rows,
    .n_tensors = sizeof gemma4_rows / sizeof *gemma4_rows,
    .n_experts_key = "num_experts",
    .symbol = gemma4_symbol,
    .validate = gemma4_validate,
};
