/* NB005: the experts of a layer against each other and against config.json, for an architecture without a table. */
#include "doctor.h"

#define CONFIG(n) "{\"model_type\":\"nobody_has_this\",\"num_experts\":" #n "}"
#define EXPERT "model.layers.0.mlp.experts."

static model m;

static void a_lost_projection_is_named_whole(void **state)
{
    model_experts(&m, true, 4);
    model_remove(&m, EXPERT "2.up_proj.weight_packed");
    model_remove(&m, EXPERT "2.up_proj.weight_scale");
    model_remove(&m, EXPERT "2.up_proj.weight_global_scale");
    model_remove(&m, EXPERT "2.up_proj.input_global_scale");
    model_check(&m, CONFIG(4));
    must_find(&m, "NB005", EXPERT "2.up_proj.weight_packed", NB_SEVERITY_ERROR);
    must_find(&m, "NB005", EXPERT "2.up_proj.weight_scale", NB_SEVERITY_ERROR);
    must_find(&m, "NB005", EXPERT "2.up_proj.weight_global_scale", NB_SEVERITY_ERROR);
    must_find(&m, "NB005", EXPERT "2.up_proj.input_global_scale", NB_SEVERITY_ERROR);
    must_be_alone(&m, "NB005");
    model_free(&m);
}

static void a_lost_input_scale_harms_w4a4_alone(void **state)
{
    model_experts(&m, false, 4);
    model_remove(&m, EXPERT "3.down_proj.input_scale");
    model_check(&m, CONFIG(4));
    const nb_finding *f = must_find(&m, "NB005", EXPERT "3.down_proj.input_scale", NB_SEVERITY_ERROR);
    assert_int_equal(f->n_tensors, 1);
    assert_int_equal(f->effect[NB_FAMILY_W4A4], NB_EFFECT_UNDEFINED);
    assert_int_equal(f->effect[NB_FAMILY_MARLIN], NB_EFFECT_FINE);
    assert_true(f->repairable);
    must_find(&m, "NB105", EXPERT "3.down_proj.input_scale", NB_SEVERITY_ERROR);
    assert_int_equal(m.r.findings.count, 3); /* with the note on the architecture */
    model_free(&m);
}

static void input_scales_that_no_expert_has_are_not_missed(void **state)
{
    model_experts(&m, true, 4);
    for (int e = 0; e < 4; e++) {
        char name[80];
        snprintf(name, sizeof name, EXPERT "%d.down_proj.input_global_scale", e);
        model_remove(&m, name);
    }
    model_check(&m, CONFIG(4));
    must_be_alone(&m, NULL);
    model_free(&m);
}

static void experts_missing_at_the_end_are_counted_by_the_config(void **state)
{
    model_experts(&m, true, 3);
    model_check(&m, CONFIG(4));
    must_find(&m, "NB005", EXPERT "3.gate_proj.weight_packed", NB_SEVERITY_ERROR);
    must_find(&m, "NB005", EXPERT "3.down_proj.input_global_scale", NB_SEVERITY_ERROR);
    model_free(&m);
}

static void one_expert_too_many(void **state)
{
    model_experts(&m, true, 4);
    model_check(&m, CONFIG(3));
    const nb_finding *f = must_find(&m, "NB005", EXPERT "3.up_proj.weight_scale", NB_SEVERITY_ERROR);
    assert_int_equal(f->n_tensors, 12);
    assert_int_equal(f->effect[NB_FAMILY_W4A4], NB_EFFECT_FINE);
    model_free(&m);
}

static void a_number_far_off_names_no_thousand_tensors(void **state)
{
    model_experts(&m, true, 4);
    model_check(&m, CONFIG(1000000));
    assert_int_equal(must_find(&m, "NB005", NULL, NB_SEVERITY_ERROR)->n_tensors, 0);
    assert_int_equal(m.r.findings.count, 2); /* with the note on the architecture */
    model_free(&m);
}

/* An expert that was dequantised on purpose has other members than its siblings, and nothing is wrong with that. */
static void an_expert_in_another_format_is_fine(void **state)
{
    model_experts(&m, true, 4);
    model_remove(&m, EXPERT "1.up_proj.weight_scale");
    model_remove(&m, EXPERT "1.up_proj.weight_global_scale");
    model_remove(&m, EXPERT "1.up_proj.input_global_scale");
    model_rename(&m, EXPERT "1.up_proj.weight_packed", EXPERT "1.up_proj.weight");
    model_reshape(&m, EXPERT "1.up_proj.weight", NB_DT_BF16, 2, 16, 32);
    model_check(&m, CONFIG(4));
    must_be_alone(&m, NULL);
    model_free(&m);
}

static void towers_have_their_own_number(void **state)
{
    model_experts(&m, true, 4);
    for (int e = 0; e < 2; e++) {
        char name[80];
        snprintf(name, sizeof name, "model.visual.blocks.0.mlp.experts.%d.gate_proj", e);
        model_linear(&m, true, name, 16, 32);
    }
    model_check(&m, CONFIG(4));
    must_be_alone(&m, NULL);
    model_free(&m);
}

/* Experts were taken out and their rows of the router were not. */
static void a_router_of_more_experts(void **state)
{
    for (uint64_t rows = 4; rows <= 8; rows += 4) {
        model_experts(&m, true, 4);
        model_add(&m, "model.layers.0.mlp.gate.weight", NB_DT_BF16, 2, rows, 32);
        model_check(&m, CONFIG(4));
        if (rows == 8) must_find(&m, "NB005", "model.layers.0.mlp.gate.weight", NB_SEVERITY_ERROR);
        must_be_alone(&m, rows == 8 ? "NB005" : NULL);
        model_free(&m);
    }
}

static void more_experts_a_token_than_there_are(void **state)
{
    model_experts(&m, true, 4);
    model_check(&m, "{\"model_type\":\"nobody_has_this\",\"num_experts\":4,\"num_experts_per_tok\":5}");
    assert_non_null(
        strstr(must_find(&m, "NB005", NULL, NB_SEVERITY_ERROR)->measured, "num_experts_per_tok 5"));
    must_be_alone(&m, "NB005");
    model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_router_of_more_experts),
        cmocka_unit_test(more_experts_a_token_than_there_are),
        cmocka_unit_test(a_lost_projection_is_named_whole),
        cmocka_unit_test(a_lost_input_scale_harms_w4a4_alone),
        cmocka_unit_test(input_scales_that_no_expert_has_are_not_missed),
        cmocka_unit_test(experts_missing_at_the_end_are_counted_by_the_config),
        cmocka_unit_test(one_expert_too_many),
        cmocka_unit_test(a_number_far_off_names_no_thousand_tensors),
        cmocka_unit_test(an_expert_in_another_format_is_fine),
        cmocka_unit_test(towers_have_their_own_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
