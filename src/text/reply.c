/*
 * Answers taken apart as they arrive: reasoning between <think> and </think>, content, blocks of tool calls (toolcall.h). What is not yet
 * certain stays in one buffer, from whose front the rest is dropped; so the work is linear in the text. Rules for marks that are
 * missing: vLLM, reasoning/basic_parsers.py, parser/{qwen3,deepseek_v4,glm47_moe}.py.
 */
#include "text/reply.h"

#include <stdlib.h>
#include <string.h>

#include "text/dsv4.h"
#include "text/toolcall.h"

#define THINK "<think>"
#define END_THINK "</think>"

/* One way to mark reasoning. All have the same marks. */
typedef struct form {
    const char *name;
    bool begins;  /* without a mark in the prompt the answer begins with reasoning */
    bool opens;   /* an answer that begins outside may open with <think> */
    bool calls;   /* the beginning of a tool call ends the reasoning, too */
    bool absorbs; /* a second </think> is dropped */
} form;

static const form forms[] = {
    {"deepseek_r1", .begins = true, .opens = true},
    {"deepseek_v3", .begins = false}, /* outside it is the identity */
    {"deepseek_v4", .begins = true, .opens = true, .calls = true, .absorbs = true},
    {"glm45", .begins = true, .opens = true, .calls = true, .absorbs = true},
    {"glm47", .begins = true, .opens = true, .calls = true, .absorbs = true},
    {"holo2", .begins = true, .opens = true},
    {"mimo", .begins = true, .opens = true, .calls = true, .absorbs = true},
    {"qwen3", .begins = true, .opens = true, .calls = true, .absorbs = true},
};
#define N_FORMS (sizeof forms / sizeof *forms)

static const char *const reasoning_names[] = {"deepseek_r1", "deepseek_v3", "deepseek_v4", "glm45", "glm47",
                                              "holo2",       "mimo",        "qwen3",       NULL};
static const char *const tools_names[] = {"deepseek_v4", "hermes", NULL};

typedef enum tools { NO_TOOLS, DSML, HERMES } tools;

/* Marks that begin a block of calls; the longer one first where they overlap. */
static const char *const call_marks[][2] = {
    [DSML] = {"\n\n" DSV4_CALLS, DSV4_CALLS}, [HERMES] = {HERMES_BEGIN, NULL}};

typedef enum state { BEGIN, REASONING, CONTENT, CALLS } state;

struct nb_reply {
    const form *form; /* NULL: no reasoning */
    tools tools;
    state state;
    nb_buf held;
    nb_window w;      /* of held */
    size_t calls;     /* told so far */
    size_t block;     /* where the block of calls in work begins */
    size_t mark;      /* the length of its first mark */
    bool after_calls; /* white space that comes now is between calls, or after the last */
    size_t blank;     /* how far the text from w.at on is known to be white space */
    nb_hermes hermes;
    nb_dsml dsml;
};

static const form *form_of(const char *name)
{
    for (size_t i = 0; name && i < N_FORMS; i++)
        if (strcmp(name, forms[i].name) == 0) return &forms[i];
    return NULL;
}

static tools tools_of(const char *name)
{
    if (!name) return NO_TOOLS;
    return strcmp(name, "hermes") == 0 ? HERMES : strcmp(name, "deepseek_v4") == 0 ? DSML : NO_TOOLS;
}

bool nb_reply_has_reasoning(const char *name)
{
    return form_of(name);
}

bool nb_reply_has_tools(const char *name)
{
    return tools_of(name) != NO_TOOLS;
}

const char *const *nb_reply_reasoning_names(void)
{
    return reasoning_names;
}

const char *const *nb_reply_tools_names(void)
{
    return tools_names;
}

const char *const *nb_reply_marks(const char *reasoning, const char *tool_parser)
{
    static const char *const marks[2][3][5] = {
        {{NULL}, {DSV4_DSML, NULL}, {HERMES_BEGIN, HERMES_END, NULL}},
        {{THINK, END_THINK, NULL},
         {THINK, END_THINK, DSV4_DSML, NULL},
         {THINK, END_THINK, HERMES_BEGIN, HERMES_END, NULL}},
    };
    return marks[form_of(reasoning) != NULL][tools_of(tool_parser)];
}

bool nb_reply_begins_thinking(const char *name, const char *prompt, size_t n)
{
    const form *f = form_of(name);
    if (!f) return false;
    for (size_t i = n; i-- > 0;) {
        nb_span rest = {prompt + i, n - i};
        if (prompt[i] != '<') continue;
        if (nb_span_starts(rest, THINK)) return true;
        if (nb_span_starts(rest, END_THINK)) return false;
    }
    return f->begins;
}

static nb_status unknown(const char *kind, const char *name, const char *const *known, nb_error *err)
{
    nb_buf list = {0};
    for (; *known; known++) nb_buf_addf(&list, "%s%s", list.len ? ", " : "", *known);
    nb_fail(err, NB_ERR_ARGUMENT, "no %s parser is called '%s'", kind, name);
    nb_error_remedy(err, "use one of: %s", nb_buf_str(&list));
    nb_buf_free(&list);
    return NB_ERR_ARGUMENT;
}

nb_status nb_reply_new(const char *reasoning, const char *tool_parser, bool thinking, const json_t *schemas,
                       nb_reply **out, nb_error *err)
{
    if (reasoning && !form_of(reasoning)) return unknown("reasoning", reasoning, reasoning_names, err);
    if (tool_parser && !tools_of(tool_parser)) return unknown("tool call", tool_parser, tools_names, err);
    nb_reply *r = calloc(1, sizeof *r);
    if (!r) return nb_fail_nomem(err, "a parser of replies", sizeof *r);
    r->form = form_of(reasoning);
    r->tools = tools_of(tool_parser);
    r->state = r->form && thinking ? REASONING : r->form && r->form->opens ? BEGIN : CONTENT;
    *out = r;
    return NB_OK;
}

void nb_reply_free(nb_reply *r)
{
    if (!r) return;
    nb_buf_free(&r->held);
    nb_buf_free(&r->hermes.c.out);
    nb_dsml_free(&r->dsml);
    free(r);
}

bool nb_reply_thinking(const nb_reply *r)
{
    return r->state == REASONING;
}

/* Marks that count now, in the order of preference; what each is follows from its place. */
static size_t marks_of(const nb_reply *r, const char *const *own, size_t n_own, bool calls,
                       const char **marks)
{
    size_t n = 0;
    for (; n < n_own; n++) marks[n] = own[n];
    for (size_t i = 0; calls && r->tools != NO_TOOLS && i < 2 && call_marks[r->tools][i]; i++)
        marks[n++] = call_marks[r->tools][i];
    return n;
}

/* An answer that begins outside of reasoning opens it, or does not. */
static bool take_begin(nb_reply *r)
{
    nb_window *w = &r->w;
    w->scan += nb_span_blank((nb_span){w->s + w->scan, w->n - w->scan});
    int there = nb_window_at(w, THINK);
    if (there < 0) return false;
    if (there) nb_window_pass(w, THINK);
    w->scan = w->at;
    r->state = there ? REASONING : CONTENT;
    return true;
}

static bool take_reasoning(nb_reply *r, const nb_reply_sink *to)
{
    static const char *const own[] = {END_THINK, THINK};
    const char *marks[4];
    int k = nb_window_find(&r->w, marks, marks_of(r, own, 2, r->form->calls, marks));
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
    if (text.n) to->content(to->ctx, text.s, text.n);
    if (text.n) r->after_calls = false;
}

static bool take_content(nb_reply *r, const nb_reply_sink *to)
{
    static const char *const own[] = {END_THINK};
    const char *marks[3];
    size_t n_own = r->form && r->form->absorbs ? 1 : 0;
    int k = nb_window_find(&r->w, marks, marks_of(r, own, n_own, true, marks));
    nb_span text = nb_window_free(&r->w);
    if (r->after_calls) {
        if (r->blank < r->w.at) r->blank = r->w.at;
        r->blank += nb_span_blank((nb_span){r->w.s + r->blank, r->w.scan - r->blank});
        bool blank = r->blank == r->w.scan, over = k >= (int)n_own || (k < 0 && r->w.whole);
        if (blank && !over && k < 0) return false;
        if (blank && over) text.n = 0;
    }
    tell_content(r, text, to);
    r->w.at = r->w.scan;
    if (k < 0) return false;
    r->block = r->w.scan;
    r->mark = strlen(marks[k]);
    nb_window_pass(&r->w, marks[k]);
    if (k < (int)n_own) return true;
    nb_calls begin = {.calls = r->calls, .safe = r->block};
    if (r->tools == HERMES) {
        begin.out = r->hermes.c.out;
        r->hermes = (nb_hermes){.c = begin};
    } else {
        begin.out = r->dsml.c.out;
        r->dsml = (nb_dsml){.c = begin};
    }
    r->state = CALLS;
    return true;
}

static nb_status take_calls(nb_reply *r, const nb_reply_sink *to, bool *more, nb_error *err)
{
    nb_error why;
    nb_toolcall t = r->tools == HERMES ? nb_hermes_step(&r->hermes, &r->w, to, &why)
                                       : nb_dsml_step(&r->dsml, &r->w, to, &why);
    const nb_calls *c = r->tools == HERMES ? &r->hermes.c : &r->dsml.c;
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
    if (c->safe == r->block) {
        tell_content(r, (nb_span){r->w.s + r->block, r->mark}, to);
        r->w.at = r->w.scan = r->block + r->mark;
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
