/* Values of every dtype out of a checkpoint, exactly, and beyond one read's chunk. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "checkpoint/folder.h"

static tempdir tmp;

static void floats(void **state)
{
    const float f32[] = {1.5f, -0.f, INFINITY};
    const double f64[] = {1.5, -0.0, 1e-3}, large64[] = {INFINITY, 3.5e38, 1}; /* FLT_MAX is 3.403e38 */
    const folder_tensor t[] = {
        {"f32", NB_DT_F32, 1, {3}, f32},
        {"f64", NB_DT_F64, 1, {3}, f64},
        {"bf16", NB_DT_BF16, 1, {3}, "\xC0\x3F\x00\x80\x80\x7F"}, /* 1.5 -0 inf */
        {"f16", NB_DT_F16, 1, {3}, "\x00\x3E\x00\x80\x01\x00"},   /* 1.5 -0 2^-24 */
        {"e8m0", NB_DT_F8_E8M0, 1, {3}, "\x7F\x80\x7E"},          /* 1 2 1/2 */
        {"i32", NB_DT_I32, 1, {3}, NULL},
        {"large64", NB_DT_F64, 1, {3}, large64},
    };
    nb_ckpt *c = folder_open(&tmp, t, 7);
    float got[3];
    nb_error e;
    assert_int_equal(nb_ckpt_read_f32(c, nb_ckpt_find(c, "f32"), got, NULL), NB_OK);
    assert_memory_equal(got, f32, sizeof got);
    assert_int_equal(nb_ckpt_read_f32(c, nb_ckpt_find(c, "bf16"), got, NULL), NB_OK);
    assert_memory_equal(got, f32, sizeof got);
    assert_int_equal(nb_ckpt_read_f32(c, nb_ckpt_find(c, "f64"), got, NULL), NB_OK);
    assert_true(got[0] == 1.5f && signbit(got[1]) && got[2] == 1e-3f);
    assert_int_equal(nb_ckpt_read_f32(c, nb_ckpt_find(c, "f16"), got, NULL), NB_OK);
    assert_true(got[0] == 1.5f && signbit(got[1]) && got[2] == 0x1p-24f);
    assert_int_equal(nb_ckpt_read_f32(c, nb_ckpt_find(c, "e8m0"), got, &e), NB_ERR_FORMAT);
    assert_string_equal(e.tensor, "e8m0");
    assert_int_equal(nb_ckpt_read_f32(c, nb_ckpt_find(c, "i32"), got, &e), NB_ERR_FORMAT);
    assert_non_null(strstr(e.cause, "I32"));

    const nb_tensor_info *large = nb_ckpt_find(c, "large64");
    assert_int_equal(nb_ckpt_read_f32(c, large, got, &e), NB_ERR_FORMAT); /* never turned into infinity */
    assert_int_equal(e.offset, large->begin + 8);
    assert_int_equal(nb_ckpt_read_floats(c, large, 0, 1, got, NULL), NB_OK);
    assert_true(isinf(got[0])); /* as stored */

    assert_int_equal(nb_ckpt_read_floats(c, nb_ckpt_find(c, "e8m0"), 1, 2, got, NULL), NB_OK);
    assert_true(got[0] == 2 && got[1] == 0.5f);
    assert_int_equal(nb_ckpt_read_floats(c, nb_ckpt_find(c, "bf16"), 3, 0, got, NULL), NB_OK);
    assert_int_equal(nb_ckpt_read_floats(c, nb_ckpt_find(c, "bf16"), 2, 2, got, NULL), NB_ERR_ARGUMENT);
    assert_int_equal(nb_ckpt_read_floats(c, nb_ckpt_find(c, "bf16"), UINT64_MAX, 2, got, NULL),
                     NB_ERR_ARGUMENT);
    nb_ckpt_close(c);
}

static void integers(void **state)
{
    const int64_t i64[] = {INT64_MIN, -1};
    const uint64_t u64[] = {INT64_MAX, 7}, large[] = {1, (uint64_t)1 << 63};
    const folder_tensor t[] = {
        {"i64", NB_DT_I64, 1, {2}, i64},
        {"u64", NB_DT_U64, 1, {2}, u64},
        {"i32", NB_DT_I32, 1, {2}, "\xFE\xFF\xFF\xFF\x00\x00\x00\x7F"},
        {"u32", NB_DT_U32, 1, {2}, "\xFE\xFF\xFF\xFF\x01\x00\x00\x00"},
        {"i16", NB_DT_I16, 1, {2}, "\xFE\xFF\x00\x7F"},
        {"u16", NB_DT_U16, 1, {2}, "\xFE\xFF\x00\x01"},
        {"i8", NB_DT_I8, 1, {2}, "\xFE\x7F"},
        {"u8", NB_DT_U8, 1, {2}, "\xFE\x7F"},
        {"bool", NB_DT_BOOL, 1, {2}, "\x00\x01"},
        {"large", NB_DT_U64, 1, {2}, large},
        {"f32", NB_DT_F32, 1, {2}, NULL},
    };
    static const int64_t expected[][2] = {
        {INT64_MIN, -1}, {INT64_MAX, 7}, {-2, 0x7F000000}, {0xFFFFFFFE, 1}, {-2, 0x7F00},
        {0xFFFE, 0x100}, {-2, 127},      {254, 127},       {0, 1},
    };
    nb_ckpt *c = folder_open(&tmp, t, sizeof t / sizeof *t);
    nb_error e;
    int64_t got[2];
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        assert_int_equal(nb_ckpt_read_i64(c, nb_ckpt_find(c, t[i].name), got, NULL), NB_OK);
        assert_memory_equal(got, expected[i], sizeof got);
    }
    assert_int_equal(nb_ckpt_read_i64(c, nb_ckpt_find(c, "large"), got, &e), NB_ERR_FORMAT);
    assert_int_equal(nb_ckpt_read_i64(c, nb_ckpt_find(c, "f32"), got, &e), NB_ERR_FORMAT);
    assert_string_equal(e.tensor, "f32");
    nb_ckpt_close(c);
}

static void more_than_one_chunk(void **state)
{
    enum { N = 20001 };
    static uint16_t bf16[N];
    static int16_t i16[N];
    static float got[N];
    static int64_t ints[N];
    for (size_t i = 0; i < N; i++) {
        bf16[i] = (uint16_t)(0x3F80 + i % 128); /* 1 + (i % 128) / 128 */
        i16[i] = (int16_t)(i - 10000);
    }
    const folder_tensor t[] = {{"b", NB_DT_BF16, 1, {N}, bf16}, {"i", NB_DT_I16, 2, {3, N / 3}, i16}};
    nb_ckpt *c = folder_open(&tmp, t, 2);
    assert_int_equal(nb_ckpt_read_f32(c, nb_ckpt_find(c, "b"), got, NULL), NB_OK);
    assert_int_equal(nb_ckpt_read_i64(c, nb_ckpt_find(c, "i"), ints, NULL), NB_OK);
    for (size_t i = 0; i < N; i++) {
        assert_true(got[i] == 1 + (float)(i % 128) / 128);
        assert_true(ints[i] == (int64_t)i - 10000);
    }
    nb_ckpt_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floats),
        cmocka_unit_test(integers),
        cmocka_unit_test(more_than_one_chunk),
    };
    tempdir_make(&tmp);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tempdir_remove(&tmp);
    return failed;
}
