/* A clock around the operators: a copy of the back end's table whose heavy members look at the time and call the real ones. */
#include "cli/bench_ops.h"

#include <string.h>

#include "base/clock.h"

const char *const nb_bench_op_names[NB_BENCH_OPS] = {"linear fp4", "linear",  "attend",   "rmsnorm", "rope",
                                                     "store",      "glu",     "compress", "index",   "scan",
                                                     "route",      "combine", "mhc"};

/* One program measures one engine: operators have no place for a context of ours. */
static const nb_ops *real;
static nb_ops timed;
static double spent[NB_BENCH_OPS];
static bool skipping;

static void timed_linear(nb_exec *x, const nb_linear_call *c)
{
    if (skipping) return;
    nb_format f = c->w[0]->format;
    double start = nb_now();
    real->linear(x, c);
    spent[f == NB_FMT_NVFP4 || f == NB_FMT_MXFP4 ? NB_BENCH_LINEAR_FP4 : NB_BENCH_LINEAR] += nb_now() - start;
}

static void timed_attend(nb_exec *x, const nb_attend_call *c)
{
    if (skipping) return;
    double start = nb_now();
    real->attend(x, c);
    spent[NB_BENCH_ATTEND] += nb_now() - start;
}

#define TIMED(op, member, parameters, arguments)                                                             \
    static void timed_##member parameters                                                                    \
    {                                                                                                        \
        double start = nb_now();                                                                             \
        real->member arguments;                                                                              \
        spent[op] += nb_now() - start;                                                                       \
    }
TIMED(NB_BENCH_RMSNORM, rmsnorm,
      (nb_exec * x, const nb_tensor *in, size_t rows, const nb_tensor *w, size_t d, float eps, nb_tensor *y),
      (x, in, rows, w, d, eps, y))
TIMED(NB_BENCH_ROPE, rope,
      (nb_exec * x, nb_tensor *t, const nb_rope *r, size_t heads, size_t d, size_t offset, bool interleaved,
       bool inverse),
      (x, t, r, heads, d, offset, interleaved, inverse))
TIMED(NB_BENCH_STORE, store, (nb_exec * x, size_t stream, const nb_tensor *a, const nb_tensor *b),
      (x, stream, a, b))
TIMED(NB_BENCH_GLU, glu,
      (nb_exec * x, nb_act act, const nb_tensor *gate, const nb_tensor *up, size_t rows, float limit,
       nb_tensor *y),
      (x, act, gate, up, rows, limit, y))
TIMED(NB_BENCH_COMPRESS, compress, (nb_exec * x, const nb_compress_call *c), (x, c))
TIMED(NB_BENCH_INDEX, index, (nb_exec * x, const nb_index_call *c), (x, c))
TIMED(NB_BENCH_SCAN, scan, (nb_exec * x, const nb_scan_call *c), (x, c))
TIMED(NB_BENCH_ROUTE, route, (nb_exec * x, const nb_route_call *c), (x, c))
TIMED(NB_BENCH_COMBINE, combine,
      (nb_exec * x, const nb_tensor *parts, const nb_tensor *weights, size_t slots, const nb_tensor *extra,
       nb_tensor *y),
      (x, parts, weights, slots, extra, y))
TIMED(NB_BENCH_MHC, mhc_pre, (nb_exec * x, const nb_tensor *X, const nb_mhc *p, nb_tensor *y, nb_tensor *mix),
      (x, X, p, y, mix))
TIMED(NB_BENCH_MHC, mhc_post,
      (nb_exec * x, const nb_tensor *o, const nb_tensor *mix, size_t streams, nb_tensor *X),
      (x, o, mix, streams, X))

void nb_bench_ops_watch(nb_exec *x)
{
    real = x->ops;
    timed = *real;
    timed.linear = timed_linear;
    timed.attend = timed_attend;
    timed.rmsnorm = timed_rmsnorm;
    timed.rope = timed_rope;
    timed.store = timed_store;
    timed.glu = timed_glu;
    timed.compress = timed_compress;
    timed.index = timed_index;
    timed.scan = timed_scan;
    timed.route = timed_route;
    timed.combine = timed_combine;
    timed.mhc_pre = timed_mhc_pre;
    timed.mhc_post = timed_mhc_post;
    x->ops = &timed;
}

void nb_bench_ops_skip(bool skip)
{
    skipping = skip;
}

void nb_bench_ops_take(double seconds[NB_BENCH_OPS])
{
    memcpy(seconds, spent, sizeof spent);
    memset(spent, 0, sizeof spent);
}
