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

static void latent(void **unused)
{
    each_as_alone("deepseek_v3_ct", NB_ARITH_W4A4, 64);
    each_as_alone("glm_moe_dsa_modelopt", NB_ARITH_BF16, 7);
}

static void recurrent(void **unused)
{
    each_as_alone("qwen3_next_ct", NB_ARITH_BF16, 64);
    each_as_alone("nemotron_h_modelopt", NB_ARITH_W4A4, 7);
}

static void one_block_for_all(void **unused)
{
    each_as_alone("mistral_modelopt", NB_ARITH_W4A4, 7); /* a window */
    each_as_alone("glm4_moe_ct", NB_ARITH_BF16, 64);     /* biases, norms, experts in some layers */
    each_as_alone("phi3_ct", NB_ARITH_EXACT, 7);         /* fused projections */
}

static void shared_and_stacked(void **unused)
{
    each_as_alone("gemma4_ple_modelopt", NB_ARITH_W4A4,
                  7); /* layers that read the keys and values of others */
    each_as_alone("gemma4_moe_ct", NB_ARITH_BF16, 64);
    each_as_alone("gpt_oss_mxfp4", NB_ARITH_BF16, 7); /* sinks, windows, stacks of experts */
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

/* A cache for a few sequences: those that came last lose theirs, wait and compute it again. */
static void preempted(void **unused)
{
    const char *path = SERVE_MODELS "deepseek_v4_modelopt";
    serve s;
    nb_core_stats st;
    nb_engine *e = serve_engine(path, NB_ARITH_BF16, 64, NULL);
    make_specs(nb_engine_model(e)->vocab);
    for (size_t i = 0; i < N; i++) {
        specs[i].max_tokens = 40 + i;
        assert_true(serve_alone(e, &specs[i], &want[i]));
    }
    nb_engine_free(e);
    for (int full = 0; full < 2; full++) {
        serve_blocks = 25; /* one sequence's worst case is 25 blocks of 16 */
        nb_core_options o = serve_options(&s, 16);
        if (!full) o.sched.reserve = NB_RESERVE_PROMPT;
        for (size_t i = 0; i < N; i++) specs[i].open_ended = full;
        serve_start_with(&s, path, NB_ARITH_BF16, 16, &o);
        serve_blocks = 0;
        serve_all(&s, specs, have, N);
        for (size_t i = 0; i < N; i++) serve_same_tokens(&have[i], &want[i], "preempted");
        nb_core_read(s.core, &st);
        assert_true(full || st.preemptions > 0);
        serve_stop(&s);
    }
}

/* More tokens than an open-ended request has room for at first. */
static void long_answer(void **unused)
{
    const char *path = SERVE_MODELS "llama_modelopt";
    serve s;
    nb_engine *e = serve_engine(path, NB_ARITH_BF16, 64, NULL);
    make_specs(nb_engine_model(e)->vocab);
    nb_request_spec q = serve_spec(prompts[3], 5, SERVE_CONTEXT - 5);
    q.open_ended = true;
    assert_true(serve_alone(e, &q, &want[0]));
    nb_engine_free(e);
    serve_start(&s, path, NB_ARITH_BF16, 16);
    serve_all(&s, &q, have, 1);
    assert_int_equal(have[0].n, SERVE_CONTEXT - 5);
    serve_same_tokens(&have[0], &want[0], "a long answer");
    serve_stop(&s);
}

/* A cache of fewer tokens than the context: an open-ended answer ends where the cache does, and one that asks for more is refused. */
static void small_cache(void **unused)
{
    serve s;
    nb_error err;
    nb_request *r = NULL;
    make_specs(200);
    nb_request_spec q = serve_spec(prompts[3], 5, SERVE_CONTEXT - 5);
    serve_blocks = 4;
    serve_start(&s, SERVE_MODELS "llama_modelopt", NB_ARITH_BF16, 16);
    serve_blocks = 0;
    assert_int_equal(nb_core_submit(s.core, &q, &r, &err), NB_ERR_LIMIT);
    q.open_ended = true;
    serve_all(&s, &q, have, 1);
    assert_int_equal(have[0].n, 4 * NB_BLOCK - 5);
    assert_int_equal(have[0].finish, NB_FINISH_LENGTH);
    serve_stop(&s);
}

/* A prompt that came before costs its last tokens alone; under another salt it is another. */
static void prompt_again(void **unused)
{
    static const char *const paths[] = {SERVE_MODELS "llama_modelopt", SERVE_MODELS "deepseek_v4_modelopt"};
    for (size_t m = 0; m < 2; m++) {
        serve s;
        nb_core_stats st;
        uint32_t prompt[100];
        for (uint32_t i = 0; i < 100; i++) prompt[i] = (i * 17 + 3) % 250;
        nb_request_spec q = serve_spec(prompt, 100, 20);
        serve_start(&s, paths[m], NB_ARITH_BF16, 32);
        serve_all(&s, &q, &have[0], 1);
        assert_int_equal(have[0].cached, 0);
        serve_all(&s, &q, &have[1], 1);
        assert_true(have[1].cached >= 80);
        serve_same_tokens(&have[1], &have[0], "a prompt again");
        q.cache_salt = "mine";
        serve_all(&s, &q, &have[2], 1);
        assert_int_equal(have[2].cached, 0);
        serve_same_tokens(&have[2], &have[0], "a prompt under a salt");
        nb_core_read(s.core, &st);
        assert_int_equal(st.prefix_queries, 300);
        assert_int_equal(st.prefix_hits, have[1].cached);
        assert_int_equal(st.prompt_tokens, 300);
        assert_int_equal(st.prompt_cached, have[1].cached);
        assert_int_equal(st.generation_tokens, 60);
        assert_int_equal(nb_core_iteration_tokens(s.core)->total, st.steps);
        /* vLLM's own test: N (P + T), however much was cached and cut in chunks (of 32 here) */
        assert_int_equal((int)nb_core_iteration_tokens(s.core)->sum, 3 * (100 + 20));
        serve_stop(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama),
        cmocka_unit_test(deepseek),
        cmocka_unit_test(latent),
        cmocka_unit_test(recurrent),
        cmocka_unit_test(one_block_for_all),
        cmocka_unit_test(demo),
        cmocka_unit_test(shared_and_stacked),
        cmocka_unit_test(preempted),
        cmocka_unit_test(long_answer),
        cmocka_unit_test(small_cache),
        cmocka_unit_test(prompt_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
