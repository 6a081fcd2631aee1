/* Where the time of a step goes, for nibble bench. */
#ifndef NB_CLI_BENCH_OPS_H
#define NB_CLI_BENCH_OPS_H

#include "kernels/ops.h"

/* A class of operators. Linears count apart by what their first weight is stored as. */
typedef enum nb_bench_op {
    NB_BENCH_LINEAR_FP4,
    NB_BENCH_LINEAR,
    NB_BENCH_ATTEND,
    NB_BENCH_RMSNORM,
    NB_BENCH_ROPE,
    NB_BENCH_STORE,
    NB_BENCH_GLU,
    NB_BENCH_COMPRESS,
    NB_BENCH_INDEX,
    NB_BENCH_SCAN,
    NB_BENCH_ROUTE,
    NB_BENCH_COMBINE,
    NB_BENCH_MHC,
    NB_BENCH_OPS
} nb_bench_op;

extern const char *const nb_bench_op_names[NB_BENCH_OPS]; /* "linear fp4", "linear", "attend", … */

/* Puts a clock around x's operators, once for a process: x must be the CPU back end's, whose calls are over when they return. */
void nb_bench_ops_watch(nb_exec *x);
/* Whether linears and attention do nothing at all, so that a cache fills with rows of no meaning in no time. */
void nb_bench_ops_skip(bool skip);
/* Seconds since the last call of this. */
void nb_bench_ops_take(double seconds[NB_BENCH_OPS]);

#endif
