/* The packed layout: where each code and scale of a matrix lands, that rows read back as the checkpoint's values, what padding
 * holds, and which scale bytes are reported. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/packed.h"
#include "numerics/formats.h"
#include "numerics/nvfp4.h"

static uint32_t seed;

static uint8_t random_byte(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (uint8_t)(seed >> 24);
}

static uint8_t *random_bytes(size_t n)
{
    uint8_t *p = malloc(n);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) p[i] = random_byte();
    return p;
}

/* Same bits, or both NaN. */
static void same(float got, float want, size_t row, size_t k)
{
    if (nb_f32_bits(got) != nb_f32_bits(want) && !(isnan(got) && isnan(want)))
        fail_msg("row %zu k %zu: %g, expected %g", row, k, (double)got, (double)want);
}

static void check_rows(const nb_packed *w, const float *want)
{
    float *row = malloc(w->k * sizeof *row);
    assert_non_null(row);
    for (size_t r = 0; r < w->n; r++) {
        nb_packed_row(w, r, row);
        for (size_t k = 0; k < w->k; k++) same(row[k], want[r * w->k + k], r, k);
    }
    free(row);
}

/* Row 18 of a [20, 48] matrix lies in panel 1, lane 2; its code 17 is in word 2 of the row, so at byte
 * (2 * 16 + 2) * 4, low nibble of byte 0 is code 16 and the high nibble code 17. Its scale 1 covers k 16..31. */
static void nvfp4_layout(void **state)
{
    nb_packed w;
    uint8_t codes[20 * 24] = {0}, scales[20 * 3] = {0};
    codes[18 * 24 + 8] = 0xA3;
    scales[18 * 3 + 1] = 0x38;
    assert_int_equal(nb_packed_alloc(NB_FMT_NVFP4, 20, 48, 0, &w, NULL), NB_OK);
    assert_int_equal(w.panels, 2);
    assert_int_equal(w.k_pad, 64);
    assert_int_equal(w.code_bytes, 64 / 8 * 64);
    assert_int_equal(w.scale_bytes, 64 / 16 * 16);
    assert_int_equal((uintptr_t)w.codes % 64, 0);
    assert_int_equal((uintptr_t)w.scales % 64, 0);
    assert_false(nb_pack_rows(&w, 0, 20, codes, scales));
    for (size_t i = 0; i < 2 * w.code_bytes; i++)
        assert_int_equal(w.codes[i], i == w.code_bytes + (2 * 16 + 2) * 4 ? 0xA3 : 0);
    for (size_t i = 0; i < 2 * w.scale_bytes; i++)
        assert_int_equal(w.scales[i], i == w.scale_bytes + 16 + 2 ? 0x38 : 0);
    float row[48];
    w.multiplier = 0.5f;
    nb_packed_row(&w, 18, row);
    assert_true(row[16] == 0.75f && row[17] == -0.5f && row[18] == 0); /* codes 3 and 10 */
    nb_packed_free(&w);
    assert_null(w.codes);
}

/* Packed in two calls, as two threads would. From 256 columns on scales, and from 128 codes, fill whole vectors and leave a rest. */
static void nvfp4_round_trip(void **state)
{
    static const size_t widths[] = {16, 32, 48, 80, 128, 272, 656};
    seed = 1;
    for (size_t n = 1; n <= 40; n += 13)
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
            const size_t k = widths[i];
            uint8_t *codes = random_bytes(n * k / 2), *scales = random_bytes(n * k / 16);
            float *want = malloc(n * k * sizeof *want);
            assert_non_null(want);
            nb_packed w;
            assert_int_equal(nb_packed_alloc(NB_FMT_NVFP4, n, k, 0, &w, NULL), NB_OK);
            w.multiplier = 0.37f;
            size_t first = n > 16 ? 16 : n;
            nb_pack_rows(&w, 0, first, codes, scales);
            if (n > 16) nb_pack_rows(&w, 16, n - 16, codes + 16 * k / 2, scales + 16 * k / 16);
            nb_nvfp4_dequantise(codes, scales, w.multiplier, n, k, want);
            check_rows(&w, want);
            nb_packed_free(&w);
            free(codes), free(scales), free(want);
        }
}

static void mxfp4_round_trip(void **state)
{
    seed = 2;
    size_t n = 19, k = 608;
    uint8_t *codes = random_bytes(n * k / 2), *scales = random_bytes(n * k / 32);
    float *want = malloc(n * k * sizeof *want);
    assert_non_null(want);
    scales[3] = 0xFF;
    scales[4] = 0;
    nb_packed w;
    assert_int_equal(nb_packed_alloc(NB_FMT_MXFP4, n, k, 0, &w, NULL), NB_OK);
    assert_int_equal(w.scale_k, 32);
    assert_false(
        nb_pack_rows(&w, 0, n, codes, scales)); /* a NaN byte of MXFP4 is decoded as NaN everywhere */
    nb_mxfp4_dequantise(codes, scales, n, k, want);
    check_rows(&w, want);
    nb_packed_free(&w);
    free(codes), free(scales), free(want);
}

static void fp8_round_trip(void **state)
{
    seed = 3;
    size_t n = 35, k = 301; /* neither a whole panel nor a whole word */
    uint8_t *codes = random_bytes(n * k);
    float *want = malloc(n * k * sizeof *want), scales[35 * 3];
    assert_non_null(want);
    for (size_t i = 0; i < n * 3; i++) scales[i] = (float)(i + 1) * 0.01f;
    nb_packed w;
    assert_int_equal(nb_packed_alloc(NB_FMT_FP8, n, k, 128, &w, NULL), NB_OK);
    assert_int_equal(w.scale_k, 128);
    assert_int_equal(w.scale_bytes, 3 * 64);
    assert_false(nb_pack_rows(&w, 0, n, codes, scales));
    nb_fp8_dequantise(codes, scales, n, k, 1, 128, want);
    check_rows(&w, want);
    nb_packed_free(&w);

    assert_int_equal(nb_packed_alloc(NB_FMT_FP8, n, k, 0, &w, NULL), NB_OK);
    assert_int_equal(w.scale_k, w.k_pad);
    nb_pack_rows(&w, 0, n, codes, scales);
    nb_fp8_dequantise(codes, scales, n, k, 1, k, want);
    check_rows(&w, want);
    nb_packed_free(&w);
    free(codes), free(want);
}

static void floats_round_trip(void **state)
{
    seed = 4;
    size_t n = 17, k = 33;
    uint8_t *bytes = random_bytes(n * k * 4);
    float *want = malloc(n * k * sizeof *want);
    assert_non_null(want);
    for (nb_format f = NB_FMT_BF16; f <= NB_FMT_F32; f++) {
        nb_packed w;
        assert_int_equal(nb_packed_alloc(f, n, k, 0, &w, NULL), NB_OK);
        assert_null(w.scales);
        nb_pack_rows(&w, 0, n, bytes, NULL);
        for (size_t i = 0; i < n * k; i++) {
            uint16_t h;
            memcpy(&h, bytes + 2 * i, 2);
            if (f == NB_FMT_F32)
                memcpy(&want[i], bytes + 4 * i, 4);
            else
                want[i] = f == NB_FMT_BF16 ? nb_bf16_decode(h) : nb_f16_decode(h);
        }
        check_rows(&w, want);
        nb_packed_free(&w);
    }
    free(bytes), free(want);
}

static void odd_scale_bytes_are_reported(void **state)
{
    nb_packed w;
    uint8_t codes[16 * 8] = {0}, scales[16]; /* more than 3 rows of 24 bytes, too */
    assert_int_equal(nb_packed_alloc(NB_FMT_NVFP4, 16, 16, 0, &w, NULL), NB_OK);
    for (unsigned b = 0; b < 256; b++) {
        memset(scales, 0x38, sizeof scales);
        scales[b % 16] = (uint8_t)b;
        assert_int_equal(nb_pack_rows(&w, 0, 16, codes, scales), b >= 0x7F);
    }
    nb_packed_free(&w);
    /* Nine bytes: one more than are looked at together. */
    assert_int_equal(nb_packed_alloc(NB_FMT_NVFP4, 3, 48, 0, &w, NULL), NB_OK);
    for (size_t at = 0; at < 9; at++) {
        memset(scales, 0x7E, sizeof scales);
        assert_false(nb_pack_rows(&w, 0, 3, codes, scales));
        scales[at] = at % 2 ? 0x7F : 0x80;
        assert_true(nb_pack_rows(&w, 0, 3, codes, scales));
    }
    nb_packed_free(&w);
}

static void impossible_shapes_are_errors(void **state)
{
    nb_packed w = {0};
    nb_error err;
    assert_int_equal(nb_packed_alloc(NB_FMT_NVFP4, 16, 24, 0, &w, &err), NB_ERR_FORMAT);
    assert_non_null(strstr(err.cause, "24"));
    assert_int_equal(nb_packed_alloc(NB_FMT_MXFP4, 16, 48, 0, &w, &err), NB_ERR_FORMAT);
    assert_int_equal(nb_packed_alloc(NB_FMT_BF16, 0, 16, 0, &w, &err), NB_ERR_ARGUMENT);
    assert_int_equal(nb_packed_alloc(NB_FMT_BF16, 16, 0, 0, &w, &err), NB_ERR_ARGUMENT);
    assert_int_equal(nb_packed_alloc(NB_FMT_FP8, 16, 64, 24, &w, &err), NB_ERR_UNSUPPORTED);
    assert_int_equal(nb_packed_alloc(NB_FMT_F32, SIZE_MAX, 16, 0, &w, &err), NB_ERR_NOMEM);
    assert_int_equal(nb_packed_alloc(NB_FMT_F32, 16, SIZE_MAX, 0, &w, &err), NB_ERR_NOMEM);
    assert_int_equal(nb_packed_alloc(NB_FMT_F32, (size_t)1 << 40, (size_t)1 << 40, 0, &w, &err),
                     NB_ERR_NOMEM);
    assert_null(w.memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nvfp4_layout),
        cmocka_unit_test(nvfp4_round_trip),
        cmocka_unit_test(mxfp4_round_trip),
        cmocka_unit_test(fp8_round_trip),
        cmocka_unit_test(floats_round_trip),
        cmocka_unit_test(odd_scale_bytes_are_reported),
        cmocka_unit_test(impossible_shapes_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
