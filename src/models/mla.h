/*
 * Multi-head latent attention: keys and values of all heads are one low-rank row, which is what the cache holds. Queries go into the
 * latent space by kv_b_proj's key half, results come back by its value half; both are forms derived from the stored linear
 * (docs/design.md). With an indexer a query sees the index_topk tokens that it chose.
 */
#ifndef NB_MODELS_MLA_H
#define NB_MODELS_MLA_H

#include "models/model.h"

typedef struct nb_mla {
    size_t D, H, R;          /* hidden size, heads, rank of the query (0: q_proj makes it) */
    size_t r, nope, rope, v; /* rank of the cache; columns of a head: without and with positions, value */
    float scale;             /* of q . k */
    bool interleaved;        /* rotary pairs are neighbours */
    size_t index_heads, index_d, topk; /* 0: no indexer */
    bool index_interleaved;
    nb_derive forms[2];            /* of kv_b_proj: its key half transposed, its value half */
    size_t *stream, *index_stream; /* [n_layers] where rows [c | k_rope] and the indexer's keys are cached */

    /* The run's tensors, by nb_mla_prepare. T rows of the step. */
    nb_tensor *qr;           /* [T, R] */
    nb_tensor *q;            /* [T, H (nope + rope)] */
    nb_tensor *ql;           /* [T, H (r + rope)] the query in the latent space */
    nb_tensor *kv;           /* [T, r + rope] */
    nb_tensor *c, *kr;       /* [T, r], [T, rope] */
    nb_tensor *ol, *o;       /* [T, H r], [T, H v] */
    nb_tensor *kv_b;         /* [T, H (nope + v)] what kv_b_proj itself gives, for who watches */
    nb_tensor *qi, *ki, *wi; /* [T, index_heads index_d], [T, index_d], [T, index_heads] */
    nb_tensor *select;       /* I32 [T, topk]; stays for the layers that share it */
} nb_mla;

/* Reads the config and declares the streams; indexed and index_interleaved as the family says. For open. */
nb_status nb_mla_open(nb_model *m, nb_mla *a, bool indexed, bool index_interleaved, nb_error *err);
/* Takes the run's tensors. */
nb_status nb_mla_prepare(nb_model *m, nb_mla *a, nb_error *err);
void nb_mla_close(nb_mla *a);
/* nb_forward.derive for this block. */
const nb_derive *nb_mla_derive(const nb_mla *a, const nb_arch_tensor *row, size_t *n);
/* h [T, D] -> out [T, D], which may be h. */
void nb_mla_run(nb_model *m, const nb_mla *a, int l, const nb_rope *rope, const nb_slot *w,
                const nb_tensor *h, nb_tensor *out);

#endif
