/* openapi.json says what is so: it is JSON, its references lead somewhere, and every field that it describes is one that a request's parser
 * looks at, since a value of the wrong type is refused by that field's name. */
#include "server/fake_core.h"

#include "base/json_tree.h"

extern const unsigned char nb_openapi_json[];
extern const size_t nb_openapi_json_size;

static json_t *doc;

static const json_t *schema(const char *name)
{
    const json_t *s = json_object_get(json_object_get(json_object_get(doc, "components"), "schemas"), name);
    if (!s) fail_msg("no schema %s", name);
    return s;
}

static void follow(const json_t *v)
{
    const char *key, *ref = json_string_value(json_object_get(v, "$ref"));
    static const char prefix[] = "#/components/schemas/";
    json_t *each;
    size_t i;
    if (ref) {
        assert_memory_equal(ref, prefix, sizeof prefix - 1);
        schema(ref + sizeof prefix - 1);
    }
    json_object_foreach((json_t *)v, key, each) follow(each);
    json_array_foreach(v, i, each) follow(each);
}

static void references(void **state)
{
    follow(doc);
}

/* A type error, or a refusal, that names the field. */
static void expect_named(nb_route route, const char *start, const char *field, const char *value)
{
    nb_buf body = {0}, got = {0}, param = {0};
    nb_buf_addf(&body, "{%s\"%s\":%s}", start, field, value);
    int s = fake_ask(route, nb_buf_str(&body), &got);
    const char *at = strstr(nb_buf_str(&got), "\"param\":\"");
    nb_buf_addf(&param, "%.*s", at ? (int)strcspn(at + 9, "\"") : 0, at ? at + 9 : "");
    const char *name = nb_buf_str(&param);
    if (strncmp(name, "body.", 5) == 0) name += 5;
    size_t n = strlen(field);
    if (s != 400 || strncmp(name, field, n) != 0 || (name[n] && name[n] != '.'))
        fail_msg("%s: %d %s", nb_buf_str(&body), s, nb_buf_str(&got));
    nb_buf_free(&body);
    nb_buf_free(&got);
    nb_buf_free(&param);
}

static void expect_fields(nb_route route, const char *name, const char *start)
{
    const char *field;
    json_t *described;
    json_object_foreach(json_object_get(schema(name), "properties"), field, described)
    {
        /* an object is a wrong value for all but the objects, an array for those */
        const json_t *type = json_object_get(described, "type");
        const char *first = json_string_value(json_is_array(type) ? json_array_get(type, 0) : type);
        expect_named(route, start, field, first && strcmp(first, "object") == 0 ? "[1]" : "{\"x\":1}");
    }
}

static void completion_fields(void **state)
{
    expect_fields(NB_ROUTE_COMPLETIONS, "CompletionRequest", "\"prompt\":\"p\",");
}

static void chat_fields(void **state)
{
    /* with tools, so that tool_choice is looked at; and logprobs for top_logprobs */
    expect_fields(NB_ROUTE_CHAT, "ChatRequest",
                  "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"logprobs\":true,"
                  "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(references), cmocka_unit_test(completion_fields),
                                       cmocka_unit_test(chat_fields)};
    nb_api_options opt = fake_options();
    nb_error err = {0};
    fake_open(&opt, NULL);
    if (nb_json_tree(NULL, (const char *)nb_openapi_json, nb_openapi_json_size, &doc, &err))
        fail_msg("%s", err.cause);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    json_decref(doc);
    fake_close();
    return failed;
}
