/*
 * Where the CPUs that this process may use lie: which share a core, which share a memory. From the kernel's own words,
 *
 *     ROOT/devices/system/cpu/cpuN/topology/thread_siblings_list     "0,64"
 *     ROOT/devices/system/node/nodeM/cpulist                         "0-15,64-79"
 *
 * What cannot be read, or makes no sense, is not there: then each CPU is a core, and all have one memory.
 */
#ifndef NB_BASE_TOPOLOGY_H
#define NB_BASE_TOPOLOGY_H

#include "base/error.h"

typedef struct nb_cpu_place {
    int cpu;
    int core; /* the first of its core's CPUs, allowed or not */
    int node; /* 0 … nodes - 1: nodes that have no allowed CPU do not count */
} nb_cpu_place;

/* Zero: no CPUs known, one node. */
typedef struct nb_topology {
    nb_cpu_place *cpu; /* [n] in order of node, core, CPU; owned */
    size_t n, cores, nodes;
} nb_topology;

/* Reads where the n allowed CPUs lie, below root ("/sys"). NB_ERR_NOMEM alone is an error. Free with nb_topology_free. */
nb_status nb_topology_read(const char *root, const int *allowed, size_t n, nb_topology *out, nb_error *err);
/* The same of the calling thread's affinity mask, below /sys. */
nb_status nb_topology_here(nb_topology *out, nb_error *err);
void nb_topology_free(nb_topology *t);

/* The node for thread `thread` of `threads`: consecutive threads on the same one, as many on each as it has cores for. 0 with one. */
int nb_topology_node(const nb_topology *t, size_t thread, size_t threads);
/* Lets the calling thread run on the CPUs of that node alone, so that memory that it touches first lies there. Nothing with one node,
 * or where the kernel refuses: then it runs where it did. */
void nb_topology_bind(const nb_topology *t, int node);

#endif
