/* The table for machines with AMX: rows that BF16 holds go through tiles, all else is AVX-512's. */
#include "kernels/cpu/amx/amx.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/avx2/avx2.h"
#include "kernels/cpu/avx512/avx512.h"

enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };

bool nb_amx_permitted(void)
{
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

const nb_kernels *nb_kernels_amx(void)
{
    static const nb_kernels table = {.name = "amx",
                                     .linear = nb_avx512_linear,
                                     .linear_bf16 = nb_amx_linear_bf16,
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
