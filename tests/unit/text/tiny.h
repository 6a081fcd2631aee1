/* Small tokenizers for the tests, spelled out: a vocabulary of all 256 bytes (byte b has id b), then what a test adds. */
#ifndef NB_TESTS_TEXT_TINY_H
#define NB_TESTS_TEXT_TINY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/utf8.h"
#include "text/tokenizer.h"

#define TINY_BYTE_LEVEL                                                                                      \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}"
#define TINY_DECODER                                                                                         \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true}"

typedef struct tiny {
    const char *vocab;      /* members after the bytes, each with a comma in front: ",\"ab\":256" */
    const char *merges;     /* elements of the array */
    const char *model;      /* further members of the model, each with a comma in front */
    const char *added;      /* elements of added_tokens */
    const char *normalizer; /* NULL: null */
    const char *pre;        /* NULL: one ByteLevel without a pattern, so that a text is one piece */
    const char *post;       /* NULL: null */
    const char *decoder;    /* NULL: ByteLevel */
    const char *config;     /* tokenizer_config.json; NULL: none */
    bool no_bytes;          /* vocab is the whole vocabulary */
} tiny;

/* The character that stands for a byte in GPT-2's alphabet, by its definition: printable Latin-1 as it is, the others count
 * up from U+0100. */
static inline uint32_t tiny_char(int byte)
{
    uint32_t next = 256;
    for (int b = 0; b < 256; b++) {
        bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        if (b == byte) return printable ? (uint32_t)b : next;
        if (!printable) next++;
    }
    return 0;
}

static inline void tiny_json(const tiny *k, nb_buf *out)
{
    nb_buf_addf(
        out,
        "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[%s],\"normalizer\":%s,",
        k->added ? k->added : "", k->normalizer ? k->normalizer : "null");
    nb_buf_addf(out, "\"pre_tokenizer\":%s,\"post_processor\":%s,\"decoder\":%s,",
                k->pre ? k->pre : TINY_BYTE_LEVEL, k->post ? k->post : "null",
                k->decoder ? k->decoder : TINY_DECODER);
    nb_buf_addf(out, "\"model\":{\"type\":\"BPE\"%s,\"vocab\":{", k->model ? k->model : "");
    for (int b = 0; b < 256 && !k->no_bytes; b++) {
        char utf8[4];
        size_t n = nb_utf8_encode(tiny_char(b), utf8);
        nb_buf_addc(out, b ? ',' : ' ');
        nb_buf_add_json(out, utf8, n);
        nb_buf_addf(out, ":%d", b);
    }
    nb_buf_addf(out, "%s},\"merges\":[%s]}}", k->vocab ? k->vocab : "", k->merges ? k->merges : "");
}

static inline nb_status tiny_parse(const tiny *k, nb_tokenizer **t, nb_error *err)
{
    nb_buf json = {0};
    tiny_json(k, &json);
    nb_status s =
        nb_tokenizer_parse(json.data, json.len, k->config, k->config ? strlen(k->config) : 0, t, err);
    nb_buf_free(&json);
    return s;
}

static inline nb_tokenizer *tiny_new(const tiny *k)
{
    nb_tokenizer *t = NULL;
    nb_error err = {0};
    if (tiny_parse(k, &t, &err)) fail_msg("%s", err.cause);
    return t;
}

/* Encodes n bytes and compares with ids, which end with -1. */
static inline void tiny_expect_n(const nb_tokenizer *t, const char *text, size_t n, bool special,
                                 const int *ids)
{
    nb_ids got = {0};
    nb_error err = {0};
    nb_tok_scratch *s = nb_tok_scratch_new(t);
    assert_non_null(s);
    if (nb_tokenizer_encode(t, s, text, n, special, &got, &err)) fail_msg("'%s': %s", text, err.cause);
    size_t want = 0;
    while (ids[want] >= 0) want++;
    bool same = got.len == want;
    for (size_t i = 0; same && i < want; i++) same = got.data[i] == (uint32_t)ids[i];
    if (!same) {
        nb_buf line = {0};
        for (size_t i = 0; i < got.len; i++) nb_buf_addf(&line, " %u", got.data[i]);
        fail_msg("'%s' gave%s", text, nb_buf_str(&line));
    }
    free(got.data);
    nb_tok_scratch_free(s);
}

#define tiny_expect(t, text, ...) tiny_expect_n(t, text, strlen(text), false, (const int[]){__VA_ARGS__, -1})
#define tiny_expect_nothing(t, text) tiny_expect_n(t, text, strlen(text), false, (const int[]){-1})
#define tiny_expect_special(t, text, ...)                                                                    \
    tiny_expect_n(t, text, strlen(text), true, (const int[]){__VA_ARGS__, -1})

/* Decodes ids (ending with -1) and compares. */
static inline void tiny_expect_text(const nb_tokenizer *t, const int *ids, bool skip_special,
                                    const char *want)
{
    uint32_t id[64];
    size_t n = 0;
    nb_buf got = {0};
    for (; ids[n] >= 0; n++) id[n] = (uint32_t)ids[n];
    assert_int_equal(nb_tokenizer_decode(t, id, n, skip_special, &got, NULL), NB_OK);
    assert_string_equal(nb_buf_str(&got), want);
    nb_buf_free(&got);
}

#endif
