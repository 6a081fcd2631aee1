/*
 * Activation ranges: what every linear and every expert received while texts ran through a model. The engine's taps tell each
 * call with its input rows; the largest magnitude, the 99.99th percentile (quantile.h) and the number of rows are kept for each.
 * Used by calibrate, which writes them down, and by the warm-up, which turns them into input scales.
 */
#ifndef NB_ENGINE_MEASURE_H
#define NB_ENGINE_MEASURE_H

#include "engine/engine.h"
#include "engine/prompts.h"

/* One linear of the model: every row of its table with the role LINEAR or HEAD, at each layer, for each expert; the embedding
 * where it is the head too. */
typedef struct nb_range {
    nb_linear *linear;   /* the model's */
    const nb_slot *slot; /* its siblings: the layer's experts of this projection */
    const nb_linear_src *src;
    int layer; /* -1 outside layers */
    bool expert;
    float amax;
    uint64_t
        rows; /* rows of k values that its input quantiser would have seen: a block-diagonal linear has `blocks` a token */
    struct nb_quantile *bins; /* NULL: not wanted */
    bool filled;              /* saw no row; amax is the largest of its siblings */
    float filled_p9999;
} nb_range;

typedef struct nb_measure nb_measure;

/* For the model of e, which must outlive it. quantiles: keep histograms (24 KB of address space a linear, touched when rows come). */
nb_status nb_measure_new(nb_engine *e, bool quantiles, nb_measure **out, nb_error *err);
void nb_measure_free(nb_measure *m);

/*
 * Runs the texts through the engine's model in arithmetic `arith`, each a sequence of its own, cut to the engine's context. As
 * many texts as the engine's rows and sequences hold are one step; a streaming model is read once a step, so few rows cost
 * passes over the weights and many cost memory. NaN or infinity in an input is NB_ERR_FORMAT that names the linear. No sequence
 * may be open. Progress in tokens goes to sink (may be NULL). May be called again for more texts.
 */
nb_status nb_measure_run(nb_measure *m, const nb_prompts *texts, nb_arith arith, const nb_sink *sink,
                         nb_error *err);

/* The most texts that a step of `rows` rows takes side by side, at most `seqs`: how many sequences an engine for them needs. */
size_t nb_texts_abreast(const nb_prompts *texts, size_t rows, size_t seqs);

/* The loop alone, for a watcher of its own: the engine's tap is set for as long as the texts run. */
typedef void (*nb_tap_fn)(void *ctx, nb_exec *x, const nb_tap *t);
nb_status nb_texts_run(nb_engine *e, const nb_prompts *texts, nb_arith arith, nb_tap_fn tap, void *ctx,
                       const nb_sink *sink, nb_error *err);

/* Gives experts that saw no row the largest amax (and p9999) of the layer's other experts for that projection. NB_ERR_MISSING
 * naming the linear when none of them saw any, or when it is not an expert. */
nb_status nb_measure_fill(nb_measure *m, nb_error *err);

size_t nb_measure_count(const nb_measure *m);
nb_range *nb_measure_at(nb_measure *m, size_t i); /* in the order of layers, of the table, of experts */
/* The 99.99th percentile of |input| of a range with bins. */
float nb_range_p9999(const nb_range *r);

#endif
