/* Activation ranges through the engine's taps. */
#include "engine/measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/quantile.h"
#include "numerics/formats.h"

#define READ_ROWS 16 /* rows copied from the back end at a time */

struct nb_measure {
    nb_engine *e;
    const nb_model *model;
    nb_range *range;
    size_t n;
    size_t *
        first; /* [n_layers + 1][arch tensors]: where a slot's ranges begin; the last row is the global slots */
    nb_quantile *bins; /* [n]; NULL: no quantiles asked for */
    float *row;        /* [READ_ROWS][longest input] */
};

/* Slot i of a layer; layer n_layers stands for what is outside layers. */
static nb_slot *slot_of(const nb_model *m, size_t layer, size_t i)
{
    size_t n = m->cfg.arch->n_tensors;
    return layer < (size_t)m->cfg.n_layers ? &m->layers[layer * n + i] : &m->global[i];
}

/* How many linears of slot i at a layer are measured: all or none. */
static size_t measured(const nb_model *m, size_t layer, size_t i)
{
    const nb_arch *a = m->cfg.arch;
    nb_role role = a->tensors[i].role;
    bool head = role == NB_ROLE_LINEAR || role == NB_ROLE_HEAD;
    if (role == NB_ROLE_EMBED) head = slot_of(m, layer, i)->lin == nb_head_of(m);
    return head ? slot_of(m, layer, i)->n_lin : 0;
}

nb_status nb_measure_new(nb_engine *e, bool quantiles, nb_measure **out, nb_error *err)
{
    nb_measure *m = calloc(1, sizeof *m);
    if (!m) return nb_fail_nomem(err, "activation ranges", sizeof *m);
    m->e = e;
    m->model = nb_engine_model(e);
    const nb_arch *a = m->model->cfg.arch;
    size_t layers = (size_t)m->model->cfg.n_layers, widest = 0, at = 0;
    m->first = calloc((layers + 1) * a->n_tensors, sizeof *m->first);
    if (!m->first) goto nomem;
    for (size_t l = 0; l <= layers; l++) {
        for (size_t i = 0; i < a->n_tensors; i++) {
            m->first[l * a->n_tensors + i] = m->n;
            m->n += measured(m->model, l, i);
        }
    }
    m->range = calloc(m->n + 1, sizeof *m->range);
    if (quantiles) m->bins = calloc(m->n + 1, sizeof *m->bins);
    if (!m->range || (quantiles && !m->bins)) goto nomem;
    for (size_t l = 0; l <= layers; l++) {
        for (size_t i = 0; i < a->n_tensors; i++) {
            const nb_slot *slot = slot_of(m->model, l, i);
            size_t n = measured(m->model, l, i);
            for (size_t k = 0; k < n; k++, at++) {
                m->range[at] = (nb_range){.linear = &slot->lin[k],
                                          .slot = slot,
                                          .src = &slot->src[k],
                                          .layer = l < layers ? (int)l : -1,
                                          .expert = strstr(a->tensors[i].name, "{e}") != NULL,
                                          .bins = m->bins ? &m->bins[at] : NULL};
                size_t cols = slot->lin[k].k * slot->lin[k].blocks;
                if (cols > widest) widest = cols;
            }
        }
    }
    m->row = calloc(READ_ROWS * widest + 1, sizeof *m->row);
    if (!m->row) goto nomem;
    *out = m;
    return NB_OK;
nomem:
    nb_measure_free(m);
    return nb_fail_nomem(err, "activation ranges", 0);
}

void nb_measure_free(nb_measure *m)
{
    if (!m) return;
    for (size_t i = 0; m->bins && i < m->n; i++) nb_quantile_free(&m->bins[i]);
    free(m->range);
    free(m->first);
    free(m->bins);
    free(m->row);
    free(m);
}

size_t nb_measure_count(const nb_measure *m)
{
    return m->n;
}

nb_range *nb_measure_at(nb_measure *m, size_t i)
{
    return &m->range[i];
}

float nb_range_p9999(const nb_range *r)
{
    return r->filled ? r->filled_p9999 : nb_quantile_at(r->bins, r->amax, 0.9999);
}

/* The range of a linear that a tap speaks of; NULL: one that is not measured. */
static nb_range *range_of(nb_measure *m, const nb_tap *t)
{
    const nb_arch *a = m->model->cfg.arch;
    size_t layers = (size_t)m->model->cfg.n_layers;
    size_t l = t->layer < 0 || (size_t)t->layer > layers ? layers : (size_t)t->layer;
    for (size_t i = 0; i < a->n_tensors; i++) {
        const nb_slot *slot = slot_of(m->model, l, i);
        uintptr_t p = (uintptr_t)t->linear, begin = (uintptr_t)slot->lin;
        size_t n = measured(m->model, l, i);
        if (!n || p < begin || p >= begin + n * sizeof *slot->lin) continue;
        return &m->range[m->first[l * a->n_tensors + i] + (size_t)(t->linear - slot->lin)];
    }
    return NULL;
}

static void watch(void *ctx, nb_exec *x, const nb_tap *t)
{
    nb_measure *m = ctx;
    nb_range *r = t->linear ? range_of(m, t) : NULL;
    if (!r) return;
    size_t cols = r->linear->k * r->linear->blocks;
    for (size_t i = 0; i < t->rows;) {
        size_t n = t->pick ? 1 : t->rows - i < READ_ROWS ? t->rows - i : READ_ROWS;
        x->ops->tensor_read(x, t->in, t->pick ? t->pick[i] / t->divide : i, n, m->row);
        uint32_t top =
            0; /* without their signs, F32 bits order as the values do, infinity and NaN above all */
        for (size_t k = 0; k < n * cols; k++) {
            uint32_t v = nb_f32_bits(m->row[k]) & 0x7FFFFFFF;
            if (v > top) top = v;
        }
        float amax = nb_f32_from_bits(top);
        if (!isfinite(amax)) {
            nb_fail(&x->err, NB_ERR_FORMAT, "its input holds %s, so there is no range to measure",
                    isnan(amax) ? "NaN" : "infinity");
            nb_error_at(&x->err, nb_ckpt_dir(m->model->ckpt), r->linear->module, -1);
            nb_error_remedy(&x->err, "find the cause first: nibble check, nibble trace");
            return;
        }
        if (amax > r->amax) r->amax = amax;
        if (r->bins && !nb_quantile_add(r->bins, m->row, n * cols)) {
            nb_fail_nomem(&x->err, "activation ranges", 0);
            return;
        }
        i += n;
    }
    r->rows += t->rows * r->linear->blocks;
}

/* The head runs for rows whose logits someone takes. */
static void drop_logits(void *ctx, size_t part, size_t row, const float *logits)
{
}

/* Feeds texts [begin, end) side by side, max_rows tokens a step in all. */
static nb_status feed(nb_engine *e, const nb_prompts *t, size_t begin, size_t end, nb_step_part *parts,
                      nb_error *err)
{
    const nb_engine_options *lim = nb_engine_limits(e);
    nb_step_out out = {.logits = drop_logits};
    nb_status s = NB_OK;
    for (size_t i = begin; i < end && s == NB_OK; i++) s = nb_seq_open(e, &parts[i - begin].seq, err);
    for (size_t done = 0; s == NB_OK;) { /* more than once only for a text longer than a step */
        size_t n = 0, room = lim->max_rows;
        for (size_t i = begin; i < end; i++) {
            size_t len = t->ids[i].len < lim->max_context ? t->ids[i].len : lim->max_context;
            nb_step_part *p = &parts[n];
            if (done >= len || !room) continue;
            p->tokens = t->ids[i].data + done;
            p->n = len - done < room ? len - done : room;
            p->all_logits = true;
            p->known = len;
            room -= p->n;
            n++;
        }
        if (!n) break;
        if ((s = nb_engine_step(e, parts, n, &out, err))) break;
        for (size_t i = 0; i < n; i++) nb_seq_commit(e, parts[i].seq, parts[i].n);
        done += parts[0].n;
        if (end - begin > 1) break;
    }
    for (size_t i = 0; i < lim->max_seqs; i++) nb_seq_close(e, (uint32_t)i);
    return s;
}

nb_status nb_measure_run(nb_measure *m, const nb_prompts *texts, nb_arith arith, const nb_sink *sink,
                         nb_error *err)
{
    return nb_texts_run(m->e, texts, arith, watch, m, sink, err);
}

/* The end of the group of texts from `begin` that one step takes: at least one, however long. */
static size_t group_end(const nb_prompts *t, size_t begin, size_t rows, size_t seqs)
{
    size_t end = begin, taken = 0;
    do {
        taken += t->ids[end++].len;
    } while (end < t->n && end - begin < seqs && taken <= rows && t->ids[end].len <= rows - taken);
    return end;
}

size_t nb_texts_abreast(const nb_prompts *texts, size_t rows, size_t seqs)
{
    size_t most = 1;
    for (size_t i = 0, end; i < texts->n; i = end) {
        end = group_end(texts, i, rows, seqs);
        if (end - i > most) most = end - i;
    }
    return most;
}

nb_status nb_texts_run(nb_engine *e, const nb_prompts *texts, nb_arith arith, nb_tap_fn tap, void *ctx,
                       const nb_sink *sink, nb_error *err)
{
    const nb_engine_options *lim = nb_engine_limits(e);
    nb_exec *x = nb_engine_model(e)->x;
    nb_arith before = x->arith;
    uint64_t tokens = 0;
    nb_status s = NB_OK;
    nb_step_part *parts = calloc(lim->max_seqs, sizeof *parts);
    if (!parts) return nb_fail_nomem(err, "a step", lim->max_seqs * sizeof *parts);
    x->arith = arith;
    x->tap = tap;
    x->tap_ctx = ctx;
    for (size_t i = 0; s == NB_OK && i < texts->n;) {
        const size_t end = group_end(texts, i, lim->max_rows, lim->max_seqs);
        s = feed(e, texts, i, end, parts, err);
        for (; i < end; i++) tokens += texts->ids[i].len;
        if (sink && sink->progress) sink->progress(sink->ctx, "measuring tokens", tokens, texts->tokens);
    }
    x->tap = NULL;
    x->tap_ctx = NULL;
    x->arith = before;
    free(parts);
    return s;
}

nb_status nb_measure_fill(nb_measure *m, nb_error *err)
{
    for (size_t i = 0; i < m->n; i++) {
        nb_range *r = &m->range[i];
        if (r->rows) continue;
        size_t first = i - (size_t)(r->linear - r->slot->lin);
        for (size_t k = first; r->expert && k < first + r->slot->n_lin; k++) {
            const nb_range *o = &m->range[k];
            if (!o->rows) continue;
            r->filled = true;
            if (o->amax > r->amax) r->amax = o->amax;
            if (o->bins && nb_range_p9999(o) > r->filled_p9999) r->filled_p9999 = nb_range_p9999(o);
        }
        if (r->filled) continue;
        nb_fail(err, NB_ERR_MISSING, "no text gave this linear a single row%s",
                r->expert ? ", nor any other expert of its layer" : "");
        nb_error_at(err, nb_ckpt_dir(m->model->ckpt), r->linear->module, -1);
        nb_error_remedy(err, "measure with more text (calibrate --data)");
        return NB_ERR_MISSING;
    }
    return NB_OK;
}
