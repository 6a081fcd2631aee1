/* What each model's chat template writes for an assistant's tool calls is read back by the parser of that family: the same names and
 * arguments. Runs over the templates of the folder that NB_FIXTURES names; test_reply_forms.c has each form by example. */
#include "text/replies.h"

#include <stdio.h>

#include "base/file.h"
#include "base/json_tree.h"
#include "text/chat_format.h"

static const struct {
    const char *folder, *tools;
} families[] = {
    {"qwen2.5", "hermes"},
    {"qwen3", "hermes"},
    {"qwq", "hermes"},
    {"hermes-3-tools", "hermes"},

    {"granite-4.0", "hermes"},
    {"qwen3-coder", "qwen3_coder"},
    {"qwen3.5", "qwen3_xml"},
    {"nemotron-3-nano", "qwen3_coder"},
    {"step-3.5-flash", "step3p5"},
    {"seed-oss", "seed_oss"},
    {"deepseek-v3", "deepseek_v3"},
    {"deepseek-r1-distill-qwen", "deepseek_v3"},
    {"deepseek-v3.1", "deepseek_v31"},
    {"deepseek-v3.2", "deepseek_v32"},
    {"glm-4.5", "glm45"},
    {"glm-4.6", "glm45"},
    {"glm-4.7-flash", "glm47"},
    {"glm-5.2", "glm47"},
    {"kimi-k2", "kimi_k2"},
    {"minimax-m2", "minimax_m2"},
    {"mistral-tools", "mistral"},
    {"mistral-nemo", "mistral"},
    {"mistral-small-3.2", "mistral"},
    {"ministral-3", "mistral"},
    {"llama3.1", "llama3_json"},
    {"llama3.2", "llama3_json"},
    {"llama3.3", "llama3_json"},
    {"llama4-json", "llama4_json"},
    {"gemma4", "gemma4"},
    {"gemma4-interleaved", "gemma4"},
    {"gpt-oss", "openai"},
};

static size_t compared, failures;

/* R1's template forgets the mark before the calls of a second message. */
static bool is_written(const char *tools, const char *text)
{
    return strcmp(tools, "deepseek_v3") != 0 || strstr(text, "<｜tool▁calls▁begin｜>");
}

/* gpt-oss's template writes one call a message. */
static bool is_read(const char *tools, json_t *want, const json_t *got)
{
    while (strcmp(tools, "openai") == 0 && json_array_size(want) > 1) json_array_remove(want, 1);
    return json_equal(want, got);
}

/* Text of the template for the first n messages of a case; false: it refuses them. */
static bool render(const nb_chat_format *f, const json_t *c, const json_t *tokens, size_t n, nb_buf *out)
{
    json_t *r = json_object(), *kwargs = tokens ? json_deep_copy(tokens) : json_object(),
           *messages = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append(messages, json_array_get(json_object_get(c, "messages"), i));
    if (json_object_get(c, "tools")) json_object_set(r, "tools", json_object_get(c, "tools"));
    json_object_update(kwargs, json_object_get(c, "kwargs"));
    json_object_set_new(r, "chat_template_kwargs", kwargs);
    json_object_set_new(r, "messages", messages);
    json_object_set_new(r, "add_generation_prompt", json_false());
    nb_status s = nb_chat_format_apply(f, r, 0, out, NULL);
    json_decref(r);
    return s == NB_OK;
}

static size_t all_of_it(void *ctx, size_t at, size_t n)
{
    return n;
}

/* The calls as told: 0:name(arguments) … with nothing else. */
static json_t *calls_of(const char *tools, const json_t *schemas, const char *text)
{
    told t = {0};
    json_t *list = json_array();
    how h = {.tools = tools, .schemas = schemas};
    assert_int_equal(told_feed(&t, h, text, strlen(text), all_of_it, NULL, NULL), NB_OK);
    const char *p = nb_buf_str(&t.line);
    char mark[24];
    for (size_t i = 0; i < t.calls; i++) {
        snprintf(mark, sizeof mark, "%zu:", i);
        if (!(p = strstr(p, mark))) break;
        const char *open = strchr(p, '(');
        p += strlen(mark);
        json_error_t e;
        json_t *arguments = json_loads(open + 1, JSON_DISABLE_EOF_CHECK, &e);
        json_array_append_new(list, json_pack("{s:s%, s:o}", "name", p, (size_t)(open - p), "arguments",
                                              arguments ? arguments : json_null()));
    }
    nb_buf_free(&t.line);
    return list;
}

static json_t *wanted(const json_t *calls)
{
    json_t *list = json_array();
    const json_t *call;
    size_t i;
    json_array_foreach(calls, i, call)
    {
        const json_t *f = json_object_get(call, "function");
        json_array_append_new(list, json_pack("{s:O, s:O}", "name", json_object_get(f, "name"), "arguments",
                                              json_object_get(f, "arguments")));
    }
    return list;
}

static void check_case(const char *folder, const char *tools, const nb_chat_format *f, const json_t *c,
                       const json_t *tokens)
{
    const json_t *messages = json_object_get(c, "messages"), *m;
    size_t i;
    json_array_foreach(messages, i, m)
    {
        const json_t *calls = json_object_get(m, "tool_calls"), *call;
        size_t k;
        bool texts = !json_array_size(calls) || json_object_get(c, "python_repr");
        json_array_foreach(calls, k, call) texts =
            texts || !json_is_object(json_object_get(json_object_get(call, "function"), "arguments"));
        nb_buf before = {0}, with = {0};
        if (!texts && render(f, c, tokens, i, &before) && render(f, c, tokens, i + 1, &with)) {
            const char *text = nb_buf_str(&with);
            size_t same = 0;
            while (same < before.len && text[same] == before.data[same]) same++;
            text += same;
            if (strstr(tools, "llama") && strchr(text, '{'))
                text = strchr(text, '{'); /* behind the turn's head */
            json_t *want = wanted(calls), *got = calls_of(tools, json_object_get(c, "tools"), text);
            bool counts = is_written(tools, text);
            compared += counts;
            if (counts && !is_read(tools, want, got)) {
                char *a = json_dumps(want, 0), *b = json_dumps(got, 0);
                print_error("%s %s %s:\n%s\n want %s\n got %s\n", folder, tools,
                            json_string_value(json_object_get(c, "name")), text, a, b);
                free(a);
                free(b);
                failures++;
            }
            json_decref(want);
            json_decref(got);
        }
        nb_buf_free(&before);
        nb_buf_free(&with);
    }
}

static void every_template(void **state)
{
    (void)state;
    const char *root = getenv("NB_FIXTURES");
    if (!root) skip();
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        char path[4096];
        nb_buf text = {0};
        json_t *cases = NULL;
        const json_t *c;
        nb_chat_format *f = NULL;
        nb_error err = {.offset = -1};
        size_t k, had = compared;
        snprintf(path, sizeof path, "%s/templates/%s/cases.json", root, families[i].folder);
        assert_int_equal(nb_file_slurp(path, (size_t)64 << 20, &text, &err), NB_OK);
        assert_int_equal(nb_json_tree(path, nb_buf_str(&text), text.len, &cases, &err), NB_OK);
        snprintf(path, sizeof path, "%s/templates/%s/template.jinja", root, families[i].folder);
        assert_int_equal(nb_chat_format_open("", NULL, path, &f, &err), NB_OK);
        json_array_foreach(json_object_get(cases, "cases"), k, c)
            check_case(families[i].folder, families[i].tools, f, c, json_object_get(cases, "special_tokens"));
        print_message("%s: %zu calls of messages\n", families[i].folder, compared - had);
        nb_chat_format_free(f);
        json_decref(cases);
        nb_buf_free(&text);
    }
    assert_int_equal(failures, 0);
    assert_true(compared > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_template)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
