/*
 * What /metrics shows: vLLM's names, labels and buckets, so that dashboards made for it work here. Histograms are filled by the
 * answers (api.h) on the loop thread; gauges and counters of the engine are read when somebody asks.
 */
#ifndef NB_SERVER_METRICS_H
#define NB_SERVER_METRICS_H

#include "base/buf.h"
#include "engine/core.h"

typedef struct nb_metrics nb_metrics;

/* model: the label model_name (copied). max_context bounds the 1-2-5 series of token buckets. */
nb_status nb_metrics_new(const char *model, size_t max_context, nb_metrics **out, nb_error *err);
void nb_metrics_free(nb_metrics *m);

/* One sequence ended. */
typedef struct nb_request_record {
    size_t prompt_tokens, cached_tokens, output_tokens, max_tokens, n;
    nb_finish finish;
    nb_request_times times;
    double finished; /* CLOCK_MONOTONIC seconds */
} nb_request_record;
void nb_metrics_request(nb_metrics *m, const nb_request_record *r);
/* The time between two output tokens of one sequence. */
void nb_metrics_token(nb_metrics *m, double seconds);
/* One HTTP exchange ended (http_requests_total, http_request_duration_seconds). handler: the route's pattern, static storage. */
void nb_metrics_http(nb_metrics *m, const char *handler, const char *method, int status, double seconds);

/* Appends the whole page in text format 0.0.4. Any thread while the writers write. core may be NULL: still loading. */
void nb_metrics_write(const nb_metrics *m, const nb_core *core, nb_buf *out);

#endif
