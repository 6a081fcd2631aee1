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

const nb_arch nb_arch_mixtral = {NB_ARCH_COMMON("mixtral"), .n_experts_key = "num_local_experts",
                                 .symbol = nb_arch_head_symbol, .validate = nb_arch_check_experts};
