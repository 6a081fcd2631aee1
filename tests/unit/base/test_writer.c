/* Writing: the final name holds the whole new file or the old one, whatever happens in between. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/file.h"
#include "tempdir.h"

static tempdir tmp;

static void expect_content(const char *path, const char *bytes, size_t n)
{
    nb_buf b = {0};
    assert_int_equal(nb_file_slurp(path, 1 << 20, &b, NULL), NB_OK);
    assert_int_equal(b.len, n);
    if (n) assert_memory_equal(b.data, bytes, n);
    nb_buf_free(&b);
}

static void commit_replaces_and_abort_leaves(void **state)
{
    nb_writer *w;
    char path[600];
    strcpy(path, tempdir_write(&tmp, "f", "old", 3));
    assert_int_equal(nb_writer_open(path, &w, NULL), NB_OK);
    assert_int_equal(nb_writer_put(w, "new!", 4, NULL), NB_OK);
    expect_content(path, "old", 3);
    nb_writer_abort(w);
    expect_content(path, "old", 3);
    assert_int_equal(tempdir_entries(&tmp), 1);

    assert_int_equal(nb_writer_open(path, &w, NULL), NB_OK);
    assert_int_equal(nb_writer_put(w, "new!", 4, NULL), NB_OK);
    assert_int_equal(nb_writer_commit(w, NULL), NB_OK);
    expect_content(path, "new!", 4);
    assert_int_equal(tempdir_entries(&tmp), 1);
    nb_writer_abort(NULL);
}

static void a_reader_of_the_old_file_keeps_it(void **state)
{
    nb_file f;
    nb_writer *w;
    char got[3];
    tempdir_write(&tmp, "f", "old", 3);
    assert_int_equal(nb_file_open(tmp.file, &f, NULL), NB_OK);
    assert_int_equal(nb_writer_open(tmp.file, &w, NULL), NB_OK);
    assert_int_equal(nb_writer_commit(w, NULL), NB_OK);
    expect_content(tmp.file, "", 0);
    assert_int_equal(nb_file_read(&f, 0, got, 3, NULL), NB_OK);
    assert_memory_equal(got, "old", 3);
    nb_file_close(&f);
}

static void puts_of_every_size_arrive_in_order(void **state)
{
    enum { N = 300000 };
    char *bytes = malloc(N);
    assert_non_null(bytes);
    for (size_t i = 0; i < N; i++) bytes[i] = (char)(i * 2654435761u >> 13);
    nb_writer *w;
    assert_int_equal(nb_writer_open(tempdir_path(&tmp, "sizes"), &w, NULL), NB_OK);
    /* around the 64 KiB buffer: under, exactly filling, over */
    const size_t sizes[] = {0, 1, 65535, 1, 65536, 65537, 7, 100000};
    size_t at = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_int_equal(nb_writer_put(w, bytes + at, sizes[i], NULL), NB_OK);
        at += sizes[i];
    }
    assert_int_equal(nb_writer_put(w, bytes + at, N - at, NULL), NB_OK);
    assert_int_equal(nb_writer_commit(w, NULL), NB_OK);
    expect_content(tmp.file, bytes, N);
    free(bytes);
}

static void the_mode_is_that_of_a_plain_file(void **state)
{
    nb_writer *w;
    struct stat st;
    mode_t before = umask(022);
    assert_int_equal(nb_writer_open(tempdir_path(&tmp, "mode"), &w, NULL), NB_OK);
    assert_int_equal(nb_writer_commit(w, NULL), NB_OK);
    umask(before);
    assert_int_equal(stat(tmp.file, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0644);
}

static void a_missing_folder_is_named(void **state)
{
    nb_writer *w = NULL;
    nb_error e;
    assert_int_equal(nb_writer_open(tempdir_path(&tmp, "absent/f"), &w, &e), NB_ERR_MISSING);
    assert_null(w);
    assert_string_equal(e.file, tmp.file);
}

static void a_full_disk_fails_and_leaves_nothing(void **state)
{
    /* The file-size limit stands in for a full disk: write() fails in the middle. */
    struct rlimit old, limit;
    static char zeros[100000];
    nb_writer *w;
    nb_error e;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = (struct rlimit){50000, old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    int before = tempdir_entries(&tmp);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(nb_writer_open(tempdir_path(&tmp, "full"), &w, NULL), NB_OK);
    nb_status put = nb_writer_put(w, zeros, sizeof zeros, &e);
    nb_status later = nb_writer_put(w, zeros, 10, NULL);
    nb_status commit = nb_writer_commit(w, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(put, NB_ERR_IO);
    assert_int_equal(e.offset, 50000);
    assert_int_equal(later, NB_OK); /* only held in memory */
    assert_int_not_equal(commit, NB_OK);
    assert_int_equal(tempdir_entries(&tmp), before);
}

static void a_program_that_is_killed_leaves_nothing(void **state)
{
    char self[40];
    const int fd = open(tmp.path, O_TMPFILE | O_WRONLY, 0600);
    int how = 0;
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    /* Where files cannot be without a name, or cannot get one, they have one from the start. */
    if (fd < 0 || linkat(AT_FDCWD, self, AT_FDCWD, tempdir_path(&tmp, "named"), AT_SYMLINK_FOLLOW) != 0)
        skip();
    close(fd);
    const int before = tempdir_entries(&tmp);
    const pid_t child = fork();
    if (child == 0) {
        static char zeros[100000];
        nb_writer *w;
        if (nb_writer_open(tempdir_path(&tmp, "killed"), &w, NULL) == NB_OK &&
            nb_writer_put(w, zeros, sizeof zeros, NULL) == NB_OK)
            raise(SIGKILL);
        _exit(1);
    }
    assert_true(child > 0 && waitpid(child, &how, 0) == child);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    assert_int_equal(tempdir_entries(&tmp), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commit_replaces_and_abort_leaves),
        cmocka_unit_test(a_reader_of_the_old_file_keeps_it),
        cmocka_unit_test(puts_of_every_size_arrive_in_order),
        cmocka_unit_test(the_mode_is_that_of_a_plain_file),
        cmocka_unit_test(a_missing_folder_is_named),
        cmocka_unit_test(a_full_disk_fails_and_leaves_nothing),
        cmocka_unit_test(a_program_that_is_killed_leaves_nothing),
    };
    tempdir_make(&tmp);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tempdir_remove(&tmp);
    return failed;
}
