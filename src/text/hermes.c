/* Tool calls of Hermes, Qwen2.5 and Qwen3: an object between <tool_call> and </tool_call>. Form: vLLM, hermes_tool_parser.py. */
#include <string.h>

#include "base/json.h"
#include "text/toolcall.h"

enum { BEFORE, OBJECT, AFTER };

static nb_toolcall bad(nb_hermes *h, const nb_window *w, const char *why, nb_error *err)
{
    if (h->c.open) h->c.safe = w->scan;
    nb_fail(err, NB_ERR_FORMAT, "a tool call: %s", why);
    nb_error_at(err, NULL, NULL, (int64_t)w->scan);
    return NB_TOOLCALL_BAD;
}

static nb_toolcall no_memory(nb_error *err)
{
    nb_fail_nomem(err, "a tool call", 0);
    return NB_TOOLCALL_NOMEM;
}

/* The name's value, a JSON string that ends before `end`, becomes a call. */
static nb_toolcall tell_name(nb_hermes *h, const nb_window *w, size_t end, const nb_reply_sink *to,
                             nb_error *err)
{
    nb_toolcall r = NB_TOOLCALL_MORE;
    nb_json j;
    nb_json_init(&j, w->s + h->name, end - h->name);
    if (nb_json_next(&j) != NB_J_STRING) {
        r = nb_json_nomem(&j) ? no_memory(err) : bad(h, w, "its name is no string", err);
    } else if (!j.len) {
        r = bad(h, w, "its name is empty", err);
    } else {
        h->c.open = h->told = true;
        to->call(to->ctx, h->c.calls++, j.str, j.len);
    }
    nb_json_free(&j);
    return r;
}

static bool key_is(const nb_hermes *h, const nb_window *w, const char *quoted)
{
    return nb_span_is((nb_span){w->s + h->key, h->key_end - h->key}, quoted);
}

/* What one byte of the object, at w->scan, began or ended. */
static nb_toolcall take_event(nb_hermes *h, const nb_window *w, int event, const nb_reply_sink *to,
                              nb_error *err)
{
    size_t at = w->scan;
    if (event & NB_PUSH_KEY_BEGIN) h->key = at;
    if (event & NB_PUSH_KEY_END) h->key_end = at + 1;
    if (event & NB_PUSH_VALUE_BEGIN) {
        if (!h->name && key_is(h, w, "\"name\"")) {
            h->name = at;
            h->in_name = true;
        } else if (!h->args && key_is(h, w, "\"arguments\"")) {
            h->args = h->args_told = at;
            h->in_args = true;
        }
    }
    if (event & (NB_PUSH_VALUE_END | NB_PUSH_VALUE_OVER)) {
        size_t end = event & NB_PUSH_VALUE_END ? at + 1 : at;
        if (h->in_args) h->args_end = end;
        h->in_args = false;
        if (h->in_name) {
            h->in_name = false;
            return tell_name(h, w, end, to, err);
        }
    }
    return NB_TOOLCALL_MORE;
}

/* Tells the arguments up to w->scan, or their end. */
static void tell_arguments(nb_hermes *h, const nb_window *w, const nb_reply_sink *to)
{
    if (!h->told || !h->args) return;
    size_t end = h->in_args ? w->scan : h->args_end;
    if (end > h->args_told) to->arguments(to->ctx, h->c.calls - 1, w->s + h->args_told, end - h->args_told);
    h->args_told = end;
}

/* The object, up to its end or that of the text. */
static nb_toolcall take_object(nb_hermes *h, nb_window *w, const nb_reply_sink *to, nb_error *err)
{
    for (; w->scan < w->n; w->scan++) {
        int event = nb_json_push_byte(&h->json, w->s[w->scan]);
        if (event < 0) return bad(h, w, "not JSON", err);
        nb_toolcall r = take_event(h, w, event, to, err);
        if (r != NB_TOOLCALL_MORE) return r;
        if (!(event & NB_PUSH_OBJECT_END)) continue;
        if (!h->told) return bad(h, w, "it has no name", err);
        if (!h->args) to->arguments(to->ctx, h->c.calls - 1, "{}", 2);
        tell_arguments(h, w, to);
        w->at = h->c.safe = ++w->scan;
        h->c.open = false;
        h->state = AFTER;
        return NB_TOOLCALL_DONE;
    }
    return w->whole ? bad(h, w, "the text ends within", err) : NB_TOOLCALL_MORE;
}

nb_toolcall nb_hermes_step(nb_hermes *h, nb_window *w, const nb_reply_sink *to, nb_error *err)
{
    if (h->state == BEFORE) {
        w->scan += nb_span_blank((nb_span){w->s + w->scan, w->n - w->scan});
        if (w->scan == w->n) return w->whole ? bad(h, w, "the text ends before it", err) : NB_TOOLCALL_MORE;
        h->state = OBJECT;
    }
    if (h->state == OBJECT) {
        nb_toolcall r = take_object(h, w, to, err);
        if (r != NB_TOOLCALL_DONE) {
            tell_arguments(h, w, to);
            return r;
        }
    }
    /* The end mark, or none: then what comes is no part of the block. */
    w->scan += nb_span_blank((nb_span){w->s + w->scan, w->n - w->scan});
    int there = nb_window_at(w, HERMES_END);
    if (there < 0) return NB_TOOLCALL_MORE;
    if (there)
        nb_window_pass(w, HERMES_END);
    else
        w->scan = w->at;
    return NB_TOOLCALL_DONE;
}
