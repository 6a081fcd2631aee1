/*
 * Manifold-constrained hyper-connections (DeepSeek-V4) on the CPU: M residual streams, a doubly stochastic mixing matrix per
 * row from Sinkhorn iterations. All F32. Formulas: DeepSeek-V4 inference/model.py (hc_pre, hc_post, hc_head).
 */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/exec.h"

#define MAX_STREAMS 16
#define MAX_MIX ((2 + MAX_STREAMS) * MAX_STREAMS)

/* Columns of every stream that make a piece: a product is the sum of its pieces, in order, whoever makes them. */
enum { COLS = 128 };

enum {
    FEW = 32,      /* rows whose pieces go to the threads; of more, each thread has rows of its own, … */
    TOGETHER = 16, /* … so many at a time */
    FN_ROWS = 8    /* rows of fn at a time */
};

typedef struct mhc_job {
    nb_exec *x;
    const nb_tensor *in, *mixed;
    const nb_mhc *p;
    size_t streams;
    nb_tensor *y, *mix;
    size_t pieces; /* of a row */
    size_t step;   /* floats of a piece's sums: what it adds to fn . v, and behind those to v . v */
    float *sums;   /* [rows][pieces][step] of few rows */
    float *pre;    /* [rows][streams] of few rows */
} mhc_job;

static float sigmoid(float v)
{
    return 1.0f / (1.0f + expf(-v));
}

static size_t columns_of(const nb_tensor *t, size_t piece)
{
    return nb_smaller(COLS, t->cols - piece * COLS);
}

/* Adds to the sums of n rows from t on what the columns of one stream and pieces [begin, end) give to their products with rows
 * [r, r + FN_ROWS) of fn. The same columns of the next rows of fn are asked for. */
static void add_products(const mhc_job *j, size_t t, size_t n, size_t stream, size_t begin, size_t end,
                         size_t r, float *sums, size_t ld)
{
    const nb_tensor *fn = j->p->fn;
    const size_t rows = nb_smaller(FN_ROWS, fn->rows - r), next = r + FN_ROWS < fn->rows ? r + FN_ROWS : 0;
    const size_t d = j->y->cols, next_stream = next || stream + 1 == j->p->streams ? stream : stream + 1;
    const float *k_rows[FN_ROWS + NB_AHEAD];
    nb_query q[FEW];
    float out[FEW * FN_ROWS] = {0};
    for (size_t i = 0; i < FN_ROWS + NB_AHEAD; i++) k_rows[i] = fn->f;
    for (size_t piece = begin; piece < end; piece++, sums += j->step) {
        const size_t col = piece * COLS;
        for (size_t i = 0; i < rows; i++) {
            k_rows[i] = fn->f + (r + i) * fn->cols + stream * d + col;
            k_rows[i + NB_AHEAD] =
                fn->f + nb_smaller(next + i, fn->rows - 1) * fn->cols + next_stream * d + col;
        }
        for (size_t i = 0; i < n; i++)
            q[i] = (nb_query){j->in->f + (t + i) * j->in->cols + stream * d + col, NULL, out + i * FN_ROWS, 0,
                              rows};
        const nb_attend_args a = {q, n, k_rows, NULL, columns_of(j->y, piece), 0, 1.0f};
        nb_cpu_of(j->x)->k->scores(&a, 0, rows);
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k < rows; k++) sums[i * ld + r + k] += out[i * FN_ROWS + k];
    }
}

/* The same for v . v. */
static void add_squares(const mhc_job *j, size_t t, size_t n, size_t stream, size_t piece, float *sums,
                        size_t ld)
{
    const float *v = j->in->f + t * j->in->cols + stream * j->y->cols + piece * COLS;
    for (size_t i = 0; i < n; i++, v += j->in->cols)
        sums[i * ld + j->p->fn->rows] += nb_cpu_of(j->x)->k->dot(v, v, columns_of(j->y, piece));
}

/* Sums of pieces [begin, end) of all rows. */
static void sum_pieces(void *ctx, size_t thread, size_t begin, size_t end)
{
    const mhc_job *j = ctx;
    const size_t n = j->x->rows.n, ld = j->pieces * j->step;
    for (size_t t = 0; t < n; t++)
        memset(j->sums + t * ld + begin * j->step, 0, (end - begin) * j->step * sizeof *j->sums);
    for (size_t i = 0; i < j->p->streams; i++) {
        for (size_t r = 0; r < j->p->fn->rows; r += FN_ROWS)
            add_products(j, 0, n, i, begin, end, r, j->sums + begin * j->step, ld);
        for (size_t piece = begin; piece < end; piece++)
            add_squares(j, 0, n, i, piece, j->sums + piece * j->step, ld);
    }
}

/* Rows first (softmax), then columns and rows in turn, ending with columns. C is [M][M]. */
static void sinkhorn(float *C, size_t M, int iters, float eps)
{
    for (size_t i = 0; i < M; i++) {
        float top = C[i * M], sum = 0;
        for (size_t j = 1; j < M; j++) top = C[i * M + j] > top ? C[i * M + j] : top;
        for (size_t j = 0; j < M; j++) sum += C[i * M + j] = expf(C[i * M + j] - top);
        for (size_t j = 0; j < M; j++) C[i * M + j] = C[i * M + j] / sum + eps;
    }
    for (int it = 0; it < iters; it++) {
        for (size_t i = 0; it > 0 && i < M; i++) {
            float sum = eps;
            for (size_t j = 0; j < M; j++) sum += C[i * M + j];
            for (size_t j = 0; j < M; j++) C[i * M + j] /= sum;
        }
        for (size_t j = 0; j < M; j++) {
            float sum = eps;
            for (size_t i = 0; i < M; i++) sum += C[i * M + j];
            for (size_t i = 0; i < M; i++) C[i * M + j] /= sum;
        }
    }
}

static void expand_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const mhc_job *j = ctx;
    size_t d = j->in->cols;
    for (size_t t = begin; t < end; t++)
        for (size_t i = 0; i < j->streams; i++)
            memcpy(j->y->f + (t * j->streams + i) * d, j->in->f + t * d, d * sizeof(float));
}

void nb_cpu_mhc_expand(nb_exec *x, const nb_tensor *h, size_t streams, nb_tensor *X)
{
    if (x->err.status) return;
    mhc_job j = {.x = x, .in = h, .streams = streams, .y = X};
    nb_cpu_rows(x, x->rows.n, X->cols, expand_rows, &j);
}

/* What is made of row t's products, sums [fn->rows + 1]: how its streams collapse (pre), and with j->mix how they go on. */
static void mixes(const mhc_job *j, size_t t, const float *sums, float *pre)
{
    const nb_mhc *p = j->p;
    const size_t M = p->streams;
    const float *base = p->base->f, *scale = p->scale->f;
    const float rs = 1.0f / sqrtf(sums[p->fn->rows] / (float)j->in->cols + p->norm_eps);
    for (size_t i = 0; i < M; i++) pre[i] = sigmoid(sums[i] * rs * scale[0] + base[i]) + p->eps;
    if (!j->mix) return;
    float *post = j->mix->f + t * j->mix->cols, *C = post + M;
    for (size_t i = 0; i < M; i++) post[i] = 2.0f * sigmoid(sums[M + i] * rs * scale[1] + base[M + i]);
    for (size_t i = 0; i < M * M; i++) C[i] = sums[2 * M + i] * rs * scale[2] + base[2 * M + i];
    sinkhorn(C, M, p->sinkhorn_iters, p->eps);
}

/* n columns of y from `from` on, of row t. */
static void collapse(const mhc_job *j, size_t t, const float *pre, size_t from, size_t n)
{
    const size_t d = j->y->cols;
    const float *stream[MAX_STREAMS];
    float *y = j->y->f + t * d + from;
    for (size_t i = 0; i < j->p->streams; i++) stream[i] = j->in->f + t * j->in->cols + i * d + from;
    memset(y, 0, n * sizeof *y);
    nb_cpu_of(j->x)->k->mix(&pre, stream, j->p->streams, n, &y, 1);
    nb_cpu_round(j->x, y, n);
}

/* The pieces' sums in order. */
static void add_pieces(const float *pieces, size_t n, size_t step, float *sums)
{
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < step; k++) sums[k] += pieces[i * step + k];
}

static void mix_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const mhc_job *j = ctx;
    for (size_t t = begin; t < end; t++) {
        float sums[MAX_MIX + 16] = {0};
        add_pieces(j->sums + t * j->pieces * j->step, j->pieces, j->step, sums);
        mixes(j, t, sums, j->pre + t * j->p->streams);
    }
}

static void collapse_pieces(void *ctx, size_t thread, size_t begin, size_t end)
{
    const mhc_job *j = ctx;
    const size_t from = begin * COLS, n = nb_smaller(end * COLS, j->y->cols) - from;
    for (size_t t = 0; t < j->x->rows.n; t++) collapse(j, t, j->pre + t * j->p->streams, from, n);
}

/* Rows [begin, end) as a whole. */
static void whole_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const mhc_job *j = ctx;
    float sums[TOGETHER * (MAX_MIX + 16)], piece[TOGETHER * (MAX_MIX + 16)], pre[MAX_STREAMS];
    const size_t step = j->step;
    for (size_t t = begin, n; t < end; t += n) {
        n = nb_smaller(TOGETHER, end - t);
        memset(sums, 0, n * step * sizeof *sums);
        for (size_t c = 0; c < j->pieces; c++) {
            memset(piece, 0, n * step * sizeof *piece);
            for (size_t i = 0; i < j->p->streams; i++) {
                for (size_t r = 0; r < j->p->fn->rows; r += FN_ROWS)
                    add_products(j, t, n, i, c, c + 1, r, piece, step);
                add_squares(j, t, n, i, c, piece, step);
            }
            add_pieces(piece, 1, n * step, sums);
        }
        for (size_t i = 0; i < n; i++) {
            mixes(j, t + i, sums + i * step, pre);
            collapse(j, t + i, pre, 0, j->y->cols);
        }
    }
}

/* y, and mix unless it is NULL, of the step's rows. */
static void run_pre(nb_exec *x, const nb_tensor *X, const nb_mhc *p, nb_tensor *y, nb_tensor *mix)
{
    nb_cpu_exec *c = nb_cpu_of(x);
    const size_t rows = x->rows.n, pieces = nb_ceil_div(y->cols, COLS),
                 step = nb_round_up(p->fn->rows + 1, 16);
    float pre[FEW * MAX_STREAMS];
    mhc_job j = {.x = x,
                 .in = X,
                 .p = p,
                 .y = y,
                 .mix = mix,
                 .pieces = pieces,
                 .step = step,
                 .sums = c->scores,
                 .pre = pre};
    if (rows > FEW || rows * pieces * step > c->threads * c->score_room) {
        nb_cpu_rows(x, rows, p->fn->rows * X->cols, whole_rows, &j);
        return;
    }
    /* fn is read from memory, and a thread may be held up */
    nb_pool_share(x->pool, pieces, nb_ceil_div(pieces, c->threads * 2), sum_pieces, &j);
    nb_cpu_rows(x, rows, pieces * step, mix_rows, &j);
    nb_cpu_rows(x, pieces, rows * COLS * p->streams, collapse_pieces, &j);
}

void nb_cpu_mhc_pre(nb_exec *x, const nb_tensor *X, const nb_mhc *p, nb_tensor *y, nb_tensor *mix)
{
    if (x->err.status) return;
    if (p->streams > MAX_STREAMS) {
        nb_fail(&x->err, NB_ERR_UNSUPPORTED, "hc_mult %zu is above %d", p->streams, MAX_STREAMS);
        return;
    }
    run_pre(x, X, p, y, mix);
    nb_cpu_tell_of(x, "mhc_pre", y, x->rows.n, p->fn, p->base, p->scale);
}

/* Columns [from, from + n), COLS at most, of row t: X[k] = post[k] o + sum over i of C[i][k] X[i] (transposed: over C's first index). */
static void post(const mhc_job *j, size_t t, size_t from, size_t n)
{
    const size_t M = j->streams, d = j->in->cols;
    const float *p = j->mixed->f + t * j->mixed->cols, *C = p + M;
    float old[MAX_STREAMS][COLS], weights[MAX_STREAMS][1 + MAX_STREAMS], *y[MAX_STREAMS] = {0};
    const float *x[1 + MAX_STREAMS] = {j->in->f + t * d + from}, *a[MAX_STREAMS] = {0};
    for (size_t k = 0; k < M; k++) {
        y[k] = j->y->f + (t * M + k) * d + from;
        memcpy(old[k], y[k], n * sizeof **y);
        memset(y[k], 0, n * sizeof **y);
        x[1 + k] = old[k];
        a[k] = weights[k];
        weights[k][0] = p[k];
        for (size_t i = 0; i < M; i++) weights[k][1 + i] = C[i * M + k];
    }
    nb_cpu_of(j->x)->k->mix(a, x, 1 + M, n, y, M);
    for (size_t k = 0; k < M; k++) nb_cpu_round(j->x, y[k], n);
}

static void post_pieces(void *ctx, size_t thread, size_t begin, size_t end)
{
    const mhc_job *j = ctx;
    for (size_t t = 0; t < j->x->rows.n; t++)
        for (size_t piece = begin; piece < end; piece++) post(j, t, piece * COLS, columns_of(j->in, piece));
}

static void post_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const mhc_job *j = ctx;
    for (size_t t = begin; t < end; t++)
        for (size_t from = 0; from < j->in->cols; from += COLS)
            post(j, t, from, nb_smaller(COLS, j->in->cols - from));
}

void nb_cpu_mhc_post(nb_exec *x, const nb_tensor *o, const nb_tensor *mix, size_t streams, nb_tensor *X)
{
    if (x->err.status) return;
    mhc_job j = {.x = x, .in = o, .mixed = mix, .streams = streams, .y = X};
    const size_t rows = x->rows.n, cost = COLS * streams * 2, pieces = nb_ceil_div(o->cols, COLS);
    if (rows > FEW)
        nb_cpu_rows(x, rows, pieces * cost, post_rows, &j);
    else
        nb_cpu_rows(x, pieces, rows * cost, post_pieces, &j);
    nb_cpu_tell(x, "mhc_post", X, x->rows.n);
}

void nb_cpu_mhc_head(nb_exec *x, const nb_tensor *X, const nb_mhc *p, nb_tensor *y)
{
    if (x->err.status) return;
    run_pre(x, X, p, y, NULL);
    nb_cpu_tell_of(x, "mhc_head", y, x->rows.n, p->fn, p->base, p->scale);
}
