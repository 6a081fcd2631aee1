/* The GPU's activation quantiser, block by block, in both variants (fixtures/numerics/activations.json), and the row and
 * non-saturating forms built on it. */
#include "numerics/vectors.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "numerics/nvfp4.h"

static void load_block(const json_t *c, float x[16])
{
    uint8_t raw[32];
    assert_int_equal(hex_bytes(json_string_value(json_object_get(c, "x_bf16")), raw, sizeof raw), 32);
    for (size_t i = 0; i < 16; i++) x[i] = nb_bf16_decode((uint16_t)(raw[2 * i] << 8 | raw[2 * i + 1]));
}

static nb_act_kernel variant(const json_t *c)
{
    return strcmp(json_string_value(json_object_get(c, "variant")), "flashinfer") == 0 ? NB_ACT_FLASHINFER
                                                                                       : NB_ACT_CUTLASS;
}

static void equals_the_vectors(void **state)
{
    json_t *root = load_vectors("activations.json"), *c;
    json_t *cases = json_object_get(root, "cases");
    assert_int_equal(json_array_size(cases), 230);
    size_t i;
    json_array_foreach(cases, i, c)
    {
        float x[16];
        uint8_t want[8], codes[8], scale;
        load_block(c, x);
        hex_bytes(json_string_value(json_object_get(c, "packed")), want, sizeof want);
        nb_nvfp4_quantise_block(x, hex_float(json_object_get(c, "gs")), variant(c), true, &scale, codes);
        if (scale != json_integer_value(json_object_get(c, "scale_byte")) || memcmp(codes, want, 8) != 0)
            fail_msg("block '%s' differs", json_string_value(json_object_get(c, "name")));
    }
    json_decref(root);
}

/* The row form gives code * scale of each block, on the same vectors laid side by side, in place too. */
static void row_is_its_blocks(void **state)
{
    json_t *root = load_vectors("activations.json"), *c;
    size_t i;
    json_array_foreach(json_object_get(root, "cases"), i, c)
    {
        float x[32], out[32];
        uint8_t codes[8], scale;
        load_block(c, x);
        memcpy(x + 16, x, 64);
        float gs = hex_float(json_object_get(c, "gs"));
        nb_nvfp4_quantise_block(x, gs, variant(c), true, &scale, codes);
        nb_nvfp4_quantise_row(x, 32, gs, variant(c), true, out);
        nb_nvfp4_quantise_row(x, 32, gs, variant(c), true, x);
        for (size_t j = 0; j < 32; j++) {
            float want = nb_e2m1_table[codes[j % 16 / 2] >> (j % 2 * 4) & 15] * nb_e4m3_table[scale];
            if (isnan(want))
                assert_true(isnan(out[j]) && isnan(x[j]));
            else
                assert_true(out[j] == want && x[j] == want);
        }
    }
    json_decref(root);
}

/* gs * amax / 6 = 480 > 464: a saturating cast gives 448 (0x7E), one that does not gives the NaN byte. */
static void cast_without_saturation_gives_nan(void **state)
{
    float x[16] = {480 * 6}, out[16];
    uint8_t codes[8], scale;
    nb_nvfp4_quantise_block(x, 1.0f, NB_ACT_CUTLASS, true, &scale, codes);
    assert_int_equal(scale, 0x7E);
    nb_nvfp4_quantise_block(x, 1.0f, NB_ACT_CUTLASS, false, &scale, codes);
    assert_int_equal(scale, 0x7F);
    nb_nvfp4_quantise_row(x, 16, 1.0f, NB_ACT_CUTLASS, false, out);
    for (size_t i = 0; i < 16; i++) assert_true(isnan(out[i]));
}

static void live_row_scale(void **state)
{
    float x[16] = {0};
    assert_true(nb_nvfp4_row_scale(x, 16) == 1.0f);
    x[3] = -8;
    x[5] = NAN;
    assert_true(nb_nvfp4_row_scale(x, 16) == 336.0f); /* 2688 / 8 */
    x[3] = 1e-38f; /* 2688 / 1e-38 overflows; the scale stays usable and a block of zeros stays zero */
    x[5] = 0;
    float gs = nb_nvfp4_row_scale(x, 16), zero[16] = {0};
    assert_true(isfinite(gs) && 1 / gs >= FLT_MIN);
    nb_nvfp4_quantise_row(zero, 16, gs, NB_ACT_CUTLASS, true, zero);
    for (size_t i = 0; i < 16; i++) assert_true(zero[i] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_vectors),
        cmocka_unit_test(row_is_its_blocks),
        cmocka_unit_test(cast_without_saturation_gives_nan),
        cmocka_unit_test(live_row_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
