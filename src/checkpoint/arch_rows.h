/*
 * What the tables of many architectures have in common: rows, prefixes, names to skip, derived config symbols and the sizes to
 * check. A table is a list of these and of its own rows. `when` is a function of nb_arch_tensor.when, or NULL.
 */
#ifndef NB_CHECKPOINT_ARCH_ROWS_H
#define NB_CHECKPOINT_ARCH_ROWS_H

#include "checkpoint/arch.h"

#define NB_L "layers.{l}."
#define NB_ATTN NB_L "self_attn."

/* One linear, and one float vector. */
#define NB_ROW_LINEAR(PART, NAME, SHAPE, SPLIT, FUSED, WHEN)                                                 \
    {                                                                                                        \
        NAME, SHAPE, NB_ROLE_LINEAR, SPLIT, FUSED, NULL, WHEN, PART                                          \
    }
#define NB_ROW_VECTOR(PART, NAME, SIZE, ROLE, WHEN)                                                          \
    {                                                                                                        \
        NAME, SIZE, ROLE, NB_SPLIT_NONE, NULL, NULL, WHEN, PART                                              \
    }
/* A norm whose weight is stored as its distance from 1. */
#define NB_ROW_NORM_PLUS(PART, NAME, SIZE, WHEN)                                                             \
    {                                                                                                        \
        NAME, SIZE, NB_ROLE_NORM, NB_SPLIT_NONE, NULL, NULL, WHEN, PART, 1                                   \
    }

/* Outside layers. */
#define NB_ROW_EMBED                                                                                         \
    {                                                                                                        \
        "embed_tokens", "vocab_size,hidden_size", NB_ROLE_EMBED, NB_SPLIT_NONE, NULL, NULL, NULL,            \
            NB_PART_EMBED                                                                                    \
    }
#define NB_ROW_HEAD(WHEN)                                                                                    \
    {                                                                                                        \
        "lm_head", "vocab_size,hidden_size", NB_ROLE_HEAD, NB_SPLIT_COLUMN, NULL, NULL, WHEN, NB_PART_HEAD   \
    }
#define NB_ROWS_HEAD                                                                                         \
    NB_ROW_VECTOR(NB_PART_NORM, "norm.weight", "hidden_size", NB_ROLE_NORM, NULL), NB_ROW_HEAD(nb_arch_untied)

/* The two norms of a pre-norm layer. */
#define NB_ROWS_NORMS                                                                                        \
    NB_ROW_VECTOR(NB_PART_ATTN_NORM, NB_L "input_layernorm.weight", "hidden_size", NB_ROLE_NORM, NULL),      \
        NB_ROW_VECTOR(NB_PART_FFN_NORM, NB_L "post_attention_layernorm.weight", "hidden_size", NB_ROLE_NORM, \
                      NULL)

/* Grouped-query attention. */
#define NB_Q_COLS "num_attention_heads*head_dim"
#define NB_KV_COLS "num_key_value_heads*head_dim"
#define NB_ROW_O                                                                                             \
    NB_ROW_LINEAR(NB_PART_O, NB_ATTN "o_proj", "hidden_size," NB_Q_COLS, NB_SPLIT_ROW, NULL, NULL)
#define NB_ROWS_QKVO                                                                                         \
    NB_ROW_LINEAR(NB_PART_Q, NB_ATTN "q_proj", NB_Q_COLS ",hidden_size", NB_SPLIT_COLUMN, "qkv", NULL),      \
        NB_ROW_LINEAR(NB_PART_K, NB_ATTN "k_proj", NB_KV_COLS ",hidden_size", NB_SPLIT_COLUMN, "qkv", NULL), \
        NB_ROW_LINEAR(NB_PART_V, NB_ATTN "v_proj", NB_KV_COLS ",hidden_size", NB_SPLIT_COLUMN, "qkv", NULL), \
        NB_ROW_O
#define NB_ROWS_QKV_BIAS(WHEN)                                                                               \
    NB_ROW_VECTOR(NB_PART_Q_BIAS, NB_ATTN "q_proj.bias", NB_Q_COLS, NB_ROLE_PARAM, WHEN),                    \
        NB_ROW_VECTOR(NB_PART_K_BIAS, NB_ATTN "k_proj.bias", NB_KV_COLS, NB_ROLE_PARAM, WHEN),               \
        NB_ROW_VECTOR(NB_PART_V_BIAS, NB_ATTN "v_proj.bias", NB_KV_COLS, NB_ROLE_PARAM, WHEN)
#define NB_ROWS_QK_NORM(Q_SIZE, K_SIZE, WHEN)                                                                \
    NB_ROW_VECTOR(NB_PART_Q_NORM, NB_ATTN "q_norm.weight", Q_SIZE, NB_ROLE_NORM, WHEN),                      \
        NB_ROW_VECTOR(NB_PART_K_NORM, NB_ATTN "k_norm.weight", K_SIZE, NB_ROLE_NORM, WHEN)

/* Dense feed-forward of `intermediate_size`. */
#define NB_ROW_DOWN(WHEN)                                                                                    \
    NB_ROW_LINEAR(NB_PART_DOWN, NB_L "mlp.down_proj", "hidden_size,intermediate_size", NB_SPLIT_ROW, NULL,   \
                  WHEN)
#define NB_ROWS_MLP(WHEN)                                                                                    \
    NB_ROW_LINEAR(NB_PART_GATE, NB_L "mlp.gate_proj", "intermediate_size,hidden_size", NB_SPLIT_COLUMN,      \
                  "gate_up", WHEN),                                                                          \
        NB_ROW_LINEAR(NB_PART_UP, NB_L "mlp.up_proj", "intermediate_size,hidden_size", NB_SPLIT_COLUMN,      \
                      "gate_up", WHEN),                                                                      \
        NB_ROW_DOWN(WHEN)

/* A router under BLOCK (a name after "layers.N.", with its dot) and EXPERTS, the config key of their number. */
#define NB_ROW_ROUTER(BLOCK, EXPERTS, WHEN)                                                                  \
    NB_ROW_LINEAR(NB_PART_ROUTER, NB_L BLOCK "gate", EXPERTS ",hidden_size", NB_SPLIT_NONE, NULL, WHEN)
/* Experts of width I (a config key) whose linears are called GATE, UP, DOWN; or all in two stacks, as transformers 5 keeps them. */
#define NB_ROWS_EXPERTS(BLOCK, GATE, UP, DOWN, I, WHEN)                                                      \
    NB_ROW_LINEAR(NB_PART_EXPERT_GATE, NB_L BLOCK "experts.({e}." GATE "|gate_up_proj[{e}][:half])",         \
                  I ",hidden_size", NB_SPLIT_COLUMN, "gate_up", WHEN),                                       \
        NB_ROW_LINEAR(NB_PART_EXPERT_UP, NB_L BLOCK "experts.({e}." UP "|gate_up_proj[{e}][half:])",         \
                      I ",hidden_size", NB_SPLIT_COLUMN, "gate_up", WHEN),                                   \
        NB_ROW_LINEAR(NB_PART_EXPERT_DOWN, NB_L BLOCK "experts.({e}." DOWN "|down_proj[{e}])",               \
                      "hidden_size," I, NB_SPLIT_ROW, NULL, WHEN)
/* Shared experts that are one MLP of width I called NAME. */
#define NB_ROWS_SHARED(NAME, I, WHEN)                                                                        \
    NB_ROW_LINEAR(NB_PART_SHARED_GATE, NB_L NAME ".gate_proj", I ",hidden_size", NB_SPLIT_COLUMN,            \
                  "shared_gate_up", WHEN),                                                                   \
        NB_ROW_LINEAR(NB_PART_SHARED_UP, NB_L NAME ".up_proj", I ",hidden_size", NB_SPLIT_COLUMN,            \
                      "shared_gate_up", WHEN),                                                               \
        NB_ROW_LINEAR(NB_PART_SHARED_DOWN, NB_L NAME ".down_proj", "hidden_size," I, NB_SPLIT_ROW, NULL,     \
                      WHEN)

/* Prefixes of text models, alone and within their multimodal wrappers; NULL-terminated. */
extern const char *const nb_arch_prefixes[];
/* Tensors that exporters leave beside the weights and nothing needs; NULL-terminated. */
extern const char *const nb_arch_skip[];

/* nb_arch_tensor.when of a head: true unless tie_word_embeddings is. */
bool nb_arch_untied(const nb_config *cfg, int layer);
/* Of biases: attention_bias is true. */
bool nb_arch_attention_bias(const nb_config *cfg, int layer);
/* Of layers from first_k_dense_replace on, which have experts, and of those before. */
bool nb_arch_after_dense(const nb_config *cfg, int layer);
bool nb_arch_dense_first(const nb_config *cfg, int layer);

/* Of layers with experts: not among mlp_only_layers, and a decoder_sparse_step-th, counted from 1; and of the others. */
bool nb_arch_sparse(const nb_config *cfg, int layer);
bool nb_arch_not_sparse(const nb_config *cfg, int layer);

/* nb_arch.symbol of configs that may leave out head_dim (then hidden_size / num_attention_heads, unless the class has a default) and
 * num_key_value_heads (then num_attention_heads), as transformers derives them. */
bool nb_arch_head_symbol(const nb_config *cfg, const char *name, int layer, int64_t *out);
/* The same, and num_experts, which transformers 5 saves as num_local_experts. */
bool nb_arch_experts_symbol(const nb_config *cfg, const char *name, int layer, int64_t *out);

/* Keys that must be integers in [1, max]. */
typedef struct nb_arch_size {
    const char *key;
    int64_t max;
} nb_arch_size;
#define NB_MAX_SIZE ((int64_t)1 << 30)
/* Checks each; the error names the key. */
nb_status nb_arch_check_sizes(const nb_config *cfg, const nb_arch_size *keys, size_t n, nb_error *err);
/* layer_types has, for each layer, the word full_attention or sliding_attention. */
nb_status nb_arch_check_layer_types(const nb_config *cfg, nb_error *err);
/* Each list with an entry a layer, in whatever family, has as many as there are layers; more only where transformers 5.24 takes that.
 * nb_config_from_json calls it. */
nb_status nb_arch_check_lists(const nb_config *cfg, nb_error *err);
/* The sizes that every attention decoder has; head_dim is bounded more narrowly, because rotary tables are made of it before a
 * tensor's shape confirms it. */
nb_status nb_arch_check_decoder(const nb_config *cfg, nb_error *err);
/* nb_arch.validate of dense decoders: these and intermediate_size. */
nb_status nb_arch_check_dense(const nb_config *cfg, nb_error *err);
/* Of decoders with experts: these, nb_arch.n_experts_key, num_experts_per_tok, and the width of an expert, moe_intermediate_size or
 * where a config has no such key intermediate_size. */
nb_status nb_arch_check_experts(const nb_config *cfg, nb_error *err);

/* nb_arch.defaults of classes that take this head_dim whatever the other sizes are (transformers' configuration_*.py). */
extern const nb_arch_default nb_arch_heads_64[], nb_arch_heads_128[], nb_arch_heads_256[];

/* The members of an nb_arch that follow from `model_types` and `tensors` in its file; symbol and validate come after it. */
#define NB_ARCH_COMMON(NAME)                                                                                 \
    .name = (NAME), .model_types = model_types, .prefixes = nb_arch_prefixes, .skip = nb_arch_skip,          \
    .tensors = tensors, .n_tensors = sizeof tensors / sizeof *tensors

#endif
