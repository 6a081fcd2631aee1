/* Measures what stored input scales do to real activations, through the engine's taps. */
#include "doctor/activations.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "doctor/texts.h"
#include "doctor/trace_internal.h"
#include "engine/measure.h"
#include "numerics/nvfp4.h"

#define ROWS ((size_t)64) /* rows compared at a time */

/* Sums over all rows that a linear saw. */
typedef struct sums {
    double rows, cos, signal, error, best;
    double clipped, flushed, saturated; /* shares times rows */
} sums;

typedef struct meter {
    nb_activations *out;
    sums *sums; /* [n] */
    size_t cap;
    nb_map index; /* a module's name, the model's own, to its place */
    float *values;
    size_t values_cap;
} meter;

static bool usable(float multiplier)
{
    return isfinite(multiplier) && multiplier >= FLT_MIN && isfinite(1 / multiplier);
}

/* The place of a linear, made when it is met first. False: no memory. */
static bool place_of(meter *m, const nb_linear *l, size_t *at)
{
    nb_activations *a = m->out;
    uint32_t found;
    if (nb_map_get(&m->index, l->module, strlen(l->module), &found)) {
        *at = found;
        return true;
    }
    if (a->n == m->cap) {
        const size_t cap = m->cap ? 2 * m->cap : 64;
        nb_activation *items = realloc(a->items, cap * sizeof *items);
        if (items) a->items = items;
        sums *s = items ? realloc(m->sums, cap * sizeof *s) : NULL;
        if (!s) return false;
        m->sums = s;
        m->cap = cap;
    }
    a->items[a->n] = (nb_activation){.module = strdup(l->module), .multiplier = (double)l->input_multiplier};
    m->sums[a->n] = (sums){0};
    if (!a->items[a->n].module) return false;
    *at = a->n++;
    return nb_map_put(&m->index, l->module, strlen(l->module), (uint32_t)*at, NULL);
}

static bool reserve(meter *m, size_t n)
{
    if (n <= m->values_cap) return true;
    float *p = malloc(n * sizeof *p);
    if (!p) return false;
    free(m->values);
    m->values = p;
    m->values_cap = n;
    return true;
}

static void read_rows(nb_exec *x, const nb_tensor *from, const nb_tap *t, size_t divide, size_t first,
                      size_t n, size_t cols, float *out)
{
    if (!t->pick) x->ops->tensor_read(x, from, first, n, out);
    for (size_t i = 0; t->pick && i < n; i++)
        x->ops->tensor_read(x, from, t->pick[first + i] / divide, 1, out + i * cols);
}

/* The sum of squared differences between want and the linear's output for `in`, in another arithmetic. out: room for it. */
static double loss(nb_exec *x, nb_arith arith, const nb_linear *l, const nb_tensor *in, nb_tensor *y,
                   size_t rows, const float *want, float *out)
{
    const nb_arith before = x->arith;
    double sum = 0;
    x->arith = arith;
    x->ops->linear(x, &(nb_linear_call){.w = &l, .count = 1, .rows = rows, .x = in, .y = &y});
    x->arith = before;
    if (x->err.status != NB_OK) return 0;
    x->ops->tensor_read(x, y, 0, rows, out);
    for (size_t i = 0; i < rows * l->n; i++) {
        const double d = (double)out[i] - (double)want[i];
        sum += d * d;
    }
    return sum;
}

/* Rows [first, first + n) of a tap. */
static void compare(meter *m, nb_exec *x, const nb_tap *t, size_t at, size_t first, size_t n)
{
    const nb_linear *l = t->linear;
    const size_t cols = l->k * l->blocks;
    float *in = m->values, *want = in + n * cols, *got = want + n * l->n;
    nb_activation *a = &m->out->items[at];
    sums *s = &m->sums[at];
    nb_tensor *tx = NULL, *ty = NULL;
    uint64_t odd;
    read_rows(x, t->in, t, t->divide, first, n, cols, in);
    read_rows(x, t->out, t, 1, first, n, l->n, want);
    a->amax = fmax(a->amax, nb_trace_amax(in, n * cols, &odd));
    if (odd) {
        nb_fail(&x->err, NB_ERR_FORMAT, "the input of %s is not finite", l->module);
        nb_error_remedy(&x->err, "find the cause first: nibble trace");
        return;
    }
    const nb_quant_loss q = nb_trace_quant_loss(in, n, cols, l->input_gs);
    if (x->ops->tensor_new(x, false, n, cols, &tx, &x->err) == NB_OK &&
        x->ops->tensor_new(x, false, n, l->n, &ty, &x->err) == NB_OK) {
        x->ops->tensor_write(x, tx, in);
        s->best += loss(x, NB_ARITH_W4A4_DYNAMIC, l, tx, ty, n, want, got);
        s->error += loss(x, NB_ARITH_W4A4, l, tx, ty, n, want, got);
        s->cos += nb_trace_agree(got, want, n, l->n).cos * (double)n;
    }
    x->ops->tensor_free(tx);
    x->ops->tensor_free(ty);
    for (size_t i = 0; i < n * l->n; i++) s->signal += (double)want[i] * (double)want[i];
    s->clipped += q.clipped * (double)n;
    s->flushed += q.flushed * (double)n;
    s->saturated += q.saturated * (double)n;
    s->rows += (double)n;
    a->rows += n * l->blocks;
}

static void watch(void *ctx, nb_exec *x, const nb_tap *t)
{
    meter *m = ctx;
    const nb_linear *l = t->linear;
    size_t at, each, all;
    if (!l || !l->fp4_input || !l->has_input || !usable(l->input_multiplier)) return;
    const size_t step = t->rows < ROWS ? t->rows : ROWS;
    if (!place_of(m, l, &at) || !nb_mul(l->n, 2, &each) || !nb_add(l->k * l->blocks, each, &each) ||
        !nb_mul(each, step * sizeof *m->values, &all) || !reserve(m, all / sizeof *m->values)) {
        nb_fail_nomem(&x->err, "activations", step * l->n * sizeof *m->values);
        return;
    }
    x->tap = NULL; /* the products made here are nobody's */
    for (size_t first = 0; first < t->rows && x->err.status == NB_OK; first += step)
        compare(m, x, t, at, first, t->rows - first < step ? t->rows - first : step);
    x->tap = watch;
}

static double decibels(double signal, double error)
{
    return error == 0 ? INFINITY : 10 * log10(signal / error);
}

static void finish(meter *m)
{
    for (size_t i = 0; i < m->out->n; i++) {
        nb_activation *a = &m->out->items[i];
        const sums *s = &m->sums[i];
        a->cos = s->cos / s->rows;
        a->snr_db = decibels(s->signal, s->error);
        a->best_db = decibels(s->signal, s->best);
        a->clipped = s->clipped / s->rows;
        a->flushed = s->flushed / s->rows;
        a->saturated = s->saturated / s->rows;
        nb_trace_row row = {.rows = (size_t)a->rows,
                            .weight_ratio = 1,
                            .cos_local = a->cos,
                            .snr_local_db = a->snr_db,
                            .snr_best_db = a->best_db,
                            .saturated = a->saturated,
                            .flushed = a->flushed};
        nb_trace_judge(&row, true);
        a->bad = row.bad;
    }
}

nb_status nb_activations_measure(const char *dir, const char *data, size_t threads, const nb_sink *sink,
                                 nb_activations *out, nb_error *err)
{
    const nb_engine_options eo = {.threads = threads, .arith = NB_ARITH_EXACT};
    meter m = {.out = out};
    nb_prompts texts = {0};
    nb_engine *e = NULL;
    nb_error why = {.offset = -1};
    bool of_data;
    *out = (nb_activations){.asked = true};
    nb_status s = nb_texts_read(dir, data, &of_data, &texts, &why);
    if (s == NB_OK) s = nb_texts_engine(dir, &texts, 0, &eo, sink, &e, &why);
    if (s == NB_OK) s = nb_texts_run(e, &texts, NB_ARITH_EXACT, watch, &m, sink, &why);
    if (s == NB_OK) finish(&m);
    out->texts = texts.n;
    out->tokens = texts.tokens;
    nb_engine_free(e);
    nb_prompts_free(&texts);
    nb_map_free(&m.index);
    free(m.sums);
    free(m.values);
    if (s == NB_OK) return NB_OK;
    if (s == NB_ERR_NOMEM || of_data) {
        nb_activations_free(out);
        if (err) *err = why;
        return s;
    }
    out->why = why; /* the folder's own fault: a finding */
    return NB_OK;
}

void nb_activations_free(nb_activations *a)
{
    for (size_t i = 0; i < a->n; i++) free(a->items[i].module);
    free(a->items);
    *a = (nb_activations){0};
}
