/*
 * NB101 to NB107: scales that hold a value no scale can have, none at all, or another than their siblings. What an expert's lost
 * scale was is not in the file; the layer's largest is the value that cannot clip more than the others do, and the log says that
 * it was filled.
 */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/repair_plan.h"
#include "numerics/formats.h"

static const char other_format[] =
    "this repair knows NVFP4 linears alone, with codes and block scales; export this layer again";

/* A set that can be edited: codes in rows of bytes, and block scales of a byte each, in whatever shape. */
static bool editable(const nb_module *m)
{
    const nb_tensor_info *w = nb_module_codes(m), *s = nb_module_scale(m);
    return nb_kind_nvfp4(m->kind) && w && s && w->rank == 2 && w->shape[1] % 8 == 0 &&
           nb_dtype_bits(w->dtype) == 8 && nb_dtype_bits(s->dtype) == 8;
}

/* The NVFP4 module whose complete set the named tensor belongs to, or NULL with the refusal noted. */
static const nb_module *nvfp4(nb_plan *p, const char *rule, const char *tensor, nb_member *member)
{
    const nb_module *m = nb_plan_module(p, tensor, member);
    if (m && editable(m)) return m;
    nb_repair_note(&p->refused, rule, tensor, -1, "%s", other_format);
    return NULL;
}

/* True when the block scales lie, or will lie, in rows beside the codes. Of a sibling not even that is known that it has any. */
static bool scales_fit(const nb_plan *p, const nb_module *m)
{
    const nb_tensor_info *s = nb_module_scale(m), *w = nb_module_codes(m);
    if (!editable(m)) return false;
    const nb_edit *e = nb_plan_edited(p, s);
    if (e && e->content == NB_CONTENT_SCALES) return true;
    return s->rank == 2 && s->shape[0] == w->shape[0] && s->shape[1] == w->shape[1] / 8;
}

nb_status nb_fix_nan_bytes(nb_plan *p, const nb_finding *f, nb_error *err)
{
    for (size_t i = 0; i < f->n_tensors; i++) {
        nb_member member;
        const nb_module *m = nvfp4(p, f->rule, f->tensors[i], &member);
        if (!m) continue;
        if (!scales_fit(p, m)) {
            nb_repair_note(&p->refused, f->rule, f->tensors[i], -1, "the block scales do not fit the codes");
            continue;
        }
        nb_edit *e = nb_plan_scales(p, m);
        if (!e) return nb_fail_nomem(err, "a plan", sizeof *e);
        e->nan_to_max = true;
        nb_repair_note(
            &p->applied, f->rule, f->tensors[i], -1,
            "NaN bytes among the block scales set to 0x7E (448): the overflow that made them saturated");
    }
    return NB_OK;
}

nb_status nb_fix_signs(nb_plan *p, const nb_finding *f, nb_error *err)
{
    for (size_t i = 0; i < f->n_tensors; i++) {
        nb_member member;
        const nb_module *m = nvfp4(p, f->rule, f->tensors[i], &member);
        if (!m) continue;
        if (!scales_fit(p, m)) {
            nb_repair_note(&p->refused, f->rule, f->tensors[i], -1, "the block scales do not fit the codes");
            continue;
        }
        nb_edit *e = nb_plan_scales(p, m), *w = nb_plan_edit(p, nb_module_codes(m));
        if (!e || !w) return nb_fail_nomem(err, "a plan", sizeof *e);
        e->unsign = true;
        w->content = NB_CONTENT_CODES;
        w->module = m;
        nb_repair_note(&p->applied, f->rule, f->tensors[i], 0,
                       "signs of block scales moved into the codes of their blocks: equal weights");
    }
    return NB_OK;
}

/* ---- siblings ---- */

size_t nb_plan_siblings(const nb_plan *p, const nb_module *m, const nb_module *out[3])
{
    static const char *const sets[][3] = {
        {"q_proj", "k_proj", "v_proj"},
        {"gate_proj", "up_proj"},
        {"w1", "w3"},
        {"wgate", "up_proj"},
        {"q_a_proj", "kv_proj"},
        {"q_a_proj", "kv_a_proj_with_mqa"},
        {"wq_a", "wkv"},
    };
    const char *dot = strrchr(m->name, '.'), *last = dot ? dot + 1 : m->name;
    const int parent = (int)(last - m->name);
    for (size_t s = 0; s < sizeof sets / sizeof *sets; s++) {
        size_t n = 0;
        bool mine = false, whole = true;
        for (size_t k = 0; k < 3 && sets[s][k]; k++) {
            char name[1024]; /* a longer name has no siblings worth speaking of */
            const int len = snprintf(name, sizeof name, "%.*s%s", parent, m->name, sets[s][k]);
            const nb_module *q = len < (int)sizeof name ? nb_modules_find(&p->modules, name) : NULL;
            mine = mine || strcmp(sets[s][k], last) == 0;
            if (q && nb_kind_nvfp4(q->kind))
                out[n++] = q;
            else
                whole = false;
        }
        if (mine && whole) return n;
    }
    out[0] = m;
    return 1;
}

/* The next expert's module of the same layer and projection: *e counts from 0; false after the last. */
static bool next_expert(const nb_plan *p, const nb_module *m, unsigned *e, const nb_module **out)
{
    const char *number = strstr(m->name, "experts.");
    if (!number || !isdigit((unsigned char)number[8])) return false;
    number += 8;
    const char *rest = number + strspn(number, "0123456789");
    for (unsigned gap = 0; gap < 64;
         gap++, (*e)++) { /* numbers may be missing: that is another rule's matter */
        char name[1024];
        const int len = snprintf(name, sizeof name, "%.*s%u%s", (int)(number - m->name), m->name, *e, rest);
        *out = len < (int)sizeof name ? nb_modules_find(&p->modules, name) : NULL;
        if (!*out) continue;
        (*e)++;
        return true;
    }
    return false;
}

static const nb_tensor_info *part(const nb_module *m, bool input)
{
    return input ? nb_module_input(m) : nb_module_global(m);
}

/* A multiplier that was measured or computed, as far as the findings say. */
static nb_status healthy(const nb_plan *p, const nb_module *m, bool input, float *out, bool *yes,
                         nb_error *err)
{
    const nb_tensor_info *t = part(m, input);
    *yes = false;
    if (!t || !nb_kind_nvfp4(m->kind)) return NB_OK;
    const nb_edit *e = nb_plan_edited(p, t);
    if (!e && nb_map_get(&p->suspects, t->name, strlen(t->name), NULL)) return NB_OK;
    nb_status st = nb_plan_value(p, t, out, err);
    *out = nb_as_multiplier(m, *out);
    *yes = st == NB_OK && nb_repair_usable(*out);
    return st;
}

/* What stands in for m's bad or missing scale: that of a fused sibling, which has the same input and the same scale in every
 * sound export; else, for an expert, the largest of the layer's. *how says which; NULL: nothing does. */
static nb_status stand_in(const nb_plan *p, const nb_module *m, bool input, float *out, const char **how,
                          nb_error *err)
{
    const nb_module *fused[3], *q;
    float v, top = 0;
    bool yes;
    nb_status st;
    *how = NULL;
    for (size_t i = 0, n = nb_plan_siblings(p, m, fused); i < n; i++) {
        if (fused[i] == m) continue;
        if ((st = healthy(p, fused[i], input, &v, &yes, err))) return st;
        if (yes && v > top) top = v;
    }
    if (top > 0) {
        *how = input ? "filled with the input scale of its fused sibling, which has the same input"
                     : "filled with the global scale of its fused sibling, which shares it";
        *out = top;
        return NB_OK;
    }
    /* Of what is fused with the other experts' projections, too: gate and up that both lack one get the same number. */
    for (unsigned e = 0; next_expert(p, m, &e, &q);) {
        for (size_t i = 0, n = nb_plan_siblings(p, q, fused); i < n; i++) {
            if (fused[i] == m) continue;
            if ((st = healthy(p, fused[i], input, &v, &yes, err))) return st;
            if (yes && v > top) top = v;
        }
    }
    if (top > 0)
        *how = input ? "filled with the largest input scale of the layer's other experts: a guess, not a "
                       "measurement"
                     : "filled with the largest global scale of the layer's other experts: a guess, the "
                       "weights may "
                       "be too large";
    *out = top;
    return NB_OK;
}

/* Gives m's scale this multiplier; a missing one is added, in the shape that its flavour has. */
static nb_status put(nb_plan *p, const nb_module *m, bool input, float multiplier, nb_error *err)
{
    const nb_tensor_info *t = part(m, input);
    const bool ct = m->kind == NB_KIND_NVFP4_CT;
    const float stored = ct ? 1.0f / multiplier : multiplier;
    if (t) return nb_plan_set_value(p, t, stored, err);
    const char *suffix = nb_member_suffix(input ? (ct ? NB_MEMBER_INPUT_GLOBAL : NB_MEMBER_INPUT)
                                                : (ct ? NB_MEMBER_GLOBAL : NB_MEMBER_SCALE_2));
    nb_edit *e = nb_plan_new(p, m, suffix, nb_module_codes(m));
    if (!e) return nb_fail_nomem(err, "a plan", sizeof *e);
    e->content = NB_CONTENT_VALUE;
    e->dtype = NB_DT_F32;
    e->rank = ct;
    e->own[0] = 1;
    e->value = stored;
    if (input) p->measured[m - p->modules.items] = true; /* two findings may name it: once is enough */
    return NB_OK;
}

/* True when a fused sibling keeps another usable scale, so that filling in this one makes a fault of two scales (NB107). */
static nb_status clashes(const nb_plan *p, const nb_module *m, bool input, float fill, bool *yes,
                         nb_error *err)
{
    const nb_module *fused[3];
    nb_status st = NB_OK;
    *yes = false;
    for (size_t i = 0, n = nb_plan_siblings(p, m, fused); i < n && st == NB_OK; i++) {
        const nb_tensor_info *t = part(fused[i], input);
        float v;
        if (fused[i] == m || !t) continue;
        st = nb_plan_value(p, t, &v, err);
        v = nb_as_multiplier(fused[i], v);
        *yes = *yes || (st == NB_OK && nb_repair_usable(v) && fabsf(v / fill - 1) > 1e-6f);
    }
    return st;
}

nb_status nb_fix_globals(nb_plan *p, const nb_finding *f, nb_error *err)
{
    for (size_t i = 0; i < f->n_tensors; i++) {
        nb_member member;
        const nb_module *lacking = nb_plan_module(p, f->tensors[i], &member);
        if (strcmp(f->rule, "NB005") == 0 &&
            (!lacking || nb_module_input(lacking) ||
             (member != NB_MEMBER_INPUT && member != NB_MEMBER_INPUT_GLOBAL))) {
            nb_repair_note(&p->refused, f->rule, f->tensors[i], -1, "%s",
                           f->remedy ? f->remedy : "export again");
            continue; /* of an expert's set only the input scale can be filled */
        }
        const nb_module *m = nvfp4(p, f->rule, f->tensors[i], &member);
        if (!m) continue;
        const bool input = member == NB_MEMBER_INPUT || member == NB_MEMBER_INPUT_GLOBAL;
        if (input && (nb_plan_dequantised(p, m) || nb_plan_measured(p, m)))
            continue; /* mended by what is better */
        const char *how;
        float v;
        bool mixed = false;
        nb_status st = stand_in(p, m, input, &v, &how, err);
        if (st == NB_OK && how && !nb_plan_chosen(p, "NB107")) st = clashes(p, m, input, v, &mixed, err);
        if (st == NB_OK && how && !mixed) st = put(p, m, input, v, err);
        if (st != NB_OK) return st;
        if (mixed) {
            nb_repair_note(
                &p->refused, f->rule, f->tensors[i], -1, "%s",
                "its fused siblings would have another scale, a fault that loaders make worse: name "
                "NB107 in --only, too");
            continue;
        }
        if (how)
            nb_repair_note(&p->applied, f->rule, f->tensors[i], -1, "%s", how);
        else
            nb_repair_note(
                &p->refused, f->rule, f->tensors[i], -1, "%s",
                input ? "no sibling has a sound input scale, so nothing in the file tells it: measure it "
                        "(nibble calibrate DIR -o FILE, then repair --scales FILE), or --dequant the module"
                      : "no sibling has a sound global scale, so nothing in the file tells the weights' "
                        "size: export this layer again");
    }
    return NB_OK;
}

/* Which bytes occur among the module's block scales, as they will be. */
static nb_status bytes_seen(const nb_plan *p, const nb_module *m, bool seen[256], nb_error *err)
{
    const nb_tensor_info *w = nb_module_codes(m);
    const size_t n = (size_t)w->shape[0], kb = (size_t)w->shape[1] / 8;
    uint8_t *rows = malloc(NB_CHUNK_ROWS * kb + 1);
    nb_status st = rows ? NB_OK : nb_fail_nomem(err, "rows of block scales", NB_CHUNK_ROWS * kb);
    for (size_t row = 0; row < n && st == NB_OK; row += NB_CHUNK_ROWS) {
        size_t count = n - row < NB_CHUNK_ROWS ? n - row : NB_CHUNK_ROWS;
        st = nb_plan_scale_rows(p, m, row, count, false, rows, NULL, err);
        for (size_t i = 0; i < count * kb && st == NB_OK; i++) seen[rows[i]] = true;
    }
    free(rows);
    return st;
}

/* The worst relative change that a ratio makes to the module's block scales. */
static nb_status rescale_error(const nb_plan *p, const nb_module *m, float ratio, double *worst,
                               nb_error *err)
{
    bool seen[256] = {false};
    nb_status st = bytes_seen(p, m, seen, err);
    for (int b = 0; b < 256 && st == NB_OK; b++) {
        double exact = (double)nb_e4m3_table[b] * ratio,
               now = nb_e4m3_table[nb_rescale_byte((uint8_t)b, ratio)];
        if (seen[b] && exact != 0) *worst = fmax(*worst, fabs(now / exact - 1));
    }
    return st;
}

/* True when the block scales of the module, or of a sibling that shares its global scale, reach as far up as a quantiser makes
 * them (448, or 256 and 384 where blocks map their maximum to 4): then only the global scale can be wrong. */
static nb_status reach_up(const nb_plan *p, const nb_module *m, bool *yes, nb_error *err)
{
    const nb_module *group[3];
    nb_status st = NB_OK;
    *yes = false;
    for (size_t i = 0, n = nb_plan_siblings(p, m, group); i < n && st == NB_OK && !*yes; i++) {
        bool seen[256] = {false};
        if (!scales_fit(p, group[i])) continue;
        st = bytes_seen(p, group[i], seen, err);
        for (int b = 0x78; b <= 0x7E; b++) *yes = *yes || seen[b];
    }
    return st;
}

nb_status nb_fix_direction(nb_plan *p, const nb_finding *f, nb_error *err)
{
    for (size_t i = 0; i < f->n_tensors; i++) {
        nb_member member;
        const nb_module *m = nvfp4(p, f->rule, f->tensors[i], &member);
        if (!m) continue;
        const bool input = member == NB_MEMBER_INPUT || member == NB_MEMBER_INPUT_GLOBAL;
        const nb_tensor_info *t = part(m, input);
        float v;
        if (!t || (input && (nb_plan_dequantised(p, m) || nb_plan_measured(p, m)))) continue;
        bool whole = true;
        nb_status st = nb_plan_value(p, t, &v, err);
        if (st == NB_OK && !input) st = reach_up(p, m, &whole, err);
        if (st != NB_OK) return st;
        if (!nb_repair_usable(v) || nb_as_multiplier(m, v) <= 1 || !whole) {
            if (nb_plan_edited(p, t)) continue; /* turned round already */
            nb_repair_note(&p->refused, f->rule, t->name, -1,
                           "the scale does not belong to these block scales, and its reciprocal would not "
                           "either: which of the "
                           "two is wrong cannot be told; export this layer again");
            continue;
        }
        if ((st = nb_plan_set_value(p, t, 1.0f / v, err))) return st;
        nb_repair_note(&p->applied, f->rule, t->name, 0x1p-24, "replaced by its reciprocal");
    }
    return NB_OK;
}

/* ---- NB107 ---- */

/* One group of fused siblings gets the largest multiplier among them. */
static nb_status align(nb_plan *p, const char *rule, const nb_module *const *group, size_t n, bool input,
                       nb_error *err)
{
    float m[3], stored[3], top = 0;
    size_t at = 0;
    nb_status st = NB_OK;
    for (size_t i = 0; i < n; i++) {
        const nb_tensor_info *t = part(group[i], input);
        if (!t) return NB_OK; /* a missing one is another rule's matter */
        if ((st = nb_plan_value(p, t, &stored[i], err))) return st;
        m[i] = nb_as_multiplier(group[i], stored[i]);
        if (!nb_repair_usable(m[i])) {
            nb_repair_note(&p->refused, rule, t->name, -1, "one of the siblings has no usable scale");
            return NB_OK;
        }
        if (!input && !scales_fit(p, group[i])) {
            nb_repair_note(&p->refused, rule, t->name, -1,
                           "the block scales of %s are missing or do not fit the codes", group[i]->name);
            return NB_OK;
        }
        if (m[i] > top) top = m[at = i];
    }
    for (size_t i = 0; i < n; i++) {
        if (stored[i] == stored[at]) continue;
        double worst = 0;
        if (!input) {
            /* From the stored numbers: of divisors the quotient is the other way round, and has one rounding less. */
            const bool ct = group[i]->kind == NB_KIND_NVFP4_CT;
            const float ratio = ct ? stored[at] / stored[i] : stored[i] / stored[at];
            if ((st = rescale_error(p, group[i], ratio, &worst, err))) return st;
            nb_edit *e = nb_plan_scales(p, group[i]);
            if (!e) return nb_fail_nomem(err, "a plan", sizeof *e);
            e->ratio = ratio;
        }
        if ((st = nb_plan_set_value(p, part(group[i], input), stored[at], err))) return st;
        nb_repair_note(
            &p->applied, rule, part(group[i], input)->name, worst, "%s",
            input ? "set to the largest input scale of its fused siblings, which have the same input"
                  : "set to the largest global scale of its fused siblings; block scales rescaled by the "
                    "ratio, nearest E4M3");
    }
    return NB_OK;
}

nb_status nb_fix_siblings(nb_plan *p, const nb_finding *f, nb_error *err)
{
    for (size_t i = 0; i < f->n_tensors; i++) {
        nb_member member;
        const nb_module *m = nvfp4(p, f->rule, f->tensors[i], &member), *group[3];
        if (!m) continue;
        const bool input = member == NB_MEMBER_INPUT || member == NB_MEMBER_INPUT_GLOBAL;
        if (nb_plan_dequantised(p, m) || (input && nb_plan_measured(p, m))) continue;
        size_t n = nb_plan_siblings(p, m, group);
        if (n < 2) {
            nb_repair_note(&p->refused, f->rule, f->tensors[i], -1,
                           "which linears are fused with this one is not known");
            continue;
        }
        /* The first name of a group aligns all of it; the others then find them equal. */
        nb_status st = align(p, f->rule, group, n, input, err);
        if (st != NB_OK) return st;
    }
    return NB_OK;
}
