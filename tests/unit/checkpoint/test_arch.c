/* The table resolver: every spelling of a row is found and led back to it; what is absent is named as this checkpoint would
 * store it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "checkpoint/arch.h"
#include "checkpoint/arch_deepseek_v4.h"
#include "checkpoint/folder.h"

static tempdir tmp;

#define LAYERS 4
#define EXPERTS 3
static const char config[] =
    "{\"model_type\":\"deepseek_v4\",\"num_hidden_layers\":4,\"vocab_size\":8,\"hidden_size\":8,\"num_"
    "attention_heads\":2,"
    "\"head_dim\":8,\"qk_rope_head_dim\":4,\"q_lora_rank\":8,\"o_groups\":2,\"o_lora_rank\":8,\"sliding_"
    "window\":8,"
    "\"n_routed_experts\":3,\"n_shared_experts\":1,\"num_experts_per_tok\":1,\"moe_intermediate_size\":8,"
    "\"hc_mult\":2,"
    "\"hc_sinkhorn_iters\":1,\"index_n_heads\":1,\"index_head_dim\":8,\"index_topk\":1,"
    "\"compress_ratios\":[0,4,128,4],\"num_hash_layers\":1}";

/* A checkpoint of empty tensors with these names, and its config. */
static nb_ckpt *open_names(const char *const *names, size_t n, nb_config *cfg)
{
    folder_tensor *t = calloc(n, sizeof *t);
    nb_ckpt *c = NULL;
    assert_non_null(t);
    for (size_t i = 0; i < n; i++) t[i] = (folder_tensor){names[i], NB_DT_U8, 1, {0}, NULL};
    folder_text(&tmp, "config.json", config);
    folder_write(&tmp, "model.safetensors", t, n);
    free(t);
    assert_int_equal(nb_ckpt_open(tmp.path, NULL, NULL, &c, NULL), NB_OK);
    assert_int_equal(nb_config_init(c, cfg, NULL), NB_OK);
    return c;
}

static void every_documented_spelling_is_found(void **state)
{
    static const struct {
        int row;
        const char *stored; /* a module for linears */
    } cases[] = {
        {DS4_EMBED, "embed"},
        {DS4_EMBED, "model.embed_tokens"},
        {DS4_HEAD, "head"},
        {DS4_HEAD, "lm_head"},
        {DS4_NORM, "norm.weight"},
        {DS4_NORM, "model.norm.weight"},
        {DS4_WQ_A, "layers.1.attn.wq_a"},
        {DS4_WQ_A, "model.layers.1.self_attn.q_a_proj"},
        {DS4_WQ_A, "model.layers.1.attn.wq_a"}, /* transformers' own mixture */
        {DS4_Q_NORM, "model.layers.1.self_attn.q_a_norm.weight"},
        {DS4_Q_NORM, "model.layers.1.self_attn.q_a_layernorm.weight"},
        {DS4_KV_NORM, "model.layers.1.attn.norm.weight"},
        {DS4_SINK, "model.layers.1.self_attn.attn_sink"},
        {DS4_SINK, "model.layers.1.self_attn.sinks"},
        {DS4_COMP_WKV, "layers.1.attn.compressor.wkv"},
        {DS4_COMP_WKV, "model.layers.1.self_attn.compressor.kv_proj"},
        {DS4_COMP_WKV, "model.layers.1.self_attn.compressor.wkv"},
        {DS4_COMP_APE, "model.layers.1.self_attn.compressor.position_bias"},
        {DS4_INDEX_WQ_B, "layers.1.attn.indexer.wq_b"},
        {DS4_INDEX_WQ_B, "model.layers.1.self_attn.compressor.indexer.q_b_proj"},
        {DS4_INDEX_WQ_B, "model.layers.1.self_attn.indexer.wq_b"},
        {DS4_INDEX_WEIGHTS, "model.layers.1.self_attn.compressor.indexer.scorer.weights_proj"},
        {DS4_INDEX_WEIGHTS, "model.layers.1.self_attn.compressor.indexer.weights_proj"},
        {DS4_INDEX_WKV, "layers.1.attn.indexer.compressor.wkv"},
        {DS4_INDEX_WKV, "model.layers.1.self_attn.compressor.indexer.kv_proj"},
        {DS4_INDEX_NORM, "layers.1.attn.indexer.compressor.norm.weight"},
        {DS4_INDEX_NORM, "model.layers.1.self_attn.compressor.indexer.kv_norm.weight"},
        {DS4_GATE_BIAS, "layers.1.ffn.gate.bias"},
        {DS4_GATE_BIAS, "model.layers.1.mlp.gate.e_score_correction_bias"},
        {DS4_TID2EID, "model.layers.1.mlp.gate.tid2eid"},
        {DS4_W1, "layers.1.ffn.experts.2.w1"},
        {DS4_W1, "model.layers.1.mlp.experts.2.gate_proj"},
        {DS4_W1, "model.layers.1.ffn.experts.2.wgate"},
        {DS4_W2, "model.layers.1.ffn.experts.2.down_proj"},
        {DS4_SHARED_W3, "model.layers.1.mlp.shared_experts.up_proj"},
        {DS4_HC_ATTN_FN, "model.layers.1.attn_hc.fn"},
        {DS4_HC_HEAD_FN, "model.hc_head.hc_fn"},
        {DS4_HC_HEAD_SCALE, "hc_head_scale"},
        {DS4_ATTN_NORM, "model.layers.1.input_layernorm.weight"},
        {DS4_FFN_NORM, "layers.1.ffn_norm.weight"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const nb_arch_tensor *row = &nb_arch_deepseek_v4.tensors[cases[i].row];
        bool module = row->role == NB_ROLE_LINEAR || row->role == NB_ROLE_EMBED || row->role == NB_ROLE_HEAD;
        char stored[200], found[256];
        const char *name = stored;
        nb_config cfg;
        const nb_tensor_info *t = NULL;
        int64_t l, e;
        bool skipped;
        snprintf(stored, sizeof stored, "%s%s", cases[i].stored,
                 module ? i % 2 ? ".weight" : ".weight_packed" : "");
        nb_ckpt *c = open_names(&name, 1, &cfg);
        if (!nb_arch_find(c, &cfg, row, 1, 2, found, sizeof found, &t)) fail_msg("%s not found", stored);
        assert_string_equal(found, cases[i].stored);
        assert_true(module ? !t : t == nb_ckpt_at(c, 0));
        assert_ptr_equal(nb_arch_identify(&cfg, stored, &l, &e, &skipped), row);
        assert_int_equal(l, strstr(stored, "layers.") ? 1 : -1);
        assert_int_equal(e, strstr(stored, ".experts.") ? 2 : -1);
        nb_ckpt_close(c);
    }
}

static void expect_guess(nb_ckpt *c, const nb_config *cfg, int row, int64_t l, int64_t e,
                         const char *expected)
{
    char name[256];
    const nb_tensor_info *t;
    assert_false(nb_arch_find(c, cfg, &nb_arch_deepseek_v4.tensors[row], l, e, name, sizeof name, &t));
    assert_null(t);
    assert_string_equal(name, expected);
}

static void an_absent_tensor_is_named_as_this_checkpoint_would(void **state)
{
    /* transformers' names but for one layer of the untidy mixture */
    static const char *const names[] = {
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.q_a_proj.weight",
        "model.layers.0.self_attn.q_b_proj.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.mlp.experts.0.gate_proj.weight",
        "model.layers.0.mlp.experts.1.gate_proj.weight",
        "model.layers.0.mlp.experts.0.up_proj.weight",
        "model.layers.2.self_attn.o_b_proj.weight",
    };
    nb_config cfg;
    nb_ckpt *c = open_names(names, sizeof names / sizeof *names, &cfg);
    expect_guess(c, &cfg, DS4_WQ_A, 3, 0, "model.layers.3.self_attn.q_a_proj");
    expect_guess(c, &cfg, DS4_W1, 0, 2, "model.layers.0.mlp.experts.2.gate_proj"); /* as the other experts */
    expect_guess(c, &cfg, DS4_W3, 3, 2, "model.layers.3.mlp.experts.2.up_proj");
    expect_guess(c, &cfg, DS4_WKV, 1, 0, "model.layers.1.self_attn.kv_proj"); /* nowhere: by vote */
    expect_guess(c, &cfg, DS4_W2, 1, 1, "model.layers.1.mlp.experts.1.down_proj");
    expect_guess(c, &cfg, DS4_FFN_NORM, 0, 0, "model.layers.0.post_attention_layernorm.weight");
    expect_guess(c, &cfg, DS4_NORM, 0, 0, "model.norm.weight");
    nb_ckpt_close(c);

    static const char *const native[] = {"embed.weight", "layers.0.attn.wq_a.weight",
                                         "layers.0.ffn.gate.weight"};
    c = open_names(native, 3, &cfg);
    expect_guess(c, &cfg, DS4_WKV, 1, 0, "layers.1.attn.wkv");
    expect_guess(c, &cfg, DS4_W2, 1, 1, "layers.1.ffn.experts.1.w2");
    expect_guess(c, &cfg, DS4_HEAD, 0, 0, "head");
    nb_ckpt_close(c);
}

static void identify(const nb_config *cfg, const char *name, int row, int64_t l, int64_t e, bool skipped)
{
    int64_t gl = 7, ge = 7;
    bool gs;
    const nb_arch_tensor *t = nb_arch_identify(cfg, name, &gl, &ge, &gs);
    if (t != (row < 0 ? NULL : &nb_arch_deepseek_v4.tensors[row])) fail_msg("%s: wrong row", name);
    assert_int_equal(gl, l);
    assert_int_equal(ge, e);
    assert_int_equal(gs, skipped);
}

static void names_lead_back_to_rows(void **state)
{
    static const char *const none[] = {"x"};
    nb_config cfg;
    nb_ckpt *c = open_names(none, 1, &cfg);
    static const char *const parts[] = {"weight",         "weight_packed",      "weight_scale",
                                        "weight_scale_2", "input_scale",        "weight_global_scale",
                                        "scale",          "input_global_scale", "weight_scale_inv"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char name[128];
        snprintf(name, sizeof name, "layers.12.ffn.experts.345.w2.%s", parts[i]);
        identify(&cfg, name, DS4_W2, 12, 345,
                 false); /* indices beyond the config are the doctor's business */
    }
    identify(&cfg, "layers.0.ffn.experts.1.w2", DS4_W2, 0, 1, false);
    identify(&cfg, "mtp.0.ffn.experts.1.w2.weight", -1, -1, -1, true);
    identify(&cfg, "model.mtp.0.norm.weight", -1, -1, -1, true);
    identify(&cfg, "layers.0.attn.wkv.k_scale", -1, -1, -1, true);
    identify(&cfg, "layers.0.ffn.gate.bias", DS4_GATE_BIAS, 0, -1, false);
    identify(&cfg, "layers.0.attn.wq_a.bias", -1, -1, -1,
             false); /* no row: a loader must not pass over a bias */
    identify(&cfg, "layers.0.attn.wq_a.weight_scale_2_double_scale", -1, -1, -1, false);
    identify(&cfg, "layers.0.ffn.experts.gate_proj.1.weight", -1, -1, -1, false);
    identify(&cfg, "layers.00.attn.wq_a.weight", -1, -1, -1, false);
    identify(&cfg, "layers..attn.wq_a.weight", -1, -1, -1, false);
    identify(&cfg, "layers.-1.attn.wq_a.weight", -1, -1, -1, false);
    identify(&cfg, "layers.12345678901.attn.wq_a.weight", -1, -1, -1, false);
    identify(&cfg, "backbone.embed.weight", -1, -1, -1, false);
    identify(&cfg, "embed.weight.weight", -1, -1, -1, false);
    identify(&cfg, "", -1, -1, -1, false);
    nb_ckpt_close(c);
}

static void canonical_names_and_ranges(void **state)
{
    static const char *const none[] = {"x"};
    nb_config cfg;
    nb_ckpt *c = open_names(none, 1, &cfg);
    char name[64], small[8];
    const nb_arch_tensor *t = nb_arch_deepseek_v4.tensors;
    nb_arch_name(&t[DS4_INDEX_WQ_B], 3, 0, name, sizeof name);
    assert_string_equal(name, "layers.3.attn.indexer.wq_b");
    nb_arch_name(&t[DS4_W1], 3, 2, name, sizeof name);
    assert_string_equal(name, "layers.3.ffn.experts.2.w1");
    nb_arch_name(&t[DS4_NORM], 3, 2, name, sizeof name);
    assert_string_equal(name, "norm.weight");
    nb_arch_name(&t[DS4_W1], 3, 2, small, sizeof small); /* does not fit: cut, still a string */
    assert_true(strlen(small) < sizeof small);
    assert_int_equal(nb_arch_layers(&cfg, &t[DS4_W1]), LAYERS);
    assert_int_equal(nb_arch_experts(&cfg, &t[DS4_W1]), EXPERTS);
    assert_int_equal(nb_arch_layers(&cfg, &t[DS4_NORM]), 1);
    assert_int_equal(nb_arch_experts(&cfg, &t[DS4_NORM]), 1);
    assert_int_equal(nb_arch_experts(&cfg, &t[DS4_WQ_A]), 1);
    nb_ckpt_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_documented_spelling_is_found),
        cmocka_unit_test(an_absent_tensor_is_named_as_this_checkpoint_would),
        cmocka_unit_test(names_lead_back_to_rows),
        cmocka_unit_test(canonical_names_and_ranges),
    };
    tempdir_make(&tmp);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tempdir_remove(&tmp);
    return failed;
}
