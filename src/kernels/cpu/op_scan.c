/* Recurrent mixers on the CPU: the causal convolution, and the scan of Gated DeltaNet and Mamba-2 (nb_scan_call has the algebra). */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu/exec.h"

typedef struct conv_job {
    nb_exec *x;
    const nb_conv_call *c;
} conv_job;

static void conv_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const conv_job *j = ctx;
    const nb_conv_call *c = j->c;
    const nb_kv_stream *s = &j->x->kv->streams[c->stream];
    size_t n = c->y->cols, taps = c->w->cols;
    for (size_t t = begin; t < end; t++) {
        uint32_t seq = j->x->rows.seq[t];
        size_t pos = j->x->rows.pos[t];
        float *y = c->y->f + t * n;
        if (c->bias)
            memcpy(y, c->bias->f, n * sizeof *y);
        else
            memset(y, 0, n * sizeof *y);
        for (size_t k = pos + 1 < taps ? taps - 1 - pos : 0; k < taps; k++) {
            const float *row = nb_kv_row(s, seq, pos + k - (taps - 1)), *w = c->w->f + k;
            for (size_t i = 0; i < n; i++) y[i] += w[i * taps] * row[i];
        }
        for (size_t i = 0; i < n; i++) y[i] = y[i] / (1.0f + expf(-y[i]));
        nb_cpu_round(j->x, y, n);
    }
}

void nb_cpu_conv(nb_exec *x, const nb_conv_call *c)
{
    if (x->err.status) return;
    conv_job j = {x, c};
    nb_cpu_rows(x, x->rows.n, c->y->cols * (c->w->cols + 8), conv_rows, &j);
    nb_cpu_tell_of(x, "conv", c->y, x->rows.n, c->w, c->bias, NULL);
}

typedef struct scan_job {
    nb_exec *x;
    const nb_scan_call *c;
    const nb_kv_stream *tokens, *states;
    size_t u_at, decay_at; /* columns of a token's row */
    size_t per_key;        /* heads per key head */
    nb_head_parts parts;   /* of these; heads do not touch each other */
    atomic_bool bad;
} scan_job;

static float *token_row(const scan_job *j, uint32_t seq, size_t pos)
{
    return nb_kv_row(j->tokens, seq, pos);
}

/* Each head of d values to unit length, times scale. y may be x. */
static void unit_heads(const nb_kernels *k, const float *x, size_t heads, size_t d, float scale, float *y)
{
    for (size_t h = 0; h < heads; h++, x += d, y += d) {
        float f = scale / sqrtf(k->dot(x, x, d) + 1e-6f);
        for (size_t i = 0; i < d; i++) y[i] = x[i] * f;
    }
}

/* What a token brings, whatever came before it: its key and decays, and for the state space u. */
static void enter_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const scan_job *j = ctx;
    const nb_scan_call *c = j->c;
    const nb_kernels *k = nb_cpu_of(j->x)->k;
    for (size_t t = begin; t < end; t++) {
        float *in = c->in->f + t * c->in->cols, *row = token_row(j, j->x->rows.seq[t], j->x->rows.pos[t]);
        float *u = row + j->u_at, *decay = row + j->decay_at;
        if (c->beta) {
            unit_heads(k, in + c->q_at, c->key_heads, c->dk, 1.0f / sqrtf((float)c->dk), in + c->q_at);
            unit_heads(k, in + c->k_at, c->key_heads, c->dk, 1.0f, row);
        } else {
            memcpy(row, in + c->k_at, c->key_heads * c->dk * sizeof *row);
        }
        for (size_t h = 0; h < c->heads; h++) {
            float dt = nb_cpu_softplus(c->dt->f[t * c->heads + h] + c->dt_bias->f[h]);
            if (!c->beta) {
                if (dt < c->dt_min) dt = c->dt_min; /* NaN stays */
                if (dt > c->dt_max) dt = c->dt_max;
                for (size_t i = 0; i < c->dv; i++) u[h * c->dv + i] = dt * in[c->v_at + h * c->dv + i];
            }
            decay[h] = expf(-expf(c->a_log->f[h]) * dt);
        }
    }
}

/* Rows of one sequence inside one chunk: tokens [from, from + n) of the chunk, in rows t … of the step. */
typedef struct segment {
    uint32_t seq;
    size_t t, from, n;
    const float *before;       /* state before the chunk; NULL: zero */
    float *after;              /* state to be written; NULL: the chunk is not whole */
    float *row[NB_SCAN_CHUNK]; /* [from + n] of the chunk's tokens */
} segment;

#define STATE_ROWS 64 /* of a head's state that are looked at together */

/* out = S^T q, and for the delta rule u = S^T k, of all rows: S passes by once. */
static void read_state(const scan_job *j, const segment *s, size_t h)
{
    const nb_scan_call *c = j->c;
    const nb_kernels *k = nb_cpu_of(j->x)->k;
    size_t key = h / j->per_key * c->dk, at = h * c->dv;
    for (size_t r = 0; r < s->n; r++) {
        memset(c->out->f + (s->t + r) * c->out->cols + at, 0, c->dv * sizeof(float));
        if (c->beta) memset(s->row[s->from + r] + j->u_at + at, 0, c->dv * sizeof(float));
    }
    for (size_t i = 0; s->before && i < c->dk; i += STATE_ROWS) {
        const float *a[2 * NB_SCAN_CHUNK], *state[STATE_ROWS];
        float *y[2 * NB_SCAN_CHUNK];
        size_t n = c->dk - i < STATE_ROWS ? c->dk - i : STATE_ROWS, sums = 0;
        for (size_t b = 0; b < n; b++) state[b] = s->before + (h * c->dk + i + b) * c->dv;
        for (size_t r = 0; r < s->n; r++) {
            float *row = s->row[s->from + r];
            a[sums] = c->in->f + (s->t + r) * c->in->cols + c->q_at + key + i;
            y[sums++] = c->out->f + (s->t + r) * c->out->cols + at;
            if (!c->beta) continue;
            a[sums] = row + key + i;
            y[sums++] = row + j->u_at + at;
        }
        k->mix(a, state, n, c->dv, y, sums);
    }
}

/* weight[i] = D(i + 1, last) for tokens of the chunk up to `last`; returns D(0, last), the state's. */
static float decays(const scan_job *j, const segment *s, size_t last, size_t h, float *weight)
{
    float d = 1;
    for (size_t i = last + 1; i-- > 0;) {
        weight[i] = d;
        d *= s->row[i][j->decay_at + h];
    }
    return d;
}

/* Row r of the segment for heads [h0, h1), after those before it: u (delta rule) and out. */
static void read_tokens(const scan_job *j, const segment *s, size_t r, size_t h0, size_t h1)
{
    const nb_scan_call *c = j->c;
    const nb_kernels *k = nb_cpu_of(j->x)->k;
    size_t key = h0 / j->per_key * c->dk, now = s->from + r, t = s->t + r, dv = c->dv;
    const float *in = c->in->f + t * c->in->cols, *q = in + c->q_at + key;
    float qk[NB_SCAN_CHUNK], kk[NB_SCAN_CHUNK], weight[NB_SCAN_CHUNK], a[NB_SCAN_CHUNK];
    const float *us[NB_SCAN_CHUNK], *ap = a;
    for (size_t i = 0; i <= now; i++) {
        qk[i] = k->dot(s->row[i] + key, q, c->dk);
        if (c->beta) kk[i] = k->dot(s->row[i] + key, s->row[now] + key, c->dk);
    }
    for (size_t h = h0; h < h1; h++) {
        size_t at = h * dv;
        float *u = s->row[now] + j->u_at + at, *out = c->out->f + t * c->out->cols + at;
        const float *v = in + c->v_at + at, d = decays(j, s, now, h, weight);
        for (size_t i = 0; i <= now; i++) us[i] = s->row[i] + j->u_at + at;
        if (c->beta) {
            float beta = 1.0f / (1.0f + expf(-c->beta->f[t * c->heads + h]));
            for (size_t i = 0; i < dv; i++) u[i] *= d;
            for (size_t i = 0; i < now; i++) a[i] = weight[i] * kk[i];
            k->mix(&ap, us, now, dv, &u, 1);
            for (size_t i = 0; i < dv; i++) u[i] = beta * (v[i] - u[i]);
        }
        for (size_t i = 0; i < dv; i++) out[i] *= d;
        for (size_t i = 0; i <= now; i++) a[i] = weight[i] * qk[i];
        k->mix(&ap, us, now + 1, dv, &out, 1);
        if (c->skip) k->axpy(c->skip->f[h], v, dv, out);
        nb_cpu_round(j->x, out, dv);
    }
}

#define BAND 16 /* rows of a head's state that are made together */

/* The state after a whole chunk. */
static void write_state(const scan_job *j, const segment *s, size_t h)
{
    const nb_scan_call *c = j->c;
    const nb_kernels *k = nb_cpu_of(j->x)->k;
    size_t key = h / j->per_key * c->dk, at = j->u_at + h * c->dv;
    float weight[NB_SCAN_CHUNK], d = decays(j, s, NB_SCAN_CHUNK - 1, h, weight);
    const float *u[NB_SCAN_CHUNK];
    for (size_t n = 0; n < NB_SCAN_CHUNK; n++) u[n] = s->row[n] + at;
    for (size_t i = 0; i < c->dk; i += BAND) {
        float a[BAND][NB_SCAN_CHUNK], *state[BAND];
        const float *ap[BAND];
        size_t rows = c->dk - i < BAND ? c->dk - i : BAND, o = (h * c->dk + i) * c->dv;
        for (size_t b = 0; b < rows; b++) {
            ap[b] = a[b];
            state[b] = s->after + o + b * c->dv;
            for (size_t n = 0; n < NB_SCAN_CHUNK; n++) a[b][n] = weight[n] * s->row[n][key + i + b];
        }
        for (size_t v = 0; v < rows * c->dv; v++) s->after[o + v] = s->before ? d * s->before[o + v] : 0;
        k->mix(ap, u, NB_SCAN_CHUNK, c->dv, state, rows);
    }
}

/* Rows [t, end) of one sequence, for heads [h0, h1) of one key head. */
static void scan_run(const scan_job *j, size_t t, size_t end, size_t h0, size_t h1)
{
    while (t < end) {
        segment s = {.seq = j->x->rows.seq[t], .t = t};
        size_t pos = j->x->rows.pos[t], chunk = pos / NB_SCAN_CHUNK, first = chunk * NB_SCAN_CHUNK;
        s.from = pos - first;
        s.n = end - t < NB_SCAN_CHUNK - s.from ? end - t : NB_SCAN_CHUNK - s.from;
        for (size_t i = 0; i < s.from + s.n; i++) s.row[i] = token_row(j, s.seq, first + i);
        if (chunk) s.before = nb_kv_row(j->states, s.seq, chunk - 1);
        if (s.from + s.n == NB_SCAN_CHUNK) s.after = nb_kv_row(j->states, s.seq, chunk);
        for (size_t h = h0; h < h1; h++) read_state(j, &s, h);
        for (size_t r = 0; r < s.n; r++) read_tokens(j, &s, r, h0, h1);
        for (size_t h = h0; s.after && h < h1; h++) write_state(j, &s, h);
        t += s.n;
    }
}

/* The end of the run of one sequence's rows that begins at t. */
static size_t run_end(const nb_rows *rows, size_t t)
{
    size_t end = t + 1;
    while (end < rows->n && rows->seq[end] == rows->seq[t]) end++;
    return end;
}

/* Items are (run, key head, part). */
static void scan_items(void *ctx, size_t thread, size_t begin, size_t end)
{
    const scan_job *j = ctx;
    size_t items = j->c->key_heads * j->parts.n, first = 0, next;
    for (size_t t = 0; t < j->x->rows.n && first < end; t = next, first += items) {
        next = run_end(&j->x->rows, t);
        for (size_t item = begin > first ? begin : first; item < first + items && item < end; item++) {
            size_t h0, h1;
            nb_heads_of_part(&j->parts, (item - first) / j->parts.n, (item - first) % j->parts.n, &h0, &h1);
            scan_run(j, t, next, h0, h1);
        }
    }
}

static void find_bad(void *ctx, size_t thread, size_t begin, size_t end)
{
    scan_job *j = ctx;
    for (size_t t = begin; t < end; t++) {
        uint32_t seq = j->x->rows.seq[t];
        size_t pos = j->x->rows.pos[t];
        bool whole = (pos + 1) % NB_SCAN_CHUNK == 0;
        if (nb_cpu_finite(token_row(j, seq, pos), j->tokens->decl.cols) &&
            (!whole || nb_cpu_finite(nb_kv_row(j->states, seq, pos / NB_SCAN_CHUNK), j->states->decl.cols)))
            continue;
        j->x->bad->row[t] = 1;
        atomic_store_explicit(&j->bad, true, memory_order_relaxed);
    }
}

void nb_cpu_scan(nb_exec *x, const nb_scan_call *c)
{
    if (x->err.status) return;
    size_t keys = c->key_heads * c->dk, runs = 0;
    scan_job j = {.x = x,
                  .c = c,
                  .tokens = &x->kv->streams[c->token_stream],
                  .states = &x->kv->streams[c->state_stream],
                  .u_at = keys,
                  .decay_at = keys + c->heads * c->dv,
                  .per_key = c->heads / c->key_heads};
    for (size_t t = 0; t < x->rows.n; t = run_end(&x->rows, t)) runs++;
    j.parts = nb_cpu_part_heads(j.per_key, j.per_key, runs * c->key_heads, nb_pool_threads(x->pool));
    nb_cpu_rows(x, x->rows.n, j.tokens->decl.cols * 4, enter_rows, &j);
    nb_cpu_rows(x, runs * c->key_heads * j.parts.n,
                j.parts.each * c->dk * c->dv * x->rows.n / (runs ? runs : 1), scan_items, &j);
    if (x->bad) nb_cpu_rows(x, x->rows.n, j.tokens->decl.cols, find_bad, &j);
    if (j.bad) nb_cpu_bad(x, "scan", nb_cpu_finite(c->a_log->f, c->heads) ? c->dt_bias : c->a_log);
    nb_cpu_tell_of(x, "scan", c->out, x->rows.n, c->a_log, c->dt_bias, c->skip);
}
