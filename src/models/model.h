/*
 * A loaded model: the rows of its architecture's table filled with weights on a back end, and a forward pass written once against
 * the operator table. docs/models.md says how to add an architecture.
 */
#ifndef NB_MODELS_MODEL_H
#define NB_MODELS_MODEL_H

#include "base/log.h"
#include "checkpoint/arch.h"
#include "kernels/ops.h"

/* One row of the table at one layer. */
typedef struct nb_slot {
    nb_linear
        *lin; /* LINEAR, EMBED, HEAD: one, or one per expert; NULL otherwise or when absent at this layer */
    nb_linear_src *src; /* [n_lin] where each is stored and how */
    size_t n_lin;
    nb_tensor *t; /* NORM, PARAM (F32), INDEX (I32) */
} nb_slot;

typedef struct nb_model nb_model;

/* The forward pass of one family. Every function but open and prepare only enqueues operators. */
typedef struct nb_forward {
    const nb_arch *names;
    /* Reads the config into m->state (calloc'd, freed with free() after close), sets hidden_cols, slots and declares the cache
     * streams with nb_model_stream. */
    nb_status (*open)(nb_model *m, nb_error *err);
    /* Takes the run's tensors (nb_model_tensor) for m->x->max_rows rows. */
    nb_status (*prepare)(nb_model *m, nb_error *err);
    void (*begin)(nb_model *m);                          /* embeds the step's rows */
    void (*layer)(nb_model *m, int l, const nb_slot *w); /* one decoder layer */
    void (*end)(nb_model *m);                            /* final norm of all rows */
    void (*head)(nb_model *m, const uint32_t *which, size_t n,
                 nb_tensor *logits);               /* logits [n, vocab] of n chosen rows */
    const nb_tensor *(*hidden)(const nb_model *m); /* what the last layer wrote: [rows, hidden_cols] */
    void (*close)(nb_model *m);                    /* what open took besides m->state; may be NULL */
    /* The forms in which layer() uses a row's linears beside the stored one (*n of them, the family's until close); NULL: none. */
    const nb_derive *(*derive)(const nb_model *m, const nb_arch_tensor *row, size_t *n);
} nb_forward;

/* How weights come in. Zero: as stored, all layers kept. */
typedef struct nb_load_options {
    /* Only one layer's linears are in memory: acquire reads them, release drops them. Everything small stays. */
    bool stream;
    /* May change what a linear is before it is packed (scale policies, what a serving stack makes of it). NULL: nothing. */
    nb_status (*adjust)(void *ctx, const nb_model *m, const nb_arch_tensor *row, int64_t layer,
                        int64_t expert, nb_linear_src *src, nb_error *err);
    void *ctx;
    /* A file that keeps packed weights from one start to the next, or "auto" (packed_cache.h). NULL: none. Not with stream. */
    const char *packed_cache;
} nb_load_options;

struct nb_model {
    nb_ckpt *ckpt; /* owned */
    nb_config cfg;
    const nb_forward *fwd;
    nb_exec *x;              /* borrowed */
    nb_slot *global;         /* [arch tensors]: rows without {l} */
    nb_slot *layers;         /* [n_layers][arch tensors] */
    int part[NB_PART_COUNT]; /* row of the table of each part, -1: none */
    void *state;             /* the family's own: hyper-parameters and run tensors */
    nb_tensor **tensors;     /* taken by nb_model_tensor, freed with the model */
    size_t n_tensors;
    nb_stream_decl *streams;
    size_t n_streams;
    size_t vocab, hidden_cols; /* hidden_cols: columns of a layer's output (streams included) */
    size_t experts_per_row, n_experts, expert_n; /* 0 without experts; the widest output of one */
    size_t max_k;                                /* input columns of the widest linear */
    /* A sequence of more tokens than this computes all its rows otherwise than a shorter one (longrope): what was computed before it
     * grew so long is of no use. 0: never. */
    size_t turns_at;
    nb_load_options load;
    uint64_t format_bytes[NB_FMT_COUNT]; /* packed bytes by format, for the summary */
    uint64_t other_bytes;                /* norms and other parameters, derived forms */
    uint64_t run_bytes, derived_bytes; /* an outline's: what prepare takes; at most what derived forms take */
};

/* Opens DIR, finds its architecture and loads every weight into the back end x. Progress and notes go to sink (may be NULL). A
 * missing or misshapen tensor is an error that names it; nothing is ever filled in. */
nb_status nb_model_load(const char *path, nb_exec *x, const nb_load_options *load, const nb_sink *sink,
                        nb_model **out, nb_error *err);
void nb_model_free(nb_model *m);
/* The model without weights and back end: config, cache streams and sizes, to plan memory with (run_bytes, derived_bytes, max_k
 * as config.json says). It cannot run. */
nb_status nb_model_outline(const char *path, size_t max_rows, nb_model **out, nb_error *err);

/* What nb_model_load would say of the config alone: keys that the forward pass needs, values that it does not take. NB_OK for an
 * architecture without a forward pass; NB_ERR_UNSUPPORTED for what may well be right but is not built here. */
nb_status nb_model_judge_config(const nb_config *cfg, nb_error *err);

/* The weights of layer l, until release. NULL with *err set when they cannot be read (a streaming model; a resident one has them). */
const nb_slot *nb_model_acquire(nb_model *m, int l, nb_error *err);
void nb_model_release(nb_model *m, int l);

/* Packs a linear's weight once more, as src says (another map of scale bytes, BF16): beside the model's own, which stays as it is.
 * With all its derived forms. Free with ops->weight_free. */
nb_status nb_model_pack(const nb_model *m, const nb_linear *l, const nb_linear_src *src, nb_weight **out,
                        nb_error *err);

/* The matrix that a derived form of a linear with k columns is. */
static inline void nb_derive_shape(const nb_derive *f, size_t k, size_t *rows, size_t *cols)
{
    *rows = f->groups * (f->transposed ? k : f->rows);
    *cols = f->transposed ? f->rows : k;
}

/* Attaches l's derived forms, made of what src says of it, to w (derive.c). Called by nb_model_pack alone. */
nb_status nb_model_derive(const nb_model *m, const nb_linear *l, const nb_linear_src *src, nb_weight *w,
                          nb_error *err);

/* For open and prepare. */
nb_status nb_model_stream(nb_model *m, nb_stream_decl decl, size_t *index, nb_error *err);
nb_status nb_model_tensor(nb_model *m, bool i32, size_t rows, size_t cols, nb_tensor **out, nb_error *err);

/* The forward pass for an architecture's table; NULL: it has none in this build. */
const nb_forward *nb_forward_find(const nb_arch *names);
extern const nb_forward nb_forward_deepseek_v3;
extern const nb_forward nb_forward_deepseek_v4;
extern const nb_forward nb_forward_gemma3;
extern const nb_forward nb_forward_gemma4;
extern const nb_forward nb_forward_glm4_moe;
extern const nb_forward nb_forward_gpt_oss;
extern const nb_forward nb_forward_llama;
extern const nb_forward nb_forward_minimax_m2;
extern const nb_forward nb_forward_mistral;
extern const nb_forward nb_forward_mixtral;
extern const nb_forward nb_forward_nemotron_h;
extern const nb_forward nb_forward_phi3;
extern const nb_forward nb_forward_qwen2;
extern const nb_forward nb_forward_qwen2_moe;
extern const nb_forward nb_forward_qwen3;
extern const nb_forward nb_forward_qwen3_moe;
extern const nb_forward nb_forward_qwen3_next;

/* Rotary frequencies (rope.c). params: the JSON object with rope_type/type, factor …, or NULL for plain ones. Types: default,
 * linear, llama3, yarn, proportional, and longrope by the second function; another is NB_ERR_UNSUPPORTED by name. force_factor > 0
 * replaces YaRN's attention factor. Formulas:
 * transformers modeling_rope_utils.py. nb_rope_free releases. */
nb_status nb_rope_init(const json_t *params, double theta, size_t dims, double force_factor, size_t max_rows,
                       nb_rope *out, nb_error *err);
/* The same for type longrope, whose params hold the factors of each pair: short_factor for sequences of up to `original` tokens,
 * long_factor above. longest: the most that the model is for. */
nb_status nb_rope_init_long(const json_t *params, double theta, size_t dims, size_t original, size_t longest,
                            size_t max_rows, nb_rope *out, nb_error *err);
void nb_rope_free(nb_rope *r);
/* "yarn", by rope_type or type; NULL: params has neither. */
const char *nb_rope_type(const json_t *params);

/* The slot of a part among a layer's slots (or m->global). Without lin and t when the table has no such row, or not at this
 * layer. */
static inline const nb_slot *nb_at(const nb_model *m, const nb_slot *w, nb_part p)
{
    static const nb_slot none = {0};
    return m->part[p] < 0 ? &none : &w[m->part[p]];
}

/* The linear that makes logits: the head, or the embedding when the two are tied. */
static inline const nb_linear *nb_head_of(const nb_model *m)
{
    const nb_linear *head = nb_at(m, m->global, NB_PART_HEAD)->lin;
    return head ? head : nb_at(m, m->global, NB_PART_EMBED)->lin;
}

/* Shorthand of the forward passes: y = x W^T for one linear of a slot. */
static inline void nb_lin(nb_model *m, const nb_slot *s, const nb_tensor *x, nb_tensor *y)
{
    const nb_linear *w = s->lin;
    nb_linear_call c = {.w = &w, .count = 1, .x = x, .y = &y};
    m->x->ops->linear(m->x, &c);
}

#endif
