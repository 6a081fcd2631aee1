/*
 * DeepSeek-V4: hyper-connected residual streams, latent attention with one shared key-value row, compressed long-range rows
 * (CSA with an indexer, HCA without), grouped output projection, hash- and score-routed experts.
 * After DeepSeek-V4's inference/model.py and transformers models/deepseek_v4.
 *
 * T rows, D hidden, M streams, H heads of d values of which the last 2 * pairs rotate, R query rank, G output groups of rank L.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/arch_deepseek_v4.h"
#include "models/ffn.h"
#include "models/settings.h"

typedef struct ds4_layer {
    size_t ratio, series; /* tokens per compressed row (0: none); 2 overlapping halves (CSA) or 1 (HCA) */
    bool indexed;
    size_t kv_stream, in_stream, comp_stream, index_in_stream, index_stream;
} ds4_layer;

typedef struct ds4 {
    int64_t D, M, H, d, rope_dims, R, G, L, window, heads_i, d_i, topk, iters;
    float eps, hc_eps;
    nb_ffn ffn;
    nb_rope main, compress; /* layers without and with compressed rows */
    ds4_layer *layer;       /* [n_layers] */
    nb_tensor *X;           /* [T, M D] residual streams */
    nb_tensor *mix;         /* [T, M + M M] how a sublayer's output goes back into the streams */
    nb_tensor *y, *h, *out; /* [T, D] collapsed streams, normed, sublayer output */
    nb_tensor *qr;          /* [T, R] */
    nb_tensor *q, *o;       /* [T, H d] */
    nb_tensor *kv;          /* [T, d] */
    nb_tensor *c[2], *g[2]; /* [T, d], [T, 2 d]: compressor content and gate for one and two series */
    nb_tensor *qi;          /* [T, heads_i d_i] */
    nb_tensor *wi;          /* [T, heads_i] */
    nb_tensor *ci, *gi;     /* [T, 2 d_i] */
    nb_tensor *select;      /* I32 [T, topk] */
    nb_tensor *z;           /* [T, G L] */
} ds4;

/* Switches that change the arithmetic and have only one value here: refused by name when they differ. */
static nb_status refuse(const nb_model *m, nb_error *err)
{
    nb_status st;
    if ((st = nb_only_word(m, "scoring_func", "sqrtsoftplus", err)) ||
        (st = nb_only_word(m, "hidden_act", "silu", err)) ||
        (st = nb_only_word(m, "topk_method", "noaux_tc", err)) ||
        (st = nb_only_number(m, "num_key_value_heads", 1, err)) || /* all heads share one key-value row */
        (st = nb_only_bool(m, "attention_bias", false, err)))
        return st;
    return nb_only_bool(m, "norm_topk_prob", true, err);
}

static nb_status read_config(nb_model *m, ds4 *s, nb_error *err)
{
    const struct {
        const char *key;
        int64_t *to;
    } sizes[] = {{"hidden_size", &s->D},
                 {"hc_mult", &s->M},
                 {"num_attention_heads", &s->H},
                 {"head_dim", &s->d},
                 {"qk_rope_head_dim", &s->rope_dims},
                 {"q_lora_rank", &s->R},
                 {"o_groups", &s->G},
                 {"o_lora_rank", &s->L},
                 {"sliding_window", &s->window},
                 {"index_n_heads", &s->heads_i},
                 {"index_head_dim", &s->d_i},
                 {"index_topk", &s->topk},
                 {"hc_sinkhorn_iters", &s->iters}};
    const struct {
        const char *key;
        float *to;
    } numbers[] = {{"rms_norm_eps", &s->eps},
                   {"hc_eps", &s->hc_eps},
                   {"swiglu_limit", &s->ffn.limit},
                   {"routed_scaling_factor", &s->ffn.scaling}};
    nb_status st = refuse(m, err);
    for (size_t i = 0; st == NB_OK && i < sizeof sizes / sizeof *sizes; i++)
        st = nb_config_int(&m->cfg, sizes[i].key, -1, 1, 1 << 30, sizes[i].to, err);
    for (size_t i = 0; st == NB_OK && i < sizeof numbers / sizeof *numbers; i++)
        st = nb_read_number(m, numbers[i].key, 0, 1e9, numbers[i].to, err);
    if (st != NB_OK) return st;
    if (s->H % s->G || s->H * s->d % s->G || s->rope_dims % 2 || s->rope_dims > s->d ||
        s->rope_dims > s->d_i || s->M > 16) {
        nb_fail(err, NB_ERR_FORMAT,
                "sizes do not fit together: num_attention_heads %lld, o_groups %lld, head_dim %lld, "
                "qk_rope_head_dim %lld, index_head_dim %lld, hc_mult %lld",
                (long long)s->H, (long long)s->G, (long long)s->d, (long long)s->rope_dims, (long long)s->d_i,
                (long long)s->M);
        nb_error_at(err, m->cfg.file, NULL, -1);
        nb_error_remedy(err, "take these from the original model's config.json");
        return NB_ERR_FORMAT;
    }
    return NB_OK;
}

static nb_status read_experts(nb_model *m, ds4 *s, nb_error *err)
{
    nb_ffn *f = &s->ffn;
    size_t shared = 0;
    const nb_size_setting sizes[] = {{"n_routed_experts", &f->experts},
                                     {"num_experts_per_tok", &f->slots},
                                     {"moe_intermediate_size", &f->expert_I},
                                     {"n_shared_experts", &shared}};
    nb_status st = nb_read_sizes(m, sizes, sizeof sizes / sizeof *sizes, err);
    if (st != NB_OK) return st;
    f->D = (size_t)s->D;
    f->score = NB_SCORE_SQRTSOFTPLUS;
    f->shared_I = shared * f->expert_I;
    return nb_ffn_open(m, f, err);
}

/* Layers without compressed rows rotate by rope_theta; all others by compress_rope_theta under YaRN without an attention factor. */
static nb_status read_rope(nb_model *m, ds4 *s, nb_error *err)
{
    const nb_config *c = &m->cfg;
    double theta, ctheta;
    const json_t *params = nb_config_get(c, "rope_scaling");
    if (!params) params = nb_config_get(c, "rope_parameters.compress");
    const char *key = nb_config_get(c, "rope_theta") ? "rope_theta" : "rope_parameters.main.rope_theta";
    const char *ckey = nb_config_get(c, "compress_rope_theta") ? "compress_rope_theta"
                                                               : "rope_parameters.compress.rope_theta";
    nb_status st;
    if ((st = nb_config_num(c, key, 1, 1e12, &theta, err)) ||
        (st = nb_config_num(c, ckey, 1, 1e12, &ctheta, err)))
        return st;
    if (!params) {
        nb_fail(err, NB_ERR_MISSING, "neither rope_scaling nor rope_parameters.compress is given");
        nb_error_at(err, c->file, NULL, -1);
        nb_error_remedy(
            err,
            "restore rope_scaling from the original model's config.json (re-saved configs often drop it)");
        return NB_ERR_MISSING;
    }
    if ((st = nb_rope_init(NULL, theta, (size_t)s->rope_dims, 0, m->x->max_rows, &s->main, err))) return st;
    return nb_rope_init(params, ctheta, (size_t)s->rope_dims, 1.0, m->x->max_rows, &s->compress, err);
}

static nb_status declare_streams(nb_model *m, ds4 *s, nb_error *err)
{
    nb_status st = NB_OK;
    size_t d = (size_t)s->d, di = (size_t)s->d_i;
    for (int l = 0; st == NB_OK && l < m->cfg.n_layers; l++) {
        ds4_layer *y = &s->layer[l];
        y->ratio = (size_t)nb_ds4_ratio(&m->cfg, l);
        y->series = nb_ds4_is_hca(&m->cfg, l) ? 1 : 2;
        y->indexed = y->ratio && y->series == 2;
        st = nb_model_stream(m, (nb_stream_decl){d, 1, (size_t)s->window}, &y->kv_stream, err);
        if (st || !y->ratio) continue;
        size_t r = y->ratio, keep = r * y->series; /* tokens that one entry pools */
        if ((st = nb_model_stream(m, (nb_stream_decl){2 * y->series * d, 1, keep}, &y->in_stream, err)))
            break;
        if ((st = nb_model_stream(m, (nb_stream_decl){d, r, 0}, &y->comp_stream, err)) || !y->indexed)
            continue;
        if ((st = nb_model_stream(m, (nb_stream_decl){4 * di, 1, keep}, &y->index_in_stream, err))) break;
        st = nb_model_stream(m, (nb_stream_decl){di, r, 0}, &y->index_stream, err);
    }
    return st;
}

static nb_status open(nb_model *m, nb_error *err)
{
    ds4 *s = calloc(1, sizeof *s);
    if (!s) return nb_fail_nomem(err, "model state", sizeof *s);
    m->state = s;
    nb_status st;
    if ((st = read_config(m, s, err)) || (st = read_experts(m, s, err)) || (st = read_rope(m, s, err)))
        return st;
    s->layer = calloc((size_t)m->cfg.n_layers, sizeof *s->layer);
    if (!s->layer) return nb_fail_nomem(err, "layer state", (size_t)m->cfg.n_layers * sizeof *s->layer);
    m->hidden_cols = (size_t)(s->M * s->D);
    return declare_streams(m, s, err);
}

static nb_status prepare(nb_model *m, nb_error *err)
{
    ds4 *s = m->state;
    size_t n = m->x->max_rows;
    bool indexed = false;
    for (int l = 0; l < m->cfg.n_layers; l++) indexed = indexed || s->layer[l].indexed;
    size_t ni = indexed ? n : 0; /* without an indexer no tensor vouches for its sizes */
    const struct {
        nb_tensor **to;
        bool i32;
        size_t rows;
        int64_t cols;
    } t[] = {
        {&s->X, false, n, s->M * s->D},  {&s->mix, false, n, s->M + s->M * s->M},
        {&s->y, false, n, s->D},         {&s->h, false, n, s->D},
        {&s->out, false, n, s->D},       {&s->qr, false, n, s->R},
        {&s->q, false, n, s->H * s->d},  {&s->o, false, n, s->H * s->d},
        {&s->kv, false, n, s->d},        {&s->c[0], false, n, s->d},
        {&s->g[0], false, n, s->d},      {&s->c[1], false, n, 2 * s->d},
        {&s->g[1], false, n, 2 * s->d},  {&s->qi, false, ni, s->heads_i * s->d_i},
        {&s->wi, false, ni, s->heads_i}, {&s->ci, false, ni, 2 * s->d_i},
        {&s->gi, false, ni, 2 * s->d_i}, {&s->select, true, ni, s->topk},
        {&s->z, false, n, s->G * s->L},
    };
    nb_status st = NB_OK;
    for (size_t i = 0; st == NB_OK && i < sizeof t / sizeof *t; i++)
        st = nb_model_tensor(m, t[i].i32, t[i].rows, (size_t)t[i].cols, t[i].to, err);
    return st ? st : nb_ffn_prepare(m, &s->ffn, err);
}

static void begin(nb_model *m)
{
    ds4 *s = m->state;
    const nb_ops *op = m->x->ops;
    op->embed(m->x, m->global[DS4_EMBED].lin, s->h);
    op->mhc_expand(m->x, s->h, (size_t)s->M, s->X); /* all M streams start as the embedding */
    op->rope_prepare(m->x, &s->main);
    op->rope_prepare(m->x, &s->compress);
}

static nb_mhc site(const ds4 *s, const nb_slot *fn)
{
    /* the three parameters of a site follow each other in the table */
    return (nb_mhc){fn[0].t, fn[1].t, fn[2].t, (size_t)s->M, (int)s->iters, s->hc_eps, s->eps};
}

/* h -> qr, kv, and what the compressors of the layer read: one call, so that few rows are one range of work. */
static void project(nb_model *m, const ds4_layer *y, const nb_slot *w)
{
    ds4 *s = m->state;
    const size_t i = y->series == 2; /* of the compressor's tensors */
    const nb_linear *in[] = {w[DS4_WQ_A].lin,         w[DS4_WKV].lin,       w[DS4_COMP_WKV].lin,
                             w[DS4_COMP_WGATE].lin,   w[DS4_INDEX_WKV].lin, w[DS4_INDEX_WGATE].lin,
                             w[DS4_INDEX_WEIGHTS].lin};
    nb_tensor *out[] = {s->qr, s->kv, s->c[i], s->g[i], s->ci, s->gi, s->wi};
    m->x->ops->linear(m->x, &(nb_linear_call){.w = in,
                                              .count = y->indexed ? 7
                                                       : y->ratio ? 4
                                                                  : 2,
                                              .x = s->h,
                                              .y = out});
}

/* The lightning indexer: which compressed rows each query attends to. Reads ci, gi, wi and qi. */
static void indexer(nb_model *m, const ds4_layer *y, const nb_slot *w)
{
    ds4 *s = m->state;
    nb_exec *x = m->x;
    const nb_ops *op = x->ops;
    size_t hi = (size_t)s->heads_i, di = (size_t)s->d_i, r = (size_t)s->rope_dims;
    op->add_periodic(x, s->gi, w[DS4_INDEX_APE].t, y->ratio);
    op->store(x, y->index_in_stream, s->ci, s->gi);
    op->compress(x, &(nb_compress_call){y->index_in_stream, y->index_stream, y->ratio, 2, di,
                                        w[DS4_INDEX_NORM].t, s->eps, &s->compress});
    op->rope(x, s->qi, &s->compress, hi, di, di - r, true, false);
    float scale = (float)(1.0 / sqrt((double)di) / sqrt((double)hi));
    op->index(x, &(nb_index_call){s->qi, s->wi, scale, hi, di, y->index_stream, s->select});
}

/* h [T, D] -> out [T, D] */
static void attention(nb_model *m, int l, const nb_slot *w)
{
    ds4 *s = m->state;
    nb_exec *x = m->x;
    const nb_ops *op = x->ops;
    const ds4_layer *y = &s->layer[l];
    const nb_rope *rope = y->ratio ? &s->compress : &s->main;
    size_t rows = x->rows.n, H = (size_t)s->H, d = (size_t)s->d, rotated = d - (size_t)s->rope_dims;

    const nb_linear *from_qr[] = {w[DS4_WQ_B].lin, w[DS4_INDEX_WQ_B].lin};
    nb_tensor *queries[] = {s->q, s->qi};

    project(m, y, w);
    op->rmsnorm(x, s->qr, rows, w[DS4_Q_NORM].t, (size_t)s->R, s->eps, s->qr);
    op->linear(x, &(nb_linear_call){.w = from_qr, .count = y->indexed ? 2 : 1, .x = s->qr, .y = queries});
    op->rmsnorm(x, s->q, rows, NULL, d, s->eps, s->q); /* each head, without a weight */
    op->rope(x, s->q, rope, H, d, rotated, true, false);
    op->rmsnorm(x, s->kv, rows, w[DS4_KV_NORM].t, d, s->eps, s->kv); /* key and value of all heads */
    op->rope(x, s->kv, rope, 1, d, rotated, true, false);
    op->store(x, y->kv_stream, s->kv, NULL);

    if (y->ratio) {
        nb_tensor *c = s->c[y->series - 1], *g = s->g[y->series - 1];
        op->add_periodic(x, g, w[DS4_COMP_APE].t, y->ratio);
        op->store(x, y->in_stream, c, g);
        op->compress(x, &(nb_compress_call){y->in_stream, y->comp_stream, y->ratio, y->series, d,
                                            w[DS4_COMP_NORM].t, s->eps, rope});
        if (y->indexed) indexer(m, y, w);
    }
    op->attend(x, &(nb_attend_call){.q = s->q,
                                    .out = s->o,
                                    .heads = H,
                                    .kv_heads = 1,
                                    .dk = d,
                                    .dv = d,
                                    .k_stream = y->kv_stream,
                                    .v_stream = y->kv_stream,
                                    .window = (size_t)s->window,
                                    .compressed = y->ratio > 0,
                                    .comp_stream = y->comp_stream,
                                    .select = y->indexed ? s->select : NULL,
                                    .scale = 1.0f / sqrtf((float)d),
                                    .sink = w[DS4_SINK].t});
    op->rope(x, s->o, rope, H, d, rotated, true,
             true);                      /* back by the query's position: what remains is relative */
    nb_lin(m, &w[DS4_WO_A], s->o, s->z); /* z [T, G L]: each group of heads on its own */
    nb_lin(m, &w[DS4_WO_B], s->z, s->out);
}

static void layer(nb_model *m, int l, const nb_slot *w)
{
    ds4 *s = m->state;
    nb_exec *x = m->x;
    const nb_ops *op = x->ops;
    size_t M = (size_t)s->M, D = (size_t)s->D;

    nb_mhc a = site(s, &w[DS4_HC_ATTN_FN]);
    op->mhc_pre(x, s->X, &a, s->y, s->mix);
    op->rmsnorm(x, s->y, x->rows.n, w[DS4_ATTN_NORM].t, D, s->eps, s->h);
    attention(m, l, w);
    op->mhc_post(x, s->out, s->mix, M, s->X);

    nb_mhc f = site(s, &w[DS4_HC_FFN_FN]);
    op->mhc_pre(x, s->X, &f, s->y, s->mix);
    op->rmsnorm(x, s->y, x->rows.n, w[DS4_FFN_NORM].t, D, s->eps, s->h);
    nb_ffn_run(m, &s->ffn, w, s->h, s->out);
    op->mhc_post(x, s->out, s->mix, M, s->X);
}

static void end(nb_model *m)
{
    ds4 *s = m->state;
    nb_exec *x = m->x;
    nb_mhc p = site(s, &m->global[DS4_HC_HEAD_FN]);
    x->ops->mhc_head(x, s->X, &p, s->y); /* streams collapse to [T, D] */
    x->ops->rmsnorm(x, s->y, x->rows.n, m->global[DS4_NORM].t, (size_t)s->D, s->eps, s->h);
}

static void head(nb_model *m, const uint32_t *which, size_t n, nb_tensor *logits)
{
    ds4 *s = m->state;
    const nb_linear *w = nb_head_of(m);
    m->x->ops->gather(m->x, s->h, which, n, s->y);
    m->x->ops->linear(m->x, &(nb_linear_call){.w = &w, .count = 1, .rows = n, .x = s->y, .y = &logits});
}

static const nb_tensor *hidden(const nb_model *m)
{
    return ((const ds4 *)m->state)->X;
}

static void close(nb_model *m)
{
    ds4 *s = m->state;
    nb_rope_free(&s->main);
    nb_rope_free(&s->compress);
    free(s->layer);
}

const nb_forward nb_forward_deepseek_v4 = {
    &nb_arch_deepseek_v4, open, prepare, begin, layer, end, head, hidden, close};
