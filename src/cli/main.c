/* nibble VERB …: finds the verb and hands over. */
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/thread.h"
#include "cli/cli.h"

static const struct {
    const char *name, *does;
    int (*run)(int argc, char **argv);
} verbs[] = {
    {"serve", "the OpenAI API over HTTP, for many users at once, and a page to chat", nb_cmd_serve},
    {"run", "one answer, or a chat in the terminal", nb_cmd_run},
    {"check", "says what is wrong with a model folder; runs no model", nb_cmd_check},
    {"calibrate", "measures the ranges of activations, for input scales", nb_cmd_calibrate},
    {"trace", "where a model goes wrong, in an arithmetic or a serving stack, and by which byte",
     nb_cmd_trace},
    {"repair", "a copy of a model folder with its faults mended, and back", nb_cmd_repair},
    {"diff", "what differs between two model folders, or two traces", nb_cmd_diff},
    {"eval", "logits, perplexity, exact match", nb_cmd_eval},
    {"tokenize", "text to token ids and back", nb_cmd_tokenize},
    {"bench", "prefill and decode rates, and their share of this machine's roofs", nb_cmd_bench},
};

#define N_VERBS (sizeof verbs / sizeof *verbs)

static void help(FILE *to)
{
    fputs("nibble serves NVFP4 checkpoints on the hardware people have, and never returns a NaN.\n\n"
          "usage: nibble VERB [DIR] [options]\n\n",
          to);
    for (size_t i = 0; i < N_VERBS; i++) fprintf(to, "  %-10s %s\n", verbs[i].name, verbs[i].does);
    fputs("\nDIR is a model folder (ModelOpt or compressed-tensors), or a Hugging Face id found in the local "
          "hub cache.\n"
          "\n  nibble check models/demo\n"
          "  nibble run models/demo -p 'What is the capital of France?'\n"
          "\nnibble help VERB says more; nibble --version tells the version.\n",
          to);
}

/* How many letters must be changed, added, left out or exchanged with the next to make b of a; more than 15 letters: 16. */
static size_t distance(const char *a, const char *b)
{
    enum { MOST = 16 };
    size_t d[MOST + 1][MOST + 1], n = strlen(a), m = strlen(b);
    if (n >= MOST || m >= MOST) return MOST;
    for (size_t i = 0; i <= n; i++) {
        for (size_t k = 0; k <= m; k++) {
            if (!i || !k) {
                d[i][k] = i + k;
                continue;
            }
            size_t best = d[i - 1][k - 1] + (a[i - 1] != b[k - 1]);
            if (d[i - 1][k] + 1 < best) best = d[i - 1][k] + 1;
            if (d[i][k - 1] + 1 < best) best = d[i][k - 1] + 1;
            if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1] && d[i - 2][k - 2] + 1 < best)
                best = d[i - 2][k - 2] + 1;
            d[i][k] = best;
        }
    }
    return d[n][m];
}

/* The number of the verb of this name; N_VERBS: none. */
static size_t verb_of(const char *name)
{
    size_t i = 0;
    while (i < N_VERBS && strcmp(name, verbs[i].name) != 0) i++;
    return i;
}

static int no_verb(const char *name)
{
    size_t near = 0;
    for (size_t i = 1; i < N_VERBS; i++) {
        if (distance(name, verbs[i].name) < distance(name, verbs[near].name)) near = i;
    }
    if (distance(name, verbs[near].name) <= 2)
        return nb_cli_usage(NULL, "there is no verb '%s'; did you mean %s?", name, verbs[near].name);
    return nb_cli_usage(NULL, "there is no verb '%s'", name);
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return NB_EXIT_USAGE;
    }
    if (strcmp(argv[1], "help") == 0 && argc > 2) {
        const size_t i = verb_of(argv[2]);
        char flag[] = "--help", *words[] = {argv[2], flag, NULL};
        return i < N_VERBS ? verbs[i].run(2, words) : no_verb(argv[2]);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        help(stdout);
        return NB_EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("nibble " NB_VERSION);
        return NB_EXIT_OK;
    }
    const size_t i = verb_of(argv[1]);
    return i < N_VERBS ? verbs[i].run(argc - 1, argv + 1) : no_verb(argv[1]);
}

typedef struct call {
    int argc;
    char **argv;
    sigset_t signals; /* that are blocked */
    int rc;
} call;

static void *dispatch_there(void *arg)
{
    call *c = arg;
    pthread_sigmask(SIG_SETMASK, &c->signals, NULL);
    c->rc = dispatch(c->argc, c->argv);
    return NULL;
}

/* Operators run in the thread of the verb, too: under a low ulimit -s that is another than the first, and gets the signals in its place. */
static int dispatch_with_stack(int argc, char **argv)
{
    call c = {.argc = argc, .argv = argv};
    struct rlimit stack;
    pthread_t thread;
    sigset_t all;
    if (getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= 2 * NB_STACK_BYTES)
        return dispatch(argc, argv);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &c.signals);
    if (nb_thread_start(&thread, dispatch_there, &c) == 0)
        pthread_join(thread, NULL);
    else
        dispatch_there(&c);
    return c.rc;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is a write error, not a death */
    /* An arena for each thread would reserve 64 MiB of addresses, which a ulimit -v counts; no hot loop allocates. */
    mallopt(M_ARENA_MAX, 1);
    int rc = dispatch_with_stack(argc, argv);
    /* A result that did not get out is no success, whichever verb printed it. */
    bool written = fflush(stdout) == 0 && !ferror(stdout);
    if (written || rc != NB_EXIT_OK) return rc;
    fputs("nibble: cannot write to standard output: the disk is full, or nobody reads it any more\n", stderr);
    return NB_EXIT_FAILED;
}
