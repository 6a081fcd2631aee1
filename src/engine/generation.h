/*
 * What a folder says about generating: generation_config.json, and the tokens that end an answer. vLLM reads exactly these
 * fields of it (vllm/config/model.py, get_diff_sampling_param), so that they are its server's defaults and ours.
 */
#ifndef NB_ENGINE_GENERATION_H
#define NB_ENGINE_GENERATION_H

#include "checkpoint/arch.h"
#include "text/chat_format.h"
#include "text/tokenizer.h"

#define NB_MAX_EOS 32

typedef struct nb_generation_config {
    uint32_t eos[NB_MAX_EOS];
    size_t n_eos;
    int64_t own_eos; /* the tokenizer's, which is the first of eos; -1: it names none */
    /* What the file sets; NaN or -1 where it sets nothing. */
    double temperature, top_p, min_p, repetition_penalty;
    int64_t top_k, max_new_tokens;
} nb_generation_config;

/* Reads dir/generation_config.json (optional); end tokens are its eos_token_id (a number or a list), else config.json's, and the
 * tokenizer's own. An ill-typed value or an id outside the vocabulary is NB_ERR_FORMAT with file and key. */
nb_status nb_generation_open(const char *dir, const nb_config *cfg, const nb_tokenizer *t,
                             nb_generation_config *out, nb_error *err);
/* Adds the tokens with which the chat template ends a turn (text/turn_end.h), where the folder's files do not name them. f may be NULL.
 * *added: how many were. */
nb_status nb_generation_add_ends(nb_generation_config *g, const nb_chat_format *f, const nb_tokenizer *t,
                                 size_t *added, nb_error *err);
bool nb_generation_is_eos(const nb_generation_config *g, uint32_t id);

#endif
