/* What the CPU back end's operators share: its tensors, weights and work memory. Private to src/kernels/cpu. */
#ifndef NB_KERNELS_CPU_EXEC_H
#define NB_KERNELS_CPU_EXEC_H

#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"

struct nb_tensor {
    size_t rows, cols;
    float *f;        /* [rows][cols]; NULL for an I32 tensor */
    int32_t *i;      /* [rows][cols]; NULL for an F32 tensor */
    nb_slab *memory; /* what they lie in, a use of it owned */
};

struct nb_weight {
    nb_packed *block; /* [blocks] diagonal blocks, each packed on its own; a dense weight is one block */
    size_t blocks;
    struct nb_weight *derived[NB_MAX_DERIVED]; /* owned */
};

typedef struct nb_cpu_exec {
    nb_exec x; /* first: an nb_exec * is an nb_cpu_exec * */
    const nb_kernels *k;
    size_t threads;
    size_t expert_n; /* as given to ready() */
    float *xin;      /* [xin_rows][xin_floats]: inputs of a linear, padded, rounded or quantised */
    float *xscale;   /* [xin_rows]: per-row factors (w4a4-dynamic) */
    size_t xin_rows, xin_floats; /* max_rows * slots and NB_FEW_ROWS; NB_ROW_FLOATS(padded max_k) */
    void *parts;                 /* nb_cpu_parts_bytes: the products of a call to experts */
    float *yout; /* [threads][NB_EXPERT_ROWS][expert_n]: an expert's outputs before they are put in place */
    uint32_t *order; /* [max_rows * slots]: (row, slot) pairs sorted by expert */
    uint32_t *first; /* [n_experts + 1]: where each expert's pairs begin in order */
    float *scores; /* [threads][score_room]: an indexer's scores, or what the tiles of a long context gave */
    size_t score_room; /* at least NB_CPU_ROW_FLOATS times max_context */
    nb_slabs slabs;    /* where packed weights and a model's tensors lie */
} nb_cpu_exec;

/* From one row of a linear's input to the next: a cache line more than its values, since rows a multiple of 4 KB apart would evict each
 * other. */
#define NB_ROW_FLOATS(k_pad) ((k_pad) + 16)

#define NB_FEW_ROWS 8     /* so many rows at most read weights at the speed of memory */
#define NB_EXPERT_ROWS 64 /* rows an expert computes at a time */

static inline nb_cpu_exec *nb_cpu_of(nb_exec *x)
{
    return (nb_cpu_exec *)x;
}

/* log(1 + exp(v)) without overflow; torch's softplus switches to v above 20. */
float nb_cpu_softplus(float v);

/* Rounds n finished outputs when --act-dtype bf16 asks for it. */
void nb_cpu_round(const nb_exec *x, float *y, size_t n);

/* Runs fn over rows [0, rows): inline when the work is small, on the pool otherwise. cost: values touched per row. */
void nb_cpu_rows(nb_exec *x, size_t rows, size_t cost, nb_pool_fn fn, void *ctx);

/* How the heads of a group, which read the same rows, are dealt out to units of work. */
typedef struct nb_head_parts {
    size_t heads; /* of a group */
    size_t each;  /* heads of a part; the last may have fewer */
    size_t n;     /* parts of a group; none is without a head */
} nb_head_parts;

/* Parts of at most `most` heads, of fewer where `units` groups in so large parts were less than two parts a thread. */
nb_head_parts nb_cpu_part_heads(size_t heads, size_t most, size_t units, size_t threads);

/* Heads [*h0, *h1), counted over all groups, of one group's part. */
static inline void nb_heads_of_part(const nb_head_parts *p, size_t group, size_t part, size_t *h0, size_t *h1)
{
    size_t begin = part * p->each, end = begin + p->each < p->heads ? begin + p->each : p->heads;
    *h0 = group * p->heads + begin;
    *h1 = group * p->heads + end;
}

/* Tells the watcher, if there is one, about an operator other than a linear. */
void nb_cpu_tell(nb_exec *x, const char *op, const nb_tensor *out, size_t rows);
/* The same for one that read parameters of the model; the later ones may be NULL. */
void nb_cpu_tell_of(nb_exec *x, const char *op, const nb_tensor *out, size_t rows, const nb_tensor *p0,
                    const nb_tensor *p1, const nb_tensor *p2);

/* False: one of the n values is NaN or infinite. */
bool nb_cpu_finite(const float *v, size_t n);
/* Remembers op as the first that brought something into the cache that is not finite. */
void nb_cpu_bad(nb_exec *x, const char *op, const nb_tensor *param);

/* Rows of a compressed stream that the query at pos may see: those whose last token is at or before it. */
static inline size_t nb_complete_rows(size_t pos, size_t tokens_per_row)
{
    return (pos + 1) / tokens_per_row;
}

/* The operators, one file per family. */
void nb_cpu_embed(nb_exec *x, const nb_linear *table, nb_tensor *y);
void nb_cpu_linear(nb_exec *x, const nb_linear_call *c);
/* Bytes that linears need in `parts` for calls to so many experts that have rows. */
size_t nb_cpu_parts_bytes(size_t experts);
void nb_cpu_derived(nb_exec *x, const nb_derived_call *c);
void nb_cpu_as_input(nb_exec *x, const nb_linear *l, const nb_tensor *in, nb_tensor *y);
void nb_cpu_layernorm(nb_exec *x, const nb_tensor *in, size_t rows, const nb_tensor *w, const nb_tensor *b,
                      float eps, nb_tensor *y);
void nb_cpu_rope_prepare(nb_exec *x, nb_rope *r);
void nb_cpu_rope(nb_exec *x, nb_tensor *t, const nb_rope *r, size_t heads, size_t d, size_t offset,
                 bool interleaved, bool inverse);
void nb_cpu_store(nb_exec *x, size_t stream, const nb_tensor *a, const nb_tensor *b);
void nb_cpu_attend(nb_exec *x, const nb_attend_call *c);
void nb_cpu_glu(nb_exec *x, nb_act act, const nb_tensor *gate, const nb_tensor *up, size_t rows, float limit,
                nb_tensor *y);
void nb_cpu_join(nb_exec *x, const nb_tensor *const *in, size_t n, size_t rows, nb_tensor *y);
void nb_cpu_columns(nb_exec *x, const nb_tensor *in, size_t rows, size_t d, size_t from, nb_tensor *y);
void nb_cpu_scale(nb_exec *x, const nb_tensor *in, size_t rows, const nb_tensor *w, float factor,
                  nb_tensor *y);
void nb_cpu_softcap(nb_exec *x, nb_tensor *t, size_t rows, float cap);
void nb_cpu_expert_bias(nb_exec *x, nb_tensor *t, const nb_tensor *ids, const nb_tensor *bias, size_t from,
                        size_t step);
void nb_cpu_compress(nb_exec *x, const nb_compress_call *c);
void nb_cpu_index(nb_exec *x, const nb_index_call *c);
void nb_cpu_conv(nb_exec *x, const nb_conv_call *c);
void nb_cpu_scan(nb_exec *x, const nb_scan_call *c);
void nb_cpu_route(nb_exec *x, const nb_route_call *c);
void nb_cpu_combine(nb_exec *x, const nb_tensor *parts, const nb_tensor *weights, size_t slots,
                    const nb_tensor *extra, nb_tensor *y);
void nb_cpu_mhc_expand(nb_exec *x, const nb_tensor *h, size_t streams, nb_tensor *X);
void nb_cpu_mhc_pre(nb_exec *x, const nb_tensor *X, const nb_mhc *p, nb_tensor *y, nb_tensor *mix);
void nb_cpu_mhc_post(nb_exec *x, const nb_tensor *o, const nb_tensor *mix, size_t streams, nb_tensor *X);
void nb_cpu_mhc_head(nb_exec *x, const nb_tensor *X, const nb_mhc *p, nb_tensor *y);

#endif
