/* Which instruction sets this machine has and the operating system lets us use. */
#ifndef NB_BASE_CPU_H
#define NB_BASE_CPU_H

#include <stdbool.h>
#include <stddef.h>

#include "base/topology.h"

typedef struct nb_cpu {
    bool avx2;   /* with FMA and F16C */
    bool avx512; /* F, BW, VL, DQ */
    bool avx512_vnni, avx512_bf16, avx_vnni, amx_bf16, amx_int8;
    char model[64]; /* brand string, "" when unknown */
} nb_cpu;

/* Reads cpuid and xgetbv. Cheap; no cached state. */
void nb_cpu_detect(nb_cpu *out);

/* How many threads can run at once: the CPUs of the affinity mask, cut down to the cgroup's quota. At least 1. */
size_t nb_cpu_allowed(const nb_topology *t);
/* How many should: one a physical core, cut down likewise. */
size_t nb_cpu_threads(const nb_topology *t);

/* The quota of the cgroups that membership (/proc/self/cgroup) names, in whole CPUs rounded up: the smallest of
 * cpu.max (version 2) or cpu.cfs_quota_us (version 1) from the group up to root (/sys/fs/cgroup). 0: no limit. */
size_t nb_cgroup_cpus(const char *membership, const char *root);

#endif
