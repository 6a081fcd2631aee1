/* The table for machines with AVX-512 F, BW, VL, DQ and VNNI. */
#include "kernels/cpu/avx512/avx512.h"

const nb_kernels *nb_kernels_avx512(void)
{
    static const nb_kernels table = NB_AVX512_TABLE("avx512", NB_BF16_FIXED, nb_avx2_prepare_bf16,
                                                    nb_avx512_linear_bf16, nb_avx512_linear_i8);
    return &table;
}
