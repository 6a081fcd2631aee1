/*
 * Llama: grouped-query attention with rotary positions, then a SwiGLU MLP. After transformers models/llama/modeling_llama.py.
 */
#include "models/decoder.h"

static nb_status open(nb_model *m, nb_error *err)
{
    nb_status s;
    if ((s = nb_only_bool(m, "attention_bias", false, err)) || (s = nb_only_bool(m, "mlp_bias", false, err)))
        return s;
    return nb_decoder_dense(m, false, err);
}

const nb_forward nb_forward_llama = NB_DECODER(&nb_arch_llama, open);
