/* What the files of the API share: the served model as requests see it. */
#ifndef NB_SERVER_API_INTERNAL_H
#define NB_SERVER_API_INTERNAL_H

#include <stdatomic.h>

#include "server/params.h"

struct nb_api {
    nb_api_options opt; /* strings and names are copies of our own */
    char **names;
    char *root, *folder, *version, *tool_parser, *reasoning_parser, *response_role;
    json_t *template_kwargs; /* a reference of our own, or NULL */
    nb_core *core;
    size_t vocab;
    const nb_tokenizer *t;
    const nb_chat_format *chat; /* NULL: none */
    const nb_generation_config *generation;
    nb_metrics *metrics;        /* NULL: not counted */
    uint32_t *same_text;        /* [vocab] the first token that is written as the same text */
    size_t longest_token;       /* characters of the longest token: bounds how few tokens a text can be */
    atomic_uint_fast64_t drawn; /* sequences that got a seed of ours */
};

struct nb_api_work {
    nb_tok_scratch *scratch;
};

/* Step 4: an unknown model is 404. */
bool nb_api_check_model(const nb_api *a, const nb_params *p, nb_api_error *e);

/* Tokens of a prompt and the text they came from (empty for ids). Zero-initialise; nb_prompt_free. */
typedef struct nb_prompt {
    nb_ids ids;
    nb_buf text;
} nb_prompt;
void nb_prompt_free(nb_prompt *p);

/*
 * Step 6 for one text: bounds before tokenising, tokenises, truncates. wanted: output tokens that the client named, 0 when none
 * (specs/http_api.md, "Length checks"). Ids that are given go through nb_prompt_check alone.
 */
bool nb_prompt_tokenise(const nb_api *a, nb_api_work *w, const nb_params *p, const char *text, size_t n,
                        bool add_special, int64_t wanted, nb_prompt *out, nb_api_error *e);
/* Truncates ids as asked, and refuses what does not fit with `wanted` more. */
bool nb_prompt_check(const nb_api *a, const nb_params *p, int64_t wanted, nb_prompt *out, nb_api_error *e);

/* The prompts of a completion request (its own n of them; *out is an array to be freed with its elements). */
bool nb_completion_prompts(const nb_api *a, nb_api_work *w, const nb_params *p, nb_prompt **out, size_t *n,
                           nb_api_error *e);
/* How many prompts that will be, before anything is tokenised. */
size_t nb_completion_count(const nb_params *p);

/* Types of messages and tools (validation step 3). */
void nb_chat_check_messages(nb_field_errors *f, const json_t *messages);
void nb_chat_check_tools(nb_field_errors *f, const json_t *tools);
/* Step 5 of chat requests: features that the server was not told to serve. */
bool nb_chat_check_features(const nb_api *a, const nb_params *p, nb_api_error *e);
/* Renders the messages to text. */
bool nb_chat_render(const nb_api *a, const nb_params *p, nb_buf *text, nb_api_error *e);
/* Role of the answer, and the text that echo puts before it (appended; empty when there is none). */
const char *nb_chat_role(const nb_api *a, const nb_params *p);
void nb_chat_echo(const nb_params *p, const char *role, nb_buf *out);
/* True when tools may be called in the answer. */
bool nb_chat_calls_tools(const nb_api *a, const nb_params *p);

#endif
