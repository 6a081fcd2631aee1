/*
 * Answers taken apart as they arrive: reasoning between marks, content, blocks of tool calls (toolcall.h). What is not yet
 * certain stays in one buffer, from whose front the rest is dropped; so the work is linear in the text. Rules for marks that are
 * missing: vLLM, reasoning/basic_parsers.py, parser/{qwen3,deepseek_v4,glm47_moe}.py.
 */
#include "text/reply.h"

#include <stdlib.h>
#include <string.h>

#include "text/toolcall.h"

#define MOST_BEGIN 3 /* marks that begin a block */

/* One way to mark reasoning. */
typedef struct form {
    const char *name, *begin, *end; /* the marks; NULL: Harmony's channels (harmony.c) */
    bool begins;                    /* without a mark in the prompt the answer begins with reasoning */
    bool opens;                     /* an answer that begins outside may open with the first mark */
    bool calls;                     /* the beginning of a tool call ends the reasoning, too */
    bool absorbs;                   /* a second end mark is dropped */
    const char *special; /* the special token of the first mark, where that is more than one token */
} form;

#define THINK "<think>", "</think>"

static const form forms[] = {
    {"deepseek_r1", THINK, .begins = true, .opens = true},
    {"deepseek_v3", THINK, .begins = false}, /* outside it is the identity */
    {"deepseek_v4", THINK, .begins = true, .opens = true, .calls = true, .absorbs = true},
    {"gemma4", "<|channel>thought\n", "<channel|>", .opens = true, .calls = true, .absorbs = true,
     .special = "<|channel>"},
    {"glm45", THINK, .begins = true, .opens = true, .calls = true, .absorbs = true},
    {"glm47", THINK, .begins = true, .opens = true, .calls = true, .absorbs = true},
    {"holo2", THINK, .begins = true, .opens = true},
    {"kimi_k2", THINK, .begins = true, .opens = true, .calls = true, .absorbs = true},
    {"mimo", THINK, .begins = true, .opens = true, .calls = true, .absorbs = true},
    {"minimax_m2", THINK, .begins = true, .opens = true, .calls = true, .absorbs = true},
    {"mistral", "[THINK]", "[/THINK]", .opens = true},
    {"nemotron_v3", THINK, .begins = true, .opens = true, .calls = true, .absorbs = true},
    {"openai_gptoss", NULL, NULL},
    {"qwen3", THINK, .begins = true, .opens = true, .calls = true, .absorbs = true},
    {"seed_oss", "<seed:think>", "</seed:think>", .begins = true, .opens = true, .calls = true,
     .absorbs = true},
    {"step3p5", THINK, .begins = true, .opens = true},
};
#define N_FORMS (sizeof forms / sizeof *forms)

typedef enum state { BEGIN, REASONING, CONTENT, CALLS } state;

struct nb_reply {
    const form *form;          /* NULL: no reasoning */
    const nb_tool_form *tools; /* NULL: no calls */
    const json_t *schemas;
    bool channels; /* Harmony's; the rest is then unused, but for the window */
    state state;
    nb_buf held;
    nb_window w;      /* of held */
    size_t calls;     /* told so far */
    size_t block_at;  /* where the block of calls in work begins */
    size_t mark;      /* the length of its first mark */
    bool after_calls; /* white space that comes now is between calls, or after the last */
    bool some;        /* content, or a block of calls, has begun */
    size_t blank;     /* how far the text from w.at on is known to be white space */
    nb_block block;
    nb_harmony harmony;
};

static const form *form_of(const char *name)
{
    for (size_t i = 0; name && i < N_FORMS; i++)
        if (strcmp(name, forms[i].name) == 0) return &forms[i];
    return NULL;
}

bool nb_reply_has_reasoning(const char *name)
{
    return form_of(name);
}

bool nb_reply_has_tools(const char *name)
{
    return nb_tool_form_of(name);
}

size_t nb_reply_reasoning_name(size_t i, const char **name)
{
    if (i < N_FORMS) *name = forms[i].name;
    return N_FORMS;
}

size_t nb_reply_tools_name(size_t i, const char **name)
{
    if (i < nb_tool_forms_n) *name = nb_tool_forms[i].name;
    return nb_tool_forms_n;
}

size_t nb_reply_marks(const char *reasoning, const char *tools, const char *marks[NB_REPLY_MARKS])
{
    static const char *const harmony[] = {HARMONY_SPECIAL};
    const form *f = form_of(reasoning);
    const nb_tool_form *t = nb_tool_form_of(tools);
    size_t n = 0;
    bool channels = (f && !f->begin) || (t && !t->step);
    for (size_t i = 0; channels && i < sizeof harmony / sizeof *harmony; i++) marks[n++] = harmony[i];
    if (f && f->begin) {
        marks[n++] = f->special ? f->special : f->begin;
        marks[n++] = f->end;
    }
    for (size_t i = 0; t && t->special[i]; i++) marks[n++] = t->special[i];
    return n;
}

bool nb_reply_begins_thinking(const char *name, const char *prompt, size_t n)
{
    const form *f = form_of(name);
    if (!f || !f->begin) return false;
    for (size_t i = n; i-- > 0;) {
        nb_span rest = {prompt + i, n - i};
        if (nb_span_starts(rest, f->begin)) return true;
        if (nb_span_starts(rest, f->end)) return false;
    }
    return f->begins;
}

static nb_status unknown(const char *kind, const char *name, size_t (*known)(size_t, const char **),
                         nb_error *err)
{
    nb_buf list = {0};
    const char *each = "";
    for (size_t i = 0; i < known(i, &each); i++) nb_buf_addf(&list, "%s%s", list.len ? ", " : "", each);
    nb_fail(err, NB_ERR_ARGUMENT, "no %s parser is called '%s'", kind, name);
    nb_error_remedy(err, "use one of: %s", nb_buf_str(&list));
    nb_buf_free(&list);
    return NB_ERR_ARGUMENT;
}

nb_status nb_reply_new(const char *reasoning, const char *tools, bool thinking, const json_t *schemas,
                       nb_reply **out, nb_error *err)
{
    if (reasoning && !form_of(reasoning))
        return unknown("reasoning", reasoning, nb_reply_reasoning_name, err);
    if (tools && !nb_tool_form_of(tools)) return unknown("tool call", tools, nb_reply_tools_name, err);
    nb_reply *r = calloc(1, sizeof *r);
    if (!r) return nb_fail_nomem(err, "a parser of replies", sizeof *r);
    r->form = form_of(reasoning);
    r->tools = nb_tool_form_of(tools);
    r->schemas = schemas;
    r->channels = (r->form && !r->form->begin) || (r->tools && !r->tools->step);
    r->harmony.tools = r->channels && r->tools;
    r->state = r->form && thinking ? REASONING : r->form && r->form->opens ? BEGIN : CONTENT;
    *out = r;
    return NB_OK;
}

void nb_reply_free(nb_reply *r)
{
    if (!r) return;
    nb_buf_free(&r->held);
    nb_buf_free(&r->block.c.out);
    free(r);
}

bool nb_reply_thinking(const nb_reply *r)
{
    return r->channels ? nb_harmony_thinks(&r->harmony) : r->state == REASONING;
}

/* Marks that count now, in the order of preference; what each is follows from its place. */
static size_t marks_of(const nb_reply *r, const char *const *own, size_t n_own, bool calls,
                       const char **marks)
{
    size_t n = 0;
    for (; n < n_own; n++) marks[n] = own[n];
    if (!calls || !r->tools || (r->tools->at_start && r->some)) return n;
    for (size_t i = 0; r->tools->begin[i]; i++) marks[n++] = r->tools->begin[i];
    return n;
}

/* An answer that begins outside of reasoning opens it, or does not. */
static bool take_begin(nb_reply *r)
{
    nb_window *w = &r->w;
    w->scan += nb_span_blank((nb_span){w->s + w->scan, w->n - w->scan});
    int there = nb_window_at(w, r->form->begin);
    if (there < 0) return false;
    if (there) nb_window_pass(w, r->form->begin);
    w->scan = w->at;
    r->state = there ? REASONING : CONTENT;
    return true;
}

static bool take_reasoning(nb_reply *r, const nb_reply_sink *to)
{
    const char *const own[] = {r->form->end, r->form->begin};
    const char *marks[2 + MOST_BEGIN];
    bool calls = r->form->calls && r->tools && !r->tools->at_start;
    int k = nb_window_find(&r->w, marks, marks_of(r, own, 2, calls, marks));
    nb_span text = nb_window_free(&r->w);
    if (text.n) to->reasoning(to->ctx, text.s, text.n);
    r->w.at = r->w.scan;
    if (k < 0) return false;
    if (k < 2) nb_window_pass(&r->w, marks[k]);
    if (k != 1)
        r->state = CONTENT; /* a second <think> is dropped; a block of calls begins as if in content */
    return true;
}

/* Tells text as content, but for white space between calls and after the last. */
static void tell_content(nb_reply *r, nb_span text, const nb_reply_sink *to)
{
    if (!text.n) return;
    to->content(to->ctx, text.s, text.n);
    r->after_calls = false;
    r->some = true;
}

/* A form whose calls are all of the content: what the content begins with decides. False: that is not yet certain. */
static bool take_start(nb_reply *r)
{
    nb_window *w = &r->w;
    const nb_tool_form *f = r->tools;
    if (!f || !f->at_start || r->some) return true;
    w->scan += nb_span_blank((nb_span){w->s + w->scan, w->n - w->scan});
    if (w->scan == w->n) return w->whole;
    bool may = false;
    for (size_t i = 0; f->begin[i]; i++) {
        int there = nb_window_at(w, f->begin[i]);
        if (there > 0) return true; /* and is found again, at once */
        may = may || there < 0;
    }
    r->some = !may;
    return !may;
}

static void begin_block(nb_reply *r, const char *mark, bool second)
{
    bool part = r->tools->at_start && second; /* the mark belongs to the block's text */
    nb_buf out = r->block.c.out;
    r->some = true;
    r->block_at = r->w.scan;
    r->mark = part ? 0 : strlen(mark);
    r->w.scan += r->mark;
    r->w.at = r->w.scan;
    nb_buf_clear(&out);
    r->block.c = (nb_calls){.form = r->tools,
                            .schemas = r->schemas,
                            .calls = r->calls,
                            .first = r->calls,
                            .safe = r->block_at,
                            .bare = second && !r->tools->at_start,
                            .out = out};
    nb_block_begin(&r->block);
    r->state = CALLS;
}

static bool take_content(nb_reply *r, const nb_reply_sink *to)
{
    const char *marks[1 + MOST_BEGIN];
    const char *own[] = {r->form ? r->form->end : NULL};
    size_t n_own = r->form && r->form->absorbs ? 1 : 0;
    if (!take_start(r)) return false;
    int k = nb_window_find(&r->w, marks, marks_of(r, own, n_own, true, marks));
    nb_span text = nb_window_free(&r->w);
    if (r->after_calls) {
        if (r->blank < r->w.at) r->blank = r->w.at;
        r->blank += nb_span_blank((nb_span){r->w.s + r->blank, r->w.scan - r->blank});
        bool blank = r->blank == r->w.scan, over = k >= (int)n_own || (k < 0 && r->w.whole);
        if (blank && !over && k < 0) return false;
        if (blank && over) text.n = 0;
    }
    bool start = k >= (int)n_own && r->tools->at_start; /* white space before the call */
    if (!start) tell_content(r, text, to);
    r->w.at = r->w.scan;
    if (k < 0) return false;
    if (k >= (int)n_own)
        begin_block(r, marks[k], k > (int)n_own);
    else
        nb_window_pass(&r->w, marks[k]);
    return true;
}

static nb_status take_calls(nb_reply *r, const nb_reply_sink *to, bool *more, nb_error *err)
{
    nb_error why;
    nb_toolcall t = r->tools->step(&r->block, &r->w, to, &why);
    const nb_calls *c = &r->block.c;
    r->calls = c->calls;
    *more = t != NB_TOOLCALL_MORE;
    if (t == NB_TOOLCALL_NOMEM && err) *err = why;
    if (t == NB_TOOLCALL_NOMEM) return NB_ERR_NOMEM;
    if (t == NB_TOOLCALL_MORE) return NB_OK;
    r->state = CONTENT;
    r->after_calls = true;
    if (t == NB_TOOLCALL_DONE) return NB_OK;
    /* What is malformed is content. Of a call that the text's end cuts off, the markup that is left tells a client nothing. */
    r->w.at = r->w.scan = c->open && r->w.whole ? r->w.n : c->safe;
    if (c->safe == r->block_at) {
        r->after_calls = c->calls > 0;
        tell_content(r, (nb_span){r->w.s + r->block_at, r->mark}, to);
        r->w.at = r->w.scan = r->block_at + r->mark;
    }
    return NB_OK;
}

/* Drops what has been dealt with, once it is the larger part, so that each byte is moved at most once on average. */
static void forget(nb_reply *r)
{
    size_t n = r->w.at;
    if (r->state == CALLS || n < r->held.len - n) return;
    memmove(r->held.data, r->held.data + n, r->held.len - n);
    r->held.len -= n;
    r->w.at = 0;
    r->w.scan -= n;
    r->blank = r->blank > n ? r->blank - n : 0;
}

static nb_status take(nb_reply *r, const nb_reply_sink *to, nb_error *err)
{
    bool more = true;
    nb_status s = NB_OK;
    r->w.s = r->held.data;
    r->w.n = r->held.len;
    while (more && s == NB_OK && (r->w.at < r->w.n || r->state == CALLS)) {
        if (r->channels) {
            more = nb_harmony_step(&r->harmony, &r->w, to);
            continue;
        }
        switch (r->state) {
        case BEGIN: more = take_begin(r); break;
        case REASONING: more = take_reasoning(r, to); break;
        case CONTENT: more = take_content(r, to); break;
        default: s = take_calls(r, to, &more, err); break;
        }
    }
    forget(r);
    return s;
}

nb_status nb_reply_push(nb_reply *r, const char *s, size_t n, const nb_reply_sink *to, nb_error *err)
{
    if (!n) return NB_OK;
    nb_buf_add(&r->held, s, n);
    if (!nb_buf_ok(&r->held)) return nb_fail_nomem(err, "a reply", n);
    return take(r, to, err);
}

nb_status nb_reply_end(nb_reply *r, const nb_reply_sink *to, nb_error *err)
{
    r->w.whole = true;
    if (!r->held.len) return NB_OK;
    return take(r, to, err);
}
