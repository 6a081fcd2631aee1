/*
 * Llama: grouped-query attention with rotary positions, then a SwiGLU MLP. After transformers models/llama/modeling_llama.py.
 */
#include "models/decoder.h"

static nb_status open(nb_model *m, nb_error *err)
{
    nb_status s;
    if ((s = nb_only_bool(m, "attention_bias", false, err)) ||
        (s = nb_only_bool(m, "mlp_bias", false, err)) ||
        (s = nb_only_number(m, "partial_rotary_factor", 1, err)) ||
        (s = nb_decoder_open(m, sizeof(nb_decoder), err)) || (s = nb_decoder_rope(m, err)) ||
        (s = nb_decoder_mlp(m, err)))
        return s;
    return nb_decoder_declare(m, err);
}

const nb_forward nb_forward_llama = {
    &nb_arch_llama,       open,           nb_decoder_prepare, nb_decoder_begin,
    nb_decoder_layer_run, nb_decoder_end, nb_decoder_head,    nb_decoder_hidden,
    nb_decoder_close};
