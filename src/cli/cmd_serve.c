/*
 * nibble serve: listens first, loads then, serves until a signal. The main thread loads, waits and takes apart; a thread of its own
 * waits for signals, so that they count even while the main thread loads or an engine hangs: it is also what ends the process
 * when taking apart takes too long.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json_tree.h"
#include "base/thread.h"
#include "cli/serve_load.h"

#define GRACE_SECONDS 4.0 /* beyond --shutdown-timeout, for what was aborted to end */

typedef struct stopper {
    pthread_t thread;
    sigset_t signals;
    sem_t asked; /* posted by the first signal */
    _Atomic bool loading;
    _Atomic bool over; /* the signal that comes is end_stopper's */
    double shutdown_seconds;
    const nb_serve_log *log;
} stopper;

static void pause_ms(long ms)
{
    struct timespec t = {.tv_nsec = ms * 1000000};
    nanosleep(&t, NULL);
}

/* ---- Logs ---- */

/* A reader of standard error that does not read must not stop the server: lines are dropped while its pipe is full, and counted. A
 * pipe that can be written to takes 4096 bytes at once. */
static bool stderr_takes(void)
{
    static _Atomic unsigned dropped;
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&p, 1, 0) == 0) {
        atomic_fetch_add(&dropped, 1);
        return false;
    }
    unsigned n = atomic_exchange(&dropped, 0);
    if (n) dprintf(STDERR_FILENO, "%u log lines were dropped: nobody read standard error\n", n);
    return true;
}

static void write_line(void *ctx, const char *line, size_t n)
{
    while (
        n &&
        stderr_takes()) { /* one call a line, as long as the kernel takes it whole: lines of threads do not mix */
        ssize_t k = write(STDERR_FILENO, line, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return;
        line += k;
        n -= (size_t)k;
    }
}

static void sink_log(void *ctx, nb_log_level level, const char *line)
{
    nb_serve_log_line(ctx, level, line, NULL, 0);
}

static void say(const nb_serve_log *log, const char *message)
{
    nb_serve_log_line(log, NB_LOG_INFO, message, NULL, 0);
}

static int fail(const nb_serve_log *log, const nb_error *err)
{
    char line[2048];
    if (!log->json) return nb_cli_fail(err);
    nb_error_format(err, line, sizeof line);
    nb_serve_log_line(log, NB_LOG_ERROR, line, NULL, 0);
    return NB_EXIT_FAILED;
}

static bool log_level(const char *name, nb_log_level *out)
{
    static const char *const names[] = {"debug", "info", "warning", "error", "trace", "warn", "critical"};
    static const nb_log_level levels[] = {NB_LOG_DEBUG, NB_LOG_INFO, NB_LOG_WARN, NB_LOG_ERROR,
                                          NB_LOG_DEBUG, NB_LOG_WARN, NB_LOG_ERROR};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcasecmp(name, names[i]) != 0) continue;
        *out = levels[i];
        return true;
    }
    return false;
}

/* ---- Signals ---- */

static void *wait_for_signals(void *arg)
{
    stopper *s = arg;
    int sig = sigwaitinfo(&s->signals, NULL);
    while (sig < 0 && errno == EINTR) sig = sigwaitinfo(&s->signals, NULL);
    if (atomic_load(&s->over)) return NULL;
    nb_serve_log_line(s->log, NB_LOG_INFO, sig == SIGINT ? "interrupted: stopping" : "asked to stop", NULL,
                      0);
    if (atomic_load(&s->loading)) _exit(0); /* nothing is under way, and loading cannot be interrupted */
    sem_post(&s->asked);
    double until = nb_now() + s->shutdown_seconds + GRACE_SECONDS;
    for (;;) {
        double left = until - nb_now();
        if (left <= 0) break;
        struct timespec t = {.tv_sec = (time_t)left, .tv_nsec = (long)((left - (double)(time_t)left) * 1e9)};
        sig = sigtimedwait(&s->signals, NULL, &t);
        if (atomic_load(&s->over)) return NULL;
        if (sig > 0) _exit(128 + sig); /* asked twice: now */
    }
    nb_serve_log_line(s->log, NB_LOG_ERROR, "the engine did not end in time: leaving without it", NULL, 0);
    _exit(0);
}

static nb_status start_stopper(stopper *s, const nb_serve_log *log, double seconds, nb_error *err)
{
    s->log = log;
    s->shutdown_seconds = seconds;
    atomic_store(&s->loading, true);
    sigemptyset(&s->signals);
    sigaddset(&s->signals, SIGTERM);
    sigaddset(&s->signals, SIGINT);
    sem_init(&s->asked, 0, 0);
    /* Blocked here, before any thread: all inherit it, and the one that waits gets them. */
    if (pthread_sigmask(SIG_BLOCK, &s->signals, NULL) != 0 ||
        pthread_create(&s->thread, NULL, wait_for_signals, s) != 0)
        return nb_fail(err, NB_ERR_NOMEM, "cannot start the thread that waits for signals");
    return NB_OK;
}

/* The process is as good as over: nobody need watch it any more. */
static void end_stopper(stopper *s)
{
    atomic_store(&s->over, true);
    pthread_kill(s->thread, SIGINT); /* one of those that it waits for */
    pthread_join(s->thread, NULL);
    sem_destroy(&s->asked);
}

/* ---- Options ---- */

/* A JSON list of strings that an option of CORS gives. */
typedef struct string_list {
    json_t *tree; /* owns the strings */
    nb_serve_list items;
    nb_buf joined; /* comma-separated */
} string_list;

static int read_list(const char *flag, const char *text, string_list *l)
{
    nb_error err = {.offset = -1};
    if (!text) return NB_EXIT_OK;
    bool ok = nb_json_tree(flag, text, strlen(text), &l->tree, &err) == NB_OK && json_is_array(l->tree) &&
              json_array_size(l->tree);
    size_t n = ok ? json_array_size(l->tree) : 0;
    l->items.item = n ? calloc(n, sizeof *l->items.item) : NULL;
    for (size_t i = 0; ok && l->items.item && i < n; i++) {
        const char *s = json_string_value(json_array_get(l->tree, i));
        ok = s != NULL;
        if (!ok) break;
        l->items.item[l->items.n++] = s;
        nb_buf_addf(&l->joined, "%s%s", i ? ", " : "", s);
    }
    if (!ok || !l->items.item || !nb_buf_ok(&l->joined))
        return nb_cli_usage("serve", "%s takes a JSON list of strings, as '[\"*\"]'", flag);
    return NB_EXIT_OK;
}

/* As a header's value; NULL: not given, or everything. */
static const char *joined_unless_star(string_list *l)
{
    const char *joined = nb_buf_str(&l->joined);
    return l->items.n == 0 || strcmp(joined, "*") == 0 ? NULL : joined;
}

static void free_list(string_list *l)
{
    free(l->items.item);
    nb_buf_free(&l->joined);
    json_decref(l->tree);
}

/* The context that the plan is to find room for. */
static int context_option(const nb_serve_options *o, nb_plan_options *po)
{
    const char *t = o->max_model_len;
    if (!t) return NB_EXIT_OK;
    if (strcmp(t, "auto") == 0 || strcmp(t, "-1") == 0) {
        po->fit_context = true;
        return NB_EXIT_OK;
    }
    uint64_t v;
    if (!nb_serve_int(t, &v) || !v || v > INT32_MAX)
        return nb_cli_usage("serve", "--max-model-len takes a number of tokens, or auto, not '%s'", t);
    po->max_context = (size_t)v;
    return NB_EXIT_OK;
}

/* As many descriptors as the system gives, and no more connections than they allow. */
static size_t connections(size_t wanted)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) != 0) return wanted;
    l.rlim_cur = l.rlim_max;
    setrlimit(RLIMIT_NOFILE, &l);
    if (getrlimit(RLIMIT_NOFILE, &l) != 0 || l.rlim_cur == RLIM_INFINITY || l.rlim_cur < 128) return wanted;
    return wanted < l.rlim_cur - 64 ? wanted : (size_t)l.rlim_cur - 64;
}

/* ---- The server's life ---- */

static void tell_plan(const nb_serve_log *log, const nb_plan *p)
{
    nb_buf text = {0};
    if (log->json) {
        const nb_log_field f[] = {{"memory", NULL, (double)p->memory},
                                  {"available", NULL, (double)p->available},
                                  {"weights", NULL, (double)p->weights},
                                  {"work", NULL, (double)p->work},
                                  {"kv_cache", NULL, (double)p->kv},
                                  {"kv_blocks", NULL, (double)p->blocks},
                                  {"max_model_len", NULL, (double)p->max_context},
                                  {"at_once", NULL, (double)p->at_once},
                                  {"max_num_seqs", NULL, (double)p->max_seqs},
                                  {"per_sequence", NULL, (double)p->per_seq}};
        nb_serve_log_line(log, NB_LOG_INFO, "plan", f, sizeof f / sizeof *f);
        return;
    }
    nb_plan_print(p, &text);
    const char *line = nb_buf_str(&text);
    for (size_t n; *line; line += n + (line[n] == '\n')) {
        char one[256];
        n = strcspn(line, "\n");
        snprintf(one, sizeof one, "%.*s", (int)n, line);
        say(log, one);
    }
    nb_buf_free(&text);
}

static void tell_address(const nb_serve_log *log, const nb_serve_options *o, uint16_t port,
                         const char *message)
{
    char url[400];
    if (o->uds)
        snprintf(url, sizeof url, "unix:%s", o->uds);
    else
        snprintf(url, sizeof url, strchr(o->host ? o->host : "", ':') ? "http://[%s]:%u" : "http://%s:%u",
                 o->host ? o->host : "localhost", port);
    const nb_log_field f[] = {{"url", url, 0}, {"model", o->names.n ? o->names.item[0] : o->model, 0}};
    nb_serve_log_line(log, NB_LOG_INFO, message, f, sizeof f / sizeof *f);
}

/* Until nothing is under way, or the time is over. */
static bool wait_idle(const nb_server *server, double seconds)
{
    double until = nb_now() + seconds;
    while (!nb_server_idle(server)) {
        if (nb_now() >= until) return false;
        pause_ms(5);
    }
    return true;
}

/* From the first signal on. False: the engine would not let go, and the process has to end as it is. */
static bool stop(const nb_serve_options *o, const nb_serve_log *log, nb_server *server, nb_served *model)
{
    nb_server_drain(server);
    if (!wait_idle(server, o->shutdown_seconds)) {
        say(log, "the time is over: what is under way is aborted");
        nb_core_stop(model->core, true);
        if (!wait_idle(server, GRACE_SECONDS + 1)) return false; /* the watcher ends the process before */
    }
    return true;
}

/* What the start ends with. Checking reads the whole folder once more and cannot be interrupted, so the thread that stops does
 * not do it. */
typedef struct last_words {
    const nb_serve_options *o;
    const nb_serve_log *log;
    const char *folder;
    uint16_t port;
} last_words;

static void *tell_ready(void *arg)
{
    const last_words *w = arg;
    char health[1024];
    if (!w->o->quiet && nb_cli_health_line(w->folder, health, sizeof health))
        nb_serve_log_line(w->log, NB_LOG_WARN, health, NULL, 0);
    tell_address(w->log, w->o, w->port, "ready"); /* the last word, for who waits for it */
    return NULL;
}

/* Everything that needs options, plan and metrics: listens, loads, waits, stops. */
static int serve(const nb_serve_options *o, const nb_llm_options *lo, const char *folder, const nb_plan *plan,
                 const nb_server_options *so, nb_serve_log *log, stopper *signals)
{
    nb_server *server = NULL;
    nb_served model = {0};
    nb_error err = {.offset = -1};
    pthread_t teller;
    bool apart = false;
    int rc = NB_EXIT_OK;
    nb_sink sink = lo->sink;
    sink.log = sink_log; /* the progress bar stays the program's */
    sink.ctx = log;
    if (log->json) sink.progress = NULL;
    if (nb_server_new(so, &server, &err) != NB_OK) return fail(log, &err);
    last_words words = {o, log, folder, nb_server_port(server)};
    tell_address(log, o, words.port, "listening; the model is loading");
    nb_status s = nb_serve_load(o, folder, lo, plan, server, so->metrics, &sink, &model, &err);
    if (s == NB_OK) s = nb_server_ready(server, model.api, model.core, &err);
    if (s == NB_OK) {
        atomic_store(&signals->loading, false);
        apart = nb_thread_start(&teller, tell_ready, &words) == 0;
        if (!apart) tell_ready(&words);
        while (sem_wait(&signals->asked) != 0 && errno == EINTR) {}
        apart = apart && pthread_tryjoin_np(teller, NULL) != 0;
        if (!stop(o, log, server, &model)) _exit(NB_EXIT_FAILED);
        say(log, "stopped");
    } else {
        rc = fail(log, &err);
    }
    nb_server_free(server);
    nb_served_free(&model);
    if (apart && pthread_tryjoin_np(teller, NULL) != 0) _exit(rc); /* it reads the folder still */
    return rc;
}

/* Lists that flags give as JSON. */
typedef struct lists {
    string_list origins, methods, headers;
} lists;

static int read_lists(const nb_serve_options *o, lists *l)
{
    int rc = read_list("--allowed-origins", o->origins, &l->origins);
    if (rc == NB_EXIT_OK) rc = read_list("--allowed-methods", o->methods, &l->methods);
    if (rc == NB_EXIT_OK) rc = read_list("--allowed-headers", o->headers, &l->headers);
    return rc;
}

/* Points into o, l and *env_key, the key that is taken where no flag gives one. */
static nb_server_options server_options(const nb_serve_options *o, lists *l, const char *const *env_key,
                                        nb_metrics *metrics, const nb_serve_log *log)
{
    const bool use_env = !o->api_keys.n && *env_key && **env_key;
    return (nb_server_options){.host = o->host,
                               .port = (uint16_t)o->port,
                               .uds = o->uds,
                               .api_keys = use_env ? env_key : o->api_keys.item,
                               .n_api_keys = use_env ? 1 : o->api_keys.n,
                               .root_path = o->root_path,
                               .allowed_origins = l->origins.items.item,
                               .n_allowed_origins = l->origins.items.n,
                               .allowed_methods = joined_unless_star(&l->methods),
                               .allowed_headers = joined_unless_star(&l->headers),
                               .allow_credentials = o->credentials,
                               .request_id_headers = o->request_ids,
                               .access_log = !o->no_access && !o->quiet,
                               .throughput_log = !o->no_stats && !o->quiet,
                               .version = NB_VERSION,
                               .workers = (size_t)o->workers,
                               .health_seconds = o->health_seconds,
                               .ping_seconds = o->ping_seconds,
                               .http = {.max_connections = connections((size_t)o->max_connections),
                                        .max_body = (size_t)o->max_body,
                                        .max_bodies = (size_t)o->max_body * 8,
                                        .idle_seconds = o->idle_seconds,
                                        .slow_seconds = o->slow_seconds,
                                        .slow_rate = o->slow_rate,
                                        .server = "nibble/" NB_VERSION},
                               .metrics = metrics,
                               .log = *log};
}

/* Options that take some making, then the plan. */
static int prepare(const nb_serve_options *o, const nb_llm_options *lo, const char *folder, nb_serve_log *log)
{
    nb_error err = {.offset = -1};
    nb_plan plan;
    nb_metrics *metrics = NULL;
    stopper signals = {0};
    lists given = {0};
    const char *env_key = getenv("VLLM_API_KEY");
    nb_plan_options po = {.memory = o->memory,
                          .share = o->memory_share,
                          .kv_bytes = o->kv_bytes,
                          .blocks = (size_t)o->blocks,
                          .threads = lo->threads,
                          .max_seqs = (size_t)o->max_seqs,
                          .fit_seqs = o->fit_seqs,
                          .max_rows = (size_t)o->max_rows,
                          .prefix_cache = o->prefix_cache,
                          .dequant = o->dequant.item,
                          .n_dequant = o->dequant.n};
    int rc = context_option(o, &po);
    if (rc == NB_EXIT_OK) rc = read_lists(o, &given);
    if (rc != NB_EXIT_OK) goto out;
    if (nb_plan_make(folder, &po, &plan, &err) != NB_OK) {
        rc = fail(log, &err);
        goto out;
    }
    tell_plan(log, &plan);
    if (nb_metrics_new(o->names.n ? o->names.item[0] : o->model, plan.max_context, &metrics, &err) != NB_OK ||
        start_stopper(&signals, log, o->shutdown_seconds, &err) != NB_OK) {
        rc = fail(log, &err);
        goto out;
    }
    const nb_server_options so = server_options(o, &given, &env_key, metrics, log);
    rc = serve(o, lo, folder, &plan, &so, log, &signals);
    end_stopper(&signals);
out:
    nb_metrics_free(metrics);
    free_list(&given.origins);
    free_list(&given.methods);
    free_list(&given.headers);
    return rc;
}

int nb_cmd_serve(int argc, char **argv)
{
    nb_serve_options o;
    nb_llm_options lo;
    nb_cli_model model = {0};
    nb_error err = {.offset = -1};
    char *folder = NULL;
    nb_serve_log log = {.write = write_line};
    int rc = nb_serve_options_parse(argc, argv, &o);
    if (rc != NB_EXIT_OK || o.help) goto out;
    log.json = strcmp(o.log_format, "json") == 0;
    if (!log_level(o.log_level, &log.least)) {
        rc = nb_cli_usage("serve", "--uvicorn-log-level is debug, info, warning or error, not '%s'",
                          o.log_level);
        goto out;
    }
    if (o.quiet) log.least = NB_LOG_WARN;
    if (o.dequant.n > NB_MAX_DEQUANT) {
        rc = nb_cli_usage("serve", "--dequant can be given %d times", NB_MAX_DEQUANT);
        goto out;
    }
    model = (nb_cli_model){.arith = o.arith,
                           .kernels = o.kernels,
                           .act_dtype = o.act_dtype,
                           .quant_input = o.quant_input,
                           .scales = o.scales,
                           .packed_cache = o.packed_cache,
                           .threads = (size_t)o.threads,
                           .n_dequant = o.dequant.n,
                           .quiet = o.quiet};
    for (size_t i = 0; i < o.dequant.n; i++) model.dequant[i] = o.dequant.item[i];
    char *dir[] = {argv[0], (char *)o.model};
    optind = 1;
    if ((rc = nb_cli_model_finish("serve", 2, dir, "auto", &model, &lo))) goto out;
    if ((rc = nb_serve_check(&o))) goto out;
    if (nb_hub_resolve(o.model, &folder, &err) != NB_OK)
        rc = fail(&log, &err);
    else
        rc = prepare(&o, &lo, folder, &log);
out:
    free(folder);
    nb_serve_options_free(&o);
    return rc;
}
