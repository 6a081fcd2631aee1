/*
 * Tool calls whose arguments stand between tags of their own, with no word of their types: those come from the request's tools.
 *
 *     <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>
 *
 * with the tags of each family (toolforms.c). Forms: the chat templates of Qwen3-Coder, Qwen3.5, Nemotron-3, GLM-4.5 to 5, MiniMax-M2,
 * Seed-OSS; types: vLLM's parsers of the same names. An argument is told when it is complete.
 */
#include <string.h>

#include "text/pyjson.h"
#include "text/toolcall.h"

enum { CALL, NAME, NEXT, KEY, BEFORE, VALUE };

static nb_toolcall take_call(nb_tagged *t, nb_window *w, nb_error *err)
{
    bool begins;
    nb_toolcall r = nb_call_next(&t->c, w, t->form->call, t->form->end, &begins, err);
    if (begins) t->state = NAME;
    return r;
}

static nb_toolcall take_name(nb_tagged *t, nb_window *w, const nb_reply_sink *to, nb_error *err)
{
    const nb_tagged_form *f = t->form;
    const char *const marks[] = {f->name_end ? f->name_end : f->key, f->call_end};
    nb_window v = nb_call_within(w, w->at, NB_CALL_HEAD);
    int k = nb_window_find(&v, marks, f->name_end ? 1 : 2);
    w->scan = v.scan;
    if (k < 0) return v.whole ? nb_call_bad(&t->c, w, "its name does not end", err) : NB_TOOLCALL_MORE;
    nb_span name = nb_span_trim(nb_window_free(w));
    nb_toolcall r = nb_call_begin(&t->c, w, name, false, to, err);
    if (r != NB_TOOLCALL_MORE) return r;
    t->name = (size_t)(name.s - w->s);
    t->name_n = name.n;
    t->arguments = 0;
    if (f->name_end) nb_window_pass(w, f->name_end);
    t->c.safe = w->at = w->scan;
    t->state = NEXT;
    return r;
}

/* Before an argument: its tag, or the end of the call. */
static nb_toolcall take_next(nb_tagged *t, nb_window *w, const nb_reply_sink *to, nb_error *err)
{
    const nb_tagged_form *f = t->form;
    if (!nb_call_blank(w))
        return w->whole ? nb_call_bad(&t->c, w, "the text ends within", err) : NB_TOOLCALL_MORE;
    int key = nb_window_at(w, f->key), end = nb_window_at(w, f->call_end);
    if (key == 1) {
        nb_window_pass(w, f->key);
        t->state = KEY;
        return NB_TOOLCALL_MORE;
    }
    if (end != 1)
        return key < 0 || end < 0 ? NB_TOOLCALL_MORE
                                  : nb_call_bad(&t->c, w, "text between its arguments", err);
    nb_call_tell(&t->c, t->arguments ? "}" : "{}", t->arguments ? 1 : 2, to);
    nb_window_pass(w, f->call_end);
    t->c.open = false;
    t->c.safe = w->at;
    t->state = CALL;
    return f->end ? NB_TOOLCALL_MORE : NB_TOOLCALL_DONE;
}

static nb_toolcall take_key(nb_tagged *t, nb_window *w, nb_error *err)
{
    nb_window v = nb_call_within(w, w->at, NB_CALL_HEAD);
    int k = nb_window_find(&v, &t->form->key_end, 1);
    w->scan = v.scan;
    if (k < 0)
        return v.whole ? nb_call_bad(&t->c, w, "an argument's name does not end", err) : NB_TOOLCALL_MORE;
    nb_span key = nb_span_trim(nb_window_free(w));
    if (!key.n) return nb_call_bad(&t->c, w, "an argument without a name", err);
    t->key = (size_t)(key.s - w->s);
    t->key_n = key.n;
    nb_window_pass(w, t->form->key_end);
    t->state = t->form->value ? BEFORE : VALUE;
    return NB_TOOLCALL_MORE;
}

static nb_toolcall take_before(nb_tagged *t, nb_window *w, nb_error *err)
{
    bool more = nb_call_blank(w);
    int there = more ? nb_window_at(w, t->form->value) : w->whole ? 0 : -1;
    if (!there) return nb_call_bad(&t->c, w, "an argument without a value", err);
    if (there < 0) return NB_TOOLCALL_MORE;
    nb_window_pass(w, t->form->value);
    t->state = VALUE;
    return NB_TOOLCALL_MORE;
}

/* One line end at the front and one at the end. */
static nb_span without_lines(nb_span v)
{
    if (v.n && v.s[0] == '\n') v = (nb_span){v.s + 1, v.n - 1};
    if (v.n && v.s[v.n - 1] == '\n') v.n--;
    return v;
}

static bool is_word(nb_span t, const char *word)
{
    return t.n == strlen(word) && strncasecmp(t.s, word, t.n) == 0;
}

/* The value as JSON text into out. A type that says otherwise than the value does is not believed: the value is then a string. */
static bool add_value(nb_buf *out, nb_span value, const char *type, bool guesses)
{
    nb_span bare = nb_span_trim(value);
    bool string = type ? strcmp(type, "string") == 0 : !guesses;
    int json = string ? 0 : nb_call_is_json(bare);
    if (!string && is_word(bare, "null"))
        nb_buf_adds(out, "null");
    else if (!string && (is_word(bare, "true") || is_word(bare, "false")))
        nb_buf_adds(out, bare.n == 4 ? "true" : "false");
    else if (json > 0)
        nb_buf_add(out, bare.s, bare.n);
    else
        nb_pyjson_add_string(out, value.s, value.n);
    return json >= 0;
}

static nb_toolcall take_value(nb_tagged *t, nb_window *w, const nb_reply_sink *to, nb_error *err)
{
    const nb_tagged_form *f = t->form;
    nb_buf *out = &t->c.out;
    if (nb_window_find(w, &f->value_end, 1) < 0)
        return w->whole ? nb_call_bad(&t->c, w, "an argument does not end", err) : NB_TOOLCALL_MORE;
    nb_span value = nb_window_free(w), key = {w->s + t->key, t->key_n};
    if (f->trims) value = without_lines(value);
    nb_buf_clear(out);
    nb_buf_adds(out, t->arguments++ ? ", " : "{");
    nb_pyjson_add_string(out, key.s, key.n);
    nb_buf_adds(out, ": ");
    const char *type = nb_call_type(t->c.schemas, w->s + t->name, t->name_n, key);
    if (!add_value(out, value, type, f->guesses) || !nb_buf_ok(out)) return nb_call_no_memory(err);
    nb_call_tell(&t->c, out->data, out->len, to);
    nb_window_pass(w, f->value_end);
    t->c.safe = w->at;
    t->state = NEXT;
    return NB_TOOLCALL_MORE;
}

nb_toolcall nb_tagged_step(nb_block *b, nb_window *w, const nb_reply_sink *to, nb_error *err)
{
    nb_tagged *t = &b->tagged;
    if (t->c.bare && t->state == CALL && t->c.calls == t->c.first)
        t->state = NAME; /* its tag began the block */
    for (;;) {
        int state = t->state;
        size_t from = w->at;
        nb_toolcall r;
        switch (state) {
        case CALL: r = take_call(t, w, err); break;
        case NAME: r = take_name(t, w, to, err); break;
        case NEXT: r = take_next(t, w, to, err); break;
        case KEY: r = take_key(t, w, err); break;
        case BEFORE: r = take_before(t, w, err); break;
        default: r = take_value(t, w, to, err); break;
        }
        if (r != NB_TOOLCALL_MORE || (t->state == state && w->at == from)) return r;
    }
}
