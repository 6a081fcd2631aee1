/*
 * The number formats of NVFP4 and MXFP4 checkpoints, one value at a time: exact decoders, and encoders that round
 * as the GPU's conversion instructions do. Facts and test points: docs/formats.md; CUDA cuda_fp4.hpp and
 * cuda_fp8.hpp; PyTorch Float8_e4m3fn.h. Bit-exact against tests/fixtures/numerics.
 */
#ifndef NB_NUMERICS_FORMATS_H
#define NB_NUMERICS_FORMATS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline float nb_f32_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint32_t nb_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

/* BF16: the upper half of an F32. Encoding rounds to nearest even; a NaN stays a (quiet) NaN. */
static inline float nb_bf16_decode(uint16_t b)
{
    return nb_f32_from_bits((uint32_t)b << 16);
}
static inline uint16_t nb_bf16_encode(float f)
{
    uint32_t u = nb_f32_bits(f);
    if ((u & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}
static inline float nb_bf16_round(float f)
{
    return nb_bf16_decode(nb_bf16_encode(f));
}

extern const float nb_e2m1_table[16];  /* value of each code; bit 3 is the sign */
extern const float nb_e4m3_table[256]; /* value of each byte; 0x7F and 0xFF are NaN */

/* F32 -> E2M1 code, nearest even, saturating at 6 (cvt.rn.satfinite.e2m1x2): NaN gives 7, -0 gives 8. */
uint8_t nb_e2m1_encode(float f);

/* F32 -> E4M3, nearest even. sat: above 448 (infinity too) gives 0x7E; NaN gives 0x7F. nosat: above 464 and
 * infinity give 0x7F (with the sign). */
uint8_t nb_e4m3_encode_sat(float f);
uint8_t nb_e4m3_encode_nosat(float f);

/* E8M0: 2^(b-127); 0xFF is NaN; 0x00 is 2^-127 (subnormal in F32). */
float nb_e8m0_decode(uint8_t b);

float nb_f16_decode(uint16_t h);
uint16_t nb_f16_encode(float f); /* nearest even; overflow gives infinity */

#endif
