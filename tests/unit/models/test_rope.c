/* Rotary frequencies against hand computations, and refusal of scaling types that are not known. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "models/model.h"

static nb_rope make(const char *params, double theta, size_t dims, double force)
{
    nb_rope r = {0};
    nb_error err;
    json_t *p = params ? json_loads(params, 0, NULL) : NULL;
    assert_int_equal(nb_rope_init(p, theta, dims, force, 4, &r, &err), NB_OK);
    json_decref(p);
    return r;
}

static void close_to(float have, double want)
{
    if (fabs(have - want) > 2e-7 * fabs(want)) fail_msg("%.9g is not %.9g", (double)have, want);
}

static void test_plain(void **unused)
{
    nb_rope r = make(NULL, 10000, 8, 0); /* 10000^(-2i/8): 1, 0.1, 0.01, 0.001 */
    const double want[] = {1, 0.1, 0.01, 0.001};
    for (size_t i = 0; i < 4; i++) close_to(r.inv_freq[i], want[i]);
    assert_true(r.factor == 1.0f);
    nb_rope_free(&r);
}

/* DeepSeek-V4-Flash: the ramp runs from pair 15 to pair 25 (c(32) = 15.453, c(1) = 24.708), factor 16, no attention factor. */
static void test_yarn(void **unused)
{
    const char *p = "{\"type\": \"yarn\", \"factor\": 16, \"original_max_position_embeddings\": 65536, "
                    "\"beta_fast\": 32, \"beta_slow\": 1}";
    nb_rope r = make(p, 160000, 64, 1.0), free_factor = make(p, 160000, 64, 0);
    for (size_t i = 0; i < 32; i++) {
        double f = pow(160000, -2.0 * (double)i / 64), ramp = i <= 15   ? 0
                                                              : i >= 25 ? 1
                                                                        : ((double)i - 15) / 10;
        close_to(r.inv_freq[i], f / 16 * ramp + f * (1 - ramp));
    }
    assert_true(r.factor == 1.0f);
    close_to(free_factor.factor, 1.2772588722); /* 0.1 ln 16 + 1 */
    nb_rope_free(&r);
    nb_rope_free(&free_factor);
}

/* factor 8, low 1, high 4, original 64: wavelengths over 64 are divided by 8, under 16 kept, between blended. */
static void test_llama3(void **unused)
{
    nb_rope r =
        make("{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4, "
             "\"original_max_position_embeddings\": 64}",
             10000, 8, 0);
    close_to(r.inv_freq[0], 1); /* wavelength 6.28 */
    double w = 2 * M_PI / 0.1,
           s = (64 / w - 1) / 3; /* wavelength 62.8: just inside the blend, s = 0.00619770 */
    close_to(r.inv_freq[1], (1 - s) * 0.1 / 8 + s * 0.1);
    close_to(r.inv_freq[2], 0.01 / 8);
    close_to(r.inv_freq[3], 0.001 / 8);
    nb_rope_free(&r);
}

static void test_linear(void **unused)
{
    nb_rope r = make("{\"rope_type\": \"linear\", \"factor\": 4}", 10000, 4, 0);
    close_to(r.inv_freq[0], 0.25);
    close_to(r.inv_freq[1], 0.0025);
    nb_rope_free(&r);
}

static void test_refused(void **unused)
{
    nb_error err;
    nb_rope r;
    json_t *p = json_pack("{s:s}", "rope_type", "spiral");
    assert_int_equal(nb_rope_init(p, 1e4, 8, 0, 1, &r, &err), NB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.cause, "spiral"));
    json_decref(p);
    p = json_pack("{s:s}", "rope_type", "yarn");
    assert_int_equal(nb_rope_init(p, 1e4, 8, 0, 1, &r, &err), NB_ERR_MISSING);
    assert_non_null(strstr(err.cause, "factor"));
    json_decref(p);
    p = json_pack("{s:i}", "factor", 4); /* a factor without a type: nobody knows which scaling is meant */
    assert_int_equal(nb_rope_init(p, 1e4, 8, 0, 1, &r, &err), NB_ERR_MISSING);
    json_decref(p);
}

/* What would make a frequency NaN or infinite, or be passed over in silence, is an error. */
static void test_contradictions(void **unused)
{
    static const struct {
        const char *params;
        double theta;
        nb_status want;
    } cases[] = {
        {"\"yarn\"", 1e4, NB_ERR_FORMAT}, /* no object */
        {"[1]", 1e4, NB_ERR_FORMAT},
        {"{\"rope_type\":5}", 1e4, NB_ERR_FORMAT},
        {"{\"type\":[\"yarn\"],\"factor\":4}", 1e4, NB_ERR_FORMAT},
        {"{\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":64,\"beta_fast\":\"32\"}",
         1e4, NB_ERR_MISSING},
        {"{\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":64,\"beta_fast\":0,"
         "\"mscale\":null}",
         1e4, NB_OK}, /* as transformers: 0 and null stand for the default */
        {"{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":1,"
         "\"original_max_position_embeddings\":6.2831853071795865}",
         1e4, NB_ERR_FORMAT}, /* a wavelength of 2 pi lies on both ends of a blend without width: 0 / 0 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        nb_rope r = {0};
        nb_error err = {0};
        json_t *p = json_loads(cases[i].params, JSON_DECODE_ANY, NULL);
        assert_non_null(p);
        if (nb_rope_init(p, cases[i].theta, 8, 0, 1, &r, &err) != cases[i].want)
            fail_msg("%s: %s", cases[i].params, err.cause);
        if (cases[i].want == NB_OK) nb_rope_free(&r);
        assert_null(r.inv_freq);
        json_decref(p);
    }
}

/* Gemma 4: the first quarter of the pairs, at the frequencies that they have in the whole head of 16; the others stand still. */
static void test_proportional(void **unused)
{
    nb_rope r = make("{\"rope_type\": \"proportional\", \"partial_rotary_factor\": 0.25}", 10000, 16, 0);
    assert_int_equal(r.pairs, 8);
    close_to(r.inv_freq[0], 1);
    close_to(r.inv_freq[1], 0.31622776601683794); /* 10000^(-2/16) */
    for (size_t i = 2; i < 8; i++) assert_true(r.inv_freq[i] == 0);
    nb_rope_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),        cmocka_unit_test(test_yarn),
        cmocka_unit_test(test_llama3),       cmocka_unit_test(test_linear),
        cmocka_unit_test(test_refused),      cmocka_unit_test(test_contradictions),
        cmocka_unit_test(test_proportional),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
