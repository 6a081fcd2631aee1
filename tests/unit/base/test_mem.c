/* Size arithmetic at its limits, and aligned memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/mem.h"

static void sizes_do_not_wrap(void **state)
{
    size_t r = 7;
    assert_true(nb_mul(SIZE_MAX / 2, 2, &r) && r == SIZE_MAX - 1);
    assert_false(nb_mul(SIZE_MAX / 2 + 1, 2, &r));
    assert_int_equal(r, SIZE_MAX - 1); /* untouched */
    assert_true(nb_add(SIZE_MAX - 1, 1, &r) && r == SIZE_MAX);
    assert_false(nb_add(SIZE_MAX, 1, &r));
    assert_int_equal(nb_ceil_div(0, 16), 0);
    assert_int_equal(nb_ceil_div(1, 16), 1);
    assert_int_equal(nb_ceil_div(16, 16), 1);
    assert_int_equal(nb_ceil_div(SIZE_MAX, 2), SIZE_MAX / 2 + 1);
    assert_int_equal(nb_round_up(17, 16), 32);
}

static void aligned_and_zeroed(void **state)
{
    for (size_t n = 0; n < 200; n += 67) {
        unsigned char *p = nb_calloc_aligned(n, 1);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % NB_ALIGN, 0);
        for (size_t i = 0; i < n; i++) assert_int_equal(p[i], 0);
        free(p);
    }
    assert_null(nb_calloc_aligned(SIZE_MAX, 2));
    assert_null(nb_calloc_aligned(SIZE_MAX - 3, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sizes_do_not_wrap),
                                       cmocka_unit_test(aligned_and_zeroed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
