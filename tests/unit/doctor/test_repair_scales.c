/* Block scales that a repair makes: the 128x4 order undone, bytes rescaled, NaN and signs. Expected bytes by hand. */
#include <math.h>

#include "checkpoint/linear.h"
#include "doctor.h"
#include "doctor/repair.h"
#include "doctor/repair_plan.h"

/* specs/nvfp4.md §4.1: new byte = E4M3_RNE(value * ratio). */
static void rescaled_bytes_are_the_nearest(void **state)
{
    (void)state;
    /* 0x7E is 448 = 1.75 * 2^8: halved 224 = 1.75 * 2^7, the exponent one less: 0x76. Exact, as for any power of two. */
    assert_int_equal(nb_rescale_byte(0x7E, 0.5f), 0x76);
    /* 0x38 is 1; times 0.9 = 0.9, between 0.875 (0x36) and 0.9375 (0x37): 0.9 is nearer to 0.875. */
    assert_int_equal(nb_rescale_byte(0x38, 0.9f), 0x36);
    /* 0x58 is 16, 0x59 18; 16 * 1.0625 = 17 lies in the middle: to the even mantissa, 0x58. */
    assert_int_equal(nb_rescale_byte(0x58, 1.0625f), 0x58);
    /* 0x5A is 20; 20 * 0.95 = 19 lies between 18 (odd) and 20 (even): 0x5A. */
    assert_int_equal(nb_rescale_byte(0x5A, 0.95f), 0x5A);
    /* 0x01 is 2^-9; a quarter of it, 2^-11, is under half of it and becomes 0. */
    assert_int_equal(nb_rescale_byte(0x01, 0.25f), 0x00);
    /* Half of it is the tie between 0 and 2^-9, and 0 is even. */
    assert_int_equal(nb_rescale_byte(0x01, 0.5f), 0x00);
    assert_int_equal(nb_rescale_byte(0x00, 0.5f), 0x00);
}

static nb_tensor_info tensor(const nb_ckpt *c, const char *name)
{
    const nb_tensor_info *t = nb_ckpt_find(c, name);
    assert_non_null(t);
    return *t;
}

/* Repairs the model in m->dir into "out" beside it and opens that. */
static nb_ckpt *mended(model *m, tempdir *to, nb_repair_result *r)
{
    char out[300];
    nb_error e = {0};
    nb_ckpt *c = NULL;
    tempdir_make(to);
    snprintf(out, sizeof out, "%s/out", to->path);
    const nb_repair_options opt = {.out = out};
    if (nb_repair_folder(m->dir.path, &opt, NULL, r, &e) != NB_OK) fail_msg("%s %s", e.tensor, e.cause);
    assert_true(r->written);
    folder_require(nb_ckpt_open(out, NULL, NULL, &c, NULL));
    return c;
}

/* One linear of 129 rows and 80 columns, 5 blocks a row, of an architecture without a table. Its scales are stored in tiles: 2 by
 * 2 of 512 bytes. specs/nvfp4.md §4.3: offset = ((m/128)*2 + kb/4)*512 + (m%32)*16 + ((m%128)/32)*4 + kb%4. */
static void tiles_become_rows(void **state)
{
    (void)state;
    static uint8_t tiles[2048], codes[129 * 40], rows[129 * 5];
    static const float one = 0.001f;
    static const struct {
        size_t row, block, offset;
    } spots[] = {{0, 0, 0},  {0, 3, 3},   {0, 4, 512},    {1, 0, 16},     {31, 2, 498},  {32, 0, 4},
                 {64, 1, 9}, {96, 0, 12}, {127, 4, 1020}, {128, 0, 1024}, {128, 4, 1536}};
    for (size_t i = 0; i < sizeof codes; i++) codes[i] = 0x76; /* codes 6 and 7: values 4 and 6 */
    /* Every place that a row and block of the matrix has is 0x38, the spots other bytes, the padding 0. */
    for (size_t r = 0; r < 129; r++) {
        for (size_t b = 0; b < 5; b++)
            tiles[((r / 128) * 2 + b / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + b % 4] = 0x38;
    }
    for (size_t i = 0; i < sizeof spots / sizeof *spots; i++) tiles[spots[i].offset] = (uint8_t)(0x60 + i);
    tiles[5] = 0x7E; /* row 32, block 1: the largest */
    model m = {.n = 4};
    m.t[0] = (folder_tensor){"layers.0.mlp.down_proj.weight", NB_DT_U8, 2, {129, 40}, codes};
    m.t[1] = (folder_tensor){"layers.0.mlp.down_proj.weight_scale", NB_DT_U8, 1, {2048}, tiles};
    m.t[2] = (folder_tensor){"layers.0.mlp.down_proj.weight_scale_2", NB_DT_F32, 0, {0}, &one};
    m.t[3] = (folder_tensor){"layers.0.mlp.down_proj.input_scale", NB_DT_F32, 0, {0}, &one};
    model_check(&m, "{\"model_type\":\"nosuch\",\"quantization_config\":{\"quant_method\":\"modelopt\","
                    "\"quant_algo\":\"NVFP4\","
                    "\"ignore\":[]}}");
    must_find(&m, "NB004", "layers.0.mlp.down_proj.weight_scale", NB_SEVERITY_ERROR);
    tempdir to;
    nb_repair_result r;
    nb_ckpt *c = mended(&m, &to, &r);
    const nb_tensor_info t = tensor(c, "layers.0.mlp.down_proj.weight_scale");
    assert_int_equal(t.dtype, NB_DT_F8_E4M3);
    assert_int_equal(t.rank, 2);
    assert_int_equal(t.shape[0], 129);
    assert_int_equal(t.shape[1], 5);
    folder_require(nb_ckpt_read(c, &t, 0, rows, sizeof rows, NULL));
    for (size_t i = 0; i < sizeof spots / sizeof *spots; i++) {
        assert_int_equal(rows[spots[i].row * 5 + spots[i].block], 0x60 + i);
        rows[spots[i].row * 5 + spots[i].block] = 0x38;
    }
    assert_int_equal(rows[32 * 5 + 1], 0x7E);
    rows[32 * 5 + 1] = 0x38;
    for (size_t i = 0; i < sizeof rows; i++) assert_int_equal(rows[i], 0x38);
    nb_ckpt_close(c);
    nb_repair_result_free(&r);
    tempdir_remove(&to);
    model_free(&m);
}

/* A llama whose first layer's linear has real bytes: NaN, a sign, and codes that must turn. */
static void nan_and_sign_of_a_block(void **state)
{
    (void)state;
    static uint8_t codes[32 * 32], scales[32 * 4];
    static const float one = 0.001f;
    memset(codes, 0xF7, sizeof codes); /* +6 and -6 */
    memset(scales, 0x7E, sizeof scales);
    scales[0] = 0x7F;
    scales[5] = 0xB8; /* -1 */
    scales[9] = 0xFF;
    model m = {.n = 4};
    m.t[0] = (folder_tensor){"layers.0.mlp.down_proj.weight", NB_DT_U8, 2, {32, 32}, codes};
    m.t[1] = (folder_tensor){"layers.0.mlp.down_proj.weight_scale", NB_DT_F8_E4M3, 2, {32, 4}, scales};
    m.t[2] = (folder_tensor){"layers.0.mlp.down_proj.weight_scale_2", NB_DT_F32, 0, {0}, &one};
    m.t[3] = (folder_tensor){"layers.0.mlp.down_proj.input_scale", NB_DT_F32, 0, {0}, &one};
    model_check(&m, "{\"model_type\":\"nosuch\",\"quantization_config\":{\"quant_method\":\"modelopt\","
                    "\"quant_algo\":\"NVFP4\","
                    "\"ignore\":[]}}");
    must_find(&m, "NB101", "layers.0.mlp.down_proj.weight_scale", NB_SEVERITY_ERROR);
    must_find(&m, "NB102", "layers.0.mlp.down_proj.weight_scale", NB_SEVERITY_ERROR);
    tempdir to;
    nb_repair_result r;
    nb_ckpt *c = mended(&m, &to, &r);
    const nb_tensor_info s = tensor(c, "layers.0.mlp.down_proj.weight_scale"),
                         w = tensor(c, "layers.0.mlp.down_proj.weight");
    uint8_t got_scales[32 * 4], got_codes[32 * 32];
    folder_require(nb_ckpt_read(c, &s, 0, got_scales, sizeof got_scales, NULL));
    folder_require(nb_ckpt_read(c, &w, 0, got_codes, sizeof got_codes, NULL));
    for (size_t i = 0; i < sizeof scales; i++) assert_int_equal(got_scales[i], i == 5 ? 0x38 : 0x7E);
    /* Block 5 has bytes 40 to 47: +6 becomes -6 and the other way round, 0xF7 -> 0x7F. */
    for (size_t i = 0; i < sizeof codes; i++) assert_int_equal(got_codes[i], i / 8 == 5 ? 0x7F : 0xF7);
    nb_ckpt_close(c);
    nb_repair_result_free(&r);
    tempdir_remove(&to);
    model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rescaled_bytes_are_the_nearest),
                                       cmocka_unit_test(tiles_become_rows),
                                       cmocka_unit_test(nan_and_sign_of_a_block)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
