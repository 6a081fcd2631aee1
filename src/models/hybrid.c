/* Decoders with recurrent layers. */
#include "models/hybrid.h"

#include <stdlib.h>

nb_status nb_hybrid_declare(nb_model *m, nb_error *err)
{
    nb_hybrid *s = m->state;
    const size_t L = (size_t)m->cfg.n_layers;
    nb_status st;
    s->mix.D = s->d.D;
    s->mix.eps = s->d.eps;
    if ((st = nb_recurrent_open(m, &s->mix, err)) || (st = nb_ffn_mlp(m, &s->d.ffn, err)) ||
        (st = nb_ffn_open(m, &s->d.ffn, err)))
        return st;
    if (!(s->layer = calloc(L, sizeof *s->layer)))
        return nb_fail_nomem(err, "layer state", L * sizeof *s->layer);
    for (int l = 0; st == NB_OK && l < m->cfg.n_layers; l++) {
        if (nb_layer_has_part(m, NB_PART_Q, l))
            st = nb_attention_streams(m, &s->d.attn, &s->d.layer[l], err);
        else if (nb_layer_has_part(m, NB_PART_CONV, l))
            st = nb_recurrent_streams(m, &s->mix, &s->layer[l], err);
    }
    return st;
}

nb_status nb_hybrid_prepare(nb_model *m, nb_error *err)
{
    nb_hybrid *s = m->state;
    nb_status st = nb_decoder_prepare(m, err);
    return st ? st : nb_recurrent_prepare(m, &s->mix, err);
}

void nb_hybrid_layer(nb_model *m, int l, const nb_slot *w)
{
    nb_hybrid *s = m->state;
    nb_decoder *d = &s->d;
    nb_exec *x = m->x;
    const nb_ops *op = x->ops;
    const nb_tensor *second = nb_at(m, w, NB_PART_FFN_NORM)->t;
    op->rmsnorm(x, d->x, x->rows.n, nb_at(m, w, NB_PART_ATTN_NORM)->t, d->D, d->eps, d->h);
    if (nb_at(m, w, NB_PART_Q)->lin)
        nb_attention_run(m, &d->attn, &d->layer[l], w, d->h, d->out);
    else if (nb_at(m, w, NB_PART_CONV)->t)
        nb_recurrent_run(m, &s->mix, &s->layer[l], w, d->h, d->out);
    else
        nb_ffn_run(m, &d->ffn, w, d->h, d->out);
    op->add(x, d->x, d->out, d->x);
    if (!second) return;
    op->rmsnorm(x, d->x, x->rows.n, second, d->D, d->eps, d->h);
    nb_ffn_run(m, &d->ffn, w, d->h, d->out);
    op->add(x, d->x, d->out, d->x);
}

void nb_hybrid_close(nb_model *m)
{
    free(((nb_hybrid *)m->state)->layer);
    nb_decoder_close(m);
}
