/* The translation of Oniguruma's patterns to PCRE2's dialect: what is rewritten, and what is refused because the two engines
 * would read it differently (specs/libraries.md §4). */
#include "tiny.h"

#include "text/internal.h"

static void expect(const char *pattern, const char *want)
{
    nb_buf out = {0};
    nb_error err = {0};
    nb_status s = nb_regex_translate(pattern, strlen(pattern), &out, &err);
    if (s) fail_msg("%s: %s", pattern, err.cause);
    assert_string_equal(nb_buf_str(&out), want);
    nb_buf_free(&out);
}

#define SPACE                                                                                                \
    "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"

static void rewritten(void **state)
{
    (void)state;
    expect("\\p{N}{1,3}", "\\p{N}{1,3}");
    expect("[^\\r\\n\\p{L}\\p{Lu}]?", "[^\\r\\n\\p{L}\\p{Lu}]?");
    expect("\\s+(?!\\S)", "[" SPACE "]+(?![^" SPACE "])");
    expect("[^\\s\\p{^Han}]", "[^" SPACE "\\p{^sc:Han}]");
    expect("\\P{Hiragana}\\d[\\D]", "\\P{sc:Hiragana}\\p{Nd}[\\P{Nd}]");
    expect("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?i:'s|'t|'re|'ve|'m|'ll|'d)");
    expect("'(?i:[sdmt]|ll|ve|re)", "'(?i:[sdmt]|ll|ve|re)");
    expect("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+",
           "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+");
    expect("(?:a)(?=b)(?!c)(?<=d)(?<!e)(?>f)(g)", "(?:a)(?=b)(?!c)(?<=d)(?<!e)(?>f)(g)");
    expect("a{2}b{2,}c*+d++e?+", "a{2}b{2,}c*+d++e?+");
    expect("[一-龥]+", "[一-龥]+");
}

static void refused(void **state)
{
    (void)state;
    static const char *const patterns[] = {
        "[a&&[^b]]", "[a[b]]",    "[[:alpha:]]", "\\w",    "[\\w]",   "\\b",     "\\h",
        "\\R",       "\\X",       "\\v",         "[\\S]",  "\\x41",   "\\u0041", "(a)\\1",
        "\\k<n>",    "(?<n>a)",   "(?m:a)",      "(?x)a",  "(?i)a",   "(?i:st)", "(?i:ss)",
        "(?i:f)",    "(?i:",      "(*UTF)a",     "(?#c)",  "a{1,3}+", "a{2}?",   "a{,3}",
        "a{",        "a{x}",      "\\p",         "\\pL",   "\\p{",    "\\p{}",   "\\p{Q}",
        "\\p{L&}",   "\\p{Xan}]", "\\p{Alpha}",  "\\p{Lu", "[a",      "[]a]",    "[^]a]",
        "a\\",       "(a",        "a)",          "*a",     "[b-a]",   "\\p{LC}", "\\é",
    };
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        nb_error err = {0};
        pcre2_code *code = NULL;
        bool jit;
        nb_status s = nb_regex_compile(patterns[i], strlen(patterns[i]), false, &code, &jit, &err);
        if (s != NB_ERR_UNSUPPORTED) fail_msg("%s was not refused: %s", patterns[i], nb_status_name(s));
        assert_true(strstr(err.cause, "regular expression"));
        assert_null(code);
    }
}

static void long_pattern_is_a_limit(void **state)
{
    (void)state;
    char *pattern = malloc(20000);
    nb_buf out = {0};
    assert_non_null(pattern);
    memset(pattern, 'a', 20000);
    assert_int_equal(nb_regex_translate(pattern, 20000, &out, NULL), NB_ERR_LIMIT);
    nb_buf_free(&out);
    free(pattern);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rewritten),
        cmocka_unit_test(refused),
        cmocka_unit_test(long_pattern_is_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
