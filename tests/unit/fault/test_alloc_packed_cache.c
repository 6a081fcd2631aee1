/* Memory runs out at each allocation of loading with a cache of packed weights: while it is written, and while it is read. NB_ERR_NOMEM
 * and nothing left behind (the sanitizer build sees leaks, the folder shows no half file), or the weights are there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "fault/alloc.h"

#include "engine/broken.h"
#include "models/packed_cache.h"

static tempdir tmp;

static nb_status load(nb_pool *pool, nb_error *err)
{
    const nb_load_options o = {.packed_cache = "auto"};
    nb_exec *x = NULL;
    nb_model *m = NULL;
    nb_status s = nb_cpu_exec_new("generic", pool, 1, &x, err);
    if (s == NB_OK) s = nb_model_load(tmp.path, x, &o, NULL, &m, err);
    nb_model_free(m);
    nb_cpu_exec_free(x);
    return s;
}

/* kept: the file is there; else each load writes it. */
static void fail_each_allocation(const char *model, bool kept, size_t stride)
{
    char path[512];
    nb_pool *pool = NULL;
    snprintf(path, sizeof path, NB_TEST_DATA "/fixtures/models/%s", model);
    broken_copy(&tmp, path);
    const int entries = tempdir_entries(&tmp);
    assert_int_equal(nb_pool_new(2, &pool, NULL), NB_OK);
    if (kept) assert_int_equal(load(pool, NULL), NB_OK);
    size_t n = 0;
    for (;; n += stride) {
        nb_error e = {0};
        if (!kept) unlink(tempdir_path(&tmp, NB_PACKED_CACHE_NAME));
        fault_arm(n);
        const nb_status s = load(pool, &e);
        const bool fired = fault_disarm();
        assert_in_range(tempdir_entries(&tmp), entries, entries + 1);
        if (!fired) {
            assert_int_equal(s, NB_OK);
            break;
        }
        if (s != NB_OK && (s != NB_ERR_NOMEM || e.status != NB_ERR_NOMEM)) /* not keeping the file is none */
            fail_msg("%s: allocation %zu: status %d (%s)", model, n, (int)s, e.cause);
    }
    assert_true(n > 100);
    print_message("  %s: %zu allocations\n", model, n);
    nb_pool_free(pool);
    tempdir_remove(&tmp);
}

static void writing(void **state)
{
    fail_each_allocation("llama_ct", false, 1);
    fail_each_allocation("deepseek_v3_modelopt", false, 7);
}

static void reading(void **state)
{
    fail_each_allocation("llama_ct", true, 1);
    fail_each_allocation("deepseek_v3_modelopt", true, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writing),
        cmocka_unit_test(reading),
    };
    fault_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
