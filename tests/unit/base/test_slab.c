/* Blocks of slabs: aligned, zeroed, side by side, and memory that lives as long as its last block. */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/slab.h"

#define MIB ((size_t)1 << 20)

static void check_block(const uint8_t *p, size_t bytes)
{
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % NB_ALIGN, 0);
    for (size_t i = 0; i < bytes; i++) assert_int_equal(p[i], 0);
}

static void blocks_lie_side_by_side(void **state)
{
    nb_slabs s = {0};
    nb_slab *a, *b;
    uint8_t *p = nb_slabs_take(&s, NB_SLAB_LEAST + 100, &a), *q = nb_slabs_take(&s, NB_SLAB_LEAST, &b);
    check_block(p, NB_SLAB_LEAST + 100);
    assert_ptr_equal(a, b);
    assert_ptr_equal(q, p + NB_SLAB_LEAST + 128); /* 100 rounded up to lines */
    assert_int_equal((uintptr_t)p % (2 * MIB), 0);
    nb_slab_release(a);
    nb_slab_release(b);
    nb_slabs_close(&s);
}

static void some_have_memory_of_their_own(void **state)
{
    nb_slabs s = {0};
    nb_slab *own;
    check_block(nb_slabs_take(NULL, MIB, &own), MIB);
    nb_slab_release(own);
    for (size_t bytes = 0; bytes <= 130; bytes += 65) {
        check_block(nb_slabs_take(&s, bytes, &own), bytes);
        assert_null(s.open);
        nb_slab_release(own);
    }
    nb_slabs_close(&s);
}

/* The first slab has 8 MiB, the next twice as much, or what a block needs. */
static void a_full_slab_is_followed_by_a_larger_one(void **state)
{
    nb_slabs s = {0};
    nb_slab *in[5];
    const size_t bytes[5] = {5 * MIB, 3 * MIB, 9 * MIB, 7 * MIB, 40 * MIB};
    for (int i = 0; i < 5; i++) {
        uint8_t *p = nb_slabs_take(&s, bytes[i], &in[i]);
        assert_non_null(p);
        assert_int_equal(p[0] | p[bytes[i] - 1], 0);
        p[0] = p[bytes[i] - 1] = 1;
    }
    assert_ptr_equal(in[1], in[0]);
    assert_ptr_not_equal(in[2], in[0]);
    assert_ptr_equal(in[3], in[2]);
    assert_ptr_not_equal(in[4], in[2]);
    for (int i = 0; i < 5; i++) nb_slab_release(in[i]);
    nb_slabs_close(&s);
}

/* Layers that are read and dropped in turn do not use up one slab after another, and find zeroes each time. */
static void a_slab_without_blocks_is_replaced(void **state)
{
    nb_slabs s = {0};
    for (int layer = 0; layer < 200; layer++) {
        nb_slab *in;
        uint8_t *p = nb_slabs_take(&s, 6 * MIB, &in);
        assert_non_null(p);
        assert_int_equal(p[0] | p[6 * MIB - 1], 0);
        memset(p, 1, 6 * MIB);
        assert_ptr_equal(in, s.open);
        nb_slab_release(in);
    }
    nb_slabs_close(&s);
}

static void blocks_outlive_what_they_came_from(void **state)
{
    nb_slabs s = {0};
    nb_slab *in;
    uint8_t *p = nb_slabs_take(&s, MIB, &in);
    assert_non_null(p);
    nb_slabs_close(&s);
    nb_slabs_close(&s);
    assert_null(s.open);
    p[MIB - 1] = 7;
    nb_slab_release(in);
    nb_slab_release(NULL);
}

static void no_memory_is_null(void **state)
{
    nb_slabs s = {0};
    nb_slab *in = NULL;
    assert_null(nb_slabs_take(&s, SIZE_MAX, &in));
    assert_null(nb_slabs_take(&s, SIZE_MAX - 4 * MIB, &in));
    assert_null(nb_slabs_take(NULL, SIZE_MAX - NB_ALIGN, &in));
    assert_null(in);
    check_block(nb_slabs_take(&s, MIB, &in), MIB);
    nb_slab_release(in);
    nb_slabs_close(&s);
}

/* The addresses that this program may still take: those it has, and so many more. */
static void limit_addresses(size_t more, struct rlimit *old)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lu", &pages), 1);
    fclose(f);
    assert_int_equal(getrlimit(RLIMIT_AS, old), 0);
    const struct rlimit low = {.rlim_cur = pages * (rlim_t)sysconf(_SC_PAGESIZE) + more,
                               .rlim_max = old->rlim_max};
    assert_int_equal(setrlimit(RLIMIT_AS, &low), 0);
}

/* Of 100 MiB slabs of 8, 16 and 32 take 56, with room for 10 blocks of 5 MiB. 16 and 8 are half of what is left then, for 4 more, and the
 * rest is one more block's. */
static void near_a_limit_slabs_are_smaller(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* they reserve terabytes, so that no such limit can be set */
#endif
    nb_slabs s = {0};
    nb_slab *in[64];
    struct rlimit old;
    size_t n = 0;
    limit_addresses(100 * MIB, &old);
    while (n < 64 && nb_slabs_take(&s, 5 * MIB, &in[n])) n++;
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
    assert_in_range(n, 14, 17);
    for (size_t i = 0; i < n; i++) nb_slab_release(in[i]);
    nb_slabs_close(&s);
}

static void near_a_limit_something_is_left_for_others(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
    for (size_t limit = 6 * MIB; limit < 40 * MIB; limit += MIB / 4) {
        nb_slabs s = {0};
        nb_slab *in;
        struct rlimit old;
        limit_addresses(limit, &old);
        const bool taken = nb_slabs_take(&s, MIB, &in) != NULL;
        void *other = mmap(NULL, 2 * MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
        assert_true(taken);
        if (other == MAP_FAILED) fail_msg("a slab took all of %zu KiB", limit / 1024);
        munmap(other, 2 * MIB);
        nb_slab_release(in);
        nb_slabs_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(blocks_lie_side_by_side),
                                       cmocka_unit_test(some_have_memory_of_their_own),
                                       cmocka_unit_test(a_full_slab_is_followed_by_a_larger_one),
                                       cmocka_unit_test(a_slab_without_blocks_is_replaced),
                                       cmocka_unit_test(blocks_outlive_what_they_came_from),
                                       cmocka_unit_test(no_memory_is_null),
                                       cmocka_unit_test(near_a_limit_slabs_are_smaller),
                                       cmocka_unit_test(near_a_limit_something_is_left_for_others)};
    mallopt(M_MMAP_THRESHOLD,
            MIB); /* what is freed goes back at once, and is not there to be used under a limit */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
