/* The phi3 table: Phi-3, Phi-3.5 and Phi-4. q, k and v are one linear, gate and up another. */
#include "checkpoint/arch_rows.h"

static const char *const model_types[] = {"phi3", NULL};

static const nb_arch_tensor tensors[] = {
    NB_ROW_EMBED,
    NB_ROWS_NORMS,
    NB_ROW_LINEAR(NB_PART_QKV, NB_ATTN "qkv_proj", NB_Q_COLS "+2*" NB_KV_COLS ",hidden_size", NB_SPLIT_COLUMN,
                  NULL, NULL),
    NB_ROW_O,
    NB_ROW_LINEAR(NB_PART_GATE_UP, NB_L "mlp.gate_up_proj", "2*intermediate_size,hidden_size",
                  NB_SPLIT_COLUMN, NULL, NULL),
    NB_ROW_DOWN(NULL),
    NB_ROWS_HEAD};

const nb_arch nb_arch_phi3 = {NB_ARCH_COMMON("phi3"), .symbol = nb_arch_head_symbol,
                              .validate = nb_arch_check_dense};
