/*
 * The loops behind the roofs of the multiplying units that not every machine has. One thread each; a caller looks at nb_cpu first. They
 * return something of what they computed, so that no loop can be dropped as useless. A product and its addition are two operations.
 */
#ifndef NB_BENCH_ROOF_UNITS_H
#define NB_BENCH_ROOF_UNITS_H

#include <stddef.h>
#include <stdint.h>

enum {
    NB_MADDUBS_OPS = 12 * 64,     /* of a step of the loop below: chains x 32 products */
    NB_AVXVNNI_OPS = 12 * 64,     /* likewise */
    NB_VNNI_OPS = 12 * 128,       /* chains x 64 products */
    NB_AMX_OPS = 4 * 16 * 16 * 64 /* tiles x 16 rows x 16 columns x 32 products */
};

/* vpmaddubsw, as the AVX2 table multiplies int8: needs AVX2. */
uint64_t nb_roof_maddubs(size_t steps);
/* vpdpbusd of 256 bits, as the table for AVX-VNNI does. */
uint64_t nb_roof_avxvnni(size_t steps);
/* vpdpbusd of 512 bits, as the AVX-512 tables do: needs AVX-512 VNNI. */
uint64_t nb_roof_vnni(size_t steps);
/* tdpbf16ps: needs AMX BF16 and nb_amx_permitted. Leaves the tiles free. */
uint64_t nb_roof_amx(size_t steps);

#endif
