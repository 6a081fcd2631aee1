/* Activation ranges: what was seen is counted where it belongs, what was not seen is filled by the stated rule or refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/measure.h"

#define MOE NB_TEST_DATA "/fixtures/models/deepseek_v4_bf16"

static nb_engine *open_engine(const char *path, size_t rows, size_t seqs, bool stream)
{
    nb_load_options load = {.stream = stream};
    nb_engine_options o = {.threads = 2,
                           .kernels = "auto",
                           .max_seqs = seqs,
                           .max_context = 128,
                           .max_rows = rows,
                           .load = &load};
    nb_engine *e = NULL;
    nb_error err = {0};
    if (nb_engine_new(path, &o, NULL, &e, &err) != NB_OK) fail_msg("%s: %s", path, err.cause);
    return e;
}

static uint32_t ids[3][100];
static nb_ids list[3] = {{ids[0], 100, 100}, {ids[1], 3, 3}, {ids[2], 41, 41}};
static const nb_prompts texts = {list, 3, 100, 144};

static int fill_ids(void **unused)
{
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t k = 0; k < 100; k++) ids[i][k] = (k * 31 + i * 17 + 5) % 384;
    return 0;
}

static nb_measure *measure(nb_engine *e, const nb_prompts *t)
{
    nb_measure *m = NULL;
    nb_error err = {0};
    assert_int_equal(nb_measure_new(e, true, &m, &err), NB_OK);
    if (nb_measure_run(m, t, NB_ARITH_EXACT, NULL, &err) != NB_OK) fail_msg("%s", err.cause);
    return m;
}

/* A dense linear sees every token, a block-diagonal one every token in each block, the experts of a projection each token once
 * for every expert it goes to. */
static void rows_are_counted(void **unused)
{
    nb_engine *e = open_engine(MOE, 64, 3, false);
    const nb_model *model = nb_engine_model(e);
    nb_measure *m = measure(e, &texts);
    size_t dense = 0, experts = 0;
    for (size_t i = 0; i < nb_measure_count(m); i++) {
        const nb_range *r = nb_measure_at(m, i);
        if (!r->expert) {
            assert_int_equal(r->rows, 144 * r->linear->blocks);
            dense++;
            continue;
        }
        uint64_t sum = 0;
        for (size_t k = 0; k < r->slot->n_lin; k++) sum += nb_measure_at(m, i + k)->rows;
        assert_int_equal(sum, 144 * model->experts_per_row);
        i += r->slot->n_lin - 1;
        experts++;
    }
    assert_true(dense > 10);
    assert_int_equal(experts, 3 * model->cfg.n_layers);
    nb_measure_free(m);
    nb_engine_free(e);
}

/* The size of a step, the number of texts in it, and whether the weights are streamed change no bit of any range. */
static void batching_changes_nothing(void **unused)
{
    nb_engine *a = open_engine(MOE, 144, 3, false), *b = open_engine(MOE, 7, 2, true);
    nb_measure *ma = measure(a, &texts), *mb = measure(b, &texts);
    assert_int_equal(nb_measure_count(ma), nb_measure_count(mb));
    for (size_t i = 0; i < nb_measure_count(ma); i++) {
        const nb_range *x = nb_measure_at(ma, i), *y = nb_measure_at(mb, i);
        assert_string_equal(x->linear->module, y->linear->module);
        assert_true(x->amax == y->amax && x->rows == y->rows);
        if (x->rows) assert_true(nb_range_p9999(x) == nb_range_p9999(y));
    }
    nb_measure_free(ma);
    nb_measure_free(mb);
    nb_engine_free(a);
    nb_engine_free(b);
}

/* One token reaches few experts: the others take the largest maximum of that projection in that layer. */
static void unseen_experts_are_filled(void **unused)
{
    nb_ids one = {ids[1], 1, 1};
    const nb_prompts t = {&one, 1, 1, 1};
    nb_engine *e = open_engine(MOE, 8, 1, false);
    nb_measure *m = measure(e, &t);
    size_t filled = 0;
    nb_error err = {0};
    assert_int_equal(nb_measure_fill(m, &err), NB_OK);
    for (size_t i = 0; i < nb_measure_count(m); i++) {
        const nb_range *r = nb_measure_at(m, i);
        assert_int_equal(r->filled, r->rows == 0);
        if (!r->filled) continue;
        filled++;
        float amax = 0, p = 0;
        size_t first = i - (size_t)(r->linear - r->slot->lin);
        for (size_t k = first; k < first + r->slot->n_lin; k++) {
            const nb_range *o = nb_measure_at(m, k);
            if (o->rows && o->amax > amax) amax = o->amax;
            if (o->rows && nb_range_p9999(o) > p) p = nb_range_p9999(o);
        }
        assert_true(amax > 0 && r->amax == amax && nb_range_p9999(r) == p);
    }
    assert_true(filled > 0);
    nb_measure_free(m);
    nb_engine_free(e);
}

/* Nothing to fill from: an error that names a linear, never a made-up number. */
static void nothing_seen_is_refused(void **unused)
{
    nb_engine *e = open_engine(MOE, 8, 1, false);
    nb_measure *m = NULL;
    nb_error err = {0};
    assert_int_equal(nb_measure_new(e, false, &m, &err), NB_OK);
    assert_int_equal(nb_measure_fill(m, &err), NB_ERR_MISSING);
    assert_non_null(strstr(err.tensor, "layers.0."));
    nb_measure_free(m);
    nb_engine_free(e);
}

/* A tied embedding is the head, so its range is one of those measured. */
static void tied_head_is_measured(void **unused)
{
    nb_engine *e = open_engine(NB_TEST_DATA "/fixtures/models/llama_tied_ct", 64, 3, false);
    nb_measure *m = measure(e, &texts);
    const nb_range *last = nb_measure_at(m, nb_measure_count(m) - 1);
    assert_int_equal(last->layer, -1);
    assert_string_equal(last->linear->module, "model.embed_tokens");
    assert_int_equal(last->rows, 144);
    assert_true(last->amax > 0);
    nb_measure_free(m);
    nb_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_counted),          cmocka_unit_test(batching_changes_nothing),
        cmocka_unit_test(unseen_experts_are_filled), cmocka_unit_test(nothing_seen_is_refused),
        cmocka_unit_test(tied_head_is_measured),
    };
    return cmocka_run_group_tests(tests, fill_ids, NULL);
}
