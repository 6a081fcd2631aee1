/* NB006: names that known loaders drop, and tensors that nobody reads; and what a healthy file may hold beside its weights. */
#include "doctor.h"

#define UNKNOWN "{\"model_type\":\"nobody_has_this\"}"
#define EXPERT "model.layers.0.mlp.experts."

static model m;

/* One tensor more in a llama: reported by NB006 with these words, or (NULL) not at all. */
static void extra(const char *name, nb_dtype dtype, const char *says)
{
    model_llama(&m, false);
    model_add(&m, name, dtype, 1, 4, 0);
    model_check(&m, LLAMA_CONFIG);
    if (says) {
        const nb_finding *f = must_find(&m, "NB006", name, NB_SEVERITY_WARNING);
        if (!strstr(f->message, says)) fail_msg("\"%s\" does not say \"%s\"", f->message, says);
        assert_string_equal(f->file, "model.safetensors");
        assert_true(f->has_bytes);
    }
    must_be_alone(&m, says ? "NB006" : NULL);
    model_free(&m);
}

static void what_nobody_reads(void **state)
{
    extra("model.layers.0.mlp.extra", NB_DT_F32, "no part of the architecture");
    extra("model.layers.0.mlp.gate_proj.weight_scale_2_double_scale", NB_DT_F32, "double scale");
    extra("model.layers.0.mlp.gate_proj.weight_scale_inv", NB_DT_F32, "no use for");
    extra("model.layers.7.input_layernorm.weight", NB_DT_BF16, "beyond the number");
    extra("model.layers.0.self_attn.q_proj.bias", NB_DT_BF16, "that these linears have none");
    extra("model.layers.0.self_attn.q_proj.pre_quant_scale", NB_DT_BF16, "another scheme");
    extra("model.layers.0.mlp.up_proj.weight_zero_point", NB_DT_U8, "another scheme");
}

static void what_a_healthy_file_may_hold(void **state)
{
    extra("model.layers.0.self_attn.k_proj.k_scale", NB_DT_F32, NULL);
    extra("model.layers.0.self_attn.v_scale", NB_DT_F32, NULL);
    extra("model.layers.0.self_attn.rotary_emb.inv_freq", NB_DT_F32, NULL);
    extra("model.visual.blocks.0.attn.qkv.weight", NB_DT_BF16, NULL);
    extra("vision_tower.encoder.layers.0.mlp.fc1.weight", NB_DT_BF16, NULL);
    extra("multi_modal_projector.linear_1.weight", NB_DT_BF16, NULL);
    extra("mtp.layers.0.input_layernorm.weight", NB_DT_BF16, NULL);
}

static void drafting_layers_behind_the_last_are_known(void **state)
{
    static const char config[] = "{\"model_type\":\"llama\",\"num_hidden_layers\":%d," ROPE_AND_EPS
                                 "\"hidden_size\":32,\"num_attention_heads\":2,\"intermediate_size\":64,"
                                 "\"vocab_size\":48,\"num_nextn_predict_layers\":1}";
    char two[400], one[400];
    snprintf(two, sizeof two, config, 2);
    snprintf(one, sizeof one, config, 1);
    model_llama(&m, false); /* a part of a layer: some other module */
    model_add(&m, "model.layers.2.input_layernorm.weight", NB_DT_BF16, 1, 32, 0);
    model_check(&m, two);
    must_be_alone(&m, NULL);
    model_free(&m);
    model_llama(&m, false); /* a whole one */
    model_check(&m, one);
    must_be_alone(&m, NULL);
    model_free(&m);
    model_llama(&m, false); /* a layer that lacks a tensor */
    model_remove(&m, "model.layers.1.post_attention_layernorm.weight");
    model_check(&m, one);
    const nb_finding *f =
        must_find(&m, "NB007", "model.layers.1.post_attention_layernorm.weight", NB_SEVERITY_ERROR);
    assert_non_null(strstr(f->message, "drafting"));
    assert_non_null(strstr(f->remedy, "without drafting"));
    assert_non_null(strstr(f->effect_text[NB_FAMILY_W4A4], "without drafting"));
    must_be_alone(&m, "NB007");
    model_free(&m);
}

static void a_head_beside_tied_embeddings_is_another_rules_matter(void **state)
{
    model_llama(&m, false);
    model_check(&m, "{\"model_type\":\"llama\",\"num_hidden_layers\":2," ROPE_AND_EPS
                    "\"hidden_size\":32,\"num_attention_heads\":2,"
                    "\"intermediate_size\":64,\"vocab_size\":48,\"tie_word_embeddings\":true}");
    must_be_alone(&m, NULL);
    model_free(&m);
}

static void block_scales_called_scale(void **state)
{
    model_experts(&m, false, 3);
    model_rename(&m, EXPERT "1.up_proj.weight_scale", EXPERT "1.up_proj.scale");
    model_check(&m, UNKNOWN);
    const nb_finding *f = must_find(&m, "NB006", EXPERT "1.up_proj.scale", NB_SEVERITY_WARNING);
    assert_true(f->repairable);
    assert_int_equal(f->effect[NB_FAMILY_W4A4], NB_EFFECT_UNDEFINED);
    must_find(&m, "NB003", EXPERT "1.up_proj.weight_scale", NB_SEVERITY_ERROR);
    model_free(&m);
}

static void the_experts_number_last(void **state)
{
    model_experts(&m, true, 2);
    model_rename(&m, EXPERT "1.up_proj.weight_packed", EXPERT "up_proj.1.weight_packed");
    model_rename(&m, EXPERT "1.up_proj.weight_scale", EXPERT "up_proj.1.weight_scale");
    model_check(&m, UNKNOWN);
    assert_ptr_equal(must_find(&m, "NB006", EXPERT "up_proj.1.weight_packed", NB_SEVERITY_WARNING),
                     found(&m, "NB006", EXPERT "up_proj.1.weight_scale"));
    model_free(&m);
}

static void stacks_with_underscores(void **state)
{
    m.n = 0;
    m.r = (nb_check_result){0};
    model_add(&m, EXPERT "down_proj", NB_DT_U8, 2, 8, 16);
    m.t[0].rank = 3;
    m.t[0].shape[2] = 4;
    model_add(&m, EXPERT "down_proj_weight_scale", NB_DT_F8_E4M3, 2, 8, 16);
    model_add(&m, EXPERT "down_proj_input_scale", NB_DT_F32, 0, 0, 0);
    model_check(&m, UNKNOWN);
    must_find(&m, "NB006", EXPERT "down_proj", NB_SEVERITY_WARNING);
    must_find(&m, "NB006", EXPERT "down_proj_weight_scale", NB_SEVERITY_WARNING);
    must_find(&m, "NB006", EXPERT "down_proj_input_scale", NB_SEVERITY_WARNING);
    model_free(&m);
    m.n = 0;
    model_add(&m, EXPERT "down_proj", NB_DT_BF16, 2, 8, 16); /* float stacks are how gpt-oss is published */
    model_add(&m, EXPERT "down_proj_bias", NB_DT_BF16, 2, 8, 16);
    model_check(&m, UNKNOWN);
    must_be_alone(&m, NULL);
    model_free(&m);
}

static void a_layer_without_the_prefix_of_the_others(void **state)
{
    model_experts(&m, false, 3);
    model_rename(&m, EXPERT "1.up_proj.input_scale", "layers.0.mlp.experts.1.up_proj.input_scale");
    model_check(&m, UNKNOWN);
    must_find(&m, "NB006", "layers.0.mlp.experts.1.up_proj.input_scale", NB_SEVERITY_WARNING);
    model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_nobody_reads),
        cmocka_unit_test(what_a_healthy_file_may_hold),
        cmocka_unit_test(drafting_layers_behind_the_last_are_known),
        cmocka_unit_test(a_head_beside_tied_embeddings_is_another_rules_matter),
        cmocka_unit_test(block_scales_called_scale),
        cmocka_unit_test(the_experts_number_last),
        cmocka_unit_test(stacks_with_underscores),
        cmocka_unit_test(a_layer_without_the_prefix_of_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
