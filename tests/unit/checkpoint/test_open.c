/* Opening model folders: one file or shards, and each problem, strictly (the first one fails the call) and leniently (each
 * is reported, and what can be read is there). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <sys/resource.h>

#include "checkpoint/folder.h"

static tempdir tmp;

#define ONE "model-00001-of-00002.safetensors"
#define TWO "model-00002-of-00002.safetensors"
#define INDEX "model.safetensors.index.json"
#define MAP "{\"weight_map\":{\"a\":\"" ONE "\",\"b\":\"" ONE "\",\"c\":\"" TWO "\"}"

static const folder_tensor a = {"a", NB_DT_U8, 1, {3}, "aaa"}, b = {"b", NB_DT_U8, 1, {2}, "bb"},
                           c1 = {"c", NB_DT_U8, 1, {1}, "c"}, d = {"d", NB_DT_U8, 1, {4}, "dddd"};

/* A sound folder of two shards: a and b, and c. */
static void setup_shards(void)
{
    const folder_tensor one[] = {a, b};
    tempdir_make(&tmp);
    folder_text(&tmp, "config.json", "{\"model_type\":\"llama\"}");
    folder_text(&tmp, INDEX, MAP ",\"metadata\":{\"total_size\":6}}");
    folder_write(&tmp, ONE, one, 2);
    folder_write(&tmp, TWO, &c1, 1);
}

typedef struct problems {
    int n;
    nb_problem_kind kind[8];
    nb_error what[8];
} problems;

static void note(void *ctx, nb_problem_kind kind, const nb_error *what)
{
    problems *p = ctx;
    if (p->n < 8) {
        p->kind[p->n] = kind;
        p->what[p->n] = *what;
    }
    p->n++;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* Opens strictly, expecting `strict`, then leniently, expecting n problems. *tensors: how many tensors are there then. */
static problems open_both(nb_status strict, int n, size_t *tensors)
{
    nb_ckpt *c = NULL;
    nb_error e;
    problems p = {0};
    assert_int_equal(nb_ckpt_open(tmp.path, NULL, NULL, &c, &e), strict);
    if (strict != NB_OK) {
        assert_null(c);
        assert_string_not_equal(e.cause, "");
        assert_string_not_equal(e.file, "");
    }
    nb_ckpt_close(c);
    assert_int_equal(nb_ckpt_open(tmp.path, note, &p, &c, &e), NB_OK);
    assert_int_equal(p.n, n);
    if (strict != NB_OK) assert_int_equal(p.what[0].status, strict);
    for (int i = 0; i < p.n && i < 8; i++) assert_string_not_equal(p.what[i].remedy, "");
    *tensors = nb_ckpt_count(c);
    nb_ckpt_close(c);
    tempdir_remove(&tmp);
    return p;
}

static void expect_problem(const problems *p, int i, nb_problem_kind kind, const char *file,
                           const char *tensor)
{
    assert_int_equal(p->kind[i], kind);
    assert_string_equal(p->what[i].tensor, tensor);
    if (!ends_with(p->what[i].file, file)) fail_msg("file \"%s\" is not \"%s\"", p->what[i].file, file);
}

static void one_file(void **state)
{
    const folder_tensor t[] = {a, b};
    nb_ckpt *c = NULL;
    char got[2];
    tempdir_make(&tmp);
    folder_text(&tmp, "config.json", "{\"model_type\":\"llama\"}");
    folder_write(&tmp, "model.safetensors", t, 2);
    folder_text(&tmp, "expected.safetensors", "not a shard");
    assert_int_equal(nb_ckpt_open(tmp.path, NULL, NULL, &c, NULL), NB_OK);
    assert_string_equal(nb_ckpt_dir(c), tmp.path);
    assert_string_equal(json_string_value(json_object_get(nb_ckpt_config(c), "model_type")), "llama");
    assert_true(ends_with(nb_ckpt_config_path(c), "/config.json"));
    assert_int_equal(nb_ckpt_files(c), 1);
    assert_string_equal(nb_ckpt_file_name(c, 0), "model.safetensors");
    assert_int_equal(nb_ckpt_count(c), 2);
    assert_null(nb_ckpt_find(c, "c"));
    assert_null(nb_ckpt_unlisted(c, "a"));
    assert_int_equal(nb_ckpt_read(c, nb_ckpt_find(c, "b"), 0, got, 2, NULL), NB_OK);
    assert_memory_equal(got, "bb", 2);
    nb_ckpt_close(c);
    nb_ckpt_close(NULL);
    tempdir_remove(&tmp);
}

static void two_shards(void **state)
{
    nb_ckpt *c = NULL;
    char got[3];
    setup_shards();
    assert_int_equal(nb_ckpt_open(tmp.path, NULL, NULL, &c, NULL), NB_OK);
    assert_int_equal(nb_ckpt_files(c), 2);
    assert_int_equal(nb_ckpt_count(c), 3);
    assert_string_equal(nb_ckpt_at(c, 0)->name, "a");
    assert_string_equal(nb_ckpt_at(c, 2)->name, "c");
    assert_int_equal(nb_ckpt_find(c, "a")->file, 0);
    assert_int_equal(nb_ckpt_find(c, "c")->file, 1);
    assert_true(ends_with(nb_ckpt_file_path(c, 1), "/" TWO));
    assert_int_equal(nb_ckpt_read(c, nb_ckpt_find(c, "a"), 1, got, 2, NULL), NB_OK);
    assert_memory_equal(got, "aa", 2);
    assert_int_equal(nb_ckpt_read(c, nb_ckpt_find(c, "c"), 0, got, 1, NULL), NB_OK);
    assert_memory_equal(got, "c", 1);
    nb_error e;
    assert_int_equal(nb_ckpt_read(c, nb_ckpt_find(c, "c"), 0, got, 2, &e), NB_ERR_ARGUMENT);
    struct stat s1, s2;
    assert_int_equal(stat(tempdir_path(&tmp, ONE), &s1), 0);
    assert_int_equal(stat(tempdir_path(&tmp, TWO), &s2), 0);
    assert_int_equal(nb_ckpt_bytes(c), s1.st_size + s2.st_size);
    nb_ckpt_close(c);
    size_t tensors;
    open_both(NB_OK, 0, &tensors);
    assert_int_equal(tensors, 3);
}

static void a_shard_is_missing(void **state)
{
    size_t tensors;
    setup_shards();
    unlink(tempdir_path(&tmp, ONE));
    problems p = open_both(NB_ERR_MISSING, 3, &tensors);
    expect_problem(&p, 0, NB_PROBLEM_INDEX, ONE, "");
    expect_problem(&p, 1, NB_PROBLEM_INDEX, ONE, "a"); /* each tensor that went with it */
    expect_problem(&p, 2, NB_PROBLEM_INDEX, ONE, "b");
    assert_int_equal(tensors, 1);
}

static void a_shard_is_broken(void **state)
{
    size_t tensors;
    setup_shards();
    folder_text(&tmp, TWO, "PK\x03\x04 is no safetensors file");
    problems p = open_both(NB_ERR_FORMAT, 1, &tensors);
    expect_problem(&p, 0, NB_PROBLEM_FILE, TWO, "");
    assert_int_equal(tensors, 2);
}

static void a_shard_is_a_placeholder(void **state)
{
    size_t tensors;
    setup_shards();
    folder_text(&tmp, TWO, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4976698672\n");
    problems p = open_both(NB_ERR_MISSING, 1, &tensors);
    expect_problem(&p, 0, NB_PROBLEM_NOT_DATA, TWO, "");
    setup_shards();
    folder_text(&tmp, TWO, "");
    p = open_both(NB_ERR_MISSING, 1, &tensors);
    expect_problem(&p, 0, NB_PROBLEM_NOT_DATA, TWO, "");
}

/* Headers of so many tensors are read by several threads; what is wrong is told in the order of the shards all the same. */
static void many_tensors(void **state)
{
    enum { EACH = 6000 };
    static folder_tensor all[2 * EACH];
    static char names[2 * EACH][8];
    nb_buf index = {0};
    size_t tensors;
    for (int broken = 0; broken < 2; broken++) {
        nb_buf_clear(&index);
        nb_buf_adds(&index, "{\"weight_map\":{");
        for (int i = 0; i < 2 * EACH; i++) {
            snprintf(names[i], sizeof names[i], "t%d", i);
            all[i] = (folder_tensor){names[i], NB_DT_U8, 1, {1}, NULL};
            nb_buf_addf(&index, "%s\"%s\":\"%s\"", i ? "," : "", names[i], i < EACH ? ONE : TWO);
        }
        nb_buf_adds(&index, "}}");
        tempdir_make(&tmp);
        folder_text(&tmp, "config.json", "{\"model_type\":\"llama\"}");
        folder_text(&tmp, INDEX, nb_buf_str(&index));
        folder_write(&tmp, ONE, all, EACH);
        folder_write(&tmp, TWO, all + EACH, EACH);
        if (broken) {
            folder_text(&tmp, ONE,
                        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4976698672\n");
            folder_text(&tmp, TWO, "PK\x03\x04 is no safetensors file");
        }
        problems p = open_both(broken ? NB_ERR_MISSING : NB_OK, broken ? 2 : 0, &tensors);
        assert_int_equal(tensors, broken ? 0 : 2 * EACH);
        if (!broken) continue;
        expect_problem(&p, 0, NB_PROBLEM_NOT_DATA, ONE, "");
        expect_problem(&p, 1, NB_PROBLEM_FILE, TWO, "");
    }
    nb_buf_free(&index);
}

static long most_memory(void)
{
    struct rusage u;
    assert_int_equal(getrusage(RUSAGE_SELF, &u), 0);
    return u.ru_maxrss;
}

/* n tensors, each in a file of its own that is not there. */
static void setup_nowhere(int n)
{
    nb_buf index = {0};
    nb_buf_adds(&index, "{\"weight_map\":{");
    for (int i = 0; i < n; i++) nb_buf_addf(&index, "%s\"t%d\":\"s%06d\"", i ? "," : "", i, i);
    nb_buf_adds(&index, "}}");
    tempdir_make(&tmp);
    folder_text(&tmp, "config.json", "{\"model_type\":\"llama\"}");
    folder_text(&tmp, INDEX, nb_buf_str(&index));
    nb_buf_free(&index);
}

/* Each is told, the files in their order and then the tensors; what is wrong with all of them is not kept until the first is told. */
static void the_index_names_files_that_are_nowhere(void **state)
{
    size_t tensors;
    nb_ckpt *c = NULL;
    nb_error e;
    setup_nowhere(1000);
    problems p = open_both(NB_ERR_MISSING, 2000, &tensors);
    for (int i = 0; i < 8; i++) {
        char name[16];
        snprintf(name, sizeof name, "/s%06d", i);
        expect_problem(&p, i, NB_PROBLEM_INDEX, name, "");
    }
    setup_nowhere(100000); /* of 1.4 KB each, if kept */
    const long before = most_memory();
    assert_int_equal(nb_ckpt_open(tmp.path, NULL, NULL, &c, &e), NB_ERR_MISSING);
    assert_true(ends_with(e.file, "/s000000"));
    assert_in_range(most_memory() - before, 0, 64 << 10);
}

static void the_index_sends_a_tensor_elsewhere(void **state)
{
    size_t tensors;
    setup_shards();
    folder_text(&tmp, INDEX, "{\"weight_map\":{\"a\":\"" ONE "\",\"b\":\"" TWO "\",\"c\":\"" TWO "\"}}");
    problems p = open_both(NB_ERR_FORMAT, 1, &tensors);
    expect_problem(&p, 0, NB_PROBLEM_INDEX, ONE, "b"); /* where it really is */
    assert_int_equal(tensors, 3);
}

static void the_index_names_a_tensor_that_is_nowhere(void **state)
{
    size_t tensors;
    setup_shards();
    folder_text(&tmp, INDEX,
                "{\"weight_map\":{\"a\":\"" ONE "\",\"b\":\"" ONE "\",\"c\":\"" TWO "\",\"d\":\"" TWO "\"}}");
    problems p = open_both(NB_ERR_MISSING, 1, &tensors);
    expect_problem(&p, 0, NB_PROBLEM_INDEX, TWO, "d");
    assert_int_equal(tensors, 3);
}

static void a_tensor_is_in_two_shards(void **state)
{
    const folder_tensor other_a = {"a", NB_DT_U8, 1, {3}, "xxx"}, two[] = {c1, other_a};
    size_t tensors;
    setup_shards();
    folder_write(&tmp, TWO, two, 2);
    folder_text(&tmp, INDEX, MAP "}");
    nb_ckpt *c = NULL;
    problems seen = {0};
    char got[3];
    assert_int_equal(nb_ckpt_open(tmp.path, note, &seen, &c, NULL), NB_OK);
    assert_int_equal(nb_ckpt_read(c, nb_ckpt_find(c, "a"), 0, got, 3, NULL), NB_OK);
    assert_memory_equal(got, "aaa", 3); /* the one that the index names */
    nb_ckpt_close(c);
    problems p = open_both(NB_ERR_FORMAT, 1, &tensors);
    expect_problem(&p, 0, NB_PROBLEM_INDEX, TWO, "a");
    assert_int_equal(tensors, 3);
}

static void the_index_omits_a_tensor(void **state)
{
    const folder_tensor two[] = {c1, d};
    size_t tensors;
    setup_shards();
    folder_write(&tmp, TWO, two, 2);
    folder_text(&tmp, INDEX, MAP "}");
    nb_ckpt *c = NULL;
    assert_int_equal(nb_ckpt_open(tmp.path, NULL, NULL, &c, NULL), NB_OK); /* a warning */
    assert_null(nb_ckpt_find(c, "d"));
    assert_non_null(nb_ckpt_unlisted(c, "d"));
    nb_ckpt_close(c);
    problems p = open_both(NB_OK, 1, &tensors);
    expect_problem(&p, 0, NB_PROBLEM_INDEX_WARNING, TWO, "d");
    assert_int_equal(tensors, 3);
}

static void unsafe_file_names(void **state)
{
    const char *paths[] = {"../" ONE, "/" ONE, "sub/" ONE, "..", ""};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        char text[300];
        size_t tensors;
        setup_shards();
        snprintf(text, sizeof text, "{\"weight_map\":{\"a\":\"" ONE "\",\"b\":\"%s\",\"c\":\"" TWO "\"}}",
                 paths[i]);
        folder_text(&tmp, INDEX, text);
        problems seen = {0};
        nb_ckpt *c = NULL;
        nb_error e;
        assert_int_equal(nb_ckpt_open(tmp.path, NULL, NULL, &c, &e), NB_ERR_FORMAT);
        assert_int_equal(nb_ckpt_open(tmp.path, note, &seen, &c, NULL), NB_OK);
        tensors = nb_ckpt_count(c);
        assert_int_equal(tensors, 3); /* b is in a shard that was opened for a */
        bool named = false;
        for (int k = 0; k < seen.n; k++)
            named = named || (strcmp(seen.what[k].tensor, "b") == 0 &&
                              strcmp(seen.what[k].file, paths[i]) == 0 && seen.kind[k] == NB_PROBLEM_INDEX);
        assert_true(named);
        nb_ckpt_close(c);
        tempdir_remove(&tmp);
    }
}

static void total_size_is_wrong(void **state)
{
    size_t tensors;
    setup_shards();
    folder_text(&tmp, INDEX, MAP ",\"metadata\":{\"total_size\":12}}");
    problems p = open_both(NB_OK, 1, &tensors);
    expect_problem(&p, 0, NB_PROBLEM_INDEX_WARNING, INDEX, "");
    assert_non_null(strstr(p.what[0].cause, "12; the tensors have 6 bytes"));
}

static void the_index_is_cut_off(void **state)
{
    size_t tensors;
    setup_shards();
    folder_text(&tmp, INDEX, "{\"weight_map\":{\"a\":\"" ONE);
    problems p = open_both(NB_ERR_FORMAT, 1, &tensors);
    expect_problem(&p, 0, NB_PROBLEM_INDEX, INDEX, "a"); /* the entry where it breaks */
    assert_int_equal(tensors, 3);                        /* found by their names in the folder */
    setup_shards();
    folder_text(&tmp, INDEX, "");
    p = open_both(NB_ERR_MISSING, 1, &tensors);
    expect_problem(&p, 0, NB_PROBLEM_NOT_DATA, INDEX, "");
}

static void the_index_is_missing(void **state)
{
    size_t tensors;
    setup_shards();
    unlink(tempdir_path(&tmp, INDEX));
    problems p = open_both(NB_ERR_MISSING, 1, &tensors);
    expect_problem(&p, 0, NB_PROBLEM_INDEX, INDEX, "");
    assert_int_equal(tensors, 3);
    /* without it, a tensor in two shards shows too */
    setup_shards();
    unlink(tempdir_path(&tmp, INDEX));
    const folder_tensor two[] = {c1, a};
    folder_write(&tmp, TWO, two, 2);
    p = open_both(NB_ERR_MISSING, 2, &tensors);
    expect_problem(&p, 1, NB_PROBLEM_INDEX, TWO, "a");
    assert_int_equal(tensors, 3);
}

static void a_lone_file_lies_beside_the_shards(void **state)
{
    size_t tensors;
    setup_shards();
    folder_write(&tmp, "model.safetensors", &d, 1);
    problems p = open_both(NB_OK, 1, &tensors);
    expect_problem(&p, 0, NB_PROBLEM_INDEX_WARNING, INDEX, "");
    assert_int_equal(tensors, 3); /* the index counts */
}

static void config_problems(void **state)
{
    size_t tensors;
    setup_shards();
    unlink(tempdir_path(&tmp, "config.json"));
    problems p = open_both(NB_ERR_MISSING, 1, &tensors);
    expect_problem(&p, 0, NB_PROBLEM_CONFIG, "config.json", "");
    setup_shards();
    folder_text(&tmp, "config.json", "{");
    p = open_both(NB_ERR_FORMAT, 1, &tensors);
    expect_problem(&p, 0, NB_PROBLEM_CONFIG, "config.json", "");
    setup_shards();
    folder_text(&tmp, "config.json",
                "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 49766\n");
    p = open_both(NB_ERR_MISSING, 1, &tensors);
    expect_problem(&p, 0, NB_PROBLEM_NOT_DATA, "config.json", "");
}

static void no_model_at_all(void **state)
{
    nb_ckpt *c = NULL;
    nb_error e;
    problems p = {0};
    tempdir_make(&tmp);
    folder_text(&tmp, "config.json", "{}");
    assert_int_equal(nb_ckpt_open(tmp.path, NULL, NULL, &c, &e), NB_ERR_MISSING);
    assert_non_null(strstr(e.cause, "neither model.safetensors nor"));
    assert_int_equal(nb_ckpt_open(tmp.path, note, &p, &c, &e),
                     NB_ERR_MISSING); /* leniently too: nothing to read */
    assert_int_equal(nb_ckpt_open(tempdir_path(&tmp, "absent"), note, &p, &c, &e), NB_ERR_MISSING);
    assert_int_equal(nb_ckpt_open(tempdir_path(&tmp, "config.json"), note, &p, &c, &e), NB_ERR_ARGUMENT);
    assert_null(c);
    tempdir_remove(&tmp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_file),
        cmocka_unit_test(two_shards),
        cmocka_unit_test(a_shard_is_missing),
        cmocka_unit_test(a_shard_is_broken),
        cmocka_unit_test(a_shard_is_a_placeholder),
        cmocka_unit_test(many_tensors),
        cmocka_unit_test(the_index_names_files_that_are_nowhere),
        cmocka_unit_test(the_index_sends_a_tensor_elsewhere),
        cmocka_unit_test(the_index_names_a_tensor_that_is_nowhere),
        cmocka_unit_test(a_tensor_is_in_two_shards),
        cmocka_unit_test(the_index_omits_a_tensor),
        cmocka_unit_test(unsafe_file_names),
        cmocka_unit_test(total_size_is_wrong),
        cmocka_unit_test(the_index_is_cut_off),
        cmocka_unit_test(the_index_is_missing),
        cmocka_unit_test(a_lone_file_lies_beside_the_shards),
        cmocka_unit_test(config_problems),
        cmocka_unit_test(no_model_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
