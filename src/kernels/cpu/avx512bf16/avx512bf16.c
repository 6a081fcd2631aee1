/* The table for machines with AVX512-BF16: rows that BF16 holds go through its products, all else is AVX-512's. */
#include "kernels/cpu/avx512bf16/avx512bf16.h"

#include "kernels/cpu/avx2/avx2.h"
#include "kernels/cpu/avx512/avx512.h"

const nb_kernels *nb_kernels_avx512bf16(void)
{
    static const nb_kernels table = {.name = "avx512bf16",
                                     .linear = nb_avx512_linear,
                                     .linear_bf16 = nb_avx512bf16_linear,
                                     .quantise_i8 = nb_avx2_quantise_i8,
                                     .linear_i8 = nb_avx512_linear_i8,
                                     .rmsnorm = nb_avx2_rmsnorm,
                                     .rope = nb_avx2_rope,
                                     .softmax = nb_avx512_softmax,
                                     .scores = nb_avx512_scores,
                                     .weigh = nb_avx512_weigh,
                                     .swiglu = nb_avx2_swiglu,
                                     .dot = nb_avx2_dot,
                                     .axpy = nb_avx2_axpy,
                                     .mix = nb_avx2_mix};
    return &table;
}
