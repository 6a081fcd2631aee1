/* What is refused for its type: the messages are those that pydantic 2.14 gives for vLLM's field types (generated with it, then copied). */
#include "server/fake_core.h"

#define FIELD(json, param, errors, list)                                                                     \
    fake_expect(NB_ROUTE_COMPLETIONS, "{\"prompt\":\"p\"," json "}", 400,                                    \
                "{\"error\":{\"message\":\"" errors ":" list                                                 \
                "\",\"type\":\"Bad Request\",\"param\":\"" param "\",\"code\":400}}")
#define ONE(json, field, type, msg, input)                                                                   \
    FIELD(json, "body." field, "1 validation error",                                                         \
          "\\n  {'type': '" type "', 'loc': ('body', '" field "'), 'msg': '" msg "', 'input': " input "}")
#define TAKEN(json)                                                                                          \
    fake_expect_part(NB_ROUTE_COMPLETIONS, "{\"prompt\":\"p\"," json "}", 200,                               \
                     "\"object\":\"text_completion\"")

static void integers(void **state)
{
    ONE("\"max_tokens\":\"abc\"", "max_tokens", "int_parsing",
        "Input should be a valid integer, unable to parse string as an integer", "'abc'");
    ONE("\"max_tokens\":\"5.5\"", "max_tokens", "int_parsing",
        "Input should be a valid integer, unable to parse string as an integer", "'5.5'");
    ONE("\"max_tokens\":\"\"", "max_tokens", "int_parsing",
        "Input should be a valid integer, unable to parse string as an integer", "''");
    ONE("\"max_tokens\":1.5", "max_tokens", "int_from_float",
        "Input should be a valid integer, got a number with a fractional part", "1.5");
    FIELD(
        "\"max_tokens\":-1e30", "body.max_tokens", "1 validation error",
        "\\n  {'type': 'greater_than_equal', 'loc': ('body', 'max_tokens'), 'msg': 'Input should be greater "
        "than or equal to -9223372036854775808', 'input': -1e+30, 'ctx': {'ge': -9223372036854775808}}");
    ONE("\"max_tokens\":[1]", "max_tokens", "int_type", "Input should be a valid integer", "[1]");
    ONE("\"n\":null", "n", "int_type", "Input should be a valid integer", "None");
    ONE("\"min_tokens\":{\"a\":[true]}", "min_tokens", "int_type", "Input should be a valid integer",
        "{'a': [True]}");
    TAKEN("\"max_tokens\":\"5\"");
    assert_int_equal(fake.spec.max_tokens, 5);
    TAKEN("\"max_tokens\":\" 7 \"");
    assert_int_equal(fake.spec.max_tokens, 7);
    TAKEN("\"max_tokens\":\"1_0\"");
    assert_int_equal(fake.spec.max_tokens, 10);
    TAKEN("\"max_tokens\":\"5.0\"");
    TAKEN("\"max_tokens\":5.0");
    assert_int_equal(fake.spec.max_tokens, 5);
    TAKEN("\"max_tokens\":true");
    assert_int_equal(fake.spec.max_tokens, 1);
    TAKEN("\"max_tokens\":null");
    assert_int_equal(fake.spec.max_tokens, 16);
}

static void bounds(void **state)
{
    FIELD("\"stream_interval\":0", "body.stream_interval", "1 validation error",
          "\\n  {'type': 'greater_than_equal', 'loc': ('body', 'stream_interval'), 'msg': 'Input should be "
          "greater "
          "than or equal to 1', 'input': 0, 'ctx': {'ge': 1}}");
    FIELD("\"truncate_prompt_tokens\":-2", "body.truncate_prompt_tokens", "1 validation error",
          "\\n  {'type': 'greater_than_equal', 'loc': ('body', 'truncate_prompt_tokens'), 'msg': 'Input "
          "should be "
          "greater than or equal to -1', 'input': -2, 'ctx': {'ge': -1}}");
    FIELD("\"cache_salt\":\"\"", "body.cache_salt", "1 validation error",
          "\\n  {'type': 'string_too_short', 'loc': ('body', 'cache_salt'), 'msg': 'String should have at "
          "least 1 "
          "character', 'input': '', 'ctx': {'min_length': 1}}");
    FIELD("\"truncation_side\":\"up\"", "body.truncation_side", "1 validation error",
          "\\n  {'type': 'literal_error', 'loc': ('body', 'truncation_side'), 'msg': \\\"Input should be "
          "'left' or "
          "'right'\\\", 'input': 'up', 'ctx': {'expected': \\\"'left' or 'right'\\\"}}");
    TAKEN("\"seed\":-9223372036854775808");
    TAKEN("\"seed\":9223372036854775807");
    FIELD("\"seed\":-9223372036854775809", "body.seed", "1 validation error",
          "\\n  {'type': 'greater_than_equal', 'loc': ('body', 'seed'), 'msg': 'Input should be greater than "
          "or "
          "equal to -9223372036854775808', 'input': -9.223372036854776e+18, 'ctx': {'ge': "
          "-9223372036854775808}}");
    /* Beyond 64 bits an integer reads as a real, as which the message shows it; the rest is pydantic's. */
    FIELD("\"seed\":9223372036854775808", "body.seed", "1 validation error",
          "\\n  {'type': 'less_than_equal', 'loc': ('body', 'seed'), 'msg': 'Input should be less than or "
          "equal "
          "to 9223372036854775807', 'input': 9.223372036854776e+18, 'ctx': {'le': 9223372036854775807}}");
}

static void reals(void **state)
{
    ONE("\"temperature\":\"x\"", "temperature", "float_parsing",
        "Input should be a valid number, unable to parse string as a number", "'x'");
    ONE("\"temperature\":[]", "temperature", "float_type", "Input should be a valid number", "[]");
    TAKEN("\"temperature\":\"1.5\"");
    assert_float_equal(fake.spec.sampling.temperature, 1.5, 0);
    TAKEN("\"temperature\":true");
    assert_float_equal(fake.spec.sampling.temperature, 1, 0);
    FIELD("\"logit_bias\":{\"5\":\"x\"}", "body.logit_bias.5", "1 validation error",
          "\\n  {'type': 'float_parsing', 'loc': ('body', 'logit_bias', 5), 'msg': 'Input should be a valid "
          "number, "
          "unable to parse string as a number', 'input': 'x'}");
    ONE("\"logit_bias\":[1]", "logit_bias", "dict_type", "Input should be a valid dictionary", "[1]");
}

static void booleans(void **state)
{
    ONE("\"echo\":2", "echo", "bool_parsing", "Input should be a valid boolean, unable to interpret input",
        "2");
    ONE("\"echo\":\"maybe\"", "echo", "bool_parsing",
        "Input should be a valid boolean, unable to interpret input", "'maybe'");
    ONE("\"echo\":1.5", "echo", "bool_type", "Input should be a valid boolean", "1.5");
    ONE("\"ignore_eos\":null", "ignore_eos", "bool_type", "Input should be a valid boolean", "None");
    FIELD("\"stream\":true,\"stream_options\":{\"include_usage\":[]}", "body.stream_options.include_usage",
          "1 validation error",
          "\\n  {'type': 'bool_type', 'loc': ('body', 'stream_options', 'include_usage'), 'msg': 'Input "
          "should be a "
          "valid boolean', 'input': []}");
    TAKEN("\"ignore_eos\":\"Yes\"");
    assert_int_equal(fake.spec.sampling.n_stop_ids, 0);
    TAKEN("\"ignore_eos\":0.0");
    assert_int_equal(fake.spec.sampling.n_stop_ids, 1);
}

static void strings_and_lists(void **state)
{
    ONE("\"model\":1", "model", "string_type", "Input should be a valid string", "1");
    ONE("\"stop_token_ids\":1", "stop_token_ids", "list_type", "Input should be a valid list", "1");
    FIELD(
        "\"stop_token_ids\":[1,\"a\"]", "body.stop_token_ids.1", "1 validation error",
        "\\n  {'type': 'int_parsing', 'loc': ('body', 'stop_token_ids', 1), 'msg': 'Input should be a valid "
        "integer, unable to parse string as an integer', 'input': 'a'}");
    FIELD("\"stop\":1", "body.stop.str", "2 validation errors",
          "\\n  {'type': 'string_type', 'loc': ('body', 'stop', 'str'), 'msg': 'Input should be a valid "
          "string', "
          "'input': 1}"
          "\\n  {'type': 'list_type', 'loc': ('body', 'stop', 'list[str]'), 'msg': 'Input should be a valid "
          "list', "
          "'input': 1}");
    FIELD("\"stop\":[\"a\",1]", "body.stop.str", "2 validation errors",
          "\\n  {'type': 'string_type', 'loc': ('body', 'stop', 'str'), 'msg': 'Input should be a valid "
          "string', "
          "'input': ['a', 1]}"
          "\\n  {'type': 'string_type', 'loc': ('body', 'stop', 'list[str]', 1), 'msg': 'Input should be a "
          "valid "
          "string', 'input': 1}");
    FIELD("\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]", "body.stop.str", "2 validation errors",
          "\\n  {'type': 'string_type', 'loc': ('body', 'stop', 'str'), 'msg': 'Input should be a valid "
          "string', "
          "'input': ['a', 'b', 'c', 'd', 'e']}"
          "\\n  {'type': 'too_long', 'loc': ('body', 'stop', 'list[str]'), 'msg': 'List should have at most "
          "4 items "
          "after validation, not 5', 'input': ['a', 'b', 'c', 'd', 'e'], 'ctx': {'field_type': 'List', "
          "'max_length': 4, 'actual_length': 5}}");
    TAKEN("\"stop\":null");
    TAKEN("\"stop\":[]");
}

static void prompts(void **state)
{
    fake_expect(
        NB_ROUTE_COMPLETIONS, "{\"prompt\":{\"it's\":1}}", 400,
        "{\"error\":{\"message\":\"4 validation errors:"
        "\\n  {'type': 'list_type', 'loc': ('body', 'prompt', 'list[int]'), 'msg': 'Input should be a valid "
        "list', 'input': {\\\"it's\\\": 1}}"
        "\\n  {'type': 'list_type', 'loc': ('body', 'prompt', 'list[list[int]]'), 'msg': 'Input should be a "
        "valid list', 'input': {\\\"it's\\\": 1}}"
        "\\n  {'type': 'string_type', 'loc': ('body', 'prompt', 'str'), 'msg': 'Input should be a valid "
        "string', 'input': {\\\"it's\\\": 1}}"
        "\\n  {'type': 'list_type', 'loc': ('body', 'prompt', 'list[str]'), 'msg': 'Input should be a valid "
        "list', 'input': {\\\"it's\\\": 1}}\",\"type\":\"Bad "
        "Request\",\"param\":\"body.prompt.list[int]\",\"code\":400}}");
    fake_expect_part(
        NB_ROUTE_COMPLETIONS, "{\"prompt\":[1,-1]}", 400,
        "'loc': ('body', 'prompt', 'list[int]', 1), 'msg': 'Input should be greater than or equal to 0'");
    fake_expect_part(NB_ROUTE_COMPLETIONS, "{\"prompt\":[[1],[1,1.5]]}", 400,
                     "{'type': 'int_from_float', 'loc': ('body', 'prompt', 'list[list[int]]', 1, 1)");
    fake_expect_part(
        NB_ROUTE_COMPLETIONS, "{\"prompt\":[\"a\",{}]}", 400,
        "('body', 'prompt', 'list[str]', 1), 'msg': 'Input should be a valid string', 'input': {}}");
}

static void bodies(void **state)
{
    fake_expect(
        NB_ROUTE_COMPLETIONS, "[1]", 400,
        "{\"error\":{\"message\":\"1 validation error:\\n  {'type': 'model_attributes_type', 'loc': "
        "('body',), "
        "'msg': 'Input should be a valid dictionary or object to extract fields from', 'input': [1]}\","
        "\"type\":\"Bad Request\",\"param\":\"body\",\"code\":400}}");
    /* Counted in characters: the error is behind one of two bytes. */
    fake_expect_part(NB_ROUTE_COMPLETIONS, "{\"\xC3\xA9\":}", 400,
                     "{'type': 'json_invalid', 'loc': ('body', 5), 'msg': 'JSON decode error', 'input': {}, "
                     "'ctx': {'error': ");
    fake_expect_part(NB_ROUTE_COMPLETIONS, "", 400, "\"type\":\"Bad Request\",\"param\":\"body.0\"");
    fake_expect_part(
        NB_ROUTE_CHAT, "{}", 400,
        "{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required', 'input': {}}");
    fake_expect_part(
        NB_ROUTE_CHAT, "{\"messages\":[{\"content\":\"x\"},3,{\"role\":\"user\",\"content\":4}]}", 400,
        "4 validation errors:\\n  {'type': 'missing', 'loc': ('body', 'messages', 0, 'role'), 'msg': 'Field "
        "required', 'input': {'content': 'x'}}\\n  {'type': 'dict_type', 'loc': ('body', 'messages', 1), "
        "'msg': 'Input should be a valid dictionary', 'input': 3}");
    fake_expect_part(
        NB_ROUTE_CHAT, "{\"messages\":[],\"tools\":[{\"type\":\"function\"}]}", 400,
        "{'type': 'missing', 'loc': ('body', 'tools', 0, 'function'), 'msg': 'Field required', 'input': "
        "{'type': 'function'}}");
    fake_expect_part(
        NB_ROUTE_CHAT,
        "{\"messages\":[],\"tools\":[{\"function\":{\"name\":\"f\",\"description\":null,\"parameters\":null}}"
        ","
        "{\"function\":{\"name\":\"f\",\"description\":1,\"parameters\":\"x\"}}]}",
        400,
        "2 validation errors:\\n  {'type': 'string_type', 'loc': ('body', 'tools', 1, 'function', "
        "'description'), 'msg': 'Input should be a valid string', 'input': 1}\\n  {'type': 'dict_type', "
        "'loc': "
        "('body', 'tools', 1, 'function', 'parameters'), 'msg': 'Input should be a valid dictionary', "
        "'input': "
        "'x'}");
    fake_expect_part(NB_ROUTE_CHAT, "{\"messages\":[],\"reasoning_effort\":\"most\"}", 400,
                     "Input should be 'none', 'minimal', 'low', 'medium', 'high', 'xhigh' or 'max'");
    /* Fields that nobody knows are no fault, and of a key given twice the last counts. */
    TAKEN("\"best_of\":7,\"frobnicate\":{\"x\":[]},\"max_tokens\":\"x\",\"max_tokens\":3");
    assert_int_equal(fake.spec.max_tokens, 3);
}

/* A list of a thousand wrong things is told with the first eight of them, and a long value with its beginning. */
static void long_messages(void **state)
{
    nb_buf body = {0}, got = {0};
    nb_buf_adds(&body, "{\"messages\":[");
    for (int i = 0; i < 1000; i++) nb_buf_adds(&body, i ? ",1" : "1");
    nb_buf_adds(&body, "]}");
    assert_int_equal(fake_ask(NB_ROUTE_CHAT, nb_buf_str(&body), &got), 400);
    assert_non_null(strstr(nb_buf_str(&got), "8 validation errors"));
    nb_buf_clear(&got);
    nb_buf_clear(&body);
    nb_buf_adds(&body, "{\"prompt\":\"p\",\"n\":\"");
    for (int i = 0; i < 100000; i++) nb_buf_adds(&body, "\xC3\xA9");
    nb_buf_adds(&body, "\"}");
    assert_int_equal(fake_ask(NB_ROUTE_COMPLETIONS, nb_buf_str(&body), &got), 400);
    assert_non_null(strstr(nb_buf_str(&got), "\xC3\xA9...'}"));
    assert_true(got.len < 1000);
    nb_buf_free(&body);
    nb_buf_free(&got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers),
        cmocka_unit_test(bounds),
        cmocka_unit_test(reals),
        cmocka_unit_test(booleans),
        cmocka_unit_test(strings_and_lists),
        cmocka_unit_test(prompts),
        cmocka_unit_test(bodies),
        cmocka_unit_test(long_messages),
    };
    nb_api_options opt = fake_options();
    fake_open(&opt, NULL);
    fake_reset("z", NB_FINISH_LENGTH);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_close();
    return failed;
}
