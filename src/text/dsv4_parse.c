/*
 * One reply of DeepSeek-V4 taken apart: reasoning up to </think>, then content, then perhaps one block of tool calls (dsml.c), which
 * must be the last thing. Strict, as the reference is: a reply that breaks the form is an error that says where, and the caller
 * still has the text.
 */
#include <string.h>

#include "base/utf8.h"
#include "text/chat.h"
#include "text/dsv4.h"
#include "text/toolcall.h"

/* The calls so far, and what ended up in memory's way. */
typedef struct calls {
    json_t *list;
    nb_buf name, arguments; /* of the call in work */
    bool any, failed;
} calls;

static void finish_call(calls *c)
{
    if (!c->any) return;
    json_t *call =
        nb_buf_ok(&c->name) && nb_buf_ok(&c->arguments)
            ? json_pack("{s:s, s:{s:s%, s:s%}}", "type", "function", "function", "name", nb_buf_str(&c->name),
                        c->name.len, "arguments", nb_buf_str(&c->arguments), c->arguments.len)
            : NULL;
    if (!call || json_array_append_new(c->list, call)) c->failed = true;
    nb_buf_clear(&c->name);
    nb_buf_clear(&c->arguments);
    c->any = false;
}

static void on_call(void *ctx, size_t index, const char *name, size_t n)
{
    calls *c = ctx;
    (void)index;
    finish_call(c);
    nb_buf_add(&c->name, name, n);
    c->any = true;
}

static void on_arguments(void *ctx, size_t index, const char *s, size_t n)
{
    calls *c = ctx;
    (void)index;
    nb_buf_add(&c->arguments, s, n);
}

/* The calls up to the end of their block. The window stands behind <tool_calls. */
static nb_status take_calls(nb_window *w, json_t *list, nb_error *err)
{
    nb_dsml d = {.strict = true};
    calls c = {.list = list};
    const nb_reply_sink to = {.call = on_call, .arguments = on_arguments, .ctx = &c};
    nb_toolcall r = nb_dsml_step(&d, w, &to, err);
    finish_call(&c);
    nb_dsml_free(&d);
    nb_buf_free(&c.name);
    nb_buf_free(&c.arguments);
    if (r == NB_TOOLCALL_NOMEM || c.failed) return NB_ERR_NOMEM;
    return r == NB_TOOLCALL_BAD ? NB_ERR_FORMAT : NB_OK;
}

/* Takes what stands before the nearer of two stops (b may be NULL) and passes the stop, which it returns. NULL: neither comes;
 * everything is taken. */
static const char *take_until(nb_window *w, const char *a, const char *b, nb_span *before)
{
    const char *const marks[] = {a, b};
    int k = nb_window_find(w, marks, b ? 2 : 1);
    *before = nb_window_free(w);
    w->at = w->scan;
    if (k >= 0) nb_window_pass(w, marks[k]);
    return k < 0 ? NULL : marks[k];
}

static nb_status unexpected(const char *where, const char *s, size_t n, nb_error *err)
{
    size_t shown = n < 120 ? n : 120;
    while (shown < n && shown && ((unsigned char)s[shown] & 0xC0) == 0x80) shown--; /* no half characters */
    return nb_fail(err, NB_ERR_FORMAT, "Unexpected content %s: '%.*s'", where, (int)shown, s);
}

static nb_status no_special_tokens(nb_span t, nb_error *err)
{
    static const char *const tokens[] = {DSV4_BOS, DSV4_EOS, DSV4_THINK, DSV4_END_THINK, DSV4_DSML};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        if (t.n && memmem(t.s, t.n, tokens[i], strlen(tokens[i])))
            return nb_fail(err, NB_ERR_FORMAT, "Unexpected special token '%s' in content", tokens[i]);
    return NB_OK;
}

static nb_status check_utf8(const nb_window *w, nb_error *err)
{
    for (size_t i = 0, k; i < w->n; i += k) {
        uint32_t c;
        k = nb_utf8_decode(w->s + i, w->n - i, &c);
        if (!k) return nb_fail(err, NB_ERR_ARGUMENT, "the reply is not UTF-8 at byte %zu", i);
    }
    return NB_OK;
}

static nb_status take_reply(nb_window *w, bool thinking, nb_span *reasoning, nb_span *content, json_t *list,
                            nb_error *err)
{
    nb_status s = check_utf8(w, err);
    if (s) return s;
    if (thinking) {
        const char *stop = take_until(w, DSV4_END_THINK, "\n\n" DSV4_CALLS, reasoning);
        if (!stop || strcmp(stop, DSV4_END_THINK) != 0)
            return nb_fail(err, NB_ERR_FORMAT, "Invalid thinking format: missing </think>");
    }
    const char *stop = take_until(w, DSV4_EOS, "\n\n" DSV4_CALLS, content);
    if (stop && strcmp(stop, DSV4_EOS) != 0) {
        nb_span after;
        if ((s = take_calls(w, list, err))) return s;
        take_until(w, DSV4_EOS, NULL, &after);
        if (after.n) return unexpected("after tool calls", after.s, after.n, err);
    }
    if (w->at != w->n) return unexpected("at end", w->s + w->at, w->n - w->at, err);
    s = no_special_tokens(*content, err);
    return s ? s : no_special_tokens(*reasoning, err);
}

nb_status nb_chat_deepseek_v4_parse(const char *s, size_t n, bool thinking, json_t **out, nb_error *err)
{
    nb_window w = {.s = s, .n = n, .whole = true};
    nb_span reasoning = {"", 0}, content = {"", 0};
    json_t *list = json_array(), *message = NULL;
    nb_status status = list ? take_reply(&w, thinking, &reasoning, &content, list, err) : NB_ERR_NOMEM;
    if (!status) {
        message = json_pack("{s:s, s:s%}", "role", "assistant", "content", content.s, content.n);
        bool ok = message;
        if (ok && thinking)
            ok = json_object_set_new(message, "reasoning_content", json_stringn(reasoning.s, reasoning.n)) ==
                 0;
        if (ok && json_array_size(list)) ok = json_object_set(message, "tool_calls", list) == 0;
        if (!ok) status = NB_ERR_NOMEM;
    }
    json_decref(list);
    if (status) json_decref(message);
    if (status == NB_ERR_NOMEM) return nb_fail_nomem(err, "a parsed reply", n);
    if (!status) *out = message;
    return status;
}
