/* The command line of `nibble serve`, read by the table of serve_flags.c. */
#include "cli/serve_options.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct parser {
    nb_serve_options *o;
    int argc, at;
    char **argv;
    const char *config; /* --config's file */
    const char *from;   /* NULL: the command line; else the file that is being read */
} parser;

static int usage(const parser *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int usage(const parser *p, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return p->from ? nb_cli_usage("serve", "%s: %s", p->from, text) : nb_cli_usage("serve", "%s", text);
}

/* name with '_' as '-'; false: too long for any flag. */
static bool plain_name(const char *arg, size_t n, char out[64])
{
    if (n >= 64) return false;
    for (size_t i = 0; i < n; i++) out[i] = arg[i] == '_' ? '-' : arg[i];
    out[n] = '\0';
    return true;
}

static const nb_flag *find(const char *name)
{
    for (size_t i = 0; i < nb_serve_n_flags; i++)
        if (nb_serve_flags[i].name && strcmp(nb_serve_flags[i].name, name) == 0) return &nb_serve_flags[i];
    return NULL;
}

/* "8000", "1k", "25.6K": k m g are powers of 1000, K M G of 1024. */
bool nb_serve_int(const char *text, uint64_t *out)
{
    static const struct {
        char unit;
        double factor;
    } units[] = {{'k', 1e3},    {'m', 1e6},    {'g', 1e9},    {'t', 1e12},
                 {'K', 0x1p10}, {'M', 0x1p20}, {'G', 0x1p30}, {'T', 0x1p40}};
    char *end;
    if (nb_cli_number(text, 0, (uint64_t)1 << 62, out)) return true;
    if (text[0] < '0' || text[0] > '9' || text[1] == 'x' || text[1] == 'X') return false;
    double v = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (*end != units[i].unit || end[1]) continue;
        v *= units[i].factor;
        if (!(v >= 0 && v < 0x1p62)) return false;
        *out = (uint64_t)v;
        return true;
    }
    return false;
}

/* The same with units of bytes: 12GiB, 12GB, 12G (= GiB), 512MiB. */
static bool human_bytes(const char *text, uint64_t *out)
{
    char copy[64];
    size_t n = strlen(text);
    if (n >= sizeof copy) return false;
    memcpy(copy, text, n + 1);
    if (n > 3 && strcmp(copy + n - 2, "iB") == 0) {
        copy[n - 2] = '\0';
    } else if (n > 2 && copy[n - 1] == 'B' && strchr("KMGTk", copy[n - 2])) {
        copy[n - 1] = '\0';
        copy[n - 2] = copy[n - 2] == 'K' ? 'k' : (char)(copy[n - 2] | 0x20);
    }
    return nb_serve_int(copy, out);
}

static int add(const parser *p, nb_serve_list *l, const char *item)
{
    if (l->n % 16 == 0) {
        const char **grown = realloc(l->item, (l->n + 16) * sizeof *grown);
        if (!grown) {
            fputs("nibble: no memory for the options\n", stderr);
            return NB_EXIT_FAILED;
        }
        l->item = grown;
    }
    l->item[l->n++] = item;
    return NB_EXIT_OK;
}

/* Stores a value where the flag wants it. */
static int store(const parser *p, const nb_flag *f, const char *value, bool first)
{
    void *to = (char *)p->o + f->at;
    char *end;
    uint64_t u;
    double d;
    switch (f->kind) {
    case NB_FLAG_STRING: *(const char **)to = value; return NB_EXIT_OK;
    case NB_FLAG_LIST: {
        nb_serve_list *l = (nb_serve_list *)to;
        if (first) l->n = 0; /* the last mention counts, as in argparse */
        return *value ? add(p, l, value) : usage(p, "--%s takes no empty value", f->name);
    }
    case NB_FLAG_MORE: return add(p, (nb_serve_list *)to, value);
    case NB_FLAG_INT:
        if (!nb_serve_int(value, &u)) return usage(p, "--%s takes a number, not '%s'", f->name, value);
        *(uint64_t *)to = u;
        return NB_EXIT_OK;
    case NB_FLAG_BYTES:
        if (!human_bytes(value, &u)) return usage(p, "--%s takes bytes, as 12GiB, not '%s'", f->name, value);
        *(uint64_t *)to = u;
        return NB_EXIT_OK;
    case NB_FLAG_SIGNED: {
        errno = 0;
        long long v = strtoll(value, &end, 10);
        if (errno || end == value || *end) return usage(p, "--%s takes a number, not '%s'", f->name, value);
        *(int64_t *)to = v;
        return NB_EXIT_OK;
    }
    case NB_FLAG_REAL:
        if (!nb_cli_real(value, &d) || d < 0)
            return usage(p, "--%s takes a number, not '%s'", f->name, value);
        *(double *)to = d;
        return NB_EXIT_OK;
    case NB_FLAG_CONFIG:
        return p->from ? usage(p, "a config file names no other") : NB_EXIT_OK; /* read already */
    case NB_FLAG_NOTED:
        if (!p->o->quiet) fprintf(stderr, "note: --%s has no effect here: %s\n", f->name, f->text);
        return NB_EXIT_OK;
    case NB_FLAG_ONLY:
        if (strcmp(value, f->only) == 0) return NB_EXIT_OK;
        return usage(p, "--%s %s: %s", f->name, value, f->text);
    default: return usage(p, "--%s is not to be had here: %s", f->name, f->text);
    }
}

static bool is_switch(nb_flag_kind k)
{
    return k == NB_FLAG_SWITCH || k == NB_FLAG_NOT || k == NB_FLAG_HELP || k == NB_FLAG_NOTED_SWITCH ||
           k == NB_FLAG_REFUSED_SWITCH;
}

/* A flag without a value, on or off. */
static int flip(const parser *p, const nb_flag *f, bool on)
{
    bool *to = (bool *)((char *)p->o + f->at);
    switch (f->kind) {
    case NB_FLAG_SWITCH: *to = on; return NB_EXIT_OK;
    case NB_FLAG_NOT: *to = !on; return NB_EXIT_OK;
    case NB_FLAG_HELP: p->o->help = true; return NB_EXIT_OK;
    case NB_FLAG_NOTED_SWITCH:
        if (!p->o->quiet)
            fprintf(stderr, "note: --%s%s has no effect here: %s\n", on ? "" : "no-", f->name, f->text);
        return NB_EXIT_OK;
    default: return on ? usage(p, "--%s is not to be had here: %s", f->name, f->text) : NB_EXIT_OK;
    }
}

/* One option, with the values that follow it. */
static int option(parser *p, const char *arg)
{
    char name[64];
    const char *body = arg + (arg[1] == '-' ? 2 : 1), *equals = strchr(body, '=');
    if (strcmp(arg, "-h") == 0) body = "help";
    if (strcmp(arg, "-q") == 0) body = "quiet";
    if (strncmp(arg, "-O", 2) == 0) { /* vLLM's -O3, -O 3, -O.mode=3 */
        if (arg[2]) return store(p, find("compilation-config"), arg + 2, true);
        body = "compilation-config";
    }
    size_t n = equals ? (size_t)(equals - body) : strlen(body);
    if (!plain_name(body, n, name)) return usage(p, "there is no option '%.80s'", arg);
    const nb_flag *f = find(name);
    bool on = true, is_short = arg[1] != '-' && (arg[2] || !strchr("hqO", arg[1]));
    if (!f && strncmp(name, "no-", 3) == 0) {
        f = find(name + 3);
        on = false;
        if (f && (!is_switch(f->kind) || f->kind == NB_FLAG_HELP)) f = NULL;
    }
    if (is_short && strlen(name) > 2) f = NULL; /* -tp is vLLM's, -port nobody's */
    char *dot = strchr(name, '.');
    if (!f && dot) {
        *dot = '\0';
        if (find(name)) return usage(p, "--%s.%s: give --%s its JSON as a whole", name, dot + 1, name);
        *dot = '.';
    }
    if (!f) return usage(p, "there is no option %.80s", arg);
    if (is_switch(f->kind)) return equals ? usage(p, "--%s takes no value", name) : flip(p, f, on);
    if (equals) return store(p, f, equals + 1, true);
    bool first = true;
    do {
        bool ends = p->at >= p->argc || (p->argv[p->at][0] == '-' && p->argv[p->at][1] == '-');
        if (ends) break;
        int rc = store(p, f, p->argv[p->at++], first);
        if (rc != NB_EXIT_OK) return rc;
        first = false;
    } while (f->kind == NB_FLAG_LIST);
    return first ? usage(p, "--%s takes a value", name) : NB_EXIT_OK;
}

static int positional(parser *p, const char *arg)
{
    if (p->o->model) return usage(p, "one model at a time; what is '%s'?", arg);
    p->o->model = arg;
    return NB_EXIT_OK;
}

static int walk(parser *p)
{
    int rc = NB_EXIT_OK;
    while (rc == NB_EXIT_OK && p->at < p->argc && !p->o->help) {
        const char *arg = p->argv[p->at++];
        rc = arg[0] == '-' && arg[1] ? option(p, arg) : positional(p, arg);
    }
    return rc;
}

/* Of the command line: --config's file and --quiet have to be known before the rest. */
static void look_ahead(parser *p)
{
    for (int i = 1; i < p->argc; i++) {
        const char *a = p->argv[i];
        if (strcmp(a, "--config") == 0 && i + 1 < p->argc) p->config = p->argv[i + 1];
        if (strncmp(a, "--config=", 9) == 0) p->config = a + 9;
        if (strcmp(a, "--quiet") == 0 || strcmp(a, "-q") == 0) p->o->quiet = true;
    }
}

static void help(void)
{
    puts("usage: nibble serve DIR [options]\n\n"
         "Serves a model over HTTP: the API of OpenAI as `vllm serve` gives it, its metrics, and a page at / "
         "to chat and to\n"
         "see how the server fares. Options are vLLM's where it has them; '_' and '-' are the same, switches "
         "have --no-x.");
    for (size_t i = 0; i < nb_serve_n_flags; i++) {
        const nb_flag *f = &nb_serve_flags[i];
        char left[64];
        if (!f->name) {
            printf("\n%s:\n", f->text);
            continue;
        }
        if (f->kind >= NB_FLAG_NOTED) break;
        snprintf(left, sizeof left, "--%s%s%s", f->name, f->value ? " " : "", f->value ? f->value : "");
        printf("  %-29s %s\n", left, f->text ? f->text : "this text");
    }
    fputs("\nAccepted, for scripts that have them; nothing here depends on them:\n ", stdout);
    for (size_t i = 0; i < nb_serve_n_flags; i++)
        if (nb_serve_flags[i].kind == NB_FLAG_NOTED || nb_serve_flags[i].kind == NB_FLAG_NOTED_SWITCH)
            printf(" --%s", nb_serve_flags[i].name);
    fputs("\nRefused, with what to do instead (try one):\n ", stdout);
    for (size_t i = 0; i < nb_serve_n_flags; i++)
        if (nb_serve_flags[i].kind > NB_FLAG_NOTED_SWITCH) printf(" --%s", nb_serve_flags[i].name);
    puts("\n\nexamples:\n"
         "  nibble serve models/demo\n"
         "  nibble serve models/demo --port 0 --api-key secret --served-model-name demo --shutdown-timeout "
         "30\n"
         "  curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\\n"
         "       -d '{\"messages\": [{\"role\": \"user\", \"content\": \"282 - 247 =\"}]}'");
}

static int check(const parser *p)
{
    nb_serve_options *o = p->o;
    o->fit_seqs = o->max_seqs == UINT64_MAX;
    /* What was not given goes by what was. */
    if (o->fit_seqs) o->max_seqs = o->max_rows < 256 ? o->max_rows : 256;
    if (o->max_rows == UINT64_MAX) o->max_rows = o->max_seqs > 512 ? o->max_seqs : 512;
    const struct {
        const char *name;
        uint64_t value, low, high;
    } ranges[] = {{"port", o->port, 0, 65535},
                  {"threads", o->threads, 0, 1024},
                  {"max-num-seqs", o->max_seqs, 1, 4096},
                  {"max-num-batched-tokens", o->max_rows, 1, 1 << 20},
                  {"workers", o->workers, 1, 16},
                  {"max-connections", o->max_connections, 1, 1 << 20},
                  {"max-body", o->max_body, 1024, (uint64_t)1 << 32}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (ranges[i].value < ranges[i].low || ranges[i].value > ranges[i].high)
            return usage(p, "--%s is from %llu to %llu, not %llu", ranges[i].name,
                         (unsigned long long)ranges[i].low, (unsigned long long)ranges[i].high,
                         (unsigned long long)ranges[i].value);
    if (o->memory_share <= 0 || o->memory_share > 1)
        return usage(p, "--gpu-memory-utilization is above 0 and at most 1, not %g", o->memory_share);
    if (strcmp(o->policy, "fcfs") != 0 && strcmp(o->policy, "priority") != 0)
        return usage(p, "--scheduling-policy is fcfs or priority, not '%s'", o->policy);
    if (strcmp(o->log_format, "text") != 0 && strcmp(o->log_format, "json") != 0)
        return usage(p, "--log-format is text or json, not '%s'", o->log_format);
    if (o->max_logprobs < -1 || o->max_logprobs > INT32_MAX) return usage(p, "--max-logprobs is -1 or more");
    if (o->max_rows < o->max_seqs) /* each sequence that answers takes a token of every step */
        return usage(p, "--max-num-batched-tokens %llu is less than --max-num-seqs %llu",
                     (unsigned long long)o->max_rows, (unsigned long long)o->max_seqs);
    return NB_EXIT_OK;
}

int nb_serve_options_parse(int argc, char **argv, nb_serve_options *o)
{
    *o = (nb_serve_options){.port = 8000,
                            .max_seqs = UINT64_MAX,
                            .max_rows = UINT64_MAX,
                            .queue_requests = UINT64_MAX,
                            .queue_tokens = UINT64_MAX,
                            .memory_share = 0.92,
                            .prefix_cache = true,
                            .policy = "fcfs",
                            .max_connections = 4096,
                            .max_body = 32u << 20,
                            .workers = 2,
                            .idle_seconds = 75,
                            .slow_seconds = 30,
                            .slow_rate = 4096,
                            .health_seconds = 60,
                            .ping_seconds = 10,
                            .generation = "auto",
                            .response_role = "assistant",
                            .max_logprobs = 20,
                            .log_format = "text",
                            .log_level = "info"};
    parser p = {.o = o, .argc = argc, .argv = argv, .at = 1};
    int rc = NB_EXIT_OK;
    look_ahead(&p);
    if (p.config) {
        rc = nb_serve_config_read(p.config, &o->config);
        parser file = {.o = o, .argc = (int)o->config.n, .argv = o->config.arg, .from = p.config};
        if (rc == NB_EXIT_OK) rc = walk(&file);
        if (rc == NB_EXIT_OK && o->model) { /* the command line may name another */
            if (!o->model_flag) o->model_flag = o->model;
            o->model = NULL;
        }
    }
    if (rc == NB_EXIT_OK) rc = walk(&p);
    if (rc != NB_EXIT_OK) return rc;
    if (o->help) {
        help();
        return NB_EXIT_OK;
    }
    if (!o->model) o->model = o->model_flag;
    if (!o->model) return usage(&p, "which model? Give its folder");
    return check(&p);
}

void nb_serve_options_free(nb_serve_options *o)
{
    free(o->dequant.item);
    free(o->api_keys.item);
    free(o->names.item);
    nb_serve_config_free(&o->config);
}
