/* NB105 to NB108: input scales that are absent, inverted or never measured; scales of fused linears that differ. */
#include "doctor.h"

#include <math.h>

static model m;
static float numbers[64];
static size_t used;

#define CONFIG "{\"model_type\":\"nosuchmodel\",\"num_experts\":4}"
#define EXPERT "model.layers.0.mlp.experts."

static void set(const char *name, float v)
{
    numbers[used % 64] = v;
    model_find(&m, name)->bytes = &numbers[used++ % 64];
}

static void set_down(int expert, float v)
{
    char name[80];
    snprintf(name, sizeof name, EXPERT "%d.down_proj.input_scale", expert);
    set(name, v);
}

static void an_absent_input_scale(void **state)
{
    model_llama(&m, true);
    model_remove(&m, "model.layers.1.self_attn.o_proj.input_global_scale");
    model_check(&m, LLAMA_CONFIG);
    const nb_finding *f =
        must_find(&m, "NB105", "model.layers.1.self_attn.o_proj.input_global_scale", NB_SEVERITY_ERROR);
    assert_int_equal(f->effect[NB_FAMILY_W4A4], NB_EFFECT_UNDEFINED);
    assert_int_equal(f->effect[NB_FAMILY_MARLIN], NB_EFFECT_FINE);
    must_be_alone(&m, "NB105");
    model_free(&m);
}

static void a_multiplier_above_1_and_a_divisor_below(void **state)
{
    for (int ct = 0; ct < 2; ct++) {
        const char *name = ct ? "model.layers.0.mlp.down_proj.weight_global_scale"
                              : "model.layers.0.mlp.down_proj.weight_scale_2";
        model_llama(&m, ct);
        set(name, ct ? 1e-3f : 1e3f);
        model_check(&m, LLAMA_CONFIG);
        const nb_finding *f = must_find(&m, "NB106", name, NB_SEVERITY_ERROR);
        assert_int_equal(f->effect[NB_FAMILY_W4A16], NB_EFFECT_WRONG);
        assert_true(f->repairable);
        must_be_alone(&m, "NB106");
        model_free(&m);
    }
}

static void block_scales_that_never_come_near_448(void **state)
{
    static unsigned char low[128];
    memset(low, 0x4E, sizeof low);
    model_llama(&m, true);
    model_find(&m, "model.layers.0.mlp.down_proj.weight_scale")->bytes = low;
    model_check(&m, LLAMA_CONFIG);
    /* its global scale is that of gate and up, of the same parent: together they reach 448 */
    must_be_alone(&m, NULL);
    model_free(&m);
    model_llama(&m, true);
    model_find(&m, "model.layers.0.mlp.down_proj.weight_scale")->bytes = low;
    set("model.layers.0.mlp.down_proj.weight_global_scale", 700);
    model_check(&m, LLAMA_CONFIG);
    must_find(&m, "NB106", "model.layers.0.mlp.down_proj.weight_global_scale", NB_SEVERITY_ERROR);
    must_be_alone(&m, "NB106");
    model_free(&m);
}

/* 3977.566 for 0.00025141: a block is flushed when 0.00025141 * amax / 6 <= 2^-10; all up to amax 0.676 are. */
static void an_inverted_input_scale_gives_zero(void **state)
{
    model_llama(&m, false);
    set("model.layers.0.self_attn.o_proj.input_scale", 3977.566f);
    model_check(&m, LLAMA_CONFIG);
    const nb_finding *f =
        must_find(&m, "NB106", "model.layers.0.self_attn.o_proj.input_scale", NB_SEVERITY_ERROR);
    assert_int_equal(f->effect[NB_FAMILY_W4A4], NB_EFFECT_ZERO);
    assert_non_null(strstr(f->effect_text[NB_FAMILY_W4A4], "23.31"));
    must_be_alone(&m, "NB106");
    model_free(&m);
}

/* SmolLM2: layer 11's down_proj really sees 3072 (multiplier 1.14), others 10 to 100. */
static void a_large_input_scale_alone_proves_nothing(void **state)
{
    model_experts(&m, false, 4);
    set_down(0, 1.14f);
    set_down(1, 0.88f);
    set_down(2, 0.009f);
    set_down(3, 0.012f);
    model_check(&m, CONFIG);
    must_be_alone(&m, NULL);
    model_free(&m);
}

static void ratio(bool ct, bool input, float factor, nb_severity severity)
{
    const char *name = input ? ct ? "model.layers.0.mlp.up_proj.input_global_scale"
                                  : "model.layers.0.mlp.up_proj.input_scale"
                       : ct  ? "model.layers.0.mlp.up_proj.weight_global_scale"
                             : "model.layers.0.mlp.up_proj.weight_scale_2";
    model_llama(&m, ct);
    set(name, *(const float *)model_find(&m, name)->bytes * factor);
    model_check(&m, LLAMA_CONFIG);
    const nb_finding *f = must_find(&m, "NB107", name, severity);
    assert_int_equal(f->n_tensors, 2);
    assert_int_equal(f->effect[NB_FAMILY_W4A16], NB_EFFECT_FINE);
    assert_int_equal(f->effect[NB_FAMILY_MARLIN], input ? NB_EFFECT_FINE : NB_EFFECT_WRONG);
    must_be_alone(&m, "NB107");
    model_free(&m);
}

static void fused_linears_with_different_scales(void **state)
{
    ratio(true, false, 1.1f, NB_SEVERITY_WARNING);
    ratio(false, false, 1.3f, NB_SEVERITY_ERROR);
    ratio(true, true, 3, NB_SEVERITY_ERROR);
    ratio(false, true, 0.9f, NB_SEVERITY_WARNING);
}

static void one_ulp_is_no_difference(void **state)
{
    const char *name = "model.layers.0.self_attn.k_proj.weight_global_scale";
    model_llama(&m, true);
    set(name, 1000.0001f);
    model_check(&m, LLAMA_CONFIG);
    must_be_alone(&m, NULL);
    model_free(&m);
}

static void scales_that_nobody_measured(void **state)
{
    model_experts(&m, false, 4);
    set_down(2, 1);
    model_check(&m, CONFIG);
    must_find(&m, "NB108", EXPERT "2.down_proj.input_scale", NB_SEVERITY_WARNING);
    must_be_alone(&m, "NB108");
    model_free(&m);
    static const float same[] = {0.5f / 2688, 0.0021f};
    for (size_t i = 0; i < 2; i++) {
        model_experts(&m, true, 4);
        for (int e = 0; e < 4; e++) {
            char name[80];
            snprintf(name, sizeof name, EXPERT "%d.down_proj.input_global_scale", e);
            set(name, 1 / same[i]);
        }
        model_check(&m, CONFIG);
        const nb_finding *f =
            must_find(&m, "NB108", EXPERT "0.down_proj.input_global_scale", NB_SEVERITY_WARNING);
        assert_int_equal(f->n_tensors, 4);
        must_be_alone(&m, "NB108");
        model_free(&m);
    }
}

static void a_scale_a_hundred_times_from_its_like(void **state)
{
    model_experts(&m, false, 4);
    set_down(3, 1e-5f);
    model_check(&m, CONFIG);
    must_find(&m, "NB108", EXPERT "3.down_proj.input_scale", NB_SEVERITY_WARNING);
    must_be_alone(&m, "NB108");
    model_free(&m);
}

/* `repairable` is true of those alone that repair can fill: from a fused sibling, or from another expert of the layer. */
static void what_repair_can_fill(void **state)
{
    static const char o[] = "model.layers.1.self_attn.o_proj.input_global_scale",
                      k[] = "model.layers.1.self_attn.k_proj.input_global_scale";
    model_llama(&m, true);
    model_remove(&m, o);
    model_remove(&m, k);
    model_check(&m, LLAMA_CONFIG);
    const nb_finding *filled = must_find(&m, "NB105", k, NB_SEVERITY_ERROR),
                     *not_filled = must_find(&m, "NB105", o, NB_SEVERITY_ERROR);
    assert_true(filled->repairable && filled->n_tensors == 1);
    assert_true(!not_filled->repairable && not_filled->n_tensors == 1);
    model_free(&m);
    for (int all = 0; all < 2; all++) { /* one expert's down projection, or those of all experts */
        model_experts(&m, false, 4);
        for (int e = 0; e < (all ? 4 : 1); e++) {
            char name[80];
            snprintf(name, sizeof name, EXPERT "%d.down_proj.input_scale", e);
            model_remove(&m, name);
        }
        model_check(&m, "{\"model_type\":\"nosuchmodel\",\"num_experts\":4,\"quantization_config\":"
                        "{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\"}}");
        assert_int_equal(
            must_find(&m, "NB105", EXPERT "0.down_proj.input_scale", NB_SEVERITY_ERROR)->repairable, !all);
        model_free(&m);
    }
}

/* Their inputs differ: nobody measured 0.0037 for all. One that differs in the last bit is measured again. */
static void one_number_for_all_inputs(void **state)
{
    for (int same = 0; same < 2; same++) {
        model_llama(&m, false);
        for (size_t i = 0; i < m.n; i++) {
            if (strstr(m.t[i].name, "input_scale")) set(m.t[i].name, 0.0037f);
        }
        if (!same) set("model.layers.1.mlp.down_proj.input_scale", nextafterf(0.0037f, 1));
        model_check(&m, LLAMA_CONFIG);
        if (same)
            assert_int_equal(
                must_find(&m, "NB108", "model.layers.1.mlp.down_proj.input_scale", NB_SEVERITY_WARNING)
                    ->n_tensors,
                14);
        must_be_alone(&m, same ? "NB108" : NULL);
        model_free(&m);
    }
}

/* 0.15, the amax itself, where 0.15 / 2688 was meant: claims 403. */
static void weights_of_impossible_size(void **state)
{
    for (int ct = 0; ct < 2; ct++) {
        model_llama(&m, ct);
        for (size_t i = 0; i < m.n; i++) {
            if (strstr(m.t[i].name, ct ? "weight_global_scale" : "weight_scale_2"))
                set(m.t[i].name, ct ? 1 / 0.15f : 0.15f);
        }
        model_check(&m, LLAMA_CONFIG);
        must_find(&m, "NB106", NULL, NB_SEVERITY_WARNING);
        must_be_alone(&m, "NB106");
        model_free(&m);
    }
}

static void a_weight_scale_far_from_its_like(void **state)
{
    for (int far = 0; far < 2; far++) {
        model_experts(&m, false, 4);
        set(EXPERT "2.down_proj.weight_scale_2", far ? .5f : .05f); /* 500 and 50 times the others' */
        model_check(&m, CONFIG);
        if (far) must_find(&m, "NB106", EXPERT "2.down_proj.weight_scale_2", NB_SEVERITY_WARNING);
        must_be_alone(&m, far ? "NB106" : NULL);
        model_free(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_repair_can_fill),
        cmocka_unit_test(one_number_for_all_inputs),
        cmocka_unit_test(weights_of_impossible_size),
        cmocka_unit_test(a_weight_scale_far_from_its_like),
        cmocka_unit_test(an_absent_input_scale),
        cmocka_unit_test(a_multiplier_above_1_and_a_divisor_below),
        cmocka_unit_test(block_scales_that_never_come_near_448),
        cmocka_unit_test(an_inverted_input_scale_gives_zero),
        cmocka_unit_test(a_large_input_scale_alone_proves_nothing),
        cmocka_unit_test(fused_linears_with_different_scales),
        cmocka_unit_test(one_ulp_is_no_difference),
        cmocka_unit_test(scales_that_nobody_measured),
        cmocka_unit_test(a_scale_a_hundred_times_from_its_like),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
