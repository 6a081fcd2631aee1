/* Buckets hold what is at most their bound and above the one before; the last what is above all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/hist.h"

static void buckets(void **unused)
{
    static const double bounds[] = {1, 8, 16};
    nb_hist h;
    nb_hist_init(&h, bounds, 3);
    nb_hist_add(&h, 0.5, 1);
    nb_hist_add(&h, 1, 2);
    nb_hist_add(&h, 1.5, 4);
    nb_hist_add(&h, 16, 8);
    nb_hist_add(&h, 17, 16);
    nb_hist_add(&h, 1e9, 0);
    assert_int_equal(h.count[0], 3);
    assert_int_equal(h.count[1], 4);
    assert_int_equal(h.count[2], 8);
    assert_int_equal(h.count[3], 16);
    assert_int_equal(h.total, 31);
    assert_true(h.sum == 0.5 + 2 + 6 + 128 + 272);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(buckets)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
