/*
 * The machine's roofs, measured and not looked up: what memory and the multipliers give when nothing else is in the way. A
 * kernel's speed is stated as a share of these, so they must not be too low: each is the best of several loops and rounds.
 */
#ifndef NB_BENCH_ROOF_H
#define NB_BENCH_ROOF_H

#include "base/pool.h"

typedef struct nb_roof {
    size_t threads;  /* those of the pool */
    double read_gbs; /* reading memory once, 10^9 bytes a second */
    double copy_gbs; /* copying, bytes read plus bytes written */
    double
        fma_gflops; /* F32 multiply-adds in registers, two operations each, with the widest vectors that the table
                          of kernels uses (256 bits; 128 without AVX2) */
    /* Bytes multiplied and added, two operations a product: by maddubs (AVX2), by dpbusd of 256 bits (AVX-VNNI), of 512 (AVX-512 VNNI); BF16 in AMX tiles.
     * 0: this machine has no such unit, or the kernel does not let us use it. */
    double maddubs_gops, avxvnni_gops, vnni_gops, amx_gflops;
} nb_roof;

/* Measures with all threads of the pool over a buffer of `bytes` (0: 512 MiB; it should be many times the caches) for
 * about a second. Takes and frees that memory. */
nb_status nb_roof_measure(nb_pool *pool, size_t bytes, nb_roof *out, nb_error *err);

/* Reads such a buffer again whenever asked, between the samples of what is compared with it: where others use the machine, too, memory
 * gives half as much in one second as in the next. */
typedef struct nb_roof_reader nb_roof_reader;
nb_status nb_roof_reader_new(nb_pool *pool, size_t bytes, nb_roof_reader **out, nb_error *err);
void nb_roof_reader_free(nb_roof_reader *r);
/* One pass, in the faster of the ways that the first passes tried: 10^9 bytes a second. */
double nb_roof_read(nb_roof_reader *r);

#endif
