/* Memory runs out at each allocation of a calibration, of a check with texts and of a load under policies in turn: NB_ERR_NOMEM, nothing left behind and
 * no file, or the same result as with memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "fault/alloc.h"

#include "doctor/calibrate.h"
#include "doctor/report.h"
#include "engine/policy.h"
#include "tempdir.h"

#define MODEL NB_TEST_DATA "/fixtures/models/llama_ct"

static tempdir tmp;
static char data[600], out[600];

static nb_status calibrate(nb_buf *reports, nb_error *err)
{
    const nb_calibrate_options o = {.data = data, .out = out, .threads = 2, .rows = 16};
    nb_calibration c;
    nb_status s = nb_calibrate(MODEL, &o, NULL, &c, err);
    if (s != NB_OK) return s;
    nb_calibration_json(&c, reports);
    nb_calibration_text(&c, reports);
    nb_calibration_free(&c);
    return NB_OK;
}

static nb_status load(const char *scales, nb_error *err)
{
    static const char *const pattern[] = {"*attn*"};
    const nb_engine_options o = {.threads = 1,
                                 .kernels = "auto",
                                 .arith = NB_ARITH_W4A4,
                                 .max_seqs = 1,
                                 .max_context = 32,
                                 .max_rows = 32};
    nb_policy *p = NULL;
    nb_engine *e = NULL;
    nb_status s = nb_policy_new(scales, pattern, 1, &p, err);
    if (s == NB_OK) s = nb_policy_engine(MODEL, &o, p, NULL, &e, err);
    nb_engine_free(e);
    nb_policy_free(p);
    return s;
}

static void calibration(void **unused)
{
    size_t n = 0;
    for (bool fired = true; fired; n++) {
        nb_error e = {0};
        nb_buf b = {0};
        remove(out);
        fault_arm(n);
        nb_status s = calibrate(&b, &e);
        fired = fault_disarm();
        bool file = access(out, F_OK) == 0;
        if (s != NB_OK && (s != NB_ERR_NOMEM || e.status != NB_ERR_NOMEM || file))
            fail_msg("allocation %zu: status %d (%s)%s", n, (int)s, e.cause, file ? ", a file" : "");
        if (s == NB_OK) assert_true(file);
        if (!fired) assert_true(s == NB_OK && nb_buf_ok(&b));
        nb_buf_free(&b);
    }
    assert_true(n > 100);
    assert_int_equal(tempdir_entries(&tmp), 2); /* data and result: no temporary file */
}

static void policies(void **unused)
{
    const char *const scales[] = {"warmup", out};
    for (int i = 0; i < 2; i++) {
        size_t n = 0; /* every fourth: a load is for the most part test_alloc_run's */
        for (bool fired = true; fired; n += 4) {
            nb_error e = {0};
            fault_arm(n);
            nb_status s = load(scales[i], &e);
            fired = fault_disarm();
            if (s != NB_OK && (s != NB_ERR_NOMEM || e.status != NB_ERR_NOMEM))
                fail_msg("%s, allocation %zu: status %d (%s)", scales[i], n, (int)s, e.cause);
            if (!fired) assert_int_equal(s, NB_OK);
        }
        assert_true(n > 100);
    }
}

/* A check that runs texts: out of memory, or the report that there is with memory, never one without the rule's findings. */
static nb_status judge(nb_buf *report, nb_error *err)
{
    const nb_check_options o = {.threads = 1, .run = true, .data = data};
    nb_check_result r = {0};
    nb_status s = nb_check_folder_with(MODEL, &o, NULL, &r, err);
    if (s == NB_OK) nb_report_json(&r, report);
    nb_check_result_free(&r);
    return s;
}

static void checks_with_texts(void **unused)
{
    nb_buf whole = {0};
    nb_error e = {0};
    size_t n = 0; /* every third: the check without texts is test_alloc_check's */
    assert_int_equal(judge(&whole, &e), NB_OK);
    for (bool fired = true; fired; n += 3) {
        nb_buf b = {0};
        fault_arm(n);
        nb_status s = judge(&b, &e);
        fired = fault_disarm();
        if (s != NB_OK && (s != NB_ERR_NOMEM || e.status != NB_ERR_NOMEM))
            fail_msg("allocation %zu: status %d (%s)", n, (int)s, e.cause);
        if (s == NB_OK && nb_buf_ok(&b)) assert_string_equal(nb_buf_str(&b), nb_buf_str(&whole));
        nb_buf_free(&b);
    }
    assert_true(n > 300);
    nb_buf_free(&whole);
}

static int make(void **unused)
{
    static const char lines[] =
        "{\"text\": \"one two three\"}\n\n{\"text\": \"1 + 1 = 2, said the clerk again\"}\n";
    tempdir_make(&tmp);
    snprintf(data, sizeof data, "%s", tempdir_write(&tmp, "data.jsonl", lines, sizeof lines - 1));
    snprintf(out, sizeof out, "%s", tempdir_path(&tmp, "out.safetensors"));
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(calibration), cmocka_unit_test(checks_with_texts),
                                       cmocka_unit_test(policies)};
    return cmocka_run_group_tests(tests, make, clean);
}
