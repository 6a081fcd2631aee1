/* Block scales of a panel's 16 rows in one register, and the lanes that are outputs. */
#ifndef NB_KERNELS_AVX512_DECODE_H
#define NB_KERNELS_AVX512_DECODE_H

#include <immintrin.h>
#include <string.h>

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

/* The same for sums that are integers: E8M0's times `factor` (int8.h). */
INLINE __m512 nb_fit_scale16(nb_scales kind, const uint8_t *s, size_t b, float factor)
{
    __m512 scale = nb_scale16(kind, s, b);
    return kind == E8M0 ? _mm512_mul_ps(scale, _mm512_set1_ps(factor)) : scale;
}

#define NB_E2M1_BLOCK 16

/* Block b of E2M1 codes as bytes of a table, which every 128 bits hold: out[word] has 4 k of each row, in the order of nb_i8_codes. */
INLINE void nb_look_up(__m512i table, const uint8_t *codes, size_t b, __m512i out[4])
{
    const __m512i nibble = _mm512_set1_epi8(0x0F);
    UNROLL
    for (size_t i = 0; i < 2; i++) {
        __m512i w = _mm512_loadu_si512(codes + (b * 2 + i) * 64);
        out[2 * i] = _mm512_shuffle_epi8(table, _mm512_and_si512(w, nibble));
        out[2 * i + 1] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(w, 4), nibble));
    }
}

/* The same as 12 + 2 * value. */
INLINE void nb_open_block(const uint8_t *codes, size_t b, __m512i out[4])
{
    const __m512i table =
        _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    nb_look_up(table, codes, b, out);
}

/* Four activations for every row of a panel. */
INLINE __m512i nb_four_bytes(const int8_t *q)
{
    int32_t word;
    memcpy(&word, q, 4);
    return _mm512_set1_epi32(word);
}

/* Asks for the codes `ahead` bytes after those of block b. */
INLINE void nb_ask_codes(const uint8_t *codes, size_t b, size_t ahead)
{
    _mm_prefetch((const char *)codes + b * 128 + ahead, _MM_HINT_T0);
    _mm_prefetch((const char *)codes + b * 128 + ahead + 64, _MM_HINT_T0);
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
