/*
 * Derived weights: forms of a stored linear for another order of computation (latent attention multiplies queries by one half of
 * kv_b_proj and results by the other). They are made of the very values that the loader and its policies give the linear, and never
 * in a format that loses any: BF16 where that is exact, with a global scale kept as the multiplier, else F32.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "models/model.h"
#include "numerics/formats.h"

/* The linear's values without its global scale, and the form being packed. */
typedef struct values {
    const nb_model *m;
    nb_linear_src src;
    float *v;       /* [n][k] */
    nb_error *errs; /* [threads] */
    const nb_derive *form;
    bool bf16;
} values;

static void dequantise_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    values *d = ctx;
    size_t k = d->src.k, step = 1 + ((size_t)1 << 18) / k;
    float *v = d->v + begin * k;
    for (size_t r = begin; r < end; r += step) {
        size_t rows = end - r < step ? end - r : step;
        if (nb_linear_dequantise(d->m->ckpt, &d->src, r, rows, d->v + r * k, &d->errs[thread]) != NB_OK)
            return;
    }
    for (size_t i = 0; d->src.to_bf16 && i < (end - begin) * k; i++) v[i] = nb_bf16_round(v[i]);
}

static nb_status read_values(values *d, nb_error *err)
{
    nb_pool *pool = d->m->x->pool;
    size_t threads = nb_pool_threads(pool);
    nb_status s = NB_OK;
    d->errs = calloc(threads, sizeof *d->errs);
    if (!d->errs) return nb_fail_nomem(err, d->src.module, threads * sizeof *d->errs);
    nb_pool_run(pool, d->src.n, 1, dequantise_rows, d);
    for (size_t t = 0; t < threads && s == NB_OK; t++) {
        s = d->errs[t].status;
        if (s != NB_OK && err) *err = d->errs[t];
    }
    free(d->errs);
    return s;
}

/* A row of a derived matrix: a row of the linear, or a column of one group's part of it. */
static nb_status derived_rows(void *ctx, size_t row, size_t rows, uint8_t *codes, void *scales, nb_error *err)
{
    const values *d = ctx;
    const nb_derive *f = d->form;
    size_t k = d->src.k, size = d->src.n / f->groups;
    size_t per = f->transposed ? k : f->rows, cols = f->transposed ? f->rows : k;
    for (size_t r = row; r < row + rows; r++) {
        const float *part = d->v + (r / per * size + f->from) * k;
        for (size_t j = 0; j < cols; j++) {
            float v = f->transposed ? part[j * k + r % per] : part[r % per * k + j];
            size_t at = (r - row) * cols + j;
            uint16_t h = nb_bf16_encode(v);
            if (d->bf16)
                memcpy(codes + 2 * at, &h, 2);
            else
                memcpy(codes + 4 * at, &v, 4);
        }
    }
    return NB_OK;
}

static bool fits_bf16(const float *v, size_t n)
{
    uint32_t low = 0;
    for (size_t i = 0; i < n; i++) low |= nb_f32_bits(v[i]) & 0xFFFF;
    return !low;
}

nb_status nb_model_derive(const nb_model *m, const nb_linear *l, const nb_linear_src *src, nb_weight *w,
                          nb_error *err)
{
    values d = {.m = m, .src = *src};
    const float multiplier = src->to_bf16 ? 1.0f : src->multiplier;
    nb_status s = NB_OK;
    size_t n;
    if (!nb_mul(src->n, src->k, &n) || n > SIZE_MAX / sizeof *d.v)
        return nb_fail_nomem(err, src->module, SIZE_MAX);
    d.v = malloc(n * sizeof *d.v);
    if (!d.v) return nb_fail_nomem(err, src->module, n * sizeof *d.v);
    if (!src->to_bf16) d.src.multiplier = 1.0f;
    if ((s = read_values(&d, err))) goto out;
    d.bf16 = fits_bf16(d.v, n);
    for (size_t i = 0; i < l->n_derived; i++) {
        const nb_derive *f = d.form = &l->derive[i];
        size_t rows, cols;
        nb_weight *form;
        nb_derive_shape(f, src->k, &rows, &cols);
        s = m->x->ops->weight_new(m->x, d.bf16 ? NB_FMT_BF16 : NB_FMT_F32, rows, cols, 0, multiplier,
                                  f->groups, cols * (d.bf16 ? 2 : 4), 0, derived_rows, &d, &form, err);
        if (s != NB_OK) goto out;
        m->x->ops->weight_attach(w, form);
    }
out:
    free(d.v);
    return s;
}
