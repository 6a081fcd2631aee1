/*
 * Block scales and activations at the ends of their ranges, which cancel each other: the products of E2M1 weights in int8 and bf16 against
 * F64. No factor may leave F32's range on the way when the result is inside it, and a sum that is exactly zero stays zero whatever
 * multiplies it.
 */
#include "ops.h"

#include "base/mem.h"
#include "kernels/cpu/fixed16.h"
#include "kernels/cpu/int8.h"
#include "numerics/formats.h"

/* What k of a problem hold, 32 at a time: */
typedef enum group {
    AGAINST, /* scales of any size, activations as much smaller or larger */
    FIRST,   /* the smallest scales, the largest activations */
    LAST,    /* the largest scales, small activations */
    ZERO,    /* the largest of both, products that cancel in pairs */
    GROUPS
} group;

typedef struct problem {
    nb_packed w;
    size_t n, k, rows;
    int size; /* terms are about 2^size */
    uint8_t *codes, *scales;
    float *x; /* [rows][k_pad] */
} problem;

static size_t block_of(const problem *p)
{
    return p->w.format == NB_FMT_NVFP4 ? 16 : 32;
}

static double code_of(const problem *p, size_t i, size_t k)
{
    return (double)nb_e2m1_table[p->codes[(i * p->k + k) / 2] >> (k % 2 * 4) & 15];
}

/* In F64, where 2^127 times a code is no infinity. */
static double scale_of(const problem *p, size_t i, size_t k)
{
    uint8_t s = p->scales[(i * p->k + k) / block_of(p)];
    return p->w.format == NB_FMT_NVFP4 ? (double)nb_e4m3_table[s] : ldexp(1, s - 127);
}

/* Fills k0 to k0 + 31 of all weights and rows. */
static void fill_group(ops *o, problem *p, group g, size_t k0, float largest)
{
    const bool e4m3 = p->w.format == NB_FMT_NVFP4;
    const size_t last = e4m3 ? 0x7E : 254;
    const size_t middle = g == AGAINST ? ops_below(o, last + 1) : g == FIRST ? 0 : last;
    for (size_t i = 0; i < p->n; i++) {
        for (size_t k = k0; k < k0 + 32; k += block_of(p)) {
            size_t s = g == AGAINST ? middle + ops_below(o, 5) : middle;
            p->scales[(i * p->k + k) / block_of(p)] = (uint8_t)(s < last ? s : last);
        }
        for (size_t k = k0; k < k0 + 32; k += 2) {
            uint8_t a = (uint8_t)ops_below(o, 16), b = g == ZERO ? a ^ 8 : (uint8_t)ops_below(o, 16);
            p->codes[(i * p->k + k) / 2] = (uint8_t)(a | b << 4);
        }
    }
    int e = p->size - (e4m3 ? (int)middle / 8 - 7 : (int)middle - 127);
    for (size_t r = 0; r < p->rows; r++)
        for (size_t k = k0; k < k0 + 32; k++) {
            double x = ldexp((double)ops_normal(o), e);
            float *at = p->x + r * p->w.k_pad + k;
            *at = (float)fmax(fmin(x, (double)largest), -(double)largest);
            if (g == ZERO) *at = k % 2 ? at[-1] : k % 8 == 0 ? largest : largest / 2;
        }
}

static void make(ops *o, problem *p, float largest)
{
    if (nb_packed_alloc(p->w.format, p->n, p->k, 0, &p->w, NULL) != NB_OK) exit(2);
    p->codes = ops_alloc(p->n * p->k / 2);
    p->scales = ops_alloc(p->n * p->k / block_of(p));
    p->x = ops_alloc(p->rows * p->w.k_pad * sizeof *p->x);
    for (size_t k = 0; k < p->k; k += 32)
        fill_group(o, p, p->k == 32 ? (group)ops_below(o, GROUPS) : (group)(k / 32 % GROUPS), k, largest);
    p->w.odd_scales = nb_pack_rows(&p->w, 0, p->n, p->codes, p->scales);
    p->w.multiplier = 1;
}

static void unmake(problem *p)
{
    nb_packed_free(&p->w);
    free(p->codes);
    free(p->scales);
    free(p->x);
}

/* How a table's rows are multiplied. INTEGERS: sums over 16 k are exact. FLOATS: they are F32 themselves, and where scales are folded into
 * weights those are, too; what is below 2^-126 may be flushed. */
typedef enum sums { INTEGERS, FLOATS } sums;

/* Outputs y of row r, whose activations are x in F64. An output whose terms leave F32's range may be anything. Bounds: a rounding for each
 * scale and each term added (of each product, for FLOATS), and F32's smallest steps, which 2^22 (fixed16.h) makes wider. */
static bool near(const problem *p, sums kind, const double *x, const float *y, size_t *seen)
{
    bool ok = true;
    for (size_t i = 0; i < p->n; i++) {
        double sum = 0, size = 0, most = 0, tiny = 0;
        for (size_t b = 0; b < p->k; b += 16) {
            double scale = scale_of(p, i, b), part = 0, parts = 0;
            for (size_t k = b; k < b + 16; k++) {
                part += x[k] * code_of(p, i, k);
                parts += fabs(x[k] * code_of(p, i, k));
                if (kind == FLOATS) tiny += 0x1p-126 * (8 * scale + fabs(x[k]));
            }
            if (kind == INTEGERS) parts = fabs(part);
            sum += part * scale;
            size += parts * scale;
            most = fmax(most, kind == FLOATS ? fmax(parts, 6 * scale) : 0);
            tiny += 0x1p-127;
        }
        if (fmax(size, most) > 1e37) continue;
        ++*seen;
        double terms = (double)(kind == FLOATS ? p->k : p->k / 16) + 4;
        ok &= isfinite(y[i]) && fabs((double)y[i] - sum) <= terms * ULP * size + tiny;
    }
    return ok;
}

static void check_int8(ops *o, const problem *p, const nb_kernels *t, size_t *seen)
{
    const size_t ld = p->w.k_pad;
    float *rows = ops_alloc(p->rows * ld * sizeof *rows), *y = ops_alloc(p->rows * p->n * sizeof *y);
    float *one = ops_alloc(p->n * sizeof *one);
    double *x = ops_alloc(ld * sizeof *x);
    bool ok = true, same = true;
    for (size_t r = 0; r < p->rows; r++) t->quantise_i8(p->x + r * ld, p->k, ld, rows + r * ld);
    t->linear_i8(&p->w, rows, ld, p->rows, y, p->n, 0, p->w.panels);
    for (size_t r = 0; r < p->rows; r++) {
        for (size_t k = 0; k < p->k; k++) {
            size_t place = k / 8 * 8 + k % 2 * 4 + k % 8 / 2;
            x[k] = 2.0 * nb_i8_codes(rows + r * ld)[place] * (double)nb_i8_scale(rows + r * ld, ld)[k / 16];
        }
        ok &= near(p, INTEGERS, x, y + r * p->n, seen);
        t->linear_i8(&p->w, rows + r * ld, ld, 1, one, p->n, 0, p->w.panels);
        for (size_t i = 0; i < p->n; i++)
            same &= nb_f32_bits(one[i]) == nb_f32_bits(y[r * p->n + i]) ||
                    (isnan(one[i]) && isnan(y[r * p->n + i]));
    }
    ops_check(o, same, "int8 %s %s [%zu, %zu] rows %zu, terms of 2^%d: one row at a time gives other bits",
              t->name, nb_format_name(p->w.format), p->n, p->k, p->rows, p->size);
    ops_check(o, ok,
              "int8 %s %s [%zu, %zu] rows %zu, terms of 2^%d: scales and activations against each other",
              t->name, nb_format_name(p->w.format), p->n, p->k, p->rows, p->size);
    free(rows);
    free(y);
    free(one);
    free(x);
}

static void check_bf16(ops *o, const problem *p, const nb_kernels *t, size_t *seen)
{
    const size_t ld = p->w.k_pad;
    float *rows = ops_alloc(p->rows * ld * sizeof *rows), *y = ops_alloc(p->rows * p->n * sizeof *y);
    double *x = ops_alloc(ld * sizeof *x);
    const bool fixed = t->bf16_form == NB_BF16_FIXED;
    bool ok = true;
    for (size_t i = 0; i < p->rows * ld; i++) rows[i] = nb_bf16_round(p->x[i]);
    for (size_t r = 0; t->prepare_bf16 && r < p->rows; r++)
        t->prepare_bf16(rows + r * ld, p->k, ld, rows + r * ld);
    t->linear_bf16(&p->w, rows, ld, p->rows, NULL, y, p->n, 0, p->w.panels);
    for (size_t r = 0; r < p->rows; r++) {
        for (size_t k = 0; k < p->k; k++)
            x[k] = (double)(fixed ? nb_fixed16_value(rows + r * ld, k) : nb_bf16_round(p->x[r * ld + k]));
        ok &= near(p, fixed ? INTEGERS : FLOATS, x, y + r * p->n, seen);
    }
    ops_check(o, ok,
              "bf16 %s %s [%zu, %zu] rows %zu, terms of 2^%d: scales and activations against each other",
              t->name, nb_format_name(p->w.format), p->n, p->k, p->rows, p->size);
    free(rows);
    free(y);
    free(x);
}

void ops_check_scales(ops *o)
{
    static const size_t ks[] = {32, 32, 32, 32, 320, 1056}, rows[] = {1, 3, 4, 9};
    static const int sizes[] = {-90, -30, 0, 40, 100};
    const bool int8 = ops_wants(o, "int8"), bf16 = ops_wants(o, "bf16");
    size_t seen_int8 = 0, seen_bf16 = 0;
    for (int round = 0; round < 4; round++)
        for (size_t i = 0; i < COUNT(ks) * COUNT(rows) * COUNT(sizes) && (int8 || bf16); i++)
            for (nb_format f = NB_FMT_NVFP4; f <= NB_FMT_MXFP4; f++) {
                problem p = {.w = {.format = f},
                             .n = 37,
                             .k = ks[i % COUNT(ks)],
                             .rows = rows[i / COUNT(ks) % COUNT(rows)],
                             .size = sizes[i / COUNT(ks) / COUNT(rows)]};
                make(o, &p,
                     round % 2 ? 0x1.FEp127f : 0x1.FFFFFEp127f); /* the largest BF16, the largest F32 */
                for (size_t t = 0; t < o->n_tables; t++) {
                    if (int8) check_int8(o, &p, o->tables[t], &seen_int8);
                    if (bf16 && round % 2) check_bf16(o, &p, o->tables[t], &seen_bf16);
                }
                unmake(&p);
            }
    if (int8) ops_check(o, seen_int8 > 0, "int8: all outputs left F32's range");
    if (bf16) ops_check(o, seen_bf16 > 0, "bf16: all outputs left F32's range");
}
