/*
 * Mixtral: Mistral with experts in every layer. After transformers models/mixtral/modeling_mixtral.py.
 */
#include "models/decoder.h"

static nb_status open(nb_model *m, nb_error *err)
{
    nb_decoder *s;
    nb_status st;
    if ((st = nb_decoder_open(m, sizeof *s, err)) || (st = nb_decoder_windows(m, err)) ||
        (st = nb_decoder_rope(m, NB_ROTATES_ALL, err)))
        return st;
    s = m->state;
    s->ffn.score = NB_SCORE_SOFTMAX;
    if ((st = nb_ffn_experts(m, &s->ffn, "intermediate_size", err))) return st;
    return nb_decoder_declare(m, err);
}

const nb_forward nb_forward_mixtral = NB_DECODER(&nb_arch_mixtral, open);
