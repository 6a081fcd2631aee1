/* Cgroup quotas: version 2 and 1, the tightest group from the process up to the root, everything unreadable as "no limit";
 * and the affinity mask. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sched.h>

#include "base/cpu.h"
#include "tempdir.h"

/* Writes text as `name` below the folder, making the folders on the way. */
static void put(tempdir *t, const char *name, const char *text)
{
    char part[256];
    for (const char *slash = strchr(name, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(part, sizeof part, "%.*s", (int)(slash - name), name);
        mkdir(tempdir_path(t, part), 0700);
    }
    tempdir_write(t, name, text, strlen(text));
}

static size_t quota(tempdir *t, const char *membership)
{
    char file[600];
    put(t, "membership", membership);
    strcpy(file, tempdir_path(t, "membership"));
    return nb_cgroup_cpus(file, t->path);
}

static void version_2_takes_the_tightest_group(void **state)
{
    tempdir t;
    tempdir_make(&t);
    put(&t, "a/b/cpu.max", "max 100000\n");
    assert_int_equal(quota(&t, "0::/a/b\n"), 0);
    put(&t, "a/cpu.max", "250000 100000\n"); /* 2.5 CPUs */
    assert_int_equal(quota(&t, "0::/a/b\n"), 3);
    put(&t, "a/b/cpu.max", "700000 100000\n");
    assert_int_equal(quota(&t, "0::/a/b\n"), 3);
    put(&t, "cpu.max", "100000 100000\n");
    assert_int_equal(quota(&t, "0::/a/b\n"), 1);
    assert_int_equal(quota(&t, "0::/\n"), 1);
    tempdir_remove(&t);
}

static void version_1_reads_the_cpu_controller(void **state)
{
    tempdir t;
    tempdir_make(&t);
    put(&t, "cpu/box/cpu.cfs_quota_us", "400000\n");
    put(&t, "cpu/box/cpu.cfs_period_us", "100000\n");
    put(&t, "cpu/cpu.cfs_quota_us", "-1\n");
    put(&t, "cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota(&t, "5:memory:/box\n4:cpuacct,cpu:/box\n"), 4);
    assert_int_equal(quota(&t, "5:cpuset:/box\n"), 0);
    tempdir_remove(&t);
}

static void nonsense_is_no_limit(void **state)
{
    tempdir t;
    tempdir_make(&t);
    assert_int_equal(quota(&t, "0::/absent\n"), 0);
    assert_int_equal(quota(&t, "no colon\n"), 0);
    put(&t, "cpu.max", "");
    assert_int_equal(quota(&t, "0::/\n"), 0);
    put(&t, "cpu.max", "100000 0\n");
    assert_int_equal(quota(&t, "0::/\n"), 0);
    assert_int_equal(nb_cgroup_cpus("/nonexistent", t.path), 0);
    tempdir_remove(&t);
}

static void affinity_is_honoured(void **state)
{
    cpu_set_t old, one;
    nb_topology t;
    assert_int_equal(sched_getaffinity(0, sizeof old, &old), 0);
    assert_int_equal(nb_topology_here(&t, NULL), NB_OK);
    assert_int_equal(t.n, CPU_COUNT(&old));
    assert_in_range(nb_cpu_allowed(&t), 1, t.n);
    assert_in_range(nb_cpu_threads(&t), 1, nb_cpu_allowed(&t));
    nb_topology_free(&t);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &old)) CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(nb_topology_here(&t, NULL), NB_OK);
    assert_int_equal(nb_cpu_allowed(&t), 1);
    nb_topology_free(&t);
    assert_int_equal(nb_cpu_allowed(&t), 1); /* a kernel that tells of no CPUs */
    assert_int_equal(sched_setaffinity(0, sizeof old, &old), 0);
}

/* Each feature implies those it is built on, and the kernel's own view agrees on AVX2. */
static void features_agree_with_the_kernel(void **state)
{
    nb_cpu cpu;
    nb_cpu_detect(&cpu);
    FILE *f = fopen("/proc/cpuinfo", "r");
    if (!f) skip();
    char line[8192];
    bool avx2 = false, avx512bf16 = false;
    while (fgets(line, sizeof line, f))
        if (strncmp(line, "flags", 5) == 0) {
            avx2 = strstr(line, " avx2") && strstr(line, " fma") && strstr(line, " f16c");
            avx512bf16 = strstr(line, " avx512_bf16");
            break;
        }
    fclose(f);
    assert_int_equal(cpu.avx2, avx2);
    assert_int_equal(cpu.avx512_bf16, avx512bf16);
    assert_true(!cpu.avx512 || cpu.avx2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version_2_takes_the_tightest_group),
        cmocka_unit_test(version_1_reads_the_cpu_controller),
        cmocka_unit_test(nonsense_is_no_limit),
        cmocka_unit_test(affinity_is_honoured),
        cmocka_unit_test(features_agree_with_the_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
