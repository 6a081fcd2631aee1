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
 *   many rows:   STEP k of all rows (at most TILE of them) are copied as tiles into the second-level cache, then for each pair of
 *                panels the same k are opened beside them; between two steps of k the sums wait in y
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
    FEW = 4,            /* rows for which FMAs are faster than tiles */
    SOME = 32,          /* rows that need no sums in y: two rows of tiles … */
    AHEAD = 2048,       /* bytes of codes that are asked for in advance */
    SOME_K = 16384      /* … of at most so many k: 1 MB of activations */
};

/* [rows of 16][room][16 rows][32 k] as BF16, of which `pieces` are filled; x's values are exact in it, so that their upper halves are
 * all there is. */
static void copy_rows(const float *x, size_t ldx, size_t rows, size_t k0, size_t pieces, size_t room,
                      uint16_t *out)
{
    for (size_t r = 0; r < rows; r++) {
        const float *s = x + r * ldx + k0;
        uint16_t *d = out + r / 16 * room * 512 + r % 16 * 32;
        for (size_t p = 0; p < pieces; p++, s += 32, d += 512) {
            __m512i a = _mm512_srli_epi32(_mm512_castps_si512(_mm512_loadu_ps(s)), 16);
            __m512i b = _mm512_srli_epi32(_mm512_castps_si512(_mm512_loadu_ps(s + 16)), 16);
            _mm256_store_si256((__m256i *)d, _mm512_cvtepi32_epi16(a));
            _mm256_store_si256((__m256i *)(d + 16), _mm512_cvtepi32_epi16(b));
        }
    }
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

/* sums += activations times weights, one piece: two rows of tiles by two panels. a1 and b1 are where the second ones lie. */
INLINE void multiply(bool two_rows, bool two_panels, const uint16_t *a0, const uint16_t *a1,
                     const uint16_t *b0, const uint16_t *b1)
{
    _tile_loadd(6, b0, 64);
    _tile_loadd(4, a0, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (two_panels) {
        _tile_loadd(7, b1, 64);
        _tile_dpbf16ps(1, 4, 7);
    }
    if (two_rows) {
        _tile_loadd(5, a1, 64);
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

/* One corner: rows of activation tiles at a, panels of weight tiles at b. first: sums start at zero. */
INLINE void corner_of(bool two_rows, bool two_panels, const uint16_t *a, const uint16_t *b, size_t pieces)
{
    STORES_ARE_DONE();
    for (size_t p = 0; p < pieces; p++)
        multiply(two_rows, two_panels, a + p * 512, a + (PIECES + p) * 512, b + p * 512,
                 b + (PIECES + p) * 512);
}

static void run_corner(const uint16_t *a, const uint16_t *b, size_t pieces, size_t rows, size_t lanes,
                       bool first, const float *row_scale, float multiplier, float *y, size_t ldy)
{
    corner s;
    nb_tile_config config;
    bool two_rows = rows > 16, two_panels = lanes > 16;
    nb_tiles_configure(&config, two_rows ? 16 : rows, two_rows ? rows - 16 : 1);
    if (first) {
        zero_sums();
    } else {
        load_sums(&s, y, ldy, rows, lanes);
        STORES_ARE_DONE();
        _tile_loadd(0, s.c[0], 64);
        _tile_loadd(1, s.c[1], 64);
        _tile_loadd(2, s.c[2], 64);
        _tile_loadd(3, s.c[3], 64);
    }
    if (two_rows && two_panels)
        corner_of(true, true, a, b, pieces);
    else if (two_rows)
        corner_of(true, false, a, b, pieces);
    else if (two_panels)
        corner_of(false, true, a, b, pieces);
    else
        corner_of(false, false, a, b, pieces);
    tiles_to_sums(&s);
    store_sums(&s, y, ldy, rows, lanes, row_scale, multiplier);
}

/* Up to SOME rows and SOME_K k: weights are opened a piece ahead of the tiles that use them and never leave the first-level cache. */
INLINE void some_panels(bool two_rows, bool two_panels, const nb_packed *w, const uint16_t *a, size_t pieces,
                        size_t p)
{
    alignas(64) uint16_t b[2][4][512];
    open_piece(w, p, 0, b[0][0]);
    if (two_panels) open_piece(w, p + 1, 0, b[1][0]);
    for (size_t i = 0; i < pieces; i++) {
        size_t next = i + 1 < pieces ? i + 1 : i;
        open_piece(w, p, next, b[0][(i + 1) % 4]);
        if (two_panels) open_piece(w, p + 1, next, b[1][(i + 1) % 4]);
        STORES_ARE_DONE();
        multiply(two_rows, two_panels, a + i * 512, a + (pieces + i) * 512, b[0][i % 4], b[1][i % 4]);
    }
}

static void some_rows(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,
                      float *y, size_t ldy, size_t p0, size_t p1)
{
    alignas(64) uint16_t a[SOME / 16 * SOME_K / 32 * 512];
    corner s;
    nb_tile_config config;
    size_t pieces = w->k_pad / 32;
    bool two_rows = rows > 16;
    copy_rows(x, ldx, rows, 0, pieces, pieces, a);
    nb_tiles_configure(&config, two_rows ? 16 : rows, two_rows ? rows - 16 : 1);
    for (size_t p = p0; p < p1; p += 2) {
        size_t lanes = lanes_of(w, p, p1);
        zero_sums();
        if (two_rows && lanes > 16)
            some_panels(true, true, w, a, pieces, p);
        else if (two_rows)
            some_panels(true, false, w, a, pieces, p);
        else if (lanes > 16)
            some_panels(false, true, w, a, pieces, p);
        else
            some_panels(false, false, w, a, pieces, p);
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

/* Subnormals count as zero, as in tiles, until the thread's rounding state is put back; the multiplier comes after that, as there. */
static void few(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale, float *y,
                size_t ldy, size_t p0, size_t p1)
{
    enum { DAZ_FTZ = 0x8040 };
    unsigned state = _mm_getcsr();
    _mm_setcsr(state | DAZ_FTZ);
    STORES_ARE_DONE(); /* nothing moves across a change of the state */
    if (w->odd_scales)
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

static void many_rows(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,
                      float *y, size_t ldy, size_t p0, size_t p1)
{
    alignas(64) uint16_t a[TILE / 16 * PIECES * 512], b[2 * PIECES * 512]; /* 1 MB and 64 KB */
    for (size_t k0 = 0; k0 < w->k_pad; k0 += STEP) {
        size_t pieces = (w->k_pad - k0 < STEP ? w->k_pad - k0 : STEP) / 32;
        bool last = k0 + pieces * 32 == w->k_pad; /* unfinished sums stay as they are */
        copy_rows(x, ldx, rows, k0, pieces, PIECES, a);
        for (size_t p = p0; p < p1; p += 2) {
            size_t lanes = lanes_of(w, p, p1);
            for (size_t i = 0; i < pieces; i++) {
                open_piece(w, p, k0 / 32 + i, b + i * 512);
                if (lanes > NB_PANEL) open_piece(w, p + 1, k0 / 32 + i, b + (PIECES + i) * 512);
            }
            for (size_t r = 0; r < rows; r += 32)
                run_corner(a + r / 16 * PIECES * 512, b, pieces, rows - r < 32 ? rows - r : 32, lanes,
                           k0 == 0, last && row_scale ? row_scale + r : NULL, last ? w->multiplier : 1.0f,
                           y + r * ldy + p * NB_PANEL, ldy);
        }
    }
}

void nb_amx_linear_bf16(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,
                        float *y, size_t ldy, size_t p0, size_t p1)
{
    /* MXFP4's smallest scales are subnormal themselves */
    if (rows <= FEW && w->format == NB_FMT_NVFP4) {
        few(w, x, ldx, rows, row_scale, y, ldy, p0, p1);
        return;
    }
    for (size_t r = 0; r < rows; r += TILE) {
        size_t here = rows - r < TILE ? rows - r : TILE;
        const float *scale = row_scale ? row_scale + r : NULL;
        if (here <= SOME && w->k_pad <= SOME_K)
            some_rows(w, x + r * ldx, ldx, here, scale, y + r * ldy, ldy, p0, p1);
        else
            many_rows(w, x + r * ldx, ldx, here, scale, y + r * ldy, ldy, p0, p1);
    }
    _tile_release();
}
