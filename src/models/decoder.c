/* The plain pre-norm decoder. T rows, D hidden. */
#include "models/decoder.h"

#include <stdlib.h>

nb_status nb_decoder_open(nb_model *m, size_t size, nb_error *err)
{
    const size_t L = (size_t)m->cfg.n_layers;
    nb_decoder *s = calloc(1, size);
    if (!s) return nb_fail_nomem(err, "model state", size);
    m->state = s;
    s->layer = calloc(L, sizeof *s->layer);
    if (!s->layer) return nb_fail_nomem(err, "layer state", L * sizeof *s->layer);
    nb_attention *a = &s->attn;
    const nb_size_setting sizes[] = {{"hidden_size", &s->D},
                                     {"num_attention_heads", &a->heads},
                                     {"num_key_value_heads", &a->kv_heads},
                                     {"head_dim", &a->d}};
    const char *eps = nb_config_get(&m->cfg, "layer_norm_epsilon") ? "layer_norm_epsilon" : "rms_norm_eps";
    nb_status st;
    if ((st = nb_only_word(m, "hidden_act", "silu", err)) ||
        (st = nb_read_sizes(m, sizes, sizeof sizes / sizeof *sizes, err)) ||
        (st = nb_read_number(m, eps, 0, 1, &s->eps, err)))
        return st;
    a->D = s->ffn.D = m->hidden_cols = s->D;
    a->eps = s->eps;
    return nb_attention_open(m, a, err);
}

nb_status nb_decoder_rope(nb_model *m, nb_rotates how, nb_error *err)
{
    nb_decoder *s = m->state;
    for (int l = 0; l < m->cfg.n_layers; l++) s->layer[l].rope = &s->rope;
    nb_status st = nb_rope_open(m, NULL, s->attn.d, how, &s->rope, err);
    m->turns_at = s->rope.turns_at;
    return st;
}

nb_status nb_decoder_windows(nb_model *m, nb_error *err)
{
    nb_decoder *s = m->state;
    nb_status st = NB_OK;
    for (int l = 0; st == NB_OK && l < m->cfg.n_layers; l++)
        st = nb_read_window(m, l, &s->layer[l].window, err);
    return st;
}

nb_status nb_decoder_dense(nb_model *m, bool windows, nb_error *err)
{
    nb_status s;
    if ((s = nb_decoder_open(m, sizeof(nb_decoder), err)) || (windows && (s = nb_decoder_windows(m, err))) ||
        (s = nb_decoder_rope(m, NB_ROTATES_ALL, err)))
        return s;
    return nb_decoder_declare(m, err);
}

nb_status nb_decoder_declare(nb_model *m, nb_error *err)
{
    nb_decoder *s = m->state;
    nb_status st = nb_ffn_mlp(m, &s->ffn, err);
    if (st == NB_OK) st = nb_ffn_open(m, &s->ffn, err);
    for (int l = 0; st == NB_OK && l < m->cfg.n_layers; l++)
        st = nb_attention_streams(m, &s->attn, &s->layer[l], err);
    return st;
}

nb_status nb_decoder_prepare(nb_model *m, nb_error *err)
{
    nb_decoder *s = m->state;
    nb_tensor **const t[] = {&s->x, &s->h, &s->out, &s->tile};
    nb_status st = nb_attention_prepare(m, &s->attn, err);
    if (st == NB_OK) st = nb_ffn_prepare(m, &s->ffn, err);
    for (size_t i = 0; st == NB_OK && i < sizeof t / sizeof *t; i++)
        st = nb_model_tensor(m, false, m->x->max_rows, s->D, t[i], err);
    return st;
}

void nb_decoder_begin(nb_model *m)
{
    nb_decoder *s = m->state;
    m->x->ops->embed(m->x, nb_at(m, m->global, NB_PART_EMBED)->lin,
                     s->x); /* x = embedding of each row's token */
    if (s->rope.inv_freq) m->x->ops->rope_prepare(m->x, &s->rope);
}

void nb_decoder_layer_run(nb_model *m, int l, const nb_slot *w)
{
    nb_decoder *s = m->state;
    nb_exec *x = m->x;
    const nb_ops *op = x->ops;
    op->rmsnorm(x, s->x, x->rows.n, nb_at(m, w, NB_PART_ATTN_NORM)->t, s->D, s->eps, s->h);
    nb_attention_run(m, &s->attn, &s->layer[l], w, s->h, s->out);
    op->add(x, s->x, s->out, s->x); /* x += attention(RMS(x)) */
    op->rmsnorm(x, s->x, x->rows.n, nb_at(m, w, NB_PART_FFN_NORM)->t, s->D, s->eps, s->h);
    nb_ffn_run(m, &s->ffn, w, s->h, s->out);
    op->add(x, s->x, s->out, s->x); /* x += ffn(RMS(x)) */
}

void nb_decoder_end(nb_model *m)
{
    nb_decoder *s = m->state;
    m->x->ops->rmsnorm(m->x, s->x, m->x->rows.n, nb_at(m, m->global, NB_PART_NORM)->t, s->D, s->eps, s->h);
}

void nb_decoder_head(nb_model *m, const uint32_t *which, size_t n, nb_tensor *logits)
{
    nb_decoder *s = m->state;
    const nb_linear *w = nb_head_of(m);
    m->x->ops->gather(m->x, s->h, which, n, s->tile);
    m->x->ops->linear(m->x, &(nb_linear_call){.w = &w, .count = 1, .rows = n, .x = s->tile, .y = &logits});
}

const nb_tensor *nb_decoder_hidden(const nb_model *m)
{
    return ((const nb_decoder *)m->state)->x;
}

void nb_decoder_close(nb_model *m)
{
    nb_decoder *s = m->state;
    nb_rope_free(&s->rope);
    free(s->layer);
}
