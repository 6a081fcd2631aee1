/* What the files of the AVX2 table share. */
#ifndef NB_KERNELS_AVX2_H
#define NB_KERNELS_AVX2_H

#include <immintrin.h>

#include "kernels/cpu/kernels.h"

/* As nb_kernels.linear. */
void nb_avx2_linear(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,
                    float *y, size_t ldy, size_t p0, size_t p1);

/* As nb_kernels.prepare_bf16, nb_kernels.linear_bf16. */
void nb_avx2_prepare_bf16(const float *x, size_t k, size_t k_pad, float *row);
void nb_avx2_linear_bf16(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,
                         float *y, size_t ldy, size_t p0, size_t p1);

/* As nb_kernels.quantise_i8, nb_kernels.linear_i8. */
void nb_avx2_quantise_i8(const float *x, size_t k, size_t k_pad, float *row);
void nb_avx2_linear_i8(const nb_packed *w, const float *x, size_t ldx, size_t rows, float *y, size_t ldy,
                       size_t p0, size_t p1);

/* As nb_kernels.scores, nb_kernels.weigh, nb_kernels.exps. */
void nb_avx2_scores(const nb_attend_args *a, size_t r0, size_t r1);
void nb_avx2_weigh(const nb_attend_args *a, size_t c0, size_t c1);
float nb_avx2_exps(float *x, size_t n, float *max);

/* As the nb_kernels members of these names; other tables take them over. */
void nb_avx2_rmsnorm(const float *x, const float *w, float eps, size_t n, float *y);
void nb_avx2_rope(float *x, const float *cos, const float *sin, size_t pairs, bool interleaved, float sign);
void nb_avx2_swiglu(const float *g, const float *u, float limit, size_t n, float *y);
float nb_avx2_dot(const float *a, const float *b, size_t n);
void nb_avx2_axpy(float a, const float *x, size_t n, float *y);
void nb_avx2_mix(const float *const *a, const float *const *x, size_t n, size_t d, float *const *y,
                 size_t rows);

/* The table of a machine with AVX2, whose int8 goes through `int8`. */
#define NB_AVX2_TABLE(name_, int8)                                                                           \
    {                                                                                                        \
        .name = (name_), .linear = nb_avx2_linear, .bf16_form = NB_BF16_FIXED,                               \
        .prepare_bf16 = nb_avx2_prepare_bf16, .linear_bf16 = nb_avx2_linear_bf16,                            \
        .quantise_i8 = nb_avx2_quantise_i8, .linear_i8 = (int8), .rmsnorm = nb_avx2_rmsnorm,                 \
        .rope = nb_avx2_rope, .exps = nb_avx2_exps, .scores = nb_avx2_scores, .weigh = nb_avx2_weigh,        \
        .swiglu = nb_avx2_swiglu, .dot = nb_avx2_dot, .axpy = nb_avx2_axpy, .mix = nb_avx2_mix               \
    }

/* The first n (0 to 8) lanes, for maskload and maskstore. */
static inline __m256i nb_lane_mask(size_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* The sum of the lanes: (0+4, 1+5, 2+6, 3+7), then halves again. */
static inline float nb_lane_sum(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}

/* n floats from p, zeros beyond; n at most 8. */
static inline __m256 nb_load_first(const float *p, size_t n)
{
    return _mm256_maskload_ps(p, nb_lane_mask(n));
}

/* Values b * 16 … of a row of k, zeros from k on. */
static inline void nb_load_block(const float *x, size_t k, size_t b, __m256 out[2])
{
    const float *s = x + b * 16;
    size_t left = b * 16 < k ? k - b * 16 : 0;
    out[0] = left >= 8 ? _mm256_loadu_ps(s) : left ? nb_load_first(s, left) : _mm256_setzero_ps();
    out[1] = left >= 16 ? _mm256_loadu_ps(s + 8)
             : left > 8 ? nb_load_first(s + 8, left - 8)
                        : _mm256_setzero_ps();
}

/* The largest of eight magnitudes as bits: so ordered, infinity and NaN are above all numbers. */
static inline uint32_t nb_largest_bits(__m256i m)
{
    __m128i h = _mm_max_epu32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    h = _mm_max_epu32(h, _mm_shuffle_epi32(h, 0x4E));
    h = _mm_max_epu32(h, _mm_shuffle_epi32(h, 0xB1));
    return (uint32_t)_mm_cvtsi128_si32(h);
}

/* How many of the lanes of vector i, counted from panel p on, are outputs that exist. */
static inline size_t nb_lanes_of(const nb_packed *w, size_t p, size_t i)
{
    size_t first = p * NB_PANEL + i * 8;
    return first >= w->n ? 0 : w->n - first < 8 ? w->n - first : 8;
}

static inline void nb_store_lanes(float *y, __m256 v, size_t lanes)
{
    if (lanes == 8)
        _mm256_storeu_ps(y, v);
    else if (lanes)
        _mm256_maskstore_ps(y, nb_lane_mask(lanes), v);
}

static inline __m256 nb_load_lanes(const float *y, size_t lanes)
{
    return lanes == 8 ? _mm256_loadu_ps(y)
           : lanes    ? _mm256_maskload_ps(y, nb_lane_mask(lanes))
                      : _mm256_setzero_ps();
}

/* e^r for x = n ln 2 + r with |r| <= ln 2 / 2: the Taylor series to r^7 is off by less than r^8 / 8! = 5e-9. */
static inline __m256 nb_exp_rest(__m256 x, __m256 n)
{
    /* the first 14 bits of ln 2: n times that is exact */
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.62e400p-1f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.7f7d1cp-20f), r);
    __m256 p = _mm256_set1_ps(1.0f / 5040);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 720));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    return _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
}

/* e^x within 2 units in the last place, subnormal results included. NaN stays NaN, -inf gives 0, +inf gives inf. 2^n is applied as two
 * factors, because 2^128 and 2^-149 are not both normal numbers. */
static inline __m256 nb_exp(__m256 x)
{
    x = _mm256_min_ps(_mm256_set1_ps(100.0f), x); /* this order of operands lets NaN through */
    x = _mm256_max_ps(_mm256_set1_ps(-150.0f), x);
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(0x1.715476p0f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256i e = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(e, 1), bias = _mm256_set1_epi32(127);
    __m256i f0 = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i f1 = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(e, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(nb_exp_rest(x, n), _mm256_castsi256_ps(f0)), _mm256_castsi256_ps(f1));
}

#endif
