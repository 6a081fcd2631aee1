/* Positioned reads: exact, and an error that names file and byte when the file is shorter than it was. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/file.h"
#include "tempdir.h"

static tempdir tmp;

static void reads_exact_ranges(void **state)
{
    nb_file f;
    char got[4] = "";
    assert_int_equal(nb_file_open(tempdir_write(&tmp, "f", "0123456789", 10), &f, NULL), NB_OK);
    assert_int_equal(f.size, 10);
    assert_int_equal(nb_file_read(&f, 6, got, 4, NULL), NB_OK);
    assert_memory_equal(got, "6789", 4);
    assert_int_equal(nb_file_read(&f, 10, got, 0, NULL), NB_OK);
    nb_file_close(&f);
    assert_int_equal(f.fd, -1);
    nb_file_close(&f); /* closing twice is harmless */
}

static void a_file_that_shrinks_is_an_io_error(void **state)
{
    nb_file f;
    nb_error e;
    char got[10];
    assert_int_equal(nb_file_open(tempdir_write(&tmp, "shrinks", "0123456789", 10), &f, NULL), NB_OK);
    assert_int_equal(truncate(f.path, 7), 0);
    assert_int_equal(nb_file_read(&f, 2, got, 8, &e), NB_ERR_IO);
    assert_int_equal(e.offset, 7);
    assert_string_equal(e.file, f.path);
    assert_non_null(strstr(e.cause, "10 bytes"));
    nb_file_close(&f);
}

static void offsets_beyond_a_file_are_refused(void **state)
{
    nb_file f;
    char c;
    assert_int_equal(nb_file_open(tempdir_write(&tmp, "f", "x", 1), &f, NULL), NB_OK);
    assert_int_equal(nb_file_read(&f, UINT64_MAX, &c, 1, NULL), NB_ERR_ARGUMENT);
    assert_int_equal(nb_file_read(&f, (uint64_t)INT64_MAX, &c, 1, NULL), NB_ERR_ARGUMENT);
    assert_int_equal(nb_file_read(&f, 5, &c, 1, NULL), NB_ERR_IO);
    nb_file_close(&f);
}

static void only_regular_files_open(void **state)
{
    nb_file f;
    nb_error e;
    assert_int_equal(nb_file_open(tempdir_path(&tmp, "absent"), &f, &e), NB_ERR_MISSING);
    assert_string_equal(e.file, tmp.file);
    assert_int_equal(nb_file_open(tmp.path, &f, &e), NB_ERR_FORMAT);
    assert_non_null(strstr(e.cause, "folder"));
    assert_int_equal(mkfifo(tempdir_path(&tmp, "fifo"), 0600), 0);
    assert_int_equal(nb_file_open(tmp.file, &f, &e), NB_ERR_FORMAT); /* and does not wait for a writer */
    assert_int_equal(nb_file_open("/dev/null", &f, &e), NB_ERR_FORMAT);
}

static void slurp_has_a_limit(void **state)
{
    nb_buf b = {0};
    nb_error e;
    tempdir_write(&tmp, "small", "hello", 5);
    assert_int_equal(nb_file_slurp(tmp.file, 5, &b, NULL), NB_OK);
    assert_string_equal(nb_buf_str(&b), "hello");
    nb_buf_free(&b);
    assert_int_equal(nb_file_slurp(tmp.file, 4, &b, &e), NB_ERR_LIMIT);
    assert_null(b.data);
    tempdir_write(&tmp, "empty", "", 0);
    assert_int_equal(nb_file_slurp(tmp.file, 4, &b, NULL), NB_OK);
    assert_int_equal(b.len, 0);
    nb_buf_free(&b);
}

static void paths_join_with_one_slash(void **state)
{
    const char *cases[][3] = {{"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"/", "b", "/b"}, {"", "b", "b"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *p = nb_path_join(cases[i][0], cases[i][1]);
        assert_string_equal(p, cases[i][2]);
        free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_exact_ranges),
        cmocka_unit_test(a_file_that_shrinks_is_an_io_error),
        cmocka_unit_test(offsets_beyond_a_file_are_refused),
        cmocka_unit_test(only_regular_files_open),
        cmocka_unit_test(slurp_has_a_limit),
        cmocka_unit_test(paths_join_with_one_slash),
    };
    tempdir_make(&tmp);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tempdir_remove(&tmp);
    return failed;
}
