/*
 * BPE from a Hugging Face tokenizer.json, byte-level or of SentencePiece's style: text to ids and back. Immutable after loading; encode and decode
 * may be called from several threads, each with its own nb_tok_scratch.
 * Semantics are those of the `tokenizers` library; what it does not know it refuses by name, never approximates.
 */
#ifndef NB_TEXT_TOKENIZER_H
#define NB_TEXT_TOKENIZER_H

#include "base/buf.h"
#include "base/error.h"

typedef struct nb_tokenizer nb_tokenizer;

/* Reads dir/tokenizer.json (and tokenizer_config.json, special_tokens_map.json when there, for bos, eos and add_bos_token).
 * A component outside the supported families is NB_ERR_UNSUPPORTED and names it. */
nb_status nb_tokenizer_open(const char *dir, nb_tokenizer **out, nb_error *err);
/* The same from bytes in memory (tests, fuzzing); config_json may be NULL. */
nb_status nb_tokenizer_parse(const char *json, size_t n, const char *config_json, size_t config_n,
                             nb_tokenizer **out, nb_error *err);
void nb_tokenizer_free(nb_tokenizer *t);

/* One more than the largest id. */
uint32_t nb_tokenizer_size(const nb_tokenizer *t);
/* The id of a token given by its text (added tokens first, then the vocabulary: byte-level by its surface bytes, else as it is
 * spelled, with U+2581 for a space). -1: none. */
int64_t nb_tokenizer_id(const nb_tokenizer *t, const char *text, size_t n);
/* Bytes of one token as they appear in text; special tokens give their content. NULL for an id that has none. */
const char *nb_tokenizer_bytes(const nb_tokenizer *t, uint32_t id, size_t *n);
/* Appends a token as the vocabulary spells it: byte-level in GPT-2's alphabet ("\u0120it" for " it"), else with U+2581 for a space and <0x0A>
 * for a byte; added tokens as they are. False: no token has the id. */
bool nb_tokenizer_spell(const nb_tokenizer *t, uint32_t id, nb_buf *out);
bool nb_tokenizer_is_special(const nb_tokenizer *t, uint32_t id);
/* What the configs name; -1: nothing, or a text that is no token. */
int64_t nb_tokenizer_bos(const nb_tokenizer *t);
int64_t nb_tokenizer_eos(const nb_tokenizer *t);

typedef struct nb_ids {
    uint32_t *data;
    size_t len, cap;
} nb_ids; /* zero-initialise; free(data) */

typedef struct nb_tok_scratch nb_tok_scratch; /* per-thread work memory (regex match data, merge queues) */
nb_tok_scratch *nb_tok_scratch_new(const nb_tokenizer *t); /* NULL: out of memory */
void nb_tok_scratch_free(nb_tok_scratch *s);

/* Appends the ids of text (n bytes of UTF-8, may hold NUL; bad UTF-8 is NB_ERR_ARGUMENT with the byte). Added tokens in the
 * text are matched. add_special applies the post-processor (BOS …). */
nb_status nb_tokenizer_encode(const nb_tokenizer *t, nb_tok_scratch *s, const char *text, size_t n,
                              bool add_special, nb_ids *out, nb_error *err);

/* Appends the text of ids; undecodable bytes become U+FFFD as `tokenizers` does. Ids without a token are skipped. */
nb_status nb_tokenizer_decode(const nb_tokenizer *t, const uint32_t *ids, size_t n, bool skip_special,
                              nb_buf *out, nb_error *err);

/* Streaming detokeniser: a UTF-8 state machine on token bytes. Each push appends every character that is complete and
 * nothing of one that is not; an impossible byte becomes U+FFFD as soon as that is certain. Zero-initialise, then
 * nb_detok_init; plain value, nothing to free. */
typedef struct nb_detok {
    const nb_tokenizer *t;
    bool skip_special;
    unsigned char strip; /* characters that may still be dropped from the front of the text */
    unsigned char pending[4];
    unsigned n_pending;
} nb_detok;
void nb_detok_init(nb_detok *d, const nb_tokenizer *t, bool skip_special, bool has_prompt);
void nb_detok_push(nb_detok *d, uint32_t id, nb_buf *out);
void nb_detok_flush(nb_detok *d, nb_buf *out); /* what remains at the end: U+FFFD for a cut character */

#endif
