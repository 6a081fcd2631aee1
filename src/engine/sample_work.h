/* What sampling and log-probabilities share: the work memory, and the row that it was last filled from. Internal to the engine. */
#ifndef NB_ENGINE_SAMPLE_WORK_H
#define NB_ENGINE_SAMPLE_WORK_H

#include "engine/row.h"
#include "engine/sampler.h"

#define NB_MASS_BINS                                                                                         \
    2033 /* of probabilities relative to the best, by exponent and four bits of the fraction */

struct nb_sample_work {
    size_t vocab;
    float *row;        /* [vocab] logits after masks and penalties */
    float *q;          /* [vocab] probabilities of the candidates, relative to the best */
    uint32_t *id;      /* [vocab] their tokens */
    uint32_t *best;    /* [vocab] heap of the k largest */
    float *peak, *sum; /* [chunks] of the row in work, of q */
    double mass[NB_MASS_BINS];
};

/* Fills w->peak. NB_ERR_FORMAT names the first NaN or +inf. */
nb_status nb_sample_scan(nb_sample_work *w, const float *logits, uint32_t *best, nb_error *err);

/* The logarithm of the sum of exp(logits), in double: a token's log-probability is its logit less this, rounded to F32. best is the
 * largest's index. Overwrites w->q and w->sum. */
double nb_logprobs_norm(nb_sample_work *w, const float *logits, uint32_t best);
/* One token's. */
nb_logprob nb_logprobs_one(const nb_sample_work *w, const float *logits, double norm, uint32_t token);
/* The k most probable (NB_LOGPROBS_ALL: all) into top [cap]; returns their number. w->peak is of logits. */
size_t nb_logprobs_top(nb_sample_work *w, const float *logits, double norm, int k, nb_logprob *top,
                       size_t cap);

#endif
