/* Sequences through the engine thread get the tokens that each gets alone, whatever runs beside it and however prompts are cut. */
#include "engine/serve.h"

enum { N = 16 };
static uint32_t prompts[N][40];
static nb_request_spec specs[N];
static answer have[N], want[N];
static const uint32_t ends[] = {3, 11};

/* Prompts of 1 to 37 tokens; greedy, seeded, penalties and early ends in turn. */
static void make_specs(size_t vocab)
{
    for (uint32_t i = 0; i < N; i++) {
        size_t n = 1 + i * 12 % 37;
        for (uint32_t k = 0; k < n; k++) prompts[i][k] = (k * 29 + i * 13 + 7) % (uint32_t)vocab;
        specs[i] = serve_spec(prompts[i], n, 3 + i * 5 % 24);
        nb_sample_params *p = &specs[i].sampling;
        if (i % 2) p->temperature = 0.9f;
        p->seed = 1000 + i;
        if (i % 4 == 1) p->top_k = 20;
        if (i % 4 == 3) p->top_p = 0.9f;
        if (i % 5 == 2) p->repetition_penalty = 1.3f;
        if (i % 3 == 0) {
            p->stop_ids = ends;
            p->n_stop_ids = 2;
        }
        specs[i].open_ended = i % 7 == 0;
    }
}

static void each_as_alone(const char *model, nb_arith arith, size_t rows)
{
    char path[512];
    serve s;
    snprintf(path, sizeof path, SERVE_MODELS "%s", model);
    nb_engine *e = serve_engine(path, arith, 64, NULL);
    make_specs(nb_engine_model(e)->vocab);
    for (size_t i = 0; i < N; i++) assert_true(serve_alone(e, &specs[i], &want[i]));
    nb_engine_free(e);
    serve_start(&s, path, arith, rows);
    for (size_t n = 1; n <= N; n = n < N ? (n * 3 < N ? n * 3 : N) : n + 1) {
        serve_all(&s, specs, have, n);
        for (size_t i = 0; i < n; i++) {
            serve_same_tokens(&have[i], &want[i], model);
            assert_true(have[i].finish == NB_FINISH_STOP || have[i].finish == NB_FINISH_LENGTH);
            assert_true(have[i].times.scheduled > 0 && have[i].times.first_token >= have[i].times.scheduled &&
                        have[i].times.last_token >= have[i].times.first_token);
        }
    }
    serve_stop(&s);
}

static void llama(void **unused)
{
    each_as_alone("llama_modelopt", NB_ARITH_BF16, 7);
    each_as_alone("llama_modelopt", NB_ARITH_W4A4, 64);
}

static void deepseek(void **unused)
{
    each_as_alone("deepseek_v4_modelopt", NB_ARITH_BF16, 64);
    each_as_alone("deepseek_v4_modelopt", NB_ARITH_EXACT, 7);
}

static void demo(void **unused)
{
    const char *path = NB_TEST_DATA "/fixtures/demo/modelopt";
    serve s;
    nb_tok_scratch *scratch;
    nb_ids ids = {0};
    static const char *const texts[] = {"copy abc|", "rev abc|", "hello", "add 12 7|"};
    serve_start(&s, path, NB_ARITH_BF16, 64);
    scratch = nb_tok_scratch_new(s.t);
    nb_engine *e = serve_engine(path, NB_ARITH_BF16, 64, NULL);
    for (size_t i = 0; i < 4; i++) {
        ids.len = 0;
        assert_int_equal(nb_tokenizer_encode(s.t, scratch, texts[i], strlen(texts[i]), true, &ids, NULL),
                         NB_OK);
        memcpy(prompts[i], ids.data, ids.len * sizeof *ids.data);
        specs[i] = serve_spec(prompts[i], ids.len, 24);
        assert_true(serve_alone(e, &specs[i], &want[i]));
    }
    serve_all(&s, specs, have, 4);
    for (size_t i = 0; i < 4; i++) {
        nb_buf text = {0};
        serve_same_tokens(&have[i], &want[i], texts[i]);
        assert_int_equal(nb_tokenizer_decode(s.t, want[i].tokens, want[i].n, true, &text, NULL), NB_OK);
        assert_string_equal(have[i].text, nb_buf_str(&text));
        nb_buf_free(&text);
    }
    nb_engine_free(e);
    nb_tok_scratch_free(scratch);
    free(ids.data);
    serve_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama),
        cmocka_unit_test(deepseek),
        cmocka_unit_test(demo),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
