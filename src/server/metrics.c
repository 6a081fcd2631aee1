/* Counting: one writer, the loop thread, and readers that take no lock. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/metrics_state.h"

/* vllm/v1/metrics/loggers.py */
static const double first_token_bounds[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                            1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
static const double token_time_bounds[] = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                           .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
static const double request_bounds[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                        30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
static const double n_bounds[] = {1, 2, 5, 10, 20};
static const double http_bounds[] = {.1, .5, 1}; /* prometheus-fastapi-instrumentator's */

#define N(a) (sizeof(a) / sizeof *(a))

void nb_metrics_escape(const char *s, nb_buf *out)
{
    for (; *s; s++) {
        if (*s == '\\' || *s == '"') nb_buf_addc(out, '\\');
        if (*s == '\n')
            nb_buf_adds(out, "\\n");
        else
            nb_buf_addc(out, *s);
    }
}

static double wall_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

nb_status nb_metrics_new(const char *model, size_t max_context, nb_metrics **out, nb_error *err)
{
    nb_buf label = {0};
    nb_metrics *m = calloc(1, sizeof *m);
    nb_metrics_escape(model, &label);
    if (m && nb_buf_ok(&label)) m->model = strdup(nb_buf_str(&label));
    nb_buf_free(&label);
    if (!m || !m->model) {
        free(m);
        return nb_fail_nomem(err, "metrics", sizeof *m);
    }
    m->created = wall_clock();
    /* 1, 2, 5, 10, … up to max_context */
    double decade = 1;
    for (size_t i = 0; i < NB_HIST_MAX; i++) {
        static const double step[] = {1, 2, 5};
        double bound = decade * step[i % 3];
        if (bound > (double)max_context) break;
        m->token_bounds[m->n_token_bounds++] = bound;
        if (i % 3 == 2) decade *= 10;
    }
    for (int i = 0; i < HIST_COUNT; i++) {
        const double *bounds = request_bounds;
        size_t n = N(request_bounds);
        if (i <= HIST_PREFILL_COMPUTED) {
            bounds = m->token_bounds;
            n = m->n_token_bounds;
        } else if (i == HIST_N) {
            bounds = n_bounds;
            n = N(n_bounds);
        } else if (i == HIST_TTFT) {
            bounds = first_token_bounds;
            n = N(first_token_bounds);
        } else if (i == HIST_INTER_TOKEN || i == HIST_PER_OUTPUT_TOKEN) {
            bounds = token_time_bounds;
            n = N(token_time_bounds);
        }
        nb_hist_init(&m->hist[i], bounds, n);
    }
    *out = m;
    return NB_OK;
}

void nb_metrics_free(nb_metrics *m)
{
    if (!m) return;
    for (size_t i = 0; i < NB_METRICS_INFOS; i++) free(atomic_load(&m->info[i]));
    free(m->model);
    free(m);
}

nb_status nb_metrics_info(nb_metrics *m, const char *name, const char *help, const nb_label *labels, size_t n,
                          nb_error *err)
{
    nb_buf text = {0};
    char *line = NULL;
    nb_buf_addf(&text, "# HELP %s %s\n# TYPE %s gauge\n%s{engine=\"0\"", name, help, name, name);
    for (size_t i = 0; i < n; i++) {
        nb_buf_addf(&text, ",%s=\"", labels[i].name);
        nb_metrics_escape(labels[i].value, &text);
        nb_buf_addc(&text, '"');
    }
    nb_buf_addf(&text, ",model_name=\"%s\"} 1.0\n", m->model);
    if (nb_buf_ok(&text)) line = strdup(nb_buf_str(&text));
    nb_buf_free(&text);
    if (!line) return nb_fail_nomem(err, "a metric", 0);
    for (size_t i = 0; i < NB_METRICS_INFOS; i++) {
        char *none = NULL;
        if (atomic_compare_exchange_strong(&m->info[i], &none, line)) return NB_OK;
    }
    free(line);
    return nb_fail(err, NB_ERR_LIMIT, "more than %d metrics of facts", NB_METRICS_INFOS);
}

/* The time from a to b, unless it never came to one of them. */
static void observe_span(nb_metrics *m, int hist, double a, double b)
{
    if (a > 0 && b > 0) nb_hist_add(&m->hist[hist], b > a ? b - a : 0, 1);
}

void nb_metrics_request(nb_metrics *m, const nb_request_record *r)
{
    const nb_request_times *t = &r->times;
    atomic_fetch_add(&m->finished[r->finish], 1);
    nb_hist_add(&m->hist[HIST_PROMPT], (double)r->prompt_tokens, 1);
    nb_hist_add(&m->hist[HIST_GENERATION], (double)r->output_tokens, 1);
    nb_hist_add(&m->hist[HIST_MAX_TOKENS], (double)r->max_tokens, 1);
    nb_hist_add(&m->hist[HIST_PREFILL_COMPUTED], (double)(r->prompt_tokens - r->cached_tokens), 1);
    if (r->n) nb_hist_add(&m->hist[HIST_N], (double)r->n, 1);
    if (r->n) nb_hist_add(&m->hist[HIST_MAX_GENERATION], (double)r->longest, 1);
    observe_span(m, HIST_TTFT, t->arrival, t->first_token);
    observe_span(m, HIST_E2E, t->arrival, r->finished);
    observe_span(m, HIST_QUEUE, t->arrival, t->scheduled);
    observe_span(m, HIST_INFERENCE, t->scheduled, t->last_token);
    observe_span(m, HIST_PREFILL, t->scheduled, t->first_token);
    observe_span(m, HIST_DECODE, t->first_token, t->last_token);
    if (r->output_tokens > 1 && t->first_token > 0)
        nb_hist_add(&m->hist[HIST_PER_OUTPUT_TOKEN],
                    (t->last_token - t->first_token) / (double)(r->output_tokens - 1), 1);
}

void nb_metrics_token(nb_metrics *m, double seconds)
{
    nb_hist_add(&m->hist[HIST_INTER_TOKEN], seconds, 1);
}

void nb_metrics_http(nb_metrics *m, const nb_http_record *r)
{
    if (r->status < 100 || r->status >= 600) return; /* it ended before it had an answer */
    size_t n = atomic_load(&m->n_http), i = 0;
    while (i < n &&
           (strcmp(m->http[i].handler, r->handler) != 0 || strcmp(m->http[i].method, r->method) != 0))
        i++;
    if (i == NB_METRICS_ROUTES) return;
    nb_http_series *s = &m->http[i];
    if (i == n) {
        s->handler = r->handler;
        s->method = r->method;
        s->created = wall_clock();
        nb_hist_init(&s->seconds, http_bounds, N(http_bounds));
        atomic_store(&m->n_http, n + 1);
    }
    atomic_fetch_add(&s->status[r->status / 100], 1);
    atomic_fetch_add(&s->received, r->received);
    atomic_fetch_add(&s->sent, r->sent);
    nb_hist_add(&s->seconds, r->seconds, 1);
}
