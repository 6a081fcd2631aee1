/* The measured roofs are numbers that a machine can have: the least that any x86-64 does, and below what none does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "bench/roof.h"
#include "kernels/cpu/kernels.h"

static void measures_something_possible(void **state)
{
    nb_pool *pool;
    nb_roof r;
    assert_int_equal(nb_pool_new(2, &pool, NULL), NB_OK);
    assert_int_equal(nb_roof_measure(pool, (size_t)16 << 20, &r, NULL), NB_OK);
    assert_int_equal(r.threads, 2);
    assert_true(r.read_gbs > 0.01 && r.read_gbs < 1e4);
    assert_true(r.copy_gbs > 0.01 && r.copy_gbs < 1e4);
    assert_true(r.fma_gflops > 0.1 && r.fma_gflops < 1e4);
    /* Against FMAs of 256 bits, 16 operations: 64 of maddubs, 128 of dpbusd; a busy machine blurs that. */
    nb_cpu cpu;
    nb_cpu_detect(&cpu);
    assert_int_equal(r.maddubs_gops > 0, cpu.avx2);
    assert_int_equal(r.vnni_gops > 0, cpu.avx512_vnni);
    assert_int_equal(r.amx_gflops > 0, cpu.amx_bf16 && nb_amx_permitted());
    if (cpu.avx2) assert_true(r.maddubs_gops > r.fma_gflops / 4 && r.maddubs_gops < 16 * r.fma_gflops);
    if (cpu.avx512_vnni) assert_true(r.vnni_gops > r.fma_gflops / 4 && r.vnni_gops < 32 * r.fma_gflops);
    nb_pool_free(pool);
}

static void needs_no_pool(void **state)
{
    nb_roof r;
    assert_int_equal(nb_roof_measure(NULL, 1, &r, NULL), NB_OK); /* rounded up to two pages */
    assert_int_equal(r.threads, 1);
    assert_true(r.read_gbs > 0.01);
}

static void a_pass_reads_again(void **state)
{
    nb_roof_reader *r = NULL;
    assert_int_equal(nb_roof_reader_new(NULL, (size_t)4 << 20, &r, NULL), NB_OK);
    for (int i = 0; i < 3; i++) {
        const double rate = nb_roof_read(r);
        assert_true(rate > 0.01 && rate < 1e4);
    }
    nb_roof_reader_free(r);
    nb_roof_reader_free(NULL);
}

static void impossible_size_is_an_error(void **state)
{
    nb_roof r;
    nb_error err;
    nb_roof_reader *reader = NULL;
    assert_int_equal(nb_roof_reader_new(NULL, (size_t)1 << 60, &reader, &err), NB_ERR_NOMEM);
    assert_null(reader);
    assert_int_equal(nb_roof_measure(NULL, (size_t)1 << 60, &r, &err), NB_ERR_NOMEM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measures_something_possible),
        cmocka_unit_test(needs_no_pool),
        cmocka_unit_test(a_pass_reads_again),
        cmocka_unit_test(impossible_size_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
