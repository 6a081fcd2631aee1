/*
 * Qwen3-Next and Qwen3.5 to 3.8: Gated DeltaNet in most layers, gated attention that rotates part of each head in the others; an
 * MLP, or experts with a shared one behind a switch. After transformers models/qwen3_next, qwen3_5, qwen3_5_moe. Of Qwen3.5's
 * three position axes text moves along all alike, which makes its interleaved rotation the plain one.
 */
#include "models/hybrid.h"

static nb_status read_mixer(nb_model *m, nb_error *err)
{
    nb_recurrent *r = &((nb_hybrid *)m->state)->mix;
    const nb_size_setting sizes[] = {{"linear_num_key_heads", &r->key_heads},
                                     {"linear_num_value_heads", &r->heads},
                                     {"linear_key_head_dim", &r->dk},
                                     {"linear_value_head_dim", &r->dv},
                                     {"linear_conv_kernel_dim", &r->taps}};
    r->delta = true;
    return nb_read_sizes(m, sizes, sizeof sizes / sizeof *sizes, err);
}

static nb_status read_experts(nb_model *m, nb_error *err)
{
    nb_ffn *f = &((nb_hybrid *)m->state)->d.ffn;
    f->keep = json_is_false(nb_config_get(&m->cfg, "norm_topk_prob")); /* Qwen3.5 always divides by the sum */
    return nb_ffn_softmax(m, f, err);
}

static nb_status open(nb_model *m, nb_error *err)
{
    nb_status s;
    if ((s = nb_only_bool(m, "attention_bias", false, err)) ||
        (s = nb_only_bool(m, "attn_output_gate", true, err)) ||
        (s = nb_decoder_open(m, sizeof(nb_hybrid), err)) || (s = nb_decoder_rope(m, NB_ROTATES_SHARE, err)) ||
        (s = read_mixer(m, err)) || (s = read_experts(m, err)))
        return s;
    ((nb_hybrid *)m->state)->d.attn.gated = true;
    return nb_hybrid_declare(m, err);
}

const nb_forward nb_forward_qwen3_next = NB_HYBRID(&nb_arch_qwen3_next, open);
