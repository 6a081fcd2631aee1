/*
 * DeepSeek-V4's prompt from a chat request. The model has no template; its encoding is a program, and this is ours:
 *
 *     request -> turns: tool results and consecutive user messages join into one user turn, results in call order
 *             -> turns without old developer messages, where old reasoning is dropped
 *             -> text
 *
 * specs/deepseek_v4.md §12. The texts are the model's interface: it was trained on exactly these bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "base/json_tree.h"
#include "base/map.h"
#include "text/chat.h"
#include "text/dsv4.h"
#include "text/pyjson.h"

static const char max_effort[] =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the "
    "root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial "
    "scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, "
    "and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n";

static const char tools_before[] =
    "\n\n## Tools\n\n"
    "You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "
    "\"" DSV4_CALLS ">\" block like the following:\n\n" DSV4_CALLS ">\n" DSV4_INVOKE
    " name=\"$TOOL_NAME\">\n" DSV4_PARAMETER
    " name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE<" DSV4_PARAMETER_END
    ">\n...\n" DSV4_END_INVOKE ">\n" DSV4_INVOKE " name=\"$TOOL_NAME2\">\n...\n" DSV4_END_INVOKE
    ">\n" DSV4_END_CALLS "\n\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, "
    "booleans, arrays, "
    "objects), pass the value in JSON format and set `string=\"false\"`.\n\n"
    "If thinking_mode is enabled (triggered by " DSV4_THINK "), you MUST output your complete reasoning "
    "inside " DSV4_THINK "..." DSV4_END_THINK " BEFORE any tool calls or final response.\n\n"
    "Otherwise, output directly after " DSV4_END_THINK " with tool calls or final response.\n\n"
    "### Available Tool Schemas\n\n";
static const char tools_after[] =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";

static const char response_format[] =
    "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

typedef enum role { SYSTEM, DEVELOPER, USER, REMINDER, ASSISTANT, TOOL, N_ROLES } role;
static const char *const role_names[N_ROLES] = {"system",          "developer", "user",
                                                "latest_reminder", "assistant", "tool"};

/* A part of a user turn: a user's text, or a tool's result. */
typedef struct block {
    const json_t *content;
    const json_t *call_id;
    bool result;
    size_t order, place; /* of a result: its call's position, its own among all blocks */
} block;

typedef struct turn {
    role role;
    const json_t *message; /* NULL: made up to hold tools or a response format */
    const json_t *tools, *format;
    size_t first, n; /* blocks of a user turn */
} turn;

typedef struct chat {
    turn *turns;
    size_t n_turns;
    block *blocks;
    size_t n_blocks;
    size_t asked; /* turns up to and with the last question of the user or the developer */
    bool thinking, drop, generate, max_effort;
    nb_buf *out;
    nb_error *err;
} chat;

static const json_t *present(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return v && !json_is_null(v) ? v : NULL;
}

/* ---- request -> turns ---- */

static nb_status check_tools(const json_t *tools, nb_error *err)
{
    const json_t *each;
    size_t i;
    if (!json_is_array(tools)) return nb_fail(err, NB_ERR_ARGUMENT, "tools is not an array");
    json_array_foreach(tools, i, each)
    {
        if (!json_is_object(json_object_get(each, "function")))
            return nb_fail(err, NB_ERR_ARGUMENT, "tools[%zu] has no function", i);
    }
    return NB_OK;
}

static nb_status role_of(const json_t *message, size_t index, role *out, nb_error *err)
{
    const json_t *name = json_object_get(message, "role");
    if (!json_is_string(name))
        return nb_fail(err, NB_ERR_ARGUMENT, "messages[%zu] is not an object with a role", index);
    for (int r = 0; r < N_ROLES; r++) {
        if (strcmp(json_string_value(name), role_names[r]) != 0) continue;
        *out = (role)r;
        return NB_OK;
    }
    return nb_fail(err, NB_ERR_ARGUMENT, "Unknown role: %.100s", json_string_value(name));
}

/* Adds a message to the turns: user texts and tool results continue the user turn before them, but that a text never joins a
 * turn that asks for a task. */
static nb_status add_message(chat *c, const json_t *message, size_t index)
{
    role r = SYSTEM;
    nb_status s = role_of(message, index, &r, c->err);
    if (s) return s;
    turn *last = c->n_turns ? &c->turns[c->n_turns - 1] : NULL;
    bool joins = last && last->role == USER && (r == TOOL || (r == USER && !present(last->message, "task")));
    if (!joins) {
        last = &c->turns[c->n_turns++];
        *last = (turn){.role = r == TOOL ? USER : r, .message = message, .first = c->n_blocks};
    }
    if (r == USER || r == TOOL) {
        c->blocks[c->n_blocks] = (block){.content = json_object_get(message, "content"),
                                         .call_id = json_object_get(message, "tool_call_id"),
                                         .result = r == TOOL,
                                         .place = c->n_blocks};
        c->n_blocks++;
        last->n++;
        return NB_OK;
    }
    if (r == SYSTEM || r == DEVELOPER) {
        const json_t *format = json_object_get(message, "response_format"),
                     *tools = json_object_get(message, "tools");
        if (nb_json_truthy(format)) last->format = format;
        if (nb_json_truthy(tools)) {
            last->tools = tools;
            return check_tools(tools, c->err);
        }
    }
    return NB_OK;
}

/* Call ids of an assistant turn by position; of equal ones the last counts. */
static bool map_calls(nb_map *orders, const json_t *calls)
{
    const json_t *each;
    size_t i;
    nb_map_free(orders);
    json_array_foreach(calls, i, each)
    {
        const json_t *id = json_object_get(each, "id");
        if (!nb_json_truthy(id)) id = json_object_get(json_object_get(each, "function"), "id");
        if (!json_is_string(id) || !json_string_length(id)) continue;
        if (!nb_map_put(orders, json_string_value(id), json_string_length(id), (uint32_t)i, NULL))
            return false;
    }
    return true;
}

static int by_order(const void *a, const void *b)
{
    const block *x = a, *y = b;
    if (x->order != y->order) return x->order < y->order ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

/* Puts a turn's results into the order of the calls that they answer (an unknown call counts as the first); the places of
 * texts among them stay. work holds as many blocks as the turn. */
static void sort_results(chat *c, const turn *t, const nb_map *orders, block *work)
{
    size_t n = 0, k = 0;
    for (size_t i = t->first; i < t->first + t->n; i++) {
        block *b = &c->blocks[i];
        uint32_t order;
        if (!b->result) continue;
        if (json_is_string(b->call_id) &&
            nb_map_get(orders, json_string_value(b->call_id), json_string_length(b->call_id), &order))
            b->order = order;
        work[n++] = *b;
    }
    qsort(work, n, sizeof *work, by_order);
    for (size_t i = t->first; i < t->first + t->n; i++)
        if (c->blocks[i].result) c->blocks[i] = work[k++];
}

static nb_status order_results(chat *c)
{
    nb_map orders = {0};
    nb_status s = NB_OK;
    block *work = calloc(c->n_blocks + 1, sizeof *work);
    if (!work) return nb_fail_nomem(c->err, "a chat request", c->n_blocks * sizeof *work);
    for (size_t i = 0; i < c->n_turns && !s; i++) {
        const turn *t = &c->turns[i];
        const json_t *calls = json_object_get(t->message, "tool_calls");
        if (t->role == ASSISTANT && json_array_size(calls) && !map_calls(&orders, calls))
            s = nb_fail_nomem(c->err, "a chat request", json_array_size(calls) * sizeof(nb_map_slot));
        if (t->role == USER) sort_results(c, t, &orders, work);
    }
    nb_map_free(&orders);
    free(work);
    return s;
}

/* The schema that a request's response_format asks for: a json_schema's own, a bare schema as it is; NULL for the types that
 * carry none. */
static const json_t *schema_of(const json_t *format)
{
    const char *type = json_string_value(json_object_get(format, "type"));
    if (type && (strcmp(type, "text") == 0 || strcmp(type, "json_object") == 0)) return NULL;
    const json_t *wrapped = json_object_get(json_object_get(format, "json_schema"), "schema");
    return wrapped ? wrapped : format;
}

/* A request's tools are a system message of their own, put first; its response format goes to the first system message, or to
 * one made for it. */
static nb_status add_messages(chat *c, const json_t *request)
{
    const json_t *messages = json_object_get(request, "messages"), *tools = json_object_get(request, "tools"),
                 *each;
    const json_t *format = present(request, "response_format");
    size_t i, count = json_array_size(messages);
    nb_status s = NB_OK;
    if (!json_is_array(messages)) return nb_fail(c->err, NB_ERR_ARGUMENT, "messages is not an array");
    c->turns = calloc(count + 2, sizeof *c->turns);
    c->blocks = calloc(count + 1, sizeof *c->blocks);
    if (!c->turns || !c->blocks)
        return nb_fail_nomem(c->err, "a chat request", (count + 2) * sizeof *c->turns);
    if (nb_json_truthy(tools)) {
        if ((s = check_tools(tools, c->err))) return s;
        c->turns[c->n_turns++] = (turn){.role = SYSTEM, .tools = tools};
    }
    format = format ? schema_of(format) : NULL;
    size_t own = c->n_turns;
    if (format) c->turns[c->n_turns++] = (turn){.role = SYSTEM, .format = format};
    json_array_foreach(messages, i, each)
    {
        if ((s = add_message(c, each, i))) return s;
    }
    for (i = own + 1; format && i < c->n_turns; i++) {
        if (c->turns[i].role != SYSTEM) continue;
        if (!c->turns[i].format) c->turns[i].format = format;
        memmove(&c->turns[own], &c->turns[own + 1], (--c->n_turns - own) * sizeof *c->turns);
        break;
    }
    return order_results(c);
}

static void find_last_question(chat *c)
{
    c->asked = c->n_turns;
    while (c->asked && c->turns[c->asked - 1].role != USER && c->turns[c->asked - 1].role != DEVELOPER)
        c->asked--;
}

/* Where old reasoning is dropped, developer turns before the last question go too. */
static void drop_old_developers(chat *c)
{
    size_t kept = 0;
    for (size_t i = 0; i < c->n_turns; i++)
        if (i + 1 >= c->asked || c->turns[i].role != DEVELOPER) c->turns[kept++] = c->turns[i];
    c->n_turns = kept;
    find_last_question(c);
}

/* ---- turns -> text ---- */

/* A message's content: text, null, or a list of text parts (joined by a newline, as vLLM joins them). */
static nb_status add_content(const chat *c, const json_t *content)
{
    const json_t *part;
    size_t i;
    if (!content || json_is_null(content)) return NB_OK;
    if (json_is_string(content)) {
        nb_buf_add(c->out, json_string_value(content), json_string_length(content));
        return NB_OK;
    }
    if (!json_is_array(content))
        return nb_fail(c->err, NB_ERR_ARGUMENT, "content is neither text, null nor a list of parts");
    json_array_foreach(content, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_object_get(part, "text");
        if (!type || strcmp(type, "text") != 0 || !json_is_string(text))
            return nb_fail(c->err, NB_ERR_ARGUMENT,
                           "a content part of type '%.60s': this model reads text alone", type ? type : "");
        if (i) nb_buf_addc(c->out, '\n');
        nb_buf_add(c->out, json_string_value(text), json_string_length(text));
    }
    return NB_OK;
}

static void add_tools_and_format(const chat *c, const turn *t)
{
    const json_t *tool;
    size_t i;
    if (t->tools) {
        nb_buf_adds(c->out, tools_before);
        json_array_foreach(t->tools, i, tool)
        {
            nb_buf_adds(c->out, i ? "\n" : "");
            nb_pyjson_add(c->out, json_object_get(tool, "function"));
        }
        nb_buf_adds(c->out, tools_after);
    }
    if (t->format) {
        nb_buf_adds(c->out, response_format);
        nb_pyjson_add(c->out, t->format);
    }
}

static nb_status add_user(const chat *c, const turn *t)
{
    nb_buf_adds(c->out, DSV4_USER);
    for (size_t i = 0; i < t->n; i++) {
        const block *b = &c->blocks[t->first + i];
        nb_buf_adds(c->out, i ? "\n\n" : "");
        nb_buf_adds(c->out, b->result ? "<tool_result>" : "");
        nb_status s = add_content(c, b->content);
        if (s) return s;
        nb_buf_adds(c->out, b->result ? "</tool_result>" : "");
    }
    return NB_OK;
}

/* The parameters of one call. arguments: a JSON object, the text of one, or nothing. */
static nb_status add_parameters(const chat *c, const json_t *arguments)
{
    json_t *parsed = NULL, *v;
    const char *key, *between = "";
    nb_status s = NB_OK;
    if (json_is_string(arguments) && json_string_length(arguments)) {
        s = nb_json_tree(NULL, json_string_value(arguments), json_string_length(arguments), &parsed, c->err);
        if (s == NB_ERR_NOMEM) return s;
        arguments = parsed;
    }
    if (s || (nb_json_truthy(arguments) && !json_is_object(arguments))) {
        json_decref(parsed);
        return nb_fail(c->err, NB_ERR_ARGUMENT, "a tool call's arguments are not a JSON object");
    }
    json_object_foreach((json_t *)arguments, key, v)
    {
        nb_buf_addf(c->out, "%s" DSV4_PARAMETER " name=\"%s\" string=\"%s\">", between, key,
                    json_is_string(v) ? "true" : "false");
        if (json_is_string(v))
            nb_buf_add(c->out, json_string_value(v), json_string_length(v));
        else
            nb_pyjson_add(c->out, v);
        nb_buf_adds(c->out, "<" DSV4_PARAMETER_END ">");
        between = "\n";
    }
    json_decref(parsed);
    return NB_OK;
}

static nb_status add_calls(const chat *c, const json_t *calls)
{
    const json_t *call;
    size_t i;
    if (!nb_json_truthy(calls)) return NB_OK;
    if (!json_is_array(calls)) return nb_fail(c->err, NB_ERR_ARGUMENT, "tool_calls is not an array");
    nb_buf_adds(c->out, "\n\n" DSV4_CALLS ">\n");
    json_array_foreach(calls, i, call)
    {
        const json_t *function = json_object_get(call, "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        if (!name) return nb_fail(c->err, NB_ERR_ARGUMENT, "tool_calls[%zu] has no function with a name", i);
        nb_buf_addf(c->out, DSV4_INVOKE " name=\"%s\">\n", name);
        nb_status s = add_parameters(c, json_object_get(function, "arguments"));
        if (s) return s;
        nb_buf_adds(c->out, "\n" DSV4_END_INVOKE ">\n");
    }
    nb_buf_adds(c->out, DSV4_END_CALLS);
    return NB_OK;
}

static nb_status add_assistant(const chat *c, size_t index)
{
    const json_t *message = c->turns[index].message;
    /* The answer to a task (a classification that the prompt asked for by its token) has no reasoning. */
    bool answers_task = index && present(c->turns[index - 1].message, "task");
    if (c->thinking && !answers_task && (!c->drop || index >= c->asked)) {
        const json_t *reasoning = present(message, "reasoning");
        nb_status s = add_content(c, reasoning ? reasoning : present(message, "reasoning_content"));
        if (s) return s;
        nb_buf_adds(c->out, DSV4_END_THINK);
    }
    nb_status s = add_content(c, json_object_get(message, "content"));
    if (!s) s = add_calls(c, json_object_get(message, "tool_calls"));
    if (!s && !nb_json_truthy(json_object_get(message, "wo_eos"))) nb_buf_adds(c->out, DSV4_EOS);
    return s;
}

static nb_status add_task(const chat *c, const json_t *task)
{
    static const char *const tasks[] = {"action", "query", "authority", "domain", "title", "read_url"};
    const char *name = json_string_value(task);
    for (size_t i = 0; name && i < sizeof tasks / sizeof *tasks; i++) {
        if (strcmp(name, tasks[i]) != 0) continue;
        if (i == 0) { /* an action is chosen by the assistant, after thinking or not */
            nb_buf_adds(c->out, DSV4_ASSISTANT);
            nb_buf_adds(c->out, c->thinking ? DSV4_THINK : DSV4_END_THINK);
        }
        nb_buf_addf(c->out, "<｜%s｜>", name);
        return NB_OK;
    }
    return nb_fail(
        c->err, NB_ERR_ARGUMENT,
        "Invalid task: '%.60s'. Valid tasks are: action, query, authority, domain, title, read_url",
        name ? name : "");
}

/* What turns over to the assistant where its reply follows, is to follow, or a reminder stands before it. */
static nb_status add_transition(const chat *c, size_t index)
{
    const turn *t = &c->turns[index];
    bool last = index + 1 == c->n_turns;
    if (last ? !c->generate : t[1].role != ASSISTANT && t[1].role != REMINDER) return NB_OK;
    const json_t *task = present(t->message, "task");
    if (task) return add_task(c, task);
    if (t->role != USER && t->role != DEVELOPER) return NB_OK;
    bool think = c->thinking && (!c->drop || index + 1 >= c->asked);
    nb_buf_adds(c->out, DSV4_ASSISTANT);
    nb_buf_adds(c->out, think ? DSV4_THINK : DSV4_END_THINK);
    return NB_OK;
}

static nb_status add_turn(const chat *c, size_t index)
{
    const turn *t = &c->turns[index];
    const json_t *content = json_object_get(t->message, "content");
    size_t before;
    nb_status s = NB_OK;
    switch (t->role) {
    case SYSTEM:
        s = add_content(c, content);
        add_tools_and_format(c, t);
        break;
    case DEVELOPER:
        nb_buf_adds(c->out, DSV4_USER);
        before = c->out->len;
        s = add_content(c, content);
        if (!s && nb_buf_ok(c->out) && c->out->len == before)
            s = nb_fail(c->err, NB_ERR_ARGUMENT, "Invalid message for role `developer`: it has no content");
        add_tools_and_format(c, t);
        break;
    case USER: s = add_user(c, t); break;
    case REMINDER:
        nb_buf_adds(c->out, DSV4_REMINDER);
        s = add_content(c, content);
        break;
    case ASSISTANT: s = add_assistant(c, index); break;
    case TOOL:
    case N_ROLES: break; /* tool results are parts of user turns */
    }
    return s ? s : add_transition(c, index);
}

/* chat_template_kwargs, read as vLLM reads them: thinking may be {"type": "enabled"}, efforts other than none, max and xhigh
 * change nothing. */
static void read_kwargs(chat *c, const json_t *request)
{
    const json_t *kwargs = json_object_get(request, "chat_template_kwargs"),
                 *thinking = json_object_get(kwargs, "thinking");
    const char *effort = json_string_value(json_object_get(kwargs, "reasoning_effort"));
    const json_t *drop = json_object_get(kwargs, "drop_thinking"),
                 *generate = json_object_get(request, "add_generation_prompt");
    if (json_is_object(thinking)) {
        const char *type = json_string_value(json_object_get(thinking, "type"));
        c->thinking = type && strcmp(type, "enabled") == 0;
    } else {
        c->thinking = nb_json_truthy(thinking);
    }
    if (nb_json_truthy(json_object_get(kwargs, "enable_thinking"))) c->thinking = true;
    if (effort && strcmp(effort, "none") == 0) c->thinking = false;
    c->max_effort = effort && (strcmp(effort, "max") == 0 || strcmp(effort, "xhigh") == 0);
    c->drop = !drop || nb_json_truthy(drop);
    c->generate = !generate || nb_json_truthy(generate);
}

nb_status nb_chat_deepseek_v4_render(const json_t *request, nb_buf *out, nb_error *err)
{
    chat c = {.out = out, .err = err};
    size_t before = out->len;
    read_kwargs(&c, request);
    nb_status s = add_messages(&c, request);
    for (size_t i = 0; i < c.n_turns; i++)
        if (c.turns[i].tools) c.drop = false; /* a tool's user needs to see why it was called */
    if (!s) {
        find_last_question(&c);
        if (c.thinking && c.drop) drop_old_developers(&c);
        nb_buf_adds(out, DSV4_BOS);
        if (c.n_turns && c.thinking && c.max_effort) nb_buf_adds(out, max_effort);
    }
    for (size_t i = 0; i < c.n_turns && !s; i++) s = add_turn(&c, i);
    if (!s && !nb_buf_ok(out)) s = nb_fail_nomem(err, "a prompt", out->len);
    if (s && out->data) {
        out->len = before;
        out->data[before] = '\0';
    }
    free(c.turns);
    free(c.blocks);
    return s;
}
