/* The text of /metrics (Prometheus text format 0.0.4), as prometheus_client prints vLLM's: labels sorted, numbers as Python's. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "server/metrics_state.h"

/* The shortest text that reads back as v; whole numbers end in ".0". */
static void number(nb_buf *out, double v)
{
    char text[40];
    if (!isfinite(v)) {
        nb_buf_adds(out, isnan(v) ? "NaN" : v > 0 ? "+Inf" : "-Inf");
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    if (fabs(v) < 1e16 && v == floor(v)) snprintf(text, sizeof text, "%.1f", v);
    nb_buf_adds(out, text);
}

static void head(nb_buf *out, const char *name, const char *type, const char *help)
{
    nb_buf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* What prometheus_client prints after each counter and histogram: since when it counts. A counter's _total is no part of the name. */
static void created_head(nb_buf *out, const char *name, const char *type, const char *help)
{
    size_t n = strlen(name), total = strcmp(type, "counter") == 0 ? strlen("_total") : 0;
    nb_buf_addf(out, "# HELP %.*s_created %s\n# TYPE %.*s_created gauge\n", (int)(n - total), name, help,
                (int)(n - total), name);
}

/* NAME{engine="0",KEY="VALUE",model_name="…"} v, labels in order. key may be NULL. */
static void sample(const nb_metrics *m, nb_buf *out, const char *name, const char *key, const char *value,
                   double v)
{
    bool before = key && strcmp(key, "model_name") < 0;
    nb_buf_addf(out, "%s{engine=\"0\"", name);
    if (before) nb_buf_addf(out, ",%s=\"%s\"", key, value);
    nb_buf_addf(out, ",model_name=\"%s\"", m->model);
    if (key && !before) nb_buf_addf(out, ",%s=\"%s\"", key, value);
    nb_buf_adds(out, "} ");
    number(out, v);
    nb_buf_addc(out, '\n');
}

static void single(const nb_metrics *m, nb_buf *out, const char *name, const char *type, const char *help,
                   double v)
{
    head(out, name, type, help);
    sample(m, out, name, NULL, NULL, v);
}

/* A counter with one sample for each of the n values of a label; key NULL: a sample without. */
static void counter(const nb_metrics *m, nb_buf *out, const char *name, const char *help, const char *key,
                    const char *const *values, const double *v, size_t n)
{
    char created[128];
    head(out, name, "counter", help);
    for (size_t i = 0; i < n; i++) sample(m, out, name, key, key ? values[i] : NULL, v[i]);
    created_head(out, name, "counter", help);
    snprintf(created, sizeof created, "%.*s_created", (int)(strlen(name) - strlen("_total")), name);
    for (size_t i = 0; i < n; i++) sample(m, out, created, key, key ? values[i] : NULL, m->created);
}

/* before, after: the labels around le, in order. */
static void histogram(nb_buf *out, const char *name, const char *before, const char *after, const nb_hist *h)
{
    uint64_t below = 0;
    for (size_t i = 0; i <= h->n; i++) {
        below += atomic_load(&h->count[i]);
        nb_buf_addf(out, "%s_bucket{%s,le=\"", name, before);
        number(out, i < h->n ? h->bound[i] : INFINITY);
        nb_buf_addf(out, "\",%s} ", after);
        number(out, (double)below);
        nb_buf_addc(out, '\n');
    }
    nb_buf_addf(out, "%s_count{%s,%s} ", name, before,
                after); /* the last bucket's, whatever has been added meanwhile */
    number(out, (double)below);
    nb_buf_addf(out, "\n%s_sum{%s,%s} ", name, before, after);
    number(out, atomic_load(&h->sum));
    nb_buf_addc(out, '\n');
}

static void engine_gauges(const nb_metrics *m, const nb_core_stats *s, nb_buf *out)
{
    single(m, out, "vllm:num_requests_running", "gauge", "Requests in the batches of the engine.",
           (double)s->running);
    single(m, out, "vllm:num_requests_waiting", "gauge", "Requests that wait to be started.",
           (double)s->waiting);
    head(out, "vllm:num_requests_waiting_by_reason", "gauge",
         "Requests that wait to be started, by what they wait for.");
    sample(m, out, "vllm:num_requests_waiting_by_reason", "reason", "capacity", (double)s->waiting);
    sample(m, out, "vllm:num_requests_waiting_by_reason", "reason", "deferred", 0);
    single(m, out, "vllm:kv_cache_usage_perc", "gauge",
           "Share of the KV blocks that live requests hold (1 is all).",
           s->blocks ? (double)s->blocks_used / (double)s->blocks : 0);
    head(out, "vllm:engine_sleep_state", "gauge", "1 for the state that the engine is in; it never sleeps.");
    sample(m, out, "vllm:engine_sleep_state", "sleep_state", "awake", 1);
    sample(m, out, "vllm:engine_sleep_state", "sleep_state", "weights_offloaded", 0);
    sample(m, out, "vllm:engine_sleep_state", "sleep_state", "discard_all", 0);
}

static void engine_counters(const nb_metrics *m, const nb_core_stats *s, nb_buf *out)
{
    const struct {
        const char *name, *help;
        uint64_t value;
    } counters[] = {
        {"vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
         s->prefix_queries},
        {"vllm:prefix_cache_hits_total", "Prompt tokens that the prefix cache gave.", s->prefix_hits},
        {"vllm:external_prefix_cache_queries_total",
         "Prompt tokens looked up in other servers' caches: none here.", 0},
        {"vllm:external_prefix_cache_hits_total", "Prompt tokens that other servers' caches gave: none here.",
         0},
        {"vllm:mm_cache_queries_total", "Look-ups of images and sound: none here.", 0},
        {"vllm:mm_cache_hits_total", "Images and sounds found in the cache: none here.", 0},
        {"vllm:num_preemptions_total", "Times that a request lost its memory and waited again.",
         s->preemptions},
        {"vllm:prompt_tokens_total", "Prompt tokens processed.", s->prompt_tokens},
        {"vllm:prompt_tokens_cached_total", "Prompt tokens that the prefix cache gave, of those processed.",
         s->prompt_cached},
        {"vllm:generation_tokens_total", "Tokens generated.", s->generation_tokens},
        {"vllm:corrupted_requests_total", "Requests with a row that was not finite, healed or failed.",
         s->corrupted},
        {"nibble:engine_steps_total", "Steps of the engine.", s->steps}};
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++)
        counter(m, out, counters[i].name, counters[i].help, NULL, NULL, &(double){(double)counters[i].value},
                1);
    uint64_t computed = s->prompt_tokens > s->prompt_cached ? s->prompt_tokens - s->prompt_cached : 0;
    static const char *const sources[] = {"local_compute", "local_cache_hit", "external_kv_transfer"};
    counter(m, out, "vllm:prompt_tokens_by_source_total", "Prompt tokens by where their state came from.",
            "source", sources, (const double[]){(double)computed, (double)s->prompt_cached, 0}, 3);
}

static void finishes(const nb_metrics *m, nb_buf *out)
{
    static const nb_finish kinds[] = {NB_FINISH_STOP, NB_FINISH_LENGTH, NB_FINISH_ABORT, NB_FINISH_ERROR};
    static const char *const reasons[] = {"stop", "length", "abort", "error", "repetition"};
    double v[5] = {0}; /* nothing ends by repetition here */
    for (size_t i = 0; i < 4; i++) v[i] = (double)atomic_load(&m->finished[kinds[i]]);
    counter(m, out, "vllm:request_success_total", "Requests that ended, by how.", "finished_reason", reasons,
            v, 5);
}

static bool same_event(const nb_guard_count *a, const nb_guard_count *b)
{
    return a->layer == b->layer && strcmp(a->operator_name, b->operator_name) == 0 &&
           strcmp(a->rung, b->rung) == 0;
}

/* One sample a (layer, operator, rung), summed over modules. */
static void guard_events(const nb_metrics *m, const nb_metrics_engine *e, nb_buf *out)
{
    head(out, "nibble:guard_events_total", "counter",
         "Rows that were not finite, by the operator at fault and the rung of the ladder that healed them "
         "(failed: none).");
    for (size_t i = 0; i < e->n_guard; i++) {
        const nb_guard_count *g = &e->guard[i];
        uint64_t sum = 0;
        bool told = false;
        for (size_t j = 0; j < e->n_guard; j++) {
            if (!same_event(g, &e->guard[j])) continue;
            told = told || j < i;
            sum += e->guard[j].count;
        }
        if (told) continue;
        nb_buf_addf(out, "nibble:guard_events_total{engine=\"0\",layer=\"%d\",model_name=\"%s\",operator=\"",
                    g->layer, m->model);
        nb_metrics_escape(g->operator_name, out);
        nb_buf_adds(out, "\",rung=\"");
        nb_metrics_escape(g->rung, out);
        nb_buf_adds(out, "\"} ");
        number(out, (double)sum);
        nb_buf_addc(out, '\n');
    }
}

static void engine_histogram(const nb_metrics *m, nb_buf *out, const char *name, const char *help,
                             const char *labels, const nb_hist *h)
{
    char created[128];
    head(out, name, "histogram", help);
    histogram(out, name, "engine=\"0\"", labels, h);
    created_head(out, name, "histogram", help);
    snprintf(created, sizeof created, "%s_created", name);
    sample(m, out, created, NULL, NULL, m->created);
}

static void histograms(const nb_metrics *m, const nb_metrics_engine *e, nb_buf *out)
{
    static const struct {
        const char *name, *help;
    } names[HIST_COUNT] = {
        [HIST_PROMPT] = {"vllm:request_prompt_tokens", "Prompt tokens of a request."},
        [HIST_GENERATION] = {"vllm:request_generation_tokens", "Tokens generated for a request."},
        [HIST_MAX_GENERATION] = {"vllm:request_max_num_generation_tokens",
                                 "Most tokens generated for a request."},
        [HIST_MAX_TOKENS] = {"vllm:request_params_max_tokens", "max_tokens of a request."},
        [HIST_PREFILL_COMPUTED] = {"vllm:request_prefill_kv_computed_tokens",
                                   "Prompt tokens of a request that were computed, not found in the cache."},
        [HIST_N] = {"vllm:request_params_n", "n of a request."},
        [HIST_TTFT] = {"vllm:time_to_first_token_seconds",
                       "Seconds from a request's arrival to its first token."},
        [HIST_INTER_TOKEN] = {"vllm:inter_token_latency_seconds", "Seconds between two tokens of a request."},
        [HIST_PER_OUTPUT_TOKEN] = {"vllm:request_time_per_output_token_seconds",
                                   "Seconds a token of a request, the first not counted."},
        [HIST_E2E] = {"vllm:e2e_request_latency_seconds", "Seconds from a request's arrival to its end."},
        [HIST_QUEUE] = {"vllm:request_queue_time_seconds", "Seconds that a request waited to be started."},
        [HIST_INFERENCE] = {"vllm:request_inference_time_seconds", "Seconds that a request ran."},
        [HIST_PREFILL] = {"vllm:request_prefill_time_seconds",
                          "Seconds from a request's start to its first token."},
        [HIST_DECODE] = {"vllm:request_decode_time_seconds",
                         "Seconds from a request's first token to its last."}};
    nb_buf after = {0};
    nb_buf_addf(&after, "model_name=\"%s\"", m->model);
    if (!nb_buf_ok(&after)) out->bad = true;
    for (int i = 0; i < HIST_COUNT; i++)
        engine_histogram(m, out, names[i].name, names[i].help, nb_buf_str(&after), &m->hist[i]);
    if (e->iteration_tokens)
        engine_histogram(m, out, "vllm:iteration_tokens_total", "Tokens of a step of the engine.",
                         nb_buf_str(&after), e->iteration_tokens);
    nb_buf_free(&after);
}

/* status: its hundreds; 0: of all. */
static void http_sample(nb_buf *out, const char *name, const nb_http_series *s, int status, double v)
{
    nb_buf_addf(out, "%s{handler=\"%s\",method=\"%s\"", name, s->handler, s->method);
    if (status) nb_buf_addf(out, ",status=\"%dxx\"", status);
    nb_buf_adds(out, "} ");
    number(out, v);
    nb_buf_addc(out, '\n');
}

static void http(const nb_metrics *m, nb_buf *out)
{
    size_t n = atomic_load(&m->n_http);
    char labels[256];
    head(out, "http_requests_total", "counter", "Requests by method, status and handler.");
    for (size_t i = 0; i < n; i++)
        for (int s = 1; s < 6; s++) {
            uint64_t count = atomic_load(&m->http[i].status[s]);
            if (count) http_sample(out, "http_requests_total", &m->http[i], s, (double)count);
        }
    created_head(out, "http_requests_total", "counter", "Requests by method, status and handler.");
    for (size_t i = 0; i < n; i++)
        for (int s = 1; s < 6; s++)
            if (atomic_load(&m->http[i].status[s]))
                http_sample(out, "http_requests_created", &m->http[i], s, m->http[i].created);
    head(out, "http_request_duration_seconds", "histogram",
         "Seconds from a whole request to its whole answer, by handler.");
    for (size_t i = 0; i < n; i++) {
        char method[64];
        snprintf(labels, sizeof labels, "handler=\"%s\"", m->http[i].handler);
        snprintf(method, sizeof method, "method=\"%s\"", m->http[i].method);
        histogram(out, "http_request_duration_seconds", labels, method, &m->http[i].seconds);
    }
    created_head(out, "http_request_duration_seconds", "histogram",
                 "Seconds from a whole request to its whole answer, by handler.");
    for (size_t i = 0; i < n; i++)
        http_sample(out, "http_request_duration_seconds_created", &m->http[i], 0, m->http[i].created);
}

/* A sum and a count for each handler: its methods are one. */
static void http_sizes(const nb_metrics *m, const char *name, const char *help, bool sent, nb_buf *out)
{
    size_t n = atomic_load(&m->n_http);
    head(out, name, "summary", help);
    for (size_t i = 0; i < n; i++) {
        double count = 0, sum = 0;
        bool first = true;
        for (size_t k = 0; k < n; k++) {
            const nb_http_series *s = &m->http[k];
            if (strcmp(s->handler, m->http[i].handler) != 0) continue;
            first = first && k >= i;
            for (int hundred = 0; hundred < 6; hundred++) count += (double)atomic_load(&s->status[hundred]);
            sum += (double)atomic_load(sent ? &s->sent : &s->received);
        }
        if (!first) continue;
        nb_buf_addf(out, "%s_count{handler=\"%s\"} ", name, m->http[i].handler);
        number(out, count);
        nb_buf_addf(out, "\n%s_sum{handler=\"%s\"} ", name, m->http[i].handler);
        number(out, sum);
        nb_buf_addc(out, '\n');
    }
}

static void plain(nb_buf *out, const char *name, const char *type, const char *help, double v)
{
    head(out, name, type, help);
    nb_buf_addf(out, "%s ", name);
    number(out, v);
    nb_buf_addc(out, '\n');
}

/* prometheus_client's process collector: sizes and start from /proc/self/stat, fields numbered as in proc(5). */
static void process(nb_buf *out)
{
    char text[1024];
    struct timespec wall, boot;
    FILE *f = fopen("/proc/self/stat", "re");
    size_t len = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[len] = '\0';
    const char *p = strrchr(text, ')');
    double ticks = (double)sysconf(_SC_CLK_TCK), page = (double)sysconf(_SC_PAGESIZE), field[25] = {0};
    p = p ? p + 2 : "";
    for (int i = 3; i < 25 && *p; i++) {
        field[i] = i == 3 ? 0 : strtod(p, NULL);
        p += strcspn(p, " ");
        p += *p == ' ';
    }
    clock_gettime(CLOCK_REALTIME, &wall);
    clock_gettime(CLOCK_BOOTTIME, &boot);
    double booted = (double)wall.tv_sec - (double)boot.tv_sec;
    plain(out, "process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", field[23]);
    plain(out, "process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", field[24] * page);
    plain(out, "process_start_time_seconds", "gauge",
          "Start time of the process since the Unix epoch in seconds.", booted + field[22] / ticks);
    plain(out, "process_cpu_seconds_total", "counter", "User and system CPU time in seconds.",
          (field[14] + field[15]) / ticks);
    size_t fds = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d)) fds++;
    if (d) closedir(d);
    plain(out, "process_open_fds", "gauge", "Open file descriptors.", fds > 3 ? (double)(fds - 3) : 0);
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        plain(out, "process_max_fds", "gauge", "Most file descriptors that may be open.",
              (double)limit.rlim_cur);
}

void nb_metrics_write_page(const nb_metrics *m, const nb_metrics_engine *e, nb_buf *out)
{
    engine_gauges(m, &e->stats, out);
    for (size_t i = 0; i < NB_METRICS_INFOS; i++) {
        const char *info = atomic_load(&m->info[i]);
        if (info) nb_buf_adds(out, info);
    }
    engine_counters(m, &e->stats, out);
    finishes(m, out);
    guard_events(m, e, out);
    histograms(m, e, out);
    http(m, out);
    http_sizes(m, "http_request_size_bytes", "Bytes of requests' bodies, by handler.", false, out);
    http_sizes(m, "http_response_size_bytes", "Bytes of answers' bodies, by handler.", true, out);
    process(out);
}

void nb_metrics_write(const nb_metrics *m, const nb_core *core, nb_buf *out)
{
    nb_metrics_engine e = {0};
    nb_guard_count *guard = NULL;
    if (core) {
        nb_core_read(core, &e.stats);
        e.iteration_tokens = nb_core_iteration_tokens(core);
        size_t n = nb_core_guard(core, NULL, 0);
        guard = n ? calloc(n, sizeof *guard) : NULL;
        if (n && !guard) out->bad = true;
        size_t have = guard ? nb_core_guard(core, guard, n) : 0;
        e.guard = guard;
        e.n_guard = have < n ? have : n;
    }
    nb_metrics_write_page(m, &e, out);
    free(guard);
}
