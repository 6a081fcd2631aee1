/* The ladder: finds the first operator of a row that is not finite, and takes linears down rung by rung. */
#include "engine/guard.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/guard_internal.h"

#define MAX_COUNTS 1024 /* culprits and rungs that are told apart; later ones join the last entry */

typedef struct entry {
    nb_guard_count what; /* written before n says that it is there; count below */
    _Atomic uint64_t count;
} entry;

struct nb_guard {
    nb_engine *e;
    const nb_sink *sink;
    nb_patient *patients;
    entry *counts; /* [MAX_COUNTS] */
    _Atomic size_t n_counts;
};

static const char *const rung_names[] = {"failed", "clean", "dynamic", "exact", "bf16"};

nb_status nb_guard_new(nb_engine *e, const nb_sink *sink, nb_guard **out, nb_error *err)
{
    nb_guard *g = calloc(1, sizeof *g);
    if (g) g->counts = calloc(MAX_COUNTS, sizeof *g->counts);
    if (!g || !g->counts) {
        free(g);
        return nb_fail_nomem(err, "the finite guard", MAX_COUNTS * sizeof(entry));
    }
    g->e = e;
    g->sink = sink;
    *out = g;
    return NB_OK;
}

void nb_guard_free(nb_guard *g)
{
    if (!g) return;
    const nb_ops *ops = nb_engine_model(g->e)->x->ops;
    for (nb_patient *p = g->patients, *next; p; p = next) {
        next = p->next;
        ops->weight_free(p->cleaned);
        ops->weight_free(p->bf16);
        free(p);
    }
    free(g->counts);
    free(g);
}

void nb_heal_free(nb_heal *h)
{
    free(h->list);
    free(h->step);
    *h = (nb_heal){0};
}

/* How many entries hold for a token. */
static size_t in_force(const nb_heal *h, size_t token)
{
    size_t n = h->n;
    while (n > 0 && h->step[n - 1].from > token) n--;
    return n;
}

size_t nb_heal_span(const nb_heal *h, size_t from, size_t n)
{
    size_t next = in_force(h, from);
    return next < h->n && h->step[next].from - from < n ? h->step[next].from - from : n;
}

nb_status nb_guard_step(nb_guard *g, const nb_heal *h, const nb_step_part *part, const nb_step_out *out,
                        nb_error *err)
{
    nb_exec *x = nb_engine_model(g->e)->x;
    x->overrides = h->list;
    x->n_overrides = in_force(h, nb_seq_length(g->e, part->seq));
    nb_status s = nb_engine_step(g->e, part, 1, out, err);
    x->overrides = NULL;
    x->n_overrides = 0;
    return s;
}

/* ---- diagnosis ---- */

typedef struct diagnosis {
    nb_culprit first;
    const nb_tensor *site[3]; /* parameters of the last mhc_pre: mhc_post uses what it made of them */
    size_t vocab;
    bool bad_logits;
} diagnosis;

static void watch(void *ctx, nb_exec *x, const nb_tap *t)
{
    diagnosis *d = ctx;
    nb_culprit *c = &d->first;
    if (c->op) return;
    if (x->bad && x->bad->op) { /* it went into the cache between this operator and the one before */
        *c = (nb_culprit){
            .op = x->bad->op, .layer = x->bad->layer, .param = {x->bad->param}, .token = x->rows.token[0]};
        return;
    }
    if (strcmp(t->op, "mhc_pre") == 0) memcpy((void *)d->site, (const void *)t->param, sizeof d->site);
    uint8_t bad = 0;
    for (size_t i = 0; i < t->rows && !bad; i++) x->ops->finite(x, t->out, t->pick ? t->pick[i] : i, 1, &bad);
    if (!bad) return;
    *c = (nb_culprit){.op = t->op, .layer = t->layer, .linear = t->linear, .token = x->rows.token[0]};
    bool post = strcmp(t->op, "mhc_post") == 0;
    for (size_t i = 0; i < 3; i++) c->param[i] = post ? d->site[i] : t->param[i];
}

/* What the sampler would refuse: -inf alone is legal. */
static void look_at_logits(void *ctx, const nb_logit_row *rows, size_t n, const float *logits)
{
    diagnosis *d = ctx;
    for (size_t i = 0; i < d->vocab; i++) d->bad_logits |= isnan(logits[i]) || logits[i] == INFINITY;
}

/* Runs the token under h and says whether it is finite; leaves nothing pending. */
static nb_status diagnose(nb_guard *g, const nb_step_part *part, const nb_heal *h, nb_culprit *out,
                          bool *finite, nb_error *err)
{
    const nb_model *m = nb_engine_model(g->e);
    diagnosis d = {.vocab = m->vocab};
    nb_step_out o = {.tile = look_at_logits, .ctx = &d, .check = true};
    m->x->tap = watch;
    m->x->tap_ctx = &d;
    nb_status s = nb_guard_step(g, h, part, &o, err);
    m->x->tap = NULL;
    m->x->tap_ctx = NULL;
    if (s != NB_OK) return s;
    *finite = nb_step_bad(g->e, 0) == part->n && !d.bad_logits;
    *out = d.first;
    nb_seq_commit(g->e, part->seq, 0);
    return NB_OK;
}

/* ---- the ladder ---- */

static nb_status patient_of(nb_guard *g, const nb_culprit *c, nb_patient **out, nb_error *err)
{
    const nb_model *m = nb_engine_model(g->e);
    for (nb_patient *p = g->patients; p; p = p->next) {
        if (p->linear != c->linear) continue;
        *out = p;
        return NB_OK;
    }
    nb_patient *p = calloc(1, sizeof *p);
    if (!p) return nb_fail_nomem(err, "the finite guard", sizeof *p);
    p->linear = c->linear;
    p->src = *nb_guard_source(m, c->linear, c->layer);
    nb_status s = nb_guard_examine(m, p, err);
    if (s != NB_OK) {
        free(p);
        return s;
    }
    p->next = g->patients;
    g->patients = p;
    *out = p;
    return NB_OK;
}

/* How the arithmetic makes inputs. */
static bool quantises_input(const nb_model *m, const nb_linear *l)
{
    return l->fp4_input && (m->x->arith == NB_ARITH_W4A4 || m->x->arith == NB_ARITH_W4A4_DYNAMIC);
}

static bool rounds_input(const nb_model *m)
{
    return m->x->arith == NB_ARITH_BF16 || m->x->arith == NB_ARITH_INT8;
}

static bool can_change(const nb_model *m, const nb_patient *p, nb_rung r)
{
    const nb_linear *l = p->linear;
    bool quantised = l->format == NB_FMT_NVFP4 || l->format == NB_FMT_MXFP4 || l->format == NB_FMT_FP8;
    if (p->bad_row >= 0) return false;
    switch (r) {
    case NB_RUNG_CLEAN: return p->nan_bytes > 0;
    case NB_RUNG_DYNAMIC: return quantises_input(m, l) && m->x->arith == NB_ARITH_W4A4;
    case NB_RUNG_EXACT: return quantises_input(m, l) || (quantised && rounds_input(m));
    case NB_RUNG_BF16: return quantised;
    default: return false;
    }
}

static nb_status take_rung(nb_guard *g, nb_patient *p, nb_rung r, nb_linear *as, nb_error *err)
{
    const nb_model *m = nb_engine_model(g->e);
    nb_status s = NB_OK;
    nb_linear_src src = p->src;
    if (r == NB_RUNG_CLEAN) {
        if (!p->cleaned) s = nb_model_pack(m, p->linear, &src, &p->cleaned, err);
        as->w = p->cleaned;
    } else if (r == NB_RUNG_BF16) {
        src.to_bf16 = true;
        if (!p->bf16) s = nb_model_pack(m, p->linear, &src, &p->bf16, err);
        as->w = p->bf16;
        as->format = NB_FMT_BF16;
        as->fp4_input = false;
        as->input = NB_INPUT_BF16;
    } else {
        as->input = r == NB_RUNG_DYNAMIC ? NB_INPUT_DYNAMIC : NB_INPUT_PLAIN;
    }
    return s;
}

/* The sequence's entry for the culprit from token `from` on, which begins as what held before. */
static nb_status entry_of(nb_heal *h, const nb_culprit *c, size_t from, size_t *out, nb_error *err)
{
    size_t last = h->n;
    while (last > 0 && h->list[last - 1].of != c->linear) last--;
    *out = last - 1;
    if (last && h->step[last - 1].from == from) return NB_OK;
    if (h->n == h->cap) {
        size_t cap = h->cap ? 2 * h->cap : 8;
        nb_override *list = realloc(h->list, cap * sizeof *list);
        if (list) h->list = list;
        nb_heal_step *step = realloc(h->step, cap * sizeof *step);
        if (step) h->step = step;
        if (!list || !step) return nb_fail_nomem(err, "a sequence's overrides", cap * sizeof *list);
        h->cap = cap;
    }
    *out = h->n++;
    if (last) {
        h->list[*out] = h->list[last - 1];
        h->step[*out] = h->step[last - 1];
    } else {
        h->list[*out] = (nb_override){c->linear, *c->linear};
        h->list[*out].as.w = NULL;
        h->step[*out] = (nb_heal_step){NB_RUNG_NONE, c->layer, 0};
    }
    h->step[*out].from = from;
    return NB_OK;
}

static void count(nb_guard *g, int layer, const char *op, const char *module, nb_rung r, const char *line)
{
    size_t n = atomic_load_explicit(&g->n_counts, memory_order_relaxed), i = 0;
    nb_guard_count what = {.layer = layer};
    snprintf(what.operator_name, sizeof what.operator_name, "%s", op);
    snprintf(what.module, sizeof what.module, "%s", module);
    snprintf(what.rung, sizeof what.rung, "%s", rung_names[r]);
    for (; i < n; i++) {
        const nb_guard_count *w = &g->counts[i].what;
        if (w->layer == layer && strcmp(w->module, what.module) == 0 && strcmp(w->rung, what.rung) == 0 &&
            strcmp(w->operator_name, what.operator_name) == 0)
            break;
    }
    if (i == MAX_COUNTS) i--;
    if (i == n) {
        g->counts[i].what = what;
        atomic_store_explicit(&g->n_counts, n + 1, memory_order_release);
        nb_log(g->sink, r == NB_RUNG_NONE ? NB_LOG_ERROR : NB_LOG_WARN, "%s", line);
    }
    atomic_fetch_add_explicit(&g->counts[i].count, 1, memory_order_relaxed);
}

size_t nb_guard_read(const nb_guard *g, nb_guard_count *out, size_t cap)
{
    size_t n = atomic_load_explicit(&g->n_counts, memory_order_acquire);
    for (size_t i = 0; i < n && i < cap; i++) {
        out[i] = g->counts[i].what;
        out[i].count = atomic_load_explicit(&g->counts[i].count, memory_order_relaxed);
    }
    return n;
}

/* Nothing helps: names the culprit, counts and logs it. */
static nb_status give_up(nb_guard *g, const nb_culprit *c, const nb_patient *p, nb_rung reached,
                         nb_error *err)
{
    const nb_model *m = nb_engine_model(g->e);
    nb_error local;
    char tried[64] = "", line[1280];
    for (int r = NB_RUNG_CLEAN; p && r <= (int)reached; r++) {
        if (!can_change(m, p, (nb_rung)r)) continue;
        size_t at = strlen(tried);
        snprintf(tried + at, sizeof tried - at, "%s%s", at ? ", " : "", rung_names[r]);
    }
    nb_guard_name(m, c, p, tried, &local);
    nb_error_format(&local, line, sizeof line);
    count(g, c->layer, c->op ? c->op : "unknown", c->linear ? c->linear->module : local.tensor, NB_RUNG_NONE,
          line);
    if (err) *err = local;
    return NB_ERR_FORMAT;
}

/* The row is finite: each linear that took a rung for it counts with the one it came to. */
static void tell_healed(nb_guard *g, const nb_heal *h, size_t n_before)
{
    char line[512];
    for (size_t i = n_before; i < h->n; i++) {
        const char *module = h->list[i].of->module;
        snprintf(line, sizeof line,
                 "guard: %s gave values that are not finite; healed for the request concerned by rung %s; "
                 "`nibble check` says what is wrong with it",
                 module, rung_names[h->step[i].rung]);
        count(g, h->step[i].layer, "linear", module, h->step[i].rung, line);
    }
}

nb_status nb_guard_heal(nb_guard *g, const nb_step_part *part, nb_heal *h, nb_error *err)
{
    const nb_model *m = nb_engine_model(g->e);
    const size_t from = nb_seq_length(g->e, part->seq), n_before = h->n;
    nb_status s;
    for (;;) { /* every round takes some linear a rung down, and there are four */
        nb_culprit c = {0};
        nb_patient *p = NULL;
        bool finite;
        size_t i;
        if ((s = diagnose(g, part, h, &c, &finite, err))) break;
        if (finite) {
            tell_healed(g, h, n_before);
            break;
        }
        if (!c.linear) {
            s = give_up(g, &c, NULL, NB_RUNG_NONE, err);
            break;
        }
        if ((s = patient_of(g, &c, &p, err)) || (s = entry_of(h, &c, from, &i, err))) break;
        int r = (int)h->step[i].rung + 1;
        while (r <= NB_RUNG_BF16 && !can_change(m, p, (nb_rung)r)) r++;
        if (r > NB_RUNG_BF16) {
            s = give_up(g, &c, p, h->step[i].rung, err);
            break;
        }
        if ((s = take_rung(g, p, (nb_rung)r, &h->list[i].as, err))) break;
        h->step[i].rung = (nb_rung)r;
    }
    return s;
}
