/* The prefix cache on whole models: logits after a hit are those without one to the bit, at every boundary, after eviction, for
 * sequences that share and part, in one batch and alone. The models' streams: all rows; windows of 32 and 8 and 128, entries of 4
 * and of 128 tokens; windows of 4 and 32 with a state after each 32 tokens; windows of 24. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"

enum { T = 300, SEQS = 8, TEXTS = 4 };

static const char *const models[] = {
    "llama_modelopt",       "deepseek_v4_modelopt", "deepseek_v4_ct_nvfp4_attn",
    "qwen3_next_ct",        "nemotron_h_modelopt",  "mistral_modelopt",
    "glm_moe_dsa_modelopt", "gemma4_ple_modelopt",  "gpt_oss_mxfp4"};
#define N_MODELS (sizeof models / sizeof *models)

static nb_engine *open_engine(const char *model, size_t blocks, bool cache)
{
    char path[512];
    nb_engine *e = NULL;
    nb_error err = {0};
    const nb_engine_options o = {.threads = 2,
                                 .kernels = "auto",
                                 .arith = NB_ARITH_BF16,
                                 .max_seqs = SEQS,
                                 .max_context = T,
                                 .max_rows = T,
                                 .kv_blocks = blocks,
                                 .prefix_cache = cache};
    snprintf(path, sizeof path, NB_TEST_DATA "/fixtures/models/%s", model);
    if (nb_engine_new(path, &o, NULL, &e, &err) != NB_OK) fail_msg("%s: %s", model, err.cause);
    return e;
}

static uint32_t state = 7;
static uint32_t draw(uint32_t n)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

/* Texts that begin alike: the second parts from the first inside a block, the third at a block's end, the fourth at once. */
typedef struct texts {
    uint32_t ids[TEXTS][T];
    float *want[TEXTS]; /* [T][vocab] */
    size_t vocab;
} texts;

typedef struct taker {
    float *to; /* row 0 of the part */
    size_t vocab;
} taker;

static void take(void *ctx, size_t part, size_t row, const float *logits)
{
    const taker *t = (const taker *)ctx + part;
    memcpy(t->to + row * t->vocab, logits, t->vocab * sizeof *logits);
}

static void make_texts(const char *model, texts *x)
{
    static const size_t parts_at[TEXTS] = {T, 201, 160, 0};
    nb_engine *e = open_engine(model, 0, false);
    x->vocab = nb_engine_model(e)->vocab;
    for (size_t i = 0; i < TEXTS; i++) {
        for (size_t t = 0; t < T; t++)
            x->ids[i][t] = i && t < parts_at[i] ? x->ids[0][t] : draw((uint32_t)x->vocab);
        if (i && x->ids[i][parts_at[i]] == x->ids[0][parts_at[i]]) x->ids[i][parts_at[i]] ^= 1;
        x->want[i] = calloc(T * x->vocab, sizeof(float));
        assert_non_null(x->want[i]);
        taker t = {x->want[i], x->vocab};
        nb_step_out out = {.logits = take, .ctx = &t};
        uint32_t seq;
        assert_int_equal(nb_seq_open(e, &seq, NULL), NB_OK);
        assert_int_equal(nb_engine_step(e, &(nb_step_part){seq, x->ids[i], T, true}, 1, &out, NULL), NB_OK);
        nb_seq_close(e, seq);
    }
    nb_engine_free(e);
}

static void free_texts(texts *x)
{
    for (size_t i = 0; i < TEXTS; i++) free(x->want[i]);
}

static void same(const texts *x, size_t text, size_t from, size_t n, const float *have, size_t cached)
{
    if (memcmp(have, x->want[text] + from * x->vocab, n * x->vocab * sizeof *have) != 0)
        fail_msg("text %zu, tokens %zu to %zu, %zu of them cached: logits differ", text, from, from + n,
                 cached);
}

/* What follow publishes after each chunk: nothing, the blocks, and with them the boundary. */
typedef enum how { NOTHING, BLOCKS, ENDS } how;

/* Starts a sequence of the first n tokens of a text with what the cache has; computes and checks the rest in chunks. */
static size_t follow(nb_engine *e, const texts *x, uint32_t slot, size_t text, size_t n, size_t chunk,
                     how publish)
{
    nb_pages *p = nb_engine_pages(e);
    const uint32_t *ids = x->ids[text];
    size_t cached = nb_pages_adopt(p, slot, ids, n, "");
    float *have = calloc(T * x->vocab, sizeof *have);
    assert_non_null(have);
    assert_int_equal(nb_seq_start(e, slot, cached, NULL), NB_OK);
    for (size_t at = cached, rows; at < n; at += rows) {
        rows = n - at < chunk ? n - at : chunk;
        taker t = {have, x->vocab};
        nb_step_out out = {.logits = take, .ctx = &t};
        assert_int_equal(nb_engine_step(e, &(nb_step_part){slot, ids + at, rows, true}, 1, &out, NULL),
                         NB_OK);
        same(x, text, at, rows, have, cached);
        nb_seq_commit(e, slot, rows);
        if (publish) nb_pages_publish(p, slot, ids, at + rows, "", publish == ENDS);
    }
    free(have);
    return cached;
}

static void check(nb_engine *e)
{
    nb_error err;
    if (nb_pages_check(nb_engine_pages(e), &err) != NB_OK) fail_msg("%s", err.cause);
}

static void test_a_hit_at_every_boundary(void **unused)
{
    for (size_t m = 0; m < N_MODELS; m++) {
        texts x;
        make_texts(models[m], &x);
        nb_engine *e = open_engine(models[m], 2 * T / NB_BLOCK, true);
        assert_int_equal(follow(e, &x, 0, 0, T, NB_BLOCK, ENDS), 0);
        nb_seq_close(e, 0);
        for (size_t n = 2; n <= T;
             n += 3 + n % 5) { /* a few tokens beyond each boundary, and others' texts beyond */
            assert_int_equal(follow(e, &x, 1, 0, n, T, NOTHING), (n - 1) / NB_BLOCK * NB_BLOCK);
            nb_seq_close(e, 1);
            size_t last = n - 1 < 201 ? n - 1 : 201;
            assert_int_equal(follow(e, &x, 2, 1, n, 7, NOTHING), last / NB_BLOCK * NB_BLOCK);
            nb_seq_close(e, 2);
            check(e);
        }
        nb_engine_free(e);
        free_texts(&x);
    }
}

/* All four texts in one batch, each from its own hit, then again from the ends that they left. */
static void test_sharing_and_parting_in_one_batch(void **unused)
{
    for (size_t m = 0; m < N_MODELS; m++) {
        texts x;
        taker t[TEXTS];
        nb_step_part parts[TEXTS];
        make_texts(models[m], &x);
        nb_engine *e = open_engine(models[m], 0, true);
        nb_pages *p = nb_engine_pages(e);
        follow(e, &x, 7, 0, 176, NB_BLOCK, ENDS);
        for (int round = 0; round < 3; round++) {
            size_t at[TEXTS];
            for (size_t i = 0; i < TEXTS; i++) {
                uint32_t slot = (uint32_t)(i + (size_t)round) % 5;
                at[i] = nb_pages_adopt(p, slot, x.ids[i], T, "");
                assert_int_equal(nb_seq_start(e, slot, at[i], NULL), NB_OK);
                parts[i].seq = slot;
                t[i] = (taker){calloc(T * x.vocab, sizeof(float)), x.vocab};
                assert_non_null(t[i].to);
            }
            assert_true(at[0] >= 176 && at[1] >= 176 && at[2] >= 160 && (round || at[3] == 0));
            for (size_t left = 1; left;) {
                left = 0;
                for (size_t i = 0; i < TEXTS; i++) {
                    size_t n = T - at[i] < 23 + i ? T - at[i] : 23 + i;
                    parts[i] = (nb_step_part){parts[i].seq, x.ids[i] + at[i], n, true};
                    left += n;
                }
                if (!left) break;
                nb_step_out out = {.logits = take, .ctx = t};
                assert_int_equal(nb_engine_step(e, parts, TEXTS, &out, NULL), NB_OK);
                for (size_t i = 0; i < TEXTS; i++) {
                    same(&x, i, at[i], parts[i].n, t[i].to, at[i]);
                    nb_seq_commit(e, parts[i].seq, parts[i].n);
                    at[i] += parts[i].n;
                    nb_pages_publish(p, parts[i].seq, x.ids[i], at[i], "", at[i] == T);
                }
                check(e);
            }
            for (size_t i = 0; i < TEXTS; i++) {
                nb_seq_close(e, parts[i].seq);
                free(t[i].to);
            }
        }
        nb_engine_free(e);
        free_texts(&x);
    }
}

/* Few blocks: sequences of random texts and lengths push each other's rows out, some stay open while others come and go. */
static void test_after_eviction(void **unused)
{
    for (size_t m = 0; m < N_MODELS; m++) {
        texts x;
        make_texts(models[m], &x);
        size_t hits = 0, short_hits = 0, open[SEQS] = {0};
        nb_engine *e = open_engine(models[m], 45, true);
        for (int round = 0; round < 70; round++) {
            uint32_t slot = draw(3);
            size_t text = draw(TEXTS), n = 1 + draw(T), others = open[0] + open[1] + open[2] - open[slot];
            nb_seq_close(e, slot);
            open[slot] = 0;
            if (others + n / NB_BLOCK + 1 > 45) continue;
            size_t cached = follow(e, &x, slot, text, n, 1 + draw(90), (how)(BLOCKS + draw(2)));
            open[slot] = n / NB_BLOCK + 1;
            hits += cached > 0;
            short_hits += cached > 0 && cached < (n - 1) / NB_BLOCK * NB_BLOCK;
            check(e);
        }
        assert_true(hits > 12 && short_hits > 2);
        nb_engine_free(e);
        free_texts(&x);
    }
}

static void test_too_few_blocks_change_nothing(void **unused)
{
    texts x;
    make_texts(models[0], &x);
    nb_engine *e = open_engine(models[0], 10, true);
    float *have = calloc(T * x.vocab, sizeof *have);
    assert_non_null(have);
    nb_error err;
    follow(e, &x, 0, 0, 100, 100, ENDS); /* 7 blocks, so 3 are left */
    assert_int_equal(nb_seq_start(e, 1, 0, NULL), NB_OK);
    nb_step_part both[2] = {{0, x.ids[0] + 100, 13, true}, {1, x.ids[3], 49, true}};
    size_t used = nb_pages_used(nb_engine_pages(e));
    assert_int_equal(nb_engine_step(e, both, 2, NULL, &err), NB_ERR_LIMIT);
    assert_non_null(strstr(err.cause, "10 blocks"));
    assert_int_equal(nb_pages_used(nb_engine_pages(e)), used);
    both[0].n = 12;
    both[1].n = 48;
    taker t[2] = {{have, x.vocab}, {have + 12 * x.vocab, x.vocab}};
    nb_step_out out = {.logits = take, .ctx = t};
    assert_int_equal(nb_engine_step(e, both, 2, &out, &err), NB_OK);
    same(&x, 0, 100, 12, have, 0);
    same(&x, 3, 0, 48, have + 12 * x.vocab, 0);
    both[1].seq = 0;
    assert_int_equal(nb_engine_step(e, both, 2, NULL, &err), NB_ERR_ARGUMENT);
    assert_int_equal(nb_seq_start(e, SEQS, 0, &err), NB_ERR_ARGUMENT);
    assert_int_equal(nb_seq_start(e, 5, 16, &err), NB_ERR_ARGUMENT);
    free(have);
    nb_engine_free(e);
    free_texts(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_hit_at_every_boundary),
        cmocka_unit_test(test_sharing_and_parting_in_one_batch),
        cmocka_unit_test(test_after_eviction),
        cmocka_unit_test(test_too_few_blocks_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
