/* What the verbs share: usage errors, error output, progress, model options. The program may print and exit; the library not. */
#ifndef NB_CLI_CLI_H
#define NB_CLI_CLI_H

#include <getopt.h>

#include "base/buf.h"
#include "nibble.h"

/* Exit codes of verbs that have no others of their own. */
enum { NB_EXIT_OK = 0, NB_EXIT_FAILED = 1, NB_EXIT_USAGE = 64 };

/* Prints "nibble VERB: message (see nibble VERB --help)" on stderr; returns NB_EXIT_USAGE. verb may be NULL. */
int nb_cli_usage(const char *verb, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same for what getopt_long did not take (code ':' or '?', with an option string that begins with ':'): names it. */
int nb_cli_bad_option(const char *verb, int code, char **argv);
/* The same for a value that an option does not take: "--rows takes a number of tokens, not 'x'". The option is the entry of
 * `options` with this code, the value optarg, takes what it takes. */
int nb_cli_bad_value(const char *verb, const struct option *options, int code, const char *takes);
/* Prints a library error on stderr; returns NB_EXIT_FAILED. */
int nb_cli_fail(const nb_error *err);

/* Writes a finished report to stdout and frees it. Returns code, or `failed` after having printed that memory or stdout failed. */
int nb_cli_print(nb_buf *report, int code, int failed);

/* Log lines and progress on stderr: a bar on a terminal, else one line each ten seconds. quiet drops all but warnings. */
void nb_cli_sink(nb_sink *out, bool quiet);

#define NB_MAX_DEQUANT 64

/* Options of every verb that runs a model. Must live as long as the nb_llm_options made from it. */
typedef struct nb_cli_model {
    const char *dir;
    const char *arith; /* NULL: the verb's default */
    const char *kernels;
    const char *act_dtype, *quant_input;
    const char *format; /* "text" or "json" */
    const char *scales, *dequant[NB_MAX_DEQUANT], *packed_cache;
    size_t threads, max_context, n_dequant;
    bool quiet, help;
} nb_cli_model;

/* getopt_long codes of the options above; a verb's own codes are smaller. */
enum {
    NB_OPT_ARITH = 1000,
    NB_OPT_KERNELS,
    NB_OPT_ACT_DTYPE,
    NB_OPT_THREADS,
    NB_OPT_MAX_MODEL_LEN,
    NB_OPT_FORMAT,
    NB_OPT_QUANT_INPUT,
    NB_OPT_SCALES,
    NB_OPT_DEQUANT,
    NB_OPT_PACKED_CACHE,
};
/* The tables of kernels that --kernels takes beside auto and generic, for help texts. */
#define NB_CLI_KERNELS "avx2, avxvnni, avx512, avx512bf16 or amx"
/* The option table entries, to be put into a verb's own table. */
#define NB_CLI_MODEL_OPTIONS                                                                                 \
    {"arith", required_argument, NULL, NB_OPT_ARITH}, {"kernels", required_argument, NULL, NB_OPT_KERNELS},  \
        {"act-dtype", required_argument, NULL, NB_OPT_ACT_DTYPE},                                            \
        {"threads", required_argument, NULL, NB_OPT_THREADS},                                                \
        {"max-model-len", required_argument, NULL, NB_OPT_MAX_MODEL_LEN},                                    \
        {"format", required_argument, NULL, NB_OPT_FORMAT},                                                  \
        {"quant-input", required_argument, NULL, NB_OPT_QUANT_INPUT},                                        \
        {"scales", required_argument, NULL, NB_OPT_SCALES},                                                  \
        {"dequant", required_argument, NULL, NB_OPT_DEQUANT},                                                \
        {"packed-cache", required_argument, NULL, NB_OPT_PACKED_CACHE}, {"quiet", no_argument, NULL, 'q'},   \
    {                                                                                                        \
        "help", no_argument, NULL, 'h'                                                                       \
    }
/* Their help text: of all but two, and of each of these, which are for models that stay loaded. */
extern const char nb_cli_model_help[], nb_cli_context_help[], nb_cli_cache_help[];

/* Handles one option code, or what getopt_long rejected (argv names it). Returns NB_EXIT_OK, or the exit code after having printed why. */
int nb_cli_model_option(const char *verb, int code, char **argv, nb_cli_model *m);
/* Takes DIR from the remaining arguments (exactly one) and fills the arithmetic: `auto` is bf16 in this build. */
int nb_cli_model_finish(const char *verb, int argc, char **argv, const char *default_arith, nb_cli_model *m,
                        nb_llm_options *out);

/* Runs the checks on DIR and prints one line on stderr when some family of kernels would go wrong with it. */
void nb_cli_health(const char *dir, bool quiet);
/* The same as text; false: there is nothing to say. */
bool nb_cli_health_line(const char *dir, char *line, size_t cap);

/* Parses a whole decimal number in [min, max]; false: it is not one. */
bool nb_cli_number(const char *text, uint64_t min, uint64_t max, uint64_t *out);
bool nb_cli_real(const char *text, double *out);

/* One verb a file: cmd_VERB.c. argv[0] is the verb. */
int nb_cmd_run(int argc, char **argv);
int nb_cmd_serve(int argc, char **argv);
int nb_cmd_eval(int argc, char **argv);
int nb_cmd_tokenize(int argc, char **argv);
int nb_cmd_check(int argc, char **argv);
int nb_cmd_repair(int argc, char **argv);
int nb_cmd_diff(int argc, char **argv);
int nb_cmd_bench(int argc, char **argv);
int nb_cmd_trace(int argc, char **argv);
int nb_cmd_calibrate(int argc, char **argv);

#endif
