/*
 * The config of a much-used checkpoint of each family: the table's shapes make the number of parameters that its publisher counts,
 * the forward pass takes the config, and the cache is planned for 256k positions without overflow.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/folder.h"
#include "engine/pages.h"
#include "models/model.h"

typedef struct shape {
    const char *name, *config;
    uint64_t parameters; /* as published; the comment says how many are left out here */
    uint64_t kv_cols;    /* F32 values that one token takes in all layers' keys and values */
} shape;

#define BASE                                                                                                 \
    "\"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-6, \"tie_word_embeddings\": false, \"sliding_window\": " \
    "null, "

#define LATENT                                                                                               \
    "\"kv_lora_rank\": 512, \"qk_rope_head_dim\": 64, \"n_shared_experts\": 1, \"norm_topk_prob\": true, "   \
    "\"scoring_func\": \"sigmoid\", \"topk_method\": \"noaux_tc\", \"moe_layer_freq\": 1, "                  \
    "\"attention_bias\": false, "                                                                            \
    "\"num_nextn_predict_layers\": 1, \"max_position_embeddings\": 262144, "

/* Five layers that slide, then one that sees everything; six of each kind in turn. */
#define SLIDE "\"sliding_attention\", "
#define FULL "\"full_attention\""
#define SIX SLIDE SLIDE SLIDE SLIDE SLIDE FULL
#define TURNS SLIDE FULL ", " SLIDE FULL ", " SLIDE FULL
#define GEMMA                                                                                                \
    "\"hidden_activation\": \"gelu_pytorch_tanh\", \"rms_norm_eps\": 1e-6, \"tie_word_embeddings\": true, "  \
    "\"sliding_window\": 1024, \"vocab_size\": 262144, \"max_position_embeddings\": 262144, "
#define GEMMA4                                                                                               \
    GEMMA "\"model_type\": \"gemma4_text\", \"head_dim\": 256, \"global_head_dim\": 512, "                   \
          "\"final_logit_softcapping\": 30.0, \"rope_parameters\": {\"sliding_attention\": {\"rope_type\": " \
          "\"default\", \"rope_theta\": 10000.0}, \"full_attention\": {\"rope_type\": \"proportional\", "    \
          "\"rope_theta\": 1000000.0, \"partial_rotary_factor\": 0.25}}, "

static const shape shapes[] = {
    {"Llama-3.3-70B",
     "{" BASE "\"model_type\": \"llama\", \"hidden_size\": 8192, \"intermediate_size\": 28672, "
     "\"num_hidden_layers\": 80, "
     "\"num_attention_heads\": 64, \"num_key_value_heads\": 8, \"head_dim\": 128, \"vocab_size\": 128256, "
     "\"rope_theta\": 500000.0, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, "
     "\"low_freq_factor\": 1.0, "
     "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}, \"max_position_embeddings\": "
     "262144}",
     70553706496, 80 * 2 * 8 * 128},
    {"Qwen2.5-7B",
     "{" BASE "\"model_type\": \"qwen2\", \"hidden_size\": 3584, \"intermediate_size\": 18944, "
     "\"num_hidden_layers\": 28, "
     "\"num_attention_heads\": 28, \"num_key_value_heads\": 4, \"vocab_size\": 152064, \"rope_theta\": "
     "1000000.0, "
     "\"use_sliding_window\": false, \"max_window_layers\": 28, \"max_position_embeddings\": 262144}",
     7615616512, 28 * 2 * 4 * 128},
    {"Qwen3-32B",
     "{" BASE "\"model_type\": \"qwen3\", \"hidden_size\": 5120, \"intermediate_size\": 25600, "
     "\"num_hidden_layers\": 64, "
     "\"num_attention_heads\": 64, \"num_key_value_heads\": 8, \"head_dim\": 128, \"vocab_size\": 151936, "
     "\"rope_theta\": 1000000, \"attention_bias\": false, \"max_position_embeddings\": 262144}",
     32762123264, 64 * 2 * 8 * 128},
    {"Qwen3-30B-A3B",
     "{" BASE "\"model_type\": \"qwen3_moe\", \"hidden_size\": 2048, \"intermediate_size\": 6144, "
     "\"moe_intermediate_size\": 768, \"num_experts\": 128, \"num_experts_per_tok\": 8, \"norm_topk_prob\": "
     "true, "
     "\"decoder_sparse_step\": 1, \"mlp_only_layers\": [], \"num_hidden_layers\": 48, "
     "\"num_attention_heads\": 32, "
     "\"num_key_value_heads\": 4, \"head_dim\": 128, \"vocab_size\": 151936, \"rope_theta\": 1000000.0, "
     "\"max_position_embeddings\": 262144}",
     30532122624, 48 * 2 * 4 * 128},
    {"Mistral-Small-24B",
     "{" BASE "\"model_type\": \"mistral\", \"hidden_size\": 5120, \"intermediate_size\": 32768, "
     "\"num_hidden_layers\": 40, "
     "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"head_dim\": 128, \"vocab_size\": 131072, "
     "\"rope_theta\": 100000000.0, \"max_position_embeddings\": 262144}",
     23572403200, 40 * 2 * 8 * 128},
    {"Mixtral-8x7B",
     "{" BASE "\"model_type\": \"mixtral\", \"hidden_size\": 4096, \"intermediate_size\": 14336, "
     "\"num_hidden_layers\": 32, "
     "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"num_local_experts\": 8, "
     "\"num_experts_per_tok\": 2, "
     "\"vocab_size\": 32000, \"rope_theta\": 1000000.0, \"max_position_embeddings\": 262144}",
     46702792704, 32 * 2 * 8 * 128},
    {"Phi-4",
     "{" BASE "\"model_type\": \"phi3\", \"hidden_size\": 5120, \"intermediate_size\": 17920, "
     "\"num_hidden_layers\": 40, "
     "\"num_attention_heads\": 40, \"num_key_value_heads\": 10, \"vocab_size\": 100352, \"rope_theta\": "
     "250000, "
     "\"rope_scaling\": null, \"partial_rotary_factor\": 1.0, \"max_position_embeddings\": 262144}",
     14659507200, 40 * 2 * 10 * 128},
    /* 62 layers of: attention 3072 * (6144 + 2 * 1024) + 6144 * 3072, norms 2 * 3072 + 6144 + 1024, router 256 * 3072 + 256,
     * experts 256 * 3 * 3072 * 1536; embedding and head 2 * 200064 * 3072; norm 3072 */
    {"MiniMax-M2",
     "{" BASE "\"model_type\": \"minimax_m2\", \"hidden_size\": 3072, \"intermediate_size\": 1536, "
     "\"num_local_experts\": 256, \"num_experts_per_tok\": 8, \"num_hidden_layers\": 62, "
     "\"num_attention_heads\": 48, "
     "\"num_key_value_heads\": 8, \"head_dim\": 128, \"rotary_dim\": 64, \"vocab_size\": 200064, "
     "\"rope_theta\": 5000000, "
     "\"scoring_func\": \"sigmoid\", \"use_qk_norm\": true, \"qk_norm_type\": \"per_layer\", "
     "\"use_routing_bias\": true, "
     "\"shared_intermediate_size\": 0, \"max_position_embeddings\": 262144}",
     62ull * (3072ull * (6144 + 2048) + 6144 * 3072 + 2 * 3072 + 6144 + 1024 + 256 * 3072 + 256 +
              256ull * 3 * 3072 * 1536) +
         2ull * 200064 * 3072 + 3072,
     62 * 2 * 8 * 128},
    /* 92 layers of: attention 5120 * (12288 + 2 * 1024) + 12288 * 5120, biases 12288 + 2 * 1024, norms 2 * 5120 + 2 * 128; 3 dense
     * MLPs 3 * 5120 * 12288; 89 times router 160 * 5120 + 160, experts 161 * 3 * 5120 * 1536; embedding and head 2 * 151552 * 5120; norm 5120 */
    {"GLM-4.6",
     "{" BASE "\"model_type\": \"glm4_moe\", \"hidden_size\": 5120, \"intermediate_size\": 12288, "
     "\"moe_intermediate_size\": 1536, \"n_routed_experts\": 160, \"n_shared_experts\": 1, "
     "\"num_experts_per_tok\": 8, "
     "\"n_group\": 1, \"topk_group\": 1, \"norm_topk_prob\": true, \"routed_scaling_factor\": 2.5, "
     "\"first_k_dense_replace\": 3, \"use_qk_norm\": true, \"attention_bias\": true, \"num_hidden_layers\": "
     "92, "
     "\"num_attention_heads\": 96, \"num_key_value_heads\": 8, \"head_dim\": 128, \"partial_rotary_factor\": "
     "0.5, "
     "\"vocab_size\": 151552, \"rope_theta\": 1000000, \"max_position_embeddings\": 262144}",
     92ull * (5120ull * (12288 + 2048) + 12288ull * 5120 + 12288 + 2048 + 2 * 5120 + 2 * 128) +
         3ull * 3 * 5120 * 12288 + 89ull * (160 * 5120 + 160 + 161ull * 3 * 5120 * 1536) +
         2ull * 151552 * 5120 + 5120,
     92 * 2 * 8 * 128},
    /* Without the drafting layer. Cached: 512 + 64 of each layer, and 128 of each indexer. */
    {"DeepSeek-V3.1",
     "{" BASE LATENT "\"model_type\": \"deepseek_v3\", \"num_hidden_layers\": 61, \"hidden_size\": 7168, "
     "\"num_attention_heads\": 128, \"num_key_value_heads\": 128, \"q_lora_rank\": 1536, "
     "\"qk_nope_head_dim\": 128, \"v_head_dim\": 128, \"intermediate_size\": 18432, "
     "\"moe_intermediate_size\": 2048, \"n_routed_experts\": 256, \"num_experts_per_tok\": 8, "
     "\"first_k_dense_replace\": 3, \"vocab_size\": 129280, \"n_group\": 8, \"topk_group\": 4, "
     "\"routed_scaling_factor\": 2.5, \"rope_theta\": 10000, \"rope_scaling\": {\"type\": \"yarn\", "
     "\"factor\": 40, \"mscale\": 1.0, \"mscale_all_dim\": 1.0, \"beta_fast\": 32, \"beta_slow\": 1, "
     "\"original_max_position_embeddings\": 4096}}",
     671026419200, 61 * (512 + 64)},
    {"DeepSeek-V3.2",
     "{" BASE LATENT "\"model_type\": \"deepseek_v32\", \"num_hidden_layers\": 61, \"hidden_size\": 7168, "
     "\"num_attention_heads\": 128, \"num_key_value_heads\": 128, \"q_lora_rank\": 1536, "
     "\"qk_nope_head_dim\": 128, \"v_head_dim\": 128, \"intermediate_size\": 18432, "
     "\"moe_intermediate_size\": 2048, \"n_routed_experts\": 256, \"num_experts_per_tok\": 8, "
     "\"first_k_dense_replace\": 3, \"vocab_size\": 129280, \"n_group\": 8, \"topk_group\": 4, "
     "\"routed_scaling_factor\": 2.5, \"rope_theta\": 10000, \"rope_scaling\": {\"type\": \"yarn\", "
     "\"factor\": 40, \"mscale\": 1.0, \"mscale_all_dim\": 1.0, \"beta_fast\": 32, \"beta_slow\": 1, "
     "\"original_max_position_embeddings\": 4096}, \"index_n_heads\": 64, \"index_head_dim\": 128, "
     "\"index_topk\": 2048}",
     671877944064, 61 * (512 + 64 + 128)},
    {"Kimi-K2",
     "{" BASE LATENT "\"model_type\": \"kimi_k2\", \"num_hidden_layers\": 61, \"hidden_size\": 7168, "
     "\"num_attention_heads\": 64, \"num_key_value_heads\": 64, \"q_lora_rank\": 1536, \"qk_nope_head_dim\": "
     "128, \"v_head_dim\": 128, \"intermediate_size\": 18432, \"moe_intermediate_size\": 2048, "
     "\"n_routed_experts\": 384, \"num_experts_per_tok\": 8, \"first_k_dense_replace\": 1, \"vocab_size\": "
     "163840, \"n_group\": 1, \"topk_group\": 1, \"routed_scaling_factor\": 2.827, \"rope_theta\": 50000.0, "
     "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 32.0, \"mscale\": 1.0, \"mscale_all_dim\": 1.0, "
     "\"beta_fast\": 1.0, \"beta_slow\": 1, \"original_max_position_embeddings\": 4096}}",
     1026408232448, 61 * (512 + 64)},
    {"GLM-5",
     "{" BASE LATENT "\"model_type\": \"glm_moe_dsa\", \"num_hidden_layers\": 78, \"hidden_size\": 6144, "
     "\"num_attention_heads\": 64, \"num_key_value_heads\": 64, \"q_lora_rank\": 2048, \"qk_nope_head_dim\": "
     "192, \"v_head_dim\": 256, \"intermediate_size\": 12288, \"moe_intermediate_size\": 2048, "
     "\"n_routed_experts\": 256, \"num_experts_per_tok\": 8, \"first_k_dense_replace\": 3, \"vocab_size\": "
     "154880, \"n_group\": 1, \"topk_group\": 1, \"routed_scaling_factor\": 2.5, \"rope_parameters\": "
     "{\"rope_theta\": 1000000, \"rope_type\": \"default\"}, \"index_n_heads\": 32, \"index_head_dim\": 128, "
     "\"index_topk\": 2048, \"indexer_rope_interleave\": true}",
     743911218432, 78 * (512 + 64 + 128)},
    {"GLM-4.7-Flash",
     "{" BASE LATENT "\"model_type\": \"glm4_moe_lite\", \"num_hidden_layers\": 47, \"hidden_size\": 2048, "
     "\"num_attention_heads\": 20, \"num_key_value_heads\": 20, \"q_lora_rank\": 768, \"qk_nope_head_dim\": "
     "192, \"v_head_dim\": 256, \"intermediate_size\": 10240, \"moe_intermediate_size\": 1536, "
     "\"n_routed_experts\": 64, \"num_experts_per_tok\": 4, \"first_k_dense_replace\": 1, \"vocab_size\": "
     "154880, \"n_group\": 1, \"topk_group\": 1, \"routed_scaling_factor\": 1.8, \"rope_parameters\": "
     "{\"rope_theta\": 1000000, \"rope_type\": \"default\"}, \"partial_rotary_factor\": 1.0}",
     29943393920, 47 * (512 + 64)},
    /* Gemma counts 30.7 and 25.2 thousand million. Of each layer four norms (with experts seven) and its scalar, q and k norms;
     * projections of the two shapes; the MLP; experts and their router. */
    {"Gemma-4-31B",
     "{" GEMMA4 "\"hidden_size\": 5376, \"intermediate_size\": 21504, \"num_hidden_layers\": 60, "
     "\"num_attention_heads\": 32, \"num_key_value_heads\": 16, \"num_global_key_value_heads\": 4, "
     "\"attention_k_eq_v\": true, \"layer_types\": [" SIX ", " SIX ", " SIX ", " SIX ", " SIX ", " SIX
     ", " SIX ", " SIX ", " SIX ", " SIX "]}",
     262144ull * 5376 + 5376 + 60ull * (4 * 5376 + 1 + 3 * 5376 * 21504ull) +
         50ull * (2 * 256 + 5376 * (2 * 8192ull + 2 * 4096)) +
         10ull * (2 * 512 + 5376 * (2 * 16384ull + 2048)),
     50 * 2 * 16 * 256 + 10 * 2 * 4 * 512},
    {"Gemma-4-26B-A4B",
     "{" GEMMA4 "\"hidden_size\": 2816, \"intermediate_size\": 2112, \"num_hidden_layers\": 30, "
     "\"num_attention_heads\": 16, \"num_key_value_heads\": 8, \"num_global_key_value_heads\": 2, "
     "\"attention_k_eq_v\": true, \"enable_moe_block\": true, \"num_experts\": 128, \"top_k_experts\": 8, "
     "\"moe_intermediate_size\": 704, \"layer_types\": [" SIX ", " SIX ", " SIX ", " SIX ", " SIX "]}",
     262144ull * 2816 + 2816 +
         30ull * (8 * 2816 + 1 + 3 * 2816 * 2112ull + 128 * 2816 + 128 + 128 * 3 * 2816 * 704ull) +
         25ull * (2 * 256 + 2816 * (2 * 4096ull + 2 * 2048)) + 5ull * (2 * 512 + 2816 * (2 * 8192ull + 1024)),
     25 * 2 * 8 * 256 + 5 * 2 * 2 * 512},
    /* The form of E4B: 18 of 42 layers share keys and values, each has an embedding of 256. */
    {"Gemma-4-E4B",
     "{" GEMMA4 "\"hidden_size\": 2560, \"intermediate_size\": 10240, \"num_hidden_layers\": 42, "
     "\"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"attention_k_eq_v\": false, "
     "\"num_kv_shared_layers\": 18, \"hidden_size_per_layer_input\": 256, \"vocab_size_per_layer_input\": "
     "262144, \"layer_types\": [" SIX ", " SIX ", " SIX ", " SIX ", " SIX ", " SIX ", " SIX "]}",
     262144ull * 2560 + 2560 + 262144ull * 42 * 256 + 42ull * 256 * 2560 + 256 +
         42ull * (5 * 2560 + 1 + 3 * 2560 * 10240ull + 2 * 256 * 2560) + 35ull * (256 + 2560 * 2 * 2048ull) +
         7ull * (512 + 2560 * 2 * 4096ull) + 20ull * (256 + 2560 * 2 * 512ull) +
         4ull * (512 + 2560 * 2 * 1024ull),
     20 * 2 * 2 * 256 + 4 * 2 * 2 * 512},
    /* 116.8 thousand million */
    {"gpt-oss-120b",
     "{\"model_type\": \"gpt_oss\", \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-5, "
     "\"tie_word_embeddings\": "
     "false, \"attention_bias\": true, \"hidden_size\": 2880, \"intermediate_size\": 2880, "
     "\"num_hidden_layers\": 36, \"num_attention_heads\": 64, \"num_key_value_heads\": 8, \"head_dim\": 64, "
     "\"num_local_experts\": 128, \"num_experts_per_tok\": 4, \"sliding_window\": 128, \"vocab_size\": "
     "201088, "
     "\"swiglu_limit\": 7.0, \"rope_theta\": 150000, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": "
     "32.0, \"beta_fast\": 32.0, \"beta_slow\": 1.0, \"truncate\": false, "
     "\"original_max_position_embeddings\": 4096}, \"layer_types\": [" TURNS ", " TURNS ", " TURNS ", " TURNS
     ", " TURNS ", " TURNS "]}",
     116829156672, 36 * 2 * 8 * 64},
};

/* What the table asks for, over all layers and experts. */
static uint64_t parameters(const nb_config *cfg)
{
    uint64_t sum = 0, dims[4];
    for (size_t i = 0; i < cfg->arch->n_tensors; i++) {
        const nb_arch_tensor *t = &cfg->arch->tensors[i];
        for (int64_t l = 0; l < nb_arch_layers(cfg, t); l++) {
            if (t->when && !t->when(cfg, (int)l)) continue;
            size_t rank = nb_config_shape(cfg, t->shape, (int)l, dims, NULL);
            assert_true(rank > 0);
            uint64_t n = (uint64_t)nb_arch_experts(cfg, t);
            while (rank > 0) n *= dims[--rank];
            sum += n;
        }
    }
    return sum;
}

/* DeepSeek-V3.1 with 512 rows in columns: 4 * 7168 of the decoder; 1536 + 128 * (192 + 576 + 512 + 128 + 256) + 2 * 576 of latent
 * attention; 2 * 18432 dense; 2 * 2048 + 7168 shared; 256 + 2 * 8 of the router; 8 * (2 * 2048 + 7168) of experts. Both halves of
 * kv_b_proj in F32. */
static void check_work(const nb_model *m)
{
    const uint64_t cols = 4 * 7168 + 1536 + 128 * (192 + 576 + 512 + 128 + 256) + 2 * 576 + 2 * 18432 +
                          2 * 2048 + 7168 + 256 + 2 * 8 + 8 * (2 * 2048 + 7168);
    assert_int_equal(m->run_bytes, 512 * 4 * cols);
    assert_int_equal(m->derived_bytes, 61ull * 128 * (128 + 128) * 512 * 4);
    assert_int_equal(m->max_k, 18432);
}

static void test_real_shapes(void **unused)
{
    const folder_tensor none = {"x", NB_DT_F32, 1, {1}, NULL};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const shape *s = &shapes[i];
        tempdir dir;
        nb_model *m = NULL;
        nb_error err = {0};
        tempdir_make(&dir);
        tempdir_write(&dir, "config.json", s->config, strlen(s->config));
        folder_write(&dir, "model.safetensors", &none, 1);
        if (nb_model_outline(dir.path, 512, &m, &err) != NB_OK) fail_msg("%s: %s", s->name, err.cause);
        if (parameters(&m->cfg) != s->parameters)
            fail_msg("%s: %llu parameters, not %llu", s->name, (unsigned long long)parameters(&m->cfg),
                     (unsigned long long)s->parameters);
        if (strcmp(s->name, "DeepSeek-V3.1") == 0) check_work(m);
        uint64_t cols = 0;
        for (size_t k = 0; k < m->n_streams; k++) cols += m->streams[k].cols;
        assert_int_equal(cols, s->kv_cols);
        /* one sequence of 2^18 tokens, and 256 of them: its rows, and at most a tenth more for tables */
        for (size_t seqs = 1; seqs <= 256; seqs += 255) {
            const nb_pages_options opt = {.max_seqs = seqs, .max_context = 1 << 18, .max_rows = 512};
            const uint64_t have = nb_pages_bytes_for(m->streams, m->n_streams, &opt);
            uint64_t
                rows = 0,
                step =
                    0; /* of windows: what is seen, and the rows of a step beside a begun page or two each */
            for (size_t k = 0; k < m->n_streams; k++) {
                const nb_stream_decl *d = &m->streams[k];
                rows += (uint64_t)seqs * (d->window ? d->window : 1 << 18) * d->cols * 4;
                step += d->window ? (512 + (uint64_t)seqs * 48) * d->cols * 4 : 0;
            }
            assert_true(have >= rows && have <= rows + rows / 10 + step);
        }
        nb_model_free(m);
        tempdir_remove(&dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_real_shapes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
