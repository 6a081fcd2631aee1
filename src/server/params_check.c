/* What vLLM looks at before types: relations between fields of the raw object (its models' "before" validators), in its order. */
#include <string.h>

#include "base/json_tree.h"
#include "server/api_internal.h"

#define MAX_PROMPTS 1024 /* VLLM_MAX_COMPLETION_PROMPTS */

static const json_t *get(const nb_params *p, const char *key)
{
    const json_t *v = json_object_get(p->body, key);
    return json_is_null(v) ? NULL : v;
}

static bool is_word(const json_t *v, const char *word)
{
    return json_is_string(v) && json_string_length(v) == strlen(word) &&
           strcmp(json_string_value(v), word) == 0;
}

static bool check_format(const nb_params *p, nb_api_error *e)
{
    const json_t *format = get(p, "response_format"), *schema = json_object_get(format, "json_schema");
    if (is_word(json_object_get(format, "type"), "json_schema") && (!schema || json_is_null(schema)))
        return nb_api_bad(e, "response_format", NULL,
                          "When response_format type is 'json_schema', the 'json_schema' field must be "
                          "provided.");
    return true;
}

static bool check_stream_options(const nb_params *p, nb_api_error *e)
{
    if (nb_json_truthy(get(p, "stream_options")) && !nb_json_truthy(get(p, "stream")))
        return nb_api_bad(e, "stream_options", NULL,
                          "Stream options can only be defined when `stream=True`.");
    return true;
}

/* A number below `least`; what is no number is the type check's. */
static bool below(const json_t *v, double least)
{
    return json_is_number(v) && json_number_value(v) < least;
}

static bool check_logprobs(const nb_params *p, nb_api_error *e)
{
    char text[NB_VALUE_TEXT];
    const json_t *prompt = get(p, "prompt_logprobs"), *logprobs = get(p, "logprobs"),
                 *top = get(p, "top_logprobs");
    if (prompt && nb_json_truthy(get(p, "stream")))
        return nb_api_bad(e, "prompt_logprobs", NULL, "prompt_logprobs are not available when stream=True");
    if (below(prompt, 0) && json_number_value(prompt) != -1)
        return nb_api_bad(e, "prompt_logprobs", nb_value_text(prompt, text),
                          "`prompt_logprobs` must be a positive value or -1.");
    if (p->route == NB_IN_COMPLETIONS) {
        if (logprobs && !json_is_number(logprobs))
            return nb_api_bad(e, "logprobs", nb_value_text(logprobs, text), "`logprobs` must be an integer.");
        if (below(logprobs, 0))
            return nb_api_bad(e, "logprobs", nb_value_text(logprobs, text),
                              "`logprobs` must be a positive value.");
        return true;
    }
    if (below(top, 0) && json_number_value(top) != -1)
        return nb_api_bad(e, "top_logprobs", nb_value_text(top, text),
                          "`top_logprobs` must be a positive value or -1.");
    if (json_is_number(top) && nb_json_truthy(top) && !nb_json_truthy(logprobs))
        return nb_api_bad(e, "top_logprobs", NULL,
                          "when using `top_logprobs`, `logprobs` must be set to true.");
    return true;
}

static bool check_prompt(const nb_params *p, nb_api_error *e)
{
    const json_t *prompt = get(p, "prompt");
    size_t n = json_array_size(prompt);
    bool ids = n && json_is_number(json_array_get(prompt, 0)); /* one prompt of ids */
    if ((!prompt || ((json_is_string(prompt) || json_is_array(prompt)) && !nb_json_truthy(prompt))) &&
        !nb_json_truthy(get(p, "prompt_embeds")))
        return nb_api_bad(e, "prompt", NULL,
                          "Either prompt or prompt_embeds must be provided and non-empty.");
    if (n > MAX_PROMPTS && !ids)
        return nb_api_bad(
            e, "prompt", NULL,
            "prompt list length %zu exceeds the maximum allowed count of %d; send several requests.", n,
            MAX_PROMPTS);
    return true;
}

static bool check_tools(const nb_params *p, nb_api_error *e)
{
    char text[NB_VALUE_TEXT];
    const json_t *tools = get(p, "tools"), *choice = get(p, "tool_choice");
    if (json_is_array(tools) && !nb_json_truthy(tools))
        return nb_api_bad(e, "tools", NULL,
                          "`tools` must not be an empty array. Either provide at least one tool or omit the "
                          "field entirely.");
    if (!choice || is_word(choice, "none")) return true;
    if (!tools) return nb_api_bad(e, "tool_choice", NULL, "When using `tool_choice`, `tools` must be set.");
    if (is_word(choice, "auto") || is_word(choice, "required")) return true;
    const json_t *name = json_object_get(json_object_get(choice, "function"), "name");
    if (!json_is_string(name))
        return nb_api_bad(e, "tool_choice", nb_value_text(choice, text),
                          "Invalid value for `tool_choice`: only named tools, \"none\", \"auto\" or "
                          "\"required\" are supported.");
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (json_equal(json_object_get(json_object_get(json_array_get(tools, i), "function"), "name"), name))
            return true;
    return nb_api_bad(e, "tool_choice", nb_value_text(name, text),
                      "The tool specified in `tool_choice` does not match any of the specified `tools`.");
}

static bool check_generation_prompt(const nb_params *p, nb_api_error *e)
{
    if (nb_json_truthy(get(p, "continue_final_message")) && nb_json_truthy(get(p, "add_generation_prompt")))
        return nb_api_bad(e, "continue_final_message", NULL,
                          "Cannot set both `continue_final_message` and `add_generation_prompt` to True.");
    return true;
}

bool nb_params_check_body(const nb_params *p, nb_api_error *e)
{
    switch (p->route) {
    case NB_IN_COMPLETIONS:
        return check_format(p, e) && check_stream_options(p, e) && check_logprobs(p, e) && check_prompt(p, e);
    case NB_IN_CHAT:
        return check_format(p, e) && check_stream_options(p, e) && check_logprobs(p, e) &&
               check_tools(p, e) && check_generation_prompt(p, e);
    case NB_IN_TOKENIZE_CHAT: return check_generation_prompt(p, e);
    default: return true;
    }
}

/* A feature that vLLM has and this build has not: never taken silently, since the answer would be another one. */
static bool refuse(nb_api_error *e, const char *field, const char *instead)
{
    return nb_api_bad(e, field, NULL, "%s is not supported by nibble%s%s.", field, instead[0] ? "; " : "",
                      instead);
}

static bool check_constraints(const nb_params *p, nb_api_error *e)
{
    char text[NB_VALUE_TEXT];
    const json_t *type = json_object_get(p->response_format, "type");
    if (p->response_format && !is_word(type, "text")) {
        if (!is_word(type, "json_object") && !is_word(type, "json_schema") &&
            !is_word(type, "structural_tag"))
            return nb_api_bad(e, "response_format", type ? nb_value_text(type, text) : NULL,
                              "response_format type must be 'text', 'json_object', 'json_schema' or "
                              "'structural_tag'.");
        return nb_api_bad(
            e, "response_format", nb_value_text(type, text),
            "Constrained output comes with a later version of nibble: only response_format type "
            "'text' is served; describe the form in the prompt and check the answer.");
    }
    if (p->structured_outputs)
        return nb_api_bad(e, "structured_outputs", NULL,
                          "Constrained output comes with a later version of nibble; describe the form in the "
                          "prompt and check the answer.");
    return true;
}

/* It may become the header X-Request-Id, which must not hold a line's end. */
static bool is_printable(const json_t *v)
{
    const char *s = json_string_value(v);
    for (size_t i = 0; i < json_string_length(v); i++)
        if (s[i] < 0x20 || s[i] > 0x7E) return false;
    return true;
}

bool nb_params_check_features(const nb_api *a, const nb_params *p, nb_api_error *e)
{
    char text[NB_VALUE_TEXT];
    if (p->suffix) return nb_api_bad(e, "suffix", NULL, "suffix is not currently supported");
    if (p->prompt_embeds) return refuse(e, "prompt_embeds", "send text or token ids");
    if (nb_bool(p->beam_search, false)) {
        if (nb_bool(p->stream, false))
            return nb_api_bad_text(e, "Streaming is not currently supported with beam search");
        return refuse(e, "use_beam_search", "use n with a temperature");
    }
    if (p->logprob_token_ids.set) return refuse(e, "logprob_token_ids", "use logprobs");
    if (p->repetition_detection) return refuse(e, "repetition_detection", "use repetition_penalty");
    if (p->thinking_budget.set && p->thinking_budget.v != -1) {
        if (!a->opt.reasoning_parser)
            return nb_api_bad(e, "thinking_token_budget", NULL,
                              "thinking_token_budget requires --reasoning-parser to be set");
        return refuse(e, "thinking_token_budget", "use reasoning_effort or max_tokens");
    }
    if (p->priority.set && p->priority.v != 0 && !a->opt.priorities)
        return nb_api_bad(e, "priority", nb_value_int(p->priority.v, text),
                          "Got priority %s but priority scheduling is not enabled: start the server with "
                          "--scheduling-policy priority.",
                          text);
    if (p->cache_salt && strlen(json_string_value(p->cache_salt)) != json_string_length(p->cache_salt))
        return nb_api_bad(e, "cache_salt", NULL, "cache_salt must not hold a NUL character.");
    if (p->request_id && !is_printable(p->request_id))
        return nb_api_bad(e, "request_id", NULL, "request_id must be of printable ASCII characters.");
    return check_constraints(p, e);
}
