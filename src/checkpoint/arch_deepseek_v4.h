/* Rows of the DeepSeek-V4 table, and the per-layer facts that its config spells in two ways. */
#ifndef NB_CHECKPOINT_ARCH_DEEPSEEK_V4_H
#define NB_CHECKPOINT_ARCH_DEEPSEEK_V4_H

#include "checkpoint/arch.h"

enum {
    DS4_EMBED,
    DS4_HC_ATTN_FN,
    DS4_HC_ATTN_BASE,
    DS4_HC_ATTN_SCALE,
    DS4_ATTN_NORM,
    DS4_WQ_A,
    DS4_Q_NORM,
    DS4_WQ_B,
    DS4_WKV,
    DS4_KV_NORM,
    DS4_SINK,
    DS4_WO_A,
    DS4_WO_B,
    DS4_COMP_WKV,
    DS4_COMP_WGATE,
    DS4_COMP_APE,
    DS4_COMP_NORM,
    DS4_INDEX_WQ_B,
    DS4_INDEX_WEIGHTS,
    DS4_INDEX_WKV,
    DS4_INDEX_WGATE,
    DS4_INDEX_APE,
    DS4_INDEX_NORM,
    DS4_HC_FFN_FN,
    DS4_HC_FFN_BASE,
    DS4_HC_FFN_SCALE,
    DS4_FFN_NORM,
    DS4_GATE,
    DS4_GATE_BIAS,
    DS4_TID2EID,
    DS4_W1,
    DS4_W3,
    DS4_W2,
    DS4_SHARED_W1,
    DS4_SHARED_W3,
    DS4_SHARED_W2,
    DS4_HC_HEAD_FN,
    DS4_HC_HEAD_BASE,
    DS4_HC_HEAD_SCALE,
    DS4_NORM,
    DS4_HEAD,
    DS4_COUNT
};

/* Tokens per compressed row of layer l: 0 (sliding window only), 4 (CSA, with an indexer) or the HCA rate (128). From
 * compress_ratios, or layer_types with compress_rates. Negative: the config has neither, or an unknown type. */
int64_t nb_ds4_ratio(const nb_config *cfg, int layer);
/* True for an HCA layer (no indexer, no overlap). */
bool nb_ds4_is_hca(const nb_config *cfg, int layer);
/* True when layer l routes by token id (num_hash_layers, or mlp_layer_types). */
bool nb_ds4_is_hash(const nb_config *cfg, int layer);

#endif
