/* Chat templates of real models against what transformers and Jinja2 made of them: the cases of templates/, in the folder that
 * NB_FIXTURES names. Errors included; a template's own (raise_exception) by its message. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json_tree.h"
#include "text/chat_format.h"
#include "text/jinja.h"

static size_t failures, cases;

static int64_t seconds(const char *stamp)
{
    struct tm t = {0};
    assert_non_null(strptime(stamp, "%Y-%m-%dT%H:%M:%S", &t));
    return (int64_t)timegm(&t);
}

/* The case as a request; special tokens are variables. */
static json_t *request_of(const json_t *c, const json_t *tokens)
{
    static const char *const same[] = {"messages", "tools", "documents", "add_generation_prompt",
                                       "continue_final_message"};
    json_t *r = json_object(), *kwargs = tokens ? json_deep_copy(tokens) : json_object();
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (json_object_get(c, same[i])) json_object_set(r, same[i], json_object_get(c, same[i]));
    json_object_update(kwargs, json_object_get(c, "kwargs"));
    json_object_set_new(r, "chat_template_kwargs", kwargs);
    return r;
}

static void differs(const char *folder, const char *name, const char *want, const char *got)
{
    size_t i = 0;
    while (want[i] && want[i] == got[i]) i++;
    size_t from = i > 40 ? i - 40 : 0;
    print_error("%s, %s: at byte %zu\n  want ...%.120s\n  got  ...%.120s\n", folder, name, i, want + from,
                got + from);
    failures++;
}

static void check_case(const char *folder, const nb_chat_format *f, const json_t *c, const json_t *tokens,
                       int64_t now)
{
    const char *name = json_string_value(json_object_get(c, "name")),
               *want = json_string_value(json_object_get(c, "expected"));
    const json_t *error = json_object_get(c, "error");
    const char *type = json_string_value(json_object_get(error, "type")),
               *message = json_string_value(json_object_get(error, "message"));
    json_t *request = request_of(c, tokens);
    nb_buf out = {0};
    nb_error err = {.offset = -1};
    bool builtin = strcmp(nb_chat_format_name(f), "deepseek_v4") == 0;
    nb_status s = builtin ? nb_chat_format_render(f, request, now, &out, &err)
                          : nb_chat_format_apply(f, request, now, &out, &err);
    cases++;
    if (want && s) {
        differs(folder, name, want, err.cause);
    } else if (want && strcmp(want, nb_buf_str(&out)) != 0) {
        differs(folder, name, want, nb_buf_str(&out));
    } else if (!want && s != NB_ERR_ARGUMENT) {
        differs(folder, name, message, s ? err.cause : nb_buf_str(&out));
    } else if (!want && strcmp(type, "TemplateError") == 0 &&
               strncmp(err.cause, message, sizeof err.cause - 1) != 0) {
        differs(folder, name, message, err.cause);
    }
    nb_buf_free(&out);
    json_decref(request);
}

static void check_folder(const char *root, const char *name)
{
    char path[4400], source[4500];
    nb_buf text = {0};
    json_t *v = NULL;
    const json_t *c;
    size_t i;
    nb_error err = {.offset = -1};
    nb_chat_format *f = NULL;
    snprintf(path, sizeof path, "%s/%s/cases.json", root, name);
    if (access(path, R_OK) != 0) return;
    assert_int_equal(nb_file_slurp(path, (size_t)64 << 20, &text, NULL), NB_OK);
    if (nb_json_tree(path, text.data, text.len, &v, &err)) fail_msg("%s: %s", path, err.cause);
    nb_buf_free(&text);
    snprintf(path, sizeof path, "%s/%s", root, name);
    snprintf(source, sizeof source, "%s/template.jinja", path);
    if (nb_chat_format_open(path, name, access(source, R_OK) == 0 ? source : NULL, &f, &err))
        fail_msg("%s: %s", path, err.cause);
    const char *format = json_string_value(json_object_get(v, "content_format")),
               *now = json_string_value(json_object_get(v, "now"));
    if (format) {
        nb_jinja *t = NULL;
        assert_int_equal(nb_file_slurp(source, (size_t)16 << 20, &text, NULL), NB_OK);
        assert_int_equal(nb_jinja_parse(text.data, text.len, &t, NULL), NB_OK);
        bool parts;
        assert_int_equal(nb_jinja_wants_parts(t, &parts, NULL), NB_OK);
        if (parts != (strcmp(format, "openai") == 0))
            print_error("%s: content_format is %s\n", name, format), failures++;
        nb_jinja_free(t);
        nb_buf_free(&text);
    }
    json_array_foreach(json_object_get(v, "cases"), i, c)
        check_case(name, f, c, json_object_get(v, "special_tokens"), now ? seconds(now) : 0);
    nb_chat_format_free(f);
    json_decref(v);
}

/* The project's own cases, which are always there: DeepSeek-V4's encoding through the same seam. */
static void built_in_encoding(void **state)
{
    (void)state;
    cases = failures = 0;
    check_folder(NB_TEST_DATA "/fixtures/templates", "deepseek_v4");
    assert_true(cases >= 20);
    assert_int_equal(failures, 0);
}

static void every_template(void **state)
{
    (void)state;
    char root[4096];
    const char *fixtures = getenv("NB_FIXTURES");
    if (!fixtures) skip();
    cases = failures = 0;
    setenv("TZ", "UTC", 1);
    snprintf(root, sizeof root, "%s/templates", fixtures);
    DIR *d = opendir(root);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.') check_folder(root, e->d_name);
    closedir(d);
    print_message("%zu cases, %zu differ\n", cases, failures);
    assert_true(cases >= 800);
    assert_int_equal(failures, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(built_in_encoding), cmocka_unit_test(every_template)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
