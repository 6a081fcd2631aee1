/* The qwen3_moe table: qwen3 with experts, but in the layers that the config keeps dense. */
#include "checkpoint/arch_rows.h"

#include <string.h>

static const char *const model_types[] = {"qwen3_moe", NULL};

static bool dense(const nb_config *cfg, int layer)
{
    return !nb_arch_sparse(cfg, layer);
}

/* transformers 5 saves num_experts as num_local_experts. */
static bool symbol(const nb_config *cfg, const char *name, int layer, int64_t *out)
{
    if (strcmp(name, "num_experts") != 0 || nb_config_get(cfg, name))
        return nb_arch_head_symbol(cfg, name, layer, out);
    const json_t *v = nb_config_get(cfg, "num_local_experts");
    *out = json_integer_value(v);
    return json_is_integer(v);
}

static const nb_arch_tensor tensors[] = {
    NB_ROW_EMBED,
    NB_ROWS_NORMS,
    NB_ROWS_QKVO,
    NB_ROWS_QK_NORM("head_dim", "head_dim", NULL),
    NB_ROWS_MLP(dense),
    NB_ROW_ROUTER("mlp.", "num_experts", nb_arch_sparse),
    NB_ROWS_EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj", "moe_intermediate_size", nb_arch_sparse),
    NB_ROWS_HEAD};

const nb_arch nb_arch_qwen3_moe = {NB_ARCH_COMMON("qwen3_moe"), .n_experts_key = "num_experts",
                                   .symbol = symbol, .validate = nb_arch_check_experts};
