/*
 * Mistral: llama whose queries may see a window only. After transformers models/mistral/modeling_mistral.py.
 */
#include "models/decoder.h"

static nb_status open(nb_model *m, nb_error *err)
{
    return nb_decoder_dense(m, true, err);
}

const nb_forward nb_forward_mistral = NB_DECODER(&nb_arch_mistral, open);
