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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rotary_dim)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
