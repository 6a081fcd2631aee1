/*
 * Putting tensors together by module. A module's kind is told as linear.c tells it where its set is whole; where members
 * are missing, what is left is compared with its class and then with the whole file, because "the block scales are missing" can
 * only be said by someone who knows that there should be some.
 */
#include "doctor/modules.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

#define SUFFIX(text)                                                                                         \
    {                                                                                                        \
        text, sizeof(text) - 1                                                                               \
    }
static const struct {
    const char *text;
    size_t len;
} suffixes[NB_MEMBER_COUNT] = {
    SUFFIX(".weight_packed"),    SUFFIX(".weight"),
    SUFFIX("_blocks"),           SUFFIX(".weight_scale"),
    SUFFIX(".weight_scale_inv"), SUFFIX(".scale"),
    SUFFIX("_scales"),           SUFFIX(".weight_global_scale"),
    SUFFIX(".weight_scale_2"),   SUFFIX(".input_global_scale"),
    SUFFIX(".input_scale"),      SUFFIX(".bias"),
};

static const char *const kind_names[NB_KIND_COUNT] = {
    "no linear",
    "another scheme",
    "float",
    "FP8",
    "MXFP4",
    "MXFP4 (stacked)",
    "NVFP4 (compressed-tensors)",
    "NVFP4 (ModelOpt)",
};

const char *nb_member_suffix(nb_member m)
{
    return suffixes[m].text;
}

const char *nb_kind_name(nb_kind k)
{
    return kind_names[k];
}

unsigned nb_kind_group(nb_kind k)
{
    return nb_kind_nvfp4(k) ? 16 : k == NB_KIND_MXFP4 || k == NB_KIND_MXFP4_BLOCKS ? 32 : 0;
}

nb_member nb_member_of(const char *tensor, size_t *len)
{
    const size_t n = strlen(tensor);
    for (int m = 0; m < NB_MEMBER_COUNT; m++) {
        const size_t s = suffixes[m].len;
        if (n <= s || tensor[n - s] != suffixes[m].text[0] ||
            memcmp(tensor + n - s, suffixes[m].text, s) != 0)
            continue;
        *len = n - s;
        return (nb_member)m;
    }
    return NB_MEMBER_COUNT;
}

const nb_tensor_info *nb_module_codes(const nb_module *m)
{
    if (m->member[NB_MEMBER_PACKED]) return m->member[NB_MEMBER_PACKED];
    return m->member[NB_MEMBER_WEIGHT] ? m->member[NB_MEMBER_WEIGHT] : m->member[NB_MEMBER_BLOCKS];
}

const nb_tensor_info *nb_module_scale(const nb_module *m)
{
    static const nb_member order[] = {NB_MEMBER_SCALE, NB_MEMBER_SCALE_INV, NB_MEMBER_DOT_SCALE,
                                      NB_MEMBER_SCALES};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        if (m->member[order[i]] && nb_module_uses(m, order[i])) return m->member[order[i]];
    }
    return NULL;
}

const nb_tensor_info *nb_module_global(const nb_module *m)
{
    if (m->kind == NB_KIND_NVFP4_CT) return m->member[NB_MEMBER_GLOBAL];
    return m->kind == NB_KIND_NVFP4_MODELOPT ? m->member[NB_MEMBER_SCALE_2] : NULL;
}

const nb_tensor_info *nb_module_input(const nb_module *m)
{
    return m->member[m->kind == NB_KIND_NVFP4_CT ? NB_MEMBER_INPUT_GLOBAL : NB_MEMBER_INPUT];
}

bool nb_module_uses(const nb_module *m, nb_member member)
{
    static const unsigned fp8 = 1u << NB_MEMBER_WEIGHT | 1u << NB_MEMBER_SCALE | 1u << NB_MEMBER_SCALE_INV |
                                1u << NB_MEMBER_DOT_SCALE | 1u << NB_MEMBER_INPUT | 1u << NB_MEMBER_BIAS;
    static const unsigned used[NB_KIND_COUNT] = {
        [NB_KIND_NONE] = ~0u,
        [NB_KIND_OTHER] = ~0u,
        [NB_KIND_FLOAT] = 1u << NB_MEMBER_WEIGHT | 1u << NB_MEMBER_BIAS,
        [NB_KIND_FP8] = fp8,
        [NB_KIND_MXFP4] = (fp8 | 1u << NB_MEMBER_PACKED) & ~(1u << NB_MEMBER_INPUT),
        [NB_KIND_MXFP4_BLOCKS] = 1u << NB_MEMBER_BLOCKS | 1u << NB_MEMBER_SCALES,
        [NB_KIND_NVFP4_CT] = 1u << NB_MEMBER_PACKED | 1u << NB_MEMBER_SCALE | 1u << NB_MEMBER_GLOBAL |
                             1u << NB_MEMBER_INPUT_GLOBAL | 1u << NB_MEMBER_BIAS,
        [NB_KIND_NVFP4_MODELOPT] = 1u << NB_MEMBER_WEIGHT | 1u << NB_MEMBER_SCALE | 1u << NB_MEMBER_SCALE_2 |
                                   1u << NB_MEMBER_INPUT | 1u << NB_MEMBER_BIAS,
    };
    return used[m->kind] >> member & 1;
}

static bool is_float(const nb_tensor_info *t)
{
    return t->dtype == NB_DT_BF16 || t->dtype == NB_DT_F16 || t->dtype == NB_DT_F32 || t->dtype == NB_DT_F64;
}

/* One scale for every `group` columns of 4-bit codes. */
static bool per_group(const nb_tensor_info *codes, const nb_tensor_info *scale, unsigned group)
{
    return codes->rank == 2 && scale->rank == 2 && codes->shape[1] <= UINT64_MAX / 2 &&
           codes->shape[1] * 2 / group == scale->shape[1] && scale->shape[1];
}

/* weight_packed, with or without scales. Globals were looked at before. */
static bool packed_kind(const nb_module *m, nb_kind *out)
{
    const nb_tensor_info *p = m->member[NB_MEMBER_PACKED], *s = m->member[NB_MEMBER_SCALE];
    if (!s) s = m->member[NB_MEMBER_DOT_SCALE];
    if (!s) return false;
    bool mx = s->dtype == NB_DT_F8_E8M0 || (s->dtype == NB_DT_U8 && !per_group(p, s, 16));
    *out = mx ? NB_KIND_MXFP4 : NB_KIND_NVFP4_CT;
    return true;
}

/* weight of 4-bit codes (U8 or I8), with or without scales. */
static bool codes_kind(const nb_module *m, nb_kind *out)
{
    const nb_tensor_info *w = m->member[NB_MEMBER_WEIGHT], *s = m->member[NB_MEMBER_SCALE];
    const bool second = m->member[NB_MEMBER_SCALE_2] != NULL;
    if (!s) s = m->member[NB_MEMBER_DOT_SCALE];
    if (!s) s = m->member[NB_MEMBER_SCALE_INV];
    if (s && is_float(s) && !per_group(w, s, 16)) {
        *out = NB_KIND_OTHER; /* INT8 and INT4 schemes: scales are floats, of rows or of 128 columns */
        return true;
    }
    if (second || (s && s->dtype == NB_DT_F8_E4M3) ||
        (!s && m->member[NB_MEMBER_INPUT] && w->dtype == NB_DT_U8)) {
        *out = NB_KIND_NVFP4_MODELOPT;
        return true;
    }
    if (!s) return false;
    if (s->dtype == NB_DT_F8_E8M0 || per_group(w, s, 32)) {
        *out = NB_KIND_MXFP4;
        return true;
    }
    if (per_group(w, s, 16)) {
        *out = NB_KIND_NVFP4_MODELOPT;
        return true;
    }
    return false;
}

/* The scales of an NVFP4 linear: codes beside them are codes, whatever dtype a script gave them. */
static bool has_nvfp4_scales(const nb_module *m)
{
    const nb_tensor_info *s = m->member[NB_MEMBER_SCALE];
    return s && s->dtype == NB_DT_F8_E4M3 && s->rank == 2 &&
           (m->member[NB_MEMBER_GLOBAL] || m->member[NB_MEMBER_SCALE_2]);
}

/* What the module's own tensors say. False: they may belong to more than one kind. */
static bool own_kind(const nb_module *m, nb_kind *out)
{
    const nb_tensor_info *const *t = m->member, *w = t[NB_MEMBER_WEIGHT], *p = t[NB_MEMBER_PACKED];
    if (t[NB_MEMBER_BLOCKS] || t[NB_MEMBER_SCALES]) {
        const nb_tensor_info *b = t[NB_MEMBER_BLOCKS] ? t[NB_MEMBER_BLOCKS] : t[NB_MEMBER_SCALES];
        *out = b->dtype == NB_DT_U8 ? NB_KIND_MXFP4_BLOCKS : NB_KIND_NONE;
        return true;
    }
    const nb_tensor_info *codes = p ? p : w;
    if (codes && !is_float(codes) && has_nvfp4_scales(m)) {
        *out = t[NB_MEMBER_GLOBAL] ? NB_KIND_NVFP4_CT : NB_KIND_NVFP4_MODELOPT;
        return true;
    }
    if (p && p->dtype != NB_DT_U8 && p->dtype != NB_DT_I8) {
        *out = NB_KIND_OTHER; /* compressed-tensors' INT4: I32 words */
        return true;
    }
    if (w && !p && is_float(w)) {
        *out = NB_KIND_FLOAT;
        return true;
    }
    if (w && !p && w->dtype == NB_DT_F8_E4M3) {
        *out = NB_KIND_FP8;
        return true;
    }
    if (w && !p && w->dtype != NB_DT_U8 && w->dtype != NB_DT_I8) {
        *out = NB_KIND_OTHER;
        return true;
    }
    if (t[NB_MEMBER_GLOBAL] || t[NB_MEMBER_INPUT_GLOBAL]) {
        *out = p || w || t[NB_MEMBER_SCALE] || t[NB_MEMBER_GLOBAL] ? NB_KIND_NVFP4_CT : NB_KIND_NONE;
        return true;
    }
    if (p) return packed_kind(m, out);
    if (w) return codes_kind(m, out);
    if (t[NB_MEMBER_SCALE_2] || t[NB_MEMBER_SCALE_INV]) {
        *out = t[NB_MEMBER_SCALE_2] ? NB_KIND_NVFP4_MODELOPT : NB_KIND_FP8;
        return true;
    }
    if (t[NB_MEMBER_SCALE]) return false;
    /* ".scale" alone is a scale only when it is stored like one: routers and norms have parameters of that name, too. */
    if (t[NB_MEMBER_DOT_SCALE] && !is_float(t[NB_MEMBER_DOT_SCALE])) return false;
    *out = NB_KIND_NONE;
    return true;
}

/* The kinds that a module may have whose own tensors leave it open. */
static bool could_be(const nb_module *m, nb_kind k)
{
    const nb_tensor_info *const *t = m->member;
    const nb_tensor_info *s = t[NB_MEMBER_SCALE] ? t[NB_MEMBER_SCALE] : t[NB_MEMBER_DOT_SCALE];
    if (t[NB_MEMBER_PACKED]) return k == NB_KIND_NVFP4_CT || k == NB_KIND_MXFP4;
    if (t[NB_MEMBER_WEIGHT]) return k == NB_KIND_NVFP4_MODELOPT || k == NB_KIND_MXFP4;
    if (s->dtype == NB_DT_F8_E4M3) return nb_kind_nvfp4(k);
    if (s->dtype == NB_DT_F8_E8M0 || s->dtype == NB_DT_U8) return k == NB_KIND_MXFP4 || k == NB_KIND_FP8;
    return k == NB_KIND_FP8;
}

/* The most frequent of the counted kinds that m could be, NB_KIND_NONE if none. */
static nb_kind most(const nb_module *m, const uint32_t count[NB_KIND_COUNT])
{
    nb_kind best = NB_KIND_NONE;
    for (int k = NB_KIND_FP8; k < NB_KIND_COUNT; k++) {
        if (count[k] && could_be(m, (nb_kind)k) && (best == NB_KIND_NONE || count[k] > count[best]))
            best = (nb_kind)k;
    }
    return best;
}

/* Without anything to compare with: what such tensors most often are. */
static nb_kind lone_kind(const nb_ckpt *c, const nb_module *m, nb_buf *name)
{
    if (m->member[NB_MEMBER_PACKED]) return NB_KIND_NVFP4_CT;
    if (!m->member[NB_MEMBER_WEIGHT]) return NB_KIND_OTHER;
    nb_buf_clear(name); /* bitsandbytes keeps its scales under weight.absmax */
    nb_buf_addf(name, "%s.weight.absmax", m->name);
    bool bnb = nb_ckpt_find(c, nb_buf_str(name)) != NULL;
    return bnb || m->member[NB_MEMBER_WEIGHT]->dtype != NB_DT_U8 ? NB_KIND_OTHER : NB_KIND_NVFP4_MODELOPT;
}

/* name with every component that is a number replaced by '#'. out has room for the name itself; returns the length. */
static size_t pattern_of(const char *name, char *out)
{
    char *p = out;
    while (*name) {
        size_t n = strcspn(name, "."), digits = strspn(name, "0123456789");
        if (n && n == digits) {
            *p++ = '#';
        } else {
            memcpy(p, name, n);
            p += n;
        }
        name += n;
        if (*name) *p++ = *name++;
    }
    *p = '\0';
    return (size_t)(p - out);
}

/* The number of the class of `name`, made if it is new. */
static bool class_of(nb_modules *t, const char *name, nb_buf *scratch, uint32_t *out)
{
    nb_buf_clear(scratch);
    if (!nb_buf_reserve(scratch, strlen(name))) return false;
    const size_t len = pattern_of(name, scratch->data);
    if (nb_map_get(&t->by_pattern, scratch->data, len, out)) return true;
    if (t->n_classes == t->classes_cap) {
        size_t cap = t->classes_cap ? 2 * t->classes_cap : 64;
        nb_module_class *p = realloc(t->classes, cap * sizeof *p);
        if (!p) return false;
        t->classes = p;
        t->classes_cap = cap;
    }
    char *pattern = strdup(scratch->data);
    if (!pattern) return false;
    *out = (uint32_t)t->n_classes;
    t->classes[t->n_classes++] = (nb_module_class){.pattern = pattern};
    return nb_map_put(&t->by_pattern, pattern, len, *out, NULL);
}

/* Files every tensor under its module. */
static bool collect(const nb_ckpt *c, nb_modules *t, nb_buf *scratch)
{
    const size_t n = nb_ckpt_count(c);
    size_t text = 0, used = 0;
    for (size_t i = 0; i < n; i++) text += strlen(nb_ckpt_at(c, i)->name) + 1;
    t->items = calloc(n + 1, sizeof *t->items);
    t->text = malloc(text + 1);
    if (!t->items || !t->text) return false;
    for (size_t i = 0; i < n; i++) {
        const nb_tensor_info *info = nb_ckpt_at(c, i);
        size_t len;
        uint32_t at;
        nb_member member = nb_member_of(info->name, &len);
        if (member == NB_MEMBER_COUNT) continue;
        if (!nb_map_get(&t->by_name, info->name, len, &at)) {
            char *name = t->text + used;
            memcpy(name, info->name, len);
            name[len] = '\0';
            used += len + 1;
            at = (uint32_t)t->count++;
            t->items[at].name = name;
            if (!nb_map_put(&t->by_name, name, len, at, NULL) ||
                !class_of(t, name, scratch, &t->items[at].cls))
                return false;
        }
        t->items[at].member[member] = info;
    }
    return true;
}

static void count(nb_modules *t, nb_module *m, nb_kind k)
{
    m->kind = k;
    t->classes[m->cls].count[k]++;
    t->total[k]++;
}

/* Makes module i the example of its kind if there is none yet, or only one that lacks something. cls: what examples must be of
 * (UINT32_MAX: of any class). */
static void offer(const nb_modules *t, uint32_t example[NB_KIND_COUNT], uint32_t i, uint32_t cls)
{
    const nb_module *m = &t->items[i], *now = &t->items[example[m->kind]];
    nb_member missing[3];
    bool none = now->kind != m->kind || (cls != UINT32_MAX && now->cls != cls);
    if (none || (nb_module_missing(t, now, missing) && !nb_module_missing(t, m, missing)))
        example[m->kind] = i;
}

nb_status nb_modules_build(const nb_ckpt *c, nb_modules *out, nb_error *err)
{
    nb_modules t = {0};
    nb_buf scratch = {0};
    bool *open = NULL;
    bool ok = collect(c, &t, &scratch);
    if (ok) open = calloc(t.count + 1, sizeof *open);
    ok = ok && open;
    for (size_t i = 0; ok && i < t.count; i++) {
        nb_kind k;
        open[i] = !own_kind(&t.items[i], &k);
        if (!open[i]) count(&t, &t.items[i], k);
    }
    for (size_t i = 0; ok && i < t.count; i++) {
        if (!open[i]) continue;
        nb_module *m = &t.items[i];
        nb_kind k = most(m, t.classes[m->cls].count);
        if (k == NB_KIND_NONE) k = most(m, t.total);
        if (k == NB_KIND_NONE) k = lone_kind(c, m, &scratch);
        m->kind = k; /* not counted: the inferred must not outvote the known */
    }
    for (size_t i = 0; ok && i < t.count; i++) {
        nb_module *m = &t.items[i];
        if (open[i]) count(&t, m, m->kind);
        offer(&t, t.example, (uint32_t)i, UINT32_MAX);
        offer(&t, t.classes[m->cls].example, (uint32_t)i, m->cls);
    }
    ok = ok && nb_buf_ok(&scratch);
    free(open);
    nb_buf_free(&scratch);
    if (ok) {
        *out = t;
        return NB_OK;
    }
    nb_modules_free(&t);
    return nb_fail_nomem(err, "the table of modules", nb_ckpt_count(c) * sizeof(nb_module));
}

void nb_modules_free(nb_modules *m)
{
    for (size_t i = 0; i < m->n_classes; i++) free(m->classes[i].pattern);
    free(m->classes);
    free(m->items);
    free(m->text);
    nb_map_free(&m->by_name);
    nb_map_free(&m->by_pattern);
    *m = (nb_modules){0};
}

const nb_module *nb_modules_find(const nb_modules *m, const char *name)
{
    uint32_t i;
    return nb_map_get(&m->by_name, name, strlen(name), &i) ? &m->items[i] : NULL;
}

const nb_module_class *nb_modules_class(const nb_modules *m, const char *name)
{
    char pattern[1024]; /* a longer name has no siblings worth speaking of */
    uint32_t i;
    if (strlen(name) >= sizeof pattern) return NULL;
    const size_t len = pattern_of(name, pattern);
    return nb_map_get(&m->by_pattern, pattern, len, &i) ? &m->classes[i] : NULL;
}

nb_kind nb_module_class_kind(const nb_module_class *c)
{
    nb_kind best = NB_KIND_NONE;
    for (int k = NB_KIND_OTHER; k < NB_KIND_COUNT; k++) {
        if (c->count[k] && (best == NB_KIND_NONE || c->count[k] > c->count[best])) best = (nb_kind)k;
    }
    return best;
}

/* Which of `choices` (n of them) the example of m's class has, else the file's example of its kind, else `otherwise`. */
static nb_member spelled(const nb_modules *t, const nb_module *m, const nb_member *choices, size_t n,
                         nb_member otherwise)
{
    const nb_module *examples[] = {&t->items[t->classes[m->cls].example[m->kind]],
                                   &t->items[t->example[m->kind]]};
    for (size_t e = 0; e < 2; e++) {
        for (size_t i = 0; examples[e]->kind == m->kind && i < n; i++) {
            if (examples[e]->member[choices[i]]) return choices[i];
        }
    }
    return otherwise;
}

size_t nb_module_missing(const nb_modules *t, const nb_module *m, nb_member missing[3])
{
    static const nb_member scales[] = {NB_MEMBER_SCALE, NB_MEMBER_DOT_SCALE, NB_MEMBER_SCALE_INV};
    static const nb_member codes[] = {NB_MEMBER_PACKED, NB_MEMBER_WEIGHT};
    const nb_tensor_info *const *has = m->member;
    size_t n = 0;
    switch (m->kind) {
    case NB_KIND_NVFP4_CT:
        if (!has[NB_MEMBER_PACKED]) missing[n++] = NB_MEMBER_PACKED;
        if (!has[NB_MEMBER_SCALE]) missing[n++] = NB_MEMBER_SCALE;
        if (!has[NB_MEMBER_GLOBAL]) missing[n++] = NB_MEMBER_GLOBAL;
        break;
    case NB_KIND_NVFP4_MODELOPT:
        if (!has[NB_MEMBER_WEIGHT]) missing[n++] = NB_MEMBER_WEIGHT;
        if (!has[NB_MEMBER_SCALE]) missing[n++] = NB_MEMBER_SCALE;
        if (!has[NB_MEMBER_SCALE_2]) missing[n++] = NB_MEMBER_SCALE_2;
        break;
    case NB_KIND_MXFP4:
        if (!has[NB_MEMBER_PACKED] && !has[NB_MEMBER_WEIGHT])
            missing[n++] = spelled(t, m, codes, 2, NB_MEMBER_WEIGHT);
        if (!nb_module_scale(m)) missing[n++] = spelled(t, m, scales, 3, NB_MEMBER_SCALE);
        break;
    case NB_KIND_MXFP4_BLOCKS:
        if (!has[NB_MEMBER_BLOCKS]) missing[n++] = NB_MEMBER_BLOCKS;
        if (!has[NB_MEMBER_SCALES]) missing[n++] = NB_MEMBER_SCALES;
        break;
    case NB_KIND_FP8:
        if (!has[NB_MEMBER_WEIGHT]) missing[n++] = NB_MEMBER_WEIGHT;
        if (!nb_module_scale(m)) missing[n++] = spelled(t, m, scales, 3, NB_MEMBER_SCALE);
        break;
    default: break;
    }
    return n;
}

bool nb_module_shape(const nb_module *m, uint64_t *n, uint64_t *k)
{
    const nb_tensor_info *w = nb_module_codes(m), *s = nb_module_scale(m);
    const unsigned group = nb_kind_group(m->kind);
    if (!w || w->rank != 2 || w->shape[1] > UINT64_MAX / 2) return false;
    if (m->kind == NB_KIND_NONE || m->kind == NB_KIND_OTHER || m->kind == NB_KIND_MXFP4_BLOCKS) return false;
    *n = w->shape[0];
    *k = group ? w->shape[1] * 2 : w->shape[1];
    if (!group || !s) return true;
    return s->rank == 2 && s->shape[0] == *n && *k % group == 0 && s->shape[1] == *k / group;
}
