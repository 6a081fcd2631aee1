/* One value of a JSON object exchanged in its text; everything else stays as it was, also what JSON does not allow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "doctor/repair_plan.h"

static void splices(const char *text, const char *key, const char *value, const char *want)
{
    nb_buf b = {0};
    assert_true(nb_json_splice(text, strlen(text), key, value, &b));
    assert_string_equal(nb_buf_str(&b), want);
    nb_buf_free(&b);
}

static void a_value_is_replaced(void **state)
{
    (void)state;
    splices("{\"a\": 1, \"b\": [1, {\"b\": 2}] , \"c\":3}\n", "b", "null",
            "{\"a\": 1, \"b\": null , \"c\":3}\n");
    splices("{\"a\":1}", "a", "{}", "{\"a\":{}}");
    splices(" {\n  \"a\" : \"x\\\"}\",\n  \"b\":2\n}", "b", "4", " {\n  \"a\" : \"x\\\"}\",\n  \"b\":4\n}");
}

static void a_key_inside_another_value_is_none(void **state)
{
    (void)state;
    splices("{\"x\":{\"a\":1},\"a\":2}", "a", "3", "{\"x\":{\"a\":1},\"a\":3}");
    splices("{\"x\":\"\\\"a\\\":1\",\"a\":2}", "a", "3", "{\"x\":\"\\\"a\\\":1\",\"a\":3}");
}

static void a_missing_key_is_added_at_the_end(void **state)
{
    (void)state;
    splices("{\n  \"a\": 1\n}\n", "b", "true", "{\n  \"a\": 1,\n  \"b\": true\n}\n");
    splices("{}", "b", "true", "{\n  \"b\": true}");
}

static void what_python_writes_and_json_forbids_stays(void **state)
{
    (void)state;
    splices("{\"limit\": Infinity, \"a\": 0.1000000000000000055511151231257827, \"b\": 1}", "b", "2",
            "{\"limit\": Infinity, \"a\": 0.1000000000000000055511151231257827, \"b\": 2}");
}

static void the_last_of_a_key_given_twice_counts(void **state)
{
    (void)state;
    splices("{\"a\":1,\"a\":2}", "a", "3", "{\"a\":1,\"a\":3}");
}

static void no_object_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",         "[]",          "{",          "{\"a\"}",   "{\"a\":}",
                                      "{\"a\":1", "{\"a\":\"x}", "{\"a\":[1}", "{\"a\" 1}", "{\"a\":1,}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        nb_buf b = {0};
        bool ok = nb_json_splice(bad[i], strlen(bad[i]), "a", "2", &b);
        if (ok) print_error("%s\n", bad[i]);
        assert_false(ok);
        nb_buf_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_value_is_replaced),
        cmocka_unit_test(a_key_inside_another_value_is_none),
        cmocka_unit_test(a_missing_key_is_added_at_the_end),
        cmocka_unit_test(what_python_writes_and_json_forbids_stays),
        cmocka_unit_test(the_last_of_a_key_given_twice_counts),
        cmocka_unit_test(no_object_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
