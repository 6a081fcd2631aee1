/*
 * GLM-4.5 to 4.7: attention with biases and norms as the config has them, half of each head rotates; experts by sigmoid within
 * groups beside a shared one. After transformers models/glm4_moe/modeling_glm4_moe.py.
 */
#include "models/decoder.h"

static nb_status open(nb_model *m, nb_error *err)
{
    nb_decoder *s;
    nb_status st = nb_decoder_open(m, sizeof *s, err);
    if (st != NB_OK) return st;
    s = m->state;
    if ((st = nb_decoder_rope(m, NB_ROTATES_SHARE, err)) || (st = nb_ffn_noaux(m, &s->ffn, err))) return st;
    return nb_decoder_declare(m, err);
}

const nb_forward nb_forward_glm4_moe = NB_DECODER(&nb_arch_glm4_moe, open);
