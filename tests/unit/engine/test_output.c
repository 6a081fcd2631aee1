/* Stop strings end the text at the same byte however it is cut into tokens, and nothing that may become one is sent before. */
#include "text/tiny.h"

#include "engine/output.h"

#define R "\uFFFD"
enum { MOST = 12 };

typedef struct split_case {
    const char *text; /* at most MOST bytes */
    const char *stop[3];
    bool include;
    size_t min_tokens;
    const char *want;
    int hit;
} split_case;

static const split_case cases[] = {
    {"xabababcz", {"ababc"}, false, 0, "xab", 0},
    {"xabababcz", {"ababc"}, true, 0, "xabababc", 0},
    {"xabababcz", {"ababd", "c"}, false, 0, "xababab", 1},
    {"the end", {"end", "he"}, false, 0, "t", 1}, /* the earliest to be complete */
    {"abcabc", {"bc", "abc"}, false, 0, "a", 0},  /* both end there: the first in the list */
    {"abcabc", {"abc", "bc"}, false, 0, "", 0},
    {"aaaaab", {"aab"}, false, 0, "aaa", 0},
    {"hello", {"lox", "helm"}, false, 0, "hello", -1}, /* what was held comes at the end */
    {"\xc3\xa9t\xc3\xa9.", {"t\xc3\xa9"}, false, 0, "\u00e9", 0},
    {"\xc3\xa9t\xc3\xa9", {"\xc3\xaa"}, false, 0, "\u00e9t\u00e9", -1}, /* half a character alike */
    {"a\xc3", {"b"}, false, 0, "a" R, -1},                              /* half a character at the end */
    {"a\xc3"
     "b!",
     {"b"},
     false,
     0,
     "a" R,
     0},
    {"plain", {NULL}, false, 0, "plain", -1},
};

/* Token `256 + i` is bytes [from, to) of the text, for every from < to. */
static nb_tokenizer *substrings(const char *text, size_t n, uint32_t id[MOST][MOST + 1])
{
    nb_buf vocab = {0};
    char seen[MOST * MOST][MOST + 1];
    size_t n_seen = 0;
    for (size_t from = 0; from < n; from++)
        for (size_t to = from + 1; to <= n; to++) {
            size_t k = 0, len = to - from;
            if (len == 1) {
                id[from][to] = (unsigned char)text[from];
                continue;
            }
            while (k < n_seen && (strlen(seen[k]) != len || memcmp(seen[k], text + from, len) != 0)) k++;
            id[from][to] = (uint32_t)(256 + k);
            if (k < n_seen) continue;
            nb_buf name = {0};
            for (size_t i = from; i < to; i++) {
                char utf8[4];
                nb_buf_add(&name, utf8, nb_utf8_encode(tiny_char((unsigned char)text[i]), utf8));
            }
            nb_buf_addc(&vocab, ',');
            nb_buf_add_json(&vocab, name.data, name.len);
            nb_buf_addf(&vocab, ":%zu", 256 + n_seen);
            nb_buf_free(&name);
            memcpy(seen[n_seen], text + from, len);
            seen[n_seen++][len] = '\0';
        }
    nb_tokenizer *t = tiny_new(&(tiny){.vocab = nb_buf_str(&vocab)});
    nb_buf_free(&vocab);
    return t;
}

static nb_output *output(const nb_tokenizer *t, const split_case *c)
{
    nb_output *o = NULL;
    size_t len[3], n = 0;
    for (; n < 3 && c->stop[n]; n++) len[n] = strlen(c->stop[n]);
    const nb_output_options opt = {.tokenizer = t,
                                   .token_bytes = MOST,
                                   .stop = c->stop,
                                   .stop_len = len,
                                   .n_stop = n,
                                   .include_stop = c->include,
                                   .min_tokens = c->min_tokens};
    assert_int_equal(nb_output_new(&opt, &o, NULL), NB_OK);
    return o;
}

static void take(nb_output *o, char *text)
{
    size_t n, len = strlen(text);
    const char *p = nb_output_take(o, &n);
    assert_true(n <= nb_output_most(o));
    uint32_t cp;
    for (size_t i = 0, w; i < n; i += w) { /* whole characters only */
        w = nb_utf8_decode(p + i, n - i, &cp);
        assert_true(w > 0);
    }
    memcpy(text + len, p, n);
    text[len + n] = '\0';
}

static void every_split(void **unused)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const split_case *c = &cases[i];
        uint32_t id[MOST][MOST + 1];
        size_t n = strlen(c->text);
        nb_tokenizer *t = substrings(c->text, n, id);
        for (size_t cuts = 0; cuts < (size_t)1 << (n - 1); cuts++) { /* bit k: a border after byte k */
            nb_output *o = output(t, c);
            char text[64] = "";
            int hit = -1;
            for (size_t from = 0, to; from < n && hit < 0; from = to) {
                for (to = from + 1; to < n && !(cuts >> (to - 1) & 1);) to++;
                hit = nb_output_push(o, id[from][to], false);
                if (hit < 0) take(o, text);
                if (strncmp(text, c->want, strlen(text)) != 0) fail_msg("'%s' sent of '%s'", text, c->text);
            }
            nb_output_finish(o);
            take(o, text);
            if (strcmp(text, c->want) != 0 || hit != c->hit)
                fail_msg("'%s' cut %zx: '%s', stop %d", c->text, cuts, text, hit);
            nb_output_free(o);
        }
        nb_tokenizer_free(t);
    }
}

static void pushes(nb_output *o, const char *bytes, const char *const *want)
{
    for (size_t i = 0; bytes[i]; i++) {
        char text[64] = "";
        nb_output_push(o, (unsigned char)bytes[i], false);
        take(o, text);
        assert_string_equal(text, want[i]);
    }
}

/* Only what may still become a stop string waits. */
static void held_no_longer_than_needed(void **unused)
{
    nb_tokenizer *t = tiny_new(&(tiny){0});
    nb_output *o = output(t, &(split_case){.stop = {"abcd"}});
    pushes(o, "xabxabc", (const char *const[]){"x", "", "", "abx", "", "", ""});
    char text[64] = "";
    nb_output_finish(o);
    take(o, text);
    assert_string_equal(text, "abc");
    nb_output_free(o);
    nb_tokenizer_free(t);
}

/* A match must end in the text of a token after the first min_tokens; it may begin before. */
static void min_tokens(void **unused)
{
    nb_tokenizer *t = tiny_new(&(tiny){0});
    nb_output *o = output(t, &(split_case){.stop = {"ab"}, .min_tokens = 2});
    for (const char *p = "abca"; *p; p++) assert_int_equal(nb_output_push(o, (unsigned char)*p, false), -1);
    assert_int_equal(nb_output_push(o, 'b', false), 0);
    nb_output_free(o);
    o = output(t, &(split_case){.stop = {"bc"}, .min_tokens = 2});
    assert_int_equal(nb_output_push(o, 'a', false), -1);
    assert_int_equal(nb_output_push(o, 'b', false), -1);
    assert_int_equal(nb_output_push(o, 'c', false), 0);
    nb_output_free(o);
    nb_tokenizer_free(t);
}

/* Special tokens are skipped, but for those to keep; a character that they cut in two is U+FFFD; a silent token is no text. */
static void special_tokens(void **unused)
{
#define ADDED(id, text)                                                                                      \
    "{\"id\":" #id ",\"content\":\"" text                                                                    \
    "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}"
    nb_tokenizer *t = tiny_new(&(tiny){.added = ADDED(256, "<think>") "," ADDED(257, "<eos>")});
    const uint32_t keep = 256;
    const nb_output_options opt = {
        .tokenizer = t, .token_bytes = 8, .skip_special = true, .keep = &keep, .n_keep = 1};
    static const uint32_t ids[] = {'a', 257, 0xC3, 256, 'b'};
    static const char *const want[] = {"a", "", "", R "<think>", "b"};
    nb_output *o = NULL;
    assert_int_equal(nb_output_new(&opt, &o, NULL), NB_OK);
    for (size_t i = 0; i < 5; i++) {
        char text[64] = "";
        nb_output_push(o, ids[i], false);
        take(o, text);
        assert_string_equal(text, want[i]);
    }
    char text[64] = "";
    nb_output_push(o, 'c', true);
    nb_output_finish(o);
    take(o, text);
    assert_string_equal(text, "");
    nb_output_free(o);
    nb_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split),
        cmocka_unit_test(held_no_longer_than_needed),
        cmocka_unit_test(min_tokens),
        cmocka_unit_test(special_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
