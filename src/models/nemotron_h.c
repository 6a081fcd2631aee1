/*
 * Nemotron-H and Nemotron-3: every layer is x += mixer(RMS(x)), the mixer one of Mamba-2, attention without positions, experts, and
 * MLP, the last two with squared relu and no gate. After transformers models/nemotron_h/modeling_nemotron_h.py.
 */
#include <math.h>

#include "models/hybrid.h"

static nb_status refuse(const nb_model *m, nb_error *err)
{
    static const char *const biases[] = {"attention_bias", "mlp_bias", "mamba_proj_bias", "use_bias"};
    nb_status s = nb_only_word(m, "mlp_hidden_act", "relu2", err);
    if (s == NB_OK) s = nb_only_word(m, "mamba_hidden_act", "silu", err);
    for (size_t i = 0; s == NB_OK && i < sizeof biases / sizeof *biases; i++)
        s = nb_only_bool(m, biases[i], false, err);
    return s;
}

static nb_status read_mixer(nb_model *m, nb_error *err)
{
    nb_recurrent *r = &((nb_hybrid *)m->state)->mix;
    const nb_size_setting sizes[] = {{"n_groups", &r->key_heads},
                                     {"mamba_num_heads", &r->heads},
                                     {"ssm_state_size", &r->dk},
                                     {"mamba_head_dim", &r->dv},
                                     {"conv_kernel", &r->taps}};
    nb_status s = nb_read_sizes(m, sizes, sizeof sizes / sizeof *sizes, err);
    /* as the release does; transformers 5.24 has limits of its own, which only a config with finite ones would show */
    r->dt_max = INFINITY;
    if (s || !nb_config_get(&m->cfg, "time_step_limit")) return s; /* without it steps have no limits */
    s = nb_read_number(m, "time_step_limit.0", 0, INFINITY, &r->dt_min, err);
    return s ? s : nb_read_number(m, "time_step_limit.1", 0, INFINITY, &r->dt_max, err);
}

static nb_status read_experts(nb_model *m, nb_error *err)
{
    nb_ffn *f = &((nb_hybrid *)m->state)->d.ffn;
    const nb_size_setting shared = {"moe_shared_expert_intermediate_size", &f->shared_I};
    const nb_size_setting latent = {"moe_latent_size", &f->latent};
    nb_status s;
    f->act = NB_ACT_RELU2;
    if (!nb_has_part(m, NB_PART_ROUTER)) return NB_OK;
    if ((s = nb_ffn_noaux(m, f, err)) || (s = nb_read_sizes(m, &shared, 1, err))) return s;
    return nb_has_part(m, NB_PART_LATENT_IN) ? nb_read_sizes(m, &latent, 1, err) : NB_OK;
}

static nb_status open(nb_model *m, nb_error *err)
{
    nb_status s;
    if ((s = refuse(m, err)) || (s = nb_decoder_open(m, sizeof(nb_hybrid), err)) ||
        (s = read_mixer(m, err)) || (s = read_experts(m, err)))
        return s;
    return nb_hybrid_declare(m, err);
}

const nb_forward nb_forward_nemotron_h = NB_HYBRID(&nb_arch_nemotron_h, open);
