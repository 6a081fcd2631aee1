/* The llama table: Llama 2 and 3, SmolLM2 and the many models that keep their layer. */
#include "checkpoint/arch_rows.h"

static const char *const model_types[] = {"llama", NULL};

static const nb_arch_tensor tensors[] = {NB_ROW_EMBED, NB_ROWS_NORMS, NB_ROWS_QKVO, NB_ROWS_MLP(NULL),
                                         NB_ROWS_HEAD};

const nb_arch nb_arch_llama = {NB_ARCH_COMMON("llama"), .symbol = nb_arch_head_symbol,
                               .validate = nb_arch_check_dense};
