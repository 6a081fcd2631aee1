/* The causal convolution and the scan against the plain recurrence in F64, one token after another, and against themselves: no
 * chunking, batch, number of threads or discarded step changes a bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/pages.h"
#include "kernels/ops.h"

enum { T = 3 * NB_SCAN_CHUNK + 5, SEQS = 2, KEYS = 2, HEADS = 6, DK = 16, DV = 12, TAPS = 4 };
enum { Q_AT = 0, K_AT = KEYS * DK, V_AT = 2 * KEYS * DK, COLS = 2 * KEYS * DK + HEADS * DV };

/* What one sequence is made of: [T] rows each. */
typedef struct text {
    float in[T][COLS], dt[T][HEADS], beta[T][HEADS];
    float conv[T][COLS], out[T][HEADS * DV]; /* what a run made of them */
} text;

static float a_log[HEADS], dt_bias[HEADS], skip[HEADS], conv_w[COLS][TAPS], conv_bias[COLS];

static uint32_t state = 99;
static float draw(void) /* in [-1, 1) */
{
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / (float)(1 << 23) - 1;
}

static void fill(float *x, size_t n, float size)
{
    for (size_t i = 0; i < n; i++) x[i] = draw() * size;
}

static void make_text(text *t)
{
    fill(&t->in[0][0], T * COLS, 1);
    fill(&t->dt[0][0], T * HEADS, 2);
    fill(&t->beta[0][0], T * HEADS, 2);
}

static void make_parameters(void)
{
    fill(a_log, HEADS, 1);
    fill(dt_bias, HEADS, 1);
    fill(skip, HEADS, 1);
    fill(&conv_w[0][0], COLS * TAPS, 1);
    fill(conv_bias, COLS, 1);
}

/* The back end with the streams: the convolution's inputs, tokens, states. */
typedef struct rig {
    nb_pool *pool;
    nb_exec *x;
    nb_pages *pages;
    nb_tensor *in, *dt, *beta, *out, *a_log, *dt_bias, *skip, *w, *bias, *y;
    bool delta;
} rig;

static nb_tensor *tensor(rig *r, size_t rows, size_t cols, const float *from)
{
    nb_tensor *t = NULL;
    assert_int_equal(r->x->ops->tensor_new(r->x, false, rows, cols, &t, NULL), NB_OK);
    if (from) r->x->ops->tensor_write(r->x, t, from);
    return t;
}

static void open_rig(rig *r, const char *kernels, size_t threads, bool delta)
{
    const nb_stream_decl decl[] = {{COLS, 1, TAPS},
                                   {nb_scan_columns(KEYS, HEADS, DK, DV), 1, NB_SCAN_CHUNK},
                                   {(size_t)HEADS * DK * DV, NB_SCAN_CHUNK, 2, 1}};
    const nb_pages_options o = {SEQS, 2 * T, SEQS * T, 0, false};
    *r = (rig){.delta = delta};
    assert_int_equal(nb_pool_new(threads, &r->pool, NULL), NB_OK);
    assert_int_equal(nb_cpu_exec_new(kernels, r->pool, SEQS * T, &r->x, NULL), NB_OK);
    assert_int_equal(nb_pages_new(decl, 3, &o, &r->pages, NULL), NB_OK);
    r->x->kv = nb_pages_view(r->pages);
    r->in = tensor(r, SEQS * T, COLS, NULL);
    r->y = tensor(r, SEQS * T, COLS, NULL);
    r->dt = tensor(r, SEQS * T, HEADS, NULL);
    r->beta = tensor(r, SEQS * T, HEADS, NULL);
    r->out = tensor(r, SEQS * T, HEADS * DV, NULL);
    r->a_log = tensor(r, 1, HEADS, a_log);
    r->dt_bias = tensor(r, 1, HEADS, dt_bias);
    r->skip = tensor(r, 1, HEADS, skip);
    r->w = tensor(r, COLS, TAPS, &conv_w[0][0]);
    r->bias = tensor(r, 1, COLS, conv_bias);
}

static void close_rig(rig *r)
{
    nb_tensor *all[] = {r->in, r->y, r->dt, r->beta, r->out, r->a_log, r->dt_bias, r->skip, r->w, r->bias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) r->x->ops->tensor_free(all[i]);
    nb_pages_free(r->pages);
    nb_cpu_exec_free(r->x);
    nb_pool_free(r->pool);
}

/* One step: tokens [from[s], from[s] + n[s]) of each text. Their outputs are kept in the texts; pages are not trimmed. */
static void step(rig *r, text *const *texts, const size_t *from, const size_t *n)
{
    static uint32_t seq[SEQS * T], pos[SEQS * T], token[SEQS * T];
    static float in[SEQS * T][COLS], dt[SEQS * T][HEADS], beta[SEQS * T][HEADS], out[SEQS * T][HEADS * DV];
    const nb_ops *op = r->x->ops;
    size_t rows = 0;
    for (uint32_t s = 0; s < SEQS; s++) {
        assert_true(nb_pages_grow(r->pages, s, from[s], from[s] + n[s]));
        for (size_t i = 0; i < n[s]; i++, rows++) {
            seq[rows] = s;
            pos[rows] = (uint32_t)(from[s] + i);
            memcpy(in[rows], texts[s]->in[from[s] + i], sizeof *in);
            memcpy(dt[rows], texts[s]->dt[from[s] + i], sizeof *dt);
            memcpy(beta[rows], texts[s]->beta[from[s] + i], sizeof *beta);
        }
    }
    op->tensor_write(r->x, r->in, in);
    op->tensor_write(r->x, r->dt, dt);
    op->tensor_write(r->x, r->beta, beta);
    r->x->rows = (nb_rows){rows, seq, pos, token};
    op->store(r->x, 0, r->in, NULL);
    op->conv(r->x, &(nb_conv_call){0, r->w, r->delta ? NULL : r->bias, r->y});
    op->scan(r->x, &(nb_scan_call){.in = r->in,
                                   .q_at = Q_AT,
                                   .k_at = K_AT,
                                   .v_at = V_AT,
                                   .key_heads = KEYS,
                                   .heads = HEADS,
                                   .dk = DK,
                                   .dv = DV,
                                   .dt = r->dt,
                                   .beta = r->delta ? r->beta : NULL,
                                   .a_log = r->a_log,
                                   .dt_bias = r->dt_bias,
                                   .skip = r->delta ? NULL : r->skip,
                                   .dt_min = 0.1f,
                                   .dt_max = 2,
                                   .token_stream = 1,
                                   .state_stream = 2,
                                   .out = r->out});
    assert_int_equal(r->x->err.status, NB_OK);
    op->tensor_read(r->x, r->y, 0, rows, &in[0][0]);
    op->tensor_read(r->x, r->out, 0, rows, &out[0][0]);
    for (size_t t = 0; t < rows; t++) {
        memcpy(texts[seq[t]]->conv[pos[t]], in[t], sizeof *in);
        memcpy(texts[seq[t]]->out[pos[t]], out[t], sizeof *out);
    }
}

static double softplus(double v)
{
    return log1p(exp(v));
}

/* The recurrence itself. */
static void recurrence(const text *t, bool delta, double (*out)[HEADS * DV])
{
    for (size_t h = 0; h < HEADS; h++) {
        double S[DK][DV] = {{0}};
        size_t key = h / (HEADS / KEYS) * DK;
        for (size_t i = 0; i < T; i++) {
            const float *q = t->in[i] + Q_AT + key, *k = t->in[i] + K_AT + key, *v = t->in[i] + V_AT + h * DV;
            double qq = 1, kk = 1, dt = softplus((double)t->dt[i][h] + (double)dt_bias[h]), u[DV];
            if (delta) {
                qq = kk = 1e-6;
                for (size_t a = 0; a < DK; a++)
                    qq += (double)q[a] * (double)q[a], kk += (double)k[a] * (double)k[a];
                qq = 1 / sqrt(qq) / sqrt(DK), kk = 1 / sqrt(kk);
            } else {
                dt = fmin(fmax(dt, (double)0.1f), 2);
            }
            double decay = exp(-exp((double)a_log[h]) * dt);
            for (size_t b = 0; b < DV; b++) {
                double m = 0;
                for (size_t a = 0; a < DK; a++) m += (S[a][b] *= decay) * (double)k[a] * kk;
                u[b] = delta ? ((double)v[b] - m) / (1 + exp(-(double)t->beta[i][h])) : dt * (double)v[b];
                out[i][h * DV + b] = delta ? 0 : (double)skip[h] * (double)v[b];
                for (size_t a = 0; a < DK; a++) {
                    S[a][b] += (double)k[a] * kk * u[b];
                    out[i][h * DV + b] += S[a][b] * (double)q[a] * qq;
                }
            }
        }
    }
}

static void test_the_recurrence(void **unused)
{
    static double want[T][HEADS * DV];
    static const char *const kernels[] = {"generic", "auto"};
    static text t;
    make_text(&t);
    for (int i = 0; i < 4; i++) {
        bool delta = i & 1;
        rig r;
        open_rig(&r, kernels[i / 2], 2, delta);
        recurrence(&t, delta, want);
        step(&r, (text *const[]){&t, &t}, (size_t[]){0, 0}, (size_t[]){T, 0});
        for (size_t k = 0; k < T; k++)
            for (size_t c = 0; c < HEADS * DV; c++)
                if (!(fabs((double)t.out[k][c] - want[k][c]) < 2e-5))
                    fail_msg("delta %d, token %zu, column %zu: %g, not %g", delta, k, c, (double)t.out[k][c],
                             want[k][c]);
        close_rig(&r);
    }
}

static void test_the_convolution(void **unused)
{
    static text t;
    make_text(&t);
    for (int delta = 0; delta < 2; delta++) {
        rig r;
        open_rig(&r, "auto", 2, delta);
        step(&r, (text *const[]){&t, &t}, (size_t[]){0, 0}, (size_t[]){T, 0});
        for (size_t k = 0; k < T; k++)
            for (size_t c = 0; c < COLS; c++) {
                double sum = delta ? 0 : (double)conv_bias[c];
                for (size_t j = 0; j < TAPS; j++)
                    if (k + j >= TAPS - 1) sum += (double)conv_w[c][j] * (double)t.in[k + j - (TAPS - 1)][c];
                assert_true(fabs((double)t.conv[k][c] - sum / (1 + exp(-sum))) < 1e-6);
            }
        close_rig(&r);
    }
}

/* Two sequences in steps of random sizes, some given up in part and computed again, against each alone at once. */
static void test_no_bit_changes(void **unused)
{
    static text alone[SEQS], other[SEQS];
    for (int round = 0; round < 40; round++) {
        bool delta = round & 1;
        rig r;
        size_t at[SEQS] = {0}, none[SEQS] = {0};
        for (size_t s = 0; s < SEQS; s++) {
            make_text(&alone[s]);
            other[s] = alone[s];
            memset(other[s].out, 0, sizeof other[s].out);
            open_rig(&r, round & 2 ? "generic" : "auto", 1, delta);
            step(&r, (text *const[]){&alone[s], &alone[s]}, none, (size_t[]){T, 0});
            close_rig(&r);
        }
        open_rig(&r, round & 2 ? "generic" : "auto", 1 + (size_t)(round & 4) / 2, delta);
        for (unsigned k = 0; at[0] < T || at[1] < T; k++) {
            size_t n[SEQS], most = round & 8 ? 70 : 3;
            for (uint32_t s = 0; s < SEQS; s++) {
                n[s] = (size_t)((draw() + 1) / 2 * (float)most);
                if (n[s] > T - at[s]) n[s] = T - at[s];
            }
            step(&r, (text *const[]){&other[0], &other[1]}, at, n);
            for (uint32_t s = 0; s < SEQS; s++) {
                at[s] += (draw() > 0.8f) ? n[s] / 2 : n[s]; /* the rest is discarded, and made again */
                nb_pages_trim(r.pages, s, at[s]);
            }
        }
        close_rig(&r);
        for (size_t s = 0; s < SEQS; s++)
            assert_memory_equal(other[s].out, alone[s].out, sizeof alone[s].out);
    }
}

/* Rows whose u, or whose state where they complete one, is not finite. */
static void test_bad_rows_are_named(void **unused)
{
    static text t;
    for (int delta = 0; delta < 2; delta++) {
        rig r;
        uint8_t rows[SEQS * T] = {0};
        nb_bad_rows bad = {.row = rows};
        make_text(&t);
        for (size_t k = 0; k < NB_SCAN_CHUNK; k++) t.dt[k][0] = -50; /* decay 1, or dt_min */
        if (delta) { /* k is a unit vector and then its opposite: u = 3e38, then 3e38 + 3e38 */
            for (size_t k = 0; k < 2; k++) {
                memset(t.in[k] + K_AT, 0, DK * sizeof(float));
                t.in[k][K_AT] = k ? -1 : 1;
                t.in[k][V_AT] = 3e38f;
                t.beta[k][0] = 50;
            }
        } else { /* u = 0.1 * 3e38, and a state of 100 times that */
            t.in[3][K_AT] = 100;
            t.in[3][V_AT] = 3e38f;
        }
        open_rig(&r, "auto", 1, delta);
        r.x->bad = &bad;
        step(&r, (text *const[]){&t, &t}, (size_t[]){0, 0}, (size_t[]){NB_SCAN_CHUNK - 1, 0});
        assert_int_equal(rows[0], 0);
        assert_int_equal(rows[1], delta);
        assert_int_equal(rows[NB_SCAN_CHUNK - 2], delta); /* what follows a bad row is bad */
        memset(rows, 0, sizeof rows);
        step(&r, (text *const[]){&t, &t}, (size_t[]){NB_SCAN_CHUNK - 1, 0}, (size_t[]){1, 0});
        assert_int_equal(rows[0], 1);
        assert_string_equal(bad.op, "scan");
        assert_ptr_equal(bad.param, r.dt_bias); /* both are sound */
        close_rig(&r);
    }
}

static int setup(void **unused)
{
    make_parameters();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_recurrence),
        cmocka_unit_test(test_the_convolution),
        cmocka_unit_test(test_no_bit_changes),
        cmocka_unit_test(test_bad_rows_are_named),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
