/* Attention of one query row and softmax. Every score is its own chain of FMAs, the same whether its row is taken alone or
 * with three others, and the output adds rows in ascending order. */
#include "kernels/cpu/avx2/avx2.h"

#include <math.h>
#include <string.h>

/* scores[0..count) = scale * q . k_rows[..], count at most 4 and constant where this is inlined. Two sums a row: enough chains with
 * four rows, few enough registers. */
static inline __attribute__((always_inline)) void
score_rows(const float *q, const float *const *k_rows, size_t count, size_t dk, float scale, float *scores)
{
    __m256 even[4], odd[4];
    for (size_t r = 0; r < count; r++) even[r] = odd[r] = _mm256_setzero_ps();
    size_t i = 0;
    for (; i + 16 <= dk; i += 16) {
        __m256 q0 = _mm256_loadu_ps(q + i), q1 = _mm256_loadu_ps(q + i + 8);
        for (size_t r = 0; r < count; r++) {
            even[r] = _mm256_fmadd_ps(q0, _mm256_loadu_ps(k_rows[r] + i), even[r]);
            odd[r] = _mm256_fmadd_ps(q1, _mm256_loadu_ps(k_rows[r] + i + 8), odd[r]);
        }
    }
    for (; i < dk; i += 8) {
        size_t n = dk - i < 8 ? dk - i : 8;
        __m256 q0 = nb_load_first(q + i, n);
        for (size_t r = 0; r < count; r++)
            even[r] = _mm256_fmadd_ps(q0, nb_load_first(k_rows[r] + i, n), even[r]);
    }
    for (size_t r = 0; r < count; r++) scores[r] = nb_lane_sum(_mm256_add_ps(even[r], odd[r])) * scale;
}

/* out[0..8 * vectors) = sum of p * v, `vectors` at most 8 and constant where this is inlined. */
static inline __attribute__((always_inline)) void
sum_rows(const float *p, const float *const *v_rows, size_t n_rows, size_t at, size_t vectors, float *out)
{
    __m256 acc[8];
    for (size_t j = 0; j < vectors; j++) acc[j] = _mm256_setzero_ps();
    for (size_t r = 0; r < n_rows; r++) {
        __m256 w = _mm256_broadcast_ss(p + r);
        for (size_t j = 0; j < vectors; j++)
            acc[j] = _mm256_fmadd_ps(w, _mm256_loadu_ps(v_rows[r] + at + 8 * j), acc[j]);
    }
    for (size_t j = 0; j < vectors; j++) _mm256_storeu_ps(out + at + 8 * j, acc[j]);
}

static void sum_tail(const float *p, const float *const *v_rows, size_t n_rows, size_t at, size_t lanes,
                     float *out)
{
    __m256 acc = _mm256_setzero_ps();
    for (size_t r = 0; r < n_rows; r++)
        acc = _mm256_fmadd_ps(_mm256_broadcast_ss(p + r), nb_load_first(v_rows[r] + at, lanes), acc);
    _mm256_maskstore_ps(out + at, nb_lane_mask(lanes), acc);
}

void nb_avx2_attend(const nb_attend_args *a)
{
    for (size_t h = 0; h < a->heads; h++) {
        const float *q = a->q + h * a->dk;
        float *out = a->out + h * a->dv;
        size_t r = 0, i = 0;
        for (; r + 4 <= a->n_rows; r += 4) score_rows(q, a->k_rows + r, 4, a->dk, a->scale, a->scores + r);
        for (; r < a->n_rows; r++) score_rows(q, a->k_rows + r, 1, a->dk, a->scale, a->scores + r);
        nb_avx2_softmax(a->scores, a->n_rows, a->sink ? a->sink + h : NULL);
        for (; i + 64 <= a->dv; i += 64) sum_rows(a->scores, a->v_rows, a->n_rows, i, 8, out);
        for (; i + 16 <= a->dv; i += 16) sum_rows(a->scores, a->v_rows, a->n_rows, i, 2, out);
        for (; i < a->dv; i += 8)
            sum_tail(a->scores, a->v_rows, a->n_rows, i, a->dv - i < 8 ? a->dv - i : 8, out);
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
