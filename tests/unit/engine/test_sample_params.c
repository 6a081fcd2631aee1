/* Each limit of the sampling parameters: the last value that is in, the first that is not, and the field's name in the message. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/sampler.h"

enum { V = 100 };

static nb_sample_params defaults(void)
{
    nb_sample_params p;
    nb_sample_defaults(&p);
    return p;
}

static void accepts(nb_sample_params p)
{
    nb_error err = {0};
    if (nb_sample_check(&p, V, &err)) fail_msg("%s", err.cause);
}

static void refuses(nb_sample_params p, const char *named)
{
    nb_error err = {0};
    assert_int_equal(nb_sample_check(&p, V, &err), NB_ERR_ARGUMENT);
    if (!strstr(err.cause, named)) fail_msg("'%s' does not say '%s'", err.cause, named);
}

static void number(size_t offset, float low, float high, float under, float over, const char *named)
{
    const float values[] = {low, high, under, over, NAN};
    for (size_t i = 0; i < 5; i++) {
        nb_sample_params p = defaults();
        memcpy((char *)&p + offset, &values[i], sizeof values[i]);
        if (i < 2)
            accepts(p);
        else
            refuses(p, named);
    }
}

static void test_numbers(void **unused)
{
    accepts(defaults());
    number(offsetof(nb_sample_params, temperature), 0, 2, -0.1f, 2.1f, "temperature must be");
    number(offsetof(nb_sample_params, top_p), 1e-9f, 1, 0, 1.1f, "top_p must be in (0, 1], got ");
    number(offsetof(nb_sample_params, min_p), 0, 1, -0.1f, 1.1f, "min_p must be in [0, 1], got ");
    number(offsetof(nb_sample_params, presence_penalty), -2, 2, -2.1f, 2.1f, "presence_penalty must be in");
    number(offsetof(nb_sample_params, frequency_penalty), -2, 2, -2.1f, 2.1f, "frequency_penalty must be in");
    number(offsetof(nb_sample_params, repetition_penalty), 1e-9f, 1e9f, 0, INFINITY,
           "repetition_penalty must");
    nb_sample_params p = defaults();
    p.temperature = -1;
    refuses(p, "temperature must be non-negative, got -1.");
    p.temperature = 2.5f;
    refuses(p, "temperature must be in [0, 2], got 2.5.");
}

static void test_lists(void **unused)
{
    const uint32_t in[] = {0, V - 1}, out[] = {0, V};
    nb_sample_params p = defaults();
    p.allowed = in;
    refuses(p, "allowed_token_ids is empty");
    p.n_allowed = 2;
    accepts(p);
    p.allowed = out;
    refuses(p, "allowed_token_ids holds the token id 100");

    p = defaults();
    p.bias_ids = in;
    p.bias = (const float[]){1000, -1000};
    p.n_bias = 2;
    accepts(p);
    p.bias = (const float[]){1, NAN};
    refuses(p, "logit_bias");
    p.bias = (const float[]){1, 2};
    p.bias_ids = out;
    refuses(p, "logit_bias holds the token id 100");

    p = defaults();
    p.stop_ids = out; /* one that cannot come does no harm */
    p.n_stop_ids = 2;
    accepts(p);

    p = defaults();
    p.bad = in;
    p.bad_len = (const size_t[]){1, 1};
    p.n_bad = 2;
    accepts(p);
    p.bad = out;
    refuses(p, "bad_words holds the token id 100");
    p.bad = in;
    p.bad_len = (const size_t[]){2, 0};
    refuses(p, "without tokens");
    p.n_bad = NB_MAX_BAD_WORDS + 1;
    refuses(p, "more than 256");

    p = defaults();
    p.logprobs = NB_LOGPROBS_ALL;
    accepts(p);
    p.logprobs = -3;
    refuses(p, "logprobs");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
