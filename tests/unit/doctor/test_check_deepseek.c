/* NB007 where only DeepSeek-V4 can show it: the hash router's table, and drafting blocks. Works on copies of the fixture. */
#include "doctor.h"

#include "base/file.h"

#define BASE NB_TEST_DATA "/fixtures/models/deepseek_v4_modelopt"

static model m;

/* Copies every tensor of the fixture but `without`, with the bytes of `instead` put to those of `at` (NULL: none). */
static void copy(const char *without, const char *at, size_t offset, const void *instead, size_t n)
{
    nb_ckpt *c = NULL;
    nb_st_writer *w = NULL;
    nb_buf config = {0};
    nb_error e;
    tempdir_make(&m.dir);
    if (nb_ckpt_open(BASE, NULL, NULL, &c, &e) != NB_OK) fail_msg("%s", e.cause);
    folder_require(nb_file_slurp(BASE "/config.json", 1 << 20, &config, NULL));
    folder_text(&m.dir, "config.json", nb_buf_str(&config));
    nb_buf_free(&config);
    folder_require(nb_st_writer_open(tempdir_path(&m.dir, "model.safetensors"), &w, NULL));
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < nb_ckpt_count(c); i++) {
            const nb_tensor_info *t = nb_ckpt_at(c, i);
            size_t size = (size_t)(t->end - t->begin);
            if (without && strcmp(t->name, without) == 0) continue;
            if (pass == 0) {
                folder_require(nb_st_writer_declare(w, t->name, t->dtype, t->rank, t->shape, NULL));
                continue;
            }
            char *bytes = malloc(size + 1);
            assert_non_null(bytes);
            folder_require(nb_ckpt_read(c, t, 0, bytes, size, NULL));
            if (at && strcmp(t->name, at) == 0) memcpy(bytes + offset, instead, n);
            folder_require(nb_st_writer_put(w, bytes, size, NULL));
            free(bytes);
        }
        if (pass == 0) folder_require(nb_st_writer_begin(w, NULL));
    }
    folder_require(nb_st_writer_commit(w, NULL));
    nb_ckpt_close(c);
    check_folder(&m, m.dir.path);
}

static void the_copy_is_healthy(void **state)
{
    copy(NULL, NULL, 0, NULL, 0);
    must_be_alone(&m, NULL);
    assert_string_equal(m.r.architecture, "deepseek_v4");
    model_free(&m);
}

static void a_router_entry_beyond_the_experts(void **state)
{
    const int64_t six = 6; /* the experts are 0 to 5; entry [3, 1] of a table with two columns */
    copy(NULL, "layers.0.ffn.gate.tid2eid", (3 * 2 + 1) * 8, &six, 8);
    const nb_finding *f = must_find(&m, "NB007", "layers.0.ffn.gate.tid2eid", NB_SEVERITY_ERROR);
    assert_non_null(strstr(f->measured, "entry [3, 1] is 6; 1 of 768"));
    assert_true(f->has_bytes);
    assert_int_equal(f->end - f->begin, 8);
    assert_int_equal(m.r.findings.count, 1);
    /* The byte range is that of the entry in the file. */
    nb_file file = {.fd = -1};
    int64_t there = 0;
    folder_require(nb_file_open(tempdir_path(&m.dir, "model.safetensors"), &file, NULL));
    folder_require(nb_file_read(&file, f->begin, &there, 8, NULL));
    assert_int_equal(there, 6);
    nb_file_close(&file);
    model_free(&m);
}

static void a_token_that_meets_one_expert_twice(void **state)
{
    const int64_t pair[2] = {4, 4}; /* row 3 */
    copy(NULL, "layers.0.ffn.gate.tid2eid", 3 * 2 * 8, pair, sizeof pair);
    const nb_finding *f = must_find(&m, "NB007", "layers.0.ffn.gate.tid2eid", NB_SEVERITY_WARNING);
    assert_non_null(strstr(f->measured, "token 3: expert 4 twice; 1 of 384 rows"));
    assert_int_equal(f->end - f->begin, 8);
    nb_file file = {.fd = -1}; /* the range is that of the second slot: behind it begins row 4 */
    int64_t there[2] = {0};
    folder_require(nb_file_open(tempdir_path(&m.dir, "model.safetensors"), &file, NULL));
    folder_require(nb_file_read(&file, f->begin - 8, there, 16, NULL));
    assert_int_equal(there[0], 4);
    assert_int_equal(there[1], 4);
    nb_file_close(&file);
    assert_int_equal(m.r.findings.count, 1);
    model_free(&m);
}

static void a_drafting_block_with_a_gap(void **state)
{
    copy("mtp.0.attn_norm.weight", NULL, 0, NULL, 0);
    must_find(&m, "NB007", "mtp.0.attn_norm.weight", NB_SEVERITY_ERROR);
    assert_int_equal(m.r.findings.count, 1);
    model_free(&m);
    copy("mtp.0.enorm.weight", NULL, 0, NULL, 0);
    must_find(&m, "NB007", "mtp.0.enorm.weight", NB_SEVERITY_ERROR);
    assert_int_equal(m.r.findings.count, 1);
    model_free(&m);
    copy("mtp.0.attn.wq_a.weight", NULL, 0, NULL, 0); /* its scale is still there: a set with a gap */
    must_find(&m, "NB003", "mtp.0.attn.wq_a.weight", NB_SEVERITY_ERROR);
    assert_int_equal(m.r.findings.count, 1);
    model_free(&m);
}

static void names_follow_the_checkpoints_spelling(void **state)
{
    copy("layers.1.attn_norm.weight", NULL, 0, NULL, 0);
    must_find(&m, "NB007", "layers.1.attn_norm.weight", NB_SEVERITY_ERROR);
    assert_int_equal(m.r.findings.count, 1);
    model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_copy_is_healthy),
        cmocka_unit_test(a_router_entry_beyond_the_experts),
        cmocka_unit_test(a_token_that_meets_one_expert_twice),
        cmocka_unit_test(a_drafting_block_with_a_gap),
        cmocka_unit_test(names_follow_the_checkpoints_spelling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
