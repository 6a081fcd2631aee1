/* Request bodies by table (params.h).  */
#include "server/params.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_tree.h"
#include "base/mem.h"
#include "server/api_internal.h"
#include "server/api_json.h"
#include "server/params_types.h"

/* Of a body: each is some fifty bytes of memory, for two that were sent. 1024 prompts of 2048 ids are within it. */
#define MAX_VALUES 2500000

typedef enum kind {
    BOOL,    /* nb_opt_bool */
    INT,     /* nb_opt_int, within min and max */
    REAL,    /* nb_opt_real */
    TEXT,    /* const json_t *, a string of at least min characters */
    CHOICE,  /* const json_t *, one of `names` */
    TEXTS,   /* const json_t *, a list of strings */
    STOP,    /* const json_t *, a string or a list of at most max strings */
    INTS,    /* nb_int_list, each within min and max, at most `most` */
    NUMBERS, /* const json_t *, an object of numbers */
    OBJECT,  /* const json_t * */
    LIST,    /* const json_t * */
    MESSAGES,
    TOOLS,
    PROMPT, /* const json_t *: a string, or a list of strings, of ids or of lists of ids */
    ANY,    /* const json_t * */
} kind;

typedef struct field {
    const char *name;
    kind kind;
    size_t at;
    unsigned routes;
    bool nullable, required;
    int64_t min, max;
    size_t most;
    const char *names;
} field;

#define AT(member) offsetof(nb_params, member)
#define BOTH (NB_IN_COMPLETIONS | NB_IN_CHAT)
#define TEXTUAL (NB_IN_CHAT | NB_IN_TOKENIZE_CHAT)
#define EVERY (BOTH | NB_IN_TOKENIZE | NB_IN_TOKENIZE_CHAT | NB_IN_DETOKENIZE)
#define ANY_INT .min = INT64_MIN, .max = INT64_MAX
#define NULLABLE .nullable = true

static const field fields[] = {
    {"model", TEXT, AT(model), EVERY, NULLABLE},
    {"prompt", PROMPT, AT(prompt), NB_IN_COMPLETIONS, NULLABLE},
    {"prompt", TEXT, AT(prompt), NB_IN_TOKENIZE, .required = true},
    {"messages", MESSAGES, AT(messages), TEXTUAL, .required = true},
    {"tokens", INTS, AT(tokens), NB_IN_DETOKENIZE, .required = true, .min = 0, .max = INT64_MAX,
     .most = SIZE_MAX},
    {"return_token_strs", BOOL, AT(token_strs), NB_IN_TOKENIZE | NB_IN_TOKENIZE_CHAT, NULLABLE},
    {"request_id", TEXT, AT(request_id), BOTH},
    {"user", TEXT, AT(user), BOTH, NULLABLE},
    {"n", INT, AT(n), NB_IN_COMPLETIONS, ANY_INT},
    {"n", INT, AT(n), NB_IN_CHAT, NULLABLE, ANY_INT},
    {"max_tokens", INT, AT(max_tokens), BOTH, NULLABLE, ANY_INT},
    {"max_completion_tokens", INT, AT(max_completion_tokens), NB_IN_CHAT, NULLABLE, ANY_INT},
    {"min_tokens", INT, AT(min_tokens), BOTH, ANY_INT},
    {"temperature", REAL, AT(temperature), BOTH, NULLABLE},
    {"top_p", REAL, AT(top_p), BOTH, NULLABLE},
    {"top_k", INT, AT(top_k), BOTH, NULLABLE, ANY_INT},
    {"min_p", REAL, AT(min_p), BOTH, NULLABLE},
    {"presence_penalty", REAL, AT(presence_penalty), BOTH, NULLABLE},
    {"frequency_penalty", REAL, AT(frequency_penalty), BOTH, NULLABLE},
    {"repetition_penalty", REAL, AT(repetition_penalty), BOTH, NULLABLE},
    {"seed", INT, AT(seed), BOTH, NULLABLE, ANY_INT},
    {"stop", STOP, AT(stop), BOTH, NULLABLE, .most = 4},
    {"stop_token_ids", INTS, AT(stop_token_ids), BOTH, NULLABLE, ANY_INT, .most = SIZE_MAX},
    {"allowed_token_ids", INTS, AT(allowed_token_ids), BOTH, NULLABLE, ANY_INT, .most = SIZE_MAX},
    {"logprob_token_ids", INTS, AT(logprob_token_ids), BOTH, NULLABLE, ANY_INT, .most = 128},
    {"logit_bias", NUMBERS, AT(logit_bias), BOTH, NULLABLE},
    {"bad_words", TEXTS, AT(bad_words), BOTH},
    {"ignore_eos", BOOL, AT(ignore_eos), BOTH},
    {"include_stop_str_in_output", BOOL, AT(include_stop), BOTH},
    {"skip_special_tokens", BOOL, AT(skip_special), BOTH},
    {"spaces_between_special_tokens", BOOL, AT(special_spaces), BOTH},
    {"logprobs", INT, AT(logprobs), NB_IN_COMPLETIONS, NULLABLE, ANY_INT},
    {"logprobs", BOOL, AT(want_logprobs), NB_IN_CHAT, NULLABLE},
    {"top_logprobs", INT, AT(logprobs), NB_IN_CHAT, NULLABLE, ANY_INT},
    {"prompt_logprobs", INT, AT(prompt_logprobs), BOTH, NULLABLE, ANY_INT},
    {"truncate_prompt_tokens", INT, AT(truncate), BOTH, NULLABLE, .min = -1, .max = INT64_MAX},
    {"truncation_side", CHOICE, AT(truncation_side), BOTH, NULLABLE, .names = "left right"},
    {"priority", INT, AT(priority), BOTH, ANY_INT},
    {"cache_salt", TEXT, AT(cache_salt), BOTH, NULLABLE, .min = 1},
    {"thinking_token_budget", INT, AT(thinking_budget), BOTH, NULLABLE, .min = -1, .max = INT64_MAX},
    {"repetition_detection", OBJECT, AT(repetition_detection), BOTH, NULLABLE},
    {"use_beam_search", BOOL, AT(beam_search), BOTH},
    {"length_penalty", REAL, AT(length_penalty), BOTH},
    {"return_tokens_as_token_ids", BOOL, AT(tokens_as_ids), BOTH, NULLABLE},
    {"return_token_ids", BOOL, AT(return_token_ids), BOTH, NULLABLE},
    {"stream_interval", INT, AT(stream_interval), BOTH, NULLABLE, .min = 1, .max = INT64_MAX},
    {"stream", BOOL, AT(stream), BOTH, NULLABLE},
    {"stream_options", OBJECT, AT(stream_options), BOTH, NULLABLE},
    {"response_format", OBJECT, AT(response_format), BOTH, NULLABLE},
    {"structured_outputs", OBJECT, AT(structured_outputs), BOTH, NULLABLE},
    {"echo", BOOL, AT(echo), NB_IN_COMPLETIONS, NULLABLE},
    {"echo", BOOL, AT(echo), NB_IN_CHAT},
    {"suffix", TEXT, AT(suffix), NB_IN_COMPLETIONS, NULLABLE},
    {"prompt_embeds", ANY, AT(prompt_embeds), NB_IN_COMPLETIONS, NULLABLE},
    {"add_special_tokens", BOOL, AT(add_special), EVERY & ~(unsigned)NB_IN_DETOKENIZE},
    {"tools", TOOLS, AT(tools), TEXTUAL, NULLABLE},
    {"tool_choice", ANY, AT(tool_choice), NB_IN_CHAT, NULLABLE},
    {"parallel_tool_calls", BOOL, AT(parallel_calls), NB_IN_CHAT, NULLABLE},
    {"reasoning_effort", CHOICE, AT(reasoning_effort), NB_IN_CHAT, NULLABLE,
     .names = "none minimal low medium high xhigh max"},
    {"include_reasoning", BOOL, AT(include_reasoning), NB_IN_CHAT},
    {"documents", LIST, AT(documents), NB_IN_CHAT, NULLABLE},
    {"chat_template", TEXT, AT(chat_template), TEXTUAL, NULLABLE},
    {"chat_template_kwargs", OBJECT, AT(template_kwargs), TEXTUAL, NULLABLE},
    {"add_generation_prompt", BOOL, AT(generation_prompt), TEXTUAL},
    {"continue_final_message", BOOL, AT(continue_final), TEXTUAL},
    {"return_prompt_text", BOOL, AT(prompt_text), NB_IN_CHAT, NULLABLE},
};

/* Members of stream_options; they land beside the others. */
static const field stream_fields[] = {
    {"include_usage", BOOL, AT(include_usage), BOTH, NULLABLE},
    {"continuous_usage_stats", BOOL, AT(continuous_usage), BOTH, NULLABLE},
};

typedef struct reader {
    nb_params *p;
    nb_field_errors errors;
    bool nomem;
} reader;

static void get_ints(reader *r, const field *f, const json_t *v, nb_int_list *out)
{
    char loc[96];
    size_t n = json_array_size(v), bytes;
    if (!nb_is_list(&r->errors, f->name, v, f->most)) return;
    if (!nb_mul(n ? n : 1, sizeof *out->v, &bytes) || !(out->v = malloc(bytes))) {
        r->nomem = true;
        return;
    }
    for (out->n = 0; out->n < n; out->n++) {
        snprintf(loc, sizeof loc, "%s.%zu", f->name, out->n);
        if (!nb_get_int(&r->errors, loc, json_array_get(v, out->n), f->min, f->max, &out->v[out->n])) return;
    }
    out->set = true;
}

/* A union fails with one complaint a branch, as pydantic lists them. */
static bool is_stop(reader *r, const json_t *v, size_t most)
{
    nb_field_errors tried = {0};
    if (json_is_string(v)) return true;
    nb_is_text(&tried, "stop.str", v);
    bool ok = nb_is_text_list(&tried, "stop.list[str]", v, most);
    if (!ok) nb_field_errors_add(&r->errors, &tried);
    nb_field_errors_free(&tried);
    return ok;
}

static bool is_id_list(nb_field_errors *f, const char *loc, const json_t *v)
{
    char each[160];
    int64_t id;
    bool ok = nb_is_list(f, loc, v, SIZE_MAX);
    for (size_t i = 0; ok && i < json_array_size(v); i++) {
        snprintf(each, sizeof each, "%s.%zu", loc, i);
        ok = nb_get_int(f, each, json_array_get(v, i), 0, INT64_MAX, &id);
    }
    return ok;
}

static bool is_prompt(reader *r, const json_t *v)
{
    nb_field_errors tried = {0};
    char each[160];
    if (json_is_string(v) || nb_is_text_list(&tried, "", v, SIZE_MAX)) return true;
    nb_field_errors_free(&tried);
    bool ok = is_id_list(&tried, "prompt.list[int]", v);
    if (!ok) {
        ok = nb_is_list(&tried, "prompt.list[list[int]]", v, SIZE_MAX);
        for (size_t i = 0; ok && i < json_array_size(v); i++) {
            snprintf(each, sizeof each, "prompt.list[list[int]].%zu", i);
            ok = is_id_list(&tried, each, json_array_get(v, i));
        }
    }
    if (!ok) {
        nb_is_text(&tried, "prompt.str", v);
        nb_is_text_list(&tried, "prompt.list[str]", v, SIZE_MAX);
        nb_field_errors_add(&r->errors, &tried);
    }
    nb_field_errors_free(&tried);
    return ok;
}

static bool is_numbers(reader *r, const field *f, const json_t *v)
{
    const char *key;
    json_t *each;
    char loc[160];
    double d;
    bool ok = nb_is_object(&r->errors, f->name, v);
    json_object_foreach((json_t *)v, key, each)
    {
        snprintf(loc, sizeof loc, "%s.%s", f->name, key);
        ok = nb_get_real(&r->errors, loc, each, &d) && ok;
    }
    return ok;
}

static void set_field(reader *r, const field *f, const char *loc, const json_t *v)
{
    nb_field_errors *e = &r->errors;
    void *to = (char *)r->p + f->at;
    nb_opt_int *i = to;
    nb_opt_real *d = to;
    nb_opt_bool *b = to;
    bool ok = true;
    switch (f->kind) {
    case BOOL: b->set = nb_get_bool(e, loc, v, &b->v); return;
    case INT: i->set = nb_get_int(e, loc, v, f->min, f->max, &i->v); return;
    case REAL: d->set = nb_get_real(e, loc, v, &d->v); return;
    case INTS: get_ints(r, f, v, to); return;
    case TEXT:
        ok = nb_is_text(e, loc, v);
        if (ok && (int64_t)json_string_length(v) < f->min) {
            nb_field_error(e, loc, "string_too_short", "String should have at least 1 character", v,
                           "'min_length': 1");
            ok = false;
        }
        break;
    case CHOICE: ok = nb_is_choice(e, loc, v, f->names); break;
    case TEXTS: ok = nb_is_text_list(e, loc, v, SIZE_MAX); break;
    case STOP: ok = is_stop(r, v, f->most); break;
    case NUMBERS: ok = is_numbers(r, f, v); break;
    case OBJECT: ok = nb_is_object(e, loc, v); break;
    case LIST: ok = nb_is_list(e, loc, v, SIZE_MAX); break;
    case MESSAGES: nb_chat_check_messages(e, v); break;
    case TOOLS: nb_chat_check_tools(e, v); break;
    case PROMPT: ok = is_prompt(r, v); break;
    case ANY: break;
    }
    if (ok) *(const json_t **)to = v;
}

static void set_fields(reader *r, const field *list, size_t n, const char *under, const json_t *object)
{
    char loc[96];
    for (size_t i = 0; i < n && !r->nomem; i++) {
        const json_t *v = json_object_get(object, list[i].name);
        if (!(list[i].routes & r->p->route)) continue;
        snprintf(loc, sizeof loc, "%s%s", under, list[i].name);
        if (!v && list[i].required)
            nb_field_error(&r->errors, loc, "missing", "Field required", object, NULL);
        if (v && !(json_is_null(v) && list[i].nullable)) set_field(r, &list[i], loc, v);
    }
}

bool nb_params_parse(nb_params *p, unsigned route, const char *body, size_t n, nb_api_error *e)
{
    reader r = {.p = p};
    nb_error err = {0};
    bool ok = false;
    nb_status s = nb_json_tree_bounded(NULL, body, n, MAX_VALUES, &p->body, &err);
    p->route = route;
    if (s == NB_ERR_NOMEM) return nb_api_nomem(e);
    if (s != NB_OK) {
        char loc[32];
        nb_buf ctx = {0};
        const char *why = strncmp(err.cause, "not JSON: ", 10) == 0 ? err.cause + 10 : err.cause;
        size_t at = err.offset > 0 && (size_t)err.offset <= n ? (size_t)err.offset : 0;
        snprintf(loc, sizeof loc, "%zu", nb_count_chars(body, at));
        json_t *text = json_string(why);
        nb_buf_adds(&ctx, "'error': ");
        nb_out_python(&ctx, text, 600);
        json_decref(text);
        r.nomem = !text || !nb_buf_ok(&ctx);
        nb_field_error(&r.errors, loc, "json_invalid", "JSON decode error", NULL, nb_buf_str(&ctx));
        nb_buf_free(&ctx);
    } else if (!json_is_object(p->body)) {
        nb_field_error(&r.errors, "", "model_attributes_type",
                       "Input should be a valid dictionary or object to extract fields from", p->body, NULL);
    } else {
        if (!nb_params_check_body(p, e)) goto out;
        set_fields(&r, fields, sizeof fields / sizeof *fields, "", p->body);
        if (p->stream_options)
            set_fields(&r, stream_fields, sizeof stream_fields / sizeof *stream_fields, "stream_options.",
                       p->stream_options);
    }
    ok = r.nomem ? nb_api_nomem(e) : nb_field_errors_none(&r.errors, e);
out:
    nb_field_errors_free(&r.errors);
    return ok;
}

static void drop_ids(nb_int_list *l)
{
    free(l->v);
    l->v = NULL;
    l->n = 0;
}

void nb_params_drop_body(nb_params *p)
{
    json_decref(p->body);
    p->body = NULL;
    p->model = p->request_id = p->user = p->stop = p->logit_bias = p->bad_words = NULL;
    p->truncation_side = p->cache_salt = p->stream_options = p->response_format = NULL;
    p->structured_outputs = p->repetition_detection = p->prompt = p->prompt_embeds = p->suffix = NULL;
    p->messages = p->tools = p->tool_choice = p->reasoning_effort = p->documents = NULL;
    p->chat_template = p->template_kwargs = NULL;
    drop_ids(&p->stop_token_ids);
    drop_ids(&p->allowed_token_ids);
    drop_ids(&p->logprob_token_ids);
    drop_ids(&p->tokens);
}

void nb_params_free(nb_params *p)
{
    nb_params_drop_body(p);
}
