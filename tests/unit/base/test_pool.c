/* The pool's contract: every item once, on the thread that the split says, and no worker lost between spinning and parking
 * while other programs hold the processors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/pool.h"

enum { ITEMS = 1000, THREADS = 5 };

typedef struct record {
    atomic_int seen[ITEMS];
    atomic_int calls[THREADS];
    atomic_bool alone; /* nobody took it */
    atomic_int items;  /* that pieces of this round have begun with */
    size_t begin[THREADS], end[THREADS];
} record;

static void note(void *ctx, size_t thread, size_t begin, size_t end)
{
    record *r = ctx;
    atomic_fetch_add(&r->calls[thread], 1);
    r->begin[thread] = begin;
    r->end[thread] = end;
    for (size_t i = begin; i < end; i++) atomic_fetch_add(&r->seen[i], 1);
}

static void check_split(nb_pool *p, size_t threads, size_t items, size_t grain)
{
    record *r = calloc(1, sizeof *r);
    assert_non_null(r);
    nb_pool_run(p, items, grain, note, r);
    size_t next = 0;
    for (size_t t = 0; t < threads; t++) {
        assert_true(r->calls[t] <= 1);
        if (!r->calls[t]) continue;
        assert_int_equal(r->begin[t], next);
        assert_int_equal(r->begin[t] % grain, 0);
        assert_true(r->end[t] > r->begin[t]);
        next = r->end[t];
    }
    assert_int_equal(next, items);
    for (size_t i = 0; i < items; i++) assert_int_equal(r->seen[i], 1);
    free(r);
}

static void note_piece(void *ctx, size_t thread, size_t begin, size_t end)
{
    record *r = ctx;
    atomic_fetch_add(&r->calls[thread], 1);
    atomic_fetch_add(&r->items, (int)(end - begin));
    /* held up until the others have all the rest, for a minute at most */
    for (int i = 0; thread == 0 && r->items < ITEMS && !r->alone; i++) {
        usleep(1000);
        r->alone = i >= 60000;
    }
    for (size_t i = begin; i < end; i++) atomic_fetch_add(&r->seen[i], 1);
}

/* 10 pieces of 100 items; the held-up thread's own part are the first two, of which others take the second. */
static void shares_the_work_of_a_slow_thread(void **state)
{
    nb_pool *p;
    record *r = calloc(1, sizeof *r);
    assert_non_null(r);
    assert_int_equal(nb_pool_new(THREADS, &p, NULL), NB_OK);
    for (int round = 1; round <= 20; round++) {
        r->items = 0;
        nb_pool_share(p, ITEMS, ITEMS / 10, note_piece, r);
        for (size_t i = 0; i < ITEMS; i++) assert_int_equal(r->seen[i], round);
    }
    int calls = 0;
    for (size_t t = 0; t < THREADS; t++) calls += r->calls[t];
    assert_int_equal(calls, 20 * 10);
    assert_false(r->alone);
    assert_true(r->calls[0] <= 20); /* on a busy machine perhaps none: woken workers come first */
    nb_pool_free(p);
    free(r);
}

static void runs_every_item_once(void **state)
{
    for (size_t threads = 1; threads <= THREADS; threads++) {
        nb_pool *p;
        assert_int_equal(nb_pool_new(threads, &p, NULL), NB_OK);
        assert_int_equal(nb_pool_threads(p), threads);
        for (size_t items = 0; items <= ITEMS; items += 1 + items / 3)
            for (size_t grain = 1; grain <= 64; grain *= 2) check_split(p, threads, items, grain);
        nb_pool_free(p);
    }
    check_split(NULL, 1, 17, 4);
    assert_int_equal(nb_pool_threads(NULL), 1);
}

/* 10 grains over 4 threads: 3, 3, 2, 2; the last grain is short. Twice the same. */
static void split_is_even_and_fixed(void **state)
{
    nb_pool *p;
    assert_int_equal(nb_pool_new(4, &p, NULL), NB_OK);
    for (int again = 0; again < 2; again++) {
        record *r = calloc(1, sizeof *r);
        assert_non_null(r);
        nb_pool_run(p, 155, 16, note, r);
        const size_t begin[] = {0, 48, 96, 128}, end[] = {48, 96, 128, 155};
        assert_memory_equal(r->begin, begin, sizeof begin);
        assert_memory_equal(r->end, end, sizeof end);
        free(r);
    }
    nb_pool_free(p);
}

static void too_many_threads(void **state)
{
    nb_pool *p = NULL;
    nb_error err;
    assert_int_equal(nb_pool_new(1025, &p, &err), NB_ERR_ARGUMENT);
    assert_null(p);
    assert_non_null(strstr(err.cause, "1025"));
}

/* No address space for that many stacks: an error with a remedy, and the threads that did start are gone (a leak or a use after
 * free would show under the sanitizers; those reserve terabytes, so that no such limit can be set there). */
static void threads_refused(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
    struct rlimit old, low;
    assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
    low = old;
    low.rlim_cur = (rlim_t)256 << 20;
    assert_int_equal(setrlimit(RLIMIT_AS, &low), 0);
    nb_pool *p = NULL;
    nb_error err;
    nb_status s = nb_pool_new(1000, &p, &err);
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
    assert_int_equal(s, NB_ERR_LIMIT);
    assert_null(p);
    assert_non_null(strstr(err.cause, "of 1000"));
    assert_true(err.remedy[0] != '\0');
}

static void note_stack(void *ctx, size_t thread, size_t begin, size_t end)
{
    pthread_attr_t attr;
    void *at;
    if (pthread_getattr_np(pthread_self(), &attr) != 0) return;
    pthread_attr_getstack(&attr, &at, (size_t *)ctx + thread);
    pthread_attr_destroy(&attr);
}

/* As under ulimit -s 128, or musl. AMX's linear keeps 1.1 MB there. */
static void stacks_hold_an_operator(void **state)
{
    pthread_attr_t attr;
    size_t stack[4] = {0}, old;
    nb_pool *p;
    assert_int_equal(pthread_getattr_default_np(&attr), 0);
    assert_int_equal(pthread_attr_getstacksize(&attr, &old), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, 128 << 10), 0);
    assert_int_equal(pthread_setattr_default_np(&attr), 0);
    nb_status s = nb_pool_new(4, &p, NULL);
    assert_int_equal(pthread_attr_setstacksize(&attr, old), 0);
    assert_int_equal(pthread_setattr_default_np(&attr), 0);
    pthread_attr_destroy(&attr);
    assert_int_equal(s, NB_OK);
    nb_pool_run(p, 4, 1, note_stack, stack);
    nb_pool_free(p);
    for (size_t i = 1; i < 4; i++) assert_true(stack[i] >= (size_t)2 << 20);
}

static void *busy(void *stop)
{
    for (volatile unsigned x = 0; !atomic_load_explicit((atomic_bool *)stop, memory_order_relaxed);
         x = x + 1) {}
    return NULL;
}

static void add(void *ctx, size_t thread, size_t begin, size_t end)
{
    atomic_fetch_add((atomic_size_t *)ctx, end - begin);
}

/* Tens of thousands of short jobs with pauses of 0 to 100 us around the time at which workers park, beside threads that
 * keep every processor busy. A lost wake-up shows as a hang: the alarm then ends the test. */
static void survives_competing_load(void **state)
{
    alarm(120);
    atomic_bool stop = false;
    pthread_t load[4];
    for (size_t i = 0; i < 4; i++) assert_int_equal(pthread_create(&load[i], NULL, busy, &stop), 0);
    for (size_t threads = 2; threads <= 4; threads++) {
        nb_pool *p;
        assert_int_equal(nb_pool_new(threads, &p, NULL), NB_OK);
        atomic_size_t sum = 0;
        unsigned seed = 1;
        struct timespec t0, t;
        clock_gettime(CLOCK_MONOTONIC, &t0);
        size_t runs = 0;
        do {
            nb_pool_run(p, 64, 1, add, &sum);
            runs++;
            seed = seed * 1103515245u + 12345u;
            unsigned pause = (seed >> 16) % 100;
            if (pause < 30) nanosleep(&(struct timespec){.tv_nsec = pause * 3000}, NULL);
            clock_gettime(CLOCK_MONOTONIC, &t);
        } while (t.tv_sec - t0.tv_sec < 2 && runs < 20000);
        assert_int_equal(sum, runs * 64);
        nb_pool_free(p);
    }
    atomic_store(&stop, true);
    for (size_t i = 0; i < 4; i++) pthread_join(load[i], NULL);
    alarm(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_every_item_once),    cmocka_unit_test(shares_the_work_of_a_slow_thread),
        cmocka_unit_test(split_is_even_and_fixed), cmocka_unit_test(too_many_threads),
        cmocka_unit_test(threads_refused),         cmocka_unit_test(stacks_hold_an_operator),
        cmocka_unit_test(survives_competing_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
