/* Which columns of a head rotate, as a config says it: never more than the head has, always in pairs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "models/model.h"

/* What opening says of a MiniMax-M2 whose heads have 32 columns, of which `rotary` rotate. */
static nb_status judge(int rotary, nb_error *err)
{
    json_t *root = json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:i}", "model_type", "minimax_m2",
        "num_hidden_layers", 1, "vocab_size", 64, "hidden_size", 96, "num_attention_heads", 6,
        "num_key_value_heads", 2, "head_dim", 32, "intermediate_size", 48, "num_local_experts", 8,
        "num_experts_per_tok", 2, "rms_norm_eps", 1e-6, "rope_theta", 5e6, "rotary_dim", rotary);
    nb_config cfg;
    assert_non_null(root);
    assert_int_equal(nb_config_from_json(root, "config.json", &cfg, err), NB_OK);
    nb_status s = nb_model_judge_config(&cfg, err);
    json_decref(root);
    return s;
}

static void test_rotary_dim(void **unused)
{
    nb_error err = {0};
    assert_int_equal(judge(16, &err), NB_OK);
    assert_int_equal(judge(32, &err), NB_OK);
    const int wrong[] = {34, 4096, 15};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(judge(wrong[i], &err), NB_ERR_FORMAT);
        assert_non_null(strstr(err.cause, "rotary_dim"));
        assert_true(err.remedy[0]);
    }
}

/* A llama whose config says so rotates half a head in other engines and all of it in transformers: neither is guessed. */
static void test_no_share(void **unused)
{
    const char *const wrong[] = {"{\"partial_rotary_factor\": 0.5, \"rope_theta\": 10000.0}",
                                 "{\"rotary_dim\": 16, \"rope_theta\": 10000.0}",
                                 "{\"rope_parameters\": {\"rope_theta\": 1e4, \"rope_type\": \"default\", "
                                 "\"partial_rotary_factor\": 0.5}}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        nb_error err = {0};
        nb_config cfg;
        json_t *root =
            json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:f}", "model_type", "llama", "num_hidden_layers",
                      1, "vocab_size", 64, "hidden_size", 64, "num_attention_heads", 2, "num_key_value_heads",
                      2, "intermediate_size", 48, "rms_norm_eps", 1e-6);
        json_t *rope = json_loads(wrong[i], 0, NULL);
        assert_int_equal(json_object_update(root, rope), 0);
        assert_int_equal(nb_config_from_json(root, "config.json", &cfg, &err), NB_OK);
        assert_int_equal(nb_model_judge_config(&cfg, &err), NB_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.cause, "partial_rotary_factor"));
        json_decref(rope);
        json_decref(root);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rotary_dim), cmocka_unit_test(test_no_share)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
