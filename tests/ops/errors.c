/*
 * What each arithmetic costs in accuracy: a linear's outputs against those of `exact` on the same weights and inputs, for every weight
 * format, through the whole operator. Two figures: the root mean square of the difference over that of the exact outputs, and the largest
 * difference over the same. Weights are normal values as the formats' own quantisers leave them; inputs are normal, or have a column in
 * 64 that is 20 times as large, as residual streams of language models do. `exact` itself stands beside F64.
 */
#include "ops.h"

#include "base/mem.h"
#include "kernels/ops.h"
#include "numerics/formats.h"
#include "numerics/nvfp4.h"

enum { N = 512, K = 4096, ROWS = 16, FP8_BLOCK = 128 };

typedef enum stored { NVFP4, MXFP4, FP8_TENSOR, FP8_CHANNEL, FP8_IN_BLOCKS, BF16, F16, F32, STORED } stored;

static const struct {
    const char *name;
    nb_format format;
    size_t code_bytes, scale_bytes; /* of a row */
    size_t scale_k;
} kinds[STORED] = {
    [NVFP4] = {"NVFP4", NB_FMT_NVFP4, K / 2, K / 16, 16},
    [MXFP4] = {"MXFP4", NB_FMT_MXFP4, K / 2, K / 32, 32},
    [FP8_TENSOR] = {"FP8 tensor", NB_FMT_FP8, K, 4, 0},
    [FP8_CHANNEL] = {"FP8 channel", NB_FMT_FP8, K, 4, 0},
    [FP8_IN_BLOCKS] = {"FP8 block", NB_FMT_FP8, K, 4 * (K / FP8_BLOCK), FP8_BLOCK},
    [BF16] = {"BF16", NB_FMT_BF16, 2 * K, 0, 0},
    [F16] = {"F16", NB_FMT_F16, 2 * K, 0, 0},
    [F32] = {"F32", NB_FMT_F32, 4 * K, 0, 0},
};

/* A matrix as a checkpoint stores it. */
typedef struct matrix {
    stored kind;
    uint8_t *codes, *scales;
    float multiplier;
} matrix;

static nb_status read_rows(void *ctx, size_t row, size_t rows, uint8_t *codes, void *scales, nb_error *err)
{
    const matrix *m = ctx;
    const size_t c = kinds[m->kind].code_bytes, s = kinds[m->kind].scale_bytes;
    memcpy(codes, m->codes + row * c, rows * c);
    if (s) memcpy(scales, m->scales + row * s, rows * s);
    return NB_OK;
}

static void quantise_fp8(const float *w, matrix *m)
{
    float scale[N * (K / FP8_BLOCK)];
    const size_t rows_per = m->kind == FP8_TENSOR ? N : m->kind == FP8_CHANNEL ? 1 : FP8_BLOCK;
    const size_t cols = m->kind == FP8_IN_BLOCKS ? K / FP8_BLOCK : 1;
    nb_fp8_quantise(w, N, K, rows_per, K / cols, m->codes, scale);
    for (size_t r = 0; r < N; r++)
        for (size_t c = 0; c < cols; c++) {
            const float one = 1, s = scale[r / rows_per * cols + c];
            memcpy(m->scales + (r * cols + c) * 4, m->kind == FP8_TENSOR ? &one : &s, 4);
        }
    if (m->kind == FP8_TENSOR) m->multiplier = scale[0];
}

static matrix quantise(const float *w, stored kind)
{
    matrix m = {kind, ops_alloc(N * kinds[kind].code_bytes), ops_alloc(N * kinds[kind].scale_bytes), 1};
    if (kinds[kind].format == NB_FMT_FP8) quantise_fp8(w, &m);
    if (kind == NVFP4) nb_nvfp4_quantise_modelopt(w, N, K, 0, m.codes, m.scales, &m.multiplier);
    if (kind == MXFP4) nb_mxfp4_quantise(w, N, K, m.codes, m.scales);
    if (kind == F32) memcpy(m.codes, w, N * K * sizeof *w);
    for (size_t i = 0; (kind == BF16 || kind == F16) && i < (size_t)N * K; i++) {
        const uint16_t h = kind == BF16 ? nb_bf16_encode(w[i]) : nb_f16_encode(w[i]);
        memcpy(m.codes + 2 * i, &h, 2);
    }
    return m;
}

typedef struct error {
    double rms, most;
} error;

static error compare(const float *got, const double *want)
{
    double sum = 0, of = 0, most = 0;
    for (size_t i = 0; i < (size_t)ROWS * N; i++) {
        const double d = (double)got[i] - want[i];
        sum += d * d;
        of += want[i] * want[i];
        if (!(fabs(d) <= most)) most = fabs(d);
    }
    return (error){sqrt(sum / of), most / sqrt(of / (ROWS * N))};
}

/* Everything that one weight and one set of inputs need. */
typedef struct trial {
    nb_exec *x;
    nb_linear l;
    nb_tensor *in, *out;
    float *y;     /* [ROWS][N] */
    double *want; /* [ROWS][N] */
} trial;

static void multiply(trial *t, nb_arith a)
{
    const nb_linear *l = &t->l;
    t->x->arith = a;
    t->x->ops->linear(t->x, &(nb_linear_call){.w = &l, .count = 1, .rows = ROWS, .x = t->in, .y = &t->out});
    t->x->ops->tensor_read(t->x, t->out, 0, ROWS, t->y);
}

static void multiply_f64(trial *t, const float *x)
{
    float *w = ops_alloc(K * sizeof *w);
    for (size_t n = 0; n < N; n++) {
        nb_packed_row(t->x->ops->weight_block(t->l.w, 0, 0), n, w);
        for (size_t r = 0; r < ROWS; r++) {
            double sum = 0;
            for (size_t k = 0; k < K; k++) sum += (double)x[r * K + k] * (double)w[k];
            t->want[r * N + n] = sum;
        }
    }
    free(w);
}

/*
 * What the error may be at most, whatever the inputs: `exact` rounds each of K / 16 sums and products once; BF16 is off by 2^-8 of a value;
 * int8 by 1/254 of a block's largest, which is at most 4 times its root mean square; E2M1 under an E4M3 scale by 1/6 of the largest (half
 * the step from 4 to 6, with the scale's own 1/16), so by 0.75 likewise, and the static scale of these inputs costs nothing more.
 */
static double bound(nb_arith a)
{
    return a == NB_ARITH_EXACT  ? (K / 16.0 + 20) * ULP
           : a == NB_ARITH_BF16 ? 0x1p-8
           : a == NB_ARITH_INT8 ? 4 / 254.0
                                : 0.75;
}

static void report(ops *o, trial *t, const char *isa, const char *name, const char *inputs, const float *x)
{
    multiply_f64(t, x);
    printf("%-10s %-12s %-8s", isa, name, inputs);
    for (nb_arith a = 0; a < NB_ARITH_COUNT; a++) {
        multiply(t, a);
        const error e = compare(t->y, t->want);
        ops_check(o, t->x->err.status == NB_OK && e.rms <= bound(a), "%s %s %s: %s is off by %g", isa, name,
                  inputs, nb_arith_name(a), e.rms);
        printf(" %.1e %.1e", e.rms, e.most);
        for (size_t i = 0; a == NB_ARITH_EXACT && i < (size_t)ROWS * N; i++) t->want[i] = (double)t->y[i];
    }
    putchar('\n');
}

static void check_one(ops *o, const nb_kernels *k, stored kind, const float *w, const float *const x[2])
{
    trial t = {.y = ops_alloc(ROWS * N * sizeof *t.y), .want = ops_alloc(ROWS * N * sizeof *t.want)};
    matrix m = quantise(w, kind);
    nb_error err;
    const nb_work work = {.max_k = K, .max_context = 1};
    if (nb_cpu_exec_new(k->name, NULL, ROWS, &t.x, &err) != NB_OK) goto failed;
    const nb_ops *op = t.x->ops;
    t.l = (nb_linear){.module = kinds[kind].name,
                      .n = N,
                      .k = K,
                      .blocks = 1,
                      .format = kinds[kind].format,
                      .fp4_input = kind == NVFP4,
                      .has_input = true};
    if (op->ready(t.x, &work, &err) != NB_OK || op->tensor_new(t.x, false, ROWS, K, &t.in, &err) != NB_OK ||
        op->tensor_new(t.x, false, ROWS, N, &t.out, &err) != NB_OK ||
        op->weight_new(t.x, t.l.format, N, K, kinds[kind].scale_k, m.multiplier, 1, kinds[kind].code_bytes,
                       kinds[kind].scale_bytes, read_rows, &m, &t.l.w, &err) != NB_OK)
        goto failed;
    for (size_t i = 0; i < 2; i++) {
        float amax = 0;
        for (size_t j = 0; j < (size_t)ROWS * K; j++) amax = fmaxf(amax, fabsf(x[i][j]));
        t.l.input_gs = NB_NVFP4_RANGE / amax;
        t.l.input_multiplier = amax / NB_NVFP4_RANGE;
        op->tensor_write(t.x, t.in, x[i]);
        report(o, &t, k->name, kinds[kind].name, i ? "outliers" : "normal", x[i]);
    }
    op->weight_free(t.l.w);
    op->tensor_free(t.in);
    op->tensor_free(t.out);
    nb_cpu_exec_free(t.x);
    free(t.y);
    free(t.want);
    free(m.codes);
    free(m.scales);
    return;
failed:
    fprintf(stderr, "nb_ops: %s\n", err.cause);
    exit(2);
}

void ops_errors(ops *o)
{
    float *w = ops_alloc((size_t)N * K * sizeof *w), *x[2];
    for (size_t i = 0; i < (size_t)N * K; i++) w[i] = ops_normal(o) * 0.02f;
    for (size_t i = 0; i < 2; i++) {
        x[i] = ops_alloc((size_t)ROWS * K * sizeof **x);
        for (size_t j = 0; j < (size_t)ROWS * K; j++) x[i][j] = ops_normal(o) * (i && j % 64 == 5 ? 20 : 1);
    }
    printf("difference to exact (exact: to F64), rms and largest:");
    for (nb_arith a = 0; a < NB_ARITH_COUNT; a++) printf(" %s", nb_arith_name(a));
    putchar('\n');
    for (size_t i = 0; i < o->n_tables; i++)
        for (stored kind = 0; kind < STORED; kind++)
            check_one(o, o->tables[i], kind, w, (const float *const[]){x[0], x[1]});
    free(w);
    free(x[0]);
    free(x[1]);
    printf("%zu passed, %zu failed\n", o->passed, o->failed);
}
