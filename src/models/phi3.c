/*
 * Phi-3: llama with fused projections, which its table has, rotating a part of each head. After transformers models/phi3/modeling_phi3.py.
 */
#include "models/decoder.h"

static nb_status open(nb_model *m, nb_error *err)
{
    nb_status s;
    if ((s = nb_decoder_open(m, sizeof(nb_decoder), err)) || (s = nb_decoder_windows(m, err)) ||
        (s = nb_decoder_rope(m, NB_ROTATES_SHARE_OR_ALL, err)))
        return s;
    return nb_decoder_declare(m, err);
}

const nb_forward nb_forward_phi3 = NB_DECODER(&nb_arch_phi3, open);
