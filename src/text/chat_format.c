/*
 * From a chat request to a prompt, in the two steps that vLLM and transformers make of it:
 *
 *     request off the wire -> messages as templates expect them    (vLLM, vllm/entrypoints/chat_utils.py)
 *     messages -> variables -> text                                (transformers, utils/chat_template_utils.py)
 */
#include "text/chat_format.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_tree.h"
#include "text/chat.h"
#include "text/jinja_internal.h"

#define TEMPLATE_MAX ((size_t)16 << 20)
#define CONFIG_MAX ((size_t)256 << 20)

typedef struct chat_template {
    nb_jinja *jinja;
    bool parts;     /* it wants content as a list of parts */
    bool developer; /* it knows that role; another gets "system" for it, as vLLM does */
} chat_template;

struct nb_chat_format {
    chat_template plain;      /* jinja NULL: DeepSeek-V4's encoding */
    chat_template with_tools; /* for requests with tools; jinja NULL: plain is for all */
    json_t *tokens;           /* "bos_token" and the like: variables of every template */
};

static nb_status no_memory(nb_error *err)
{
    return nb_fail_nomem(err, "a chat request", 0);
}

/* A copy of an object or array that shares its members. NULL: memory is out, which json_copy would not tell. */
static json_t *copy_of(const json_t *v)
{
    json_t *o = json_is_array(v) ? json_array() : json_object();
    if (o && (json_is_array(v) ? json_array_extend(o, (json_t *)v) : json_object_update(o, (json_t *)v)) == 0)
        return o;
    json_decref(o);
    return NULL;
}

/* ---- finding the format ---- */

static nb_status parse(chat_template *t, const char *file, bool whole_file, const char *text, size_t n,
                       nb_error *err)
{
    nb_jinja_free(t->jinja); /* of two by one name the last counts */
    t->jinja = NULL;
    nb_status s = nb_jinja_parse(text, n, &t->jinja, err);
    t->developer = memmem(text, n, "developer", strlen("developer")) != NULL;
    if (s != NB_OK && !whole_file) err->offset = -1; /* the template's byte is not the file's */
    if (s != NB_OK) nb_error_at(err, file, NULL, -1);
    return s == NB_OK ? nb_jinja_wants_parts(t->jinja, &t->parts, err) : s;
}

static nb_status parse_file(chat_template *t, const char *path, nb_error *err)
{
    nb_buf text = {0};
    nb_status s = nb_file_slurp(path, TEMPLATE_MAX, &text, err);
    if (s == NB_OK) s = parse(t, path, true, nb_buf_str(&text), text.len, err);
    nb_buf_free(&text);
    return s;
}

/* The template in a JSON file's chat_template: a string, or in a list the one named default, and beside it tool_use. */
static nb_status parse_member(nb_chat_format *f, const char *file, const json_t *config, nb_error *err)
{
    const json_t *t = json_object_get(config, "chat_template"), *each;
    size_t i;
    nb_status s = NB_OK;
    if (json_is_string(t))
        return parse(&f->plain, file, false, json_string_value(t), json_string_length(t), err);
    json_array_foreach(t, i, each)
    {
        const char *name = json_string_value(json_object_get(each, "name"));
        const json_t *text = json_object_get(each, "template");
        if (s != NB_OK || !name || !json_is_string(text)) continue;
        if (strcmp(name, "default") == 0)
            s = parse(&f->plain, file, false, json_string_value(text), json_string_length(text), err);
        if (strcmp(name, "tool_use") == 0)
            s = parse(&f->with_tools, file, false, json_string_value(text), json_string_length(text), err);
    }
    return s;
}

/* A JSON object of the folder; *out stays NULL when the file is not there. */
static nb_status read_object(const char *path, json_t **out, nb_error *err)
{
    nb_buf text = {0};
    nb_error probe = {.offset = -1};
    nb_status s = nb_file_slurp(path, CONFIG_MAX, &text, &probe);
    if (s == NB_ERR_MISSING) return NB_OK;
    if (s != NB_OK)
        *err = probe;
    else
        s = nb_json_tree(path, nb_buf_str(&text), text.len, out, err);
    nb_buf_free(&text);
    return s;
}

/* Special tokens as transformers offers them: a string, or an object that says how the token behaves. */
static nb_status take_tokens(nb_chat_format *f, const json_t *config, nb_error *err)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    if (!(f->tokens = json_object())) return no_memory(err);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *t = json_object_get(config, names[i]);
        if (json_is_object(t)) t = json_object_get(t, "content");
        if (json_is_string(t) && json_object_set(f->tokens, names[i], t) != 0) return no_memory(err);
    }
    return NB_OK;
}

static nb_status from_folder(nb_chat_format *f, const char *dir, const json_t *config, nb_error *err)
{
    char *path = nb_path_join(dir, "chat_template.jinja"), *json = nb_path_join(dir, "chat_template.json"),
         *tokenizer = nb_path_join(dir, "tokenizer_config.json");
    json_t *other = NULL;
    nb_error probe = {.offset = -1};
    nb_status s = path && json && tokenizer ? parse_file(&f->plain, path, &probe) : no_memory(&probe);
    if (s == NB_ERR_MISSING) {
        s = read_object(json, &other, &probe);
        if (s == NB_OK) s = parse_member(f, json, other, &probe);
        if (s == NB_OK && !f->plain.jinja) s = parse_member(f, tokenizer, config, &probe);
    }
    if (s != NB_OK) *err = probe;
    json_decref(other);
    free(path);
    free(json);
    free(tokenizer);
    return s;
}

nb_status nb_chat_format_open(const char *dir, const char *architecture, const char *source,
                              nb_chat_format **out, nb_error *err)
{
    nb_error local = {.offset = -1};
    if (!err) err = &local;
    json_t *config = NULL;
    nb_chat_format *f = calloc(1, sizeof *f);
    char *path = nb_path_join(dir, "tokenizer_config.json");
    nb_status s = f && path ? read_object(path, &config, err) : no_memory(err);
    if (s == NB_OK) s = take_tokens(f, config, err);
    if (s != NB_OK) goto out;
    if (!source)
        s = from_folder(f, dir, config, err);
    else if (strpbrk(source, "{}\n")) /* as vLLM tells a template from a path */
        s = parse(&f->plain, NULL, true, source, strlen(source), err);
    else
        s = parse_file(&f->plain, source, err);
    if (s == NB_OK && !f->plain.jinja && !(architecture && strcmp(architecture, "deepseek_v4") == 0)) {
        s = nb_fail(err, NB_ERR_MISSING, "the folder has no chat template");
        nb_error_at(err, dir, NULL, -1);
        nb_error_remedy(err, "put the model's chat_template.jinja there, or give prompts as plain text with "
                             "special tokens spelled out");
    }
out:
    json_decref(config);
    free(path);
    if (s == NB_OK)
        *out = f;
    else
        nb_chat_format_free(f);
    return s;
}

void nb_chat_format_free(nb_chat_format *f)
{
    if (!f) return;
    nb_jinja_free(f->plain.jinja);
    nb_jinja_free(f->with_tools.jinja);
    json_decref(f->tokens);
    free(f);
}

bool nb_chat_format_uses(const nb_chat_format *f, const char *variable)
{
    static const char *const builtin[] = {"thinking", "enable_thinking", "reasoning_effort", "drop_thinking"};
    if (f->plain.jinja)
        return nb_jinja_uses(f->plain.jinja, variable) ||
               (f->with_tools.jinja && nb_jinja_uses(f->with_tools.jinja, variable));
    for (size_t i = 0; i < sizeof builtin / sizeof *builtin; i++)
        if (strcmp(builtin[i], variable) == 0) return true;
    return false;
}

const char *nb_chat_format_name(const nb_chat_format *f)
{
    return f->plain.jinja ? "jinja" : "deepseek_v4";
}

/* ---- off the wire ---- */

/* The text of one part of a message's content. */
static const json_t *part_text(const json_t *part)
{
    static const char *const types[][2] = {{"text", "text"},
                                           {"input_text", "text"},
                                           {"output_text", "text"},
                                           {"refusal", "refusal"},
                                           {"thinking", "thinking"}};
    const char *type = json_string_value(json_object_get(part, "type"));
    if (json_is_string(part)) return part;
    for (size_t i = 0; type && i < sizeof types / sizeof *types; i++) {
        const json_t *text = json_object_get(part, types[i][1]);
        if (strcmp(type, types[i][0]) == 0 && json_is_string(text)) return text;
    }
    return NULL;
}

/* Content as a list of text parts, or as one text with a line for each part. */
static nb_status make_content(const json_t *content, bool parts, json_t **out, nb_error *err)
{
    const json_t *part;
    size_t i;
    nb_buf text = {0};
    json_t *list = json_array();
    nb_status s = list ? NB_OK : no_memory(err);
    if (s == NB_OK && content && !json_is_null(content) && !json_is_string(content) &&
        !json_is_array(content))
        s = nb_fail(err, NB_ERR_ARGUMENT, "content is neither text, null nor a list of parts");
    if (s == NB_OK && json_is_string(content)) {
        nb_buf_add(&text, json_string_value(content), json_string_length(content));
        if (json_array_append_new(list, json_pack("{s:s, s:O}", "type", "text", "text", content)) != 0)
            s = no_memory(err);
    }
    json_array_foreach(content, i, part)
    {
        const json_t *t = s == NB_OK ? part_text(part) : NULL;
        const char *type = json_string_value(json_object_get(part, "type"));
        if (s == NB_OK && !t)
            s = nb_fail(err, NB_ERR_ARGUMENT, "a content part of type '%.60s': text alone is read",
                        type ? type : "");
        if (!t) continue;
        if (i) nb_buf_addc(&text, '\n');
        nb_buf_add(&text, json_string_value(t), json_string_length(t));
        if (json_array_append_new(list, json_pack("{s:s, s:O}", "type", "text", "text", t)) != 0)
            s = no_memory(err);
    }
    if (s == NB_OK) {
        *out = parts              ? json_incref(list)
               : nb_buf_ok(&text) ? json_stringn(nb_buf_str(&text), text.len)
                                  : NULL;
        if (!*out) s = no_memory(err);
    }
    json_decref(list);
    nb_buf_free(&text);
    return s;
}

/* A call's arguments come as the text of a JSON object and go to the template as that object; what is no JSON stays text. */
static nb_status make_arguments(const json_t *arguments, json_t **out, nb_error *err)
{
    nb_error probe;
    size_t n = json_string_length(arguments);
    *out = NULL;
    if (json_is_string(arguments) && n) {
        nb_status s = nb_json_tree(NULL, json_string_value(arguments), n, out, &probe);
        if (s == NB_ERR_NOMEM) return no_memory(err);
    }
    bool nothing = !arguments || json_is_null(arguments) || (json_is_string(arguments) && !n);
    if (!*out) *out = nothing ? json_object() : json_incref((json_t *)arguments);
    return *out ? NB_OK : no_memory(err);
}

static nb_status make_calls(const json_t *calls, json_t **out, nb_error *err)
{
    const json_t *call;
    size_t i;
    nb_status s = NB_OK;
    json_t *list = json_array();
    if (!list) return no_memory(err);
    json_array_foreach(calls, i, call)
    {
        const json_t *function = json_object_get(call, "function");
        json_t *arguments = NULL;
        if (!json_is_object(function)) {
            s = nb_fail(err, NB_ERR_ARGUMENT, "tool_calls[%zu] has no function", i);
            break;
        }
        if ((s = make_arguments(json_object_get(function, "arguments"), &arguments, err))) break;
        json_t *c = copy_of(call), *f = copy_of(function);
        bool ok = c && f && json_object_set(f, "arguments", arguments) == 0 &&
                  json_object_set(c, "function", f) == 0 && json_array_append(list, c) == 0;
        json_decref(arguments);
        json_decref(c);
        json_decref(f);
        if (!ok) {
            s = no_memory(err);
            break;
        }
    }
    if (s == NB_OK)
        *out = list;
    else
        json_decref(list);
    return s;
}

/* The first of two names of a member that is there and not null. */
static json_t *either(const json_t *o, const char *a, const char *b)
{
    json_t *v = json_object_get(o, a);
    if (!v || json_is_null(v)) v = json_object_get(o, b);
    return json_is_null(v) ? NULL : v;
}

/* One message: role, content, then the rest without what is null. */
static nb_status make_message(const chat_template *t, const json_t *m, json_t **out, nb_error *err)
{
    const char *key;
    json_t *v, *content = NULL, *calls = NULL;
    const json_t *role = json_object_get(m, "role"), *given = json_object_get(m, "tool_calls");
    if (!json_is_string(role)) return nb_fail(err, NB_ERR_ARGUMENT, "it is not an object with a role");
    bool assistant = strcmp(json_string_value(role), "assistant") == 0;
    nb_status s = make_content(json_object_get(m, "content"), t->parts, &content, err);
    if (s == NB_OK && assistant && json_array_size(given)) s = make_calls(given, &calls, err);
    json_t *o = json_object();
    bool system = !t->developer && strcmp(json_string_value(role), "developer") == 0;
    bool ok =
        o &&
        json_object_set_new(o, "role", system ? json_string("system") : json_incref((json_t *)role)) == 0 &&
        (s || json_object_set(o, "content", content) == 0);
    json_object_foreach((json_t *)m, key, v)
    {
        if (json_is_null(v) || json_object_get(o, key) || strcmp(key, "tool_calls") == 0) continue;
        ok = ok && json_object_set(o, key, v) == 0;
    }
    json_t *reasoning = assistant ? either(m, "reasoning", "reasoning_content") : NULL;
    if (reasoning)
        ok = ok && json_object_set(o, "reasoning", reasoning) == 0 &&
             json_object_set(o, "reasoning_content", reasoning) == 0;
    if (calls || (given && !assistant && !json_is_null(given)))
        ok = ok && json_object_set(o, "tool_calls", calls ? calls : (json_t *)given) == 0;
    if (s == NB_OK && !ok) s = no_memory(err);
    json_decref(content);
    json_decref(calls);
    if (s == NB_OK)
        *out = o;
    else
        json_decref(o);
    return s;
}

static nb_status make_messages(const chat_template *t, const json_t *messages, json_t **out, nb_error *err)
{
    const json_t *m;
    size_t i;
    nb_status s = NB_OK;
    if (!json_is_array(messages)) return nb_fail(err, NB_ERR_ARGUMENT, "messages is not an array");
    json_t *list = json_array();
    if (!list) return no_memory(err);
    json_array_foreach(messages, i, m)
    {
        json_t *each = NULL;
        if ((s = make_message(t, m, &each, err))) {
            char cause[sizeof err->cause];
            memcpy(cause, err->cause, sizeof cause);
            if (s == NB_ERR_ARGUMENT) nb_fail(err, s, "messages[%zu]: %.480s", i, cause);
            break;
        }
        if (json_array_append_new(list, each) != 0) {
            s = no_memory(err);
            break;
        }
    }
    if (s == NB_OK)
        *out = list;
    else
        json_decref(list);
    return s;
}

/* ---- to the template ---- */

static const char tag[] = "CONTINUE_FINAL_MESSAGE_TAG ";

/* Reasoning under the names that templates read, as transformers offers it. */
static json_t *with_reasoning(const json_t *message)
{
    json_t *r = either(message, "reasoning_content", "thinking");
    if (!r) r = either(message, "reasoning", "reasoning");
    if (!r) return copy_of(message);
    json_t *o = json_object();
    bool ok = o && json_object_set(o, "thinking", r) == 0 && json_object_update(o, (json_t *)message) == 0 &&
              json_object_set(o, "reasoning_content", r) == 0;
    if (ok) return o;
    json_decref(o);
    return NULL;
}

/* Puts v in the place of member key (of an object) or i (of an array) of a copy of o. NULL: memory is out. */
static json_t *replaced(const json_t *o, const char *key, size_t i, json_t *v)
{
    json_t *c = v ? copy_of(o) : NULL;
    if (c && (key ? json_object_set(c, key, v) : json_array_set(c, i, v)) != 0) {
        json_decref(c);
        c = NULL;
    }
    json_decref(v);
    return c;
}

/* Puts a tag after the last message's text, which a reply is to continue: by the tag its end is found in the prompt. *text is
 * the text as it was, borrowed from what messages held before. */
static nb_status put_tag(json_t *messages, const json_t **text, nb_error *err)
{
    size_t n = json_array_size(messages), part = 0;
    const json_t *last = n ? json_array_get(messages, n - 1) : NULL,
                 *content = json_object_get(last, "content");
    nb_buf tagged = {0};
    *text = content;
    if (json_is_array(content)) {
        *text = NULL;
        for (part = json_array_size(content); part > 0 && !*text; part--)
            *text = json_object_get(json_array_get(content, part - 1), "text");
    }
    if (!json_is_string(*text))
        return nb_fail(err, NB_ERR_ARGUMENT,
                       "continue_final_message is set but the final message has no content to continue");
    nb_buf_add(&tagged, json_string_value(*text), json_string_length(*text));
    nb_buf_adds(&tagged, tag);
    json_t *v = nb_buf_ok(&tagged) ? json_stringn(tagged.data, tagged.len) : NULL;
    if (json_is_array(content)) {
        v = replaced(json_array_get(content, part), "text", 0, v);
        v = replaced(content, NULL, part, v);
    }
    v = replaced(last, "content", 0, v);
    nb_buf_free(&tagged);
    return v && json_array_set_new(messages, n - 1, v) == 0 ? NB_OK : no_memory(err);
}

static size_t strip_end(const char *s, size_t n)
{
    uint32_t cp;
    while (n) {
        size_t i = n - 1;
        while (i && ((unsigned char)s[i] & 0xC0) == 0x80) i--;
        nb_j_char(s + i, n - i, &cp);
        if (!nb_j_is_space(cp)) break;
        n = i;
    }
    return n;
}

/* Ends the prompt, which begins at byte `from`, where the last message's text ends. */
static nb_status cut_at_tag(nb_buf *out, size_t from, const json_t *text, nb_error *err)
{
    const char *want = json_string_value(text), *found = NULL;
    size_t n = strip_end(want, json_string_length(text)), tag_n = sizeof tag - 1;
    uint32_t cp;
    for (size_t w; n && (w = nb_j_char(want, n, &cp)) && nb_j_is_space(cp); n -= w) want += w;
    const char *prompt = out->data ? out->data + from : "";
    size_t len = out->len - from;
    bool there = out->data && memmem(prompt, len, want, n);
    for (const char *p = prompt; (p = memmem(p, len - (size_t)(p - prompt), tag, tag_n - 1)); p++) found = p;
    if (!there || !found)
        return nb_fail(err, NB_ERR_ARGUMENT,
                       "continue_final_message is set but the final message does not appear in the chat "
                       "after applying the chat template");
    size_t at = (size_t)(found - prompt);
    bool kept = at + tag_n <= len && found[tag_n - 1] == ' ';
    out->len = from + (kept ? at : strip_end(prompt, at));
    out->data[out->len] = '\0';
    return NB_OK;
}

static bool flag(const json_t *request, const char *name, bool otherwise)
{
    const json_t *v = json_object_get(request, name);
    return v && !json_is_null(v) ? json_is_true(v) : otherwise;
}

static const chat_template *template_for(const nb_chat_format *f, const json_t *request)
{
    const json_t *tools = json_object_get(request, "tools");
    return f->with_tools.jinja && tools && !json_is_null(tools) ? &f->with_tools : &f->plain;
}

nb_status nb_chat_format_apply(const nb_chat_format *f, const json_t *request, int64_t now, nb_buf *out,
                               nb_error *err)
{
    nb_error local = {.offset = -1};
    if (!err) err = &local;
    static const char *const own[] = {"tools", "documents"};
    const json_t *given = json_object_get(request, "messages"),
                 *kwargs = json_object_get(request, "chat_template_kwargs"), *each, *text = NULL;
    bool resume = flag(request, "continue_final_message", false),
         generate = flag(request, "add_generation_prompt", !resume);
    size_t i, before = out->len;
    json_t *vars = json_object(), *messages = json_array();
    bool ok = vars && messages && json_object_update(vars, f->tokens) == 0;
    nb_status s = NB_OK;
    if (json_is_object(kwargs)) ok = ok && json_object_update(vars, (json_t *)kwargs) == 0;
    json_array_foreach(given, i, each)
    {
        ok = ok && json_array_append_new(messages, with_reasoning(each)) == 0;
    }
    ok = ok && json_object_set(vars, "messages", messages) == 0;
    for (i = 0; i < 2; i++) {
        json_t *v = json_object_get(request, own[i]);
        ok = ok &&
             (v ? json_object_set(vars, own[i], v) : json_object_set_new(vars, own[i], json_null())) == 0;
    }
    ok = ok && json_object_set_new(vars, "add_generation_prompt", json_boolean(generate)) == 0;
    if (!ok)
        s = no_memory(err);
    else if (resume && generate)
        s = nb_fail(err, NB_ERR_ARGUMENT,
                    "Cannot set both `continue_final_message` and `add_generation_prompt` to True.");
    if (s == NB_OK && resume) s = put_tag(messages, &text, err);
    if (s == NB_OK)
        s = nb_jinja_render(template_for(f, request)->jinja, vars, now, NB_JINJA_LIMITS, out, err);
    if (s == NB_OK && resume) s = cut_at_tag(out, before, text, err);
    if (s != NB_OK && out->data) {
        out->len = before;
        out->data[before] = '\0';
    }
    json_decref(vars);
    json_decref(messages);
    return s;
}

/* DeepSeek-V4's encoder reads requests as they come; a reply that is continued is one without its end token. */
static nb_status render_builtin(const json_t *request, nb_buf *out, nb_error *err)
{
    if (!flag(request, "continue_final_message", false)) return nb_chat_deepseek_v4_render(request, out, err);
    if (flag(request, "add_generation_prompt", false))
        return nb_fail(err, NB_ERR_ARGUMENT,
                       "Cannot set both `continue_final_message` and `add_generation_prompt` to True.");
    json_t *r = copy_of(request), *messages = copy_of(json_object_get(request, "messages"));
    size_t n = json_array_size(messages);
    json_t *last = copy_of(json_array_get(messages, n ? n - 1 : 0));
    const char *role = json_string_value(json_object_get(last, "role"));
    nb_status s = NB_OK;
    if (n && (!role || strcmp(role, "assistant") != 0))
        s = nb_fail(err, NB_ERR_ARGUMENT,
                    "continue_final_message is set but the final message is not the assistant's");
    else if (!r || !messages || !last || json_object_set_new(last, "wo_eos", json_true()) != 0 ||
             json_array_set(messages, n - 1, last) != 0 || json_object_set(r, "messages", messages) != 0 ||
             json_object_set_new(r, "add_generation_prompt", json_false()) != 0)
        s = n && json_is_object(last) ? no_memory(err)
                                      : nb_fail(err, NB_ERR_ARGUMENT, "there is no message to continue");
    if (s == NB_OK) s = nb_chat_deepseek_v4_render(r, out, err);
    json_decref(r);
    json_decref(messages);
    json_decref(last);
    return s;
}

nb_status nb_chat_format_render(const nb_chat_format *f, const json_t *request, int64_t now, nb_buf *out,
                                nb_error *err)
{
    nb_error local = {.offset = -1};
    if (!err) err = &local;
    const json_t *kwargs = json_object_get(request, "chat_template_kwargs");
    if (kwargs && !json_is_null(kwargs) && !json_is_object(kwargs))
        return nb_fail(err, NB_ERR_ARGUMENT, "chat_template_kwargs is not an object");
    if (!f->plain.jinja) return render_builtin(request, out, err);
    json_t *messages = NULL, *r = NULL;
    nb_status s =
        make_messages(template_for(f, request), json_object_get(request, "messages"), &messages, err);
    if (s == NB_OK && (!(r = copy_of(request)) || json_object_set(r, "messages", messages) != 0))
        s = no_memory(err);
    if (s == NB_OK) s = nb_chat_format_apply(f, r, now, out, err);
    json_decref(messages);
    json_decref(r);
    return s;
}
