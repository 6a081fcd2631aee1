/* Answers taken apart: reasoning, Hermes and DeepSeek-V4 calls, malformed ones; the same whatever the cuts. */
#include "text/replies.h"

#include <stdio.h>

#include "base/json_tree.h"
#include "text/chat.h"

#define D "｜DSML｜"
#define CALLS(calls) "\n\n<" D "tool_calls>\n" calls "</" D "tool_calls>"
#define INVOKE(name, parameters) "<" D "invoke name=\"" name "\">\n" parameters "</" D "invoke>\n"
#define PARAMETER(name, string, value)                                                                       \
    "<" D "parameter name=\"" name "\" string=\"" string "\">" value "</" D "parameter>\n"

static const how r1 = {"deepseek_r1", NULL, true}, v3 = {"deepseek_v3", NULL, false},
                 qwen = {"qwen3", "hermes", true}, qwen_off = {"qwen3", "hermes", false},
                 v4 = {"deepseek_v4", "deepseek_v4", true}, v4_off = {"deepseek_v4", "deepseek_v4", false},
                 hermes = {NULL, "hermes", false}, dsml = {NULL, "deepseek_v4", false};

static void reasoning(void **state)
{
    expect(r1, "why\n</think>\n\nso", "r(why\n) c(\n\nso)");
    expect(r1, "<think>\nwhy</think>so", "r(\nwhy) c(so)"); /* the template did not open it */
    expect(r1, "cut off", "r(cut off)");                    /* no end: all of it is reasoning */
    expect(r1, "</think>so", "c(so)");
    expect(r1, "a < b </thin </think>c</think>d", "r(a < b </thin ) c(c</think>d)");
    expect(r1, "half </thi", "r(half </thi)");
    expect((how){"deepseek_r1", NULL, false}, " \n<think>why</think>so",
           "r(why) c(so)"); /* it opens by itself */
    expect((how){"deepseek_r1", NULL, false}, " <th", "c( <th)");
    expect((how){"holo2", NULL, true}, "why</think>so", "r(why) c(so)");
    expect(v3, "<think>why</think>so", "c(<think>why</think>so)"); /* outside it is the identity */
    expect((how){"deepseek_v3", NULL, true}, "why</think>so", "r(why) c(so)");
    expect((how){"glm45", NULL, true}, "<think>why</think>so</think>", "r(why) c(so)");
    expect((how){NULL, NULL, true}, "<think>why</think>so", "c(<think>why</think>so)");
    expect(r1, "", "");
}

static void reasoning_ended_by_a_call(void **state)
{
    expect(qwen, "I call<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
           "r(I call) 0:f({})");
    expect(v4, "I call" CALLS(INVOKE("f", "")), "r(I call) 0:f({})");
    expect((how){"qwen3", NULL, true}, "I <tool_call> x", "r(I <tool_call> x)"); /* no parser, no mark */
    expect((how){"deepseek_r1", "hermes", true}, "I<tool_call>{}</think>x", "r(I<tool_call>{}) c(x)");
}

static void prompts(void **state)
{
    static const struct {
        const char *name, *prompt;
        bool begins;
    } cases[] = {
        {"qwen3", "<|im_start|>assistant\n", true},
        {"qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", false},
        {"deepseek_r1", "<think>\n", true},
        {"deepseek_r1", "x</think>y<think>\n", true},
        {"deepseek_v3", "hello", false},
        {"deepseek_v3", "hello<think>", true},
        {"deepseek_v4", "<｜Assistant｜></think>", false},
        {NULL, "<think>", false},
        {"nobody", "<think>", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(nb_reply_begins_thinking(cases[i].name, cases[i].prompt, strlen(cases[i].prompt)),
                         cases[i].begins);
}

static void hermes_calls(void **state)
{
    expect(hermes, "Hello", "c(Hello)");
    expect(hermes,
           "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, {\"y\": \"}\\\"\"}]}}\n</tool_call>",
           "0:f({\"x\": [1, {\"y\": \"}\\\"\"}]})");
    /* white space between calls and after the last is none of the answer's */
    expect(hermes,
           "Wait.\n<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}</tool_call>\n"
           "<tool_call>\n{\"arguments\": {\"b\":2}, \"name\": \"g\"}\n</tool_call>\n\n",
           "c(Wait.\n) 0:f({\"a\":1}) 1:g({\"b\":2})");
    expect(hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call> and so", "0:f({}) c( and so)");
    /* the name's escapes are undone, those of the arguments are their own */
    expect(hermes, "<tool_call>{\"name\":\"f\\u00e9\\\"\",\"arguments\":{\"ü\":\"\\u00e9\"}}</tool_call>",
           "0:fé\"({\"ü\":\"\\u00e9\"})");
    /* any JSON value */
    expect(hermes,
           "<tool_call>{\"id\":7,\"name\":\"f\",\"arguments\":-1.5e3 ,\"z\":{\"name\":\"no\"}}</tool_call>",
           "0:f(-1.5e3)");
    expect(hermes, "<tool_call>{\"name\":\"f\",\"arguments\":12}</tool_call>", "0:f(12)");
    expect(hermes, "<tool_call>{\"name\":\"f\",\"arguments\":\"{}\"}</tool_call>", "0:f(\"{}\")");
    expect(hermes, "<tool_call>{\"name\":\"f\"}</tool_call>", "0:f({})");
    expect(hermes, "<tool_call>{\"name\":\"f\",\"name\":\"g\",\"arguments\":1,\"arguments\":2}</tool_call>",
           "0:f(1)");
    /* no end mark */
    expect(hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{}}", "0:f({})");
    expect(hermes,
           "<tool_call>{\"name\":\"f\",\"arguments\":{}}\n<tool_call>{\"name\":\"g\",\"arguments\":{}}",
           "0:f({}) 1:g({})");
    expect(qwen, "why</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
           "r(why) c(\n\n) 0:f({})");
    expect(qwen_off, "so</think>, yes", "c(so, yes)");
}

static void hermes_malformed(void **state)
{
    static const char *const content[] = {
        "<tool_call>",
        "<tool_call>\n",
        "<tool_call>x</tool_call>",
        "<tool_call>{\"name\":\"f\"",
        "<tool_call>{\"name\":7,\"arguments\":{}}</tool_call>",
        "<tool_call>{\"name\":\"\"}</tool_call>",
        "<tool_call>{\"arguments\":{}}</tool_call>",
        "<tool_call>[]</tool_call>",
        "<tool_call>{\"arguments\":{\"a\":tru}}</tool_call>",
        "<tool_call>{\"arguments\":01}</tool_call>",
        "<tool_call><tool_call>{\"a\"<tool_call>",
        "<tool_call>{\"a\":\"\n\"}",
        "<tool_call>{\"a\":\"\\x\"}",
        "<tool_call>{\"a\":\"\\u12g4\"}",
        "<tool_call>{,}",
        "<tool_call>{\"a\":1,}",
        "<tool_call>{\"a\":[1,]}",
        "<tool_call>{\"a\":[1}",
        "<tool_call>{\"a\":-}",
        "<tool_call>{\"a\":1.}",
        "<tool_call>{\"a\":1e+}",
        "<tool_call>{\"a\" 1}",
        "<tool_cal",
    };
    for (size_t i = 0; i < sizeof content / sizeof *content; i++) {
        char want[256];
        if (i == 3) continue; /* its name is told */
        snprintf(want, sizeof want, "c(%s)", content[i]);
        expect(hermes, content[i], want);
    }
    expect(hermes, "<tool_call>{\"name\":\"f\"", "0:f()"); /* told, then cut off */
    expect(hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"b", "0:f({\"a\":\"b)");
    /* what was told stays, the rest is content */
    expect(hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":x}}</tool_call>",
           "0:f({\"a\":) c(x}}</tool_call>)");
    /* and the next one is parsed as if nothing had happened */
    expect(hermes, "<tool_call>{x}<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
           "c(<tool_call>{x}) 0:f({})");
}

static void hermes_depth(void **state)
{
    char text[400], want[420];
    int n = snprintf(text, sizeof text, "<tool_call>{\"name\":\"f\",\"arguments\":");
    int m = snprintf(want, sizeof want, "0:f(");
    for (int i = 0; i < 63; i++) text[n++] = want[m++] = '[';
    for (int i = 0; i < 63; i++) text[n++] = want[m++] = ']';
    snprintf(text + n, sizeof text - (size_t)n, "}</tool_call>");
    snprintf(want + m, sizeof want - (size_t)m, ")");
    expect(hermes, text, want);
}

static void dsml_calls(void **state)
{
    expect(dsml,
           "Wait." CALLS(INVOKE("f", PARAMETER("s", "true", "a \"b\"\n<c> </" D "x")
                                         PARAMETER("n", "false", "[1, 2.0]")) INVOKE("g", "")),
           "c(Wait.) 0:f({\"s\": \"a \\\"b\\\"\\n<c> </" D "x\", \"n\": [1, 2.0]}) 1:g({})");
    expect(dsml, CALLS(INVOKE("g", "\n")), "0:g({})");
    expect(v4, "r</think>" CALLS(INVOKE("g", "\n")), "r(r) 0:g({})");
    expect(v4_off, "so" CALLS(INVOKE("g", "")) "\n", "c(so) 0:g({})");
    /* of two newlines before the block none is content; of other white space all is */
    expect(dsml, "so\n<" D "tool_calls>\n" INVOKE("g", "") "</" D "tool_calls>", "c(so\n) 0:g({})");
    expect(dsml, "so\n\n\n<" D "tool_calls>" INVOKE("g", "") "</" D "tool_calls> more",
           "c(so\n) 0:g({}) c( more)");
    /* a value is taken as it stands, whatever it looks like */
    expect(dsml, CALLS(INVOKE("f", PARAMETER("a", "true", "</b><" D "invoke name=\"x\">/" D "parameter"))),
           "0:f({\"a\": \"</b><" D "invoke name=\\\"x\\\">/" D "parameter\"})");
    expect(dsml, CALLS(INVOKE("f", PARAMETER("a\" string=\"b", "true", ""))),
           "0:f({\"a\\\" string=\\\"b\": \"\"})");
    /* what is no JSON is a string */
    expect(dsml, CALLS(INVOKE("f", PARAMETER("a", "false", "x y") PARAMETER("b", "false", ""))),
           "0:f({\"a\": \"x y\", \"b\": \"\"})");
    expect(dsml, CALLS(INVOKE("f", "")) CALLS(INVOKE("g", "")), "0:f({}) 1:g({})");
}

static void dsml_malformed(void **state)
{
    static const char *const content[] = {
        "a" D,
        "\n\n<" D "tool_calls",
        "\n\n<" D "tool_calls>\n",
        CALLS(""),
        CALLS("text"),
        CALLS("<" D "invoke>\n</" D "invoke>\n"),
        CALLS("<" D "invoke name=\"\">\n</" D "invoke>\n"),
        "\n\n<" D "tool_calls>\n<" D "invoke name=\"f\">\n",
    };
    for (size_t i = 0; i < sizeof content / sizeof *content; i++) {
        char want[256];
        if (i == 3) continue; /* a block without calls is sound, and tells nothing */
        snprintf(want, sizeof want, "c(%s)", content[i]);
        expect(dsml, content[i], want);
    }
    expect(dsml, CALLS(""), "");
    expect(dsml, "\n\n<" D "tool_calls>\n" INVOKE("g", ""), "0:g({}) c(>\n)");
    /* cut off: the value so far, then nothing */
    expect(dsml,
           "\n\n<" D "tool_calls>\n<" D "invoke name=\"f\">\n<" D
           "parameter name=\"a\" string=\"true\">hal</" D,
           "0:f({\"a\": \"hal</" D ")");
    expect(dsml,
           "\n\n<" D "tool_calls>\n<" D "invoke name=\"f\">\n<" D "parameter name=\"a\" string=\"false\">12",
           "0:f({\"a\": )");
    expect(dsml, CALLS(INVOKE("f", PARAMETER("a", "maybe", "1"))) "x",
           "0:f() c( name=\"a\" string=\"maybe\">1</" D "parameter>\n</" D "invoke>\n</" D "tool_calls>x)");
}

/* The whole text at once, in the strict parser, gives the same calls. */
static void same_as_the_strict_parser(void **state)
{
    static const char text[] = "why</think>so" CALLS(
        INVOKE("f", PARAMETER("s", "true", "ä\t\"<｜") PARAMETER("n", "false", "{\"a\": [null]}"))
            INVOKE("g", "\n") INVOKE("f", PARAMETER("", "true", "")));
    json_t *strict = NULL;
    nb_error err;
    nb_buf want = {0};
    const json_t *call;
    size_t i;
    assert_int_equal(nb_chat_deepseek_v4_parse(text, sizeof text - 1, true, &strict, &err), NB_OK);
    nb_buf_addf(&want, "r(%s) c(%s)", json_string_value(json_object_get(strict, "reasoning_content")),
                json_string_value(json_object_get(strict, "content")));
    json_array_foreach(json_object_get(strict, "tool_calls"), i, call)
    {
        const json_t *f = json_object_get(call, "function"), *arguments = json_object_get(f, "arguments");
        json_t *read = NULL;
        nb_buf_addf(&want, " %zu:%s(%s)", i, json_string_value(json_object_get(f, "name")),
                    json_string_value(arguments));
        assert_int_equal(
            nb_json_tree(NULL, json_string_value(arguments), json_string_length(arguments), &read, &err),
            NB_OK);
        json_decref(read);
    }
    assert_int_equal(i, 3);
    expect(v4, text, nb_buf_str(&want));
    nb_buf_free(&want);
    json_decref(strict);
}

static void names(void **state)
{
    nb_reply *r = NULL;
    nb_error err = {0};
    const char *marks[NB_REPLY_MARKS], *name = NULL, *last = "";
    for (size_t i = 0; i < nb_reply_reasoning_name(i, &name); i++, last = name)
        assert_true(nb_reply_has_reasoning(name) && strcmp(last, name) < 0);
    last = "";
    for (size_t i = 0; i < nb_reply_tools_name(i, &name); i++, last = name)
        assert_true(nb_reply_has_tools(name) && strcmp(last, name) < 0);
    for (size_t i = 0; i < nb_reply_reasoning_name(i, &name); i++) {
        const char *reasoning = name;
        for (size_t k = 0; k < nb_reply_tools_name(k, &name); k++)
            assert_in_range(nb_reply_marks(reasoning, name, marks), 1, NB_REPLY_MARKS);
        nb_reply_reasoning_name(i, &name);
    }
    assert_false(nb_reply_has_reasoning("hermes") || nb_reply_has_reasoning(NULL));
    assert_false(nb_reply_has_tools("qwen3") || nb_reply_has_tools(NULL));
    assert_int_equal(nb_reply_new("nobody", NULL, false, NULL, &r, &err), NB_ERR_ARGUMENT);
    assert_non_null(strstr(err.remedy, "deepseek_r1, "));
    assert_int_equal(nb_reply_new(NULL, "nobody", false, NULL, &r, &err), NB_ERR_ARGUMENT);
    assert_non_null(strstr(err.remedy, "gemma4, glm45"));
    assert_null(r);
    assert_int_equal(nb_reply_marks("qwen3", "hermes", marks), 4);
    assert_int_equal(nb_reply_marks(NULL, NULL, marks), 0);
    assert_int_equal(nb_reply_marks(NULL, "deepseek_v4", marks), 1);
    assert_string_equal(marks[0], D);
}

static void thinking(void **state)
{
    nb_reply *r = NULL;
    told t = {0};
    nb_reply_sink to = told_sink(&t);
    assert_int_equal(nb_reply_new("qwen3", NULL, false, NULL, &r, NULL), NB_OK);
    assert_false(nb_reply_thinking(r));
    assert_int_equal(nb_reply_push(r, "<think>a", 8, &to, NULL), NB_OK);
    assert_true(nb_reply_thinking(r));
    assert_int_equal(nb_reply_push(r, "</think>", 8, &to, NULL), NB_OK);
    assert_false(nb_reply_thinking(r));
    assert_int_equal(nb_reply_end(r, &to, NULL), NB_OK);
    nb_reply_free(r);
    nb_buf_free(&t.line);
}

/* Text of beginnings that come to nothing, one byte at a time: seconds, not hours, would show that work is not linear. */
static void linear(void **state)
{
    static const char *const beginnings[] = {"<tool_call>{\"",
                                             "<tool_call>{\"arguments\":[",
                                             "<tool_call>",
                                             "</thin",
                                             " \n",
                                             "\n\n<" D "tool_calls>\n<" D "invoke ",
                                             "<" D "tool_calls>",
                                             "<"};
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++) {
        for (int whole = 0; whole < 2; whole++) {
            nb_buf text = {0};
            told t = {0};
            while (text.len < 400000) nb_buf_adds(&text, beginnings[i]);
            cuts c = {.text = text.data, .step = whole ? text.len : 1};
            how h = i < 5 ? (how){NULL, "hermes", false} : dsml;
            assert_int_equal(told_feed(&t, h, text.data, text.len, next_cut, &c, NULL), NB_OK);
            assert_int_equal(t.line.len, text.len + 3); /* all of it is content */
            nb_buf_free(&text);
            nb_buf_free(&t.line);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reasoning),
        cmocka_unit_test(reasoning_ended_by_a_call),
        cmocka_unit_test(prompts),
        cmocka_unit_test(hermes_calls),
        cmocka_unit_test(hermes_malformed),
        cmocka_unit_test(hermes_depth),
        cmocka_unit_test(dsml_calls),
        cmocka_unit_test(dsml_malformed),
        cmocka_unit_test(same_as_the_strict_parser),
        cmocka_unit_test(names),
        cmocka_unit_test(thinking),
        cmocka_unit_test(linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
