/*
 * Memory runs out at the first allocation, the second, and so on, while a request is parsed, rendered, tokenised, submitted and answered:
 * each time the client gets an error of 500 or the whole answer, and every seat and sequence is given back, until one gets through.
 */
#include "server/fake_core.h"

#include "fault/alloc.h"

static int ask(nb_route route, const char *body, nb_buf *out)
{
    nb_job_meta meta = {.arrival = 1};
    nb_job *j = NULL;
    nb_api_error e = {0};
    int status;
    if (nb_job_new(fake_api, fake_work, route, &meta, body, strlen(body), &j, &e)) {
        while (!nb_job_poll(j, out)) continue;
        status = nb_job_status(j);
        nb_job_free(j);
    } else {
        status = e.status;
        nb_api_error_body(&e, out);
        nb_buf_free(&e.message);
        assert_null(j);
    }
    assert_int_equal(fake.entered, fake.left);
    assert_int_equal(fake.submitted, fake.freed);
    return status;
}

static void fail_each_allocation(nb_route route, const char *body)
{
    nb_buf want = {0};
    size_t n = 0, reported = 0;
    assert_int_equal(ask(route, body, &want), 200);
    for (;; n++) {
        nb_buf got = {0};
        fault_arm(n);
        int status = ask(route, body, &got);
        bool fired = fault_disarm(), failed = status == 500 && (got.bad || strstr(got.data, "out of memory"));
        bool told = got.len > 6 && strstr(got.data, "data: {\"error\":"); /* in a stream that had begun */
        /* Random ids and the time change no length. */
        if (!failed && !told && !got.bad && (status != 200 || got.len != want.len))
            fail_msg("allocation %zu: %d %s\n not %s", n, status, nb_buf_str(&got), nb_buf_str(&want));
        reported += failed || told || got.bad;
        nb_buf_free(&got);
        if (!fired) break;
    }
    print_message("  %zu allocations, %zu of them needed: %.60s\n", n, reported, body);
    assert_true(n > 20 && reported > n / 2);
    nb_buf_free(&want);
}

static void completions(void **state)
{
    fake_reset("so \xC3\xA9", NB_FINISH_LENGTH);
    fail_each_allocation(
        NB_ROUTE_COMPLETIONS,
        "{\"prompt\":[\"ab\",\"c\"],\"n\":2,\"logprobs\":2,\"echo\":true,\"stop\":[\"x\"],"
        "\"stop_token_ids\":[1,2],\"logit_bias\":{\"5\":1},\"allowed_token_ids\":[1],\"bad_words\":[\"x\"],"
        "\"return_token_ids\":true,\"prompt_logprobs\":1}");
    fail_each_allocation(
        NB_ROUTE_COMPLETIONS,
        "{\"prompt\":[[104,105]],\"echo\":true,\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
}

static void chats(void **state)
{
    fake_reset(
        "thought</think>\n\nso <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
        NB_FINISH_STOP);
#define BODY                                                                                                 \
    "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hi\"}]}],\"logprobs\":"    \
    "true,"                                                                                                  \
    "\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{\"a\":1},"                                       \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"
    fail_each_allocation(NB_ROUTE_CHAT, BODY "}");
    fail_each_allocation(NB_ROUTE_CHAT, BODY ",\"stream\":true}");
}

static void errors(void **state)
{
    for (size_t n = 0;; n++) {
        nb_buf got = {0};
        fault_arm(n);
        int status =
            ask(NB_ROUTE_COMPLETIONS, "{\"prompt\":{},\"stop\":[1],\"truncation_side\":\"up\"}", &got);
        bool fired = fault_disarm();
        assert_true(status == 400 || status == 500);
        if (!got.bad) assert_non_null(strstr(got.data, "{\"error\":{\"message\":\""));
        nb_buf_free(&got);
        if (!fired) break;
    }
}

int main(void)
{
    static const char template[] =
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}{{ tools | tojson }}<think>";
    const struct CMUnitTest tests[] = {cmocka_unit_test(completions), cmocka_unit_test(chats),
                                       cmocka_unit_test(errors)};
    nb_api_options opt = fake_options();
    nb_chat_format *chat = NULL;
    nb_error err = {0};
    fault_init();
    opt.tool_parser = "hermes";
    opt.reasoning_parser = "qwen3";
    opt.auto_tool_choice = true;
    opt.max_context = 200;
    if (nb_chat_format_open("/nowhere", NULL, template, &chat, &err)) fail_msg("%s", err.cause);
    fake_open(&opt, chat);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_close();
    nb_chat_format_free(chat);
    return failed;
}
