/* The error object: fields, cuts, and the one line that a user sees. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"

static void failing_fills_and_clears(void **state)
{
    nb_error e;
    assert_int_equal(nb_fail(&e, NB_ERR_IO, "first %d", 1), NB_ERR_IO);
    nb_error_at(&e, "dir/f", "t", 7);
    nb_error_remedy(&e, "do %s", "this");
    nb_error_at(&e, NULL, NULL, -1); /* leaves what is there */
    assert_string_equal(e.cause, "first 1");
    assert_string_equal(e.file, "dir/f");
    assert_string_equal(e.tensor, "t");
    assert_int_equal(e.offset, 7);
    assert_string_equal(e.remedy, "do this");
    assert_int_equal(nb_fail(&e, NB_ERR_FORMAT, "second"), NB_ERR_FORMAT);
    assert_string_equal(e.file, "");
    assert_string_equal(e.tensor, "");
    assert_string_equal(e.remedy, "");
    assert_int_equal(e.offset, -1);
    assert_int_equal(nb_fail_nomem(&e, "a thing", 12), NB_ERR_NOMEM);
    assert_string_equal(e.cause, "no memory for a thing (12 bytes)");
}

static void no_error_object_is_fine(void **state)
{
    assert_int_equal(nb_fail(NULL, NB_ERR_IO, "x"), NB_ERR_IO);
    assert_int_equal(nb_fail_nomem(NULL, "x", 1), NB_ERR_NOMEM);
    nb_error_at(NULL, "f", "t", 1);
    nb_error_remedy(NULL, "x");
}

static void long_names_keep_their_end(void **state)
{
    nb_error e;
    char path[400];
    memset(path, 'p', sizeof path);
    memcpy(path + sizeof path - 7, "/f.bin", 7);
    nb_fail(&e, NB_ERR_IO, "%s", path);
    nb_error_at(&e, path, path, -1);
    assert_int_equal(strlen(e.file), sizeof e.file - 1);
    assert_memory_equal(e.file, "...p", 4);
    assert_string_equal(e.file + sizeof e.file - 7, "/f.bin");
    assert_string_equal(e.tensor + sizeof e.tensor - 7, "/f.bin");
    assert_memory_equal(e.cause, "ppp", 3); /* a sentence is cut at its end */
}

static void the_line(void **state)
{
    nb_error e;
    char line[64];
    nb_fail(&e, NB_ERR_FORMAT, "cause");
    assert_int_equal(nb_error_format(&e, line, sizeof line), 5);
    assert_string_equal(line, "cause");
    nb_error_at(&e, "f", "t", 3);
    nb_error_remedy(&e, "remedy");
    nb_error_format(&e, line, sizeof line);
    assert_string_equal(line, "f: t at byte 3: cause; remedy");
    assert_int_equal(nb_error_format(&e, line, 8), 29); /* the whole line's length */
    assert_string_equal(line, "f: t at");
    e.tensor[0] = '\0';
    nb_error_format(&e, line, sizeof line);
    assert_string_equal(line, "f: at byte 3: cause; remedy");
}

static void every_status_has_its_name(void **state)
{
    for (int s = NB_OK; s <= NB_ERR_CANCELLED; s++) {
        for (int t = NB_OK; t < s; t++)
            assert_string_not_equal(nb_status_name((nb_status)s), nb_status_name((nb_status)t));
        assert_string_not_equal(nb_status_name((nb_status)s), "unknown status");
    }
    assert_string_equal(nb_status_name((nb_status)999), "unknown status");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failing_fills_and_clears),  cmocka_unit_test(no_error_object_is_fine),
        cmocka_unit_test(long_names_keep_their_end), cmocka_unit_test(the_line),
        cmocka_unit_test(every_status_has_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
