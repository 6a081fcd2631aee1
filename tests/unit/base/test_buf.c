/* The growable buffer: appends, JSON strings, and a failed allocation that stays visible. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"

static void appends(void **state)
{
    nb_buf b = {0};
    assert_string_equal(nb_buf_str(&b), "");
    nb_buf_adds(&b, "ab");
    nb_buf_addc(&b, 'c');
    nb_buf_addf(&b, "%d-%s", 12, "x");
    nb_buf_add(&b, "y\0z", 3);
    assert_int_equal(b.len, 10);
    assert_memory_equal(b.data, "abc12-xy\0z", 11); /* and the NUL after it */
    size_t cap = b.cap;
    nb_buf_clear(&b);
    assert_int_equal(b.len, 0);
    assert_int_equal(b.cap, cap);
    assert_string_equal(nb_buf_str(&b), "");
    for (int i = 0; i < 5000; i++) nb_buf_addf(&b, "%04d", i);
    assert_int_equal(b.len, 20000);
    assert_memory_equal(b.data + 4 * 4321, "4321", 4);
    assert_true(nb_buf_ok(&b));
    nb_buf_free(&b);
    assert_null(b.data);
}

static void json_strings(void **state)
{
    nb_buf b = {0};
    nb_buf_add_json(&b, "a\"\\\n\r\t\x01\xC3\xA9\xFF\0z", 12);
    assert_string_equal(nb_buf_str(&b), "\"a\\\"\\\\\\n\\r\\t\\u0001\xC3\xA9\xEF\xBF\xBD\\u0000z\"");
    nb_buf_free(&b);
}

static void a_size_that_cannot_be_had_makes_it_bad(void **state)
{
    nb_buf b = {0};
    nb_buf_adds(&b, "kept");
    assert_false(nb_buf_reserve(&b, SIZE_MAX - 2));
    assert_false(nb_buf_ok(&b));
    nb_buf_adds(&b, " not appended");
    assert_string_equal(nb_buf_str(&b), "kept");
    nb_buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appends),
        cmocka_unit_test(json_strings),
        cmocka_unit_test(a_size_that_cannot_be_had_makes_it_bad),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
