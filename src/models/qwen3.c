/*
 * Qwen3: llama with a norm on each head of q and k, which its table has. After transformers models/qwen3/modeling_qwen3.py.
 */
#include "models/decoder.h"

static nb_status open(nb_model *m, nb_error *err)
{
    nb_status s = nb_only_bool(m, "attention_bias", false, err);
    return s ? s : nb_decoder_dense(m, true, err);
}

const nb_forward nb_forward_qwen3 = NB_DECODER(&nb_arch_qwen3, open);
