/* Configs as transformers 5 saves them: Gemma 4's sizes by layer, Nemotron-H's layers as a list alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/arch.h"

#define GEMMA4                                                                                               \
    "{\"model_type\": \"gemma4_text\", \"num_hidden_layers\": 3, \"vocab_size\": 64, \"hidden_size\": 32,"   \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16, \"intermediate_size\": 48,"   \
    "\"sliding_window\": 8, \"attention_k_eq_v\": true, "

static nb_status read_config(const char *json, json_t **root, nb_config *cfg, nb_error *err)
{
    *err = (nb_error){0};
    *root = json_loads(json, 0, NULL);
    assert_non_null(*root);
    return nb_config_from_json(*root, "config.json", cfg, err);
}

static int64_t at(const nb_config *cfg, const char *key, int layer)
{
    int64_t v;
    assert_int_equal(nb_config_int(cfg, key, layer, 1, 1 << 20, &v, NULL), NB_OK);
    return v;
}

static void test_sizes_by_layer(void **unused)
{
    nb_error err;
    nb_config cfg;
    json_t *root;
    assert_int_equal(
        read_config(GEMMA4 "\"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\"],"
                           "\"per_layer_config\": {\"0\": {\"head_dim\": 32, \"num_key_value_heads\": 1},"
                           "\"2\": {\"head_dim\": 32, \"num_key_value_heads\": 1}}}",
                    &root, &cfg, &err),
        NB_OK);
    assert_int_equal(at(&cfg, "head_dim", 0), 32);
    assert_int_equal(at(&cfg, "head_dim", 1), 16);
    assert_int_equal(at(&cfg, "num_key_value_heads", 1), 2);
    assert_int_equal(at(&cfg, "num_key_value_heads", 2), 1);
    json_decref(root);
}

static void test_other_sizes_are_refused(void **unused)
{
    static const char *const wrong[] = {
        GEMMA4 "\"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\"],"
               "\"per_layer_config\": {\"0\": {\"head_dim\": 32}}}", /* layer 2 is like layer 0 */
        GEMMA4 "\"layer_types\": [\"sliding_attention\", \"sliding_attention\", \"full_attention\"],"
               "\"per_layer_config\": {\"0\": {\"head_dim\": 32}}}",
        GEMMA4 "\"layer_types\": [\"sliding_attention\", \"sliding_attention\", \"full_attention\"],"
               "\"per_layer_config\": {\"2\": {\"intermediate_size\": 96}}}",
        GEMMA4 "\"layer_types\": [\"full_attention\", \"full_attention\", \"sliding_attention\"],"
               "\"global_head_dim\": 16}",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        nb_error err;
        nb_config cfg;
        json_t *root;
        assert_int_equal(read_config(wrong[i], &root, &cfg, &err), NB_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.cause, "per_layer_config"));
        assert_true(err.remedy[0]);
        json_decref(root);
    }
}

static void test_global_size_is_needed(void **unused)
{
    nb_error err;
    nb_config cfg;
    json_t *root;
    assert_int_equal(
        read_config(GEMMA4
                    "\"layer_types\": [\"sliding_attention\", \"sliding_attention\", \"full_attention\"]}",
                    &root, &cfg, &err),
        NB_ERR_MISSING);
    assert_non_null(strstr(err.cause, "global_head_dim"));
    json_decref(root);
}

static void test_layers_are_counted(void **unused)
{
    nb_error err;
    nb_config cfg;
    json_t *root;
    assert_int_equal(read_config("{\"model_type\": \"nemotron_h\", \"vocab_size\": 64, \"hidden_size\": 32,"
                                 "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 16,"
                                 "\"mamba_num_heads\": 2, \"mamba_head_dim\": 16, \"n_groups\": 1,"
                                 "\"ssm_state_size\": 16, \"conv_kernel\": 4, \"intermediate_size\": 48,"
                                 "\"layers_block_type\": [\"mamba\", \"mlp\", \"attention\"]}",
                                 &root, &cfg, &err),
                     NB_OK);
    assert_int_equal(cfg.n_layers, 3);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_by_layer), cmocka_unit_test(test_other_sizes_are_refused),
        cmocka_unit_test(test_global_size_is_needed), cmocka_unit_test(test_layers_are_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
