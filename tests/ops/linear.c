/*
 * The linear: every format over shapes that do not divide, and data made to hurt.
 *
 * Bound: against F64 on the same weights, |error| <= (blocks + 20) * 2^-24 * sum |x w|, the worst case of a sum of 16
 * products, a product with the block's scale, a sum over blocks and two factors at the end, each rounding once; two tables may
 * be twice that apart. Equal bits are asked for between one row and many, and between any two ways to split the panels.
 */
#include "ops.h"

#include "base/mem.h"
#include "kernels/cpu/fixed16.h"
#include "kernels/cpu/int8.h"
#include "numerics/formats.h"

typedef enum data {
    RANDOM,     /* healthy weights, normal activations, a scale per row */
    ALL_CODES,  /* codes count up: every code of every format, NaN and infinities of FP8, BF16 and F16 too */
    ALL_SCALES, /* every scale byte: NaN, sign bits, subnormals, E8M0's ends */
    ZERO_WEIGHTS, /* zero codes under random scales */
    ZERO_INPUT,
    HUGE_MULTIPLIER,
    TINY_MULTIPLIER,
    HUGE_INPUT,  /* about 1e30 */
    TINY_INPUT,  /* about 1e-36: products near the subnormals */
    MIXED_INPUT, /* 1e30 beside 1e-30 */
    NAN_INPUT,   /* in one row only */
    INF_INPUT,
    DATA_COUNT
} data;

static const char *const data_names[DATA_COUNT] = {
    "random",          "all codes",  "all scales", "zero weights", "zero input", "huge multiplier",
    "tiny multiplier", "huge input", "tiny input", "mixed input",  "NaN input",  "inf input"};

typedef struct problem {
    ops *o;
    nb_packed w;
    data kind;
    size_t rows, ldx, ldy;
    float *x, *row_scale, *w_rows; /* w_rows [n][k]: the dequantised weight */
} problem;

static void fill_codes(problem *p, uint8_t *codes, size_t bytes)
{
    size_t wide = p->w.format == NB_FMT_F32 ? 4 : p->w.format >= NB_FMT_BF16 ? 2 : 1;
    uint16_t next = (uint16_t)ops_random(p->o);
    for (size_t i = 0; i < bytes; i += wide) {
        float f = ops_normal(p->o);
        uint16_t h = p->w.format == NB_FMT_F16 ? nb_f16_encode(f) : nb_bf16_encode(f);
        uint8_t byte = p->w.format == NB_FMT_FP8 ? nb_e4m3_encode_sat(f * 60) : (uint8_t)ops_random(p->o);
        if (p->kind == ALL_CODES && wide < 4) byte = (uint8_t)next, h = (uint16_t)(next++ * 257u);
        if (p->kind == ZERO_WEIGHTS) byte = 0, h = 0, f = 0;
        if (wide == 4)
            memcpy(codes + i, &f, 4);
        else if (wide == 2)
            memcpy(codes + i, &h, 2);
        else
            codes[i] = byte;
    }
}

static void fill_scales(problem *p, uint8_t *scales, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float f = (float)(0.5 + ops_uniform(p->o));
        uint8_t byte = (uint8_t)(p->w.format == NB_FMT_MXFP4 ? 120 + ops_random(p->o) % 10
                                                             : 0x28 + ops_random(p->o) % 0x30);
        if (p->kind == ALL_SCALES) {
            byte = (uint8_t)(i + i / 256);
            if (p->w.format == NB_FMT_MXFP4 && byte > 150 && byte < 255)
                byte = (uint8_t)(byte - 100); /* 2^50 is enough */
        }
        if (p->w.format == NB_FMT_FP8)
            memcpy(scales + 4 * i, &f, 4);
        else
            scales[i] = byte;
    }
}

static void fill_input(problem *p)
{
    float size = p->kind == HUGE_INPUT ? 1e30f : p->kind == TINY_INPUT ? 1e-36f : 1.0f;
    for (size_t r = 0; r < p->rows; r++) {
        for (size_t k = 0; k < p->ldx; k++)
            p->x[r * p->ldx + k] = k < p->w.k && p->kind != ZERO_INPUT ? ops_normal(p->o) * size : 0;
        for (size_t k = 0; p->kind == MIXED_INPUT && k < p->w.k; k++)
            p->x[r * p->ldx + k] *= powf(10, (float)ops_below(p->o, 61) - 30);
        p->row_scale[r] = (float)(0.25 + ops_uniform(p->o));
    }
    size_t row = ops_below(p->o, p->rows), k = ops_below(p->o, p->w.k);
    if (p->kind == NAN_INPUT) p->x[row * p->ldx + k] = NAN;
    if (p->kind == INF_INPUT) p->x[row * p->ldx + k] = ops_random(p->o) & 1 ? INFINITY : -INFINITY;
}

static void make(problem *p, nb_format f, size_t n, size_t k)
{
    static const size_t scale_ks[] = {0, 16, 128};
    size_t scale_k = f == NB_FMT_FP8 ? scale_ks[ops_below(p->o, COUNT(scale_ks))] : 0;
    if (nb_packed_alloc(f, n, k, scale_k, &p->w, NULL) != NB_OK) {
        fprintf(stderr, "nb_ops: cannot make a weight [%zu, %zu]\n", n, k);
        exit(2);
    }
    static const size_t per_word[NB_FMT_COUNT] = {8, 8, 4, 2, 2, 1};
    size_t bytes = k * 4 / per_word[f];
    size_t scales = p->w.scale_k ? nb_ceil_div(k, p->w.scale_k) : 0, size = f == NB_FMT_FP8 ? 4 : 1;
    uint8_t *c = ops_alloc(n * bytes), *s = ops_alloc(n * scales * size);
    fill_codes(p, c, n * bytes);
    fill_scales(p, s, n * scales);
    p->w.odd_scales = nb_pack_rows(&p->w, 0, n, c, s);
    p->w.multiplier = p->kind == HUGE_MULTIPLIER ? 1e30f : p->kind == TINY_MULTIPLIER ? 1e-30f : 0.0371f;
    free(c);
    free(s);
    p->ldx = p->w.k_pad;
    p->ldy = n;
    p->x = ops_alloc(p->rows * p->ldx * sizeof(float));
    p->row_scale = ops_alloc(p->rows * sizeof(float));
    p->w_rows = ops_alloc(n * k * sizeof(float));
    fill_input(p);
    float multiplier = p->w.multiplier;
    p->w.multiplier = 1; /* the oracle multiplies in F64 */
    for (size_t r = 0; r < n; r++) nb_packed_row(&p->w, r, p->w_rows + r * k);
    p->w.multiplier = multiplier;
}

static void unmake(problem *p)
{
    nb_packed_free(&p->w);
    free(p->x);
    free(p->row_scale);
    free(p->w_rows);
}

static float *run(const problem *p, const nb_kernels *t)
{
    float *y = ops_alloc(p->rows * p->ldy * sizeof *y);
    t->linear(&p->w, p->x, p->ldx, p->rows, p->row_scale, y, p->ldy, 0, p->w.panels);
    return y;
}

static void describe(const problem *p, const nb_kernels *t, char *out, size_t cap)
{
    snprintf(out, cap, "linear %s %s [%zu, %zu] rows %zu, %s", t->name, nb_format_name(p->w.format), p->w.n,
             p->w.k, p->rows, data_names[p->kind]);
}

/* Against F64, and against the reference. */
static void check_value(problem *p, const nb_kernels *t, const float *y, const float *reference)
{
    char what[160];
    describe(p, t, what, sizeof what);
    size_t blocks = p->w.k_pad / 16;
    double gamma = (double)(blocks + 20) * ULP;
    bool ok = true, near = true;
    double bad = 0;
    for (size_t r = 0; r < p->rows; r++)
        for (size_t i = 0; i < p->w.n; i++) {
            double sum = 0, size = 0, scale = (double)p->w.multiplier * (double)p->row_scale[r];
            for (size_t k = 0; k < p->w.k; k++) {
                double term = (double)p->x[r * p->ldx + k] * (double)p->w_rows[i * p->w.k + k];
                sum += term;
                size += fabs(term);
            }
            /* Below 2^-126 the steps are 2^-149 wide: one such step for every term, and one at the end. */
            double tol = gamma * size * scale + ((double)p->w.k * 0x1p-149) * 3000 * scale + 0x1p-148;
            bool overflow = size > 1e37 || size * scale > 1e37;
            float got = y[r * p->ldy + i];
            if (ok && !ops_close((double)got, sum * scale, tol, overflow)) ok = false, bad = (double)got;
            near &= ops_close((double)got, (double)reference[r * p->ldy + i], 2 * tol, overflow);
        }
    ops_check(p->o, ok, "%s: an output is %g", what, bad);
    ops_check(p->o, near, "%s: differs from generic", what);
}

static bool same_bits(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (nb_f32_bits(a[i]) != nb_f32_bits(b[i]) && !(isnan(a[i]) && isnan(b[i]))) return false;
    return true;
}

/* One row at a time, and any leading part of the rows, give the bits of all rows together. */
static void check_rows_agree(problem *p, const nb_kernels *t, const float *y)
{
    char what[160];
    describe(p, t, what, sizeof what);
    float *z = ops_alloc(p->rows * p->ldy * sizeof *z);
    bool one = true, some = true;
    for (size_t r = 0; r < p->rows; r++) {
        t->linear(&p->w, p->x + r * p->ldx, p->ldx, 1, p->row_scale + r, z, p->ldy, 0, p->w.panels);
        one &= same_bits(z, y + r * p->ldy, p->w.n);
    }
    size_t part = 1 + ops_below(p->o, p->rows);
    t->linear(&p->w, p->x, p->ldx, part, p->row_scale, z, p->ldy, 0, p->w.panels);
    some = same_bits(z, y, part * p->ldy);
    ops_check(p->o, one, "%s: one row at a time gives other bits", what);
    ops_check(p->o, some, "%s: %zu rows give other bits", what, part);
    free(z);
}

/* Every split in two gives the same bits, and neither part writes outside its panels, the row, or beyond n. */
static void check_splits(problem *p, const nb_kernels *t, const float *y)
{
    char what[160];
    describe(p, t, what, sizeof what);
    const float canary = -12345.5f;
    size_t ld = p->w.panels * NB_PANEL + 3;
    float *z = ops_alloc(p->rows * ld * sizeof *z);
    bool same = true, inside = true;
    for (size_t s = 0; s <= p->w.panels; s++) {
        for (size_t i = 0; i < p->rows * ld; i++) z[i] = canary;
        t->linear(&p->w, p->x, p->ldx, p->rows, p->row_scale, z, ld, s, p->w.panels);
        for (size_t r = 0; r < p->rows; r++)
            for (size_t i = 0; i < s * NB_PANEL && i < p->w.n; i++) inside &= z[r * ld + i] == canary;
        t->linear(&p->w, p->x, p->ldx, p->rows, p->row_scale, z, ld, 0, s);
        for (size_t r = 0; r < p->rows; r++) {
            same &= same_bits(z + r * ld, y + r * p->ldy, p->w.n);
            for (size_t i = p->w.n; i < ld; i++) inside &= z[r * ld + i] == canary;
        }
    }
    ops_check(p->o, same, "%s: a split of the panels gives other bits", what);
    ops_check(p->o, inside, "%s: writes outside its panels", what);
    free(z);
}

/* row_scale NULL means 1 for every row. */
static void check_no_row_scale(problem *p, const nb_kernels *t)
{
    char what[160];
    describe(p, t, what, sizeof what);
    float *y = ops_alloc(p->rows * p->ldy * sizeof *y), *z = ops_alloc(p->rows * p->ldy * sizeof *z);
    float *ones = ops_alloc(p->rows * sizeof *ones);
    for (size_t r = 0; r < p->rows; r++) ones[r] = 1;
    t->linear(&p->w, p->x, p->ldx, p->rows, ones, y, p->ldy, 0, p->w.panels);
    t->linear(&p->w, p->x, p->ldx, p->rows, NULL, z, p->ldy, 0, p->w.panels);
    ops_check(p->o, same_bits(y, z, p->rows * p->ldy), "%s: no row scales are not ones", what);
    free(y);
    free(z);
    free(ones);
}

static void check_problem(ops *o, nb_format f, size_t n, size_t k, size_t rows, data kind)
{
    problem p = {.o = o, .kind = kind, .rows = rows, .w = {.format = f}};
    make(&p, f, n, k);
    float *reference = run(&p, o->tables[0]);
    for (size_t i = 0; i < o->n_tables; i++) {
        float *y = run(&p, o->tables[i]);
        check_value(&p, o->tables[i], y, reference);
        check_rows_agree(&p, o->tables[i], y);
        check_splits(&p, o->tables[i], y);
        check_no_row_scale(&p, o->tables[i]);
        free(y);
    }
    free(reference);
    unmake(&p);
}

/* int8: the row that quantise_i8 makes, taken apart again: q * amax / 127 for each k. */
static void dequantise(const float *row, size_t k_pad, double *x)
{
    for (size_t i = 0; i < k_pad; i++) {
        size_t at = i / 8 * 8 + i % 2 * 4 + i % 8 / 2;
        x[i] = 2.0 * nb_i8_codes(row)[at] * (double)nb_i8_scale(row, k_pad)[i / 16];
    }
}

/* Each value within half a step of its block's amax / 127 (and F32's rounding of the factor), the same bytes from every table,
 * NaN where the input is not finite. */
static void check_quantise(problem *p, const nb_kernels *t, float *rows, const float *reference)
{
    char what[160];
    describe(p, t, what, sizeof what);
    size_t k_pad = p->w.k_pad, used = k_pad / 4 + 2 * (k_pad / 16);
    double *back = ops_alloc(k_pad * sizeof *back);
    bool near = true, same = true;
    for (size_t r = 0; r < p->rows; r++) {
        const float *x = p->x + r * p->ldx;
        t->quantise_i8(x, p->w.k, k_pad, rows + r * k_pad);
        dequantise(rows + r * k_pad, k_pad, back);
        for (size_t b = 0; b < k_pad / 16; b++) {
            double amax = 0;
            bool finite = true;
            for (size_t i = 16 * b; i < 16 * b + 16; i++) {
                finite &= isfinite(x[i]) != 0;
                amax = fmax(amax, fabs((double)x[i]));
            }
            for (size_t i = 16 * b; i < 16 * b + 16; i++)
                near &= finite ? fabs(back[i] - (double)x[i]) <= amax / 127 * 0.50002 + 0x1p-119
                               : isnan(back[i]) != 0;
        }
        /* The bytes of NaN scales may differ; all else may not. */
        for (size_t i = 0; i < used; i++) {
            float a = rows[r * k_pad + i], b = reference[r * k_pad + i];
            same &= nb_f32_bits(a) == nb_f32_bits(b) || (isnan(a) && isnan(b));
        }
    }
    ops_check(p->o, near, "%s: int8 values are off", what);
    ops_check(p->o, same, "%s: int8 values differ from generic's", what);
    free(back);
}

/* The product against F64 on the same int8 values, with the bound above: block sums are exact here. Equal bits for one row and
 * many, and for any split. */
static void check_product(problem *p, const nb_kernels *t, const float *rows)
{
    char what[160];
    describe(p, t, what, sizeof what);
    size_t n = p->w.n, k = p->w.k, k_pad = p->w.k_pad;
    float *y = ops_alloc(p->rows * n * sizeof *y), *z = ops_alloc(p->rows * n * sizeof *z);
    double *x = ops_alloc(k_pad * sizeof *x);
    size_t blocks = k_pad / 16;
    double gamma = (double)(blocks + 20) * ULP, multiplier = (double)p->w.multiplier;
    bool ok = true, one = true, split = true;
    t->linear_i8(&p->w, rows, k_pad, p->rows, y, n, 0, p->w.panels);
    for (size_t r = 0; r < p->rows; r++) {
        dequantise(rows + r * k_pad, k_pad, x);
        for (size_t i = 0; i < n; i++) {
            double sum = 0, size = 0;
            for (size_t j = 0; j < k; j++) {
                double term = x[j] * (double)p->w_rows[i * k + j];
                sum += term;
                size += fabs(term);
            }
            double tol = gamma * size * multiplier + ((double)k * 0x1p-149) * 3000 * multiplier + 0x1p-148;
            bool overflow = size > 1e37 || size * multiplier > 1e37;
            ok &= ops_close((double)y[r * n + i], sum * multiplier, tol, overflow);
        }
        t->linear_i8(&p->w, rows + r * k_pad, k_pad, 1, z + r * n, n, 0, p->w.panels);
        one &= same_bits(z + r * n, y + r * n, n);
    }
    for (size_t s = 0; s <= p->w.panels; s++) {
        t->linear_i8(&p->w, rows, k_pad, p->rows, z, n, s, p->w.panels);
        t->linear_i8(&p->w, rows, k_pad, p->rows, z, n, 0, s);
        split &= same_bits(z, y, p->rows * n);
    }
    ops_check(p->o, ok, "%s: int8: an output is off", what);
    ops_check(p->o, one, "%s: int8: one row at a time gives other bits", what);
    ops_check(p->o, split, "%s: int8: a split of the panels gives other bits", what);
    free(y);
    free(z);
    free(x);
}

/* The step of a block in fixed point: the smallest power of two that keeps its largest within 32639 steps, but 2^-125 at least. NaN when
 * a value is not finite. */
static double fixed_step(const float *x)
{
    double amax = 0, step = 0x1p-125;
    for (size_t i = 0; i < 16; i++) {
        if (!isfinite(x[i])) return NAN;
        amax = fmax(amax, fabs((double)x[i]));
    }
    while (amax > 32639 * step) step *= 2;
    return step;
}

/* Fixed point of rows that BF16 holds: each value rounded to the nearest whole number of steps, NaN where there is no step,
 * and -12 times the sum of the whole numbers; from floats that BF16 does not hold, and in place, as well. */
static void check_fixed(problem *p, const nb_kernels *t, const float *rounded, float *out)
{
    char what[160];
    describe(p, t, what, sizeof what);
    bool near = true, bias = true;
    for (size_t r = 0; r < p->rows; r++) {
        const float *x = rounded + r * p->ldx;
        float *row = out + r * p->ldx;
        memcpy(row, p->x + r * p->ldx, p->ldx * sizeof *row);
        t->prepare_bf16(r % 2 ? row : p->x + r * p->ldx, p->w.k, p->w.k_pad, row);
        for (size_t b = 0; b < p->w.k_pad / 16; b++) {
            double step = fixed_step(x + 16 * b), sum = 0;
            for (size_t i = 16 * b; i < 16 * b + 16; i++) {
                double q = nearbyint((double)x[i] / step), got = (double)nb_fixed16_value(row, i);
                near &= isnan(step) ? isnan(got) != 0 : got == q * step;
                sum += q;
            }
            bias &= isnan(step) || (double)nb_fixed16_row(row)[b].bias == -12 * sum;
        }
    }
    ops_check(p->o, near, "%s: bf16: a value in fixed point is off", what);
    ops_check(p->o, bias, "%s: bf16: a bias in fixed point is off", what);
}

/* Half-words: the values themselves; from floats that BF16 does not hold, and in place, as well. */
static void check_halves(problem *p, const nb_kernels *t, const float *rounded, float *out)
{
    char what[160];
    describe(p, t, what, sizeof what);
    bool same = true;
    for (size_t r = 0; r < p->rows; r++) {
        const float *x = rounded + r * p->ldx;
        float *row = out + r * p->ldx;
        memcpy(row, p->x + r * p->ldx, p->ldx * sizeof *row);
        t->prepare_bf16(r % 2 ? row : p->x + r * p->ldx, p->w.k, p->w.k_pad, row);
        for (size_t i = 0; i < p->w.k_pad; i++)
            same &= nb_f32_bits(nb_halves_value(row, i)) == nb_f32_bits(x[i]);
    }
    ops_check(p->o, same, "%s: bf16: a half-word is off", what);
}

/* Rows whose values BF16 holds, through linear_bf16: the bound of the linear, but sums run over all k (a rounding for each product
 * at worst), and tiles flush what is below 2^-126. In fixed point a value is off by half a step, too. */
static void check_bf16(ops *o, nb_format f, size_t n, size_t k, size_t rows, data kind)
{
    problem p = {.o = o, .kind = kind, .rows = rows, .w = {.format = f}};
    make(&p, f, n, k);
    float *rounded = ops_alloc(rows * p.ldx * sizeof *rounded),
          *made = ops_alloc(rows * p.ldx * sizeof *made);
    for (size_t i = 0; i < rows * p.ldx; i++) rounded[i] = nb_bf16_round(p.x[i]);
    double gamma = (double)(k + 20) * ULP;
    for (size_t t = 0; t < o->n_tables; t++) {
        const nb_kernels *table = o->tables[t];
        float *y = ops_alloc(rows * n * sizeof *y), *z = ops_alloc(rows * n * sizeof *z);
        char what[160];
        describe(&p, table, what, sizeof what);
        bool ok = true, one = true, split = true;
        const bool fixed = table->bf16_form == NB_BF16_FIXED;
        if (fixed) check_fixed(&p, table, rounded, made);
        if (table->bf16_form == NB_BF16_HALVES) check_halves(&p, table, rounded, made);
        const float *x = table->prepare_bf16 ? made : rounded;
        table->linear_bf16(&p.w, x, p.ldx, rows, p.row_scale, y, n, 0, p.w.panels);
        for (size_t r = 0; r < rows; r++) {
            for (size_t i = 0; i < n; i++) {
                double sum = 0, size = 0, off = 0, step = 0;
                double scale = (double)p.w.multiplier * (double)p.row_scale[r];
                for (size_t j = 0; j < k; j++) {
                    double weight = (double)p.w_rows[i * k + j];
                    double term = (double)rounded[r * p.ldx + j] * weight;
                    if (j % 16 == 0) step = fixed ? fixed_step(rounded + r * p.ldx + j) : 0;
                    sum += term;
                    size += fabs(term);
                    off += step / 2 * fabs(weight);
                }
                double tol =
                    (gamma * (size + off) + off) * scale + (double)k * 0x1p-126 * 3000 * scale + 0x1p-126;
                bool overflow = size > 1e37 || size * scale > 1e37;
                ok &= ops_close((double)y[r * n + i], sum * scale, tol, overflow);
            }
            table->linear_bf16(&p.w, x + r * p.ldx, p.ldx, 1, p.row_scale + r, z + r * n, n, 0, p.w.panels);
            one &= same_bits(z + r * n, y + r * n, n);
        }
        for (size_t s = 0; s <= p.w.panels; s++) {
            table->linear_bf16(&p.w, x, p.ldx, rows, p.row_scale, z, n, s, p.w.panels);
            table->linear_bf16(&p.w, x, p.ldx, rows, p.row_scale, z, n, 0, s);
            split &= same_bits(z, y, rows * n);
        }
        ops_check(o, ok, "%s: bf16: an output is off", what);
        ops_check(o, one, "%s: bf16: one row at a time gives other bits", what);
        ops_check(o, split, "%s: bf16: a split of the panels gives other bits", what);
        free(y);
        free(z);
    }
    free(rounded);
    free(made);
    unmake(&p);
}

void ops_check_bf16(ops *o)
{
    if (!ops_wants(o, "bf16")) return;
    static const size_t ns[] = {1, 15, 16, 17, 33, 67}, blocks4[] = {16, 32, 48, 272, 1056, 2080},
                        blocks32[] = {32, 96, 320, 1056};
    for (nb_format f = NB_FMT_NVFP4; f <= NB_FMT_MXFP4; f++) {
        const size_t *ks = f == NB_FMT_NVFP4 ? blocks4 : blocks32;
        size_t n_ks = f == NB_FMT_NVFP4 ? COUNT(blocks4) : COUNT(blocks32);
        for (size_t i = 0; i < COUNT(ns); i++)
            for (size_t j = 0; j < n_ks; j++)
                for (data kind = 0; kind < DATA_COUNT; kind++)
                    check_bf16(o, f, ns[i], ks[j], 1 + ops_below(o, 37), kind);
        for (size_t rows = 1; rows <= 34; rows++) check_bf16(o, f, 37, ks[n_ks - 1], rows, RANDOM);
        check_bf16(o, f, 33, 96, 530, RANDOM);
    }
}

static void check_int8(ops *o, nb_format f, size_t n, size_t k, size_t rows, data kind)
{
    problem p = {.o = o, .kind = kind, .rows = rows, .w = {.format = f}};
    make(&p, f, n, k);
    size_t bytes = p.rows * p.w.k_pad * sizeof(float);
    float *reference = ops_alloc(bytes), *mine = ops_alloc(bytes);
    for (size_t r = 0; r < p.rows; r++)
        o->tables[0]->quantise_i8(p.x + r * p.ldx, k, p.w.k_pad, reference + r * p.w.k_pad);
    for (size_t i = 0; i < o->n_tables; i++) {
        check_quantise(&p, o->tables[i], mine, reference);
        check_product(&p, o->tables[i], mine);
    }
    free(reference);
    free(mine);
    unmake(&p);
}

void ops_check_int8(ops *o)
{
    if (!ops_wants(o, "int8")) return;
    static const size_t ns[] = {1, 15, 16, 17, 67}, blocks4[] = {16, 32, 48, 112, 272, 1056},
                        blocks32[] = {32, 96, 320, 1056};
    for (nb_format f = NB_FMT_NVFP4; f <= NB_FMT_MXFP4; f++) {
        const size_t *ks = f == NB_FMT_NVFP4 ? blocks4 : blocks32;
        size_t n_ks = f == NB_FMT_NVFP4 ? COUNT(blocks4) : COUNT(blocks32);
        for (size_t i = 0; i < COUNT(ns); i++)
            for (size_t j = 0; j < n_ks; j++)
                for (data kind = 0; kind < DATA_COUNT; kind++)
                    check_int8(o, f, ns[i], ks[j], 1 + ops_below(o, 21), kind);
        for (size_t rows = 1; rows <= 64; rows++) check_int8(o, f, 37, ks[n_ks - 1], rows, RANDOM);
        check_int8(o, f, 33, ks[n_ks - 1], 543, RANDOM);
    }
}

void ops_check_linear(ops *o)
{
    if (!ops_wants(o, "linear")) return;
    static const size_t ns[] = {1, 15, 16, 17, 40, 67};
    static const size_t blocks4[] = {16, 32, 48, 112, 272}, blocks32[] = {32, 64, 96, 320},
                        any[] = {1, 7, 33, 130, 301};
    static const size_t many[] = {48, 49, 64, 100};
    for (nb_format f = 0; f < NB_FMT_COUNT; f++) {
        const size_t *ks = f == NB_FMT_NVFP4 ? blocks4 : f == NB_FMT_MXFP4 ? blocks32 : any;
        size_t n_ks = f == NB_FMT_MXFP4 ? COUNT(blocks32) : 5;
        for (size_t i = 0; i < COUNT(ns); i++)
            for (size_t j = 0; j < n_ks; j++)
                for (data kind = 0; kind < DATA_COUNT; kind++)
                    check_problem(o, f, ns[i], ks[j], 1 + ops_below(o, 17), kind);
        for (size_t rows = 1; rows <= 17; rows++) check_problem(o, f, 37, ks[n_ks - 1], rows, RANDOM);
        for (size_t i = 0; i < COUNT(many); i++) check_problem(o, f, 35, ks[n_ks - 2], many[i], RANDOM);
        /* Long enough that the activations of many rows are copied in several slices. */
        check_problem(o, f, 33, 4128, 13, RANDOM);
        check_problem(o, f, 17, 1056, 50, RANDOM);
    }
}
