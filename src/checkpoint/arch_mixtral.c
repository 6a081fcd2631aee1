/* The mixtral table: mistral with experts. */
#include "checkpoint/arch_rows.h"

static const char *const model_types[] = {"mixtral", NULL};

static const nb_arch_tensor tensors[] = {
    NB_ROW_EMBED,
    NB_ROWS_NORMS,
    NB_ROWS_QKVO,
    NB_ROW_ROUTER("block_sparse_moe.", "num_local_experts", NULL),
    NB_ROWS_EXPERTS("block_sparse_moe.", "w1", "w3", "w2", "intermediate_size", NULL),
    NB_ROWS_HEAD};

static nb_status validate(const nb_config *cfg, nb_error *err)
{
    static const nb_arch_size keys[] = {{"num_local_experts", NB_MAX_EXPERTS},
                                        {"num_experts_per_tok", 1 << 10},
                                        {"intermediate_size", NB_MAX_SIZE}};
    nb_status s = nb_arch_check_decoder(cfg, err);
    return s ? s : nb_arch_check_sizes(cfg, keys, sizeof keys / sizeof *keys, err);
}

const nb_arch nb_arch_mixtral = {
    .name = "mixtral",
    .model_types = model_types,
    .prefixes = nb_arch_prefixes,
    .skip = nb_arch_skip,
    .tensors = tensors,
    .n_tensors = sizeof tensors / sizeof *tensors,
    .n_experts_key = "num_local_experts",
    .symbol = nb_arch_head_symbol,
    .validate = validate,
};
