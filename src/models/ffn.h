/*
 * The feed-forward block of all families: a dense MLP, or a mixture of experts with or without shared ones. Whether a layer is
 * the one or the other, and what it has (fused projections, biases, a gate at all), is read off its slots.
 */
#ifndef NB_MODELS_FFN_H
#define NB_MODELS_FFN_H

#include "models/model.h"

typedef struct nb_ffn {
    size_t D, I; /* hidden size; width of a dense MLP, 0: no layer is dense */
    nb_act act;  /* without a gate projection: of up alone */
    float limit; /* of act; 0: none */

    size_t experts, slots;     /* how many, how many of them compute a row; 0: no layer has experts */
    size_t expert_I, shared_I; /* widths; shared_I 0: no shared expert */
    size_t
        latent; /* experts read and write this many columns, a projection of the row's; 0: the row itself */
    nb_score score; /* the router, as in nb_route_call */
    size_t groups, top_groups;
    bool group_max, keep;
    float scaling;

    /* The run's tensors, by nb_ffn_prepare. T rows of the step. */
    nb_tensor *gate, *up;    /* [T, I] */
    nb_tensor *gate_up;      /* [T, 2 I], where the table has a fused projection */
    nb_tensor *sgate, *sup;  /* [T, shared_I] */
    nb_tensor *shared;       /* [T, D] */
    nb_tensor *on;           /* [T, 1] */
    nb_tensor *router;       /* [T, experts] */
    nb_tensor *ids, *weight; /* [T, slots] */
    nb_tensor *egate, *eup;  /* [T slots, expert_I] */
    nb_tensor *parts;        /* [T slots, D or latent] */
    nb_tensor *latents;      /* [T, latent] */
} nb_ffn;

/* Reads intermediate_size, if the table gives any layer a dense MLP. */
nb_status nb_ffn_mlp(const nb_model *m, nb_ffn *f, nb_error *err);
/* Reads the number of experts (nb_arch.n_experts_key), num_experts_per_tok and the width of one, a config key, if the table gives
 * any layer a router; makes scaling 1. */
nb_status nb_ffn_experts(const nb_model *m, nb_ffn *f, const char *width, nb_error *err);
/* The experts of the Qwens: softmax over all; where the table has it, a shared one of shared_expert_intermediate_size. The family
 * sets keep. */
nb_status nb_ffn_softmax(const nb_model *m, nb_ffn *f, nb_error *err);
/* The experts of DeepSeek-V3 and its like: sigmoid scores, a bias for the choice, groups (n_group, topk_group, the sum of the two
 * best), norm_topk_prob, routed_scaling_factor, and shared experts (n_shared_experts of the same width, one MLP). */
nb_status nb_ffn_noaux(const nb_model *m, nb_ffn *f, nb_error *err);
/* Checks the sizes against each other and tells the model of the experts. For open; the family has set the rest. */
nb_status nb_ffn_open(nb_model *m, const nb_ffn *f, nb_error *err);
/* Takes the run's tensors. */
nb_status nb_ffn_prepare(nb_model *m, nb_ffn *f, nb_error *err);

/* h [T, D] -> out [T, D], which is not h: whichever block the layer has. */
void nb_ffn_run(nb_model *m, const nb_ffn *f, const nb_slot *w, const nb_tensor *h, nb_tensor *out);
/* The two by name, for layers that have both. `routed` is what the router reads, mostly h. */
void nb_mlp_run(nb_model *m, const nb_ffn *f, const nb_slot *w, const nb_tensor *h, nb_tensor *out);
void nb_moe_run(nb_model *m, const nb_ffn *f, const nb_slot *w, const nb_tensor *h, const nb_tensor *routed,
                nb_tensor *out);

#endif
