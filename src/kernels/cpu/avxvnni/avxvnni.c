/* The table for machines with AVX-VNNI beside AVX2 and without AVX-512: int8 goes through vpdpbusd, all else is AVX2's. */
#include "kernels/cpu/avxvnni/avxvnni.h"

#include "kernels/cpu/avx2/avx2.h"

const nb_kernels *nb_kernels_avxvnni(void)
{
    static const nb_kernels table = NB_AVX2_TABLE("avxvnni", nb_avxvnni_linear_i8);
    return &table;
}
