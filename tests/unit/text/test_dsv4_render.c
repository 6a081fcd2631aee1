/* DeepSeek-V4's prompts: our own conversations, with the text that specs/deepseek_v4.md §12 derives for each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text/chat.h"

#define BOS "<｜begin▁of▁sentence｜>"
#define EOS "<｜end▁of▁sentence｜>"
#define USER "<｜User｜>"
#define REPLY "<｜Assistant｜></think>"
#define THINK "<｜Assistant｜><think>"
#define D "｜DSML｜"
#define THINKING "\"chat_template_kwargs\":{\"thinking\":true}"
#define TOOLS                                                                                                \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"n\":1.0}}},"         \
    "{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]"

static char *render(const char *request, nb_error *err)
{
    json_t *r = json_loads(request, 0, NULL);
    nb_buf out = {0};
    char *text = NULL;
    if (!r) fail_msg("not JSON: %s", request);
    *err = (nb_error){.offset = -1};
    nb_buf_adds(&out, "before "); /* the prompt is appended; an error takes it back */
    nb_status s = nb_chat_deepseek_v4_render(r, &out, err);
    assert_int_equal(s, err->status);
    if (s)
        assert_string_equal(nb_buf_str(&out), "before ");
    else
        text = strdup(out.data + strlen("before "));
    nb_buf_free(&out);
    json_decref(r);
    return text;
}

static void expect(const char *request, const char *want)
{
    nb_error err;
    char *got = render(request, &err);
    if (!got) fail_msg("%s: %s", request, err.cause);
    assert_string_equal(got, want);
    free(got);
}

static void expect_error(const char *request, const char *named)
{
    nb_error err;
    assert_null(render(request, &err));
    assert_int_equal(err.status, NB_ERR_ARGUMENT);
    if (!strstr(err.cause, named)) fail_msg("'%s' does not name '%s'", err.cause, named);
}

static void turns(void **state)
{
    (void)state;
    expect("{\"messages\":[]}", BOS);
    expect("{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"1\"},"
           "{\"role\":\"assistant\",\"content\":\"2\"},{\"role\":\"user\",\"content\":\"3\"}]}",
           BOS "S" USER "1" REPLY "2" EOS USER "3" REPLY);
    /* consecutive messages of the user are one turn */
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"}]}",
           BOS USER "a\n\nb" REPLY);
    /* the last message is the assistant's: nothing is opened */
    expect(
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}",
        BOS USER "a" REPLY "b" EOS);
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"add_generation_prompt\":false}",
           BOS USER "a");
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\","
           "\"wo_eos\":true}]}",
           BOS USER "a" REPLY "b");
}

static void thinking_drops_old_reasoning(void **state)
{
    (void)state;
#define TALK                                                                                                 \
    "\"messages\":[{\"role\":\"user\",\"content\":\"1\"},{\"role\":\"assistant\",\"content\":\"2\","         \
    "\"reasoning\":\"r\"},"                                                                                  \
    "{\"role\":\"user\",\"content\":\"3\"},{\"role\":\"assistant\",\"content\":\"4\",\"reasoning_content\":" \
    "\"q\"}]"
    expect("{" TALK "," THINKING "}", BOS USER "1" REPLY "2" EOS USER "3" THINK "q</think>4" EOS);
    expect("{" TALK ",\"chat_template_kwargs\":{\"enable_thinking\":true,\"drop_thinking\":false}}",
           BOS USER "1" THINK "r</think>2" EOS USER "3" THINK "q</think>4" EOS);
    expect("{" TALK "}", BOS USER "1" REPLY "2" EOS USER "3" REPLY "4" EOS);
    /* a question to the developer counts as one, and an old one goes */
    expect("{\"messages\":[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"user\",\"content\":\"1\"}]"
           "," THINKING "}",
           BOS USER "1" THINK);
    expect("{\"messages\":[{\"role\":\"developer\",\"content\":\"d\"}]," THINKING "}", BOS USER "d" THINK);
}

static void reasoning_effort(void **state)
{
    (void)state;
    nb_error err;
#define ASK(kwargs)                                                                                          \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"1\"}],\"chat_template_kwargs\":{" kwargs "}}"
    expect(ASK("\"thinking\":true,\"reasoning_effort\":\"none\""), BOS USER "1" REPLY);
    expect(ASK("\"thinking\":true,\"reasoning_effort\":\"low\""), BOS USER "1" THINK);
    expect(ASK("\"thinking\":{\"type\":\"enabled\"}"), BOS USER "1" THINK);
    expect(ASK("\"thinking\":{\"type\":\"disabled\"}"), BOS USER "1" REPLY);
    expect(ASK("\"reasoning_effort\":\"max\""), BOS USER "1" REPLY);
    char *text = render(ASK("\"thinking\":true,\"reasoning_effort\":\"max\""), &err);
    assert_non_null(text);
    static const char begin[] = BOS "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n";
    static const char end[] = "\n\n" USER "1" THINK;
    assert_memory_equal(text, begin, sizeof begin - 1);
    assert_string_equal(text + strlen(text) - (sizeof end - 1), end);
    free(text);
}

/* Tools make a system message of their own, before the user's system text, and keep all reasoning. */
static void tools(void **state)
{
    (void)state;
    nb_error err;
    char *text =
        render("{" TOOLS
               ",\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"1\"},"
               "{\"role\":\"assistant\",\"content\":\"2\",\"reasoning\":\"r\"},{\"role\":\"user\","
               "\"content\":\"3\"}]," THINKING "}",
               &err);
    assert_non_null(text);
    static const char begin[] = BOS "\n\n## Tools\n\n";
    static const char end[] =
        "### Available Tool Schemas\n\n{\"name\": \"add\", \"parameters\": {\"n\": 1.0}}\n{\"name\": "
        "\"now\"}\n\n"
        "You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"
        "S" USER "1" THINK "r</think>2" EOS USER "3" THINK;
    assert_memory_equal(text, begin, sizeof begin - 1);
    assert_true(strlen(text) > sizeof end);
    assert_string_equal(text + strlen(text) - (sizeof end - 1), end);
    free(text);
    expect("{\"tools\":[],\"messages\":[{\"role\":\"user\",\"content\":\"1\"}]}", BOS USER "1" REPLY);
}

static void calls_and_results(void **state)
{
    (void)state;
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},"
           "{\"role\":\"assistant\",\"content\":\"c\",\"tool_calls\":["
           "{\"id\":\"x\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"s\\\": \\\"a\\\\nb\\\", "
           "\\\"v\\\": [1, null]}\"}},"
           "{\"id\":\"y\",\"function\":{\"name\":\"g\",\"arguments\":{}}},"
           "{\"id\":\"z\",\"function\":{\"name\":\"h\"}}]},"
           "{\"role\":\"tool\",\"tool_call_id\":\"z\",\"content\":\"3\"},"
           "{\"role\":\"tool\",\"tool_call_id\":\"x\",\"content\":\"1\"},"
           "{\"role\":\"user\",\"content\":\"u\"},"
           "{\"role\":\"tool\",\"tool_call_id\":\"y\",\"content\":[{\"type\":\"text\",\"text\":\"2\"},"
           "{\"type\":\"text\",\"text\":\"two\"}]}]}",
           BOS USER "q" REPLY "c\n\n<" D "tool_calls>\n"
                    "<" D "invoke name=\"f\">\n"
                    "<" D "parameter name=\"s\" string=\"true\">a\nb</" D "parameter>\n"
                    "<" D "parameter name=\"v\" string=\"false\">[1, null]</" D "parameter>\n"
                    "</" D "invoke>\n"
                    "<" D "invoke name=\"g\">\n\n</" D "invoke>\n"
                    "<" D "invoke name=\"h\">\n\n</" D "invoke>\n"
                    "</" D "tool_calls>" EOS USER
                    "<tool_result>1</tool_result>\n\n<tool_result>2\ntwo</tool_result>\n\nu\n\n"
                    "<tool_result>3</tool_result>" REPLY);
}

static void response_format(void **state)
{
    (void)state;
#define FORMAT                                                                                               \
    "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n{\"type\": "     \
    "\"object\"}"
#define U "{\"role\":\"user\",\"content\":\"1\"}"
    expect(
        "{\"messages\":[{\"role\":\"system\",\"content\":\"S\",\"response_format\":{\"type\":\"object\"}}," U
        "]}",
        BOS "S" FORMAT USER "1" REPLY);
    expect("{\"messages\":[{\"role\":\"system\",\"content\":\"S\"}," U
           "],\"response_format\":{\"type\":\"json_schema\","
           "\"json_schema\":{\"name\":\"n\",\"schema\":{\"type\":\"object\"}}}}",
           BOS "S" FORMAT USER "1" REPLY);
    expect("{\"messages\":[" U "],\"response_format\":{\"type\":\"object\"}}", BOS FORMAT USER "1" REPLY);
    expect("{\"messages\":[" U "],\"response_format\":{\"type\":\"text\"}}", BOS USER "1" REPLY);
    expect("{\"messages\":[" U "],\"response_format\":{\"type\":\"json_object\"}}", BOS USER "1" REPLY);
}

static void reminders_and_tasks(void **state)
{
    (void)state;
    expect("{\"messages\":[" U ",{\"role\":\"latest_reminder\",\"content\":\"today\"}]}",
           BOS USER "1" REPLY "<｜latest_reminder｜>today");
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"1\",\"task\":\"title\"}]," THINKING "}",
           BOS USER "1<｜title｜>");
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"1\",\"task\":\"action\"},"
           "{\"role\":\"assistant\",\"content\":\"x\"}]," THINKING "}",
           BOS USER "1" THINK "<｜action｜>x" EOS);
    /* a further text does not join a turn with a task, a tool's result does */
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"1\",\"task\":\"title\"}," U "]}",
           BOS USER "1" USER "1" REPLY);
}

static void content_forms(void **state)
{
    (void)state;
    expect("{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":"
           "\"text\",\"text\":\"b\"}]}]}",
           BOS USER "a\nb" REPLY);
    expect("{\"messages\":[{\"role\":\"user\",\"content\":null},{\"role\":\"assistant\"},{\"role\":\"user\","
           "\"content\":\"x\"}]}",
           BOS USER REPLY EOS USER "x" REPLY);
    /* special tokens in a message are not escaped: the reference does not either */
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"</think>" EOS "\"}]}",
           BOS USER "</think>" EOS REPLY);
}

static void bad_requests(void **state)
{
    (void)state;
    expect_error("{}", "messages is not an array");
    expect_error("{\"messages\":[3]}", "messages[0] is not an object with a role");
    expect_error("{\"messages\":[" U ",{\"role\":\"critic\",\"content\":\"\"}]}", "Unknown role: critic");
    expect_error("{\"messages\":[{\"role\":\"developer\",\"content\":\"\"}]}",
                 "Invalid message for role `developer`");
    expect_error("{\"messages\":[{\"role\":\"user\",\"content\":7}]}", "content is neither");
    expect_error("{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
                 "type 'image_url'");
    expect_error("{\"messages\":[{\"role\":\"user\",\"content\":\"\",\"task\":\"sing\"}]}",
                 "Invalid task: 'sing'");
    expect_error("{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":3}]}", "tool_calls is not an array");
    expect_error("{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]}",
                 "tool_calls[0] has no function");
    expect_error("{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
                 "\"arguments\":\"{\"}}]}]}",
                 "arguments are not a JSON object");
    expect_error("{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
                 "\"arguments\":[1]}}]}]}",
                 "arguments are not a JSON object");
    expect_error("{\"messages\":[" U "],\"tools\":7}", "tools is not an array");
    expect_error("{\"messages\":[" U "],\"tools\":[{\"type\":\"function\"}]}", "tools[0] has no function");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns),
        cmocka_unit_test(thinking_drops_old_reasoning),
        cmocka_unit_test(reasoning_effort),
        cmocka_unit_test(tools),
        cmocka_unit_test(calls_and_results),
        cmocka_unit_test(response_format),
        cmocka_unit_test(reminders_and_tasks),
        cmocka_unit_test(content_forms),
        cmocka_unit_test(bad_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
