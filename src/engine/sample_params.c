/* The limits of a request's sampling parameters: vLLM's (vllm/sampling_params.py). */
#include <math.h>

#include "engine/sampler.h"

void nb_sample_defaults(nb_sample_params *p)
{
    *p = (nb_sample_params){.temperature = 1, .top_p = 1, .repetition_penalty = 1, .logprobs = -1};
}

static nb_status out_of_range(nb_error *err, const char *field, const char *range, float v)
{
    return nb_fail(err, NB_ERR_ARGUMENT, "%s must be %s, got %g.", field, range, (double)v);
}

static nb_status check_ids(const char *field, const uint32_t *ids, size_t n, size_t vocab, nb_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= vocab)
            return nb_fail(err, NB_ERR_ARGUMENT,
                           "%s holds the token id %u, which is outside the vocabulary of %zu", field, ids[i],
                           vocab);
    return NB_OK;
}

static nb_status check_numbers(const nb_sample_params *p, nb_error *err)
{
    if (p->temperature < 0) return out_of_range(err, "temperature", "non-negative", p->temperature);
    if (!(p->temperature <= 2)) return out_of_range(err, "temperature", "in [0, 2]", p->temperature);
    if (!(p->top_p > 0 && p->top_p <= 1)) return out_of_range(err, "top_p", "in (0, 1]", p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1)) return out_of_range(err, "min_p", "in [0, 1]", p->min_p);
    if (!(fabsf(p->presence_penalty) <= 2))
        return out_of_range(err, "presence_penalty", "in [-2, 2]", p->presence_penalty);
    if (!(fabsf(p->frequency_penalty) <= 2))
        return out_of_range(err, "frequency_penalty", "in [-2, 2]", p->frequency_penalty);
    if (!(p->repetition_penalty > 0 && p->repetition_penalty < INFINITY))
        return out_of_range(err, "repetition_penalty", "a finite number greater than zero",
                            p->repetition_penalty);
    return NB_OK;
}

nb_status nb_sample_check(const nb_sample_params *p, size_t vocab, nb_error *err)
{
    nb_status s = check_numbers(p, err);
    if (s) return s;
    if ((s = check_ids("logit_bias", p->bias_ids, p->n_bias, vocab, err))) return s;
    for (size_t i = 0; i < p->n_bias; i++)
        if (!isfinite(p->bias[i]))
            return out_of_range(err, "a value of logit_bias", "a finite number", p->bias[i]);
    if (p->allowed && !p->n_allowed)
        return nb_fail(err, NB_ERR_ARGUMENT, "allowed_token_ids is empty: there is nothing to choose from");
    if (p->allowed && (s = check_ids("allowed_token_ids", p->allowed, p->n_allowed, vocab, err))) return s;
    if (p->n_bad > NB_MAX_BAD_WORDS)
        return nb_fail(err, NB_ERR_ARGUMENT, "bad_words become %zu token sequences, more than %d", p->n_bad,
                       NB_MAX_BAD_WORDS);
    const uint32_t *word = p->bad;
    for (size_t i = 0; i < p->n_bad; word += p->bad_len[i++]) {
        if (!p->bad_len[i]) return nb_fail(err, NB_ERR_ARGUMENT, "bad_words holds a word without tokens");
        if ((s = check_ids("bad_words", word, p->bad_len[i], vocab, err))) return s;
    }
    if (p->logprobs < NB_LOGPROBS_ALL)
        return nb_fail(err, NB_ERR_ARGUMENT, "logprobs must be a number of tokens, got %d", p->logprobs);
    return NB_OK;
}
