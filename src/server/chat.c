/* Messages of a chat request: their types, what this server serves of them, and the prompt that they become. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "server/api_internal.h"
#include "server/params_types.h"

static bool is_word(const json_t *v, const char *word)
{
    return json_is_string(v) && json_string_length(v) == strlen(word) &&
           strcmp(json_string_value(v), word) == 0;
}

/* A member that has to be there and to be a string. */
static void need_text(nb_field_errors *f, const char *loc, const json_t *object, const char *key)
{
    char at[160];
    const json_t *v = json_object_get(object, key);
    snprintf(at, sizeof at, "%s.%s", loc, key);
    if (!v)
        nb_field_error(f, at, "missing", "Field required", object, NULL);
    else
        nb_is_text(f, at, v);
}

static void check_content(nb_field_errors *f, const char *loc, const json_t *content)
{
    char at[160];
    if (!content || json_is_null(content) || json_is_string(content)) return;
    if (!json_is_array(content)) {
        snprintf(at, sizeof at, "%s.content.str", loc);
        nb_is_text(f, at, content);
        snprintf(at, sizeof at, "%s.content.list", loc);
        nb_is_list(f, at, content, SIZE_MAX);
        return;
    }
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i);
        snprintf(at, sizeof at, "%s.content.%zu", loc, i);
        if (json_is_string(part) || !nb_is_object(f, at, part)) continue;
        need_text(f, at, part, "type");
        if (is_word(json_object_get(part, "type"), "text")) need_text(f, at, part, "text");
    }
}

static void check_calls(nb_field_errors *f, const char *loc, const json_t *calls)
{
    char at[160];
    snprintf(at, sizeof at, "%s.tool_calls", loc);
    if (!calls || json_is_null(calls) || !nb_is_list(f, at, calls, SIZE_MAX)) return;
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i);
        snprintf(at, sizeof at, "%s.tool_calls.%zu", loc, i);
        if (!nb_is_object(f, at, call)) continue;
        snprintf(at, sizeof at, "%s.tool_calls.%zu.function", loc, i);
        const json_t *function = json_object_get(call, "function");
        if (!function)
            nb_field_error(f, at, "missing", "Field required", call, NULL);
        else if (nb_is_object(f, at, function))
            need_text(f, at, function, "name");
    }
}

void nb_chat_check_messages(nb_field_errors *f, const json_t *messages)
{
    char loc[64];
    if (!nb_is_list(f, "messages", messages, SIZE_MAX)) return;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *m = json_array_get(messages, i);
        snprintf(loc, sizeof loc, "messages.%zu", i);
        if (!nb_is_object(f, loc, m)) continue;
        need_text(f, loc, m, "role");
        check_content(f, loc, json_object_get(m, "content"));
        check_calls(f, loc, json_object_get(m, "tool_calls"));
    }
}

static void check_function(nb_field_errors *f, const char *loc, const json_t *tool, const json_t *function)
{
    char at[160];
    const json_t *text = json_object_get(function, "description"),
                 *schema = json_object_get(function, "parameters");
    if (!function) nb_field_error(f, loc, "missing", "Field required", tool, NULL);
    if (!function || !nb_is_object(f, loc, function)) return;
    need_text(f, loc, function, "name");
    snprintf(at, sizeof at, "%s.description", loc);
    if (text && !json_is_null(text)) nb_is_text(f, at, text);
    snprintf(at, sizeof at, "%s.parameters", loc);
    if (schema && !json_is_null(schema)) nb_is_object(f, at, schema);
}

void nb_chat_check_tools(nb_field_errors *f, const json_t *tools)
{
    char loc[64];
    if (!nb_is_list(f, "tools", tools, SIZE_MAX)) return;
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *type = json_object_get(tool, "type");
        snprintf(loc, sizeof loc, "tools.%zu", i);
        if (!nb_is_object(f, loc, tool)) continue;
        if (type) {
            snprintf(loc, sizeof loc, "tools.%zu.type", i);
            nb_is_choice(f, loc, type, "function");
        }
        snprintf(loc, sizeof loc, "tools.%zu.function", i);
        check_function(f, loc, tool, json_object_get(tool, "function"));
    }
}

/* The parts that chat_format.h reads. */
static bool is_text_part(const json_t *type)
{
    return is_word(type, "text") || is_word(type, "input_text") || is_word(type, "output_text") ||
           is_word(type, "refusal") || is_word(type, "thinking");
}

static bool check_parts(const nb_params *p, nb_api_error *e)
{
    char text[NB_VALUE_TEXT];
    for (size_t i = 0; i < json_array_size(p->messages); i++) {
        const json_t *content = json_object_get(json_array_get(p->messages, i), "content");
        for (size_t k = 0; k < json_array_size(content); k++) {
            const json_t *part = json_array_get(content, k), *type = json_object_get(part, "type");
            if (!json_is_string(part) && !is_text_part(type))
                return nb_api_bad(
                    e, "messages", NULL,
                    "This model is served as text: a content part of type '%s' is not supported",
                    nb_value_text(type, text));
        }
    }
    return true;
}

static bool check_choice(const nb_api *a, const nb_params *p, nb_api_error *e)
{
    const json_t *choice = p->tool_choice;
    bool tools = a->opt.tool_parser != NULL;
    if (!p->tools || is_word(choice, "none")) return true;
    if (!choice || is_word(choice, "auto")) {
        if (tools && a->opt.auto_tool_choice) return true;
        return nb_api_bad_text(e, "\"auto\" tool choice requires --enable-auto-tool-choice and "
                                  "--tool-call-parser to be set");
    }
    char text[NB_VALUE_TEXT];
    const char *name = nb_value_text(
        json_is_string(choice) ? choice : json_object_get(json_object_get(choice, "function"), "name"), text);
    if (!tools) return nb_api_bad_text(e, "tool_choice=\"%s\" requires --tool-call-parser to be set", name);
    if (p->response_format && !is_word(json_object_get(p->response_format, "type"), "text"))
        return nb_api_bad_text(e, "A named tool cannot be combined with structured outputs.");
    return nb_api_bad(
        e, "tool_choice", name,
        "Making a model call a tool needs constrained output, which comes with a later version of "
        "nibble; use \"auto\".");
}

bool nb_chat_check_features(const nb_api *a, const nb_params *p, nb_api_error *e)
{
    if (!check_choice(a, p, e)) return false;
    if (p->chat_template && !a->opt.trust_chat_template)
        return nb_api_bad_text(e,
                               "Chat template is passed with request, but --trust-request-chat-template is "
                               "not set. Refused request with untrusted chat template.");
    if (!a->chat && !p->chat_template)
        return nb_api_bad_text(e,
                               "As of transformers v4.44, default chat template is no longer allowed, so you "
                               "must provide a chat template if the model does not define one.");
    if (!json_array_size(p->messages)) return nb_api_bad_text(e, "`messages` must not be empty.");
    return check_parts(p, e);
}

bool nb_chat_calls_tools(const nb_api *a, const nb_params *p)
{
    return p->tools && a->opt.tool_parser && !is_word(p->tool_choice, "none");
}

static bool generates(const nb_params *p)
{
    return nb_bool(p->generation_prompt, !nb_bool(p->continue_final, false));
}

/* Later ones win: the server's, the request's; reasoning_effort fills what neither has. */
static json_t *template_kwargs(const nb_api *a, const nb_params *p)
{
    const json_t *effort = p->reasoning_effort;
    json_t *k = json_object();
    int bad = !k;
    if (!bad && a->opt.template_kwargs) bad = json_object_update(k, (json_t *)a->opt.template_kwargs);
    if (!bad && p->template_kwargs) bad = json_object_update(k, (json_t *)p->template_kwargs);
    if (!bad && effort && !json_object_get(k, "reasoning_effort"))
        bad = json_object_set(k, "reasoning_effort", (json_t *)effort);
    if (!bad && effort && !json_object_get(k, "enable_thinking"))
        bad = json_object_set_new(k, "enable_thinking", json_boolean(!is_word(effort, "none")));
    if (!bad) return k;
    json_decref(k);
    return NULL;
}

/* What nb_chat_format_render takes. NULL: out of memory. */
static json_t *render_request(const nb_api *a, const nb_params *p)
{
    json_t *r = json_object(), *k = template_kwargs(a, p);
    bool ok = r && k && json_object_set(r, "messages", (json_t *)p->messages) == 0 &&
              json_object_set_new(r, "add_generation_prompt", json_boolean(generates(p))) == 0 &&
              json_object_set_new(r, "continue_final_message",
                                  json_boolean(nb_bool(p->continue_final, false))) == 0 &&
              json_object_set(r, "chat_template_kwargs", k) == 0;
    bool tools = p->tools && !(a->opt.exclude_tools && is_word(p->tool_choice, "none"));
    if (tools && ok) ok = json_object_set(r, "tools", (json_t *)p->tools) == 0;
    if (ok && p->documents) ok = json_object_set(r, "documents", (json_t *)p->documents) == 0;
    json_decref(k);
    if (ok) return r;
    json_decref(r);
    return NULL;
}

bool nb_chat_render(const nb_api *a, const nb_params *p, nb_buf *text, nb_api_error *e)
{
    nb_error err = {0};
    nb_chat_format *own = NULL;
    json_t *r = NULL;
    bool ok = false;
    if (p->chat_template) {
        const char *source = json_string_value(p->chat_template);
        if (strlen(source) != json_string_length(p->chat_template))
            return nb_api_bad_text(e, "chat_template must not hold a NUL character.");
        /* A text without a brace could only be a path, and no request names files of the server. */
        if (!strchr(source, '{')) return nb_api_bad_text(e, "chat_template is not a template's text.");
        if (nb_chat_format_open(a->opt.folder ? a->opt.folder : "", NULL, source, &own, &err))
            return nb_api_bad_status(e, &err);
    }
    if (!(r = render_request(a, p))) {
        nb_api_nomem(e);
        goto out;
    }
    if (nb_chat_format_render(own ? own : a->chat, r, (int64_t)time(NULL), text, &err)) {
        nb_api_bad_status(e, &err);
        goto out;
    }
    ok = nb_buf_ok(text) || nb_api_nomem(e);
out:
    json_decref(r);
    nb_chat_format_free(own);
    return ok;
}

static const json_t *last_message(const nb_params *p)
{
    return json_array_get(p->messages, json_array_size(p->messages) - 1);
}

const char *nb_chat_role(const nb_api *a, const nb_params *p)
{
    return generates(p) ? a->opt.response_role : json_string_value(json_object_get(last_message(p), "role"));
}

void nb_chat_echo(const nb_params *p, const char *role, nb_buf *out)
{
    const json_t *last = last_message(p), *content = json_object_get(last, "content");
    if (!nb_bool(p->echo, false) || !is_word(json_object_get(last, "role"), role)) return;
    if (json_is_string(content)) nb_buf_add(out, json_string_value(content), json_string_length(content));
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_object_get(json_array_get(content, i), "text");
        nb_buf_adds(out, i ? "\n" : "");
        nb_buf_add(out, json_string_value(part), json_string_length(part));
    }
}
