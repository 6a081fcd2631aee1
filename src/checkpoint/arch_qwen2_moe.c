/* The qwen2_moe table: qwen2 with experts and a shared one behind a switch, but in the layers that the config keeps dense. */
#include "checkpoint/arch_rows.h"

static const char *const model_types[] = {"qwen2_moe", NULL};

/* Without the key, as published, q, k and v have biases. */
static bool biased(const nb_config *cfg, int layer)
{
    return !json_is_false(nb_config_get(cfg, "qkv_bias"));
}

static const nb_arch_tensor tensors[] = {
    NB_ROW_EMBED,
    NB_ROWS_NORMS,
    NB_ROWS_QKVO,
    NB_ROWS_QKV_BIAS(biased),
    NB_ROWS_MLP(nb_arch_not_sparse),
    NB_ROW_ROUTER("mlp.", "num_experts", nb_arch_sparse),
    NB_ROWS_EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj", "moe_intermediate_size", nb_arch_sparse),
    NB_ROWS_SHARED("mlp.shared_expert", "shared_expert_intermediate_size", nb_arch_sparse),
    NB_ROW_LINEAR(NB_PART_SHARED_SWITCH, NB_L "mlp.shared_expert_gate", "1,hidden_size", NB_SPLIT_NONE, NULL,
                  nb_arch_sparse),
    NB_ROWS_HEAD};

const nb_arch nb_arch_qwen2_moe = {NB_ARCH_COMMON("qwen2_moe"), .n_experts_key = "num_experts",
                                   .symbol = nb_arch_experts_symbol, .validate = nb_arch_check_experts};
