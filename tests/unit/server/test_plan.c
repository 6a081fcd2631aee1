/* What machine and cgroups have to give. The plan of a model is tested from outside (tests/e2e/test_serve_cli.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "server/plan.h"
#include "tempdir.h"

static void put(tempdir *t, const char *name, const char *text)
{
    tempdir_write(t, name, text, strlen(text));
}

static void folder(tempdir *t, const char *name)
{
    assert_int_equal(mkdir(tempdir_path(t, name), 0700), 0);
}

static uint64_t available(const tempdir *t)
{
    char meminfo[600], membership[600];
    snprintf(meminfo, sizeof meminfo, "%s/meminfo", t->path);
    snprintf(membership, sizeof membership, "%s/self", t->path);
    return nb_plan_available(meminfo, membership, t->path);
}

static void the_smaller_of_machine_and_groups(void **state)
{
    tempdir t;
    tempdir_make(&t);
    put(&t, "meminfo", "MemTotal:  4000 kB\nMemAvailable:   2000 kB\n");
    assert_int_equal(available(&t), 2000 * 1024); /* no cgroup file */
    put(&t, "self", "0::/a/b\n");
    folder(&t, "a");
    folder(&t, "a/b");
    put(&t, "a/b/memory.max", "max\n");
    put(&t, "a/b/memory.current", "100\n");
    assert_int_equal(available(&t), 2000 * 1024); /* no limit */
    put(&t, "a/memory.max", "1000000\n");
    put(&t, "a/memory.current", "500000\n");
    put(&t, "a/memory.stat", "anon 1\ninactive_file 100000\n");
    assert_int_equal(available(&t), 600000); /* the parent's limit, page cache given up */
    put(&t, "a/b/memory.max", "50\n");
    assert_int_equal(available(&t), 0); /* more in use than allowed */
    put(&t, "meminfo", "");
    put(&t, "self", "");
    assert_int_equal(available(&t), 0);
    tempdir_remove(&t);
}

static void version_1_groups(void **state)
{
    tempdir t;
    tempdir_make(&t);
    put(&t, "meminfo", "MemAvailable: 999999 kB\n");
    put(&t, "self", "5:cpu,cpuacct:/x\n4:memory:/x\n1:name=systemd:/\n");
    folder(&t, "memory");
    folder(&t, "memory/x");
    put(&t, "memory/x/memory.limit_in_bytes", "3000000\n");
    put(&t, "memory/x/memory.usage_in_bytes", "1000000\n");
    put(&t, "memory/memory.limit_in_bytes", "9223372036854771712\n");
    put(&t, "memory/memory.usage_in_bytes", "5\n");
    assert_int_equal(available(&t), 2000000);
    tempdir_remove(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_smaller_of_machine_and_groups),
                                       cmocka_unit_test(version_1_groups)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
