/*
 * From output tokens to text that can be sent: detokenises, looks for stop strings byte by byte, holds back what may still become
 * one. Where tokens begin and end changes nothing. Nothing is allocated after nb_output_new.
 */
#ifndef NB_ENGINE_OUTPUT_H
#define NB_ENGINE_OUTPUT_H

#include "text/tokenizer.h"

typedef struct nb_output nb_output;

/* Copied by nb_output_new but for the tokenizer. */
typedef struct nb_output_options {
    const nb_tokenizer *tokenizer;
    size_t token_bytes;   /* the longest token's */
    bool skip_special;    /* special tokens are no text … */
    const uint32_t *keep; /* [n_keep] … but for these */
    size_t n_keep;
    const char *const *stop; /* [n_stop] not empty, UTF-8 */
    const size_t *stop_len;
    size_t n_stop;
    bool include_stop;
    size_t min_tokens; /* a stop string must end in the text of a later token */
} nb_output_options;

nb_status nb_output_new(const nb_output_options *opt, nb_output **out, nb_error *err);
void nb_output_free(nb_output *o);
size_t nb_output_most(const nb_output *o); /* bytes that one token can make certain, at most */

/* Adds a token; silent: one without text (an end token). Returns the index of the stop string that it completed (of those that end
 * at the earliest byte the first in the list), or -1. After a stop the text is cut and nothing more may be pushed. */
int nb_output_push(nb_output *o, uint32_t id, bool silent);
/* No more tokens come: what was held is text, a character that is not whole becomes U+FFFD. */
void nb_output_finish(nb_output *o);
/* Takes the text [*n] that has become certain since it was last taken: whole characters, valid until the next push or finish. Must
 * be called between two pushes. */
const char *nb_output_take(nb_output *o, size_t *n);

#endif
