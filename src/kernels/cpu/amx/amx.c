/* The table for machines with AMX: rows that BF16 holds and int8 rows go through tiles, all else is AVX-512's. */
#include "kernels/cpu/amx/amx.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/avx512/avx512.h"

enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };

bool nb_amx_permitted(void)
{
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

const nb_kernels *nb_kernels_amx(void)
{
    static const nb_kernels table =
        NB_AVX512_TABLE("amx", NB_BF16_HALVES, nb_amx_prepare_bf16, nb_amx_linear_bf16, nb_amx_linear_i8);
    return &table;
}
