/* Cuts, and Oniguruma's reading of patterns. Expected ids were computed by the Hugging Face library (tokenizers 0.23.3, which
 * runs Oniguruma) from the same definitions: ab, abc, 12, 123 merge, so ids show where a text was cut. */
#include "tiny.h"

#define VOCAB ",\"ab\":256,\"abc\":257,\"12\":258,\"123\":259,\"\u0120a\":260"
#define MERGES "\"a b\",\"ab c\",\"1 2\",\"12 3\",\"\u0120 a\""
#define SEQUENCE(parts) "{\"type\":\"Sequence\",\"pretokenizers\":[" parts "," TINY_BYTE_LEVEL "]}"
#define SPLIT(kind, pattern, behavior, invert)                                                               \
    "{\"type\":\"Split\",\"pattern\":{\"" kind "\":\"" pattern "\"},\"behavior\":\"" behavior                \
    "\",\"invert\":" invert "}"
#define ISOLATED(pattern) SPLIT("Regex", pattern, "Isolated", "false")
#define REMOVED(pattern) SPLIT("Regex", pattern, "Removed", "false")

static nb_tokenizer *with(const char *pre)
{
    return tiny_new(&(tiny){.vocab = VOCAB, .merges = MERGES, .pre = pre});
}

static void isolated(void **state)
{
    (void)state;
    nb_tokenizer *t = with(SEQUENCE(ISOLATED("b") "," ISOLATED("c")));
    tiny_expect(t, "abc 12 123", 'a', 'b', 'c', ' ', 258, ' ', 259);
    nb_tokenizer_free(t);
    t = with(SEQUENCE(
        SPLIT("Regex", "[a-z]+", "Isolated", "true"))); /* invert changes nothing where both parts stay */
    tiny_expect(t, "abc 12 123", 257, ' ', 258, ' ', 259);
    nb_tokenizer_free(t);
}

static void removed(void **state)
{
    (void)state;
    nb_tokenizer *t = with(SEQUENCE(REMOVED(" ")));
    tiny_expect(t, "abc 12 123", 257, 258, 259);
    nb_tokenizer_free(t);
    t = with(SEQUENCE(SPLIT("Regex", "[a-z]+", "Removed", "true")));
    tiny_expect(t, "abcab.abc 1", 257, 256, 257);
    tiny_expect_nothing(t, "1\u00b2\u00bd");
    nb_tokenizer_free(t);
}

static void string_pattern_is_literal(void **state)
{
    (void)state;
    nb_tokenizer *t = with(SEQUENCE(SPLIT("String", "b.", "Isolated", "false")));
    tiny_expect(t, "abcab.abc", 257, 'a', 'b', '.', 257);
    nb_tokenizer_free(t);
}

static void digits(void **state)
{
    (void)state;
    nb_tokenizer *t = with(SEQUENCE("{\"type\":\"Digits\",\"individual_digits\":true}"));
    tiny_expect(t, "abc 12 123", 257, ' ', '1', '2', ' ', '1', '2', '3');
    nb_tokenizer_free(t);
    t = with(SEQUENCE("{\"type\":\"Digits\",\"individual_digits\":false}"));
    tiny_expect(t, "abc 12 123", 257, ' ', 258, ' ', 259);
    nb_tokenizer_free(t);
}

static void byte_level_brings_gpt2s_pattern(void **state)
{
    (void)state;
    nb_tokenizer *t = with("{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true}");
    tiny_expect(t, "abc's 123 ab", 257, '\'', 's', ' ', 259, ' ', 256);
    nb_tokenizer_free(t);
}

static void empty_matches_cut(void **state)
{
    (void)state;
    nb_tokenizer *t = with(SEQUENCE(ISOLATED("x*")));
    tiny_expect(t, "abc 12", 'a', 'b', 'c', ' ', '1', '2');
    tiny_expect(t, "xxab", 'x', 'x', 'a', 'b');
    nb_tokenizer_free(t);
    t = with(SEQUENCE(ISOLATED("(?<=a)b|(?=c)")));
    tiny_expect(t, "abcab.abc", 'a', 'b', 'c', 'a', 'b', '.', 'a', 'b', 'c');
    nb_tokenizer_free(t);
}

static void lines_begin_and_end_as_in_ruby(void **state)
{
    (void)state;
    nb_tokenizer *t = with(SEQUENCE(ISOLATED("^a")));
    tiny_expect(t, "x\nab", 'x', '\n', 'a', 'b');
    tiny_expect(t, "xab", 'x', 256);
    nb_tokenizer_free(t);
    t = with(SEQUENCE(ISOLATED("b$")));
    tiny_expect(t, "ab\nx", 'a', 'b', '\n', 'x');
    tiny_expect(t, "abc", 257);
    nb_tokenizer_free(t);
    t = with(SEQUENCE(ISOLATED(".b"))); /* . is anything but a line feed */
    tiny_expect(t, "\nb", '\n', 'b');
    nb_tokenizer_free(t);
}

static void white_space_is_the_unicode_property(void **state)
{
    (void)state;
    nb_tokenizer *t = with(SEQUENCE(REMOVED("\\\\s+")));
    tiny_expect(t,
                "a\u180eb\xC2\x85"
                "c\u3000d",
                'a', 0xE1, 0xA0, 0x8E, 'b', 'c', 'd'); /* U+180E is none, though PCRE2 says so */
    nb_tokenizer_free(t);
    t = with(SEQUENCE(REMOVED("\\\\S+")));
    tiny_expect(t,
                "abc\xC2\x85"
                "d\u180e",
                0xC2, 0x85);
    nb_tokenizer_free(t);
    t = with(SEQUENCE(REMOVED("[^\\\\s]")));
    tiny_expect(t, "a \u180e\t", ' ', '\t');
    nb_tokenizer_free(t);
}

static void property_names(void **state)
{
    (void)state;
    nb_tokenizer *t =
        with(SEQUENCE(REMOVED("\\\\p{Han}"))); /* the script alone: U+3001 is shared by several */
    tiny_expect(t, "\u3001\u4e00a", 0xE3, 0x80, 0x81, 'a');
    nb_tokenizer_free(t);
    t = with(SEQUENCE(REMOVED("\\\\d")));
    tiny_expect(t, "a1\u00b2b\u0661", 'a', 0xC2, 0xB2,
                'b'); /* Arabic one is a digit, superscript two is not */
    nb_tokenizer_free(t);
}

static void contractions_ignore_case(void **state)
{
    (void)state;
    nb_tokenizer *t = tiny_new(
        &(tiny){.vocab = ",\"Sx\":256", .merges = "\"S x\"", .pre = SEQUENCE(ISOLATED("(?i:'s|'t)"))});
    tiny_expect(t, "'Sx", '\'', 'S', 'x');
    tiny_expect(t, "Sx", 256);
    nb_tokenizer_free(t);
}

/* 200 KB of spaces, then tabs: one match attempt must not begin anew at each of them. */
static void long_white_space_is_quick(void **state)
{
    (void)state;
    size_t n = 200000;
    char *text = malloc(n);
    nb_tokenizer *t =
        with(SEQUENCE(ISOLATED(" ?[^\\\\s]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+")));
    nb_tok_scratch *s = nb_tok_scratch_new(t);
    nb_ids ids = {0};
    assert_non_null(text);
    memset(text, ' ', n);
    memset(text + n / 2, '\t', n / 2);
    assert_int_equal(nb_tokenizer_encode(t, s, text, n, false, &ids, NULL), NB_OK);
    assert_int_equal(ids.len, n);
    free(ids.data);
    free(text);
    nb_tok_scratch_free(s);
    nb_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(isolated),
        cmocka_unit_test(removed),
        cmocka_unit_test(string_pattern_is_literal),
        cmocka_unit_test(digits),
        cmocka_unit_test(byte_level_brings_gpt2s_pattern),
        cmocka_unit_test(empty_matches_cut),
        cmocka_unit_test(lines_begin_and_end_as_in_ruby),
        cmocka_unit_test(white_space_is_the_unicode_property),
        cmocka_unit_test(property_names),
        cmocka_unit_test(contractions_ignore_case),
        cmocka_unit_test(long_white_space_is_quick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
