/* Cores and memories from fabricated /sys trees: siblings, two sockets, CPUs that are off or not allowed, missing files and rubbish; how
 * threads are spread; and that a pool's workers stay where that puts them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sched.h>

#include "base/pool.h"
#include "tempdir.h"

static tempdir sys;

/* Writes text as `name` below the folder, making the folders on the way. */
static void put(const char *name, const char *text)
{
    char part[256];
    for (const char *slash = strchr(name, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(part, sizeof part, "%.*s", (int)(slash - name), name);
        mkdir(tempdir_path(&sys, part), 0700);
    }
    tempdir_write(&sys, name, text, strlen(text));
}

static void siblings(int cpu, const char *list)
{
    char name[128];
    snprintf(name, sizeof name, "devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    put(name, list);
}

static void node(int n, const char *list)
{
    char name[128];
    snprintf(name, sizeof name, "devices/system/node/node%d/cpulist", n);
    put(name, list);
}

/* Two sockets of two cores of two threads: CPUs 0, 1 and 2, 3, and their twins 4, 5 and 6, 7. */
static void two_sockets(void)
{
    tempdir_make(&sys);
    for (int cpu = 0; cpu < 8; cpu++) {
        char list[16];
        snprintf(list, sizeof list, "%d,%d\n", cpu % 4, cpu % 4 + 4);
        siblings(cpu, list);
    }
    node(0, "0-1,4-5\n");
    node(1, "2-3,6-7\n");
    put("devices/system/node/online", "0-1\n");
}

static nb_topology read_tree(const int *allowed, size_t n)
{
    nb_topology t;
    nb_error err;
    assert_int_equal(nb_topology_read(sys.path, allowed, n, &t, &err), NB_OK);
    assert_int_equal(t.n, n);
    return t;
}

static const int all[] = {0, 1, 2, 3, 4, 5, 6, 7};

static void siblings_and_sockets(void **state)
{
    const nb_cpu_place want[] = {{0, 0, 0}, {4, 0, 0}, {1, 1, 0}, {5, 1, 0},
                                 {2, 2, 1}, {6, 2, 1}, {3, 3, 1}, {7, 3, 1}};
    two_sockets();
    nb_topology t = read_tree(all, 8);
    assert_int_equal(t.cores, 4);
    assert_int_equal(t.nodes, 2);
    assert_memory_equal(t.cpu, want, sizeof want);
    nb_topology_free(&t);
    assert_null(t.cpu);
    tempdir_remove(&sys);
}

static void what_is_allowed_counts_alone(void **state)
{
    two_sockets();
    nb_topology t =
        read_tree((const int[]){4, 5, 0}, 3); /* both threads of one core, one of another; one socket */
    assert_int_equal(t.cores, 2);
    assert_int_equal(t.nodes, 1);
    nb_topology_free(&t);
    t = read_tree((const int[]){6, 7}, 2); /* the second socket is the only one, and so the first */
    assert_int_equal(t.cores, 2);
    assert_int_equal(t.nodes, 1);
    assert_int_equal(t.cpu[0].node, 0);
    nb_topology_free(&t);
    t = read_tree(NULL, 0);
    assert_int_equal(t.cores, 0);
    assert_int_equal(nb_topology_node(&t, 0, 1), 0);
    nb_topology_free(&t);
    tempdir_remove(&sys);
}

/* CPU 4 is off: it is in no mask, the kernel takes it out of the lists, and its folder has no topology. Node 2 has memory alone. */
static void cpus_that_are_off(void **state)
{
    two_sockets();
    unlink(tempdir_path(&sys, "devices/system/cpu/cpu4/topology/thread_siblings_list"));
    siblings(0, "0\n");
    node(0, "0-1,5\n");
    node(2, "\n");
    nb_topology t = read_tree((const int[]){0, 1, 2, 3, 5, 6, 7}, 7);
    assert_int_equal(t.cores, 4);
    assert_int_equal(t.nodes, 2);
    nb_topology_free(&t);
    tempdir_remove(&sys);
}

/* Threads are dealt as cores are, in order; what is more than cores goes round them likewise. */
static void threads_are_spread(void **state)
{
    two_sockets();
    nb_topology t = read_tree(all, 8);
    const int one[] = {0}, two[] = {0, 1}, three[] = {0, 0, 1}, four[] = {0, 0, 1, 1},
              eight[] = {0, 0, 0, 0, 1, 1, 1, 1};
    const struct {
        size_t n;
        const int *node;
    } want[] = {{1, one}, {2, two}, {3, three}, {4, four}, {8, eight}};
    for (size_t i = 0; i < 5; i++)
        for (size_t k = 0; k < want[i].n; k++)
            assert_int_equal(nb_topology_node(&t, k, want[i].n), want[i].node[k]);
    nb_topology_free(&t);
    t = read_tree((const int[]){0, 2, 3, 6}, 4); /* one core here, two there */
    assert_int_equal(t.cores, 3);
    for (size_t k = 0; k < 3; k++) assert_int_equal(nb_topology_node(&t, k, 3), k > 0);
    nb_topology_free(&t);
    tempdir_remove(&sys);
}

/* Nothing to read, or nothing to believe: each CPU a core, one memory. */
static void missing_and_rubbish(void **state)
{
    static const char *const lists[] = {"",
                                        "\n",
                                        "x",
                                        "-1",
                                        "1-",
                                        "3-1",
                                        "7",
                                        "0;4\n",
                                        "0-",
                                        "0,,4",
                                        "0-4-8",
                                        " 0,4",
                                        "9999999999999999999",
                                        "0x0,4\n"};
    tempdir_make(&sys);
    nb_topology t = read_tree(all, 8);
    assert_int_equal(t.cores, 8);
    assert_int_equal(t.nodes, 1);
    nb_topology_free(&t);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        siblings(4, lists[i]);
        node(0, lists[i]);
        t = read_tree((const int[]){0, 4}, 2);
        if (t.nodes != 1) fail_msg("'%s': %zu nodes", lists[i], t.nodes);
        if (t.cores != 2 && lists[i][0] != '0') fail_msg("'%s': %zu cores", lists[i], t.cores);
        nb_topology_free(&t);
    }
    tempdir_remove(&sys);
    two_sockets();
    node(1, "2-3\n"); /* CPU 6 has no node */
    put("devices/system/node/node/cpulist", "0-7\n");
    put("devices/system/node/node1x/cpulist", "0-7\n");
    t = read_tree((const int[]){0, 6}, 2);
    assert_int_equal(t.nodes, 1);
    nb_topology_free(&t);
    t = read_tree((const int[]){0, 2}, 2);
    assert_int_equal(t.nodes, 2);
    nb_topology_free(&t);
    tempdir_remove(&sys);
}

static void own_mask(void *ctx, size_t thread, size_t begin, size_t end)
{
    cpu_set_t *masks = ctx;
    sched_getaffinity(0, sizeof masks[thread], &masks[thread]);
}

/* The first two CPUs that this process has, said to lie at two sockets. */
static void workers_stay_at_their_node(void **state)
{
    cpu_set_t old, masks[2];
    int cpu[2], n = 0;
    nb_topology t;
    nb_pool *p = NULL;
    assert_int_equal(sched_getaffinity(0, sizeof old, &old), 0);
    for (int i = 0; i < CPU_SETSIZE && n < 2; i++)
        if (CPU_ISSET(i, &old)) cpu[n++] = i;
    if (n < 2) skip();
    for (int apart = 0; apart < 2; apart++) {
        tempdir_make(&sys);
        for (int i = 0; i < 2; i++) {
            char list[16];
            snprintf(list, sizeof list, "%d\n", cpu[i]);
            if (apart) node(i, list);
        }
        t = read_tree(cpu, 2);
        assert_int_equal(nb_pool_new_on(&t, 0, &p, NULL), NB_OK);
        assert_null(t.cpu);
        if (nb_pool_threads(p) == 2) { /* a quota of one CPU leaves no worker */
            nb_pool_run(p, 2, 1, own_mask, masks);
            assert_true(CPU_EQUAL(&masks[0], &old));
            assert_int_equal(CPU_COUNT(&masks[1]), apart ? 1 : CPU_COUNT(&old));
            assert_true(CPU_ISSET(cpu[1], &masks[1]));
        }
        nb_pool_free(p);
        tempdir_remove(&sys);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(siblings_and_sockets), cmocka_unit_test(what_is_allowed_counts_alone),
        cmocka_unit_test(cpus_that_are_off),    cmocka_unit_test(threads_are_spread),
        cmocka_unit_test(missing_and_rubbish),  cmocka_unit_test(workers_stay_at_their_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
