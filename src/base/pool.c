/*
 * Fork and join in about a microsecond. A step of the model is hundreds of short parallel loops, so a worker that has
 * finished spins for a while before it parks: waking a parked thread costs more than most loops. The dangerous moment is
 * between "the worker decides to park" and "the caller decides whether anyone needs waking"; both sides write their word and
 * then read the other's, sequentially consistent, so at least one of them sees the other.
 */
#include "base/pool.h"

#include <linux/futex.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "base/thread.h"

#define MAX_THREADS 1024
#define SPIN_NS 50000       /* longer than the serial gaps between two operators of a step */
#define LATE_NS 500000      /* that even parts end apart only where another has a CPU */
#define CROWDED_NS 50000000 /* some of a scheduler's slices: how long nobody spins then */

typedef struct worker {
    alignas(64) atomic_size_t next; /* the part of this thread that nobody has taken, when it is shared */
    size_t end;
    struct nb_pool *pool;
    size_t index;
    pthread_t thread;
} worker;

struct nb_pool {
    size_t threads, started; /* started: workers that exist */
    nb_topology topology;
    size_t cpus; /* with more threads than these nobody spins: it would keep others from running */

    /* The job. Written by the caller before generation is raised, read by workers after they saw it. */
    nb_pool_fn fn;
    void *ctx;
    size_t items, grain;
    bool shared, stop;

    alignas(64) atomic_uint generation; /* futex: workers wait for a change */
    atomic_uint sleepers;               /* workers parked, or about to be */
    alignas(64) atomic_uint pending;    /* futex: the caller waits for 0 */
    atomic_uint caller_parked;
    alignas(64) _Atomic uint64_t crowded_until; /* of now_ns */
    long evictions;                             /* as far as the caller has seen them */
    alignas(64) worker workers[];
};

static void futex_wait(atomic_uint *word, unsigned value)
{
    /* EINTR and EAGAIN need no care: every caller looks at the word again. */
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake_all(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, MAX_THREADS, NULL, NULL, 0);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Spins until (*word == value) is `wanted`; false when that took longer than SPIN_NS, or when nobody should. */
static bool spin_until(const nb_pool *p, atomic_uint *word, unsigned value, bool wanted)
{
    if (p->threads > p->cpus) return false;
    const uint64_t from = now_ns();
    if (from < atomic_load_explicit(&p->crowded_until, memory_order_relaxed)) return false;
    do {
        for (int i = 0; i < 32; i++) {
            if ((atomic_load_explicit(word, memory_order_acquire) == value) == wanted) return true;
            relax();
        }
    } while (now_ns() - from < SPIN_NS);
    return false;
}

/* The part of thread t: whole grains, dealt as evenly as they go, the first threads taking one more. */
static void part(size_t items, size_t grain, size_t threads, size_t t, size_t *begin, size_t *end)
{
    size_t grains = nb_ceil_div(items, grain), each = grains / threads, extra = grains % threads;
    size_t first = t * each + (t < extra ? t : extra);
    size_t last = first + each + (t < extra);
    *begin = first >= grains ? items : first * grain;
    *end = last >= grains ? items : last * grain;
}

/* Pieces of worker w's part, as long as there are any. */
static void take_pieces(const nb_pool *p, worker *w, size_t thread)
{
    while (atomic_load_explicit(&w->next, memory_order_relaxed) < w->end) {
        size_t begin = atomic_fetch_add_explicit(&w->next, p->grain, memory_order_relaxed);
        if (begin >= w->end) return;
        p->fn(p->ctx, thread, begin, w->end - begin < p->grain ? w->end : begin + p->grain);
    }
}

static void run_part(nb_pool *p, size_t t)
{
    if (p->shared) {
        for (size_t i = 0; i < p->threads; i++) take_pieces(p, &p->workers[(t + i) % p->threads], t);
        return;
    }
    size_t begin, end;
    part(p->items, p->grain, p->threads, t, &begin, &end);
    if (begin < end) p->fn(p->ctx, t, begin, end);
}

static unsigned wait_for_job(nb_pool *p, unsigned seen)
{
    if (!spin_until(p, &p->generation, seen, false)) {
        atomic_fetch_add(&p->sleepers, 1);
        while (atomic_load(&p->generation) == seen) futex_wait(&p->generation, seen);
        atomic_fetch_sub(&p->sleepers, 1);
    }
    return atomic_load_explicit(&p->generation, memory_order_acquire);
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    nb_pool *p = w->pool;
    unsigned seen = 0;
    nb_topology_bind(&p->topology, nb_topology_node(&p->topology, w->index, p->threads));
    for (;;) {
        seen = wait_for_job(p, seen);
        if (p->stop) return NULL;
        run_part(p, w->index);
        if (atomic_fetch_sub(&p->pending, 1) == 1 && atomic_load(&p->caller_parked))
            futex_wake_all(&p->pending);
    }
}

static void announce(nb_pool *p)
{
    atomic_fetch_add(&p->generation, 1);
    if (atomic_load(&p->sleepers)) futex_wake_all(&p->generation);
}

/* Whether threads of this process had to leave their CPUs to others since the last call. */
static bool evicted(nb_pool *p)
{
    struct rusage now;
    if (getrusage(RUSAGE_SELF, &now)) return false;
    const bool more = now.ru_nivcsw > p->evictions;
    p->evictions = now.ru_nivcsw;
    return more;
}

/* Where others want the CPUs, too, a thread that spins between loops uses up its slice, and then a loop that needs it waits for all of
 * theirs: parked, it is soon back. That shows in threads that had to leave their CPUs, and in a wait for others that is longer than the
 * caller's own part, which began at `from`. Such a wait alone is a hypervisor's that took a CPU away: it comes back no sooner when the
 * others park, and they lose the time of waking. */
static void wait_for_workers(nb_pool *p, uint64_t from)
{
    if (spin_until(p, &p->pending, 0, true)) return;
    const uint64_t parked = now_ns();
    atomic_store(&p->caller_parked, 1);
    for (unsigned left; (left = atomic_load(&p->pending)) != 0;) futex_wait(&p->pending, left);
    atomic_store(&p->caller_parked, 0);
    const uint64_t end = now_ns();
    if (end - parked > LATE_NS && end - parked > parked - from && evicted(p))
        atomic_store_explicit(&p->crowded_until, end + CROWDED_NS, memory_order_relaxed);
}

static size_t within_limit(size_t threads)
{
    return threads < MAX_THREADS ? threads : MAX_THREADS;
}

nb_status nb_pool_default(size_t *threads, nb_error *err)
{
    nb_topology here;
    const nb_status s = nb_topology_here(&here, err);
    if (s == NB_OK) *threads = within_limit(nb_cpu_threads(&here));
    nb_topology_free(&here);
    return s;
}

nb_status nb_pool_new(size_t threads, nb_pool **out, nb_error *err)
{
    nb_topology here;
    nb_status s = nb_topology_here(&here, err);
    return s == NB_OK ? nb_pool_new_on(&here, threads, out, err) : s;
}

nb_status nb_pool_new_on(nb_topology *topology, size_t threads, nb_pool **out, nb_error *err)
{
    if (threads > MAX_THREADS) {
        nb_topology_free(topology);
        return nb_fail(err, NB_ERR_ARGUMENT, "%zu threads asked for, at most %d are possible", threads,
                       MAX_THREADS);
    }
    if (threads == 0) threads = within_limit(nb_cpu_threads(topology));
    size_t bytes = sizeof(nb_pool) + threads * sizeof(worker);
    nb_pool *p = nb_calloc_aligned(1, bytes);
    if (!p) {
        nb_topology_free(topology);
        return nb_fail_nomem(err, "the thread pool", bytes);
    }
    p->cpus = nb_cpu_allowed(topology);
    p->topology = *topology;
    *topology = (nb_topology){0};
    p->threads = threads;

    int rc = 0;
    for (size_t i = 1; i < threads && rc == 0; i++) {
        worker *w = &p->workers[i];
        *w = (worker){.pool = p, .index = i};
        rc = nb_thread_start(&w->thread, worker_main, w);
        if (rc == 0) p->started++;
    }
    if (rc != 0) {
        size_t got = p->started;
        nb_pool_free(p);
        nb_fail(err, NB_ERR_LIMIT, "the operating system refused thread %zu of %zu: %s", got + 2, threads,
                strerror(rc));
        nb_error_remedy(err, "ask for fewer threads, or raise ulimit -u and the cgroup's pids.max");
        return NB_ERR_LIMIT;
    }
    *out = p;
    return NB_OK;
}

void nb_pool_free(nb_pool *p)
{
    if (!p) return;
    p->stop = true;
    announce(p);
    for (size_t i = 1; i <= p->started; i++) pthread_join(p->workers[i].thread, NULL);
    nb_topology_free(&p->topology);
    free(p);
}

size_t nb_pool_threads(const nb_pool *p)
{
    return p ? p->threads : 1;
}

size_t nb_pool_cpus(const nb_pool *p)
{
    return p->cpus;
}

static void run(nb_pool *p, size_t items, size_t grain, bool shared, nb_pool_fn fn, void *ctx)
{
    if (items == 0) return;
    if (grain == 0) grain = 1;
    if (!p || p->threads == 1 || items <= grain) {
        fn(ctx, 0, 0, items);
        return;
    }
    p->fn = fn;
    p->ctx = ctx;
    p->items = items;
    p->grain = grain;
    p->shared = shared;
    for (size_t t = 0; shared && t < p->threads; t++) {
        size_t begin;
        part(items, grain, p->threads, t, &begin, &p->workers[t].end);
        atomic_store_explicit(&p->workers[t].next, begin, memory_order_relaxed);
    }
    atomic_store_explicit(&p->pending, (unsigned)(p->threads - 1), memory_order_relaxed);
    const uint64_t from = now_ns();
    announce(p);
    run_part(p, 0);
    wait_for_workers(p, from);
}

void nb_pool_run(nb_pool *p, size_t items, size_t grain, nb_pool_fn fn, void *ctx)
{
    run(p, items, grain, false, fn, ctx);
}

void nb_pool_share(nb_pool *p, size_t items, size_t grain, nb_pool_fn fn, void *ctx)
{
    run(p, items, grain, true, fn, ctx);
}
