/* What nb_metrics holds: shared by the file that counts and the file that prints. */
#ifndef NB_SERVER_METRICS_STATE_H
#define NB_SERVER_METRICS_STATE_H

#include "server/metrics.h"

enum {
    HIST_PROMPT,
    HIST_GENERATION,
    HIST_MAX_GENERATION,
    HIST_MAX_TOKENS,
    HIST_PREFILL_COMPUTED,
    HIST_N,
    HIST_TTFT,
    HIST_INTER_TOKEN,
    HIST_PER_OUTPUT_TOKEN,
    HIST_E2E,
    HIST_QUEUE,
    HIST_INFERENCE,
    HIST_PREFILL,
    HIST_DECODE,
    HIST_COUNT
};

#define NB_FINISH_KINDS (NB_FINISH_ERROR + 1)

typedef struct nb_http_series {
    const char *handler, *method;
    double created;             /* seconds since 1970 */
    _Atomic uint64_t status[6]; /* by hundreds: [2] is 2xx */
    _Atomic uint64_t received, sent;
    nb_hist seconds;
} nb_http_series;

struct nb_metrics {
    char *model;    /* as a label's value, escaped */
    double created; /* seconds since 1970 */
    double token_bounds[NB_HIST_MAX];
    size_t n_token_bounds;
    nb_hist hist[HIST_COUNT];
    _Atomic uint64_t finished[NB_FINISH_KINDS];
    nb_http_series http[NB_METRICS_ROUTES];
    _Atomic size_t n_http; /* entries below it do not change their names any more */
    _Atomic(char *) info[NB_METRICS_INFOS];
};

/* Appends s as a label's value: backslash, quote and line feed escaped. */
void nb_metrics_escape(const char *s, nb_buf *out);

#endif
