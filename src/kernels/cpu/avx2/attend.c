/*
 * Attention of several queries over rows that they share, and softmax. A score is one sum of eight lanes, added up in one fixed order,
 * whether its row and its query are taken alone or with others; an output is one chain of FMAs over its rows, ascending.
 */
#include <math.h>
#include <stdalign.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/avx2/avx2.h"
#include "kernels/cpu/avx2/decode.h"

enum {
    QUERIES = 2, /* taken together … */
    ROWS = 4,    /* … with so many rows: 8 sums, 2 queries and a row fill the registers */
    VECTORS = 4, /* of columns of the output at a time */
    TILE_COLS = 8 * VECTORS,
    MANY = 32,         /* queries from which on … */
    MOST_TURNED = 256, /* … rows of so many values at most, … */
    STRIP = 24,        /* … so many at a time, are turned, … */
    TOGETHER = 4,      /* … for so many queries: 12 sums, 3 vectors of K and a query fill the registers */
    TILE = 64          /* rows of V whose columns are taken strip by strip */
};

/* Into the second-level cache: there are far fewer lines on their way to the first, and while those are, loads wait. */
NB_INLINE void prefetch(const float *line)
{
    _mm_prefetch((const char *)line, _MM_HINT_T1);
}

/* Lane sums: out[i][r] of sums[2 r + i], by halves: (0+4, 1+5, 2+6, 3+7), then halves again, as nb_lane_sum. */
NB_INLINE void add_lanes(const __m256 sums[QUERIES * ROWS], __m128 out[QUERIES])
{
    __m256 h[4];
    NB_UNROLL
    for (size_t r = 0; r < ROWS; r++)
        h[r] = _mm256_add_ps(_mm256_permute2f128_ps(sums[2 * r], sums[2 * r + 1], 0x20),
                             _mm256_permute2f128_ps(sums[2 * r], sums[2 * r + 1], 0x31));
    __m256 a = _mm256_add_ps(_mm256_shuffle_ps(h[0], h[1], 0x44), _mm256_shuffle_ps(h[0], h[1], 0xEE));
    __m256 b = _mm256_add_ps(_mm256_shuffle_ps(h[2], h[3], 0x44), _mm256_shuffle_ps(h[2], h[3], 0xEE));
    __m256 s = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xDD));
    out[0] = _mm256_castps256_ps128(s);
    out[1] = _mm256_extractf128_ps(s, 1);
}

/* Sums of 8 columns from d on, of which `lanes` exist. */
NB_INLINE void add_columns(const nb_query *q, size_t queries, const float *const *k,
                           const float *const *later, size_t d, size_t lanes, bool ahead, __m256 *sums)
{
    __m256 v[QUERIES];
    NB_UNROLL
    for (size_t i = 0; i < queries; i++) v[i] = nb_load_lanes(q[i].q + d, lanes);
    NB_UNROLL
    for (size_t j = 0; j < ROWS; j++) {
        __m256 row = nb_load_lanes(k[j] + d, lanes);
        __asm__("" : "+x"(row)); /* or it would be loaded once for each query */
        if (ahead && d % 16 == 0) prefetch(later[j] + d);
        NB_UNROLL
        for (size_t i = 0; i < queries; i++) sums[2 * j + i] = _mm256_fmadd_ps(v[i], row, sums[2 * j + i]);
    }
}

/* Scores of `queries` (1 or 2) by ROWS rows from r on, of which those from `end` on are the last one again. ahead: asks for later
 * rows. */
NB_INLINE void score_block(const nb_attend_args *a, const nb_query *q, size_t queries, size_t r, size_t end,
                           bool ahead)
{
    const float *k[ROWS], *later[ROWS];
    __m256 sums[QUERIES * ROWS];
    NB_UNROLL
    for (size_t j = 0; j < ROWS; j++) {
        k[j] = a->k_rows[nb_smaller(r + j, end - 1)];
        later[j] = a->k_rows[nb_smaller(r + j, end - 1) + NB_AHEAD];
    }
    NB_UNROLL
    for (size_t i = 0; i < QUERIES * ROWS; i++) sums[i] = _mm256_setzero_ps();
    size_t d = 0;
    for (; d + 16 <= a->dk; d += 16) {
        add_columns(q, queries, k, later, d, 8, ahead, sums);
        add_columns(q, queries, k, later, d + 8, 8, false, sums);
    }
    for (; d < a->dk; d += 8)
        add_columns(q, queries, k, later, d, a->dk - d < 8 ? a->dk - d : 8, ahead, sums);
    __m128 out[QUERIES];
    add_lanes(sums, out);
    NB_UNROLL
    for (size_t i = 0; i < queries; i++) {
        __m128 s = _mm_mul_ps(out[i], _mm_set1_ps(a->scale));
        if (end - r >= ROWS)
            _mm_storeu_ps(q[i].scores + r, s);
        else
            _mm_maskstore_ps(q[i].scores + r, _mm256_castsi256_si128(nb_lane_mask(end - r)), s);
    }
}

/* Rows [r0, r1) for all queries from number `first` on. */
static void score_rows(const nb_attend_args *a, size_t first, size_t r0, size_t r1)
{
    for (size_t r = r0; r < r1; r += ROWS) {
        size_t i = first;
        if (a->n_queries - first >= QUERIES) {
            score_block(a, a->queries + i, QUERIES, r, r1, true);
            for (i += QUERIES; i + QUERIES <= a->n_queries; i += QUERIES)
                score_block(a, a->queries + i, QUERIES, r, r1, false);
        }
        if (i < a->n_queries) score_block(a, a->queries + i, 1, r, r1, true);
    }
}

/*
 * Many queries: rows of K are turned, so that the lanes of a register are eight scores and no lanes need adding up. What was lane l of a
 * score's sum is a register of its own, and these registers are added in the order of add_lanes.
 */

/* out[i] = column d + i of 8 rows. */
NB_INLINE void turn(const float *const rows[8], size_t d, __m256 out[8])
{
    __m256 v[8]; /* v[4 i + r]: in half j, columns 4 i … of row 4 j + r */
    NB_UNROLL
    for (size_t r = 0; r < 4; r++) {
        NB_UNROLL
        for (size_t i = 0; i < 2; i++)
            v[4 * i + r] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(rows[r] + d + 4 * i)),
                                                _mm_loadu_ps(rows[4 + r] + d + 4 * i), 1);
    }
    NB_UNROLL
    for (size_t i = 0; i < 8; i += 4) {
        __m256 a = _mm256_unpacklo_ps(v[i], v[i + 1]), b = _mm256_unpacklo_ps(v[i + 2], v[i + 3]);
        __m256 c = _mm256_unpackhi_ps(v[i], v[i + 1]), e = _mm256_unpackhi_ps(v[i + 2], v[i + 3]);
        out[i] = _mm256_shuffle_ps(a, b, 0x44);
        out[i + 1] = _mm256_shuffle_ps(a, b, 0xEE);
        out[i + 2] = _mm256_shuffle_ps(c, e, 0x44);
        out[i + 3] = _mm256_shuffle_ps(c, e, 0xEE);
    }
}

/* STRIP rows from r on, those from `end` on being the last one again. keys: for each l < 8 the columns l, l + 8, l + 16, … one after
 * another. Asks for later rows. */
static void turn_keys(const nb_attend_args *a, size_t r, size_t end, float *keys)
{
    size_t steps = a->dk / 8;
    for (size_t v = 0; v < STRIP; v += 8) {
        const float *rows[8];
        for (size_t i = 0; i < 8; i++) {
            size_t row = nb_smaller(r + v + i, end - 1);
            rows[i] = a->k_rows[row];
            for (size_t d = 0; d < a->dk; d += 16) prefetch(a->k_rows[row + NB_AHEAD] + d);
        }
        for (size_t s = 0; s < steps; s++) {
            __m256 columns[8];
            turn(rows, 8 * s, columns);
            NB_UNROLL
            for (size_t l = 0; l < 8; l++) _mm256_store_ps(keys + (l * steps + s) * STRIP + v, columns[l]);
        }
    }
}

enum { SUMS = TOGETHER * STRIP / 8 };

NB_INLINE void add_sums(__m256 sums[SUMS], const __m256 more[SUMS])
{
    NB_UNROLL
    for (size_t i = 0; i < SUMS; i++) sums[i] = _mm256_add_ps(sums[i], more[i]);
}

/* What was lane l of the sums: sums[i * STRIP / 8 + v] is query i's, rows 8 v …. */
NB_INLINE void one_lane(const nb_query *q, const float *keys, size_t steps, size_t l, __m256 sums[SUMS])
{
    NB_UNROLL
    for (size_t i = 0; i < SUMS; i++) sums[i] = _mm256_setzero_ps();
    keys += l * steps * STRIP;
    for (size_t s = 0; s < steps; s++, keys += STRIP) {
        __m256 k[STRIP / 8];
        NB_UNROLL
        for (size_t v = 0; v < STRIP / 8; v++) k[v] = _mm256_load_ps(keys + 8 * v);
        NB_UNROLL
        for (size_t i = 0; i < TOGETHER; i++) {
            __m256 x = _mm256_broadcast_ss(q[i].q + 8 * s + l);
            NB_UNROLL
            for (size_t v = 0; v < STRIP / 8; v++)
                sums[i * STRIP / 8 + v] = _mm256_fmadd_ps(x, k[v], sums[i * STRIP / 8 + v]);
        }
    }
}

/* That and lane l + 4. */
NB_INLINE void two_lanes(const nb_query *q, const float *keys, size_t steps, size_t l, __m256 out[SUMS])
{
    __m256 more[SUMS];
    one_lane(q, keys, steps, l, out);
    one_lane(q, keys, steps, l + 4, more);
    add_sums(out, more);
}

/* Those and lanes l + 2, l + 6. */
NB_INLINE void four_lanes(const nb_query *q, const float *keys, size_t steps, size_t l, __m256 out[SUMS])
{
    __m256 more[SUMS];
    two_lanes(q, keys, steps, l, out);
    two_lanes(q, keys, steps, l + 2, more);
    add_sums(out, more);
}

/* Scores of TOGETHER queries by STRIP rows from r on, of which those from `end` on do not exist. Not inlined: the queries' addresses would
 * not stay in registers. */
static __attribute__((noinline)) void score_strip(const nb_attend_args *a, const nb_query *q, size_t r,
                                                  size_t end, const float *keys)
{
    __m256 sums[SUMS], more[SUMS];
    four_lanes(q, keys, a->dk / 8, 0, sums);
    four_lanes(q, keys, a->dk / 8, 1, more);
    NB_UNROLL
    for (size_t i = 0; i < SUMS; i++) {
        size_t at = r + i % (STRIP / 8) * 8;
        __m256 s = _mm256_mul_ps(_mm256_add_ps(sums[i], more[i]), _mm256_set1_ps(a->scale));
        if (at < end) nb_store_lanes(q[i / (STRIP / 8)].scores + at, s, nb_smaller(end - at, 8));
    }
}

void nb_avx2_scores(const nb_attend_args *a, size_t r0, size_t r1)
{
    alignas(32) float keys[MOST_TURNED * STRIP];
    size_t r = r0, many = a->n_queries / TOGETHER * TOGETHER;
    bool turned = many >= MANY && a->dk % 8 == 0 && a->dk <= MOST_TURNED;
    for (; turned && r + STRIP / 2 < r1; r += STRIP) {
        turn_keys(a, r, r1, keys);
        for (size_t i = 0; i < many; i += TOGETHER) score_strip(a, a->queries + i, r, r1, keys);
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
    size_t lanes;
} strip;

/* out += rows [r0, r1) for `queries` (1 or 2) and `vectors` (1 or VECTORS) of columns. ahead: asks for later rows. */
NB_INLINE void add_rows(const nb_query *q, size_t queries, const strip *s, size_t r0, size_t r1,
                        size_t vectors, size_t lanes, bool ahead)
{
    __m256 acc[QUERIES * VECTORS];
    NB_UNROLL
    for (size_t i = 0; i < queries * vectors; i++)
        acc[i] = nb_load_lanes(q[i / vectors].out + s->out + i % vectors * 8, lanes);
    for (size_t r = r0; r < r1; r++) {
        const float *row = s->tile ? s->tile + (r - s->first) * TILE_COLS : s->rows[r] + s->col;
        const float *later = s->rows[r + NB_AHEAD] + s->col;
        __m256 w[QUERIES];
        NB_UNROLL
        for (size_t i = 0; i < queries; i++) w[i] = _mm256_broadcast_ss(q[i].scores + r);
        NB_UNROLL
        for (size_t j = 0; j < vectors; j++) {
            __m256 x = nb_load_lanes(row + 8 * j, lanes);
            __asm__("" : "+x"(x)); /* or it would be loaded once for each query */
            if (ahead && j % 2 == 0) prefetch(later + 8 * j);
            NB_UNROLL
            for (size_t i = 0; i < queries; i++)
                acc[i * vectors + j] = _mm256_fmadd_ps(w[i], x, acc[i * vectors + j]);
        }
    }
    NB_UNROLL
    for (size_t i = 0; i < queries * vectors; i++)
        nb_store_lanes(q[i / vectors].out + s->out + i % vectors * 8, acc[i], lanes);
}

static void add_to(const nb_query *q, size_t queries, const strip *s, size_t r0, size_t r1, bool ahead)
{
    if (r0 >= r1) return;
    if (s->vectors == 1) {
        queries == 1 ? add_rows(q, 1, s, r0, r1, 1, s->lanes, true)
                     : add_rows(q, 2, s, r0, r1, 1, s->lanes, true);
    } else if (queries == 1) {
        ahead ? add_rows(q, 1, s, r0, r1, VECTORS, 8, true) : add_rows(q, 1, s, r0, r1, VECTORS, 8, false);
    } else {
        ahead ? add_rows(q, 2, s, r0, r1, VECTORS, 8, true) : add_rows(q, 2, s, r0, r1, VECTORS, 8, false);
    }
}

/* Rows [t0, t1) for n (1 or 2) queries: those that both have for both, the others one by one, each query's in ascending order. */
static void add_shared(const nb_query *q, size_t n, const strip *s, size_t t0, size_t t1, bool ahead)
{
    size_t begin = nb_larger(q[0].begin, q[n - 1].begin), end = nb_smaller(q[0].end, q[n - 1].end);
    begin = nb_larger(begin, t0);
    end = nb_smaller(end, t1);
    bool shared = begin < end;
    for (size_t i = 0; i < n; i++)
        add_to(q + i, 1, s, nb_larger(q[i].begin, t0), shared ? begin : nb_smaller(q[i].end, t1), ahead);
    if (!shared) return;
    add_to(q, n, s, begin, end, ahead);
    for (size_t i = 0; i < n; i++) add_to(q + i, 1, s, end, nb_smaller(q[i].end, t1), ahead);
}

void nb_avx2_weigh(const nb_attend_args *a, size_t c0, size_t c1)
{
    alignas(32) float tile[TILE * TILE_COLS];
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
            cols = c1 - c >= TILE_COLS ? TILE_COLS : nb_smaller(c1 - c, 8);
            bool whole = cols == TILE_COLS, copy = whole && a->n_queries > 4;
            strip s = {a->v_rows, copy ? tile : NULL, t0, c, c - c0, whole ? VECTORS : 1, cols};
            for (size_t r = t0; copy && r < t1; r++)
                for (size_t i = 0; i < TILE_COLS; i += 16) {
                    prefetch(a->v_rows[r + NB_AHEAD] + c + i);
                    float *to = tile + (r - t0) * TILE_COLS + i;
                    _mm256_store_ps(to, _mm256_loadu_ps(a->v_rows[r] + c + i));
                    _mm256_store_ps(to + 8, _mm256_loadu_ps(a->v_rows[r] + c + i + 8));
                }
            for (size_t i = 0; i < a->n_queries; i += QUERIES)
                add_shared(a->queries + i, nb_smaller(a->n_queries - i, QUERIES), &s, t0, t1,
                           !copy && i == 0);
        }
    }
}

/* The largest of x, -inf of none; NaN when there is one. */
static float max_or_nan(const float *x, size_t n)
{
    __m256 m0 = _mm256_set1_ps(-INFINITY), m1 = m0; /* two, for one waits for itself */
    __m256 nan = _mm256_setzero_ps();
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + 8);
        nan = _mm256_or_ps(nan, _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
        m0 = _mm256_max_ps(m0, a);
        m1 = _mm256_max_ps(m1, b);
    }
    for (; i < n; i += 8) {
        __m256i mask = nb_lane_mask(nb_smaller(n - i, 8));
        __m256 v = _mm256_blendv_ps(m0, _mm256_maskload_ps(x + i, mask), _mm256_castsi256_ps(mask));
        nan = _mm256_or_ps(nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        m0 = _mm256_max_ps(m0, v);
    }
    if (_mm256_movemask_ps(nan)) return NAN;
    m0 = _mm256_max_ps(m0, m1);
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(m0), _mm256_extractf128_ps(m0, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}

/* e^x of what is not above 0, as nb_exp has it, but that what is below e^-87, a subnormal number beside a largest weight of 1, is 0: so
 * 2^n is one factor. n is rounded as part of a sum: above 2^23 floats are whole numbers, and the last bits of this one are n + 127. */
NB_INLINE __m256 exp_below(__m256 x)
{
    const __m256 whole = _mm256_set1_ps(0x1.8p23f + 127);
    __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(0x1.715476p0f), whole), n = _mm256_sub_ps(t, whole);
    __m256 power = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23));
    __m256 none = _mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_LT_OQ); /* not NaN */
    return _mm256_andnot_ps(none, _mm256_mul_ps(nb_exp_rest(x, n), power));
}

float nb_avx2_exps(float *x, size_t n, float *max)
{
    *max = max_or_nan(x, n);
    if (*max == -INFINITY) {
        if (n) memset(x, 0, n * sizeof *x); /* or x may be NULL */
        return 0;
    }
    __m256 m = _mm256_set1_ps(*max), acc = _mm256_setzero_ps();
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 e = exp_below(_mm256_sub_ps(_mm256_loadu_ps(x + i), m));
        _mm256_storeu_ps(x + i, e);
        acc = _mm256_add_ps(acc, e);
    }
    if (i < n) {
        __m256i mask = nb_lane_mask(n - i);
        __m256 e = exp_below(_mm256_sub_ps(_mm256_maskload_ps(x + i, mask), m));
        _mm256_maskstore_ps(x + i, mask, e);
        acc = _mm256_add_ps(acc, _mm256_and_ps(e, _mm256_castsi256_ps(mask)));
    }
    return nb_lane_sum(acc);
}
