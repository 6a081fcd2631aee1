/* Linears that are incomplete or contradict themselves: each is refused, naming tensor, file, expectation and remedy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "checkpoint/folder.h"
#include "checkpoint/linear.h"

static tempdir tmp;
static nb_error e;

static void refuse_as(const folder_tensor *t, size_t count, size_t n, size_t k, nb_status status,
                      const char *tensor, const char *cause)
{
    nb_ckpt *c = folder_open(&tmp, t, count);
    nb_linear_src s = {.n = 77};
    assert_int_equal(nb_linear_describe(c, "m", n, k, &s, &e), status);
    assert_int_equal(s.n, 77); /* untouched */
    assert_string_equal(e.tensor, tensor);
    if (!strstr(e.cause, cause)) fail_msg("cause \"%s\" does not say \"%s\"", e.cause, cause);
    assert_string_not_equal(e.file, "");
    assert_string_not_equal(e.remedy, "");
    nb_ckpt_close(c);
}
#define REFUSE(status, tensor, cause, ...)                                                                   \
    do {                                                                                                     \
        const folder_tensor t_[] = {__VA_ARGS__};                                                            \
        refuse_as(t_, sizeof t_ / sizeof *t_, 0, 0, status, tensor, cause);                                  \
    } while (0)

#define T(name, dtype, ...)                                                                                  \
    {                                                                                                        \
        "m." name, NB_DT_##dtype, sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t), {__VA_ARGS__}, NULL  \
    }
#define SCALAR(name, dtype)                                                                                  \
    {                                                                                                        \
        "m." name, NB_DT_##dtype, 0, {0}, NULL                                                               \
    }

static void a_missing_member_is_named(void **state)
{
    REFUSE(NB_ERR_MISSING, "m.weight_scale", "F8_E4M3 [2, 2]", T("weight_packed", U8, 2, 16),
           T("weight_global_scale", F32, 1));
    assert_non_null(strstr(e.file, "model.safetensors"));
    REFUSE(NB_ERR_MISSING, "m.weight_global_scale", "divisor", T("weight_packed", U8, 2, 16),
           T("weight_scale", F8_E4M3, 2, 2));
    REFUSE(NB_ERR_MISSING, "m.weight_scale", "F8_E4M3 [2, 2]", T("weight", U8, 2, 16),
           SCALAR("weight_scale_2", F32));
    REFUSE(NB_ERR_MISSING, "m.weight_scale_2", "multiplier", T("weight", U8, 2, 16),
           T("weight_scale", F8_E4M3, 2, 2));
    REFUSE(NB_ERR_MISSING, "m.weight_scale", "block scales", T("weight", U8, 2, 16)); /* codes alone */
    REFUSE(NB_ERR_MISSING, "m.weight_scale", "block scales", T("weight", I8, 2, 16));
    REFUSE(NB_ERR_MISSING, "m.weight_scale", "FP8 weight", T("weight", F8_E4M3, 2, 16));
    REFUSE(NB_ERR_MISSING, "m.weight", "weight_packed", T("weight_scale", F8_E4M3, 2, 2),
           T("weight_scale_2", F32, 1));
    /* "name_scale_suffix": NVFP4's block scales are never called .scale */
    REFUSE(NB_ERR_MISSING, "m.weight_scale", "F8_E4M3", T("weight", U8, 2, 16), T("scale", F8_E4M3, 2, 2),
           SCALAR("weight_scale_2", F32));
}

static void wrong_shapes(void **state)
{
    /* half as many scales (groups of 32), transposed, padded to 128x4, swizzled to one dimension */
    REFUSE(NB_ERR_FORMAT, "m.weight_scale", "[2, 2]", T("weight_packed", U8, 2, 16),
           T("weight_scale", F8_E4M3, 2, 1), T("weight_global_scale", F32, 1));
    REFUSE(NB_ERR_FORMAT, "m.weight_scale", "[2, 4]", T("weight_packed", U8, 2, 32),
           T("weight_scale", F8_E4M3, 4, 2), T("weight_global_scale", F32, 1));
    REFUSE(NB_ERR_FORMAT, "m.weight_scale", "[128, 4]", T("weight", U8, 2, 16),
           T("weight_scale", F8_E4M3, 128, 4), SCALAR("weight_scale_2", F32));
    REFUSE(NB_ERR_FORMAT, "m.weight_scale", "[512]", T("weight", U8, 2, 16), T("weight_scale", F8_E4M3, 512),
           SCALAR("weight_scale_2", F32));
    /* globals and inputs of two entries */
    REFUSE(NB_ERR_FORMAT, "m.weight_global_scale", "one number", T("weight_packed", U8, 2, 16),
           T("weight_scale", F8_E4M3, 2, 2), T("weight_global_scale", F32, 2));
    REFUSE(NB_ERR_FORMAT, "m.input_scale", "one number", T("weight", U8, 2, 16),
           T("weight_scale", F8_E4M3, 2, 2), SCALAR("weight_scale_2", F32), T("input_scale", F32, 2));
    /* columns that are no whole blocks */
    REFUSE(NB_ERR_FORMAT, "m.weight_packed", "blocks of 16", T("weight_packed", U8, 2, 12),
           T("weight_scale", F8_E4M3, 2, 1), T("weight_global_scale", F32, 1));
    REFUSE(NB_ERR_FORMAT, "m.weight", "blocks of 32", T("weight", I8, 2, 8), T("scale", F8_E8M0, 2, 1));
    REFUSE(NB_ERR_FORMAT, "m.scale", "[2, 1]", T("weight", I8, 2, 16), T("scale", F8_E8M0, 2, 2));
    /* weights that are no matrix */
    REFUSE(NB_ERR_FORMAT, "m.weight", "[output rows, input columns]", T("weight", BF16, 4));
    REFUSE(NB_ERR_FORMAT, "m.weight", "[output rows, input columns]", T("weight", BF16, 2, 2, 2));
    REFUSE(NB_ERR_FORMAT, "m.weight", "[output rows, input columns]", T("weight", BF16, 0, 2));
    /* FP8 scales of no known kind */
    REFUSE(NB_ERR_FORMAT, "m.weight_scale", "[4, 1]", T("weight", F8_E4M3, 4, 300),
           T("weight_scale", F32, 3));
    REFUSE(NB_ERR_FORMAT, "m.weight_scale", "[2, 3]", T("weight", F8_E4M3, 200, 300),
           T("weight_scale", F32, 3, 2));
    REFUSE(NB_ERR_FORMAT, "m.weight_scale", "[2, 3]", T("weight", F8_E4M3, 200, 300),
           T("weight_scale", F32, 1, 1, 2));
}

static void wrong_dtypes(void **state)
{
    REFUSE(NB_ERR_FORMAT, "m.weight_scale", "expected F8_E4M3", T("weight_packed", U8, 2, 16),
           T("weight_scale", U8, 2, 2), T("weight_global_scale", F32, 1));
    REFUSE(NB_ERR_FORMAT, "m.weight_scale", "expected F8_E4M3", T("weight", U8, 2, 16),
           T("weight_scale", U8, 2, 2), SCALAR("weight_scale_2", F32));
    REFUSE(NB_ERR_FORMAT, "m.weight_global_scale", "dtype is I32", T("weight_packed", U8, 2, 16),
           T("weight_scale", F8_E4M3, 2, 2), T("weight_global_scale", I32, 1));
    REFUSE(NB_ERR_FORMAT, "m.weight_packed", "I32 codes", T("weight_packed", I32, 2, 16),
           T("weight_scale", F8_E4M3, 2, 2), T("weight_global_scale", F32, 1));
    REFUSE(NB_ERR_FORMAT, "m.weight_scale", "expected F8_E8M0", T("weight", I8, 2, 16),
           T("weight_scale", F32, 2, 1));
    REFUSE(NB_ERR_FORMAT, "m.weight_scale", "expected F32, BF16, F16 or F8_E8M0", T("weight", F8_E4M3, 2, 16),
           T("weight_scale", F64, 1));
    REFUSE(NB_ERR_UNSUPPORTED, "m.weight", "F8_E5M2", T("weight", F8_E5M2, 2, 16), T("weight_scale", F32, 1));
    REFUSE(NB_ERR_UNSUPPORTED, "m.weight", "I32", T("weight", I32, 2, 16));
}

static void contradictions(void **state)
{
    REFUSE(NB_ERR_FORMAT, "m.weight_packed", "both weight and weight_packed", T("weight_packed", U8, 2, 16),
           T("weight", BF16, 2, 32));
    REFUSE(NB_ERR_FORMAT, "m.scale", "m.weight_scale is there too", T("weight", F8_E4M3, 2, 16),
           T("weight_scale", F32, 2), T("scale", F32, 1));
}

static void the_architecture_decides_the_size(void **state)
{
    const folder_tensor t[] = {T("weight", BF16, 4, 8)};
    refuse_as(t, 1, 4, 9, NB_ERR_FORMAT, "m.weight", "4 by 8; config.json asks for 4 by 9");
    refuse_as(t, 1, 5, 0, NB_ERR_FORMAT, "m.weight", "4 by 8; config.json asks for 5 by 8");
}

static void a_tensor_that_the_index_omits_is_pointed_at(void **state)
{
    const folder_tensor t[] = {T("weight", U8, 2, 16), T("weight_scale", F8_E4M3, 2, 2),
                               SCALAR("weight_scale_2", F32)};
    nb_ckpt *c = NULL;
    nb_linear_src s;
    folder_text(&tmp, "config.json", "{}");
    folder_write(&tmp, "model-00001-of-00001.safetensors", t, 3);
    folder_text(&tmp, "model.safetensors.index.json",
                "{\"weight_map\":{\"m.weight\":\"model-00001-of-00001.safetensors\","
                "\"m.weight_scale_2\":\"model-00001-of-00001.safetensors\"}}");
    assert_int_equal(nb_ckpt_open(tmp.path, NULL, NULL, &c, NULL), NB_OK);
    assert_int_equal(nb_linear_describe(c, "m", 0, 0, &s, &e), NB_ERR_MISSING);
    assert_string_equal(e.tensor, "m.weight_scale");
    assert_non_null(strstr(e.remedy, "model-00001-of-00001.safetensors has it"));
    nb_ckpt_close(c);
    unlink(tempdir_path(&tmp, "model.safetensors.index.json"));
}

static void names_too_long(void **state)
{
    const folder_tensor t[] = {T("weight", BF16, 1, 1)};
    nb_ckpt *c = folder_open(&tmp, t, 1);
    nb_linear_src s;
    char module[400];
    memset(module, 'm', sizeof module - 1);
    module[sizeof module - 1] = '\0';
    assert_int_equal(nb_linear_describe(c, module, 0, 0, &s, &e), NB_ERR_LIMIT);
    assert_false(nb_linear_exists(c, module));
    nb_ckpt_close(c);
}

static void a_file_cut_after_opening_gives_an_io_error(void **state)
{
    const folder_tensor t[] = {T("weight_packed", U8, 2, 16), T("weight_scale", F8_E4M3, 2, 2),
                               T("weight_global_scale", F32, 1)};
    nb_ckpt *c = folder_open(&tmp, t, 3);
    nb_linear_src s;
    float out[64];
    assert_int_equal(nb_linear_describe(c, "m", 2, 32, &s, NULL), NB_OK);
    assert_int_equal(truncate(tempdir_path(&tmp, "model.safetensors"), (off_t)s.scale->begin + 1), 0);
    assert_int_equal(nb_linear_dequantise(c, &s, 0, 2, out, &e), NB_ERR_IO);
    assert_string_equal(e.tensor, "m.weight_scale");
    assert_int_equal(e.offset, s.scale->begin + 1);
    /* and while describing: the global scale is gone too */
    assert_int_equal(nb_linear_describe(c, "m", 2, 32, &s, &e), NB_ERR_IO);
    assert_string_equal(e.tensor, "m.weight_global_scale");
    nb_ckpt_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_member_is_named),
        cmocka_unit_test(wrong_shapes),
        cmocka_unit_test(wrong_dtypes),
        cmocka_unit_test(contradictions),
        cmocka_unit_test(the_architecture_decides_the_size),
        cmocka_unit_test(a_tensor_that_the_index_omits_is_pointed_at),
        cmocka_unit_test(names_too_long),
        cmocka_unit_test(a_file_cut_after_opening_gives_an_io_error),
    };
    tempdir_make(&tmp);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tempdir_remove(&tmp);
    return failed;
}
