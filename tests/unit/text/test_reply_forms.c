/* The tool calls and the reasoning of each model family, as its chat template writes them: read back, malformed, cut off; the same
 * whatever the cuts of the text. test_reply_templates.c does so with every case of the templates themselves. */
#include "text/replies.h"

static json_t *schemas;

static how with(const char *tools)
{
    return (how){.tools = tools, .schemas = schemas};
}

static void deepseek(void **state)
{
    (void)state;
#define BEGIN "<｜tool▁calls▁begin｜>"
#define CALL "<｜tool▁call▁begin｜>"
#define SEP "<｜tool▁sep｜>"
#define END "<｜tool▁call▁end｜>"
#define ENDS "<｜tool▁calls▁end｜>"
    how v31 = with("deepseek_v31"), v3 = with("deepseek_v3");
    expect(v31, BEGIN CALL "f" SEP "{\"a\": \"}\"}" END CALL "g" SEP "{}" END ENDS,
           "0:f({\"a\": \"}\"}) 1:g({})");
    expect(v31, "so " BEGIN CALL "f" SEP "{}" END ENDS " x", "c(so ) 0:f({}) c( x)");
    expect(v31, BEGIN CALL "f" SEP "{}", "0:f({})");               /* nothing is missing but marks */
    expect(v31, BEGIN CALL "f" SEP "{\"a\": 1", "0:f({\"a\": 1)"); /* cut off: what was told stays */
    expect(v31, BEGIN CALL "f" SEP "nothing" END ENDS, "0:f() c(nothing" END ENDS ")");
    expect(v31, BEGIN "x" ENDS, "c(" BEGIN "x" ENDS ")");
    expect(v31, BEGIN ENDS, "c(" BEGIN ENDS ")");
    expect(v31, BEGIN CALL SEP "{}", "c(" BEGIN CALL SEP "{})");
    expect(v31, BEGIN CALL "a b" SEP "{}", "c(" BEGIN CALL "a b" SEP "{})");
    expect(v31, BEGIN CALL "f", "c(" BEGIN CALL "f)");
    expect(v3,
           BEGIN CALL "function" SEP "f\n```json\n{\"a\": [1, 2]}\n```" END "\n" CALL "function" SEP
                      "g\n```json\n{}\n```" END ENDS,
           "0:f({\"a\": [1, 2]}) 1:g({})");
    expect(v3, BEGIN CALL "function" SEP "f\n{}" END ENDS,
           "c(" BEGIN CALL "function" SEP "f\n{}" END ENDS ")");
    how dsml = {.reasoning = "deepseek_v3", .tools = "deepseek_v32", .thinking = true};
    expect(dsml,
           "why</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter "
           "name=\"a\" string=\"true\">x y</｜DSML｜parameter>\n"
           "<｜DSML｜parameter name=\"b\" "
           "string=\"false\">[1]</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
           "r(why) 0:f({\"a\": \"x y\", \"b\": [1]})");
}

static void kimi(void **state)
{
    (void)state;
    how k = {.reasoning = "kimi_k2", .tools = "kimi_k2", .thinking = true};
    expect(k,
           "why</"
           "think>so<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"
           "\"a\": 1}<|tool_call_end|>"
           "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_"
           "section_end|>",
           "r(why) c(so) 0:f({\"a\": 1}) 1:g({})");
    expect(k, "why<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_argument_begin|>{}",
           "r(why) 0:f({})");
    expect(
        k,
        "</think><|tool_calls_section_begin|><|tool_call_begin|>functions.f:x<|tool_call_argument_begin|> {}",
        "0:f:x({})");
    expect(k, "</think><|tool_calls_section_begin|>so", "c(<|tool_calls_section_begin|>so)");
}

static void mistral(void **state)
{
    (void)state;
    how m = {.reasoning = "mistral", .tools = "mistral"};
    expect(m,
           "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": \"]\"}, \"id\": \"call00001\"}, "
           "{\"name\": \"g\", \"arguments\": {}}]",
           "0:f({\"a\": \"]\"}) 1:g({})");
    expect(m, "[TOOL_CALLS]{\"name\": \"f\"} so", "0:f({}) c( so)");
    expect(m, "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[CALL_ID]call00001[ARGS]{}",
           "0:f({\"a\": 1}) 1:g({})");
    expect(m, "[THINK]why[/THINK]so[TOOL_CALLS]f[ARGS]{", "r(why) c(so) 0:f({)");
    expect(m, "so[/THINK]", "c(so[/THINK])");
    expect(m, "[TOOL_CALLS][]", "c([TOOL_CALLS][])");
    expect(m, "[TOOL_CALLS]", "c([TOOL_CALLS])");
    expect(m, "[TOOL_CALLS]so it is", "c([TOOL_CALLS]so it is)");
    expect(m, "[TOOL_CALLS][{\"name\": \"f\"}", "0:f({})");
}

static void llama(void **state)
{
    (void)state;
    how l = with("llama3_json");
    expect(l, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "0:f({\"a\": 1})");
    expect(l,
           "\n {\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"a\": 1}}; {\"name\": \"g\", "
           "\"arguments\": {}} \n",
           "0:f({\"a\": 1}) 1:g({})");
    expect(l, "{\"name\": \"f\", \"parameters\": {}}\n{\"name\": \"g\"} so", "0:f({}) 1:g({}) c( so)");
    expect(l, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "0:f({})");
    expect(l, "{\"name\": \"Bob\", \"age\": 3}",
           "c({\"name\": \"Bob\", \"age\": 3})"); /* JSON, but no call */
    expect(l, "{\"a\": 1}", "c({\"a\": 1})");
    expect(l, "{", "c({)");
    expect(l, " ", "c( )");
    expect(l, "so {\"name\": \"f\"}", "c(so {\"name\": \"f\"})");
    expect(l, "<|python_tag|>print(1)", "c(<|python_tag|>print(1))");
    expect((how){.tools = "llama4_json"}, "{\"name\": \"any\"}", "0:any({})"); /* no tools to know */
}

#define QWEN                                                                                                 \
    "<tool_call>\n<function=f>\n<parameter=s>\n12\n</parameter>\n<parameter=n>\n12\n</"                      \
    "parameter>\n<parameter=b>\nTrue\n</parameter>\n"                                                        \
    "<parameter=l>\n[1, \"x\"]\n</parameter>\n<parameter=o>\n null "                                         \
    "\n</parameter>\n<parameter=x>\n7\n</parameter>\n</function>\n</tool_call>"

static void tagged(void **state)
{
    (void)state;
    how q = {.reasoning = "qwen3", .tools = "qwen3_coder", .thinking = true, .schemas = schemas};
    expect(q, "why\n</think>\n\n" QWEN "\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
           "r(why\n) c(\n\n) 0:f({\"s\": \"12\", \"n\": 12, \"b\": true, \"l\": [1, \"x\"], \"o\": null, "
           "\"x\": \"7\"}) 1:g({})");
    expect(q, "why<tool_call>\n<function=g></function></tool_call>", "r(why) 0:g({})");
    how x = with("qwen3_xml");
    expect(x, "<function=f>\n<parameter=s>\n\n a\n\n</parameter>\n</function>\n</tool_call> so",
           "0:f({\"s\": \"\\n a\\n\"}) c( so)");
    expect(x, "<tool_call><function=f><parameter=n>many</parameter></function>", "0:f({\"n\": \"many\"})");
    expect(x, "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n<parameter=s>\nhal",
           "0:f({\"n\": 1)");
    expect(x, "<tool_call>{\"name\": \"f\"}</tool_call>", "c(<tool_call>{\"name\": \"f\"}</tool_call>)");
    expect(x, "<tool_call>\n<function=f>\nso\n</function>", "0:f() c(\nso\n</function>)");
    expect(x, "<tool_call></tool_call>", "c(<tool_call></tool_call>)");
    expect(x, "<function=>", "c(<function=>)");
    how m = {.reasoning = "minimax_m2", .tools = "minimax_m2", .thinking = true, .schemas = schemas};
    expect(m,
           "\nwhy\n</think>\n\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">a < "
           "b</parameter>\n<parameter name=\"n\">3</parameter>\n</invoke>\n"
           "<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
           "r(\nwhy\n) c(\n\n) 0:f({\"s\": \"a < b\", \"n\": 3}) 1:g({})");
    expect(m, "</think><minimax:tool_call></minimax:tool_call>",
           "c(<minimax:tool_call></minimax:tool_call>)");
    how g = {.reasoning = "glm47", .tools = "glm47", .thinking = true, .schemas = schemas};
    expect(g,
           "why</think><tool_call>f<arg_key>s</arg_key><arg_value>1</arg_value><arg_key>x</"
           "arg_key>\n<arg_value>{\"y\": 1}</arg_value></tool_call><tool_call>g</tool_call>",
           "r(why) 0:f({\"s\": \"1\", \"x\": {\"y\": 1}}) 1:g({})");
    expect((how){.tools = "glm45", .schemas = schemas},
           "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", "0:f({\"n\": 1})");
    expect(g, "</think><tool_call>f<arg_key>s</arg_key>so</tool_call>",
           "0:f() c(<arg_key>s</arg_key>so</tool_call>)");
    expect(g, "</think><tool_call>not a name</tool_call>", "c(<tool_call>not a name</tool_call>)");
    how s = {.reasoning = "seed_oss", .tools = "seed_oss", .thinking = true, .schemas = schemas};
    expect(s,
           "why</seed:think><seed:tool_call>\n<function=f>\n<parameter=s>Paris</parameter>\n</function>\n</"
           "seed:tool_call>",
           "r(why) 0:f({\"s\": \"Paris\"})");
}

static void gemma(void **state)
{
    (void)state;
    how g = {.reasoning = "gemma4", .tools = "gemma4"};
#define Q "<|\"|>"
    expect(g,
           "<|channel>thought\nwhy<channel|>so<|tool_call>call:f{b:true,l:[" Q "a" Q ",{n:-1.5}],s:" Q
           "}, \"x\"" Q ",z:null}<tool_call|><|tool_call>call:g{}<tool_call|>",
           "r(why) c(so) 0:f({\"b\": true, \"l\": [\"a\", {\"n\": -1.5}], \"s\": \"}, \\\"x\\\"\", \"z\": "
           "null}) 1:g({})");
    expect(g, "<|channel>thought\n<channel|>so", "c(so)");
    expect(g, "<|tool_call>call:f{" Q "k k" Q ":word}",
           "0:f({\"k k\": \"word\"})"); /* the end mark is all that is missing */
    expect(g, "<|tool_call>call:f{a:1", "c(<|tool_call>call:f{a:1)");
    expect(g, "<|tool_call>call:f{a}<tool_call|>", "c(<|tool_call>call:f{a}<tool_call|>)");
    expect(g, "<|tool_call>call:f{a:}<tool_call|>", "c(<|tool_call>call:f{a:}<tool_call|>)");
    expect(g, "<|tool_call>call:f{a:1}}<tool_call|>", "c(<|tool_call>call:f{a:1}}<tool_call|>)");
    expect(g, "<|tool_call>f{}<tool_call|>", "c(<|tool_call>f{}<tool_call|>)");
    expect((how){.tools = "functiongemma"},
           "<start_function_call>call:f{s:<escape>a,b<escape>,n:3}<end_function_call>",
           "0:f({\"s\": \"a,b\", \"n\": 3})");
}

static void harmony(void **state)
{
    (void)state;
    how h = {.reasoning = "openai_gptoss", .tools = "openai"}, no_tools = {.reasoning = "openai_gptoss"};
#define ANALYSIS "<|channel|>analysis<|message|>why<|end|>"
#define FINAL "<|start|>assistant<|channel|>final<|message|>so"
#define TO_F                                                                                                 \
    "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>"
    expect(h, ANALYSIS FINAL "<|return|>", "r(why) c(so)");
    expect(h, ANALYSIS FINAL, "r(why) c(so)");
    expect(h, ANALYSIS TO_F, "r(why) 0:f({\"a\": 1})");
    expect(h,
           " to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}<|call|><|start|>assistant "
           "to=functions.g<|channel|>commentary<|message|><|call|>",
           "0:f({\"a\": 1}) 1:g({})");
    expect(h, "<|channel|>commentary<|message|>let me<|end|>" TO_F, "c(let me) 0:f({\"a\": 1})");
    expect(h, "<|channel|>analysis to=python code<|message|>1+1<|call|>", "r(1+1)");
    expect(h, "<|channel|>analysis<|message|>wh<|e", "r(wh<|e)");
    expect(h, "<|channel|>analysis<|message|>a<|channel|>final<|message|>b", "r(a) c(b)");
    expect(h, "<|channel|>fin", "");
    expect(h, "plain text", "c(plain text)");
    expect(h, "plain<|end|>" FINAL, "c(plainso)");
    expect(h, "to=me", "c(to=me)");
    expect(no_tools, ANALYSIS TO_F, "r(why) c({\"a\": 1})");
    expect((how){.tools = "openai"}, "<|channel|>commentary to=functions.f <|message|>", "0:f()");
}

static void other_reasoning(void **state)
{
    (void)state;
    static const char *const names[] = {"kimi_k2", "minimax_m2", "nemotron_v3", "step3p5"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        expect((how){.reasoning = names[i], .thinking = true}, "why</think>so", "r(why) c(so)");
        assert_true(nb_reply_begins_thinking(names[i], "q", 1));
        assert_false(nb_reply_begins_thinking(names[i], "<think></think>", 15));
    }
    assert_false(nb_reply_begins_thinking("mistral", "q", 1));
    assert_false(nb_reply_begins_thinking("gemma4", "<|channel>thought\n<channel|>", 28));
    assert_false(nb_reply_begins_thinking("openai_gptoss", "<think>", 7));
    assert_true(nb_reply_begins_thinking("seed_oss", "<seed:think>", 12));
}

/* What the request says of an argument, in each way that a schema can. */
static void types(void **state)
{
    (void)state;
    json_t *tools = json_loads(
        "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{"
        "\"a\":{\"type\":[\"null\",\"integer\"]},\"b\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"string\"}]"
        "},"
        "\"c\":{\"enum\":[\"1\"]},\"d\":{\"oneOf\":[{\"type\":\"number\"}]},\"e\":{},\"f\":7}}}},7]",
        0, NULL);
    assert_non_null(tools);
    how x = {.tools = "qwen3_xml", .schemas = tools};
#define ARGUMENT(k) "<parameter=" k ">1</parameter>"
    expect(x,
           "<function=f>" ARGUMENT("a") ARGUMENT("b") ARGUMENT("c") ARGUMENT("d") ARGUMENT("e")
               ARGUMENT("f") "</function>",
           "0:f({\"a\": 1, \"b\": \"1\", \"c\": \"1\", \"d\": 1, \"e\": \"1\", \"f\": \"1\"})");
    json_decref(tools);
}

/* Beginnings that come to nothing, one byte at a time: the work must be linear in the text. */
static void linear(void **state)
{
    (void)state;
    static const char *const begins[][2] = {
        {"kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>"},
        {"qwen3_xml", "<tool_call><function="},
        {"glm45", "<tool_call>"},
        {"gemma4", "<|tool_call>call:f{a:"},
        {"mistral", "[TOOL_CALLS]"},
        {"openai", "<|start|>"},
        {"llama3_json", "{\"name\": "},
    };
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        nb_reply *r = NULL;
        told t = {0};
        nb_reply_sink to = told_sink(&t);
        assert_int_equal(nb_reply_new(NULL, begins[i][0], false, NULL, &r, NULL), NB_OK);
        for (int k = 0; k < 5000; k++)
            for (const char *c = begins[i][1]; *c; c++)
                assert_int_equal(nb_reply_push(r, c, 1, &to, NULL), NB_OK);
        assert_int_equal(nb_reply_end(r, &to, NULL), NB_OK);
        nb_reply_free(r);
        nb_buf_free(&t.line);
    }
}

static int make_schemas(void **state)
{
    (void)state;
    schemas = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":"
                         "\"object\",\"properties\":{"
                         "\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},\"b\":{\"type\":"
                         "\"boolean\"},\"l\":{\"type\":\"array\"},\"o\":{\"type\":\"object\"}}}}},"
                         "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]",
                         0, NULL);
    return schemas ? 0 : -1;
}

static int drop_schemas(void **state)
{
    (void)state;
    json_decref(schemas);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deepseek), cmocka_unit_test(kimi),
        cmocka_unit_test(mistral),  cmocka_unit_test(llama),
        cmocka_unit_test(tagged),   cmocka_unit_test(gemma),
        cmocka_unit_test(harmony),  cmocka_unit_test(other_reasoning),
        cmocka_unit_test(types),    cmocka_unit_test(linear),
    };
    return cmocka_run_group_tests(tests, make_schemas, drop_schemas);
}
