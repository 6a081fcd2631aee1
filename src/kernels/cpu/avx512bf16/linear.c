/*
 * E2M1 weights times rows that BF16 holds exactly, by vdpbf16ps: two products a lane, at twice the rate of FMAs on Zen 4. A vector is
 * the 16 rows of a panel, a lane one row. A code is exact in BF16, and so is a product of a code and an activation in F32; sums of
 * 16 k start from zero and are folded into the output by one FMA with the block's scale, as in avx512/linear.c.
 *
 * A word of eight codes is two halves of four. Shifted by 4 j and looked up by vpermw, which reads five bits of each half from a
 * table that holds everything twice, it gives the codes of k = j and j + 4 side by side. Activations are copied into such pairs first,
 * rows of a group beside each other: rows a multiple of 4 KB apart would evict each other.
 *
 * The instruction rounds to nearest, counts subnormals as zero and asks no control register; the number of rows changes nothing.
 */
#include <immintrin.h>
#include <stdalign.h>

#include "kernels/cpu/avx512/decode.h"
#include "kernels/cpu/avx512bf16/avx512bf16.h"

enum {
    BLOCK = 16,
    PAIRS = BLOCK / 2,
    FEW = 8,      /* rows whose sums over all k stay in registers */
    MANY = 16,    /* rows whose sums over a block do */
    TILE = 96,    /* rows that a panel meets one after another */
    ROOM = 49152, /* pairs copied at a time: 1,024 k of TILE rows, 192 KB */
    AHEAD = 4096  /* bytes of codes that are asked for in advance */
};

/* How many of `rows` rows are multiplied at once. */
static size_t group_of(size_t rows)
{
    return rows >= MANY ? MANY : rows > FEW ? FEW : rows;
}

/* k0 … k0 + len (multiples of 32) of a group's rows as out[block][row][PAIRS]. */
static void copy_group(const float *x, size_t ldx, size_t rows, size_t k0, size_t len, uint32_t *out)
{
    /* Words of 32 floats: the upper ones of k and k + 4. */
    const __m512i upper =
        _mm512_setr_epi32(1 | 9 << 16, 3 | 11 << 16, 5 | 13 << 16, 7 | 15 << 16, 17 | 25 << 16, 19 | 27 << 16,
                          21 | 29 << 16, 23 | 31 << 16, 33 | 41 << 16, 35 | 43 << 16, 37 | 45 << 16,
                          39 | 47 << 16, 49 | 57 << 16, 51 | 59 << 16, 53 | 61 << 16, 55 | 63 << 16);
    for (size_t r = 0; r < rows; r++)
        for (size_t k = 0; k < len; k += 32) {
            const float *s = x + r * ldx + k0 + k;
            uint32_t *d = out + (k / BLOCK * rows + r) * PAIRS;
            __m512i pairs =
                _mm512_permutex2var_epi16(_mm512_loadu_si512(s), upper, _mm512_loadu_si512(s + 16));
            _mm256_storeu_si256((__m256i *)d, _mm512_castsi512_si256(pairs));
            _mm256_storeu_si256((__m256i *)(d + rows * PAIRS), _mm512_extracti64x4_epi64(pairs, 1));
        }
}

/* What a group of rows is multiplied with: blocks [b0, b1) of panels from p on; and where its sums wait between slices of k. */
typedef struct part {
    const nb_packed *w;
    nb_scales scales;
    size_t b0, b1, p;
    const float *row_scale; /* NULL until the last slice, or where there are none */
    float multiplier;       /* 1 until the last slice */
    float *y;
    size_t ldy;
} part;

/* rows (1 to MANY) times one panel: memory gives two panels side by side, which share the activations, more slowly. */
INLINE void some_rows(size_t rows, const part *a, const uint32_t *x)
{
    const __m512i e2m1 = _mm512_broadcast_i64x4(_mm256_setr_epi16(
        0, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0, (short)0x8000, (short)0xBF00,
        (short)0xBF80, (short)0xBFC0, (short)0xC000, (short)0xC040, (short)0xC080, (short)0xC0C0));
    const nb_packed *w = a->w;
    const uint8_t *panel = w->codes + a->p * w->code_bytes, *scales = w->scales + a->p * w->scale_bytes;
    float *y = a->y + a->p * NB_PANEL;
    __mmask16 lanes = nb_lanes16(w, a->p);
    __m512 acc[MANY];
    UNROLL
    for (size_t r = 0; r < rows; r++)
        acc[r] = a->b0 ? _mm512_maskz_loadu_ps(lanes, y + r * a->ldy) : _mm512_setzero_ps();
    for (size_t b = a->b0; b < a->b1; b++, x += rows * PAIRS) {
        const uint8_t *codes = panel + b * 128;
        __m512 sum[MANY];
        UNROLL
        for (size_t r = 0; r < rows; r++) sum[r] = _mm512_setzero_ps();
        nb_ask_scales(a->scales, scales, b, AHEAD);
        UNROLL
        for (size_t j = 0; j < PAIRS; j++) {
            __m512i word = _mm512_loadu_si512(codes + j / 4 * 64);
            if (j % 4 == 0) _mm_prefetch((const char *)codes + j / 4 * 64 + AHEAD, _MM_HINT_T0);
            __m512i v = _mm512_permutexvar_epi16(_mm512_srli_epi16(word, (unsigned)(j % 4) * 4), e2m1);
            UNROLL
            for (size_t r = 0; r < rows; r++)
                sum[r] =
                    _mm512_dpbf16_ps(sum[r], (__m512bh)v, (__m512bh)_mm512_set1_epi32((int)x[r * PAIRS + j]));
        }
        __m512 s = nb_scale16(a->scales, scales, b);
        UNROLL
        for (size_t r = 0; r < rows; r++) acc[r] = _mm512_fmadd_ps(sum[r], s, acc[r]);
    }
    UNROLL
    for (size_t r = 0; r < rows; r++) {
        float f = a->row_scale ? a->multiplier * a->row_scale[r] : a->multiplier;
        _mm512_mask_storeu_ps(y + r * a->ldy, lanes, _mm512_mul_ps(acc[r], _mm512_set1_ps(f)));
    }
}

typedef void (*rows_fn)(const part *a, const uint32_t *x);
#define ROWS(rows)                                                                                           \
    static void rows_##rows(const part *a, const uint32_t *x)                                                \
    {                                                                                                        \
        some_rows(rows, a, x);                                                                               \
    }
ROWS(1)
ROWS(2)
ROWS(3)
ROWS(4)
ROWS(5)
ROWS(6)
ROWS(7)
ROWS(8)
ROWS(16)
static const rows_fn by_rows[MANY + 1] = {NULL,   rows_1, rows_2, rows_3, rows_4, rows_5,
                                          rows_6, rows_7, rows_8, NULL,   NULL,   NULL,
                                          NULL,   NULL,   NULL,   NULL,   rows_16};

/* Up to TILE rows. Between two slices of k the unfinished sums wait in y. */
static void tile_rows(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,
                      float *y, size_t ldy, size_t p0, size_t p1)
{
    alignas(64) uint32_t pairs[ROOM];
    nb_scales scales = w->format == NB_FMT_MXFP4 ? E8M0 : w->odd_scales ? ANY_E4M3 : PLAIN_E4M3;
    size_t step = ROOM * 2 / rows / NB_K_PAD * NB_K_PAD;
    for (size_t k0 = 0, len; k0 < w->k_pad; k0 += len) {
        len = w->k_pad - k0 < step ? w->k_pad - k0 : step;
        bool last = k0 + len == w->k_pad;
        for (size_t r = 0; r < rows; r += group_of(rows - r))
            copy_group(x + r * ldx, ldx, group_of(rows - r), k0, len, pairs + r * len / 2);
        for (size_t p = p0; p < p1; p++)
            for (size_t r = 0, n; r < rows; r += n) {
                n = group_of(rows - r);
                part a = {w,
                          scales,
                          k0 / BLOCK,
                          (k0 + len) / BLOCK,
                          p,
                          last && row_scale ? row_scale + r : NULL,
                          last ? w->multiplier : 1.0f,
                          y + r * ldy,
                          ldy};
                by_rows[n](&a, pairs + r * len / 2);
            }
    }
}

void nb_avx512bf16_linear(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,
                          float *y, size_t ldy, size_t p0, size_t p1)
{
    for (size_t r = 0; r < rows; r += TILE)
        tile_rows(w, x + r * ldx, ldx, rows - r < TILE ? rows - r : TILE, row_scale ? row_scale + r : NULL,
                  y + r * ldy, ldy, p0, p1);
}
