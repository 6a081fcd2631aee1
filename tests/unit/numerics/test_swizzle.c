/* The 128x4 scale order: named offsets (fixtures/numerics/swizzle.json), and that no two scales share a byte. */
#include "numerics/vectors.h"

#include "numerics/nvfp4.h"

static void equals_the_vectors(void **state)
{
    json_t *root = load_vectors("swizzle.json"), *v;
    size_t columns = (size_t)json_integer_value(json_object_get(root, "columns")), i;
    json_t *offsets = json_object_get(root, "offsets");
    assert_true(json_array_size(offsets) > 0);
    json_array_foreach(offsets, i, v)
    {
        size_t m = (size_t)json_integer_value(json_array_get(v, 0)),
               kb = (size_t)json_integer_value(json_array_get(v, 1));
        assert_int_equal(nb_swizzle_offset(m, kb, columns), json_integer_value(json_array_get(v, 2)));
    }
    json_decref(root);
}

static void is_one_to_one(void **state)
{
    static uint8_t seen[256 * 12]; /* 200 rows padded to 256, 10 columns to 12 */
    for (size_t m = 0; m < 200; m++)
        for (size_t kb = 0; kb < 10; kb++) {
            size_t at = nb_swizzle_offset(m, kb, 10);
            assert_true(at < sizeof seen);
            assert_int_equal(seen[at], 0);
            seen[at] = 1;
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_vectors),
        cmocka_unit_test(is_one_to_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
