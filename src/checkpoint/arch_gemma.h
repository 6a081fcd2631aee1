/* What Gemma 3 and Gemma 4 say of a layer, for their tables (arch_gemma.c) and their forward pass (models/gemma.c). */
#ifndef NB_CHECKPOINT_ARCH_GEMMA_H
#define NB_CHECKPOINT_ARCH_GEMMA_H

#include "checkpoint/arch.h"

/* True where layer_types has "full_attention" (without layer_types: every sliding_window_pattern-th layer), false where it slides. */
bool nb_gemma_full(const nb_config *cfg, int layer);
/* The layer whose keys and values this one reads: itself, or, in the last num_kv_shared_layers, the last one before those with the
 * same attention. -1: there is none. */
int nb_gemma_kv_of(const nb_config *cfg, int layer);

#endif
