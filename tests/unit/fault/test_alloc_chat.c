/* Memory runs out at the first allocation, the second, and so on, while a chat template is found, parsed and rendered: each time
 * the call says NB_ERR_NOMEM and leaves nothing behind (the sanitizer build sees leaks), until one gets through. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "fault/alloc.h"
#include "tempdir.h"

#include "base/json_tree.h"
#include "text/chat_format.h"

static const char template[] =
    "{%- macro call(c, sep='\\x2c') %}{{ c.function.name ~ sep ~ c.function.arguments|tojson(indent=1) }}{% "
    "endmacro %}"
    "{%- set ns = namespace(n=0, text='') %}{% for m in messages if m.role != 'x' %}"
    "{% set ns.text = ns.text + m.role|upper + m.content|string|trim|replace('e', 'ee') %}{% set ns.n = ns.n "
    "+ 1 %}"
    "{% for c in m.tool_calls or [] recursive %}{{ call(c, sep=';') }}{% endfor %}"
    "{% set block | indent(2) %}{{ m.content }}\n{{ loop.index }}{% endset %}{{ block }}{{ m.role[::-1] }}{{ "
    "'%s %5.1f' "
    "% (ns.n, 2) }}"
    "{% endfor %}{{ ns.text.split('e')|map('length')|select('odd')|list|sort(reverse=true)|join(', ') }}"
    "{{ {'a': 1, 'b': [1.5, none], 'c': 'x', 'd': 1, 'e': 1, 'f': 1, 'g': 1, 'h': 1, 'i': 1, 'j': "
    "2}|dictsort }}"
    "{{ strftime_now('%Y') }}{{ messages|selectattr('role', 'equalto', 'user')|list|length }}{{ '{} "
    "{a}'.format(1, a='2.5'|float) }}"
    "{% macro both() %}{{ caller(1) }}{% endmacro %}{% call(x) both() %}{{ range(3)|list + [x] }}{% endcall "
    "%}";

typedef struct work {
    const char *dir;
    const nb_chat_format *format; /* NULL: open it */
    const json_t *request;
} work;

static nb_status once(const work *w)
{
    nb_error err = {0};
    nb_buf out = {0};
    nb_chat_format *f = NULL;
    nb_status s = w->format ? nb_chat_format_render(w->format, w->request, 1773480413, &out, &err)
                            : nb_chat_format_open(w->dir, NULL, NULL, &f, &err);
    if (s != NB_OK && s != NB_ERR_NOMEM) fail_msg("%s", err.cause);
    nb_chat_format_free(f);
    nb_buf_free(&out);
    return s;
}

static void fail_each(const char *name, const work *w)
{
    size_t n = 0, reported = 0;
    for (;; n++) {
        fault_arm(n);
        nb_status s = once(w);
        if (!fault_disarm()) {
            assert_int_equal(s, NB_OK);
            break;
        }
        reported += s == NB_ERR_NOMEM;
    }
    print_message("  %s: %zu allocations\n", name, n);
    assert_true(n > 10);
    assert_int_equal(n, reported);
}

static void finding_and_rendering(void **state)
{
    (void)state;
    static const char config[] = "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"}}";
    static const char text[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":"
        "\"text\",\"text\":\"b\"}]},"
        "{\"role\":\"assistant\",\"content\":null,\"reasoning\":\"why\",\"tool_calls\":[{\"function\":{"
        "\"name\":\"f\",\"arguments\":"
        "\"{\\\"k\\\":[1,{}]}\"}}]},{\"role\":\"assistant\",\"content\":\"to be continued\"}],\"tools\":[{}],"
        "\"continue_final_message\":true,\"chat_template_kwargs\":{\"x\":1}}";
    tempdir tmp;
    tempdir_make(&tmp);
    tempdir_write(&tmp, "tokenizer_config.json", config, sizeof config - 1);
    tempdir_write(&tmp, "chat_template.jinja", template, sizeof template - 1);
    work w = {.dir = tmp.path};
    fail_each("open", &w);
    nb_chat_format *f = NULL;
    json_t *request = NULL;
    assert_int_equal(nb_chat_format_open(tmp.path, NULL, NULL, &f, NULL), NB_OK);
    assert_int_equal(nb_json_tree(NULL, text, sizeof text - 1, &request, NULL), NB_OK);
    w.format = f;
    w.request = request;
    fail_each("render", &w);
    nb_chat_format_free(f);
    json_decref(request);
    tempdir_remove(&tmp);
}

int main(void)
{
    fault_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(finding_and_rendering)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
