/*
 * Qwen3-MoE: Qwen3 whose sparse layers send each row to the best experts by softmax. After transformers
 * models/qwen3_moe/modeling_qwen3_moe.py.
 */
#include "models/decoder.h"

static nb_status open(nb_model *m, nb_error *err)
{
    nb_decoder *s;
    bool norm;
    nb_status st;
    if ((st = nb_only_bool(m, "attention_bias", false, err)) || (st = nb_decoder_open(m, sizeof *s, err)) ||
        (st = nb_decoder_windows(m, err)) || (st = nb_decoder_rope(m, NB_ROTATES_ALL, err)))
        return st;
    s = m->state;
    if ((st = nb_ffn_softmax(m, &s->ffn, err)) || (st = nb_read_bool(m, "norm_topk_prob", &norm, err)))
        return st;
    s->ffn.keep = !norm;
    return nb_decoder_declare(m, err);
}

const nb_forward nb_forward_qwen3_moe = NB_DECODER(&nb_arch_qwen3_moe, open);
