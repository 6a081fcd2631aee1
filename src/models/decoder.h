/*
 * The plain pre-norm decoder that most families are:
 *
 *     x += attention(RMS(x)); x += ffn(RMS(x)), layer by layer; logits = head(RMS(x))
 *
 * A family of this shape is its table and an open() that fills the two blocks; the other functions of its nb_forward are these.
 * A family whose layers differ writes its own layer() and keeps the rest. Its state then begins with an nb_decoder.
 */
#ifndef NB_MODELS_DECODER_H
#define NB_MODELS_DECODER_H

#include "models/attention.h"
#include "models/ffn.h"
#include "models/settings.h"

typedef struct nb_decoder {
    size_t D;
    float eps;
    nb_rope rope;
    nb_attention attn;
    nb_ffn ffn;
    nb_attention_layer *layer; /* [n_layers] */
    nb_tensor *x;              /* [T, D] residual */
    nb_tensor *h, *out;        /* [T, D] normed input, a block's output */
    nb_tensor *tile;           /* [T, D] rows that the head reads */
} nb_decoder;

/* Takes the state, `size` bytes of which the nb_decoder is the first part, and reads what all have: the sizes of attention and
 * eps. Refuses a hidden_act that is not silu. */
nb_status nb_decoder_open(nb_model *m, size_t size, nb_error *err);
/* The window of each layer (nb_read_window). */
nb_status nb_decoder_windows(nb_model *m, nb_error *err);
/* Positions of all layers (nb_rope_open). */
nb_status nb_decoder_rope(nb_model *m, nb_rotates how, nb_error *err);
/* All of it for a family of dense layers: open, windows if asked for, rope, MLP, declare. */
nb_status nb_decoder_dense(nb_model *m, bool windows, nb_error *err);
/* Last in open: reads the MLP of dense layers, checks the blocks and declares the streams of all layers. */
nb_status nb_decoder_declare(nb_model *m, nb_error *err);

/* The functions of nb_forward. */
nb_status nb_decoder_prepare(nb_model *m, nb_error *err);
void nb_decoder_begin(nb_model *m);
void nb_decoder_layer_run(nb_model *m, int l, const nb_slot *w);
void nb_decoder_end(nb_model *m);
void nb_decoder_head(nb_model *m, const uint32_t *which, size_t n, nb_tensor *logits);
const nb_tensor *nb_decoder_hidden(const nb_model *m);
void nb_decoder_close(nb_model *m);

/* An nb_forward whose functions but open are these. */
#define NB_DECODER(ARCH, OPEN)                                                                               \
    {                                                                                                        \
        .names = (ARCH), .open = (OPEN), .prepare = nb_decoder_prepare, .begin = nb_decoder_begin,           \
        .layer = nb_decoder_layer_run, .end = nb_decoder_end, .head = nb_decoder_head,                       \
        .hidden = nb_decoder_hidden, .close = nb_decoder_close                                               \
    }

#endif
