/* Log-probabilities of output and prompt tokens against a softmax in double; the same to the bit however the prompt is cut. */
#include <math.h>

#include "engine/serve.h"

#define MODEL SERVE_MODELS "deepseek_v4_modelopt"
enum { P = 45, N = 6 };
static uint32_t prompt[P];
static nb_request_spec spec;
static answer first;

typedef struct rows {
    float *v; /* [P + N][vocab] */
    size_t vocab, at;
} rows;

static void keep(void *ctx, size_t part, size_t row, const float *logits)
{
    rows *r = ctx;
    memcpy(r->v + (r->at + row) * r->vocab, logits, r->vocab * sizeof *logits);
}

static double logprob(const float *v, size_t n, uint32_t id)
{
    double top = v[0], sum = 0;
    for (size_t i = 1; i < n; i++) top = v[i] > top ? v[i] : top;
    for (size_t i = 0; i < n; i++) sum += exp(v[i] - top);
    return v[id] - top - log(sum);
}

static int start(void **unused)
{
    for (uint32_t i = 0; i < P; i++) prompt[i] = (i * 31 + 4) % 200;
    spec = serve_spec(prompt, P, N);
    spec.sampling.logprobs = 3;
    spec.prompt_logprobs = 2;
    return 0;
}

static void as_softmax(void **unused)
{
    serve s;
    serve_start(&s, MODEL, NB_ARITH_BF16, 64);
    serve_all(&s, &spec, &first, 1);
    serve_stop(&s);
    assert_int_equal(first.n_prompt, P);
    assert_memory_equal(first.prompt, prompt, sizeof prompt);
    assert_int_equal(first.n, N);
    assert_int_equal(first.n_top, 3);

    nb_engine *e = serve_engine(MODEL, NB_ARITH_BF16, 64, NULL);
    rows r = {.vocab = nb_engine_model(e)->vocab};
    nb_step_out out = {.logits = keep, .ctx = &r};
    uint32_t seq, all[P + N];
    r.v = calloc((P + N) * r.vocab, sizeof *r.v);
    assert_non_null(r.v);
    memcpy(all, prompt, sizeof prompt);
    memcpy(all + P, first.tokens, N * sizeof *all);
    assert_int_equal(nb_seq_open(e, &seq, NULL), NB_OK);
    nb_step_part p = {seq, all, P + N, true, false};
    assert_int_equal(nb_engine_step(e, &p, 1, &out, NULL), NB_OK);
    assert_true(first.prompt_chosen[0].logprob == 0 &&
                first.prompt_chosen[0].rank == 0); /* nothing is before it */
    for (size_t i = 1; i < P + N; i++) {
        const nb_logprob *have = i < P ? &first.prompt_chosen[i] : &first.chosen[i - P];
        const float *v = r.v + (i - 1) * r.vocab;
        uint32_t rank = 1;
        for (size_t k = 0; k < r.vocab; k++) rank += v[k] > v[all[i]];
        assert_int_equal(have->id, all[i]);
        assert_int_equal(have->rank, rank);
        assert_true(fabs(have->logprob - logprob(v, r.vocab, all[i])) < 1e-5);
    }
    free(r.v);
    nb_engine_free(e);
}

/* Steps of 7 rows, among others, twice in a row (a prompt's log-probabilities are computed, not cached). */
static void whatever_the_cut(void **unused)
{
    serve s;
    static answer a[4];
    nb_request_spec q[4] = {spec, spec, spec, spec};
    q[1].prompt_logprobs = -1;
    q[3].sampling.logprobs = -1;
    serve_start(&s, MODEL, NB_ARITH_BF16, 7);
    for (int again = 0; again < 2; again++) {
        serve_all(&s, q, a, 4);
        for (size_t i = 0; i < 4; i++) {
            serve_same_tokens(&a[i], &first, "with log-probabilities");
            if (i != 3) assert_memory_equal(a[i].chosen, first.chosen, N * sizeof *first.chosen);
            assert_int_equal(a[i].n_prompt, i == 1 ? 0 : P);
            if (i != 1)
                assert_memory_equal(a[i].prompt_chosen, first.prompt_chosen, P * sizeof *first.chosen);
            if (i != 1) assert_int_equal(a[i].cached, 0);
        }
    }
    serve_stop(&s);
}

/* Every token of the vocabulary for every token of the prompt: more than a ring holds, so that it goes at the reader's pace. */
static void whole_vocabulary(void **unused)
{
    serve s;
    static answer a;
    nb_request_spec q = spec;
    q.prompt_logprobs = NB_LOGPROBS_ALL;
    serve_start(&s, MODEL, NB_ARITH_BF16, 64);
    serve_all(&s, &q, &a, 1);
    assert_int_equal(a.n_prompt, P);
    serve_same_tokens(&a, &first, "with all log-probabilities");
    for (size_t i = 0; i < P; i++) assert_true(a.prompt_chosen[i].logprob == first.prompt_chosen[i].logprob);
    serve_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_softmax),
        cmocka_unit_test(whatever_the_cut),
        cmocka_unit_test(whole_vocabulary),
    };
    return cmocka_run_group_tests(tests, start, NULL);
}
