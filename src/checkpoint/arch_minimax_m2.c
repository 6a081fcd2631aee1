/* The minimax_m2 table: MiniMax-M2, M2.1, M2.5, M2.7. Norms over the whole of q and k; experts as mixtral names them, with a bias for
 * their choice. */
#include "checkpoint/arch_rows.h"

static const char *const model_types[] = {"minimax_m2", NULL};

static const nb_arch_tensor tensors[] = {
    NB_ROW_EMBED,
    NB_ROWS_NORMS,
    NB_ROWS_QKVO,
    NB_ROWS_QK_NORM(NB_Q_COLS, NB_KV_COLS, NULL),
    NB_ROW_ROUTER("block_sparse_moe.", "num_local_experts", NULL),
    NB_ROW_VECTOR(NB_PART_CHOICE_BIAS, NB_L "block_sparse_moe.e_score_correction_bias", "num_local_experts",
                  NB_ROLE_PARAM, NULL),
    NB_ROWS_EXPERTS("block_sparse_moe.", "w1", "w3", "w2", "intermediate_size", NULL),
    NB_ROWS_HEAD};

const nb_arch nb_arch_minimax_m2 = {NB_ARCH_COMMON("minimax_m2"), .n_experts_key = "num_local_experts",
                                    .defaults = nb_arch_heads_128, .symbol = nb_arch_head_symbol,
                                    .validate = nb_arch_check_experts};
