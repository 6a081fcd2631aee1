/* Gemma 4's layers that take keys and values from earlier ones: how many is an integer, and leaves a layer to take them from. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/arch.h"

/* A Gemma 4 of two layers that slide and two that see everything, in turn. shared: JSON. */
static nb_status judge(const char *shared, nb_error *err)
{
    json_t *root = json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:[ssss], s:o}", "model_type", "gemma4_text",
        "num_hidden_layers", 4, "vocab_size", 64, "hidden_size", 96, "num_attention_heads", 4,
        "num_key_value_heads", 1, "head_dim", 32, "global_head_dim", 64, "intermediate_size", 192,
        "sliding_window", 24, "layer_types", "sliding_attention", "full_attention", "sliding_attention",
        "full_attention", "num_kv_shared_layers", json_loads(shared, JSON_DECODE_ANY, NULL));
    nb_config cfg;
    assert_non_null(root);
    nb_status s = nb_config_from_json(root, "config.json", &cfg, err);
    json_decref(root);
    return s;
}

static void test_shared_layers(void **unused)
{
    static const char *const good[] = {"null", "0", "2"}, *const bad[] = {"\"2\"", "2.0", "true",
                                                                          "-1",    "3",   "4"};
    nb_error err = {0};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_int_equal(judge(good[i], &err), NB_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(judge(bad[i], &err), NB_ERR_FORMAT);
        assert_non_null(strstr(err.cause, "num_kv_shared_layers"));
        assert_true(err.remedy[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shared_layers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
