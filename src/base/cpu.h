/* Which instruction sets this machine has and the operating system lets us use. */
#ifndef NB_BASE_CPU_H
#define NB_BASE_CPU_H

#include <stdbool.h>

typedef struct nb_cpu {
    bool avx2; /* with FMA and F16C */
    bool avx512; /* F, BW, VL, DQ */
    bool avx512_vnni, avx512_bf16, avx_vnni, amx_bf16, amx_int8;
    char model[64]; /* brand string, "" when unknown */
} nb_cpu;

/* Reads cpuid and xgetbv. Cheap; no cached state. */
void nb_cpu_detect(nb_cpu *out);

#endif
