/* The architectures of multi-head latent attention that share one table: DeepSeek-V2 to V3.2, Kimi-K2, GLM-4.7-Flash, GLM-5. */
#ifndef NB_CHECKPOINT_ARCH_DEEPSEEK_V3_H
#define NB_CHECKPOINT_ARCH_DEEPSEEK_V3_H

#include "checkpoint/arch.h"

/* What sets them apart. */
typedef struct nb_ds3_kind {
    const char *model_type;
    bool
        softmax; /* the router: softmax and the best of each group, instead of sigmoid, bias and the best two */
    bool indexed;           /* sparse attention: an indexer chooses the tokens that a query sees */
    bool index_interleaved; /* its rotary pairs are neighbours, as in the main attention */
} nb_ds3_kind;

/* By model_type, which is one of the table's. */
const nb_ds3_kind *nb_ds3_kind_of(const nb_config *cfg);
/* Layer `layer` has an MLP instead of experts: mlp_layer_types, or first_k_dense_replace with moe_layer_freq. */
bool nb_ds3_is_dense(const nb_config *cfg, int layer);
/* Layer `layer` has an indexer of its own; those of an indexed kind that have none attend to what the last one chose. */
bool nb_ds3_has_indexer(const nb_config *cfg, int layer);

#endif
