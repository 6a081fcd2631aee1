/* Grouped-query attention: project, normalise, rotate, store, attend, project back. */
#include "models/attention.h"

#include <math.h>

nb_status nb_attention_open(const nb_model *m, nb_attention *a, nb_error *err)
{
    if (a->scale == 0) a->scale = 1.0f / sqrtf((float)a->d);
    if (a->heads % a->kv_heads == 0 && a->d % 2 == 0) return NB_OK;
    nb_fail(err, NB_ERR_FORMAT,
            "num_attention_heads %zu is not a multiple of num_key_value_heads %zu, or head_dim %zu is odd",
            a->heads, a->kv_heads, a->d);
    nb_error_at(err, m->cfg.file, NULL, -1);
    nb_error_remedy(err, "take these from the original model's config.json");
    return NB_ERR_FORMAT;
}

nb_status nb_attention_streams(nb_model *m, const nb_attention *a, nb_attention_layer *y, nb_error *err)
{
    const nb_stream_decl kv = {
        .cols = a->kv_heads * a->d, .tokens_per_row = 1, .window = y->window, .heads = a->kv_heads};
    nb_status s = nb_model_stream(m, kv, &y->k_stream, err);
    return s ? s : nb_model_stream(m, kv, &y->v_stream, err);
}

nb_status nb_attention_prepare(nb_model *m, nb_attention *a, nb_error *err)
{
    const size_t q = a->heads * a->d, kv = a->kv_heads * a->d, T = m->x->max_rows;
    const bool fused = m->part[NB_PART_QKV] >= 0;
    const struct {
        nb_tensor **to;
        size_t cols;
    } t[] = {{&a->q, q},
             {&a->o, q},
             {&a->k, kv},
             {&a->v, kv},
             {&a->qkv, fused ? q + 2 * kv : 0},
             {&a->qg, a->gated ? 2 * q : 0},
             {&a->gate, a->gated ? q : 0}};
    nb_status s = NB_OK;
    for (size_t i = 0; s == NB_OK && i < sizeof t / sizeof *t; i++)
        if (t[i].cols) s = nb_model_tensor(m, false, T, t[i].cols, t[i].to, err);
    return s;
}

/* Adds the bias of one projection, if the layer has it. */
static void add_bias(nb_model *m, const nb_slot *w, nb_part bias, nb_tensor *t)
{
    const nb_tensor *b = nb_at(m, w, bias)->t;
    if (b) m->x->ops->add_periodic(m->x, t, b, 1);
}

/* h -> q, k, v and the gate, with their biases. Without a V projection V is K as projected. */
static void project(nb_model *m, const nb_attention *a, const nb_slot *w, const nb_tensor *h)
{
    nb_exec *x = m->x;
    const nb_ops *op = x->ops;
    const size_t rows = x->rows.n, q = a->heads * a->d, kv = a->kv_heads * a->d;
    if (nb_at(m, w, NB_PART_QKV)->lin) {
        nb_lin(m, nb_at(m, w, NB_PART_QKV), h, a->qkv);
        op->columns(x, a->qkv, rows, q + 2 * kv, 0, a->q);
        op->columns(x, a->qkv, rows, q + 2 * kv, q, a->k);
        op->columns(x, a->qkv, rows, q + 2 * kv, q + kv, a->v);
    } else {
        const nb_linear *lin[] = {nb_at(m, w, NB_PART_Q)->lin, nb_at(m, w, NB_PART_K)->lin,
                                  nb_at(m, w, NB_PART_V)->lin};
        nb_tensor *to[] = {a->gated ? a->qg : a->q, a->k, a->v};
        const size_t count = !lin[1] ? 1 : !lin[2] ? 2 : 3;
        op->linear(x, &(nb_linear_call){.w = lin, .count = count, .x = h, .y = to});
        if (count == 2) op->columns(x, a->k, rows, kv, 0, a->v);
    }
    add_bias(m, w, NB_PART_Q_BIAS, a->gated ? a->qg : a->q);
    add_bias(m, w, NB_PART_K_BIAS, a->k);
    add_bias(m, w, NB_PART_V_BIAS, a->v);
    if (!a->gated) return;
    op->columns(x, a->qg, rows, 2 * a->d, 0, a->q);
    op->columns(x, a->qg, rows, 2 * a->d, a->d, a->gate);
}

/* Normalises and rotates queries or keys. */
static void place(nb_model *m, const nb_attention *a, const nb_rope *rope, const nb_tensor *norm,
                  size_t heads, nb_tensor *t)
{
    nb_exec *x = m->x;
    const size_t group = a->norm_vectors ? heads * a->d : a->d;
    if (norm) x->ops->rmsnorm(x, t, x->rows.n, norm, group, a->eps, t);
    if (rope) x->ops->rope(x, t, rope, heads, a->d, 0, false, false);
}

void nb_attention_run(nb_model *m, const nb_attention *a, const nb_attention_layer *y, const nb_slot *w,
                      const nb_tensor *h, nb_tensor *out)
{
    nb_exec *x = m->x;
    const nb_ops *op = x->ops;
    project(m, a, w, h);
    place(m, a, y->rope, nb_at(m, w, NB_PART_Q_NORM)->t, a->heads, a->q);
    if (nb_at(m, w, NB_PART_K)->lin || nb_at(m, w, NB_PART_QKV)->lin) {
        place(m, a, y->rope, nb_at(m, w, NB_PART_K_NORM)->t, a->kv_heads, a->k);
        if (a->norm_v) op->rmsnorm(x, a->v, x->rows.n, NULL, a->d, a->eps, a->v);
        op->store(x, y->k_stream, a->k, NULL);
        op->store(x, y->v_stream, a->v, NULL);
    }
    op->attend(x, &(nb_attend_call){.q = a->q,
                                    .out = a->o,
                                    .heads = a->heads,
                                    .kv_heads = a->kv_heads,
                                    .dk = a->d,
                                    .dv = a->d,
                                    .k_stream = y->k_stream,
                                    .v_stream = y->v_stream,
                                    .window = y->window,
                                    .scale = a->scale,
                                    .sink = nb_at(m, w, NB_PART_SINKS)->t});
    if (a->gated) op->glu(x, NB_ACT_SIGMOID, a->gate, a->o, x->rows.n, 0, a->o);
    nb_lin(m, nb_at(m, w, NB_PART_O), a->o, out);
    add_bias(m, w, NB_PART_O_BIAS, out);
}
