/*
 * NB004: what is stored in another order or under another type and means the same. Swizzled or padded is told by where the
 * zeros of the padding lie; where that does not decide, nothing is done.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "doctor/repair_plan.h"
#include "numerics/nvfp4.h"

static uint64_t padded(uint64_t v, uint64_t to)
{
    return v > UINT64_MAX - to ? v : (v + to - 1) / to * to;
}

/* Whether the padding is zero when the bytes are taken for rows of `stride`, and when they are taken for 128x4 tiles. A slab of
 * 128 rows at a time: rows are a multiple of 128 and stride, for tiles, a multiple of 4. */
static nb_status padding(const nb_plan *p, const nb_tensor_info *s, uint64_t n, uint64_t kb, uint64_t rows,
                         uint64_t stride, bool *in_rows, bool *in_tiles, nb_error *err)
{
    const size_t slab = (size_t)stride * NB_CHUNK_ROWS;
    uint8_t *bytes = malloc(slab + 1);
    nb_status st = bytes ? NB_OK : nb_fail_nomem(err, "a slab of block scales", slab);
    *in_rows = true;
    *in_tiles = stride % 4 == 0;
    for (uint64_t row = 0; row < rows && st == NB_OK; row += NB_CHUNK_ROWS) {
        st = nb_ckpt_read(p->ckpt, s, row * stride, bytes, slab, err);
        for (size_t r = 0; r < NB_CHUNK_ROWS && st == NB_OK; r++) {
            for (size_t b = 0; b < stride; b++) {
                if (row + r < n && b < kb) continue;
                *in_rows = *in_rows && !bytes[r * stride + b];
                *in_tiles = *in_tiles && !bytes[nb_swizzle_offset(r, b, (size_t)stride)];
            }
        }
    }
    free(bytes);
    return st;
}

/* Block scales whose shape is not [n, kb]. */
static nb_status layout(nb_plan *p, const nb_finding *f, const nb_module *m, nb_error *err)
{
    const nb_tensor_info *s = nb_module_scale(m), *w = nb_module_codes(m);
    const uint64_t n = w->shape[0], kb = w->shape[1] / 8, elements = nb_tensor_elements(s);
    uint64_t rows = padded(n, NB_CHUNK_ROWS), stride = padded(kb, 4);
    bool in_rows = false, in_tiles = false;
    nb_status st;
    if (s->rank == 1 && elements == n * kb && elements != rows * stride) {
        in_rows = true;
        stride = kb;
    } else if (s->rank == 1 && elements == rows * stride) {
        /* A flat row-major export would have no padding; without any, tiles are the only order met in the wild. */
        if ((st = padding(p, s, n, kb, rows, stride, &in_rows, &in_tiles, err))) return st;
        in_rows = false;
    } else if (s->rank == 2 && (s->shape[0] == n || s->shape[0] == rows) &&
               (s->shape[1] == kb || s->shape[1] == stride)) {
        stride = s->shape[1];
        if (s->shape[0] == rows) {
            if ((st = padding(p, s, n, kb, rows, stride, &in_rows, &in_tiles, err))) return st;
        } else {
            in_rows = true; /* 128x4 tiles have whole rows of tiles */
        }
    }
    if (in_rows == in_tiles) {
        nb_repair_note(
            &p->refused, f->rule, s->name, -1, "%s",
            in_rows ? "the padding is zero in row order and in 128x4 order: which it is cannot be told"
                    : "the block scales are in no order that the codes confirm; export this layer again");
        return NB_OK;
    }
    nb_edit *e = nb_plan_scales(p, m);
    if (!e) return nb_fail_nomem(err, "a plan", sizeof *e);
    e->swizzled = in_tiles;
    e->stride = stride;
    e->dtype = NB_DT_F8_E4M3;
    e->rank = 2;
    e->own[0] = n;
    e->own[1] = kb;
    e->shape = e->own;
    nb_repair_note(&p->applied, f->rule, s->name, 0, "%s",
                   in_tiles       ? "block scales put back from 128x4 order into rows: equal weights"
                   : s->rank == 1 ? "block scales given their shape [rows, blocks] back: equal weights"
                                  : "padding of the block scales cut off: equal weights");
    return NB_OK;
}

nb_status nb_fix_shapes(nb_plan *p, const nb_finding *f, nb_error *err)
{
    static const char again[] = "the bytes of another shape are not in the file; export this layer again";
    nb_member member;
    const nb_module *m = f->n_tensors ? nb_plan_module(p, f->tensors[0], &member) : NULL;
    const nb_tensor_info *t = m ? m->member[member] : NULL;
    if (!t || !f->repairable || !nb_kind_nvfp4(m->kind)) {
        for (size_t i = 0; i < f->n_tensors; i++)
            nb_repair_note(&p->refused, f->rule, f->tensors[i], -1, "%s", f->remedy ? f->remedy : again);
        return NB_OK;
    }
    const nb_tensor_info *s = nb_module_scale(m), *w = nb_module_codes(m);
    if (t == nb_module_global(m) || t == nb_module_input(m)) {
        float v;
        nb_status st = nb_plan_value(p, t, &v, err);
        if (st == NB_OK) st = nb_plan_set_value(p, t, v, err);
        if (st == NB_OK) nb_repair_note(&p->applied, f->rule, t->name, 0, "converted to F32: equal value");
        return st;
    }
    nb_edit *e = nb_plan_edit(p, t);
    if (!e) return nb_fail_nomem(err, "a plan", sizeof *e);
    if (t == w) {
        e->dtype = NB_DT_U8;
        nb_repair_note(&p->applied, f->rule, t->name, 0, "labelled U8: equal bytes");
        return NB_OK;
    }
    if (!s || t != s || !w || w->rank != 2 || w->shape[1] % 8 || nb_dtype_bits(s->dtype) != 8) {
        nb_repair_note(&p->refused, f->rule, t->name, -1, "%s", again);
        return NB_OK;
    }
    if (s->rank != 2 || s->shape[0] != w->shape[0] || s->shape[1] != w->shape[1] / 8)
        return layout(p, f, m, err);
    e->dtype = NB_DT_F8_E4M3;
    nb_repair_note(&p->applied, f->rule, t->name, 0, "labelled F8_E4M3: equal bytes");
    return NB_OK;
}
