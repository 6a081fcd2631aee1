/*
 * Arithmetic int8 for many rows in AMX tiles. A block of 16 k has a scale of its own, so its exact sums must leave the tile after 16 bytes
 * of k: they go through memory to the vectors that hold the F32 sums of 16 rows. There each takes the three operations of
 * avx512/int8.c, lane for lane, so that the number of rows changes no bit.
 *
 *     activations   16 rows x 16 bytes, loaded as they lie
 *     weights       4 x 64 bytes: [4 words of 4 k][16 rows of the panel][4], looked up as 2 * value; STEP k are opened at a time
 *     sums          16 rows x 16 int32
 *
 * Products of the block after next are begun, and sums of the next one stored, before those of a block are scaled. A product of tiles takes
 * its 16 cycles whatever the rows, so fewer than MANY are multiplied as AVX-512 does. Where rows are more than SOME, STEP k of them
 * stay in the second-level cache for all panels, and the F32 sums wait in y in between.
 */
#include "kernels/cpu/int8.h"

#include <immintrin.h>
#include <stdalign.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/amx/amx.h"
#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/avx512/avx512.h"
#include "kernels/cpu/avx512/decode.h"

enum {
    MANY = 32,                     /* rows from which tiles are faster */
    ROWS = 16,                     /* of a tile */
    REST = 8,                      /* rows beyond whole tiles that are not worth another */
    STEP = 1024,                   /* k at a time */
    BLOCKS = STEP / NB_E2M1_BLOCK, /* in them */
    TILE = 512,                    /* rows at a time */
    SOME = 64,                     /* rows that meet all k of a panel before the next */
    LINE = 64,                     /* bytes of a cache line: codes of four blocks, scales of 16 */
    AHEAD = 2                      /* lines of codes that are asked for in advance */
};

/* Neither may tile loads move above the stores that made what they load, nor loads above tile stores, which gcc's intrinsics do not say. */
#define STORES_ARE_DONE() __asm__ volatile("" ::: "memory")

/* Up to BLOCKS blocks of a panel. */
typedef struct opened {
    alignas(64) int8_t codes[BLOCKS][4][64]; /* 2 * value */
    float scales[BLOCKS][NB_PANEL];
} opened;

/* A block's sums. */
typedef struct sums {
    alignas(64) int32_t of[ROWS][NB_PANEL];
} sums;

/* Tiles 0, 1: sums of even and odd blocks; 2, 3: activations; 4: weights. */
static void configure(void)
{
    nb_tile_config c = {.palette = 1};
    for (size_t i = 0; i < 4; i++) {
        c.rows[i] = ROWS;
        c.colsb[i] = i < 2 ? 64 : NB_E2M1_BLOCK;
    }
    c.rows[4] = 4;
    c.colsb[4] = 64;
    nb_tiles_load(&c);
}

INLINE void open_blocks(nb_scales kind, const nb_packed *w, size_t p, size_t b0, size_t blocks, opened *o)
{
    const __m512i table =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    const uint8_t *codes = w->codes + p * w->code_bytes, *s = w->scales + p * w->scale_bytes;
    for (size_t b = 0; b < blocks; b++) {
        __m512i word[4];
        nb_look_up(table, codes, b0 + b, word);
        UNROLL
        for (size_t i = 0; i < 4; i++) _mm512_store_si512(o->codes[b][i], word[i]);
        _mm512_store_ps(o->scales[b], nb_fit_scale16(kind, s, b0 + b, NB_I8_E8M0));
    }
}

static void open_panel(const nb_packed *w, size_t p, size_t b0, size_t blocks, opened *o)
{
    if (w->format == NB_FMT_MXFP4)
        open_blocks(E8M0, w, p, b0, blocks, o);
    else if (w->odd_scales)
        open_blocks(ANY_E4M3, w, p, b0, blocks, o);
    else
        open_blocks(PLAIN_E4M3, w, p, b0, blocks, o);
    STORES_ARE_DONE();
}

/* Begins block b, even or odd. Of the rows at a there are `step` bytes from one to the next. */
INLINE void multiply(bool odd, const int8_t *a, size_t step, const opened *o, size_t b)
{
    if (odd) {
        _tile_zero(1);
        _tile_loadd(3, a + b * NB_E2M1_BLOCK, step);
        _tile_loadd(4, o->codes[b], 64);
        _tile_dpbssd(1, 3, 4);
    } else {
        _tile_zero(0);
        _tile_loadd(2, a + b * NB_E2M1_BLOCK, step);
        _tile_loadd(4, o->codes[b], 64);
        _tile_dpbssd(0, 2, 4);
    }
}

INLINE void store(bool odd, sums *s)
{
    if (odd)
        _tile_stored(1, s->of, 64);
    else
        _tile_stored(0, s->of, 64);
    STORES_ARE_DONE();
}

/* acc += sums * weight scales * activation scales, of which the rows at a have one each, `step` bytes apart. */
INLINE void scale(const sums *s, const float *weight, const float *a, size_t step, __m512 acc[ROWS])
{
    const __m512 w = _mm512_load_ps(weight);
    const char *at = (const char *)a;
    size_t step3 = 3 * step;
    UNROLL
    for (size_t r = 0; r < ROWS; r++) {
        /* All addresses are sums of a few registers. Seeing where they come from, gcc would keep each in one of its own. */
        __asm__("" : "+r"(step3), "+r"(at));
        float f;
        memcpy(&f, at + (r % 4 == 3 ? step3 : r % 4 * step), sizeof f);
        __m512 v = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(s->of[r])), w);
        acc[r] = _mm512_fmadd_ps(v, _mm512_set1_ps(f), acc[r]);
        if (r % 4 == 3) at += 4 * step;
    }
}

/* A product. */
typedef struct call {
    const nb_packed *w;
    const float *x;
    size_t ldx, rows;
    float *y;
    size_t ldy, p0, p1;
} call;

/* A tile's rows by panel p, `blocks` blocks from b0 on. */
typedef struct place {
    size_t row, skip; /* the first, and how many of the rows were done with those before */
    size_t next;      /* the first of the tile that follows */
    size_t p, b0, blocks;
} place;

/* Before blocks b and b + 1: asks for codes that come AHEAD lines later, the next tile's if need be, and for its scales and its sums
 * in y. */
INLINE void ask(const call *c, const place *g, size_t b)
{
    const size_t step = c->ldx * sizeof(float), lines = g->blocks / 4, line = b / 4 + AHEAD;
    const float *next = c->x + g->next * c->ldx, *row = line < lines ? c->x + g->row * c->ldx : next;
    const char *codes = (const char *)nb_i8_codes(row) + g->b0 * NB_E2M1_BLOCK +
                        (line < lines ? line : line - lines) * LINE + b / 2 % 2 * (ROWS / 2) * step;
    UNROLL
    for (size_t r = 0; r < ROWS / 2; r++) _mm_prefetch(codes + r * step, _MM_HINT_T0);
    const size_t r = b / 2;
    if (r >= ROWS) return;
    const char *scales = (const char *)(nb_i8_scale(next, c->w->k_pad) + g->b0) + r * step;
    _mm_prefetch(scales, _MM_HINT_T0);
    _mm_prefetch(scales + LINE, _MM_HINT_T0);
    if (g->b0) _mm_prefetch((const char *)(c->y + (g->next + r) * c->ldy + g->p * NB_PANEL), _MM_HINT_T0);
}

static void multiply_rows(const call *c, const place *g, const opened *o)
{
    const size_t step = c->ldx * sizeof(float), blocks = g->blocks; /* an even number */
    const float *row = c->x + g->row * c->ldx, *scales = nb_i8_scale(row, c->w->k_pad) + g->b0;
    const int8_t *a = nb_i8_codes(row) + g->b0 * NB_E2M1_BLOCK;
    float *y = c->y + g->row * c->ldy + g->p * NB_PANEL;
    const __mmask16 lanes = nb_lanes16(c->w, g->p);
    __m512 acc[ROWS];
    sums even, odd;
    UNROLL
    for (size_t r = 0; r < ROWS; r++)
        acc[r] = _mm512_maskz_loadu_ps(g->b0 && r >= g->skip ? lanes : 0, y + r * c->ldy);
    multiply(false, a, step, o, 0);
    multiply(true, a, step, o, 1);
    store(false, &even);
    for (size_t b = 0; b < blocks; b += 2) {
        const size_t ahead = b + 2 < blocks ? b + 2 : b; /* the last two are begun again, for nothing */
        ask(c, g, b);
        multiply(false, a, step, o, ahead);
        store(true, &odd);
        scale(&even, o->scales[b], scales + b, step, acc);
        multiply(true, a, step, o, ahead + 1);
        store(false, &even);
        scale(&odd, o->scales[b + 1], scales + b + 1, step, acc);
    }
    const bool last = g->b0 + blocks == c->w->k_pad / NB_E2M1_BLOCK;
    const __m512 m = _mm512_set1_ps(last ? nb_i8_multiplier(c->w) : 1.0f);
    UNROLL
    for (size_t r = 0; r < ROWS; r++)
        _mm512_mask_storeu_ps(y + r * c->ldy, r >= g->skip ? lanes : 0, _mm512_mul_ps(acc[r], m));
}

/* Rows [r0, r1), ROWS or more, by panel p, up to BLOCKS blocks from b0 on. The last tile overlaps the one before where it must. */
static void multiply_panel(const call *c, size_t r0, size_t r1, size_t p, size_t b0, opened *o)
{
    const size_t left = c->w->k_pad / NB_E2M1_BLOCK - b0, last = r1 - ROWS;
    place g = {.p = p, .b0 = b0, .blocks = nb_smaller(left, BLOCKS)};
    open_panel(c->w, p, b0, g.blocks, o);
    for (size_t r = r0; r < r1; r += ROWS) {
        g.row = nb_smaller(r, last);
        g.skip = r - g.row;
        g.next = r >= last ? r0 : r + ROWS < last ? r + ROWS : last;
        multiply_rows(c, &g, o);
    }
}

static void multiply_tiles(const call *c)
{
    const size_t blocks = c->w->k_pad / NB_E2M1_BLOCK;
    opened o;
    configure();
    for (size_t r = 0, end; r < c->rows; r = end) {
        end = c->rows - r < TILE + ROWS ? c->rows : r + TILE;
        if (end - r <= SOME) {
            for (size_t p = c->p0; p < c->p1; p++)
                for (size_t b = 0; b < blocks; b += BLOCKS) multiply_panel(c, r, end, p, b, &o);
        } else {
            for (size_t b = 0; b < blocks; b += BLOCKS)
                for (size_t p = c->p0; p < c->p1; p++) multiply_panel(c, r, end, p, b, &o);
        }
    }
    _tile_release();
}

void nb_amx_linear_i8(const nb_packed *w, const float *x, size_t ldx, size_t rows, float *y, size_t ldy,
                      size_t p0, size_t p1)
{
    size_t others = rows < MANY ? rows : rows % ROWS <= REST ? rows % ROWS : 0;
    rows -= others;
    nb_avx512_linear_i8(w, x + rows * ldx, ldx, others, y + rows * ldy, ldy, p0, p1);
    if (rows) multiply_tiles(&(call){w, x, ldx, rows, y, ldy, p0, p1});
}
