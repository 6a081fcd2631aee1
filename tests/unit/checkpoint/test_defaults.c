/*
 * Numbers that config.json leaves out: what the class makes of it that the published configs were written with (transformers 5.24,
 * configuration_*.py; tests/oracles/test_variants.py runs models made from such configs).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "checkpoint/arch.h"

static int64_t at(const char *json, const char *key)
{
    nb_config cfg;
    nb_error err;
    int64_t v = -1;
    json_t *root = json_loads(json, 0, NULL);
    assert_non_null(root);
    nb_config_from_json(root, "config.json", &cfg,
                        &err); /* most lack other keys; the look-up works all the same */
    nb_config_int(&cfg, key, -1, 1, 1 << 20, &v, NULL);
    json_decref(root);
    return v;
}

#define SHORT(type)                                                                                          \
    "{\"model_type\": \"" type                                                                               \
    "\", \"num_hidden_layers\": 2, \"hidden_size\": 96, \"num_attention_heads\": 6}"

static void test_head_dim(void **unused)
{
    assert_int_equal(at(SHORT("llama"), "head_dim"), 16);
    assert_int_equal(at(SHORT("qwen3_moe"), "head_dim"), 16);
    assert_int_equal(at(SHORT("glm4_moe"), "head_dim"), 16);
    assert_int_equal(at(SHORT("gpt_oss"), "head_dim"), 64);
    assert_int_equal(at(SHORT("qwen3"), "head_dim"), 128);
    assert_int_equal(at(SHORT("minimax_m2"), "head_dim"), 128);
    assert_int_equal(at(SHORT("nemotron_h"), "head_dim"), 128);
    assert_int_equal(at(SHORT("qwen3_next"), "head_dim"), 256);
    assert_int_equal(at(SHORT("qwen3_5_text"), "head_dim"), 256);
    assert_int_equal(at(SHORT("gemma4_text"), "head_dim"), -1); /* depends on the layer: not guessed */
}

/* The text_config of the published Gemma 3 4B. */
static void test_gemma3(void **unused)
{
    static const char json[] =
        "{\"model_type\": \"gemma3\", \"text_config\": {\"model_type\": \"gemma3_text\", \"hidden_size\": "
        "2560, "
        "\"intermediate_size\": 10240, \"num_hidden_layers\": 34, \"rope_scaling\": {\"factor\": 8.0, "
        "\"rope_type\": \"linear\"}, \"sliding_window\": 1024}}";
    nb_config cfg;
    nb_error err;
    double v;
    json_t *root = json_loads(json, 0, NULL);
    assert_int_equal(nb_config_from_json(root, "config.json", &cfg, &err), NB_OK);
    assert_int_equal(nb_config_num(&cfg, "rms_norm_eps", 0, 1, &v, &err), NB_OK);
    assert_true(v == 1e-6);
    assert_int_equal(nb_config_num(&cfg, "hidden_size", 0, 1e9, &v, &err), NB_OK);
    assert_true(v == 2560);
    assert_int_equal(nb_config_num(&cfg, "no_such_key", 0, 1, &v, &err), NB_ERR_MISSING);
    json_decref(root);
    assert_int_equal(at(json, "num_attention_heads"), 8);
    assert_int_equal(at(json, "num_key_value_heads"), 4);
    assert_int_equal(at(json, "head_dim"), 256);
    assert_int_equal(at(json, "vocab_size"), 262208);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_head_dim), cmocka_unit_test(test_gemma3)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
