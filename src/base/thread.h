/* Threads that run operators: where their stacks come from must not decide whether an operator has room. */
#ifndef NB_BASE_THREAD_H
#define NB_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* What an operator may need: the tiles of kernels/cpu/amx/linear.c are 1.1 MB, and a ulimit -s or another C library may give a thread
 * 128 KB. */
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
