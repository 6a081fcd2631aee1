/* JSON text to a jansson tree: equal to what jansson's own parser makes of it, and refused where that would be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/json_tree.h"

static void same_tree_as_jansson(void **state)
{
    static const char *const texts[] = {
        "{}",
        "[]",
        "null",
        "\"\\u00e9\\n\"",
        "[true,false,null,0,-1,9223372036854775807,1.5,-2e10,\"x\"]",
        "{\"a\":{\"b\":[{\"c\":{}}]},\"d\":\"\",\"e\\u0041\":1}",
        "{\"a\":1,\"a\":[2]}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_t *got = NULL, *expected = json_loads(texts[i], JSON_DECODE_ANY, NULL);
        assert_int_equal(nb_json_tree(NULL, texts[i], strlen(texts[i]), &got, NULL), NB_OK);
        assert_true(json_equal(got, expected));
        json_decref(got);
        json_decref(expected);
    }
}

static void a_large_integer_is_a_real(void **state)
{
    json_t *got = NULL;
    assert_int_equal(nb_json_tree(NULL, "1000000000000000019884624838656", 31, &got, NULL), NB_OK);
    assert_true(json_real_value(got) == 1e30);
    json_decref(got);
}

static void a_string_may_hold_nul(void **state)
{
    json_t *got = NULL;
    assert_int_equal(nb_json_tree(NULL, "\"a\\u0000b\"", 10, &got, NULL), NB_OK);
    assert_int_equal(json_string_length(got), 3);
    assert_memory_equal(json_string_value(got), "a\0b", 3);
    json_decref(got);
}

static void bad_text_names_the_byte(void **state)
{
    static const struct {
        const char *text;
        int64_t byte;
    } cases[] = {{"", 0},
                 {"[1,", 3},
                 {"{\"a\":1}}", 7},
                 {"{\"a\":[1,x]}", 8},
                 {"[1e999]", 1},

                 {"{\"\\u0000\":1}", 1},
                 {"{\"a\"}", 4},
                 {"[NaN]", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *got = NULL;
        nb_error e;
        if (nb_json_tree("dir/x.json", cases[i].text, strlen(cases[i].text), &got, &e) != NB_ERR_FORMAT)
            fail_msg("%s was not refused", cases[i].text);
        assert_null(got);
        assert_int_equal(e.offset, cases[i].byte);
        assert_string_equal(e.file, "dir/x.json");
    }
}

/* Five values: the object, 1, the list, and its two. Keys are none. */
static void values_are_counted(void **state)
{
    static const char text[] = "{\"a\":1,\"b\":[2,3]}";
    json_t *got = NULL;
    nb_error e;
    assert_int_equal(nb_json_tree_bounded(NULL, text, sizeof text - 1, 5, &got, &e), NB_OK);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(got, "b"), 1)), 3);
    json_decref(got);
    got = NULL;
    assert_int_equal(nb_json_tree_bounded(NULL, text, sizeof text - 1, 4, &got, &e), NB_ERR_FORMAT);
    assert_null(got);
    assert_int_equal(e.offset, 14); /* of the 3 */
    assert_string_equal(e.cause, "not JSON: too many values");
}

/* As Python has it: what is empty, zero, null or absent is false. */
static void truth_is_as_in_python(void **state)
{
    static const char yes[] = "[true, 1, -0.5, \"0\", [0], {\"a\": 0}]",
                      no[] = "[false, null, 0, 0.0, \"\", [], {}]";
    json_t *t, *v;
    size_t i;
    assert_int_equal(nb_json_tree(NULL, yes, sizeof yes - 1, &t, NULL), NB_OK);
    json_array_foreach(t, i, v) assert_true(nb_json_truthy(v));
    json_decref(t);
    assert_int_equal(nb_json_tree(NULL, no, sizeof no - 1, &t, NULL), NB_OK);
    json_array_foreach(t, i, v) assert_false(nb_json_truthy(v));
    json_decref(t);
    assert_false(nb_json_truthy(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_tree_as_jansson),  cmocka_unit_test(a_large_integer_is_a_real),
        cmocka_unit_test(a_string_may_hold_nul), cmocka_unit_test(bad_text_names_the_byte),
        cmocka_unit_test(values_are_counted),    cmocka_unit_test(truth_is_as_in_python),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
