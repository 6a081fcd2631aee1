/* Model ids in the local Hugging Face cache: laid out as huggingface_hub does, found as it finds them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "checkpoint/checkpoint.h"
#include "tempdir.h"

static tempdir tmp;

static void make(const char *name)
{
    char part[300];
    for (const char *p = name; (p = strchr(p, '/')); p++) {
        snprintf(part, sizeof part, "%.*s", (int)(p - name), name);
        mkdir(tempdir_path(&tmp, part), 0700);
    }
}
static void folder(const char *name)
{
    make(name);
    mkdir(tempdir_path(&tmp, name), 0700);
}
static void text(const char *name, const char *content)
{
    make(name);
    tempdir_write(&tmp, name, content, strlen(content));
}

static void expect_found(const char *id, const char *below)
{
    char *got = NULL;
    nb_error e;
    nb_status s = nb_hub_resolve(id, &got, &e);
    if (s != NB_OK) fail_msg("%s: %s", id, e.cause);
    assert_string_equal(got, tempdir_path(&tmp, below));
    free(got);
}

static void expect_missing(const char *id, const char *remedy)
{
    char *got = NULL;
    nb_error e;
    assert_int_equal(nb_hub_resolve(id, &got, &e), NB_ERR_MISSING);
    assert_null(got);
    if (!strstr(e.remedy, remedy)) fail_msg("remedy \"%s\" does not say \"%s\"", e.remedy, remedy);
}

static int setup(void **state)
{
    tempdir_make(&tmp);
    folder("hub/models--org--name/snapshots/abc123");
    folder("hub/models--org--name/snapshots/def456");
    text("hub/models--org--name/refs/main", "abc123\n");
    text("hub/models--org--name/refs/refs/pr/1", "def456");
    text("hub/models--org--evil/refs/main", "../../models--org--name/snapshots/abc123");
    text("hub/models--org--gone/refs/main", "0000");
    text("hub/models--org--empty/refs/main", "");
    setenv("HF_HUB_CACHE", tempdir_path(&tmp, "hub"), 1);
    unsetenv("HF_HOME");
    unsetenv("XDG_CACHE_HOME");
    return 0;
}
static int teardown(void **state)
{
    tempdir_remove(&tmp);
    return 0;
}

static void ids_and_revisions(void **state)
{
    expect_found("org/name", "hub/models--org--name/snapshots/abc123");
    expect_found("org/name@main", "hub/models--org--name/snapshots/abc123");
    expect_found("org/name@refs/pr/1", "hub/models--org--name/snapshots/def456");
    expect_found("org/name@def456", "hub/models--org--name/snapshots/def456"); /* a commit, without a ref */
}

static void a_folder_is_itself(void **state)
{
    expect_found(tempdir_path(&tmp, "hub"), "hub");
}

static void not_in_the_cache(void **state)
{
    expect_missing("org/other", "hf download org/other");
    expect_missing("org/name@v2", "hf download org/name --revision v2");
    expect_missing("org/gone", "hf download org/gone"); /* the ref's snapshot is not there */
    expect_missing("org/empty", "hf download org/empty");
}

static void names_that_could_leave_the_cache(void **state)
{
    expect_missing("org/evil", "hf download org/evil"); /* the ref holds a path */
    expect_missing("../name", "org/name");
    expect_missing("org/..", "org/name");
    expect_missing("org/na/me", "org/name");
    expect_missing("name", "org/name");
    expect_missing("", "org/name");
    expect_missing("org/", "org/name");
    expect_missing("org/name@", "org/name");
    expect_missing("org/name@../../models--org--name/refs", "org/name");
    expect_missing("org/na me", "org/name");
}

static void the_places_in_their_order(void **state)
{
    /* the same id in each place, with its own commit */
    text("home/hub/models--o--n/refs/main", "home");
    folder("home/hub/models--o--n/snapshots/home");
    text("xdg/huggingface/hub/models--o--n/refs/main", "xdg");
    folder("xdg/huggingface/hub/models--o--n/snapshots/xdg");
    text("user/.cache/huggingface/hub/models--o--n/refs/main", "user");
    folder("user/.cache/huggingface/hub/models--o--n/snapshots/user");
    setenv("HF_HOME", tempdir_path(&tmp, "home"), 1);
    setenv("XDG_CACHE_HOME", tempdir_path(&tmp, "xdg"), 1);
    setenv("HOME", tempdir_path(&tmp, "user"), 1);
    expect_missing("o/n", "hf download"); /* HF_HUB_CACHE is set, and it alone counts */
    unsetenv("HF_HUB_CACHE");
    expect_found("o/n", "home/hub/models--o--n/snapshots/home");
    unsetenv("HF_HOME");
    expect_found("o/n", "xdg/huggingface/hub/models--o--n/snapshots/xdg");
    unsetenv("XDG_CACHE_HOME");
    expect_found("o/n", "user/.cache/huggingface/hub/models--o--n/snapshots/user");
}

static void an_open_checkpoint_may_come_from_the_cache(void **state)
{
    nb_st_writer *w = NULL;
    nb_ckpt *c = NULL;
    text("hub/models--org--name/snapshots/abc123/config.json", "{}");
    assert_int_equal(
        nb_st_writer_open(tempdir_path(&tmp, "hub/models--org--name/snapshots/abc123/model.safetensors"), &w,
                          NULL),
        NB_OK);
    assert_int_equal(nb_st_writer_begin(w, NULL), NB_OK);
    assert_int_equal(nb_st_writer_commit(w, NULL), NB_OK);
    assert_int_equal(nb_ckpt_open("org/name", NULL, NULL, &c, NULL), NB_OK);
    assert_string_equal(nb_ckpt_dir(c), tempdir_path(&tmp, "hub/models--org--name/snapshots/abc123"));
    nb_ckpt_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ids_and_revisions, setup, teardown),
        cmocka_unit_test_setup_teardown(a_folder_is_itself, setup, teardown),
        cmocka_unit_test_setup_teardown(not_in_the_cache, setup, teardown),
        cmocka_unit_test_setup_teardown(names_that_could_leave_the_cache, setup, teardown),
        cmocka_unit_test_setup_teardown(the_places_in_their_order, setup, teardown),
        cmocka_unit_test_setup_teardown(an_open_checkpoint_may_come_from_the_cache, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
