/* Cores and memories of the allowed CPUs. Two threads on one core share its multipliers and its way to memory, which one alone fills; a
 * thread whose weights lie at another socket reads them at half the speed. */
#include "base/topology.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CPU (1 << 20) /* no kernel numbers more */

/* The next range "3" or "3-7" of a list, moving *p behind it and a comma. False: there is none, or no sense in it. */
static bool next_range(const char **p, int *first, int *last)
{
    char *end;
    if (**p < '0' || **p > '9') return false;
    errno = 0;
    const long a = strtol(*p, &end, 10);
    long b = a;
    if (*end == '-') {
        if (end[1] < '0' || end[1] > '9') return false;
        b = strtol(end + 1, &end, 10);
    }
    if (errno || b < a || b >= MAX_CPU || (*end && *end != ',' && *end != '\n')) return false;
    *p = *end == ',' ? end + 1 : end;
    *first = (int)a;
    *last = (int)b;
    return true;
}

/* A line of the file; false: it cannot be read whole. */
static bool read_line(const char *path, char *line, size_t cap)
{
    FILE *f = fopen(path, "r");
    if (!f) return false;
    const bool ok = fgets(line, (int)cap, f) && (strchr(line, '\n') || feof(f));
    fclose(f);
    return ok;
}

/* The first CPU of cpu's core. */
static int core_of(const char *root, int cpu)
{
    char path[512], line[4096];
    const char *p = line;
    int first, last, core = cpu;
    bool own = false;
    const int n =
        snprintf(path, sizeof path, "%s/devices/system/cpu/cpu%d/topology/thread_siblings_list", root, cpu);
    if (n >= (int)sizeof path || !read_line(path, line, sizeof line)) return cpu;
    while (next_range(&p, &first, &last)) {
        if (first < core) core = first;
        own |= first <= cpu && cpu <= last;
    }
    return own ? core : cpu; /* a list without the CPU itself is nonsense */
}

/* Sets node on the places whose CPU the list names. */
static void mark(nb_topology *t, const char *list, int node)
{
    int first, last;
    while (next_range(&list, &first, &last))
        for (size_t i = 0; i < t->n; i++)
            if (t->cpu[i].cpu >= first && t->cpu[i].cpu <= last) t->cpu[i].node = node;
}

static void read_nodes(const char *root, nb_topology *t)
{
    char path[512], line[65536]; /* a list of thousands of CPUs with gaps */
    int n = snprintf(path, sizeof path, "%s/devices/system/node", root);
    DIR *d = n < (int)sizeof path ? opendir(path) : NULL;
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        const char *number = e->d_name + 4;
        int node, last;
        if (strncmp(e->d_name, "node", 4) != 0 || !next_range(&number, &node, &last) || *number ||
            last != node)
            continue;
        n = snprintf(path, sizeof path, "%s/devices/system/node/node%d/cpulist", root, node);
        if (n < (int)sizeof path && read_line(path, line, sizeof line)) mark(t, line, node);
    }
    closedir(d);
}

static int by_place(const void *a, const void *b)
{
    const nb_cpu_place *p = a, *q = b;
    if (p->node != q->node) return p->node < q->node ? -1 : 1;
    if (p->core != q->core) return p->core < q->core ? -1 : 1;
    return p->cpu < q->cpu ? -1 : p->cpu > q->cpu;
}

nb_status nb_topology_read(const char *root, const int *allowed, size_t n, nb_topology *out, nb_error *err)
{
    nb_topology t = {.n = n};
    t.cpu = calloc(n + 1, sizeof *t.cpu);
    if (!t.cpu) return nb_fail_nomem(err, "the list of CPUs", (n + 1) * sizeof *t.cpu);
    for (size_t i = 0; i < n; i++)
        t.cpu[i] = (nb_cpu_place){.cpu = allowed[i], .core = core_of(root, allowed[i]), .node = -1};
    read_nodes(root, &t);
    bool whole = true;
    for (size_t i = 0; i < n; i++) whole &= t.cpu[i].node >= 0;
    for (size_t i = 0; !whole && i < n; i++) t.cpu[i].node = 0; /* some CPU has no node: none is believed */
    qsort(t.cpu, n, sizeof *t.cpu, by_place);
    int stored = -1;
    for (size_t i = 0; i < n; i++) {
        const int node = t.cpu[i].node;
        if (!i || node != stored || t.cpu[i].core != t.cpu[i - 1].core) t.cores++;
        if (node != stored) t.nodes++;
        stored = node;
        t.cpu[i].node = (int)t.nodes - 1;
    }
    *out = t;
    return NB_OK;
}

nb_status nb_topology_here(nb_topology *out, nb_error *err)
{
    nb_status s = NB_OK;
    cpu_set_t *set = NULL;
    int *allowed = NULL;
    size_t n = 0, bytes = 0;
    *out = (nb_topology){0};
    for (size_t cpus = 1024; cpus <= MAX_CPU;
         cpus *= 4) { /* the kernel's mask may be larger than cpu_set_t */
        CPU_FREE(set);
        if (!(set = CPU_ALLOC(cpus))) return nb_fail_nomem(err, "the affinity mask", cpus / 8);
        bytes = CPU_ALLOC_SIZE(cpus);
        if (sched_getaffinity(0, bytes, set) == 0) break;
        bytes = 0;
    }
    if (!bytes) goto out; /* the kernel does not tell */
    const size_t count = (size_t)CPU_COUNT_S(bytes, set);
    allowed = calloc(count + 1, sizeof *allowed);
    if (!allowed) {
        s = nb_fail_nomem(err, "the list of CPUs", (count + 1) * sizeof *allowed);
        goto out;
    }
    for (size_t i = 0; i < 8 * bytes; i++)
        if (CPU_ISSET_S(i, bytes, set)) allowed[n++] = (int)i;
    s = nb_topology_read("/sys", allowed, n, out, err);
out:
    CPU_FREE(set);
    free(allowed);
    return s;
}

void nb_topology_free(nb_topology *t)
{
    free(t->cpu);
    *t = (nb_topology){0};
}

int nb_topology_node(const nb_topology *t, size_t thread, size_t threads)
{
    if (t->nodes < 2) return 0;
    const size_t core =
        (size_t)((double)thread * (double)t->cores / (double)threads); /* which has its part */
    size_t seen = 0;
    for (size_t i = 0; i < t->n; i++) {
        seen += !i || t->cpu[i].core != t->cpu[i - 1].core || t->cpu[i].node != t->cpu[i - 1].node;
        if (seen > core) return t->cpu[i].node;
    }
    return t->cpu[t->n - 1].node;
}

void nb_topology_bind(const nb_topology *t, int node)
{
    if (t->nodes < 2) return;
    cpu_set_t *set = CPU_ALLOC(MAX_CPU);
    if (!set) return; /* a hint: without it the thread runs where it did */
    const size_t bytes = CPU_ALLOC_SIZE(MAX_CPU);
    CPU_ZERO_S(bytes, set);
    for (size_t i = 0; i < t->n; i++)
        if (t->cpu[i].node == node) CPU_SET_S((size_t)t->cpu[i].cpu, bytes, set);
    sched_setaffinity(0, bytes, set);
    CPU_FREE(set);
}
