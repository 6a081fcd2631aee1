/*
 * Memory runs out at the first allocation, the second, and so on, while each kind of model folder is opened, understood and
 * read: each time the call says NB_ERR_NOMEM and leaves nothing behind (the sanitizer build sees leaks), until one gets
 * through. Reports to a lenient caller are no way out: out of memory always ends the call.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "fault/alloc.h"

#include "checkpoint/arch.h"
#include "checkpoint/folder.h"

static tempdir tmp;

/* Describes every linear of the table and reads a row of it. */
static nb_status use(const nb_ckpt *c, nb_error *err)
{
    nb_config cfg;
    float row[1024];
    nb_status s = nb_config_init(c, &cfg, err);
    if (s == NB_ERR_UNSUPPORTED) return NB_OK; /* the synthetic folders have no architecture */
    for (size_t i = 0; s == NB_OK && i < cfg.arch->n_tensors; i++) {
        const nb_arch_tensor *t = &cfg.arch->tensors[i];
        const nb_tensor_info *tensor;
        char name[256];
        nb_linear_src src;
        int64_t last = nb_arch_layers(&cfg, t) - 1;
        if ((t->when && !t->when(&cfg, (int)last)) ||
            !nb_arch_find(c, &cfg, t, last, 0, name, sizeof name, &tensor))
            continue;
        if (tensor) continue;
        s = nb_linear_describe(c, name, 0, 0, &src, err);
        if (s == NB_OK && src.k <= 1024) s = nb_linear_dequantise(c, &src, 0, 1, row, err);
    }
    return s;
}

static void ignore(void *ctx, nb_problem_kind kind, const nb_error *what)
{
    ++*(int *)ctx;
}

static void fail_each_allocation(const char *path, nb_problem_fn on_problem, nb_status in_the_end,
                                 int problems)
{
    size_t n = 0;
    for (;; n++) {
        nb_ckpt *c = NULL;
        nb_error e = {0};
        int seen = 0;
        fault_arm(n);
        nb_status s = nb_ckpt_open(path, on_problem, &seen, &c, &e);
        if (s == NB_OK) s = use(c, &e);
        bool fired = fault_disarm();
        nb_ckpt_close(c);
        if (!fired) {
            assert_int_equal(s, in_the_end);
            assert_int_equal(seen, problems);
            break;
        }
        if (s != NB_ERR_NOMEM || e.status != NB_ERR_NOMEM)
            fail_msg("%s: allocation %zu: status %d", path, n, (int)s);
        assert_string_not_equal(e.cause, "");
    }
    assert_true(n > 2); /* some did fail */
    print_message("  %s: %zu allocations\n", strrchr(path, '/') + 1, n);
}

static void each_kind_of_fixture(void **state)
{
    static const char *const folders[] = {"llama_bf16",          "llama_ct",
                                          "llama_modelopt",      "llama_fp8_block",
                                          "deepseek_v4_mxfp4",   "deepseek_v4_llmcompressor",
                                          "nemotron_h_modelopt", "phi3_ct"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char path[512];
        snprintf(path, sizeof path, NB_TEST_DATA "/fixtures/models/%s", folders[i]);
        fail_each_allocation(path, NULL, NB_OK, 0);
        fail_each_allocation(path, ignore, NB_OK, 0);
    }
}

static const folder_tensor a = {"a\"\xC3\xA9", NB_DT_U8, 1, {3}, NULL}, b = {"b", NB_DT_U8, 1, {2}, NULL};

static void folders_with_every_problem(void **state)
{
    const folder_tensor both[] = {a, b};
    tempdir_make(&tmp);
    folder_text(&tmp, "config.json", "{\"x\":[NaN,{}]}");
    folder_write(&tmp, "model-1.safetensors", both, 2);
    folder_write(&tmp, "model-2.safetensors", &b, 1);
    folder_text(&tmp, "model-3.safetensors", "not one");
    folder_text(&tmp, "model.safetensors.index.json",
                "{\"metadata\":{\"total_size\":1},\"weight_map\":{\"a\\\"\\u00e9\":\"model-1.safetensors\","
                "\"c\":\"model-3.safetensors\",\"d\":\"../"
                "x\",\"e\":\"model-4.safetensors\",\"f\":\"model-2.safetensors\"}}");
    /* model-3 is broken; model-4 and its e are missing; d is outside; f is not there; b, twice, is unlisted */
    fail_each_allocation(tmp.path, ignore, NB_OK, 7);
    fail_each_allocation(tmp.path, NULL, NB_ERR_FORMAT, 0);
    unlink(tempdir_path(&tmp, "model.safetensors.index.json"));
    unlink(tempdir_path(&tmp, "model-3.safetensors"));
    fail_each_allocation(tmp.path, ignore, NB_OK, 2); /* no index; b in both shards */
    folder_text(&tmp, "model.safetensors.index.json", "{");
    fail_each_allocation(tmp.path, ignore, NB_OK, 2);
    unlink(tempdir_path(&tmp, "model.safetensors.index.json"));
    folder_write(&tmp, "model.safetensors", both, 2);
    unlink(tempdir_path(&tmp, "config.json"));
    fail_each_allocation(tmp.path, ignore, NB_OK, 1);
    fail_each_allocation(tmp.path, NULL, NB_ERR_MISSING, 0);
    tempdir_remove(&tmp);
}

static nb_status write_file(const char *path, nb_error *e)
{
    nb_st_writer *w = NULL;
    nb_status s = nb_st_writer_open(path, &w, e);
    if (s == NB_OK) s = nb_st_writer_declare(w, a.name, a.dtype, a.rank, a.shape, e);
    if (s == NB_OK) s = nb_st_writer_declare(w, b.name, b.dtype, b.rank, b.shape, e);
    if (s == NB_OK) s = nb_st_writer_begin(w, e);
    if (s == NB_OK) s = nb_st_writer_put(w, "12345", 5, e);
    if (s == NB_OK) return nb_st_writer_commit(w, e);
    nb_st_writer_abort(w);
    return s;
}

static void the_writer(void **state)
{
    tempdir_make(&tmp);
    tempdir_path(&tmp, "out.safetensors");
    for (size_t n = 0;; n++) {
        nb_error e = {0};
        fault_arm(n);
        nb_status s = write_file(tmp.file, &e);
        if (!fault_disarm()) {
            assert_int_equal(s, NB_OK);
            assert_true(n > 5);
            break;
        }
        assert_int_equal(s, NB_ERR_NOMEM);
        assert_true(tempdir_entries(&tmp) <= 1); /* the folder's sync may fail after the file has its name */
    }
    tempdir_remove(&tmp);
}

static void ids_in_the_cache(void **state)
{
    tempdir_make(&tmp);
    mkdir(tempdir_path(&tmp, "models--org--name"), 0700);
    mkdir(tempdir_path(&tmp, "models--org--name/refs"), 0700);
    mkdir(tempdir_path(&tmp, "models--org--name/snapshots"), 0700);
    mkdir(tempdir_path(&tmp, "models--org--name/snapshots/abc"), 0700);
    tempdir_write(&tmp, "models--org--name/refs/main", "abc", 3);
    setenv("HF_HUB_CACHE", tmp.path, 1);
    for (size_t n = 0;; n++) {
        nb_error e = {0};
        char *found = NULL;
        fault_arm(n);
        nb_status s = nb_hub_resolve("org/name", &found, &e);
        if (!fault_disarm()) {
            assert_int_equal(s, NB_OK);
            free(found);
            break;
        }
        assert_int_equal(s, NB_ERR_NOMEM);
        assert_int_equal(e.status, NB_ERR_NOMEM);
    }
    tempdir_remove(&tmp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_of_fixture),
        cmocka_unit_test(folders_with_every_problem),
        cmocka_unit_test(the_writer),
        cmocka_unit_test(ids_in_the_cache),
    };
    fault_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
