/*
 * Qwen2-MoE: Qwen2 whose sparse layers send each row to the best experts by softmax, and to a shared one behind a switch. After
 * transformers models/qwen2_moe/modeling_qwen2_moe.py.
 */
#include "models/decoder.h"

static nb_status open(nb_model *m, nb_error *err)
{
    bool norm;
    nb_status st;
    if ((st = nb_decoder_open(m, sizeof(nb_decoder), err)) || (st = nb_decoder_windows(m, err)) ||
        (st = nb_decoder_rope(m, NB_ROTATES_ALL, err)) ||
        (st = nb_read_bool(m, "norm_topk_prob", &norm, err)))
        return st;
    nb_ffn *f = &((nb_decoder *)m->state)->ffn;
    f->keep = !norm;
    st = nb_ffn_softmax(m, f, err);
    return st ? st : nb_decoder_declare(m, err);
}

const nb_forward nb_forward_qwen2_moe = NB_DECODER(&nb_arch_qwen2_moe, open);
