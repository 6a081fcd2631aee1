/* config.json: what JSON is accepted, and the typed look-ups and shape expressions behind the tables. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/arch.h"
#include "checkpoint/internal.h"

static json_t *parse(const char *text)
{
    json_t *root = NULL;
    nb_error e;
    if (nb_config_parse("dir/config.json", text, strlen(text), &root, &e) != NB_OK)
        fail_msg("%s: %s", text, e.cause);
    return root;
}

static void bare_non_finite_numbers_become_strings(void **state)
{
    json_t *root = parse("{\"a\":[0,Infinity],\"b\":-Infinity,\"c\":NaN,\"d\":\"NaN, "
                         "\\\"Infinity\\\\\",\"e\":\"\\\\\",\"f\":NaN}");
    assert_string_equal(json_string_value(json_array_get(json_object_get(root, "a"), 1)), "Infinity");
    assert_string_equal(json_string_value(json_object_get(root, "b")), "-Infinity");
    assert_string_equal(json_string_value(json_object_get(root, "c")), "NaN");
    assert_string_equal(json_string_value(json_object_get(root, "d")), "NaN, \"Infinity\\"); /* untouched */
    assert_string_equal(json_string_value(json_object_get(root, "f")), "NaN");
    json_decref(root);
}

static void other_text_stays_an_error(void **state)
{
    const char *bad[] = {"",
                         "{",
                         "[]",
                         "1",
                         "{\"a\":NaNs}",
                         "{\"a\":xNaN}",
                         "{NaN:1}NaN",
                         "{\"a\":1NaN}",
                         "{\"a\":+NaN}",
                         "{\"a\":nan}",
                         "{\"a\":--Infinity}",
                         "{\"a\":1}x",
                         "{\"a\":01}",
                         "{\"a\":'b'}",
                         "{\"a\":\"\xFF\"}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *root = NULL;
        nb_error e;
        if (nb_config_parse("dir/config.json", bad[i], strlen(bad[i]), &root, &e) != NB_ERR_FORMAT)
            fail_msg("%s was not refused", bad[i]);
        assert_null(root);
        assert_string_equal(e.file, "dir/config.json");
    }
}

/* A llama config with these members after the required ones. */
static nb_config llama(const char *more, json_t **root)
{
    char text[2000];
    nb_config cfg;
    nb_error e;
    snprintf(text, sizeof text,
             "{\"model_type\":\"llama\",\"num_hidden_layers\":3,\"vocab_size\":384,\"hidden_size\":96,"
             "\"num_attention_heads\":6,\"intermediate_size\":192%s}",
             more);
    *root = parse(text);
    if (nb_config_from_json(*root, "dir/config.json", &cfg, &e) != NB_OK) fail_msg("%s", e.cause);
    return cfg;
}

static void integers_and_numbers(void **state)
{
    json_t *root;
    nb_config cfg =
        llama(",\"f\":1.5,\"s\":\"x\",\"n\":null,\"i\":Infinity,\"o\":{\"__float__\":\"-Infinity\"},"
              "\"rope\":{\"main\":{\"theta\":10000}}",
              &root);
    int64_t v;
    double d;
    nb_error e;
    assert_string_equal(cfg.arch->name, "llama");
    assert_int_equal(cfg.n_layers, 3);
    assert_int_equal(nb_config_int(&cfg, "hidden_size", -1, 1, 96, &v, NULL), NB_OK);
    assert_int_equal(v, 96);
    assert_int_equal(nb_config_int(&cfg, "rope.main.theta", -1, 1, 1 << 20, &v, NULL), NB_OK);
    assert_int_equal(v, 10000);
    assert_int_equal(nb_config_int(&cfg, "hidden_size", -1, 1, 95, &v, &e), NB_ERR_FORMAT);
    assert_non_null(strstr(e.cause, "\"hidden_size\" is 96; expected 1 to 95"));
    assert_string_equal(e.file, "dir/config.json");
    assert_int_equal(nb_config_int(&cfg, "absent", -1, 0, 1, &v, &e), NB_ERR_MISSING);
    assert_non_null(strstr(e.cause, "\"absent\""));
    assert_string_not_equal(e.remedy, "");
    assert_int_equal(nb_config_int(&cfg, "n", -1, 0, 1, &v, &e), NB_ERR_MISSING);
    assert_int_equal(nb_config_int(&cfg, "f", -1, 0, 9, &v, &e), NB_ERR_FORMAT);
    assert_int_equal(nb_config_int(&cfg, "s", -1, 0, 9, &v, &e), NB_ERR_FORMAT);
    assert_int_equal(nb_config_num(&cfg, "f", 0, 2, &d, NULL), NB_OK);
    assert_true(d == 1.5);
    assert_int_equal(nb_config_num(&cfg, "f", 0, 1, &d, &e), NB_ERR_FORMAT);
    assert_int_equal(nb_config_num(&cfg, "s", 0, 1, &d, &e), NB_ERR_FORMAT);
    assert_int_equal(nb_config_num(&cfg, "i", 0, INFINITY, &d, NULL), NB_OK);
    assert_true(d == INFINITY);
    assert_int_equal(nb_config_num(&cfg, "i", 0, 1e30, &d, NULL), NB_ERR_FORMAT);
    assert_int_equal(nb_config_num(&cfg, "o", -INFINITY, 0, &d, NULL), NB_OK);
    assert_true(d == -INFINITY);
    json_decref(root);
}

static void derived_symbols(void **state)
{
    json_t *root;
    int64_t v;
    nb_config cfg = llama("", &root);
    assert_int_equal(nb_config_int(&cfg, "head_dim", -1, 1, 999, &v, NULL), NB_OK);
    assert_int_equal(v, 16); /* 96 / 6 */
    assert_int_equal(nb_config_int(&cfg, "num_key_value_heads", -1, 1, 999, &v, NULL), NB_OK);
    assert_int_equal(v, 6);
    json_decref(root);
    cfg = llama(",\"head_dim\":32,\"num_key_value_heads\":2", &root);
    assert_int_equal(nb_config_int(&cfg, "head_dim", -1, 1, 999, &v, NULL), NB_OK);
    assert_int_equal(v, 32);
    json_decref(root);
}

static void shape_expressions(void **state)
{
    json_t *root;
    nb_config cfg = llama(",\"zero\":0,\"big\":1099511627776", &root);
    uint64_t d[4];
    nb_error e;
    assert_int_equal(nb_config_shape(&cfg, "3", 0, d, NULL), 1);
    assert_int_equal(d[0], 3);
    assert_int_equal(
        nb_config_shape(&cfg, "num_attention_heads*head_dim/3,hidden_size+2*vocab_size+1", 0, d, NULL), 2);
    assert_int_equal(d[0], 32); /* 6*16/3 */
    assert_int_equal(d[1], 96 + 2 * 384 + 1);
    assert_int_equal(nb_config_shape(&cfg, "1,2,3,4", 0, d, NULL), 4);
    assert_int_equal(nb_config_shape(&cfg, "1,2,3,4,5", 0, d, &e), 0);
    assert_int_equal(nb_config_shape(&cfg, "hidden_size/7", 0, d, &e), 0);
    assert_non_null(strstr(e.cause, "no integer"));
    assert_int_equal(nb_config_shape(&cfg, "hidden_size/zero", 0, d, &e), 0);
    assert_int_equal(nb_config_shape(&cfg, "big*big", 0, d, &e), 0); /* 2^80 */
    assert_non_null(strstr(e.cause, "overflows"));
    assert_int_equal(nb_config_shape(&cfg, "absent,1", 0, d, &e), 0);
    assert_int_equal(e.status, NB_ERR_MISSING);
    assert_int_equal(nb_config_shape(&cfg, "1,", 0, d, &e), 0);
    assert_int_equal(nb_config_shape(&cfg, "", 0, d, &e), 0);
    json_decref(root);
}

static void text_config_comes_first(void **state)
{
    json_t *root =
        parse("{\"model_type\":\"llava\",\"tie_word_embeddings\":true,\"hidden_size\":1,\"text_config\":"
              "{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"vocab_size\":384,\"hidden_size\":96,"
              "\"num_attention_heads\":6,\"intermediate_size\":192,\"tie_word_embeddings\":null}}");
    nb_config cfg;
    int64_t v;
    assert_int_equal(nb_config_from_json(root, "config.json", &cfg, NULL), NB_OK);
    assert_string_equal(cfg.model_type, "llama");
    assert_int_equal(nb_config_int(&cfg, "hidden_size", -1, 1, 999, &v, NULL), NB_OK);
    assert_int_equal(v, 96);
    assert_true(json_is_true(nb_config_get(&cfg, "tie_word_embeddings"))); /* null there: the root's counts */
    json_decref(root);
}

/* Of another type these keys would be passed over, and tensors blamed. Of their own type, or null, they are taken, whatever the
 * family. */
static void keys_of_the_wrong_type(void **state)
{
    static const struct {
        const char *key, *wrong[3], *says, *right;
    } cases[] = {
        {"tie_word_embeddings", {"1", "\"true\"", "[]"}, "true or false", "true"},
        {"use_sliding_window", {"0", "\"false\"", "{}"}, "true or false", "false"},
        {"attention_k_eq_v", {"1", "\"true\"", "[true]"}, "true or false", "true"},
        {"use_double_wide_mlp", {"1", "\"false\"", "2.5"}, "true or false", "false"},
        {"enable_moe_block", {"1", "\"true\"", "{}"}, "true or false", "true"},
        {"hidden_size_per_layer_input", {"\"256\"", "256.0", "true"}, "an integer", "0"},
        {"max_window_layers", {"\"28\"", "[28]", "28.5"}, "an integer", "28"},
        {"decoder_sparse_step", {"\"1\"", "true", "1.0"}, "an integer", "1"},
        {"sliding_window_pattern", {"\"LLG\"", "6.0", "[6]"}, "an integer", "6"},
        {"_sliding_window_pattern", {"\"6\"", "true", "{}"}, "an integer", "6"},
        {"mlp_only_layers", {"0", "\"0\"", "[0, \"1\"]"}, "a list of integers", "[0, 1]"},
    };
    char text[400], cause[120];
    nb_config cfg;
    nb_error e;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t k = 0; k < 5; k++) {
            const char *value = k < 3 ? cases[i].wrong[k] : k == 3 ? cases[i].right : "null";
            snprintf(
                text, sizeof text,
                "{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"vocab_size\":384,\"hidden_size\":96,"
                "\"num_attention_heads\":6,\"intermediate_size\":192,\"%s\":%s}",
                cases[i].key, value);
            json_t *root = parse(text);
            assert_int_equal(nb_config_from_json(root, "dir/config.json", &cfg, &e),
                             k < 3 ? NB_ERR_FORMAT : NB_OK);
            if (k < 3) {
                snprintf(cause, sizeof cause, "\"%s\" must be %s", cases[i].key, cases[i].says);
                assert_string_equal(e.cause, cause);
                assert_non_null(strstr(e.remedy, "original model's config.json"));
                assert_string_equal(e.file, "dir/config.json");
            }
            json_decref(root);
        }
    }
}

static void unknown_and_incomplete_configs(void **state)
{
    static const struct {
        const char *text;
        nb_status status;
        const char *cause;
    } cases[] = {
        {"{\"model_type\":\"mamba9\",\"num_hidden_layers\":7}", NB_ERR_UNSUPPORTED,
         "\"mamba9\" is not known; known ones: "},
        {"{}", NB_ERR_UNSUPPORTED, "no model_type"},
        {"{\"model_type\":3}", NB_ERR_UNSUPPORTED, "no model_type"},
        {"{\"model_type\":\"llama\"}", NB_ERR_MISSING, "num_hidden_layers"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":0}", NB_ERR_FORMAT, "num_hidden_layers"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":1000000}", NB_ERR_FORMAT, "num_hidden_layers"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":1}", NB_ERR_MISSING, "vocab_size"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"tie_word_embeddings\":1}", NB_ERR_FORMAT,
         "tie_word_embeddings"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *root = parse(cases[i].text);
        nb_config cfg;
        nb_error e;
        assert_int_equal(nb_config_from_json(root, "dir/config.json", &cfg, &e), cases[i].status);
        if (!strstr(e.cause, cases[i].cause)) fail_msg("\"%s\" does not say \"%s\"", e.cause, cases[i].cause);
        assert_string_equal(e.file, "dir/config.json");
        assert_ptr_equal(cfg.root, root); /* usable as far as it goes */
        if (i == 0) assert_int_equal(cfg.n_layers, 7);
        json_decref(root);
    }
    nb_config cfg;
    assert_int_equal(nb_config_from_json(NULL, "dir/config.json", &cfg, NULL), NB_ERR_UNSUPPORTED);
    assert_null(nb_config_get(&cfg, "hidden_size"));
}

static void deepseek_needs_its_layer_kinds(void **state)
{
    /* NB212: a re-saved config without compress_ratios or layer_types, or without num_hash_layers or mlp_layer_types */
    static const char base[] =
        "{\"model_type\":\"deepseek_v4\",\"num_hidden_layers\":2,\"vocab_size\":8,\"hidden_size\":8,"
        "\"num_attention_heads\":1,\"head_dim\":8,\"qk_rope_head_dim\":4,\"q_lora_rank\":8,\"o_groups\":1,"
        "\"o_lora_rank\":8,\"sliding_window\":8,\"n_routed_experts\":2,\"n_shared_experts\":1,"
        "\"num_experts_per_tok\":1,\"moe_intermediate_size\":8,\"hc_mult\":2,\"hc_sinkhorn_iters\":1,"
        "\"index_n_heads\":1,\"index_head_dim\":8,\"index_topk\":1%s}";
    static const struct {
        const char *more, *cause; /* cause NULL: fine */
    } cases[] = {
        {",\"compress_ratios\":[0,4],\"num_hash_layers\":1", NULL},
        {",\"layer_types\":[\"sliding_attention\",\"heavily_compressed_attention\"],\"compress_rates\":"
         "{\"heavily_compressed_attention\":128},\"mlp_layer_types\":[\"hash_moe\",\"moe\"]",
         NULL},
        {",\"num_hash_layers\":1", "compress_ratios[0]"},
        {",\"compress_ratios\":[0],\"num_hash_layers\":1", "compress_ratios[1]"},
        {",\"compress_ratios\":[0,-4],\"num_hash_layers\":1", "compress_ratios[1]"},
        {",\"compress_ratios\":[0,4]", "num_hash_layers"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[2000];
        nb_config cfg;
        nb_error e = {0};
        snprintf(text, sizeof text, base, cases[i].more);
        json_t *root = parse(text);
        nb_status s = nb_config_from_json(root, "config.json", &cfg, &e);
        assert_int_equal(s, cases[i].cause ? NB_ERR_MISSING : NB_OK);
        if (cases[i].cause && !strstr(e.cause, cases[i].cause)) fail_msg("\"%s\"", e.cause);
        json_decref(root);
    }
}

/* Numbers that no tensor's shape confirms, but that memory or time grows with. */
static void sizes_out_of_reason_are_refused(void **state)
{
    static const char base[] =
        "{\"model_type\":\"%s\",\"num_hidden_layers\":1,\"vocab_size\":8,\"hidden_size\":8,"
        "\"num_attention_heads\":1,\"num_key_value_heads\":1,\"head_dim\":8,\"intermediate_size\":8,"
        "\"qk_rope_head_dim\":4,\"q_lora_rank\":8,\"o_groups\":1,\"o_lora_rank\":8,\"sliding_window\":8,"
        "\"n_routed_experts\":2,\"n_shared_experts\":1,\"num_experts_per_tok\":1,"
        "\"moe_intermediate_size\":8,\"hc_mult\":2,\"hc_sinkhorn_iters\":1,\"index_n_heads\":1,"
        "\"index_head_dim\":8,\"index_topk\":1,\"compress_ratios\":[0],\"num_hash_layers\":1,\"%s\":%s}";
    static const struct {
        const char *type, *key, *value;
        nb_status want;
    } cases[] = {
        {"deepseek_v4", "index_topk", "1024", NB_OK}, /* as in V4-Pro */
        {"deepseek_v4", "index_topk", "67108864", NB_ERR_FORMAT},
        {"deepseek_v4", "hc_sinkhorn_iters", "1048576", NB_ERR_FORMAT},
        {"deepseek_v4", "hc_mult", "17", NB_ERR_FORMAT},
        {"deepseek_v4", "head_dim", "1073741824", NB_ERR_FORMAT},
        {"deepseek_v4", "n_routed_experts", "1048577", NB_ERR_FORMAT},
        {"llama", "head_dim", "65536", NB_OK},
        {"llama", "head_dim", "1073741824", NB_ERR_FORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[2000];
        nb_config cfg;
        nb_error e = {0};
        snprintf(text, sizeof text, base, cases[i].type, cases[i].key, cases[i].value); /* the last counts */
        json_t *root = parse(text);
        if (nb_config_from_json(root, "config.json", &cfg, &e) != cases[i].want)
            fail_msg("%s %s: \"%s\"", cases[i].key, cases[i].value, e.cause);
        if (cases[i].want != NB_OK && !strstr(e.cause, cases[i].key)) fail_msg("\"%s\"", e.cause);
        json_decref(root);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bare_non_finite_numbers_become_strings),
        cmocka_unit_test(other_text_stays_an_error),
        cmocka_unit_test(integers_and_numbers),
        cmocka_unit_test(derived_symbols),
        cmocka_unit_test(shape_expressions),
        cmocka_unit_test(text_config_comes_first),
        cmocka_unit_test(keys_of_the_wrong_type),
        cmocka_unit_test(unknown_and_incomplete_configs),
        cmocka_unit_test(deepseek_needs_its_layer_kinds),
        cmocka_unit_test(sizes_out_of_reason_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
