/*
 * The watcher of a traced run: the exact engine's taps are recorded for the length of a layer, the traced engine's are compared
 * with them (total) and with the exact engine's weights applied to the very same input (local).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "doctor/trace_internal.h"
#include "numerics/formats.h"

/* One operator of the exact run. */
typedef struct record {
    const char *op;
    const nb_linear *linear; /* the exact model's */
    size_t rows, cols;
    uint32_t *token; /* [rows] which token each row is; NULL: row i is row i */
    float *out;      /* [rows][cols] */
    bool used;
} record;

struct nb_watch {
    const nb_model *exact, *traced;
    nb_trace *t;
    record *records;
    size_t n, cap;
};

/* A linear of the traced model: where it stands, and its twin in the exact one. */
typedef struct place {
    const nb_arch_tensor *row;
    int64_t expert;
    const nb_linear *exact;
    const nb_linear_src *src, *exact_src;
} place;

static bool find_linear(const nb_watch *w, const nb_linear *l, int layer, place *out)
{
    const nb_arch *a = w->traced->cfg.arch;
    bool inside = layer >= 0 && layer < (int)w->traced->cfg.n_layers;
    const nb_slot *mine = inside ? w->traced->layers + (size_t)layer * a->n_tensors : w->traced->global;
    const nb_slot *twin = inside ? w->exact->layers + (size_t)layer * a->n_tensors : w->exact->global;
    for (size_t i = 0; i < a->n_tensors; i++) {
        if (!mine[i].lin || l < mine[i].lin || l >= mine[i].lin + mine[i].n_lin) continue;
        size_t e = (size_t)(l - mine[i].lin);
        *out = (place){&a->tensors[i], strstr(a->tensors[i].name, "{e}") ? (int64_t)e : -1, &twin[i].lin[e],
                       &mine[i].src[e], &twin[i].src[e]};
        return true;
    }
    return false;
}

static const nb_arch_tensor *find_param(const nb_model *m, const nb_tensor *p, int layer)
{
    const nb_arch *a = m->cfg.arch;
    bool inside = layer >= 0 && layer < (int)m->cfg.n_layers;
    const nb_slot *s = inside ? m->layers + (size_t)layer * a->n_tensors : m->global;
    for (size_t i = 0; p && i < a->n_tensors; i++)
        if (s[i].t == p) return &a->tensors[i];
    return NULL;
}

/* Rows of a tensor as the tap picks them. NULL with x's error set: no memory. */
static float *read_rows(nb_exec *x, const nb_tensor *from, size_t cols, size_t rows, const uint32_t *pick,
                        size_t divide)
{
    size_t n;
    float *v = nb_mul(rows, cols, &n) && n < SIZE_MAX / 8 ? malloc((n + 1) * sizeof *v) : NULL;
    if (!v) {
        nb_fail_nomem(&x->err, "an operator's rows", rows);
        return NULL;
    }
    if (!pick)
        x->ops->tensor_read(x, from, 0, rows, v);
    else
        for (size_t i = 0; i < rows; i++) x->ops->tensor_read(x, from, pick[i] / divide, 1, v + i * cols);
    return v;
}

static void record_tap(void *ctx, nb_exec *x, const nb_tap *t)
{
    nb_watch *w = ctx;
    if (w->n == w->cap) {
        size_t cap = w->cap ? 2 * w->cap : 64;
        record *p = realloc(w->records, cap * sizeof *p);
        if (!p) {
            nb_fail_nomem(&x->err, "records of a layer", cap * sizeof *p);
            return;
        }
        w->records = p;
        w->cap = cap;
    }
    record *r = &w->records[w->n];
    *r = (record){.op = t->op, .linear = t->linear, .rows = t->rows, .cols = x->ops->tensor_cols(t->out)};
    r->out = read_rows(x, t->out, r->cols, t->rows, t->pick, 1);
    if (!r->out) return;
    w->n++;
    if (!t->pick) return;
    r->token = malloc((t->rows + 1) * sizeof *r->token);
    if (!r->token) {
        nb_fail_nomem(&x->err, "records of a layer", t->rows * sizeof *r->token);
        return;
    }
    for (size_t i = 0; i < t->rows; i++) r->token[i] = t->pick[i] / (uint32_t)w->exact->experts_per_row;
}

void nb_watch_forget(nb_watch *w)
{
    for (size_t i = 0; i < w->n; i++) {
        free(w->records[i].out);
        free(w->records[i].token);
    }
    w->n = 0;
}

/* Against the whole exact run. Of an expert's rows those count that the exact run sent it too. */
static void compare_total(nb_watch *w, nb_trace_row *row, const nb_tap *t, const nb_linear *twin, float *out,
                          size_t cols)
{
    record *r = NULL;
    for (size_t i = 0; i < w->n && !r; i++) {
        record *c = &w->records[i];
        if (!c->used && c->linear == twin && (twin || strcmp(c->op, t->op) == 0)) r = c;
    }
    if (!r || r->cols != cols) return;
    r->used = true;
    nb_agreement a;
    if (!t->pick) {
        if (r->rows != t->rows) return;
        a = nb_trace_agree(out, r->out, t->rows, cols);
    } else {
        size_t n = 0; /* common rows are moved to the front of both */
        for (size_t i = 0, k = 0; i < t->rows; i++) {
            uint32_t token = t->pick[i] / (uint32_t)w->traced->experts_per_row;
            while (k < r->rows && r->token[k] < token) k++;
            if (k == r->rows || r->token[k] != token) continue;
            memmove(out + n * cols, out + i * cols, cols * sizeof *out);
            memmove(r->out + n * cols, r->out + k * cols, cols * sizeof *out);
            n++;
        }
        if (!n) return;
        a = nb_trace_agree(out, r->out, n, cols);
    }
    row->cos_total = a.cos;
    row->snr_total_db = a.snr_db;
    row->total = a.energy;
}

/* y = x W^T with the exact model's weight, into ref [rows][n]. */
static bool exact_product(nb_watch *w, nb_exec *x, const nb_linear *twin, const float *in, size_t rows,
                          float *ref)
{
    nb_exec *e = w->exact->x;
    nb_tensor *tx = NULL, *ty = NULL;
    void (*tap)(void *, nb_exec *, const nb_tap *) = e->tap;
    e->tap = NULL;
    if (e->ops->tensor_new(e, false, rows, twin->k * twin->blocks, &tx, &e->err) == NB_OK &&
        e->ops->tensor_new(e, false, rows, twin->n, &ty, &e->err) == NB_OK) {
        e->ops->tensor_write(e, tx, in);
        e->ops->linear(e, &(nb_linear_call){.w = &twin, .count = 1, .rows = rows, .x = tx, .y = &ty});
        if (e->err.status == NB_OK) e->ops->tensor_read(e, ty, 0, rows, ref);
    }
    e->ops->tensor_free(tx);
    e->ops->tensor_free(ty);
    e->tap = tap;
    if (e->err.status) x->err = e->err;
    return e->err.status == NB_OK;
}

static void round_all(const nb_exec *x, float *v, size_t n)
{
    for (size_t i = 0; x->act_bf16 && i < n; i++) v[i] = nb_bf16_round(v[i]);
}

/* Fills in what only a linear has: its input, and the exact product of it. */
static void compare_linear(nb_watch *w, nb_exec *x, nb_trace_row *row, const nb_tap *t, const place *p,
                           const float *out)
{
    const nb_linear *l = t->linear;
    size_t k = l->k * l->blocks, n = l->n;
    float *in = read_rows(x, t->in, k, t->rows, t->pick, t->divide);
    float *ref = malloc((t->rows * n + 1) * sizeof *ref), *best = NULL;
    uint64_t bad = 0;
    if (!in || !ref) {
        if (in) nb_fail_nomem(&x->err, "an exact product", t->rows * n * sizeof *ref);
        goto out;
    }
    row->in_amax = nb_trace_amax(in, t->rows * k, &bad);
    row->has_in = true;
    row->weight_ratio = (double)p->src->multiplier / (double)p->exact_src->multiplier;
    row->bad_input = bad > 0;
    bool quantised = x->arith == NB_ARITH_W4A4 && l->fp4_input;
    if (!exact_product(w, x, p->exact, in, t->rows, ref)) goto out;
    round_all(x, ref, t->rows * n);
    nb_agreement a = nb_trace_agree(out, ref, t->rows, n);
    row->cos_local = a.cos;
    row->snr_local_db = row->snr_best_db = a.snr_db;
    row->local = row->best = a.energy;
    nb_trace_amax(ref, t->rows * n, &bad);
    row->masked = bad && !row->nonfinite && !row->bad_input;
    row->quantised = l->fp4_input && (x->arith == NB_ARITH_W4A4 || x->arith == NB_ARITH_W4A4_DYNAMIC);
    if (quantised) {
        for (size_t i = 0; x->quant_bf16 && i < t->rows * k; i++) in[i] = nb_bf16_round(in[i]);
        nb_quant_loss q = nb_trace_quant_loss(in, t->rows, k, l->input_gs);
        row->clipped = q.clipped;
        row->flushed = q.flushed;
        row->saturated = q.saturated;
        if (!(a.snr_db > 40)) {
            best = malloc((t->rows * n + 1) * sizeof *best);
            if (!best) {
                nb_fail_nomem(&x->err, "an exact product", t->rows * n * sizeof *best);
                goto out;
            }
            nb_trace_quant_dynamic(in, t->rows * l->blocks, l->k, in);
            if (!exact_product(w, x, p->exact, in, t->rows, best)) goto out;
            round_all(x, best, t->rows * n);
            a = nb_trace_agree(best, ref, t->rows, n);
            row->snr_best_db = a.snr_db;
            row->best = a.energy;
        }
    }
    nb_trace_judge(row, row->quantised);
    if (row->masked) row->bad = true;
out:
    free(in);
    free(ref);
    free(best);
}

/* What the reader sees as the module of an operator that is no linear. */
static char *module_of(const nb_watch *w, const nb_tap *t, const nb_arch_tensor *param)
{
    const nb_model *m = w->traced;
    char name[256];
    const nb_tensor_info *info = NULL;
    if (param && nb_arch_find(m->ckpt, &m->cfg, param, t->layer, -1, name, sizeof name, &info)) {
        char *dot = strrchr(name, '.');
        if (dot && strcmp(dot, ".weight") == 0) *dot = '\0';
        return strdup(name);
    }
    if (t->layer >= 0 && t->layer < (int)m->cfg.n_layers)
        snprintf(name, sizeof name, "layers.%d", t->layer);
    else
        snprintf(name, sizeof name, "%s", t->layer < 0 ? "embedding" : "end");
    return strdup(name);
}

static const nb_arch_tensor *embedding_of(const nb_arch *a)
{
    for (size_t i = 0; i < a->n_tensors; i++)
        if (a->tensors[i].role == NB_ROLE_EMBED) return &a->tensors[i];
    return NULL;
}

/* After the layers the head runs over some rows at a time: they become one row of the trace. */
static void join_tiles(nb_watch *w, nb_trace_row *row)
{
    nb_trace *t = w->t;
    if (row->layer < (int)w->traced->cfg.n_layers || !row->module) return;
    for (nb_trace_row *r = row; r-- > t->rows && r->layer == row->layer;) {
        if (strcmp(r->op, row->op) != 0 || strcmp(r->module, row->module) != 0) continue;
        nb_trace_merge(r, row);
        free(row->module);
        t->n--;
        return;
    }
}

static void compare_tap(void *ctx, nb_exec *x, const nb_tap *t)
{
    nb_watch *w = ctx;
    size_t cols = x->ops->tensor_cols(t->out);
    float *out = read_rows(x, t->out, cols, t->rows, t->pick, 1);
    nb_trace_row *row = out ? nb_trace_add(w->t) : NULL;
    if (!row) {
        nb_fail_nomem(&x->err, "trace rows", sizeof *row);
        free(out);
        return;
    }
    place p = {0};
    row->layer = t->layer;
    row->op = t->op;
    row->rows = t->rows;
    row->out_amax = nb_trace_amax(out, t->rows * cols, &row->nonfinite);
    if (t->linear && find_linear(w, t->linear, t->layer, &p)) {
        row->param[0] = p.row;
        row->expert = p.expert;
        row->module = strdup(t->linear->module);
        compare_linear(w, x, row, t, &p, out);
    } else {
        for (size_t i = 0; i < 3; i++) row->param[i] = find_param(w->traced, t->param[i], t->layer);
        if (strcmp(t->op, "embed") == 0) row->param[0] = embedding_of(w->traced->cfg.arch);
        row->module = module_of(w, t, row->param[0]);
        row->bad = row->nonfinite > 0;
        if (row->bad) row->cos_local = row->snr_local_db = NAN;
    }
    if (!row->module) nb_fail_nomem(&x->err, "a module name", 256);
    compare_total(w, row, t, p.exact, out, cols);
    free(out);
    join_tiles(w, row);
}

nb_status nb_watch_new(nb_engine *exact, nb_engine *traced, nb_trace *t, nb_watch **out, nb_error *err)
{
    nb_watch *w = calloc(1, sizeof *w);
    if (!w) return nb_fail_nomem(err, "a watcher", sizeof *w);
    *w = (nb_watch){.exact = nb_engine_model(exact), .traced = nb_engine_model(traced), .t = t};
    w->exact->x->tap = record_tap;
    w->exact->x->tap_ctx = w;
    w->traced->x->tap = compare_tap;
    w->traced->x->tap_ctx = w;
    *out = w;
    return NB_OK;
}

void nb_watch_free(nb_watch *w)
{
    if (!w) return;
    nb_watch_forget(w);
    free(w->records);
    free(w);
}
