/*
 * Codes of every weight format as F32 in registers: 8 consecutive k of 8 rows at a time, one vector per k, lane = row. Exact,
 * subnormals included, by table look-ups and shifts alone.
 *
 * NVFP4 and MXFP4: the upper 16 bits of an F32 hold all of E2M1, so two look-ups in 16-byte tables give the value. Grouping
 * the bytes by rows before the look-ups makes one byte unpack yield (k, k + 2) of each row in order. 20 instructions for 64 codes.
 */
#ifndef NB_KERNELS_AVX2_DECODE_H
#define NB_KERNELS_AVX2_DECODE_H

#include <immintrin.h>

#include "kernels/packed.h"
#include "numerics/formats.h"

#define NB_INLINE static inline __attribute__((always_inline))

NB_INLINE __m256i nb_load_i(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* The two BF16 numbers of each lane as F32: the lower into *a, the upper into *b. */
NB_INLINE void nb_split_bf16(__m256i w, __m256 *a, __m256 *b)
{
    *a = _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
    *b = _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32((int)0xFFFF0000)));
}

/* One word of 8 nibbles per row. */
NB_INLINE void nb_decode_e2m1(__m256i w, __m256 v[8])
{
    const __m256i group =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m256i high =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0x00, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40, -0x80,
                                                  -0x41, -0x41, -0x41, -0x40, -0x40, -0x40, -0x40));
    const __m256i low =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0x00, 0x00, -0x80, -0x40, 0x00, 0x40, -0x80, -0x40, 0x00,
                                                  0x00, -0x80, -0x40, 0x00, 0x40, -0x80, -0x40));
    const __m256i nibble = _mm256_set1_epi8(0x0F);
    w = _mm256_shuffle_epi8(w, group);
    __m256i even = _mm256_and_si256(w, nibble), odd = _mm256_and_si256(_mm256_srli_epi16(w, 4), nibble);
    __m256i he = _mm256_shuffle_epi8(high, even), le = _mm256_shuffle_epi8(low, even);
    __m256i ho = _mm256_shuffle_epi8(high, odd), lo = _mm256_shuffle_epi8(low, odd);
    nb_split_bf16(_mm256_unpacklo_epi8(le, he), &v[0], &v[2]);
    nb_split_bf16(_mm256_unpacklo_epi8(lo, ho), &v[1], &v[3]);
    nb_split_bf16(_mm256_unpackhi_epi8(le, he), &v[4], &v[6]);
    nb_split_bf16(_mm256_unpackhi_epi8(lo, ho), &v[5], &v[7]);
}

/* E4M3 bits moved to where F32 has exponent and mantissa stand for value * 2^-120, subnormals too. */
NB_INLINE __m256 nb_e4m3_from_bits(__m256i bits)
{
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p120f));
}

/* One word of 4 bytes per row. */
NB_INLINE void nb_decode_e4m3(__m256i w, __m256 v[4])
{
    const __m256i mask = _mm256_set1_epi32((int)0x87F00000);
    __m256i b[4] = {_mm256_slli_epi32(w, 24), _mm256_slli_epi32(w, 16), _mm256_slli_epi32(w, 8), w};
    for (int j = 0; j < 4; j++) v[j] = nb_e4m3_from_bits(_mm256_and_si256(_mm256_srai_epi32(b[j], 4), mask));
    /* 0x7F and 0xFF are NaN; the shift made 480 of them. */
    __m256i ones = _mm256_set1_epi8(-1);
    __m256i nan = _mm256_cmpeq_epi8(_mm256_or_si256(w, _mm256_set1_epi8(-0x80)), ones);
    if (__builtin_expect(!_mm256_testz_si256(nan, nan), 0)) {
        const __m256i top = _mm256_set1_epi32(0xFF << 24);
        for (int j = 0; j < 4; j++) {
            __m256i here = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_slli_epi32(nan, 24 - 8 * j), top), top);
            v[j] = _mm256_or_ps(v[j], _mm256_castsi256_ps(here));
        }
    }
}

/* One word of 2 halves per row. */
NB_INLINE void nb_decode_f16(__m256i w, __m256 v[2])
{
    const __m256i group =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    w = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(w, group), 0xD8);
    v[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(w));
    v[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(w, 1));
}

/* k 8 * oct to 8 * oct + 7 of rows 8 * half to 8 * half + 7 of the panel at codes. f is a constant where this is used. */
NB_INLINE void nb_decode_oct(nb_format f, const uint8_t *codes, size_t oct, size_t half, __m256 v[8])
{
    codes += half * 32;
    switch (f) {
    case NB_FMT_NVFP4:
    case NB_FMT_MXFP4: nb_decode_e2m1(nb_load_i(codes + oct * 64), v); break;
    case NB_FMT_FP8:
        for (size_t i = 0; i < 2; i++) nb_decode_e4m3(nb_load_i(codes + (oct * 2 + i) * 64), v + 4 * i);
        break;
    case NB_FMT_BF16:
        for (size_t i = 0; i < 4; i++)
            nb_split_bf16(nb_load_i(codes + (oct * 4 + i) * 64), &v[2 * i], &v[2 * i + 1]);
        break;
    case NB_FMT_F16:
        for (size_t i = 0; i < 4; i++) nb_decode_f16(nb_load_i(codes + (oct * 4 + i) * 64), v + 2 * i);
        break;
    default:
        for (size_t i = 0; i < 8; i++) v[i] = _mm256_castsi256_ps(nb_load_i(codes + (oct * 8 + i) * 64));
        break;
    }
}

NB_INLINE __m256i nb_load_bytes(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

/* The scales of rows 8 * half to 8 * half + 7 for the 16 k of `block`; ones where the format has none. */
NB_INLINE __m256 nb_decode_scale(nb_format f, const nb_packed *w, const uint8_t *scales, size_t block,
                                 size_t half)
{
    __m256i b;
    switch (f) {
    case NB_FMT_NVFP4:
        b = nb_load_bytes(scales + block * NB_PANEL + half * 8);
        if (__builtin_expect(w->odd_scales, 0)) return _mm256_i32gather_ps(nb_e4m3_table, b, 4);
        return nb_e4m3_from_bits(_mm256_slli_epi32(b, 20));
    case NB_FMT_MXFP4: {
        b = nb_load_bytes(scales + block / 2 * NB_PANEL + half * 8);
        /* 2^-127 and NaN differ from the plain shift in the top bit of the mantissa. */
        __m256i ends = _mm256_or_si256(_mm256_cmpeq_epi32(b, _mm256_setzero_si256()),
                                       _mm256_cmpeq_epi32(b, _mm256_set1_epi32(255)));
        __m256i bit = _mm256_and_si256(ends, _mm256_set1_epi32(0x00400000));
        return _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(b, 23), bit));
    }
    case NB_FMT_FP8:
        return _mm256_castsi256_ps(nb_load_i(scales + block * 16 / w->scale_k * NB_PANEL * 4 + half * 32));
    default: return _mm256_set1_ps(1.0f);
    }
}

#endif
