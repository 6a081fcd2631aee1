/* Frames and bodies of completions and chats: which keys there are, and which of them are null, is vLLM's (specs/http_api.md §1, §2). */
#include <string.h>

#include "server/api_json.h"
#include "server/job.h"

static void add_ids(const nb_ids *ids, nb_buf *out)
{
    nb_buf_addc(out, '[');
    for (size_t i = 0; i < ids->len; i++) {
        nb_buf_adds(out, i ? "," : "");
        nb_out_int(out, ids->data[i]);
    }
    nb_buf_addc(out, ']');
}

/* Elements in brackets. */
static void add_list(const char *key, const nb_buf *elements, nb_buf *out)
{
    nb_buf_adds(out, key);
    nb_buf_addc(out, '[');
    nb_buf_add(out, elements->data, elements->len);
    nb_buf_addc(out, ']');
}

static void add_text(const char *key, const nb_buf *text, nb_buf *out)
{
    nb_buf_adds(out, key);
    nb_buf_addc(out, '"');
    nb_out_inside(out, text->data, text->len);
    nb_buf_addc(out, '"');
}

static void add_fingerprint(const nb_job *j, nb_buf *out)
{
    nb_buf_adds(out, "\"system_fingerprint\":\"nibble-");
    nb_buf_adds(out, j->a->opt.version);
    nb_buf_addc(out, '"');
}

static void add_logprobs(const nb_choice *c, nb_buf *out)
{
    const nb_job *j = c->job;
    const nb_delta *d = &c->d;
    nb_buf_adds(out, ",\"logprobs\":");
    if (!j->logprobs || (j->chat ? !d->content.len : !d->tokens.len)) {
        nb_buf_adds(out, "null");
        return;
    }
    nb_buf_addc(out, '{');
    if (j->chat) {
        add_list("\"content\":", &d->content, out);
    } else {
        add_list("\"text_offset\":", &d->offsets, out);
        add_list(",\"token_logprobs\":", &d->token_logprobs, out);
        add_list(",\"tokens\":", &d->tokens, out);
        add_list(",\"top_logprobs\":", &d->top_logprobs, out);
    }
    nb_buf_addc(out, '}');
}

static const char *finish_name(const nb_choice *c)
{
    switch (c->finish) {
    case NB_FINISH_STOP: return c->called ? "tool_calls" : "stop";
    case NB_FINISH_LENGTH: return "length";
    case NB_FINISH_ABORT: return "abort";
    default: return NULL;
    }
}

/* The stop string that matched, or the stop token, unless that is the tokenizer's own end. To vLLM further end tokens of
 * generation_config.json are stop tokens, and so is its own where it is asked for beside ignore_eos. */
static void add_stop_reason(const nb_choice *c, nb_buf *out)
{
    const nb_job *j = c->job;
    bool own = c->stop_token == j->a->generation->own_eos && !nb_bool(j->p.ignore_eos, false);
    const json_t *stop = j->stop;
    nb_buf_adds(out, ",\"stop_reason\":");
    if (c->finish == NB_FINISH_STOP && c->stop_string >= 0) {
        if (json_is_array(stop)) stop = json_array_get(stop, (size_t)c->stop_string);
        nb_buf_add_json(out, json_string_value(stop), json_string_length(stop));
    } else if (c->finish == NB_FINISH_STOP && !own) {
        nb_out_int(out, c->stop_token);
    } else {
        nb_buf_adds(out, "null");
    }
}

static void add_finish(const nb_choice *c, nb_buf *out)
{
    nb_buf_adds(out, ",\"finish_reason\":");
    nb_out_string(out, finish_name(c));
    add_stop_reason(c, out);
}

/* nulls: of a whole answer; those of streams are left out, as vLLM does. */
static void add_usage(const nb_job *j, size_t prompt, size_t output, size_t cached, size_t reasoning,
                      bool nulls, nb_buf *out)
{
    const nb_api_options *o = &j->a->opt;
    nb_buf_addf(out, "\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu,\"completion_tokens\":%zu",
                prompt, prompt + output, output);
    if (o->prompt_tokens_details) {
        nb_buf_addf(out, ",\"prompt_tokens_details\":{\"cached_tokens\":%zu", cached);
        nb_buf_adds(out, nulls ? ",\"created_cache_tokens\":null,\"multimodal_tokens\":null}" : "}");
    } else if (nulls) {
        nb_buf_adds(out, ",\"prompt_tokens_details\":null");
    }
    if (j->chat && o->reasoning_parser)
        nb_buf_addf(out, ",\"completion_tokens_details\":{\"reasoning_tokens\":%zu}", reasoning);
    else if (nulls)
        nb_buf_adds(out, ",\"completion_tokens_details\":null");
    nb_buf_addc(out, '}');
}

/* A prompt counts once, however many choices it has; so do its cached tokens. */
static void add_total_usage(const nb_job *j, bool nulls, nb_buf *out)
{
    size_t prompt = 0, output = 0, cached = 0, reasoning = 0;
    for (size_t i = 0; i < j->n_prompts; i++) prompt += j->tally[i].len;
    for (size_t i = 0; i < j->n_choices; i++) {
        output += j->choices[i].output;
        reasoning += j->choices[i].reasoning;
        if (i % j->n == 0) cached += j->choices[i].cached;
    }
    add_usage(j, prompt, output, cached, reasoning, nulls, out);
}

void nb_job_write_head(nb_job *j)
{
    nb_buf *h = &j->head;
    nb_buf_adds(h, "{\"id\":");
    nb_out_string(h, j->id);
    nb_buf_addf(h, ",\"object\":\"%s\",\"created\":%lld,\"model\":",
                j->chat ? (j->stream ? "chat.completion.chunk" : "chat.completion") : "text_completion",
                (long long)j->created);
    nb_out_string(h, j->a->opt.names[0]);
    nb_buf_adds(h, ",\"choices\":[");
}

static void begin_frame(const nb_job *j, nb_buf *out)
{
    nb_buf_adds(out, "data: ");
    nb_buf_add(out, j->head.data, j->head.len);
}

static void end_frame(const nb_choice *c, bool last, nb_buf *out)
{
    const nb_job *j = c->job;
    if (j->continuous_usage) {
        nb_buf_addc(out, ',');
        add_usage(j, j->tally[c->prompt].len, c->sent ? c->output : 0, c->cached, c->reasoning, false, out);
    }
    if (last) {
        nb_buf_addc(out, ',');
        add_fingerprint(j, out);
    }
    nb_buf_adds(out, "}\n\n");
}

void nb_job_write_roles(nb_job *j, nb_buf *out)
{
    for (size_t i = 0; i < j->n_choices; i++) {
        begin_frame(j, out);
        nb_buf_addf(out, "{\"index\":%zu,\"delta\":{\"role\":", i);
        nb_out_string(out, j->role);
        nb_buf_adds(out,
                    ",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}],\"prompt_token_ids\":");
        if (j->token_ids)
            add_ids(&j->prompts[0].ids, out);
        else
            nb_buf_adds(out, "null");
        if (nb_bool(j->p.prompt_text, false))
            add_text(",\"prompt_text\":", &j->prompts[0].text, out);
        else
            nb_buf_adds(out, ",\"prompt_text\":null");
        end_frame(&j->choices[i], false, out);
    }
}

static void add_delta(const nb_delta *d, nb_buf *out)
{
    const char *sep = "";
    nb_buf_adds(out, ",\"delta\":{");
    if (d->reasoning.len) {
        add_text("\"reasoning\":", &d->reasoning, out);
        add_text(",\"reasoning_content\":", &d->reasoning, out);
        sep = ",";
    }
    if (d->text.len || !(d->reasoning.len || d->calls.len)) {
        nb_buf_adds(out, sep);
        add_text("\"content\":", &d->text, out);
        sep = ",";
    }
    if (d->calls.len) {
        nb_buf_adds(out, sep);
        add_list("\"tool_calls\":", &d->calls, out);
    }
    nb_buf_addc(out, '}');
}

void nb_job_write_chunk(nb_choice *c, nb_buf *out)
{
    const nb_job *j = c->job;
    bool last = c->finish != NB_FINISH_NONE, first = !c->sent;
    c->sent = true;
    nb_delta_close(&c->d);
    begin_frame(j, out);
    nb_buf_addf(out, "{\"index\":%zu", c->index);
    if (j->chat)
        add_delta(&c->d, out);
    else
        add_text(",\"text\":", &c->d.text, out);
    add_logprobs(c, out);
    if (last)
        add_finish(c, out);
    else
        nb_buf_adds(out,
                    j->chat ? ",\"finish_reason\":null" : ",\"finish_reason\":null,\"stop_reason\":null");
    if (!j->chat && !j->token_ids) nb_buf_adds(out, ",\"prompt_token_ids\":null,\"token_ids\":null");
    if (!j->chat && j->token_ids) {
        nb_buf_adds(out, ",\"prompt_token_ids\":");
        if (first)
            add_ids(&j->prompts[c->prompt].ids, out);
        else
            nb_buf_adds(out, "null");
    }
    if (j->token_ids) add_list(",\"token_ids\":", &c->d.token_ids, out);
    nb_buf_adds(out, "}]");
    end_frame(c, last, out);
}

void nb_job_write_usage(nb_job *j, nb_buf *out)
{
    begin_frame(j, out);
    nb_buf_adds(out, "],");
    add_total_usage(j, false, out);
    nb_buf_addc(out, ',');
    add_fingerprint(j, out);
    nb_buf_adds(out, "}\n\n");
}

static void add_message(const nb_choice *c, nb_buf *out)
{
    const nb_delta *d = &c->d;
    nb_buf_adds(out, ",\"message\":{\"role\":");
    nb_out_string(out, c->job->role);
    if (d->text.len || !(d->reasoning.len || d->calls.len))
        add_text(",\"content\":", &d->text, out);
    else
        nb_buf_adds(out, ",\"content\":null");
    nb_buf_adds(out, ",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null");
    if (d->calls.len) add_list(",\"tool_calls\":", &d->calls, out);
    if (d->reasoning.len) {
        add_text(",\"reasoning\":", &d->reasoning, out);
        add_text(",\"reasoning_content\":", &d->reasoning, out);
    } else {
        nb_buf_adds(out, ",\"reasoning\":null,\"reasoning_content\":null");
    }
    nb_buf_addc(out, '}');
}

static void add_prompt_logprobs(const nb_choice *c, nb_buf *out)
{
    if (c->job->prompt_events)
        add_list(",\"prompt_logprobs\":", &c->d.prompt, out);
    else
        nb_buf_adds(out, ",\"prompt_logprobs\":null");
}

static void add_prompt_ids(const nb_job *j, size_t prompt, nb_buf *out)
{
    nb_buf_adds(out, ",\"prompt_token_ids\":");
    if (j->token_ids)
        add_ids(&j->prompts[prompt].ids, out);
    else
        nb_buf_adds(out, "null");
}

static void add_choice(const nb_choice *c, nb_buf *out)
{
    const nb_job *j = c->job;
    nb_buf_addf(out, "%s{\"index\":%zu", c->index ? "," : "", c->index);
    if (j->chat)
        add_message(c, out);
    else
        add_text(",\"text\":", &c->d.text, out);
    add_logprobs(c, out);
    add_finish(c, out);
    if (j->token_ids)
        add_list(",\"token_ids\":", &c->d.token_ids, out);
    else
        nb_buf_adds(out, ",\"token_ids\":null");
    if (!j->chat) add_prompt_logprobs(c, out);
    if (!j->chat) add_prompt_ids(j, c->prompt, out);
    nb_buf_adds(out, ",\"routed_experts\":null}");
}

void nb_job_write_body(nb_job *j, nb_buf *out)
{
    nb_buf_add(out, j->head.data, j->head.len);
    for (size_t i = 0; i < j->n_choices; i++) {
        nb_delta_close(&j->choices[i].d);
        add_choice(&j->choices[i], out);
    }
    nb_buf_adds(out, "],\"service_tier\":null,");
    add_fingerprint(j, out);
    nb_buf_addc(out, ',');
    add_total_usage(j, true, out);
    if (j->chat) {
        add_prompt_logprobs(&j->choices[0], out);
        add_prompt_ids(j, 0, out);
        if (nb_bool(j->p.prompt_text, false))
            add_text(",\"prompt_text\":", &j->prompts[0].text, out);
        else
            nb_buf_adds(out, ",\"prompt_text\":null");
    }
    nb_buf_adds(out, ",\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}");
}
