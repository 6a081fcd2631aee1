/*
 * gpt-oss's Harmony: an answer is a row of messages, each with a channel that says what it is.
 *
 *     <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>
 *     <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>
 *
 * analysis is reasoning, final is content, commentary is content but for a recipient: functions.NAME is a call, whose arguments are passed
 * on as they stand; anything else is a tool of the server's, which nibble has none of: reasoning. Form: gpt-oss's chat template, and the
 * format's description (openai/harmony, docs/format.md).
 */
#include <string.h>

#include "text/toolcall.h"

enum { HEADER, BODY };
enum { CONTENT, REASONING, CALL };

#define CHANNEL "<|channel|>"
#define MESSAGE "<|message|>"
#define RECIPIENT "to=functions."

/* The rest of t behind what; n is 0 where t does not hold it. */
static nb_span behind(nb_span t, const char *what)
{
    size_t n = strlen(what);
    const char *p = memmem(t.s, t.n, what, n);
    return p ? (nb_span){p + n, (size_t)(t.s + t.n - p) - n} : (nb_span){t.s + t.n, 0};
}

/* t up to white space or a mark. */
static nb_span word(nb_span t)
{
    size_t n = 0;
    while (n < t.n && t.s[n] != '<' && !nb_span_is_blank((nb_span){t.s + n, 1})) n++;
    return (nb_span){t.s, n};
}

/* What the header says of the message behind it; a call is told. */
static void begin_body(nb_harmony *h, const nb_window *w, nb_span header, const nb_reply_sink *to)
{
    nb_span channel = word(behind(header, CHANNEL)), recipient = word(behind(header, "to="));
    bool reasoning = nb_span_is(channel, "analysis") || (recipient.n && !nb_span_is(channel, "final"));
    nb_error ignored;
    h->begun = true;
    h->state = BODY;
    h->told = false;
    h->part = reasoning ? REASONING : CONTENT;
    if (!nb_span_starts(recipient, "functions.")) return;
    nb_span name = word(behind(header, RECIPIENT));
    h->part = CONTENT;
    if (h->tools && nb_call_begin(&h->c, w, name, false, to, &ignored) == NB_TOOLCALL_MORE) h->part = CALL;
}

/* What belongs to no message is content, but for white space and marks that stand alone. */
static void stray(nb_span t, const nb_reply_sink *to)
{
    if (!nb_span_is_blank(t) && !memmem(t.s, t.n, "<|", 2)) to->content(to->ctx, t.s, t.n);
}

static bool take_header(nb_harmony *h, nb_window *w, const nb_reply_sink *to)
{
    static const char *const marks[] = {MESSAGE};
    nb_window v = nb_call_within(w, w->at, NB_CALL_HEAD);
    /* An answer that begins like no message has none: plain text. */
    if (!h->begun) {
        size_t blank = nb_span_blank((nb_span){w->s + w->at, w->n - w->at});
        nb_window first = {.s = w->s, .n = w->n, .whole = w->whole, .scan = w->at + blank};
        int mark = first.scan < w->n ? nb_window_at(&first, "<|")
                   : w->whole        ? 0
                                     : -1,
            recipient = first.scan < w->n ? nb_window_at(&first, "to=") : mark;
        if (mark < 0 || (!mark && recipient < 0)) return false;
        h->begun = true;
        if (!mark && !recipient) {
            h->state = BODY;
            h->part = CONTENT;
            return true;
        }
    }
    int found = nb_window_find(&v, marks, 1);
    w->scan = v.scan;
    if (found < 0 && !v.whole) return false;
    nb_span header = nb_window_free(w);
    if (found < 0) {
        stray(header, to);
        w->at = w->scan;
        return true;
    }
    nb_window_pass(w, MESSAGE);
    begin_body(h, w, header, to);
    return true;
}

static bool take_body(nb_harmony *h, nb_window *w, const nb_reply_sink *to)
{
    static const char *const marks[] = {"<|end|>", "<|return|>", "<|call|>", "<|start|>", CHANNEL};
    int k = nb_window_find(w, marks, sizeof marks / sizeof *marks);
    nb_span text = nb_window_free(w);
    if (text.n && h->part == CONTENT) to->content(to->ctx, text.s, text.n);
    if (text.n && h->part == REASONING) to->reasoning(to->ctx, text.s, text.n);
    if (text.n && h->part == CALL) nb_call_tell(&h->c, text.s, text.n, to);
    h->told = h->told || text.n;
    w->at = w->scan;
    if (k < 0) return false;
    if (h->part == CALL && !h->told) nb_call_tell(&h->c, "{}", 2, to);
    if (k < 3) nb_window_pass(w, marks[k]);
    h->state = HEADER;
    h->part = CONTENT;
    return true;
}

bool nb_harmony_step(nb_harmony *h, nb_window *w, const nb_reply_sink *to)
{
    return h->state == HEADER ? take_header(h, w, to) : take_body(h, w, to);
}

bool nb_harmony_thinks(const nb_harmony *h)
{
    return h->state == BODY && h->part == REASONING;
}
