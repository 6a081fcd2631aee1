/* The qwen3_moe table: qwen3 with experts, but in the layers that the config keeps dense. */
#include "checkpoint/arch_rows.h"

static const char *const model_types[] = {"qwen3_moe", NULL};

static const nb_arch_tensor tensors[] = {
    NB_ROW_EMBED,
    NB_ROWS_NORMS,
    NB_ROWS_QKVO,
    NB_ROWS_QK_NORM("head_dim", "head_dim", NULL),
    NB_ROWS_MLP(nb_arch_not_sparse),
    NB_ROW_ROUTER("mlp.", "num_experts", nb_arch_sparse),
    NB_ROWS_EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj", "moe_intermediate_size", nb_arch_sparse),
    NB_ROWS_HEAD};

const nb_arch nb_arch_qwen3_moe = {NB_ARCH_COMMON("qwen3_moe"), .n_experts_key = "num_experts",
                                   .symbol = nb_arch_experts_symbol, .validate = nb_arch_check_experts};
