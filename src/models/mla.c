/*
 * Multi-head latent attention on a latent cache. After DeepSeek-V2 (arXiv 2405.04434) and transformers models/deepseek_v3,
 * deepseek_v32, glm_moe_dsa, which compute the same from keys and values of every head:
 *
 *     q_h . k_h = (q_nope_h W_uk_h) . c + q_rope_h . k_rope        v_h = W_uv_h c
 *
 * where W_uk_h [nope, r] and W_uv_h [v, r] are kv_b_proj's rows of head h. So attention runs over rows [c | k_rope] as if they
 * were the one key of all heads, with c as the value.
 */
#include "models/mla.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/settings.h"

/* transformers leaves the norms of both latents at this, whatever rms_norm_eps says; LayerNorm of the indexer's key has it too. */
#define LATENT_EPS 1e-6f

/* The rows of the latent space, to which an arithmetic's rounding of kv_b_proj's input is applied once. */
enum { KEY_HALF, VALUE_HALF };

/* 1 / sqrt(nope + rope); YaRN with mscale_all_dim sharpens it by (0.1 mscale_all_dim ln(factor) + 1)^2. */
static nb_status read_scale(const nb_model *m, nb_mla *a, nb_error *err)
{
    double theta, scale = 1.0 / sqrt((double)(a->nope + a->rope));
    const json_t *p;
    nb_status s = nb_read_rope(m, NULL, &theta, &p, err);
    if (s != NB_OK) return s;
    const char *type = nb_rope_type(p);
    double all = json_number_value(json_object_get(p, "mscale_all_dim"));
    double factor = json_number_value(json_object_get(p, "factor"));
    if (type && strcmp(type, "default") != 0 && all != 0 && factor > 1) {
        double sharper = 0.1 * all * log(factor) + 1;
        scale *= sharper * sharper;
    }
    a->scale = (float)scale;
    return NB_OK;
}

static nb_status declare_streams(nb_model *m, nb_mla *a, nb_error *err)
{
    const size_t L = (size_t)m->cfg.n_layers;
    const nb_stream_decl row = {.cols = a->r + a->rope, .tokens_per_row = 1},
                         key = {.cols = a->index_d, .tokens_per_row = 1};
    const int wk = m->part[NB_PART_INDEX_K];
    nb_status s = NB_OK;
    a->stream = calloc(2 * L, sizeof *a->stream);
    if (!a->stream) return nb_fail_nomem(err, "stream numbers", 2 * L * sizeof *a->stream);
    a->index_stream = a->stream + L;
    for (size_t l = 0; s == NB_OK && l < L; l++) {
        s = nb_model_stream(m, row, &a->stream[l], err);
        if (s == NB_OK && wk >= 0 && m->cfg.arch->tensors[wk].when(&m->cfg, (int)l))
            s = nb_model_stream(m, key, &a->index_stream[l], err);
    }
    return s;
}

nb_status nb_mla_open(nb_model *m, nb_mla *a, bool indexed, bool index_interleaved, nb_error *err)
{
    const nb_size_setting sizes[] = {{"hidden_size", &a->D},         {"num_attention_heads", &a->H},
                                     {"kv_lora_rank", &a->r},        {"qk_nope_head_dim", &a->nope},
                                     {"qk_rope_head_dim", &a->rope}, {"v_head_dim", &a->v}};
    const nb_size_setting rank = {"q_lora_rank", &a->R};
    const nb_size_setting index[] = {
        {"index_n_heads", &a->index_heads}, {"index_head_dim", &a->index_d}, {"index_topk", &a->topk}};
    nb_status s = nb_read_sizes(m, sizes, sizeof sizes / sizeof *sizes, err);
    if (s == NB_OK && nb_config_get(&m->cfg, "q_lora_rank")) s = nb_read_sizes(m, &rank, 1, err);
    if (s == NB_OK && indexed) s = nb_read_sizes(m, index, sizeof index / sizeof *index, err);
    if (s != NB_OK) return s;
    if (a->rope % 2 || (indexed && a->rope > a->index_d)) {
        nb_fail(err, NB_ERR_FORMAT, "qk_rope_head_dim %zu is odd, or more than index_head_dim %zu", a->rope,
                a->index_d);
        nb_error_at(err, m->cfg.file, NULL, -1);
        nb_error_remedy(err, "take both from the original model's config.json");
        return NB_ERR_FORMAT;
    }
    a->interleaved = !json_is_false(nb_config_get(&m->cfg, "rope_interleave"));
    a->index_interleaved = index_interleaved;
    a->forms[KEY_HALF] = (nb_derive){a->H, 0, a->nope, true};
    a->forms[VALUE_HALF] = (nb_derive){a->H, a->nope, a->v, false};
    s = read_scale(m, a, err);
    return s ? s : declare_streams(m, a, err);
}

nb_status nb_mla_prepare(nb_model *m, nb_mla *a, nb_error *err)
{
    const size_t T = m->x->max_rows, H = a->H;
    const struct {
        nb_tensor **to;
        size_t cols;
    } t[] = {{&a->qr, a->R},
             {&a->q, H * (a->nope + a->rope)},
             {&a->ql, H * (a->r + a->rope)},
             {&a->kv, a->r + a->rope},
             {&a->c, a->r},
             {&a->kr, a->rope},
             {&a->ol, H * a->r},
             {&a->o, H * a->v},
             {&a->kv_b, H * (a->nope + a->v)},
             {&a->qi, a->index_heads * a->index_d},
             {&a->ki, a->index_d},
             {&a->wi, a->index_heads}};
    nb_status s = a->topk ? nb_model_tensor(m, true, T, a->topk, &a->select, err) : NB_OK;
    for (size_t i = 0; s == NB_OK && i < sizeof t / sizeof *t; i++)
        if (t[i].cols) s = nb_model_tensor(m, false, T, t[i].cols, t[i].to, err);
    return s;
}

void nb_mla_close(nb_mla *a)
{
    free(a->stream);
}

const nb_derive *nb_mla_derive(const nb_mla *a, const nb_arch_tensor *row, size_t *n)
{
    *n = row->part == NB_PART_KV_B ? 2 : 0;
    return a->forms;
}

/* h -> q, and kv as the cache's row before norm and rotation. */
static void project(nb_model *m, const nb_mla *a, const nb_slot *w, const nb_tensor *h)
{
    nb_exec *x = m->x;
    const nb_slot *first = nb_at(m, w, a->R ? NB_PART_Q_A : NB_PART_Q);
    const nb_linear *in[] = {first->lin, nb_at(m, w, NB_PART_KV_A)->lin};
    nb_tensor *y[] = {a->R ? a->qr : a->q, a->kv};
    x->ops->linear(x, &(nb_linear_call){.w = in, .count = 2, .x = h, .y = y});
    if (!a->R) return;
    x->ops->rmsnorm(x, a->qr, x->rows.n, nb_at(m, w, NB_PART_Q_A_NORM)->t, a->R, LATENT_EPS, a->qr);
    nb_lin(m, nb_at(m, w, NB_PART_Q_B), a->qr, a->q);
}

/* kv -> the cached row [c | k_rope]. c is kv_b_proj's input: what the arithmetic does to that happens here, once. */
static void cache(nb_model *m, const nb_mla *a, int l, const nb_rope *rope, const nb_slot *w)
{
    nb_exec *x = m->x;
    const nb_ops *op = x->ops;
    const size_t rows = x->rows.n, row = a->r + a->rope;
    const nb_slot *kv_b = nb_at(m, w, NB_PART_KV_B);
    op->columns(x, a->kv, rows, row, 0, a->c);
    op->columns(x, a->kv, rows, row, a->r, a->kr);
    op->rmsnorm(x, a->c, rows, nb_at(m, w, NB_PART_KV_A_NORM)->t, a->r, LATENT_EPS, a->c);
    op->rope(x, a->kr, rope, 1, a->rope, 0, a->interleaved, false);
    if (x->tap) nb_lin(m, kv_b, a->c, a->kv_b); /* nobody else needs its keys and values */
    op->as_input(x, kv_b->lin, a->c, a->c);
    op->store(x, a->stream[l], a->c, a->kr);
}

/* The lightning indexer: select = the topk tokens with the largest sum over heads of weight * relu(q . k). Reads h and qr. */
static void choose(nb_model *m, const nb_mla *a, int l, const nb_rope *rope, const nb_slot *w,
                   const nb_tensor *h)
{
    nb_exec *x = m->x;
    const nb_ops *op = x->ops;
    const nb_linear *in[] = {nb_at(m, w, NB_PART_INDEX_K)->lin, nb_at(m, w, NB_PART_INDEX_WEIGHTS)->lin};
    nb_tensor *y[] = {a->ki, a->wi};
    op->linear(x, &(nb_linear_call){.w = in, .count = 2, .x = h, .y = y});
    op->layernorm(x, a->ki, x->rows.n, nb_at(m, w, NB_PART_INDEX_K_NORM)->t,
                  nb_at(m, w, NB_PART_INDEX_K_BIAS)->t, LATENT_EPS, a->ki);
    op->rope(x, a->ki, rope, 1, a->index_d, 0, a->index_interleaved, false);
    op->store(x, a->index_stream[l], a->ki, NULL);
    nb_lin(m, nb_at(m, w, NB_PART_INDEX_Q), a->qr, a->qi);
    op->rope(x, a->qi, rope, a->index_heads, a->index_d, 0, a->index_interleaved, false);
    float scale = (float)(1.0 / sqrt((double)a->index_d) / sqrt((double)a->index_heads));
    op->index(
        x, &(nb_index_call){a->qi, a->wi, scale, a->index_heads, a->index_d, a->index_stream[l], a->select});
}

void nb_mla_run(nb_model *m, const nb_mla *a, int l, const nb_rope *rope, const nb_slot *w,
                const nb_tensor *h, nb_tensor *out)
{
    nb_exec *x = m->x;
    const nb_ops *op = x->ops;
    const nb_linear *kv_b = nb_at(m, w, NB_PART_KV_B)->lin;
    const size_t head = a->nope + a->rope, row = a->r + a->rope;
    project(m, a, w, h);
    op->rope(x, a->q, rope, a->H, head, a->nope, a->interleaved, false);
    cache(m, a, l, rope, w);
    if (nb_at(m, w, NB_PART_INDEX_K)->lin) choose(m, a, l, rope, w, h);
    op->derived(x, &(nb_derived_call){.of = kv_b,
                                      .form = KEY_HALF,
                                      .x = a->q,
                                      .y = a->ql,
                                      .x_step = head,
                                      .y_step = row,
                                      .along = a->rope}); /* ql_h = [q_nope_h W_uk_h | q_rope_h] */
    op->attend(x, &(nb_attend_call){.q = a->ql,
                                    .out = a->ol,
                                    .heads = a->H,
                                    .kv_heads = 1,
                                    .dk = row,
                                    .dv = a->r,
                                    .k_stream = a->stream[l],
                                    .v_stream = a->stream[l],
                                    .select = a->select,
                                    .scale = a->scale});
    op->derived(x,
                &(nb_derived_call){
                    .of = kv_b, .form = VALUE_HALF, .x = a->ol, .y = a->o, .x_step = a->r, .y_step = a->v});
    nb_lin(m, nb_at(m, w, NB_PART_O), a->o, out);
}
