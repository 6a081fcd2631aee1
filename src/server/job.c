/* The life of a request: checked and submitted on a worker, then polled on the loop thread until its last sequence has ended (api.h). */
#include "server/job.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/api_json.h"

#define MAX_ID 256 /* bytes of a client's request id, which every frame repeats; of a role likewise */
#define MAX_COPIES ((size_t)256 << 20) /* bytes that the sequences of one request may copy of what it gave */
#define MAX_ANSWER ((size_t)1 << 30)   /* bytes of log-probabilities in an answer that is told whole */
#define LOGPROB_BYTES 64               /* that one of them takes as JSON, more or less */
#define MAX_SEQUENCES 16384            /* of one request: VLLM_MAX_N_SEQUENCES, over all its prompts */

/* ---- Making ---- */

static bool set_id(nb_job *j, const nb_job_meta *meta, nb_api_error *e)
{
    nb_buf id = {0};
    const char *given = meta->request_id ? meta->request_id : json_string_value(j->p.request_id);
    if (given && strlen(given) > MAX_ID)
        return nb_api_bad(e, "request_id", NULL, "request_id must have at most %d characters.", MAX_ID);
    nb_buf_adds(&id, j->chat ? "chatcmpl-" : "cmpl-");
    if (given)
        nb_buf_adds(&id, given);
    else if (!nb_out_random(&id, 16)) {
        nb_buf_free(&id);
        nb_api_error_set(e, 500, "InternalServerError", NULL, "Internal server error: no random numbers");
        return false;
    }
    if (!nb_buf_ok(&id)) {
        nb_buf_free(&id);
        return nb_api_nomem(e);
    }
    j->id = id.data;
    return true;
}

/* A copy: every frame may tell it, when the body is long gone. */
static bool set_role(nb_job *j, nb_api_error *e)
{
    const char *role = nb_chat_role(j->a, &j->p);
    if (strlen(role) > MAX_ID)
        return nb_api_bad(e, "messages", NULL, "The role of the last message must have at most %d bytes.",
                          MAX_ID);
    return (j->role = strdup(role)) || nb_api_nomem(e);
}

static bool set_priority(nb_job *j, const char *header, nb_api_error *e)
{
    j->priority = j->p.priority.set ? j->p.priority.v : 0;
    if (!header) return true;
    char *end;
    errno = 0;
    long long v = strtoll(header, &end, 10);
    if (end == header || *end || errno)
        return nb_api_bad_text(e, "X-Vllm-Priority must be an integer, got %.64s.", header);
    if (v && !j->a->opt.priorities)
        return nb_api_bad_text(
            e,
            "Got priority %lld but priority scheduling is not enabled: start the server with "
            "--scheduling-policy priority.",
            v);
    j->priority = v;
    return true;
}

static void set_switches(nb_job *j)
{
    const nb_params *p = &j->p;
    const nb_api_options *o = &j->a->opt;
    j->stream = nb_bool(p->stream, false);
    j->include_usage = nb_bool(p->include_usage, false) || o->force_usage;
    j->continuous_usage = j->include_usage && nb_bool(p->continuous_usage, false);
    j->logprobs = j->chat ? nb_bool(p->want_logprobs, false) : p->logprobs.set;
    j->tokens_as_ids = nb_bool(p->tokens_as_ids, o->tokens_as_ids);
    j->token_ids = nb_bool(p->return_token_ids, false);
    j->interval = p->stream_interval.set ? (size_t)p->stream_interval.v : 1;
    j->echo_only = !j->chat && nb_bool(p->echo, false) && p->max_tokens.set && p->max_tokens.v == 0;
    j->prompt_events = p->prompt_logprobs.set || (!j->chat && nb_bool(p->echo, false) && p->logprobs.set);
    j->n = p->n.set ? (p->n.v < 1 ? 1 : (size_t)p->n.v) : 1;
}

static bool take_seats(nb_job *j, nb_api_error *e)
{
    nb_error err = {0};
    size_t prompts = j->chat ? 1 : nb_completion_count(&j->p), most;
    if (!nb_mul(prompts, j->n, &most)) most = SIZE_MAX;
    if (prompts > 1 && most > MAX_SEQUENCES)
        return nb_api_bad_text(e,
                               "%zu prompts times n=%zu are too many sequences for one request: at most %d.",
                               prompts, j->n, MAX_SEQUENCES);
    if (most > MAX_SEQUENCES) most = 1; /* n alone is told with the other limits of sampling */
    if (nb_core_enter(j->a->core, most, &err)) return nb_api_bad_status(e, &err);
    j->seats = j->n_choices = most;
    return true;
}

/* Output tokens that the client named; 0: none (a chat that may fill the context). */
static int64_t wanted_tokens(const nb_job *j)
{
    const nb_params *p = &j->p;
    if (j->chat) return p->max_completion_tokens.set ? p->max_completion_tokens.v : p->max_tokens.v;
    return p->max_tokens.set ? p->max_tokens.v : 16;
}

static bool make_prompts(nb_job *j, nb_api_work *w, nb_api_error *e)
{
    if (!j->chat) return nb_completion_prompts(j->a, w, &j->p, &j->prompts, &j->n_prompts, e);
    if (!(j->prompts = calloc(1, sizeof *j->prompts))) return nb_api_nomem(e);
    j->n_prompts = 1;
    nb_buf *text = &j->prompts[0].text;
    return nb_chat_render(j->a, &j->p, text, e) &&
           nb_prompt_tokenise(j->a, w, &j->p, nb_buf_str(text), text->len, nb_bool(j->p.add_special, false),
                              wanted_tokens(j), &j->prompts[0], e);
}

/* How many tokens each choice of a prompt may have. */
static bool resolve_max_tokens(const nb_job *j, size_t prompt, size_t *max, bool *open_ended, nb_api_error *e)
{
    char text[NB_VALUE_TEXT], max_text[NB_VALUE_TEXT];
    const nb_params *p = &j->p;
    bool named = !j->chat || p->max_completion_tokens.set || p->max_tokens.set;
    int64_t wanted = named ? wanted_tokens(j) : j->a->generation->max_new_tokens;
    int64_t min = p->min_tokens.set ? p->min_tokens.v : 0;
    size_t room = j->a->opt.max_context - j->prompts[prompt].ids.len;
    if (j->echo_only) wanted = 1;
    if (named && wanted < 1)
        return nb_api_bad(e, "max_tokens", nb_value_int(wanted, text),
                          "max_tokens must be at least 1, got %s.", text);
    *open_ended = !named;
    *max = wanted < 1 || (uint64_t)wanted > room ? room : (size_t)wanted;
    nb_value_int(min, text);
    if (min < 0)
        return nb_api_bad(e, "min_tokens", text, "min_tokens must be greater than or equal to 0, got %s.",
                          text);
    if ((uint64_t)min > *max)
        return nb_api_bad(e, "min_tokens", text,
                          "min_tokens must be less than or equal to max_tokens=%s, got %s.",
                          nb_value_int((int64_t)*max, max_text), text);
    return true;
}

static bool check_lengths(const nb_job *j, nb_api_error *e)
{
    size_t max;
    bool open_ended, ok = true;
    for (size_t i = 0; ok && i < j->n_prompts; i++) ok = resolve_max_tokens(j, i, &max, &open_ended, e);
    return ok;
}

/* Every sequence has a copy of the prompt and of the lists: a request of some megabytes with a large n must not take all memory. */
static bool check_copies(const nb_job *j, nb_api_error *e)
{
    const nb_sample_params *s = &j->sampling.p;
    size_t ids = s->n_stop_ids + s->n_allowed + 2 * s->n_bias, bytes = 0, prompts = 0;
    const bool penalties = nb_sample_penalises(s);
    for (size_t i = 0; i < s->n_bad; i++) ids += s->bad_len[i];
    for (size_t i = 0; i < j->n_prompts; i++) prompts += j->prompts[i].ids.len;
    if (penalties) prompts *= 1 + 8; /* what nb_sampler_new remembers of each token */
    if (nb_mul(ids, j->n_prompts, &bytes) && nb_add(bytes, prompts, &bytes) &&
        nb_mul(bytes, j->n * sizeof *s->bad, &bytes) && bytes <= MAX_COPIES)
        return true;
    return nb_api_bad_text(
        e,
        "Each of %zu sequences takes a copy of its prompt%s, allowed_token_ids, bad_words, logit_bias and "
        "stop_token_ids: %zu MiB in all, and %zu may. Ask for fewer at once, or give shorter lists.",
        j->n_prompts * j->n, penalties ? " (with penalties, nine times as much)" : "",
        (bytes + ((size_t)1 << 20) - 1) >> 20, MAX_COPIES >> 20);
}

static int prompt_logprobs(const nb_job *j)
{
    if (!j->prompt_events) return -1;
    int64_t k = j->p.prompt_logprobs.set ? j->p.prompt_logprobs.v : j->p.logprobs.v;
    return k < 0 || (uint64_t)k >= j->a->vocab ? NB_LOGPROBS_ALL : (int)k;
}

static bool whole_logprobs(size_t sequences, size_t tokens, size_t each, size_t *sum)
{
    size_t n;
    return nb_mul(sequences, tokens, &n) && nb_mul(n, each, &n) && nb_mul(n, LOGPROB_BYTES, &n) &&
           nb_add(*sum, n, sum);
}

/* An answer that is told whole is held until its last token. What many tokens of many sequences with many log-probabilities may take is
 * known before the first. A stream tells them as they come. */
static bool check_answer(const nb_job *j, nb_api_error *e)
{
    const int k = prompt_logprobs(j), own = j->sampling.p.logprobs;
    const size_t vocab = j->a->vocab;
    size_t sum = 0;
    bool ok = true;
    for (size_t i = 0; ok && !j->stream && i < j->n_prompts; i++) {
        size_t max = 0;
        bool open_ended;
        ok = resolve_max_tokens(j, i, &max, &open_ended, e);
        if (ok && own != -1)
            ok = whole_logprobs(j->n, max, own == NB_LOGPROBS_ALL ? vocab : (size_t)own + 1, &sum);
        if (ok && k != -1)
            ok = whole_logprobs(j->n, j->prompts[i].ids.len, k == NB_LOGPROBS_ALL ? vocab : (size_t)k + 1,
                                &sum);
    }
    if (!ok) sum = SIZE_MAX;
    if (sum <= MAX_ANSWER) return true;
    return nb_api_bad_text(
        e,
        "The log-probabilities of this answer may take %zu MiB, and an answer that is not streamed may have "
        "%zu. Set "
        "stream, or ask for fewer logprobs, a smaller max_tokens, or fewer sequences at once.",
        sum >> 20, MAX_ANSWER >> 20);
}

/* Parsers of the answer, and the marks that must reach them. */
static bool make_replies(nb_job *j, nb_api_error *e)
{
    const char *tools = nb_chat_calls_tools(j->a, &j->p) ? j->a->opt.tool_parser : NULL;
    const char *reasoning = j->a->opt.reasoning_parser;
    nb_buf *prompt = &j->prompts[0].text;
    nb_error err = {0};
    size_t n = 0;
    if (!j->chat || !(tools || reasoning)) return true;
    const char *marks[NB_REPLY_MARKS];
    n = nb_reply_marks(reasoning, tools, marks);
    if (!(j->keep = calloc(n + 1, sizeof *j->keep))) return nb_api_nomem(e);
    for (size_t i = 0; i < n; i++) {
        int64_t id = nb_tokenizer_id(j->a->t, marks[i], strlen(marks[i]));
        if (id >= 0) j->keep[j->n_keep++] = (uint32_t)id;
    }
    bool thinking = nb_reply_begins_thinking(reasoning, nb_buf_str(prompt), prompt->len);
    for (size_t i = 0; i < j->n_choices; i++)
        if (nb_reply_new(reasoning, tools, thinking, j->tools, &j->choices[i].reply, &err))
            return nb_api_bad_status(e, &err);
    return true;
}

static bool make_choices(nb_job *j, nb_api_error *e)
{
    j->n_choices = j->n_prompts * j->n;
    j->choices = calloc(j->n_choices, sizeof *j->choices);
    j->tally = calloc(j->n_prompts, sizeof *j->tally);
    if (!j->choices || !j->tally) return nb_api_nomem(e);
    for (size_t i = 0; i < j->n_prompts; i++) j->tally[i].len = j->prompts[i].ids.len;
    for (size_t i = 0; i < j->n_choices; i++) {
        nb_choice *c = &j->choices[i];
        *c = (nb_choice){.job = j, .index = i, .prompt = i / j->n, .stop_string = -1};
        if (j->chat)
            nb_chat_echo(&j->p, j->role, &c->d.text);
        else if (nb_bool(j->p.echo, false))
            nb_buf_add(&c->d.text, j->prompts[c->prompt].text.data, j->prompts[c->prompt].text.len);
        if (!nb_delta_ok(&c->d)) return nb_api_nomem(e);
    }
    return make_replies(j, e);
}

/* A seed of the client's is the same for every prompt and counts up over n; without one each sequence gets its own. */
static uint64_t seed_of(const nb_job *j, const nb_choice *c)
{
    if (j->p.seed.set && j->p.seed.v != -1) return (uint64_t)j->p.seed.v + c->index % j->n;
    uint64_t z = j->a->opt.seed + (atomic_fetch_add(&j->a->drawn, 1) + 1) * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9); /* splitmix64: neighbours must not be alike */
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

static void set_stop(const nb_params *p, nb_request_spec *spec)
{
    size_t n = json_is_string(p->stop) ? 1 : json_array_size(p->stop);
    for (size_t i = 0; i < n && i < NB_MAX_STOP; i++) {
        const json_t *s = json_is_string(p->stop) ? p->stop : json_array_get(p->stop, i);
        spec->stop[spec->n_stop] = json_string_value(s);
        spec->stop_len[spec->n_stop++] = json_string_length(s);
    }
}

static bool submit(nb_job *j, nb_choice *c, size_t max, bool open_ended, nb_api_error *e)
{
    const nb_params *p = &j->p;
    const nb_ids *ids = &j->prompts[c->prompt].ids;
    nb_error err = {0};
    nb_request_spec spec = {
        .id = j->id,
        .prompt = ids->data,
        .n_prompt = ids->len,
        .sampling = j->sampling.p,
        .max_tokens = max,
        .open_ended = open_ended,
        .include_stop = nb_bool(p->include_stop, false),
        .skip_special = nb_bool(p->skip_special, true),
        .keep = j->keep,
        .n_keep = j->n_keep,
        .prompt_logprobs = prompt_logprobs(j),
        .priority = j->priority,
        .cache_salt = p->cache_salt ? json_string_value(p->cache_salt) : NULL,
        .arrival = j->arrival,
        .follows = j->live > 0,
    };
    spec.sampling.seed = seed_of(j, c);
    spec.sampling.min_tokens = p->min_tokens.set ? (size_t)p->min_tokens.v : 0;
    set_stop(p, &spec);
    c->max_tokens = max;
    if (nb_core_submit(j->a->core, &spec, &c->request, &err)) return nb_api_bad_status(e, &err);
    j->live++;
    return true;
}

static void end_choices(nb_job *j)
{
    for (size_t i = 0; i < j->n_choices; i++)
        if (j->choices[i].request) nb_request_cancel(j->choices[i].request);
}

/* Every check comes before the first sequence is handed over; what the core then refuses after some have been taken makes the whole
 * request fail, once those have ended: the caller gets a job whose answer is that error. */
static bool submit_all(nb_job *j, nb_api_error *e)
{
    for (size_t i = 0; i < j->n_choices; i++) {
        nb_choice *c = &j->choices[i];
        size_t max = 0;
        bool open_ended = false;
        if (resolve_max_tokens(j, c->prompt, &max, &open_ended, e) && submit(j, c, max, open_ended, e))
            continue;
        if (!j->live) return false;
        j->failed = true;
        j->error = *e;
        *e = (nb_api_error){0};
        end_choices(j);
        return true;
    }
    for (size_t i = 0; i < j->n_prompts; i++) { /* the core has copies; a long queue need not hold two */
        if (!j->token_ids) {
            free(j->prompts[i].ids.data);
            j->prompts[i].ids = (nb_ids){0};
        }
        if (!nb_bool(j->p.prompt_text, false)) nb_buf_free(&j->prompts[i].text);
    }
    return true;
}

bool nb_job_new(nb_api *a, nb_api_work *w, nb_route route, const nb_job_meta *meta, const char *body,
                size_t n, nb_job **out, nb_api_error *e)
{
    nb_job *j = calloc(1, sizeof *j);
    if (!j) return nb_api_nomem(e);
    j->a = a;
    j->chat = route == NB_ROUTE_CHAT;
    j->arrival = meta->arrival;
    j->created = (int64_t)time(NULL);
    if (!nb_params_parse(&j->p, j->chat ? NB_IN_CHAT : NB_IN_COMPLETIONS, body, n, e)) goto fail;
    if (!nb_api_check_model(a, &j->p, e) || !nb_params_check_features(a, &j->p, e)) goto fail;
    if (j->chat && !nb_chat_check_features(a, &j->p, e)) goto fail;
    set_switches(j);
    if (j->chat && !set_role(j, e)) goto fail;
    if (!set_id(j, meta, e) || !set_priority(j, meta->priority, e)) goto fail;
    if (!take_seats(j, e)) goto fail;
    if (!make_prompts(j, w, e) || !check_lengths(j, e)) goto fail;
    if (!nb_params_sampling(a, w->scratch, &j->p, &j->sampling, e) || !check_copies(j, e) ||
        !check_answer(j, e))
        goto fail;
    nb_job_write_head(j);
    if (!nb_buf_ok(&j->head)) {
        nb_api_nomem(e);
        goto fail;
    }
    j->stop = json_incref((json_t *)j->p.stop);
    if (nb_chat_calls_tools(a, &j->p)) j->tools = json_incref((json_t *)j->p.tools);
    if (!make_choices(j, e) || !submit_all(j, e)) goto fail;
    nb_params_drop_body(&j->p); /* the tree is many times the body, and a long queue would hold them all */
    *out = j;
    return true;
fail:
    nb_job_free(j);
    return false;
}

const char *nb_job_request_id(const nb_job *j)
{
    return strchr(j->id, '-') + 1; /* as the client gave it: without chatcmpl- */
}

void nb_job_free(nb_job *j)
{
    if (!j) return;
    if (j->seats) nb_core_leave(j->a->core, j->seats);
    for (size_t i = 0; j->choices && i < j->n_choices; i++) {
        nb_delta_free(&j->choices[i].d);
        nb_reply_free(j->choices[i].reply);
    }
    for (size_t i = 0; j->prompts && i < j->n_prompts; i++) nb_prompt_free(&j->prompts[i]);
    free(j->choices);
    free(j->prompts);
    free(j->tally);
    free(j->keep);
    free(j->id);
    free(j->role);
    nb_sampling_free(&j->sampling);
    nb_params_free(&j->p);
    json_decref(j->stop);
    json_decref(j->tools);
    nb_buf_free(&j->head);
    nb_buf_free(&j->error.message);
    free(j);
}

/* ---- Polling ---- */

static void write_error(nb_job *j, nb_buf *out)
{
    bool frame = j->stream && j->sent;
    nb_buf_adds(out, frame ? "data: " : "");
    nb_api_error_body(&j->error, out);
    nb_buf_adds(out, frame ? "\n\n" : "");
}

/* The request has failed as a whole: its other sequences end, and the client hears of it at once if it is already listening. */
static void fail(nb_job *j, const nb_error *err, nb_buf *out)
{
    if (j->failed) return;
    j->failed = true;
    if (!err || err->status == NB_OK || err->status == NB_ERR_NOMEM) /* no status: a buffer went bad */
        nb_api_nomem(&j->error);
    else if (err->status == NB_ERR_ARGUMENT) /* seen only while it ran: nothing allowed to choose from */
        nb_api_error_set(&j->error, 400, "BadRequestError", NULL, "%s", err->cause);
    else
        nb_api_error_set(&j->error, 500, "InternalServerError", NULL, "Internal server error: %s",
                         err->cause);
    end_choices(j);
    if (j->stream && j->sent && !j->cancelled) write_error(j, out);
}

static void record(nb_choice *c, const nb_event *ev)
{
    nb_job *j = c->job;
    nb_prompt_tally *t = &j->tally[c->prompt];
    if (c->output > t->longest) t->longest = c->output;
    bool last = ++t->ended == j->n;
    nb_request_record r = {.prompt_tokens = t->len,
                           .cached_tokens = c->cached,
                           .output_tokens = c->output,
                           .max_tokens = c->max_tokens,
                           .n = last ? j->n : 0,
                           .longest = t->longest,
                           .finish = ev->finish,
                           .times = ev->times,
                           .finished = nb_now()};
    if (j->a->metrics) nb_metrics_request(j->a->metrics, &r);
}

static void take_event(nb_choice *c, const nb_event *ev, nb_buf *out)
{
    nb_job *j = c->job;
    nb_error err = {0};
    if (!j->failed && !j->cancelled) nb_delta_take(c, ev, &err);
    if (ev->kind == NB_EVENT_TOKEN) {
        double t = ev->times.last_token;
        if (j->failed || j->cancelled) c->output++;
        if (c->last > 0 && j->a->metrics) nb_metrics_token(j->a->metrics, t - c->last);
        c->last = t;
    }
    if (ev->finish == NB_FINISH_NONE) {
        if (err.status || !nb_delta_ok(&c->d)) fail(j, &err, out);
        return;
    }
    c->finish = ev->finish;
    c->stop_token = ev->token;
    c->stop_string = ev->stop_string;
    if (!j->failed && !j->cancelled && !err.status) nb_delta_end(c, &err);
    record(c, ev);
    if (ev->finish == NB_FINISH_ERROR)
        fail(j, ev->error, out);
    else if (err.status || !nb_delta_ok(&c->d))
        fail(j, &err, out);
    nb_request_free(c->request);
    c->request = NULL;
    j->live--;
    nb_core_leave(j->a->core, 1);
    j->seats--;
}

static void send_due(nb_choice *c, nb_buf *out)
{
    nb_job *j = c->job;
    bool over = c->finish != NB_FINISH_NONE;
    bool due = !c->sent || c->d.n_tokens >= j->interval;
    if (!c->output && !over) return; /* prompt tokens wait for the first of the answer */
    /* A token without text has a chunk, too: clients of vLLM count them. What a parser holds back has none. */
    if (!over && !(due && (!c->reply || nb_delta_any(&c->d)))) return;
    if (!j->sent && j->chat) nb_job_write_roles(j, out);
    j->sent = true;
    nb_job_write_chunk(c, out);
    nb_delta_clear(&c->d);
}

static void finish(nb_job *j, nb_buf *out)
{
    if (j->cancelled) return;
    if (!j->stream || !j->sent) { /* also a stream that failed before its first frame */
        if (j->failed)
            write_error(j, out);
        else
            nb_job_write_body(j, out);
        return;
    }
    if (j->include_usage && !j->failed) nb_job_write_usage(j, out);
    nb_buf_adds(out, "data: [DONE]\n\n");
}

bool nb_job_poll(nb_job *j, nb_buf *out)
{
    nb_event ev;
    size_t start = out->len;
    bool had = j->live > 0;
    for (size_t i = 0; i < j->n_choices; i++) {
        nb_choice *c = &j->choices[i];
        while (c->request && nb_request_next(c->request, &ev)) {
            take_event(c, &ev, out);
            if (j->stream && !j->failed && !j->cancelled) send_due(c, out);
            if (j->live && out->len - start >= NB_JOB_POLL_BYTES) return false;
        }
    }
    if (j->live) return false;
    if (had) finish(j, out);
    return true;
}

int nb_job_status(const nb_job *j)
{
    return j->failed && !(j->stream && j->sent) ? j->error.status : 200;
}

bool nb_job_streams(const nb_job *j)
{
    return j->stream && !(j->failed && !j->sent);
}

void nb_job_cancel(nb_job *j)
{
    j->cancelled = true;
    end_choices(j);
}
