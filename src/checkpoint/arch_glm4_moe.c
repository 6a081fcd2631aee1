/* The glm4_moe table: GLM-4.5, 4.6 and 4.7. The first layers are dense, the others have experts beside shared ones. */
#include "checkpoint/arch_rows.h"

static const char *const model_types[] = {"glm4_moe", NULL};

static bool normed(const nb_config *cfg, int layer)
{
    return json_is_true(nb_config_get(cfg, "use_qk_norm"));
}

static const nb_arch_tensor tensors[] = {
    NB_ROW_EMBED,
    NB_ROWS_NORMS,
    NB_ROWS_QKVO,
    NB_ROWS_QKV_BIAS(nb_arch_attention_bias),
    NB_ROWS_QK_NORM("head_dim", "head_dim", normed),
    NB_ROWS_MLP(nb_arch_dense_first),
    NB_ROW_ROUTER("mlp.", "n_routed_experts", nb_arch_after_dense),
    NB_ROW_VECTOR(NB_PART_CHOICE_BIAS, NB_L "mlp.gate.e_score_correction_bias", "n_routed_experts",
                  NB_ROLE_PARAM, nb_arch_after_dense),
    NB_ROWS_EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj", "moe_intermediate_size",
                    nb_arch_after_dense),
    NB_ROWS_SHARED("mlp.shared_experts", "n_shared_experts*moe_intermediate_size", nb_arch_after_dense),
    NB_ROWS_HEAD};

static nb_status validate(const nb_config *cfg, nb_error *err)
{
    static const nb_arch_size keys[] = {{"intermediate_size", NB_MAX_SIZE},
                                        {"moe_intermediate_size", NB_MAX_SIZE},
                                        {"n_shared_experts", 1 << 20}};
    int64_t dense;
    nb_status s = nb_arch_check_experts(cfg, err);
    if (s == NB_OK) s = nb_arch_check_sizes(cfg, keys, sizeof keys / sizeof *keys, err);
    return s ? s : nb_config_int(cfg, "first_k_dense_replace", -1, 0, NB_MAX_SIZE, &dense, err);
}

const nb_arch nb_arch_glm4_moe = {NB_ARCH_COMMON("glm4_moe"), .n_experts_key = "n_routed_experts",
                                  .symbol = nb_arch_head_symbol, .validate = validate};
