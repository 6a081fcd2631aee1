/* The llama table: Llama 2 and 3, SmolLM2 and the many models that keep their layer. */
#include "checkpoint/arch_llama.h"

#include <string.h>

static const char *const model_types[] = {"llama", NULL};
static const char *const prefixes[] = {"model.", "", "language_model.model.", "model.language_model.", NULL};
static const char *const skip[] = {"*rotary_emb.inv_freq", "*.k_scale", "*.v_scale", NULL};

static bool untied(const nb_config *cfg, int layer)
{
    return !json_is_true(nb_config_get(cfg, "tie_word_embeddings"));
}

#define L "layers.{l}."
static const nb_arch_tensor tensors[LLAMA_COUNT] = {
    [LLAMA_EMBED] = {"embed_tokens", "vocab_size,hidden_size", NB_ROLE_EMBED},
    [LLAMA_ATTN_NORM] = {L "input_layernorm.weight", "hidden_size", NB_ROLE_NORM},
    [LLAMA_Q] = {L "self_attn.q_proj", "num_attention_heads*head_dim,hidden_size", NB_ROLE_LINEAR,
                 NB_SPLIT_COLUMN, "qkv"},
    [LLAMA_K] = {L "self_attn.k_proj", "num_key_value_heads*head_dim,hidden_size", NB_ROLE_LINEAR,
                 NB_SPLIT_COLUMN, "qkv"},
    [LLAMA_V] = {L "self_attn.v_proj", "num_key_value_heads*head_dim,hidden_size", NB_ROLE_LINEAR,
                 NB_SPLIT_COLUMN, "qkv"},
    [LLAMA_O] = {L "self_attn.o_proj", "hidden_size,num_attention_heads*head_dim", NB_ROLE_LINEAR,
                 NB_SPLIT_ROW},
    [LLAMA_MLP_NORM] = {L "post_attention_layernorm.weight", "hidden_size", NB_ROLE_NORM},
    [LLAMA_GATE] = {L "mlp.gate_proj", "intermediate_size,hidden_size", NB_ROLE_LINEAR, NB_SPLIT_COLUMN,
                    "gate_up"},
    [LLAMA_UP] = {L "mlp.up_proj", "intermediate_size,hidden_size", NB_ROLE_LINEAR, NB_SPLIT_COLUMN,
                  "gate_up"},
    [LLAMA_DOWN] = {L "mlp.down_proj", "hidden_size,intermediate_size", NB_ROLE_LINEAR, NB_SPLIT_ROW},
    [LLAMA_NORM] = {"norm.weight", "hidden_size", NB_ROLE_NORM},
    [LLAMA_HEAD] = {"lm_head", "vocab_size,hidden_size", NB_ROLE_HEAD, NB_SPLIT_COLUMN, .when = untied},
};

/* head_dim and num_key_value_heads may be left out of a llama config; transformers then derives them so. */
static bool symbol(const nb_config *cfg, const char *name, int layer, int64_t *out)
{
    int64_t heads, hidden;
    bool head_dim = strcmp(name, "head_dim") == 0;
    if (!head_dim && strcmp(name, "num_key_value_heads") != 0) return false;
    if (nb_config_get(cfg, name)) return false;
    if (nb_config_int(cfg, "num_attention_heads", -1, 1, 1 << 20, &heads, NULL) != NB_OK) return false;
    if (!head_dim) {
        *out = heads;
        return true;
    }
    if (nb_config_int(cfg, "hidden_size", -1, 1, 1 << 30, &hidden, NULL) != NB_OK || hidden % heads)
        return false;
    *out = hidden / heads;
    return true;
}

static nb_status validate(const nb_config *cfg, nb_error *err)
{
    static const struct {
        const char *key;
        int64_t max;
    } keys[] = {
        {"vocab_size", 1 << 30},          {"hidden_size", 1 << 30}, {"num_attention_heads", 1 << 30},
        {"num_key_value_heads", 1 << 30}, {"head_dim", 1 << 16}, /* rotary tables are made before a tensor's shape confirms it */
        {"intermediate_size", 1 << 30}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int64_t v;
        nb_status s = nb_config_int(cfg, keys[i].key, -1, 1, keys[i].max, &v, err);
        if (s != NB_OK) return s;
    }
    return NB_OK;
}

const nb_arch nb_arch_llama = {
    .name = "llama",
    .model_types = model_types,
    .prefixes = prefixes,
    .skip = skip,
    .tensors = tensors,
    .n_tensors = LLAMA_COUNT,
    .symbol = symbol,
    .validate = validate,
};
