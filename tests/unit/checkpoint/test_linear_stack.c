/*
 * Parts of stacks: which rows of a tensor with the matrices of all experts are one linear's, in each way that they are stored, and
 * what is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "checkpoint/arch.h"
#include "checkpoint/folder.h"
#include "checkpoint/linear.h"
#include "numerics/formats.h"

static tempdir tmp;

/* Element i of a BF16 stack is i. */
static uint16_t counted[3 * 4 * 6];

static nb_ckpt *open_floats(void)
{
    for (size_t i = 0; i < 3 * 4 * 6; i++) counted[i] = nb_bf16_encode((float)i);
    const folder_tensor t[] = {{"experts.w", NB_DT_BF16, 3, {3, 4, 6}, counted}};
    return folder_open(&tmp, t, 1);
}

/* The linear is n by k, and its value [r, c] is base + r * row + c * col, read whole, row by row and from the offset it names. */
static void expect_part(const nb_ckpt *c, const char *module, size_t n, size_t k, size_t base, size_t row,
                        size_t col)
{
    nb_linear_src s;
    float out[24];
    uint16_t one;
    assert_true(nb_linear_exists(c, module));
    assert_int_equal(nb_linear_describe(c, module, n, k, &s, NULL), NB_OK);
    assert_string_equal(s.module, module);
    assert_int_equal(nb_linear_dequantise(c, &s, 0, n, out, NULL), NB_OK);
    for (size_t i = 0; i < n * k; i++) assert_true(out[i] == (float)(base + i / k * row + i % k * col));
    for (size_t r = 0; r < n; r++) {
        assert_int_equal(nb_linear_dequantise(c, &s, r, 1, out, NULL), NB_OK);
        for (size_t i = 0; i < k; i++) {
            assert_true(out[i] == (float)(base + r * row + i * col));
            assert_int_equal(nb_ckpt_read(c, s.weight, nb_linear_offset(&s, false, r, i), &one, 2, NULL),
                             NB_OK);
            assert_true(nb_bf16_decode(one) == out[i]);
        }
    }
    assert_int_equal(nb_linear_dequantise(c, &s, n, 1, out, NULL), NB_ERR_ARGUMENT);
}

/* [3, 4, 6]: matrix 2 begins at 48. */
static void test_float_parts(void **unused)
{
    nb_ckpt *c = open_floats();
    expect_part(c, "experts.w[2]", 4, 6, 48, 6, 1);
    expect_part(c, "experts.w[2][:half]", 2, 6, 48, 6, 1);
    expect_part(c, "experts.w[2][half:]", 2, 6, 60, 6, 1);
    expect_part(c, "experts.w[1][0::2]", 2, 6, 24, 12, 1);
    expect_part(c, "experts.w[1][1::2]", 2, 6, 30, 12, 1);
    expect_part(c, "experts.w[1].T", 6, 4, 24, 1, 6);
    expect_part(c, "experts.w[1].T[0::2]", 3, 4, 24, 2, 6);
    expect_part(c, "experts.w[1].T[1::2]", 3, 4, 25, 2, 6);
    expect_part(c, "experts.w[0].T[half:]", 3, 4, 3, 1, 6);
    nb_ckpt_close(c);
}

/* Two experts of four rows of 64 columns: byte b of block g of row r of expert e is of code (e + r + g) % 8, the scale 127 + r. */
static void test_mxfp4_parts(void **unused)
{
    static const float e2m1[8] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
    static uint8_t blocks[2 * 4 * 2 * 16], scales[2 * 4 * 2];
    for (size_t i = 0; i < sizeof scales; i++) {
        size_t code = (i / 8 + i / 2 % 4 + i % 2) % 8;
        scales[i] = (uint8_t)(127 + i / 2 % 4);
        memset(blocks + i * 16, (int)(code | code << 4), 16);
    }
    const folder_tensor t[] = {{"experts.w_blocks", NB_DT_U8, 4, {2, 4, 2, 16}, blocks},
                               {"experts.w_scales", NB_DT_U8, 3, {2, 4, 2}, scales}};
    nb_ckpt *c = folder_open(&tmp, t, 2);
    nb_linear_src s;
    float out[2 * 64];
    assert_false(nb_linear_exists(c, "experts.w[1].T")); /* blocks are never transposed */
    assert_int_equal(nb_linear_describe(c, "experts.w[1][1::2]", 2, 64, &s, NULL), NB_OK);
    assert_int_equal(s.format, NB_FMT_MXFP4);
    assert_int_equal(nb_linear_dequantise(c, &s, 0, 2, out, NULL), NB_OK);
    for (size_t i = 0; i < 2 * 64; i++) {
        size_t r = 2 * (i / 64) + 1, g = i % 64 / 32;
        assert_true(out[i] == e2m1[(1 + r + g) % 8] * (float)(1 << r));
    }
    /* row 1 of the part is row 3 of matrix 1, stored row 7, of 32 bytes and 2 scales */
    assert_int_equal(nb_linear_offset(&s, false, 1, 34), 7 * 32 + 17);
    assert_int_equal(nb_linear_offset(&s, true, 1, 34), 7 * 2 + 1);
    nb_ckpt_close(c);
}

static void expect_refused(const nb_ckpt *c, const char *module, size_t n, size_t k, nb_status status,
                           const char *says)
{
    nb_linear_src s;
    nb_error e;
    assert_int_equal(nb_linear_describe(c, module, n, k, &s, &e), status);
    if (!strstr(e.cause, says)) fail_msg("\"%s\" does not say \"%s\"", e.cause, says);
}

static void test_refused(void **unused)
{
    nb_ckpt *c = open_floats();
    expect_refused(c, "experts.w[3]", 0, 0, NB_ERR_FORMAT, "3 matrices of 4 output rows");
    expect_refused(c, "experts.w[0]", 4, 4, NB_ERR_FORMAT, "4 by 6; config.json asks for 4 by 4");
    expect_refused(c, "experts.v[0]", 0, 0, NB_ERR_MISSING, "missing");
    expect_refused(c, "experts.w[0][2::3]", 0, 0, NB_ERR_MISSING,
                   "missing"); /* no part, a module of that name */
    assert_false(nb_linear_exists(c, "experts.w[0][2::3]"));
    nb_ckpt_close(c);
    const folder_tensor odd[] = {{"w", NB_DT_BF16, 3, {2, 3, 4}, NULL},
                                 {"flat", NB_DT_BF16, 2, {2, 3}, NULL},
                                 {"whole", NB_DT_I64, 3, {2, 3, 4}, NULL},
                                 {"m_blocks", NB_DT_U8, 4, {2, 4, 2, 16}, NULL},
                                 {"s_blocks", NB_DT_U8, 4, {2, 4, 2, 16}, NULL},
                                 {"s_scales", NB_DT_U8, 3, {2, 4, 3}, NULL},
                                 {"b_blocks", NB_DT_U8, 4, {2, 4, 2, 15}, NULL},
                                 {"f", NB_DT_U8, 3, {2, 8, 4}, NULL},
                                 {"f_weight_scale", NB_DT_F8_E4M3, 3, {2, 1, 4}, NULL}};
    c = folder_open(&tmp, odd, sizeof odd / sizeof *odd);
    expect_refused(c, "w[0][:half]", 0, 0, NB_ERR_FORMAT, "gate and up in equal parts");
    expect_refused(c, "flat[0]", 0, 0, NB_ERR_FORMAT, "[experts, rows, columns]");
    expect_refused(c, "whole[0]", 0, 0, NB_ERR_FORMAT, "BF16, F16 or F32");
    expect_refused(c, "m[0]", 0, 0, NB_ERR_MISSING, "scales of these blocks");
    expect_refused(c, "s[0]", 0, 0, NB_ERR_FORMAT, "shape of the blocks");
    expect_refused(c, "f[0].T[0::2]", 0, 0, NB_ERR_UNSUPPORTED, "all experts in one NVFP4 tensor");
    expect_refused(c, "b[0]", 0, 0, NB_ERR_FORMAT, "columns / 32, 16]");
    nb_ckpt_close(c);
}

/* A table's spellings: an expert by itself, or its part of a stack; a stack's own tensors belong to the first row with a part. */
static void test_names(void **unused)
{
    json_t *json =
        json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:[s]}", "model_type", "gpt_oss",
                  "num_hidden_layers", 1, "vocab_size", 8, "hidden_size", 4, "num_attention_heads", 2,
                  "num_key_value_heads", 2, "head_dim", 2, "num_local_experts", 3, "num_experts_per_tok", 2,
                  "intermediate_size", 3, "layer_types", "full_attention");
    json_object_set_new(json, "sliding_window", json_integer(4));
    nb_config cfg;
    nb_error e;
    if (nb_config_from_json(json, "config.json", &cfg, &e) != NB_OK) fail_msg("%s", e.cause);
    for (size_t i = 0; i < 3 * 4 * 6; i++) counted[i] = nb_bf16_encode((float)i);
    const folder_tensor t[] = {
        {"model.layers.0.mlp.experts.gate_up_proj", NB_DT_BF16, 3, {3, 4, 6}, counted}};
    nb_ckpt *c = folder_open(&tmp, t, 1);
    char name[256];
    int64_t l, expert;
    bool skipped;
    const nb_arch_tensor *gate = NULL, *up = NULL;
    for (size_t i = 0; i < cfg.arch->n_tensors; i++) {
        if (cfg.arch->tensors[i].part == NB_PART_EXPERT_GATE) gate = &cfg.arch->tensors[i];
        if (cfg.arch->tensors[i].part == NB_PART_EXPERT_UP) up = &cfg.arch->tensors[i];
    }
    assert_true(nb_arch_find(c, &cfg, up, 0, 2, name, sizeof name, NULL));
    assert_string_equal(name, "model.layers.0.mlp.experts.gate_up_proj[2].T[1::2]");
    assert_ptr_equal(nb_arch_identify(&cfg, name, &l, &expert, &skipped), up);
    assert_int_equal(l, 0);
    assert_int_equal(expert, 2);
    nb_arch_name(up, 0, 2, name, sizeof name);
    assert_string_equal(name, "layers.0.mlp.experts.2.up_proj");
    static const char *const stacks[] = {"", "_blocks", "_scales"};
    for (size_t i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "model.layers.0.mlp.experts.gate_up_proj%s", stacks[i]);
        assert_ptr_equal(nb_arch_identify(&cfg, name, &l, &expert, &skipped), gate);
        assert_int_equal(expert, -1);
    }
    assert_null(nb_arch_identify(&cfg, "model.layers.0.mlp.experts.gate_up_proj.weight_scale", &l, &expert,
                                 &skipped));
    assert_null(nb_arch_identify(&cfg, "model.layers.0.mlp.experts.gate_up_pro", &l, &expert, &skipped));
    nb_ckpt_close(c);
    json_decref(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_float_parts), cmocka_unit_test(test_mxfp4_parts),
                                       cmocka_unit_test(test_refused), cmocka_unit_test(test_names)};
    tempdir_make(&tmp);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tempdir_remove(&tmp);
    return failed;
}
