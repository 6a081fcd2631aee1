/* Block scales of a panel's 16 rows in one register, and the lanes that are outputs. */
#ifndef NB_KERNELS_AVX512_DECODE_H
#define NB_KERNELS_AVX512_DECODE_H

#include <immintrin.h>

#include "kernels/packed.h"
#include "numerics/formats.h"

#define INLINE static inline __attribute__((always_inline))
/* In front of a loop whose bounds are constants once everything is inlined: arrays of vectors become registers. */
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* E4M3 without NaN and sign, any E4M3, E8M0. */
typedef enum nb_scales { PLAIN_E4M3, ANY_E4M3, E8M0 } nb_scales;

/* The 16 scales of block b. */
INLINE __m512 nb_scale16(nb_scales kind, const uint8_t *s, size_t b)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)(s + (kind == E8M0 ? b / 2 : b) * NB_PANEL));
    if (kind == PLAIN_E4M3) /* moved to where F16 has exponent and mantissa the bits stand for value * 2^-8 */
        return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 7)),
                             _mm512_set1_ps(256.0f));
    __m512i wide = _mm512_cvtepu8_epi32(bytes);
    if (kind == ANY_E4M3) return _mm512_i32gather_ps(wide, nb_e4m3_table, 4);
    /* 2^-127 and NaN differ from the plain shift in the top bit of the mantissa. */
    __mmask16 ends = _mm512_cmpeq_epi32_mask(wide, _mm512_setzero_si512()) |
                     _mm512_cmpeq_epi32_mask(wide, _mm512_set1_epi32(255));
    return _mm512_castsi512_ps(_mm512_mask_or_epi32(
        _mm512_slli_epi32(wide, 23), ends, _mm512_slli_epi32(wide, 23), _mm512_set1_epi32(0x00400000)));
}

/* Asks for the scales of the block whose codes lie `ahead` bytes after those of block b: a stream of their own, which no cache foresees
 * when a panel begins. */
INLINE void nb_ask_scales(nb_scales kind, const uint8_t *s, size_t b, size_t ahead)
{
    const size_t per = kind == E8M0 ? 2 : 1; /* blocks under a scale */
    if (b % (4 * per) == 0) _mm_prefetch((const char *)s + (b + ahead / 128) / per * NB_PANEL, _MM_HINT_T0);
}

/* The lanes of panel p that are outputs. */
INLINE __mmask16 nb_lanes16(const nb_packed *w, size_t p)
{
    size_t n = w->n - p * NB_PANEL;
    return n >= NB_PANEL ? (__mmask16)0xFFFF : (__mmask16)((1u << n) - 1);
}

#endif
