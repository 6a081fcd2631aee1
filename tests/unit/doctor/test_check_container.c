/* NB001, NB002, NB008: files and index. What belongs together is one finding, and what can be read is judged all the same. */
#include "doctor.h"

static model m;

/* The llama in two files: layer 1 in the second. index is its weight_map's extra entries; NULL: the right ones alone. */
static void write_shards(bool omit, const char *extra)
{
    nb_buf index = {0};
    folder_tensor *t = m.t;
    size_t first = 0;
    tempdir_make(&m.dir);
    folder_text(&m.dir, "config.json", LLAMA_CONFIG);
    nb_buf_adds(&index, "{\"weight_map\":{");
    while (first < m.n && !strstr(t[first].name, "layers.1.")) first++;
    for (size_t i = 0; i < m.n; i++) {
        if (omit && strcmp(t[i].name, "model.norm.weight") == 0) continue;
        nb_buf_addf(&index, "\"%s\":\"%s\",", t[i].name,
                    i < first ? "model-1.safetensors" : "model-2.safetensors");
    }
    index.len -= extra ? 0 : 1;
    nb_buf_addf(&index, "%s}}", extra ? extra : "");
    folder_text(&m.dir, "model.safetensors.index.json", nb_buf_str(&index));
    folder_write(&m.dir, "model-1.safetensors", t, first);
    folder_write(&m.dir, "model-2.safetensors", t + first, m.n - first);
    nb_buf_free(&index);
}

static void shards_are_one_set(void **state)
{
    model_llama(&m, true);
    write_shards(false, NULL);
    check_folder(&m, m.dir.path);
    assert_int_equal(m.r.findings.count, 0);
    assert_int_equal(m.r.files, 2);
    assert_int_equal(m.r.tensors, m.n);
    model_free(&m);
}

static void a_lost_shard_is_one_finding_with_all_its_tensors(void **state)
{
    model_llama(&m, true);
    write_shards(false, NULL);
    unlink(tempdir_path(&m.dir, "model-2.safetensors"));
    check_folder(&m, m.dir.path);
    const nb_finding *f =
        must_find(&m, "NB002", "model.layers.1.mlp.up_proj.weight_scale", NB_SEVERITY_ERROR);
    assert_string_equal(f->file, "model-2.safetensors");
    assert_int_equal(f->n_tensors, 2 + 7 * 4);
    assert_int_equal(m.r.findings.count, 1); /* what is in it is not called missing a second time */
    model_free(&m);
}

static void a_broken_shard_hides_nothing_of_the_other(void **state)
{
    model_llama(&m, true);
    model_reshape(&m, "model.layers.0.mlp.up_proj.weight_scale", NB_DT_F8_E4M3, 2, 2, 64);
    write_shards(false, NULL);
    assert_int_equal(truncate(tempdir_path(&m.dir, "model-2.safetensors"), 1000), 0);
    check_folder(&m, m.dir.path);
    const nb_finding *f = must_find(&m, "NB001", NULL, NB_SEVERITY_ERROR);
    assert_string_equal(f->file, "model-2.safetensors");
    assert_int_equal(f->effect[NB_FAMILY_MARLIN], NB_EFFECT_REFUSED);
    must_find(&m, "NB004", "model.layers.0.mlp.up_proj.weight_scale", NB_SEVERITY_ERROR);
    assert_int_equal(m.r.findings.count, 2); /* layer 1 may be whole: nothing is said of it */
    model_free(&m);
}

static void a_pointer_and_an_empty_file_are_no_data(void **state)
{
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
    model_llama(&m, true);
    write_shards(false, NULL);
    folder_text(&m.dir, "model-2.safetensors", lfs);
    folder_text(&m.dir, "tokenizer.json", lfs);
    folder_text(&m.dir, "generation_config.json", "");
    folder_text(&m.dir, "picture.png", lfs); /* nobody loads it */
    check_folder(&m, m.dir.path);
    must_be_alone(&m, "NB008");
    assert_int_equal(m.r.findings.count, 3);
    bool shard = false, tokenizer = false;
    for (size_t i = 0; i < 3; i++) {
        shard = shard || strcmp(m.r.findings.items[i].file, "model-2.safetensors") == 0;
        tokenizer = tokenizer || strcmp(m.r.findings.items[i].file, "tokenizer.json") == 0;
    }
    assert_true(shard && tokenizer);
    model_free(&m);
}

static void what_the_index_omits_is_a_warning_and_missed(void **state)
{
    model_llama(&m, true);
    write_shards(true, NULL);
    check_folder(&m, m.dir.path);
    must_find(&m, "NB002", "model.norm.weight", NB_SEVERITY_WARNING);
    must_find(&m, "NB007", "model.norm.weight",
              NB_SEVERITY_ERROR); /* loaders that follow the index do not see it */
    model_free(&m);
}

static void an_index_that_points_elsewhere(void **state)
{
    model_llama(&m, true);
    write_shards(false, "\"x\":\"../x.safetensors\",\"y\":\"model-1.safetensors\"");
    check_folder(&m, m.dir.path);
    assert_string_equal(must_find(&m, "NB002", "x", NB_SEVERITY_ERROR)->file, "../x.safetensors");
    assert_string_equal(must_find(&m, "NB002", "y", NB_SEVERITY_ERROR)->file, "model-1.safetensors");
    must_be_alone(&m, "NB002");
    model_free(&m);
}

static void an_index_that_is_no_json(void **state)
{
    model_llama(&m, true);
    write_shards(false, NULL);
    folder_text(&m.dir, "model.safetensors.index.json", "{\"weight_map\": {");
    check_folder(&m, m.dir.path);
    assert_string_equal(must_find(&m, "NB002", NULL, NB_SEVERITY_ERROR)->file,
                        "model.safetensors.index.json");
    assert_int_equal(m.r.findings.count, 1); /* the shards are found by their names */
    model_free(&m);
}

static void a_folder_that_is_none(void **state)
{
    nb_check_result r = {0};
    nb_error e = {0};
    tempdir_make(&m.dir);
    assert_int_equal(nb_check_folder(m.dir.path, NULL, &r, &e), NB_ERR_MISSING);
    assert_string_not_equal(e.cause, "");
    assert_int_equal(nb_check_folder(tempdir_path(&m.dir, "not/there"), NULL, &r, &e), NB_ERR_MISSING);
    tempdir_remove(&m.dir);
}

/* An older upload beside the shards. Files with other names in them (Mistral's own format, an adapter) are nobody's matter. */
static void a_stray_file_with_the_same_names(void **state)
{
    for (int same = 0; same < 2; same++) {
        model_llama(&m, true);
        write_shards(false, NULL);
        folder_tensor other = {same ? "model.norm.weight" : "norm.weight", NB_DT_BF16, 1, {32}, NULL};
        folder_write(&m.dir, "model-3.safetensors", &other, 1);
        check_folder(&m, m.dir.path);
        if (same)
            assert_string_equal(must_find(&m, "NB002", "model.norm.weight", NB_SEVERITY_WARNING)->file,
                                "model-3.safetensors");
        assert_int_equal(m.r.findings.count, same);
        model_free(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stray_file_with_the_same_names),
        cmocka_unit_test(shards_are_one_set),
        cmocka_unit_test(a_lost_shard_is_one_finding_with_all_its_tensors),
        cmocka_unit_test(a_broken_shard_hides_nothing_of_the_other),
        cmocka_unit_test(a_pointer_and_an_empty_file_are_no_data),
        cmocka_unit_test(what_the_index_omits_is_a_warning_and_missed),
        cmocka_unit_test(an_index_that_points_elsewhere),
        cmocka_unit_test(an_index_that_is_no_json),
        cmocka_unit_test(a_folder_that_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
