/*
 * Log-probabilities: log-softmax of the raw logits. The norm is computed in double and each token's value is one subtraction rounded to
 * F32, so that a token has the same bits as the chosen one, among the top and in the prompt; lm-eval compares them.
 */
#include <math.h>

#include "engine/sample_work.h"

nb_status nb_sample_scan(nb_sample_work *w, const float *logits, uint32_t *best, nb_error *err)
{
    size_t at = nb_row_scan(logits, w->vocab, w->peak, best);
    if (at == w->vocab) {
        if (logits[*best] > -INFINITY) return NB_OK;
        return nb_fail(err, NB_ERR_FORMAT, "the model masks every token: there is nothing to choose from");
    }
    nb_fail(err, NB_ERR_FORMAT, "the logit of token %zu is %s: the model gives no answer", at,
            isnan(logits[at]) ? "nan" : "inf");
    nb_error_remedy(err, "run `nibble check` on the folder to find the tensor at fault");
    return NB_ERR_FORMAT;
}

double nb_logprobs_norm(nb_sample_work *w, const float *logits, uint32_t best)
{
    float top = logits[best];
    return top + log(nb_row_exp(logits, w->vocab, top, 1, w->q, w->sum));
}

nb_logprob nb_logprobs_one(const nb_sample_work *w, const float *logits, double norm, uint32_t token)
{
    return (nb_logprob){.id = token,
                        .rank = (uint32_t)nb_row_count(logits, w->vocab, logits[token]),
                        .logprob = (float)(logits[token] - norm)};
}

size_t nb_logprobs_top(nb_sample_work *w, const float *logits, double norm, int k, nb_logprob *top,
                       size_t cap)
{
    size_t want = k == NB_LOGPROBS_ALL ? w->vocab : (size_t)k;
    size_t n = nb_row_select(logits, w->vocab, w->peak, want < cap ? want : cap, w->best);
    nb_row_sort(logits, w->best, n);
    for (size_t i = 0; i < n; i++)
        top[i] = (nb_logprob){
            .id = w->best[i], .rank = (uint32_t)i + 1, .logprob = (float)(logits[w->best[i]] - norm)};
    return n;
}

nb_status nb_logprobs_of(nb_sample_work *w, const float *logits, uint32_t token, int k, nb_logprob *chosen,
                         nb_logprob *top, size_t cap, size_t *n_top, nb_error *err)
{
    uint32_t best;
    *n_top = 0;
    if (token >= w->vocab)
        return nb_fail(err, NB_ERR_ARGUMENT, "token %u is outside the vocabulary of %zu", token, w->vocab);
    nb_status st = nb_sample_scan(w, logits, &best, err);
    if (st != NB_OK) return st;
    double norm = nb_logprobs_norm(w, logits, best);
    *chosen = nb_logprobs_one(w, logits, norm, token);
    *n_top = nb_logprobs_top(w, logits, norm, k, top, cap);
    return NB_OK;
}
