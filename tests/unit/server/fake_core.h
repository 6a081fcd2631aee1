/*
 * A served model for tests of the API: the tokenizer of tiny.h, whose tokens are bytes, and the engine of fake_engine.h. Include in one
 * file of a test only.
 */
#ifndef NB_TESTS_SERVER_FAKE_CORE_H
#define NB_TESTS_SERVER_FAKE_CORE_H

#include "text/tiny.h"

#include "server/fake_engine.h"

/* ---- A served model: all bytes as tokens, <s> 256, </s> 257 and <tool_call> 258 special, 15 ids more than it has tokens ---- */

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
    static const tiny k = {
        .added = FAKE_SPECIAL(256, "<s>") "," FAKE_SPECIAL(257, "</s>") "," FAKE_SPECIAL(258, "<tool_call>")};
    nb_error err = {0};
    if (!fake_tokenizer) fake_tokenizer = tiny_new(&k);
    fake_generation = (nb_generation_config){.eos = {257},
                                             .n_eos = 1,
                                             .own_eos = 257,
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
    nb_tokenizer_free(fake_tokenizer);
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
