/*
 * Arithmetic int8 with vectors of 256 bits, for instruction sets that differ in one thing: how bytes are multiplied and added up. The
 * file that includes this defines it first, and FOLDS:
 *
 *     add_products(sum, u, s)   sum + the products of unsigned bytes u[0 … 3] and signed bytes s[0 … 3], in each lane of 32 bits the sum of
 *                               four from each pair of vectors. In magnitude those of two adjacent bytes of all four are below 2^15.
 *     FOLDS                     whether many rows are faster with the weight scale as a factor of vpmaddwd (struct opened)
 *
 *   up to four rows: codes go from the look-ups as 12 + 2 * value, unsigned, straight to the products of all rows; the sum starts at
 *                    the row's bias, -12 * the sum of q
 *   more rows:       256 k of three panels are looked up once into 18 KB, as signed bytes, and all rows, as 128 + q, are multiplied
 *                    with them; the panel's bias is added
 */
#ifndef NB_KERNELS_AVX2_INT8_LOOPS_H
#define NB_KERNELS_AVX2_INT8_LOOPS_H

#include <stdalign.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/avx2/avx2.h"
#include "kernels/cpu/avx2/decode.h"
#include "kernels/cpu/int8.h"

enum {
    BLOCK = 16,
    FEW = 4,           /* rows whose sums stay in registers */
    SLICE = 16,        /* blocks that are looked up at a time */
    TILE = 192,        /* rows that share them: 72 KB of activations */
    PANELS = 3,        /* that a row meets at once */
    MOST = 2 * PANELS, /* vectors of eight outputs in them */
    FOLD = 64,         /* factor of folded scales */
    SLICE_K = SLICE * BLOCK,
    AHEAD = 4096 /* bytes of codes that are asked for in advance */
};

/* Block b of 8 rows as bytes 12 + 2 * value: out[word] has 4 k of each, in the order of nb_i8_codes. */
NB_INLINE void open_block(const uint8_t *codes, size_t b, size_t half, __m256i out[4])
{
    NB_UNROLL
    for (size_t i = 0; i < 2; i++) nb_open_word(codes + (b * 2 + i) * 64 + half * 32, out + 2 * i);
}

/* acc += block sum * weight scale * activation scale, 8 lanes of one row. */
NB_INLINE __m256 add_block(const __m256i code[4], const float *row, size_t k_pad, size_t b, __m256 scale,
                           __m256 acc)
{
    const int8_t *bytes = nb_i8_codes(row) + b * BLOCK;
    const __m256i q[4] = {nb_four_bytes(bytes), nb_four_bytes(bytes + 4), nb_four_bytes(bytes + 8),
                          nb_four_bytes(bytes + 12)};
    __m256i sum = add_products(_mm256_set1_epi32(nb_i8_bias(row, k_pad)[b]), code, q);
    return _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale),
                           _mm256_broadcast_ss(nb_i8_scale(row, k_pad) + b), acc);
}

NB_INLINE void few_rows(nb_format f, bool odd, size_t rows, const nb_packed *w, const float *x, size_t ldx,
                        float *y, size_t ldy, size_t p)
{
    const uint8_t *codes = w->codes + p * w->code_bytes, *scales = w->scales + p * w->scale_bytes;
    __m256 acc[2 * FEW];
    NB_UNROLL
    for (size_t i = 0; i < 2 * rows; i++) acc[i] = _mm256_setzero_ps();
    for (size_t b = 0; b < w->k_pad / BLOCK; b++) {
        nb_ask_codes(codes, b, AHEAD);
        __m256 s[2];
        nb_scales_of(f, odd, w, scales, b, s);
        NB_UNROLL
        for (size_t half = 0; half < 2; half++) {
            __m256i code[4];
            s[half] = nb_fit_scale(f, s[half], NB_I8_E8M0);
            open_block(codes, b, half, code);
            NB_UNROLL
            for (size_t r = 0; r < rows; r++)
                acc[2 * r + half] = add_block(code, x + r * ldx, w->k_pad, b, s[half], acc[2 * r + half]);
        }
    }
    NB_UNROLL
    for (size_t i = 0; i < 2 * rows; i++)
        nb_store_lanes(y + i / 2 * ldy + p * NB_PANEL + i % 2 * 8,
                       _mm256_mul_ps(acc[i], _mm256_set1_ps(nb_i8_multiplier(w))), nb_lanes_of(w, p, i % 2));
}

/*
 * A slice of k of up to three panels, looked up: signed bytes 2 * value.
 *
 * Folded (by tables that define FOLDS, where NVFP4's scales allow it): the weight scale is a factor of vpmaddwd, which would otherwise
 * multiply by ones. E4M3 times FOLD is a whole number up to 28672 unless it is below 2^-3 (foldable_panel). A block's sum in 16 bits, bias
 * included, is 12192 at most in each half of a lane, so that the products stay below 2^30. F32 holds them: 15 bits of sum times four. Both
 * forms give the same bits: sum * (scale * FOLD) and scale / FOLD are exact. The bias is -128 * the sum of a lane's codes.
 */
typedef struct opened {
    alignas(64) uint8_t codes[SLICE][4][MOST][32]; /* [block][word of 4 k][half of a panel][8 rows][4 k] */
    alignas(64) uint8_t scale[SLICE][MOST][32];    /* 8 F32; folded: 8 int16, each twice */
    alignas(64) uint8_t bias[SLICE][MOST][32];     /* 8 int32; folded: 16 int16 */
} opened;

/* The same k of up to TILE rows: codes as 128 + q, and their scales. */
typedef struct slice {
    alignas(64) uint8_t q[TILE][SLICE_K];
    float scale[TILE][SLICE], folded[TILE][SLICE]; /* folded: / FOLD */
    bool foldable;                                 /* exactly */
} slice;

static void copy_slice(const float *x, size_t ldx, size_t rows, size_t k_pad, size_t b0, size_t n, slice *s)
{
    s->foldable = true;
    for (size_t r = 0; r < rows; r++) {
        const uint8_t *q = (const uint8_t *)nb_i8_codes(x + r * ldx) + b0 * BLOCK;
        for (size_t i = 0; i < n * BLOCK; i++) s->q[r][i] = q[i] ^ 0x80;
        memcpy(s->scale[r], nb_i8_scale(x + r * ldx, k_pad) + b0, n * sizeof(float));
        for (size_t b = 0; b < n; b++) {
            s->folded[r][b] = s->scale[r][b] * (1.0f / FOLD);
            s->foldable &= !(s->folded[r][b] < 0x1p-126f) || s->scale[r][b] == 0;
        }
    }
}

/* Whether all E4M3 scales of blocks [b0, b0 + n) of panel p are 0 or at least 2^-3. */
NB_INLINE bool foldable_panel(const nb_packed *w, size_t p, size_t b0, size_t n)
{
    const uint8_t *s = w->scales + p * w->scale_bytes + b0 * NB_PANEL;
    __m128i low = _mm_setzero_si128();
    for (size_t b = 0; b < n; b++) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(s + b * NB_PANEL));
        low = _mm_or_si128(low, _mm_and_si128(_mm_cmpgt_epi8(bytes, _mm_setzero_si128()),
                                              _mm_cmplt_epi8(bytes, _mm_set1_epi8(0x20))));
    }
    return _mm_testz_si128(low, low);
}

/* Blocks [b0, b0 + n) of panel p as number `at` of o. Those of the panel that comes after are asked for. */
NB_INLINE void open_panel(nb_format f, bool odd, bool folded, const nb_packed *w, size_t p, size_t b0,
                          size_t n, size_t at, opened *o)
{
    const __m256i ones = _mm256_set1_epi8(1), wide = _mm256_set1_epi16(-128);
    const uint8_t *after = w->codes + (p + PANELS) * w->code_bytes;
    for (size_t b = 0; b < n; b++) {
        nb_ask_codes(after, b0 + b, 0);
        for (size_t half = 0; half < 2; half++) {
            const size_t i = 2 * at + half;
            __m256i code[4], sum = _mm256_setzero_si256();
            open_block(w->codes + p * w->code_bytes, b0 + b, half, code);
            NB_UNROLL
            for (size_t j = 0; j < 4; j++) {
                code[j] = _mm256_sub_epi8(code[j], _mm256_set1_epi8(12));
                sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(ones, code[j]));
                _mm256_store_si256((__m256i *)o->codes[b][j][i], code[j]);
            }
            __m256 scale = nb_scale(f, odd, w, w->scales + p * w->scale_bytes, b0 + b, half);
            if (folded) {
                __m256i whole = _mm256_cvtps_epi32(_mm256_mul_ps(scale, _mm256_set1_ps(FOLD)));
                _mm256_store_si256((__m256i *)o->scale[b][i],
                                   _mm256_or_si256(whole, _mm256_slli_epi32(whole, 16)));
                _mm256_store_si256((__m256i *)o->bias[b][i], _mm256_mullo_epi16(sum, wide));
            } else {
                _mm256_store_ps((float *)o->scale[b][i], nb_fit_scale(f, scale, NB_I8_E8M0));
                _mm256_store_si256((__m256i *)o->bias[b][i], _mm256_madd_epi16(sum, wide));
            }
        }
    }
}

/* acc += block b of `count` opened panels times that of a row; q: its codes in the order of the words. The opened codes are the products'
 * memory operands. */
NB_INLINE void plain_block(size_t count, const opened *o, size_t b, const __m256i q[4], __m256 scale,
                           __m256 *acc)
{
    NB_UNROLL
    for (size_t i = 0; i < 2 * count; i++) {
        __m256i code[4];
        NB_UNROLL
        for (size_t j = 0; j < 4; j++) code[j] = nb_load_i(o->codes[b][j][i]);
        __m256 sum = _mm256_cvtepi32_ps(add_products(nb_load_i(o->bias[b][i]), q, code));
        sum = _mm256_mul_ps(sum, _mm256_castsi256_ps(nb_load_i(o->scale[b][i])));
        acc[i] = _mm256_fmadd_ps(sum, scale, acc[i]);
    }
}

/* The same of folded panels. Sums of all vectors grow side by side: 5 % faster. */
NB_INLINE void folded_block(size_t count, const opened *o, size_t b, const __m256i q[4], __m256 scale,
                            __m256 *acc)
{
    __m256i pairs[MOST];
    NB_UNROLL
    for (size_t i = 0; i < 2 * count; i++) pairs[i] = nb_load_i(o->bias[b][i]);
    NB_UNROLL
    for (size_t j = 0; j < 4; j++) {
        NB_UNROLL
        for (size_t i = 0; i < 2 * count; i++) {
            pairs[i] = _mm256_add_epi16(_mm256_maddubs_epi16(q[j], nb_load_i(o->codes[b][j][i])), pairs[i]);
            NB_IN_PLACE(pairs[i]);
        }
    }
    NB_UNROLL
    for (size_t i = 0; i < 2 * count; i++) {
        __m256i sum = _mm256_madd_epi16(pairs[i], nb_load_i(o->scale[b][i]));
        acc[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, acc[i]);
    }
}

/* What a row is multiplied with, blocks of up to three opened panels, and what becomes of the sums. */
typedef struct part {
    const opened *o;
    size_t n, lanes[MOST];
    bool first;       /* sums begin at zero, not at y */
    float multiplier; /* 1 while they are unfinished */
} part;

/* Row r of a slice times `count` panels. */
NB_INLINE void opened_row(bool folded, size_t count, const part *a, const slice *s, size_t r, float *y)
{
    __m256 acc[MOST];
    NB_UNROLL
    for (size_t i = 0; i < 2 * count; i++)
        acc[i] = a->first ? _mm256_setzero_ps() : nb_load_lanes(y + 8 * i, a->lanes[i]);
    for (size_t b = 0; b < a->n; b++) {
        __m256i q[4];
        NB_UNROLL
        for (size_t i = 0; i < 4; i++) q[i] = nb_four_bytes(s->q[r] + b * BLOCK + 4 * i);
        if (folded)
            folded_block(count, a->o, b, q, _mm256_broadcast_ss(&s->folded[r][b]), acc);
        else
            plain_block(count, a->o, b, q, _mm256_broadcast_ss(&s->scale[r][b]), acc);
    }
    NB_UNROLL
    for (size_t i = 0; i < 2 * count; i++)
        nb_store_lanes(y + 8 * i, _mm256_mul_ps(acc[i], _mm256_set1_ps(a->multiplier)), a->lanes[i]);
}

NB_INLINE void opened_rows(bool folded, size_t count, const part *a, const slice *s, size_t rows, float *y,
                           size_t ldy)
{
    switch (count) {
    case 1:
        for (size_t r = 0; r < rows; r++) opened_row(folded, 1, a, s, r, y + r * ldy);
        break;
    case 2:
        for (size_t r = 0; r < rows; r++) opened_row(folded, 2, a, s, r, y + r * ldy);
        break;
    default:
        for (size_t r = 0; r < rows; r++) opened_row(folded, PANELS, a, s, r, y + r * ldy);
    }
}

/* Up to TILE rows. */
NB_INLINE void many_rows(nb_format f, bool odd, const nb_packed *w, const float *x, size_t ldx, size_t rows,
                         float *y, size_t ldy, size_t p0, size_t p1)
{
    opened o;
    slice s;
    size_t blocks = w->k_pad / BLOCK;
    for (size_t b0 = 0; b0 < blocks; b0 += SLICE) {
        part a = {.o = &o, .n = nb_smaller(blocks - b0, SLICE), .first = b0 == 0};
        a.multiplier = b0 + a.n == blocks ? nb_i8_multiplier(w) : 1.0f;
        copy_slice(x, ldx, rows, w->k_pad, b0, a.n, &s);
        for (size_t p = p0, count; p < p1; p += count) {
            count = nb_smaller(p1 - p, PANELS);
            bool folded = FOLDS && f == NB_FMT_NVFP4 && !odd && s.foldable;
            for (size_t i = 0; i < count; i++) folded = folded && foldable_panel(w, p + i, b0, a.n);
            for (size_t i = 0; i < 2 * count; i++) a.lanes[i] = nb_lanes_of(w, p, i);
            for (size_t i = 0; i < count; i++) {
                if (folded)
                    open_panel(f, odd, true, w, p + i, b0, a.n, i, &o);
                else
                    open_panel(f, odd, false, w, p + i, b0, a.n, i, &o);
            }
            if (folded)
                opened_rows(true, count, &a, &s, rows, y + p * NB_PANEL, ldy);
            else
                opened_rows(false, count, &a, &s, rows, y + p * NB_PANEL, ldy);
        }
    }
}

/* One function for each kind of scales and number of rows, so that each loop has the registers for itself. */
typedef void (*rows_fn)(const nb_packed *w, const float *x, size_t ldx, size_t rows, float *y, size_t ldy,
                        size_t p0, size_t p1);
#define FEW_INSTANCE(name, f, odd, n)                                                                        \
    static void name##_##n(const nb_packed *w, const float *x, size_t ldx, size_t rows, float *y,            \
                           size_t ldy, size_t p0, size_t p1)                                                 \
    {                                                                                                        \
        for (size_t p = p0; p < p1; p++) few_rows(f, odd, n, w, x, ldx, y, ldy, p);                          \
    }
#define INSTANCE(name, f, odd)                                                                               \
    FEW_INSTANCE(name, f, odd, 1)                                                                            \
    FEW_INSTANCE(name, f, odd, 2)                                                                            \
    FEW_INSTANCE(name, f, odd, 3)                                                                            \
    FEW_INSTANCE(name, f, odd, 4)                                                                            \
    static void name##_many(const nb_packed *w, const float *x, size_t ldx, size_t rows, float *y,           \
                            size_t ldy, size_t p0, size_t p1)                                                \
    {                                                                                                        \
        for (size_t r = 0; r < rows; r += TILE)                                                              \
            many_rows(f, odd, w, x + r * ldx, ldx, rows - r < TILE ? rows - r : TILE, y + r * ldy, ldy, p0,  \
                      p1);                                                                                   \
    }                                                                                                        \
    static const rows_fn name[FEW + 1] = {name##_many, name##_1, name##_2, name##_3, name##_4};
INSTANCE(nvfp4, NB_FMT_NVFP4, false)
INSTANCE(nvfp4_odd, NB_FMT_NVFP4, true)
INSTANCE(mxfp4, NB_FMT_MXFP4, false)

static void linear_i8(const nb_packed *w, const float *x, size_t ldx, size_t rows, float *y, size_t ldy,
                      size_t p0, size_t p1)
{
    const rows_fn *by_rows = w->format == NB_FMT_MXFP4 ? mxfp4 : w->odd_scales ? nvfp4_odd : nvfp4;
    by_rows[rows <= FEW ? rows : 0](w, x, ldx, rows, y, ldy, p0, p1);
}

#endif
