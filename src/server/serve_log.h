/* Log lines of the server: a message and its facts, as text for people or as JSON lines for collectors. */
#ifndef NB_SERVER_SERVE_LOG_H
#define NB_SERVER_SERVE_LOG_H

#include <stddef.h>

#include "nibble.h"

typedef struct nb_serve_log {
    bool json;
    nb_log_level least; /* what is below it is dropped */
    /* Takes one line, newline included, from any thread. */
    void (*write)(void *ctx, const char *line, size_t n);
    void *ctx;
} nb_serve_log;

typedef struct nb_log_field {
    const char *name;
    const char *text; /* NULL: number counts */
    double number;
} nb_log_field;

/* "2026-11-29T21:30:16.123Z INFO message name=value …", or {"time","level","message","name":value …}. Bytes that are no UTF-8 or
 * would end the line are escaped. Without memory the line is lost. */
void nb_serve_log_line(const nb_serve_log *l, nb_log_level level, const char *message,
                       const nb_log_field *field, size_t n);

#endif
