/* The reference linear: tables for every code and scale, and the sums in the order that kernels.h fixes. Loops over the 16
 * rows of a panel are innermost, so that a compiler may vectorise them without reordering anything. */
#include "kernels/cpu/generic/generic.h"

#include <string.h>

#include "numerics/formats.h"

enum { BLOCK = 16, ROWS = 8 }; /* k in one sum from zero; activation rows that share a decoded block */

static float half_word(const uint8_t *p, bool bf16)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return bf16 ? nb_bf16_decode(h) : nb_f16_decode(h);
}

/* Codes of 16 k of one panel: tile[k][row]. */
static void decode_codes(nb_format f, const uint8_t *codes, size_t block, float tile[BLOCK][NB_PANEL])
{
    const uint8_t *p;
    for (size_t k = 0; k < BLOCK; k++)
        for (size_t r = 0; r < NB_PANEL; r++) switch (f) {
            case NB_FMT_NVFP4:
            case NB_FMT_MXFP4:
                p = codes + (block * 2 + k / 8) * 64 + r * 4 + k % 8 / 2;
                tile[k][r] = nb_e2m1_table[*p >> (k % 2 * 4) & 15];
                break;
            case NB_FMT_FP8:
                tile[k][r] = nb_e4m3_table[codes[(block * 4 + k / 4) * 64 + r * 4 + k % 4]];
                break;
            case NB_FMT_BF16:
            case NB_FMT_F16:
                p = codes + (block * 8 + k / 2) * 64 + r * 4 + k % 2 * 2;
                tile[k][r] = half_word(p, f == NB_FMT_BF16);
                break;
            default: memcpy(&tile[k][r], codes + (block * 16 + k) * 64 + r * 4, 4); break;
            }
}

static void decode_scales(const nb_packed *w, const uint8_t *scales, size_t block, float scale[NB_PANEL])
{
    const uint8_t *s =
        scales + (w->scale_k ? block * BLOCK / w->scale_k : 0) * NB_PANEL * (w->format == NB_FMT_FP8 ? 4 : 1);
    for (size_t r = 0; r < NB_PANEL; r++) switch (w->format) {
        case NB_FMT_NVFP4: scale[r] = nb_e4m3_table[s[r]]; break;
        case NB_FMT_MXFP4: scale[r] = nb_e8m0_decode(s[r]); break;
        case NB_FMT_FP8: memcpy(&scale[r], s + 4 * r, 4); break;
        default: scale[r] = 1.0f; break;
        }
}

/* One panel times up to ROWS activation rows: acc[row][lane]. */
static void panel(const nb_packed *w, size_t p, const float *x, size_t ldx, size_t rows,
                  float acc[ROWS][NB_PANEL])
{
    const uint8_t *codes = w->codes + p * w->code_bytes;
    const uint8_t *scales = w->scale_k ? w->scales + p * w->scale_bytes : codes; /* or never read */
    memset(acc, 0, ROWS * sizeof *acc);
    for (size_t b = 0; b < w->k_pad / BLOCK; b++) {
        float tile[BLOCK][NB_PANEL], scale[NB_PANEL];
        decode_codes(w->format, codes, b, tile);
        decode_scales(w, scales, b, scale);
        for (size_t r = 0; r < rows; r++) {
            float sum[NB_PANEL] = {0};
            for (size_t k = 0; k < BLOCK; k++) {
                float v = x[r * ldx + b * BLOCK + k];
                for (size_t i = 0; i < NB_PANEL; i++) sum[i] += v * tile[k][i];
            }
            for (size_t i = 0; i < NB_PANEL; i++) acc[r][i] += sum[i] * scale[i];
        }
    }
}

void nb_generic_linear(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,
                       float *y, size_t ldy, size_t p0, size_t p1)
{
    for (size_t r0 = 0; r0 < rows; r0 += ROWS) {
        size_t here = rows - r0 < ROWS ? rows - r0 : ROWS;
        for (size_t p = p0; p < p1; p++) {
            float acc[ROWS][NB_PANEL];
            panel(w, p, x + r0 * ldx, ldx, here, acc);
            size_t lanes = w->n - p * NB_PANEL < NB_PANEL ? w->n - p * NB_PANEL : NB_PANEL;
            for (size_t r = 0; r < here; r++) {
                float scale = row_scale ? w->multiplier * row_scale[r0 + r] : w->multiplier;
                for (size_t i = 0; i < lanes; i++) y[(r0 + r) * ldy + p * NB_PANEL + i] = acc[r][i] * scale;
            }
        }
    }
}
