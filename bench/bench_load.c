/*
 * What loading costs: bench_load DIR [THREADS] loads a model's weights as a verb does, some times over, and says how fast the packing
 * alone is (a matrix in memory, by all threads) beside memcpy of the same bytes by the same threads. A rate counts the bytes read and the
 * bytes written, as the roof of copying does. DIR is best in the page cache: then nothing but nibble's own work is measured.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "models/model.h"

enum { ROUNDS = 5, N = 16384, K = 16384 };

typedef struct job {
    nb_packed w;
    const uint8_t *codes, *scales;
    size_t code_bytes, scale_bytes; /* of a row */
    bool copy;
} job;

static void fill(void *ctx, size_t thread, size_t begin, size_t end)
{
    const job *j = ctx;
    memset((uint8_t *)j->codes + begin * j->code_bytes, 0x35, (end - begin) * j->code_bytes);
    memset((uint8_t *)j->scales + begin * j->scale_bytes, 0x60, (end - begin) * j->scale_bytes);
}

/* Rows of the matrix into the packed form, or as they are to where that lies. */
static void rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    job *j = ctx;
    const uint8_t *codes = j->codes + begin * j->code_bytes, *scales = j->scales + begin * j->scale_bytes;
    if (!j->copy) {
        nb_pack_rows(&j->w, begin, end - begin, codes, scales);
        return;
    }
    memcpy(j->w.codes + begin * j->code_bytes, codes, (end - begin) * j->code_bytes);
    if (j->scale_bytes) memcpy(j->w.scales + begin * j->scale_bytes, scales, (end - begin) * j->scale_bytes);
}

/* GB/s of the best of some rounds, the first of which only touches the memory. */
static double rate(nb_pool *pool, job *j, bool copy)
{
    double best = 0, bytes = 2.0 * (double)N * (double)(j->code_bytes + j->scale_bytes);
    j->copy = copy;
    for (int i = 0; i <= ROUNDS; i++) {
        const double t = nb_now();
        nb_pool_run(pool, N, NB_PANEL, rows, j);
        const double r = bytes / (nb_now() - t) * 1e-9;
        if (i && r > best) best = r;
    }
    return best;
}

static nb_status pack(nb_pool *pool, nb_format format, size_t code_bytes, size_t scale_bytes, nb_error *err)
{
    job j = {.code_bytes = code_bytes, .scale_bytes = scale_bytes};
    uint8_t *memory = malloc(N * (code_bytes + scale_bytes));
    nb_status s = memory ? nb_packed_alloc(format, N, K, K, &j.w, err)
                         : nb_fail_nomem(err, "a matrix", N * (code_bytes + scale_bytes));
    if (s != NB_OK) goto out;
    j.codes = memory;
    j.scales = memory + N * code_bytes;
    nb_pool_run(pool, N, NB_PANEL, fill, &j);
    const double copied = rate(pool, &j, true), packed = rate(pool, &j, false);
    printf("packing %-6s %6.2f GB/s, copying %6.2f GB/s: %.0f %%\n", nb_format_name(format), packed, copied,
           100 * packed / copied);
out:
    nb_packed_free(&j.w);
    free(memory);
    return s;
}

static nb_status load(const char *dir, nb_pool *pool, nb_error *err)
{
    nb_status s = NB_OK;
    for (int i = 0; i < ROUNDS && s == NB_OK; i++) {
        nb_exec *x = NULL;
        nb_model *m = NULL;
        s = nb_cpu_exec_new("auto", pool, 1, &x, err);
        const double t = nb_now();
        if (s == NB_OK) s = nb_model_load(dir, x, NULL, NULL, &m, err);
        const double seconds = nb_now() - t;
        if (s == NB_OK)
            printf("loading %.3f s, %.2f GB/s of files\n", seconds,
                   (double)nb_ckpt_bytes(m->ckpt) / seconds * 1e-9);
        nb_model_free(m);
        nb_cpu_exec_free(x);
    }
    return s;
}

int main(int argc, char **argv)
{
    nb_pool *pool = NULL;
    nb_error err = {0};
    if (argc < 2) {
        fprintf(stderr, "usage: bench_load DIR [THREADS]\n");
        return 64;
    }
    nb_status s = nb_pool_new(argc > 2 ? (size_t)strtoul(argv[2], NULL, 10) : 0, &pool, &err);
    if (s == NB_OK) s = pack(pool, NB_FMT_NVFP4, K / 2, K / 16, &err);
    if (s == NB_OK) s = pack(pool, NB_FMT_MXFP4, K / 2, K / 32, &err);
    if (s == NB_OK) s = pack(pool, NB_FMT_FP8, K, sizeof(float), &err);
    if (s == NB_OK) s = pack(pool, NB_FMT_BF16, 2 * K, 0, &err);
    if (s == NB_OK) s = load(argv[1], pool, &err);
    if (s != NB_OK) fprintf(stderr, "bench_load: %s\n", err.cause);
    nb_pool_free(pool);
    return s == NB_OK ? 0 : 2;
}
