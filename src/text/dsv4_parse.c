/*
 * One reply of DeepSeek-V4 taken apart: reasoning up to </think>, then content, then perhaps one block of tool calls, which
 * must be the last thing. Strict, as the reference is: a reply that breaks the form is an error that says where, and the
 * caller still has the text.
 */
#include <string.h>

#include "base/map.h"
#include "base/utf8.h"
#include "text/chat.h"
#include "text/dsv4.h"
#include "text/pyjson.h"

typedef struct text {
    const char *s;
    size_t n;
} text;

typedef struct parser {
    const char *s;
    size_t n, at;
    nb_error *err;
} parser;

static bool starts(text t, const char *what)
{
    size_t n = strlen(what);
    return t.n >= n && memcmp(t.s, what, n) == 0;
}

static bool is(text t, const char *what)
{
    return t.n == strlen(what) && starts(t, what);
}

/* Takes what stands before the nearer of two stops (b may be NULL) and passes the stop, which it returns. NULL: neither
 * comes; everything is taken. */
static const char *take_until(parser *p, const char *a, const char *b, text *before)
{
    const char *stop = NULL;
    size_t from = p->at;
    for (; p->at < p->n && !stop; p->at++) {
        text rest = {p->s + p->at, p->n - p->at};
        if (rest.s[0] == a[0] && starts(rest, a))
            stop = a;
        else if (b && rest.s[0] == b[0] && starts(rest, b))
            stop = b;
        if (stop) break;
    }
    *before = (text){p->s + from, p->at - from};
    p->at += stop ? strlen(stop) : 0;
    return stop;
}

/* Drops head from the front and tail from the end, where one more newline may follow it (a call without parameters has one).
 * False: they are not there. */
static bool strip(text *t, const char *head, const char *tail)
{
    size_t h = strlen(head), e = strlen(tail), n = t->n;
    if (n < h + e || !starts(*t, head)) return false;
    if (memcmp(t->s + n - e, tail, e) != 0 && t->s[n - 1] == '\n') n--;
    if (n < h + e || memcmp(t->s + n - e, tail, e) != 0) return false;
    *t = (text){t->s + h, n - h - e};
    return true;
}

static nb_status bad(const parser *p, const char *what, text found)
{
    size_t n = found.n < 120 ? found.n : 120;
    while (n < found.n && n && ((unsigned char)found.s[n] & 0xC0) == 0x80) n--; /* no half characters */
    nb_fail(p->err, NB_ERR_FORMAT, "%s: '%.*s'", what, (int)n, found.n ? found.s : "");
    nb_error_at(p->err, NULL, NULL, (int64_t)p->at);
    return NB_ERR_FORMAT;
}

/* Splits ` name="KEY" string="true|false">VALUE<` at its first such mark. */
static bool split_parameter(text t, text *key, text *value, bool *is_text)
{
    static const char mark[] = "\" string=\"";
    if (!strip(&t, " name=\"", "<")) return false;
    for (size_t i = 0; i < t.n; i++) {
        text rest = {t.s + i, t.n - i};
        if (!starts(rest, mark)) continue;
        rest = (text){rest.s + sizeof mark - 1, rest.n - (sizeof mark - 1)};
        *is_text = starts(rest, "true\">");
        if (!*is_text && !starts(rest, "false\">")) continue;
        size_t skip = *is_text ? 6 : 7;
        *key = (text){t.s, i};
        *value = (text){rest.s + skip, rest.n - skip};
        return true;
    }
    return false;
}

/* The parameters of one call, as the text of a JSON object. The parser stands behind the first <parameter. */
static nb_status take_parameters(parser *p, nb_buf *arguments)
{
    nb_map seen = {0};
    nb_status s = NB_OK;
    const char *stop = DSV4_PARAMETER;
    while (!s && stop && strcmp(stop, DSV4_PARAMETER) == 0) {
        text all, key, value, between;
        bool is_text, was;
        take_until(p, DSV4_PARAMETER_END, NULL, &all);
        if (!split_parameter(all, &key, &value, &is_text)) {
            s = bad(p, "Parameter format error", all);
            break;
        }
        if (!nb_map_put(&seen, key.s, key.n, 0, &was))
            s = nb_fail_nomem(p->err, "a tool call", key.n);
        else if (was)
            s = bad(p, "Duplicate parameter name", key);
        nb_buf_adds(arguments, seen.count > 1 ? ", " : "");
        nb_pyjson_add_string(arguments, key.s, key.n);
        nb_buf_adds(arguments, ": ");
        if (is_text)
            nb_pyjson_add_string(arguments, value.s, value.n);
        else
            nb_buf_add(arguments, value.s, value.n);
        stop = take_until(p, DSV4_PARAMETER, DSV4_END_INVOKE, &between);
        if (!s && !is(between, ">\n")) s = bad(p, "Parameter format error: expected '>\\n' but got", between);
    }
    nb_map_free(&seen);
    return s;
}

/* One call, appended to calls. The parser stands behind <invoke. */
static nb_status take_call(parser *p, json_t *calls)
{
    text name;
    nb_buf arguments = {0};
    nb_status s = NB_OK;
    const char *stop = take_until(p, DSV4_PARAMETER, DSV4_END_INVOKE, &name);
    while (name.n && strchr(" \t\r\n\v\f", name.s[0]) && name.s[0]) name = (text){name.s + 1, name.n - 1};
    if (!strip(&name, "name=\"", "\">\n")) return bad(p, "Tool name format error", name);
    nb_buf_addc(&arguments, '{');
    if (stop && strcmp(stop, DSV4_PARAMETER) == 0) s = take_parameters(p, &arguments);
    nb_buf_addc(&arguments, '}');
    if (!s && !nb_buf_ok(&arguments)) s = nb_fail_nomem(p->err, "a tool call", arguments.len);
    if (!s) {
        json_t *call = json_pack("{s:s, s:{s:s%, s:s%}}", "type", "function", "function", "name", name.s,
                                 name.n, "arguments", arguments.data, arguments.len);
        if (!call || json_array_append_new(calls, call))
            s = nb_fail_nomem(p->err, "a tool call", arguments.len);
    }
    nb_buf_free(&arguments);
    return s;
}

/* The calls up to the end of their block. The parser stands behind <tool_calls. */
static nb_status take_calls(parser *p, json_t *calls)
{
    for (;;) {
        text between;
        const char *stop = take_until(p, DSV4_INVOKE, DSV4_END_CALLS, &between);
        if (!is(between, ">\n")) return bad(p, "Tool call format error: expected '>\\n' but got", between);
        if (!stop) return nb_fail(p->err, NB_ERR_FORMAT, "Missing special token in tool calls");
        if (strcmp(stop, DSV4_END_CALLS) == 0) return NB_OK;
        nb_status s = take_call(p, calls);
        if (s) return s;
    }
}

static nb_status no_special_tokens(const parser *p, text t)
{
    static const char *const tokens[] = {DSV4_BOS, DSV4_EOS, DSV4_THINK, DSV4_END_THINK, DSV4_DSML};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        if (t.n && memmem(t.s, t.n, tokens[i], strlen(tokens[i])))
            return nb_fail(p->err, NB_ERR_FORMAT, "Unexpected special token '%s' in content", tokens[i]);
    return NB_OK;
}

static nb_status check_utf8(const parser *p)
{
    for (size_t i = 0, w; i < p->n; i += w) {
        uint32_t c;
        w = nb_utf8_decode(p->s + i, p->n - i, &c);
        if (!w) return nb_fail(p->err, NB_ERR_ARGUMENT, "the reply is not UTF-8 at byte %zu", i);
    }
    return NB_OK;
}

static nb_status take_reply(parser *p, bool thinking, text *reasoning, text *content, json_t *calls)
{
    nb_status s = check_utf8(p);
    if (s) return s;
    if (thinking) {
        const char *stop = take_until(p, DSV4_END_THINK, "\n\n" DSV4_CALLS, reasoning);
        if (!stop || strcmp(stop, DSV4_END_THINK) != 0)
            return nb_fail(p->err, NB_ERR_FORMAT, "Invalid thinking format: missing </think>");
    }
    const char *stop = take_until(p, DSV4_EOS, "\n\n" DSV4_CALLS, content);
    if (stop && strcmp(stop, DSV4_EOS) != 0) {
        text after;
        if ((s = take_calls(p, calls))) return s;
        take_until(p, DSV4_EOS, NULL, &after);
        if (after.n) return bad(p, "Unexpected content after tool calls", after);
    }
    if (p->at != p->n) return bad(p, "Unexpected content at end", (text){p->s + p->at, p->n - p->at});
    s = no_special_tokens(p, *content);
    return s ? s : no_special_tokens(p, *reasoning);
}

nb_status nb_chat_deepseek_v4_parse(const char *s, size_t n, bool thinking, json_t **out, nb_error *err)
{
    parser p = {.s = s, .n = n, .err = err};
    text reasoning = {"", 0}, content = {"", 0};
    json_t *calls = json_array(), *message = NULL;
    nb_status status = calls ? take_reply(&p, thinking, &reasoning, &content, calls) : NB_ERR_NOMEM;
    if (!status) {
        message = json_pack("{s:s, s:s%}", "role", "assistant", "content", content.s, content.n);
        bool ok = message;
        if (ok && thinking)
            ok = json_object_set_new(message, "reasoning_content", json_stringn(reasoning.s, reasoning.n)) ==
                 0;
        if (ok && json_array_size(calls)) ok = json_object_set(message, "tool_calls", calls) == 0;
        if (!ok) status = NB_ERR_NOMEM;
    }
    json_decref(calls);
    if (status) json_decref(message);
    if (status == NB_ERR_NOMEM) return nb_fail_nomem(err, "a parsed reply", n);
    if (!status) *out = message;
    return status;
}
