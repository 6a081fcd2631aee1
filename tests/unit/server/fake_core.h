/*
 * An engine that says what a test tells it to, in place of engine/core.h and server/metrics.h (the linker takes these definitions, not the
 * libraries'). The answer is a text; with the tokenizer of tiny.h each of its bytes is a token. Include in one file of a test only.
 */
#ifndef NB_TESTS_SERVER_FAKE_CORE_H
#define NB_TESTS_SERVER_FAKE_CORE_H

#include "text/tiny.h"

#include <math.h>

#include "server/api.h"

struct nb_core {
    /* What it is told. */
    const char *answer;
    nb_finish finish;  /* of the last token */
    int stop_string;   /* of the last event */
    int64_t end_token; /* one more token, without text, at the end; -1: none */
    size_t error_at;   /* the sequence fails after this many tokens; SIZE_MAX: never */
    size_t refuse_at;  /* this submission is refused with NB_ERR_BUSY; SIZE_MAX: none */
    bool busy;         /* no seats */
    float first;       /* log-probability of the first token; each later one is 0.25 lower */
    /* What it saw. */
    size_t entered, left, submitted, freed, cancelled;
    size_t records, tokens;        /* of metrics */
    nb_request_record last_record; /* likewise */
    nb_request_spec spec;          /* of the newest submission; strings and arrays below */
    uint32_t prompt[4096], bad[64], bias_ids[8], stop_ids[64], keep[16];
    size_t bad_len[16];
    float bias[8];
};

struct nb_request {
    nb_core *core;
    size_t at, n_prompt, prompt_at;
    nb_request_spec spec;
    uint32_t prompt[64];
    nb_detok detok;
    nb_buf text;
    nb_logprob top[32];
    bool cancelled, over;
    nb_error error;
};

static nb_core fake = {.answer = "", .error_at = SIZE_MAX, .refuse_at = SIZE_MAX};
static const nb_tokenizer *fake_tokenizer;

static inline void fake_reset(const char *answer, nb_finish finish)
{
    fake = (nb_core){.answer = answer,
                     .finish = finish,
                     .stop_string = -1,
                     .end_token = -1,
                     .error_at = SIZE_MAX,
                     .refuse_at = SIZE_MAX,
                     .first = -0.5F};
}

nb_status nb_core_enter(nb_core *c, size_t n, nb_error *err)
{
    if (c->busy) return nb_fail(err, NB_ERR_BUSY, "the queue is full");
    c->entered += n;
    return NB_OK;
}

void nb_core_leave(nb_core *c, size_t n)
{
    c->left += n;
}

#define FAKE_COPY(to, from, n)                                                                               \
    do {                                                                                                     \
        for (size_t copy = 0; copy < (n) && copy < sizeof(to) / sizeof *(to); copy++)                        \
            (to)[copy] = (from)[copy];                                                                       \
    } while (0)

nb_status nb_core_submit(nb_core *c, const nb_request_spec *spec, nb_request **out, nb_error *err)
{
    if (c->submitted == c->refuse_at) return nb_fail(err, NB_ERR_BUSY, "the queue is full");
    nb_request *r = calloc(1, sizeof *r);
    if (!r) return nb_fail_nomem(err, "a request", sizeof *r);
    c->submitted++;
    c->spec = *spec;
    FAKE_COPY(c->prompt, spec->prompt, spec->n_prompt);
    FAKE_COPY(c->bias_ids, spec->sampling.bias_ids, spec->sampling.n_bias);
    FAKE_COPY(c->bias, spec->sampling.bias, spec->sampling.n_bias);
    FAKE_COPY(c->stop_ids, spec->sampling.stop_ids, spec->sampling.n_stop_ids);
    FAKE_COPY(c->keep, spec->keep, spec->n_keep);
    FAKE_COPY(c->bad_len, spec->sampling.bad_len, spec->sampling.n_bad);
    size_t words = 0;
    for (size_t i = 0; i < spec->sampling.n_bad; i++) words += spec->sampling.bad_len[i];
    FAKE_COPY(c->bad, spec->sampling.bad, words);
    r->core = c;
    r->spec = *spec;
    r->n_prompt = spec->n_prompt < 64 ? spec->n_prompt : 64;
    FAKE_COPY(r->prompt, spec->prompt, r->n_prompt);
    nb_detok_init(&r->detok, fake_tokenizer, spec->skip_special, true);
    *out = r;
    return NB_OK;
}

void nb_request_cancel(nb_request *r)
{
    r->core->cancelled += !r->cancelled;
    r->cancelled = true;
}

void nb_request_free(nb_request *r)
{
    r->core->freed++;
    nb_buf_free(&r->text);
    free(r);
}

/* The token itself, then its successors, each 1 less probable. */
static inline void fake_logprobs(nb_request *r, nb_event *ev, int k, float chosen)
{
    size_t n = k == NB_LOGPROBS_ALL ? 32 : (size_t)k;
    ev->chosen = (nb_logprob){.id = ev->token, .rank = 1, .logprob = chosen};
    for (size_t i = 0; i < n && i < 32; i++)
        r->top[i] = (nb_logprob){
            .id = (uint32_t)((ev->token + i) % 256), .rank = (uint32_t)i + 1, .logprob = chosen - (float)i};
    ev->top = r->top;
    ev->n_top = n;
}

bool nb_request_next(nb_request *r, nb_event *ev)
{
    nb_core *c = r->core;
    size_t n = strlen(c->answer), last = n + (c->end_token >= 0);
    *ev = (nb_event){
        .stop_token = -1,
        .stop_string = -1,
        .text = "",
        .cached_tokens = 2,
        .times = {.arrival = 1, .scheduled = 2, .first_token = 3, .last_token = 4 + (double)r->at}};
    if (r->over) return false;
    if (r->cancelled) {
        ev->kind = NB_EVENT_END;
        ev->finish = NB_FINISH_ABORT;
        return r->over = true;
    }
    if (r->spec.prompt_logprobs != -1 && r->prompt_at < r->n_prompt) {
        ev->kind = NB_EVENT_PROMPT;
        ev->token = r->prompt[r->prompt_at];
        if (r->prompt_at) fake_logprobs(r, ev, r->spec.prompt_logprobs, -2 - (float)r->prompt_at);
        r->prompt_at++;
        return true;
    }
    if (r->at == c->error_at) {
        nb_fail(&r->error, NB_ERR_FORMAT, "non-finite logits");
        ev->kind = NB_EVENT_END;
        ev->finish = NB_FINISH_ERROR;
        ev->error = &r->error;
        return r->over = true;
    }
    ev->kind = NB_EVENT_TOKEN;
    ev->token = r->at < n ? (unsigned char)c->answer[r->at] : (uint32_t)c->end_token;
    nb_buf_clear(&r->text);
    if (r->at < n) nb_detok_push(&r->detok, ev->token, &r->text);
    if (r->spec.sampling.logprobs != -1)
        fake_logprobs(r, ev, r->spec.sampling.logprobs, c->first - 0.25F * (float)r->at);
    if (++r->at >= last) {
        nb_detok_flush(&r->detok, &r->text);
        ev->finish = c->finish;
        ev->stop_string = c->stop_string;
        r->over = true;
    }
    ev->text = nb_buf_str(&r->text);
    ev->n_text = r->text.len;
    return true;
}

void nb_metrics_request(nb_metrics *m, const nb_request_record *r)
{
    fake.records++;
    fake.last_record = *r;
}

void nb_metrics_token(nb_metrics *m, double seconds)
{
    fake.tokens++;
}

/* ---- A served model: all bytes as tokens, <s> 256 and </s> 257 special, 16 ids more than it has tokens ---- */

#define FAKE_VOCAB 274
#define FAKE_SPECIAL(id, text)                                                                               \
    "{\"id\":" #id ",\"content\":\"" text "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"      \
    "\"normalized\":false,\"special\":true}"

static nb_api *fake_api;
static nb_api_work *fake_work;
static nb_generation_config fake_generation;
static const char *const fake_names[] = {"m", "other"};

static nb_api_options fake_options(void)
{
    return (nb_api_options){.names = fake_names,
                            .n_names = 2,
                            .root = "models/m",
                            .version = "1.0",
                            .max_context = 64,
                            .max_logprobs = 20,
                            .response_role = "assistant"};
}

static inline void fake_open(const nb_api_options *opt, const nb_chat_format *chat)
{
    static const tiny k = {.added = FAKE_SPECIAL(256, "<s>") "," FAKE_SPECIAL(257, "</s>")};
    nb_error err = {0};
    if (!fake_tokenizer) fake_tokenizer = tiny_new(&k);
    fake_generation = (nb_generation_config){.eos = {257},
                                             .n_eos = 1,
                                             .temperature = NAN,
                                             .top_p = NAN,
                                             .min_p = NAN,
                                             .repetition_penalty = NAN,
                                             .top_k = -1,
                                             .max_new_tokens = -1};
    /* The fake counts for metrics, which it never looks at. */
    nb_metrics *counted = (nb_metrics *)(void *)&fake;
    if (nb_api_new(opt, &fake, FAKE_VOCAB, fake_tokenizer, chat, &fake_generation, counted, &fake_api, &err))
        fail_msg("%s", err.cause);
    assert_int_equal(nb_api_work_new(fake_api, &fake_work, &err), NB_OK);
    fake_reset("", NB_FINISH_STOP);
}

static inline void fake_close(void)
{
    nb_api_work_free(fake_work);
    nb_api_free(fake_api);
    nb_tokenizer_free((nb_tokenizer *)fake_tokenizer);
    fake_tokenizer = NULL;
}

/* One request from body to answer. Returns the status; *answer is the text of it, to be freed. */
static inline int fake_ask_n(nb_route route, const char *body, size_t n, bool *streams, nb_buf *answer)
{
    nb_job_meta meta = {.request_id = "id", .arrival = 1};
    nb_job *j = NULL;
    nb_api_error e = {0};
    if (!nb_job_new(fake_api, fake_work, route, &meta, body, n, &j, &e)) {
        int status = e.status;
        *streams = false;
        nb_api_error_body(&e, answer);
        nb_buf_free(&e.message);
        assert_int_equal(fake.entered, fake.left);
        return status;
    }
    for (int i = 0; !nb_job_poll(j, answer); i++) assert_true(i < 1000);
    int status = nb_job_status(j);
    *streams = nb_job_streams(j);
    nb_job_free(j);
    assert_int_equal(fake.entered, fake.left);
    assert_int_equal(fake.submitted, fake.freed);
    assert_true(nb_buf_ok(answer));
    return status;
}

static inline int fake_ask(nb_route route, const char *body, nb_buf *answer)
{
    bool streams;
    return fake_ask_n(route, body, strlen(body), &streams, answer);
}

/* Asks, and compares the status and the whole answer. created is cut out: it is the time. */
static inline void fake_expect(nb_route route, const char *body, int status, const char *want)
{
    nb_buf got = {0};
    int s = fake_ask(route, body, &got);
    const char *text = nb_buf_str(&got);
    nb_buf clean = {0};
    for (const char *p; (p = strstr(text, "\"created\":"));) {
        nb_buf_add(&clean, text, (size_t)(p - text) + 10);
        text = p + 10 + strspn(p + 10, "0123456789");
        nb_buf_addc(&clean, '0');
    }
    nb_buf_adds(&clean, text);
    if (s != status || strcmp(nb_buf_str(&clean), want) != 0)
        fail_msg("%s\n  gave %d %s\n  not  %d %s", body, s, nb_buf_str(&clean), status, want);
    nb_buf_free(&got);
    nb_buf_free(&clean);
}

/* Asks, and looks for a piece of the answer. */
static inline void fake_expect_part(nb_route route, const char *body, int status, const char *part)
{
    nb_buf got = {0};
    int s = fake_ask(route, body, &got);
    if (s != status || !strstr(nb_buf_str(&got), part))
        fail_msg("%s\n  gave %d %s\n  not  %d ...%s...", body, s, nb_buf_str(&got), status, part);
    nb_buf_free(&got);
}

#endif
