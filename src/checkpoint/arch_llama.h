/* Rows of the llama table (Llama 2 and 3, SmolLM2 and their derivatives). */
#ifndef NB_CHECKPOINT_ARCH_LLAMA_H
#define NB_CHECKPOINT_ARCH_LLAMA_H

#include "checkpoint/arch.h"

enum {
    LLAMA_EMBED,
    LLAMA_ATTN_NORM,
    LLAMA_Q,
    LLAMA_K,
    LLAMA_V,
    LLAMA_O,
    LLAMA_MLP_NORM,
    LLAMA_GATE,
    LLAMA_UP,
    LLAMA_DOWN,
    LLAMA_NORM,
    LLAMA_HEAD,
    LLAMA_COUNT
};

extern const nb_arch nb_arch_llama;

#endif
