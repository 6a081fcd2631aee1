/* Formats a line and hands it to the caller's sink. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void nb_log(const nb_sink *sink, nb_log_level level, const char *fmt, ...)
{
    if (!sink || !sink->log) return;
    char line[512];
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    /* A line that does not fit is made again on the heap; without memory the cut one is better than none. */
    char *longer = n >= (int)sizeof line ? malloc((size_t)n + 1) : NULL;
    if (longer) vsnprintf(longer, (size_t)n + 1, fmt, again);
    va_end(again);
    if (n >= 0) sink->log(sink->ctx, level, longer ? longer : line);
    free(longer);
}
