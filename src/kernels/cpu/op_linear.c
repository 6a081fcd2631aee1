/*
 * The one linear operator. What an arithmetic does to the inputs happens here and nowhere else: the inputs are made once per
 * distinct activation scale, padded with zeros to the packed width, and every format then runs the same kernel. For FP4 weights a table
 * may have a form of its own for values that BF16 holds.
 *
 *     exact          x
 *     bf16           x rounded to BF16, for quantised weights
 *     int8           int8 with a scale per 16 (int8.h), for FP4 weights, which have a kernel of their own; FP8 as bf16
 *     w4a4           E2M1 code * E4M3 block scale of the NVFP4 quantiser, for NVFP4 weights; 1/gs is applied to the sum
 *     w4a4-dynamic   the same with gs from the row itself
 */
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/exec.h"
#include "kernels/cpu/fixed16.h"
#include "kernels/cpu/int8.h"
#include "numerics/formats.h"
#include "numerics/nvfp4.h"

typedef enum input_kind { IN_PLAIN, IN_BF16, IN_INT8, IN_STATIC, IN_DYNAMIC } input_kind;

/* What runs where the model calls l. */
static const nb_linear *in_force(const nb_exec *x, const nb_linear *l)
{
    for (size_t i = x->n_overrides; i-- > 0;)
        if (x->overrides[i].of == l) return &x->overrides[i].as;
    return l;
}

static const nb_weight *weight_in_force(const nb_exec *x, const nb_linear *l)
{
    const nb_linear *as = in_force(x, l);
    return as->w ? as->w : l->w;
}

static const nb_packed *weight_of(const nb_exec *x, const nb_linear *l)
{
    return weight_in_force(x, l)->block;
}

static input_kind input_of(const nb_exec *x, const nb_linear *l)
{
    switch (l->input) {
    case NB_INPUT_PLAIN: return IN_PLAIN;
    case NB_INPUT_BF16: return IN_BF16;
    case NB_INPUT_DYNAMIC: return IN_DYNAMIC;
    case NB_INPUT_ARITH: break;
    }
    bool fp4 = l->format == NB_FMT_NVFP4 || l->format == NB_FMT_MXFP4;
    bool quantised = fp4 || l->format == NB_FMT_FP8;
    switch (x->arith) {
    case NB_ARITH_INT8:
        if (fp4) return IN_INT8;
        return quantised ? IN_BF16 : IN_PLAIN;
    case NB_ARITH_BF16: return quantised ? IN_BF16 : IN_PLAIN;
    case NB_ARITH_W4A4: return l->fp4_input ? IN_STATIC : IN_PLAIN;
    case NB_ARITH_W4A4_DYNAMIC: return l->fp4_input ? IN_DYNAMIC : IN_PLAIN;
    default: return IN_PLAIN;
    }
}

typedef void (*prepare_fn)(const float *x, size_t k, size_t k_pad, float *row);

/* How the table puts l's input into a form of its own; NULL where it takes floats. */
static prepare_fn prepare_of(const nb_exec *x, const nb_linear *l)
{
    input_kind kind = input_of(x, l);
    bool fp4 = l->format == NB_FMT_NVFP4 || l->format == NB_FMT_MXFP4;
    return fp4 && kind != IN_PLAIN && kind != IN_INT8 ? nb_cpu_of((nb_exec *)x)->k->prepare_bf16 : NULL;
}

/* Makes the kernel's input for rows of k values at src (ld apart), each optionally picked by `pick`. */
typedef struct input_job {
    const nb_kernels *kernels;
    const float *src;
    size_t ld, k, k_pad;
    const uint32_t *pick; /* row r reads src row pick[r] / divide; NULL: row r */
    size_t divide;
    input_kind kind;
    prepare_fn prepare; /* or NULL */
    bool bf16;          /* the quantiser's input is rounded first */
    nb_act_kernel kernel;
    bool saturate;
    float gs, multiplier; /* the static scale, both ways */
    float *dst, *scale;
} input_job;

static void input_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const input_job *j = ctx;
    for (size_t r = begin; r < end; r++) {
        const float *s = j->src + (j->pick ? j->pick[r] / j->divide : r) * j->ld;
        float *d = j->dst + r * NB_ROW_FLOATS(j->k_pad);
        float gs = j->gs, multiplier = j->multiplier;
        switch (j->kind) {
        case IN_BF16:
            if (j->prepare) {
                j->prepare(s, j->k, j->k_pad, d);
                continue;
            }
            for (size_t i = 0; i < j->k; i++) d[i] = nb_bf16_round(s[i]);
            break;
        case IN_DYNAMIC:
        case IN_STATIC:
            for (size_t i = 0; i < j->k; i++) d[i] = j->bf16 ? nb_bf16_round(s[i]) : s[i];
            if (j->kind == IN_DYNAMIC) {
                /* of the row that the quantiser gets: rounding may have raised its largest */
                gs = nb_nvfp4_row_scale(d, j->k);
                multiplier = 1.0f / gs;
            }
            nb_nvfp4_quantise_row(d, j->k, gs, j->kernel, j->saturate, d);
            j->scale[r] = multiplier;
            if (j->prepare) {
                j->prepare(d, j->k, j->k_pad, d);
                continue;
            }
            break;
        case IN_INT8: j->kernels->quantise_i8(s, j->k, j->k_pad, d); continue;
        case IN_PLAIN: memcpy(d, s, j->k * sizeof *d); break;
        }
        memset(d + j->k, 0, (j->k_pad - j->k) * sizeof *d);
    }
}

typedef struct input {
    const float *x;
    size_t ld;
    const float *scale; /* per row, or NULL */
    input_kind kind;
} input;

/* Panels [p0, p1) of w for rows of a kind at x. */
static void multiply(const nb_kernels *k, const nb_packed *w, input_kind kind, const float *x, size_t ld,
                     size_t rows, const float *scale, float *y, size_t ldy, size_t p0, size_t p1)
{
    bool fp4 = w->format == NB_FMT_NVFP4 || w->format == NB_FMT_MXFP4;
    if (kind == IN_INT8)
        k->linear_i8(w, x, ld, rows, y, ldy, p0, p1);
    else if (kind != IN_PLAIN && fp4) /* BF16 holds an E2M1 code times an E4M3 scale */
        k->linear_bf16(w, x, ld, rows, scale, y, ldy, p0, p1);
    else
        k->linear(w, x, ld, rows, scale, y, ldy, p0, p1);
}

/* The static scale that w4a4 needs; its absence is an error that names the linear. */
static bool need_scale(nb_exec *x, const nb_linear *l)
{
    if (input_of(x, l) != IN_STATIC || l->has_input) return true;
    nb_fail(&x->err, NB_ERR_MISSING,
            "arithmetic w4a4 needs this linear's input scale (input_scale or input_global_scale), and the "
            "checkpoint stores none");
    nb_error_at(&x->err, NULL, l->module, -1);
    nb_error_remedy(&x->err, "use --arith w4a4-dynamic, bf16 or exact");
    return false;
}

/* What the arithmetic and the linear say of the inputs. */
static void how_input(input_job *j, const nb_exec *x, const nb_linear *l)
{
    j->kernels = nb_cpu_of((nb_exec *)x)->k;
    j->kind = input_of(x, l);
    j->prepare = prepare_of(x, l);
    j->bf16 = x->quant_bf16;
    j->kernel = x->act_kernel;
    j->saturate = !x->cast_nosat;
    j->gs = l->input_gs;
    j->multiplier = l->input_multiplier;
}

/* True where rows of x are the kernels' input as they are. */
static bool direct(const nb_exec *x, const nb_linear *l, const nb_packed *w)
{
    return input_of(x, l) == IN_PLAIN && w->k == w->k_pad;
}

/* Input for rows of k columns at src; what has to be made begins at row `at` of the work memory. */
static input make_input(nb_exec *x, const nb_linear *l, const nb_packed *w, const float *src, size_t ld,
                        size_t rows, size_t at)
{
    nb_cpu_exec *c = nb_cpu_of(x);
    input_kind kind = input_of(x, l);
    if (direct(x, l, w)) return (input){src, ld, NULL, kind};
    input_job j = {.src = src,
                   .ld = ld,
                   .k = w->k,
                   .k_pad = w->k_pad,
                   .divide = 1,
                   .dst = c->xin + at * c->xin_floats,
                   .scale = c->xscale + at};
    how_input(&j, x, l);
    nb_cpu_rows(x, rows, w->k, input_rows, &j);
    return (input){j.dst, NB_ROW_FLOATS(w->k_pad), kind >= IN_STATIC ? j.scale : NULL, kind};
}

static bool same_input(const nb_exec *x, const nb_linear *a, const nb_linear *b)
{
    input_kind k = input_of(x, a);
    return k == input_of(x, b) && prepare_of(x, a) == prepare_of(x, b) &&
           (k != IN_STATIC || (nb_f32_bits(a->input_gs) == nb_f32_bits(b->input_gs) &&
                               nb_f32_bits(a->input_multiplier) == nb_f32_bits(b->input_multiplier)));
}

/* A product: the rows of one input by all panels of one weight. */
typedef struct part {
    const nb_packed *w;
    input in;
    size_t rows;
    float *y;
    size_t ldy;
    const uint32_t *order; /* row i of the input gives row order[i] of y; NULL: row i */
} part;

/* Products that one range of work is made of: the panels of all of them. */
typedef struct parts_job {
    nb_exec *x;
    const part *parts;
    size_t count;
} parts_job;

/* Panels [p0, p1) for rows that do not stand together in y. */
static void scattered(const parts_job *j, const part *a, size_t thread, size_t p0, size_t p1)
{
    nb_cpu_exec *c = nb_cpu_of(j->x);
    float *out = c->yout + thread * NB_EXPERT_ROWS * c->expert_n;
    const size_t c0 = p0 * NB_PANEL, c1 = nb_smaller(p1 * NB_PANEL, a->w->n);
    for (size_t r = 0; r < a->rows; r += NB_EXPERT_ROWS) {
        const size_t rows = nb_smaller(a->rows - r, NB_EXPERT_ROWS);
        multiply(c->k, a->w, a->in.kind, a->in.x + r * a->in.ld, a->in.ld, rows,
                 a->in.scale ? a->in.scale + r : NULL, out, a->ldy, p0, p1);
        for (size_t i = 0; i < rows; i++)
            memcpy(a->y + a->order[r + i] * a->ldy + c0, out + i * a->ldy + c0, (c1 - c0) * sizeof *out);
    }
}

static void part_panels(void *ctx, size_t thread, size_t begin, size_t end)
{
    const parts_job *j = ctx;
    size_t at = 0;
    for (const part *a = j->parts; a < j->parts + j->count && at < end; at += a->w->panels, a++) {
        const size_t p0 = begin > at ? begin - at : 0, p1 = nb_smaller(end - at, a->w->panels);
        if (p0 >= p1) continue;
        if (a->order)
            scattered(j, a, thread, p0, p1);
        else
            multiply(nb_cpu_of(j->x)->k, a->w, a->in.kind, a->in.x, a->in.ld, a->rows, a->in.scale, a->y,
                     a->ldy, p0, p1);
    }
}

/* A step of few rows reads weights at the speed of memory, and a thread that shares its core falls behind: the others take over. Many rows
 * are copied for each range, and stay with the thread that packed their weights. */
static void run_parts(nb_exec *x, const part *parts, size_t count, bool few)
{
    enum { PIECES = 32 };
    parts_job j = {x, parts, count};
    size_t panels = 0;
    for (size_t i = 0; i < count; i++) panels += parts[i].w->panels;
    size_t piece =
        nb_round_up(nb_ceil_div(panels, nb_pool_threads(x->pool) * PIECES), 2); /* kernels like pairs */
    if (few)
        nb_pool_share(x->pool, panels, piece, part_panels, &j);
    else
        nb_pool_run(x->pool, panels, 1, part_panels, &j);
}

#define MAX_GROUP 16

/* The linears of a call from `from` on that can be one range of work, as parts; returns their number, 0 after an error. Their inputs are the
 * same or no work; and of many rows, which the threads take in equal parts, all are of one kind. Inputs are made from row `at` of the work
 * memory on. */
static size_t dense_parts(nb_exec *x, const nb_linear_call *c, size_t from, size_t rows, size_t at,
                          part *parts)
{
    const nb_linear *first = in_force(x, c->w[from]), *made = NULL;
    input in = {0};
    size_t n = 0;
    for (; n < MAX_GROUP && from + n < c->count; n++) {
        const nb_linear *l = in_force(x, c->w[from + n]);
        const nb_packed *w = weight_of(x, c->w[from + n]);
        const bool as_it_is = direct(x, l, w);
        if (rows > NB_FEW_ROWS && !same_input(x, l, first)) break;
        if (!as_it_is && made && !same_input(x, l, made)) break;
        if (!need_scale(x, l)) return 0;
        if (!as_it_is && !made) {
            in = make_input(x, l, w, c->x->f, c->x->cols, rows, at);
            made = l;
        }
        parts[n] = (part){w,
                          as_it_is ? make_input(x, l, w, c->x->f, c->x->cols, rows, at) : in,
                          rows,
                          c->y[from + n]->f,
                          c->y[from + n]->cols,
                          NULL};
    }
    return n;
}

static void dense(nb_exec *x, const nb_linear_call *c, size_t from, size_t rows)
{
    part parts[MAX_GROUP];
    for (size_t n; from < c->count; from += n) {
        if (!(n = dense_parts(x, c, from, rows, 0, parts))) return;
        run_parts(x, parts, n, rows <= NB_FEW_ROWS);
    }
}

static void blocks(nb_exec *x, const nb_linear_call *c, size_t rows)
{
    const nb_linear *l = in_force(x, c->w[0]);
    part parts[MAX_GROUP];
    if (!need_scale(x, l)) return;
    for (size_t b = 0; b < l->blocks;) {
        size_t n = 0;
        do {
            const nb_packed *w = weight_of(x, c->w[0]) + b;
            const input in = make_input(x, l, w, c->x->f + b * l->k, c->x->cols, rows, n * rows);
            parts[n++] = (part){w, in, rows, c->y[0]->f + b * w->n, c->y[0]->cols, NULL};
        } while (++b < l->blocks && n < MAX_GROUP && (n + 1) * rows <= nb_cpu_of(x)->xin_rows);
        run_parts(x, parts, n, rows <= NB_FEW_ROWS);
    }
}

/* Blocks whose input is x itself: one range of work over the panels of all. */
typedef struct derived_job {
    const nb_kernels *k;
    const nb_packed *w;
    const float *x;
    float *y;
    size_t ldx, ldy, x_step, y_step, rows;
} derived_job;

static void derived_panels(void *ctx, size_t thread, size_t begin, size_t end)
{
    const derived_job *j = ctx;
    size_t panels = j->w->panels;
    while (begin < end) {
        size_t b = begin / panels, p0 = begin % panels;
        size_t p1 = panels - p0 < end - begin ? panels : p0 + (end - begin);
        j->k->linear(&j->w[b], j->x + b * j->x_step, j->ldx, j->rows, NULL, j->y + b * j->y_step, j->ldy, p0,
                     p1);
        begin += p1 - p0;
    }
}

void nb_cpu_derived(nb_exec *x, const nb_derived_call *c)
{
    if (x->err.status) return;
    const nb_linear plain = {.input = NB_INPUT_PLAIN};
    const nb_weight *w = weight_in_force(x, c->of)->derived[c->form];
    const bool direct = w->block->k == w->block->k_pad;
    size_t rows = x->rows.n, step = direct ? w->blocks : 1;
    for (size_t b = 0; b < w->blocks; b += step) {
        const nb_packed *p = &w->block[b];
        input in = make_input(x, &plain, p, c->x->f + b * c->x_step, c->x->cols, rows, 0);
        derived_job j = {nb_cpu_of(x)->k, p,         in.x, c->y->f + b * c->y_step, in.ld, c->y->cols,
                         c->x_step,       c->y_step, rows};
        nb_pool_run(x->pool, step * p->panels, 1, derived_panels, &j);
    }
    for (size_t i = 0; c->along && i < rows * w->blocks; i++) {
        size_t r = i / w->blocks, b = i % w->blocks;
        memcpy(c->y->f + r * c->y->cols + b * c->y_step + w->block->n,
               c->x->f + r * c->x->cols + b * c->x_step + w->block->k, c->along * sizeof(float));
    }
    nb_cpu_round(x, c->y->f, rows * c->y->cols);
    nb_cpu_tell(x, "derived", c->y, rows);
}

typedef struct back_job {
    const float *in; /* [rows][ld] as the kernels take it */
    const float *scale;
    size_t k, ld, k_pad;
    bool i8;
    nb_bf16_form form;
    float *y;
} back_job;

/* The values that a row of the kernels' input stands for. */
static void back_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const back_job *j = ctx;
    for (size_t r = begin; r < end; r++) {
        const float *s = j->in + r * j->ld;
        float *y = j->y + r * j->k, scale = j->scale ? j->scale[r] : 1.0f;
        for (size_t i = 0; i < j->k; i++) {
            if (j->i8)
                y[i] = nb_i8_value(s, j->k_pad, i);
            else if (j->form == NB_BF16_FIXED)
                y[i] = nb_fixed16_value(s, i) * scale;
            else
                y[i] = (j->form == NB_BF16_HALVES ? nb_halves_value(s, i) : s[i]) * scale;
        }
    }
}

void nb_cpu_as_input(nb_exec *x, const nb_linear *l, const nb_tensor *in, nb_tensor *y)
{
    const nb_linear *as = in_force(x, l);
    size_t rows = x->rows.n;
    if (x->err.status || !need_scale(x, as)) return;
    input made = make_input(x, as, l->w->block, in->f, in->cols, rows, 0);
    back_job j = {.in = made.x,
                  .scale = made.scale,
                  .k = in->cols,
                  .ld = made.ld,
                  .k_pad = l->w->block->k_pad,
                  .i8 = made.kind == IN_INT8,
                  .form = prepare_of(x, as) ? nb_cpu_of(x)->k->bf16_form : NB_BF16_FLOATS,
                  .y = y->f};
    if (made.kind != IN_PLAIN || y != in) nb_cpu_rows(x, rows, in->cols, back_rows, &j);
    nb_cpu_tell(x, "as_input", y, rows);
}

/* Experts: (row, slot) pairs are sorted by expert once; each expert that has rows is a part. */

static void sort_by_expert(nb_cpu_exec *c, const int32_t *ids, size_t pairs, size_t n_experts)
{
    memset(c->first, 0, (n_experts + 1) * sizeof *c->first);
    for (size_t i = 0; i < pairs; i++) c->first[ids[i] + 1]++;
    for (size_t e = 0; e < n_experts; e++) c->first[e + 1] += c->first[e];
    for (size_t i = 0; i < pairs; i++) c->order[c->first[ids[i]]++] = (uint32_t)i;
    memmove(c->first + 1, c->first, n_experts * sizeof *c->first);
    c->first[0] = 0;
}

enum { TOGETHER = 2 }; /* weights of an expert that one range of work has: gate and up */

size_t nb_cpu_parts_bytes(size_t experts)
{
    return (TOGETHER * experts + MAX_GROUP) * sizeof(part);
}

/* The row of the work memory where the inputs of expert e's weight i begin. A row that goes alone to several experts which read it alike is
 * made once, for the first of them. */
static size_t input_place(nb_exec *x, const nb_linear_call *c, size_t i, size_t e)
{
    const nb_cpu_exec *cpu = nb_cpu_of(x);
    const uint32_t *first = cpu->first;
    const int32_t *ids = c->ids->i + cpu->order[first[e]] / c->slots * c->slots;
    const nb_linear *l = in_force(x, &c->w[i][e]);
    size_t least = e;
    if (c->x_per_slot || first[e + 1] - first[e] > 1) return first[e];
    for (size_t s = 0; s < c->slots; s++) {
        const size_t other = (size_t)ids[s];
        if (other < least && first[other + 1] - first[other] == 1 &&
            same_input(x, l, in_force(x, &c->w[i][other])))
            least = other;
    }
    return first[least];
}

/* Makes the inputs of weight i of all experts that have rows. */
static void expert_inputs(nb_exec *x, const nb_linear_call *c, size_t i)
{
    nb_cpu_exec *cpu = nb_cpu_of(x);
    /* a weight may differ from its siblings in format and scale */
    for (size_t e = 0; e < c->n_experts; e++) {
        const size_t r0 = cpu->first[e], rows = cpu->first[e + 1] - r0;
        if (!rows || input_place(x, c, i, e) != r0) continue;
        const nb_packed *p = weight_of(x, &c->w[i][e]);
        input_job j = {.src = c->x->f,
                       .ld = c->x->cols,
                       .k = p->k,
                       .k_pad = p->k_pad,
                       .pick = cpu->order + r0,
                       .divide = c->x_per_slot ? 1 : c->slots,
                       .dst = cpu->xin + r0 * NB_ROW_FLOATS(p->k_pad),
                       .scale = cpu->xscale + r0};
        how_input(&j, x, in_force(x, &c->w[i][e]));
        nb_cpu_rows(x, rows, p->k, input_rows, &j);
    }
}

/* Weight i of all experts that have rows, as parts whose inputs are those of weight `as`; returns their number, 0 after an error. */
static size_t expert_parts(nb_exec *x, const nb_linear_call *c, size_t i, size_t as, part *parts)
{
    const nb_cpu_exec *cpu = nb_cpu_of(x);
    size_t n = 0;
    for (size_t e = 0; e < c->n_experts; e++) {
        const size_t r0 = cpu->first[e], rows = cpu->first[e + 1] - r0;
        if (!rows) continue;
        const nb_linear *l = in_force(x, &c->w[i][e]);
        if (!need_scale(x, l)) return 0;
        const nb_packed *w = weight_of(x, &c->w[i][e]);
        const input_kind kind = input_of(x, l);
        const size_t ld = NB_ROW_FLOATS(w->k_pad), at = input_place(x, c, as, e);
        const input in = {cpu->xin + at * ld, ld, kind >= IN_STATIC ? cpu->xscale + at : NULL, kind};
        parts[n++] = (part){w, in, rows, c->y[i]->f, c->y[i]->cols, cpu->order + r0};
    }
    return n;
}

/* True when every expert that has rows reads for weight i what it reads for weight `as`. */
static bool inputs_stay(nb_exec *x, const nb_linear_call *c, size_t i, size_t as)
{
    const nb_cpu_exec *cpu = nb_cpu_of(x);
    for (size_t e = 0; i != as && e < c->n_experts; e++)
        if (cpu->first[e] != cpu->first[e + 1] &&
            !same_input(x, in_force(x, &c->w[i][e]), in_force(x, &c->w[as][e])))
            return false;
    return true;
}

/* Of c->beside what can be one range of work with the experts' last weights, and then the rest. */
static void experts(nb_exec *x, const nb_linear_call *c, size_t rows)
{
    nb_cpu_exec *cpu = nb_cpu_of(x);
    part *parts = cpu->parts;
    sort_by_expert(cpu, c->ids->i, rows * c->slots, c->n_experts);
    for (size_t i = 0, n; i < c->count; i += n) {
        size_t count = 0, beside = 0;
        expert_inputs(x, c, i);
        for (n = 0; n < TOGETHER && i + n < c->count && inputs_stay(x, c, i + n, i); n++) {
            const size_t more = expert_parts(x, c, i + n, i, parts + count);
            if (!more) return;
            count += more;
        }
        if (c->beside && i + n == c->count) {
            beside = dense_parts(x, c->beside, 0, rows, rows * c->slots, parts + count);
            if (!beside) return;
        }
        run_parts(x, parts, count + beside, rows <= NB_FEW_ROWS);
        if (beside) dense(x, c->beside, beside, rows);
    }
}

/* Tells the watcher about each weight of a finished call, experts one by one. */
static void tell(nb_exec *x, const nb_linear_call *c, size_t rows)
{
    const nb_cpu_exec *cpu = nb_cpu_of(x);
    for (size_t i = 0; i < c->count; i++) {
        nb_tap t = {.op = "linear", .layer = x->layer, .in = c->x, .out = c->y[i], .rows = rows, .divide = 1};
        for (size_t e = 0; e < (c->n_experts ? c->n_experts : 1); e++) {
            t.linear = &c->w[i][e];
            if (c->n_experts) {
                t.pick = cpu->order + cpu->first[e];
                t.rows = cpu->first[e + 1] - cpu->first[e];
                t.divide = c->x_per_slot ? 1 : c->slots;
            }
            if (t.rows) x->tap(x->tap_ctx, x, &t);
        }
    }
}

static void finish(nb_exec *x, const nb_linear_call *c, size_t rows)
{
    for (size_t i = 0; x->act_bf16 && i < c->count; i++) nb_cpu_round(x, c->y[i]->f, rows * c->y[i]->cols);
    if (x->tap && !x->err.status) tell(x, c, rows);
}

void nb_cpu_linear(nb_exec *x, const nb_linear_call *c)
{
    if (x->err.status) return;
    const size_t rows = c->rows ? c->rows : x->rows.n;
    nb_linear_call alone = *c;
    if (rows > NB_FEW_ROWS) alone.beside = NULL;
    if (c->n_experts)
        experts(x, &alone, rows);
    else if (c->w[0]->blocks > 1)
        blocks(x, c, rows);
    else
        dense(x, c, 0, rows);
    finish(x, c, rows * (c->n_experts ? c->slots : 1));
    if (alone.beside)
        finish(x, c->beside, rows);
    else if (c->beside)
        nb_cpu_linear(x, c->beside);
}

void nb_cpu_embed(nb_exec *x, const nb_linear *table, nb_tensor *y)
{
    if (x->err.status) return;
    for (size_t r = 0; r < x->rows.n; r++) {
        float *row = y->f + r * y->cols;
        nb_packed_row(weight_of(x, table), x->rows.token[r], row);
        nb_cpu_round(x, row, y->cols);
    }
    nb_cpu_tell(x, "embed", y, x->rows.n);
}
