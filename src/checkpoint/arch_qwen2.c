/* The qwen2 table: Qwen2 and Qwen2.5, llama with biases on q, k and v. */
#include "checkpoint/arch_rows.h"

static const char *const model_types[] = {"qwen2", NULL};

static const nb_arch_tensor tensors[] = {NB_ROW_EMBED,           NB_ROWS_NORMS,     NB_ROWS_QKVO,
                                         NB_ROWS_QKV_BIAS(NULL), NB_ROWS_MLP(NULL), NB_ROWS_HEAD};

const nb_arch nb_arch_qwen2 = {NB_ARCH_COMMON("qwen2"), .symbol = nb_arch_head_symbol,
                               .validate = nb_arch_check_dense};
