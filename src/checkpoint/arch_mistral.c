/* The mistral table: llama with a sliding window where the config has one. Mistral 7B, Nemo, Small; Ministral 8B. */
#include "checkpoint/arch_rows.h"

static const char *const model_types[] = {"mistral", NULL};

static const nb_arch_tensor tensors[] = {NB_ROW_EMBED, NB_ROWS_NORMS, NB_ROWS_QKVO, NB_ROWS_MLP(NULL),
                                         NB_ROWS_HEAD};

const nb_arch nb_arch_mistral = {NB_ARCH_COMMON("mistral"), .symbol = nb_arch_head_symbol,
                                 .validate = nb_arch_check_dense};
