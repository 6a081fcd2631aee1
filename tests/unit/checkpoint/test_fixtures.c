/*
 * Folders of the fixtures, of each layout: opens without a single problem, each table row is found for
 * every layer and expert with the shape that the config implies, nothing is left that no row knows, and each linear has
 * the format that the fixtures' README says.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/arch.h"

typedef struct fixture {
    const char *folder;
    /* linears by scheme, from the README's table: NVFP4 of either flavour, MXFP4, FP8 per tensor, channel and block */
    size_t nvfp4, mxfp4, fp8_tensor, fp8_channel, fp8_block;
    bool inputs;         /* every NVFP4 linear has a static input scale */
    const char *skipped; /* the only tensors that the tables skip start so; NULL: none */
} fixture;

static const fixture fixtures[] = {
    {.folder = "models/llama_bf16"},
    {"models/llama_modelopt", .nvfp4 = 21, .inputs = true},
    {"models/llama_ct", .nvfp4 = 21, .inputs = true},
    {"models/llama_nvfp4a16", .nvfp4 = 21},
    {"models/llama_mixed", .nvfp4 = 9, .fp8_tensor = 12, .inputs = true, .skipped = "model.layers."},
    {"models/llama_lm_head", .nvfp4 = 22, .inputs = true},
    {"models/llama_fp8_block", .fp8_block = 14},
    {"models/llama_fp8_channel", .fp8_channel = 21},
    {"models/llama_tied_ct", .nvfp4 = 21, .inputs = true},
    {"models/llama_llmcompressor", .nvfp4 = 21, .inputs = true},
    {"models/llama_modelopt_export", .nvfp4 = 21, .inputs = true},
    {.folder = "models/deepseek_v4_bf16"},
    {"models/deepseek_v4_modelopt", .nvfp4 = 54, .fp8_block = 25, .inputs = true, .skipped = "mtp.0."},
    {"models/deepseek_v4_ct", .nvfp4 = 63, .fp8_block = 16, .inputs = true},
    {"models/deepseek_v4_ct_nvfp4_attn", .nvfp4 = 79, .inputs = true},
    {"models/deepseek_v4_nvfp4a16", .nvfp4 = 63, .fp8_block = 16},
    {"models/deepseek_v4_mxfp4", .mxfp4 = 54, .fp8_block = 25},
    {"models/deepseek_v4_llmcompressor", .nvfp4 = 78, .inputs = true},
    {"models/qwen3_next_ct", .nvfp4 = 118, .inputs = true},
    {"models/nemotron_h_modelopt", .nvfp4 = 38, .fp8_tensor = 8, .inputs = true},
    {"models/nemotron_h_latent_ct", .nvfp4 = 44, .inputs = true},
    {"models/gemma3_modelopt", .nvfp4 = 28, .inputs = true},
    {"models/gemma4_modelopt", .nvfp4 = 27, .inputs = true, .skipped = "model."},
    {"models/gemma4_moe_ct", .nvfp4 = 123, .inputs = true},
    {"models/gemma4_ple_modelopt", .nvfp4 = 38, .inputs = true},
    {.folder = "models/gpt_oss_bf16"},
    {"models/gpt_oss_mxfp4", .mxfp4 = 36}, /* 3 layers of 4 experts of 3 */
    /* 6 layers of 5 attention linears, 8 experts and the shared one of 3 each; modelopt: the 2 indexers' wq_b too */
    {"demo/modelopt", .nvfp4 = 194, .inputs = true},
    {"demo/compressed-tensors", .nvfp4 = 192, .inputs = true},
};

static void no_problem(void *ctx, nb_problem_kind kind, const nb_error *what)
{
    char line[1400];
    nb_error_format(what, line, sizeof line);
    fail_msg("problem %d: %s", (int)kind, line);
}

static void check_linear(const nb_ckpt *c, const char *module, const uint64_t *dims, const fixture *f,
                         size_t *counts)
{
    nb_linear_src s;
    nb_error e;
    nb_status st = nb_linear_describe(c, module, dims[0], dims[1], &s, &e);
    if (st != NB_OK) fail_msg("%s: %s %s", module, e.tensor, e.cause);
    counts[s.scheme]++;
    bool nvfp4 = s.scheme == NB_SCHEME_NVFP4_CT || s.scheme == NB_SCHEME_NVFP4_MODELOPT;
    if (nvfp4) {
        assert_int_equal(s.has_input, f->inputs);
        assert_true(s.multiplier > 0 && s.multiplier < 1);
        if (s.has_input) assert_true(s.input_gs > 1 && s.input_gs < 1e6f);
    }
    /* The last row, and the one before it, so that a row offset shows. */
    size_t rows = s.n < 2 ? s.n : 2;
    float *out = malloc(rows * s.k * sizeof *out);
    assert_non_null(out);
    assert_int_equal(nb_linear_dequantise(c, &s, s.n - rows, rows, out, NULL), NB_OK);
    double sum = 0;
    for (size_t i = 0; i < rows * s.k; i++) {
        assert_true(isfinite(out[i]));
        sum += fabsf(out[i]);
    }
    assert_true(sum > 0);
    free(out);
}

static void check_tensor(const nb_tensor_info *t, const uint64_t *dims, size_t rank)
{
    assert_int_equal(t->rank, rank);
    for (size_t i = 0; i < rank; i++) assert_int_equal(t->shape[i], dims[i]);
}

static void check_folder(const fixture *f)
{
    char path[512], name[256];
    nb_ckpt *c = NULL;
    nb_config cfg;
    nb_error e;
    size_t counts[NB_SCHEME_FLOAT + 1] = {0}, found = 0, known = 0;
    snprintf(path, sizeof path, NB_TEST_DATA "/fixtures/%s", f->folder);
    assert_int_equal(nb_ckpt_open(path, no_problem, NULL, &c, &e), NB_OK);
    if (nb_config_init(c, &cfg, &e) != NB_OK) fail_msg("%s: %s", f->folder, e.cause);

    for (size_t i = 0; i < cfg.arch->n_tensors; i++) {
        const nb_arch_tensor *t = &cfg.arch->tensors[i];
        for (int64_t l = 0; l < nb_arch_layers(&cfg, t); l++) {
            if (t->when && !t->when(&cfg, (int)l)) continue;
            for (int64_t x = 0; x < nb_arch_experts(&cfg, t); x++) {
                const nb_tensor_info *tensor;
                uint64_t dims[4];
                size_t rank = nb_config_shape(&cfg, t->shape, (int)l, dims, &e);
                if (!rank) fail_msg("%s: %s: %s", f->folder, t->shape, e.cause);
                if (!nb_arch_find(c, &cfg, t, l, x, name, sizeof name, &tensor))
                    fail_msg("%s: no %s", f->folder, name);
                found += !nb_linear_stack(name); /* a part of a stack has no tensor of its own */
                if (tensor)
                    check_tensor(tensor, dims, rank);
                else
                    check_linear(c, name, dims, f, counts);
                /* The name found must lead back to its row. */
                int64_t l2, x2;
                bool skipped;
                assert_ptr_equal(nb_arch_identify(&cfg, name, &l2, &x2, &skipped), t);
                assert_true(l2 == (strstr(t->name, "{l}") ? l : -1) &&
                            x2 == (strstr(t->name, "{e}") ? x : -1));
            }
        }
    }
    for (size_t i = 0; i < nb_ckpt_count(c); i++) {
        const char *stored = nb_ckpt_at(c, i)->name;
        int64_t l, x;
        bool skipped;
        if (nb_arch_identify(&cfg, stored, &l, &x, &skipped))
            known++;
        else if (!skipped || !f->skipped || strncmp(stored, f->skipped, strlen(f->skipped)) != 0)
            fail_msg("%s: nobody knows %s", f->folder, stored);
    }
    assert_true(known >= found);
    /* One folder has one flavour. */
    assert_true(!counts[NB_SCHEME_NVFP4_CT] || !counts[NB_SCHEME_NVFP4_MODELOPT]);
    assert_int_equal(counts[NB_SCHEME_NVFP4_CT] + counts[NB_SCHEME_NVFP4_MODELOPT], f->nvfp4);
    assert_int_equal(counts[NB_SCHEME_MXFP4], f->mxfp4);
    assert_int_equal(counts[NB_SCHEME_FP8_TENSOR], f->fp8_tensor);
    assert_int_equal(counts[NB_SCHEME_FP8_CHANNEL], f->fp8_channel);
    assert_int_equal(counts[NB_SCHEME_FP8_BLOCK], f->fp8_block);
    nb_ckpt_close(c);
}

static void every_folder_is_understood(void **state)
{
    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
        print_message("  %s\n", fixtures[i].folder);
        check_folder(&fixtures[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_folder_is_understood)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
