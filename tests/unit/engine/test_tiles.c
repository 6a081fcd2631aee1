/* Logits by tiles are those by rows; a checked step names each part's first row that is not finite and hands out nothing of it or
 * of what follows. */
#include <math.h>

#include "engine/broken.h"
#include "engine/serve.h"

#define MODEL SERVE_MODELS "llama_modelopt"
enum { PARTS = 3, ROWS = 40 };
static uint32_t ids[PARTS][ROWS];

typedef struct seen {
    float *v; /* [PARTS][ROWS][vocab] */
    bool had[PARTS][ROWS];
    size_t vocab, calls, most;
} seen;

static void put(seen *s, size_t part, size_t row, const float *logits)
{
    assert_false(s->had[part][row]);
    s->had[part][row] = true;
    memcpy(s->v + (part * ROWS + row) * s->vocab, logits, s->vocab * sizeof *logits);
}

static void by_row(void *ctx, size_t part, size_t row, const float *logits)
{
    put(ctx, part, row, logits);
}

static void by_tile(void *ctx, const nb_logit_row *rows, size_t n, const float *logits)
{
    seen *s = ctx;
    s->calls++;
    if (n > s->most) s->most = n;
    for (size_t i = 0; i < n; i++) put(s, rows[i].part, rows[i].row, logits + i * s->vocab);
}

static void run(nb_engine *e, nb_step_part *parts, const nb_step_out *out)
{
    for (size_t p = 0; p < PARTS; p++) assert_int_equal(nb_seq_open(e, &parts[p].seq, NULL), NB_OK);
    assert_int_equal(nb_engine_step(e, parts, PARTS, out, NULL), NB_OK);
    for (size_t p = 0; p < PARTS; p++) nb_seq_close(e, parts[p].seq);
}

static seen new_seen(nb_engine *e)
{
    seen s = {.vocab = nb_engine_model(e)->vocab};
    s.v = calloc(PARTS * ROWS * s.vocab, sizeof *s.v);
    assert_non_null(s.v);
    return s;
}

static int fill(void **unused)
{
    for (uint32_t p = 0; p < PARTS; p++)
        for (uint32_t i = 0; i < ROWS; i++) ids[p][i] = (p * 31 + i * 7 + 2) % 200;
    return 0;
}

static void tiles_are_rows(void **unused)
{
    nb_engine *e = serve_engine(MODEL, NB_ARITH_BF16, 128, NULL);
    seen a = new_seen(e), b = new_seen(e);
    /* 40 rows of the first, none of the second, the last of the third */
    nb_step_part parts[PARTS] = {{.tokens = ids[0], .n = ROWS, .all_logits = true},
                                 {.tokens = ids[1], .n = ROWS, .all_logits = true, .no_logits = true},
                                 {.tokens = ids[2], .n = ROWS}};
    run(e, parts, &(nb_step_out){.logits = by_row, .ctx = &a});
    run(e, parts, &(nb_step_out){.tile = by_tile, .ctx = &b});
    assert_memory_equal(a.had, b.had, sizeof a.had);
    assert_memory_equal(a.v, b.v, PARTS * ROWS * a.vocab * sizeof *a.v);
    for (size_t i = 0; i < ROWS; i++)
        assert_true(b.had[0][i] && !b.had[1][i] && b.had[2][i] == (i == ROWS - 1));
    assert_int_equal(b.calls, 2); /* 41 rows, 32 at a time */
    assert_int_equal(b.most, 32);
    free(a.v);
    free(b.v);
    nb_engine_free(e);
}

/* A token whose embedding is NaN: its row and those that attend to it. */
static void bad_rows(void **unused)
{
    tempdir t;
    const uint16_t nan = 0x7FC0;
    broken_copy(&t, MODEL);
    nb_ckpt *c = NULL;
    assert_int_equal(nb_ckpt_open(t.path, NULL, NULL, &c, NULL), NB_OK);
    const nb_tensor_info *table = nb_ckpt_find(c, "model.embed_tokens.weight");
    assert_int_equal(table->dtype, NB_DT_BF16);
    size_t at = 2 * (size_t)table->shape[1] * ids[1][25];
    nb_ckpt_close(c);
    broken_poke(&t, "model.embed_tokens.weight", at, &nan, 2, NULL);
    nb_engine *e = serve_engine(t.path, NB_ARITH_BF16, 128, NULL);
    seen s = new_seen(e);
    nb_step_part parts[PARTS];
    for (size_t p = 0; p < PARTS; p++)
        parts[p] = (nb_step_part){.tokens = ids[p], .n = ROWS, .all_logits = true};
    run(e, parts, &(nb_step_out){.tile = by_tile, .ctx = &s, .check = true});
    for (size_t p = 0; p < PARTS; p++) {
        size_t first = ROWS;
        for (size_t i = ROWS; i-- > 0;)
            if (ids[p][i] == ids[1][25]) first = i;
        assert_int_equal(nb_step_bad(e, p), first);
        for (size_t i = 0; i < ROWS; i++) assert_int_equal(s.had[p][i], i < first);
    }
    assert_int_equal(nb_step_bad(e, 1), 25);
    assert_int_equal(nb_step_bad(e, 0), ROWS);
    free(s.v);
    nb_engine_free(e);
    tempdir_remove(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiles_are_rows), cmocka_unit_test(bad_rows)};
    return cmocka_run_group_tests(tests, fill, NULL);
}
