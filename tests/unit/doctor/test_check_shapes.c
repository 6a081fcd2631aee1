/* NB004: members that do not fit each other. The known ways to get block scales wrong are recognised and said. */
#include "doctor.h"

static model m;

#define GATE "model.layers.0.mlp.gate_proj" /* 64 by 32: codes [64, 16], scales [64, 2] */

/* Gives one tensor of the gate another dtype and shape; the finding must name `named` and say `says`. */
static const nb_finding *reshaped(const char *tensor, nb_dtype dtype, size_t rank, uint64_t a, uint64_t b,
                                  const char *named, const char *says, nb_severity severity)
{
    model_llama(&m, true);
    model_reshape(&m, tensor, dtype, rank, a, b);
    model_check(&m, LLAMA_CONFIG);
    const nb_finding *f = must_find(&m, "NB004", named, severity);
    if (!strstr(f->message, says)) fail_msg("\"%s\" does not say \"%s\"", f->message, says);
    assert_true(f->has_bytes && f->begin <= f->end);
    assert_string_equal(f->file, "model.safetensors");
    must_be_alone(&m, "NB004");
    return f;
}

static void swizzled_and_padded_scales_are_recognised(void **state)
{
    const char *s = GATE ".weight_scale";
    /* 64 rows padded to 128, 2 columns to 4: 512 bytes */
    assert_true(reshaped(s, NB_DT_U8, 1, 512, 0, s, "swizzled", NB_SEVERITY_ERROR)->repairable);
    model_free(&m);
    assert_true(reshaped(s, NB_DT_F8_E4M3, 2, 128, 4, s, "padded to 128x4", NB_SEVERITY_ERROR)->repairable);
    model_free(&m);
    assert_true(reshaped(s, NB_DT_F8_E4M3, 2, 128, 2, s, "padded to 128x4", NB_SEVERITY_ERROR)->repairable);
    model_free(&m);
}

static void other_wrong_shapes_are_told_apart(void **state)
{
    const char *s = GATE ".weight_scale", *w = GATE ".weight_packed";
    reshaped(s, NB_DT_F8_E4M3, 2, 2, 64, s, "scales are stored transposed", NB_SEVERITY_ERROR);
    model_free(&m);
    reshaped(w, NB_DT_U8, 2, 16, 64, w, "codes are stored transposed", NB_SEVERITY_ERROR);
    model_free(&m);
    reshaped(s, NB_DT_F8_E4M3, 2, 64, 1, s, "half as many", NB_SEVERITY_ERROR);
    model_free(&m);
    reshaped(w, NB_DT_U8, 2, 32, 16, w, "tensor-parallel", NB_SEVERITY_ERROR);
    model_free(&m);
    reshaped(s, NB_DT_F8_E4M3, 2, 63, 2, s, "do not fit", NB_SEVERITY_ERROR);
    model_free(&m);
}

/* Codes of a half beside scales of 128 rows look padded; that the config asks for 128 rows tells which of the two it is. */
static void the_config_decides_who_is_at_fault(void **state)
{
    model_llama(&m, true);
    model_reshape(&m, GATE ".weight_scale", NB_DT_F8_E4M3, 2, 128, 2);
    model_reshape(&m, "model.layers.0.mlp.up_proj.weight_packed", NB_DT_U8, 2, 128, 16);
    model_reshape(&m, "model.layers.0.mlp.up_proj.weight_scale", NB_DT_F8_E4M3, 2, 128, 2);
    model_check(&m, "{\"model_type\":\"llama\",\"num_hidden_layers\":2," ROPE_AND_EPS
                    "\"hidden_size\":32,\"num_attention_heads\":2,"
                    "\"num_key_value_heads\":2,\"intermediate_size\":128,\"vocab_size\":48}");
    const nb_finding *f = must_find(&m, "NB004", GATE ".weight_packed", NB_SEVERITY_ERROR);
    assert_non_null(strstr(f->message, "tensor-parallel"));
    assert_string_equal(f->tensors[0], GATE ".weight_packed");
    assert_false(f->repairable);
    model_free(&m);
}

static void dtypes(void **state)
{
    /* codes in words of 32 bits: eight of them each */
    reshaped(GATE ".weight_packed", NB_DT_I32, 2, 64, 4, GATE ".weight_packed", "wrong dtype",
             NB_SEVERITY_ERROR);
    model_free(&m);
    const char *s = GATE ".weight_scale", *g = GATE ".weight_global_scale";
    assert_true(reshaped(s, NB_DT_U8, 2, 64, 2, s, "wrong dtype", NB_SEVERITY_ERROR)->repairable);
    model_free(&m);
    const nb_finding *f = reshaped(g, NB_DT_BF16, 1, 1, 0, g, "another float type", NB_SEVERITY_WARNING);
    assert_true(f->repairable);
    assert_int_equal(f->effect[NB_FAMILY_W4A4], NB_EFFECT_FINE);
    model_free(&m);
    reshaped(g, NB_DT_I32, 1, 1, 0, g, "no float", NB_SEVERITY_ERROR);
    model_free(&m);
}

static void a_global_scale_is_one_number(void **state)
{
    const char *g = GATE ".weight_global_scale", *i = GATE ".input_global_scale";
    reshaped(g, NB_DT_F32, 1, 3, 0, g, "one number", NB_SEVERITY_ERROR); /* one a fused shard */
    model_free(&m);
    const nb_finding *f = reshaped(i, NB_DT_F32, 1, 2, 0, i, "one number", NB_SEVERITY_ERROR);
    assert_int_equal(f->effect[NB_FAMILY_W4A4], NB_EFFECT_UNDEFINED);
    assert_int_equal(f->effect[NB_FAMILY_MARLIN], NB_EFFECT_FINE);
    model_free(&m);
    model_llama(&m, true);
    model_reshape(&m, g, NB_DT_F32, 0, 0, 0); /* [] and [1] are the same */
    model_check(&m, LLAMA_CONFIG);
    must_be_alone(&m, NULL);
    model_free(&m);
}

static void two_tensors_for_one_part(void **state)
{
    model_llama(&m, true);
    model_add(&m, GATE ".weight", NB_DT_BF16, 2, 64, 32);
    model_check(&m, LLAMA_CONFIG);
    const nb_finding *f = must_find(&m, "NB004", GATE ".weight", NB_SEVERITY_ERROR);
    assert_string_equal(f->tensors[1], GATE ".weight_packed");
    model_free(&m);
}

static void fp8_scales(void **state)
{
    static const struct {
        size_t rank;
        uint64_t a, b;
        bool fits;
    } scales[] = {{0, 0, 0, true},    {1, 1, 0, true},  {1, 192, 0, true},
                  {2, 192, 1, true},  {2, 2, 3, true},  {2, 192, 3, true},
                  {1, 191, 0, false}, {2, 3, 2, false}, {2, 2, 100, false}};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        m.n = 0;
        m.r = (nb_check_result){0};
        model_add(&m, "a.weight", NB_DT_F8_E4M3, 2, 192, 320);
        model_add(&m, "a.weight_scale", NB_DT_F32, scales[i].rank, scales[i].a, scales[i].b);
        model_check(&m, "{}");
        assert_int_equal(found(&m, "NB004", "a.weight_scale") == NULL, scales[i].fits);
        model_free(&m);
    }
}

static void stacked_experts(void **state)
{
    static const uint64_t blocks[] = {4, 64, 3, 16};
    nb_st_writer *w = NULL;
    for (int rows = 64; rows > 62; rows--) {
        const uint64_t scales[] = {4, (uint64_t)rows, 3};
        char zeros[4 * 64 * 3 * 16] = {0};
        m.r = (nb_check_result){0};
        tempdir_make(&m.dir);
        folder_text(&m.dir, "config.json", "{}");
        folder_require(nb_st_writer_open(tempdir_path(&m.dir, "model.safetensors"), &w, NULL));
        folder_require(nb_st_writer_declare(w, "l.0.experts.down_proj_blocks", NB_DT_U8, 4, blocks, NULL));
        folder_require(nb_st_writer_declare(w, "l.0.experts.down_proj_scales", NB_DT_U8, 3, scales, NULL));
        folder_require(nb_st_writer_begin(w, NULL));
        folder_require(nb_st_writer_put(w, zeros, sizeof zeros, NULL));
        folder_require(nb_st_writer_put(w, zeros, (size_t)(4 * rows * 3), NULL));
        folder_require(nb_st_writer_commit(w, NULL));
        check_folder(&m, m.dir.path);
        assert_int_equal(found(&m, "NB004", "l.0.experts.down_proj_scales") != NULL, rows == 63);
        must_be_alone(&m, "NB004");
        model_free(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(swizzled_and_padded_scales_are_recognised),
        cmocka_unit_test(other_wrong_shapes_are_told_apart),
        cmocka_unit_test(the_config_decides_who_is_at_fault),
        cmocka_unit_test(dtypes),
        cmocka_unit_test(a_global_scale_is_one_number),
        cmocka_unit_test(two_tensors_for_one_part),
        cmocka_unit_test(fp8_scales),
        cmocka_unit_test(stacked_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
