/* NB003: each member of a set, taken away, is named as it would be stored, and the consequence told. */
#include "doctor.h"

static model m;

static void missing(bool ct, const char *tensor)
{
    model_llama(&m, ct);
    model_remove(&m, tensor);
    model_check(&m, LLAMA_CONFIG);
    const nb_finding *f = must_find(&m, "NB003", tensor, NB_SEVERITY_ERROR);
    assert_int_equal(f->n_tensors, 1);
    assert_string_equal(f->file, "model.safetensors");
    assert_false(f->has_bytes);
    assert_non_null(f->measured);
    assert_non_null(f->expected);
    assert_int_equal(f->effect[NB_FAMILY_W4A4], NB_EFFECT_UNDEFINED);
    assert_int_equal(f->effect[NB_FAMILY_LLAMA_CPP], NB_EFFECT_REFUSED);
    must_be_alone(&m, "NB003");
    model_free(&m);
}

static void a_missing_member_is_named(void **state)
{
    missing(true, "model.layers.1.self_attn.q_proj.weight_packed");
    missing(true, "model.layers.1.self_attn.q_proj.weight_scale");
    missing(true, "model.layers.0.mlp.down_proj.weight_global_scale");
    missing(false, "model.layers.1.self_attn.q_proj.weight");
    missing(false, "model.layers.1.self_attn.q_proj.weight_scale");
    missing(false, "model.layers.0.mlp.down_proj.weight_scale_2");
}

static void the_shape_of_a_missing_scale_is_told(void **state)
{
    model_llama(&m, true);
    model_remove(&m, "model.layers.0.mlp.up_proj.weight_scale");
    model_check(&m, LLAMA_CONFIG);
    /* codes [64, 16] are 64 rows of 32 columns, two blocks of 16 */
    assert_non_null(strstr(must_find(&m, "NB003", NULL, NB_SEVERITY_ERROR)->expected, "F8_E4M3 [64, 2]"));
    model_free(&m);
}

static void lone_codes_lack_what_their_siblings_have(void **state)
{
    for (int ct = 0; ct < 2; ct++) {
        model_llama(&m, ct);
        model_remove(&m, "model.layers.0.self_attn.o_proj.weight_scale");
        model_remove(&m, ct ? "model.layers.0.self_attn.o_proj.weight_global_scale"
                            : "model.layers.0.self_attn.o_proj.weight_scale_2");
        model_remove(&m, ct ? "model.layers.0.self_attn.o_proj.input_global_scale"
                            : "model.layers.0.self_attn.o_proj.input_scale");
        model_check(&m, LLAMA_CONFIG);
        const nb_finding *f =
            must_find(&m, "NB003", "model.layers.0.self_attn.o_proj.weight_scale", NB_SEVERITY_ERROR);
        assert_int_equal(f->n_tensors, 2);
        assert_string_equal(f->tensors[1], ct ? "model.layers.0.self_attn.o_proj.weight_global_scale"
                                              : "model.layers.0.self_attn.o_proj.weight_scale_2");
        model_free(&m);
    }
}

static void a_lost_scale_of_fp8_and_mxfp4_is_spelled_as_its_siblings_are(void **state)
{
    m.n = 0;
    m.r = (nb_check_result){0};
    for (int l = 0; l < 3; l++) {
        char name[80];
        snprintf(name, sizeof name, "layers.%d.attn.wq_a.weight", l);
        model_add(&m, name, NB_DT_F8_E4M3, 2, 128, 256);
        snprintf(name, sizeof name, "layers.%d.ffn.experts.0.w1.weight", l);
        model_add(&m, name, NB_DT_I8, 2, 32, 32);
        if (l == 2) continue;
        snprintf(name, sizeof name, "layers.%d.attn.wq_a.scale", l);
        model_add(&m, name, NB_DT_F8_E8M0, 2, 1, 2);
        snprintf(name, sizeof name, "layers.%d.ffn.experts.0.w1.scale", l);
        model_add(&m, name, NB_DT_F8_E8M0, 2, 32, 2);
    }
    model_check(&m, "{\"model_type\":\"nobody_has_this\"}");
    must_find(&m, "NB003", "layers.2.attn.wq_a.scale", NB_SEVERITY_ERROR);
    must_find(&m, "NB003", "layers.2.ffn.experts.0.w1.scale", NB_SEVERITY_ERROR);
    must_be_alone(&m, "NB003");
    model_free(&m);
}

static void other_schemes_are_left_alone(void **state)
{
    m.n = 0;
    m.r = (nb_check_result){0};
    model_add(&m, "a.weight_packed", NB_DT_I32, 2, 16, 4); /* INT4, compressed-tensors */
    model_add(&m, "a.weight_scale", NB_DT_BF16, 2, 16, 1);
    model_add(&m, "b.weight", NB_DT_I8, 2, 16, 32); /* INT8 */
    model_add(&m, "b.weight_scale", NB_DT_F32, 2, 16, 1);
    model_add(&m, "c.weight", NB_DT_U8, 2, 256, 1); /* bitsandbytes */
    model_add(&m, "c.weight.absmax", NB_DT_F32, 1, 8, 0);
    model_add(&m, "router.scale", NB_DT_BF16, 1, 32, 0); /* a parameter called scale */
    model_check(&m, "{\"model_type\":\"nobody_has_this\"}");
    must_be_alone(&m, NULL);
    model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_member_is_named),
        cmocka_unit_test(the_shape_of_a_missing_scale_is_told),
        cmocka_unit_test(lone_codes_lack_what_their_siblings_have),
        cmocka_unit_test(a_lost_scale_of_fp8_and_mxfp4_is_spelled_as_its_siblings_are),
        cmocka_unit_test(other_schemes_are_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
