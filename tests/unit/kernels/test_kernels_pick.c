/* Which table of inner loops is chosen: by name, the best that the machine can run, never one it lacks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cpu/kernels.h"

static void generic_runs_anywhere(void **state)
{
    const nb_cpu bare = {0};
    const nb_kernels *list[8];
    assert_int_equal(nb_kernels_list(&bare, list, 8), 1);
    assert_string_equal(list[0]->name, "generic");
    assert_ptr_equal(nb_kernels_pick(&bare, NULL), nb_kernels_generic());
    assert_null(nb_kernels_pick(&bare, "avx2"));
}

static void best_comes_last(void **state)
{
    const nb_cpu cpu = {.avx2 = true};
    const nb_kernels *list[8];
    assert_int_equal(nb_kernels_list(&cpu, list, 8), 2);
    assert_string_equal(list[0]->name, "generic");
    assert_string_equal(list[1]->name, "avx2");
    assert_ptr_equal(nb_kernels_pick(&cpu, NULL), list[1]);
    assert_ptr_equal(nb_kernels_pick(&cpu, "generic"), list[0]);
    assert_int_equal(nb_kernels_list(&cpu, list, 1), 1);
}

static void bf16_products_come_after_avx512(void **state)
{
    nb_cpu cpu = {.avx2 = true, .avx512 = true, .avx512_vnni = true, .avx512_bf16 = true};
    const nb_kernels *list[8];
    assert_int_equal(nb_kernels_list(&cpu, list, 8), 4);
    assert_string_equal(list[2]->name, "avx512");
    assert_string_equal(nb_kernels_pick(&cpu, NULL)->name, "avx512bf16");
    cpu.avx512_vnni = false; /* what the other operators need */
    assert_string_equal(nb_kernels_pick(&cpu, NULL)->name, "avx2");
}

static void unknown_names_give_nothing(void **state)
{
    const nb_cpu cpu = {.avx2 = true};
    assert_null(nb_kernels_pick(&cpu, "sse9"));
    assert_null(nb_kernels_pick(&cpu, ""));
}

static void every_operator_is_there(void **state)
{
    const nb_cpu cpu = {.avx2 = true};
    const nb_kernels *list[8];
    size_t n = nb_kernels_list(&cpu, list, 8);
    for (size_t i = 0; i < n; i++) {
        const nb_kernels *k = list[i];
        assert_true(k->linear && k->rmsnorm && k->rope && k->softmax && k->scores && k->weigh && k->swiglu &&
                    k->dot && k->axpy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generic_runs_anywhere),           cmocka_unit_test(best_comes_last),
        cmocka_unit_test(bf16_products_come_after_avx512), cmocka_unit_test(unknown_names_give_nothing),
        cmocka_unit_test(every_operator_is_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
