/* Which table of inner loops is chosen: by name, the best that the machine can run, never one it lacks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

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

/* Machines with AVX-512 have AVX-VNNI as well, and tables that are better. */
static void avx_vnni_comes_before_avx512(void **state)
{
    nb_cpu cpu = {.avx2 = true, .avx_vnni = true};
    const nb_kernels *list[8];
    assert_string_equal(nb_kernels_pick(&cpu, NULL)->name, "avxvnni");
    cpu.avx512 = cpu.avx512_vnni = true;
    assert_int_equal(nb_kernels_list(&cpu, list, 8), 4);
    assert_string_equal(list[2]->name, "avxvnni");
    assert_string_equal(nb_kernels_pick(&cpu, NULL)->name, "avx512");
    assert_ptr_equal(nb_kernels_pick(&cpu, "avxvnni"), list[2]);
    cpu.avx_vnni = false;
    assert_null(nb_kernels_pick(&cpu, "avxvnni"));
}

/* From here on every arch_prctl of this process is refused, as a sandbox or an old kernel does. */
static bool refuse_arch_prctl(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* The processor has AMX, the kernel does not let this process use it: the next best table runs, and "amx" is not to be had. */
static void amx_refused_falls_back(void **state)
{
    const nb_cpu cpu = {.avx2 = true,
                        .avx512 = true,
                        .avx512_vnni = true,
                        .avx512_bf16 = true,
                        .amx_bf16 = true,
                        .amx_int8 = true};
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (!refuse_arch_prctl()) _exit(2);
        _exit(strcmp(nb_kernels_pick(&cpu, NULL)->name, "avx512bf16") != 0 || nb_kernels_pick(&cpu, "amx"));
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 2) skip(); /* no seccomp here */
    assert_int_equal(WEXITSTATUS(status), 0);
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
        assert_true(k->linear && k->linear_bf16 && k->quantise_i8 && k->linear_i8 && k->rmsnorm && k->rope &&
                    k->exps && k->scores && k->weigh && k->swiglu && k->dot && k->axpy && k->mix);
        assert_true((k->prepare_bf16 == NULL) == (k->bf16_form == NB_BF16_FLOATS));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generic_runs_anywhere),           cmocka_unit_test(best_comes_last),
        cmocka_unit_test(bf16_products_come_after_avx512), cmocka_unit_test(avx_vnni_comes_before_avx512),
        cmocka_unit_test(amx_refused_falls_back),          cmocka_unit_test(unknown_names_give_nothing),
        cmocka_unit_test(every_operator_is_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
