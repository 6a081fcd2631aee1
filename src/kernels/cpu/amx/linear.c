/*
 * E2M1 weights times rows that BF16 holds exactly, in AMX tiles. A code times its block's scale has at most six significant bits,
 * so the product is exact in BF16: weights are opened with their scales folded in, and a tile instruction does 16 x 16 x 32
 * multiply-adds in F32. Tiles flush subnormals: what is below 2^-126 counts as zero.
 *
 * The number of rows changes no bit. A tile instruction adds the products of a row and an output as two chains of FMAs, those of even
 * and those of odd k, and then the sum of the two to what was there (Intel's architecture extensions reference, TDPBF16PS).
 *
 *   a few rows:  the same chains as FMAs of AVX-512, straight from the look-ups: weights need not pass through memory
 *   some rows:   for each pair of panels weights are opened one tile ahead of their use
 *   many rows:   for each pair of panels STEP k are opened and meet all rows (at most TILE of them), whose STEP k the second-level cache
 *                holds meanwhile; between two steps of k the sums wait in y
 *
 * Rows are prepared as half-words, from which tiles are loaded as they lie. All threads read the same ones.
 */
#include <immintrin.h>
#include <stdalign.h>
#include <string.h>

#include "kernels/cpu/amx/amx.h"
#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/avx512/decode.h"

enum {
    BLOCK = 16,
    TILE = 512,         /* rows at a time */
    STEP = 1024,        /* k at a time */
    PIECES = STEP / 32, /* tiles of 32 k in them */
    FEW = 4,            /* rows for which FMAs are faster than tiles … */
    FEW_K = 16384,      /* … of at most so many k: 256 KB of activations */
    SOME = 32,          /* rows that need no sums in y: two rows of tiles */
    PANELS = 4,         /* that one row meets at once */
    AHEAD = 2048        /* bytes of codes that are asked for in advance */
};

/* The first n (0 and up) of 16 floats at x rounded to BF16, as nb_bf16_round does; zeros beyond. */
INLINE __m256i round_bf16(const float *x, size_t n)
{
    const __m512i one = _mm512_set1_epi32(1), most = _mm512_set1_epi32(0x7FFF);
    __m512 f = _mm512_maskz_loadu_ps((__mmask16)(n >= 16 ? 0xFFFF : (1u << n) - 1), x);
    __m512i u = _mm512_castps_si512(f), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), one);
    __m512i v = _mm512_add_epi32(u, _mm512_add_epi32(odd, most));
    v = _mm512_mask_or_epi32(v, _mm512_cmp_ps_mask(f, f, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(v, 16));
}

void nb_amx_prepare_bf16(const float *x, size_t k, size_t k_pad, float *row)
{
    uint16_t *out = (uint16_t *)(void *)row;
    for (size_t i = 0; i < k_pad; i += 32) { /* both halves are read before either is written: row may be x */
        __m256i a = round_bf16(x + i, i < k ? k - i : 0);
        __m256i b = round_bf16(x + i + 16, i + 16 < k ? k - i - 16 : 0);
        _mm256_storeu_si256((__m256i *)(out + i), a);
        _mm256_storeu_si256((__m256i *)(out + i + 16), b);
    }
}

/* A row's values as floats. True: all are 0 or at least 2^-125 and below 2^124 in magnitude, so that their products with codes are normal
 * numbers. */
static bool read_values(const float *row, size_t k_pad, float *out)
{
    const __m512i low = _mm512_set1_epi32(0x01000000), room = _mm512_set1_epi32(0x7C800000);
    const uint16_t *s = (const uint16_t *)(const void *)row;
    __mmask16 bad = 0;
    for (size_t i = 0; i < k_pad; i += 16) {
        __m512i v =
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(s + i))), 16);
        __m512i m = _mm512_and_si512(v, _mm512_set1_epi32(0x7FFFFFFF));
        bad |= _mm512_mask_cmpge_epu32_mask(_mm512_test_epi32_mask(m, m), _mm512_sub_epi32(m, low), room);
        _mm512_store_si512(out + i, v);
    }
    return bad == 0;
}

static const uint16_t *half_words(const float *row)
{
    return (const uint16_t *)(const void *)row;
}

/* Piece number `piece` of panel p as a weight tile: [16 pairs of k][16 rows][2]. */
INLINE void open_piece(const nb_packed *w, size_t p, size_t piece, uint16_t *out)
{
    const __m512 value =
        _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    const uint8_t *codes = w->codes + p * w->code_bytes + piece * 256, *s = w->scales + p * w->scale_bytes;
    nb_scales kind = w->format == NB_FMT_MXFP4 ? E8M0 : w->odd_scales ? ANY_E4M3 : PLAIN_E4M3;
    for (size_t b = 0; b < 2; b++) {
        __m512 scale = nb_scale16(kind, s, piece * 2 + b);
        for (size_t i = 0; i < 2; i++, codes += 64) {
            _mm_prefetch((const char *)codes + 1024, _MM_HINT_T0);
            __m512i word = _mm512_loadu_si512(codes);
            for (size_t pair = 0; pair < 4; pair++, out += 32) { /* vpermps looks at the lowest four bits */
                __m512 even = _mm512_mul_ps(
                    _mm512_permutexvar_ps(_mm512_srli_epi32(word, (unsigned)pair * 8), value), scale);
                __m512 odd = _mm512_mul_ps(
                    _mm512_permutexvar_ps(_mm512_srli_epi32(word, (unsigned)pair * 8 + 4), value), scale);
                _mm512_store_si512(
                    out, _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(_mm512_castps_si512(even), 16),
                                                 _mm512_castps_si512(odd)));
            }
        }
    }
}

/* How many rows of tiles: one, two, or two of which the second is short. */
typedef enum height { ONE, TWO, SHORT } height;

static height height_of(size_t rows)
{
    return rows == 32 ? TWO : rows > 16 ? SHORT : ONE;
}

/* sums += activations times weights, one piece: up to two rows of tiles by two panels. a1 and b1 are where the second ones lie; from one row
 * of activations to the next there are `step` bytes. Where both rows of tiles are whole they share a tile, which is faster than two. */
INLINE void multiply(height h, bool two_panels, const uint16_t *a0, const uint16_t *a1, size_t step,
                     const uint16_t *b0, const uint16_t *b1)
{
    _tile_loadd(6, b0, 64);
    _tile_loadd(4, a0, step);
    _tile_dpbf16ps(0, 4, 6);
    if (two_panels) {
        _tile_loadd(7, b1, 64);
        _tile_dpbf16ps(1, 4, 7);
    }
    if (h == TWO) {
        _tile_loadd(4, a1, step);
        _tile_dpbf16ps(2, 4, 6);
        if (two_panels) _tile_dpbf16ps(3, 4, 7);
    } else if (h == SHORT) {
        _tile_loadd(5, a1, step);
        _tile_dpbf16ps(2, 5, 6);
        if (two_panels) _tile_dpbf16ps(3, 5, 7);
    }
}

/* Tile loads must not move above the stores that made the tiles, which gcc's intrinsics do not say. */
#define STORES_ARE_DONE() __asm__ volatile("" ::: "memory")

/* The sums of up to 32 rows by 32 outputs, between tiles and y. */
typedef struct corner {
    alignas(64) float c[4][16][16];
} corner;

static void load_sums(corner *s, const float *y, size_t ldy, size_t rows, size_t lanes)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < 2; i++) {
            size_t n = lanes < 16 * i ? 0 : lanes - 16 * i > 16 ? 16 : lanes - 16 * i;
            _mm512_store_ps(s->c[r / 16 * 2 + i][r % 16],
                            _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), y + r * ldy + 16 * i));
        }
}

static void store_sums(const corner *s, float *y, size_t ldy, size_t rows, size_t lanes,
                       const float *row_scale, float multiplier)
{
    for (size_t r = 0; r < rows; r++) {
        __m512 f = _mm512_set1_ps(row_scale ? multiplier * row_scale[r] : multiplier);
        for (size_t i = 0; i < 2; i++) {
            size_t n = lanes < 16 * i ? 0 : lanes - 16 * i > 16 ? 16 : lanes - 16 * i;
            _mm512_mask_storeu_ps(y + r * ldy + 16 * i, (__mmask16)((1u << n) - 1),
                                  _mm512_mul_ps(_mm512_load_ps(s->c[r / 16 * 2 + i][r % 16]), f));
        }
    }
}

/* Tiles for up to 32 rows. */
static void configure(size_t rows)
{
    nb_tile_config config;
    nb_tiles_configure(&config, rows > 16 ? 16 : rows, rows > 16 ? rows - 16 : 1);
}

static void zero_sums(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

static void tiles_to_sums(corner *s)
{
    _tile_stored(0, s->c[0], 64);
    _tile_stored(1, s->c[1], 64);
    _tile_stored(2, s->c[2], 64);
    _tile_stored(3, s->c[3], 64);
    STORES_ARE_DONE();
}

/* How many outputs panels p and p + 1 (when it is below p1) have. */
static size_t lanes_of(const nb_packed *w, size_t p, size_t p1)
{
    size_t end = (p1 - p > 2 ? p + 2 : p1) * NB_PANEL;
    return (end < w->n ? end : w->n) - p * NB_PANEL;
}

/* One corner: `pieces` of activations at a, of which a row has `step` bytes, and of opened weights at b. The next piece of the rows is
 * asked for in advance: no two of a tile's lines lie side by side. */
INLINE void corner_by(height h, bool two_panels, const uint16_t *a, size_t step, const uint16_t *b,
                      size_t pieces)
{
    const uint16_t *a1 = a + 8 * step;
    STORES_ARE_DONE();
    for (size_t p = 0; p < pieces; p++, a += 32, a1 += 32) {
        UNROLL
        for (size_t r = 0; r < 16; r++) {
            _mm_prefetch((const char *)(a + 32) + r * step, _MM_HINT_T0);
            if (h != ONE) _mm_prefetch((const char *)(a1 + 32) + r * step, _MM_HINT_T0);
        }
        multiply(h, two_panels, a, a1, step, b + p * 512, b + (PIECES + p) * 512);
    }
}

INLINE void corner_of(height h, size_t lanes, const uint16_t *a, size_t step, const uint16_t *b,
                      size_t pieces)
{
    if (lanes > NB_PANEL)
        corner_by(h, true, a, step, b, pieces);
    else
        corner_by(h, false, a, step, b, pieces);
}

/* Rows by outputs, and where their sums are and what becomes of them. */
typedef struct place {
    size_t rows, lanes;
    bool first, last;       /* sums start at zero; they are finished */
    const float *row_scale; /* or NULL */
    float multiplier, *y;
    size_t ldy;
} place;

static void sums_to_tiles(const place *c)
{
    corner s;
    STORES_ARE_DONE();
    if (c->rows == 32 && c->lanes == 32) {
        const float *y1 = c->y + 16 * c->ldy;
        _tile_loadd(0, c->y, c->ldy * sizeof(float));
        _tile_loadd(1, c->y + 16, c->ldy * sizeof(float));
        _tile_loadd(2, y1, c->ldy * sizeof(float));
        _tile_loadd(3, y1 + 16, c->ldy * sizeof(float));
        return;
    }
    load_sums(&s, c->y, c->ldy, c->rows, c->lanes);
    STORES_ARE_DONE();
    _tile_loadd(0, s.c[0], 64);
    _tile_loadd(1, s.c[1], 64);
    _tile_loadd(2, s.c[2], 64);
    _tile_loadd(3, s.c[3], 64);
}

/* Unfinished sums stay as they are. */
static void tiles_to_y(const place *c)
{
    corner s;
    if (c->rows == 32 && c->lanes == 32 && !c->last) {
        float *y1 = c->y + 16 * c->ldy;
        _tile_stored(0, c->y, c->ldy * sizeof(float));
        _tile_stored(1, c->y + 16, c->ldy * sizeof(float));
        _tile_stored(2, y1, c->ldy * sizeof(float));
        _tile_stored(3, y1 + 16, c->ldy * sizeof(float));
        return;
    }
    tiles_to_sums(&s);
    store_sums(&s, c->y, c->ldy, c->rows, c->lanes, c->last ? c->row_scale : NULL,
               c->last ? c->multiplier : 1.0f);
}

static void run_corner(const place *c, const uint16_t *a, size_t step, const uint16_t *b, size_t pieces)
{
    if (c->first)
        zero_sums();
    else
        sums_to_tiles(c);
    switch (height_of(c->rows)) {
    case ONE: corner_of(ONE, c->lanes, a, step, b, pieces); break;
    case TWO: corner_of(TWO, c->lanes, a, step, b, pieces); break;
    case SHORT: corner_of(SHORT, c->lanes, a, step, b, pieces); break;
    }
    tiles_to_y(c);
}

/* Up to SOME rows: weights are opened a piece ahead of the tiles that use them and never leave the first-level cache. */
INLINE void some_panels_by(height h, bool two_panels, const nb_packed *w, const uint16_t *a, size_t step,
                           size_t pieces, size_t p)
{
    alignas(64) uint16_t b[2][4][512];
    open_piece(w, p, 0, b[0][0]);
    if (two_panels) open_piece(w, p + 1, 0, b[1][0]);
    for (size_t i = 0; i < pieces; i++) {
        size_t next = i + 1 < pieces ? i + 1 : i;
        open_piece(w, p, next, b[0][(i + 1) % 4]);
        if (two_panels) open_piece(w, p + 1, next, b[1][(i + 1) % 4]);
        STORES_ARE_DONE();
        multiply(h, two_panels, a + i * 32, a + 8 * step + i * 32, step, b[0][i % 4], b[1][i % 4]);
    }
}

INLINE void some_panels(height h, size_t lanes, const nb_packed *w, const uint16_t *a, size_t step,
                        size_t pieces, size_t p)
{
    if (lanes > NB_PANEL)
        some_panels_by(h, true, w, a, step, pieces, p);
    else
        some_panels_by(h, false, w, a, step, pieces, p);
}

static void some_rows(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,
                      float *y, size_t ldy, size_t p0, size_t p1)
{
    const uint16_t *a = half_words(x);
    corner s;
    size_t pieces = w->k_pad / 32, step = ldx * sizeof *x;
    const height h = height_of(rows);
    configure(rows);
    for (size_t p = p0; p < p1; p += 2) {
        size_t lanes = lanes_of(w, p, p1);
        zero_sums();
        switch (h) {
        case ONE: some_panels(ONE, lanes, w, a, step, pieces, p); break;
        case TWO: some_panels(TWO, lanes, w, a, step, pieces, p); break;
        case SHORT: some_panels(SHORT, lanes, w, a, step, pieces, p); break;
        }
        tiles_to_sums(&s);
        store_sums(&s, y + p * NB_PANEL, ldy, rows, lanes, row_scale, w->multiplier);
    }
}

/* rows (1 to 4) times panel p: tile instructions' chains, pieces of 32 k. */
INLINE void few_rows(nb_scales kind, size_t rows, const nb_packed *w, const float *x, size_t ldx, float *y,
                     size_t ldy, size_t p)
{
    const __m512 value =
        _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    const uint8_t *codes = w->codes + p * w->code_bytes, *s = w->scales + p * w->scale_bytes;
    __m512 acc[FEW];
    UNROLL
    for (size_t r = 0; r < rows; r++) acc[r] = _mm512_setzero_ps();
    for (size_t k = 0; k < w->k_pad; k += 32) {
        __m512 even[FEW], odd[FEW];
        UNROLL
        for (size_t r = 0; r < rows; r++) even[r] = odd[r] = _mm512_setzero_ps();
        UNROLL
        for (size_t i = 0; i < 4; i++, codes += 64) {
            __m512 scale = nb_scale16(kind, s, k / BLOCK + i / 2);
            _mm_prefetch((const char *)codes + AHEAD, _MM_HINT_T0);
            __m512i word = _mm512_loadu_si512(codes);
            UNROLL
            for (size_t pair = 0; pair < 4; pair++) { /* vpermps looks at the lowest four bits */
                __m512 e = _mm512_mul_ps(
                    _mm512_permutexvar_ps(_mm512_srli_epi32(word, (unsigned)pair * 8), value), scale);
                __m512 o = _mm512_mul_ps(
                    _mm512_permutexvar_ps(_mm512_srli_epi32(word, (unsigned)pair * 8 + 4), value), scale);
                UNROLL
                for (size_t r = 0; r < rows; r++) {
                    const float *a = x + r * ldx + k + i * 8 + pair * 2;
                    even[r] = _mm512_fmadd_ps(_mm512_set1_ps(a[0]), e, even[r]);
                    odd[r] = _mm512_fmadd_ps(_mm512_set1_ps(a[1]), o, odd[r]);
                }
            }
        }
        UNROLL
        for (size_t r = 0; r < rows; r++) acc[r] = _mm512_add_ps(acc[r], _mm512_add_ps(even[r], odd[r]));
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        _mm512_mask_storeu_ps(y + r * ldy + p * NB_PANEL, nb_lanes16(w, p), acc[r]);
}

/* One row times `count` panels from p on: the same chains with the products taken in another order, since x times a code is exact in F32 as
 * a code times a scale is. The table of codes times x serves all panels. */
INLINE void one_row(nb_scales kind, size_t count, const nb_packed *w, const float *x, float *y, size_t p)
{
    const __m512 value =
        _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    const uint8_t *codes = w->codes + p * w->code_bytes, *s = w->scales + p * w->scale_bytes;
    __m512 acc[PANELS];
    UNROLL
    for (size_t c = 0; c < count; c++) acc[c] = _mm512_setzero_ps();
    for (size_t k = 0; k < w->k_pad; k += 32) {
        __m512 even[PANELS], odd[PANELS], scale[PANELS];
        __m512i word[PANELS];
        UNROLL
        for (size_t c = 0; c < count; c++) even[c] = odd[c] = _mm512_setzero_ps();
        UNROLL
        for (size_t i = 0; i < 4; i++, codes += 64) {
            UNROLL
            for (size_t c = 0; c < count; c++) {
                if (i % 2 == 0) scale[c] = nb_scale16(kind, s + c * w->scale_bytes, k / BLOCK + i / 2);
                word[c] = _mm512_loadu_si512(codes + c * w->code_bytes);
                _mm_prefetch((const char *)codes + c * w->code_bytes + AHEAD, _MM_HINT_T0);
            }
            UNROLL
            for (size_t j = 0; j < 8; j++) { /* vpermps looks at the lowest four bits */
                __m512 t = _mm512_mul_ps(value, _mm512_set1_ps(x[k + i * 8 + j]));
                UNROLL
                for (size_t c = 0; c < count; c++) {
                    __m512 v = _mm512_permutexvar_ps(_mm512_srli_epi32(word[c], (unsigned)j * 4), t);
                    if (j % 2)
                        odd[c] = _mm512_fmadd_ps(v, scale[c], odd[c]);
                    else
                        even[c] = _mm512_fmadd_ps(v, scale[c], even[c]);
                }
            }
        }
        UNROLL
        for (size_t c = 0; c < count; c++) acc[c] = _mm512_add_ps(acc[c], _mm512_add_ps(even[c], odd[c]));
    }
    UNROLL
    for (size_t c = 0; c < count; c++)
        _mm512_mask_storeu_ps(y + (p + c) * NB_PANEL, nb_lanes16(w, p + c), acc[c]);
}

INLINE void one_row_panels(nb_scales kind, const nb_packed *w, const float *x, float *y, size_t p0, size_t p1)
{
    size_t p = p0;
    for (; p + PANELS <= p1; p += PANELS) one_row(kind, PANELS, w, x, y, p);
    for (; p + 2 <= p1; p += 2) one_row(kind, 2, w, x, y, p);
    if (p < p1) one_row(kind, 1, w, x, y, p);
}

INLINE void few_panels(nb_scales kind, const nb_packed *w, const float *x, size_t ldx, size_t rows, float *y,
                       size_t ldy, size_t p0, size_t p1)
{
    for (size_t p = p0; p < p1; p++) switch (rows) {
        case 1: few_rows(kind, 1, w, x, ldx, y, ldy, p); break;
        case 2: few_rows(kind, 2, w, x, ldx, y, ldy, p); break;
        case 3: few_rows(kind, 3, w, x, ldx, y, ldy, p); break;
        default: few_rows(kind, 4, w, x, ldx, y, ldy, p); break;
        }
}

/* Subnormals count as zero, as in tiles, until the thread's rounding state is put back; the multiplier comes after that, as there.
 * plain: one row, of values of which read_values says so. */
static void few(bool plain, const nb_packed *w, const float *x, size_t ldx, size_t rows,
                const float *row_scale, float *y, size_t ldy, size_t p0, size_t p1)
{
    enum { DAZ_FTZ = 0x8040 };
    unsigned state = _mm_getcsr();
    _mm_setcsr(state | DAZ_FTZ);
    STORES_ARE_DONE(); /* nothing moves across a change of the state */
    if (plain && w->odd_scales)
        one_row_panels(ANY_E4M3, w, x, y, p0, p1);
    else if (plain)
        one_row_panels(PLAIN_E4M3, w, x, y, p0, p1);
    else if (w->odd_scales)
        few_panels(ANY_E4M3, w, x, ldx, rows, y, ldy, p0, p1);
    else
        few_panels(PLAIN_E4M3, w, x, ldx, rows, y, ldy, p0, p1);
    STORES_ARE_DONE();
    _mm_setcsr(state);
    size_t end = p1 * NB_PANEL < w->n ? p1 * NB_PANEL : w->n;
    for (size_t r = 0; r < rows; r++) {
        float f = row_scale ? w->multiplier * row_scale[r] : w->multiplier;
        for (size_t i = p0 * NB_PANEL; i < end; i++) y[r * ldy + i] *= f;
    }
}

/* Two panels' opened weights times all rows. c: of the first rows. */
static void rows_of_panels(place c, size_t rows, const uint16_t *a, size_t step, const uint16_t *b,
                           size_t pieces)
{
    for (size_t r = 0; r < rows; r += 32) {
        c.rows = rows - r < 32 ? rows - r : 32;
        if (c.rows < 32) configure(c.rows);
        for (size_t i = 32; !c.first && i < 64 && r + i < rows; i++) { /* the next corner's sums */
            _mm_prefetch((const char *)(c.y + i * c.ldy), _MM_HINT_T0);
            _mm_prefetch((const char *)(c.y + i * c.ldy + 16), _MM_HINT_T0);
        }
        run_corner(&c, a, step, b, pieces);
        if (c.rows < 32) configure(32);
        a += 16 * step; /* 32 rows of half as many half-words */
        c.y += 32 * c.ldy;
        if (c.row_scale) c.row_scale += 32;
    }
}

static void many_rows(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,
                      float *y, size_t ldy, size_t p0, size_t p1)
{
    alignas(64) uint16_t b[2 * PIECES * 512]; /* 64 KB */
    configure(32);
    for (size_t k0 = 0; k0 < w->k_pad; k0 += STEP) {
        size_t pieces = (w->k_pad - k0 < STEP ? w->k_pad - k0 : STEP) / 32;
        for (size_t p = p0; p < p1; p += 2) {
            const place c = {.lanes = lanes_of(w, p, p1),
                             .first = k0 == 0,
                             .last = k0 + pieces * 32 == w->k_pad,
                             .row_scale = row_scale,
                             .multiplier = w->multiplier,
                             .y = y + p * NB_PANEL,
                             .ldy = ldy};
            for (size_t i = 0; i < pieces; i++) {
                open_piece(w, p, k0 / 32 + i, b + i * 512);
                if (c.lanes > NB_PANEL) open_piece(w, p + 1, k0 / 32 + i, b + (PIECES + i) * 512);
            }
            rows_of_panels(c, rows, half_words(x) + k0, ldx * sizeof *x, b, pieces);
        }
    }
}

void nb_amx_linear_bf16(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,
                        float *y, size_t ldy, size_t p0, size_t p1)
{
    /* MXFP4's smallest scales are subnormal themselves */
    if (rows <= FEW && w->format == NB_FMT_NVFP4 && w->k_pad <= FEW_K) {
        alignas(64) float values[FEW * FEW_K];
        bool plain = true;
        for (size_t r = 0; r < rows; r++) plain &= read_values(x + r * ldx, w->k_pad, values + r * w->k_pad);
        few(plain && rows == 1, w, values, w->k_pad, rows, row_scale, y, ldy, p0, p1);
        return;
    }
    for (size_t r = 0; r < rows; r += TILE) {
        size_t here = rows - r < TILE ? rows - r : TILE;
        const float *scale = row_scale ? row_scale + r : NULL;
        if (here <= SOME)
            some_rows(w, x + r * ldx, ldx, here, scale, y + r * ldy, ldy, p0, p1);
        else
            many_rows(w, x + r * ldx, ldx, here, scale, y + r * ldy, ldy, p0, p1);
    }
    _tile_release();
}
