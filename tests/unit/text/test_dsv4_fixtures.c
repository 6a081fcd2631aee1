/* DeepSeek-V4's prompts against what the reference encoder (vLLM's) rendered: the cases of templates/deepseek_v4, in the
 * project's fixtures and in the folder that NB_FIXTURES names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "text/chat.h"

static json_t *read_json(const char *path)
{
    nb_buf text = {0};
    json_error_t why;
    assert_int_equal(nb_file_slurp(path, (size_t)16 << 20, &text, NULL), NB_OK);
    json_t *v = json_loadb(text.data, text.len, 0, &why);
    if (!v) fail_msg("%s: %s", path, why.text);
    nb_buf_free(&text);
    return v;
}

static json_t *request_of(const json_t *c)
{
    json_t *r = json_object();
    json_object_set(r, "messages", json_object_get(c, "messages"));
    if (json_object_get(c, "tools")) json_object_set(r, "tools", json_object_get(c, "tools"));
    if (json_object_get(c, "kwargs"))
        json_object_set(r, "chat_template_kwargs", json_object_get(c, "kwargs"));
    return r;
}

static void check_case(const json_t *c)
{
    const char *name = json_string_value(json_object_get(c, "name")),
               *want = json_string_value(json_object_get(c, "expected"));
    json_t *request = request_of(c);
    nb_buf out = {0};
    nb_error err = {0};
    nb_status s = nb_chat_deepseek_v4_render(request, &out, &err);
    if (want) {
        if (s) fail_msg("%s: %s", name, err.cause);
        assert_string_equal(nb_buf_str(&out), want);
    } else {
        assert_int_equal(s, NB_ERR_ARGUMENT);
        assert_string_equal(err.cause,
                            json_string_value(json_object_get(json_object_get(c, "error"), "message")));
    }
    nb_buf_free(&out);
    json_decref(request);
}

/* vLLM's own fixture i, rendered with thinking on. */
static void check_pair(const char *folder, int i)
{
    char path[4200];
    nb_buf want = {0}, got = {0};
    nb_error err = {0};
    snprintf(path, sizeof path, "%s/test_input_%d.json", folder, i);
    json_t *v = read_json(path),
           *request = json_is_array(v) ? json_pack("{s:O}", "messages", v) : json_incref(v);
    json_object_set_new(request, "chat_template_kwargs", json_pack("{s:b}", "thinking", 1));
    snprintf(path, sizeof path, "%s/test_output_%d.txt", folder, i);
    assert_int_equal(nb_file_slurp(path, (size_t)1 << 20, &want, NULL), NB_OK);
    if (nb_chat_deepseek_v4_render(request, &got, &err)) fail_msg("%s: %s", path, err.cause);
    assert_string_equal(nb_buf_str(&got), nb_buf_str(&want));
    nb_buf_free(&want);
    nb_buf_free(&got);
    json_decref(request);
    json_decref(v);
}

static size_t check_root(const char *root)
{
    char folder[4096], path[4200];
    const json_t *c;
    size_t i, count = 0;
    snprintf(folder, sizeof folder, "%s/templates/deepseek_v4", root);
    snprintf(path, sizeof path, "%s/cases.json", folder);
    if (access(path, R_OK) != 0) return 0;
    json_t *v = read_json(path);
    json_array_foreach(json_object_get(v, "cases"), i, c)
    {
        check_case(c);
        count++;
    }
    json_decref(v);
    for (int k = 1; k <= 2; k++) {
        snprintf(path, sizeof path, "%s/test_input_%d.json", folder, k);
        if (access(path, R_OK) != 0) continue;
        check_pair(folder, k);
        count++;
    }
    print_message("%s: %zu prompts equal\n", folder, count);
    return count;
}

static void own_fixtures(void **state)
{
    (void)state;
    assert_true(check_root(NB_TEST_DATA "/fixtures") >= 20);
}

static void other_fixtures(void **state)
{
    (void)state;
    const char *root = getenv("NB_FIXTURES");
    if (!root) skip();
    assert_true(check_root(root) >= 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(own_fixtures), cmocka_unit_test(other_fixtures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
