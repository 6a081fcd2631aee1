/* NB101 to NB104, NB109, NB110, NB112 to NB114: one odd value each in a folder of healthy ones, named with its byte. */
#include "doctor.h"

#include <math.h>

static model m;
static unsigned char bytes[4096];
static float number;
static const char *config = LLAMA_CONFIG;

#define O "model.layers.0.self_attn.o_proj"
#define DOWN "model.layers.1.mlp.down_proj"

/* A copy of the tensor's healthy bytes that the test may spoil. */
static unsigned char *spoil(const char *name, size_t n)
{
    folder_tensor *t = model_find(&m, name);
    assert_true(n <= sizeof bytes);
    memset(bytes, 0, sizeof bytes);
    if (t->bytes) memcpy(bytes, t->bytes, n);
    t->bytes = bytes;
    return bytes;
}

static void set(const char *name, float v)
{
    number = v;
    model_find(&m, name)->bytes = &number;
}

/* Checks, and asks for the one finding of this rule on this tensor, at this byte of its data. */
static const nb_finding *sole(const char *rule, const char *tensor, nb_severity severity, size_t at, size_t n)
{
    model_check(&m, config);
    const nb_finding *f = must_find(&m, rule, tensor, severity);
    must_be_alone(&m, rule);
    assert_non_null(f->measured);
    assert_non_null(f->expected);
    assert_true(f->has_bytes);
    assert_int_equal(f->end - f->begin, n);
    nb_ckpt *c = NULL;
    assert_int_equal(nb_ckpt_open(m.dir.path, NULL, NULL, &c, NULL), NB_OK);
    assert_int_equal(f->begin - nb_ckpt_find(c, tensor)->begin, at);
    nb_ckpt_close(c);
    return f;
}

static void a_nan_scale(void **state)
{
    for (int i = 0; i < 2; i++) {
        model_llama(&m, true);
        spoil(O ".weight_scale", 64)[37] = i ? 0xFF : 0x7F;
        const nb_finding *f = sole("NB101", O ".weight_scale", NB_SEVERITY_ERROR, 37, 1);
        assert_int_equal(f->effect[NB_FAMILY_W4A4], NB_EFFECT_NAN);
        assert_true(f->repairable);
        model_free(&m);
    }
}

static void a_nan_scale_of_an_expert_shows_for_some_prompts(void **state)
{
    config = "{\"model_type\":\"nosuchmodel\",\"num_experts\":4}";
    model_experts(&m, false, 4);
    spoil("model.layers.0.mlp.experts.2.down_proj.weight_scale", 32)[31] = 0x7F;
    const nb_finding *f =
        sole("NB101", "model.layers.0.mlp.experts.2.down_proj.weight_scale", NB_SEVERITY_ERROR, 31, 1);
    assert_int_equal(f->effect[NB_FAMILY_W4A16], NB_EFFECT_PROMPT);
    config = LLAMA_CONFIG;
    model_free(&m);
}

static void a_scale_with_a_sign(void **state)
{
    model_llama(&m, false);
    spoil(O ".weight_scale", 64)[5] |= 0x80;
    const nb_finding *f = sole("NB102", O ".weight_scale", NB_SEVERITY_ERROR, 5, 1);
    assert_int_equal(f->effect[NB_FAMILY_MARLIN], NB_EFFECT_WRONG);
    model_free(&m);
}

/* Weight scale: a divisor of zero is infinity, a multiplier of zero is zero (specs/nvfp4.md §2.4). */
static void global_scales(void **state)
{
    static const struct {
        float v;
        nb_effect_class ct, modelopt;
    } cases[] = {{0, NB_EFFECT_NAN, NB_EFFECT_ZERO},
                 {INFINITY, NB_EFFECT_ZERO, NB_EFFECT_NAN},
                 {NAN, NB_EFFECT_NAN, NB_EFFECT_NAN},
                 {-1, NB_EFFECT_WRONG, NB_EFFECT_WRONG},
                 {1e-45f, NB_EFFECT_NAN, NB_EFFECT_ZERO}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int ct = 0; ct < 2; ct++) {
            const char *name = ct ? O ".weight_global_scale" : O ".weight_scale_2";
            model_llama(&m, ct);
            set(name, cases[i].v);
            const nb_finding *f = sole("NB103", name, NB_SEVERITY_ERROR, 0, 4);
            assert_int_equal(f->effect[NB_FAMILY_W4A4], ct ? cases[i].ct : cases[i].modelopt);
            model_free(&m);
        }
    }
}

static void input_scales(void **state)
{
    static const struct {
        float v;
        nb_effect_class ct, modelopt;
    } cases[] = {{0, NB_EFFECT_NAN, NB_EFFECT_PROMPT},
                 {INFINITY, NB_EFFECT_PROMPT, NB_EFFECT_NAN},
                 {NAN, NB_EFFECT_NAN, NB_EFFECT_NAN},
                 {1e-45f, NB_EFFECT_ZERO, NB_EFFECT_PROMPT}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int ct = 0; ct < 2; ct++) {
            const char *name = ct ? O ".input_global_scale" : O ".input_scale";
            model_llama(&m, ct);
            set(name, cases[i].v);
            const nb_finding *f = sole("NB104", name, NB_SEVERITY_ERROR, 0, 4);
            assert_int_equal(f->effect[NB_FAMILY_W4A4], ct ? cases[i].ct : cases[i].modelopt);
            assert_int_equal(f->effect[NB_FAMILY_MARLIN], NB_EFFECT_FINE);
            model_free(&m);
        }
    }
}

static void a_zero_scale_over_codes(void **state)
{
    model_llama(&m, true);
    spoil(O ".weight_scale", 64)[63] = 0;
    assert_int_equal(sole("NB109", O ".weight_scale", NB_SEVERITY_WARNING, 63, 1)->effect[NB_FAMILY_W4A16],
                     NB_EFFECT_WRONG);
    model_free(&m);
}

static void a_subnormal_scale_beside_the_largest(void **state)
{
    model_llama(&m, true);
    spoil(O ".weight_scale", 64)[10] = 0x07;
    const nb_finding *f = sole("NB109", O ".weight_scale", NB_SEVERITY_WARNING, 10, 1);
    assert_int_equal(f->effect[NB_FAMILY_MARLIN], NB_EFFECT_WRONG);
    assert_int_equal(f->effect[NB_FAMILY_W4A4], NB_EFFECT_FINE);
    model_free(&m);
}

static void zero_blocks_under_the_bytes_that_producers_write(void **state)
{
    static const unsigned char legal[] = {0x00, 0x20, 0x38, 0x7E};
    model_llama(&m, true);
    unsigned char *codes = spoil(O ".weight_packed", 512);
    memset(codes + 8, 0, 32);    /* blocks 1 to 4 */
    memset(codes + 8, 0x88, 16); /* of -0, some */
    static unsigned char scales[64];
    memcpy(scales, model_find(&m, O ".weight_scale")->bytes, sizeof scales);
    memcpy(scales + 1, legal, sizeof legal);
    model_find(&m, O ".weight_scale")->bytes = scales;
    model_check(&m, LLAMA_CONFIG);
    must_be_alone(&m, NULL);
    model_free(&m);
    /* and under another: two blocks of 64 are over 2 % */
    model_llama(&m, true);
    model_find(&m, O ".weight_packed")->bytes = bytes;
    scales[1] = scales[2] = 0x55;
    model_find(&m, O ".weight_scale")->bytes = scales;
    sole("NB110", O ".weight_packed", NB_SEVERITY_WARNING, 0, 512);
    model_free(&m);
}

static void codes_that_are_all_zero_all_equal_or_never_6(void **state)
{
    static const struct {
        unsigned char fill;
        nb_effect_class effect;
    } cases[] = {{0x00, NB_EFFECT_ZERO}, {0x22, NB_EFFECT_WRONG}, {0x25, NB_EFFECT_WRONG}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_llama(&m, true);
        memset(spoil(O ".weight_packed", 512), cases[i].fill, 512);
        const nb_finding *f = sole("NB110", O ".weight_packed", NB_SEVERITY_WARNING, 0, 512);
        assert_int_equal(f->effect[NB_FAMILY_W4A4], cases[i].effect);
        model_free(&m);
    }
}

/* The 64 blocks of o_proj: codes 6 and 0.5, `full` under 0x7E, near[] of them under 0x7D, 0x7C, …, the rest under 0x50. */
static void pile_up(size_t full, const size_t near[NB_NEAR])
{
    model_llama(&m, true);
    memset(spoil(O ".weight_packed", 512), 0x17, 512);
    static unsigned char scales[64];
    memset(scales, 0x50, sizeof scales);
    memset(scales, 0x7E, full);
    for (size_t k = 0, at = full; k < NB_NEAR; at += near[k++]) memset(scales + at, 0x7D - (int)k, near[k]);
    model_find(&m, O ".weight_scale")->bytes = scales;
}

/* All blocks under 0x7E; or a pile there that those below do not let expect: where they are about as many at each scale, 0x7E, of
 * half their width, should have half as many. */
static void a_pile_of_full_scales(void **unused)
{
    static const struct {
        size_t full, near[NB_NEAR];
    } cases[] = {{64, {0}}, {24, {8, 8, 8, 8, 8}}, {20, {3, 2, 6, 4, 9}}, {22, {1, 0, 0, 1, 0}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pile_up(cases[i].full, cases[i].near);
        assert_int_equal(
            sole("NB114", O ".weight_scale", NB_SEVERITY_WARNING, 0, 64)->effect[NB_FAMILY_W4A16],
            NB_EFFECT_WRONG);
        model_free(&m);
    }
}

/* Uniform weights, whose blocks grow towards the maximum; few blocks; the comb of sizes that MXFP4 leaves. */
static void no_pile_of_full_scales(void **unused)
{
    static const size_t none[NB_NEAR];
    static const struct {
        size_t full, near[NB_NEAR];
    } cases[] = {
        {28, {24, 8, 3, 1, 0}}, {9, {0, 1, 0, 1, 0}}, {12, {8, 9, 10, 10, 12}}, {30, {0, 0, 0, 0, 34}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pile_up(cases[i].full, cases[i].near);
        model_check(&m, config);
        assert_null(found(&m, "NB114", NULL));
        model_free(&m);
    }
    pile_up(64, none);
    memset(spoil(O ".weight_packed", 512), 0x7F, 512); /* 6 and -6 alone: weights of two values */
    model_check(&m, config);
    assert_null(found(&m, "NB114", NULL));
    model_free(&m);
}

static void not_finite_floats(void **state)
{
    /* BF16: NaN, infinity, -infinity */
    static const uint16_t bad[] = {0x7FC0, 0x7F80, 0xFF80};
    for (size_t i = 0; i < 3; i++) {
        model_llama(&m, false);
        memcpy(spoil("model.norm.weight", 64) + 2 * 9, &bad[i], 2);
        assert_int_equal(
            sole("NB112", "model.norm.weight", NB_SEVERITY_ERROR, 18, 2)->effect[NB_FAMILY_MARLIN],
            NB_EFFECT_NAN);
        model_free(&m);
    }
    model_llama(&m, false);
    memcpy(spoil("model.embed_tokens.weight", 48 * 64) + 2 * 1000, &bad[0], 2);
    assert_int_equal(
        sole("NB112", "model.embed_tokens.weight", NB_SEVERITY_ERROR, 2000, 2)->effect[NB_FAMILY_W4A4],
        NB_EFFECT_PROMPT);
    model_free(&m);
}

static void e8m0_scales(void **state)
{
    static const unsigned char bad[] = {0xFF, 0x00};
    for (size_t i = 0; i < 2; i++) {
        model_llama(&m, false);
        model_remove(&m, DOWN ".weight_scale_2");
        model_remove(&m, DOWN ".input_scale");
        model_reshape(&m, DOWN ".weight_scale", NB_DT_F8_E8M0, 2, 32, 2);
        spoil(DOWN ".weight_scale", 64)[3] = bad[i];
        assert_int_equal(sole("NB113", DOWN ".weight_scale", NB_SEVERITY_ERROR, 3, 1)->effect[NB_FAMILY_W4A4],
                         i ? NB_EFFECT_WRONG : NB_EFFECT_NAN);
        model_free(&m);
    }
}

static void a_norm_and_an_embedding_of_zeros(void **state)
{
    static const char *const names[] = {"model.layers.1.input_layernorm.weight", "model.embed_tokens.weight"};
    for (int i = 0; i < 2; i++) {
        model_llama(&m, i);
        const size_t n = i ? 48 * 32 * 2 : 64;
        memset(spoil(names[i], n), 0, n);
        bytes[n - 1] = 0x80; /* -0 is zero, too */
        const nb_finding *f = sole("NB112", names[i], NB_SEVERITY_WARNING, 0, n);
        assert_int_equal(f->effect[NB_FAMILY_W4A16], NB_EFFECT_ZERO);
        bytes[n - 2] = 1; /* one value is not */
        model_check(&m, LLAMA_CONFIG);
        must_be_alone(&m, NULL);
        model_free(&m);
    }
}

/* A weight whose integers -7 to 7 have the frequencies 1 2 3 4 5 6 7 8 7 6 5 4 3 2 1, with zero point 8 and as two's complement:
 * as E2M1 it would hold 7 (-6) eight times as often as 15. The same frequencies over E2M1's own order are healthy, and so is a
 * weight without negative numbers. */
static void integers_instead_of_e2m1(void **state)
{
    static unsigned char codes[1024];
    for (int form = 0; form < 4; form++) {
        size_t n = 0;
        model_llama(&m, true);
        while (n < 2048) {
            for (int v = -7; v <= 7; v++) {
                const int magnitude = v < 0 ? -v : v;
                for (int k = 8 - magnitude; k > 0 && n < 2048; k--, n++) {
                    const int code = form == 0   ? v + 8
                                     : form == 1 ? v & 15
                                     : form == 2 ? (v < 0 ? 8 : 0) + magnitude
                                                 : magnitude;
                    codes[n / 2] = (unsigned char)(n % 2 ? codes[n / 2] | code << 4 : code);
                }
            }
        }
        for (size_t b = 0; b < sizeof codes && form >= 2; b += 8)
            codes[b] = form == 3 ? 0x17 : 0x7F; /* reach 6 */
        model_find(&m, "model.layers.0.mlp.gate_proj.weight_packed")->bytes = codes;
        model_check(&m, LLAMA_CONFIG);
        bool told = false;
        for (size_t i = 0; i < m.r.findings.count; i++)
            told = told || strstr(m.r.findings.items[i].message, "4-bit integers");
        assert_int_equal(told, form < 2);
        model_free(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_nan_scale),
        cmocka_unit_test(a_nan_scale_of_an_expert_shows_for_some_prompts),
        cmocka_unit_test(a_scale_with_a_sign),
        cmocka_unit_test(global_scales),
        cmocka_unit_test(input_scales),
        cmocka_unit_test(a_zero_scale_over_codes),
        cmocka_unit_test(a_subnormal_scale_beside_the_largest),
        cmocka_unit_test(zero_blocks_under_the_bytes_that_producers_write),
        cmocka_unit_test(codes_that_are_all_zero_all_equal_or_never_6),
        cmocka_unit_test(a_pile_of_full_scales),
        cmocka_unit_test(no_pile_of_full_scales),
        cmocka_unit_test(not_finite_floats),
        cmocka_unit_test(a_norm_and_an_embedding_of_zeros),
        cmocka_unit_test(integers_instead_of_e2m1),
        cmocka_unit_test(e8m0_scales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
