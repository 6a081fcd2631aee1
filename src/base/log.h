/* How library code talks while it works: through a sink that the caller gives, never to stdout or stderr. */
#ifndef NB_BASE_LOG_H
#define NB_BASE_LOG_H

#include "nibble.h"

/* printf to sink->log; sink and sink->log may be NULL. */
void nb_log(const nb_sink *sink, nb_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
