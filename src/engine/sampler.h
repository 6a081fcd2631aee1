/* From logits to a token: greedy, temperature, top-k, top-p, min-p. Deterministic: the draw depends on the seed and on how many
 * tokens came before, never on the batch. */
#ifndef NB_ENGINE_SAMPLER_H
#define NB_ENGINE_SAMPLER_H

#include "base/error.h"

typedef struct nb_sampler nb_sampler; /* work memory for one vocabulary */
nb_status nb_sampler_new(size_t vocab, nb_sampler **out, nb_error *err);
void nb_sampler_free(nb_sampler *s);

/* NB_ERR_ARGUMENT names the field that is out of range. */
nb_status nb_sampling_check(const nb_sampling *p, nb_error *err);

/* Chooses a token. step: index of the token in the sequence's output. Non-finite logits are NB_ERR_FORMAT, never a token:
 * -inf alone is allowed (masked). Order as in vLLM: temperature, then min-p, top-k, top-p on the scaled distribution. */
nb_status nb_sample(nb_sampler *s, const nb_sampling *p, const float *logits, uint64_t step, uint32_t *token,
                    nb_error *err);

/* The index of the largest value, the lowest index among equals. */
uint32_t nb_argmax(const float *v, size_t n);

#endif
