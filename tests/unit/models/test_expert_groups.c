/*
 * Groups of one expert. DeepSeek-V3 and its like take a group for the sum of its two best experts: with one expert a group that is
 * nothing at all (transformers 5.24 ends with "selected index k out of range"), and refused. DeepSeek-V2 takes the best alone.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "models/model.h"

/* What opening says of a model of 4 experts in `groups` groups, 2 of which count. */
static nb_status judge(const char *special, int groups, nb_error *err)
{
    json_t *root = json_loads(special, 0, NULL);
    json_t *more = json_pack(
        "{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:f}",
        "num_hidden_layers", 1, "vocab_size", 64, "hidden_size", 32, "intermediate_size", 48,
        "num_attention_heads", 2, "num_key_value_heads", 2, "kv_lora_rank", 16, "qk_nope_head_dim", 16,
        "qk_rope_head_dim", 16, "v_head_dim", 16, "n_routed_experts", 4, "n_shared_experts", 1, "topk_group",
        2, "num_experts_per_tok", 2, "moe_intermediate_size", 16, "first_k_dense_replace", 0,
        "routed_scaling_factor", 2.5, "rms_norm_eps", 1e-6, "rope_theta", 10000.0);
    nb_config cfg;
    assert_non_null(root);
    assert_int_equal(json_object_update(root, more), 0);
    json_object_set_new(root, "n_group", json_integer(groups));
    assert_int_equal(nb_config_from_json(root, "config.json", &cfg, err), NB_OK);
    nb_status s = nb_model_judge_config(&cfg, err);
    json_decref(more);
    json_decref(root);
    return s;
}

static void test_sum_of_two(void **unused)
{
    static const char v3[] =
        "{\"model_type\": \"deepseek_v3\", \"q_lora_rank\": 16, \"norm_topk_prob\": true}";
    nb_error err = {0};
    assert_int_equal(judge(v3, 2, &err), NB_OK);
    assert_int_equal(judge(v3, 4, &err), NB_ERR_FORMAT);
    assert_non_null(strstr(err.cause, "4 groups"));
    assert_true(err.remedy[0]);
}

static void test_best_alone(void **unused)
{
    static const char v2[] = "{\"model_type\": \"deepseek_v2\", \"topk_method\": "
                             "\"group_limited_greedy\", \"norm_topk_prob\": false}";
    nb_error err = {0};
    assert_int_equal(judge(v2, 2, &err), NB_OK);
    assert_int_equal(judge(v2, 4, &err), NB_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sum_of_two), cmocka_unit_test(test_best_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
