/*
 * The gpt_oss table. All linears have biases. Experts are in stacks whose output rows are gate and up in turn: MXFP4 blocks as
 * published, transposed matrices in BF16.
 */
#include "checkpoint/arch_rows.h"

static const char *const model_types[] = {"gpt_oss", NULL};

#define EXPERTS NB_L "mlp.experts."

static const nb_arch_tensor tensors[] = {
    NB_ROW_EMBED,
    NB_ROWS_NORMS,
    NB_ROWS_QKVO,
    NB_ROWS_QKV_BIAS(NULL),
    NB_ROW_VECTOR(NB_PART_O_BIAS, NB_ATTN "o_proj.bias", "hidden_size", NB_ROLE_PARAM, NULL),
    NB_ROW_VECTOR(NB_PART_SINKS, NB_ATTN "sinks", "num_attention_heads", NB_ROLE_PARAM, NULL),
    NB_ROW_LINEAR(NB_PART_ROUTER, NB_L "mlp.router", "num_local_experts,hidden_size", NB_SPLIT_NONE, NULL,
                  NULL),
    NB_ROW_VECTOR(NB_PART_ROUTER_BIAS, NB_L "mlp.router.bias", "num_local_experts", NB_ROLE_PARAM, NULL),
    NB_ROW_LINEAR(NB_PART_EXPERT_GATE,
                  EXPERTS "({e}.gate_proj|gate_up_proj[{e}].T[0::2]|gate_up_proj[{e}][0::2])",
                  "intermediate_size,hidden_size", NB_SPLIT_COLUMN, "gate_up", NULL),
    NB_ROW_LINEAR(NB_PART_EXPERT_UP,
                  EXPERTS "({e}.up_proj|gate_up_proj[{e}].T[1::2]|gate_up_proj[{e}][1::2])",
                  "intermediate_size,hidden_size", NB_SPLIT_COLUMN, "gate_up", NULL),
    NB_ROW_LINEAR(NB_PART_EXPERT_DOWN, EXPERTS "({e}.down_proj|down_proj[{e}].T|down_proj[{e}])",
                  "hidden_size,intermediate_size", NB_SPLIT_ROW, NULL, NULL),
    NB_ROW_VECTOR(NB_PART_EXPERT_GATE_UP_BIAS, EXPERTS "gate_up_proj_bias",
                  "num_local_experts,2*intermediate_size", NB_ROLE_PARAM, NULL),
    NB_ROW_VECTOR(NB_PART_EXPERT_DOWN_BIAS, EXPERTS "down_proj_bias", "num_local_experts,hidden_size",
                  NB_ROLE_PARAM, NULL),
    NB_ROWS_HEAD};

static nb_status validate(const nb_config *cfg, nb_error *err)
{
    static const nb_arch_size window = {"sliding_window", NB_MAX_SIZE};
    nb_status s;
    if ((s = nb_arch_check_experts(cfg, err)) || (s = nb_arch_check_sizes(cfg, &window, 1, err))) return s;
    return nb_arch_check_layer_types(cfg, err);
}

const nb_arch nb_arch_gpt_oss = {NB_ARCH_COMMON("gpt_oss"), .n_experts_key = "num_local_experts",
                                 .defaults = nb_arch_heads_64, .symbol = nb_arch_head_symbol,
                                 .validate = validate};
