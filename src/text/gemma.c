/*
 * Tool calls of Gemma 4 and FunctionGemma, which write neither JSON nor tags:
 *
 *     <|tool_call>call:NAME{city:<|"|>Paris<|"|>,days:3,where:{lat:48.9},tags:[<|"|>a<|"|>]}<tool_call|>
 *
 * A call is read when its end mark has come, or the text is over, and told at once. Marks are special tokens, which no string holds. Form: the chat template of Gemma 4.
 */
#include <string.h>

#include "text/pyjson.h"
#include "text/toolcall.h"

#define MAX_DEPTH 64

typedef struct reading {
    const char *p, *end;
    const char *quote;
    nb_buf *out;
    bool nomem;
} reading;

static bool starts(const reading *r, const char *what)
{
    return nb_span_starts((nb_span){r->p, (size_t)(r->end - r->p)}, what);
}

static void skip_blank(reading *r)
{
    r->p += nb_span_blank((nb_span){r->p, (size_t)(r->end - r->p)});
}

/* A string between quotes, at whose first one r stands. */
static bool read_string(reading *r)
{
    size_t n = strlen(r->quote);
    const char *s = r->p + n, *e = memmem(s, (size_t)(r->end - s), r->quote, n);
    if (!e) return false;
    nb_pyjson_add_string(r->out, s, (size_t)(e - s));
    r->p = e + n;
    return true;
}

/* What stands up to one of the characters in stops, as JSON if it is that and may be, else as a string. */
static bool read_bare(reading *r, const char *stops, bool json)
{
    const char *s = r->p;
    while (r->p < r->end && !strchr(stops, *r->p)) r->p++;
    nb_span t = nb_span_trim((nb_span){s, (size_t)(r->p - s)});
    int is = json && t.n ? nb_call_is_json(t) : 0;
    r->nomem = r->nomem || is < 0;
    if (is > 0)
        nb_buf_add(r->out, t.s, t.n);
    else if (json && nb_span_is(t, "None"))
        nb_buf_adds(r->out, "null");
    else
        nb_pyjson_add_string(r->out, t.s, t.n);
    return t.n;
}

static bool read_value(reading *r, unsigned depth);

/* The members of an object or a list up to its end; r stands behind the bracket. */
static bool read_members(reading *r, bool object, unsigned depth)
{
    nb_buf_addc(r->out, object ? '{' : '[');
    skip_blank(r);
    for (bool first = true; r->p < r->end && *r->p != (object ? '}' : ']'); first = false) {
        if (!first && *r->p++ != ',') return false;
        if (!first) nb_buf_adds(r->out, ", ");
        skip_blank(r);
        if (object) {
            if (!(starts(r, r->quote) ? read_string(r) : read_bare(r, ":{}[],", false))) return false;
            skip_blank(r);
            if (r->p == r->end || *r->p++ != ':') return false;
            nb_buf_adds(r->out, ": ");
        }
        if (!read_value(r, depth + 1)) return false;
        skip_blank(r);
    }
    if (r->p == r->end) return false;
    r->p++;
    nb_buf_addc(r->out, object ? '}' : ']');
    return true;
}

static bool read_value(reading *r, unsigned depth)
{
    skip_blank(r);
    if (depth > MAX_DEPTH || r->p == r->end) return false;
    if (starts(r, r->quote)) return read_string(r);
    if (*r->p != '{' && *r->p != '[') return read_bare(r, ",}]", true);
    bool object = *r->p++ == '{';
    return read_members(r, object, depth);
}

nb_toolcall nb_gemma_step(nb_block *b, nb_window *w, const nb_reply_sink *to, nb_error *err)
{
    static const char call[] = "call:";
    nb_calls *c = &b->c;
    const nb_gemma_form *f = c->form->grammar;
    const char *const marks[] = {f->end, c->form->begin[0]};
    int found = nb_window_find(w, marks, 2);
    if (found < 0 && !w->whole) return NB_TOOLCALL_MORE;
    if (found == 1) return nb_call_bad(c, w, "another begins within", err);
    nb_span t = nb_span_trim(nb_window_free(w));
    const char *brace = nb_span_starts(t, call) ? memchr(t.s, '{', t.n) : NULL;
    if (!brace) return nb_call_bad(c, w, "expected call:NAME{", err);
    reading r = {.p = brace + 1, .end = t.s + t.n, .quote = f->quote, .out = &c->out};
    nb_buf_clear(r.out);
    bool good = read_members(&r, true, 0) && r.p == r.end;
    if (r.nomem || !nb_buf_ok(r.out)) return nb_call_no_memory(err);
    if (!good) return nb_call_bad(c, w, "its arguments are not in the form", err);
    size_t from = sizeof call - 1;
    nb_toolcall s = nb_call_begin(c, w, nb_span_trim((nb_span){t.s + from, (size_t)(brace - t.s) - from}),
                                  false, to, err);
    if (s != NB_TOOLCALL_MORE) return s;
    nb_call_tell(c, r.out->data, r.out->len, to);
    c->open = false;
    if (found >= 0)
        nb_window_pass(w, f->end);
    else
        w->at = w->scan;
    c->safe = w->at;
    return NB_TOOLCALL_DONE;
}
