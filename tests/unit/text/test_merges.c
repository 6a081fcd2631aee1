/* Merging: the order of merges, bytes that the vocabulary lacks, and pieces too long for anything but n log n. */
#include "tiny.h"

static void lowest_rank_first_then_leftmost(void **state)
{
    (void)state;
    nb_tokenizer *t = tiny_new(&(tiny){.vocab = ",\"ab\":256,\"bc\":257,\"abc\":258,\"aa\":259,\"aaa\":260",
                                       .merges = "\"b c\",\"a b\",\"a bc\",\"a a\",\"aa a\""});
    tiny_expect(t, "abc", 258); /* bc first, then a+bc */
    tiny_expect(t, "ab", 256);
    tiny_expect(t, "aab", 'a', 256); /* a+b has the lower rank */
    tiny_expect(t, "aaaa", 259, 259);
    tiny_expect(t, "aaaaa", 259, 260); /* aa aa a: the last two become aaa */
    tiny_expect(t, "abcab", 258, 256);
    nb_tokenizer_free(t);
}

/* Of a pair that stands twice the later rank counts: ab has rank 2 here, so bc is merged first. */
static void later_rank_of_a_pair_counts(void **state)
{
    (void)state;
    nb_tokenizer *t = tiny_new(
        &(tiny){.vocab = ",\"ab\":256,\"bc\":257", .merges = "[\"a\",\"b\"],[\"b\",\"c\"],[\"a\",\"b\"]"});
    tiny_expect(t, "abc", 'a', 257);
    nb_tokenizer_free(t);
}

static void version_line_has_no_rank(void **state)
{
    (void)state;
    nb_tokenizer *t = tiny_new(&(tiny){.vocab = ",\"ab\":256", .merges = "\"#version: 0.2\",\"a b\""});
    tiny_expect(t, "ab", 256);
    nb_tokenizer_free(t);
}

static const char four[] = "\"a\":0,\"b\":1,\"ab\":2,\"<unk>\":3";

static void unknown_bytes(void **state)
{
    (void)state;
    nb_tokenizer *t = tiny_new(&(tiny){.no_bytes = true, .vocab = four, .merges = "\"a b\""});
    tiny_expect(t, "aXb", 2); /* dropped: what stood around it then meets */
    tiny_expect_nothing(t, "XX");
    tiny_expect(t, "aXXb", 2);
    nb_tokenizer_free(t);
    t = tiny_new(
        &(tiny){.no_bytes = true, .vocab = four, .merges = "\"a b\"", .model = ",\"unk_token\":\"<unk>\""});
    tiny_expect(t, "aXb", 0, 3, 1);
    tiny_expect(t, "aXXb", 0, 3, 3, 1);
    nb_tokenizer_free(t);
    t = tiny_new(&(tiny){.no_bytes = true,
                         .vocab = four,
                         .merges = "\"a b\"",
                         .model = ",\"unk_token\":\"<unk>\",\"fuse_unk\":true"});
    tiny_expect(t, "aXXb", 0, 3, 1);
    tiny_expect(t, "XaX", 3, 0, 3);
    nb_tokenizer_free(t);
}

static void ignore_merges_takes_a_whole_piece(void **state)
{
    (void)state;
    nb_tokenizer *t = tiny_new(&(tiny){.vocab = ",\"xyz\":256", .model = ",\"ignore_merges\":true"});
    tiny_expect(t, "xyz", 256);
    tiny_expect(t, "xyzx", 'x', 'y', 'z', 'x');
    nb_tokenizer_free(t);
}

/* A second encoding of the same pieces comes from the cache and must not differ; neither must pieces that share a slot. */
static void cached_pieces_are_the_same(void **state)
{
    (void)state;
    static const char digits[] =
        "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},"
        "\"behavior\":\"Isolated\",\"invert\":false}," TINY_BYTE_LEVEL "]}";
    nb_tokenizer *t = tiny_new(&(tiny){.vocab = ",\"12\":256", .merges = "\"1 2\"", .pre = digits});
    nb_tok_scratch *warm = nb_tok_scratch_new(t);
    assert_non_null(warm);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 100000; i++) {
            char word[16];
            int n = snprintf(word, sizeof word, "%d", i);
            nb_ids ids = {0};
            assert_int_equal(nb_tokenizer_encode(t, warm, word, (size_t)n, false, &ids, NULL), NB_OK);
            size_t k = 0;
            for (int c = 0; c < n; c++, k++) {
                bool twelve = word[c] == '1' && word[c + 1] == '2';
                assert_int_equal(ids.data[k], twelve ? 256 : word[c]);
                c += twelve;
            }
            assert_int_equal(ids.len, k);
            free(ids.data);
        }
    }
    nb_tok_scratch_free(warm);
    nb_tokenizer_free(t);
}

/* 4 MB of one letter as one piece. Quadratic merging would take hours. a*2^k merge pairwise: 2^22 letters end as
 * 2^22 / 8 = 524288 tokens of eight. */
static void one_letter_four_megabytes(void **state)
{
    (void)state;
    size_t n = (size_t)1 << 22;
    char *text = malloc(n);
    assert_non_null(text);
    memset(text, 'a', n);
    nb_tokenizer *t = tiny_new(&(tiny){.vocab = ",\"aa\":256,\"aaaa\":257,\"aaaaaaaa\":258",
                                       .merges = "\"a a\",\"aa aa\",\"aaaa aaaa\""});
    nb_tok_scratch *s = nb_tok_scratch_new(t);
    nb_ids ids = {0};
    assert_int_equal(nb_tokenizer_encode(t, s, text, n, false, &ids, NULL), NB_OK);
    assert_int_equal(ids.len, n / 8);
    for (size_t i = 0; i < ids.len; i++) assert_int_equal(ids.data[i], 258);
    free(ids.data);
    free(text);
    nb_tok_scratch_free(s);
    nb_tokenizer_free(t);
}

static void scratch_serves_one_tokenizer(void **state)
{
    (void)state;
    nb_tokenizer *a = tiny_new(&(tiny){0}), *b = tiny_new(&(tiny){0});
    nb_tok_scratch *s = nb_tok_scratch_new(a);
    nb_ids ids = {0};
    assert_int_equal(nb_tokenizer_encode(b, s, "x", 1, false, &ids, NULL), NB_ERR_ARGUMENT);
    assert_int_equal(ids.len, 0);
    nb_tok_scratch_free(s);
    nb_tokenizer_free(a);
    nb_tokenizer_free(b);
}

static void bad_utf8_is_named(void **state)
{
    (void)state;
    nb_tokenizer *t = tiny_new(&(tiny){0});
    nb_tok_scratch *s = nb_tok_scratch_new(t);
    nb_ids ids = {0};
    nb_error err = {0};
    assert_int_equal(nb_tokenizer_encode(t, s, "ok", 2, false, &ids, &err), NB_OK);
    assert_int_equal(nb_tokenizer_encode(t, s, "0123456789\xC3", 11, false, &ids, &err), NB_ERR_ARGUMENT);
    assert_int_equal(err.offset, 10);
    assert_int_equal(nb_tokenizer_encode(t, s, "\xED\xA0\x80", 3, false, &ids, &err),
                     NB_ERR_ARGUMENT); /* surrogate */
    assert_int_equal(err.offset, 0);
    assert_int_equal(ids.len, 2); /* what was there stays */
    tiny_expect_n(t, "a\0b", 3, false, (const int[]){'a', 0, 'b', -1});
    free(ids.data);
    nb_tok_scratch_free(s);
    nb_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lowest_rank_first_then_leftmost),
        cmocka_unit_test(later_rank_of_a_pair_counts),
        cmocka_unit_test(version_line_has_no_rank),
        cmocka_unit_test(unknown_bytes),
        cmocka_unit_test(ignore_merges_takes_a_whole_piece),
        cmocka_unit_test(cached_pieces_are_the_same),
        cmocka_unit_test(one_letter_four_megabytes),
        cmocka_unit_test(scratch_serves_one_tokenizer),
        cmocka_unit_test(bad_utf8_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
