/* A template cannot take more time, memory, text or stack than it is allowed: each way of trying ends with NB_ERR_LIMIT, soon. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/json_tree.h"
#include "text/jinja.h"

static nb_status run(const char *text, size_t n, nb_jinja_limits limits, nb_buf *out)
{
    nb_jinja *t = NULL;
    nb_error err = {.offset = -1};
    nb_status s = nb_jinja_parse(text, n, &t, &err);
    if (s == NB_OK) s = nb_jinja_render(t, NULL, 0, limits, out, &err);
    if (s != NB_OK) assert_true(err.cause[0] != '\0' && out->len == 0);
    nb_jinja_free(t);
    return s;
}

static void refused(const char *text, nb_status status)
{
    const nb_jinja_limits limits = {3000000, 16 << 20, 4 << 20};
    nb_buf out = {0};
    clock_t begin = clock();
    nb_status s = run(text, strlen(text), limits, &out);
    if (s != status) fail_msg("%.200s: %s", text, nb_status_name(s));
    if (clock() - begin > 20 * CLOCKS_PER_SEC) fail_msg("%.200s took too long", text);
    nb_buf_free(&out);
}

#define R "{% for a in range(99999) %}"
#define E "{% endfor %}"
#define BIG "{% set big = 'x' * 4000000 %}{% set blank = ' ' * 4000000 %}"

static void runtime(void **state)
{
    (void)state;
    static const char *const endless[] = {
        R R R "{% set q = 1 %}" E E E,
        R R "{{ a }}" E E,
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{{ f(n)|upper|trim ~ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% set ns = namespace(a=[]) %}" R "{% set ns.a = [ns.a] %}" E "{{ ns.a }}",
        "{% set ns = namespace(a=[]) %}" R "{% set ns.a = [ns.a] %}" E "{{ ns.a == [ns.a] }}",
        "{% set ns = namespace(a=[1]) %}" R "{% set ns.a = ns.a + ns.a %}" E,
        "{% set ns = namespace(a='x') %}" R "{% set ns.a = ns.a ~ ns.a %}" E,
        "{% set ns = namespace(a='x') %}" R "{% set ns.a = 'y' ~ ns.a %}" E R "{% set ns.a = 'y' ~ ns.a %}" E,
        "{% set ns = namespace(a=[]) %}" R "{% set ns.a = [ns.a, ns.a] %}" E "{{ ns.a|tojson }}",
        "{{ 'x' * 9223372036854775807 }}",
        "{{ [1] * 100000000000 }}",
        "{{ 'x'.ljust(99999999999) }}",
        "{{ '%99999999d' % 1 }}",
        "{{ '%.99999999s' % ('x' * 4000001) }}",
        BIG R "{{ blank.strip() }}" E,
        BIG R "{% set q = big.replace('x', 'y') %}" E,
        BIG R "{% set q = big.split('x') %}" E,
        BIG R "{% set q = big == big ~ '' %}" E,
        BIG R "{% set q = big.startswith(big) %}" E,
        BIG R "{% set q = big|int %}" E,
        BIG R "{% set q = 'y' in big %}" E,
        BIG R "{% set q = {big: 1} %}" E,
        BIG R "{% set q = big[::-1] %}" E,
        BIG R "{% set q = big[a] %}" E,
        BIG R "{% set q = big|list %}" E,
        BIG R "{% set q = big.rfind('y') %}" E,
        BIG R "{% set q = [1, 2, 3]|sort(attribute=big) %}" E,
        R "{% set q = strftime_now('%99999Y') %}" E,
        R "{% set q = range(99999)|sort|unique|list %}" E,
        "{% for x in [[]] recursive %}{{ loop([[]]) }}{% endfor %}",
    };
    for (size_t i = 0; i < sizeof endless / sizeof *endless; i++) refused(endless[i], NB_ERR_LIMIT);
}

/* prefix, unit n times, suffix. */
static void repeated(const char *prefix, const char *unit, size_t n, const char *suffix, nb_status status)
{
    nb_buf text = {0};
    nb_buf_adds(&text, prefix);
    for (size_t i = 0; i < n; i++) nb_buf_adds(&text, unit);
    nb_buf_adds(&text, suffix);
    refused(nb_buf_str(&text), status);
    nb_buf_free(&text);
}

static void nesting(void **state)
{
    (void)state;
    repeated("{{ ", "(", 100000, "", NB_ERR_FORMAT);
    repeated("{{ ", "[", 100000, "", NB_ERR_FORMAT);
    repeated("{{ ", "not ", 100000, "1 }}", NB_ERR_FORMAT);
    repeated("{{ ", "-", 100000, "1 }}", NB_ERR_FORMAT);
    repeated("{{ ", "1 if 1 else ", 100000, "1 }}", NB_ERR_FORMAT);
    repeated("", "{% if 1 %}", 100000, "", NB_ERR_FORMAT);
    repeated("{% set ", "(", 100000, "", NB_ERR_FORMAT);
    repeated("{{ x", "|upper", 100000, " }}", NB_ERR_LIMIT);
    repeated("{{ 1", " + 1", 100000, " }}", NB_ERR_LIMIT);
    repeated("{{ x is defined", " is defined", 100000, " }}", NB_ERR_FORMAT);
    repeated("{{ 'a'", "[0]", 100000, " }}", NB_ERR_LIMIT);
    repeated("{% if 0 %}", "{% elif 0 %}", 100000, "{% endif %}", NB_OK);
    repeated("{{ 1", " ~ 1", 100000, " }}", NB_OK);
}

/* Text that grows piece by piece takes time and memory in proportion: at twice the length not much more than twice. */
static void linear(void **state)
{
    (void)state;
    static const char *const growing[] = {
        "{% set ns = namespace(a='') %}{% for i in range(90000) %}{% set ns.a = ns.a + 'abcdefgh' %}{% "
        "endfor %}{{ ns.a|length }}",
        "{% set ns = namespace(a='') %}{% for i in range(90000) %}{% set ns.a = ns.a ~ 'abcdefgh' ~ '' %}{% "
        "endfor %}{{ ns.a|length }}",
        "{% set ns = namespace(a=[]) %}{% for i in range(90000) %}{% set ns.a = ns.a + [i] %}{% endfor %}{{ "
        "ns.a|length * 8 }}",
        "{% set a %}{% for i in range(90000) %}abcdefgh{% endfor %}{% endset %}{{ a|length }}",
    };
    const nb_jinja_limits limits = {3000000, 40 << 20, 4 << 20};
    for (size_t i = 0; i < sizeof growing / sizeof *growing; i++) {
        nb_buf out = {0};
        assert_int_equal(run(growing[i], strlen(growing[i]), limits, &out), NB_OK);
        assert_string_equal(nb_buf_str(&out), "720000");
        nb_buf_free(&out);
    }
}

/* What a value was when it was taken stays so when the text grows on from it. */
static void growing_leaves_older_values_alone(void **state)
{
    (void)state;
    static const char text[] =
        "{% set a = 'x' ~ 'y' %}{% set b = a ~ '1' %}{% set c = a ~ '2' %}{{ a }},{{ b }},{{ c }},"
        "{% set l = [1] + [2] %}{% set m = l + [3] %}{% set n = l + [4] %}{{ l }}{{ m }}{{ n }}";
    nb_buf out = {0};
    assert_int_equal(run(text, sizeof text - 1, NB_JINJA_LIMITS, &out), NB_OK);
    assert_string_equal(nb_buf_str(&out), "xy,xy1,xy2,[1, 2][1, 2, 3][1, 2, 4]");
    nb_buf_free(&out);
}

static void not_utf8(void **state)
{
    (void)state;
    nb_jinja *t = NULL;
    nb_error err = {.offset = -1};
    assert_int_equal(nb_jinja_parse("ab\xff", 3, &t, &err), NB_ERR_FORMAT);
    assert_int_equal(err.offset, 2);
    assert_int_equal(nb_jinja_parse("a\r\n\r\n{{ ) }}", 11, &t, &err), NB_ERR_FORMAT);
    assert_int_equal(err.offset, 8); /* counted in the text as given */
    assert_non_null(strstr(err.cause, "line 3"));
}

/* What Jinja or Python has and this does not is told by name, not taken for an undefined value. */
static void absent(void **state)
{
    (void)state;
    refused("{{ [1]|groupby('a') }}", NB_ERR_UNSUPPORTED);
    refused("{{ 'a'.encode() }}", NB_ERR_UNSUPPORTED);
    refused("{{ '{:>5}'.format(1) }}", NB_ERR_UNSUPPORTED);
    refused("{% include 'x' %}", NB_ERR_FORMAT);
    refused("{{ 9223372036854775807 + 1 }}", NB_ERR_LIMIT);
    refused("{{ 9223372036854775808 }}", NB_ERR_FORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runtime),  cmocka_unit_test(nesting),
        cmocka_unit_test(linear),   cmocka_unit_test(growing_leaves_older_values_alone),
        cmocka_unit_test(not_utf8), cmocka_unit_test(absent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
