/* KV pages: conservation, and no two live rows in one place, under random growth, commit, discard and close. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/pages_internal.h"

enum { SEQS = 3, CONTEXT = 400, ROWS = 40 };

static const nb_stream_decl decl[] = {{2, 1, 0},  {2, 1, 24},  {1, 4, 0},
                                      {3, 1, 24}, {1, 128, 0}, {2, 8, 2, 1}};
#define STREAMS (sizeof decl / sizeof *decl)

static uint32_t state = 12345;
static uint32_t draw(uint32_t n)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

/* The value that row w of a stream must hold for sequence s: written with the row's last token. */
static float mark(size_t stream, uint32_t s, size_t w, unsigned generation)
{
    return (float)(stream * 1000003 + s * 100003 + w * 7 + generation);
}

static void test_random_operations(void **unused)
{
    nb_pages *p = NULL;
    nb_error err;
    assert_int_equal(
        nb_pages_new(decl, STREAMS, &(nb_pages_options){SEQS, CONTEXT, ROWS, 0, false}, &p, &err), NB_OK);
    const nb_kv *kv = nb_pages_view(p);
    size_t length[SEQS] = {0}, used, total;
    unsigned generation[SEQS] = {0};
    for (int step = 0; step < 20000; step++) {
        uint32_t s = draw(SEQS);
        if (draw(50) == 0) {
            nb_pages_clear(p, s);
            length[s] = 0;
            generation[s]++;
            continue;
        }
        size_t n = 1 + draw(ROWS);
        if (length[s] + n > CONTEXT) continue;
        assert_true(nb_pages_grow(p, s, length[s], length[s] + n));
        for (size_t i = 0; i < STREAMS; i++)
            for (size_t w = length[s] / decl[i].tokens_per_row; w < (length[s] + n) / decl[i].tokens_per_row;
                 w++)
                *nb_kv_row(&kv->streams[i], s, w) = mark(i, s, w, generation[s]);
        length[s] += draw(n + 1); /* commit some, discard the rest */
        nb_pages_trim(p, s, length[s]);
        /* what the next token may read must still be there, for every sequence */
        for (uint32_t q = 0; q < SEQS; q++) {
            for (size_t i = 0; i < STREAMS; i++) {
                size_t r = decl[i].tokens_per_row, next = length[q] / r + 1, first = 0;
                if (decl[i].window && next > decl[i].window) first = next - decl[i].window;
                for (size_t w = first; w < length[q] / r; w++)
                    assert_true(*nb_kv_row(&kv->streams[i], q, w) == mark(i, q, w, generation[q]));
            }
        }
    }
    for (uint32_t s = 0; s < SEQS; s++) nb_pages_clear(p, s);
    nb_pages_count(p, &used, &total);
    assert_int_equal(used, 0);
    assert_true(total > 0);
    nb_pages_free(p);
}

static void test_window_gives_pages_back(void **unused)
{
    nb_pages *p = NULL;
    nb_error err;
    size_t used, total;
    const nb_stream_decl window = {4, 1, 32};
    assert_int_equal(nb_pages_new(&window, 1, &(nb_pages_options){1, 4096, 16, 0, false}, &p, &err), NB_OK);
    for (size_t t = 0; t < 4096; t += 16) {
        assert_true(nb_pages_grow(p, 0, t, t + 16));
        nb_pages_trim(p, 0, t + 16);
        nb_pages_count(p, &used, &total);
        assert_true(used <= 3); /* 31 rows behind the next token and none before: at most three pages of 16 */
    }
    nb_pages_free(p);
}

/* A row a page, a window of two: the state that the next token starts from, and while the cache may want it the one before. */
static void test_states_are_few(void **unused)
{
    nb_pages *p = NULL;
    nb_error err;
    size_t used, total;
    const nb_stream_decl states = {4, 64, 2, 1};
    assert_int_equal(nb_pages_new(&states, 1, &(nb_pages_options){1, 4096, 16, 0, true}, &p, &err), NB_OK);
    nb_pages_count(p, &used, &total);
    assert_int_equal(total, 2 + 10); /* ten marks of one page */
    for (size_t t = 0; t < 4096; t += 16) {
        assert_true(nb_pages_grow(p, 0, t, t + 16));
        nb_pages_trim(p, 0, t); /* a step that is given up */
        nb_pages_count(p, &used, &total);
        assert_int_equal(used, t < 64 ? 0 : t % 64 || t == 64 ? 1 : 2);
        assert_true(nb_pages_grow(p, 0, t, t + 16));
        nb_pages_trim(p, 0, t + 16);
    }
    nb_pages_free(p);
}

static size_t marks_in_use(const nb_pages *p)
{
    size_t n = 0;
    for (uint32_t m = p->newest_mark; m; m = p->marks[m].older) n++;
    return n;
}

/* Blocks are all that may run short: whatever sequences hold no more of them together than there are, with the rows of one step
 * pending and the cache as full as it gets, every class has pages. Where there are blocks enough, the cache's marks need not go for it either. */
static void test_classes_last_as_long_as_blocks(void **unused)
{
    for (int round = 0; round < 300; round++) {
        const nb_stream_decl some[] = {{1, 1, 1 + draw(40)},
                                       {1, 2 + draw(3), 1 + draw(20)},
                                       {1, 1 + draw(64), 2 + draw(2), 1},
                                       {1, 4, 0},
                                       {1, 1, 0}};
        const nb_pages_options o = {SEQS, CONTEXT, ROWS, round % 2 ? 20 + draw(60) : 2000, true};
        nb_pages *p = NULL;
        nb_error err;
        static uint32_t ids[SEQS][CONTEXT];
        size_t length[SEQS] = {0};
        assert_int_equal(nb_pages_new(some, 4 + draw(2), &o, &p, &err), NB_OK);
        for (int step = 0; step < 60; step++) {
            size_t n[SEQS] = {0}, left = ROWS, blocks = 0, marks;
            for (uint32_t s = 0; s < SEQS; s++) {
                if (!length[s]) { /* a text that parts from another sequence's somewhere, or a new one */
                    size_t same = draw(CONTEXT);
                    memmove(ids[s], ids[(s + 1) % SEQS], same * sizeof **ids);
                    for (size_t t = same; t < CONTEXT; t++) ids[s][t] = draw(1000);
                    length[s] = nb_pages_adopt(p, s, ids[s], CONTEXT, "");
                }
                blocks += (length[s] + NB_BLOCK - 1) / NB_BLOCK;
            }
            marks = marks_in_use(p);
            for (uint32_t s = 0; s < SEQS; s++) {
                n[s] = s + 1 == SEQS ? left : draw((uint32_t)left + 1);
                size_t more =
                    (length[s] + n[s] + NB_BLOCK - 1) / NB_BLOCK - (length[s] + NB_BLOCK - 1) / NB_BLOCK;
                if (length[s] + n[s] > CONTEXT || blocks + more > o.blocks) n[s] = 0;
                left -= n[s];
                blocks += more * (n[s] > 0);
                if (n[s]) assert_true(nb_pages_grow(p, s, length[s], length[s] + n[s]));
            }
            assert_true(round % 2 || marks_in_use(p) == marks);
            for (uint32_t s = 0; s < SEQS; s++) {
                if (n[s]) {
                    length[s] += n[s];
                    nb_pages_trim(p, s, length[s]);
                    nb_pages_publish(p, s, ids[s], length[s], "", true);
                } else if (draw(3) == 0) {
                    nb_pages_clear(p, s);
                    length[s] = 0;
                }
            }
            if (nb_pages_check(p, &err) != NB_OK) fail_msg("%s", err.cause);
        }
        nb_pages_free(p);
    }
}

/* The worst of a window of 32: three sequences end one row before a page does and compute two more rows. Each then has four pages,
 * from that of row 16 a - 31, which the cache may still want, to that of row 16 a + 16. */
static void test_windows_at_their_worst(void **unused)
{
    const nb_stream_decl window = {1, 1, 32};
    const nb_pages_options o = {SEQS, CONTEXT, 2 * SEQS, 200, true};
    nb_pages *p = NULL;
    nb_error err;
    uint32_t ids[CONTEXT];
    assert_int_equal(nb_pages_new(&window, 1, &o, &p, &err), NB_OK);
    for (uint32_t text = 0; text <= 20; text++) { /* marks enough to be all in use, none of the last's */
        for (size_t t = 0; t < CONTEXT; t++) ids[t] = text;
        for (uint32_t s = 0; s < SEQS; s++) nb_pages_clear(p, s);
        for (size_t t = 0; t < 79; t += 2)
            for (uint32_t s = 0; s < SEQS; s++) {
                size_t to = t + 2 < 79 ? t + 2 : 79;
                ids[0] = text * SEQS + s;
                assert_true(nb_pages_grow(p, s, t, to));
                nb_pages_trim(p, s, to);
                if (text < 20) nb_pages_publish(p, s, ids, to, "", to == 79);
            }
    }
    size_t marks = marks_in_use(p);
    assert_int_equal(marks, p->n_marks);
    for (uint32_t s = 0; s < SEQS; s++) assert_true(nb_pages_grow(p, s, 79, 81));
    assert_int_equal(marks_in_use(p), marks);
    nb_pages_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_operations),      cmocka_unit_test(test_window_gives_pages_back),
        cmocka_unit_test(test_states_are_few),         cmocka_unit_test(test_classes_last_as_long_as_blocks),
        cmocka_unit_test(test_windows_at_their_worst),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
