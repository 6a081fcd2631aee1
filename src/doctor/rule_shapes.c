/*
 * NB004: the members of a set are there and do not fit each other. The known ways in which exporters get block scales wrong are
 * recognised by shape, so that the finding says what happened and not only that two numbers differ.
 */
#include <string.h>

#include "doctor/rules.h"

static const nb_effect refused[NB_FAMILY_COUNT] = {
    {NB_EFFECT_REFUSED, "the shapes or dtypes do not fit the kernel's parameters"},
    {NB_EFFECT_REFUSED, "the linear cannot be dequantised"},
    {NB_EFFECT_REFUSED, "the shapes or dtypes do not fit the kernel's parameters"},
    {NB_EFFECT_REFUSED, "no GGUF can be made of it"},
};
static const nb_effect input_entries[NB_FAMILY_COUNT] = {
    {NB_EFFECT_UNDEFINED, "a loader that takes the maximum takes whatever the other entries hold"},
    {NB_EFFECT_FINE, "input scales are not read"},
    {NB_EFFECT_FINE, "input scales are not read"},
    {NB_EFFECT_FINE, "input scales are not read"},
};
static const nb_effect other_float[NB_FAMILY_COUNT] = {
    {NB_EFFECT_FINE, "converted when copied to an F32 parameter; a reader of raw bytes gets another number"},
    {NB_EFFECT_FINE, "converted when copied to an F32 parameter; a reader of raw bytes gets another number"},
    {NB_EFFECT_FINE, "converted when copied to an F32 parameter; a reader of raw bytes gets another number"},
    {NB_EFFECT_FINE, "converted to F32"},
};

typedef struct verdict {
    const char *message;
    bool codes, scales; /* at fault, as far as that can be told */
    bool repairable;
    const char *remedy;
} verdict;

static const char export_again[] = "export this layer again";
static const char unswizzle[] = "put the scales back in row order without padding";

static uint64_t padded(uint64_t v, uint64_t to)
{
    return v > UINT64_MAX - to ? v : (v + to - 1) / to * to;
}

/* Why codes [n, k/2] and these block scales do not fit. Shapes are at fault, dtypes were looked at before. False: they fit. */
static bool compare(const nb_tensor_info *w, const nb_tensor_info *s, unsigned group, verdict *v)
{
    const uint64_t n = w->shape[0], k = w->shape[1] * 2, kb = k / group;
    *v = (verdict){.codes = true, .scales = true, .remedy = export_again};
    if (k % group) {
        v->message = group == 16 ? "the columns of 4-bit codes are no multiple of 16"
                                 : "the columns of 4-bit codes are no multiple of 32";
        v->scales = false;
        return true;
    }
    if (s->rank == 1) {
        v->codes = false;
        bool swizzled = nb_tensor_elements(s) == padded(n, 128) * padded(kb, 4),
             flat = nb_tensor_elements(s) == n * kb;
        v->message = swizzled ? "block scales are stored in the 128x4 order of tensor cores (swizzled, 1-D)"
                     : flat   ? "block scales are stored flat (1-D)"
                              : "block scales are 1-D and their number does not fit the codes";
        v->repairable = swizzled || flat;
        if (v->repairable)
            v->remedy = swizzled ? unswizzle : "give the scales their shape [rows, blocks] back";
        return true;
    }
    if (s->rank != 2) {
        v->codes = false;
        v->message = "block scales must have two dimensions, [rows, blocks]";
        return true;
    }
    const uint64_t rows = s->shape[0], cols = s->shape[1];
    if (rows == n && cols == kb) return false;
    const bool pad_rows = rows == padded(n, 128), pad_cols = cols == padded(kb, 4);
    if ((rows == n || pad_rows) && (cols == kb || pad_cols)) {
        v->codes = false;
        v->message =
            "block scales are padded to 128x4, the tile of tensor cores: swizzled, or with zeros added";
        v->repairable = true;
        v->remedy = unswizzle;
    } else if (rows == kb && cols == n) {
        v->codes = false;
        v->message = "block scales are stored transposed";
    } else if (rows == w->shape[1] && cols == n * 2 / group && n * 2 % group == 0) {
        v->scales = false;
        v->message = "codes are stored transposed";
    } else if (rows == n && cols * 2 == kb) {
        v->codes = false;
        v->message = "there are half as many block scales as the codes need: one for twice as many columns";
    } else if (cols == kb && n && rows > n && rows % n == 0) {
        v->scales = false;
        v->message = "the codes have a part of the rows that the block scales have: one part of a "
                     "tensor-parallel split";
    } else if (cols == kb && rows && rows < n && n % rows == 0) {
        v->codes = false;
        v->message = "the block scales have a part of the rows that the codes have: one part of a "
                     "tensor-parallel split";
    } else {
        v->message = "codes and block scales do not fit each other";
    }
    return true;
}

/* When the architecture says how large the linear is, that decides which of the two is at fault. */
static void blame(const nb_check *c, const nb_module *m, const nb_tensor_info *w, const nb_tensor_info *s,
                  unsigned group, verdict *v)
{
    uint64_t n, k;
    if (!nb_check_wanted(c, m->name, &n, &k)) return;
    const bool codes = w->shape[0] == n && w->shape[1] * 2 == k;
    const bool scales = s->rank == 2 && s->shape[0] == n && s->shape[1] == k / group;
    if (codes == scales) return;
    v->codes = !codes;
    v->scales = !scales;
    if (!scales || !v->repairable) return;
    v->message = "the codes have fewer rows or columns than the block scales and the config: one part of a "
                 "tensor-parallel split";
    v->repairable = false;
    v->remedy = export_again;
}

static size_t add(const nb_check *c, nb_severity severity, const char *message, const nb_tensor_info *t,
                  nb_findings *out)
{
    size_t i = nb_findings_add(out, "NB004", severity, "%s", message);
    nb_findings_tensor(out, i, t->name);
    nb_findings_file(out, i, nb_check_file_of(c, t));
    nb_findings_bytes(out, i, t->begin, t->end);
    nb_findings_effects(out, i, refused);
    return i;
}

static bool dtype_in(const nb_tensor_info *t, const nb_dtype *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (t->dtype == list[i]) return true;
    }
    return false;
}

/* Codes with block scales: NVFP4 and MXFP4. */
static void block_scaled(const nb_check *c, const nb_module *m, nb_findings *out)
{
    static const nb_dtype code_types[] = {NB_DT_U8, NB_DT_I8}, mx_types[] = {NB_DT_F8_E8M0, NB_DT_U8},
                          nv_types[] = {NB_DT_F8_E4M3};
    const nb_tensor_info *w = nb_module_codes(m), *s = nb_module_scale(m);
    const unsigned group = nb_kind_group(m->kind);
    const bool nv = nb_kind_nvfp4(m->kind);
    char have[96], scales_have[96];
    verdict v = {0};
    if (w && !dtype_in(w, code_types, nv ? 1 : 2)) {
        size_t i = add(c, NB_SEVERITY_ERROR, "4-bit codes have the wrong dtype", w, out);
        nb_findings_measured(out, i, "%s", nb_dtype_name(w->dtype));
        nb_findings_expected(out, i, nv ? "U8" : "U8 or I8");
        nb_findings_remedy(out, i, w->dtype == NB_DT_I8, "label the bytes U8");
    }
    if (w && (w->rank != 2 || w->shape[1] > UINT64_MAX / 2)) {
        size_t i =
            add(c, NB_SEVERITY_ERROR, "4-bit codes must have two dimensions, [rows, columns / 2]", w, out);
        nb_findings_measured(out, i, "%s", nb_tensor_shape_text(w, have, sizeof have));
        nb_findings_expected(out, i, "[rows, columns / 2]");
        nb_findings_remedy(out, i, false, export_again);
        return;
    }
    const bool fits = !w || !s || !compare(w, s, group, &v);
    if (s && !dtype_in(s, nv ? nv_types : mx_types, nv ? 1 : 2)) {
        const bool bytes = nb_dtype_bits(s->dtype) == 8;
        size_t i = add(c, NB_SEVERITY_ERROR,
                       fits || s->rank == 2 ? "block scales have the wrong dtype" : v.message, s, out);
        nb_findings_measured(out, i, "%s %s", nb_dtype_name(s->dtype),
                             nb_tensor_shape_text(s, have, sizeof have));
        nb_findings_expected(out, i, nv ? "F8_E4M3" : "F8_E8M0 or U8");
        if (fits || s->rank == 2)
            nb_findings_remedy(out, i, bytes, bytes ? "label the bytes as what they are" : export_again);
        else
            nb_findings_remedy(out, i, v.repairable, "%s", v.remedy);
        if (fits || s->rank != 2) return; /* told, or told in one */
    }
    if (fits) return;
    blame(c, m, w, s, group, &v);
    const nb_tensor_info *at_fault = v.codes ? w : s, *other = at_fault == w ? s : w;
    size_t i = add(c, NB_SEVERITY_ERROR, v.message, at_fault, out);
    nb_findings_tensor(out, i, other->name);
    nb_findings_measured(out, i, "codes %s, block scales %s", nb_tensor_shape_text(w, have, sizeof have),
                         nb_tensor_shape_text(s, scales_have, sizeof scales_have));
    nb_findings_expected(out, i, "block scales [%llu, %llu] beside these codes",
                         (unsigned long long)w->shape[0], (unsigned long long)(w->shape[1] * 2 / group));
    nb_findings_remedy(out, i, v.repairable, "%s", v.remedy);
}

/* gpt-oss' stacks: blocks [E, N, K/32, 16], scales [E, N, K/32]. */
static void stacked(const nb_check *c, const nb_module *m, nb_findings *out)
{
    const nb_tensor_info *b = m->member[NB_MEMBER_BLOCKS], *s = m->member[NB_MEMBER_SCALES];
    char have[96], want[96];
    if (!b || !s) return;
    bool fits = b->rank == 4 && s->rank == 3 && b->shape[3] == 16;
    for (size_t i = 0; fits && i < 3; i++) fits = b->shape[i] == s->shape[i];
    if (fits) return;
    size_t i = add(c, NB_SEVERITY_ERROR, "stacked codes and block scales do not fit each other", s, out);
    nb_findings_tensor(out, i, b->name);
    nb_findings_measured(out, i, "blocks %s, scales %s", nb_tensor_shape_text(b, have, sizeof have),
                         nb_tensor_shape_text(s, want, sizeof want));
    nb_findings_expected(out, i,
                         "blocks [experts, rows, columns / 32, 16], scales [experts, rows, columns / 32]");
    nb_findings_remedy(out, i, false, export_again);
}

static bool in_blocks(uint64_t total, uint64_t block, uint64_t blocks)
{
    return total / block + (total % block != 0) == blocks;
}

/* One scale for each square block of a size in use, or for each such stretch of a row. */
static bool fits_blocks(uint64_t n, uint64_t k, uint64_t rows, uint64_t cols)
{
    for (uint64_t b = 16; b <= 512; b *= 2) {
        if (in_blocks(k, b, cols) && (rows == n || in_blocks(n, b, rows))) return true;
    }
    return false;
}

static void fp8(const nb_check *c, const nb_module *m, nb_findings *out)
{
    static const nb_dtype types[] = {NB_DT_F32, NB_DT_BF16, NB_DT_F16, NB_DT_F8_E8M0, NB_DT_U8};
    const nb_tensor_info *w = nb_module_codes(m), *s = nb_module_scale(m);
    char have[96], scales_have[96];
    if (!w || !s) return;
    if (!dtype_in(s, types, sizeof types / sizeof *types)) {
        size_t i = add(c, NB_SEVERITY_ERROR, "the scale of an FP8 weight has the wrong dtype", s, out);
        nb_findings_measured(out, i, "%s", nb_dtype_name(s->dtype));
        nb_findings_expected(out, i, "F32, BF16, F16 or F8_E8M0");
        nb_findings_remedy(out, i, false, export_again);
        return;
    }
    if (w->rank != 2) return; /* stacks: no rule for their scales */
    const uint64_t n = w->shape[0], k = w->shape[1];
    bool fits = s->rank <= 2 && nb_tensor_elements(s) == 1;
    if (s->rank == 1) fits = fits || s->shape[0] == n;
    if (s->rank == 2)
        fits = fits || (s->shape[0] == n && s->shape[1] == 1) || fits_blocks(n, k, s->shape[0], s->shape[1]);
    if (fits) return;
    size_t i = add(c, NB_SEVERITY_ERROR, "the scales of an FP8 weight do not fit it", s, out);
    nb_findings_tensor(out, i, w->name);
    nb_findings_measured(out, i, "weight %s, scales %s", nb_tensor_shape_text(w, have, sizeof have),
                         nb_tensor_shape_text(s, scales_have, sizeof scales_have));
    nb_findings_expected(out, i, "scales of shape [], [%llu], [%llu, 1] or one for each block of 128 by 128",
                         (unsigned long long)n, (unsigned long long)n);
    nb_findings_remedy(out, i, false, export_again);
}

/* A global or activation scale: one F32. */
static void scalar(const nb_check *c, const nb_tensor_info *t, bool input, nb_findings *out)
{
    char have[96];
    if (!t) return;
    if (t->rank > 1 || nb_tensor_elements(t) != 1) {
        size_t i = add(
            c, NB_SEVERITY_ERROR,
            input ? "an input scale must be one number" : "a weight global scale must be one number", t, out);
        nb_findings_measured(out, i, "%s %s", nb_dtype_name(t->dtype),
                             nb_tensor_shape_text(t, have, sizeof have));
        nb_findings_expected(out, i, "F32 of shape [] or [1]");
        nb_findings_remedy(out, i, false, "%s",
                           input ? "keep the entry that was calibrated; fused shards share one scale"
                                 : "export this layer again with one scale; fused shards share it");
        if (input) nb_findings_effects(out, i, input_entries);
    }
    if (t->dtype == NB_DT_F32) return;
    const bool narrow = t->dtype == NB_DT_BF16 || t->dtype == NB_DT_F16 || t->dtype == NB_DT_F64;
    size_t i =
        add(c, narrow ? NB_SEVERITY_WARNING : NB_SEVERITY_ERROR,
            narrow ? "a global scale is stored in another float type than F32" : "a global scale is no float",
            t, out);
    nb_findings_measured(out, i, "%s", nb_dtype_name(t->dtype));
    nb_findings_expected(out, i, "F32");
    nb_findings_remedy(out, i, narrow, "%s", narrow ? "convert it to F32: the value stays" : export_again);
    if (narrow) nb_findings_effects(out, i, other_float);
}

/* Two members that mean the same and may differ. */
static void contradiction(const nb_check *c, const nb_module *m, nb_findings *out)
{
    static const nb_member groups[2][3] = {{NB_MEMBER_PACKED, NB_MEMBER_WEIGHT, NB_MEMBER_WEIGHT},
                                           {NB_MEMBER_SCALE, NB_MEMBER_SCALE_INV, NB_MEMBER_DOT_SCALE}};
    for (size_t g = 0; g < 2; g++) {
        const nb_tensor_info *first = NULL;
        for (size_t k = 0; k < 3; k++) {
            const nb_tensor_info *t = m->member[groups[g][k]];
            if (!t || t == first || (g == 1 && !nb_module_uses(m, groups[g][k]))) continue;
            if (first) {
                size_t i = add(c, NB_SEVERITY_ERROR, "two tensors hold the same part of one linear", t, out);
                nb_findings_tensor(out, i, first->name);
                nb_findings_measured(out, i, "%s and %s", strrchr(first->name, '.') + 1,
                                     strrchr(t->name, '.') + 1);
                nb_findings_expected(out, i, "one of them");
                nb_findings_remedy(out, i, false, "remove the one that does not belong to this export");
            }
            first = first ? first : t;
        }
    }
}

nb_status nb_rule_shapes(const nb_check *c, nb_findings *out, nb_error *err)
{
    for (size_t i = 0; i < c->modules.count; i++) {
        const nb_module *m = &c->modules.items[i];
        switch (m->kind) {
        case NB_KIND_NVFP4_CT:
        case NB_KIND_NVFP4_MODELOPT:
        case NB_KIND_MXFP4: block_scaled(c, m, out); break;
        case NB_KIND_MXFP4_BLOCKS: stacked(c, m, out); break;
        case NB_KIND_FP8: fp8(c, m, out); break;
        default: continue;
        }
        contradiction(c, m, out);
        scalar(c, nb_module_global(m), false, out);
        if (m->kind != NB_KIND_MXFP4) scalar(c, nb_module_input(m), true, out);
    }
    return nb_rule_swizzle(c, out, err);
}
