/* Bytes that are not UTF-8, whole and streamed. Expected texts are what tokenizers 0.23.3 decodes from the same byte tokens
 * (Rust's lossy conversion: each maximal part of a character is one U+FFFD). */
#include "tiny.h"

#define R "\uFFFD"

static const struct {
    int ids[8];
    const char *text;
} cases[] = {
    {{0xE4, 0xBD, -1}, R},
    {{0xE4, 0xBD, 'A', -1}, R "A"},
    {{0xF0, 0x9F, 0x98, 'A', -1}, R "A"},
    {{0xC0, 0x80, -1}, R R},
    {{0xED, 0xA0, 0x80, -1}, R R R},         /* a surrogate */
    {{0xF4, 0x90, 0x80, 0x80, -1}, R R R R}, /* beyond U+10FFFF */
    {{0xFF, 'A', 0xE4, -1}, R "A" R},
    {{0xE0, 0x9F, 0x80, -1}, R R R}, /* overlong */
    {{0xF0, 0x8F, -1}, R R},
    {{0xE4, 0xE4, 0xBD, 0xA0, -1}, R "\u4f60"},
    {{0xF5, 0x80, -1}, R R},
    {{0xC3, 0xC3, 0xA9, -1}, R "\u00e9"},
    {{0x80, -1}, R},
    {{0xF0, 0x9F, 0x98, 0x80, 'x', -1}, "\U0001F600x"},
    {{-1}, ""},
};
#define N_CASES (sizeof cases / sizeof *cases)

static void whole_texts(void **state)
{
    (void)state;
    nb_tokenizer *t = tiny_new(&(tiny){0});
    for (size_t i = 0; i < N_CASES; i++) tiny_expect_text(t, cases[i].ids, false, cases[i].text);
    nb_tokenizer_free(t);
}

static void streams_give_the_same(void **state)
{
    (void)state;
    nb_tokenizer *t = tiny_new(&(tiny){0});
    for (size_t i = 0; i < N_CASES; i++) {
        nb_detok d;
        nb_buf out = {0};
        nb_detok_init(&d, t, false, false);
        for (const int *id = cases[i].ids; *id >= 0; id++) nb_detok_push(&d, (uint32_t)*id, &out);
        nb_detok_flush(&d, &out);
        assert_string_equal(nb_buf_str(&out), cases[i].text);
        assert_int_equal(d.n_pending, 0);
        nb_buf_free(&out);
    }
    nb_tokenizer_free(t);
}

/* What each push sends. An impossible byte is certain at once: 0x9F cannot follow 0xE0, so two U+FFFD come then. */
static void pieces_are_sent_as_soon_as_certain(void **state)
{
    (void)state;
    static const struct {
        uint32_t id;
        const char *piece;
    } steps[] = {{0xE4, ""},  {0xBD, ""}, {0xA0, "\u4f60"}, {0xE0, ""},
                 {0x9F, R R}, {0xE4, ""}, {'A', R "A"},     {0xF0, ""}};
    nb_tokenizer *t = tiny_new(&(tiny){0});
    nb_detok d;
    nb_buf out = {0};
    nb_detok_init(&d, t, false, true);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        nb_buf_clear(&out);
        nb_detok_push(&d, steps[i].id, &out);
        assert_string_equal(nb_buf_str(&out), steps[i].piece);
    }
    nb_buf_clear(&out);
    nb_detok_flush(&d, &out);
    assert_string_equal(nb_buf_str(&out), R);
    nb_buf_free(&out);
    nb_tokenizer_free(t);
}

/* A special token that is skipped does not end a character; one that is shown does. Ids without a token are nothing. */
static void special_tokens_in_a_character(void **state)
{
    (void)state;
    nb_tokenizer *t = tiny_new(&(tiny){
        .added = "{\"id\":0,\"content\":\"<s>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                 "\"normalized\":false,\"special\":true}",
        .vocab = ",\"far\":999"});
    tiny_expect_text(t, (const int[]){0xE4, 0xBD, 257, 0xA0, -1}, true, "\u4f60");
    tiny_expect_text(t, (const int[]){0xE4, 0xBD, 257, 0xA0, -1}, false, R "<s>" R);
    tiny_expect_text(t, (const int[]){'a', 500, 100000, 'b', -1}, false, "ab");
    nb_tokenizer_free(t);
}

static void decoding_undoes_encoding(void **state)
{
    (void)state;
    nb_tokenizer *t = tiny_new(&(tiny){.vocab = ",\"ab\":256", .merges = "\"a b\""});
    nb_tok_scratch *s = nb_tok_scratch_new(t);
    nb_buf text = {0}, back = {0};
    nb_ids ids = {0};
    for (uint32_t c = 0; c < 0x110000; c += c < 0x3000 ? 1 : 97) {
        char utf8[4];
        if (c >= 0xD800 && c < 0xE000) continue;
        nb_buf_add(&text, utf8, nb_utf8_encode(c, utf8));
        nb_buf_adds(&text, c % 7 ? "" : "ab");
    }
    assert_int_equal(nb_tokenizer_encode(t, s, text.data, text.len, false, &ids, NULL), NB_OK);
    assert_int_equal(nb_tokenizer_decode(t, ids.data, ids.len, false, &back, NULL), NB_OK);
    assert_int_equal(back.len, text.len);
    assert_memory_equal(back.data, text.data, text.len);
    nb_buf_free(&text);
    nb_buf_free(&back);
    free(ids.data);
    nb_tok_scratch_free(s);
    nb_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_texts),
        cmocka_unit_test(streams_give_the_same),
        cmocka_unit_test(pieces_are_sent_as_soon_as_certain),
        cmocka_unit_test(special_tokens_in_a_character),
        cmocka_unit_test(decoding_undoes_encoding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
