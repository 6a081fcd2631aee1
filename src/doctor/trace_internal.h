/* What trace's files share. */
#ifndef NB_DOCTOR_TRACE_INTERNAL_H
#define NB_DOCTOR_TRACE_INTERNAL_H

#include "doctor/trace.h"
#include "models/model.h"

/* How far two outputs agree. */
typedef struct nb_agreement {
    double cos, snr_db;
    nb_energy energy; /* what snr_db was made of */
} nb_agreement;
/* got and want [rows][cols]: the mean over rows of the cosine, and the signal to error ratio over all. Two zero rows agree, a zero
 * row against another has cosine 0, and anything not finite gives NaN. */
nb_agreement nb_trace_agree(const float *got, const float *want, size_t rows, size_t cols);

/* What the quantiser does to x [rows][k] under a static scale. */
typedef struct nb_quant_loss {
    double clipped, flushed, saturated;
} nb_quant_loss;
nb_quant_loss nb_trace_quant_loss(const float *x, size_t rows, size_t k, float gs);

/* x [rows][k] through the quantiser with each row's own scale, dequantised; out may be x. */
void nb_trace_quant_dynamic(const float *x, size_t rows, size_t k, float *out);

/* The largest magnitude, NaN only when there is nothing else; counts what is not finite. */
double nb_trace_amax(const float *x, size_t n, uint64_t *nonfinite);

/* Adds what the same operator did to further rows: as if it had been one call (the head runs in tiles of rows). Judges anew. */
void nb_trace_merge(nb_trace_row *into, const nb_trace_row *from);

/* Is this linear's loss more than its arithmetic has to cost? quantised: its input was. Sets row->bad. */
void nb_trace_judge(nb_trace_row *row, bool quantised);

/* Adds a zeroed row; NULL: out of memory. */
nb_trace_row *nb_trace_add(nb_trace *t);

/* Where the explanation looks. */
typedef struct nb_trace_context {
    const nb_ckpt *ckpt;
    const nb_config *cfg;
    nb_stack_load *stack;
} nb_trace_context;

/* Chooses the first bad row and fills fault and verdict. */
nb_status nb_trace_explain(nb_trace *t, const nb_trace_context *c, nb_error *err);

/* The linears, worst first; the caller frees the array. NULL: out of memory. */
const nb_trace_row **nb_trace_worst(const nb_trace *t, size_t *n);

/* The watcher of one run (trace_watch.c). */
typedef struct nb_watch nb_watch;
nb_status nb_watch_new(nb_engine *exact, nb_engine *traced, nb_trace *t, nb_watch **out, nb_error *err);
/* Before each step of the exact engine: forgets what was recorded. */
void nb_watch_forget(nb_watch *w);
void nb_watch_free(nb_watch *w);

#endif
