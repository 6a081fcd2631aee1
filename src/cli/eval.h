/* The three forms of nibble eval. They drive the engine directly: they want every row's logits, not text. */
#ifndef NB_CLI_EVAL_H
#define NB_CLI_EVAL_H

#include "cli/cli.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

typedef struct nb_eval {
    const char *dir, *ids_file, *logits_file, *hidden_file, *text_file, *samples_file;
    size_t chunk, window;
    bool together, json;
    const nb_llm_options *opt;
    size_t rows, odd; /* what came out: rows of logits looked at, and those with a value that is not finite */
} nb_eval;

/* Each prints its result on stdout and counts rows. */
nb_status nb_eval_ids(nb_eval *e, nb_error *err);
nb_status nb_eval_text(nb_eval *e, nb_error *err);
nb_status nb_eval_samples(nb_eval *e, nb_error *err);

/* Counts one row of n logits. False: not all are finite. */
bool nb_eval_count(nb_eval *e, const float *logits, size_t n);

/* An engine for sequences of at most max_len tokens, of which n_seqs run at once, chunk tokens of each a step. */
nb_status nb_eval_engine(const nb_eval *e, size_t n_seqs, size_t max_len, size_t chunk, nb_engine **out,
                         nb_error *err);
/* Feeds n tokens to a fresh sequence in chunks and closes it; every row's logits go to out. */
nb_status nb_eval_feed(nb_engine *g, const uint32_t *ids, size_t n, size_t chunk, const nb_step_out *out,
                       nb_error *err);

#endif
