/*
 * Qwen2: llama with biases on q, k and v, which its table has. After transformers models/qwen2/modeling_qwen2.py.
 */
#include "models/decoder.h"

static nb_status open(nb_model *m, nb_error *err)
{
    return nb_decoder_dense(m, true, err);
}

const nb_forward nb_forward_qwen2 = NB_DECODER(&nb_arch_qwen2, open);
