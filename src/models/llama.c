/*
 * Llama: pre-norm attention with grouped queries and rotary positions, then a SwiGLU MLP.
 * After transformers models/llama/modeling_llama.py. T rows, D hidden, H query heads, G KV heads, d head size, I intermediate.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/arch_llama.h"
#include "models/model.h"

typedef struct llama {
    size_t D, H, G, d, I;
    float eps;
    nb_rope rope;
    size_t *k_stream, *v_stream; /* [n_layers] */
    nb_tensor *x;                /* [T, D] residual */
    nb_tensor *h;                /* [T, D] normed input, and the sublayer's output */
    nb_tensor *q;                /* [T, H d] */
    nb_tensor *k, *v;            /* [T, G d] */
    nb_tensor *o;                /* [T, H d] */
    nb_tensor *gate, *up;        /* [T, I] */
    nb_tensor *tile;             /* [T, D] rows that the head reads */
} llama;

/* Config switches that change the arithmetic and that this file does not do: refused, never ignored. */
static nb_status refuse(const nb_model *m, nb_error *err)
{
    static const char *const flags[] = {"attention_bias", "mlp_bias"};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        const json_t *v = nb_config_get(&m->cfg, flags[i]);
        if (!v || json_is_false(v)) continue;
        nb_fail(err, NB_ERR_UNSUPPORTED, "%s is not false; llama models with biases are not supported",
                flags[i]);
        nb_error_at(err, m->cfg.file, NULL, -1);
        return NB_ERR_UNSUPPORTED;
    }
    const json_t *partial = nb_config_get(&m->cfg, "partial_rotary_factor");
    if (partial && !(json_is_number(partial) && json_number_value(partial) == 1)) {
        nb_fail(err, NB_ERR_UNSUPPORTED, "partial_rotary_factor is not 1; llama rotates whole heads");
        nb_error_at(err, m->cfg.file, NULL, -1);
        return NB_ERR_UNSUPPORTED;
    }
    const json_t *act = nb_config_get(&m->cfg, "hidden_act");
    const char *name = json_is_string(act) ? json_string_value(act) : "no string";
    if (!act || strcmp(name, "silu") == 0) return NB_OK; /* silu is what a config without it means */
    nb_fail(err, NB_ERR_UNSUPPORTED, "hidden_act is '%.64s', expected silu", name);
    nb_error_at(err, m->cfg.file, NULL, -1);
    return NB_ERR_UNSUPPORTED;
}

static nb_status open(nb_model *m, nb_error *err)
{
    llama *s = calloc(1, sizeof *s);
    if (!s) return nb_fail_nomem(err, "model state", sizeof *s);
    m->state = s;
    const struct {
        const char *key;
        size_t *to;
    } sizes[] = {{"hidden_size", &s->D},
                 {"num_attention_heads", &s->H},
                 {"num_key_value_heads", &s->G},
                 {"head_dim", &s->d},
                 {"intermediate_size", &s->I}};
    nb_status st = refuse(m, err);
    for (size_t i = 0; st == NB_OK && i < sizeof sizes / sizeof *sizes; i++) {
        int64_t v;
        st = nb_config_int(&m->cfg, sizes[i].key, -1, 1, 1 << 30, &v, err);
        if (st == NB_OK) *sizes[i].to = (size_t)v;
    }
    if (st != NB_OK) return st;
    if (s->H % s->G || s->d % 2) {
        nb_fail(
            err, NB_ERR_FORMAT,
            "num_attention_heads %zu is not a multiple of num_key_value_heads %zu, or head_dim %zu is odd",
            s->H, s->G, s->d);
        nb_error_at(err, m->cfg.file, NULL, -1);
        nb_error_remedy(err, "take these from the original model's config.json");
        return NB_ERR_FORMAT;
    }
    double eps, theta;
    if ((st = nb_config_num(&m->cfg, "rms_norm_eps", 0, 1, &eps, err))) return st;
    s->eps = (float)eps;
    const json_t *params = nb_config_get(&m->cfg, "rope_scaling");
    if (!params) params = nb_config_get(&m->cfg, "rope_parameters");
    const char *theta_key =
        nb_config_get(&m->cfg, "rope_theta") ? "rope_theta" : "rope_parameters.rope_theta";
    if ((st = nb_config_num(&m->cfg, theta_key, 1, 1e12, &theta, err))) return st;
    if ((st = nb_rope_init(params, theta, s->d, 0, m->x->max_rows, &s->rope, err))) return st;

    size_t L = (size_t)m->cfg.n_layers;
    s->k_stream = calloc(L, sizeof *s->k_stream);
    s->v_stream = calloc(L, sizeof *s->v_stream);
    if (!s->k_stream || !s->v_stream)
        return nb_fail_nomem(err, "stream numbers", 2 * L * sizeof *s->k_stream);
    nb_stream_decl kv = {.cols = s->G * s->d, .tokens_per_row = 1};
    for (size_t l = 0; l < L; l++) {
        if ((st = nb_model_stream(m, kv, &s->k_stream[l], err)) ||
            (st = nb_model_stream(m, kv, &s->v_stream[l], err)))
            return st;
    }
    m->hidden_cols = s->D;
    return NB_OK;
}

static nb_status prepare(nb_model *m, nb_error *err)
{
    llama *s = m->state;
    const struct {
        nb_tensor **to;
        size_t cols;
    } t[] = {{&s->x, s->D},        {&s->h, s->D},        {&s->q, s->H * s->d},
             {&s->k, s->G * s->d}, {&s->v, s->G * s->d}, {&s->o, s->H * s->d},
             {&s->gate, s->I},     {&s->up, s->I},       {&s->tile, s->D}};
    nb_status st = NB_OK;
    for (size_t i = 0; st == NB_OK && i < sizeof t / sizeof *t; i++)
        st = nb_model_tensor(m, false, m->x->max_rows, t[i].cols, t[i].to, err);
    return st;
}

static void begin(nb_model *m)
{
    llama *s = m->state;
    m->x->ops->embed(m->x, m->global[LLAMA_EMBED].lin, s->x); /* x = embedding of each row's token */
    m->x->ops->rope_prepare(m->x, &s->rope);
}

static void layer(nb_model *m, int l, const nb_slot *w)
{
    llama *s = m->state;
    nb_exec *x = m->x;
    const nb_ops *op = x->ops;
    size_t rows = x->rows.n;

    /* attention */
    op->rmsnorm(x, s->x, rows, w[LLAMA_ATTN_NORM].t, s->D, s->eps, s->h);
    const nb_linear *qkv[] = {w[LLAMA_Q].lin, w[LLAMA_K].lin, w[LLAMA_V].lin};
    nb_tensor *qkv_out[] = {s->q, s->k, s->v};
    op->linear(x, &(nb_linear_call){.w = qkv, .count = 3, .x = s->h, .y = qkv_out});
    op->rope(x, s->q, &s->rope, s->H, s->d, 0, false, false);
    op->rope(x, s->k, &s->rope, s->G, s->d, 0, false, false);
    op->store(x, s->k_stream[l], s->k, NULL);
    op->store(x, s->v_stream[l], s->v, NULL);
    op->attend(x, &(nb_attend_call){.q = s->q,
                                    .out = s->o,
                                    .heads = s->H,
                                    .kv_heads = s->G,
                                    .dk = s->d,
                                    .dv = s->d,
                                    .k_stream = s->k_stream[l],
                                    .v_stream = s->v_stream[l],
                                    .scale = 1.0f / sqrtf((float)s->d)});
    nb_lin(m, &w[LLAMA_O], s->o, s->h);
    op->add(x, s->x, s->h, s->x); /* x += o_proj(attention) */

    /* MLP */
    op->rmsnorm(x, s->x, rows, w[LLAMA_MLP_NORM].t, s->D, s->eps, s->h);
    const nb_linear *gate_up[] = {w[LLAMA_GATE].lin, w[LLAMA_UP].lin};
    nb_tensor *gate_up_out[] = {s->gate, s->up};
    op->linear(x, &(nb_linear_call){.w = gate_up, .count = 2, .x = s->h, .y = gate_up_out});
    op->swiglu(x, s->gate, s->up, rows, 0, s->gate);
    nb_lin(m, &w[LLAMA_DOWN], s->gate, s->h);
    op->add(x, s->x, s->h, s->x); /* x += down(silu(gate) * up) */
}

static void end(nb_model *m)
{
    llama *s = m->state;
    m->x->ops->rmsnorm(m->x, s->x, m->x->rows.n, m->global[LLAMA_NORM].t, s->D, s->eps, s->h);
}

static void head(nb_model *m, const uint32_t *which, size_t n, nb_tensor *logits)
{
    llama *s = m->state;
    const nb_linear *w = nb_head_of(m, LLAMA_HEAD, LLAMA_EMBED);
    m->x->ops->gather(m->x, s->h, which, n, s->tile);
    m->x->ops->linear(m->x, &(nb_linear_call){.w = &w, .count = 1, .rows = n, .x = s->tile, .y = &logits});
}

static const nb_tensor *hidden(const nb_model *m)
{
    return ((const llama *)m->state)->x;
}

static void close(nb_model *m)
{
    llama *s = m->state;
    nb_rope_free(&s->rope);
    free(s->k_stream);
    free(s->v_stream);
}

const nb_forward nb_forward_llama = {&nb_arch_llama, open, prepare, begin, layer, end, head, hidden, close};
