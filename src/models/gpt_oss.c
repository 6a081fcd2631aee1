/*
 * gpt-oss: every other layer sees a window, each head has a sink, every linear a bias; experts chosen by logit, their weights a
 * softmax over the chosen. After transformers models/gpt_oss/modeling_gpt_oss.py.
 */
#include "models/decoder.h"

/* Without rotary settings transformers takes those of the published models, other engines none. */
static nb_status check_rope(const nb_model *m, nb_error *err)
{
    if (nb_config_get(&m->cfg, "rope_scaling") || nb_config_get(&m->cfg, "rope_parameters")) return NB_OK;
    nb_fail(err, NB_ERR_MISSING, "neither rope_scaling nor rope_parameters is given");
    nb_error_at(err, m->cfg.file, NULL, -1);
    nb_error_remedy(err, "restore it from the original model's config.json (YaRN, factor 32)");
    return NB_ERR_MISSING;
}

static nb_status open(nb_model *m, nb_error *err)
{
    nb_decoder *s;
    nb_status st;
    if ((st = check_rope(m, err)) || (st = nb_only_bool(m, "attention_bias", true, err)) ||
        (st = nb_only_number(m, "swiglu_alpha", 1.702, err)) || (st = nb_decoder_open(m, sizeof *s, err)))
        return st;
    s = m->state;
    s->ffn.act = NB_ACT_SILU_PLUS;
    s->ffn.score = NB_SCORE_SOFTMAX_CHOSEN;
    if ((st = nb_decoder_windows(m, err)) || (st = nb_decoder_rope(m, NB_ROTATES_ALL, err)) ||
        (st = nb_ffn_experts(m, &s->ffn, "intermediate_size", err)) ||
        (st = nb_read_number(m, "swiglu_limit", 0, 1e9, &s->ffn.limit, err)))
        return st;
    return nb_decoder_declare(m, err);
}

const nb_forward nb_forward_gpt_oss = NB_DECODER(&nb_arch_gpt_oss, open);
