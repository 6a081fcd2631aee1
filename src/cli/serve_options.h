/* The options of `nibble serve`: those of `vllm serve` by the same names, and nibble's own. One table (serve_flags.c) says of each
 * what it does here: work, be accepted because nothing depends on it, or be refused with what to use instead. */
#ifndef NB_CLI_SERVE_OPTIONS_H
#define NB_CLI_SERVE_OPTIONS_H

#include "cli/cli.h"
#include "cli/serve_config.h"

typedef struct nb_serve_list {
    const char **item; /* [n]; the array is owned, the strings are not */
    size_t n;
} nb_serve_list;

typedef struct nb_serve_options {
    /* The model and how it computes. */
    const char *model, *model_flag; /* DIR, and what --model says; one of them */
    const char *arith, *kernels, *act_dtype, *quant_input, *scales, *tokenizer, *packed_cache;
    nb_serve_list dequant;
    uint64_t threads;
    bool quiet, help;
    /* Sizes. UINT64_MAX: not given. */
    bool fit_seqs; /* --max-num-seqs was not given: 256 at most */
    uint64_t memory, kv_bytes, blocks, max_seqs, max_rows, chunk_limit, queue_requests, queue_tokens;
    const char *max_model_len; /* a number, -1 or auto */
    double memory_share;
    bool prefix_cache, reserve_prompt;
    const char *policy; /* fcfs or priority */
    /* HTTP. */
    const char *host, *uds, *root_path, *origins, *methods, *headers;
    uint64_t port, max_connections, max_body, workers;
    nb_serve_list api_keys;
    bool credentials, request_ids;
    double idle_seconds, slow_seconds, slow_rate, health_seconds, shutdown_seconds, ping_seconds;
    /* The API. */
    nb_serve_list names;
    const char *generation, *generation_override, *chat_template, *template_kwargs, *response_role;
    const char *tool_parser, *reasoning_parser;
    bool auto_tools, exclude_tools, trust_template, prompt_details, force_usage, tokens_as_ids;
    int64_t max_logprobs;
    uint64_t seed;
    /* Logs. */
    const char *log_format, *log_level;
    bool no_stats, no_access;
    nb_serve_config config; /* what --config's file says; strings above point into it */
} nb_serve_options;

/* Parses the command line (argv[0] is the verb) and, if it names one, a --config file, over which the command line wins. Returns
 * NB_EXIT_OK, or the exit code after having printed why. With o->help, the help is printed. Free with nb_serve_options_free. */
int nb_serve_options_parse(int argc, char **argv, nb_serve_options *o);
void nb_serve_options_free(nb_serve_options *o);
/* "8000", "1k", "25.6K": k m g are powers of 1000, K M G of 1024, as vLLM reads them. False: it is none of these. */
bool nb_serve_int(const char *text, uint64_t *out);

/* ---- The table ---- */

typedef enum nb_flag_kind {
    NB_FLAG_STRING,
    NB_FLAG_LIST, /* one value or more: all that follow up to the next option */
    NB_FLAG_MORE, /* one value each time */
    NB_FLAG_INT,  /* uint64_t; 1k is 1000, 1K 1024, 25.6k 25600 */
    NB_FLAG_SIGNED,
    NB_FLAG_BYTES,  /* uint64_t; 4GiB, 512M, plain bytes */
    NB_FLAG_REAL,   /* double, not negative */
    NB_FLAG_SWITCH, /* bool: --x, --no-x */
    NB_FLAG_NOT,    /* the same, stored negated */
    NB_FLAG_HELP,
    NB_FLAG_CONFIG,
    /* vLLM's, without a place: text says why nothing depends on it, or what to use instead. */
    NB_FLAG_NOTED,        /* a value, accepted */
    NB_FLAG_NOTED_SWITCH, /* no value, accepted */
    NB_FLAG_ONLY,         /* accepted with the value `only`, else refused */
    NB_FLAG_REFUSED,      /* a value, refused */
    NB_FLAG_REFUSED_SWITCH,
} nb_flag_kind;

typedef struct nb_flag {
    const char *name;
    nb_flag_kind kind;
    size_t at;        /* offset in nb_serve_options */
    const char *text; /* help (NULL: taught by another line), why, or instead */
    const char *only;
    const char *value; /* how help calls the value */
} nb_flag;

extern const nb_flag nb_serve_flags[];
extern const size_t nb_serve_n_flags;

#endif
