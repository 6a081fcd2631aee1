/*
 * Attention of several queries over rows that they share, and softmax. A score is one sum of eight lanes, added up in one fixed order,
 * whether its row and its query are taken alone or with others; an output is one chain of FMAs over its rows, ascending.
 */
#include <math.h>
#include <stdalign.h>
#include <string.h>

#include "kernels/cpu/avx2/avx2.h"
#include "kernels/cpu/avx2/decode.h"

enum {
    QUERIES = 2, /* taken together … */
    ROWS = 4,    /* … with so many rows: 8 sums, 2 queries and a row fill the registers */
    AHEAD =
        8, /* rows that are asked for in advance: each lies on another page, where prefetching by itself ends */
    VECTORS = 4, /* of columns of the output at a time */
    TILE =
        32 /* rows of V that are copied side by side, since rows of the cache lie a multiple of 4 KB apart */
};

NB_INLINE void prefetch(const float *row, size_t n)
{
    for (size_t i = 0; i < n; i += 16) _mm_prefetch((const char *)(row + i), _MM_HINT_T0);
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

/* Scores of `queries` (1 or 2) by `rows` (1 to 4). */
NB_INLINE void score_block(const nb_attend_args *a, const nb_query *q, size_t queries, size_t r, size_t rows)
{
    __m256 sums[QUERIES * ROWS];
    NB_UNROLL
    for (size_t i = 0; i < QUERIES * ROWS; i++) sums[i] = _mm256_setzero_ps();
    for (size_t d = 0; d < a->dk; d += 8) {
        size_t n = a->dk - d;
        __m256 v[QUERIES];
        NB_UNROLL
        for (size_t i = 0; i < queries; i++)
            v[i] = n >= 8 ? _mm256_loadu_ps(q[i].q + d) : nb_load_first(q[i].q + d, n);
        NB_UNROLL
        for (size_t j = 0; j < rows; j++) {
            const float *row = a->k_rows[r + j] + d;
            __m256 k = n >= 8 ? _mm256_loadu_ps(row) : nb_load_first(row, n);
            __asm__("" : "+x"(k)); /* or it would be loaded once for each query */
            NB_UNROLL
            for (size_t i = 0; i < queries; i++) sums[2 * j + i] = _mm256_fmadd_ps(v[i], k, sums[2 * j + i]);
        }
    }
    __m128 out[QUERIES];
    add_lanes(sums, out);
    NB_UNROLL
    for (size_t i = 0; i < queries; i++) {
        __m128 s = _mm_mul_ps(out[i], _mm_set1_ps(a->scale));
        if (rows == ROWS)
            _mm_storeu_ps(q[i].scores + r, s);
        else
            _mm_maskstore_ps(q[i].scores + r, _mm256_castsi256_si128(nb_lane_mask(rows)), s);
    }
}

void nb_avx2_scores(const nb_attend_args *a, size_t r0, size_t r1)
{
    for (size_t r = r0; r < r1; r += ROWS) {
        size_t i = 0;
        for (size_t j = r + AHEAD; j < r + AHEAD + ROWS && j < r1; j++) prefetch(a->k_rows[j], a->dk);
        for (; i + QUERIES <= a->n_queries; i += QUERIES) switch (r1 - r) {
            case 1: score_block(a, a->queries + i, QUERIES, r, 1); break;
            case 2: score_block(a, a->queries + i, QUERIES, r, 2); break;
            case 3: score_block(a, a->queries + i, QUERIES, r, 3); break;
            default: score_block(a, a->queries + i, QUERIES, r, ROWS); break;
            }
        if (i == a->n_queries) continue;
        if (r1 - r >= ROWS)
            score_block(a, a->queries + i, 1, r, ROWS);
        else
            for (size_t j = r; j < r1; j++) score_block(a, a->queries + i, 1, j, 1);
    }
}

/* Where the columns of V from c on are. */
typedef struct values {
    const float *const *rows;
    const float *tile; /* rows first … side by side, TILE_COLS floats each; NULL: rows */
    size_t first;
} values;
enum { TILE_COLS = 8 * VECTORS };

/* out += rows [r0, r1) for `queries` (1 or 2) and `vectors` (1, of so many lanes, or 4 whole ones) of columns from c on. */
NB_INLINE void add_rows(const nb_query *q, size_t queries, const values *v, size_t r0, size_t r1, size_t c,
                        size_t vectors, size_t lanes)
{
    __m256 acc[QUERIES * VECTORS];
    NB_UNROLL
    for (size_t i = 0; i < queries * vectors; i++)
        acc[i] = nb_load_lanes(q[i / vectors].out + c + i % vectors * 8, lanes);
    for (size_t r = r0; r < r1; r++) {
        const float *row = v->tile ? v->tile + (r - v->first) * TILE_COLS : v->rows[r] + c;
        if (!v->tile && r + AHEAD < r1) prefetch(v->rows[r + AHEAD] + c, 8 * vectors);
        __m256 w[QUERIES];
        NB_UNROLL
        for (size_t i = 0; i < queries; i++) w[i] = _mm256_broadcast_ss(q[i].scores + r);
        NB_UNROLL
        for (size_t j = 0; j < vectors; j++) {
            __m256 x = nb_load_lanes(row + 8 * j, lanes);
            NB_UNROLL
            for (size_t i = 0; i < queries; i++)
                acc[i * vectors + j] = _mm256_fmadd_ps(w[i], x, acc[i * vectors + j]);
        }
    }
    NB_UNROLL
    for (size_t i = 0; i < queries * vectors; i++)
        nb_store_lanes(q[i / vectors].out + c + i % vectors * 8, acc[i], lanes);
}

static void add_one(const nb_query *q, const values *v, size_t r0, size_t r1, size_t c, size_t cols)
{
    if (r0 >= r1) return;
    if (cols == TILE_COLS)
        add_rows(q, 1, v, r0, r1, c, VECTORS, 8);
    else
        add_rows(q, 1, v, r0, r1, c, 1, cols);
}

static void add_two(const nb_query *q, const values *v, size_t r0, size_t r1, size_t c, size_t cols)
{
    if (cols == TILE_COLS)
        add_rows(q, 2, v, r0, r1, c, VECTORS, 8);
    else
        add_rows(q, 2, v, r0, r1, c, 1, cols);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Rows [t0, t1) for all queries: those that two queries share for both, the others for one. */
static void add_tile(const nb_attend_args *a, const values *v, size_t t0, size_t t1, size_t c, size_t cols)
{
    size_t i = 0;
    for (; i + QUERIES <= a->n_queries; i += QUERIES) {
        const nb_query *q = a->queries + i;
        size_t b0 = larger(q[0].begin, t0), e0 = smaller(q[0].end, t1);
        size_t b1 = larger(q[1].begin, t0), e1 = smaller(q[1].end, t1);
        size_t begin = larger(b0, b1), end = smaller(e0, e1);
        if (begin >= end) {
            add_one(q, v, b0, e0, c, cols);
            add_one(q + 1, v, b1, e1, c, cols);
            continue;
        }
        add_one(q, v, b0, begin, c, cols);
        add_one(q + 1, v, b1, begin, c, cols);
        add_two(q, v, begin, end, c, cols);
        add_one(q, v, end, e0, c, cols);
        add_one(q + 1, v, end, e1, c, cols);
    }
    if (i < a->n_queries)
        add_one(a->queries + i, v, larger(a->queries[i].begin, t0), smaller(a->queries[i].end, t1), c, cols);
}

void nb_avx2_weigh(const nb_attend_args *a, size_t c0, size_t c1)
{
    alignas(32) float tile[TILE * TILE_COLS];
    size_t first = SIZE_MAX, last = 0;
    for (size_t i = 0; i < a->n_queries; i++) {
        first = smaller(first, a->queries[i].begin);
        last = larger(last, a->queries[i].end);
        memset(a->queries[i].out + c0, 0, (c1 - c0) * sizeof *tile);
    }
    for (size_t c = c0, cols; c < c1; c += cols) {
        cols = c1 - c >= TILE_COLS ? TILE_COLS : smaller(c1 - c, 8);
        bool copy = cols == TILE_COLS && a->n_queries > 4;
        for (size_t t0 = first, t1; t0 < last; t0 = t1) {
            t1 = copy ? smaller(t0 + TILE, last) : last;
            values v = {a->v_rows, copy ? tile : NULL, t0};
            for (size_t r = t0; copy && r < t1; r++) {
                if (r + AHEAD < last) prefetch(a->v_rows[r + AHEAD] + c, TILE_COLS);
                for (size_t i = 0; i < VECTORS; i++)
                    _mm256_store_ps(tile + (r - t0) * TILE_COLS + 8 * i,
                                    _mm256_loadu_ps(a->v_rows[r] + c + 8 * i));
            }
            add_tile(a, &v, t0, t1, c, cols);
        }
    }
}

/* The largest of x and start; NaN when there is one. */
static float max_or_nan(const float *x, size_t n, float start)
{
    __m256 m = _mm256_set1_ps(start), nan = _mm256_cmp_ps(m, m, _CMP_UNORD_Q);
    for (size_t i = 0; i < n; i += 8) {
        __m256i mask = nb_lane_mask(n - i < 8 ? n - i : 8);
        __m256 v = _mm256_blendv_ps(m, _mm256_maskload_ps(x + i, mask), _mm256_castsi256_ps(mask));
        nan = _mm256_or_ps(nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        m = _mm256_max_ps(m, v);
    }
    if (_mm256_movemask_ps(nan)) return NAN;
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}

void nb_avx2_softmax(float *x, size_t n, const float *sink)
{
    if (n == 0) return; /* x may be NULL */
    float max = max_or_nan(x, n, sink ? *sink : -INFINITY);
    if (max == -INFINITY) {
        memset(x, 0, n * sizeof *x);
        return;
    }
    __m256 m = _mm256_set1_ps(max), acc = _mm256_setzero_ps();
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 e = nb_exp(_mm256_sub_ps(_mm256_loadu_ps(x + i), m));
        _mm256_storeu_ps(x + i, e);
        acc = _mm256_add_ps(acc, e);
    }
    if (i < n) {
        __m256i mask = nb_lane_mask(n - i);
        __m256 e = nb_exp(_mm256_sub_ps(_mm256_maskload_ps(x + i, mask), m));
        _mm256_maskstore_ps(x + i, mask, e);
        acc = _mm256_add_ps(acc, _mm256_and_ps(e, _mm256_castsi256_ps(mask)));
    }
    float sum = nb_lane_sum(acc);
    if (sink) sum += _mm256_cvtss_f32(nb_exp(_mm256_set1_ps(*sink - max)));
    __m256 total = _mm256_set1_ps(sum);
    for (i = 0; i + 8 <= n; i += 8) _mm256_storeu_ps(x + i, _mm256_div_ps(_mm256_loadu_ps(x + i), total));
    for (; i < n; i++) x[i] /= sum;
}
