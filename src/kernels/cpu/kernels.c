/* Choosing a table of inner loops by what the machine can do. A new instruction set adds one line here. */
#include "kernels/cpu/kernels.h"

#include <string.h>

size_t nb_kernels_list(const nb_cpu *cpu, const nb_kernels **out, size_t cap)
{
    const nb_kernels *all[6] = {nb_kernels_generic()};
    size_t n = 1;
#if defined(__x86_64__)
    if (cpu->avx2) all[n++] = nb_kernels_avx2();
    if (cpu->avx2 && cpu->avx_vnni) all[n++] = nb_kernels_avxvnni();
    const bool avx512 = cpu->avx2 && cpu->avx512 && cpu->avx512_vnni;
    if (avx512) all[n++] = nb_kernels_avx512();
    if (avx512 && cpu->avx512_bf16) all[n++] = nb_kernels_avx512bf16();
    if (avx512 && cpu->amx_bf16 && cpu->amx_int8 && nb_amx_permitted()) all[n++] = nb_kernels_amx();
#endif
    if (n > cap) n = cap;
    memcpy(out, all, n * sizeof *out);
    return n;
}

const nb_kernels *nb_kernels_pick(const nb_cpu *cpu, const char *name)
{
    const nb_kernels *list[8];
    size_t n = nb_kernels_list(cpu, list, sizeof list / sizeof *list);
    if (!name) return list[n - 1];
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i]->name, name) == 0) return list[i];
    return NULL;
}
