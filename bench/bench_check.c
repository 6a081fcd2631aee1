/*
 * What `nibble check` makes of the machine: bench_check DIR [THREADS] reads the folder's tensors as the pass over the weights does
 * and does nothing with them, which is the roof for files in the page cache; then makes that pass; then the whole check. Each
 * in turn, so that a busy machine slows all alike; the best of some rounds counts. Beside them stand the memory's read roof and the
 * counting loops on blocks in the second-level cache.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "bench/roof.h"
#include "doctor/check.h"
#include "doctor/scan_count.h"

enum { ROUNDS = 9, PIECE = 1 << 18, UNIT = 1 << 25, BLOCKS = 1 << 14, REPEATS = 500 };

typedef struct range {
    const nb_tensor_info *t;
    uint64_t begin, end;
} range;

typedef struct reader {
    const nb_ckpt *c;
    range *ranges;
    size_t n;
    atomic_size_t next;
    atomic_bool failed;
    unsigned char *buffers;
} reader;

static void read_ranges(void *ctx, size_t thread, size_t begin, size_t end)
{
    reader *r = ctx;
    for (size_t i; (i = atomic_fetch_add(&r->next, 1)) < r->n;) {
        const range *u = &r->ranges[i];
        for (uint64_t at = u->begin; at < u->end; at += PIECE) {
            const size_t n = u->end - at < PIECE ? (size_t)(u->end - at) : PIECE;
            if (nb_ckpt_read(r->c, u->t, at, r->buffers + thread * PIECE, n, NULL) != NB_OK) r->failed = true;
        }
    }
}

/* Every tensor in pieces of at most UNIT. False: out of memory. */
static bool list_ranges(reader *r)
{
    const size_t tensors = nb_ckpt_count(r->c);
    r->ranges = calloc(tensors + nb_ckpt_bytes(r->c) / UNIT, sizeof *r->ranges);
    for (size_t i = 0; i < tensors && r->ranges; i++) {
        const nb_tensor_info *t = nb_ckpt_at(r->c, i);
        for (uint64_t at = 0, size = t->end - t->begin; at < size; at += UNIT)
            r->ranges[r->n++] = (range){t, at, size - at < UNIT ? size : at + UNIT};
    }
    return r->ranges != NULL;
}

/* GB/s of a counting loop, its reads of codes and scales counted. */
static double count_rate(nb_count_16_fn f)
{
    static unsigned char codes[8 * BLOCKS], scales[BLOCKS];
    static nb_counts c;
    double best = 0;
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (unsigned char)(i * 2654435761U >> 24 | (i % 8 ? 0 : 7));
    memset(scales, 0x60, sizeof scales);
    for (int round = 0; round < ROUNDS; round++) {
        const double begin = nb_now();
        for (int i = 0; i < REPEATS; i++) {
            memset(&c, 0, sizeof c);
            f(codes, scales, BLOCKS, &c);
        }
        const double rate = 1e-9 * REPEATS * (sizeof codes + sizeof scales) / (nb_now() - begin);
        best = rate > best ? rate : best;
    }
    return best;
}

/* Seconds of the three passes, the best of each. */
static nb_status measure(const char *dir, nb_pool *pool, reader *r, double best[3], uint64_t *scanned,
                         nb_error *err)
{
    const nb_check_options options = {.threads = nb_pool_threads(pool)};
    nb_modules modules = {0};
    nb_status s = nb_modules_build(r->c, &modules, err);
    for (int round = 0; round < ROUNDS && s == NB_OK; round++) {
        nb_scan scan = {0};
        nb_check_result result = {0};
        double at[4] = {nb_now()};
        r->next = 0;
        nb_pool_run(pool, options.threads, 1, read_ranges, r);
        at[1] = nb_now();
        s = r->failed ? nb_fail(err, NB_ERR_IO, "%s cannot be read", dir)
                      : nb_scan_run(r->c, &modules, pool, NULL, NULL, &scan, err);
        at[2] = nb_now();
        if (s == NB_OK) s = nb_check_folder_with(dir, &options, NULL, &result, err);
        at[3] = nb_now();
        *scanned = scan.bytes;
        for (int i = 0; i < 3; i++) {
            const double t = at[i + 1] - at[i];
            best[i] = !round || t < best[i] ? t : best[i];
        }
        nb_scan_free(&scan);
        nb_check_result_free(&result);
    }
    nb_modules_free(&modules);
    return s;
}

static void print(const char *what, uint64_t bytes, double seconds, double pread, double roof)
{
    const double rate = (double)bytes / seconds * 1e-9;
    printf("%-12s %7.3f s %7.2f GB/s %6.1f %% of reading %6.1f %% of the memory's roof\n", what, seconds,
           rate, 100 * rate / pread, 100 * rate / roof);
}

int main(int argc, char **argv)
{
    reader r = {0};
    nb_pool *pool = NULL;
    nb_ckpt *c = NULL;
    nb_roof roof;
    nb_error err = {0};
    nb_cpu cpu;
    double best[3] = {0};
    uint64_t scanned = 0;
    if (argc < 2) {
        fprintf(stderr, "usage: bench_check DIR [THREADS]\n");
        return 64;
    }
    nb_status s = nb_pool_new(argc > 2 ? (size_t)strtoul(argv[2], NULL, 10) : 2, &pool, &err);
    if (s == NB_OK) s = nb_ckpt_open(argv[1], NULL, NULL, &c, &err);
    if (s != NB_OK) goto out;
    r.c = c;
    r.buffers = nb_calloc_aligned(nb_pool_threads(pool), PIECE);
    if (!r.buffers || !list_ranges(&r)) {
        s = nb_fail_nomem(&err, "the list of tensors", nb_ckpt_count(c) * sizeof *r.ranges);
        goto out;
    }
    if ((s = nb_roof_measure(pool, 0, &roof, &err))) goto out;
    if ((s = measure(argv[1], pool, &r, best, &scanned, &err))) goto out;
    const uint64_t bytes = nb_ckpt_bytes(c);
    const double pread = (double)bytes / best[0] * 1e-9;
    printf("%zu threads, memory's read roof %.2f GB/s\n", nb_pool_threads(pool), roof.read_gbs);
    print("reading", bytes, best[0], pread, roof.read_gbs);
    print("scan", scanned, best[1], pread, roof.read_gbs);
    print("check", bytes, best[2], pread, roof.read_gbs);
    nb_cpu_detect(&cpu);
    printf("counting a core, GB/s: generic %.1f", count_rate(nb_count_16_generic));
    if (cpu.avx2) printf(", avx2 %.1f", count_rate(nb_count_16_avx2));
    if (cpu.avx512) printf(", avx512 %.1f", count_rate(nb_count_16_avx512));
    putchar('\n');
out:
    if (s != NB_OK) fprintf(stderr, "bench_check: %s\n", err.cause);
    free(r.ranges);
    free(r.buffers);
    nb_ckpt_close(c);
    nb_pool_free(pool);
    return s == NB_OK ? 0 : 2;
}
