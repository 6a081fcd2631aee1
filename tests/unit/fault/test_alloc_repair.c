/* Memory runs out at each allocation of a repair, and of foreseeing one, in turn: NB_ERR_NOMEM and no folder, or a report marked
 * bad; of what can be mended, never another answer than with enough memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "fault/alloc.h"

#include "checkpoint/folder.h"
#include "doctor/repair.h"

static tempdir tmp, side;

static nb_status repair(const char *from, const char *to, const char *scales, bool *told)
{
    static const char *const globs[] = {"*.up_proj"};
    const nb_repair_options opt = {.out = to, .dequant = globs, .n_dequant = 1, .scales = scales};
    nb_repair_result r = {0};
    nb_error e = {0};
    nb_buf b = {0};
    nb_status s = nb_repair_folder(from, &opt, NULL, &r, &e);
    if (s == NB_OK) nb_repair_json(&r, &b);
    *told = s != NB_OK || !nb_buf_ok(&b);
    nb_buf_free(&b);
    nb_repair_result_free(&r);
    return s;
}

/* Puts __metadata__ into a safetensors file, with escapes, for which its reader needs memory. */
static void add_metadata(const char *path)
{
    static const char meta[] = "\"__metadata__\":{\"for\\u006Dat\":\"p\\u0074\"},";
    static unsigned char text[1 << 14];
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    const size_t n = fread(text, 1, sizeof text, f), more = sizeof meta - 1;
    fclose(f);
    assert_in_range(n, 9, sizeof text - 1);
    const size_t header = text[0] + (size_t)text[1] * 256 + more;
    text[0] = (unsigned char)header;
    text[1] = (unsigned char)(header >> 8);
    assert_non_null(f = fopen(path, "wb"));
    fwrite(text, 1, 9, f);
    fwrite(meta, 1, more, f);
    fwrite(text + 9, 1, n - 9, f);
    assert_int_equal(fclose(f), 0);
}

/* A folder with faults that can be mended, a name among them, and faults that cannot; from has room for 300. */
static void broken(char *from)
{
    static uint8_t codes[32 * 16], scales[32 * 2];
    static const float one = 0.001f;
    memset(codes, 0xF7, sizeof codes);
    memset(scales, 0x7E, sizeof scales);
    scales[1] = 0x7F;
    scales[2] = 0xB8;
    const folder_tensor t[] = {{"layers.0.mlp.down_proj.weight", NB_DT_U8, 2, {32, 16}, codes},
                               {"layers.0.mlp.down_proj.weight_scale", NB_DT_F8_E4M3, 2, {32, 2}, scales},
                               {"layers.0.mlp.down_proj.weight_scale_2", NB_DT_F32, 0, {0}, &one},
                               {"layers.0.mlp.down_proj.input_scale", NB_DT_F32, 0, {0}, &one},
                               {"layers.0.mlp.up_proj.weight", NB_DT_U8, 2, {32, 16}, codes},
                               {"layers.0.mlp.up_proj.weight_scale", NB_DT_F8_E4M3, 2, {32, 2}, scales},
                               {"layers.0.mlp.up_proj.weight_scale_2", NB_DT_F32, 0, {0}, &one},
                               {"layers.0.mlp.up_proj.input_scale", NB_DT_F32, 0, {0}, &one},
                               {"layers.0.mlp.o_proj.weight", NB_DT_U8, 2, {32, 16}, codes},
                               {"layers.0.mlp.o_proj.scale", NB_DT_F8_E4M3, 2, {32, 2}, scales},
                               {"layers.0.mlp.o_proj.weight_scale_2", NB_DT_F32, 0, {0}, &one},
                               {"layers.0.mlp.o_proj.input_scale", NB_DT_F32, 0, {0}, &one}};
    tempdir_make(&tmp);
    snprintf(from, 300, "%s/from", tmp.path);
    if (mkdir(from, 0777) != 0) fail();
    folder_text(&tmp, "from/config.json",
                "{\"na\\u006De\":\"m\",\"model_type\":\"nosuch\",\"quantization_config\":{\"quant_method\":"
                "\"modelopt\","
                "\"quant_algo\":\"NVFP4\",\"ignore\":[]}}");
    folder_write(&tmp, "from/model.safetensors", t, sizeof t / sizeof *t);
    add_metadata(tempdir_path(&tmp, "from/model.safetensors"));
}

/* scales: NULL, or a file of measured ranges. */
static void fail_each_allocation(const char *scales)
{
    char from[300], to[300];
    broken(from);
    snprintf(to, sizeof to, "%s/to", tmp.path);
    for (size_t n = 0;; n++) {
        bool told;
        fault_arm(n);
        nb_status s = repair(from, to, scales, &told);
        bool fired = fault_disarm();
        const bool there = access(to, F_OK) == 0;
        if (s != NB_OK && s != NB_ERR_NOMEM) fail_msg("allocation %zu: status %d", n, (int)s);
        if (s != NB_OK && there) fail_msg("allocation %zu failed and the folder is there", n);
        if (fired && !told) fail_msg("allocation %zu failed and nothing tells", n);
        if (there) tempdir_remove_tree(to);
        assert_int_equal(tempdir_entries(&tmp), 1); /* the source: no temporary folder is left */
        if (fired) continue;
        assert_int_equal(s, NB_OK);
        assert_true(there && n > 50);
        break;
    }
    tempdir_remove(&tmp);
}

static void each_allocation_of_a_repair(void **state)
{
    (void)state;
    fail_each_allocation(NULL);
}

static void each_allocation_of_one_that_writes_measured_scales(void **state)
{
    (void)state;
    char ranges[300];
    static const float amax = 5;
    const folder_tensor t[] = {{"layers.0.mlp.down_proj.input_amax", NB_DT_F32, 0, {0}, &amax}};
    tempdir_make(&side);
    folder_write(&side, "ranges.safetensors", t, 1);
    snprintf(ranges, sizeof ranges, "%s/ranges.safetensors", side.path);
    fail_each_allocation(ranges);
    tempdir_remove(&side);
}

static void each_allocation_of_foreseeing_one(void **state)
{
    (void)state;
    char from[300];
    nb_check_result r = {0};
    nb_error e = {0};
    bool found[32], want[32], fired = true, some = false, all = true;
    broken(from);
    assert_int_equal(nb_check_folder(from, NULL, &r, &e), NB_OK);
    assert_in_range(r.findings.count, 2, 32);
    for (size_t i = 0; i < r.findings.count; i++) found[i] = r.findings.items[i].repairable;
    assert_int_equal(nb_repair_foresee(&r, &e), NB_OK);
    for (size_t i = 0; i < r.findings.count; i++) {
        want[i] = r.findings.items[i].repairable;
        some = some || want[i];
        all = all && want[i];
    }
    assert_true(some && !all);
    for (size_t n = 0; fired; n++) {
        for (size_t i = 0; i < r.findings.count; i++)
            r.findings.items[i].repairable = found[i]; /* as check left it */
        fault_arm(n);
        nb_status s = nb_repair_foresee(&r, &e);
        fired = fault_disarm();
        if (s != NB_OK && s != NB_ERR_NOMEM) fail_msg("allocation %zu: status %d", n, (int)s);
        for (size_t i = 0; i < r.findings.count; i++) {
            if (s == NB_OK && r.findings.items[i].repairable != want[i])
                fail_msg("allocation %zu: another answer for %s", n, r.findings.items[i].rule);
            if (s != NB_OK && r.findings.items[i].repairable) fail_msg("allocation %zu: a promise", n);
        }
        if (!fired) assert_true(s == NB_OK && n > 50);
    }
    nb_check_result_free(&r);
    tempdir_remove(&tmp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_allocation_of_a_repair),
                                       cmocka_unit_test(each_allocation_of_one_that_writes_measured_scales),
                                       cmocka_unit_test(each_allocation_of_foreseeing_one)};
    fault_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
