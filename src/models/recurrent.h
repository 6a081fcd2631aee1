/*
 * Recurrent mixers: Gated DeltaNet (Qwen3-Next and later) and Mamba-2 (Nemotron-H). Both are a projection, a causal convolution,
 * a scan and a gated norm; they differ in how the projection is cut and in nb_scan_call's rule.
 */
#ifndef NB_MODELS_RECURRENT_H
#define NB_MODELS_RECURRENT_H

#include "models/model.h"

/* The shape, which all recurrent layers of a model share. K = key_heads dk, V = heads dv, C = 2 K + V channels. */
typedef struct nb_recurrent {
    size_t D, key_heads, heads, dk, dv, taps;
    float eps; /* of the gated norm */
    bool delta;
    float dt_min, dt_max; /* Mamba-2 */

    /* The run's tensors, by nb_recurrent_prepare. T rows of the step. */
    nb_tensor *in;          /* [T, C + V and more], where one projection makes all or the most of it */
    nb_tensor *ba;          /* [T, 2 heads] of Qwen3-Next */
    nb_tensor *q, *k, *v;   /* [T, K], [T, K], [T, V] of Qwen3-Next */
    nb_tensor *mixed;       /* [T, C] the convolution's inputs, then what it made of them */
    nb_tensor *z, *o;       /* [T, V] */
    nb_tensor *beta, *step; /* [T, heads] */
} nb_recurrent;

typedef struct nb_recurrent_layer {
    size_t conv_stream, token_stream, state_stream;
} nb_recurrent_layer;

/* Checks that heads come in equal groups. The family has set the shape. */
nb_status nb_recurrent_open(const nb_model *m, const nb_recurrent *r, nb_error *err);
/* Declares the streams of one layer. For open. */
nb_status nb_recurrent_streams(nb_model *m, const nb_recurrent *r, nb_recurrent_layer *y, nb_error *err);
/* Takes the run's tensors. */
nb_status nb_recurrent_prepare(nb_model *m, nb_recurrent *r, nb_error *err);

/* h [T, D] -> out [T, D]; out may be h. */
void nb_recurrent_run(nb_model *m, const nb_recurrent *r, const nb_recurrent_layer *y, const nb_slot *w,
                      const nb_tensor *h, nb_tensor *out);

#endif
