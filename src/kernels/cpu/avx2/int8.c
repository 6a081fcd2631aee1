/*
 * Arithmetic int8 with AVX2: bytes are multiplied by vpmaddubsw. A pair is at most 2 * 24 * 127 = 6096, or 2 * 255 * 12 = 6120, and the four
 * pairs of a block 24480: they add up in 16 bits without saturating. One vpmaddwd makes 32-bit sums.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/avx2/avx2.h"
#include "kernels/cpu/avx2/decode.h"

enum { FOLDS = true };

NB_INLINE __m256i add_products(__m256i sum, const __m256i u[4], const __m256i s[4])
{
    __m256i even = _mm256_add_epi16(_mm256_maddubs_epi16(u[0], s[0]), _mm256_maddubs_epi16(u[1], s[1]));
    __m256i odd = _mm256_add_epi16(_mm256_maddubs_epi16(u[2], s[2]), _mm256_maddubs_epi16(u[3], s[3]));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_add_epi16(even, odd), _mm256_set1_epi16(1)));
}

#include "kernels/cpu/avx2/int8_loops.h"

void nb_avx2_quantise_i8(const float *x, size_t k, size_t k_pad, float *row)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
    /* Of 8 bytes in the order of k: the even ones, then the odd ones. */
    const __m128i parts = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    int8_t *q = nb_i8_codes(row);
    float *scale = nb_i8_scale(row, k_pad);
    int32_t *bias = nb_i8_bias(row, k_pad);
    for (size_t b = 0; b < k_pad / BLOCK; b++) {
        __m256 v[2];
        nb_load_block(x, k, b, v);
        uint32_t bits =
            nb_largest_bits(_mm256_max_epu32(_mm256_and_si256(_mm256_castps_si256(v[0]), magnitude),
                                             _mm256_and_si256(_mm256_castps_si256(v[1]), magnitude)));
        float amax = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((int)bits)));
        bool finite = bits < 0x7F800000;
        if (!finite || amax < NB_I8_TINY) {
            memset(q + b * BLOCK, 0, BLOCK);
            scale[b] = finite ? 0 : NAN;
            bias[b] = 0;
            continue;
        }
        __m256 f = _mm256_set1_ps(127.0f / amax);
        __m256i i0 = _mm256_cvtps_epi32(_mm256_mul_ps(v[0], f)),
                i1 = _mm256_cvtps_epi32(_mm256_mul_ps(v[1], f));
        __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(i0, i1), 0xD8);
        __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
        _mm_storeu_si128((__m128i *)(q + b * BLOCK), _mm_shuffle_epi8(bytes, parts));
        __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(_mm256_madd_epi16(w, _mm256_set1_epi16(1))),
                                    _mm256_extracti128_si256(_mm256_madd_epi16(w, _mm256_set1_epi16(1)), 1));
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1));
        scale[b] = amax / 254.0f;
        bias[b] = -12 * _mm_cvtsi128_si32(sum);
    }
}

void nb_avx2_linear_i8(const nb_packed *w, const float *x, size_t ldx, size_t rows, float *y, size_t ldy,
                       size_t p0, size_t p1)
{
    linear_i8(w, x, ldx, rows, y, ldy, p0, p1);
}
