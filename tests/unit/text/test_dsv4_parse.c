/* One reply of DeepSeek-V4 taken apart, and what breaks its form. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text/chat.h"

#define EOS "<｜end▁of▁sentence｜>"
#define D "｜DSML｜"
#define CALLS(calls) "\n\n<" D "tool_calls>\n" calls "</" D "tool_calls>"
#define INVOKE(name, parameters) "<" D "invoke name=\"" name "\">\n" parameters "</" D "invoke>\n"
#define PARAMETER(name, string, value)                                                                       \
    "<" D "parameter name=\"" name "\" string=\"" string "\">" value "</" D "parameter>\n"

static void expect(const char *text, bool thinking, const char *want)
{
    json_t *got = NULL, *wanted = json_loads(want, 0, NULL);
    nb_error err = {0};
    assert_non_null(wanted);
    if (nb_chat_deepseek_v4_parse(text, strlen(text), thinking, &got, &err))
        fail_msg("%s: %s", text, err.cause);
    if (!json_equal(got, wanted)) {
        char *line = json_dumps(got, 0);
        fail_msg("%s gave %s", text, line);
    }
    json_decref(got);
    json_decref(wanted);
}

static void expect_error(const char *text, bool thinking, const char *named)
{
    json_t *got = NULL;
    nb_error err = {0};
    assert_int_equal(nb_chat_deepseek_v4_parse(text, strlen(text), thinking, &got, &err), NB_ERR_FORMAT);
    if (!strstr(err.cause, named)) fail_msg("'%s' does not name '%s'", err.cause, named);
    assert_null(got);
}

static void content_and_reasoning(void **state)
{
    (void)state;
    expect("Hello", false, "{\"role\":\"assistant\",\"content\":\"Hello\"}");
    expect("Hello" EOS, false, "{\"role\":\"assistant\",\"content\":\"Hello\"}");
    expect("", false, "{\"role\":\"assistant\",\"content\":\"\"}");
    expect("why\n</think>so", true,
           "{\"role\":\"assistant\",\"content\":\"so\",\"reasoning_content\":\"why\\n\"}");
    expect("</think>", true, "{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"\"}");
}

static void tool_calls(void **state)
{
    (void)state;
    expect("Wait." CALLS(INVOKE("f", PARAMETER("s", "true", "a \"b\"\n") PARAMETER("n", "false", "[1, 2.0]"))
                             INVOKE("g", "")) EOS,
           false,
           "{\"role\":\"assistant\",\"content\":\"Wait.\",\"tool_calls\":["
           "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
           "\"{\\\"s\\\": \\\"a \\\\\\\"b\\\\\\\"\\\\n\\\", \\\"n\\\": [1, 2.0]}\"}},"
           "{\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}]}");
    /* without parameters the encoding leaves an empty line */
    expect("r</think>" CALLS(INVOKE("g", "\n")), true,
           "{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"r\",\"tool_calls\":["
           "{\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}]}");
    /* the value is taken as it stands, whatever it looks like */
    expect(CALLS(INVOKE("f", PARAMETER("a", "true", "</b><" D "invoke name=\"x\">"))), false,
           "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"type\":\"function\",\"function\":{"
           "\"name\":\"f\","
           "\"arguments\":\"{\\\"a\\\": \\\"</b><" D "invoke name=\\\\\\\"x\\\\\\\">\\\"}\"}}]}");
}

static void broken_forms(void **state)
{
    (void)state;
    expect_error("no end of thought", true, "missing </think>");
    expect_error("a" CALLS("") "</think>", true, "missing </think>");
    expect_error("a" EOS "b", false, "Unexpected content at end");
    expect_error("<think>a", false, "Unexpected special token '<think>'");
    expect_error("a" D, false, "Unexpected special token");
    expect_error(CALLS(INVOKE("g", "")) "more" EOS, false, "Unexpected content after tool calls");
    expect_error("\n\n<" D "tool_calls>\n" INVOKE("g", ""), false, "Missing special token in tool calls");
    expect_error("\n\n<" D "tool_calls>\n", false, "Missing special token in tool calls");
    expect_error(CALLS("text"), false, "Tool call format error");
    expect_error(CALLS("<" D "invoke>\n</" D "invoke>\n"), false, "Tool name format error");
    expect_error(CALLS(INVOKE("f", PARAMETER("a", "maybe", "1"))), false, "Parameter format error");
    expect_error(CALLS(INVOKE("f", PARAMETER("a", "true", "1") PARAMETER("a", "true", "2"))), false,
                 "Duplicate parameter name");
    expect_error(CALLS(INVOKE("f", "<" D "parameter name=\"a\" string=\"true\">1")), false,
                 "Parameter format error");
}

static void bad_utf8(void **state)
{
    (void)state;
    json_t *got = NULL;
    assert_int_equal(nb_chat_deepseek_v4_parse("ab\xFF", 3, false, &got, NULL), NB_ERR_ARGUMENT);
    assert_null(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(content_and_reasoning),
        cmocka_unit_test(tool_calls),
        cmocka_unit_test(broken_forms),
        cmocka_unit_test(bad_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
