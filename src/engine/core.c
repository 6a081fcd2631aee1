/*
 * The engine thread's life: start, its loop, stop. A pass of the loop takes what others have left (new requests, cancellations,
 * rings with room again), plans a step and runs it (core_step.c). With nothing to run it sleeps on a futex, the bell.
 */
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "engine/core_internal.h"

/* vLLM's buckets of vllm:iteration_tokens_total (vllm/v1/metrics/loggers.py). */
static const double iteration_bounds[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

void nb_core_ring_bell(nb_core *c)
{
    atomic_fetch_add(&c->bell, 1);
    if (atomic_load(&c->asleep)) syscall(SYS_futex, &c->bell, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Until the bell is another than `heard`; a second at most where requests live, so that last_step shows that the thread does. */
static void sleep_on_bell(nb_core *c, unsigned heard)
{
    const struct timespec second = {.tv_sec = 1};
    atomic_store(&c->asleep, true);
    if (atomic_load(&c->bell) == heard)
        syscall(SYS_futex, &c->bell, FUTEX_WAIT_PRIVATE, heard, c->live ? &second : NULL, NULL, 0);
    atomic_store(&c->asleep, false);
}

static void take_new(nb_core *c)
{
    nb_request *list = atomic_exchange(&c->inbox, NULL), *oldest = NULL;
    while (list) { /* the newest is first */
        nb_request *next = list->next;
        list->next = oldest;
        oldest = list;
        list = next;
    }
    while (oldest) {
        nb_request *r = oldest;
        oldest = r->next;
        r->next = NULL;
        r->prev = c->newest;
        *(c->newest ? &c->newest->next : &c->live) = r;
        c->newest = r;
        nb_sched_submit(c->sched, &r->seq);
    }
}

/* What others ask of requests that live. */
static void look_around(nb_core *c)
{
    bool abort = atomic_load(&c->aborting), failed = atomic_load(&c->failed);
    for (nb_request *r = c->live, *next; r; r = next) {
        next = r->next;
        if (abort || atomic_load(&r->cancelled)) {
            nb_core_end(c, r, NB_FINISH_ABORT, NULL);
        } else if (failed) {
            nb_core_end(c, r, NB_FINISH_ERROR, &c->why);
        } else if (r->seq.parked && nb_request_has_room(r)) {
            atomic_store(&r->full, false);
            r->seq.parked = false;
        }
    }
}

static void *engine_main(void *arg)
{
    nb_core *c = arg;
    while (!atomic_load(&c->quit)) {
        unsigned heard = atomic_load(&c->bell);
        take_new(c);
        look_around(c);
        size_t n = c->live ? nb_sched_plan(c->sched, nb_now(), c->plan) : 0;
        if (n) nb_core_step(c, n);
        if (c->told && c->opt.wake) c->opt.wake(c->opt.wake_ctx);
        c->told = false;
        atomic_store_explicit(&c->count.running, nb_sched_running(c->sched), memory_order_relaxed);
        atomic_store_explicit(&c->count.blocks_used, nb_pages_used(nb_engine_pages(c->e)),
                              memory_order_relaxed);
        atomic_store_explicit(&c->count.preemptions, nb_sched_preemptions(c->sched), memory_order_relaxed);
        atomic_store_explicit(&c->count.last_step, nb_now(), memory_order_relaxed);
        if (!n) sleep_on_bell(c, heard);
    }
    return NULL;
}

static nb_status take_memory(nb_core *c, nb_error *err)
{
    const nb_engine_options *lim = nb_engine_limits(c->e);
    size_t n = c->opt.sched.max_seqs;
    if (n > lim->max_seqs || c->opt.sched.max_rows > lim->max_rows ||
        c->opt.sched.max_context > lim->max_context)
        return nb_fail(
            err, NB_ERR_ARGUMENT,
            "the scheduler may plan more (%zu sequences, %zu rows, %zu tokens) than the engine has "
            "room for (%zu, %zu, %zu)",
            n, c->opt.sched.max_rows, c->opt.sched.max_context, lim->max_seqs, lim->max_rows,
            lim->max_context);
    c->threads = nb_pool_threads(nb_engine_pool(c->e));
    c->plan = calloc(n, sizeof *c->plan);
    c->parts = calloc(n, sizeof *c->parts);
    c->run = calloc(n, sizeof *c->run);
    c->steps = calloc(n, sizeof *c->steps);
    c->sampled = calloc(n, sizeof *c->sampled);
    c->logits = calloc(n, sizeof *c->logits);
    c->work = calloc(c->threads, sizeof *c->work);
    if (!c->plan || !c->parts || !c->run || !c->steps || !c->sampled || !c->logits || !c->work)
        return nb_fail_nomem(err, "the engine thread", n * sizeof *c->parts);
    nb_status s = NB_OK;
    for (size_t i = 0; i < c->threads && s == NB_OK; i++) s = nb_sample_work_new(c->vocab, &c->work[i], err);
    return s;
}

static void drop(nb_core *c)
{
    for (size_t i = 0; c->work && i < c->threads; i++) nb_sample_work_free(c->work[i]);
    nb_sched_free(c->sched);
    nb_guard_free(c->guard);
    free(c->plan);
    free(c->parts);
    free(c->run);
    free(c->steps);
    free(c->sampled);
    free(c->logits);
    free(c->work);
    free(c);
}

static nb_status start(nb_core *c, nb_error *err)
{
    int rc = nb_thread_start(&c->thread, engine_main, c);
    if (!rc) return NB_OK;
    nb_fail(err, NB_ERR_LIMIT, "the operating system refused the engine's thread: %s", strerror(rc));
    nb_error_remedy(err, "raise ulimit -u and the cgroup's pids.max");
    return NB_ERR_LIMIT;
}

nb_status nb_core_new(nb_engine *e, const nb_tokenizer *t, const nb_core_options *opt, nb_core **out,
                      nb_error *err)
{
    nb_status s;
    const nb_model *m = nb_engine_model(e);
    nb_core *c = calloc(1, sizeof *c);
    if (!c) return nb_fail_nomem(err, "the engine thread", sizeof *c);
    c->e = e;
    c->tok = t;
    c->opt = *opt;
    c->opt.sched.turns_at = m->turns_at;
    c->vocab = m->vocab;
    c->most_tokens = nb_sched_context(&opt->sched, nb_pages_blocks(nb_engine_pages(e)));
    for (uint32_t id = 0; id < nb_tokenizer_size(t); id++) {
        size_t n;
        if (nb_tokenizer_bytes(t, id, &n) && n > c->token_bytes) c->token_bytes = n;
    }
    nb_hist_init(&c->iteration, iteration_bounds, sizeof iteration_bounds / sizeof *iteration_bounds);
    atomic_store(&c->count.last_step, nb_now());
    if ((s = take_memory(c, err)) || (s = nb_guard_new(e, &c->opt.sink, &c->guard, err)) ||
        (s = nb_sched_new(&c->opt.sched, nb_engine_pages(e), &c->sched, err)) || (s = start(c, err))) {
        drop(c);
        return s;
    }
    *out = c;
    return NB_OK;
}

void nb_core_stop(nb_core *c, bool abort)
{
    atomic_store(&c->stopping, true);
    if (abort) atomic_store(&c->aborting, true);
    nb_core_ring_bell(c);
}

bool nb_core_idle(const nb_core *c)
{
    return !atomic_load(&c->count.live);
}

void nb_core_free(nb_core *c)
{
    if (!c) return;
    atomic_store(&c->quit, true);
    nb_core_ring_bell(c);
    pthread_join(c->thread, NULL);
    drop(c);
}

void nb_core_read(const nb_core *c, nb_core_stats *out)
{
    const nb_core_counters *n = &c->count;
    size_t live = atomic_load(&n->live), running = atomic_load(&n->running);
    *out = (nb_core_stats){.running = running < live ? running : live,
                           .waiting = running < live ? live - running : 0,
                           .seats = atomic_load(&n->seats),
                           .blocks = nb_pages_blocks(nb_engine_pages(c->e)),
                           .blocks_used = atomic_load(&n->blocks_used),
                           .prefix_queries = atomic_load(&n->prefix_queries),
                           .prefix_hits = atomic_load(&n->prefix_hits),
                           .preemptions = atomic_load(&n->preemptions),
                           .prompt_tokens = atomic_load(&n->prompt_tokens),
                           .prompt_cached = atomic_load(&n->prompt_cached),
                           .generation_tokens = atomic_load(&n->generation_tokens),
                           .steps = atomic_load(&n->steps),
                           .corrupted = atomic_load(&n->corrupted),
                           .last_step = atomic_load(&n->last_step),
                           .failed = atomic_load(&c->failed)};
}

const nb_hist *nb_core_iteration_tokens(const nb_core *c)
{
    return &c->iteration;
}

size_t nb_core_guard(const nb_core *c, nb_guard_count *out, size_t cap)
{
    return nb_guard_read(c->guard, out, cap);
}
