/*
 * Lists with an entry a layer, in configs that are edited by hand: as many as there are layers, or more where transformers 5.24 loads
 * that (AutoConfig.from_pretrained and the model made of it, tried for each case here) and passes the further ones over.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/arch.h"

#define QWEN3                                                                                                \
    "\"model_type\": \"qwen3\", \"num_hidden_layers\": 2, \"vocab_size\": 64, \"hidden_size\": 32, "         \
    "\"intermediate_size\": 48, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 16"
#define LATENT(type)                                                                                         \
    "\"model_type\": \"" type "\", \"num_hidden_layers\": 2, \"vocab_size\": 64, \"hidden_size\": 32, "      \
    "\"intermediate_size\": 48, \"num_attention_heads\": 2, \"q_lora_rank\": 16, \"kv_lora_rank\": 16, "     \
    "\"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": 16, \"v_head_dim\": 16, \"n_routed_experts\": 4, "      \
    "\"n_shared_experts\": 1, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 16, "                   \
    "\"index_n_heads\": 2, \"index_head_dim\": 32, \"index_topk\": 8"
#define FULL "\"full_attention\""
#define FULL_TYPES "\"layer_types\": [" FULL ", " FULL "]"
#define NEMOTRON                                                                                             \
    "\"model_type\": \"nemotron_h\", \"num_hidden_layers\": 2, \"vocab_size\": 64, \"hidden_size\": 32, "    \
    "\"intermediate_size\": 48, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 16, "  \
    "\"mamba_num_heads\": 2, \"mamba_head_dim\": 16, \"n_groups\": 1, \"ssm_state_size\": 16, "              \
    "\"conv_kernel\": 4"

static void judge(const char *json, nb_status want, const char *spare, int64_t spares)
{
    nb_error err = {0};
    nb_config cfg;
    int64_t n;
    json_t *root = json_loads(json, 0, NULL);
    assert_non_null(root);
    if (nb_config_from_json(root, "config.json", &cfg, &err) != want) fail_msg("%s: %s", json, err.cause);
    if (want == NB_OK) {
        const char *list = nb_config_spare(&cfg, &n);
        assert_true(list ? spare && strcmp(list, spare) == 0 && n == spares : !spare);
    } else {
        assert_non_null(strstr(err.cause, spare));
        assert_true(err.remedy[0] && strcmp(err.file, "config.json") == 0);
    }
    json_decref(root);
}

static void test_one_for_each_layer(void **unused)
{
    judge("{" QWEN3 "}", NB_OK, NULL, 0);
    judge("{" QWEN3 ", \"layer_types\": null}", NB_OK, NULL, 0);
    judge("{" QWEN3 ", " FULL_TYPES "}", NB_OK, NULL, 0);
    judge("{" QWEN3 ", \"layer_types\": [" FULL "]}", NB_ERR_FORMAT, "layer_types has 1", 0);
    judge("{" QWEN3 ", \"layer_types\": [" FULL ", " FULL ", " FULL "]}", NB_ERR_FORMAT, "layer_types has 3",
          0);
    judge("{" LATENT("glm_moe_dsa") ", \"mlp_layer_types\": [\"dense\", \"sparse\", \"sparse\"]}",
          NB_ERR_FORMAT, "mlp_layer_types has 3", 0);
    judge("{" LATENT("glm_moe_dsa") ", \"first_k_dense_replace\": 1, \"indexer_types\": [\"full\"]}",
          NB_ERR_FORMAT, "indexer_types has 1", 0);
}

/* transformers makes as many layers as the pattern has and does not look at the number: config.json contradicts itself. */
static void test_pattern(void **unused)
{
    judge("{" NEMOTRON ", \"hybrid_override_pattern\": \"M-\"}", NB_OK, NULL, 0);
    judge("{" NEMOTRON ", \"hybrid_override_pattern\": \"M-M\"}", NB_ERR_FORMAT,
          "hybrid_override_pattern has 3", 0);
    judge("{" NEMOTRON ", \"layers_block_type\": [\"mamba\", \"mlp\", \"mamba\"]}", NB_ERR_FORMAT,
          "layers_block_type has 3", 0);
}

static void test_more_than_layers(void **unused)
{
    judge("{" LATENT("glm4_moe_lite") ", \"mlp_layer_types\": [\"dense\", \"sparse\", \"sparse\"]}", NB_OK,
          "mlp_layer_types", 1);
    judge("{" LATENT("glm_moe_dsa") ", \"first_k_dense_replace\": 1, "
                                    "\"indexer_types\": [\"full\", \"shared\", \"full\", \"shared\"]}",
          NB_OK, "indexer_types", 2);
    /* of a drafting layer, as releases have it */
    judge("{" LATENT("glm_moe_dsa") ", \"first_k_dense_replace\": 1, \"num_nextn_predict_layers\": 1, "
                                    "\"indexer_types\": [\"full\", \"shared\", \"full\"]}",
          NB_OK, NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_for_each_layer),
                                       cmocka_unit_test(test_pattern),
                                       cmocka_unit_test(test_more_than_layers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
