/* How the heads of a group are dealt out to units of work: each to exactly one part, whatever the numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cpu/exec.h"

/* All parts of a few groups, one after another, are the heads from 0 on without a gap, and none is empty or too large. */
static void test_every_head_once(void **unused)
{
    enum { GROUPS = 3 };
    for (size_t heads = 1; heads <= 40; heads++)
        for (size_t most = 1; most <= heads; most++)
            for (size_t threads = 1; threads <= 64; threads++) {
                nb_head_parts p = nb_cpu_part_heads(heads, most, GROUPS, threads);
                size_t at = 0;
                for (size_t g = 0; g < GROUPS; g++)
                    for (size_t i = 0, h0, h1; i < p.n; i++, at = h1) {
                        nb_heads_of_part(&p, g, i, &h0, &h1);
                        assert_int_equal(h0, at);
                        assert_in_range(h1, h0 + 1, h0 + most);
                    }
                assert_int_equal(at, GROUPS * heads);
            }
}

/* Two parts a thread, or as many as there are heads. */
static void test_work_for_all(void **unused)
{
    static const struct {
        size_t heads, most, units, threads, each, n;
    } cases[] = {
        {8, 32, 1, 4, 1, 8},    /* 8 parts are two a thread */
        {8, 32, 4, 4, 4, 2},    /* 4 groups by 2 */
        {8, 32, 64, 4, 8, 1},   /* enough groups: whole */
        {10, 10, 1, 4, 2, 5},   /* 8 parts are of two heads at most, and five of these hold all */
        {64, 32, 64, 4, 32, 2}, /* more heads than may go together */
        {1, 1, 1, 16, 1, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        nb_head_parts p = nb_cpu_part_heads(cases[i].heads, cases[i].most, cases[i].units, cases[i].threads);
        assert_int_equal(p.each, cases[i].each);
        assert_int_equal(p.n, cases[i].n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_head_once),
                                       cmocka_unit_test(test_work_for_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
