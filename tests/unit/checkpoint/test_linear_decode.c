/*
 * Each scheme that a linear can be stored in: recognised from its sibling tensors, and dequantised to values worked out by
 * hand here. E2M1 codes 0..15 are 0 .5 1 1.5 2 3 4 6 and their negatives; E4M3 0x30 0x38 0x40 0x48 are 1/2 1 2 4; E8M0 126
 * 127 128 are 1/2 1 2.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "checkpoint/folder.h"
#include "checkpoint/linear.h"

static tempdir tmp;
static const float e2m1[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};

/* Two rows of 32 columns: each row counts the codes 0..15 twice, low nibble first. */
static const unsigned char codes[32] = {
    0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE, 0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE,
    0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE, 0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE,
};

typedef struct opened {
    nb_ckpt *c;
    nb_linear_src s;
} opened;

static opened open_linear(const folder_tensor *t, size_t count, size_t n, size_t k)
{
    opened o = {.c = folder_open(&tmp, t, count)};
    nb_error e;
    nb_status st = nb_linear_describe(o.c, "m", n, k, &o.s, &e);
    if (st != NB_OK) fail_msg("%s: %s", e.tensor, e.cause);
    assert_int_equal(o.s.n, n);
    assert_int_equal(o.s.k, k);
    assert_string_equal(o.s.module, "m");
    assert_true(nb_linear_exists(o.c, "m"));
    return o;
}
#define OPEN(t, n, k) open_linear(t, sizeof(t) / sizeof *(t), n, k)

/* All rows at once, and each row alone, are `expected`. */
static void expect_values(const opened *o, const float *expected)
{
    size_t n = o->s.n, k = o->s.k;
    float *out = calloc(n * k, sizeof *out);
    assert_non_null(out);
    assert_int_equal(nb_linear_dequantise(o->c, &o->s, 0, n, out, NULL), NB_OK);
    for (size_t i = 0; i < n * k; i++) {
        if (out[i] != expected[i]) fail_msg("value %zu is %g, not %g", i, out[i], expected[i]);
    }
    for (size_t r = 0; r < n; r++) {
        assert_int_equal(nb_linear_dequantise(o->c, &o->s, r, 1, out, NULL), NB_OK);
        assert_memory_equal(out, expected + r * k, k * sizeof *out);
    }
    assert_int_equal(nb_linear_dequantise(o->c, &o->s, n, 1, out, NULL), NB_ERR_ARGUMENT);
    assert_int_equal(nb_linear_dequantise(o->c, &o->s, 1, n, out, NULL), NB_ERR_ARGUMENT);
    free(out);
}

static void expect_nvfp4(opened *o)
{
    /* block scales 1, 2 (row 0) and 1/2, 4 (row 1); global multiplier 1/4 */
    static const float scale[2][2] = {{.25f, .5f}, {.125f, 1}};
    float expected[64];
    for (size_t i = 0; i < 64; i++) expected[i] = e2m1[i % 16] * scale[i / 32][i / 16 % 2];
    expect_values(o, expected);
    assert_int_equal(o->s.format, NB_FMT_NVFP4);
    assert_true(o->s.multiplier == 0.25f);
    assert_int_equal(nb_linear_scale_k(&o->s), 16);
    assert_int_equal(nb_linear_code_bytes(&o->s, 2), 32);
    assert_int_equal(nb_linear_scale_bytes(&o->s, 2), 4);
    unsigned char row[16], s[2];
    assert_int_equal(nb_linear_read(o->c, &o->s, 1, 1, row, s, NULL), NB_OK);
    assert_memory_equal(row, codes + 16, 16);
    assert_memory_equal(s, "\x30\x48", 2);
    nb_ckpt_close(o->c);
}

static void nvfp4_compressed_tensors(void **state)
{
    const float divisor = 4, input = 8;
    const folder_tensor t[] = {
        {"m.weight_packed", NB_DT_U8, 2, {2, 16}, codes},
        {"m.weight_scale", NB_DT_F8_E4M3, 2, {2, 2}, "\x38\x40\x30\x48"},
        {"m.weight_global_scale", NB_DT_F32, 1, {1}, &divisor},
        {"m.input_global_scale", NB_DT_F32, 1, {1}, &input},
    };
    opened o = OPEN(t, 2, 32);
    assert_int_equal(o.s.scheme, NB_SCHEME_NVFP4_CT);
    assert_true(o.s.has_input && o.s.input_gs == 8); /* a divisor already */
    expect_nvfp4(&o);
}

static void nvfp4_modelopt(void **state)
{
    const float multiplier = .25f, input = .5f;
    const folder_tensor t[] = {
        {"m.weight", NB_DT_U8, 2, {2, 16}, codes},
        {"m.weight_scale", NB_DT_F8_E4M3, 2, {2, 2}, "\x38\x40\x30\x48"},
        {"m.weight_scale_2", NB_DT_F32, 0, {0}, &multiplier},
        {"m.input_scale", NB_DT_F32, 0, {0}, &input},
    };
    opened o = OPEN(t, 2, 32);
    assert_int_equal(o.s.scheme, NB_SCHEME_NVFP4_MODELOPT);
    assert_true(o.s.has_input && o.s.input_gs == 2); /* 1 / 0.5 */
    expect_nvfp4(&o);
}

static void nvfp4_without_an_input_scale_or_in_other_spellings(void **state)
{
    /* weight-only; the globals with the other flavour's shape, and as BF16 (0x3E80 = 0.25) */
    const folder_tensor t[] = {
        {"m.weight", NB_DT_U8, 2, {2, 16}, codes},
        {"m.weight_scale", NB_DT_F8_E4M3, 2, {2, 2}, "\x38\x40\x30\x48"},
        {"m.weight_scale_2", NB_DT_BF16, 1, {1}, "\x80\x3E"},
    };
    opened o = OPEN(t, 2, 32);
    assert_false(o.s.has_input);
    assert_null(o.s.input);
    expect_nvfp4(&o);
}

static void expect_mxfp4(opened *o)
{
    float expected[64];
    for (size_t i = 0; i < 64; i++) expected[i] = e2m1[i % 16] * (i < 32 ? .5f : 2);
    expect_values(o, expected);
    assert_int_equal(o->s.scheme, NB_SCHEME_MXFP4);
    assert_int_equal(o->s.format, NB_FMT_MXFP4);
    assert_true(o->s.multiplier == 1);
    assert_int_equal(nb_linear_scale_k(&o->s), 32);
    assert_int_equal(nb_linear_scale_bytes(&o->s, 2), 2);
    nb_ckpt_close(o->c);
}

static void mxfp4_in_each_spelling(void **state)
{
    static const unsigned char scale[] = {126, 128};
    const folder_tensor deepseek[] = {{"m.weight", NB_DT_I8, 2, {2, 16}, codes},
                                      {"m.scale", NB_DT_F8_E8M0, 2, {2, 1}, scale}};
    const folder_tensor ct[] = {{"m.weight_packed", NB_DT_U8, 2, {2, 16}, codes},
                                {"m.weight_scale", NB_DT_U8, 2, {2, 1}, scale}};
    const folder_tensor plain[] = {{"m.weight", NB_DT_U8, 2, {2, 16}, codes},
                                   {"m.weight_scale", NB_DT_F8_E8M0, 2, {2, 1}, scale}};
    opened o = OPEN(deepseek, 2, 32);
    expect_mxfp4(&o);
    o = OPEN(ct, 2, 32);
    expect_mxfp4(&o);
    o = OPEN(plain, 2, 32);
    expect_mxfp4(&o);
}

/* 1 2 -1, 448 2^-9 0 */
static const unsigned char fp8[] = {0x38, 0x40, 0xB8, 0x7E, 0x01, 0x00};

static void fp8_per_tensor(void **state)
{
    const float scale = .5f, expected[] = {.5f, 1, -.5f, 224, 1.f / 1024, 0};
    const folder_tensor t[] = {{"m.weight", NB_DT_F8_E4M3, 2, {2, 3}, fp8},
                               {"m.weight_scale", NB_DT_F32, 0, {0}, &scale},
                               {"m.input_scale", NB_DT_F32, 0, {0}, &scale}};
    opened o = OPEN(t, 2, 3);
    float stream[2] = {0};
    unsigned char row[6];
    assert_int_equal(o.s.scheme, NB_SCHEME_FP8_TENSOR);
    assert_true(o.s.multiplier == .5f && o.s.has_input);
    assert_int_equal(nb_linear_scale_k(&o.s), 3);
    assert_int_equal(nb_linear_scale_bytes(&o.s, 2), 8);
    assert_int_equal(nb_linear_read(o.c, &o.s, 0, 2, row, stream, NULL), NB_OK);
    assert_true(stream[0] == 1 && stream[1] == 1);
    expect_values(&o, expected);
    nb_ckpt_close(o.c);
}

static void fp8_per_channel(void **state)
{
    const float f32[] = {.5f, 4}, expected[] = {.5f, 1, -.5f, 1792, 1.f / 128, 0};
    const folder_tensor vector[] = {{"m.weight", NB_DT_F8_E4M3, 2, {2, 3}, fp8},
                                    {"m.weight_scale", NB_DT_F32, 1, {2}, f32}};
    const folder_tensor column[] = {{"m.weight", NB_DT_F8_E4M3, 2, {2, 3}, fp8},
                                    {"m.weight_scale", NB_DT_BF16, 2, {2, 1}, "\x00\x3F\x80\x40"}};
    opened o = OPEN(vector, 2, 3);
    assert_int_equal(o.s.scheme, NB_SCHEME_FP8_CHANNEL);
    assert_true(o.s.multiplier == 1);
    expect_values(&o, expected);
    nb_ckpt_close(o.c);
    o = OPEN(column, 2, 3);
    assert_int_equal(o.s.scheme, NB_SCHEME_FP8_CHANNEL);
    expect_values(&o, expected);
    nb_ckpt_close(o.c);
}

/* 130 by 129: two partial blocks each way; all weights are 1, so a value is its block's scale. */
static void fp8_blocks_of_128(void **state)
{
    enum { N = 130, K = 129 };
    static unsigned char ones[N * K];
    static float expected[N * K];
    static const float scale[2][2] = {{1, 2}, {.5f, 8}};
    static const unsigned char e8m0[] = {127, 128, 126, 130};
    memset(ones, 0x38, sizeof ones);
    for (size_t i = 0; i < N * K; i++) expected[i] = scale[i / K / 128][i % K / 128];
    const folder_tensor f32[] = {{"m.weight", NB_DT_F8_E4M3, 2, {N, K}, ones},
                                 {"m.weight_scale_inv", NB_DT_F32, 2, {2, 2}, scale}};
    const folder_tensor native[] = {{"m.weight", NB_DT_F8_E4M3, 2, {N, K}, ones},
                                    {"m.scale", NB_DT_F8_E8M0, 2, {2, 2}, e8m0}};
    opened o = OPEN(f32, N, K);
    assert_int_equal(o.s.scheme, NB_SCHEME_FP8_BLOCK);
    assert_int_equal(o.s.rows_per, 128);
    assert_int_equal(nb_linear_scale_k(&o.s), 128);
    assert_int_equal(nb_linear_scale_bytes(&o.s, 3), 3 * 2 * 4);
    expect_values(&o, expected);
    /* rows on both sides of the block's edge */
    static unsigned char row[3 * K];
    float s[6];
    assert_int_equal(nb_linear_read(o.c, &o.s, 127, 3, row, s, NULL), NB_OK);
    const float rows[] = {1, 2, .5f, 8, .5f, 8};
    assert_memory_equal(s, rows, sizeof rows);
    nb_ckpt_close(o.c);
    o = OPEN(native, N, K);
    assert_int_equal(o.s.scheme, NB_SCHEME_FP8_BLOCK);
    expect_values(&o, expected);
    nb_ckpt_close(o.c);
}

static void floats_as_they_are(void **state)
{
    const float f32[] = {1, -2, .5f, 3}, expected[] = {1, -2, .5f, 3};
    const folder_tensor full[] = {{"m.weight", NB_DT_F32, 2, {2, 2}, f32}};
    const folder_tensor bf16[] = {{"m.weight", NB_DT_BF16, 2, {2, 2}, "\x80\x3F\x00\xC0\x00\x3F\x40\x40"}};
    const folder_tensor f16[] = {{"m.weight", NB_DT_F16, 2, {2, 2}, "\x00\x3C\x00\xC0\x00\x38\x00\x42"}};
    const folder_tensor *all[] = {full, bf16, f16};
    const nb_format formats[] = {NB_FMT_F32, NB_FMT_BF16, NB_FMT_F16};
    for (size_t i = 0; i < 3; i++) {
        opened o = open_linear(all[i], 1, 2, 2);
        assert_int_equal(o.s.scheme, NB_SCHEME_FLOAT);
        assert_int_equal(o.s.format, formats[i]);
        assert_int_equal(nb_linear_scale_k(&o.s), 0);
        assert_int_equal(nb_linear_scale_bytes(&o.s, 2), 0);
        assert_int_equal(nb_linear_code_bytes(&o.s, 2), i ? 8 : 16);
        expect_values(&o, expected);
        nb_ckpt_close(o.c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nvfp4_compressed_tensors),
        cmocka_unit_test(nvfp4_modelopt),
        cmocka_unit_test(nvfp4_without_an_input_scale_or_in_other_spellings),
        cmocka_unit_test(mxfp4_in_each_spelling),
        cmocka_unit_test(fp8_per_tensor),
        cmocka_unit_test(fp8_per_channel),
        cmocka_unit_test(fp8_blocks_of_128),
        cmocka_unit_test(floats_as_they_are),
    };
    tempdir_make(&tmp);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tempdir_remove(&tmp);
    return failed;
}
