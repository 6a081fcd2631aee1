/* Read, copy and multiply as fast as the machine goes. */
#include "bench/roof.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "bench/roof_units.h"
#include "kernels/cpu/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { ROUNDS = 6, LINE = 64, PAGE = 4096 };
#define DEFAULT_BYTES ((size_t)512 << 20)
#define FMA_STEPS ((size_t)1 << 21)
#define UNIT_STEPS ((size_t)1 << 20)

/* What a loop computed, one cache line per thread, so that no loop can be dropped as useless. */
typedef struct result {
    uint64_t value[LINE / 8];
} result;

typedef struct job {
    uint8_t *buffer;
    size_t half; /* copy: bytes of the source */
    bool avx2, prefetch;
    uint64_t (*loop)(size_t steps); /* of unit_part */
    result *results;                /* [threads] */
} job;

#if defined(__x86_64__)
/* Four loads in flight a step; with prefetch, 2 KB ahead. */
__attribute__((target("avx2"))) static uint64_t read_avx2(const uint8_t *p, size_t n, bool prefetch)
{
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (size_t i = 0; i + 128 <= n; i += 128) {
        if (prefetch) {
            _mm_prefetch((const char *)p + i + 2048, _MM_HINT_T0);
            _mm_prefetch((const char *)p + i + 2112, _MM_HINT_T0);
        }
        const __m256i *v = (const __m256i *)(p + i);
        a = _mm256_xor_si256(a, _mm256_loadu_si256(v));
        b = _mm256_xor_si256(b, _mm256_loadu_si256(v + 1));
        c = _mm256_xor_si256(c, _mm256_loadu_si256(v + 2));
        d = _mm256_xor_si256(d, _mm256_loadu_si256(v + 3));
    }
    a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
    return (uint64_t)_mm256_extract_epi64(a, 0) ^ (uint64_t)_mm256_extract_epi64(a, 3);
}

/* Ten chains: two units of latency 5 and less are kept full. */
__attribute__((target("avx2,fma"))) static float fma_avx2(size_t steps)
{
    __m256 acc[10], x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
    for (int j = 0; j < 10; j++) acc[j] = _mm256_set1_ps((float)j);
    for (size_t i = 0; i < steps; i++) {
#pragma GCC unroll 10
        for (int j = 0; j < 10; j++) acc[j] = _mm256_fmadd_ps(acc[j], x, y);
    }
    float sum = 0, lanes[8];
    for (int j = 0; j < 10; j++) {
        _mm256_storeu_ps(lanes, acc[j]);
        sum += lanes[0];
    }
    return sum;
}
#endif

static uint64_t read_plain(const uint8_t *p, size_t n)
{
    uint64_t acc[4] = {0}, v[4];
    for (size_t i = 0; i + 32 <= n; i += 32) {
        memcpy(v, p + i, 32);
        for (int j = 0; j < 4; j++) acc[j] ^= v[j];
    }
    return acc[0] ^ acc[1] ^ acc[2] ^ acc[3];
}

static float fma_plain(size_t steps)
{
    float acc[40];
    for (int j = 0; j < 40; j++) acc[j] = (float)j;
    for (size_t i = 0; i < steps; i++)
        for (int j = 0; j < 40; j++) acc[j] = acc[j] * 0.999f + 0.001f;
    float sum = 0;
    for (int j = 0; j < 40; j++) sum += acc[j];
    return sum;
}

static void read_part(void *ctx, size_t thread, size_t begin, size_t end)
{
    job *j = ctx;
    const uint8_t *p = j->buffer + begin;
#if defined(__x86_64__)
    if (j->avx2) {
        j->results[thread].value[0] ^= read_avx2(p, end - begin, j->prefetch);
        return;
    }
#endif
    j->results[thread].value[0] ^= read_plain(p, end - begin);
}

static void copy_part(void *ctx, size_t thread, size_t begin, size_t end)
{
    job *j = ctx;
    memcpy(j->buffer + j->half + begin, j->buffer + begin, end - begin);
}

static void fill_part(void *ctx, size_t thread, size_t begin, size_t end)
{
    job *j = ctx;
    memset(j->buffer + begin, 1, end - begin);
}

static void fma_part(void *ctx, size_t thread, size_t begin, size_t end)
{
    job *j = ctx;
    float sum;
#if defined(__x86_64__)
    sum = j->avx2 ? fma_avx2(FMA_STEPS) : fma_plain(FMA_STEPS);
#else
    sum = fma_plain(FMA_STEPS);
#endif
    j->results[thread].value[1] += sum > 0;
}

static void unit_part(void *ctx, size_t thread, size_t begin, size_t end)
{
    job *j = ctx;
    j->results[thread].value[2] += j->loop(UNIT_STEPS);
}

/* Units a second of one pass. */
static double rate_of(nb_pool *pool, size_t items, size_t grain, nb_pool_fn fn, job *j, double units)
{
    double t = nb_now();
    nb_pool_run(pool, items, grain, fn, j);
    return units / (nb_now() - t);
}

/* The best rate over a few rounds. */
static double best_rate(nb_pool *pool, size_t items, size_t grain, nb_pool_fn fn, job *j, double units)
{
    double best = 0;
    for (int i = 0; i < ROUNDS; i++) {
        double rate = rate_of(pool, items, grain, fn, j, units);
        if (rate > best) best = rate;
    }
    return best;
}

struct nb_roof_reader {
    nb_pool *pool;
    size_t bytes;
    job j;
    double best; /* of the first passes */
};

nb_status nb_roof_reader_new(nb_pool *pool, size_t bytes, nb_roof_reader **out, nb_error *err)
{
    bytes = nb_round_up(bytes ? bytes : DEFAULT_BYTES, 2 * PAGE);
    nb_cpu cpu;
    nb_cpu_detect(&cpu);
    nb_roof_reader *r = calloc(1, sizeof *r);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    result *results = nb_calloc_aligned(nb_pool_threads(pool), sizeof *results);
    if (!r || memory == MAP_FAILED || !results) {
        free(r);
        free(results);
        if (memory != MAP_FAILED) munmap(memory, bytes);
        return nb_fail_nomem(err, "measuring the memory rate", bytes);
    }
    madvise(memory, bytes,
            MADV_HUGEPAGE); /* refused where huge pages are off: then the roof is that of small pages */
    *r = (nb_roof_reader){.pool = pool,
                          .bytes = bytes,
                          .j = {.buffer = memory, .half = bytes / 2, .avx2 = cpu.avx2, .results = results}};
    nb_pool_run(pool, bytes, PAGE, fill_part, &r->j);
    const double plain = best_rate(pool, bytes, PAGE, read_part, &r->j, (double)bytes * 1e-9);
    r->j.prefetch = true;
    r->best = best_rate(pool, bytes, PAGE, read_part, &r->j, (double)bytes * 1e-9);
    if (plain > r->best) {
        r->j.prefetch = false;
        r->best = plain;
    }
    *out = r;
    return NB_OK;
}

void nb_roof_reader_free(nb_roof_reader *r)
{
    if (!r) return;
    munmap(r->j.buffer, r->bytes);
    free(r->j.results);
    free(r);
}

double nb_roof_read(nb_roof_reader *r)
{
    return rate_of(r->pool, r->bytes, PAGE, read_part, &r->j, (double)r->bytes * 1e-9);
}

nb_status nb_roof_measure(nb_pool *pool, size_t bytes, nb_roof *out, nb_error *err)
{
    const size_t threads = nb_pool_threads(pool);
    nb_cpu cpu;
    nb_cpu_detect(&cpu);
    nb_roof_reader *r = NULL;
    const nb_status s = nb_roof_reader_new(pool, bytes, &r, err);
    if (s != NB_OK) return s;
    job *j = &r->j;
    *out = (nb_roof){.threads = threads, .read_gbs = r->best};
    out->copy_gbs = best_rate(pool, j->half, PAGE, copy_part, j, (double)r->bytes * 1e-9);
    double flops = (double)threads * FMA_STEPS * (cpu.avx2 ? 10 * 8 * 2 : 40 * 2);
    out->fma_gflops = best_rate(pool, threads, 1, fma_part, j, flops * 1e-9);
    const double steps = (double)threads * UNIT_STEPS * 1e-9;
    if (cpu.avx2) {
        j->loop = nb_roof_maddubs;
        out->maddubs_gops = best_rate(pool, threads, 1, unit_part, j, steps * NB_MADDUBS_OPS);
    }
    if (cpu.avx2 && cpu.avx_vnni) {
        j->loop = nb_roof_avxvnni;
        out->avxvnni_gops = best_rate(pool, threads, 1, unit_part, j, steps * NB_AVXVNNI_OPS);
    }
    if (cpu.avx512_vnni) {
        j->loop = nb_roof_vnni;
        out->vnni_gops = best_rate(pool, threads, 1, unit_part, j, steps * NB_VNNI_OPS);
    }
    if (cpu.amx_bf16 && nb_amx_permitted()) {
        j->loop = nb_roof_amx;
        out->amx_gflops = best_rate(pool, threads, 1, unit_part, j, steps * NB_AMX_OPS);
    }
    nb_roof_reader_free(r);
    return NB_OK;
}
