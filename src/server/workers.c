/* A queue, a mutex, a condition: the work takes milliseconds, so that nothing finer is worth it. */
#include "server/workers.h"

#include <stdlib.h>

#include "base/thread.h"

struct nb_workers {
    pthread_mutex_t lock;
    pthread_cond_t more;
    nb_task *first, **last;
    bool stop;
    size_t n, started;
    pthread_t thread[16];
};

typedef struct start {
    nb_workers *w;
    size_t index;
} start;

static void *work(void *arg)
{
    start at = *(start *)arg;
    nb_workers *w = at.w;
    free(arg);
    pthread_setname_np(pthread_self(), "nibble-worker");
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->first && !w->stop) pthread_cond_wait(&w->more, &w->lock);
        nb_task *t = w->first;
        if (!t) break;
        w->first = t->next;
        if (!w->first) w->last = &w->first;
        pthread_mutex_unlock(&w->lock);
        t->run(t, at.index);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

nb_status nb_workers_new(size_t n, nb_workers **out, nb_error *err)
{
    nb_workers *w = calloc(1, sizeof *w);
    if (!w) return nb_fail_nomem(err, "worker threads", sizeof *w);
    w->n = n < sizeof w->thread / sizeof *w->thread ? n : sizeof w->thread / sizeof *w->thread;
    w->last = &w->first;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->more, NULL);
    for (; w->started < w->n; w->started++) {
        start *at = malloc(sizeof *at);
        if (!at) break;
        *at = (start){w, w->started};
        if (nb_thread_start(&w->thread[w->started], work, at) != 0) {
            free(at);
            break;
        }
    }
    if (w->started < w->n) {
        nb_workers_free(w);
        return nb_fail(err, NB_ERR_NOMEM, "cannot start %zu worker threads", n);
    }
    *out = w;
    return NB_OK;
}

void nb_workers_free(nb_workers *w)
{
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->more);
    pthread_mutex_unlock(&w->lock);
    for (size_t i = 0; i < w->started; i++) pthread_join(w->thread[i], NULL);
    pthread_cond_destroy(&w->more);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

void nb_workers_post(nb_workers *w, nb_task *task)
{
    task->next = NULL;
    pthread_mutex_lock(&w->lock);
    *w->last = task;
    w->last = &task->next;
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
}
