/*
 * The fields of a request body: one table says name, type, range and where the value goes (params.c), the semantic checks that vLLM makes
 * before types (params.c) and those of its SamplingParams (params_sampling.c) are functions. Fields that are not in the table are
 * accepted and ignored, as vLLM's models allow.
 */
#ifndef NB_SERVER_PARAMS_H
#define NB_SERVER_PARAMS_H

#include "server/errors.h"

typedef struct nb_opt_int {
    bool set;
    int64_t v;
} nb_opt_int;

typedef struct nb_opt_real {
    bool set;
    double v;
} nb_opt_real;

typedef struct nb_opt_bool {
    bool set, v;
} nb_opt_bool;

typedef struct nb_int_list {
    bool set;
    int64_t *v; /* owned */
    size_t n;
} nb_int_list;

/* Which routes know a field. */
enum {
    NB_IN_COMPLETIONS = 1,
    NB_IN_CHAT = 2,
    NB_IN_TOKENIZE = 4,
    NB_IN_TOKENIZE_CHAT = 8,
    NB_IN_DETOKENIZE = 16
};

/* The values of one body. JSON members are borrowed from body and NULL when absent or null. */
typedef struct nb_params {
    json_t *body; /* owned */
    unsigned route;

    const json_t *model, *request_id, *user;
    nb_opt_int n, seed, max_tokens, max_completion_tokens, min_tokens, top_k;
    nb_opt_real temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
    const json_t *stop; /* a string or a list of strings */
    nb_int_list stop_token_ids, allowed_token_ids, logprob_token_ids;
    const json_t *logit_bias, *bad_words;
    nb_opt_bool ignore_eos, include_stop, skip_special, special_spaces;
    nb_opt_int logprobs;       /* completions: how many; chat: top_logprobs */
    nb_opt_bool want_logprobs; /* chat */
    nb_opt_int prompt_logprobs, truncate, stream_interval, priority, thinking_budget;
    const json_t *truncation_side, *cache_salt;
    nb_opt_bool beam_search, tokens_as_ids, return_token_ids;
    nb_opt_real length_penalty;
    nb_opt_bool stream, include_usage, continuous_usage;
    const json_t *stream_options, *response_format, *structured_outputs, *repetition_detection;
    nb_opt_bool echo, add_special;

    const json_t *prompt, *prompt_embeds, *suffix; /* completions, tokenize */
    nb_int_list tokens;                            /* detokenize */
    nb_opt_bool token_strs;                        /* tokenize */

    const json_t *messages, *tools, *tool_choice, *reasoning_effort, *documents, *chat_template,
        *template_kwargs;
    nb_opt_bool parallel_calls, include_reasoning, generation_prompt, continue_final, prompt_text;
} nb_params;

/* Parses and checks types: validation steps 2 and 3. Zero-initialise p; nb_params_free in any case. */
bool nb_params_parse(nb_params *p, unsigned route, const char *body, size_t n, nb_api_error *e);
void nb_params_free(nb_params *p);
/* Gives up what is in memory of the body's own size: JSON members become NULL, lists of ids empty. Numbers and switches stay. */
void nb_params_drop_body(nb_params *p);
/* The checks that vLLM makes on the raw object before types (params_check.c). */
bool nb_params_check_body(const nb_params *p, nb_api_error *e);
/* Step 5: what this server was not told to do, or nibble cannot. */
bool nb_params_check_features(const nb_api *a, const nb_params *p, nb_api_error *e);

/* The sampling of a request, the same for all its sequences but for seed and max_tokens. */
typedef struct nb_sampling_set {
    nb_sample_params p; /* its arrays are the ones below */
    uint32_t *stop_ids, *bias_ids, *allowed, *bad;
    float *bias;
    size_t *bad_len;
} nb_sampling_set;

/* Step 8 and 9: values and limits of vLLM's SamplingParams, defaults of generation_config merged in, words tokenised. scratch: of the
 * calling thread. Zero-initialise s; nb_sampling_free in any case. */
bool nb_params_sampling(const nb_api *a, nb_tok_scratch *scratch, const nb_params *p, nb_sampling_set *s,
                        nb_api_error *e);
void nb_sampling_free(nb_sampling_set *s);

static inline bool nb_bool(nb_opt_bool b, bool absent)
{
    return b.set ? b.v : absent;
}

#endif
