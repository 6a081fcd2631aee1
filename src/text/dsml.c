/*
 * Tool calls of DeepSeek-V4: one grammar for the strict parser of whole replies (dsv4_parse.c) and for answers as they arrive (reply.c).
 * Form and messages: vLLM, vllm/tokenizers/deepseek_v4_encoding.py.
 */
#include <string.h>

#include "text/dsv4.h"
#include "text/pyjson.h"
#include "text/toolcall.h"

enum { CALLS, NAME, HEAD, VALUE, BETWEEN };

static nb_toolcall bad(const nb_window *w, const char *what, nb_span found, nb_error *err)
{
    size_t n = found.n < 120 ? found.n : 120;
    while (n < found.n && n && ((unsigned char)found.s[n] & 0xC0) == 0x80) n--; /* no half characters */
    nb_fail(err, NB_ERR_FORMAT, "%s: '%.*s'", what, (int)n, found.n ? found.s : "");
    nb_error_at(err, NULL, NULL, (int64_t)w->at);
    return NB_TOOLCALL_BAD;
}

static nb_toolcall no_memory(size_t n, nb_error *err)
{
    nb_fail_nomem(err, "a tool call", n);
    return NB_TOOLCALL_NOMEM;
}

/* The window, not strict up to `most` bytes from `from` on: its end is as certain as that of the text. */
static nb_window within(const nb_dsml *d, const nb_window *w, size_t from, size_t most)
{
    return d->strict ? *w : nb_call_within(w, from, most);
}

/* Takes what stands before the nearer of two stops and passes the stop. *stop NULL: neither comes, or not soon enough; everything is
 * taken. False: it is not yet certain. */
static bool take_until(const nb_dsml *d, nb_window *w, const char *a, const char *b, size_t most,
                       nb_span *before, const char **stop)
{
    const char *const marks[] = {a, b};
    nb_window v = within(d, w, w->at, most);
    int k = nb_window_find(&v, marks, 2);
    w->scan = v.scan;
    if (k < 0 && !v.whole) return false;
    *before = nb_window_free(w);
    *stop = k < 0 ? NULL : marks[k];
    if (*stop)
        nb_window_pass(w, *stop);
    else
        w->at = w->scan;
    return true;
}

/* Drops head from the front and tail from the end, where one more newline may follow it (a call without parameters has one), or, not
 * strict, any white space. False: they are not there. */
static bool strip(nb_span *t, const char *head, const char *tail, bool strict)
{
    size_t h = strlen(head), e = strlen(tail), n = t->n;
    if (!strict)
        while (n && nb_span_is_blank((nb_span){t->s + n - 1, 1})) n--;
    if (n < h + e || !nb_span_starts(*t, head)) return false;
    if (memcmp(t->s + n - e, tail, e) != 0 && t->s[n - 1] == '\n') n--;
    if (n < h + e || memcmp(t->s + n - e, tail, e) != 0) return false;
    *t = (nb_span){t->s + h, n - h - e};
    return true;
}

/* What stands between two tags, from where the first one's name ends. */
static bool is_between(const nb_dsml *d, nb_span t)
{
    if (d->strict) return nb_span_is(t, ">\n");
    return nb_span_starts(t, ">") && nb_span_is_blank((nb_span){t.s + 1, t.n - 1});
}

static nb_toolcall tell(nb_dsml *d, const char *s, size_t n, const nb_reply_sink *to, nb_error *err)
{
    if (!nb_buf_ok(&d->c.out)) return no_memory(d->c.out.len, err);
    if (n) to->arguments(to->ctx, d->c.calls - 1, s, n);
    return NB_TOOLCALL_MORE;
}

/* Tells a string's inside. */
static nb_toolcall tell_inside(nb_dsml *d, nb_span t, const nb_reply_sink *to, nb_error *err)
{
    if (!t.n) return NB_TOOLCALL_MORE;
    nb_buf_clear(&d->c.out);
    nb_pyjson_add_string(&d->c.out, t.s, t.n);
    return tell(d, d->c.out.data + 1, d->c.out.len - 2, to, err);
}

static nb_toolcall take_calls(nb_dsml *d, nb_window *w, nb_error *err)
{
    const char *end = d->end ? d->end : DSV4_END_CALLS;
    nb_span between;
    const char *stop;
    if (!take_until(d, w, DSV4_INVOKE, end, NB_CALL_BLANK, &between, &stop)) return NB_TOOLCALL_MORE;
    if (!is_between(d, between))
        return bad(w, "Tool call format error: expected '>\\n' but got", between, err);
    if (!stop) {
        nb_fail(err, NB_ERR_FORMAT, "Missing special token in tool calls");
        return NB_TOOLCALL_BAD;
    }
    if (strcmp(stop, end) == 0) return NB_TOOLCALL_DONE;
    d->state = NAME;
    return NB_TOOLCALL_MORE;
}

/* A call is complete: the window stands behind its end. */
static void finish_call(nb_dsml *d, const nb_window *w)
{
    d->c.open = false;
    d->c.safe = w->at;
    d->state = CALLS;
}

static nb_toolcall take_name(nb_dsml *d, nb_window *w, const nb_reply_sink *to, nb_error *err)
{
    nb_span name;
    const char *stop;
    if (!take_until(d, w, DSV4_PARAMETER, DSV4_END_INVOKE, NB_CALL_HEAD, &name, &stop))
        return NB_TOOLCALL_MORE;
    size_t blank = nb_span_blank(name);
    name = (nb_span){name.s + blank, name.n - blank};
    if (!strip(&name, "name=\"", d->strict ? "\">\n" : "\">", d->strict) ||
        (!d->strict && (!stop || !name.n)))
        return bad(w, "Tool name format error", name, err);
    to->call(to->ctx, d->c.calls++, name.s, name.n);
    d->parameters = 0;
    nb_map_free(&d->seen);
    d->seen = (nb_map){0};
    if (stop && strcmp(stop, DSV4_PARAMETER) == 0) {
        d->c.open = true;
        d->c.safe = d->part = d->head = w->at;
        d->state = HEAD;
        return NB_TOOLCALL_MORE;
    }
    finish_call(d, w);
    return tell(d, "{}", 2, to, err);
}

/* Looks for the end of ` name="KEY" string="true|false">` in the parameter's text [d->part, end): true, with the key and where the
 * value begins. */
static bool find_head(nb_dsml *d, const nb_window *w, size_t end, nb_span *key, size_t *value)
{
    static const char begin[] = " name=\"", mark[] = "\" string=\"";
    size_t m = sizeof mark - 1, from = d->part + sizeof begin - 1;
    if (end < from || !nb_span_starts((nb_span){w->s + d->part, end - d->part}, begin)) return false;
    for (size_t i = d->head > from ? d->head : from; i + m + sizeof "false\">" - 1 <= end; i++) {
        d->head = i;
        if (memcmp(w->s + i, mark, m) != 0) continue;
        nb_span rest = {w->s + i + m, end - i - m};
        d->text = nb_span_starts(rest, "true\">");
        if (!d->text && !nb_span_starts(rest, "false\">")) continue;
        *key = (nb_span){w->s + from, i - from};
        *value = i + m + (d->text ? sizeof "true\">" : sizeof "false\">") - 1;
        return true;
    }
    return false;
}

static nb_toolcall tell_key(nb_dsml *d, const nb_window *w, nb_span key, const nb_reply_sink *to,
                            nb_error *err)
{
    bool was = false;
    if (d->strict && !nb_map_put(&d->seen, key.s, key.n, 0, &was)) return no_memory(key.n, err);
    if (was) return bad(w, "Duplicate parameter name", key, err);
    nb_buf_clear(&d->c.out);
    nb_buf_adds(&d->c.out, d->parameters++ ? ", " : "{");
    nb_pyjson_add_string(&d->c.out, key.s, key.n);
    nb_buf_adds(&d->c.out, d->text ? ": \"" : ": ");
    return tell(d, d->c.out.data, d->c.out.len, to, err);
}

static nb_toolcall take_head(nb_dsml *d, nb_window *w, const nb_reply_sink *to, nb_error *err)
{
    static const char *const end[] = {DSV4_PARAMETER_END};
    nb_span key;
    size_t value;
    nb_window v = within(d, w, d->part, NB_CALL_HEAD);
    int found = nb_window_find(&v, end, 1);
    w->scan = v.scan;
    if (!find_head(d, w, w->scan, &key, &value)) {
        if (found < 0 && !v.whole) return NB_TOOLCALL_MORE;
        return bad(w, "Parameter format error", (nb_span){w->s + d->part, w->scan - d->part}, err);
    }
    d->c.safe = w->at = value;
    d->state = VALUE;
    return tell_key(d, w, key, to, err);
}

/* The whole value of a parameter with string="false". */
static nb_toolcall tell_value(nb_dsml *d, nb_span t, const nb_reply_sink *to, nb_error *err)
{
    int json = d->strict ? 1 : nb_call_is_json(t);
    if (json < 0) return no_memory(t.n, err);
    nb_buf_clear(&d->c.out);
    if (!json) nb_pyjson_add_string(&d->c.out, t.s, t.n);
    return json ? tell(d, t.s, t.n, to, err) : tell(d, d->c.out.data, d->c.out.len, to, err);
}

static nb_toolcall take_value(nb_dsml *d, nb_window *w, const nb_reply_sink *to, nb_error *err)
{
    static const char *const marks[] = {DSV4_PARAMETER_END};
    nb_toolcall r;
    int found = nb_window_find(w, marks, 1);
    while (!d->strict && found >= 0 && (w->scan == w->at || w->s[w->scan - 1] != '<')) {
        w->scan += strlen(DSV4_PARAMETER_END); /* no end without its < */
        found = nb_window_find(w, marks, 1);
    }
    bool angle = w->scan > w->at && w->s[w->scan - 1] == '<';
    if (found < 0) {
        nb_span sure = {w->s + w->at, w->scan - w->at - (angle && !w->whole)};
        if (d->text && (r = tell_inside(d, sure, to, err)) != NB_TOOLCALL_MORE) return r;
        if (d->text) d->c.safe = w->at += sure.n;
        if (!w->whole) return NB_TOOLCALL_MORE;
    }
    if (found < 0 || !angle)
        return bad(w, "Parameter format error", (nb_span){w->s + d->part, w->scan - d->part}, err);
    nb_span value = {w->s + w->at, w->scan - 1 - w->at};
    r = d->text ? tell_inside(d, value, to, err) : tell_value(d, value, to, err);
    if (r == NB_TOOLCALL_MORE && d->text) r = tell(d, "\"", 1, to, err);
    nb_window_pass(w, DSV4_PARAMETER_END);
    d->c.safe = w->at;
    d->state = BETWEEN;
    return r;
}

static nb_toolcall take_between(nb_dsml *d, nb_window *w, const nb_reply_sink *to, nb_error *err)
{
    nb_span between;
    const char *stop;
    if (!take_until(d, w, DSV4_PARAMETER, DSV4_END_INVOKE, NB_CALL_BLANK, &between, &stop))
        return NB_TOOLCALL_MORE;
    if (!is_between(d, between) || (!d->strict && !stop))
        return bad(w, "Parameter format error: expected '>\\n' but got", between, err);
    if (stop && strcmp(stop, DSV4_PARAMETER) == 0) {
        d->c.safe = d->part = d->head = w->at;
        d->state = HEAD;
        return NB_TOOLCALL_MORE;
    }
    finish_call(d, w);
    return tell(d, "}", 1, to, err);
}

nb_toolcall nb_dsml_step(nb_dsml *d, nb_window *w, const nb_reply_sink *to, nb_error *err)
{
    for (;;) {
        int state = d->state;
        size_t at = w->at;
        nb_toolcall r;
        switch (state) {
        case CALLS: r = take_calls(d, w, err); break;
        case NAME: r = take_name(d, w, to, err); break;
        case HEAD: r = take_head(d, w, to, err); break;
        case VALUE: r = take_value(d, w, to, err); break;
        default: r = take_between(d, w, to, err); break;
        }
        if (r != NB_TOOLCALL_MORE || (d->state == state && w->at == at)) return r;
    }
}

void nb_dsml_free(nb_dsml *d)
{
    nb_map_free(&d->seen);
    nb_buf_free(&d->c.out);
}
