/* Every allocation of the KV pages and the scheduler fails once: a clean error, nothing leaked (the sanitizer build sees that). No
 * allocation comes after, and what nb_pages_bytes_for says is what is taken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/sched.h"
#include "fault/alloc.h"

static const nb_stream_decl decl[] = {{3, 1, 0}, {2, 1, 24}, {4, 4, 0}, {1, 128, 0}, {2, 1, 24}};
#define STREAMS (sizeof decl / sizeof *decl)
static const nb_pages_options options = {
    .max_seqs = 3, .max_context = 300, .max_rows = 64, .blocks = 40, .prefix_cache = true};
static const nb_sched_options sched_options = {.max_seqs = 3, .max_rows = 64, .max_context = 300};

static void test_every_allocation_fails_once(void **unused)
{
    size_t n = 0;
    for (bool fired = true; fired; n++) {
        nb_pages *p = NULL;
        nb_sched *s = NULL;
        nb_error err = {0};
        fault_arm(n);
        nb_status status = nb_pages_new(decl, STREAMS, &options, &p, &err);
        if (status == NB_OK) status = nb_sched_new(&sched_options, p, &s, &err);
        fired = fault_disarm();
        assert_int_equal(status, fired ? NB_ERR_NOMEM : NB_OK);
        assert_true(!fired || err.cause[0] != 0);
        nb_sched_free(s);
        nb_pages_free(p);
    }
    assert_true(n > 20);
}

/* Requests come and go, share, are preempted: with every allocation forbidden. */
static void test_nothing_is_allocated_later(void **unused)
{
    nb_pages *p = NULL;
    nb_sched *s = NULL;
    nb_sched_part parts[3];
    static uint32_t ids[4][301];
    assert_int_equal(nb_pages_new(decl, STREAMS, &options, &p, NULL), NB_OK);
    assert_int_equal(nb_sched_new(&sched_options, p, &s, NULL), NB_OK);
    for (uint32_t i = 0; i < 4 * 301; i++)
        ids[i / 301][i % 301] = i % 301 < 40 ? i % 301 : i; /* they part at 40 */
    fault_arm(0);
    for (size_t round = 0; round < 20; round++) {
        nb_sched_seq q[4];
        for (size_t i = 0; i < 4; i++) {
            q[i] = (nb_sched_seq){.tokens = ids[i], .n_prompt = 40 + 40 * i, .n_tokens = 40 + 40 * i};
            q[i].max_tokens = 300 - q[i].n_prompt;
            q[i].open_ended = true;
            q[i].salt = round % 3 ? "" : "salt";
            nb_sched_submit(s, &q[i]);
        }
        for (size_t step = 0; step < 250; step++) {
            size_t n = nb_sched_plan(s, (double)step, parts);
            for (size_t i = 0; i < n; i++) {
                nb_pages_trim(p, parts[i].q->slot, parts[i].from + parts[i].n);
                nb_sched_commit(s, &parts[i], parts[i].n, true);
                if (parts[i].last && ++parts[i].q->n_tokens == 300) nb_sched_finish(s, parts[i].q);
            }
        }
        for (size_t i = 0; i < 4; i++) nb_sched_finish(s, &q[i]);
        assert_int_equal(nb_pages_check(p, NULL), NB_OK);
        assert_int_equal(nb_sched_check(s, NULL), NB_OK);
    }
    assert_false(fault_disarm());
    assert_true(nb_sched_preemptions(s) > 0);
    nb_sched_free(s);
    nb_pages_free(p);
}

static void test_bytes_are_what_is_taken(void **unused)
{
    for (size_t blocks = 0; blocks < 100; blocks += 33)
        for (int cache = 0; cache < 2; cache++) {
            nb_pages_options o = options;
            nb_pages *p = NULL;
            o.blocks = blocks;
            o.prefix_cache = cache;
            size_t before = fault_bytes;
            assert_int_equal(nb_pages_new(decl, STREAMS, &o, &p, NULL), NB_OK);
            assert_int_equal(fault_bytes - before, nb_pages_bytes(p));
            assert_int_equal(nb_pages_bytes_for(decl, STREAMS, &o), nb_pages_bytes(p));
            assert_int_equal(nb_pages_blocks(p), blocks ? blocks : 3 * 19);
            nb_pages_free(p);
        }
}

static void test_too_much_to_count(void **unused)
{
    nb_pages *p = NULL;
    nb_error err;
    const size_t huge[] = {SIZE_MAX, SIZE_MAX / 2, (size_t)1 << 40, UINT32_MAX};
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        nb_pages_options o = options;
        o.blocks = huge[i];
        assert_int_equal(nb_pages_bytes_for(decl, STREAMS, &o), UINT64_MAX);
        assert_int_equal(nb_pages_new(decl, STREAMS, &o, &p, &err), NB_ERR_NOMEM);
        o = options;
        o.blocks = 0;
        o.max_seqs = o.max_context = huge[i];
        assert_int_equal(nb_pages_bytes_for(decl, STREAMS, &o), UINT64_MAX);
        assert_int_equal(nb_pages_new(decl, STREAMS, &o, &p, &err), NB_ERR_NOMEM);
        const nb_stream_decl wide = {huge[i] > UINT32_MAX ? huge[i] : SIZE_MAX, 1, 0};
        assert_int_equal(nb_pages_bytes_for(&wide, 1, &options) > (uint64_t)1 << 40, true);
    }
    nb_stream_decl many[20];
    for (size_t i = 0; i < 20; i++) many[i] = (nb_stream_decl){1, 1, i + 2};
    assert_int_equal(nb_pages_new(many, 20, &options, &p, &err), NB_ERR_UNSUPPORTED);
    assert_null(p);
}

int main(void)
{
    fault_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_allocation_fails_once),
        cmocka_unit_test(test_nothing_is_allocated_later),
        cmocka_unit_test(test_bytes_are_what_is_taken),
        cmocka_unit_test(test_too_much_to_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
