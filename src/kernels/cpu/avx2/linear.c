/*
 * The linear of every weight format. Decoding differs per format, the arithmetic does not: each output is a chain of FMAs over
 * 16 k from zero, and these block sums are folded into the output by one FMA with the block's scale. The paths below only
 * choose what is kept in registers, so one row and many rows give the same bits.
 *
 *   up to four rows: codes go through registers to the FMAs of all rows at once; two to four panel halves or rows side by side
 *                    make the independent chains that hide the FMA's latency
 *   more rows:       a block of two panels is decoded once into 2 KB of scratch and multiplied with up to 48 rows, six at a
 *                    time. The activations are copied into groups of six first: the caller's rows may lie a multiple of 4 KB
 *                    apart, where a few of them would evict each other from the cache
 */
#include "kernels/cpu/avx2/avx2.h"

#include <stdalign.h>

#include "base/mem.h"
#include "kernels/cpu/avx2/decode.h"

enum {
    BLOCK = 16,     /* k in one sum from zero */
    QUADS = 4,      /* steps of 4 k in it */
    FEW = 4,        /* the most rows for which codes may go straight to the FMAs */
    GROUP = 6,      /* rows in the micro-kernel: 12 sums, 2 weights and 1 activation fill the 16 registers */
    TILE = 48,      /* rows that share a decoded block */
    WIDE = 32,      /* lanes of two panels, which are decoded together */
    PACKED = 12288, /* activations copied at a time: 48 KB */
};

/* FP4's look-ups have so much latency that the FMAs which wait for them would fill the scheduler: those formats are opened into
 * L1 one block ahead. For the others that costs more than it brings. */
NB_INLINE bool opens_ahead(nb_format f)
{
    return f == NB_FMT_NVFP4 || f == NB_FMT_MXFP4;
}

/* `rows` rows (1 to 4) times `count` panels (1 or 2) from p on, codes going straight from registers to the FMAs. sum[] has one chain
 * for each row and 8 lanes: rows * count is 2 to 4, so that there are enough chains and enough registers. */
NB_INLINE void few_rows(nb_format f, bool odd, size_t rows, size_t count, const nb_packed *w, const float *x,
                        size_t ldx, const float *scale, float *y, size_t ldy, size_t p)
{
    const uint8_t *codes = w->codes + p * w->code_bytes;
    const uint8_t *scales = w->scale_k ? w->scales + p * w->scale_bytes : codes;
    size_t blocks = w->k_pad / BLOCK, vectors = 2 * count;
    nb_quad ahead[2][QUADS][2];
    __m256 acc[8];
    NB_UNROLL
    for (size_t i = 0; i < rows * vectors; i++) acc[i] = _mm256_setzero_ps();
    if (opens_ahead(f))
        for (size_t quad = 0; quad < QUADS; quad++)
            for (size_t i = 0; i < count; i++)
                nb_open(f, codes + i * w->code_bytes, quad, &ahead[0][quad][i]);
    for (size_t b = 0; b < blocks; b++) {
        nb_quad(*here)[2] = ahead[b & 1], (*next)[2] = ahead[~b & 1];
        size_t next_block = b + 1 < blocks ? b + 1 : b;
        __m256 sum[8];
        NB_UNROLL
        for (size_t i = 0; i < rows * vectors; i++) sum[i] = _mm256_setzero_ps();
        NB_UNROLL
        for (size_t quad = 0; quad < QUADS; quad++) {
            nb_quad now[2];
            if (!opens_ahead(f)) {
                NB_UNROLL
                for (size_t i = 0; i < count; i++)
                    nb_open(f, codes + i * w->code_bytes, b * QUADS + quad, &now[i]);
            }
            const nb_quad *q = opens_ahead(f) ? here[quad] : now;
            NB_UNROLL
            for (size_t j = 0; j < 4; j++) {
                NB_UNROLL
                for (size_t i = 0; i < vectors; i++) {
                    __m256 v = nb_take(f, &q[i / 2], j, i % 2);
                    NB_UNROLL
                    for (size_t r = 0; r < rows; r++)
                        sum[r * vectors + i] =
                            _mm256_fmadd_ps(_mm256_broadcast_ss(x + r * ldx + b * BLOCK + quad * 4 + j), v,
                                            sum[r * vectors + i]);
                }
                if (opens_ahead(f) && j % 2 == 0 && j / 2 < count)
                    nb_open(f, codes + j / 2 * w->code_bytes, next_block * QUADS + quad, &next[quad][j / 2]);
            }
        }
        NB_UNROLL
        for (size_t i = 0; i < vectors; i++) {
            __m256 s = nb_scale(f, odd, w, scales + i / 2 * w->scale_bytes, b, i % 2);
            NB_UNROLL
            for (size_t r = 0; r < rows; r++)
                acc[r * vectors + i] = _mm256_fmadd_ps(sum[r * vectors + i], s, acc[r * vectors + i]);
        }
    }
    NB_UNROLL
    for (size_t i = 0; i < rows * vectors; i++)
        nb_store_lanes(y + i / vectors * ldy + p * NB_PANEL + i % vectors * 8,
                       _mm256_mul_ps(acc[i], _mm256_set1_ps(scale[i / vectors])),
                       nb_lanes_of(w, p, i % vectors));
}

/* Block b of panel p: tile[k][lane] with WIDE floats a row of the tile, and the 16 scales. */
NB_INLINE void decode_block(nb_format f, bool odd, const nb_packed *w, size_t p, size_t b, float *tile,
                            float *scale)
{
    const uint8_t *codes = w->codes + p * w->code_bytes;
    const uint8_t *scales = w->scale_k ? w->scales + p * w->scale_bytes : codes;
    NB_UNROLL
    for (size_t quad = 0; quad < QUADS; quad++) {
        nb_quad q;
        nb_open(f, codes, b * QUADS + quad, &q);
        NB_UNROLL
        for (size_t i = 0; i < 8; i++)
            _mm256_store_ps(tile + (quad * 4 + i / 2) * WIDE + i % 2 * 8, nb_take(f, &q, i / 2, i % 2));
    }
    _mm256_store_ps(scale, nb_scale(f, odd, w, scales, b, 0));
    _mm256_store_ps(scale + 8, nb_scale(f, odd, w, scales, b, 1));
}

/* acc[r][..] += scale * (16 k of `rows` activations times the tile), for 8 * vectors lanes. rows * vectors is at most 12, and at
 * least 8 where it can be: fewer chains leave the FMA units waiting. */
NB_INLINE void micro(size_t rows, size_t vectors, const float *x, const float *tile, const float *scale,
                     float *acc)
{
    __m256 sum[12];
    NB_UNROLL
    for (size_t i = 0; i < rows * vectors; i++) sum[i] = _mm256_setzero_ps();
    NB_UNROLL
    for (size_t k = 0; k < BLOCK; k++) {
        NB_UNROLL
        for (size_t r = 0; r < rows; r++) {
            __m256 v = _mm256_broadcast_ss(x + k * GROUP + r);
            NB_UNROLL
            for (size_t i = 0; i < vectors; i++)
                sum[r * vectors + i] =
                    _mm256_fmadd_ps(v, _mm256_load_ps(tile + k * WIDE + i * 8), sum[r * vectors + i]);
        }
    }
    NB_UNROLL
    for (size_t i = 0; i < rows * vectors; i++) {
        float *a = acc + i / vectors * WIDE + i % vectors * 8;
        _mm256_store_ps(a,
                        _mm256_fmadd_ps(sum[i], _mm256_load_ps(scale + i % vectors * 8), _mm256_load_ps(a)));
    }
}

typedef void (*micro_fn)(const float *x, const float *tile, const float *scale, float *acc);
#define MICRO(rows, vectors)                                                                                 \
    static void micro_##rows##x##vectors(const float *x, const float *tile, const float *scale, float *acc)  \
    {                                                                                                        \
        micro(rows, vectors, x, tile, scale, acc);                                                           \
    }
MICRO(1, 2)
MICRO(2, 2)
MICRO(3, 2)
MICRO(4, 2)
MICRO(5, 2)
MICRO(6, 2)
MICRO(1, 4)
MICRO(2, 4)
MICRO(3, 4)
/* By rows; one panel, and both panels at once. */
static const micro_fn one_panel[GROUP + 1] = {NULL,      micro_1x2, micro_2x2, micro_3x2,
                                              micro_4x2, micro_5x2, micro_6x2};
static const micro_fn two_panels[GROUP + 1] = {NULL, micro_1x4, micro_2x4, micro_3x4, NULL, NULL, NULL};

/* All groups of rows times a decoded block of `count` panels. x [group][k][GROUP] with `step` floats a group, acc [rows][WIDE]. */
static void multiply_block(const float *x, size_t step, size_t rows, const float *tile, const float *scale,
                           size_t count, float *acc)
{
    for (size_t r = 0; r < rows; r += GROUP, x += step, acc += GROUP * WIDE) {
        size_t n = rows - r < GROUP ? rows - r : GROUP;
        if (count == 2 && two_panels[n]) {
            two_panels[n](x, tile, scale, acc);
            continue;
        }
        for (size_t i = 0; i < count; i++)
            one_panel[n](x, tile + i * NB_PANEL, scale + i * NB_PANEL, acc + i * NB_PANEL);
    }
}

/* One group: 4 k of six rows at a time. Rows at or beyond `rows` repeat the last one; nobody reads them. */
static void pack_group(const float *x, size_t ldx, size_t rows, size_t len, float *out)
{
    const float *row[GROUP];
    for (size_t r = 0; r < GROUP; r++) row[r] = x + (r < rows ? r : rows - 1) * ldx;
    for (size_t k = 0; k < len; k += 4, out += 4 * GROUP) {
        __m128 a = _mm_loadu_ps(row[0] + k), b = _mm_loadu_ps(row[1] + k), c = _mm_loadu_ps(row[2] + k);
        __m128 d = _mm_loadu_ps(row[3] + k), e = _mm_loadu_ps(row[4] + k), f = _mm_loadu_ps(row[5] + k);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        __m128 ef01 = _mm_unpacklo_ps(e, f), ef23 = _mm_unpackhi_ps(e, f);
        _mm_storeu_ps(out, a);
        _mm_storel_pi((__m64 *)(out + 4), ef01);
        _mm_storeu_ps(out + 6, b);
        _mm_storeh_pi((__m64 *)(out + 10), ef01);
        _mm_storeu_ps(out + 12, c);
        _mm_storel_pi((__m64 *)(out + 16), ef23);
        _mm_storeu_ps(out + 18, d);
        _mm_storeh_pi((__m64 *)(out + 22), ef23);
    }
}

/* x[rows][k0 .. k0 + len) as out[group][k][GROUP]. */
static void pack_rows(const float *x, size_t ldx, size_t rows, size_t k0, size_t len, float *out)
{
    for (size_t r = 0; r < rows; r += GROUP) pack_group(x + r * ldx + k0, ldx, rows - r, len, out + r * len);
}

typedef void (*decode_fn)(const nb_packed *w, size_t p, size_t b, float *tile, float *scale);

/* Up to TILE rows. Between two slices of k the unfinished sums of existing outputs wait in y. */
static void many_rows(decode_fn decode, const nb_packed *w, const float *x, size_t ldx, size_t rows,
                      const float *row_scale, float *y, size_t ldy, size_t p0, size_t p1)
{
    alignas(64) float packed[PACKED], acc[TILE * WIDE], tile[BLOCK * WIDE], scale[WIDE];
    size_t slice = PACKED / nb_round_up(rows, GROUP) / BLOCK, blocks = w->k_pad / BLOCK;
    for (size_t b0 = 0; b0 < blocks; b0 += slice) {
        size_t b1 = blocks - b0 < slice ? blocks : b0 + slice;
        size_t step = (b1 - b0) * BLOCK * GROUP;
        pack_rows(x, ldx, rows, b0 * BLOCK, (b1 - b0) * BLOCK, packed);
        for (size_t p = p0, count; p < p1; p += count) {
            count = p1 - p < 2 ? 1 : 2;
            float *out = y + p * NB_PANEL;
            for (size_t r = 0; r < rows; r++)
                for (size_t i = 0; i < 2 * count; i++)
                    _mm256_store_ps(acc + r * WIDE + i * 8,
                                    b0 ? nb_load_lanes(out + r * ldy + i * 8, nb_lanes_of(w, p, i))
                                       : _mm256_setzero_ps());
            for (size_t b = b0; b < b1; b++) {
                for (size_t i = 0; i < count; i++)
                    decode(w, p + i, b, tile + i * NB_PANEL, scale + i * NB_PANEL);
                multiply_block(packed + (b - b0) * BLOCK * GROUP, step, rows, tile, scale, count, acc);
            }
            for (size_t r = 0; r < rows; r++) {
                /* Unfinished sums go back as they are. */
                float s = b1 < blocks ? 1.0f : row_scale ? w->multiplier * row_scale[r] : w->multiplier;
                for (size_t i = 0; i < 2 * count; i++)
                    nb_store_lanes(out + r * ldy + i * 8,
                                   _mm256_mul_ps(_mm256_load_ps(acc + r * WIDE + i * 8), _mm256_set1_ps(s)),
                                   nb_lanes_of(w, p, i));
            }
        }
    }
}

/* One instance per format, so that the decoder is a constant in each. few[rows][count]: rows 1 to 4, panels 1 and 2; NULL where
 * staging is faster. */
typedef void (*few_fn)(const nb_packed *w, const float *x, size_t ldx, const float *scale, float *y,
                       size_t ldy, size_t p);
typedef struct instance {
    few_fn few[FEW + 1][3];
    decode_fn decode;
} instance;

#define FEW_INSTANCE(name, f, odd, rows, count)                                                              \
    static void name##_##rows##x##count(const nb_packed *w, const float *x, size_t ldx, const float *scale,  \
                                        float *y, size_t ldy, size_t p)                                      \
    {                                                                                                        \
        few_rows(f, odd, rows, count, w, x, ldx, scale, y, ldy, p);                                          \
    }
#define INSTANCE(name, f, odd, few_3, few_4)                                                                 \
    FEW_INSTANCE(name, f, odd, 1, 1)                                                                         \
    FEW_INSTANCE(name, f, odd, 1, 2)                                                                         \
    FEW_INSTANCE(name, f, odd, 2, 1)                                                                         \
    FEW_INSTANCE(name, f, odd, 2, 2)                                                                         \
    static void name##_decode(const nb_packed *w, size_t p, size_t b, float *tile, float *scale)             \
    {                                                                                                        \
        decode_block(f, odd, w, p, b, tile, scale);                                                          \
    }                                                                                                        \
    static const instance name = {{{NULL},                                                                   \
                                   {NULL, name##_1x1, name##_1x2},                                           \
                                   {NULL, name##_2x1, name##_2x2},                                           \
                                   {NULL, few_3},                                                            \
                                   {NULL, few_4}},                                                           \
                                  name##_decode};
#define INSTANCE_TO_4(name, f, odd)                                                                          \
    FEW_INSTANCE(name, f, odd, 3, 1)                                                                         \
    FEW_INSTANCE(name, f, odd, 4, 1)                                                                         \
    INSTANCE(name, f, odd, name##_3x1, name##_4x1)

INSTANCE_TO_4(nvfp4, NB_FMT_NVFP4, false)
INSTANCE_TO_4(nvfp4_odd, NB_FMT_NVFP4, true)
INSTANCE_TO_4(mxfp4, NB_FMT_MXFP4, false)
INSTANCE(fp8, NB_FMT_FP8, false, NULL, NULL) /* costs most to decode */
INSTANCE_TO_4(bf16, NB_FMT_BF16, false)
INSTANCE_TO_4(f16, NB_FMT_F16, false)
INSTANCE_TO_4(f32, NB_FMT_F32, false)

static const instance *instance_of(const nb_packed *w)
{
    switch (w->format) {
    case NB_FMT_NVFP4: return w->odd_scales ? &nvfp4_odd : &nvfp4;
    case NB_FMT_MXFP4: return &mxfp4;
    case NB_FMT_FP8: return &fp8;
    case NB_FMT_BF16: return &bf16;
    case NB_FMT_F16: return &f16;
    default: return &f32;
    }
}

void nb_avx2_linear(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,
                    float *y, size_t ldy, size_t p0, size_t p1)
{
    const instance *f = instance_of(w);
    if (rows <= FEW && f->few[rows][1]) {
        float scale[FEW];
        for (size_t r = 0; r < rows; r++) scale[r] = row_scale ? w->multiplier * row_scale[r] : w->multiplier;
        for (size_t p = p0, count; p < p1; p += count) {
            count = p1 - p >= 2 && f->few[rows][2] ? 2 : 1;
            f->few[rows][count](w, x, ldx, scale, y, ldy, p);
        }
        return;
    }
    for (size_t r = 0; r < rows; r += TILE)
        many_rows(f->decode, w, x + r * ldx, ldx, rows - r < TILE ? rows - r : TILE,
                  row_scale ? row_scale + r : NULL, y + r * ldy, ldy, p0, p1);
}
