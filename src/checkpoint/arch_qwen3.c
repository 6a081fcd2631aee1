/* The qwen3 table: llama with a norm on each head of q and k. */
#include "checkpoint/arch_rows.h"

static const char *const model_types[] = {"qwen3", NULL};

static const nb_arch_tensor tensors[] = {NB_ROW_EMBED,      NB_ROWS_NORMS,
                                         NB_ROWS_QKVO,      NB_ROWS_QK_NORM("head_dim", "head_dim", NULL),
                                         NB_ROWS_MLP(NULL), NB_ROWS_HEAD};

const nb_arch nb_arch_qwen3 = {NB_ARCH_COMMON("qwen3"), .defaults = nb_arch_heads_128,
                               .symbol = nb_arch_head_symbol, .validate = nb_arch_check_dense};
