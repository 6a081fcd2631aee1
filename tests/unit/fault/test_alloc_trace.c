/* Memory runs out at each allocation of a trace, of its reports and of a probe in turn: NB_ERR_NOMEM, or a report marked bad, or the
 * same bytes as with memory; never a crash, a leak or a row less. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "fault/alloc.h"

#include "doctor/trace.h"
#include "tempdir.h"

#define MODEL NB_TEST_DATA "/fixtures/models/deepseek_v4_ct_nvfp4_attn"

static tempdir tmp;
static char ids[600];
static bool probe;

static nb_status trace(nb_buf *reports, nb_error *err)
{
    const nb_trace_options o = {.stack = NB_STACK_VLLM_CUTLASS, .threads = 1, .kernels = "auto"};
    const nb_trace_probe_options what = {.pattern = "*layers.0.self_attn*", .amax = 8, .rows = 4};
    nb_prompts prompts = {0};
    nb_trace t = {0};
    nb_status s = probe ? NB_OK : nb_trace_ids(ids, &prompts, err);
    if (s == NB_OK)
        s = probe ? nb_trace_probe(MODEL, &o, &what, NULL, &t, err)
                  : nb_trace_run(MODEL, &o, &prompts, NULL, &t, err);
    if (s == NB_OK) {
        nb_trace_json(&t, reports);
        nb_trace_text(&t, reports);
        nb_trace_html(&t, "model", reports);
    }
    nb_trace_free(&t);
    nb_prompts_free(&prompts);
    return s;
}

static void fail_each(size_t step)
{
    nb_buf whole = {0};
    nb_error e = {0};
    size_t n = 0;
    assert_int_equal(trace(&whole, &e), NB_OK);
    for (bool fired = true; fired; n += step) {
        nb_buf b = {0};
        fault_arm(n);
        nb_status s = trace(&b, &e);
        fired = fault_disarm();
        if (s != NB_OK && (s != NB_ERR_NOMEM || e.status != NB_ERR_NOMEM))
            fail_msg("allocation %zu: status %d (%s)", n, (int)s, e.cause);
        if (s == NB_OK && nb_buf_ok(&b) && strcmp(nb_buf_str(&b), nb_buf_str(&whole)) != 0)
            fail_msg("allocation %zu failed and the report differs without a word", n);
        nb_buf_free(&b);
    }
    assert_true(n > 300);
    nb_buf_free(&whole);
}

static void traces(void **unused)
{
    probe = false;
    fail_each(5); /* loading alone is test_alloc_run's */
}

static void probes(void **unused)
{
    probe = true;
    fail_each(1);
}

static int make(void **unused)
{
    static const char lists[] = "[[1, 5, 9, 2], [7, 3]]";
    tempdir_make(&tmp);
    snprintf(ids, sizeof ids, "%s", tempdir_write(&tmp, "ids.json", lists, sizeof lists - 1));
    fault_init();
    return 0;
}

static int clean(void **unused)
{
    tempdir_remove(&tmp);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(traces), cmocka_unit_test(probes)};
    return cmocka_run_group_tests(tests, make, clean);
}
