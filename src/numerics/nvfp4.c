/* NVFP4, MXFP4 and FP8 block by block. Everything is F32 in the order the sources use: a product regrouped or a division
 * turned into a multiplication changes bytes, and these bytes are compared with other people's files. */
#include "numerics/nvfp4.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "numerics/formats.h"

/* 1/x as the GPU's rcp.approx.ftz gives it: subnormal operands and results become zero. The hardware may be one unit off in
 * the last place; this is the correctly rounded value (docs/formats.md says what that can change). */
static float rcp_ftz(float x)
{
    if (fabsf(x) < FLT_MIN) x = copysignf(0.0f, x);
    float r = 1.0f / x;
    return fabsf(r) < FLT_MIN ? copysignf(0.0f, r) : r;
}

/* The largest magnitude, as the GPU's max finds it: a NaN loses against any number. Magnitudes compare as integers. */
static float amax_of(const float *x, size_t n)
{
    int32_t m = -1; /* as bits a NaN, which is the answer where there are only NaN */
    for (size_t i = 0; i < n; i++) {
        int32_t a = (int32_t)(nb_f32_bits(x[i]) & 0x7FFFFFFF);
        if (a <= 0x7F800000 && a > m) m = a;
    }
    return nb_f32_from_bits((uint32_t)m);
}

/* rcp.approx.ftz(6.0f) as measured on the hardware, which is the correctly rounded 1/6. */
#define RCP_6 nb_f32_from_bits(0x3E2AAAAB)

/* The reference's reciprocal, which never divides by zero. */
static float rcp_safe(float x)
{
    return 1.0f / (x + (x == 0 ? 1e8f : 0.0f));
}

static bool any_nan(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (isnan(x[i])) return true;
    return false;
}

/* Steps 1 to 4: the scale byte, and the factor that brings elements to codes. */
static uint8_t block_scale(const float x[16], float gs, nb_act_kernel kernel, bool saturate, float *factor)
{
    float amax = kernel == NB_ACT_EMULATION && any_nan(x, 16) ? NAN : amax_of(x, 16);
    float sf = gs * (amax * RCP_6);
    uint8_t byte = saturate ? nb_e4m3_encode_sat(sf) : nb_e4m3_encode_nosat(sf);
    float s = nb_e4m3_table[byte];
    if (kernel == NB_ACT_EMULATION) {
        *factor = rcp_safe(s * rcp_safe(gs));
        return byte;
    }
    bool live = kernel == NB_ACT_FLASHINFER ? amax != 0 : s != 0;
    *factor = live ? rcp_ftz(s * rcp_ftz(gs)) : 0.0f;
    return byte;
}

void nb_nvfp4_quantise_block(const float x[16], float gs, nb_act_kernel kernel, bool saturate, uint8_t *scale,
                             uint8_t codes[8])
{
    float factor;
    *scale = block_scale(x, gs, kernel, saturate, &factor);
    for (size_t i = 0; i < 8; i++)
        codes[i] = (uint8_t)(nb_e2m1_encode(x[2 * i] * factor) | nb_e2m1_encode(x[2 * i + 1] * factor) << 4);
}

void nb_nvfp4_quantise_row(const float *x, size_t k, float gs, nb_act_kernel kernel, bool saturate,
                           float *out)
{
    for (size_t b = 0; b < k; b += NB_NVFP4_BLOCK) {
        float factor;
        float s = nb_e4m3_table[block_scale(x + b, gs, kernel, saturate, &factor)];
        for (size_t i = b; i < b + NB_NVFP4_BLOCK; i++)
            out[i] = nb_e2m1_table[nb_e2m1_encode(x[i] * factor)] * s;
    }
}

float nb_nvfp4_row_scale(const float *x, size_t k)
{
    float amax = k ? amax_of(x, k) : 0.0f;
    if (amax == 0) return 1.0f;
    float gs = NB_NVFP4_RANGE / amax;
    return gs > 0x1p126f ? 0x1p126f : gs; /* the reciprocal of anything larger is flushed to zero */
}

/* The matrix's own amax, or the one that fused siblings share. 0 for a matrix of zeros (or of NaN alone). */
static float matrix_amax(const float *w, size_t n, size_t k, float shared)
{
    if (shared > 0) return shared;
    float m = n && k ? amax_of(w, n * k) : 0.0f;
    return isnan(m) ? 0.0f : m;
}

static void pack_block(const float *w, size_t count, float divisor, uint8_t *codes)
{
    for (size_t i = 0; i < count; i += 2)
        codes[i / 2] = (uint8_t)(nb_e2m1_encode(w[i] / divisor) | nb_e2m1_encode(w[i + 1] / divisor) << 4);
}

void nb_nvfp4_quantise_modelopt(const float *w, size_t n, size_t k, float shared_amax, uint8_t *codes,
                                uint8_t *scales, float *global)
{
    float amax = matrix_amax(w, n, k, shared_amax);
    float ws2 = amax > 0 ? amax / NB_NVFP4_RANGE : 1.0f;
    *global = ws2;
    for (size_t b = 0; b < n * (k / 16); b++) {
        const float *x = w + b * 16;
        float s = amax_of(x, 16) / (6.0f * ws2);
        if (s == 0) s = 1.0f;
        scales[b] = nb_e4m3_encode_sat(fminf(fmaxf(s, 0x1p-9f), 448.0f));
        pack_block(x, 16, nb_e4m3_table[scales[b]] * ws2, codes + b * 8);
    }
}

void nb_nvfp4_quantise_ct(const float *w, size_t n, size_t k, float shared_amax, bool bf16_observer,
                          uint8_t *codes, uint8_t *scales, float *global)
{
    float amax = matrix_amax(w, n, k, shared_amax), gs = 1.0f;
    if (bf16_observer) amax = nb_bf16_round(amax);
    if (amax > 0) gs = NB_NVFP4_RANGE / amax;
    if (bf16_observer) gs = nb_bf16_round(gs);
    if (!isfinite(gs)) gs = 1.0f;
    *global = gs;
    for (size_t b = 0; b < n * (k / 16); b++) {
        const float *x = w + b * 16;
        float a = amax_of(x, 16);
        float sixth = bf16_observer ? nb_bf16_round(nb_bf16_round(a) / 6.0f) : a / 6.0f;
        uint8_t byte = nb_e4m3_encode_sat(fminf(gs * sixth, 448.0f));
        scales[b] = byte ? byte : 0x20; /* 0.125 stands for a block of zeros */
        pack_block(x, 16, nb_e4m3_table[scales[b]] / gs, codes + b * 8);
    }
}

static void dequantise_block(const uint8_t *codes, size_t count, float scale, float multiplier, float *out)
{
    for (size_t i = 0; i < count; i += 2) {
        out[i] = nb_e2m1_table[codes[i / 2] & 15] * scale * multiplier;
        out[i + 1] = nb_e2m1_table[codes[i / 2] >> 4] * scale * multiplier;
    }
}

void nb_nvfp4_dequantise(const uint8_t *codes, const uint8_t *scales, float multiplier, size_t n, size_t k,
                         float *out)
{
    for (size_t b = 0; b < n * (k / 16); b++)
        dequantise_block(codes + b * 8, 16, nb_e4m3_table[scales[b]], multiplier, out + b * 16);
}

void nb_mxfp4_dequantise(const uint8_t *codes, const uint8_t *scales, size_t n, size_t k, float *out)
{
    for (size_t b = 0; b < n * (k / 32); b++)
        dequantise_block(codes + b * 16, 32, nb_e8m0_decode(scales[b]), 1.0f, out + b * 32);
}

void nb_mxfp4_quantise(const float *w, size_t n, size_t k, uint8_t *codes, uint8_t *scales)
{
    for (size_t b = 0; b < n * (k / 32); b++) {
        float amax = amax_of(w + b * 32, 32);
        /* Mantissas from 1.75 up take the next power; minus 2 because the largest code is 6 = 1.5 * 2^2. */
        int e = (int)((nb_f32_bits(amax) + 0x200000) >> 23) - 2;
        scales[b] = (uint8_t)(e < 1 ? 1 : e > 254 ? 254 : e);
        pack_block(w + b * 32, 32, nb_e8m0_decode(scales[b]), codes + b * 16);
    }
}

void nb_fp8_dequantise(const uint8_t *w, const float *scale, size_t n, size_t k, size_t rows_per,
                       size_t cols_per, float *out)
{
    size_t cols = k / cols_per + (k % cols_per != 0);
    for (size_t r = 0; r < n; r++) {
        const float *s = scale + r / rows_per * cols;
        for (size_t c = 0; c < k; c++) out[r * k + c] = nb_e4m3_table[w[r * k + c]] * s[c / cols_per];
    }
}

void nb_fp8_quantise(const float *w, size_t n, size_t k, size_t rows_per, size_t cols_per, uint8_t *codes,
                     float *scale)
{
    size_t rows = n / rows_per + (n % rows_per != 0), cols = k / cols_per + (k % cols_per != 0);
    memset(scale, 0, rows * cols * sizeof *scale);
    for (size_t r = 0; r < n; r++)
        for (size_t c = 0; c < k; c++) {
            float *m = scale + r / rows_per * cols + c / cols_per;
            *m = fmaxf(*m, fabsf(w[r * k + c]));
        }
    for (size_t i = 0; i < rows * cols; i++) scale[i] = scale[i] > 0 ? scale[i] / 448.0f : 1.0f;
    for (size_t r = 0; r < n; r++)
        for (size_t c = 0; c < k; c++)
            codes[r * k + c] = nb_e4m3_encode_sat(w[r * k + c] / scale[r / rows_per * cols + c / cols_per]);
}

size_t nb_swizzle_offset(size_t m, size_t kb, size_t kblocks)
{
    size_t kb4 = kblocks / 4 + (kblocks % 4 != 0);
    return (m / 128 * kb4 + kb / 4) * 512 + m % 32 * 16 + m % 128 / 32 * 4 + kb % 4;
}
