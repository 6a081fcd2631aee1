/*
 * MiniMax-M2: norms over all of q and k at once, a part of each head rotates, experts by sigmoid. After transformers
 * models/minimax_m2/modeling_minimax_m2.py.
 */
#include "models/decoder.h"

static nb_status open(nb_model *m, nb_error *err)
{
    nb_decoder *s;
    nb_status st;
    if ((st = nb_only_word(m, "scoring_func", "sigmoid", err)) ||
        (st = nb_only_word(m, "qk_norm_type", "per_layer", err)) ||
        (st = nb_only_bool(m, "use_qk_norm", true, err)) ||
        (st = nb_only_bool(m, "use_routing_bias", true, err)) ||
        (st = nb_only_number(m, "shared_intermediate_size", 0, err)) ||
        (st = nb_decoder_open(m, sizeof *s, err)))
        return st;
    s = m->state;
    s->attn.norm_vectors = true;
    s->ffn.score = NB_SCORE_SIGMOID;
    if ((st = nb_decoder_rope(m, NB_ROTATES_SHARE, err)) ||
        (st = nb_ffn_experts(m, &s->ffn, "intermediate_size", err)))
        return st;
    return nb_decoder_declare(m, err);
}

const nb_forward nb_forward_minimax_m2 = NB_DECODER(&nb_arch_minimax_m2, open);
