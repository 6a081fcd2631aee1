/*
 * Tool calls as a name and a JSON object between marks:
 *
 *     <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
 *
 * with the marks of each family (toolforms.c). The object is passed on as it comes. Forms: the chat templates of DeepSeek-V3 and V3.1,
 * Kimi-K2 and Mistral; what may be absent: vLLM's parsers of the same names.
 */
#include <string.h>

#include "text/toolcall.h"

enum { BLOCK, CALL, NAME, BEFORE, ARGUMENTS, AFTER };

/* A block that begins like an object or a list is one. */
static nb_toolcall take_block(nb_block *b, nb_window *w, nb_error *err)
{
    nb_marked *m = &b->marked;
    m->state = CALL;
    if (!m->form->objects) return NB_TOOLCALL_MORE;
    m->state = BLOCK;
    if (!nb_call_blank(w))
        return w->whole ? nb_call_bad(&m->c, w, "the text ends before it", err) : NB_TOOLCALL_MORE;
    m->state = CALL;
    w->at = w->scan;
    if (w->s[w->scan] != '[' && w->s[w->scan] != '{') return NB_TOOLCALL_MORE;
    const nb_object_form *objects = m->form->objects;
    nb_calls c = m->c;
    b->hermes = (nb_hermes){.c = c, .form = objects};
    b->hermes.c.bare = true; /* what nb_marked_step goes by from here on */
    return NB_TOOLCALL_MORE;
}

/* functions.NAME:NUMBER; what lacks either part is taken as it is. */
static nb_span without_number(nb_span name)
{
    static const char prefix[] = "functions.";
    if (nb_span_starts(name, prefix))
        name = (nb_span){name.s + sizeof prefix - 1, name.n - (sizeof prefix - 1)};
    size_t n = name.n;
    while (n && name.s[n - 1] >= '0' && name.s[n - 1] <= '9') n--;
    if (n && n < name.n && name.s[n - 1] == ':') name.n = n - 1;
    return name;
}

/* The part of t before or behind a mark; all of it where the mark is not there. */
static nb_span part(nb_span t, const char *mark, bool behind)
{
    size_t m = strlen(mark);
    for (size_t i = 0; i + m <= t.n; i++)
        if (memcmp(t.s + i, mark, m) == 0)
            return behind ? (nb_span){t.s + i + m, t.n - i - m} : (nb_span){t.s, i};
    return t;
}

static nb_toolcall take_call(nb_marked *m, nb_window *w, nb_error *err)
{
    bool begins;
    nb_toolcall r = nb_call_next(&m->c, w, m->form->call, m->form->end, &begins, err);
    if (begins) m->state = NAME;
    return r;
}

static nb_toolcall take_name(nb_marked *m, nb_window *w, const nb_reply_sink *to, nb_error *err)
{
    const nb_marked_form *f = m->form;
    nb_window v = nb_call_within(w, w->at, NB_CALL_HEAD);
    int found = nb_window_find(&v, &f->name_end, 1);
    w->scan = v.scan;
    if (found < 0) return v.whole ? nb_call_bad(&m->c, w, "its name does not end", err) : NB_TOOLCALL_MORE;
    nb_span name = nb_window_free(w);
    if (f->kind_end) name = part(name, f->kind_end, true);
    if (f->id) name = part(name, f->id, false);
    name = nb_span_trim(name);
    if (f->numbered) name = without_number(name);
    nb_toolcall r = nb_call_begin(&m->c, w, name, false, to, err);
    if (r != NB_TOOLCALL_MORE) return r;
    nb_window_pass(w, f->name_end);
    m->c.safe = w->at;
    m->json = (nb_json_push){0};
    m->state = BEFORE;
    return r;
}

/* The object, told as it comes, up to its end. */
static nb_toolcall take_arguments(nb_marked *m, nb_window *w, const nb_reply_sink *to, nb_error *err)
{
    bool over = false, bad = false;
    while (!over && w->scan < w->n) {
        int event = nb_json_push_byte(&m->json, w->s[w->scan]);
        if ((bad = event < 0)) break;
        over = event & NB_PUSH_OBJECT_END;
        w->scan++;
    }
    nb_call_tell(&m->c, w->s + w->at, w->scan - w->at, to);
    m->c.safe = w->at = w->scan;
    if (bad || (!over && w->whole)) return nb_call_bad(&m->c, w, "its arguments are no JSON object", err);
    if (!over) return NB_TOOLCALL_MORE;
    m->c.open = false;
    m->state = AFTER;
    return NB_TOOLCALL_MORE;
}

/* Behind the object: the call's end, or none. */
static nb_toolcall take_after(nb_marked *m, nb_window *w)
{
    const char *end = m->form->args_end;
    bool more = !end || nb_call_blank(w);
    int there = more ? nb_call_at(w, end) : 0;
    if ((!more && !w->whole) || there < 0) return NB_TOOLCALL_MORE;
    if (there)
        nb_window_pass(w, end);
    else
        w->scan = w->at;
    m->c.safe = w->at;
    m->state = CALL;
    return m->form->end ? NB_TOOLCALL_MORE : NB_TOOLCALL_DONE;
}

nb_toolcall nb_marked_step(nb_block *b, nb_window *w, const nb_reply_sink *to, nb_error *err)
{
    for (nb_marked *m = &b->marked; !b->c.bare;) {
        int state = m->state;
        size_t from = w->at;
        nb_toolcall r = NB_TOOLCALL_MORE;
        switch (state) {
        case BLOCK: r = take_block(b, w, err); break;
        case CALL: r = take_call(m, w, err); break;
        case NAME: r = take_name(m, w, to, err); break;
        case BEFORE:
            if (nb_call_blank(w))
                m->state = ARGUMENTS;
            else if (w->whole)
                r = nb_call_bad(&m->c, w, "it has no arguments", err);
            w->at = w->scan;
            break;
        case ARGUMENTS: r = take_arguments(m, w, to, err); break;
        default: r = take_after(m, w); break;
        }
        if (r != NB_TOOLCALL_MORE || (!b->c.bare && m->state == state && w->at == from)) return r;
    }
    return nb_hermes_step(&b->hermes, w, to, err);
}
