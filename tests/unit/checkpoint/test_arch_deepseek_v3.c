/* Which layers of the latent-attention families are dense and which have an indexer, in every spelling of the config; names of
 * drafting layers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/arch_deepseek_v3.h"

#define SIZES                                                                                                \
    "\"vocab_size\": 64, \"hidden_size\": 32, \"num_attention_heads\": 2, \"kv_lora_rank\": 16, "            \
    "\"qk_nope_head_dim\": 8, \"qk_rope_head_dim\": 4, \"v_head_dim\": 8, \"q_lora_rank\": 16, "             \
    "\"intermediate_size\": 32, \"n_routed_experts\": 4, \"num_experts_per_tok\": 2, "                       \
    "\"moe_intermediate_size\": 16, \"n_shared_experts\": 1, \"index_n_heads\": 2, \"index_head_dim\": 8, "  \
    "\"index_topk\": 4, "                                                                                    \
    "\"num_hidden_layers\": 6"

static json_t *root;

static nb_status open_config(const char *type, const char *rest, nb_config *cfg)
{
    char text[1024];
    snprintf(text, sizeof text, "{\"model_type\": \"%s\", " SIZES ", %s}", type, rest);
    json_decref(root);
    root = json_loads(text, 0, NULL);
    assert_non_null(root);
    nb_error err;
    return nb_config_from_json(root, "config.json", cfg, &err);
}

/* One letter a layer. */
static void expect(const char *type, const char *rest, bool (*of)(const nb_config *, int), const char *want)
{
    nb_config cfg;
    assert_int_equal(open_config(type, rest, &cfg), NB_OK);
    for (int l = 0; l < 6; l++)
        if (of(&cfg, l) != (want[l] == '1')) fail_msg("%s: layer %d", rest, l);
}

static void test_dense(void **unused)
{
    expect("deepseek_v3", "\"first_k_dense_replace\": 3, \"moe_layer_freq\": 1", nb_ds3_is_dense, "111000");
    expect("deepseek_v2", "\"first_k_dense_replace\": 1, \"moe_layer_freq\": 2", nb_ds3_is_dense, "110101");
    expect("glm4_moe_lite",
           "\"mlp_layer_types\": [\"dense\", \"sparse\", \"dense\", \"sparse\", \"sparse\", \"sparse\"]",
           nb_ds3_is_dense, "101000");
}

static void test_indexer(void **unused)
{
    static const char first[] = "\"first_k_dense_replace\": 1, ";
    const struct {
        const char *type, *rest, *want;
    } cases[] = {
        {"deepseek_v3", "\"x\": 1", "000000"},
        {"deepseek_v32", "\"x\": 1", "111111"},
        {"glm_moe_dsa",
         "\"indexer_types\": [\"full\", \"shared\", \"full\", \"shared\", \"shared\", \"full\"]", "101001"},
        {"glm_moe_dsa", "\"index_topk_pattern\": \"FSSFSF\"", "100101"},
        /* full where max(l - offset + 1, 0) is a multiple of the frequency, offset 2 when it is not given */
        {"glm_moe_dsa", "\"index_topk_freq\": 2", "110101"},
        {"glm_moe_dsa", "\"index_topk_freq\": 3, \"index_skip_topk_offset\": 1", "100100"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char rest[256];
        snprintf(rest, sizeof rest, "%s%s", first, cases[i].rest);
        expect(cases[i].type, rest, nb_ds3_has_indexer, cases[i].want);
    }
}

static void test_refused(void **unused)
{
    nb_config cfg;
    assert_int_equal(open_config("deepseek_v3", "\"x\": 1", &cfg), NB_ERR_MISSING);
    assert_int_equal(open_config("deepseek_v3", "\"mlp_layer_types\": [\"dense\"]", &cfg), NB_ERR_MISSING);
    assert_int_equal(
        open_config("glm_moe_dsa", "\"first_k_dense_replace\": 1, \"index_topk_pattern\": \"SFFFFF\"", &cfg),
        NB_ERR_MISSING);
}

static void test_drafts(void **unused)
{
    nb_config cfg;
    int64_t l, e;
    bool skipped;
    static const char config[] = "\"first_k_dense_replace\": 1, \"num_nextn_predict_layers\": 1";
    assert_int_equal(open_config("deepseek_v3", config, &cfg), NB_OK);
    assert_false(nb_arch_is_draft(&cfg, 5));
    assert_true(nb_arch_is_draft(&cfg, 6));
    assert_false(nb_arch_is_draft(&cfg, 7));
    /* what joins the block to the model is known; what a layer has is a row of the table, in a layer after the last */
    assert_null(nb_arch_identify(&cfg, "model.layers.6.eh_proj.weight", &l, &e, &skipped));
    assert_true(skipped);
    assert_non_null(nb_arch_identify(&cfg, "model.layers.6.self_attn.kv_b_proj.weight", &l, &e, &skipped));
    assert_true(l == 6 && !skipped);
    assert_null(nb_arch_identify(&cfg, "model.layers.7.eh_proj.weight", &l, &e, &skipped));
    assert_false(skipped);
    assert_null(nb_arch_identify(&cfg, "model.layers.5.eh_proj.weight", &l, &e, &skipped));
    assert_false(skipped);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_dense), cmocka_unit_test(test_indexer),
                                       cmocka_unit_test(test_refused), cmocka_unit_test(test_drafts)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    json_decref(root);
    return failed;
}
