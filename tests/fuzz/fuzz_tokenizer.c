/* Any bytes as tokenizer.json, and any text through the tokenizer that comes of it. Input: the JSON, then, after the first
 * 0xFF byte (which no JSON holds), the text; without one, a text that has something of everything. */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool what)
{
    if (!what) abort();
}

/* The stream of pieces is the text that decoding in one go gives, but where ByteFallback judges a run of bytes as a whole. */
static void decode_both_ways(const nb_tokenizer *t, const nb_ids *ids, bool skip_special)
{
    nb_buf whole = {0}, stream = {0};
    nb_detok d;
    require(nb_tokenizer_decode(t, ids->data, ids->len, skip_special, &whole, NULL) == NB_OK);
    nb_detok_init(&d, t, skip_special, false);
    for (size_t i = 0; i < ids->len; i++) nb_detok_push(&d, ids->data[i], &stream);
    nb_detok_flush(&d, &stream);
    bool same = whole.len == stream.len && (!whole.len || memcmp(whole.data, stream.data, whole.len) == 0);
    require(same || strstr(nb_buf_str(&whole), "\xEF\xBF\xBD"));
    nb_buf_free(&whole);
    nb_buf_free(&stream);
}

static void use(const nb_tokenizer *t, const char *text, size_t n)
{
    nb_ids ids = {0}, again = {0};
    nb_error err = {0};
    nb_tok_scratch *s = nb_tok_scratch_new(t);
    require(s != NULL);
    nb_status status = nb_tokenizer_encode(t, s, text, n, true, &ids, &err);
    if (status) {
        require(err.cause[0] && !ids.len);
    } else {
        /* the second time from the cache of pieces */
        require(nb_tokenizer_encode(t, s, text, n, true, &again, NULL) == NB_OK);
        require(ids.len == again.len &&
                (!ids.len || memcmp(ids.data, again.data, ids.len * sizeof *ids.data) == 0));
        decode_both_ways(t, &ids, false);
        decode_both_ways(t, &ids, true);
    }
    free(ids.data);
    free(again.data);
    nb_tok_scratch_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char sample[] = "It's 12 o'clock,  \r\n ab abc ABC <s> ca\xCC\x81"
                                 "b \xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x98\x80!!\t\n\n x";
    const uint8_t *cut = size ? memchr(data, 0xFF, size) : NULL;
    size_t n = cut ? (size_t)(cut - data) : size;
    nb_tokenizer *t = NULL;
    nb_error err = {0};
    if (nb_tokenizer_parse((const char *)data, n, NULL, 0, &t, &err) != NB_OK) {
        require(!t && err.status != NB_OK && err.cause[0]);
        return 0;
    }
    if (cut)
        use(t, (const char *)cut + 1, size - n - 1);
    else
        use(t, sample, sizeof sample - 1);
    nb_tokenizer_free(t);
    return 0;
}
