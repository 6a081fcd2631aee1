/*
 * The thread pool: a fixed set of threads that run one function over fixed ranges. The split depends only on the
 * number of items and threads, so thread i of a
 * linear called alone touches the rows that it packed.
 * Workers spin briefly, then park on a futex. The caller is thread 0. One caller at a time. Workers have the stack of base/thread.h,
 * whatever ulimit -s is; operators need as much of the caller.
 */
#ifndef NB_BASE_POOL_H
#define NB_BASE_POOL_H

#include "base/topology.h"

typedef struct nb_pool nb_pool;

/* threads = 0: one for each physical core of the affinity mask, as far as the cgroup quota allows. NB_ERR_ARGUMENT above 1024. Where the
 * CPUs have several memories, threads are spread over them and stay there, so that what a thread touches first lies with it; but
 * thread 0, which is the caller's own. */
nb_status nb_pool_new(size_t threads, nb_pool **out, nb_error *err);
/* The same on CPUs that lie as topology says, which is taken over. */
nb_status nb_pool_new_on(nb_topology *topology, size_t threads, nb_pool **out, nb_error *err);
/* What threads = 0 stands for in nb_pool_new. */
nb_status nb_pool_default(size_t *threads, nb_error *err);
void nb_pool_free(nb_pool *p);
size_t nb_pool_threads(const nb_pool *p); /* 1 when p is NULL */
/* CPUs that the threads may run on at once. With more threads than that all of them park between loops, and a step of a small model
 * takes ten times as long. */
size_t nb_pool_cpus(const nb_pool *p);

/* Calls fn(ctx, thread, begin, end) once on each thread with a non-empty part of [0, items), contiguous and in
 * order of thread; begins are multiples of grain. Returns when all have finished. p may be NULL: runs inline. */
typedef void (*nb_pool_fn)(void *ctx, size_t thread, size_t begin, size_t end);
void nb_pool_run(nb_pool *p, size_t items, size_t grain, nb_pool_fn fn, void *ctx);
/* The same, but in pieces of `grain` items, and a thread that has finished its own part takes pieces of the others': for loops whose
 * threads are held up unevenly, by neighbours on the same core or by uneven work. fn is called for each piece. */
void nb_pool_share(nb_pool *p, size_t items, size_t grain, nb_pool_fn fn, void *ctx);

#endif
