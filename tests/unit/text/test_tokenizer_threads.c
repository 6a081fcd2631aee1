/* One tokenizer, several threads, each with its own scratch: all get the ids that one thread alone gets. (./dev tsan runs
 * this under the thread sanitizer.) */
#include "tiny.h"

#include <pthread.h>

#define THREADS 4
#define ROUNDS 200

static const char text[] = "The cab, 12 abacus\nand <s> a ca\u0301b\u4f60 123; ab  ab";

typedef struct job {
    const nb_tokenizer *t;
    const nb_ids *want;
    int wrong;
} job;

static void *work(void *ctx)
{
    job *j = ctx;
    nb_tok_scratch *s = nb_tok_scratch_new(j->t);
    for (int i = 0; i < ROUNDS && s; i++) {
        nb_ids ids = {0};
        nb_buf back = {0};
        bool ok = nb_tokenizer_encode(j->t, s, text, sizeof text - 1, false, &ids, NULL) == NB_OK &&
                  ids.len == j->want->len &&
                  memcmp(ids.data, j->want->data, ids.len * sizeof *ids.data) == 0 &&
                  nb_tokenizer_decode(j->t, ids.data, ids.len, false, &back, NULL) == NB_OK;
        j->wrong += !ok;
        free(ids.data);
        nb_buf_free(&back);
    }
    if (!s) j->wrong++;
    nb_tok_scratch_free(s);
    return NULL;
}

static void threads_agree(void **state)
{
    (void)state;
    nb_tokenizer *t = tiny_new(&(tiny){
        .vocab = ",\"ab\":256,\"\u0120a\":257",
        .merges = "\"a b\",\"\u0120 a\"",
        .normalizer = "{\"type\":\"NFC\"}",
        .pre = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}",
        .added = "{\"id\":0,\"content\":\"<s>\",\"single_word\":false,\"lstrip\":true,\"rstrip\":true,"
                 "\"normalized\":false,"
                 "\"special\":true}"});
    nb_tok_scratch *s = nb_tok_scratch_new(t);
    nb_ids want = {0};
    pthread_t threads[THREADS];
    job jobs[THREADS];
    assert_int_equal(nb_tokenizer_encode(t, s, text, sizeof text - 1, false, &want, NULL), NB_OK);
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (job){.t = t, .want = &want};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &jobs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(jobs[i].wrong, 0);
    }
    free(want.data);
    nb_tok_scratch_free(s);
    nb_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_agree)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
