/* Chats whose answers are taken apart: reasoning and tool calls, whole and streamed, and what of them is counted. */
#include "server/fake_core.h"

#define ASK(body, status, want) fake_expect(NB_ROUTE_CHAT, body, status, want)
#define PART(body, status, want) fake_expect_part(NB_ROUTE_CHAT, body, status, want)
#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define TOOLS                                                                                                \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},{\"type\":\"function\",\"function\":"  \
    "{\"name\":\"g\"}}]"
#define CALL(name, arguments)                                                                                \
    "<tool_call>\n{\"name\": \"" name "\", \"arguments\": " arguments "}\n</tool_call>"

/* Asks, and joins what the chunks of a stream tell under a key of their delta, as JSON escapes it. */
static void expect_joined(const char *body, const char *key, const char *want)
{
    nb_buf got = {0}, joined = {0}, name = {0};
    nb_buf_addf(&name, "\"%s\":\"", key);
    assert_int_equal(fake_ask(NB_ROUTE_CHAT, body, &got), 200);
    for (const char *p = nb_buf_str(&got); (p = strstr(p, nb_buf_str(&name)));) {
        p += name.len;
        for (; *p && *p != '"'; p++) {
            nb_buf_addc(&joined, *p);
            if (*p == '\\') nb_buf_addc(&joined, *++p);
        }
    }
    if (strcmp(nb_buf_str(&joined), want) != 0)
        fail_msg("%s of %s\n  gave %s\n  not  %s", key, nb_buf_str(&got), nb_buf_str(&joined), want);
    nb_buf_free(&got);
    nb_buf_free(&joined);
    nb_buf_free(&name);
}

/* The prompt ends in <think>: the answer begins inside reasoning. */
static void reasoning(void **state)
{
    fake_reset("hm\xC3\xA9</think>\n\nso", NB_FINISH_LENGTH);
    PART("{" USER "}", 200,
         "\"message\":{\"role\":\"assistant\",\"content\":\"\\n\\nso\",\"refusal\":null,\"annotations\":null,"
         "\"audio\":null,"
         "\"function_call\":null,\"reasoning\":\"hm\xC3\xA9\",\"reasoning_content\":\"hm\xC3\xA9\"}");
    /* h, m, the two bytes of one character, and the mark but for its last byte: until then it may be text */
    PART("{" USER "}", 200, "\"completion_tokens_details\":{\"reasoning_tokens\":11}");
    PART("{" USER ",\"include_reasoning\":false}", 200,
         "\"function_call\":null,\"reasoning\":null,\"reasoning_content\":null}");
    expect_joined("{" USER ",\"stream\":true}", "reasoning", "hm\xC3\xA9");
    expect_joined("{" USER ",\"stream\":true}", "reasoning_content", "hm\xC3\xA9");
    expect_joined("{" USER ",\"stream\":true}", "content", "\\n\\nso");
    expect_joined("{" USER ",\"stream\":true,\"include_reasoning\":false}", "reasoning", "");
    /* Nothing but reasoning: content is null. */
    fake_reset("hm", NB_FINISH_LENGTH);
    PART("{" USER "}", 200, "\"content\":null,\"refusal\":null");
}

static void calls(void **state)
{
    nb_buf got = {0};
    fake_reset("</think>" CALL("f", "{\"a\": \"\xC3\xA9\\\"\"}") "\n" CALL("g", "{}"), NB_FINISH_STOP);
    fake.end_token = 257;
    assert_int_equal(fake_ask(NB_ROUTE_CHAT, "{" USER "," TOOLS "}", &got), 200);
    const char *s = nb_buf_str(&got), *first = strstr(s, "\"tool_calls\":[{\"id\":\"chatcmpl-tool-");
    assert_non_null(first);
    assert_non_null(
        strstr(first, "\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": "
                      "\\\"\xC3\xA9\\\\\\\"\\\"}\"}},{\"id\":\"chatcmpl-tool-"));
    assert_non_null(strstr(s, "\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}]"));
    assert_non_null(strstr(s, "\"content\":null"));
    assert_non_null(strstr(s, "\"finish_reason\":\"tool_calls\",\"stop_reason\":null"));
    nb_buf_free(&got);
    expect_joined("{" USER "," TOOLS ",\"stream\":true}", "arguments",
                  "{\\\"a\\\": \\\"\xC3\xA9\\\\\\\"\\\"}{}");
    expect_joined("{" USER "," TOOLS ",\"stream\":true}", "name", "fg");
    expect_joined("{" USER "," TOOLS ",\"stream\":true}", "finish_reason", "tool_calls");
    PART("{" USER "," TOOLS ",\"stream\":true}", 200,
         "\"delta\":{\"tool_calls\":[{\"index\":1,\"id\":\"chatcmpl-tool-");
    PART("{" USER "," TOOLS ",\"stream\":true}", 200,
         "\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"");
    /* The first alone. */
    expect_joined("{" USER "," TOOLS ",\"parallel_tool_calls\":false}", "name", "f");
    expect_joined("{" USER "," TOOLS ",\"parallel_tool_calls\":false,\"stream\":true}", "name", "f");
    /* Without tools, or with none wanted, marks are text. */
    expect_joined("{" USER "," TOOLS ",\"tool_choice\":\"none\"}", "finish_reason", "stop");
    PART("{" USER "}", 200, "\"content\":\"<tool_call>");
    /* A call that the limit cut off is not told as a finished one. */
    fake_reset("</think><tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\"", NB_FINISH_LENGTH);
    expect_joined("{" USER "," TOOLS "}", "finish_reason", "length");
    PART("{" USER "," TOOLS ",\"tool_choice\":\"required\"}", 400, "needs constrained output");
}

/* The marks are special tokens: their text must reach the parser although special tokens are no text. */
static void marks_are_kept(void **state)
{
    fake_reset("x", NB_FINISH_LENGTH);
    PART("{" USER "," TOOLS "}", 200, "\"finish_reason\":\"length\"");
    assert_true(fake.spec.skip_special);
    assert_true(fake.spec.n_keep == 1 && fake.keep[0] == 258);
}

/* A stream with log-probabilities tells those of every token, also of tokens that the parser holds or drops. */
static void all_log_probabilities(void **state)
{
    nb_buf got = {0};
    size_t n = 0;
    fake_reset("a</think>b", NB_FINISH_LENGTH);
    assert_int_equal(fake_ask(NB_ROUTE_CHAT, "{" USER ",\"stream\":true,\"logprobs\":true}", &got), 200);
    for (const char *p = nb_buf_str(&got); (p = strstr(p, "{\"token\":")); p++) n++;
    assert_int_equal(n, strlen("a</think>b"));
    nb_buf_free(&got);
}

static void details_and_usage(void **state)
{
    nb_api *before = fake_api;
    nb_api_options opt = fake_options();
    nb_error err = {0};
    opt.prompt_tokens_details = opt.force_usage = true;
    assert_int_equal(
        nb_api_new(&opt, &fake, FAKE_VOCAB, fake_tokenizer, NULL, &fake_generation, NULL, &fake_api, &err),
        NB_OK);
    fake_reset("x", NB_FINISH_LENGTH);
    fake_expect_part(NB_ROUTE_COMPLETIONS, "{\"prompt\":\"abc\",\"n\":2}", 200,
                     "\"prompt_tokens_details\":{\"cached_tokens\":2,\"created_cache_tokens\":null,"
                     "\"multimodal_tokens\":null}");
    fake_expect_part(
        NB_ROUTE_COMPLETIONS, "{\"prompt\":\"abc\",\"stream\":true}", 200,
        "\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"total_tokens\":4,\"completion_tokens\":1,"
        "\"prompt_tokens_details\":{\"cached_tokens\":2}}");
    nb_api_free(fake_api);
    fake_api = before;
}

int main(void)
{
    static const char template[] = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reasoning), cmocka_unit_test(calls), cmocka_unit_test(marks_are_kept),
        cmocka_unit_test(all_log_probabilities), cmocka_unit_test(details_and_usage)};
    nb_api_options opt = fake_options();
    nb_chat_format *chat = NULL;
    nb_error err = {0};
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
