/* KV pages: conservation, and no two live rows in one place, under random growth, commit, discard and close. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/pages.h"

enum { SEQS = 3, CONTEXT = 400, ROWS = 40 };

static const nb_stream_decl decl[] = {{2, 1, 0}, {2, 1, 24}, {1, 4, 0}, {3, 1, 24}, {1, 128, 0}};
#define STREAMS (sizeof decl / sizeof *decl)

static uint32_t state = 12345;
static uint32_t draw(uint32_t n)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

/* The value that row w of a stream must hold for sequence s: written when the row's last token so far was written. */
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
            for (size_t t = length[s]; t < length[s] + n; t++)
                *nb_kv_row(&kv->streams[i], s, t / decl[i].tokens_per_row) =
                    mark(i, s, t / decl[i].tokens_per_row, generation[s]);
        length[s] += draw(n + 1); /* commit some, discard the rest */
        nb_pages_trim(p, s, length[s]);
        /* what the next token may read must still be there, for every sequence */
        for (uint32_t q = 0; q < SEQS; q++) {
            for (size_t i = 0; i < STREAMS; i++) {
                size_t r = decl[i].tokens_per_row, first = 0;
                if (decl[i].window && length[q] + 1 > decl[i].window) first = length[q] + 1 - decl[i].window;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_operations),
        cmocka_unit_test(test_window_gives_pages_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
