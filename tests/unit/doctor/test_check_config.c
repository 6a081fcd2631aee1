/* NB201 to NB211: one contradiction each between a config and a healthy folder. */
#include "doctor.h"

static model m;

#define TARGETS(t) "\"targets\":[" t "]"
#define WEIGHTS(strategy, group)                                                                             \
    "\"weights\":{\"num_bits\":4,\"type\":\"float\",\"strategy\":\"" strategy "\",\"group_size\":" group     \
    ",\"symmetric\":true,\"dynamic\":false}"
#define INPUTS ",\"input_activations\":{\"num_bits\":4,\"type\":\"float\",\"dynamic\":\"local\"}"
#define GROUP(t, w, i) "{\"format\":\"nvfp4-pack-quantized\"," TARGETS(t) "," w i "}"
#define CT(groups, ignore)                                                                                   \
    ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"nvfp4-pack-quantized\"," \
    "\"config_groups\":{" groups "},\"ignore\":[" ignore "]}"
#define LINEAR GROUP("\"Linear\"", WEIGHTS("tensor_group", "16"), INPUTS)
#define MODELOPT(algo, ignore, more)                                                                         \
    ",\"quantization_config\":{\"quant_method\":\"modelopt\",\"quant_algo\":\"" algo                         \
    "\",\"ignore\":[" ignore "]" more "}"
#define GOOD_MO MODELOPT("NVFP4", "\"lm_head\"", "")

/* A tokenizer.json with these added tokens and this vocabulary. */
#define TOKENIZER(added, vocab)                                                                              \
    "{\"added_tokens\":[" added "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","           \
    "\"add_prefix_space\":false},\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},"              \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{" vocab "},\"merges\":[]}}"

/* The llama config, with more keys. */
static const char *with(const char *more)
{
    static char text[4096];
    const size_t n = strlen(LLAMA_CONFIG) - 1;
    assert_true(n + strlen(more) + 2 < sizeof text);
    snprintf(text, sizeof text, "%.*s%s}", (int)n, LLAMA_CONFIG, more);
    return text;
}

/* Checks the folder with a tokenizer beside it. */
static void judge(const char *more)
{
    m.whole = true;
    tempdir_make(&m.dir);
    folder_text(&m.dir, "config.json", with(more));
    folder_text(&m.dir, "tokenizer.json", TOKENIZER("", "\"a\":0,\"b\":47"));
    folder_text(&m.dir, "generation_config.json", "{\"eos_token_id\":47}");
    folder_write(&m.dir, "model.safetensors", m.t, m.n);
    check_folder(&m, m.dir.path);
}

static const nb_finding *sole(bool ct, const char *more, const char *rule, const char *tensor,
                              nb_severity severity)
{
    model_llama(&m, ct);
    judge(more);
    const nb_finding *f = must_find(&m, rule, tensor, severity);
    must_be_alone(&m, rule);
    return f;
}

static void good_configs(void **state)
{
    model_llama(&m, true);
    judge(CT("\"g\":" LINEAR, "\"lm_head\""));
    must_be_alone(&m, NULL);
    model_free(&m);
    model_llama(&m, false);
    judge(GOOD_MO);
    must_be_alone(&m, NULL);
    model_free(&m);
}

static void methods(void **state)
{
    sole(true, "", "NB201", NULL, NB_SEVERITY_ERROR);
    model_free(&m);
    sole(false, ",\"quantization_config\":{\"quant_method\":\"gptq\"}", "NB201", NULL, NB_SEVERITY_ERROR);
    model_free(&m);
    sole(true, GOOD_MO, "NB201", NULL, NB_SEVERITY_ERROR);
    model_free(&m);
    sole(false, MODELOPT("FP8", "\"lm_head\"", ""), "NB201", "model.layers.0.mlp.up_proj.weight",
         NB_SEVERITY_ERROR);
    model_free(&m);
}

static void lists(void **state)
{
    sole(true, CT("\"g\":" LINEAR, "\"lm_head\",\"re:.*layers[.]1[.].*o_proj\""), "NB202",
         "model.layers.1.self_attn.o_proj.weight_packed", NB_SEVERITY_ERROR);
    model_free(&m);
    sole(true, CT("\"g\":" LINEAR, "\"lm_head\",\"re:.*vision_tower.*\""), "NB202", NULL,
         NB_SEVERITY_WARNING);
    model_free(&m);
    sole(false, MODELOPT("NVFP4", "\"lm_head\",\"vision_tower*\"", ""), "NB202", NULL, NB_SEVERITY_WARNING);
    model_free(&m);
    sole(true, CT("\"g\":" GROUP("\"re:.*mlp[.].*\"", WEIGHTS("tensor_group", "16"), INPUTS), "\"lm_head\""),
         "NB202", "model.layers.0.self_attn.o_proj.weight_packed", NB_SEVERITY_ERROR);
    model_free(&m);
}

/* layers.0.mlp.down_proj as a BF16 linear. */
static void float_down(bool ct)
{
    model_llama(&m, ct);
    model_remove(&m, "model.layers.0.mlp.down_proj.weight_scale");
    model_remove(&m, ct ? "model.layers.0.mlp.down_proj.weight_global_scale"
                        : "model.layers.0.mlp.down_proj.weight_scale_2");
    model_remove(&m, ct ? "model.layers.0.mlp.down_proj.input_global_scale"
                        : "model.layers.0.mlp.down_proj.input_scale");
    if (ct)
        model_rename(&m, "model.layers.0.mlp.down_proj.weight_packed", "model.layers.0.mlp.down_proj.weight");
    model_reshape(&m, "model.layers.0.mlp.down_proj.weight", NB_DT_BF16, 2, 32, 64);
}

static void float_linears_must_be_on_the_list(void **state)
{
    static const char *const entries[] = {"\"lm_head\"", "\"lm_head\",\"layers.0.mlp.down_proj\"",
                                          "\"lm_head\",\"model.layers.0.mlp.down_proj\""};
    for (int i = 0; i < 6; i++) {
        char more[2048];
        const bool ct = i % 2;
        float_down(ct);
        snprintf(more, sizeof more, ct ? CT("\"g\":" LINEAR, "%s") : MODELOPT("NVFP4", "%s", ""),
                 entries[i / 2]);
        judge(more);
        if (i / 2 < 2) must_find(&m, "NB202", "model.layers.0.mlp.down_proj.weight", NB_SEVERITY_ERROR);
        must_be_alone(&m, i / 2 < 2 ? "NB202" : NULL);
        model_free(&m);
    }
}

static void schemes(void **state)
{
    sole(true, CT("\"g\":" GROUP("\"Linear\"", WEIGHTS("group", "16"), INPUTS), "\"lm_head\""), "NB203", NULL,
         NB_SEVERITY_ERROR);
    model_free(&m);
    sole(true, CT("\"g\":" GROUP("\"Linear\"", WEIGHTS("tensor_group", "32"), INPUTS), "\"lm_head\""),
         "NB203", NULL, NB_SEVERITY_ERROR);
    model_free(&m);
    sole(true,
         CT("\"g\":" GROUP("\"Linear\"", WEIGHTS("tensor_group", "16"),
                           ",\"input_activations\":{\"dynamic\":false}"),
            "\"lm_head\""),
         "NB203", NULL, NB_SEVERITY_WARNING);
    model_free(&m);
    sole(false, MODELOPT("NVFP5", "\"lm_head\"", ""), "NB203", NULL, NB_SEVERITY_ERROR);
    model_free(&m);
}

static void lists_and_sizes_of_the_wrong_type(void **state)
{
    sole(true, CT("\"g\":" LINEAR, "\"lm_head\",\"re:.*gate(\""), "NB202", NULL, NB_SEVERITY_ERROR);
    model_free(&m);
    sole(true, CT("\"g\":" LINEAR, "\"lm_head.weight\""), "NB202", "lm_head.weight", NB_SEVERITY_WARNING);
    model_free(&m);
    /* re: is compressed-tensors' way; to ModelOpt's loaders it names nothing */
    sole(false, MODELOPT("NVFP4", "\"lm_head\",\"re:.*norm\"", ""), "NB202", NULL, NB_SEVERITY_WARNING);
    model_free(&m);
    sole(false, MODELOPT("NVFP4", "\"lm_head\"", ",\"group_size\":32"), "NB203", NULL, NB_SEVERITY_ERROR);
    model_free(&m);
    sole(false,
         ",\"quantization_config\":{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\",\"ignore\":\"lm_"
         "head\"}",
         "NB203", NULL, NB_SEVERITY_ERROR);
    model_free(&m);
}

static void a_quantised_embedding(void **state)
{
    for (int said = 0; said < 2; said++) {
        model_llama(&m, false);
        model_reshape(&m, "model.embed_tokens.weight", NB_DT_U8, 2, 48, 16);
        model_member(&m, "model.embed_tokens", ".weight_scale", NB_DT_F8_E4M3, 2, 48, 2);
        model_member(&m, "model.embed_tokens", ".weight_scale_2", NB_DT_F32, 0, 1, 0);
        model_member(&m, "model.embed_tokens", ".input_scale", NB_DT_F32, 0, 1, 0);
        judge(said ? GOOD_MO ",\"nvfp4_embed\":true" : GOOD_MO);
        if (!said) must_find(&m, "NB201", "model.embed_tokens.weight", NB_SEVERITY_ERROR);
        must_be_alone(&m, said ? NULL : "NB201");
        model_free(&m);
    }
}

/* layers.1.mlp.down_proj as ModelOpt stores it, among linears of compressed-tensors. */
static void linears_of_both_flavours(void **state)
{
#define DOWN "model.layers.1.mlp.down_proj"
    static float multiplier = 1e-3f, input = 2e-3f;
    model_llama(&m, true);
    model_rename(&m, DOWN ".weight_packed", DOWN ".weight");
    model_rename(&m, DOWN ".weight_global_scale", DOWN ".weight_scale_2");
    model_rename(&m, DOWN ".input_global_scale", DOWN ".input_scale");
    model_find(&m, DOWN ".weight_scale_2")->bytes = &multiplier;
    model_find(&m, DOWN ".input_scale")->bytes = &input;
    judge(CT("\"g\":" LINEAR, "\"lm_head\""));
    must_find(&m, "NB201", DOWN ".weight", NB_SEVERITY_ERROR);
    must_be_alone(&m, "NB201");
    model_free(&m);
#undef DOWN
}

static void overlapping_groups(void **state)
{
    model_llama(&m, true);
    judge(",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"mixed-precision\","
          "\"config_groups\":{\"g\":" LINEAR
          ",\"h\":{\"targets\":[\"re:.*down_proj$\"],\"format\":\"float-quantized\","
          "\"weights\":{\"num_bits\":8,\"type\":\"float\"}}},\"ignore\":[\"lm_head\"]}");
    must_find(&m, "NB204", "model.layers.1.mlp.down_proj.weight_packed", NB_SEVERITY_ERROR);
    must_be_alone(&m, "NB204");
    model_free(&m);
}

static void tied_embeddings(void **state)
{
    static uint16_t other[48 * 32];
    other[7] = 0x3F80;
    model_llama(&m, true);
    model_find(&m, "lm_head.weight")->bytes = other;
    judge(CT("\"g\":" LINEAR, "\"lm_head\"") ",\"tie_word_embeddings\":true");
    must_find(&m, "NB205", "lm_head.weight", NB_SEVERITY_ERROR);
    model_free(&m);
    model_llama(&m, true);
    model_remove(&m, "lm_head.weight");
    judge(CT("\"g\":" LINEAR, ""));
    must_find(&m, "NB205", "lm_head.weight", NB_SEVERITY_ERROR);
    model_free(&m);
}

static void tensor_parallel_sizes(void **state)
{
    /* rows of q_proj are 32: two parts of 16, four of 8 */
    for (uint32_t tp = 2; tp <= 4; tp += 2) {
        model_llama(&m, true);
        m.options.tp = tp;
        judge(CT("\"g\":" LINEAR, "\"lm_head\""));
        if (tp == 4)
            must_find(&m, "NB206", "model.layers.0.self_attn.q_proj.weight_packed", NB_SEVERITY_WARNING);
        must_be_alone(&m, tp == 4 ? "NB206" : NULL);
        m.options.tp = 0;
        model_free(&m);
    }
}

static void drafting_layers_that_are_not_there(void **state)
{
    sole(true, CT("\"g\":" LINEAR, "\"lm_head\"") ",\"num_nextn_predict_layers\":1", "NB207", NULL,
         NB_SEVERITY_WARNING);
    model_free(&m);
}

static void kv_scales(void **state)
{
    static const float good = 0.02f, zero = 0;
    static const char named[] =
        MODELOPT("NVFP4", "\"lm_head\"", ",\"kv_cache_scheme\":{\"num_bits\":8,\"type\":\"float\"}");
    for (int i = 0; i < 4; i++) { /* healthy, one zero, one missing, no algorithm */
        model_llama(&m, false);
        for (int l = 0; l < 2; l++) {
            for (int v = 0; v < 2; v++) {
                char name[80];
                snprintf(name, sizeof name, "model.layers.%d.self_attn.%c_proj.%c_scale", l, "kv"[v],
                         "kv"[v]);
                model_add(&m, name, NB_DT_F32, 0, 1, 0);
                m.t[m.n - 1].bytes = &good;
            }
        }
        if (i == 1) model_find(&m, "model.layers.1.self_attn.k_proj.k_scale")->bytes = &zero;
        if (i == 2) model_remove(&m, "model.layers.1.self_attn.k_proj.k_scale");
        judge(i == 3 ? GOOD_MO : named);
        if (i) must_find(&m, "NB208", "model.layers.1.self_attn.k_proj.k_scale", NB_SEVERITY_WARNING);
        must_be_alone(&m, i ? "NB208" : NULL);
        model_free(&m);
    }
}

static void a_weight_only_file_labelled_w4a4(void **state)
{
    model_llama(&m, false);
    for (size_t i = 0; i < m.n;) {
        if (strstr(m.t[i].name, "input_scale"))
            model_remove(&m, m.t[i].name);
        else
            i++;
    }
    judge(GOOD_MO);
    must_find(&m, "NB211", NULL, NB_SEVERITY_ERROR);
    must_be_alone(&m, "NB211");
    model_free(&m);
}

static void the_two_configs_disagree(void **state)
{
    model_llama(&m, false);
    judge(GOOD_MO);
    folder_text(
        &m.dir, "hf_quant_config.json",
        "{\"quantization\":{\"quant_algo\":\"W4A16_NVFP4\",\"kv_cache_quant_algo\":null,\"group_size\":16,"
        "\"exclude_modules\":[\"lm_head\"]}}");
    check_folder(&m, m.dir.path);
    must_find(&m, "NB209", NULL, NB_SEVERITY_WARNING);
    must_be_alone(&m, "NB209");
    model_free(&m);
}

static void tokenizer_files(void **state)
{
    static const struct {
        const char *file, *text;
    } cases[] = {{"tokenizer.json", "{\"added_tokens\":[{\"id\":48}]}"},
                 {"tokenizer.json", "{\"model\":{\"vocab\":{\"a\":48}}}"},
                 {"tokenizer.json", "{\"added_tokens\":["},
                 {"tokenizer.json", TOKENIZER("", "\"a\":0,\"b\":0")},
                 {"tokenizer.json", TOKENIZER("", "\"a\":0,\"b\":20")},
                 {"tokenizer_config.json", "{\"eos_token\":\"<|im_end|>\"}"},
                 {"tokenizer_config.json", "{\"bos_token\":{\"content\":\"<s>\"}}"},
                 {"tokenizer_config.json", "{\"added_tokens_decoder\":{\"47\":{\"content\":\"a\"}}}"},
                 {"generation_config.json", "{}"},
                 {"generation_config.json", "{\"eos_token_id\":1,\"top_p\":1.5}"},
                 {"generation_config.json", "{\"eos_token_id\":1,\"temperature\":\"0.6\"}"},
                 {"generation_config.json", "{\"eos_token_id\":[1,48]}"},
                 {"chat_template.jinja", "{% for m in messages %}{% if m %}x{% endfor %}"},
                 {"tokenizer_config.json", "{\"chat_template\":\"{%- if a -%}\"}"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_llama(&m, false);
        judge(GOOD_MO);
        must_be_alone(&m, NULL);
        folder_text(&m.dir, cases[i].file, cases[i].text);
        check_folder(&m, m.dir.path);
        assert_string_equal(must_find(&m, "NB210", NULL, NB_SEVERITY_WARNING)->file, cases[i].file);
        must_be_alone(&m, "NB210");
        model_free(&m);
    }
    model_llama(&m, false);
    judge(GOOD_MO);
    folder_text(
        &m.dir, "chat_template.jinja",
        "{%- macro a() %}{% raw %}{% if %}{% endraw %}{% endmacro -%}{% for m in x %}{% if m %}1{% elif n "
        "%}2{% else %}3{% endif %}{% endfor %}{% set b = 1 %}");
    check_folder(&m, m.dir.path);
    must_be_alone(&m, NULL);
    model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_configs),
        cmocka_unit_test(methods),
        cmocka_unit_test(lists),
        cmocka_unit_test(float_linears_must_be_on_the_list),
        cmocka_unit_test(schemes),
        cmocka_unit_test(lists_and_sizes_of_the_wrong_type),
        cmocka_unit_test(linears_of_both_flavours),
        cmocka_unit_test(a_quantised_embedding),
        cmocka_unit_test(overlapping_groups),
        cmocka_unit_test(tied_embeddings),
        cmocka_unit_test(tensor_parallel_sizes),
        cmocka_unit_test(drafting_layers_that_are_not_there),
        cmocka_unit_test(kv_scales),
        cmocka_unit_test(a_weight_only_file_labelled_w4a4),
        cmocka_unit_test(the_two_configs_disagree),
        cmocka_unit_test(tokenizer_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
