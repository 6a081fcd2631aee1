/* The qwen3 table: llama with a norm on each head of q and k. */
#include "checkpoint/arch_rows.h"

static const char *const model_types[] = {"qwen3", NULL};

static const nb_arch_tensor tensors[] = {NB_ROW_EMBED,      NB_ROWS_NORMS,
                                         NB_ROWS_QKVO,      NB_ROWS_QK_NORM("head_dim", "head_dim", NULL),
                                         NB_ROWS_MLP(NULL), NB_ROWS_HEAD};

static nb_status validate(const nb_config *cfg, nb_error *err)
{
    static const nb_arch_size keys[] = {{"intermediate_size", NB_MAX_SIZE}};
    nb_status s = nb_arch_check_decoder(cfg, err);
    return s ? s : nb_arch_check_sizes(cfg, keys, sizeof keys / sizeof *keys, err);
}

const nb_arch nb_arch_qwen3 = {
    .name = "qwen3",
    .model_types = model_types,
    .prefixes = nb_arch_prefixes,
    .skip = nb_arch_skip,
    .tensors = tensors,
    .n_tensors = sizeof tensors / sizeof *tensors,
    .symbol = nb_arch_head_symbol,
    .validate = validate,
};
