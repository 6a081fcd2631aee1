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
    expect("[^\\s\\p{^Han}]", "[^" SPACE "\\P{sc:Han}]");
    expect("\\P{Hiragana}\\d[\\D]", "\\P{sc:Hiragana}\\p{Nd}[\\P{Nd}]");
    expect("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?i:'s|'t|'re|'ve|'m|'ll|'d)");
    expect("'(?i:[sdmt]|ll|ve|re)", "'(?i:[sdmt]|ll|ve|re)");
    expect("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+",
           "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]\\^_`{|}~][A-Za-z]+");
    expect("(?:a)(?=b)(?!c)(?<=d)(?<!e)(?>f)(g)", "(?:a)(?=b)(?!c)(?<=d)(?<!e)(?>f)(g)");
    expect("a{2}b{2,}c*+d++e?+", "a{2}b{2,}c*+d++e?+");
    expect("[一-龥]+", "[一-龥]+");
}

/* What Kimi's pattern has, with and without Oniguruma's intersection. */
#define LETTERS "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define OTHERS                                                                                               \
    "\\p{Ll}\\p{Nd}\\p{Nl}\\p{No}\\p{Pc}\\p{Pd}\\p{Ps}\\p{Pe}\\p{Pi}\\p{Pf}\\p{Po}\\p{Sm}\\p{Sc}\\p{Sk}"     \
    "\\p{So}\\p{Zs}\\p{Zl}\\p{Zp}\\p{Cc}\\p{Cf}\\p{Cs}\\p{Co}\\p{Cn}"

static void classes(void **state)
{
    (void)state;
    expect("[a[b]]", "[ba]");
    expect("[^a[b]]", "[^ba]");
    expect("[a[^b]]", "(?:[^b]|[a])");
    expect("[^a[^b]]", "(?:(?!(?:[^b]|[a]))(?s:.))");
    expect("[[x][-b]]", "[x\\-b]");
    expect("[a-c&&b-d]", "(?:(?=[b-d])[a-c])");
    expect("[a-c&&[^b]&&[^c]]", "(?:(?=[^c])(?:(?=[^b])[a-c]))");
    expect("[[^a]&&[^b]]", "[^ab]");
    expect("[^[^a]&&[^b]]", "[ab]");
    expect("[" LETTERS "&&[^\\p{Han}]]*", "[^" OTHERS "\\p{sc:Han}]*");
}

static pcre2_code *compile(const char *pattern, bool translated)
{
    nb_error err = {0};
    pcre2_code *code = NULL;
    bool jit;
    int number;
    PCRE2_SIZE at;
    if (!translated)
        code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &number, &at, NULL);
    else if (nb_regex_compile(pattern, strlen(pattern), false, &code, &jit, &err))
        fail_msg("%s: %s", pattern, err.cause);
    assert_non_null(code);
    return code;
}

/* Each class takes the same characters, of all there are, as an expression that PCRE2 reads as it stands. */
static void classes_over_all_characters(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"[" LETTERS "&&[^\\p{Han}]]", "(?!\\p{sc:Han})[" LETTERS "]"},
        {"[^" LETTERS "&&[^\\p{Han}]]", "\\p{sc:Han}|[^" LETTERS "]"},
        {"[\\P{L}&&\\p{^Nd}&&[^\\p{Greek}]]", "(?!\\p{sc:Greek}|\\p{L}|\\p{Nd})(?s:.)"},
        {"[\\p{L}&&\\p{Greek}]", "(?=\\p{sc:Greek})\\p{L}"},
        {"[a-z\\p{Lu}&&[^q-t[\\p{Greek}]]]", "(?![q-t]|\\p{sc:Greek})(?:[a-z]|\\p{Lu})"},
        {"[\\D&&[\\p{N}[x]]]", "x|(?!\\p{Nd})\\p{N}"},
        {"[^[^\\p{L}&&[^a]]]", "(?!a)\\p{L}"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        pcre2_code *code[2] = {compile(pairs[i][0], true), compile(pairs[i][1], false)};
        pcre2_match_data *m = pcre2_match_data_create(1, NULL);
        for (uint32_t c = 0; c < 0x110000; c++) {
            char s[4];
            if (c >= 0xD800 && c < 0xE000) continue;
            size_t n = nb_utf8_encode(c, s);
            bool is[2];
            for (int k = 0; k < 2; k++)
                is[k] = pcre2_match(code[k], (PCRE2_SPTR)s, n, 0, PCRE2_NO_UTF_CHECK, m, NULL) >= 0;
            if (is[0] != is[1]) fail_msg("%s: U+%04X", pairs[i][0], (unsigned)c);
        }
        pcre2_match_data_free(m);
        for (int k = 0; k < 2; k++) pcre2_code_free(code[k]);
    }
}

static void refused(void **state)
{
    (void)state;
    static const char *const patterns[] = {
        "[a&&]",   "[&&a]",   "[[:alpha:]]", "[a-[b]]",    "[a-&&b]", "[a&&^b]", "[[a]-b]", "[a[]b]",
        "[a&&[b]", "\\w",     "[\\w]",       "\\b",        "\\h",     "\\R",     "\\X",     "\\v",
        "[\\S]",   "\\x41",   "\\u0041",     "(a)\\1",     "\\k<n>",  "(?<n>a)", "(?m:a)",  "(?x)a",
        "(?i)a",   "(?i:st)", "(?i:ss)",     "(?i:f)",     "(?i:",    "(*UTF)a", "(?#c)",   "a{1,3}+",
        "a{2}?",   "a{,3}",   "a{",          "a{x}",       "\\p",     "\\pL",    "\\p{",    "\\p{}",
        "\\p{Q}",  "\\p{L&}", "\\p{Xan}]",   "\\p{Alpha}", "\\p{Lu",  "[a",      "[]a]",    "[^]a]",
        "a\\",     "(a",      "a)",          "*a",         "[b-a]",   "\\p{LC}", "\\é",
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
        cmocka_unit_test(classes),
        cmocka_unit_test(classes_over_all_characters),
        cmocka_unit_test(refused),
        cmocka_unit_test(long_pattern_is_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
