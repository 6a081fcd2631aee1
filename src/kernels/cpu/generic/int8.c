/* The reference of arithmetic int8: activations as int8 with a scale for each 16 k, exact sums inside a block. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/generic/generic.h"
#include "kernels/cpu/int8.h"
#include "numerics/formats.h"

enum { BLOCK = 16 };

/* Where k number i of 8 lies in q. */
static size_t place(size_t i)
{
    return i / 8 * 8 + i % 2 * 4 + i % 8 / 2;
}

void nb_generic_quantise_i8(const float *x, size_t k, size_t k_pad, float *row)
{
    for (size_t b = 0; b < k_pad / BLOCK; b++) {
        float v[BLOCK] = {0}, amax = 0;
        int8_t q[BLOCK] = {0};
        int32_t sum = 0;
        bool finite = true;
        size_t n = b * BLOCK >= k ? 0 : k - b * BLOCK < BLOCK ? k - b * BLOCK : BLOCK;
        memcpy(v, x + b * BLOCK, n * sizeof *v);
        for (size_t i = 0; i < BLOCK; i++) {
            finite &= isfinite(v[i]) != 0;
            if (fabsf(v[i]) > amax) amax = fabsf(v[i]);
        }
        for (size_t i = 0; finite && amax >= NB_I8_TINY && i < BLOCK; i++) {
            q[place(i)] = (int8_t)nearbyintf(v[i] * (127.0f / amax));
            sum += q[place(i)];
        }
        memcpy(nb_i8_codes(row) + b * BLOCK, q, sizeof q);
        nb_i8_scale(row, k_pad)[b] = !finite ? NAN : amax >= NB_I8_TINY ? amax / 254.0f : 0;
        nb_i8_bias(row, k_pad)[b] = -12 * sum;
    }
}

void nb_generic_linear_i8(const nb_packed *w, const float *x, size_t ldx, size_t rows, float *y, size_t ldy,
                          size_t p0, size_t p1)
{
    for (size_t p = p0; p < p1; p++) {
        const uint8_t *codes = w->codes + p * w->code_bytes, *scales = w->scales + p * w->scale_bytes;
        size_t lanes = w->n - p * NB_PANEL < NB_PANEL ? w->n - p * NB_PANEL : NB_PANEL;
        for (size_t r = 0; r < rows; r++) {
            const float *row = x + r * ldx;
            const int8_t *q = nb_i8_codes(row);
            float acc[NB_PANEL] = {0};
            for (size_t b = 0; b < w->k_pad / BLOCK; b++) {
                int32_t sum[NB_PANEL] = {0};
                for (size_t k = 0; k < BLOCK; k++)
                    for (size_t i = 0; i < NB_PANEL; i++) {
                        uint8_t pair = codes[(b * 2 + k / 8) * 64 + i * 4 + k % 8 / 2];
                        int32_t twice = (int32_t)(2 * nb_e2m1_table[pair >> (k % 2 * 4) & 15]);
                        sum[i] += twice * q[b * BLOCK + place(k)];
                    }
                for (size_t i = 0; i < NB_PANEL; i++) {
                    uint8_t s = scales[b * BLOCK / w->scale_k * NB_PANEL + i];
                    float scale =
                        w->format == NB_FMT_NVFP4 ? nb_e4m3_table[s] : nb_e8m0_decode(s) * NB_I8_E8M0;
                    acc[i] += (float)sum[i] * scale * nb_i8_scale(row, w->k_pad)[b];
                }
            }
            for (size_t i = 0; i < lanes; i++) y[r * ldy + p * NB_PANEL + i] = acc[i] * nb_i8_multiplier(w);
        }
    }
}
