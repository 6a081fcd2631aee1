/* Vocabularies of SentencePiece's style, by small examples: characters and byte fallback, marks for spaces, unknown characters, what is
 * decoded and streamed. test_vectors.c holds whole tokenizers to the reference. */
#include "tiny.h"

#define MARK "\xE2\x96\x81"
#define DECODER                                                                                              \
    "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"" MARK             \
    "\"},\"content\":\" "                                                                                    \
    "\"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" "                \
    "\",\"start\":1,\"stop\":0}]}"
#define LLAMA                                                                                                \
    "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"" MARK                      \
    "\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK "\"}]}"
#define METASPACE(scheme, split)                                                                             \
    "{\"type\":\"Metaspace\",\"replacement\":\"" MARK "\",\"prepend_scheme\":\"" scheme                      \
    "\",\"split\":" split "}"
#define SPECIAL(text)                                                                                        \
    "{\"content\":\"" text                                                                                   \
    "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}"

/* 0 <unk>, 1 the mark, 2 a, 3 b, 4 mark a, 5 ab, 6 mark mark, 7 and 8 the bytes of U+00E9, 9 <s>, 10 b mark, 11 0xFF */
#define VOCAB                                                                                                \
    "\"<unk>\":0,\"" MARK "\":1,\"a\":2,\"b\":3,\"" MARK "a\":4,\"ab\":5,\"" MARK MARK "\":6,\"<0xC3>\":7,"  \
    "\"<0xA9>\":8,\"<s>\":9,\"b" MARK "\":10,\"<0xFF>\":11"

static const tiny base = {
    .no_bytes = true,
    .vocab = VOCAB,
    .merges = "[\"" MARK "\",\"" MARK "\"],[\"" MARK "\",\"a\"],[\"a\",\"b\"]",
    .model = ",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true",
    .normalizer = LLAMA,
    .pre = "null",
    .decoder = DECODER,
    .added = SPECIAL("<s>"),
};

static void marks_and_merges(void **state)
{
    (void)state;
    nb_tokenizer *t = tiny_new(&base);
    tiny_expect_nothing(t, "");
    tiny_expect(t, "a", 4);
    tiny_expect(t, "ab", 4, 3); /* the mark takes a first: its rank is lower */
    tiny_expect(t, "b ab", 1, 3, 4, 3);
    tiny_expect(t, " a", 6, 2);                 /* two marks are one token, before one of them could take a */
    tiny_expect(t, "<s>a<s> a", 9, 4, 9, 6, 2); /* a mark before every stretch */
    nb_tokenizer_free(t);
}

static void bytes_and_unknown(void **state)
{
    (void)state;
    tiny k = base;
    nb_tokenizer *t = tiny_new(&k);
    tiny_expect(t, "a\xC3\xA9", 4, 7, 8);
    tiny_expect(t, "axyb", 4, 0, 3); /* a run of unknown ones is one */
    tiny_expect(t, "x\xC3\xA9y", 1, 7, 8,
                0); /* bytes do not end the run, and stand before it: so does the reference */
    nb_tokenizer_free(t);
    k.model = ",\"unk_token\":\"<unk>\",\"fuse_unk\":false,\"byte_fallback\":false";
    t = tiny_new(&k);
    tiny_expect(t, "axyb", 4, 0, 0, 3);
    tiny_expect(t, "\xC3\xA9", 1, 0);
    nb_tokenizer_free(t);
    k.model = "";
    t = tiny_new(&k);
    tiny_expect(t, "axyb", 4, 3); /* nothing stands for what is unknown: but it keeps a and b apart */
    nb_tokenizer_free(t);
}

/* A merge may pass the beginning of a word; then words are not cut apart. */
static void merges_across_words(void **state)
{
    (void)state;
    tiny k = base;
    k.merges = "[\"b\",\"" MARK "\"],[\"" MARK "\",\"a\"]";
    nb_tokenizer *t = tiny_new(&k);
    tiny_expect(t, "b a", 1, 10, 2);
    tiny_expect(t, "a a", 4, 4);
    nb_tokenizer_free(t);
}

static void metaspace(void **state)
{
    (void)state;
    tiny k = base;
    k.normalizer = NULL;
    k.pre = METASPACE("first", "false");
    nb_tokenizer *t = tiny_new(&k);
    tiny_expect(t, "a<s>a", 4, 9, 2);
    tiny_expect(t, " a", 4);
    tiny_expect(t, "<s>a", 9, 2);
    tiny_expect(t, "  a", 6, 2);
    nb_tokenizer_free(t);
    k.pre = METASPACE("always", "true");
    t = tiny_new(&k);
    tiny_expect(t, "a<s>a", 4, 9, 4);
    tiny_expect(t, "  a", 1, 4);
    nb_tokenizer_free(t);
    k.pre = METASPACE("never", "false");
    t = tiny_new(&k);
    tiny_expect(t, "ab a", 5, 4);
    nb_tokenizer_free(t);
}

static void decoded(void **state)
{
    (void)state;
    nb_tokenizer *t = tiny_new(&base);
    tiny_expect_text(t, (const int[]){4, 3, 4, -1}, false, "ab a");
    tiny_expect_text(t, (const int[]){6, 2, -1}, false, " a"); /* one space is dropped, not two */
    tiny_expect_text(t, (const int[]){9, 4, -1}, false, "<s> a");
    tiny_expect_text(t, (const int[]){9, 4, -1}, true, "a");
    tiny_expect_text(t, (const int[]){2, 7, 8, 3, -1}, false,
                     "a\xC3\xA9"
                     "b");
    tiny_expect_text(t, (const int[]){7, 2, -1}, false,
                     "\xEF\xBF\xBD"
                     "a");
    tiny_expect_text(t, (const int[]){7, 8, 11, -1}, false,
                     "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"); /* a run counts as a whole */
    assert_int_equal(nb_tokenizer_id(t, MARK "a", 4), 4);
    size_t n;
    assert_memory_equal(nb_tokenizer_bytes(t, 4, &n), " a", 2);
    assert_int_equal(n, 2);
    nb_tokenizer_free(t);
}

static void expect_stream(const nb_tokenizer *t, bool has_prompt, const int *ids, const char *const *pieces)
{
    nb_detok d;
    nb_buf out = {0};
    nb_detok_init(&d, t, false, has_prompt);
    size_t i = 0;
    for (; ids[i] >= 0; i++) {
        nb_buf_clear(&out);
        nb_detok_push(&d, (uint32_t)ids[i], &out);
        assert_string_equal(nb_buf_str(&out), pieces[i]);
    }
    nb_buf_clear(&out);
    nb_detok_flush(&d, &out);
    assert_string_equal(nb_buf_str(&out), pieces[i]);
    nb_buf_free(&out);
}

static void streamed(void **state)
{
    (void)state;
    nb_tokenizer *t = tiny_new(&base);
    expect_stream(t, false, (const int[]){4, 4, -1}, (const char *const[]){"a", " a", ""});
    expect_stream(t, true, (const int[]){4, 4, -1}, (const char *const[]){" a", " a", ""});
    expect_stream(t, false, (const int[]){1, 1, 2, -1}, (const char *const[]){"", " ", "a", ""});
    expect_stream(t, false, (const int[]){7, 8, 7, -1},
                  (const char *const[]){"", "\xC3\xA9", "", "\xEF\xBF\xBD"});
    expect_stream(t, false, (const int[]){7, 2, 11, -1},
                  (const char *const[]){"",
                                        "\xEF\xBF\xBD"
                                        "a",
                                        "\xEF\xBF\xBD", ""});
    nb_tokenizer_free(t);
}

/* A line of a megabyte without a place to cut takes a moment, not a quarter of an hour. */
static void one_long_line(void **state)
{
    (void)state;
    tiny k = base;
    k.merges = "[\"" MARK "\",\"" MARK "\"],[\"a\",\"b\"],[\"b\",\"" MARK "\"]";
    nb_tokenizer *t = tiny_new(&k);
    nb_tok_scratch *s = nb_tok_scratch_new(t);
    nb_buf text = {0};
    nb_ids ids = {0};
    for (int i = 0; i < 1 << 18; i++) nb_buf_adds(&text, "abb ");
    assert_int_equal(nb_tokenizer_encode(t, s, text.data, text.len, false, &ids, NULL), NB_OK);
    assert_int_equal(ids.len, 1 + 2 * (1 << 18)); /* the first mark, then ab and b-mark */
    free(ids.data);
    nb_buf_free(&text);
    nb_tok_scratch_free(s);
    nb_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marks_and_merges),
        cmocka_unit_test(bytes_and_unknown),
        cmocka_unit_test(merges_across_words),
        cmocka_unit_test(metaspace),
        cmocka_unit_test(decoded),
        cmocka_unit_test(streamed),
        cmocka_unit_test(one_long_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
