/* How a sequence ends: end tokens, stop tokens, stop strings, length; in vLLM's order, with what each event says of it. */
#include "engine/serve.h"

#include "base/utf8.h"

#define MODEL SERVE_MODELS "llama_modelopt"
static const uint32_t prompt[] = {5, 9, 17, 33};
static serve s;
static answer plain; /* 24 greedy tokens */

static int start(void **unused)
{
    serve_start(&s, MODEL, NB_ARITH_BF16, 16);
    nb_request_spec q = serve_spec(prompt, 4, 24);
    serve_all(&s, &q, &plain, 1);
    return plain.finish != NB_FINISH_LENGTH || plain.n != 24;
}

static int stop(void **unused)
{
    serve_stop(&s);
    return 0;
}

static answer run(const nb_request_spec *q)
{
    static answer a;
    serve_all(&s, q, &a, 1);
    return a;
}

/* The first place from `from` on whose token has not occurred before. */
static size_t fresh(size_t from)
{
    for (size_t i = from; i < plain.n; i++) {
        bool seen = false;
        for (size_t k = 0; k < i; k++) seen |= plain.tokens[k] == plain.tokens[i];
        if (!seen) return i;
    }
    fail_msg("the answer only repeats itself");
    return 0;
}

static void length(void **unused)
{
    nb_request_spec q = serve_spec(prompt, 4, 1);
    answer a = run(&q);
    assert_int_equal(a.n, 1);
    assert_int_equal(a.finish, NB_FINISH_LENGTH);
    assert_int_equal(a.stop_string, -1);
    /* the context's end: 250 + 6 tokens */
    static uint32_t longer[250];
    for (uint32_t i = 0; i < 250; i++) longer[i] = i % 200 + 5;
    q = serve_spec(longer, 250, SERVE_CONTEXT - 250);
    q.open_ended = true;
    a = run(&q);
    assert_int_equal(a.n, SERVE_CONTEXT - 250);
    assert_int_equal(a.finish, NB_FINISH_LENGTH);
}

/* A stop token is an output token without text; include_stop gives it its text. */
static void stop_token(void **unused)
{
    const size_t at = fresh(2);
    nb_buf before = {0};
    nb_request_spec q = serve_spec(prompt, 4, 24);
    q.sampling.stop_ids = &plain.tokens[at];
    q.sampling.n_stop_ids = 1;
    answer a = run(&q);
    assert_int_equal(a.finish, NB_FINISH_STOP);
    assert_int_equal(a.n, at + 1);
    assert_int_equal(a.tokens[at], plain.tokens[at]);
    assert_int_equal(a.stop_string, -1);
    assert_int_equal(nb_tokenizer_decode(s.t, plain.tokens, at, true, &before, NULL), NB_OK);
    assert_string_equal(a.text, nb_buf_str(&before));
    q.include_stop = true;
    a = run(&q);
    nb_buf_clear(&before);
    assert_int_equal(nb_tokenizer_decode(s.t, plain.tokens, at + 1, true, &before, NULL), NB_OK);
    assert_string_equal(a.text, nb_buf_str(&before));
    nb_buf_free(&before);
    /* the last token that max_tokens allows may be a stop token: it ended by that */
    q.max_tokens = at + 1;
    assert_int_equal(run(&q).finish, NB_FINISH_STOP);
    q.max_tokens = at;
    assert_int_equal(run(&q).finish, NB_FINISH_LENGTH);
}

/* The model's own end token ends an answer only where the request says so. */
static void end_token(void **unused)
{
    int64_t eos = nb_tokenizer_eos(s.t);
    assert_true(eos >= 0);
    const uint32_t id = (uint32_t)eos;
    nb_request_spec q = serve_spec(prompt, 4, 24);
    q.sampling.allowed = &id;
    q.sampling.n_allowed = 1;
    answer a = run(&q);
    assert_int_equal(a.n, 24); /* ignored: nobody said that it ends */
    q.sampling.stop_ids = &id;
    q.sampling.n_stop_ids = 1;
    a = run(&q);
    assert_int_equal(a.n, 1);
    assert_int_equal(a.finish, NB_FINISH_STOP);
    assert_int_equal(a.tokens[0], id);
    assert_int_equal(a.len, 0);
}

/* A stop string at any place of the text, whatever tokens it spans. */
static void stop_strings(void **unused)
{
    size_t tried = 0;
    for (size_t from = 0; from < plain.len; from++) {
        for (size_t n = 1; n <= 9 && from + n <= plain.len; n++) {
            char word[16];
            uint32_t cp;
            memcpy(word, plain.text + from, n);
            word[n] = '\0';
            size_t whole = 0, w = 1;
            while (whole < n && w) whole += w = nb_utf8_decode(word + whole, n - whole, &cp);
            if (!w) continue; /* not UTF-8 */
            const char *first = strstr(plain.text, word);
            nb_request_spec q = serve_spec(prompt, 4, 24);
            q.stop[0] = "\x01never";
            q.stop_len[0] = 6;
            q.stop[1] = word;
            q.stop_len[1] = n;
            q.n_stop = 2;
            answer a = run(&q);
            assert_int_equal(a.finish, NB_FINISH_STOP);
            assert_int_equal(a.stop_string, 1);
            assert_int_equal(a.len, first - plain.text);
            assert_memory_equal(a.text, plain.text, a.len);
            tried++;
        }
    }
    assert_true(tried > 20);
}

/* Before min_tokens neither an end nor a stop string counts. */
static void min_tokens(void **unused)
{
    const size_t at = fresh(1);
    nb_request_spec q = serve_spec(prompt, 4, 24);
    q.sampling.stop_ids = &plain.tokens[at];
    q.sampling.n_stop_ids = 1;
    q.sampling.min_tokens = at + 5;
    answer a = run(&q);
    assert_true(a.n >= at + 5); /* the sampler does not choose it before */
    for (size_t i = 0; i + 1 < a.n; i++) assert_true(i >= at + 5 || a.tokens[i] != plain.tokens[at]);
}

/* A request that leaves no token to choose from ends with that reason, and the guard does not look for a fault. */
static void nothing_allowed(void **unused)
{
    nb_core_stats before, after;
    const uint32_t only = plain.tokens[0];
    nb_request_spec q = serve_spec(prompt, 4, 24);
    q.sampling.allowed = q.sampling.stop_ids = &only;
    q.sampling.n_allowed = q.sampling.n_stop_ids = 1;
    q.sampling.min_tokens = 1;
    nb_core_read(s.core, &before);
    answer a = run(&q);
    nb_core_read(s.core, &after);
    assert_int_equal(a.finish, NB_FINISH_ERROR);
    assert_int_equal(a.n, 0);
    assert_int_equal(after.corrupted, before.corrupted);
}

static void bad_requests(void **unused)
{
    nb_request *r = NULL;
    nb_error err;
    const uint32_t wild[] = {1, 1000000};
    nb_request_spec q = serve_spec(wild, 2, 4);
    assert_int_equal(nb_core_submit(s.core, &q, &r, &err), NB_ERR_ARGUMENT);
    assert_non_null(strstr(err.cause, "1000000"));
    q = serve_spec(prompt, 0, 4);
    assert_int_equal(nb_core_submit(s.core, &q, &r, &err), NB_ERR_ARGUMENT);
    q = serve_spec(prompt, 4, 0);
    assert_int_equal(nb_core_submit(s.core, &q, &r, &err), NB_ERR_ARGUMENT);
    q = serve_spec(prompt, 4, SERVE_CONTEXT);
    assert_int_equal(nb_core_submit(s.core, &q, &r, &err), NB_ERR_LIMIT);
    q = serve_spec(prompt, 4, 4);
    q.n_stop = 1;
    q.stop[0] = "\xff";
    q.stop_len[0] = 1;
    assert_int_equal(nb_core_submit(s.core, &q, &r, &err), NB_ERR_ARGUMENT);
    q = serve_spec(prompt, 4, 4);
    q.sampling.top_p = 2;
    assert_int_equal(nb_core_submit(s.core, &q, &r, &err), NB_ERR_ARGUMENT);
    assert_null(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(length),       cmocka_unit_test(stop_token), cmocka_unit_test(end_token),
        cmocka_unit_test(stop_strings), cmocka_unit_test(min_tokens), cmocka_unit_test(nothing_allowed),
        cmocka_unit_test(bad_requests),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
