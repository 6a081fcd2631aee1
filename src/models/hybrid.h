/*
 * A decoder some of whose layers mix tokens by recurrence and some by attention: nb_decoder with nb_recurrent. Which a layer has
 * is read off its slots; a layer without a second norm is one block only: x += block(RMS(x)).
 */
#ifndef NB_MODELS_HYBRID_H
#define NB_MODELS_HYBRID_H

#include "models/decoder.h"
#include "models/recurrent.h"

typedef struct nb_hybrid {
    nb_decoder d; /* first */
    nb_recurrent mix;
    nb_recurrent_layer *layer; /* [n_layers] */
} nb_hybrid;

/* Last in open: reads the MLP of dense layers, checks the blocks and declares each layer's streams. */
nb_status nb_hybrid_declare(nb_model *m, nb_error *err);

/* The functions of nb_forward that are not the plain decoder's. */
nb_status nb_hybrid_prepare(nb_model *m, nb_error *err);
void nb_hybrid_layer(nb_model *m, int l, const nb_slot *w);
void nb_hybrid_close(nb_model *m);

/* An nb_forward whose functions but open are these. */
#define NB_HYBRID(ARCH, OPEN)                                                                                \
    {                                                                                                        \
        .names = (ARCH), .open = (OPEN), .prepare = nb_hybrid_prepare, .begin = nb_decoder_begin,            \
        .layer = nb_hybrid_layer, .end = nb_decoder_end, .head = nb_decoder_head,                            \
        .hidden = nb_decoder_hidden, .close = nb_hybrid_close                                                \
    }

#endif
