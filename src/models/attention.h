/*
 * Grouped-query attention: one block for all families that have it. What a layer has (biases, norms, sinks, one fused projection,
 * no V, no K at all) is read off its slots; the rest is said here.
 */
#ifndef NB_MODELS_ATTENTION_H
#define NB_MODELS_ATTENTION_H

#include "models/model.h"

/* The shape, which all layers of a family share, or those of one type. */
typedef struct nb_attention {
    size_t D, heads, kv_heads, d; /* hidden size, query heads, KV heads, size of a head */
    float scale;                  /* of q . k; nb_attention_open makes it 1 / sqrt(d) when it is 0 */
    float eps;                    /* of the q, k and v norms */
    bool
        norm_vectors; /* q_norm and k_norm are over all heads at once; false: over each head, with the same weights */
    bool norm_v; /* each head of V is normalised, without a weight */
    bool gated;  /* q_proj makes [query d | gate d] for each head; sigmoid(gate) weighs the head's output */

    /* The run's tensors, by nb_attention_prepare. T rows of the step. */
    nb_tensor *q, *o;     /* [T, heads d] */
    nb_tensor *k, *v;     /* [T, kv_heads d] */
    nb_tensor *qkv;       /* [T, (heads + 2 kv_heads) d], where the table has a fused projection */
    nb_tensor *qg, *gate; /* [T, heads 2 d], [T, heads d], when gated */
} nb_attention;

/* What each layer has of its own. */
typedef struct nb_attention_layer {
    const nb_rope *rope; /* NULL: no positions. pairs < d / 2: the first 2 * pairs columns of a head rotate */
    size_t window;       /* tokens that a query sees, itself included; 0: all */
    size_t k_stream,
        v_stream; /* where keys and values are cached: its own streams, or those of an earlier layer */
} nb_attention_layer;

/* Checks the sizes against each other (heads in equal groups, d even) and fills scale. The family has set the rest. */
nb_status nb_attention_open(const nb_model *m, nb_attention *a, nb_error *err);
/* Declares the two streams of one layer, whose window is set. For open. */
nb_status nb_attention_streams(nb_model *m, const nb_attention *a, nb_attention_layer *y, nb_error *err);
/* Takes the run's tensors. */
nb_status nb_attention_prepare(nb_model *m, nb_attention *a, nb_error *err);

/* h [T, D] -> out [T, D]; out may be h. A layer whose slots have neither K nor QKV reads the streams that an earlier layer wrote. */
void nb_attention_run(nb_model *m, const nb_attention *a, const nb_attention_layer *y, const nb_slot *w,
                      const nb_tensor *h, nb_tensor *out);

#endif
