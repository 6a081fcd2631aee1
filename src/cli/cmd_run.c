/* nibble run: one answer, a conversation of given turns, or a chat on the terminal. Uses the public API alone. */
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/utf8.h"
#include "cli/cli.h"

static const char usage[] =
    "usage: nibble run DIR [-p TEXT]... [options]\n\n"
    "Answers TEXT as a chat message; several -p are the turns of one conversation. Without -p, chats on the "
    "terminal\n"
    "(or answers each line of standard input). The answer streams to stdout; rates go to stderr.\n\n"
    "  -p, --prompt TEXT   a message of the user (repeatable)\n"
    "  -s, --system TEXT   a system message before it\n"
    "      --thinking      let the model think first\n"
    "      --raw           TEXT is the whole prompt, special tokens spelled out; no chat format\n"
    "      --print-prompt  print the prompt that the model would see, and stop\n"
    "  -n, --max-tokens N  stop after N tokens (default: at the model's end token, or when the context is "
    "full)\n"
    "  --temperature T     0 (default): the most likely token; above: sample\n"
    "  --top-k K, --top-p P, --min-p P, --seed N\n\n";

static const char examples[] =
    "\nExit status: 0 answered, 1 failed, 64 usage.\n"
    "\nexamples:\n"
    "  nibble run models/demo -p 'What is 12 + 30?'\n"
    "  nibble run models/demo -p 'Repeat 60 20 91 0.' -p 'Sort these numbers: 33 76'\n"
    "  nibble run models/demo --print-prompt -s 'Be brief.' -p Hello\n";

typedef struct run {
    nb_cli_model model;
    const char **prompts; /* one place for each word of the command line */
    size_t n_prompts;
    nb_llm *m;
    json_t *messages;
    const char *system;
    bool thinking, raw, print_prompt, json, quiet;
    size_t max_tokens;
    nb_sampling sampling;
    char *reply; /* the answer so far */
    size_t len, cap;
} run;

/* Set by Ctrl-C in a chat on the terminal; whoever waits looks at it. */
static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    if (interrupted) _exit(128 + SIGINT); /* the second one: out, whatever is going on */
    interrupted = 1;
}

static bool collect(void *ctx, const char *piece, size_t n)
{
    run *r = ctx;
    if (r->len + n + 1 > r->cap) {
        size_t cap = (r->len + n + 1) * 2;
        char *p = realloc(r->reply, cap);
        if (!p) return false;
        r->reply = p;
        r->cap = cap;
    }
    memcpy(r->reply + r->len, piece, n);
    r->len += n;
    r->reply[r->len] = '\0';
    if (interrupted) return false;
    if (r->json) return true;
    return fwrite(piece, 1, n, stdout) == n && fflush(stdout) == 0;
}

static int print_json(const run *r, const nb_generation *g)
{
    json_t *o = json_pack("{s:s#, s:s, s:I, s:I, s:f, s:f}", "text", r->reply ? r->reply : "", (int)r->len,
                          "finish_reason", g->stopped ? "stop" : "length", "prompt_tokens",
                          (json_int_t)g->prompt_tokens, "completion_tokens", (json_int_t)g->output_tokens,
                          "prefill_seconds", g->prefill_seconds, "decode_seconds", g->decode_seconds);
    char *line = o ? json_dumps(o, JSON_COMPACT) : NULL;
    int rc = line && puts(line) >= 0 ? NB_EXIT_OK : NB_EXIT_FAILED;
    if (!line) fputs("nibble: no memory for the answer as JSON\n", stderr);
    free(line);
    json_decref(o);
    return rc;
}

static nb_status failed(nb_error *err, nb_status status, const char *cause)
{
    *err = (nb_error){.status = status, .offset = -1};
    snprintf(err->cause, sizeof err->cause, "%s", cause);
    return status;
}

/* One message more. jansson takes valid UTF-8 alone: a message it refuses must not be left out in silence. */
static nb_status add_message(run *r, const char *role, const char *content, nb_error *err)
{
    json_t *m = json_pack("{s:s, s:s}", "role", role, "content", content);
    if (m && json_array_append_new(r->messages, m) == 0) return NB_OK;
    return m ? failed(err, NB_ERR_NOMEM, "no memory for the conversation")
             : failed(err, NB_ERR_ARGUMENT, "a message is not UTF-8 (or memory is out)");
}

/* The prompt text: the raw message, or the rendered conversation. Caller frees. */
static nb_status make_prompt(run *r, const char *message, char **prompt, nb_error *err)
{
    if (r->raw) {
        *prompt = strdup(message);
        return *prompt ? NB_OK : failed(err, NB_ERR_NOMEM, "no memory for the prompt");
    }
    json_t *request =
        json_pack("{s:O, s:{s:b, s:b}}", "messages", r->messages, "chat_template_kwargs", "thinking",
                  r->thinking, "enable_thinking", r->thinking); /* templates know one or the other name */
    char *text = request ? json_dumps(request, 0) : NULL;
    nb_status s = text ? nb_llm_render_chat(r->m, text, prompt, err)
                       : failed(err, NB_ERR_NOMEM, "no memory for the conversation");
    free(text);
    json_decref(request);
    return s;
}

static int print_prompt(const run *r, const char *prompt)
{
    if (!r->json) return fputs(prompt, stdout) >= 0 ? NB_EXIT_OK : NB_EXIT_FAILED;
    json_t *o = json_pack("{s:s}", "prompt", prompt);
    char *line = o ? json_dumps(o, JSON_COMPACT) : NULL;
    int rc = line && puts(line) >= 0 ? NB_EXIT_OK : NB_EXIT_FAILED;
    if (!line) fputs("nibble: the prompt is not UTF-8, or memory is out\n", stderr);
    free(line);
    json_decref(o);
    return rc;
}

/* Asks one message; the answer joins the conversation. */
static int ask(run *r, const char *message)
{
    nb_error err = {.offset = -1};
    char *prompt = NULL;
    uint32_t *ids = NULL;
    size_t n;
    nb_generation g;
    int rc = NB_EXIT_FAILED;
    if (!r->raw && add_message(r, "user", message, &err) != NB_OK) goto fail;
    if (make_prompt(r, message, &prompt, &err) != NB_OK) goto fail;
    if (r->print_prompt) {
        rc = print_prompt(r, prompt);
        goto out;
    }
    if (nb_llm_tokenize(r->m, prompt, strlen(prompt), r->raw, &ids, &n, &err) != NB_OK) goto fail;
    r->len = 0;
    nb_status s = nb_llm_generate(r->m, ids, n, &r->sampling, r->max_tokens, collect, r, &g, &err);
    if (!r->json && g.output_tokens) {
        fputc('\n', stdout);
        fflush(stdout); /* before the rates, where both go to one file */
    }
    if (s == NB_ERR_CANCELLED && interrupted) {
        fputs("[stopped]\n", stderr);
        rc = r->raw || add_message(r, "assistant", r->len ? r->reply : "", &err) == NB_OK ? NB_EXIT_OK
                                                                                          : nb_cli_fail(&err);
        goto out;
    }
    if (s != NB_OK) goto fail;
    if (r->json) {
        rc = print_json(r, &g);
    } else if (r->quiet) {
        rc = NB_EXIT_OK;
    } else {
        double d = g.decode_seconds > 0 ? (double)g.output_tokens / g.decode_seconds : 0;
        double p = g.prefill_seconds > 0 ? (double)g.prompt_tokens / g.prefill_seconds : 0;
        fprintf(stderr, "[%zu prompt tokens at %.0f/s, %zu tokens at %.0f/s%s]\n", g.prompt_tokens, p,
                g.output_tokens, d, g.stopped ? "" : ", cut");
        rc = NB_EXIT_OK;
    }
    const char *answer = r->len ? r->reply : "", *end = strstr(answer, "</think>");
    if (r->raw || add_message(r, "assistant", end ? end + 8 : answer, &err) == NB_OK) goto out;
fail:
    rc = nb_cli_fail(&err);
out:
    free(prompt);
    free(ids);
    return rc;
}

static bool is_utf8(const char *s, size_t n)
{
    uint32_t cp;
    for (size_t i = 0, w; i < n; i += w)
        if (!(w = nb_utf8_decode(s + i, n - i, &cp))) return false;
    return true;
}

/* What no message can hold is said of the line alone: the chat goes on. */
static bool good_line(const char *line, size_t n)
{
    nb_error err;
    if (strlen(line) != n)
        failed(&err, NB_ERR_ARGUMENT, "a line holds a NUL character, which would end the message there");
    else if (!is_utf8(line, n))
        failed(&err, NB_ERR_ARGUMENT, "the line is not UTF-8: it was not sent");
    else
        return true;
    nb_cli_fail(&err);
    return false;
}

/* At the prompt a Ctrl-C is let through only while waiting: one that comes just before it is not lost. False: it came. */
static bool wait_for_line(const sigset_t *open)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    while (ppoll(&in, 1, NULL, open) < 0 && errno == EINTR)
        if (interrupted) return false;
    return true;
}

static int chat(run *r)
{
    bool tty = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    sigset_t stop, open;
    char *line = NULL;
    size_t cap = 0;
    int rc = NB_EXIT_OK, worst = NB_EXIT_OK;
    if (tty) {
        const struct sigaction on = {.sa_handler = on_interrupt};
        sigaction(SIGINT, &on, NULL);
        sigemptyset(&stop);
        sigaddset(&stop, SIGINT);
        setvbuf(stdin, NULL, _IONBF, 0); /* poll sees the terminal's lines, not those that a buffer holds */
        fputs("Type a message; Ctrl-C ends an answer; an empty line, Ctrl-D or Ctrl-C ends the chat.\n",
              stderr);
    }
    for (;;) {
        if (tty) pthread_sigmask(SIG_BLOCK, &stop, &open);
        interrupted = 0;
        if (tty) fputs("> ", stderr);
        bool go = !tty || wait_for_line(&open);
        if (tty) pthread_sigmask(SIG_SETMASK, &open, NULL);
        if (!go) break;
        ssize_t n = getline(&line, &cap, stdin);
        if (n <= 0) break;
        if (line[n - 1] == '\n') line[--n] = '\0';
        if (!n && tty) break;
        if (!good_line(line, (size_t)n)) {
            worst = NB_EXIT_FAILED;
            continue;
        }
        if (n && (rc = ask(r, line)) != NB_EXIT_OK) break;
    }
    if (tty) fputc('\n', stderr);
    free(line);
    return rc == NB_EXIT_OK && !tty ? worst : rc;
}

/* Facts of the loaded model, one screen, on stderr. */
static void summary(const nb_llm *m, const nb_llm_options *o)
{
    static const char *const formats[] = {"NVFP4", "MXFP4", "FP8", "BF16", "F16", "F32"};
    nb_llm_facts f;
    nb_llm_describe(m, &f);
    uint64_t packed = 0;
    for (int i = 0; i < 6; i++) packed += f.format_bytes[i];
    fprintf(stderr, "%s, %lld layers, vocabulary %zu\n", f.architecture, (long long)f.layers, f.vocab);
    fputs("weights ", stderr);
    for (int i = 0; i < 6; i++)
        if (f.format_bytes[i])
            fprintf(stderr, "%s %.0f %%, ", formats[i], 100.0 * (double)f.format_bytes[i] / (double)packed);
    fprintf(stderr, "%.1f MB in all\n", (double)f.weight_bytes / 1e6);
    fprintf(stderr, "context %zu tokens, at most %.1f MB of cache\n", f.max_context,
            (double)f.kv_bytes / 1e6);
    fprintf(stderr, "arithmetic %s, %s kernels, %zu threads\n", nb_arith_name(o->arith), f.kernels,
            f.threads);
}

enum { OPT_RAW = 1, OPT_THINKING, OPT_PRINT, OPT_TEMPERATURE, OPT_TOP_K, OPT_TOP_P, OPT_MIN_P, OPT_SEED };

static const struct option options[] = {{"prompt", required_argument, NULL, 'p'},
                                        {"system", required_argument, NULL, 's'},
                                        {"thinking", no_argument, NULL, OPT_THINKING},
                                        {"raw", no_argument, NULL, OPT_RAW},
                                        {"print-prompt", no_argument, NULL, OPT_PRINT},
                                        {"max-tokens", required_argument, NULL, 'n'},
                                        {"temperature", required_argument, NULL, OPT_TEMPERATURE},
                                        {"top-k", required_argument, NULL, OPT_TOP_K},
                                        {"top-p", required_argument, NULL, OPT_TOP_P},
                                        {"min-p", required_argument, NULL, OPT_MIN_P},
                                        {"seed", required_argument, NULL, OPT_SEED},
                                        NB_CLI_MODEL_OPTIONS,
                                        {0}};

/* A sampling option. Returns NB_EXIT_OK, or the exit code after having printed what it takes. */
static int sampling_option(int code, nb_sampling *s)
{
    uint64_t v;
    double d;
    switch (code) {
    case OPT_TOP_K:
        if (!nb_cli_number(optarg, 0, UINT32_MAX, &v))
            return nb_cli_bad_value("run", options, code, "a whole number (0: all tokens)");
        s->top_k = (uint32_t)v;
        return NB_EXIT_OK;
    case OPT_SEED:
        if (nb_cli_number(optarg, 0, UINT64_MAX, &s->seed)) return NB_EXIT_OK;
        return nb_cli_bad_value("run", options, code, "a whole number");
    case OPT_TEMPERATURE:
        if (!nb_cli_real(optarg, &d) || d < 0)
            return nb_cli_bad_value("run", options, code, "a number from 0 up");
        s->temperature = (float)d;
        return NB_EXIT_OK;
    case OPT_TOP_P:
        if (!nb_cli_real(optarg, &d) || d <= 0 || d > 1)
            return nb_cli_bad_value("run", options, code, "a number above 0, at most 1");
        s->top_p = (float)d;
        return NB_EXIT_OK;
    default:
        if (!nb_cli_real(optarg, &d) || d < 0 || d > 1)
            return nb_cli_bad_value("run", options, code, "a number from 0 to 1");
        s->min_p = (float)d;
        return NB_EXIT_OK;
    }
}

/* One option. NB_EXIT_OK, or the exit code after having printed what it takes. */
static int take_option(int code, char **argv, run *r)
{
    uint64_t v;
    switch (code) {
    case 'p':
        if (!*optarg) return nb_cli_usage("run", "-p is empty: give a message, or leave -p out to chat");
        r->prompts[r->n_prompts++] = optarg;
        return NB_EXIT_OK;
    case 'n':
        if (!nb_cli_number(optarg, 1, INT32_MAX, &v))
            return nb_cli_bad_value("run", options, code, "a number of tokens");
        r->max_tokens = v;
        return NB_EXIT_OK;
    case 's': r->system = optarg; return NB_EXIT_OK;
    case OPT_RAW: r->raw = true; return NB_EXIT_OK;
    case OPT_THINKING: r->thinking = true; return NB_EXIT_OK;
    case OPT_PRINT: r->print_prompt = true; return NB_EXIT_OK;
    case OPT_TEMPERATURE:
    case OPT_TOP_K:
    case OPT_TOP_P:
    case OPT_MIN_P:
    case OPT_SEED: return sampling_option(code, &r->sampling);
    default: return nb_cli_model_option("run", code, argv, &r->model);
    }
}

/* The command line. NB_EXIT_OK, or the exit code after having printed what is wrong with it. */
static int parse(int argc, char **argv, run *r, nb_llm_options *lo)
{
    int rc = NB_EXIT_OK;
    optind = 1;
    opterr = 0;
    for (int o; rc == NB_EXIT_OK && (o = getopt_long(argc, argv, ":p:s:n:qh", options, NULL)) != -1;)
        rc = take_option(o, argv, r);
    if (rc != NB_EXIT_OK || r->model.help) return rc;
    if ((rc = nb_cli_model_finish("run", argc, argv, "auto", &r->model, lo))) return rc;
    if (r->raw && r->system)
        return nb_cli_usage("run", "--raw and --system do not go together: a raw prompt is the whole text");
    r->quiet = r->model.quiet;
    r->json = strcmp(r->model.format, "json") == 0;
    return NB_EXIT_OK;
}

/* Answers the messages of the command line, or chats. */
static int answer(run *r, const nb_llm_options *lo)
{
    nb_error err = {.offset = -1};
    if (r->system && add_message(r, "system", r->system, &err) != NB_OK) return nb_cli_fail(&err);
    if (nb_llm_open(r->model.dir, lo, &r->m, &err) != NB_OK) return nb_cli_fail(&err);
    if (!r->quiet) summary(r->m, lo);
    nb_cli_health(r->model.dir, r->quiet);
    if (!r->n_prompts) return chat(r);
    int rc = NB_EXIT_OK;
    for (size_t i = 0; rc == NB_EXIT_OK && i < r->n_prompts; i++) {
        if (r->print_prompt && !r->raw && i + 1 < r->n_prompts)
            continue; /* turns before the last have no answers to show */
        rc = ask(r, r->prompts[i]);
    }
    return rc;
}

int nb_cmd_run(int argc, char **argv)
{
    run r = {.sampling = {.top_p = 1}};
    nb_llm_options lo;
    int rc = NB_EXIT_FAILED;
    r.prompts = calloc((size_t)argc, sizeof *r.prompts);
    r.messages = json_array();
    if (!r.prompts || !r.messages) {
        fputs("nibble: no memory for the options\n", stderr);
        goto out;
    }
    if ((rc = parse(argc, argv, &r, &lo))) goto out;
    if (r.model.help)
        printf("%s%s%s%s%s", usage, nb_cli_model_help, nb_cli_context_help, nb_cli_cache_help, examples);
    else
        rc = answer(&r, &lo);
out:
    nb_llm_close(r.m);
    json_decref(r.messages);
    free(r.reply);
    free(r.prompts);
    return rc;
}
