/* Every E2M1, E4M3 and E8M0 value, against tables that ml_dtypes and torch agree on (fixtures/numerics/codecs.json); F16
 * against the arithmetic definition of the format. */
#include "numerics/vectors.h"

#include <math.h>
#include <string.h>

static void same_value(const json_t *want, float got, size_t code)
{
    if (strcmp(json_string_value(want), "nan") == 0) {
        if (!isnan(got)) fail_msg("code %zu: %g, expected NaN", code, (double)got);
    } else if (hex(want) != nb_f32_bits(got)) {
        fail_msg("code %zu: %08X, expected %s", code, nb_f32_bits(got), json_string_value(want));
    }
}

static void decodes_every_code(void **state)
{
    json_t *root = load_vectors("codecs.json"), *v;
    size_t i;
    json_t *e2m1 = json_object_get(json_object_get(root, "e2m1"), "values");
    assert_int_equal(json_array_size(e2m1), 16);
    json_array_foreach(e2m1, i, v) same_value(v, nb_e2m1_table[i], i);
    json_t *e4m3 = json_object_get(json_object_get(root, "e4m3"), "values");
    assert_int_equal(json_array_size(e4m3), 256);
    json_array_foreach(e4m3, i, v) same_value(v, nb_e4m3_table[i], i);
    json_t *e8m0 = json_object_get(json_object_get(root, "e8m0"), "values");
    assert_int_equal(json_array_size(e8m0), 256);
    json_array_foreach(e8m0, i, v) same_value(v, nb_e8m0_decode((uint8_t)i), i);
    json_decref(root);
}

/* IEEE 754 binary16: (-1)^s * 2^(e-15) * (1 + m/1024), or m * 2^-24 where e = 0. */
static void decodes_every_half(void **state)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        int e = (int)(h >> 10 & 31), m = (int)(h & 0x3FF);
        double want = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
        if (e == 31) want = m ? NAN : INFINITY;
        if (h & 0x8000) want = -want;
        float got = nb_f16_decode((uint16_t)h);
        if (isnan(want) ? !isnan(got) : (double)got != want || !signbit(got) != !signbit(want))
            fail_msg("half %04X: %g, expected %g", h, (double)got, want);
    }
}

/* Each number decodes and encodes to itself; between two neighbours the nearer one wins, and at the midpoint the even one. */
static void encodes_to_the_nearest_half(void **state)
{
    for (uint32_t h = 0; h < 0x7C00; h++) {
        float here = nb_f16_decode((uint16_t)h);
        float next = h == 0x7BFF ? 65536.0f : nb_f16_decode((uint16_t)(h + 1));
        float mid = (here + next) / 2; /* exact: one bit more than a half has */
        assert_int_equal(nb_f16_encode(here), h);
        assert_int_equal(nb_f16_encode(-here), h | 0x8000);
        assert_int_equal(nb_f16_encode(nextafterf(mid, 0.0f)), h);
        assert_int_equal(nb_f16_encode(mid), h & 1 ? h + 1 : h);
        assert_int_equal(nb_f16_encode(nextafterf(mid, 1e9f)), h + 1);
    }
    assert_int_equal(nb_f16_encode(INFINITY), 0x7C00);
    assert_int_equal(nb_f16_encode(-INFINITY), 0xFC00);
    assert_true(isnan(nb_f16_decode(nb_f16_encode(NAN))));
    assert_true(isnan(nb_f16_decode(nb_f16_encode(nb_f32_from_bits(0x7F800001)))));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes_every_code),
        cmocka_unit_test(decodes_every_half),
        cmocka_unit_test(encodes_to_the_nearest_half),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
