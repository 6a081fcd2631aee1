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

static nb_status refuse(const nb_model *m, bool softmax, nb_error *err)
{
    const char *method = json_string_value(nb_config_get(&m->cfg, "topk_method"));
    const bool greedy = method && strcmp(method, "greedy") == 0; /* V2-Lite: no groups */
    const char *only = softmax ? "group_limited_greedy" : "noaux_tc";
    nb_status s;
    if ((s = nb_only_word(m, "hidden_act", "silu", err)) ||
        (s = nb_only_word(m, "scoring_func", softmax ? "softmax" : "sigmoid", err)) ||
        (s = softmax && greedy ? NB_OK : nb_only_word(m, "topk_method", only, err)) ||
        (s = nb_only_bool(m, "attention_bias", false, err)) || (s = nb_only_bool(m, "mlp_bias", false, err)))
        return s;
    /* transformers and the release differ on what V2 does with it */
    return softmax ? nb_only_bool(m, "norm_topk_prob", false, err) : NB_OK;
}

static nb_status read_ffn(const nb_model *m, nb_ffn *f, bool softmax, nb_error *err)
{
    const nb_size_setting sizes[] = {{"intermediate_size", &f->I},
                                     {"n_routed_experts", &f->experts},
                                     {"num_experts_per_tok", &f->slots},
                                     {"moe_intermediate_size", &f->expert_I}};
    const nb_size_setting groups[] = {{"n_group", &f->groups}, {"topk_group", &f->top_groups}};
    const char *method = json_string_value(nb_config_get(&m->cfg, "topk_method"));
    const json_t *shared = nb_config_get(&m->cfg, "n_shared_experts"),
                 *norm = nb_config_get(&m->cfg, "norm_topk_prob");
    nb_status s = nb_read_sizes(m, sizes, sizeof sizes / sizeof *sizes, err);
    if (s == NB_OK && !(method && strcmp(method, "greedy") == 0)) s = nb_read_sizes(m, groups, 2, err);
    if (s == NB_OK) s = nb_read_number(m, "routed_scaling_factor", 0, 1e9, &f->scaling, err);
    if (s != NB_OK) return s;
    f->shared_I = json_is_integer(shared) ? (size_t)json_integer_value(shared) * f->expert_I : 0;
    f->act = NB_ACT_SILU;
    f->score = softmax ? NB_SCORE_SOFTMAX : NB_SCORE_SIGMOID;
    f->group_max = softmax;
    f->keep = softmax || json_is_false(norm);
    return NB_OK;
}

static nb_status open(nb_model *m, nb_error *err)
{
    deepseek_v3 *s = calloc(1, sizeof *s);
    if (!s) return nb_fail_nomem(err, "model state", sizeof *s);
    m->state = s;
    const nb_ds3_kind *kind = nb_ds3_kind_of(&m->cfg);
    nb_status st;
    if ((st = refuse(m, kind->softmax, err)) ||
        (st = nb_mla_open(m, &s->mla, kind->indexed, kind->index_interleaved, err)) ||
        (st = nb_read_number(m, "rms_norm_eps", 0, 1, &s->base.eps, err)) ||
        (st = nb_rope_open(m, NULL, s->mla.rope, false, &s->base.rope, err)) ||
        (st = read_ffn(m, &s->base.ffn, kind->softmax, err)))
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
