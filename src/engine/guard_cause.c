/* Which tensor of the checkpoint is to blame for an operator that is not finite, and in which words. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/guard_internal.h"

#define READ_VALUES ((size_t)1 << 18) /* dequantised at a time */

/* Slots of a layer; those outside layers for any other number. */
static const nb_slot *slots_of(const nb_model *m, int layer, int64_t *l)
{
    bool inside = layer >= 0 && layer < (int)m->cfg.n_layers;
    *l = inside ? layer : -1;
    return inside ? m->layers + (size_t)layer * m->cfg.arch->n_tensors : m->global;
}

const nb_linear_src *nb_guard_source(const nb_model *m, const nb_linear *linear, int layer)
{
    int64_t l;
    const nb_slot *s = slots_of(m, layer, &l);
    size_t i = 0; /* every linear that a tap names is in a slot of its layer */
    while (!s[i].lin || linear < s[i].lin || linear >= s[i].lin + s[i].n_lin) i++;
    return &s[i].src[linear - s[i].lin];
}

static size_t count_nan_bytes(const uint8_t *b, size_t n)
{
    size_t bad = 0;
    for (size_t i = 0; i < n; i++) bad += (b[i] & 0x7F) == 0x7F;
    return bad;
}

nb_status nb_guard_examine(const nb_model *m, nb_patient *p, nb_error *err)
{
    nb_linear_src *s = &p->src;
    nb_status st = NB_OK;
    size_t step = READ_VALUES / s->k + 1, scales = nb_linear_scale_bytes(s, 1);
    uint8_t *codes = malloc(nb_linear_code_bytes(s, step));
    uint8_t *bytes = malloc(step * scales + 1);
    float *v = malloc(step * s->k * sizeof *v);
    p->bad_row = -1;
    if (!codes || !bytes || !v) {
        st = nb_fail_nomem(err, s->module, step * s->k * sizeof *v);
        goto out;
    }
    for (size_t r = 0; s->format == NB_FMT_NVFP4 && r < s->n; r += step) {
        size_t rows = s->n - r < step ? s->n - r : step;
        if ((st = nb_linear_read(m->ckpt, s, r, rows, codes, bytes, err))) goto out;
        p->nan_bytes += count_nan_bytes(bytes, rows * scales);
    }
    if (p->nan_bytes) {
        for (size_t b = 0; b < 256; b++) {
            uint8_t was = s->scale_map ? s->scale_map[b] : (uint8_t)b;
            p->clean[b] = (was & 0x7F) == 0x7F ? 0x7E : was;
        }
        s->scale_map = p->clean;
    }
    for (size_t r = 0; r < s->n && p->bad_row < 0; r += step) {
        size_t rows = s->n - r < step ? s->n - r : step;
        if ((st = nb_linear_dequantise(m->ckpt, s, r, rows, v, err))) goto out;
        for (size_t i = 0; i < rows * s->k && p->bad_row < 0; i++)
            if (!isfinite(v[i])) p->bad_row = (int64_t)(r + i / s->k);
    }
out:
    free(codes);
    free(bytes);
    free(v);
    return st;
}

typedef struct blame {
    const nb_tensor_info *tensor; /* NULL: none is known */
    char why[256];
} blame;

static void blame_linear(const nb_model *m, const nb_linear *l, const nb_patient *p, blame *out)
{
    const nb_linear_src *s = &p->src;
    if (!isfinite(s->multiplier)) {
        out->tensor = s->global ? s->global : s->scale;
        snprintf(out->why, sizeof out->why, "its global scale is %g", (double)s->multiplier);
    } else if (p->bad_row >= 0) {
        out->tensor = s->weight;
        snprintf(out->why, sizeof out->why, "row %lld of its weight holds a value that is not finite",
                 (long long)p->bad_row);
    } else if (m->x->arith == NB_ARITH_W4A4 && l->fp4_input && l->has_input &&
               (!isfinite(l->input_gs) || !isfinite(l->input_multiplier))) {
        out->tensor = s->input;
        snprintf(out->why, sizeof out->why, "its input scale as a multiplier is %g",
                 (double)l->input_multiplier);
    } else if (p->nan_bytes) {
        out->tensor = s->scale;
        snprintf(out->why, sizeof out->why, "%zu of its block scales are NaN bytes", p->nan_bytes);
    } else {
        out->tensor = s->weight;
        snprintf(out->why, sizeof out->why, "its weight is finite, its sums pass the range of F32");
    }
}

/* A parameter of an operator: the tensor of the checkpoint that it was made of, when it holds a value that is not finite. */
static bool blame_param(const nb_model *m, const nb_tensor *t, int layer, blame *out)
{
    const nb_arch *a = m->cfg.arch;
    char name[256];
    int64_t l;
    const nb_slot *s = slots_of(m, layer, &l);
    size_t i = 0;
    while (i < a->n_tensors && (!s[i].t || s[i].t != t)) i++;
    const nb_tensor_info *info = NULL;
    if (i == a->n_tensors ||
        !nb_arch_find(m->ckpt, &m->cfg, &a->tensors[i], l, -1, name, sizeof name, &info) || !info)
        return false;
    size_t n = nb_tensor_elements(info), k = 0;
    float *v = malloc((n + 1) * sizeof *v);
    if (v && nb_ckpt_read_f32(m->ckpt, info, v, NULL) == NB_OK)
        while (k < n && isfinite(v[k])) k++;
    else
        k = n;
    if (k < n) {
        out->tensor = info;
        snprintf(out->why, sizeof out->why, "element %zu of its parameter is %g", k, (double)v[k]);
    }
    free(v);
    return k < n;
}

/* A model may look tokens up in more than one table: the one whose row of this token is not finite, if it can be read. */
static void blame_embedding(const nb_model *m, uint32_t token, blame *out)
{
    const nb_arch *a = m->cfg.arch;
    for (size_t i = 0; i < a->n_tensors && !out->tensor; i++) {
        const nb_linear_src *src = a->tensors[i].role == NB_ROLE_EMBED ? m->global[i].src : NULL;
        float *v = src ? malloc(src->k * sizeof *v) : NULL;
        size_t k = 0;
        if (v && nb_linear_dequantise(m->ckpt, src, token, 1, v, NULL) == NB_OK)
            while (k < src->k && isfinite(v[k])) k++;
        if (v && k < src->k) out->tensor = src->weight;
        free(v);
    }
    snprintf(out->why, sizeof out->why, "the embedding of token %u holds a value that is not finite", token);
}

nb_status nb_guard_name(const nb_model *m, const nb_culprit *c, const nb_patient *p, const char *tried,
                        nb_error *err)
{
    blame b = {0};
    if (c->linear)
        blame_linear(m, c->linear, p, &b);
    else if (c->op && strcmp(c->op, "embed") == 0)
        blame_embedding(m, c->token, &b);
    else
        for (size_t i = 0; i < 3 && !b.tensor; i++)
            if (c->param[i]) blame_param(m, c->param[i], c->layer, &b);
    if (!b.why[0]) snprintf(b.why, sizeof b.why, "what it read is finite, what it made is not");
    char where[32];
    if (c->layer < 0 || c->layer >= (int)m->cfg.n_layers)
        snprintf(where, sizeof where, "%s", c->layer < 0 ? "before the layers" : "after the layers");
    else
        snprintf(where, sizeof where, "layer %d", c->layer);
    nb_fail(err, NB_ERR_FORMAT, "non-finite logits: %s, operator %s%s%s: %s%s%s", where,
            c->op ? c->op : "unknown", c->linear ? " of " : "", c->linear ? c->linear->module : "", b.why,
            tried[0] ? "; tried in vain: " : "", tried);
    if (b.tensor)
        nb_error_at(err, nb_ckpt_file_path(m->ckpt, b.tensor->file), b.tensor->name,
                    (int64_t)b.tensor->begin);
    else if (c->linear)
        nb_error_at(err, nb_ckpt_dir(m->ckpt), c->linear->module, -1);
    nb_error_remedy(err, "nibble check says what is wrong with the folder, nibble repair mends what can be");
    return NB_ERR_FORMAT;
}
