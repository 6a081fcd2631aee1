/* The prefix cache: what is a hit and what is not, what is given up first, and what a page that is used again holds. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/pages_internal.h"

enum { SEQS = 4, CONTEXT = 512, ROWS = 512 };

static const nb_stream_decl plain = {2, 1, 0};
/* DeepSeek-V4's kinds: a window, what a compressor pools, entries of 4 tokens and of 128. */
static const nb_stream_decl windowed[] = {{2, 1, 32}, {1, 1, 8}, {2, 4, 0}, {1, 128, 0}};

static nb_pages *make(const nb_stream_decl *decl, size_t n, size_t blocks)
{
    nb_pages *p = NULL;
    const nb_pages_options o = {SEQS, CONTEXT, ROWS, blocks, true};
    assert_int_equal(nb_pages_new(decl, n, &o, &p, NULL), NB_OK);
    return p;
}

static void finish(nb_pages *p)
{
    nb_error err;
    if (nb_pages_check(p, &err) != NB_OK) fail_msg("%s", err.cause);
    nb_pages_free(p);
}

static void count_up(uint32_t *ids, size_t n, uint32_t from)
{
    for (size_t i = 0; i < n; i++) ids[i] = from + (uint32_t)i;
}

/* A sequence that computed n tokens, was published and has gone. */
static void leave_behind(nb_pages *p, const uint32_t *ids, size_t n, const char *salt)
{
    assert_true(nb_pages_grow(p, 3, 0, n));
    nb_pages_trim(p, 3, n);
    nb_pages_publish(p, 3, ids, n, salt, true);
    nb_pages_clear(p, 3);
}

/* How much of ids a new sequence would find. */
static size_t find(nb_pages *p, const uint32_t *ids, size_t n, const char *salt)
{
    size_t cached = nb_pages_adopt(p, 2, ids, n, salt);
    nb_pages_clear(p, 2);
    return cached;
}

static void test_full_blocks_and_one_token_to_compute(void **unused)
{
    uint32_t ids[64];
    nb_pages *p = make(&plain, 1, 32);
    count_up(ids, 64, 100);
    leave_behind(p, ids, 40, ""); /* two blocks and eight tokens */
    assert_int_equal(nb_pages_cached(p), 2);
    assert_int_equal(nb_pages_used(p), 0);
    assert_int_equal(find(p, ids, 0, ""), 0);
    assert_int_equal(find(p, ids, 16, ""), 0);
    assert_int_equal(find(p, ids, 17, ""), 16);
    assert_int_equal(find(p, ids, 32, ""), 16);
    assert_int_equal(find(p, ids, 33, ""), 32);
    assert_int_equal(find(p, ids, 64, ""), 32);
    ids[20]++;
    assert_int_equal(find(p, ids, 64, ""), 16);
    ids[0]++;
    assert_int_equal(find(p, ids, 64, ""), 0);
    finish(p);
}

static void test_the_same_block_elsewhere_is_another(void **unused)
{
    uint32_t ids[48], other[48];
    nb_pages *p = make(&plain, 1, 32);
    count_up(ids, 48, 0);
    memcpy(other, ids + 16, 32 * sizeof *ids); /* its second block comes first */
    leave_behind(p, ids, 48, "");
    assert_int_equal(find(p, other, 33, ""), 0);
    finish(p);
}

static void test_salt(void **unused)
{
    uint32_t ids[48];
    nb_pages *p = make(&plain, 1, 32);
    count_up(ids, 48, 0);
    leave_behind(p, ids, 48, "mine");
    assert_int_equal(find(p, ids, 48, "mine"), 32);
    assert_int_equal(find(p, ids, 48, "yours"), 0);
    assert_int_equal(find(p, ids, 48, ""), 0);
    assert_int_equal(find(p, ids, 48, NULL), 0);
    leave_behind(p, ids, 48, NULL);
    assert_int_equal(find(p, ids, 48, ""), 32);
    finish(p);
}

/* All keys are equal: ids, parents and salts still decide. */
static void test_collisions_are_misses(void **unused)
{
    uint32_t a[48], b[48];
    nb_pages *p = make(&plain, 1, 32);
    p->tree.key_bits = 0;
    count_up(a, 48, 0);
    count_up(b, 48, 500);
    leave_behind(p, a, 48, "");
    assert_int_equal(find(p, b, 48, ""), 0);
    assert_int_equal(find(p, a, 48, "salt"), 0);
    memcpy(b + 16, a + 16, 32 * sizeof *a); /* another first block, then the same ones */
    leave_behind(p, b, 17, "");
    assert_int_equal(find(p, b, 48, ""), 16);
    assert_int_equal(find(p, a, 48, ""), 32);
    finish(p);
}

static void test_keys_are_secret(void **unused)
{
    uint32_t ids[16];
    nb_prefix_key a, b;
    nb_pages *p = make(&plain, 1, 8), *q = make(&plain, 1, 8);
    count_up(ids, 16, 0);
    nb_prefix_find(&p->tree, 0, ids, 0, &a);
    nb_prefix_find(&q->tree, 0, ids, 0, &b);
    assert_true(a.lo != b.lo && a.hi != b.hi);
    finish(p);
    finish(q);
}

/* 10 blocks: a of three, then b of three, then a again; four more push out b, its last block first. */
static void test_least_recently_used_goes_first(void **unused)
{
    uint32_t a[64], b[64], c[96];
    nb_pages *p = make(&plain, 1, 10);
    count_up(a, 64, 0);
    count_up(b, 64, 1000);
    count_up(c, 96, 2000);
    leave_behind(p, a, 48, "");
    leave_behind(p, b, 48, "");
    assert_int_equal(find(p, a, 64, ""), 48);
    assert_true(nb_pages_grow(p, 0, 0, 5 * 16)); /* four were free */
    assert_int_equal(find(p, b, 64, ""), 32);
    assert_int_equal(find(p, a, 64, ""), 48);
    assert_true(nb_pages_grow(p, 0, 80, 7 * 16));
    assert_int_equal(find(p, b, 64, ""), 0);
    assert_int_equal(find(p, a, 64, ""), 48);
    assert_int_equal(nb_pages_adopt(p, 1, a, 64, ""), 48); /* what a sequence holds is not given up */
    assert_int_equal(nb_pages_cached(p), 0);
    assert_false(nb_pages_grow(p, 0, 112, 8 * 16));
    assert_int_equal(nb_pages_used(p), 10);
    nb_pages_clear(p, 1);
    assert_true(nb_pages_grow(p, 0, 112, 8 * 16));
    assert_int_equal(find(p, a, 64, ""), 32);
    finish(p);
}

/* Two sequences that computed the same hold it once. */
static void test_equal_blocks_become_one(void **unused)
{
    uint32_t ids[64];
    nb_pages *p = make(&plain, 1, 32);
    count_up(ids, 64, 0);
    for (uint32_t s = 0; s < 2; s++) assert_true(nb_pages_grow(p, s, 0, 40));
    assert_int_equal(nb_pages_used(p), 6);
    for (uint32_t s = 0; s < 2; s++) nb_pages_publish(p, s, ids, 40, "", false);
    assert_int_equal(nb_pages_used(p), 4); /* two shared ones, two begun ones */
    const uint32_t both[] = {0, 1};
    assert_int_equal(nb_pages_freed_by(p, both, 1), 1);
    assert_int_equal(nb_pages_freed_by(p, both, 2), 4);
    assert_int_equal(nb_pages_held(p, 1), 3);
    nb_pages_clear(p, 0);
    assert_int_equal(nb_pages_used(p), 3);
    nb_pages_clear(p, 1);
    assert_int_equal(nb_pages_used(p), 0);
    assert_int_equal(nb_pages_cached(p), 2);
    finish(p);
}

/* With windows a hit needs the rows that its next token sees, which are kept at the ends of prompts and answers. */
static void test_windows_hit_at_kept_boundaries(void **unused)
{
    uint32_t ids[200];
    nb_pages *p = make(windowed, 4, 64);
    count_up(ids, 200, 0);
    assert_true(nb_pages_grow(p, 0, 0, 111));
    nb_pages_trim(p, 0, 111); /* the next token sees no row before 80, that after 96 would see 65 */
    nb_pages_publish(p, 0, ids, 111, "", true);
    assert_true(nb_pages_grow(p, 0, 111, 180));
    nb_pages_trim(p, 0, 180);
    nb_pages_publish(p, 0, ids, 180, "", false);
    nb_pages_publish(p, 0, ids, 112, "", true); /* too late: rows that the token after 112 sees have left */
    nb_pages_clear(p, 0);
    assert_int_equal(nb_pages_adopt(p, 1, ids, 200, ""), 96);
    assert_int_equal(nb_pages_known(p, 1), 176); /* where it might have gone on from */
    nb_pages_clear(p, 1);
    assert_int_equal(nb_pages_adopt(p, 1, ids, 96, ""), 0);
    assert_int_equal(nb_pages_known(p, 1), 80);
    finish(p);
}

/* A row never written since its page was given reads as zeros, whatever was in the page. */
static void test_pages_used_again_are_zero(void **unused)
{
    nb_pages *p = make(windowed, 4, 64);
    const nb_kv *kv = nb_pages_view(p);
    for (int round = 0; round < 3; round++) {
        assert_true(nb_pages_grow(p, 0, 0, 256));
        for (size_t i = 0; i < 4; i++)
            for (size_t row = 0; row < 256 / windowed[i].tokens_per_row; row++)
                for (size_t c = 0; c < windowed[i].cols; c++) {
                    float *x = nb_kv_row(&kv->streams[i], 0, row) + c;
                    assert_true(*x == 0);
                    *x = NAN;
                }
        nb_pages_clear(p, 0);
    }
    finish(p);
}

/* A hit inside a page of a coarse class: what either sequence writes there next is its own. */
static void test_begun_pages_are_copied(void **unused)
{
    uint32_t ids[64];
    nb_pages *p = make(windowed, 4, 64);
    const nb_kv_stream *s = &nb_pages_view(p)->streams[2]; /* entries of 4 tokens: a page for 64 */
    count_up(ids, 64, 0);
    assert_true(nb_pages_grow(p, 0, 0, 17));
    for (size_t row = 0; row < 4; row++) *nb_kv_row(s, 0, row) = 1 + (float)row;
    nb_pages_trim(p, 0, 17);
    nb_pages_publish(p, 0, ids, 17, "", true);
    *nb_kv_row(s, 0, 4) = NAN; /* the first goes on, and fails */
    assert_int_equal(nb_pages_adopt(p, 1, ids, 64, ""), 16);
    assert_true(nb_pages_grow(p, 1, 16, 64));
    for (size_t row = 0; row < 4; row++) assert_true(*nb_kv_row(s, 1, row) == 1 + (float)row);
    for (size_t row = 4; row < 16; row++) assert_true(*nb_kv_row(s, 1, row) == 0);
    *nb_kv_row(s, 1, 4) = 9;
    assert_true(isnan(*nb_kv_row(s, 0, 4)));
    finish(p);
}

/* Rows of one head lie side by side within a page: the begun ones of each are copied. */
static void test_begun_pages_of_heads(void **unused)
{
    const nb_stream_decl decl[] = {{2, 1, 0}, {.cols = 4, .tokens_per_row = 4, .heads = 2}};
    uint32_t ids[64];
    nb_pages *p = make(decl, 2, 64);
    const nb_kv_stream *s = &nb_pages_view(p)->streams[1];
    count_up(ids, 64, 0);
    assert_true(nb_pages_grow(p, 0, 0, 17));
    for (size_t row = 0; row < 4; row++)
        for (size_t i = 0; i < 4; i++) nb_kv_head(s, 0, row, i / 2)[i % 2] = (float)(10 * row + i + 1);
    nb_pages_trim(p, 0, 17);
    nb_pages_publish(p, 0, ids, 17, "", true);
    for (size_t i = 0; i < 4; i++) nb_kv_head(s, 0, 4, i / 2)[i % 2] = NAN; /* the first goes on, and fails */
    assert_int_equal(nb_pages_adopt(p, 1, ids, 64, ""), 16);
    assert_true(nb_pages_grow(p, 1, 16, 64));
    for (size_t row = 0; row < 16; row++)
        for (size_t i = 0; i < 4; i++)
            assert_true(nb_kv_head(s, 1, row, i / 2)[i % 2] == (row < 4 ? (float)(10 * row + i + 1) : 0));
    finish(p);
}

/* A recurrence between chunks of 64: who adopts in the middle of one gets the state before it and the tokens since, not more. */
static void test_states_are_shared_inside_a_chunk(void **unused)
{
    const nb_stream_decl recurrent[] = {{1, 1, 64}, {2, 64, 2, 1}};
    uint32_t ids[400];
    nb_pages *p = make(recurrent, 2, 64);
    const nb_kv *kv = nb_pages_view(p);
    count_up(ids, 400, 0);
    assert_true(nb_pages_grow(p, 0, 0, 250));
    for (size_t t = 0; t < 250; t++) *nb_kv_row(&kv->streams[0], 0, t) = (float)t;
    for (size_t w = 0; w < 3; w++) *nb_kv_row(&kv->streams[1], 0, w) = 1000 + (float)w;
    nb_pages_trim(p, 0, 250);
    nb_pages_publish(p, 0, ids, 250, "", true);
    assert_true(nb_pages_grow(p, 0, 250, 256));
    *nb_kv_row(&kv->streams[1], 0, 3) = NAN; /* the first goes on, and fails */
    nb_pages_trim(p, 0, 250);
    assert_int_equal(nb_pages_adopt(p, 1, ids, 400, ""), 240);
    for (size_t t = 192; t < 240; t++) assert_true(*nb_kv_row(&kv->streams[0], 1, t) == (float)t);
    assert_true(*nb_kv_row(&kv->streams[1], 1, 2) == 1002);
    assert_int_equal(p->classes[2].tables[1][1], 0);
    assert_int_equal(p->classes[2].tables[1][3], 0);
    assert_int_equal(p->classes[2].tables[0][2], p->classes[2].tables[1][2]);
    assert_true(nb_pages_grow(p, 1, 240, 256));
    *nb_kv_row(&kv->streams[1], 1, 3) = 7;
    assert_true(nb_pages_grow(p, 0, 250, 256));
    *nb_kv_row(&kv->streams[1], 0, 3) = 8;
    assert_true(*nb_kv_row(&kv->streams[1], 1, 3) == 7);
    finish(p);
}

static void test_without_a_cache(void **unused)
{
    uint32_t ids[64];
    nb_pages *p = NULL;
    const nb_pages_options o = {SEQS, CONTEXT, ROWS, 8, false};
    assert_int_equal(nb_pages_new(&plain, 1, &o, &p, NULL), NB_OK);
    count_up(ids, 64, 0);
    leave_behind(p, ids, 64, "");
    assert_int_equal(find(p, ids, 64, ""), 0);
    assert_int_equal(nb_pages_cached(p), 0);
    finish(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_blocks_and_one_token_to_compute),
        cmocka_unit_test(test_the_same_block_elsewhere_is_another),
        cmocka_unit_test(test_salt),
        cmocka_unit_test(test_collisions_are_misses),
        cmocka_unit_test(test_keys_are_secret),
        cmocka_unit_test(test_least_recently_used_goes_first),
        cmocka_unit_test(test_equal_blocks_become_one),
        cmocka_unit_test(test_windows_hit_at_kept_boundaries),
        cmocka_unit_test(test_pages_used_again_are_zero),
        cmocka_unit_test(test_begun_pages_are_copied),
        cmocka_unit_test(test_begun_pages_of_heads),
        cmocka_unit_test(test_states_are_shared_inside_a_chunk),
        cmocka_unit_test(test_without_a_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
