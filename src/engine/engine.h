/*
 * The engine: a loaded model with its cache, and steps over it. A step is a transaction: it computes rows beyond each sequence's
 * committed length and writes their cache rows as pending; the caller then commits the first n rows of a sequence or discards
 * them. All memory is taken in nb_engine_new.
 *
 * The engine thread (core.h) drives it for a server, run and eval directly.
 */
#ifndef NB_ENGINE_ENGINE_H
#define NB_ENGINE_ENGINE_H

#include "engine/pages.h"
#include "models/model.h"

typedef struct nb_engine nb_engine;

typedef struct nb_engine_options {
    size_t threads;      /* 0: what the machine allows */
    const char *kernels; /* "auto", "generic", … */
    nb_arith arith;
    bool act_bf16;   /* --act-dtype bf16 */
    bool quant_bf16; /* --quant-input bf16 */
    size_t max_seqs; /* sequences that can be open at once */
    size_t
        max_context; /* tokens of one sequence; 0: the model's max_position_embeddings, at most context_cap */
    size_t context_cap;          /* 0: no cap */
    size_t max_rows;             /* rows of one step */
    size_t kv_blocks;            /* of NB_BLOCK tokens; 0: the worst case of every sequence */
    bool prefix_cache;           /* sequences may share rows (nb_pages_adopt, nb_pages_publish) */
    const nb_load_options *load; /* NULL: as stored, all layers resident */
} nb_engine_options;

nb_status nb_engine_new(const char *path, const nb_engine_options *opt, const nb_sink *sink, nb_engine **out,
                        nb_error *err);
void nb_engine_free(nb_engine *e);
const nb_model *nb_engine_model(const nb_engine *e);
const nb_engine_options *nb_engine_limits(const nb_engine *e); /* as in force: zeros resolved */
uint64_t nb_engine_kv_bytes(const nb_engine *e);               /* taken for the cache */
nb_pool *nb_engine_pool(nb_engine *e);                         /* idle between steps, and in their tiles */
nb_pages *nb_engine_pages(nb_engine *e);                       /* the engine's: for a scheduler */

/* Sequences are slots 0 … max_seqs - 1. Opening takes the lowest free one; NB_ERR_LIMIT when there is none. */
nb_status nb_seq_open(nb_engine *e, uint32_t *seq, nb_error *err);
/* Opens slot seq (whatever it was; its pages stay) with `cached` committed tokens that nb_pages_adopt has put in place, for who
 * hands out slots itself. NB_ERR_ARGUMENT: no such slot, or more than it has pages for. */
nb_status nb_seq_start(nb_engine *e, uint32_t seq, size_t cached, nb_error *err);
void nb_seq_close(nb_engine *e, uint32_t seq);
size_t nb_seq_length(const nb_engine *e, uint32_t seq); /* committed tokens */

typedef struct nb_step_part {
    uint32_t seq;
    const uint32_t *tokens; /* the next n tokens of the sequence */
    size_t n;
    bool all_logits; /* logits of every token, else of the last alone */
    bool no_logits;  /* of none, and all_logits is not looked at: a prompt's chunk that is not its last */
    size_t
        known; /* tokens that the sequence is known to have in all; 0: up to these. Matters where nb_model.turns_at does */
} nb_step_part;

/* A row of logits: token `row` of part `part`. */
typedef struct nb_logit_row {
    uint32_t part, row;
} nb_logit_row;

/* What a step hands out, in order of parts and tokens. May be NULL. */
typedef struct nb_step_out {
    void (*logits)(void *ctx, size_t part, size_t row, const float *logits); /* [vocab] */
    void (*hidden)(void *ctx, int layer, size_t part, size_t row,
                   const float *h); /* [hidden_cols], each layer's output */
    void *ctx;
    /* Instead of logits: up to 32 rows at once, logits [n][vocab], so that they can be sampled in parallel. */
    void (*tile)(void *ctx, const nb_logit_row *rows, size_t n, const float *logits);
    /* nb_engine_step looks for rows that put a value that is not finite into the cache, or leave the last layer with one. Logits
     * of such a row and of its part's later ones are not handed out, and nb_step_bad names it. */
    bool check;
} nb_step_out;

/* Runs the parts (at most max_rows tokens in all) as one batch. NB_ERR_LIMIT when a sequence would pass max_context, or when there
 * are no pages for its rows; NB_ERR_ARGUMENT for an id outside the vocabulary, a sequence given twice, or one that has grown beyond
 * nb_model.turns_at and has rows from before (close it and compute all of it): nothing has changed then.
 * After another error the rows are discarded. */
nb_status nb_engine_step(nb_engine *e, const nb_step_part *parts, size_t n, const nb_step_out *out,
                         nb_error *err);
/* After a checked step: the first token of the part whose row is not finite; the part's n when there is none. */
size_t nb_step_bad(const nb_engine *e, size_t part);
/* The same piece by piece, for who runs two models side by side: begin, then for each layer in turn nb_step_layer and
 * nb_step_release, then end. parts must live until the end. After nb_step_layer the layer's weights stay until nb_step_release,
 * which is called after a failure too. */
nb_status nb_step_begin(nb_engine *e, const nb_step_part *parts, size_t n, nb_error *err);
nb_status nb_step_layer(nb_engine *e, int l, const nb_step_out *out, nb_error *err);
void nb_step_release(nb_engine *e, int l);
nb_status nb_step_end(nb_engine *e, const nb_step_out *out, nb_error *err);
/* Keeps the first n pending rows of seq and drops the rest; n = 0 discards all. */
void nb_seq_commit(nb_engine *e, uint32_t seq, size_t n);

#endif
