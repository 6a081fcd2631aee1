/* A model whose rows depend on how long their whole sequence is (longrope, which turns at 64 tokens here): a sequence that grows
 * beyond that is computed anew and gets the tokens that computing all of it for each token gives. */
#include "engine/serve.h"

#define MODEL SERVE_MODELS "phi3_ct"

enum { TURN = 64, PROMPT = 50, ANSWER = 30 };
static uint32_t text[PROMPT + ANSWER];

static void best(void *ctx, size_t part, size_t row, const float *logits)
{
    uint32_t *id = ctx;
    *id = 0;
    for (uint32_t i = 1; i < 448; i++)
        if (logits[i] > logits[*id]) *id = i;
}

/* Each token from the whole sequence before it, computed from its first token. */
static void whole_each_time(nb_engine *e)
{
    for (size_t n = PROMPT; n < PROMPT + ANSWER; n++) {
        uint32_t seq;
        nb_step_out out = {.logits = best, .ctx = &text[n]};
        assert_int_equal(nb_seq_open(e, &seq, NULL), NB_OK);
        assert_int_equal(
            nb_engine_step(e, &(nb_step_part){.seq = seq, .tokens = text, .n = n}, 1, &out, NULL), NB_OK);
        nb_seq_close(e, seq);
    }
}

static void test_grown_beyond_it(void **unused)
{
    static answer have[2];
    for (uint32_t i = 0; i < PROMPT; i++) text[i] = (i * 31 + 5) % 448;
    nb_engine *e = serve_engine(MODEL, NB_ARITH_EXACT, 128, NULL);
    assert_int_equal(nb_engine_model(e)->turns_at, TURN);
    whole_each_time(e);
    nb_engine_free(e);
    for (size_t rows = 7; rows <= 128; rows += 121) {
        serve s;
        serve_start(&s, MODEL, NB_ARITH_EXACT, rows);
        nb_request_spec q = serve_spec(text, PROMPT, ANSWER);
        serve_all(&s, &q, &have[0], 1);
        serve_all(&s, &q, &have[1],
                  1); /* begins with what the cache has of the first, which was short then */
        assert_int_equal(have[0].cached, 0);
        assert_true(have[1].cached > 0);
        for (size_t k = 0; k < 2; k++) {
            assert_int_equal(have[k].n, ANSWER);
            assert_memory_equal(have[k].tokens, text + PROMPT, ANSWER * sizeof *text);
        }
        /* a prompt beyond it takes nothing from the cache, whatever it begins with */
        nb_request_spec beyond = serve_spec(text, PROMPT + ANSWER - 1, 1);
        serve_all(&s, &beyond, &have[0], 1);
        assert_int_equal(have[0].cached, 0);
        assert_int_equal(have[0].tokens[0], text[PROMPT + ANSWER - 1]);
        serve_stop(&s);
    }
}

static void test_rows_of_both_are_refused(void **unused)
{
    uint32_t seq;
    nb_error err = {0};
    nb_engine *e = serve_engine(MODEL, NB_ARITH_EXACT, 128, NULL);
    assert_int_equal(nb_seq_open(e, &seq, NULL), NB_OK);
    assert_int_equal(nb_engine_step(e, &(nb_step_part){.seq = seq, .tokens = text, .n = TURN}, 1, NULL, NULL),
                     NB_OK);
    nb_seq_commit(e, seq, TURN);
    assert_int_equal(nb_engine_step(e, &(nb_step_part){.seq = seq, .tokens = text, .n = 1}, 1, NULL, &err),
                     NB_ERR_ARGUMENT);
    assert_int_equal(nb_seq_length(e, seq), TURN);
    nb_seq_close(e, seq);
    /* told of what is to come, it computes them so from the first on */
    assert_int_equal(nb_seq_open(e, &seq, NULL), NB_OK);
    for (size_t i = 0; i < 2; i++) {
        const nb_step_part p = {.seq = seq, .tokens = text, .n = 40, .known = 80};
        assert_int_equal(nb_engine_step(e, &p, 1, NULL, NULL), NB_OK);
        nb_seq_commit(e, seq, 40);
    }
    nb_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grown_beyond_it),
        cmocka_unit_test(test_rows_of_both_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
