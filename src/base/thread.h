/* Threads with a stack that operators, parsers and checks fit, whatever a ulimit -s or the C library gives by itself. */
#ifndef NB_BASE_THREAD_H
#define NB_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* The largest are an operator's slices of many rows, 0.5 MB in kernels/cpu/avx2/bf16.c. */
#define NB_STACK_BYTES ((size_t)2 << 20)

/* Starts fn(arg) in a thread that gets no signals, which are for the program's own, and has NB_STACK_BYTES of stack or more. Returns 0, or
 * an errno. */
static inline int nb_thread_start(pthread_t *thread, void *(*fn)(void *), void *arg)
{
    pthread_attr_t attr;
    sigset_t all, old;
    size_t stack = 0;
    int rc = pthread_attr_init(&attr);
    if (rc) return rc;
    pthread_attr_getstacksize(&attr, &stack);
    if (stack < NB_STACK_BYTES) rc = pthread_attr_setstacksize(&attr, NB_STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    if (!rc) rc = pthread_create(thread, &attr, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return rc;
}

#endif
