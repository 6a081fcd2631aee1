/* NB007, NB200, NB212: the tensors against the architecture's table, and whether there is one. */
#include "doctor.h"

static model m;

static void an_absent_tensor_is_named(void **state)
{
    model_llama(&m, true);
    model_remove(&m, "model.layers.1.post_attention_layernorm.weight");
    model_remove(&m, "model.norm.weight");
    model_check(&m, LLAMA_CONFIG);
    must_find(&m, "NB007", "model.layers.1.post_attention_layernorm.weight", NB_SEVERITY_ERROR);
    must_find(&m, "NB007", "model.norm.weight", NB_SEVERITY_ERROR);
    assert_int_equal(m.r.findings.count, 2);
    model_free(&m);
}

static void an_absent_linear_is_named_with_all_its_members(void **state)
{
    model_llama(&m, false);
    model_remove(&m, "model.layers.1.self_attn.v_proj.weight");
    model_remove(&m, "model.layers.1.self_attn.v_proj.weight_scale");
    model_remove(&m, "model.layers.1.self_attn.v_proj.weight_scale_2");
    model_check(&m, LLAMA_CONFIG); /* a lone input scale is no linear */
    const nb_finding *f = must_find(&m, "NB007", "model.layers.1.self_attn.v_proj.weight", NB_SEVERITY_ERROR);
    must_find(&m, "NB007", "model.layers.1.self_attn.v_proj.weight_scale_2", NB_SEVERITY_ERROR);
    assert_int_equal(f->effect[NB_FAMILY_W4A4], NB_EFFECT_UNDEFINED);
    assert_string_equal(f->expected, "num_key_value_heads*head_dim,hidden_size = [32, 32]");
    must_be_alone(&m, "NB007");
    model_free(&m);
}

static void an_absent_layer_is_one_finding(void **state)
{
    model_llama(&m, true);
    for (size_t i = 0; i < m.n;) {
        if (strstr(m.t[i].name, "layers.1."))
            model_remove(&m, m.t[i].name);
        else
            i++;
    }
    model_check(&m, LLAMA_CONFIG);
    const nb_finding *f =
        must_find(&m, "NB007", "model.layers.1.mlp.down_proj.weight_packed", NB_SEVERITY_ERROR);
    assert_int_equal(f->n_tensors, 2 + 7 * 4); /* norms, and four members of each linear */
    assert_int_equal(m.r.findings.count, 1);
    model_free(&m);
}

static void thousands_of_absent_layers_are_not_named(void **state)
{
    model_llama(&m, true);
    model_check(&m, "{\"model_type\":\"llama\",\"num_hidden_layers\":9000," ROPE_AND_EPS
                    "\"hidden_size\":32,\"num_attention_heads\":2,"
                    "\"intermediate_size\":64,\"vocab_size\":48}");
    assert_int_equal(m.r.findings.count, 9); /* eight layers, and the rest */
    must_be_alone(&m, "NB007");
    model_free(&m);
}

/* Three query heads for two of keys: the tensors say that it is not so (NB007), and that is all there is to say. */
static void sizes_that_the_tensors_contradict_are_told_once(void **state)
{
    model_llama(&m, true);
    model_check(&m, "{\"model_type\":\"llama\",\"num_hidden_layers\":2," ROPE_AND_EPS
                    "\"hidden_size\":32,\"num_attention_heads\":3,\"num_key_value_heads\":2,\"head_dim\":16,"
                    "\"intermediate_size\":64,\"vocab_size\":48}");
    must_find(&m, "NB007", "model.layers.0.self_attn.q_proj.weight_packed", NB_SEVERITY_ERROR);
    for (size_t i = 0; i < m.r.findings.count; i++)
        assert_string_not_equal(m.r.findings.items[i].rule, "NB212");
    model_free(&m);
}

static void a_shape_that_contradicts_the_config(void **state)
{
    model_llama(&m, true);
    model_check(&m, "{\"model_type\":\"llama\",\"num_hidden_layers\":2," ROPE_AND_EPS
                    "\"hidden_size\":32,\"num_attention_heads\":2,"
                    "\"intermediate_size\":96,\"vocab_size\":48}");
    const nb_finding *f =
        must_find(&m, "NB007", "model.layers.0.mlp.gate_proj.weight_packed", NB_SEVERITY_ERROR);
    assert_string_equal(f->measured, "[64, 32]"); /* of the linear, not of the packed codes */
    assert_string_equal(f->expected, "intermediate_size,hidden_size = [96, 32]");
    assert_int_equal(f->n_tensors, 2); /* both layers */
    must_find(&m, "NB007", "model.layers.1.mlp.down_proj.weight_packed", NB_SEVERITY_ERROR);
    assert_int_equal(m.r.findings.count, 3); /* gate, up, down */
    assert_int_equal(f->effect[NB_FAMILY_W4A4], NB_EFFECT_REFUSED);
    model_free(&m);
}

static void a_norm_of_integers(void **state)
{
    model_llama(&m, true);
    model_reshape(&m, "model.norm.weight", NB_DT_I32, 1, 32, 0);
    model_check(&m, LLAMA_CONFIG);
    assert_string_equal(must_find(&m, "NB007", "model.norm.weight", NB_SEVERITY_ERROR)->measured, "I32");
    model_free(&m);
}

static void an_unknown_architecture_is_one_note_and_the_rest_runs(void **state)
{
    model_llama(&m, true);
    model_remove(&m, "model.norm.weight");
    model_remove(&m, "model.layers.0.mlp.up_proj.weight_scale");
    model_check(&m, "{\"model_type\":\"nobody_has_this\"}");
    must_find(&m, "NB200", NULL, NB_SEVERITY_NOTE);
    must_find(&m, "NB003", "model.layers.0.mlp.up_proj.weight_scale", NB_SEVERITY_ERROR);
    assert_int_equal(m.r.findings.count, 2);
    assert_null(m.r.architecture);
    model_free(&m);
}

static void a_config_without_a_key_or_no_config(void **state)
{
    model_llama(&m, true);
    model_check(&m, "{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"hidden_size\":32}");
    assert_non_null(strstr(must_find(&m, "NB212", NULL, NB_SEVERITY_ERROR)->measured, "vocab_size"));
    assert_int_equal(m.r.findings.count, 1);
    model_free(&m);
    model_llama(&m, true);
    model_check(&m, "{\"model_type\":");
    assert_string_equal(must_find(&m, "NB200", NULL, NB_SEVERITY_ERROR)->file, "config.json");
    assert_int_equal(m.r.findings.count, 1);
    unlink(tempdir_path(&m.dir, "config.json"));
    check_folder(&m, m.dir.path);
    must_find(&m, "NB200", NULL, NB_SEVERITY_ERROR);
    assert_int_equal(m.r.findings.count, 1);
    model_free(&m);
}

/* The config's keys as the forward pass reads them. more replaces nothing: later keys win. */
static void values_that_the_forward_pass_does_not_take(void **state)
{
    static const struct {
        const char *keys, *rule, *says;
        nb_severity severity;
    } cases[] = {
        {"\"rms_norm_eps\":\"1e-5\",\"rope_theta\":10000", "NB212", "rms_norm_eps", NB_SEVERITY_ERROR},
        {"\"rms_norm_eps\":1e-5", "NB212", "rope_theta", NB_SEVERITY_WARNING},
        {"\"rms_norm_eps\":1e-5,\"rope_theta\":0", "NB212", "rope_theta", NB_SEVERITY_ERROR},
        {ROPE_AND_EPS "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}", "NB212", "low_freq_factor",
         NB_SEVERITY_ERROR},
        {ROPE_AND_EPS "\"rope_scaling\":{\"rope_type\":\"yarnn\"}", "NB200", "yarnn", NB_SEVERITY_NOTE},
        {ROPE_AND_EPS "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":4},"
                      "\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":8}",
         "NB212", "factor 4", NB_SEVERITY_WARNING},
        {"\"rms_norm_eps\":1e-5,\"rope_theta\":10000,\"architectures\":[\"Qwen2ForCausalLM\"]", "NB200",
         "Qwen2ForCausalLM", NB_SEVERITY_WARNING},
        {ROPE_AND_EPS "\"attention_bias\":true", "NB007", "layers.0.self_attn.", NB_SEVERITY_ERROR},
        {ROPE_AND_EPS "\"max_window_layers\":\"28\"", "NB212", "\"max_window_layers\" must be an integer",
         NB_SEVERITY_ERROR},
        {ROPE_AND_EPS "\"enable_moe_block\":\"false\"", "NB212", "must be true or false", NB_SEVERITY_ERROR},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char config[800];
        snprintf(
            config, sizeof config,
            "{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"hidden_size\":32,\"num_attention_heads\":2,"
            "\"num_key_value_heads\":2,\"intermediate_size\":64,\"vocab_size\":48,%s}",
            cases[i].keys);
        model_llama(&m, true);
        model_check(&m, config);
        const nb_finding *f = must_find(&m, cases[i].rule, NULL, cases[i].severity);
        if (!strstr(f->measured, cases[i].says))
            fail_msg("\"%s\" does not say %s", f->measured, cases[i].says);
        must_be_alone(&m, cases[i].rule);
        model_free(&m);
    }
}

/* Nemotron-H's attention is a mixer among others: told by its linears' names, with and without biases. */
static void biases_of_a_mixer(void **state)
{
    static const char config[] = "{\"model_type\":\"nosuchmodel\",\"attention_bias\":true}";
    for (int biased = 0; biased < 2; biased++) {
        model_experts(&m, false, 4);
        model_linear(&m, false, "backbone.layers.3.mixer.q_proj", 32, 32);
        if (biased) model_add(&m, "backbone.layers.3.mixer.q_proj.bias", NB_DT_BF16, 1, 32, 0);
        model_check(&m, config);
        const nb_finding *f = found(&m, "NB007", NULL);
        if (biased)
            assert_null(f);
        else
            assert_string_equal(f->measured, "no tensor named like backbone.layers.3.mixer.q_proj.bias");
        model_free(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_that_the_forward_pass_does_not_take),
        cmocka_unit_test(biases_of_a_mixer),
        cmocka_unit_test(an_absent_tensor_is_named),
        cmocka_unit_test(an_absent_linear_is_named_with_all_its_members),
        cmocka_unit_test(an_absent_layer_is_one_finding),
        cmocka_unit_test(thousands_of_absent_layers_are_not_named),
        cmocka_unit_test(a_shape_that_contradicts_the_config),
        cmocka_unit_test(a_norm_of_integers),
        cmocka_unit_test(sizes_that_the_tensors_contradict_are_told_once),
        cmocka_unit_test(an_unknown_architecture_is_one_note_and_the_rest_runs),
        cmocka_unit_test(a_config_without_a_key_or_no_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
