/* A whole W4A4 product as the GPU forms it, with the scale of a healthy checkpoint and with the bring-up note's scale, and the
 * same weights with exact activations, through every table of kernels (fixtures/numerics/linear.json, summed in F64 there). */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/kernels.h"
#include "numerics/formats.h"
#include "numerics/nvfp4.h"

enum { ROWS = 4, N = 8, K = 64 };

typedef struct product {
    json_t *root;
    nb_packed w;
    float x[ROWS * K], weight_scale_2;
} product;

static float bits(const json_t *j)
{
    assert_non_null(json_string_value(j));
    return nb_f32_from_bits((uint32_t)strtoul(json_string_value(j), NULL, 16));
}

static product load(void)
{
    product p = {.root = json_load_file(NB_TEST_DATA "/fixtures/numerics/linear.json", 0, NULL)};
    assert_non_null(p.root);
    json_t *x = json_object_get(p.root, "x_bf16"), *packed = json_object_get(p.root, "packed");
    json_t *scale = json_object_get(p.root, "weight_scale");
    for (size_t i = 0; i < ROWS * K; i++)
        p.x[i] = nb_bf16_decode(
            (uint16_t)strtoul(json_string_value(json_array_get(json_array_get(x, i / K), i % K)), NULL, 16));
    uint8_t codes[N * K / 2], scales[N * K / 16];
    for (size_t r = 0; r < N; r++) {
        const char *hex = json_string_value(json_array_get(packed, r));
        assert_int_equal(strlen(hex), K);
        for (size_t i = 0; i < K / 2; i++) {
            char pair[3] = {hex[2 * i], hex[2 * i + 1], 0};
            codes[r * K / 2 + i] = (uint8_t)strtoul(pair, NULL, 16);
        }
        for (size_t b = 0; b < K / 16; b++)
            scales[r * K / 16 + b] = (uint8_t)json_integer_value(json_array_get(json_array_get(scale, r), b));
    }
    p.weight_scale_2 = bits(json_object_get(p.root, "weight_scale_2"));
    assert_int_equal(nb_packed_alloc(NB_FMT_NVFP4, N, K, 0, &p.w, NULL), NB_OK);
    nb_pack_rows(&p.w, 0, N, codes, scales);
    return p;
}

static void unload(product *p)
{
    nb_packed_free(&p->w);
    json_decref(p->root);
}

/* y within 1e-5 of the largest |y|, with every table. */
static void check(const product *p, const float *x, const json_t *want)
{
    nb_cpu cpu;
    nb_cpu_detect(&cpu);
    const nb_kernels *tables[8];
    size_t n = nb_kernels_list(&cpu, tables, 8);
    double max = 0;
    for (size_t i = 0; i < ROWS * N; i++)
        max = fmax(max, fabs(json_number_value(json_array_get(json_array_get(want, i / N), i % N))));
    for (size_t t = 0; t < n; t++) {
        float y[ROWS * N];
        tables[t]->linear(&p->w, x, K, ROWS, NULL, y, N, 0, p->w.panels);
        for (size_t i = 0; i < ROWS * N; i++) {
            double v = json_number_value(json_array_get(json_array_get(want, i / N), i % N));
            if (!(fabs((double)y[i] - v) <= 1e-5 * max))
                fail_msg("%s: output %zu is %g, expected %g", tables[t]->name, i, (double)y[i], v);
        }
    }
}

static void exact_activations(void **state)
{
    product p = load();
    p.w.multiplier = p.weight_scale_2;
    check(&p, p.x, json_object_get(p.root, "exact_w4a16"));
    unload(&p);
}

/* alpha = input_scale * weight_scale_2 in all cases; "misread" hands the multiplier itself to the quantiser. */
static void quantised_activations(void **state)
{
    product p = load();
    json_t *c, *cases = json_object_get(p.root, "cases");
    assert_int_equal(json_array_size(cases), 3);
    size_t i;
    json_array_foreach(cases, i, c)
    {
        float scale = bits(json_object_get(c, "input_scale")), q[ROWS * K];
        bool misread = strstr(json_string_value(json_object_get(c, "name")), "misread") != NULL;
        for (size_t r = 0; r < ROWS; r++)
            nb_nvfp4_quantise_row(p.x + r * K, K, misread ? scale : 1.0f / scale, NB_ACT_CUTLASS, true,
                                  q + r * K);
        p.w.multiplier = scale * p.weight_scale_2;
        check(&p, q, json_object_get(c, "y"));
    }
    unload(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_activations),
        cmocka_unit_test(quantised_activations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
