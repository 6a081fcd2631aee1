/* One event of the engine, as the pieces of an answer (job.h). */
#include <stdlib.h>
#include <string.h>

#include "server/api_json.h"
#include "server/job.h"

static void between(nb_buf *b)
{
    if (b->len) nb_buf_addc(b, ',');
}

/* ---- Tokens and log-probabilities ---- */

static const char *bytes_of(const nb_job *j, uint32_t id, size_t *n)
{
    const char *s = nb_tokenizer_bytes(j->a->t, id, n);
    if (!s) *n = 0;
    return s ? s : "";
}

static void add_name(const nb_job *j, uint32_t id, nb_buf *out)
{
    size_t n;
    const char *s = bytes_of(j, id, &n);
    if (j->tokens_as_ids)
        nb_buf_addf(out, "\"token_id:%u\"", id);
    else
        nb_buf_add_json(out, s, n);
}

/* {text: logprob}: the k best and the chosen one. Tokens that look the same in text are one key, the best of them: a client that looks
 * for the largest value (lm-eval) must find the right one. */
static void add_top_object(const nb_job *j, const nb_event *ev, nb_buf *out)
{
    const uint32_t *same = j->a->same_text;
    size_t words = j->a->vocab / 64 + 1, written = 0;
    uint64_t *seen = calloc(words, sizeof *seen);
    if (!seen) {
        out->bad = true;
        return;
    }
    nb_buf_addc(out, '{');
    for (size_t i = 0; i <= ev->n_top; i++) {
        const nb_logprob *l = i < ev->n_top ? &ev->top[i] : &ev->chosen;
        uint32_t key = j->tokens_as_ids || l->id >= j->a->vocab ? l->id : same[l->id];
        if (key / 64 >= words || (seen[key / 64] >> key % 64 & 1)) continue;
        seen[key / 64] |= UINT64_C(1) << key % 64;
        nb_buf_adds(out, written++ ? "," : "");
        add_name(j, l->id, out);
        nb_buf_addc(out, ':');
        nb_out_logprob(out, l->logprob);
    }
    nb_buf_addc(out, '}');
    free(seen);
}

/* A token's place in completions' four arrays. unknown: the first of a prompt, which nothing predicts. */
static void add_completion_logprobs(nb_choice *c, const nb_event *ev, bool unknown)
{
    const nb_job *j = c->job;
    nb_delta *d = &c->d;
    size_t n;
    const char *s = bytes_of(j, ev->token, &n);
    bool inside = n && ((unsigned char)s[0] & 0xC0) == 0x80 && c->chars; /* goes on with a character */
    between(&d->tokens);
    between(&d->token_logprobs);
    between(&d->top_logprobs);
    between(&d->offsets);
    add_name(j, ev->token, &d->tokens);
    nb_out_int(&d->offsets, (int64_t)(c->chars - inside));
    c->chars += nb_count_chars(s, n);
    if (unknown) {
        nb_buf_adds(&d->token_logprobs, "null");
        nb_buf_adds(&d->top_logprobs, "null");
        return;
    }
    nb_out_logprob(&d->token_logprobs, ev->chosen.logprob);
    add_top_object(j, ev, &d->top_logprobs);
}

static void add_chat_logprob(const nb_job *j, const nb_logprob *l, nb_buf *out)
{
    size_t n;
    const unsigned char *s = (const unsigned char *)bytes_of(j, l->id, &n);
    nb_buf_adds(out, "{\"token\":");
    add_name(j, l->id, out);
    nb_buf_adds(out, ",\"logprob\":");
    nb_out_logprob(out, l->logprob);
    nb_buf_adds(out, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++) {
        nb_buf_adds(out, i ? "," : "");
        nb_out_int(out, s[i]);
    }
    nb_buf_addc(out, ']');
}

static void add_chat_logprobs(nb_choice *c, const nb_event *ev)
{
    nb_buf *out = &c->d.content;
    between(out);
    add_chat_logprob(c->job, &ev->chosen, out);
    nb_buf_adds(out, ",\"top_logprobs\":[");
    for (size_t i = 0; i < ev->n_top; i++) {
        nb_buf_adds(out, i ? "," : "");
        add_chat_logprob(c->job, &ev->top[i], out);
        nb_buf_addc(out, '}');
    }
    nb_buf_adds(out, "]}");
}

/* {"<id>": {"logprob", "rank", "decoded_token"}}: the prompt's token first, then the k best. */
static void add_prompt_logprobs(nb_choice *c, const nb_event *ev, bool unknown)
{
    nb_buf *out = &c->d.prompt;
    between(out);
    if (unknown) {
        nb_buf_adds(out, "null");
        return;
    }
    for (size_t i = 0; i <= ev->n_top; i++) {
        const nb_logprob *l = i ? &ev->top[i - 1] : &ev->chosen;
        size_t n;
        const char *s = bytes_of(c->job, l->id, &n);
        if (i && l->id == ev->chosen.id) continue;
        nb_buf_addf(out, "%s\"%u\":{\"logprob\":", i ? "," : "{", l->id);
        nb_out_logprob(out, l->logprob);
        nb_buf_addf(out, ",\"rank\":%u,\"decoded_token\":", l->rank);
        nb_buf_add_json(out, s, n);
        nb_buf_addc(out, '}');
    }
    nb_buf_addc(out, '}');
}

/* ---- Text ---- */

static void on_content(void *ctx, const char *s, size_t n)
{
    nb_choice *c = ctx;
    nb_buf_add(&c->d.text, s, n);
}

static void on_reasoning(void *ctx, const char *s, size_t n)
{
    nb_choice *c = ctx;
    if (nb_bool(c->job->p.include_reasoning, true)) nb_buf_add(&c->d.reasoning, s, n);
}

void nb_delta_close(nb_delta *d)
{
    if (d->call_open) nb_buf_adds(&d->calls, "\"}}");
    d->call_open = false;
}

/* Without parallel_tool_calls the first call is the only one. */
static bool is_wanted(const nb_choice *c, size_t index)
{
    return index == 0 || nb_bool(c->job->p.parallel_calls, true);
}

static void on_call(void *ctx, size_t index, const char *name, size_t n)
{
    nb_choice *c = ctx;
    nb_buf *out = &c->d.calls;
    if (!is_wanted(c, index)) return;
    nb_delta_close(&c->d);
    between(out);
    nb_buf_addc(out, '{');
    if (c->job->stream) nb_buf_addf(out, "\"index\":%zu,", index);
    nb_buf_adds(out, "\"id\":\"chatcmpl-tool-");
    if (!nb_out_random(out, 16)) out->bad = true;
    nb_buf_adds(out, "\",\"type\":\"function\",\"function\":{\"name\":");
    nb_buf_add_json(out, name, n);
    nb_buf_adds(out, ",\"arguments\":\"");
    c->d.call_open = true;
    c->called = true;
    c->call = index;
}

static void on_arguments(void *ctx, size_t index, const char *s, size_t n)
{
    nb_choice *c = ctx;
    nb_buf *out = &c->d.calls;
    if (!is_wanted(c, index)) return;
    if (!c->d.call_open || c->call != index) {
        nb_delta_close(&c->d);
        between(out);
        nb_buf_addf(out, "{\"index\":%zu,\"function\":{\"arguments\":\"", index);
        c->d.call_open = true;
        c->call = index;
    }
    nb_out_inside(out, s, n);
}

static nb_reply_sink sink_of(nb_choice *c)
{
    return (nb_reply_sink){.content = on_content,
                           .reasoning = on_reasoning,
                           .call = on_call,
                           .arguments = on_arguments,
                           .ctx = c};
}

static void take_text(nb_choice *c, const nb_event *ev, nb_error *err)
{
    nb_reply_sink to = sink_of(c);
    if (!c->reply) {
        nb_buf_add(&c->d.text, ev->text, ev->n_text);
        return;
    }
    bool before = nb_reply_thinking(c->reply);
    if (ev->n_text) nb_reply_push(c->reply, ev->text, ev->n_text, &to, err);
    c->reasoning += before && nb_reply_thinking(c->reply); /* marks are not counted */
}

void nb_delta_take(nb_choice *c, const nb_event *ev, nb_error *err)
{
    const nb_job *j = c->job;
    c->cached = ev->cached_tokens;
    if (ev->kind == NB_EVENT_PROMPT) {
        bool first = c->prompt_events++ == 0;
        if (!j->stream) add_prompt_logprobs(c, ev, first);
        if (!j->chat && j->logprobs && nb_bool(j->p.echo, false)) add_completion_logprobs(c, ev, first);
        return;
    }
    if (ev->kind == NB_EVENT_END) {
        if (!j->echo_only && ev->n_text) take_text(c, ev, err);
        return;
    }
    c->output++;
    c->d.n_tokens++;
    if (j->echo_only) return;
    if (j->token_ids) {
        between(&c->d.token_ids);
        nb_out_int(&c->d.token_ids, ev->token);
    }
    if (j->logprobs && j->chat) add_chat_logprobs(c, ev);
    if (j->logprobs && !j->chat) add_completion_logprobs(c, ev, false);
    take_text(c, ev, err);
}

void nb_delta_end(nb_choice *c, nb_error *err)
{
    nb_reply_sink to = sink_of(c);
    if (c->reply) nb_reply_end(c->reply, &to, err);
    nb_delta_close(&c->d);
}

/* ---- Life ---- */

#define N_BUFFERS 10

static void buffers(nb_delta *d, nb_buf *b[N_BUFFERS])
{
    nb_buf *all[N_BUFFERS] = {&d->text,         &d->reasoning, &d->calls,   &d->tokens, &d->token_logprobs,
                              &d->top_logprobs, &d->offsets,   &d->content, &d->prompt, &d->token_ids};
    memcpy(b, all, sizeof all);
}

bool nb_delta_ok(const nb_delta *d)
{
    nb_buf *b[N_BUFFERS];
    bool ok = true;
    buffers((nb_delta *)d, b);
    for (size_t i = 0; i < N_BUFFERS; i++) ok = ok && nb_buf_ok(b[i]);
    return ok;
}

bool nb_delta_any(const nb_delta *d)
{
    return d->text.len || d->reasoning.len || d->calls.len || d->tokens.len || d->content.len ||
           d->token_ids.len;
}

void nb_delta_clear(nb_delta *d)
{
    nb_buf *b[N_BUFFERS];
    buffers(d, b);
    for (size_t i = 0; i < N_BUFFERS; i++) nb_buf_clear(b[i]);
    d->n_tokens = 0;
    d->call_open = false;
}

void nb_delta_free(nb_delta *d)
{
    nb_buf *b[N_BUFFERS];
    buffers(d, b);
    for (size_t i = 0; i < N_BUFFERS; i++) nb_buf_free(b[i]);
}
