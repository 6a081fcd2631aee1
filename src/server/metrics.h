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
    size_t prompt_tokens, cached_tokens, output_tokens, max_tokens;
    size_t n;       /* of the request, if this was the last of a prompt's n sequences to end; else 0 */
    size_t longest; /* the most output tokens of one of those */
    nb_finish finish;
    nb_request_times times;
    double finished; /* CLOCK_MONOTONIC seconds */
} nb_request_record;
void nb_metrics_request(nb_metrics *m, const nb_request_record *r);
/* The time between two output tokens of one sequence. */
void nb_metrics_token(nb_metrics *m, double seconds);
/* One HTTP exchange ended (http_requests_total, http_request_duration_seconds, http_request_size_bytes, http_response_size_bytes). One
 * without a status, which ended before it had an answer, is left out. At most NB_METRICS_ROUTES pairs of handler and method are told apart. */
#define NB_METRICS_ROUTES 64
typedef struct nb_http_record {
    const char *handler, *method; /* the route's pattern, and a method: static storage */
    int status;
    double seconds;
    uint64_t received, sent; /* bytes of the two bodies */
} nb_http_record;
void nb_metrics_http(nb_metrics *m, const nb_http_record *r);

/* A metric that is facts: NAME{labels} 1, for vllm:cache_config_info and nibble:model_info. Strings are copied, except name and
 * help. At most NB_METRICS_INFOS of them. Any one thread. */
#define NB_METRICS_INFOS 4
typedef struct nb_label {
    const char *name, *value;
} nb_label;
nb_status nb_metrics_info(nb_metrics *m, const char *name, const char *help, const nb_label *labels, size_t n,
                          nb_error *err);

/* Appends the whole page in text format 0.0.4. Any thread while the writers write. core may be NULL: still loading. */
void nb_metrics_write(const nb_metrics *m, const nb_core *core, nb_buf *out);

/* What the page takes from the engine, and the page made of it: nb_metrics_write is the two together. */
typedef struct nb_metrics_engine {
    nb_core_stats stats;
    const nb_hist *iteration_tokens; /* NULL: none yet */
    const nb_guard_count *guard;     /* [n_guard] */
    size_t n_guard;
} nb_metrics_engine;
void nb_metrics_write_page(const nb_metrics *m, const nb_metrics_engine *e, nb_buf *out);

#endif
