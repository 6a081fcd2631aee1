/* The table for machines with AVX512-BF16: rows that BF16 holds go through its products, all else is AVX-512's. */
#include "kernels/cpu/avx512bf16/avx512bf16.h"

#include "kernels/cpu/avx512/avx512.h"

const nb_kernels *nb_kernels_avx512bf16(void)
{
    static const nb_kernels table =
        NB_AVX512_TABLE("avx512bf16", NB_BF16_FLOATS, NULL, nb_avx512bf16_linear, nb_avx512_linear_i8);
    return &table;
}
