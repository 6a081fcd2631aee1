/* What a request off the wire looks like to a template, shown by templates that print what they get. The rules are vLLM's
 * (entrypoints/chat_utils.py) and transformers' (utils/chat_template_utils.py), as chat_format.h says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json_tree.h"
#include "tempdir.h"
#include "text/chat_format.h"

static tempdir tmp; /* a folder with a tokenizer_config.json alone */

static nb_chat_format *open_source(const char *source)
{
    nb_chat_format *f = NULL;
    nb_error err = {.offset = -1};
    if (nb_chat_format_open(tmp.path, NULL, source, &f, &err)) fail_msg("%s", err.cause);
    return f;
}

static nb_status render(const char *source, const char *request, nb_buf *out, nb_error *err)
{
    json_t *r = NULL;
    nb_chat_format *f = open_source(source);
    assert_int_equal(nb_json_tree(NULL, request, strlen(request), &r, NULL), NB_OK);
    nb_status s = nb_chat_format_render(f, r, 0, out, err);
    json_decref(r);
    nb_chat_format_free(f);
    return s;
}

static void becomes(const char *source, const char *request, const char *want)
{
    nb_buf out = {0};
    nb_error err = {.offset = -1};
    if (render(source, request, &out, &err)) fail_msg("%s: %s", request, err.cause);
    assert_string_equal(nb_buf_str(&out), want);
    nb_buf_free(&out);
}

static void refused(const char *source, const char *request, const char *cause)
{
    nb_buf out = {0};
    nb_error err = {.offset = -1};
    assert_int_equal(render(source, request, &out, &err), NB_ERR_ARGUMENT);
    if (!strstr(err.cause, cause)) fail_msg("%s: %s", request, err.cause);
    assert_int_equal(out.len, 0);
    nb_buf_free(&out);
}

#define ALL "{{ messages|tojson }}"
/* The loop over content is what asks for parts. */
#define PARTS "{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}{{ messages|tojson }}"
#define MESSAGE(m) "{\"messages\":[" m "]}"

static void content(void **state)
{
    (void)state;
    becomes(ALL, MESSAGE("{\"role\":\"user\",\"content\":\"a\"}"),
            "[{\"role\": \"user\", \"content\": \"a\"}]");
    becomes(PARTS, MESSAGE("{\"role\":\"user\",\"content\":\"a\"}"),
            "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}]}]");
    static const char two[] = MESSAGE("{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                                      "{\"type\":\"input_text\",\"text\":\"b\"}]}");
    becomes(ALL, two, "[{\"role\": \"user\", \"content\": \"a\\nb\"}]");
    becomes(PARTS, two,
            "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"text\", "
            "\"text\": \"b\"}]}]");
    becomes(ALL, MESSAGE("{\"role\":\"assistant\",\"content\":null}"),
            "[{\"role\": \"assistant\", \"content\": \"\"}]");
    becomes(PARTS, MESSAGE("{\"role\":\"assistant\"}"), "[{\"role\": \"assistant\", \"content\": []}]");
    refused(
        ALL,
        MESSAGE("{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]}"),
        "messages[0]: a content part of type 'image_url'");
    refused(ALL, MESSAGE("{\"role\":\"user\",\"content\":5}"), "messages[0]");
    refused(ALL, MESSAGE("{\"content\":\"a\"}"), "messages[0]");
    refused(ALL, MESSAGE("7"), "messages[0]");
    refused(ALL, "{\"messages\":{}}", "messages is not an array");
    refused(ALL, "[]", "messages is not an array");
    refused(ALL, "{\"messages\":[],\"chat_template_kwargs\":[]}", "chat_template_kwargs is not an object");
}

static void members(void **state)
{
    (void)state;
    becomes(ALL,
            MESSAGE("{\"content\":\"a\",\"name\":\"n\",\"refusal\":null,\"role\":\"user\",\"extra\":[1]}"),
            "[{\"role\": \"user\", \"content\": \"a\", \"name\": \"n\", \"extra\": [1]}]");
    becomes(ALL, MESSAGE("{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[]}"),
            "[{\"role\": \"assistant\", \"content\": \"a\"}]");
    /* Arguments: text of an object, an object, nothing, and text that is no JSON. */
    becomes("{% for c in messages[0].tool_calls %}{{ c|tojson }}{% endfor %}",
            MESSAGE("{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\","
                    "\"arguments\":\"{\\\"a\\\": 1}\"}},"
                    "{\"function\":{\"arguments\":{\"b\":2}}},{\"function\":{\"arguments\":\"\"}},{"
                    "\"function\":{\"arguments\":\"{\"}}]}"),
            "{\"id\": \"1\", \"function\": {\"name\": \"f\", \"arguments\": {\"a\": 1}}}{\"function\": "
            "{\"arguments\": {\"b\": 2}}}"
            "{\"function\": {\"arguments\": {}}}{\"function\": {\"arguments\": \"{\"}}");
    refused(ALL, MESSAGE("{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\"}]}"),
            "tool_calls[0] has no function");
    /* Reasoning under each of its names. */
    static const char names[] =
        "{% set m = messages[0] %}{{ m.reasoning }} {{ m.reasoning_content }} {{ m.thinking }}";
    becomes(names, MESSAGE("{\"role\":\"assistant\",\"reasoning\":\"r\"}"), "r r r");
    becomes(names, MESSAGE("{\"role\":\"assistant\",\"reasoning_content\":\"r\"}"), "r r r");
    becomes(names, MESSAGE("{\"role\":\"assistant\",\"thinking\":\"r\"}"), " r r");
}

static void variables(void **state)
{
    (void)state;
    becomes("{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}", MESSAGE(""), "<s></s>False");
    becomes("{{ tools }} {{ documents }} {{ add_generation_prompt }}", MESSAGE(""), "None None True");
    becomes("{{ tools|tojson }} {{ documents }} {{ add_generation_prompt }} {{ x }}",
            "{\"messages\":[],\"tools\":[{\"a\":1}],\"documents\":[],\"add_generation_prompt\":false,\"chat_"
            "template_kwargs\":{\"x\":5,\"tools\":0}}",
            "[{\"a\": 1}] [] False 5");
    nb_chat_format *f = open_source("{% set a = b %}{{ c.d }}{% for e in messages %}{{ f(g) }}{% endfor %}");
    assert_true(nb_chat_format_uses(f, "b") && nb_chat_format_uses(f, "c") && nb_chat_format_uses(f, "g"));
    assert_false(nb_chat_format_uses(f, "a") || nb_chat_format_uses(f, "d") || nb_chat_format_uses(f, "e"));
    assert_string_equal(nb_chat_format_name(f), "jinja");
    nb_chat_format_free(f);
}

static void continuing(void **state)
{
    (void)state;
    static const char plain[] = "{% for m in messages %}[{{ m.content }}]{% endfor %}",
                      trimmed[] = "{% for m in messages %}[{{ m.content|trim }}]{% endfor %}";
#define LAST(content)                                                                                        \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":" content      \
    "}],\"continue_final_message\":true}"
    becomes(plain, LAST("\"so \""), "[q][so ");
    becomes(trimmed, LAST("\" so \""), "[q][so");
    becomes(plain, LAST("[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b \"}]"),
            "[q][a\nb ");
    becomes("{% for m in messages %}{% for c in m.content %}[{{ c.text }}]{% endfor %}{% endfor %}",
            LAST("[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b \"}]"), "[q][a][b ");
    refused("{#-#}x", LAST("\"so\""), "does not appear");
    refused(plain, "{\"messages\":[],\"continue_final_message\":true}", "no content to continue");
    refused(plain,
            "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"continue_final_message\":true,\"add_"
            "generation_prompt\":true}",
            "Cannot set both");
}

static void finding(void **state)
{
    (void)state;
    nb_chat_format *f = NULL;
    nb_error err = {.offset = -1};
    assert_int_equal(nb_chat_format_open(tmp.path, "llama", NULL, &f, &err), NB_ERR_MISSING);
    assert_true(err.remedy[0] != '\0');
    assert_int_equal(nb_chat_format_open(tmp.path, "deepseek_v4", NULL, &f, &err), NB_OK);
    assert_string_equal(nb_chat_format_name(f), "deepseek_v4");
    assert_true(nb_chat_format_uses(f, "thinking") && !nb_chat_format_uses(f, "tools"));
    nb_buf out = {0};
    json_t *r = NULL;
    static const char last[] = LAST("\"so\"");
    assert_int_equal(nb_json_tree(NULL, last, sizeof last - 1, &r, NULL), NB_OK);
    assert_int_equal(nb_chat_format_render(f, r, 0, &out, &err), NB_OK);
    assert_string_equal(nb_buf_str(&out), "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>so");
    json_decref(r);
    nb_buf_free(&out);
    nb_chat_format_free(f);
    char path[600];
    snprintf(path, sizeof path, "%s", tempdir_write(&tmp, "other.jinja", "{{ x", 4));
    assert_int_equal(nb_chat_format_open(tmp.path, NULL, path, &f, &err), NB_ERR_FORMAT);
    assert_string_equal(err.file, path);
    assert_int_equal(err.offset, 4);
    assert_int_equal(nb_chat_format_open(tmp.path, NULL, "/nowhere/t.jinja", &f, &err), NB_ERR_MISSING);
}

int main(void)
{
    static const char config[] =
        "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"},\"pad_token\":null}";
    const struct CMUnitTest tests[] = {cmocka_unit_test(content), cmocka_unit_test(members),
                                       cmocka_unit_test(variables), cmocka_unit_test(continuing),
                                       cmocka_unit_test(finding)};
    tempdir_make(&tmp);
    tempdir_write(&tmp, "tokenizer_config.json", config, sizeof config - 1);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tempdir_remove(&tmp);
    return failed;
}
