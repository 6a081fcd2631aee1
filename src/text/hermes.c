/*
 * Tool calls as JSON objects that hold the name and the arguments: one between <tool_call> and </tool_call> (Hermes, Qwen2.5, Qwen3), a list
 * behind [TOOL_CALLS] (Mistral), bare ones between semicolons (Llama 3). Forms: vLLM, {hermes,mistral,llama}_tool_parser.py.
 */
#include <string.h>

#include "base/json.h"
#include "text/toolcall.h"

enum { BEFORE, OBJECT, AFTER, BETWEEN };

static nb_toolcall bad(nb_hermes *h, const nb_window *w, const char *why, nb_error *err)
{
    if (h->c.open) h->c.safe = w->scan;
    return nb_call_bad(&h->c, w, why, err);
}

/* The name's value, a JSON string that ends before `end`, becomes a call. */
static nb_toolcall tell_name(nb_hermes *h, const nb_window *w, size_t end, const nb_reply_sink *to,
                             nb_error *err)
{
    nb_toolcall r = NB_TOOLCALL_MORE;
    nb_json j;
    nb_json_init(&j, w->s + h->name, end - h->name);
    if (nb_json_next(&j) != NB_J_STRING) {
        r = nb_json_nomem(&j) ? nb_call_no_memory(err) : bad(h, w, "its name is no string", err);
    } else {
        r = nb_call_begin(&h->c, w, (nb_span){j.str, j.len}, h->form->known, to, err);
        h->told = r == NB_TOOLCALL_MORE;
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
        } else if (!h->args && (key_is(h, w, h->form->arguments[0]) ||
                                (h->form->arguments[1] && key_is(h, w, h->form->arguments[1])))) {
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
        nb_toolcall r = event < 0 ? bad(h, w, "not JSON", err) : take_event(h, w, event, to, err);
        if (r != NB_TOOLCALL_MORE) {
            tell_arguments(h, w, to);
            return r;
        }
        if (!(event & NB_PUSH_OBJECT_END)) continue;
        if (!h->told) return bad(h, w, "it has no name", err);
        if (!h->args) to->arguments(to->ctx, h->c.calls - 1, "{}", 2);
        tell_arguments(h, w, to);
        w->at = h->c.safe = ++w->scan;
        h->c.open = false;
        h->state = h->form->between ? BETWEEN : AFTER;
        return h->form->between || h->form->end ? NB_TOOLCALL_MORE : NB_TOOLCALL_DONE;
    }
    tell_arguments(h, w, to);
    return w->whole ? bad(h, w, "the text ends within", err) : NB_TOOLCALL_MORE;
}

/* Before an object. A list opens once. */
static nb_toolcall take_before(nb_hermes *h, nb_window *w, nb_error *err)
{
    if (!nb_call_blank(w)) return w->whole ? bad(h, w, "the text ends before it", err) : NB_TOOLCALL_MORE;
    if (h->form->open && !h->opened && w->s[w->scan] == h->form->open) {
        h->opened = true;
        w->scan++;
        return take_before(h, w, err);
    }
    h->state = OBJECT;
    return NB_TOOLCALL_MORE;
}

/* Behind an object: another, or the end of the list. What is neither is no part of the block. */
static nb_toolcall take_between(nb_hermes *h, nb_window *w)
{
    const nb_object_form *f = h->form;
    bool more = nb_call_blank(w);
    if (!more && !w->whole) return NB_TOOLCALL_MORE;
    char c = more ? w->s[w->scan] : 0;
    if (c && (c == f->between || (!f->close && c == '{'))) {
        const nb_calls calls = h->c;
        w->scan += c == f->between;
        w->at = w->scan;
        *h = (nb_hermes){.c = calls, .form = f, .opened = true};
        h->c.safe = w->at;
        return NB_TOOLCALL_MORE;
    }
    w->scan = c && c == f->close ? w->scan + 1 : w->at;
    w->at = w->scan;
    return NB_TOOLCALL_DONE;
}

nb_toolcall nb_hermes_step(nb_hermes *h, nb_window *w, const nb_reply_sink *to, nb_error *err)
{
    for (;;) {
        nb_toolcall r;
        int state = h->state;
        switch (state) {
        case BEFORE: r = take_before(h, w, err); break;
        case OBJECT: r = take_object(h, w, to, err); break;
        case BETWEEN: r = take_between(h, w); break;
        default: /* the end mark, or none: then what comes is no part of the block */
            r = nb_call_blank(w) || w->whole ? NB_TOOLCALL_DONE : NB_TOOLCALL_MORE;
            int there = r == NB_TOOLCALL_DONE ? nb_window_at(w, h->form->end) : 0;
            if (there < 0) return NB_TOOLCALL_MORE;
            if (there)
                nb_window_pass(w, h->form->end);
            else if (r == NB_TOOLCALL_DONE)
                w->scan = w->at;
            return r;
        }
        if (r != NB_TOOLCALL_MORE || h->state == state) return r;
    }
}
