/* Added tokens: where they match, what they swallow, which ids they get. Expected ids were computed by the Hugging Face
 * library (tokenizers 0.23.3) from the same definitions. */
#include "tiny.h"

#define FLAGS(single, l, r, norm, special)                                                                   \
    "\"single_word\":" #single ",\"lstrip\":" #l ",\"rstrip\":" #r ",\"normalized\":" #norm                  \
    ",\"special\":" #special
#define PLAIN(content) "{\"id\":0,\"content\":\"" content "\"," FLAGS(false, false, false, false, true) "}"

static const char strips[] = PLAIN("<s>") "," PLAIN("<s>x") ",{\"id\":0,\"content\":\"<l>\"," FLAGS(
    false, true, false, false,
    true) "},{\"id\":0,\"content\":\"<r>\"," FLAGS(false, false, true, false,
                                                   true) "},"
                                                         "{\"id\":0,\"content\":\"<w>\"," FLAGS(
                                                             true, false, false, false,
                                                             true) "},"
                                                                   "{\"id\":0,\"content\":\"<b>\"," FLAGS(
                                                                       false, true, true, false, true) "}";

static void longest_of_leftmost(void **state)
{
    (void)state;
    nb_tokenizer *t = tiny_new(&(tiny){.added = strips});
    tiny_expect(t, "a<s>b", 'a', 256, 'b');
    tiny_expect(t, "<s>x", 257);
    tiny_expect(t, "<s><s>x", 256, 257);
    tiny_expect(t, "<s", '<', 's'); /* a beginning alone is text */
    nb_tokenizer_free(t);
}

static void strip_swallows_white_space(void **state)
{
    (void)state;
    nb_tokenizer *t = tiny_new(&(tiny){.added = strips});
    tiny_expect(t, "a  <l>  b", 'a', 258, ' ', ' ', 'b');
    tiny_expect(t, "a  <r>  b", 'a', ' ', ' ', 259, 'b');
    tiny_expect(t, "a \u2003<b>\u3000\nb", 'a', 261, 'b'); /* em space, ideographic space */
    tiny_expect(t, "<r> <l>", 259, 258);                   /* the space is swallowed once */
    tiny_expect(t, "<r>  <r>", 259, 259);
    nb_tokenizer_free(t);
}

static void single_word_stands_alone(void **state)
{
    (void)state;
    nb_tokenizer *t = tiny_new(&(tiny){.added = strips});
    tiny_expect(t, "a<w>b", 'a', '<', 'w', '>', 'b');
    tiny_expect(t, "a <w> b", 'a', ' ', 260, ' ', 'b');
    tiny_expect(t, "-<w>-", '-', 260, '-');
    tiny_expect(t, "_<w>", '_', '<', 'w', '>');
    tiny_expect(t, "\u00e9<w>", 0xC3, 0xA9, '<', 'w', '>');
    tiny_expect(t, "\u24b6<w>", 0xE2, 0x92, 0xB6, '<', 'w', '>'); /* circled A: Alphabetic, but a symbol */
    tiny_expect(t, "\u200d<w>", 0xE2, 0x80, 0x8D, '<', 'w', '>'); /* zero width joiner */
    tiny_expect(t, "<w><s>", 260, 256);
    nb_tokenizer_free(t);
}

static void two_passes_around_normalisation(void **state)
{
    (void)state;
    static const char added[] = "{\"id\":0,\"content\":\"\u00e9t\"," FLAGS(
        false, false, false, true, false) "},"
                                          "{\"id\":0,\"content\":\"A\u030a\"," FLAGS(
                                              false, false, false, true, true) "}," PLAIN("e\u0301<");
    nb_tokenizer *t = tiny_new(&(tiny){.added = added, .normalizer = "{\"type\":\"NFC\"}"});
    tiny_expect(t, "e\u0301t", 256); /* found after NFC made é of it */
    tiny_expect(t, "\u00e9t", 256);
    tiny_expect(t, "\u00c5", 257); /* its own content is normalised too */
    tiny_expect(t, "\u212b", 257);
    tiny_expect(t, "e\u0301<", 258); /* found before */
    tiny_expect(t, "\u00e9<", 0xC3, 0xA9, '<');
    /* A special token that NFC changes is not known as special when decoding; é is read as the byte it stands for. */
    assert_false(nb_tokenizer_is_special(t, 257));
    tiny_expect_text(t, (const int[]){257, -1}, true, "\uFFFD");
    tiny_expect_text(t, (const int[]){258, -1}, true, "");
    tiny_expect_text(t, (const int[]){258, -1}, false, "e\u0301<");
    nb_tokenizer_free(t);
}

static void ids_count_up_from_the_vocabulary(void **state)
{
    (void)state;
    static const char added[] = PLAIN("q") "," PLAIN("zz") "," PLAIN(
        "ab") ",{\"id\":1,\"content\":\"zz\"," FLAGS(false, false, false, false, false) "}," PLAIN("yy");
    nb_tokenizer *t = tiny_new(&(tiny){.vocab = ",\"ab\":300", .added = added});
    assert_int_equal(nb_tokenizer_id(t, "q", 1), 'q');  /* in the vocabulary: keeps that id */
    assert_int_equal(nb_tokenizer_id(t, "ab", 2), 300); /* whatever the file says */
    assert_int_equal(nb_tokenizer_id(t, "zz", 2),
                     257); /* 257 entries, so the next is 257, though 300 is taken */
    assert_int_equal(nb_tokenizer_id(t, "yy", 2), 258);
    assert_int_equal(nb_tokenizer_id(t, "nope", 4), -1);
    assert_true(nb_tokenizer_is_special(t, 257)); /* once special, though its second entry says otherwise */
    assert_true(nb_tokenizer_is_special(t, 'q'));
    assert_false(nb_tokenizer_is_special(t, 'r'));
    assert_int_equal(nb_tokenizer_size(t), 301);
    nb_tokenizer_free(t);
}

/* A vocabulary with a gap: the counted id meets one that is taken, and the later token has it for matching and decoding. */
static void id_that_is_taken_goes_to_the_later_token(void **state)
{
    (void)state;
    nb_tokenizer *t = tiny_new(&(tiny){.vocab = ",\"ab\":258", .added = PLAIN("zz") "," PLAIN("yy")});
    tiny_expect(t, "zzyyab", 257, 258, 'a', 'b');
    tiny_expect_text(t, (const int[]){257, 258, -1}, false, "zzyy");
    nb_tokenizer_free(t);
    t = tiny_new(&(tiny){.vocab = ",\"<q>\":257", .added = PLAIN("<q>") "," PLAIN("new1") "," PLAIN("new2")});
    tiny_expect(t, "<q>new1new2", '<', 'q', '>', 257, 258);
    tiny_expect_text(t, (const int[]){257, -1}, false, "new1");
    nb_tokenizer_free(t);
}

static void text_outside_the_byte_alphabet_decodes_as_it_is(void **state)
{
    (void)state;
    static const char added[] = PLAIN("\u00e9") ",{\"id\":0,\"content\":\" x\"," FLAGS(
        false, false, false, false, false) "}," PLAIN("\uff5cq\uff5c");
    nb_tokenizer *t = tiny_new(&(tiny){.added = added});
    size_t n;
    tiny_expect_text(t, (const int[]){256, 257, -1}, false, " x\uff5cq\uff5c");
    tiny_expect_text(t, (const int[]){0xE9, -1}, false,
                     "\uFFFD"); /* é spells the byte E9, so it has that id and means it */
    tiny_expect_text(t, (const int[]){0xE9, 256, 257, -1}, true, " x");
    assert_memory_equal(nb_tokenizer_bytes(t, 257, &n), "\uff5cq\uff5c", 7);
    assert_int_equal(n, 7);
    assert_null(nb_tokenizer_bytes(t, 258, &n));
    nb_tokenizer_free(t);
}

static void equal_texts_are_refused(void **state)
{
    (void)state;
    static const char added[] = "{\"id\":0,\"content\":\"\u00c5\"," FLAGS(
        false, false, false, true, true) "},"
                                         "{\"id\":0,\"content\":\"A\u030a\"," FLAGS(false, false, false, true,
                                                                                    true) "}";
    nb_tokenizer *t = NULL;
    nb_error err = {0};
    assert_int_equal(tiny_parse(&(tiny){.added = added, .normalizer = "{\"type\":\"NFC\"}"}, &t, &err),
                     NB_ERR_FORMAT);
    assert_non_null(strstr(err.cause, "look for the same text"));
    assert_null(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(longest_of_leftmost),
        cmocka_unit_test(strip_swallows_white_space),
        cmocka_unit_test(single_word_stands_alone),
        cmocka_unit_test(two_passes_around_normalisation),
        cmocka_unit_test(ids_count_up_from_the_vocabulary),
        cmocka_unit_test(id_that_is_taken_goes_to_the_later_token),
        cmocka_unit_test(text_outside_the_byte_alphabet_decodes_as_it_is),
        cmocka_unit_test(equal_texts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
