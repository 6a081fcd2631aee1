/* The AVX2 table, and the operators that go along one row: norm, rotation, gated activation, dot product, scaled sum. */
#include "kernels/cpu/avx2/avx2.h"

#include <math.h>

float nb_avx2_dot(const float *a, const float *b, size_t n)
{
    __m256 acc[4];
    for (size_t j = 0; j < 4; j++) acc[j] = _mm256_setzero_ps();
    size_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (size_t j = 0; j < 4; j++)
            acc[j] = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 8 * j), _mm256_loadu_ps(b + i + 8 * j), acc[j]);
    for (; i + 8 <= n; i += 8)
        acc[0] = _mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), acc[0]);
    if (i < n) acc[0] = _mm256_fmadd_ps(nb_load_first(a + i, n - i), nb_load_first(b + i, n - i), acc[0]);
    return nb_lane_sum(_mm256_add_ps(_mm256_add_ps(acc[0], acc[1]), _mm256_add_ps(acc[2], acc[3])));
}

void nb_avx2_axpy(float a, const float *x, size_t n, float *y)
{
    __m256 va = _mm256_set1_ps(a);
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_fmadd_ps(va, _mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
    if (i < n) {
        __m256i mask = nb_lane_mask(n - i);
        _mm256_maskstore_ps(
            y + i, mask,
            _mm256_fmadd_ps(va, _mm256_maskload_ps(x + i, mask), _mm256_maskload_ps(y + i, mask)));
    }
}

void nb_avx2_rmsnorm(const float *x, const float *w, float eps, size_t n, float *y)
{
    float inv = 1.0f / sqrtf(nb_avx2_dot(x, x, n) / (float)n + eps);
    __m256 vi = _mm256_set1_ps(inv);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), vi);
        _mm256_storeu_ps(y + i, w ? _mm256_mul_ps(v, _mm256_loadu_ps(w + i)) : v);
    }
    for (; i < n; i++) y[i] = w ? x[i] * inv * w[i] : x[i] * inv;
}

/* Four interleaved pairs: (re c - im s, im c + re s), the lanes of c and s doubled. */
static __m256 rotate(__m256 x, __m256 c, __m256 s)
{
    return _mm256_fmaddsub_ps(x, c, _mm256_mul_ps(_mm256_permute_ps(x, 0xB1), s));
}

static __m256 doubled(const float *p)
{
    const __m256i each_twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), each_twice);
}

void nb_avx2_rope(float *x, const float *cos, const float *sin, size_t pairs, bool interleaved, float sign)
{
    __m256 vs = _mm256_set1_ps(sign);
    size_t i = 0;
    if (interleaved) {
        for (; i + 4 <= pairs; i += 4)
            _mm256_storeu_ps(x + 2 * i, rotate(_mm256_loadu_ps(x + 2 * i), doubled(cos + i),
                                               _mm256_mul_ps(doubled(sin + i), vs)));
    } else {
        for (; i + 8 <= pairs; i += 8) {
            __m256 re = _mm256_loadu_ps(x + i), im = _mm256_loadu_ps(x + pairs + i),
                   c = _mm256_loadu_ps(cos + i);
            __m256 s = _mm256_mul_ps(_mm256_loadu_ps(sin + i), vs);
            _mm256_storeu_ps(x + i, _mm256_fmsub_ps(re, c, _mm256_mul_ps(im, s)));
            _mm256_storeu_ps(x + pairs + i, _mm256_fmadd_ps(im, c, _mm256_mul_ps(re, s)));
        }
    }
    for (; i < pairs; i++) {
        float *a = interleaved ? x + 2 * i : x + i, *b = interleaved ? a + 1 : a + pairs;
        float re = *a, im = *b, s = sign * sin[i];
        *a = fmaf(re, cos[i], -(im * s)); /* as the vectors above round */
        *b = fmaf(im, cos[i], re * s);
    }
}

static __m256 swiglu8(__m256 g, __m256 u, float limit)
{
    if (limit > 0) { /* the second operand passes when it is NaN */
        __m256 top = _mm256_set1_ps(limit), bottom = _mm256_set1_ps(-limit);
        g = _mm256_min_ps(top, g);
        u = _mm256_max_ps(bottom, _mm256_min_ps(top, u));
    }
    __m256 one = _mm256_set1_ps(1.0f), e = nb_exp(_mm256_xor_ps(g, _mm256_set1_ps(-0.0f)));
    return _mm256_mul_ps(_mm256_div_ps(g, _mm256_add_ps(one, e)), u);
}

void nb_avx2_swiglu(const float *g, const float *u, float limit, size_t n, float *y)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, swiglu8(_mm256_loadu_ps(g + i), _mm256_loadu_ps(u + i), limit));
    if (i < n) {
        __m256 v = swiglu8(nb_load_first(g + i, n - i), nb_load_first(u + i, n - i), limit);
        _mm256_maskstore_ps(y + i, nb_lane_mask(n - i), v);
    }
}

const nb_kernels *nb_kernels_avx2(void)
{
    static const nb_kernels table = NB_AVX2_TABLE("avx2", nb_avx2_linear_i8);
    return &table;
}
