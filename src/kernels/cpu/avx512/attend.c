/*
 * Attention of several queries over rows that they share, and softmax. A score is one sum of 16 lanes, added up in one fixed order,
 * whether its row and its query are taken alone or with others; an output is one chain of FMAs over its rows, ascending.
 */
#include <immintrin.h>
#include <math.h>
#include <stdalign.h>
#include <string.h>

#include "kernels/cpu/avx512/avx512.h"
#include "kernels/cpu/avx512/decode.h"

enum {
    QUERIES = 4, /* taken together with … */
    ROWS = 4,    /* … so many rows: 16 sums, 4 queries and a row */
    VECTORS = 4, /* of columns of the output at a time */
    TILE =
        32, /* rows of V that are copied side by side, since rows of the cache lie a multiple of 4 KB apart */
    TILE_COLS = 16 * VECTORS,
    AHEAD =
        8 /* rows that are asked for in advance: each lies on another page, where prefetching by itself ends */
};

INLINE void prefetch(const float *row, size_t n)
{
    for (size_t i = 0; i < n; i += 16) _mm_prefetch((const char *)(row + i), _MM_HINT_T0);
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

/* Scores of `queries` (1 or 4) by `rows` (1 to 4). */
INLINE void score_block(const nb_attend_args *a, const nb_query *q, size_t queries, size_t r, size_t rows)
{
    __m512 sums[QUERIES * ROWS];
    UNROLL
    for (size_t i = 0; i < QUERIES * ROWS; i++) sums[i] = _mm512_setzero_ps();
    for (size_t d = 0; d < a->dk; d += 16) {
        __mmask16 lanes = first_lanes(a->dk - d);
        __m512 v[QUERIES];
        UNROLL
        for (size_t i = 0; i < queries; i++) v[i] = _mm512_maskz_loadu_ps(lanes, q[i].q + d);
        UNROLL
        for (size_t j = 0; j < rows; j++) {
            __m512 k = _mm512_maskz_loadu_ps(lanes, a->k_rows[r + j] + d);
            UNROLL
            for (size_t i = 0; i < queries; i++) sums[4 * j + i] = _mm512_fmadd_ps(v[i], k, sums[4 * j + i]);
        }
    }
    __m512 s = _mm512_mul_ps(add_lanes(sums), _mm512_set1_ps(a->scale));
    const __m128 out[QUERIES] = {_mm512_castps512_ps128(s), _mm512_extractf32x4_ps(s, 1),
                                 _mm512_extractf32x4_ps(s, 2), _mm512_extractf32x4_ps(s, 3)};
    UNROLL
    for (size_t i = 0; i < queries; i++)
        _mm_mask_storeu_ps(q[i].scores + r, (__mmask8)((1u << rows) - 1), out[i]);
}

void nb_avx512_scores(const nb_attend_args *a, size_t r0, size_t r1)
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
        for (; i < a->n_queries; i++)
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

/* out += rows [r0, r1) for `queries` (1 or 4) and `vectors` (1, of so many lanes, or 4) of columns from c on. */
INLINE void add_rows(const nb_query *q, size_t queries, const values *v, size_t r0, size_t r1, size_t c,
                     size_t vectors, __mmask16 lanes)
{
    __m512 acc[QUERIES * VECTORS];
    UNROLL
    for (size_t i = 0; i < queries * vectors; i++)
        acc[i] = _mm512_maskz_loadu_ps(lanes, q[i / vectors].out + c + i % vectors * 16);
    for (size_t r = r0; r < r1; r++) {
        const float *row = v->tile ? v->tile + (r - v->first) * TILE_COLS : v->rows[r] + c;
        if (!v->tile && r + AHEAD < r1) prefetch(v->rows[r + AHEAD] + c, 16 * vectors);
        __m512 w[QUERIES];
        UNROLL
        for (size_t i = 0; i < queries; i++) w[i] = _mm512_set1_ps(q[i].scores[r]);
        UNROLL
        for (size_t j = 0; j < vectors; j++) {
            __m512 x = _mm512_maskz_loadu_ps(lanes, row + 16 * j);
            UNROLL
            for (size_t i = 0; i < queries; i++)
                acc[i * vectors + j] = _mm512_fmadd_ps(w[i], x, acc[i * vectors + j]);
        }
    }
    UNROLL
    for (size_t i = 0; i < queries * vectors; i++)
        _mm512_mask_storeu_ps(q[i / vectors].out + c + i % vectors * 16, lanes, acc[i]);
}

static void add_one(const nb_query *q, const values *v, size_t r0, size_t r1, size_t c, size_t cols)
{
    if (r0 >= r1) return;
    if (cols == TILE_COLS)
        add_rows(q, 1, v, r0, r1, c, VECTORS, 0xFFFF);
    else
        add_rows(q, 1, v, r0, r1, c, 1, first_lanes(cols));
}

static void add_four(const nb_query *q, const values *v, size_t r0, size_t r1, size_t c, size_t cols)
{
    if (cols == TILE_COLS)
        add_rows(q, QUERIES, v, r0, r1, c, VECTORS, 0xFFFF);
    else
        add_rows(q, QUERIES, v, r0, r1, c, 1, first_lanes(cols));
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Rows [t0, t1) for four queries: those that all have for all, the others one by one, each query's in ascending order. */
static void add_shared(const nb_query *q, const values *v, size_t t0, size_t t1, size_t c, size_t cols)
{
    size_t begin = t0, end = t1;
    for (size_t i = 0; i < QUERIES; i++) {
        begin = larger(begin, q[i].begin);
        end = smaller(end, q[i].end);
    }
    bool shared = begin < end;
    for (size_t i = 0; i < QUERIES; i++)
        add_one(q + i, v, larger(q[i].begin, t0), shared ? begin : smaller(q[i].end, t1), c, cols);
    if (!shared) return;
    add_four(q, v, begin, end, c, cols);
    for (size_t i = 0; i < QUERIES; i++) add_one(q + i, v, end, smaller(q[i].end, t1), c, cols);
}

void nb_avx512_weigh(const nb_attend_args *a, size_t c0, size_t c1)
{
    alignas(64) float tile[TILE * TILE_COLS];
    size_t first = SIZE_MAX, last = 0;
    for (size_t i = 0; i < a->n_queries; i++) {
        first = smaller(first, a->queries[i].begin);
        last = larger(last, a->queries[i].end);
        memset(a->queries[i].out + c0, 0, (c1 - c0) * sizeof *tile);
    }
    for (size_t c = c0, cols; c < c1; c += cols) {
        cols = c1 - c >= TILE_COLS ? TILE_COLS : smaller(c1 - c, 16);
        bool copy = cols == TILE_COLS && a->n_queries > QUERIES;
        for (size_t t0 = first, t1; t0 < last; t0 = t1) {
            t1 = copy ? smaller(t0 + TILE, last) : last;
            values v = {a->v_rows, copy ? tile : NULL, t0};
            for (size_t r = t0; copy && r < t1; r++) {
                if (r + AHEAD < last) prefetch(a->v_rows[r + AHEAD] + c, TILE_COLS);
                for (size_t i = 0; i < VECTORS; i++)
                    _mm512_store_ps(tile + (r - t0) * TILE_COLS + 16 * i,
                                    _mm512_loadu_ps(a->v_rows[r] + c + 16 * i));
            }
            size_t i = 0;
            for (; i + QUERIES <= a->n_queries; i += QUERIES) add_shared(a->queries + i, &v, t0, t1, c, cols);
            for (; i < a->n_queries; i++)
                add_one(a->queries + i, &v, larger(a->queries[i].begin, t0), smaller(a->queries[i].end, t1),
                        c, cols);
        }
    }
}

/* e^x as nb_exp of avx2.h has it, with twice the lanes. */
INLINE __m512 exp16(__m512 x)
{
    x = _mm512_min_ps(_mm512_set1_ps(100.0f), x); /* this order of operands lets NaN through */
    x = _mm512_max_ps(_mm512_set1_ps(-150.0f), x);
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(0x1.715476p0f)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
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

/* The largest of x and start; NaN when there is one. */
static float max_or_nan(const float *x, size_t n, float start)
{
    __m512 m = _mm512_set1_ps(start);
    __mmask16 nan = _mm512_cmp_ps_mask(m, m, _CMP_UNORD_Q);
    for (size_t i = 0; i < n; i += 16) {
        __m512 v = _mm512_mask_loadu_ps(m, first_lanes(n - i), x + i);
        nan |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        m = _mm512_max_ps(m, v);
    }
    return nan ? NAN : _mm512_reduce_max_ps(m);
}

void nb_avx512_softmax(float *x, size_t n, const float *sink)
{
    if (n == 0) return; /* x may be NULL */
    float max = max_or_nan(x, n, sink ? *sink : -INFINITY);
    if (max == -INFINITY) {
        memset(x, 0, n * sizeof *x);
        return;
    }
    __m512 m = _mm512_set1_ps(max), acc = _mm512_setzero_ps();
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 lanes = first_lanes(n - i);
        __m512 e = exp16(_mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, x + i), m));
        _mm512_mask_storeu_ps(x + i, lanes, e);
        acc = _mm512_mask_add_ps(acc, lanes, acc, e);
    }
    float sum = _mm512_reduce_add_ps(acc);
    if (sink) sum += _mm512_cvtss_f32(exp16(_mm512_set1_ps(*sink - max)));
    __m512 total = _mm512_set1_ps(sum);
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 lanes = first_lanes(n - i);
        _mm512_mask_storeu_ps(x + i, lanes, _mm512_div_ps(_mm512_maskz_loadu_ps(lanes, x + i), total));
    }
}
