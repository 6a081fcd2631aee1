/* The pull parser: events of good text, and every way in which text can be bad (RFC 8259). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"

/* Runs text to its end or its error; writes one letter per event, with the bytes of keys, strings and numbers. The
 * text is copied to an exact heap block so that a sanitizer sees any over-read. */
static void trace(const char *text, size_t n, nb_buf *out, size_t *error_pos)
{
    char *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, text, n);
    nb_json j;
    nb_json_init(&j, copy, n);
    for (;;) {
        nb_json_event e = nb_json_next(&j);
        static const char letters[] = "!{[;ksn10~.";
        nb_buf_addc(out, letters[e]);
        if (e == NB_J_KEY || e == NB_J_STRING || e == NB_J_NUMBER) {
            nb_buf_addc(out, '<');
            nb_buf_add(out, j.str, j.len);
            nb_buf_addc(out, '>');
        }
        if (e == NB_J_ERROR) {
            assert_non_null(j.error);
            assert_int_equal(nb_json_next(&j), NB_J_ERROR); /* final */
            if (error_pos) *error_pos = j.pos;
        }
        if (e == NB_J_ERROR || e == NB_J_EOF) break;
    }
    nb_json_free(&j);
    free(copy);
}

static void expect(const char *text, const char *events)
{
    nb_buf out = {0};
    trace(text, strlen(text), &out, NULL);
    assert_string_equal(nb_buf_str(&out), events);
    nb_buf_free(&out);
}

static void expect_error(const char *text, size_t n, size_t pos)
{
    nb_buf out = {0};
    size_t at = (size_t)-1;
    trace(text, n, &out, &at);
    assert_int_equal(out.data[out.len - 1], '!');
    assert_int_equal(at, pos);
    nb_buf_free(&out);
}
#define BAD(text, pos) expect_error(text, sizeof(text) - 1, pos)

static void events_of_good_text(void **state)
{
    expect("{}", "{;.");
    expect(" [ ] \n", "[;.");
    expect("{\"a\":[1,-2.5e+3,true,false,null,\"x\"],\"b\":{\"c\":{}}}",
           "{k<a>[n<1>n<-2.5e+3>10~s<x>;k<b>{k<c>{;;;.");
    expect("0", "n<0>.");
    expect("\"\"", "s<>.");
    expect("\t\r\n [ {\"k\" : 0 } , 1E5 ]", "[{k<k>n<0>;n<1E5>;.");
}

static void strings_are_unescaped(void **state)
{
    expect("\"a\\\"\\\\\\/\\b\\f\\n\\r\\tz\"", "s<a\"\\/\b\f\n\r\tz>.");
    expect("\"\\u0041\\u00e9\\u20AC\\ud83d\\uDE00!\"", "s<A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80!>.");
    expect("{\"\\u006b\":1}", "{k<k>n<1>;.");
    nb_json j;
    nb_json_init(&j, "\"a\\u0000b\"", 10);
    assert_int_equal(nb_json_next(&j), NB_J_STRING);
    assert_int_equal(j.len, 3);
    assert_memory_equal(j.str, "a\0b", 3);
    nb_json_free(&j);
}

static void bad_text_is_an_error_with_its_place(void **state)
{
    BAD("", 0);
    BAD("  ", 2);
    BAD("{", 1);
    BAD("[1", 2);
    BAD("[1 2]", 3);
    BAD("[1,]", 3);
    BAD("[,1]", 1);
    BAD("{\"a\" 1}", 5);
    BAD("{\"a\":}", 5);
    BAD("{\"a\":1,}", 7);
    BAD("{\"a\":1 \"b\":2}", 7);
    BAD("{1:2}", 1);
    BAD("{\"a\":1]", 6);
    BAD("[1}", 2);
    BAD("{} x", 3);
    BAD("1 2", 2);
    BAD("tru", 0);
    BAD("nul", 0);
    BAD("NaN", 0);
    BAD("Infinity", 0);
    BAD("'a'", 0);
    BAD("\xEF\xBB\xBF{}", 0);
}

static void bad_numbers(void **state)
{
    BAD("-", 1);
    BAD("+1", 0);
    BAD("01", 1);
    BAD(".5", 0);
    BAD("1.", 2);
    BAD("1.e5", 2);
    BAD("1e", 2);
    BAD("1e+", 3);
    BAD("-x", 1);
    BAD("0x10", 1);
}

static void bad_strings(void **state)
{
    BAD("\"abc", 4);
    BAD("\"a\nb\"", 2);
    BAD("\"a\0b\"", 2);
    BAD("\"\\", 1);
    BAD("\"\\x\"", 1);
    BAD("\"\\u12", 1);
    BAD("\"\\u12g4\"", 1);
    BAD("\"\\ud800\"", 1);
    BAD("\"\\ud800\\n\"", 1);
    BAD("\"\\ud800\\u0041\"", 1);
    BAD("\"\\udc00\"", 1);
    BAD("\"\xC0\x80\"", 1);         /* overlong */
    BAD("\"\xED\xA0\x80\"", 1);     /* surrogate */
    BAD("\"\xF4\x90\x80\x80\"", 1); /* above U+10FFFF */
    BAD("\"\xE2\x82", 1);
    BAD("\"\xFF\"", 1);
}

static void depth_is_limited(void **state)
{
    char text[2 * NB_JSON_MAX_DEPTH + 2];
    memset(text, '[', NB_JSON_MAX_DEPTH);
    memset(text + NB_JSON_MAX_DEPTH, ']', NB_JSON_MAX_DEPTH);
    nb_buf out = {0};
    trace(text, 2 * NB_JSON_MAX_DEPTH, &out, NULL);
    assert_int_equal(out.data[out.len - 1], '.');
    nb_buf_free(&out);
    memset(text, '[', NB_JSON_MAX_DEPTH + 1);
    expect_error(text, NB_JSON_MAX_DEPTH + 1, NB_JSON_MAX_DEPTH);
}

static void skip_passes_whole_values(void **state)
{
    const char *text = "{\"a\":{\"x\":[1,{\"y\":[]}]},\"b\":[[[]]],\"c\":\"s\",\"d\":5}";
    nb_json j;
    nb_json_init(&j, text, strlen(text));
    assert_int_equal(nb_json_next(&j), NB_J_OBJECT);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(nb_json_next(&j), NB_J_KEY);
        assert_int_equal(j.str[0], 'a' + i);
        assert_true(nb_json_skip(&j));
        assert_int_equal(j.depth, 1);
    }
    assert_int_equal(nb_json_next(&j), NB_J_KEY);
    assert_int_equal(nb_json_next(&j), NB_J_NUMBER);
    assert_false(nb_json_skip(&j)); /* the object's end is no value */
    assert_int_equal(nb_json_next(&j), NB_J_ERROR);
    nb_json_free(&j);

    nb_json_init(&j, "[1,", 3);
    assert_false(nb_json_skip(&j));
    nb_json_free(&j);
}

static bool number(const char *text, uint64_t *u, double *d)
{
    nb_json j;
    nb_json_init(&j, text, strlen(text));
    assert_int_equal(nb_json_next(&j), NB_J_NUMBER);
    bool ok = u ? nb_json_u64(&j, u) : nb_json_f64(&j, d);
    nb_json_free(&j);
    return ok;
}

/* 77: not an integer of 64 bits */
static int64_t integer(const char *text)
{
    nb_json j;
    int64_t v = 77;
    nb_json_init(&j, text, strlen(text));
    assert_int_equal(nb_json_next(&j), NB_J_NUMBER);
    nb_json_i64(&j, &v);
    nb_json_free(&j);
    return v;
}

static void numbers_are_read_exactly(void **state)
{
    uint64_t u;
    double d;
    assert_true(number("0", &u, NULL) && u == 0);
    assert_true(number("18446744073709551615", &u, NULL) && u == UINT64_MAX);
    assert_false(number("18446744073709551616", &u, NULL));
    assert_false(number("-1", &u, NULL));
    assert_false(number("1.0", &u, NULL));
    assert_false(number("1e3", &u, NULL));
    assert_true(integer("0") == 0 && integer("-0") == 0 && integer("-7") == -7);
    assert_true(integer("9223372036854775807") == INT64_MAX && integer("-9223372036854775808") == INT64_MIN);
    assert_true(integer("9223372036854775808") == 77 && integer("-9223372036854775809") == 77);
    assert_true(integer("1.0") == 77);
    assert_true(number("-2.5e-1", NULL, &d) && d == -0.25);
    assert_true(number("0.1", NULL, &d) && d == 0.1);
    assert_false(number("1e999", NULL, &d));
    char longest[600];
    memset(longest, '1', sizeof longest);
    longest[512] = '\0';
    assert_false(number(longest, NULL, &d));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_of_good_text),
        cmocka_unit_test(strings_are_unescaped),
        cmocka_unit_test(bad_text_is_an_error_with_its_place),
        cmocka_unit_test(bad_numbers),
        cmocka_unit_test(bad_strings),
        cmocka_unit_test(depth_is_limited),
        cmocka_unit_test(skip_passes_whole_values),
        cmocka_unit_test(numbers_are_read_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
