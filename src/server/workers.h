/* A few threads for what would hold up the event loop: parsing, templates, tokenising. Tasks run in the order they come. */
#ifndef NB_SERVER_WORKERS_H
#define NB_SERVER_WORKERS_H

#include "base/error.h"

typedef struct nb_workers nb_workers;

/* Part of whoever posts it; must live until run has returned. */
typedef struct nb_task {
    void (*run)(struct nb_task *task, size_t worker); /* worker: 0 … n - 1, for memory of its own */
    struct nb_task *next;
} nb_task;

nb_status nb_workers_new(size_t n, nb_workers **out, nb_error *err);
/* Runs what is queued, then ends the threads. w may be NULL. */
void nb_workers_free(nb_workers *w);
/* Any thread. */
void nb_workers_post(nb_workers *w, nb_task *task);

#endif
