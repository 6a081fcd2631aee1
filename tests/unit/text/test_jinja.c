/* Each feature of templates by a small one of its own: what Jinja2 made of it (jinja/make_cases.py), errors included. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json_tree.h"
#include "text/jinja.h"

/* The text, or the error's cause. */
static nb_status render(const char *template, size_t n, const json_t *variables, nb_buf *out)
{
    nb_jinja *t = NULL;
    nb_error err = {.offset = -1};
    nb_status s = nb_jinja_parse(template, n, &t, &err);
    if (s == NB_OK) s = nb_jinja_render(t, variables, 0, NB_JINJA_LIMITS, out, &err);
    if (s != NB_OK) {
        assert_int_equal(out->len, 0);
        nb_buf_adds(out, err.cause);
    }
    nb_jinja_free(t);
    return s;
}

static void cases(void **state)
{
    (void)state;
    nb_buf text = {0};
    json_t *v = NULL;
    const json_t *c;
    size_t i, wrong = 0;
    assert_int_equal(nb_file_slurp(NB_TEST_DATA "/unit/text/jinja/cases.json", 1 << 20, &text, NULL), NB_OK);
    assert_int_equal(nb_json_tree(NULL, text.data, text.len, &v, NULL), NB_OK);
    json_array_foreach(json_object_get(v, "cases"), i, c)
    {
        const json_t *template = json_object_get(c, "template"), *want = json_object_get(c, "expected");
        const char *raised = json_string_value(json_object_get(c, "raise"));
        nb_buf got = {0};
        nb_status s = render(json_string_value(template), json_string_length(template),
                             json_object_get(v, "variables"), &got);
        bool same = !want ? s != NB_OK && (!raised || strcmp(raised, nb_buf_str(&got)) == 0)
                          : s == NB_OK && got.len == json_string_length(want) &&
                                memcmp(nb_buf_str(&got), json_string_value(want), got.len) == 0;
        if (!same)
            print_error("%s\n  want %s\n  got  %s\n", json_string_value(template),
                        want     ? json_string_value(want)
                        : raised ? raised
                                 : "an error",
                        nb_buf_str(&got));
        wrong += !same;
        nb_buf_free(&got);
    }
    assert_true(i > 200);
    assert_int_equal(wrong, 0);
    json_decref(v);
    nb_buf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cases)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
