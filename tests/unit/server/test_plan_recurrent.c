/* The plan of a model with large states at its full length, in the shape of Qwen3.6-35B-A3B: what each sequence takes against a
 * hand computation, and how many the plan lets run where that is much. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/ops.h"
#include "server/plan.h"
#include "tempdir.h"

static const char config[] =
    "{\"architectures\": [\"Qwen3_5MoeForConditionalGeneration\"], \"model_type\": \"qwen3_5_moe\", "
    "\"text_config\": {"
    "\"model_type\": \"qwen3_5_moe_text\", \"vocab_size\": 248320, \"hidden_size\": 2048, "
    "\"num_hidden_layers\": 40, "
    "\"full_attention_interval\": 4, \"num_attention_heads\": 16, \"num_key_value_heads\": 2, \"head_dim\": "
    "256, "
    "\"linear_num_key_heads\": 16, \"linear_num_value_heads\": 32, \"linear_key_head_dim\": 128, "
    "\"linear_value_head_dim\": 128, \"linear_conv_kernel_dim\": 4, \"rms_norm_eps\": 1e-6, \"num_experts\": "
    "256, "
    "\"num_experts_per_tok\": 8, \"moe_intermediate_size\": 512, \"shared_expert_intermediate_size\": 512, "
    "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e7, \"partial_rotary_factor\": "
    "0.25}, "
    "\"max_position_embeddings\": 262144}}";

#define GIB ((uint64_t)1 << 30)

/* Bytes of F32 in the 30 layers with a state: the state, a token of the scan, a token of the convolution. */
static const uint64_t state = 30ull * 4 * 32 * 128 * 128, token = 30ull * 4 * (16 * 128 + 32 * 128 + 32),
                      input = 30ull * 4 * (2 * 16 * 128 + 32 * 128);

static nb_status plan(const char *path, uint64_t memory, size_t seqs, bool fit, bool cache, nb_plan *p)
{
    const nb_plan_options o = {.memory = memory,
                               .share = 0.9,
                               .max_seqs = seqs,
                               .fit_seqs = fit,
                               .max_rows = 512,
                               .prefix_cache = cache};
    return nb_plan_make(path, &o, p, NULL);
}

static void large_states(void **unused)
{
    tempdir t;
    nb_plan p = {0};
    tempdir_make(&t);
    tempdir_write(&t, "config.json", config, sizeof config - 1);
    char file[128] = {0}; /* one tensor that nothing needs */
    int n = snprintf(file + 8, sizeof file - 8,
                     "{\"visual.x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}");
    file[0] = (char)n;
    tempdir_write(&t, "model.safetensors", file, 8 + (size_t)n + 1);

    /* two states, for a step may complete one while another is read; 4 pages of 16 tokens for a window of 32 that begins and ends
     * inside pages; 3 for a window of 4 */
    const uint64_t alone = 2 * state + 4 * 16 * token + 3 * 16 * input;
    assert_int_equal(NB_SCAN_CHUNK, 32);
    assert_int_equal(plan(t.path, 40 * GIB, 4, false, false, &p), NB_OK);
    assert_int_equal(p.max_context, 262144);
    assert_true(p.per_seq >= alone && p.per_seq < alone + (1 << 20)); /* and tables */
    /* 10 layers of keys and values: 2 heads of 256 */
    assert_true(p.kv > p.blocks * 16 * 10 * 4 * 2 * 2 * 256 && p.blocks >= 262144 / 16);

    /* with the prefix cache two places more to come back to, each a state, 31 tokens and 3 inputs in whole pages */
    const uint64_t marks = 2 * (state + 2 * 16 * token + 16 * input);
    assert_int_equal(plan(t.path, 40 * GIB, 4, false, true, &p), NB_OK);
    assert_true(p.per_seq >= alone + marks && p.per_seq < alone + marks + (1 << 20));

    /* 256 of them do not fit; those that may be lowered do, and a longest request beside them */
    assert_int_equal(plan(t.path, 40 * GIB, 256, false, true, &p), NB_ERR_LIMIT);
    assert_int_equal(plan(t.path, 40 * GIB, 256, true, true, &p), NB_OK);
    assert_true(p.max_seqs > 20 && p.max_seqs < 60 && p.at_once >= 1);
    assert_true(p.kv + p.work <= 40 * GIB);
    assert_int_equal(plan(t.path, 16 * GIB, 256, true, true, &p), NB_OK);
    assert_true(p.max_seqs >= 1 && p.max_seqs < 10 && p.at_once == 1);

    /* each thread keeps four scores and two addresses for each row that a query may see: 32 bytes for 2 * 262144 + 1 of them */
    const nb_plan_options one = {.memory = 40 * GIB, .threads = 1, .max_seqs = 4, .max_rows = 512};
    nb_plan_options many = one;
    nb_plan q = {0};
    many.threads = 65;
    assert_int_equal(nb_plan_make(t.path, &one, &p, NULL), NB_OK);
    assert_int_equal(nb_plan_make(t.path, &many, &q, NULL), NB_OK);
    assert_int_equal(q.work - p.work, 64ull * 32 * (2 * 262144 + 1));
    assert_true(q.blocks < p.blocks && q.kv + q.work <= 40 * GIB);
    tempdir_remove(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(large_states)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
