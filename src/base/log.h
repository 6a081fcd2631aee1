/* How library code talks while it works: through a sink that the caller gives, never to stdout or stderr. */
#ifndef NB_BASE_LOG_H
#define NB_BASE_LOG_H

#include <stdint.h>

typedef enum nb_log_level { NB_LOG_DEBUG, NB_LOG_INFO, NB_LOG_WARN, NB_LOG_ERROR } nb_log_level;

typedef struct nb_sink {
    /* One finished line, no newline. May be NULL. May be called from any thread. */
    void (*log)(void *ctx, nb_log_level level, const char *line);
    /* Progress of one named piece of work in bytes (or items); done == total ends it. May be NULL. Called from
     * one thread at a time. */
    void (*progress)(void *ctx, const char *what, uint64_t done, uint64_t total);
    void *ctx;
} nb_sink;

/* printf to sink->log; sink and sink->log may be NULL. */
void nb_log(const nb_sink *sink, nb_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
