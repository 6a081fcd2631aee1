/*
 * From one row of logits to a token, in vLLM's order (vllm/v1/sample/sampler.py): log-probabilities of the raw logits first; then
 * allowed ids, bad words, min_tokens, logit_bias, repetition, frequency and presence penalties; greedy, or temperature, min-p,
 * top-k, top-p and one draw. Deterministic: the draw depends on the seed and on how many tokens came before, never on the batch.
 */
#ifndef NB_ENGINE_SAMPLER_H
#define NB_ENGINE_SAMPLER_H

#include "base/error.h"

#define NB_LOGPROBS_ALL (-2)
#define NB_MAX_BAD_WORDS 256 /* sequences of tokens */

/* How one sequence is sampled. Zero-initialise, then nb_sample_defaults. Arrays are borrowed by nb_sampler_new, which copies. */
typedef struct nb_sample_params {
    float
        temperature; /* 0: greedy, whatever the three below say; between 0 and 0.01 it acts as 0.01 (vLLM) */
    float top_p;     /* in (0, 1]; 1: off */
    float min_p;     /* in [0, 1]; 0: off */
    uint32_t top_k;  /* 0: off; tokens that equal the k-th stay too (vLLM) */
    float presence_penalty, frequency_penalty; /* [-2, 2], of output tokens */
    float repetition_penalty;                  /* > 0, of prompt and output tokens; 1: off */
    uint64_t seed;
    size_t min_tokens; /* before that many output tokens neither eos nor a stop token can be chosen */
    /* [n_stop_ids] tokens that end the answer, eos included unless it is ignored. One outside the vocabulary never comes. */
    const uint32_t *stop_ids;
    size_t n_stop_ids;
    const uint32_t *bias_ids; /* [n_bias] */
    const float *bias;        /* [n_bias] added to their logits, clamped to [-100, 100] (vLLM) */
    size_t n_bias;
    const uint32_t *allowed; /* [n_allowed] the only tokens that can be chosen; NULL: all */
    size_t n_allowed;
    const uint32_t
        *bad; /* [sum of bad_len] token sequences that the output must not complete, one after another */
    const size_t *bad_len; /* [n_bad], each >= 1 */
    size_t n_bad;
    int logprobs; /* -1: none; k: of the chosen token and the k most probable; NB_LOGPROBS_ALL: every token */
} nb_sample_params;

/* Whether what was seen changes logits, so that a sampler must remember it. */
static inline bool nb_sample_penalises(const nb_sample_params *p)
{
    return p->presence_penalty != 0 || p->frequency_penalty != 0 || p->repetition_penalty != 1;
}

/* Temperature 1, top_p 1, repetition_penalty 1, no logprobs; the rest off. */
void nb_sample_defaults(nb_sample_params *p);
/* NB_ERR_ARGUMENT names the field that is out of vLLM's range (temperature: [0, 2]), or the id outside the vocabulary. */
nb_status nb_sample_check(const nb_sample_params *p, size_t vocab, nb_error *err);

/* Work memory for one vocabulary, one per thread that samples. */
typedef struct nb_sample_work nb_sample_work;
nb_status nb_sample_work_new(size_t vocab, nb_sample_work **out, nb_error *err);
void nb_sample_work_free(nb_sample_work *w);

/* What one sequence's sampling remembers: its parameters (copied) and, with penalties, how often each token was seen: 16 to 32 bytes for
 * each that was, so that thousands of sequences may wait whatever the vocabulary is. p must have passed nb_sample_check, but its
 * temperature may be above 2; prompt ids are below vocab. */
typedef struct nb_sampler nb_sampler;
nb_status nb_sampler_new(const nb_sample_params *p, size_t vocab, const uint32_t *prompt, size_t n_prompt,
                         nb_sampler **out, nb_error *err);
void nb_sampler_free(nb_sampler *s);

typedef struct nb_logprob {
    uint32_t id;
    uint32_t
        rank; /* of the chosen token: how many are at least as probable, itself included (vLLM); in top: 1, 2, … */
    float
        logprob; /* log-softmax of the raw logits, F32: for one row and token the same bits wherever it is told */
} nb_logprob;

typedef struct nb_sampled {
    nb_logprob chosen; /* logprob and rank are 0 unless logprobs are asked for */
    bool stop;         /* chosen is one of stop_ids, and min_tokens is reached */
} nb_sampled;

/*
 * Chooses the sequence's next token. logits [vocab] are read only. top [cap] gets the most probable, best first, equals by id;
 * *n_top how many (min of k and cap; cap >= k is the caller's duty). NB_ERR_FORMAT names the first NaN or +inf, or says that the
 * model masks every token, and is never a token; -inf alone is legal (masked). NB_ERR_ARGUMENT: the request's own masks leave no
 * token. The token is not yet part of the sequence: nb_sampler_push makes it so. Threads with a work memory of their own may
 * call it for the same s.
 */
nb_status nb_sampler_choose(const nb_sampler *s, nb_sample_work *w, const float *logits, nb_sampled *out,
                            nb_logprob *top, size_t cap, size_t *n_top, nb_error *err);
/* Adds an output token. NB_ERR_NOMEM: with penalties, and nothing is changed. */
nb_status nb_sampler_push(nb_sampler *s, uint32_t id, nb_error *err);
size_t nb_sampler_output(const nb_sampler *s); /* tokens pushed */

/* Log-probabilities of one row against a known token (prompt_logprobs, echo): chosen is that token. Same errors. k as in
 * nb_sample_params.logprobs, but not -1. */
nb_status nb_logprobs_of(nb_sample_work *w, const float *logits, uint32_t token, int k, nb_logprob *chosen,
                         nb_logprob *top, size_t cap, size_t *n_top, nb_error *err);

/* The index of the largest value, the lowest index among equals. */
uint32_t nb_argmax(const float *v, size_t n);

#endif
