/* Integers and tiles multiplied as fast as the machine goes. */
#include "bench/roof_units.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/amx/tiles.h"

enum { CHAINS = 12 }; /* two units of latency 5 and less are kept full */

/* The sums of a step are the next one's factors. Adding them up is other units' work. */
__attribute__((target("avx2"))) uint64_t nb_roof_maddubs(size_t steps)
{
    const __m256i x = _mm256_set1_epi8(3);
    __m256i acc[CHAINS];
#pragma GCC unroll 12 /* all three loops, or the chains go through memory */
    for (int j = 0; j < CHAINS; j++) acc[j] = _mm256_set1_epi8((char)j);
    for (size_t i = 0; i < steps; i++) {
#pragma GCC unroll 12
        for (int j = 0; j < CHAINS; j++)
            __asm__ volatile("vpmaddubsw %0, %1, %0"
                             : "+x"(acc[j])
                             : "x"(x)); /* in place: gcc 12 moves it about */
    }
#pragma GCC unroll 12
    for (int j = 1; j < CHAINS; j++) acc[0] = _mm256_xor_si256(acc[0], acc[j]);
    return (uint64_t)_mm256_extract_epi64(acc[0], 0);
}

__attribute__((target("avx2,avxvnni"))) uint64_t nb_roof_avxvnni(size_t steps)
{
    const __m256i x = _mm256_set1_epi32(0x03030303), y = _mm256_set1_epi32(0x05050505);
    __m256i acc[CHAINS];
#pragma GCC unroll 12
    for (int j = 0; j < CHAINS; j++) acc[j] = _mm256_set1_epi32(j);
    for (size_t i = 0; i < steps; i++) {
#pragma GCC unroll 12
        for (int j = 0; j < CHAINS; j++) acc[j] = _mm256_dpbusd_avx_epi32(acc[j], x, y);
    }
#pragma GCC unroll 12
    for (int j = 1; j < CHAINS; j++) acc[0] = _mm256_xor_si256(acc[0], acc[j]);
    return (uint64_t)_mm256_extract_epi64(acc[0], 0);
}

__attribute__((target("avx512f,avx512vnni"))) uint64_t nb_roof_vnni(size_t steps)
{
    const __m512i x = _mm512_set1_epi32(0x03030303), y = _mm512_set1_epi32(0x05050505);
    __m512i acc[CHAINS];
    for (int j = 0; j < CHAINS; j++) acc[j] = _mm512_set1_epi32(j);
    for (size_t i = 0; i < steps; i++) {
#pragma GCC unroll 12
        for (int j = 0; j < CHAINS; j++) acc[j] = _mm512_dpbusd_epi32(acc[j], x, y);
    }
    for (int j = 1; j < CHAINS; j++) acc[0] = _mm512_xor_si512(acc[0], acc[j]);
    return (uint64_t)_mm_cvtsi128_si64(_mm512_castsi512_si128(acc[0]));
}

/* Four sums, each the product of one of two activation tiles and one of two weight tiles, as the kernel has them. */
__attribute__((target("amx-tile,amx-bf16"))) uint64_t nb_roof_amx(size_t steps)
{
    nb_tile_config c;
    uint32_t sums[16 * 16];
    nb_tiles_configure(&c, 16, 16);
    memset(sums, 0, sizeof sums);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, sums, 64);
    _tile_loadd(5, sums, 64);
    _tile_loadd(6, sums, 64);
    _tile_loadd(7, sums, 64);
    for (size_t i = 0; i < steps; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, 64);
    __asm__ volatile("" : : : "memory"); /* the store is assembly to the compiler, of a pointer alone */
    const uint64_t sum = sums[0];
    _tile_release();
    return sum;
}
#else
uint64_t nb_roof_maddubs(size_t steps)
{
    return 0;
}

uint64_t nb_roof_avxvnni(size_t steps)
{
    return 0;
}

uint64_t nb_roof_vnni(size_t steps)
{
    return 0;
}

uint64_t nb_roof_amx(size_t steps)
{
    return 0;
}
#endif
