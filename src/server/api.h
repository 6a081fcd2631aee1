/*
 * The OpenAI API without HTTP: from a request's body to sequences for the engine, and from their events to the answer's bytes. Parsing,
 * templates and tokenising run on worker threads (nb_job_new); taking events and writing frames on the loop thread (nb_job_poll).
 * Pure functions of bytes, so that tests and fuzzing need no socket. vLLM's behaviour field by field: specs/http_api.md.
 */
#ifndef NB_SERVER_API_H
#define NB_SERVER_API_H

#include "engine/generation.h"
#include "server/metrics.h"
#include "text/chat_format.h"

typedef struct nb_api_options {
    const char *const *names; /* [n_names] served model names; the first is the one that answers carry */
    size_t n_names;
    const char *root; /* the model's path as given, for /v1/models */
    const char *
        folder; /* the model's folder, whose tokenizer_config.json names bos and eos to a request's own template */
    const char *version; /* of nibble */
    size_t max_context;
    int max_logprobs;                           /* -1: whole vocabulary */
    bool auto_tool_choice;                      /* --enable-auto-tool-choice */
    bool exclude_tools;                         /* --exclude-tools-when-tool-choice-none */
    const char *tool_parser, *reasoning_parser; /* names of text/reply.h, or NULL */
    bool trust_chat_template;                   /* requests may bring their own template */
    bool prompt_tokens_details, force_usage, tokens_as_ids;
    const char *response_role;     /* "assistant" */
    const json_t *template_kwargs; /* defaults of chat_template_kwargs, or NULL */
    bool priorities;               /* --scheduling-policy priority */
    uint64_t seed; /* sequences without a seed of their own draw from this one and a counter */
} nb_api_options;

typedef struct nb_api nb_api;

/* Everything given is borrowed and must outlive the nb_api; strings and options are copied. chat NULL: the folder has no chat format, and
 * chat requests are refused with why. generation: the defaults (all unset for --generation-config vllm). */
nb_status nb_api_new(const nb_api_options *opt, nb_core *core, size_t vocab, const nb_tokenizer *t,
                     const nb_chat_format *chat, const nb_generation_config *generation, nb_metrics *metrics,
                     nb_api **out, nb_error *err);
void nb_api_free(nb_api *a);

/* An answer that is an error, in vLLM's shape {"error":{"message","type","param","code"}}. */
typedef struct nb_api_error {
    int status; /* of HTTP; 503 comes with Retry-After */
    char type[40];
    char param[160]; /* "": null */
    nb_buf message;  /* free with nb_buf_free */
} nb_api_error;
/* Sets all but the status' consequences; message is printf-formatted. param may be NULL. */
void nb_api_error_set(nb_api_error *e, int status, const char *type, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* Appends the JSON body. Addresses and absolute paths in the message are replaced by <path>. */
void nb_api_error_body(const nb_api_error *e, nb_buf *out);

typedef enum nb_route {
    NB_ROUTE_COMPLETIONS,
    NB_ROUTE_CHAT,
    NB_ROUTE_TOKENIZE,
    NB_ROUTE_DETOKENIZE,
    NB_ROUTE_MODELS, /* GET; arg NULL: the list, else one id */
} nb_route;

/* One worker thread's own memory (tokenizer scratch). */
typedef struct nb_api_work nb_api_work;
nb_status nb_api_work_new(const nb_api *a, nb_api_work **out, nb_error *err);
void nb_api_work_free(nb_api_work *w);

/* The routes that need no engine: appends the body (answer or error) and returns the HTTP status. */
int nb_api_answer(nb_api *a, nb_api_work *w, nb_route route, const char *arg, const char *body, size_t n,
                  nb_buf *out);

/* One completion or chat request: prompts x choices sequences. */
typedef struct nb_job nb_job;

typedef struct nb_job_meta {
    const char *request_id; /* of X-Request-Id, or NULL: the body's request_id, or a random one */
    const char *priority;   /* of X-Vllm-Priority, or NULL */
    double arrival;         /* CLOCK_MONOTONIC seconds */
} nb_job_meta;

/* On a worker: parses, checks everything that a client can get wrong, takes seats, renders, tokenises, submits. False: *e says why
 * (initialise it with {0}). The job lives until nb_job_free. */
bool nb_job_new(nb_api *a, nb_api_work *w, nb_route route, const nb_job_meta *meta, const char *body,
                size_t n, nb_job **out, nb_api_error *e);
const char *nb_job_request_id(const nb_job *j);

/*
 * On the loop thread, whenever the core has woken it: takes what events there are and appends what is to be sent. True: all
 * sequences have ended, and *out holds the last of it. Before sending the first byte ask nb_job_status and nb_job_streams: a
 * streaming request that fails before its first frame is answered as plain JSON with its status. Once it has appended
 * NB_JOB_POLL_BYTES it leaves the rest of the events to the next poll, which must then come without the core's waking.
 */
#define NB_JOB_POLL_BYTES ((size_t)256 << 10)
bool nb_job_poll(nb_job *j, nb_buf *out);
int nb_job_status(const nb_job *j);   /* of HTTP, settled once *out is not empty */
bool nb_job_streams(const nb_job *j); /* text/event-stream; settled likewise */
/* The client is gone: sequences end within a step. Goes on being polled until it is over; nothing is appended any more. */
void nb_job_cancel(nb_job *j);
/* After nb_job_poll gave true. */
void nb_job_free(nb_job *j);

#endif
