/*
 * The inner loops that have one version per instruction set. `generic` is the plain C reference; every other table must
 * agree with it within the op tester's bounds (tests/ops). A table is chosen once, at start; there is no other dispatch.
 * All activations are F32, row-major. Nothing here allocates, and nothing depends on the number of threads or rows:
 * each output is a fixed sequence of operations on its own inputs.
 */
#ifndef NB_KERNELS_CPU_KERNELS_H
#define NB_KERNELS_CPU_KERNELS_H

#include <string.h>

#include "base/cpu.h"
#include "kernels/packed.h"
#include "numerics/formats.h"

/* One head of one row of queries. It attends to the rows [begin, end) of those gathered. */
typedef struct nb_query {
    const float *q; /* [dk] */
    float *out;     /* [dv], or as many columns as weigh() is called for */
    float *scores;  /* [n_rows] scratch: what scores() makes, exps() makes weights of, and weigh() reads */
    size_t begin, end;
} nb_query;

#define NB_AHEAD 16 /* rows that are asked for in advance */

/* Queries that share gathered rows (paging is not the kernel's business). What a query gets does not depend on the others. */
typedef struct nb_attend_args {
    const nb_query *queries; /* [n_queries] */
    size_t n_queries;
    /* Pointers to dk and dv floats, and behind those of all rows NB_AHEAD more: what scores() and weigh() ask for by then. */
    const float *const *k_rows, *const *v_rows;
    size_t dk, dv;
    float scale; /* multiplies q.k */
} nb_attend_args;

/* What a row for linear_bf16 is. */
typedef enum nb_bf16_form {
    NB_BF16_FLOATS, /* floats that BF16 holds */
    NB_BF16_FIXED,  /* fixed point (fixed16.h) */
    NB_BF16_HALVES  /* BF16 as it is: k_pad half-words */
} nb_bf16_form;

/* Element i of a row in the form of half-words. */
static inline float nb_halves_value(const float *row, size_t i)
{
    uint16_t h;
    memcpy(&h, (const uint8_t *)row + 2 * i, sizeof h);
    return nb_bf16_decode(h);
}

typedef struct nb_kernels {
    const char *name; /* "generic", "avx2", "avxvnni", "avx512", "avx512bf16", "amx" */

    /* y[r][16 p + i] = (sum over k of x[r][k] * W[16 p + i][k]) * scale_r for panels [p0, p1) and rows 0 <= r < rows;
     * outputs at or beyond w->n are not written. x has ldx floats a row, of which k_pad are readable and those
     * in [k, k_pad) are zero. scale_r = w->multiplier * (row_scale ? row_scale[r] : 1).
     * Sums: within a block (16 k; MXFP4 and unscaled formats too) in ascending k from zero, then block sums times
     * block scale added in ascending order, all F32. */
    void (*linear)(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,
                   float *y, size_t ldy, size_t p0, size_t p1);

    /* A row of k floats, rounded to BF16, in the form that linear_bf16 takes, with zeros from k to k_pad. row may be x. NULL: linear_bf16
     * takes floats. */
    nb_bf16_form bf16_form;
    void (*prepare_bf16)(const float *x, size_t k, size_t k_pad, float *row);

    /* The same for E2M1 weights and values of x that BF16 holds exactly (the arithmetics bf16, w4a4, w4a4-dynamic). But for fixed point:
     * sums over all k in ascending order of instructions that add 32 products each, or as linear does; may be linear itself. In fixed point:
     * sums over 16 k are exact integers of what the rows stand for, scaled and added as linear_i8's. An output is then
     * off by 2^-15 * 256/255 of a block's largest magnitude at most for each weight of magnitude 1 besides, or by 2^-126 where that is more,
     * and a row with a value that is not finite gives NaN. */
    void (*linear_bf16)(const nb_packed *w, const float *x, size_t ldx, size_t rows, const float *row_scale,
                        float *y, size_t ldy, size_t p0, size_t p1);

    /* One row of k floats as int8 (int8.h), zeros from k to k_pad: q = x * (127 / amax), rounded to nearest even. */
    void (*quantise_i8)(const float *x, size_t k, size_t k_pad, float *row);

    /* The same product for E2M1 weights (NVFP4, MXFP4) and rows of int8 activations: sums over 16 k are exact integers, then
     * times the weight scale, then times the activation scale, added in ascending order in F32. Whatever the two scales, no factor leaves
     * F32's range on the way (int8.h): where all scales and activations are finite, an output is infinite or NaN only when a block's
     * term, the sum of terms or the finished output is too large for F32. */
    void (*linear_i8)(const nb_packed *w, const float *x, size_t ldx, size_t rows, float *y, size_t ldy,
                      size_t p0, size_t p1);

    /* y = x * rsqrt(mean(x^2) + eps) * w; w may be NULL (ones); y may be x. */
    void (*rmsnorm)(const float *x, const float *w, float eps, size_t n, float *y);

    /* Rotates 2*pairs values in place by (cos[i], sin[i]). interleaved: pair i is (x[2i], x[2i+1]), else
     * (x[i], x[i + pairs]). sign -1 rotates back. */
    void (*rope)(float *x, const float *cos, const float *sin, size_t pairs, bool interleaved, float sign);

    /* x[i] = e^(x[i] - *max) in place, *max being the largest; returns their sum. What is below e^-87 may be 0. Where all are -inf, and of
     * none, it gives zeros, 0 and a *max of -inf. NaN gives NaN. */
    float (*exps)(float *x, size_t n, float *max);

    /* scores[r] = q . k_rows[r] * scale for rows r0 <= r < r1 of every query; those outside a query's own range are never read,
     * but may be written. */
    void (*scores)(const nb_attend_args *a, size_t r0, size_t r1);
    /* out[c - c0] = sum over a query's rows, ascending, of scores[r] * v_rows[r][c], for columns c0 <= c < c1. No rows give zeros. */
    void (*weigh)(const nb_attend_args *a, size_t c0, size_t c1);

    /* y = silu(g) * u, with g = min(g, limit), u = clamp(u, -limit, limit) when limit > 0. y may be g or u. */
    void (*swiglu)(const float *g, const float *u, float limit, size_t n, float *y);

    float (*dot)(const float *a, const float *b, size_t n);
    void (*axpy)(float a, const float *x, size_t n, float *y); /* y += a x */

    /* y[r][c] += sum over i < n, one after another in ascending i, of a[r][i] * x[i][c], for rows r and columns c < d. No y is
     * an x. */
    void (*mix)(const float *const *a, const float *const *x, size_t n, size_t d, float *const *y,
                size_t rows);
} nb_kernels;

const nb_kernels *nb_kernels_generic(void);
#if defined(__x86_64__)
const nb_kernels *nb_kernels_avx2(void);
const nb_kernels *nb_kernels_avxvnni(void);    /* AVX-VNNI beside AVX2 */
const nb_kernels *nb_kernels_avx512(void);     /* F, BW, VL, DQ and VNNI */
const nb_kernels *nb_kernels_avx512bf16(void); /* AVX512-BF16 beside them */
const nb_kernels *nb_kernels_amx(void);        /* AMX-BF16 and AMX-INT8 beside AVX-512's */
/* Asks the kernel for the tiles' state, which every process must once. False: refused. */
bool nb_amx_permitted(void);
#endif

/* The tables this machine can run, generic first, best last; returns their number (at most cap). */
size_t nb_kernels_list(const nb_cpu *cpu, const nb_kernels **out, size_t cap);

/* The best table, or the one named ("generic", "avx2", "avxvnni", "avx512", "avx512bf16", "amx"). NULL when the name is unknown or the
 * machine lacks it. */
const nb_kernels *nb_kernels_pick(const nb_cpu *cpu, const char *name);

#endif
