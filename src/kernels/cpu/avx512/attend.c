/*
 * Attention of several queries over rows that they share, and softmax. A score is one sum of 16 lanes, added up in one fixed order,
 * whether its row and its query are taken alone or with others; an output is one chain of FMAs over its rows, ascending.
 */
#include <immintrin.h>
#include <math.h>
#include <stdalign.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/avx512/avx512.h"
#include "kernels/cpu/avx512/decode.h"

enum {
    QUERIES = 4, /* taken together with … */
    ROWS = 4,    /* … so many rows: 16 sums, 4 queries and a row */
    VECTORS = 4, /* of columns of the output at a time */
    TILE_COLS = 16 * VECTORS,
    MANY = 32,         /* queries from which on … */
    MOST_TURNED = 256, /* … rows of so many values at most, … */
    STRIP = 32,        /* … so many at a time, are turned */
    TILE = 64          /* rows of V whose columns are taken strip by strip */
};

/* Into the second-level cache: there are far fewer lines on their way to the first, and while those are, loads wait. */
INLINE void prefetch(const float *line)
{
    _mm_prefetch((const char *)line, _MM_HINT_T1);
}

INLINE __mmask16 first_lanes(size_t n)
{
    return n >= 16 ? 0xFFFF : (__mmask16)((1u << n) - 1);
}

/* Lane q of the result holds the lane sums of sums[4 r + q] for r = 0 … 3. Halves are added, then halves of those, and so on. */
INLINE __m512 add_lanes(const __m512 sums[QUERIES * ROWS])
{
    __m512 v[ROWS];
    UNROLL
    for (size_t r = 0; r < ROWS; r++) {
        const __m512 *s = sums + 4 * r;
        __m512 a =
            _mm512_add_ps(_mm512_shuffle_f32x4(s[0], s[1], 0x44), _mm512_shuffle_f32x4(s[0], s[1], 0xEE));
        __m512 b =
            _mm512_add_ps(_mm512_shuffle_f32x4(s[2], s[3], 0x44), _mm512_shuffle_f32x4(s[2], s[3], 0xEE));
        v[r] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
    }
    __m512 a = _mm512_add_ps(_mm512_shuffle_ps(v[0], v[1], 0x44), _mm512_shuffle_ps(v[0], v[1], 0xEE));
    __m512 b = _mm512_add_ps(_mm512_shuffle_ps(v[2], v[3], 0x44), _mm512_shuffle_ps(v[2], v[3], 0xEE));
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xDD));
}

/* Scores of `queries` (1 to 4) by ROWS rows from r on, of which those from `end` on are the last one again. ahead: asks for later
 * rows. */
INLINE void score_block(const nb_attend_args *a, const nb_query *q, size_t queries, size_t r, size_t end,
                        bool ahead)
{
    const float *k[ROWS], *later[ROWS];
    __m512 sums[QUERIES * ROWS];
    UNROLL
    for (size_t j = 0; j < ROWS; j++) {
        k[j] = a->k_rows[nb_smaller(r + j, end - 1)];
        later[j] = a->k_rows[nb_smaller(r + j, end - 1) + NB_AHEAD];
    }
    UNROLL
    for (size_t i = 0; i < QUERIES * ROWS; i++) sums[i] = _mm512_setzero_ps();
    for (size_t d = 0; d < a->dk; d += 16) {
        __mmask16 lanes = first_lanes(a->dk - d);
        __m512 v[QUERIES];
        UNROLL
        for (size_t i = 0; i < queries; i++) v[i] = _mm512_maskz_loadu_ps(lanes, q[i].q + d);
        UNROLL
        for (size_t j = 0; j < ROWS; j++) {
            __m512 row = _mm512_maskz_loadu_ps(lanes, k[j] + d);
            if (ahead) prefetch(later[j] + d);
            UNROLL
            for (size_t i = 0; i < queries; i++)
                sums[4 * j + i] = _mm512_fmadd_ps(v[i], row, sums[4 * j + i]);
        }
    }
    __m512 s = _mm512_mul_ps(add_lanes(sums), _mm512_set1_ps(a->scale));
    const __m128 out[QUERIES] = {_mm512_castps512_ps128(s), _mm512_extractf32x4_ps(s, 1),
                                 _mm512_extractf32x4_ps(s, 2), _mm512_extractf32x4_ps(s, 3)};
    __mmask8 rows = (__mmask8)first_lanes(end - r);
    UNROLL
    for (size_t i = 0; i < queries; i++) _mm_mask_storeu_ps(q[i].scores + r, rows, out[i]);
}

/* Rows [r0, r1) for all queries from number `first` on. */
static void score_rows(const nb_attend_args *a, size_t first, size_t r0, size_t r1)
{
    for (size_t r = r0; r < r1; r += ROWS) {
        const nb_query *q = a->queries + first, *end = a->queries + a->n_queries;
        if (end - q >= QUERIES) {
            score_block(a, q, QUERIES, r, r1, true);
            for (q += QUERIES; end - q >= QUERIES; q += QUERIES) score_block(a, q, QUERIES, r, r1, false);
        }
        switch (end - q) {
        case 1: score_block(a, q, 1, r, r1, true); break;
        case 2: score_block(a, q, 2, r, r1, true); break;
        case 3: score_block(a, q, 3, r, r1, true); break;
        }
    }
}

/*
 * Many queries: rows of K are turned, so that the lanes of a register are 16 scores and no lanes need adding up. What was lane l of a
 * score's sum is a register of its own, and these registers are added in the order of add_lanes.
 */

/* out[i] = column d + i of 16 rows. */
INLINE void turn(const float *const rows[16], size_t d, __m512 out[16])
{
    __m512 v[16], t[16];
    UNROLL
    for (size_t r = 0; r < 16; r++) v[r] = _mm512_loadu_ps(rows[r] + d);
    UNROLL
    for (size_t r = 0; r < 16; r += 4) { /* t[r + i]: in quarter j, column 4 j + i of four rows */
        __m512 a = _mm512_unpacklo_ps(v[r], v[r + 1]), b = _mm512_unpacklo_ps(v[r + 2], v[r + 3]);
        __m512 c = _mm512_unpackhi_ps(v[r], v[r + 1]), e = _mm512_unpackhi_ps(v[r + 2], v[r + 3]);
        t[r] = _mm512_shuffle_ps(a, b, 0x44);
        t[r + 1] = _mm512_shuffle_ps(a, b, 0xEE);
        t[r + 2] = _mm512_shuffle_ps(c, e, 0x44);
        t[r + 3] = _mm512_shuffle_ps(c, e, 0xEE);
    }
    UNROLL
    for (size_t i = 0; i < 4; i++) { /* the same with quarters */
        __m512 a = _mm512_shuffle_f32x4(t[i], t[4 + i], 0x44);
        __m512 b = _mm512_shuffle_f32x4(t[8 + i], t[12 + i], 0x44);
        __m512 c = _mm512_shuffle_f32x4(t[i], t[4 + i], 0xEE);
        __m512 e = _mm512_shuffle_f32x4(t[8 + i], t[12 + i], 0xEE);
        out[i] = _mm512_shuffle_f32x4(a, b, 0x88);
        out[4 + i] = _mm512_shuffle_f32x4(a, b, 0xDD);
        out[8 + i] = _mm512_shuffle_f32x4(c, e, 0x88);
        out[12 + i] = _mm512_shuffle_f32x4(c, e, 0xDD);
    }
}

/* STRIP rows from r on, those from `end` on being the last one again. keys: for each l < 8 the columns l, l + 8, l + 16, … one after
 * another. Asks for later rows. */
static void turn_keys(const nb_attend_args *a, size_t r, size_t end, float *keys)
{
    size_t steps = a->dk / 16;
    for (size_t v = 0; v < STRIP; v += 16) {
        const float *rows[16];
        for (size_t i = 0; i < 16; i++) {
            size_t row = nb_smaller(r + v + i, end - 1);
            rows[i] = a->k_rows[row];
            for (size_t d = 0; d < a->dk; d += 16) prefetch(a->k_rows[row + NB_AHEAD] + d);
        }
        for (size_t s = 0; s < steps; s++) {
            __m512 columns[16];
            turn(rows, 16 * s, columns);
            UNROLL
            for (size_t l = 0; l < 16; l++)
                _mm512_store_ps(keys + ((l % 8 * steps + s) * 2 + l / 8) * STRIP + v, columns[l]);
        }
    }
}

enum { SUMS = QUERIES * STRIP / 16 };

INLINE void add_sums(__m512 sums[SUMS], const __m512 more[SUMS])
{
    UNROLL
    for (size_t i = 0; i < SUMS; i++) sums[i] = _mm512_add_ps(sums[i], more[i]);
}

/* What were lanes l and l + 8 of the sums, added up: out[2 i + v] is query i's, rows 16 v …. */
INLINE void two_lanes(const nb_query *q, const float *keys, size_t steps, size_t l, __m512 out[SUMS])
{
    __m512 more[SUMS];
    UNROLL
    for (size_t i = 0; i < SUMS; i++) out[i] = more[i] = _mm512_setzero_ps();
    keys += l * steps * 2 * STRIP;
    for (size_t s = 0; s < steps; s++) {
        UNROLL
        for (size_t half = 0; half < 2; half++, keys += STRIP) {
            __m512 *sums = half ? more : out;
            __m512 k0 = _mm512_load_ps(keys), k1 = _mm512_load_ps(keys + 16);
            UNROLL
            for (size_t i = 0; i < QUERIES; i++) {
                __m512 x = _mm512_set1_ps(q[i].q[16 * s + l + 8 * half]);
                sums[2 * i] = _mm512_fmadd_ps(x, k0, sums[2 * i]);
                sums[2 * i + 1] = _mm512_fmadd_ps(x, k1, sums[2 * i + 1]);
            }
        }
    }
    add_sums(out, more);
}

/* Those and lanes l + 4, l + 12. */
INLINE void four_lanes(const nb_query *q, const float *keys, size_t steps, size_t l, __m512 out[SUMS])
{
    __m512 more[SUMS];
    two_lanes(q, keys, steps, l, out);
    two_lanes(q, keys, steps, l + 4, more);
    add_sums(out, more);
}

/* Those and lanes l + 2, l + 6, … */
INLINE void eight_lanes(const nb_query *q, const float *keys, size_t steps, size_t l, __m512 out[SUMS])
{
    __m512 more[SUMS];
    four_lanes(q, keys, steps, l, out);
    four_lanes(q, keys, steps, l + 2, more);
    add_sums(out, more);
}

/* Scores of QUERIES queries by STRIP rows from r on, of which those from `end` on do not exist. Not inlined: the queries' addresses would
 * not stay in registers. */
static __attribute__((noinline)) void score_strip(const nb_attend_args *a, const nb_query *q, size_t r,
                                                  size_t end, const float *keys)
{
    __m512 sums[SUMS], more[SUMS];
    eight_lanes(q, keys, a->dk / 16, 0, sums);
    eight_lanes(q, keys, a->dk / 16, 1, more);
    UNROLL
    for (size_t i = 0; i < SUMS; i++) {
        size_t at = r + i % 2 * 16;
        _mm512_mask_storeu_ps(q[i / 2].scores + at, first_lanes(end - at),
                              _mm512_mul_ps(_mm512_add_ps(sums[i], more[i]), _mm512_set1_ps(a->scale)));
    }
}

void nb_avx512_scores(const nb_attend_args *a, size_t r0, size_t r1)
{
    alignas(64) float keys[MOST_TURNED * STRIP];
    size_t r = r0, many = a->n_queries / QUERIES * QUERIES;
    bool turned = many >= MANY && a->dk % 16 == 0 && a->dk <= MOST_TURNED;
    for (; turned && r + STRIP / 2 < r1; r += STRIP) {
        turn_keys(a, r, r1, keys);
        for (size_t i = 0; i < many; i += QUERIES) score_strip(a, a->queries + i, r, r1, keys);
        if (many < a->n_queries) score_rows(a, many, r, nb_smaller(r + STRIP, r1));
    }
    if (r < r1) score_rows(a, 0, r, r1);
}

/* A strip of columns of V and of the outputs. */
typedef struct strip {
    const float *const *rows;
    const float *tile; /* rows first … side by side, TILE_COLS floats each; NULL: rows */
    size_t first;
    size_t col, out; /* where it begins in a row, and in an output */
    size_t vectors;  /* VECTORS, or 1 with so many lanes */
    __mmask16 lanes;
} strip;

/* out += rows [r0, r1) for `queries` (1 to 4) and `vectors` (1 or VECTORS) of columns. ahead: asks for later rows. */
INLINE void add_rows(const nb_query *q, size_t queries, const strip *s, size_t r0, size_t r1, size_t vectors,
                     __mmask16 lanes, bool ahead)
{
    __m512 acc[QUERIES * VECTORS];
    UNROLL
    for (size_t i = 0; i < queries * vectors; i++)
        acc[i] = _mm512_maskz_loadu_ps(lanes, q[i / vectors].out + s->out + i % vectors * 16);
    for (size_t r = r0; r < r1; r++) {
        const float *row = s->tile ? s->tile + (r - s->first) * TILE_COLS : s->rows[r] + s->col;
        const float *later = s->rows[r + NB_AHEAD] + s->col;
        __m512 w[QUERIES];
        UNROLL
        for (size_t i = 0; i < queries; i++) w[i] = _mm512_set1_ps(q[i].scores[r]);
        UNROLL
        for (size_t j = 0; j < vectors; j++) {
            __m512 x = _mm512_maskz_loadu_ps(lanes, row + 16 * j);
            if (ahead) prefetch(later + 16 * j);
            UNROLL
            for (size_t i = 0; i < queries; i++)
                acc[i * vectors + j] = _mm512_fmadd_ps(w[i], x, acc[i * vectors + j]);
        }
    }
    UNROLL
    for (size_t i = 0; i < queries * vectors; i++)
        _mm512_mask_storeu_ps(q[i / vectors].out + s->out + i % vectors * 16, lanes, acc[i]);
}

INLINE void add_to(const nb_query *q, size_t queries, const strip *s, size_t r0, size_t r1, bool ahead)
{
    if (r0 >= r1) return;
    if (s->vectors == 1)
        add_rows(q, queries, s, r0, r1, 1, s->lanes, ahead);
    else if (ahead)
        add_rows(q, queries, s, r0, r1, VECTORS, 0xFFFF, true);
    else
        add_rows(q, queries, s, r0, r1, VECTORS, 0xFFFF, false);
}

/* Rows [t0, t1) for n (1 to 4) queries: those that all have for all, the others one by one, each query's in ascending order. */
static void add_shared(const nb_query *q, size_t n, const strip *s, size_t t0, size_t t1, bool ahead)
{
    size_t begin = t0, end = t1;
    for (size_t i = 0; i < n; i++) {
        begin = nb_larger(begin, q[i].begin);
        end = nb_smaller(end, q[i].end);
    }
    bool shared = begin < end;
    for (size_t i = 0; i < n; i++)
        add_to(q + i, 1, s, nb_larger(q[i].begin, t0), shared ? begin : nb_smaller(q[i].end, t1), ahead);
    if (!shared) return;
    switch (n) {
    case 1: add_to(q, 1, s, begin, end, ahead); break;
    case 2: add_to(q, 2, s, begin, end, ahead); break;
    case 3: add_to(q, 3, s, begin, end, ahead); break;
    default: add_to(q, QUERIES, s, begin, end, ahead); break;
    }
    for (size_t i = 0; i < n; i++) add_to(q + i, 1, s, end, nb_smaller(q[i].end, t1), ahead);
}

void nb_avx512_weigh(const nb_attend_args *a, size_t c0, size_t c1)
{
    alignas(64) float tile[TILE * TILE_COLS];
    size_t first = SIZE_MAX, last = 0;
    for (size_t i = 0; i < a->n_queries; i++) {
        first = nb_smaller(first, a->queries[i].begin);
        last = nb_larger(last, a->queries[i].end);
        memset(a->queries[i].out, 0, (c1 - c0) * sizeof *tile);
    }
    size_t rows = a->n_queries < MANY ? TILE / 2 : TILE;
    for (size_t t0 = first, t1; t0 < last; t0 = t1) {
        t1 = nb_smaller(t0 + rows, last);
        for (size_t c = c0, cols; c < c1; c += cols) {
            cols = c1 - c >= TILE_COLS ? TILE_COLS : nb_smaller(c1 - c, 16);
            bool whole = cols == TILE_COLS, copy = whole && a->n_queries > QUERIES;
            strip s = {a->v_rows, copy ? tile : NULL, t0, c, c - c0, whole ? VECTORS : 1, first_lanes(cols)};
            for (size_t r = t0; copy && r < t1; r++)
                for (size_t i = 0; i < TILE_COLS; i += 16) {
                    prefetch(a->v_rows[r + NB_AHEAD] + c + i);
                    _mm512_store_ps(tile + (r - t0) * TILE_COLS + i, _mm512_loadu_ps(a->v_rows[r] + c + i));
                }
            for (size_t i = 0; i < a->n_queries; i += QUERIES)
                add_shared(a->queries + i, nb_smaller(a->n_queries - i, QUERIES), &s, t0, t1,
                           !copy && i == 0);
        }
    }
}

/* e^x of what is not above 0, as nb_exp of avx2.h has it, but that n is rounded as part of a sum: above 2^23 floats are whole numbers. */
INLINE __m512 exp16(__m512 x)
{
    const __m512 whole = _mm512_set1_ps(0x1.8p23f);
    x = _mm512_max_ps(_mm512_set1_ps(-150.0f), x); /* this order of operands lets NaN through */
    __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(x, _mm512_set1_ps(0x1.715476p0f), whole), whole);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.62e400p-1f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.7f7d1cp-20f), r);
    __m512 p = _mm512_set1_ps(1.0f / 5040);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 720));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n); /* times 2^n, subnormal results included */
}

/* The largest of x, -inf of none; NaN when there is one. */
static float max_or_nan(const float *x, size_t n)
{
    __m512 m0 = _mm512_set1_ps(-INFINITY), m1 = m0; /* two, for one waits for itself */
    __mmask16 nan = 0;
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m512 a = _mm512_loadu_ps(x + i), b = _mm512_loadu_ps(x + i + 16);
        nan |= _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
        m0 = _mm512_max_ps(m0, a);
        m1 = _mm512_max_ps(m1, b);
    }
    for (; i < n; i += 16) {
        __m512 v = _mm512_mask_loadu_ps(m0, first_lanes(n - i), x + i);
        nan |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        m0 = _mm512_max_ps(m0, v);
    }
    return nan ? NAN : _mm512_reduce_max_ps(_mm512_max_ps(m0, m1));
}

float nb_avx512_exps(float *x, size_t n, float *max)
{
    *max = max_or_nan(x, n);
    if (*max == -INFINITY) {
        if (n) memset(x, 0, n * sizeof *x); /* or x may be NULL */
        return 0;
    }
    __m512 m = _mm512_set1_ps(*max), acc = _mm512_setzero_ps();
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512 e = exp16(_mm512_sub_ps(_mm512_loadu_ps(x + i), m));
        _mm512_storeu_ps(x + i, e);
        acc = _mm512_add_ps(acc, e);
    }
    if (i < n) {
        __mmask16 lanes = first_lanes(n - i);
        __m512 e = exp16(_mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, x + i), m));
        _mm512_mask_storeu_ps(x + i, lanes, e);
        acc = _mm512_mask_add_ps(acc, lanes, acc, e);
    }
    return _mm512_reduce_add_ps(acc);
}
