/*
 * Edits and the bytes they make. Block scales are the heart of it: stored rows or tiles of 128x4, then NaN bytes, signs and
 * the common scale of siblings, one after the other and always 128 rows at a time, so that memory does not grow with the model.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/linear.h"
#include "doctor/repair_plan.h"
#include "numerics/formats.h"
#include "numerics/nvfp4.h"

static nb_edit *add(nb_plan *p, nb_edit init)
{
    if (p->n_edits == p->cap_edits) {
        size_t cap = p->cap_edits ? 2 * p->cap_edits : 64;
        nb_edit **q = realloc(p->edits, cap * sizeof *q);
        if (!q) return NULL;
        p->edits = q;
        p->cap_edits = cap;
    }
    nb_edit *e = malloc(sizeof *e);
    if (!e) return NULL;
    *e = init;
    e->ratio = 1;
    p->edits[p->n_edits++] = e;
    return e;
}

nb_edit *nb_plan_edited(const nb_plan *p, const nb_tensor_info *t)
{
    uint32_t i;
    return nb_map_get(&p->by_tensor, t->name, strlen(t->name), &i) ? p->edits[i] : NULL;
}

nb_edit *nb_plan_edit(nb_plan *p, const nb_tensor_info *t)
{
    nb_edit *e = nb_plan_edited(p, t);
    if (e) return e;
    if (!nb_map_put(&p->by_tensor, t->name, strlen(t->name), (uint32_t)p->n_edits, NULL)) return NULL;
    return add(p,
               (nb_edit){.from = t, .file = t->file, .dtype = t->dtype, .rank = t->rank, .shape = t->shape});
}

nb_edit *nb_plan_new(nb_plan *p, const nb_module *m, const char *suffix, const nb_tensor_info *beside)
{
    nb_buf name = {0};
    nb_buf_addf(&name, "%s%s", m->name, suffix);
    nb_edit *e = nb_buf_ok(&name) ? add(p, (nb_edit){.file = beside->file, .module = m}) : NULL;
    if (!e) {
        nb_buf_free(&name);
        return NULL;
    }
    e->shape = e->own;
    e->name = name.data;
    return e;
}

const nb_module *nb_plan_module(const nb_plan *p, const char *tensor, nb_member *member)
{
    char name[1024];
    size_t len;
    *member = nb_member_of(tensor, &len);
    if (*member == NB_MEMBER_COUNT || len >= sizeof name) return NULL;
    memcpy(name, tensor, len);
    name[len] = '\0';
    return nb_modules_find(&p->modules, name);
}

nb_edit *nb_plan_scales(nb_plan *p, const nb_module *m)
{
    const nb_tensor_info *s = nb_module_scale(m), *w = nb_module_codes(m);
    nb_edit *e = nb_plan_edit(p, s);
    if (!e || e->content == NB_CONTENT_SCALES) return e;
    e->content = NB_CONTENT_SCALES;
    e->module = m;
    e->n = w->shape[0];
    e->kb = w->shape[1] / 8;
    e->stride = e->kb;
    return e;
}

/* ---- one number ---- */

float nb_as_multiplier(const nb_module *m, float stored)
{
    return m->kind == NB_KIND_NVFP4_CT ? 1.0f / stored : stored;
}

bool nb_repair_usable(float v)
{
    return v >= FLT_MIN && v <= FLT_MAX && 1.0f / v >= FLT_MIN;
}

nb_status nb_plan_value(const nb_plan *p, const nb_tensor_info *t, float *out, nb_error *err)
{
    const nb_edit *e = nb_plan_edited(p, t);
    if (e && e->content == NB_CONTENT_VALUE) {
        *out = e->value;
        return NB_OK;
    }
    if (nb_tensor_elements(t) < 1) {
        nb_fail(err, NB_ERR_FORMAT, "a scale without a value");
        nb_error_at(err, nb_ckpt_file_path(p->ckpt, t->file), t->name, (int64_t)t->begin);
        return NB_ERR_FORMAT;
    }
    return nb_ckpt_read_floats(p->ckpt, t, 0, 1, out, err);
}

nb_status nb_plan_set_value(nb_plan *p, const nb_tensor_info *t, float value, nb_error *err)
{
    nb_edit *e = nb_plan_edit(p, t);
    if (!e) return nb_fail_nomem(err, "a plan", sizeof *e);
    e->content = NB_CONTENT_VALUE;
    e->value = value;
    e->dtype = NB_DT_F32;
    if (e->rank > 1 || nb_tensor_elements(t) != 1) {
        e->rank = 1;
        e->own[0] = 1;
        e->shape = e->own;
    }
    return NB_OK;
}

/* ---- block scales ---- */

uint8_t nb_rescale_byte(uint8_t byte, float ratio)
{
    return nb_e4m3_encode_sat(nb_e4m3_table[byte] * ratio);
}

/* Stored scales of up to 128 rows, in row order and without padding. */
static nb_status read_rows(const nb_plan *p, const nb_tensor_info *s, const nb_edit *e, size_t row,
                           size_t rows, uint8_t *out, nb_error *err)
{
    nb_status st = NB_OK;
    const size_t kb = (size_t)e->kb;
    if (!e->swizzled && e->stride == e->kb) return nb_ckpt_read(p->ckpt, s, row * kb, out, rows * kb, err);
    if (!e->swizzled) {
        for (size_t i = 0; i < rows && st == NB_OK; i++)
            st = nb_ckpt_read(p->ckpt, s, (row + i) * e->stride, out + i * kb, kb, err);
        return st;
    }
    const size_t tile = nb_round_up(kb, 4) * NB_CHUNK_ROWS;
    uint8_t *tiles = malloc(tile + 1);
    if (!tiles) return nb_fail_nomem(err, "a tile of block scales", tile);
    st = nb_ckpt_read(p->ckpt, s, row / NB_CHUNK_ROWS * tile, tiles, tile, err);
    for (size_t i = 0; i < rows && st == NB_OK; i++) {
        for (size_t b = 0; b < kb; b++) out[i * kb + b] = tiles[nb_swizzle_offset(i, b, kb)];
    }
    free(tiles);
    return st;
}

nb_status nb_plan_scale_rows(const nb_plan *p, const nb_module *m, size_t row, size_t rows, bool signs,
                             uint8_t *out, uint8_t *old, nb_error *err)
{
    const nb_tensor_info *s = nb_module_scale(m), *w = nb_module_codes(m);
    const nb_edit plain = {.n = w->shape[0], .kb = w->shape[1] / 8, .stride = w->shape[1] / 8, .ratio = 1};
    const nb_edit *e = nb_plan_edited(p, s);
    if (!e || e->content != NB_CONTENT_SCALES) e = &plain;
    nb_status st = read_rows(p, s, e, row, rows, out, err);
    if (st != NB_OK) return st;
    const size_t n = rows * (size_t)e->kb;
    if (old) memcpy(old, out, n);
    for (size_t i = 0; i < n; i++) {
        uint8_t sign = out[i] & 0x80, byte = out[i];
        if (e->nan_to_max && (byte & 0x7F) == 0x7F) {
            byte = 0x7E;
            sign = 0;
        }
        if (e->unsign && !signs) byte &= 0x7F;
        if (e->ratio != 1) byte = nb_rescale_byte(byte, e->ratio);
        out[i] = e->unsign && signs ? (uint8_t)((byte & 0x7F) | sign) : byte;
    }
    return NB_OK;
}

/* ---- bytes ---- */

bool nb_edit_in_place(const nb_edit *e)
{
    if (e->content == NB_CONTENT_CODES) return true;
    return e->content == NB_CONTENT_SCALES && e->shape == e->from->shape && !e->swizzled &&
           e->stride == e->kb;
}

bool nb_edit_structural(const nb_edit *e)
{
    return !e->from || e->removed || e->name || e->dtype != e->from->dtype || e->shape != e->from->shape;
}

uint64_t nb_edit_bytes(const nb_edit *e)
{
    uint64_t n = nb_dtype_bits(e->dtype);
    if (e->removed) return 0;
    for (size_t i = 0; i < e->rank; i++) n *= e->shape[i];
    return n / 8;
}

/* Work memory for a chunk of rows. */
typedef struct chunk {
    uint8_t *scales, *old_scales, *codes, *old_codes;
    float *floats;
    uint16_t *bf16;
} chunk;

static void chunk_free(chunk *c)
{
    free(c->scales);
    free(c->old_scales);
    free(c->codes);
    free(c->old_codes);
    free(c->floats);
    free(c->bf16);
}

static nb_status chunk_take(chunk *c, size_t k, bool floats, nb_error *err)
{
    size_t n;
    if (!nb_mul(NB_CHUNK_ROWS, k + 1, &n) || n > SIZE_MAX / 8)
        return nb_fail_nomem(err, "rows of a linear", SIZE_MAX);
    c->scales = malloc(n);
    c->old_scales = malloc(n);
    c->codes = malloc(n);
    c->old_codes = malloc(n);
    c->floats = floats ? malloc(n * sizeof *c->floats) : NULL;
    c->bf16 = floats ? malloc(n * sizeof *c->bf16) : NULL;
    if (!c->scales || !c->old_scales || !c->codes || !c->old_codes || (floats && (!c->floats || !c->bf16)))
        return nb_fail_nomem(err, "rows of a linear", n * (floats ? 10 : 4));
    return NB_OK;
}

/* Codes of the rows, negated in blocks whose scale is negative. */
static nb_status code_rows(const nb_plan *p, const nb_module *m, size_t row, size_t rows, chunk *c,
                           nb_error *err)
{
    const nb_tensor_info *w = nb_module_codes(m);
    const size_t half = (size_t)w->shape[1], n = rows * half;
    nb_status st = nb_ckpt_read(p->ckpt, w, row * half, c->old_codes, n, err);
    if (st == NB_OK) st = nb_plan_scale_rows(p, m, row, rows, true, c->scales, NULL, err);
    for (size_t i = 0; i < n && st == NB_OK; i++)
        c->codes[i] = c->scales[i / 8] & 0x80 ? c->old_codes[i] ^ 0x88 : c->old_codes[i];
    return st;
}

static nb_status bf16_rows(const nb_plan *p, const nb_module *m, const nb_linear_src *src, size_t row,
                           size_t rows, chunk *c, nb_error *err)
{
    nb_status st;
    if (!c->floats || !c->bf16)
        return nb_fail_nomem(err, "rows of a linear", rows * src->k); /* chunk_take gave them */
    if (nb_kind_nvfp4(m->kind)) {
        float global;
        st = nb_plan_value(p, nb_module_global(m), &global, err);
        if (st == NB_OK)
            st =
                nb_ckpt_read(p->ckpt, nb_module_codes(m), row * src->k / 2, c->codes, rows * src->k / 2, err);
        if (st == NB_OK) st = nb_plan_scale_rows(p, m, row, rows, true, c->scales, NULL, err);
        if (st == NB_OK)
            nb_nvfp4_dequantise(c->codes, c->scales, nb_as_multiplier(m, global), rows, src->k, c->floats);
    } else {
        st = nb_linear_dequantise(p->ckpt, src, row, rows, c->floats, err);
    }
    for (size_t i = 0; i < rows * src->k && st == NB_OK; i++) c->bf16[i] = nb_bf16_encode(c->floats[i]);
    return st;
}

nb_status nb_edit_produce(const nb_plan *p, const nb_edit *e, nb_emit_fn emit, void *ctx, nb_error *err)
{
    if (e->content == NB_CONTENT_VALUE) return emit(ctx, &e->value, NULL, sizeof e->value, err);
    chunk c = {0};
    const nb_module *m = e->module;
    const nb_tensor_info *w = nb_module_codes(m);
    nb_linear_src src = {.n = (size_t)w->shape[0], .k = (size_t)w->shape[1] * 2};
    nb_status st = NB_OK;
    if (e->content == NB_CONTENT_BF16 && !nb_kind_nvfp4(m->kind))
        st = nb_linear_describe(p->ckpt, m->name, 0, 0, &src, err);
    if (st == NB_OK) st = chunk_take(&c, src.k, e->content == NB_CONTENT_BF16, err);
    for (size_t row = 0; row < src.n && st == NB_OK; row += NB_CHUNK_ROWS) {
        const size_t rows = src.n - row < NB_CHUNK_ROWS ? src.n - row : NB_CHUNK_ROWS;
        switch (e->content) {
        case NB_CONTENT_SCALES:
            st = nb_plan_scale_rows(p, m, row, rows, false, c.scales, c.old_scales, err);
            if (st == NB_OK)
                st =
                    emit(ctx, c.scales, nb_edit_in_place(e) ? c.old_scales : NULL, rows * (size_t)e->kb, err);
            break;
        case NB_CONTENT_CODES:
            st = code_rows(p, m, row, rows, &c, err);
            if (st == NB_OK) st = emit(ctx, c.codes, c.old_codes, rows * src.k / 2, err);
            break;
        default:
            st = bf16_rows(p, m, &src, row, rows, &c, err);
            if (st == NB_OK) st = emit(ctx, c.bf16, NULL, rows * src.k * 2, err);
        }
    }
    chunk_free(&c);
    return st;
}
