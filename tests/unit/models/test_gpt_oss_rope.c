/* A gpt-oss whose config has lost its rotary settings: engines differ in what they then take, so it is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "models/model.h"

static nb_status judge(json_t *scaling, nb_error *err)
{
    json_t *root = json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:[s], s:o}", "model_type",
        "gpt_oss", "num_hidden_layers", 1, "vocab_size", 64, "hidden_size", 64, "num_attention_heads", 2,
        "num_key_value_heads", 2, "head_dim", 32, "intermediate_size", 64, "num_local_experts", 4,
        "num_experts_per_tok", 2, "sliding_window", 8, "rms_norm_eps", 1e-5, "swiglu_limit", 7.0,
        "rope_theta", 150000.0, "layer_types", "full_attention", "rope_scaling", scaling);
    nb_config cfg;
    assert_non_null(root);
    assert_int_equal(nb_config_from_json(root, "config.json", &cfg, err), NB_OK);
    nb_status s = nb_model_judge_config(&cfg, err);
    json_decref(root);
    return s;
}

static void test_no_rope(void **unused)
{
    nb_error err = {0};
    assert_int_equal(judge(json_pack("{s:s, s:f}", "rope_type", "linear", "factor", 2.0), &err), NB_OK);
    assert_int_equal(judge(json_null(), &err), NB_ERR_MISSING);
    assert_non_null(strstr(err.cause, "rope_scaling"));
    assert_true(err.remedy[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_rope)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
