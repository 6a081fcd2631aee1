/*
 * The operator table: everything a model's forward pass may do, one table per back end. A model file is written once against it
 * and never sees packed bytes, threads, pages or devices.
 *
 * Rules for callers: tensors are opaque; calls enqueue, in order; a forward pass may branch on shapes and positions, never on
 * computed values. Rules for back ends: each output row depends on its own input row, its own sequence and the weights alone,
 * so the number of rows, the chunking, the batch and the threads never change a bit; nothing is allocated after the tensors
 * and weights are made; the first failure sticks in exec->err and turns later calls into nothing.
 *
 * Shapes in comments: T rows of the step, then columns. All values are F32 unless stated.
 */
#ifndef NB_KERNELS_OPS_H
#define NB_KERNELS_OPS_H

#include "base/error.h"
#include "base/pool.h"
#include "kernels/kv.h"
#include "kernels/packed.h"
#include "numerics/nvfp4.h"

typedef struct nb_tensor nb_tensor; /* [rows, cols] F32 or I32 on the back end */
typedef struct nb_weight nb_weight; /* one packed matrix on the back end */

/* How a linear's input is made. */
typedef enum nb_input {
    NB_INPUT_ARITH,   /* as the arithmetic says */
    NB_INPUT_PLAIN,   /* F32 as it is */
    NB_INPUT_BF16,    /* rounded to BF16 */
    NB_INPUT_DYNAMIC, /* quantised to NVFP4 with the row's own scale */
} nb_input;

/* A form of a weight for another order of computation: rows [from, from + rows) of each of `groups` equal groups of its rows, as
 * diagonal blocks one after another, each [rows, k]; transposed [k, rows]. */
typedef struct nb_derive {
    size_t groups, from, rows;
    bool transposed;
} nb_derive;
#define NB_MAX_DERIVED 2

/* One linear as the model and the doctor name it. */
typedef struct nb_linear {
    const char *module; /* stored module name, owned by the model */
    nb_weight *w; /* [n, k]; with blocks > 1 the diagonal blocks one after another, each [n / blocks, k] */
    size_t n, k, blocks;
    nb_format format;
    bool has_input;                   /* a static activation scale is stored */
    float input_gs, input_multiplier; /* the scale as the kernel's divisor-like gs, and as a multiplier */
    bool fp4_input;          /* w4a4 quantises the input: an NVFP4 weight, or what an emulation made of one */
    int split;               /* nb_split of the architecture's table */
    const nb_derive *derive; /* [n_derived] forms that w carries beside itself; the family's */
    size_t n_derived;
    nb_input input; /* NB_INPUT_ARITH but in an override */
} nb_linear;

/* A linear that a step computes otherwise (engine/guard.h): where `of` is called, `as` runs. Taps still speak of `of`. */
typedef struct nb_override {
    const nb_linear *of;
    nb_linear as; /* same shape, blocks and module; w NULL: the weight of `of` */
} nb_override;

/* One call: `count` linears that share the input x.
 *   dense:          y[i] [T, n_i] = x [T, k] W_i^T
 *   blocks:         y [T, n]: block g reads x's columns [g k, (g + 1) k); count is 1
 *   experts:        w[i] is an array of n_experts; row t of x goes to experts ids[t][slot]; y[i] is [T * slots, n_i], row
 *                   t * slots + slot.
 *                   With x_per_slot, x is [T * slots, k] and row t * slots + slot goes to ids[t][slot]. */
typedef struct nb_linear_call {
    const nb_linear *const *w;
    size_t count, n_experts; /* n_experts 0: not experts */
    size_t rows;             /* T; 0: the rows of the step */
    const nb_tensor *x;
    nb_tensor *const *y;
    const nb_tensor *ids; /* I32 [T, slots] */
    size_t slots;
    bool x_per_slot;
    /* Beside experts: another call of as many rows, of weights without blocks, whose x is there as well, so that few rows of both may be
     * one range of work. Or NULL. */
    const struct nb_linear_call *beside;
} nb_linear_call;

/* One product with a derived form of a linear's weight, on inputs as they are: block g reads x's columns [g x_step, + its k) and
 * writes y's columns [g y_step, + its n); the next `along` columns of x go along to the next of y. Other columns of y stay.
 * Rounding or quantising the linear's input is as_input's. */
typedef struct nb_derived_call {
    const nb_linear *of;
    size_t form; /* index into of->derive */
    const nb_tensor *x;
    nb_tensor *y;
    size_t x_step, y_step, along;
} nb_derived_call;

/* What a gated unit does with its gate g and its other factor u. */
typedef enum nb_act {
    NB_ACT_SILU,      /* g sigmoid(g) u; with a limit g <= limit and |u| <= limit */
    NB_ACT_GELU_TANH, /* g / 2 (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) u */
    NB_ACT_RELU2,     /* max(g, 0)^2 u */
    NB_ACT_SIGMOID,   /* sigmoid(g) u: a gate on an output */
    NB_ACT_SILU_PLUS, /* gpt-oss: g sigmoid(1.702 g) (u + 1), with a limit as SILU */
} nb_act;

/* Rotary frequencies of one kind of layer, and the cosines of the current step's positions. */
typedef struct nb_rope {
    size_t pairs;
    float *inv_freq;  /* [pairs] */
    float factor;     /* multiplies cos and sin (YaRN's attention factor) */
    float *cos, *sin; /* [max_rows][pairs], filled by rope_prepare */
    /* Longrope: what a sequence of more than turns_at tokens takes instead of inv_freq, from its first row on. NULL: nothing. */
    float *far_inv_freq;
    size_t turns_at;
} nb_rope;

/* Attention of T query rows over each row's own sequence: the last `window` tokens (0: all) of a stream with one row a token,
 * itself included, and then the rows of a compressed stream: all complete ones, or those selected. One softmax over all.
 * Selected without a compressed stream: those tokens alone, no window.
 * Latent attention: kv_heads 1, v_stream == k_stream, dv < dk; a row's value is its first dv columns. */
typedef struct nb_attend_call {
    const nb_tensor *q; /* [T, heads * dk] */
    nb_tensor *out;     /* [T, heads * dv] */
    size_t heads, kv_heads, dk, dv;
    size_t k_stream, v_stream; /* rows hold kv_heads heads of dk (dv) values; may be one stream (V == K) */
    size_t window;
    bool compressed; /* also attend to comp_stream (kv_heads == 1, V == K) */
    size_t comp_stream;
    const nb_tensor
        *select; /* I32 [T, n]: chosen rows in ascending order, padded with -1; NULL: all complete rows */
    float scale;
    const nb_tensor *sink; /* [1, heads] or NULL */
} nb_attend_call;

/* DeepSeek-V4's compressors: entries that the step's tokens complete are pooled from the stream of (content, gate) rows,
 * normalised, rotated and stored. Row layout of `in`: content [series * d], gate [series * d] (ape already added). */
typedef struct nb_compress_call {
    size_t in_stream, out_stream;
    size_t ratio, series, d; /* series 2: overlapping halves (CSA), 1: none (HCA) */
    const nb_tensor *norm;   /* [1, d] */
    float eps;
    const nb_rope *rope; /* on the last 2 * pairs of d, interleaved, at position entry * ratio */
} nb_compress_call;

/* Which compressed rows each query sees: top-k of sum over heads of weight * relu(q . key), all when k or fewer are complete. */
typedef struct nb_index_call {
    const nb_tensor *q;       /* [T, heads * d] */
    const nb_tensor *weights; /* [T, heads], to be multiplied by weight_scale */
    float weight_scale;
    size_t heads, d, key_stream;
    nb_tensor *select; /* I32 [T, k] */
} nb_index_call;

/* Depthwise causal convolution along each sequence, then silu:
 * y[t][c] = silu(bias[c] + sum over j of w[c][j] * row(pos[t] - (taps - 1) + j)[c]), j ascending, without what would be before
 * the first token. The step's rows are in the stream already. */
typedef struct nb_conv_call {
    size_t stream;         /* C columns, one row a token, window >= taps */
    const nb_tensor *w;    /* [C, taps], the token's own last */
    const nb_tensor *bias; /* [1, C] or NULL */
    nb_tensor *y;          /* [T, C] */
} nb_conv_call;

#define NB_SCAN_CHUNK 32 /* tokens between two states that are kept */

/*
 * A linear recurrence along each sequence: every head keeps a state S [dk, dv], zero before the first token, and reads it with q.
 * Heads come in groups of heads / key_heads that share q and k.
 *
 *   delta rule (beta given; Gated DeltaNet):  q, k = x rsqrt(sum x^2 + 1e-6) of each head, q times dk^-1/2;
 *     decay = exp(-exp(a_log) softplus(dt + dt_bias));  u = sigmoid(beta) (v - decay S^T k)
 *   state space (beta NULL; Mamba-2):         dt = min(max(softplus(dt + dt_bias), dt_min), dt_max);
 *     decay = exp(-dt exp(a_log));  u = dt v
 *   both:  S = decay S + k u^T;  out = S^T q (+ skip v)
 *
 * What is kept is no running state but rows that are never changed, so that taking tokens back is forgetting rows: for each
 * token (k, u, decay), and after every NB_SCAN_CHUNK tokens S. From the state before the chunk
 *   S_t = D(first, t) S + sum over the chunk's i <= t of D(i + 1, t) k_i u_i^T,   D(i, t) = decay_i ... decay_t
 * summed in ascending i; D is multiplied from t down. So every output is a function of absolute positions. Sources: transformers'
 * modeling_qwen3_next.py (torch_recurrent_gated_delta_rule), modeling_nemotron_h.py (torch_forward).
 */
typedef struct nb_scan_call {
    nb_tensor *in;           /* [T, columns] q, k, v in the columns below; q and k may be changed */
    size_t q_at, k_at, v_at; /* the first of key_heads * dk, key_heads * dk, heads * dv columns */
    size_t key_heads, heads, dk, dv;
    const nb_tensor *dt;              /* [T, heads] */
    const nb_tensor *beta;            /* [T, heads] or NULL */
    const nb_tensor *a_log, *dt_bias; /* [1, heads] */
    const nb_tensor *skip;            /* [1, heads] or NULL */
    float dt_min, dt_max;             /* state space alone */
    size_t token_stream;              /* rows of nb_scan_columns, one a token, window NB_SCAN_CHUNK */
    size_t state_stream;              /* rows [heads, dk, dv] of NB_SCAN_CHUNK tokens, window 2, one a page */
    nb_tensor *out;                   /* [T, heads * dv] */
} nb_scan_call;

/* Columns of a token's row: keys, pseudo-values, decays. */
static inline size_t nb_scan_columns(size_t key_heads, size_t heads, size_t dk, size_t dv)
{
    return key_heads * dk + heads * dv + heads;
}

/* How a router's logits become scores. */
typedef enum nb_score {
    NB_SCORE_SQRTSOFTPLUS,   /* sqrt(log(1 + e^logit)) */
    NB_SCORE_SIGMOID,        /* 1 / (1 + e^-logit) */
    NB_SCORE_SOFTMAX,        /* over all experts */
    NB_SCORE_SOFTMAX_CHOSEN, /* chosen by logit, the softmax is over the chosen alone: no sum to divide by */
} nb_score;

/* Expert choice: by score + bias, or by token id; weights = scores / their sum * scaling * expert_scale. */
typedef struct nb_route_call {
    const nb_tensor *logits; /* [T, experts] */
    const nb_tensor *bias;   /* [1, experts] or NULL: takes part in the choice alone */
    const nb_tensor *hash;   /* I32 [vocabulary, slots]: chosen by token id; NULL: by score */
    nb_score score;
    /* With groups > 1 the experts stand in groups of equal size, and only those of the top_groups best groups may be chosen. A
     * group is as good as the sum of its two best choices, which it must have, or with group_max as its best. */
    size_t groups, top_groups;
    bool group_max;
    bool keep; /* the scores are the weights as they are: not divided by their sum */
    float scaling;
    const nb_tensor *expert_scale; /* [1, experts] or NULL */
    nb_tensor *ids;                /* I32 [T, slots] */
    nb_tensor *weights;            /* [T, slots] */
} nb_route_call;

/* Hyper-connection parameters of one site; M streams, mix = (2 + M) M. */
typedef struct nb_mhc {
    const nb_tensor *fn;    /* [mix, M * D] */
    const nb_tensor *base;  /* [1, mix] */
    const nb_tensor *scale; /* [1, 3] */
    size_t streams;
    int sinkhorn_iters;
    float eps, norm_eps;
} nb_mhc;

/* The rows of one step. Rows of one sequence stand together in ascending position. */
typedef struct nb_rows {
    size_t n;
    const uint32_t *seq; /* slot of each row */
    const uint32_t *pos; /* absolute position */
    const uint32_t *token;
    const uint32_t
        *known; /* tokens that the row's sequence is known to have, later ones included; NULL: none beyond */
} nb_rows;

typedef struct nb_ops nb_ops;
typedef struct nb_exec nb_exec;

/*
 * What an operator just did, for those who watch a step (calibrate, trace). A linear call is told once per weight, and an expert
 * call once per expert that had rows; other operators once. Values are read with ops->tensor_read, inside the call only.
 */
typedef struct nb_tap {
    const char *op;          /* the operator's name in nb_ops: "linear", "rmsnorm", "attend" … */
    int layer;               /* -1 before the first layer, the number of layers after the last */
    const nb_linear *linear; /* NULL unless a linear */
    const nb_tensor *in;     /* a linear's input; NULL otherwise */
    const nb_tensor *out;
    /* The model's parameters that an operator other than a linear read, NULL where fewer: a norm's weight, a sink. */
    const nb_tensor *param[3];
    size_t rows;
    /* Row i of this tap is row pick[i] of out and row pick[i] / divide of in; pick NULL: row i of both. */
    const uint32_t *pick;
    size_t divide;
} nb_tap;

/* Rows that wrote a value that is not finite into the cache (store, compress, scan), for who asks. */
typedef struct nb_bad_rows {
    uint8_t *row;   /* [max_rows] set to 1, never to 0 */
    const char *op; /* the first such operator, or NULL; with its layer and the parameter that it read */
    int layer;
    const nb_tensor *param;
} nb_bad_rows;

/* What a forward pass runs with. Made by nb_cpu_exec_new; rows and kv are set by the engine for each step. */
struct nb_exec {
    const nb_ops *ops;
    nb_pool *pool;
    size_t max_rows;
    nb_arith arith;
    bool act_bf16;   /* round every operator's output to BF16 */
    bool quant_bf16; /* round what the NVFP4 quantiser receives to BF16, the GPU kernels' input type */
    nb_act_kernel act_kernel; /* whose quantiser w4a4 is */
    bool cast_nosat;          /* its cast to E4M3 does not saturate: above 464 it gives NaN */
    bool streamed;            /* layers' weights come and go: each has memory of its own, and gives it back */
    int layer;                /* set by the engine while layers run */
    nb_rows rows;
    const nb_kv *kv;
    void (*tap)(void *ctx, nb_exec *x, const nb_tap *t); /* NULL: nobody watches */
    void *tap_ctx;
    const nb_override *overrides; /* [n_overrides] of this step; of two for one linear the later holds */
    size_t n_overrides;
    nb_bad_rows *bad; /* NULL: nobody asks */
    nb_error err;     /* status NB_OK until something fails */
};

/* Reads rows [row, row + rows) of a matrix in nb_pack_rows's form; called from the packing threads. */
typedef nb_status (*nb_row_reader)(void *ctx, size_t row, size_t rows, uint8_t *codes, void *scales,
                                   nb_error *err);

/* The largest of everything that steps will ask for. */
typedef struct nb_work {
    size_t slots, n_experts,
        expert_n;       /* experts a row goes to, of how many, the widest output of one; 0 without experts */
    size_t max_k;       /* input columns of any linear */
    size_t max_context; /* rows that one query attends to */
} nb_work;
/* What ready takes on a CPU for each thread and row of max_context, once contexts are so long. */
#define NB_CPU_ROW_FLOATS 8
#define NB_CPU_ROW_BYTES (NB_CPU_ROW_FLOATS * sizeof(float))

struct nb_ops {
    const char *name;

    nb_status (*tensor_new)(nb_exec *x, bool i32, size_t rows, size_t cols, nb_tensor **out, nb_error *err);
    /* The same for a parameter of the model, which steps read as they read weights. */
    nb_status (*param_new)(nb_exec *x, bool i32, size_t rows, size_t cols, nb_tensor **out, nb_error *err);
    void (*tensor_free)(nb_tensor *t);
    size_t (*tensor_cols)(const nb_tensor *t);
    size_t (*tensor_bytes)(const nb_tensor *t);
    void (*tensor_write)(nb_exec *x, nb_tensor *t, const void *src); /* whole tensor, from the host */
    void (*tensor_read)(nb_exec *x, const nb_tensor *t, size_t row, size_t rows, float *dst); /* waits; F32 */

    /* Reads and packs an [n, k] matrix in parallel. code_bytes and scale_bytes are those of one row. */
    nb_status (*weight_new)(nb_exec *x, nb_format format, size_t n, size_t k, size_t scale_k,
                            float multiplier, size_t blocks, size_t code_bytes, size_t scale_bytes,
                            nb_row_reader read, void *ctx, nb_weight **out, nb_error *err);
    /* The same without anything in it, for who brings packed bytes back from a file (models/packed_cache.h): fills every block. */
    nb_status (*weight_blank)(nb_exec *x, nb_format format, size_t n, size_t k, size_t scale_k,
                              float multiplier, size_t blocks, nb_weight **out, nb_error *err);
    /* Diagonal block `block` of w (form 0) or of its derived form `form` - 1, as it lies in memory; NULL: there is no such one. */
    nb_packed *(*weight_block)(nb_weight *w, size_t form, size_t block);
    void (*weight_free)(nb_weight *w);
    size_t (*weight_bytes)(const nb_weight *w);  /* without what is attached */
    size_t (*derived_bytes)(const nb_weight *w); /* of what is attached */
    /* `derived`, made by weight_new, becomes w's next derived form, freed with it. At most NB_MAX_DERIVED. */
    void (*weight_attach)(nb_weight *w, nb_weight *derived);

    /* Takes the work memory of steps: call once, before the first. */
    nb_status (*ready)(nb_exec *x, const nb_work *w, nb_error *err);

    void (*embed)(nb_exec *x, const nb_linear *table,
                  nb_tensor *y); /* y [T, k] = rows of the table by token */
    void (*linear)(nb_exec *x, const nb_linear_call *c);
    void (*derived)(nb_exec *x, const nb_derived_call *c);
    /* y [T, k] = what the arithmetic makes of l's input: rounded, or quantised and scaled back. y may be in. */
    void (*as_input)(nb_exec *x, const nb_linear *l, const nb_tensor *in, nb_tensor *y);
    /* Each row is cut into groups of d columns, each normalised on its own; w [1, d], or as wide as a row, or NULL. y may be in. */
    void (*rmsnorm)(nb_exec *x, const nb_tensor *in, size_t rows, const nb_tensor *w, size_t d, float eps,
                    nb_tensor *y);
    /* y = (in - mean) / sqrt(variance + eps) * w + b over whole rows; w, b [1, cols]. y may be in. */
    void (*layernorm)(nb_exec *x, const nb_tensor *in, size_t rows, const nb_tensor *w, const nb_tensor *b,
                      float eps, nb_tensor *y);
    void (*rope_prepare)(nb_exec *x, nb_rope *r);
    /* In place, on `heads` heads of `d` columns, 2 * pairs values from column `offset` of each. inverse rotates back. */
    void (*rope)(nb_exec *x, nb_tensor *t, const nb_rope *r, size_t heads, size_t d, size_t offset,
                 bool interleaved, bool inverse);
    /* Stores column ranges side by side: a [T, ca] and (may be NULL) b [T, cb] as one row of ca + cb values for each token. */
    void (*store)(nb_exec *x, size_t stream, const nb_tensor *a, const nb_tensor *b);
    void (*attend)(nb_exec *x, const nb_attend_call *c);
    /* y = act(gate, up), value by value; y may be either. gate [rows, 1] stands for all columns of up. up NULL: 1. */
    void (*glu)(nb_exec *x, nb_act act, const nb_tensor *gate, const nb_tensor *up, size_t rows, float limit,
                nb_tensor *y);
    /* Columns [from, from + n) of each group of d columns side by side: in [rows, groups * d] -> y [rows, groups * n]. */
    void (*columns)(nb_exec *x, const nb_tensor *in, size_t rows, size_t d, size_t from, nb_tensor *y);
    /* y [rows, sum of columns] = n tensors [rows, …] side by side. */
    void (*join)(nb_exec *x, const nb_tensor *const *in, size_t n, size_t rows, nb_tensor *y);
    void (*add)(nb_exec *x, const nb_tensor *a, const nb_tensor *b, nb_tensor *y); /* y = a + b, T rows */
    /* y = in * w * factor. w [1, cols], [1, 1] for all columns, or NULL: 1. y may be in. */
    void (*scale)(nb_exec *x, const nb_tensor *in, size_t rows, const nb_tensor *w, float factor,
                  nb_tensor *y);
    void (*softcap)(nb_exec *x, nb_tensor *t, size_t rows, float cap); /* t = cap tanh(t / cap) */
    /* t[row] += table[pos % period], T rows (a compressor's position bias). table [period, cols] */
    void (*add_periodic)(nb_exec *x, nb_tensor *t, const nb_tensor *table, size_t period);
    /* t [T * slots, n] += columns from, from + step, … of row ids[t][slot] of bias [experts, any]. */
    void (*expert_bias)(nb_exec *x, nb_tensor *t, const nb_tensor *ids, const nb_tensor *bias, size_t from,
                        size_t step);
    void (*compress)(nb_exec *x, const nb_compress_call *c);
    void (*conv)(nb_exec *x, const nb_conv_call *c);
    void (*scan)(nb_exec *x, const nb_scan_call *c);
    void (*index)(nb_exec *x, const nb_index_call *c);
    void (*route)(nb_exec *x, const nb_route_call *c);
    /* y [T, D] = extra [T, D] (may be NULL: 0) + sum over slots, in slot order, of weights[t][s] * parts[t * slots + s] */
    void (*combine)(nb_exec *x, const nb_tensor *parts, const nb_tensor *weights, size_t slots,
                    const nb_tensor *extra, nb_tensor *y);
    void (*mhc_expand)(nb_exec *x, const nb_tensor *h, size_t streams,
                       nb_tensor *X); /* X [T, M D] = M copies of h */
    void (*mhc_pre)(nb_exec *x, const nb_tensor *X, const nb_mhc *p, nb_tensor *y,
                    nb_tensor *mix); /* y [T, D]; mix [T, M + M M] */
    void (*mhc_post)(nb_exec *x, const nb_tensor *o, const nb_tensor *mix, size_t streams,
                     nb_tensor *X); /* in place */
    void (*mhc_head)(nb_exec *x, const nb_tensor *X, const nb_mhc *p, nb_tensor *y);
    void (*gather)(nb_exec *x, const nb_tensor *in, const uint32_t *which, size_t n,
                   nb_tensor *y); /* rows which[0..n) */
    /* Sets bad[i] to 1 where row `row` + i of t holds a NaN or an infinity. */
    void (*finite)(nb_exec *x, const nb_tensor *t, size_t row, size_t rows, uint8_t *bad);
};

/* Runs the table on the host's cores. kernels: "auto", "generic", "avx2". pool is borrowed. NB_ERR_ARGUMENT when the machine
 * lacks the kernels named. */
nb_status nb_cpu_exec_new(const char *kernels, nb_pool *pool, size_t max_rows, nb_exec **out, nb_error *err);
void nb_cpu_exec_free(nb_exec *x);
const char *nb_cpu_exec_kernels(const nb_exec *x); /* the table in use */

#endif
