/* JSON as Python writes it. Expected texts are Python 3.11's json.dumps(v, ensure_ascii=False). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text/pyjson.h"

static void expect(const char *json, const char *want)
{
    json_t *v = json_loads(json, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    nb_buf out = {0};
    assert_non_null(v);
    nb_pyjson_add(&out, v);
    assert_string_equal(nb_buf_str(&out), want);
    nb_buf_free(&out);
    json_decref(v);
}

static void structure(void **state)
{
    (void)state;
    expect("{\"b\":[1,2,{}],\"a\":{\"x\":null,\"y\":[]},\"c\":[true,false]}",
           "{\"b\": [1, 2, {}], \"a\": {\"x\": null, \"y\": []}, \"c\": [true, false]}");
    expect("[]", "[]");
    expect("-9223372036854775808", "-9223372036854775808");
}

static void strings(void **state)
{
    (void)state;
    expect("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\\u007f\"",
           "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\x7f\"");
    expect("\"\\u00e9\\ud83d\\ude00\\u2028\"", "\"\u00e9\U0001F600\u2028\"");
    expect("{\"k\\n\":\"\"}", "{\"k\\n\": \"\"}");
}

static void floats(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"0.0", "0.0"},
        {"-0.0", "-0.0"},
        {"1.0", "1.0"},
        {"-1.5", "-1.5"},
        {"0.1", "0.1"},
        {"100.0", "100.0"},
        {"1e15", "1000000000000000.0"},
        {"1e16", "1e+16"},
        {"123456789012345.6", "123456789012345.6"},
        {"1234567890123456.7", "1234567890123456.8"},
        {"0.0001", "0.0001"},
        {"0.00012345", "0.00012345"},
        {"0.00001", "1e-05"},
        {"1.5e-7", "1.5e-07"},
        {"1.25e+100", "1.25e+100"},
        {"5e-324", "5e-324"},
        {"1.7976931348623157e308", "1.7976931348623157e+308"},
        {"0.30000000000000004", "0.30000000000000004"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) expect(cases[i][0], cases[i][1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(structure), cmocka_unit_test(strings),
                                       cmocka_unit_test(floats)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
