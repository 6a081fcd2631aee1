/* Memory runs out at each allocation of a check in turn: NB_ERR_NOMEM and nothing left behind, or a report marked bad, never a
 * report that lacks what it could not store. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "fault/alloc.h"

#include "checkpoint/folder.h"
#include "doctor/report.h"

static tempdir tmp;

/* All reports in one buffer; false: out of memory. */
static bool check(const char *path, nb_buf *reports, nb_status *s)
{
    nb_check_result r = {0};
    nb_error e = {0};
    *s = nb_check_folder(path, NULL, &r, &e);
    if (*s == NB_OK) {
        nb_report_json(&r, reports);
        nb_report_text(&r, reports);
        nb_report_sarif(&r, "1", reports);
        nb_report_html(&r, reports);
    } else {
        assert_int_equal(*s, e.status);
    }
    nb_check_result_free(&r);
    return nb_buf_ok(reports);
}

static void fail_each_allocation(const char *path)
{
    nb_buf whole = {0};
    nb_status s;
    assert_true(check(path, &whole, &s));
    assert_int_equal(s, NB_OK);
    for (size_t n = 0;; n++) {
        nb_buf b = {0};
        fault_arm(n);
        bool ok = check(path, &b, &s);
        bool fired = fault_disarm();
        if (s != NB_OK && s != NB_ERR_NOMEM) fail_msg("allocation %zu: status %d", n, (int)s);
        if (fired && s == NB_OK && ok) fail_msg("allocation %zu failed and the report does not tell", n);
        if (!fired) {
            assert_int_equal(s, NB_OK);
            assert_string_equal(nb_buf_str(&b), nb_buf_str(&whole));
            nb_buf_free(&b);
            assert_true(n > 10);
            break;
        }
        nb_buf_free(&b);
    }
    nb_buf_free(&whole);
}

static const folder_tensor faulty[] = {
    {"model.layers.0.self_attn.q_proj.weight_packed", NB_DT_U8, 2, {32, 16}, NULL},
    {"model.layers.0.self_attn.q_proj.weight_scale", NB_DT_F8_E4M3, 2, {2, 32}, NULL},
    {"model.layers.0.self_attn.q_proj.weight_global_scale", NB_DT_BF16, 1, {1}, NULL},
    {"model.layers.0.self_attn.k_proj.weight_packed", NB_DT_U8, 2, {32, 16}, NULL},
    {"model.layers.0.mlp.experts.0.up_proj.weight", NB_DT_BF16, 2, {8, 8}, NULL},
    {"model.layers.0.mlp.experts.1.up_proj.weight", NB_DT_BF16, 2, {8, 8}, NULL},
    {"model.layers.0.mlp.experts.1.down_proj.weight", NB_DT_BF16, 2, {8, 8}, NULL},
    {"model.layers.0.mlp.experts.2.down_proj.weight", NB_DT_BF16, 2, {8, 8}, NULL},
    {"model.layers.0.input_layernorm.weight", NB_DT_BF16, 1, {7}, NULL},
    {"model.layers.0.extra.weight_scale_2_double_scale", NB_DT_F32, 0, {0}, NULL},
};

static void folders_with_every_finding(void **state)
{
    tempdir_make(&tmp);
    folder_text(
        &tmp, "config.json",
        "{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"hidden_size\":32,\"num_attention_heads\":2,"
        "\"intermediate_size\":64,\"vocab_size\":48}");
    folder_text(&tmp, "tokenizer.json", "");
    folder_write(&tmp, "model-1.safetensors", faulty, sizeof faulty / sizeof *faulty);
    folder_text(&tmp, "model.safetensors.index.json",
                "{\"weight_map\":{\"a\":\"model-1.safetensors\",\"b\":\"model-2.safetensors\","
                "\"c\":\"model-2.safetensors\",\"d\":\"../x\"}}");
    fail_each_allocation(tmp.path);
    unlink(tempdir_path(&tmp, "model.safetensors.index.json"));
    fail_each_allocation(tmp.path);
    folder_text(&tmp, "config.json", "{}");
    fail_each_allocation(tmp.path);
    tempdir_remove(&tmp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(folders_with_every_finding)};
    fault_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
