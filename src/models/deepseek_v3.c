/*
 * DeepSeek-V2, V3 (V3.1, R1, Kimi-K2), V3.2, GLM-4.7-Flash and GLM-5: the plain pre-norm decoder with latent attention and, after
 * the first layers, experts chosen within groups. After transformers models/deepseek_v2, deepseek_v3, deepseek_v32, glm4_moe_lite,
 * glm_moe_dsa.
 */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/arch_deepseek_v3.h"
#include "models/decoder.h"
#include "models/mla.h"

typedef struct deepseek_v3 {
    nb_decoder base; /* without its attention */
    nb_mla mla;
} deepseek_v3;

/* DeepSeek-V2's experts: softmax, groups by their best or none at all, weights as the scores are. */
static nb_status read_v2_experts(const nb_model *m, nb_ffn *f, nb_error *err)
{
    size_t shared;
    const nb_size_setting groups[] = {{"n_group", &f->groups}, {"topk_group", &f->top_groups}},
                          width = {"n_shared_experts", &shared};
    const char *method = json_string_value(nb_config_get(&m->cfg, "topk_method"));
    const bool grouped = !method || strcmp(method, "greedy") != 0;
    nb_status s;
    if ((s = nb_only_word(m, "scoring_func", "softmax", err)) ||
        (s = grouped ? nb_only_word(m, "topk_method", "group_limited_greedy", err) : NB_OK) ||
        (s = nb_only_bool(m, "norm_topk_prob", false,
                          err)) || /* transformers ignores it, the release does not */
        (s = nb_ffn_experts(m, f, "moe_intermediate_size", err)) ||
        (s = grouped ? nb_read_sizes(m, groups, 2, err) : NB_OK) || (s = nb_read_sizes(m, &width, 1, err)) ||
        (s = nb_read_number(m, "routed_scaling_factor", 0, 1e9, &f->scaling, err)))
        return s;
    f->shared_I = shared * f->expert_I;
    f->score = NB_SCORE_SOFTMAX;
    f->group_max = f->keep = true;
    return NB_OK;
}

static nb_status open(nb_model *m, nb_error *err)
{
    deepseek_v3 *s = calloc(1, sizeof *s);
    if (!s) return nb_fail_nomem(err, "model state", sizeof *s);
    m->state = s;
    const nb_ds3_kind *kind = nb_ds3_kind_of(&m->cfg);
    nb_status st;
    if ((st = nb_only_word(m, "hidden_act", "silu", err)) ||
        (st = nb_only_bool(m, "attention_bias", false, err)) ||
        (st = nb_only_bool(m, "mlp_bias", false, err)) ||
        (st = nb_only_bool(m, "indexer_rope_interleave", kind->index_interleaved, err)) ||
        (st = nb_mla_open(m, &s->mla, kind->indexed, kind->index_interleaved, err)) ||
        (st = nb_read_number(m, "rms_norm_eps", 0, 1, &s->base.eps, err)) ||
        (st = nb_rope_open(m, NULL, s->mla.rope, NB_ROTATES_ALL, &s->base.rope, err)) ||
        (st = nb_ffn_mlp(m, &s->base.ffn, err)) ||
        (st = kind->softmax ? read_v2_experts(m, &s->base.ffn, err) : nb_ffn_noaux(m, &s->base.ffn, err)))
        return st;
    s->base.D = s->base.ffn.D = m->hidden_cols = s->mla.D;
    return nb_ffn_open(m, &s->base.ffn, err);
}

static nb_status prepare(nb_model *m, nb_error *err)
{
    deepseek_v3 *s = m->state;
    nb_status st = nb_decoder_prepare(m, err);
    return st ? st : nb_mla_prepare(m, &s->mla, err);
}

static void layer(nb_model *m, int l, const nb_slot *w)
{
    deepseek_v3 *s = m->state;
    nb_decoder *b = &s->base;
    nb_exec *x = m->x;
    const nb_ops *op = x->ops;
    op->rmsnorm(x, b->x, x->rows.n, nb_at(m, w, NB_PART_ATTN_NORM)->t, b->D, b->eps, b->h);
    nb_mla_run(m, &s->mla, l, &b->rope, w, b->h, b->out);
    op->add(x, b->x, b->out, b->x); /* x += attention(RMS(x)) */
    op->rmsnorm(x, b->x, x->rows.n, nb_at(m, w, NB_PART_FFN_NORM)->t, b->D, b->eps, b->h);
    nb_ffn_run(m, &b->ffn, w, b->h, b->out);
    op->add(x, b->x, b->out, b->x); /* x += ffn(RMS(x)) */
}

static const nb_derive *derive(const nb_model *m, const nb_arch_tensor *row, size_t *n)
{
    return nb_mla_derive(&((const deepseek_v3 *)m->state)->mla, row, n);
}

static void close(nb_model *m)
{
    deepseek_v3 *s = m->state;
    nb_mla_close(&s->mla);
    nb_decoder_close(m);
}

const nb_forward nb_forward_deepseek_v3 = {.names = &nb_arch_deepseek_v3,
                                           .open = open,
                                           .prepare = prepare,
                                           .begin = nb_decoder_begin,
                                           .layer = layer,
                                           .end = nb_decoder_end,
                                           .head = nb_decoder_head,
                                           .hidden = nb_decoder_hidden,
                                           .close = close,
                                           .derive = derive};
