/* F32 to E4M3, E2M1 and BF16 at every midpoint, its neighbours, infinities, NaN and subnormals (fixtures/numerics/rounding.json). */
#include "numerics/vectors.h"

typedef uint8_t (*encode_fn)(float);

static void check_bytes(const char *group, encode_fn encode, uint8_t mask)
{
    json_t *root = load_vectors("rounding.json"), *c;
    json_t *cases = json_object_get(json_object_get(root, group), "cases");
    assert_true(json_array_size(cases) > 0);
    size_t i;
    json_array_foreach(cases, i, c)
    {
        int want = (int)json_integer_value(json_array_get(c, 1)),
            got = encode(hex_float(json_array_get(c, 0)));
        if ((want & mask) != (got & mask))
            fail_msg("%s of %s: %02X, expected %02X", group, json_string_value(json_array_get(c, 0)), got,
                     want);
    }
    json_decref(root);
}

static void e4m3_saturating(void **state)
{
    check_bytes("f32_to_e4m3_satfinite", nb_e4m3_encode_sat, 0xFF);
}

static void e4m3_not_saturating(void **state)
{
    check_bytes("f32_to_e4m3_nosat", nb_e4m3_encode_nosat, 0xFF);
}

static void e2m1(void **state)
{
    check_bytes("f32_to_e2m1_satfinite", nb_e2m1_encode, 0xFF);
}

static void bf16(void **state)
{
    json_t *root = load_vectors("rounding.json"), *c;
    json_t *cases = json_object_get(json_object_get(root, "f32_to_bf16"), "cases");
    assert_true(json_array_size(cases) > 0);
    size_t i;
    json_array_foreach(cases, i, c)
        assert_int_equal(nb_bf16_encode(hex_float(json_array_get(c, 0))), hex(json_array_get(c, 1)));
    json_decref(root);
    /* A NaN whose payload lies in the lower half must not round to infinity. */
    assert_int_equal(nb_bf16_encode(nb_f32_from_bits(0x7F800001)), 0x7FC0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(e4m3_saturating),
        cmocka_unit_test(e4m3_not_saturating),
        cmocka_unit_test(e2m1),
        cmocka_unit_test(bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
