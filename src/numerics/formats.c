/* Codecs that are too long for the header: tables for decoding, integer arithmetic for encoding, so that the result is the
 * same on every machine and under every compiler flag. */
#include "numerics/formats.h"

#include <math.h>

const float nb_e2m1_table[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                 -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/* The values of one exponent, (8 + m) * unit; the last one of the largest exponent is taken by NaN. */
#define SEVEN(unit) 8 * (unit), 9 * (unit), 10 * (unit), 11 * (unit), 12 * (unit), 13 * (unit), 14 * (unit)
#define EIGHT(unit) SEVEN(unit), 15 * (unit)
#define HALF(s)                                                                                              \
    s 0.0f, s 0x1p-9f, s 0x2p-9f, s 0x3p-9f, s 0x4p-9f, s 0x5p-9f, s 0x6p-9f, s 0x7p-9f, EIGHT(s 0x1p-9f),   \
        EIGHT(s 0x1p-8f), EIGHT(s 0x1p-7f), EIGHT(s 0x1p-6f), EIGHT(s 0x1p-5f), EIGHT(s 0x1p-4f),            \
        EIGHT(s 0x1p-3f), EIGHT(s 0x1p-2f), EIGHT(s 0x1p-1f), EIGHT(s 0x1p0f), EIGHT(s 0x1p1f),              \
        EIGHT(s 0x1p2f), EIGHT(s 0x1p3f), EIGHT(s 0x1p4f), SEVEN(s 0x1p5f), NAN

const float nb_e4m3_table[256] = {HALF(+), HALF(-)};

uint8_t nb_e2m1_encode(float f)
{
    if (isnan(f)) return 7;
    float a = fabsf(f);
    /* The midpoints; which side a tie falls to alternates (nearest even). */
    unsigned code =
        (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return (uint8_t)(code | (nb_f32_bits(f) >> 28 & 8));
}

/* The magnitude as an E4M3 number whose exponent may run past the format: above 0x7E means "too large". */
static uint32_t e4m3_magnitude(uint32_t a)
{
    /* Adding 2^14, whose unit in the last place is 2^-9, rounds a subnormal to a multiple of 2^-9. */
    if (a < 0x3C800000) return nb_f32_bits(nb_f32_from_bits(a) + 16384.0f) - nb_f32_bits(16384.0f);
    return ((a + 0x7FFFF + (a >> 20 & 1)) >> 20) - ((127 - 7) << 3);
}

uint8_t nb_e4m3_encode_sat(float f)
{
    uint32_t u = nb_f32_bits(f), a = u & 0x7FFFFFFF;
    if (a > 0x7F800000) return 0x7F;
    uint32_t m = e4m3_magnitude(a);
    return (uint8_t)((m > 0x7E ? 0x7E : m) | (u >> 24 & 0x80));
}

uint8_t nb_e4m3_encode_nosat(float f)
{
    uint32_t u = nb_f32_bits(f), a = u & 0x7FFFFFFF;
    if (a > 0x7F800000) return 0x7F;
    uint32_t m = e4m3_magnitude(a);
    return (uint8_t)((m > 0x7F ? 0x7F : m) | (u >> 24 & 0x80));
}

float nb_e8m0_decode(uint8_t b)
{
    if (b == 0xFF) return NAN;
    return nb_f32_from_bits(b ? (uint32_t)b << 23 : 0x00400000);
}

float nb_f16_decode(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3FF;
    if (e == 0) return nb_f32_from_bits(nb_f32_bits((float)m * 0x1p-24f) | sign);
    if (e == 31) return nb_f32_from_bits(sign | 0x7F800000 | m << 13 | (m ? 0x400000 : 0));
    return nb_f32_from_bits(sign | (e + 112) << 23 | m << 13);
}

uint16_t nb_f16_encode(float f)
{
    uint32_t u = nb_f32_bits(f), a = u & 0x7FFFFFFF, sign = u >> 16 & 0x8000, h;
    if (a > 0x7F800000) {
        h = 0x7E00 | (a >> 13 & 0x3FF);
    } else if (a >= 0x477FF000) { /* 65520, half way from the largest number to 2^16 */
        h = 0x7C00;
    } else if (a < 0x38800000) { /* below 2^-14: adding 0.5 rounds to a multiple of 2^-24 */
        h = nb_f32_bits(nb_f32_from_bits(a) + 0.5f) - nb_f32_bits(0.5f);
    } else {
        h = ((a + 0xFFF + (a >> 13 & 1)) >> 13) - (112 << 10);
    }
    return (uint16_t)(h | sign);
}
