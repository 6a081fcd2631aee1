/*
 * Attention of queries over parts of the rows that they share, against F64. Scores are dot products of dk terms (dk + 2 ULP of
 * sum |q k|), whose error the exponential turns into a relative one; the output adds n_rows terms and at most
 * n_rows more roundings in the softmax.
 */
#include "ops.h"

#include "numerics/formats.h"

typedef struct problem {
    size_t heads, n_rows, dk, dv;
    bool shared; /* V rows are the K rows */
    bool sink, parts;
    float *q, *k, *v, *sinks, *scores;
    size_t *begin, *end; /* of each query */
    const float **k_rows, **v_rows;
} problem;

static void make(ops *o, problem *p)
{
    if (p->shared) p->dv = p->dk;
    p->q = ops_alloc(p->heads * p->dk * 4);
    p->k = ops_alloc(p->n_rows * p->dk * 4);
    p->v = ops_alloc(p->n_rows * p->dv * 4);
    p->sinks = ops_alloc(p->heads * 4);
    p->scores = ops_alloc(p->heads * p->n_rows * 4);
    p->begin = ops_alloc(p->heads * sizeof *p->begin);
    p->end = ops_alloc(p->heads * sizeof *p->end);
    for (size_t i = 0; i < p->heads;
         i++) { /* all, as heads of one token, or the parts of a causal block or a window */
        p->begin[i] = p->parts ? ops_below(o, p->n_rows + 1) : 0;
        p->end[i] = p->parts ? p->begin[i] + ops_below(o, p->n_rows - p->begin[i] + 1) : p->n_rows;
    }
    p->k_rows = ops_alloc((p->n_rows + NB_AHEAD) * sizeof *p->k_rows);
    p->v_rows = ops_alloc((p->n_rows + NB_AHEAD) * sizeof *p->v_rows);
    for (size_t i = 0; i < p->heads * p->dk; i++) p->q[i] = ops_normal(o);
    for (size_t i = 0; i < p->n_rows * p->dk; i++) p->k[i] = ops_normal(o);
    for (size_t i = 0; i < p->n_rows * p->dv; i++) p->v[i] = ops_normal(o);
    for (size_t i = 0; i < p->heads; i++) p->sinks[i] = ops_normal(o);
    for (size_t r = p->n_rows; r < p->n_rows + NB_AHEAD; r++) p->k_rows[r] = p->v_rows[r] = p->q;
    for (size_t r = 0; r < p->n_rows; r++) { /* in any order: pages are */
        size_t at = p->n_rows - 1 - r;
        p->k_rows[r] = p->k + at * p->dk;
        p->v_rows[r] = p->shared ? p->k_rows[r] : p->v + at * p->dv;
    }
}

static void unmake(problem *p)
{
    free(p->q), free(p->k), free(p->v), free(p->sinks), free(p->scores), free(p->k_rows), free(p->v_rows);
    free(p->begin), free(p->end);
}

/* Queries [first, first + n) together. */
static float *run(const problem *p, const nb_kernels *t, size_t first, size_t n)
{
    float *out = ops_alloc(n * p->dv * 4);
    nb_query *q = ops_alloc(n * sizeof *q);
    for (size_t i = 0; i < n; i++)
        q[i] = (nb_query){p->q + (first + i) * p->dk, out + i * p->dv, p->scores + i * p->n_rows,
                          p->begin[first + i], p->end[first + i]};
    nb_attend_args a = {q, n, p->k_rows, p->v_rows, p->dk, p->dv, 1 / sqrtf((float)p->dk)};
    size_t half = p->n_rows / 2, columns = p->dv / 2; /* in two calls each, as operators may */
    t->scores(&a, 0, half);
    t->scores(&a, half, p->n_rows);
    for (size_t i = 0; i < n; i++) {
        size_t rows = q[i].end - q[i].begin;
        float *w = q[i].scores + q[i].begin, max, sum = t->exps(w, rows, &max), scale = 1;
        if (p->sink) {
            float sink = p->sinks[first + i], all = max > sink ? max : sink;
            scale = expf(max - all);
            sum = sum * scale + expf(sink - all);
        }
        for (size_t r = 0; r < rows; r++) w[r] *= scale / sum;
    }
    t->weigh(&a, 0, columns);
    for (size_t i = 0; i < n; i++) q[i].out += columns;
    t->weigh(&a, columns, p->dv);
    free(q);
    return out;
}

static void check_values(ops *o, const problem *p, const nb_kernels *t)
{
    float *out = run(p, t, 0, p->heads);
    double *score = ops_alloc(p->n_rows * sizeof *score), worst = 0;
    bool ok = true;
    for (size_t h = 0; h < p->heads; h++) {
        double max = p->sink ? (double)p->sinks[h] : -INFINITY, sum = 0, size = 0;
        for (size_t r = p->begin[h]; r < p->end[h]; r++) {
            double s = 0, abs = 0;
            for (size_t i = 0; i < p->dk; i++) {
                double term = (double)p->q[h * p->dk + i] * (double)p->k_rows[r][i];
                s += term, abs += fabs(term);
            }
            score[r] = s * (double)(1 / sqrtf((float)p->dk));
            size = fmax(size, abs * (double)(1 / sqrtf((float)p->dk)));
            max = fmax(max, score[r]);
        }
        for (size_t r = p->begin[h]; r < p->end[h]; r++) sum += score[r] = exp(score[r] - max);
        if (p->sink) sum += exp((double)p->sinks[h] - max);
        for (size_t i = 0; i < p->dv; i++) {
            double want = 0, abs = 0;
            for (size_t r = p->begin[h]; r < p->end[h]; r++) {
                double term = score[r] / sum * (double)p->v_rows[r][i];
                want += term, abs += fabs(term);
            }
            double tol = (2 * (double)(p->dk + 4) * size + 2 * (double)p->n_rows + 30) * ULP * abs + 0x1p-140;
            ok &= ops_close((double)out[h * p->dv + i], want, tol, false);
            worst = fmax(worst, fabs((double)out[h * p->dv + i] - want));
        }
    }
    ops_check(o, ok, "attend %s heads %zu rows %zu dk %zu dv %zu: off by %g", t->name, p->heads, p->n_rows,
              p->dk, p->dv, worst);
    free(out);
    free(score);
}

/* What a query gets does not depend on the others, and a NaN key reaches all outputs of those that see it and nobody else's. */
static void check_independence(ops *o, problem *p, const nb_kernels *t)
{
    float *all = run(p, t, 0, p->heads);
    bool same = true, nans = true;
    for (size_t h = 0; h < p->heads; h++) {
        float *one = run(p, t, h, 1);
        same &= memcmp(one, all + h * p->dv, p->dv * 4) == 0;
        free(one);
    }
    ops_check(o, same, "attend %s rows %zu dk %zu: queries depend on each other", t->name, p->n_rows, p->dk);
    if (p->n_rows) {
        size_t row = ops_below(o, p->n_rows);
        ((float *)p->k_rows[row])[ops_below(o, p->dk)] = NAN;
        float *out = run(p, t, 0, p->heads);
        for (size_t i = 0; i < p->heads * p->dv; i++) {
            size_t h = i / p->dv;
            nans &= row >= p->begin[h] && row < p->end[h] ? isnan(out[i]) : out[i] == all[i];
        }
        ops_check(o, nans, "attend %s rows %zu dk %zu: NaN key", t->name, p->n_rows, p->dk);
        free(out);
    }
    free(all);
}

void ops_check_attend(ops *o)
{
    if (!ops_wants(o, "attend")) return;
    static const size_t rows[] = {0, 1, 2, 3, 4, 5, 8, 17, 130},
                        dims[] = {1, 7, 8, 16, 24, 33, 64, 72, 128, 200, 256, 272};
    for (size_t i = 0; i < COUNT(rows); i++)
        for (size_t j = 0; j < COUNT(dims); j++)
            for (int kind = 0; kind < 16; kind++)
                for (size_t t = 0; t < o->n_tables; t++) {
                    problem p = {.heads = (kind & 8 ? 32 : 1) +
                                          ops_below(o, 9), /* kernels may take many otherwise */
                                 .n_rows = rows[i],
                                 .dk = dims[j],
                                 .dv = dims[ops_below(o, COUNT(dims))],
                                 .shared = kind & 1,
                                 .sink = kind & 2,
                                 .parts = kind & 4};
                    make(o, &p);
                    check_values(o, &p, o->tables[t]);
                    check_independence(o, &p, o->tables[t]);
                    unmake(&p);
                }
}
