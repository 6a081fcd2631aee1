/*
 * Trace: runs prompts twice, once exactly and once as a serving stack would, side by side and layer by layer, and compares each
 * operator's output. The first operator that goes wrong is named with its cause, the tensor and byte at fault, and the numbers
 * that prove it. Weights are streamed: two layers are in memory at a time.
 *
 * trace.c runs, trace_watch.c compares, trace_cause.c explains, trace_stack.c is what stacks do, trace_probe.c feeds single
 * linears, trace_report.c and trace_html.c write.
 */
#ifndef NB_DOCTOR_TRACE_H
#define NB_DOCTOR_TRACE_H

#include "base/buf.h"
#include "base/log.h"
#include "doctor/check.h"
#include "doctor/trace_stack.h"
#include "engine/policy.h"
#include "engine/prompts.h"

typedef enum nb_cause {
    NB_CAUSE_NONE,
    NB_CAUSE_NAN_SCALE,          /* a block scale byte is NaN */
    NB_CAUSE_BAD_GLOBAL,         /* the weight's global scale: zero, not finite, or another shard's */
    NB_CAUSE_BAD_INPUT_SCALE,    /* zero, not finite */
    NB_CAUSE_MISSING_TENSOR,     /* the stack reads memory that nobody filled */
    NB_CAUSE_NONSATURATING_CAST, /* the block scale passes 464 and the cast makes it NaN */
    NB_CAUSE_OVERFLOW16,         /* a value that 16 bits (or what the stack keeps in them) cannot hold */
    NB_CAUSE_NAN_WEIGHT,         /* NaN or infinity in a float weight, norm, sink … */
    NB_CAUSE_NAN_UPSTREAM,       /* the input was not finite, and no operator told before it is to blame */
    NB_CAUSE_CLIP,               /* the input scale is too small: finite, too small */
    NB_CAUSE_FLUSH, /* the input scale is too large (or the wrong way round): blocks become zero */
    NB_CAUSE_COUNT
} nb_cause;
const char *nb_cause_name(nb_cause c); /* "nan_scale" */

/* Sums of squares: what was wanted, and the difference to it. */
typedef struct nb_energy {
    double signal, error;
} nb_energy;

/* One operator of the run; a linear once, an expert of each projection once. Shares are 0 … 1. */
typedef struct nb_trace_row {
    int layer; /* -1 before the first, the number of layers after the last */
    const char *op;
    char *module; /* stored name; of a parameter that it read, or "layers.N" */
    const nb_arch_tensor
        *param[3];  /* table rows: the linear's own, or the parameters read; NULL where fewer */
    int64_t expert; /* -1: none */
    size_t rows;
    double in_amax; /* NaN and has_in false: not told */
    double out_amax;
    uint64_t nonfinite;                 /* elements of the output */
    double clipped, flushed, saturated; /* elements, elements, blocks of the quantised input */
    double cos_local, snr_local_db;     /* against exact on the same input, rounded as activations are */
    double cos_total, snr_total_db; /* against the whole exact run; NaN: it sent this expert no such row */
    double snr_best_db;             /* what W4A4 gives with each row's own scale; NaN: not asked */
    double weight_ratio; /* the stack's weight scale over the checkpoint's; 1 but where it keeps another's */
    nb_energy local, total, best; /* behind the three SNR */
    bool has_in, bad_input;       /* bad_input: the input was not finite */
    bool quantised;               /* a linear whose input was */
    bool masked;                  /* the stack reads a NaN of the file as a number */
    bool bad;
} nb_trace_row;

typedef struct nb_trace_fault {
    nb_cause cause;
    size_t row;       /* in rows; meaningless without a cause */
    char tensor[288]; /* stored name, "" when none is to blame */
    char file[256];   /* base name, "" */
    int64_t offset;   /* of the byte at fault in file, -1 */
} nb_trace_fault;

typedef struct nb_trace {
    nb_stack stack;
    nb_arith arith; /* in force */
    bool act_bf16, cast_nosat, weight_only, probe;
    int n_layers;
    char *architecture; /* NULL: unknown */
    nb_trace_row *rows;
    size_t n, cap, tokens;
    nb_trace_fault fault;
    char verdict[1536];
    nb_findings findings; /* of check; empty when the folder could not be checked */
} nb_trace;

typedef struct nb_trace_options {
    nb_stack stack; /* implies arithmetic and act_bf16 */
    nb_arith arith;
    bool act_bf16, quant_bf16, cast_nosat;
    size_t threads;
    const char *kernels; /* NULL: the best */
    nb_policy *policy;   /* NULL: none */
} nb_trace_options;

/* Runs all of `prompts` as one batch. *out is freed with nb_trace_free, after failure too. sink may be NULL. */
nb_status nb_trace_run(const char *path, const nb_trace_options *opt, const nb_prompts *prompts,
                       const nb_sink *sink, nb_trace *out, nb_error *err);

/* Prompts for a trace, freed with nb_prompts_free after failure too. A JSON array of non-empty id arrays; or texts, each a user's
 * message in the model's chat format where this build has one (raw: as they are, special tokens spelled out), n 0: the built-in
 * prompts. */
nb_status nb_trace_ids(const char *file, nb_prompts *out, nb_error *err);
nb_status nb_trace_texts(const char *path, const char *const *texts, size_t n, bool raw, nb_prompts *out,
                         nb_error *err);

/* Feeds each linear whose stored name matches the glob `pattern` with `rows` rows of normal random numbers whose largest magnitude
 * is amax. Needs no forward pass: any architecture. NB_ERR_ARGUMENT when nothing matches. */
typedef struct nb_trace_probe_options {
    const char *pattern;
    double amax;
    size_t rows;
    uint64_t seed;
} nb_trace_probe_options;
nb_status nb_trace_probe(const char *path, const nb_trace_options *opt, const nb_trace_probe_options *probe,
                         const nb_sink *sink, nb_trace *out, nb_error *err);
void nb_trace_free(nb_trace *t);

/* Reports, into a buffer; test nb_buf_ok(out). JSON as specs/interfaces.md has it. */
void nb_trace_json(const nb_trace *t, nb_buf *out);
void nb_trace_text(const nb_trace *t, nb_buf *out);
void nb_trace_html(const nb_trace *t, const char *title, nb_buf *out);

#endif
