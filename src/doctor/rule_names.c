/*
 * NB006: names. First the spellings that known loaders drop without a word, told by pattern and so for any architecture; then,
 * where the architecture's table is known, tensors that none of its rows claims. What a healthy file may hold beside its
 * weights is listed here, because a false alarm on every published checkpoint would be worth less than no rule.
 */
#include <fnmatch.h>
#include <string.h>

#include "base/buf.h"
#include "doctor/rules.h"

static const nb_effect unread[NB_FAMILY_COUNT] = {
    {NB_EFFECT_FINE, "nothing reads it"},
    {NB_EFFECT_FINE, "nothing reads it"},
    {NB_EFFECT_FINE, "nothing reads it"},
    {NB_EFFECT_FINE, "not converted"},
};
static const nb_effect dropped[NB_FAMILY_COUNT] = {
    {NB_EFFECT_UNDEFINED, "the name is dropped, and the parameter keeps uninitialised memory"},
    {NB_EFFECT_UNDEFINED, "the name is dropped, and the parameter keeps uninitialised memory"},
    {NB_EFFECT_UNDEFINED, "the name is dropped, and the parameter keeps uninitialised memory"},
    {NB_EFFECT_REFUSED, "no GGUF can be made under this name"},
};

/* Globs over whole names: parts of published models that a text model does not compute with. */
static const char *const towers[] = {
    "*visual.*",
    "*vision_tower.*",
    "*vision_model.*",
    "*vision_encoder.*",
    "*embed_vision.*",
    "*multi_modal_projector.*",
    "*audio_tower.*",
    "*audio_model.*",
    "*embed_audio.*",
    "mtp.*",
    "*.mtp.*",
    "*mtp_layers.*",
    "*rotary_emb.inv_freq",
    "*.rotary_emb.*",
    "*.masked_bias",
    "*.attn.bias",
};

/* Last parts of names that belong to a module and are no weight of it: KV-cache scales. */
static const char *const companions[] = {
    ".k_scale", ".v_scale", ".q_scale",      ".kv_scale",     ".prob_scale",     ".output_scale",
    ".k_bias",  ".v_bias",  ".k_zero_point", ".v_zero_point", ".k_global_scale", ".v_global_scale",
};

/* What other schemes store beside a weight. NVFP4 kernels as servers run them read none of it: algo is the word in quant_algo
 * that asks for it, NULL where only linears of another scheme can have it. */
static const struct {
    const char *suffix, *algo;
} schemes[] = {
    {".pre_quant_scale", "AWQ"},  {".svdquant_lora_a", "SVD"},  {".svdquant_lora_b", "SVD"},
    {".weight_shape", NULL},      {".weight_zero_point", NULL}, {".input_zero_point", NULL},
    {".output_zero_point", NULL}, {".weight_g_idx", NULL},
};

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static bool is_tower(const char *tensor)
{
    for (size_t i = 0; i < sizeof towers / sizeof *towers; i++) {
        if (fnmatch(towers[i], tensor, 0) == 0) return true;
    }
    return false;
}

/* Tensor i is no part of the text model: not a row of the table, and known as something else. */
static bool is_other(const nb_check *c, size_t i)
{
    const nb_place *p = c->table ? &c->places[i] : NULL;
    return !(p && p->row) && ((p && p->skipped) || is_tower(nb_ckpt_at(c->ckpt, i)->name));
}

bool nb_tensor_skipped(const nb_check *c, const nb_tensor_info *t)
{
    return is_other(c, (size_t)(t - nb_ckpt_at(c->ckpt, 0)));
}

/* Length of "….experts." when what follows has the form NAME.NUMBER. : "experts.gate_proj.3.weight". 0: it has not. */
static size_t number_last(const char *name)
{
    for (const char *p = strstr(name, "experts."); p; p = strstr(p + 1, "experts.")) {
        if (p != name && p[-1] != '.') continue;
        const char *part = p + strlen("experts.");
        size_t n = strcspn(part, "."), digits = part[n] ? strspn(part + n + 1, "0123456789") : 0;
        bool number = n && strspn(part, "0123456789") == n;
        if (n && !number && digits && part[n + 1 + digits] == '.') return (size_t)(part - name);
    }
    return 0;
}

/* Length of the stack's own name in "….experts.down_proj_weight_scale", 0 when the name is not of that form. */
static size_t underscore_stack(const char *name)
{
    static const char *const ends[] = {
        "_weight_scale",  "_weight_scale_2",      "_input_scale",
        "_weight_packed", "_weight_global_scale", "_input_global_scale",
    };
    const char *p = strstr(name, "experts.");
    if (!p || (p != name && p[-1] != '.') || strchr(p + strlen("experts."), '.')) return 0;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        if (ends_with(name, ends[i])) return strlen(name) - strlen(ends[i]);
    }
    return 0;
}

/* True for the codes of such a stack: "….experts.down_proj" beside "….experts.down_proj_weight_scale". */
static bool is_stack_codes(const nb_check *c, const nb_tensor_info *t, nb_buf *name)
{
    const char *p = strstr(t->name, "experts.");
    if (!p || strchr(p + strlen("experts."), '.') || t->rank != 3) return false;
    nb_buf_clear(name);
    nb_buf_addf(name, "%s_weight_scale", t->name);
    return nb_ckpt_find(c->ckpt, nb_buf_str(name)) != NULL;
}

typedef enum fault {
    FAULT_NONE,
    FAULT_DOT_SCALE,
    FAULT_NUMBER_LAST,
    FAULT_STACK,
    FAULT_ROWS,
    FAULT_DOUBLE,
    FAULT_PREFIX,
    FAULT_LEFTOVER,
    FAULT_LAYER,
    FAULT_UNUSED_HERE,
    FAULT_UNKNOWN,
    FAULT_SCHEME,
    FAULT_BIAS,
} fault;

static const nb_effect left_out[NB_FAMILY_COUNT] = {
    {NB_EFFECT_WRONG, "the linear is computed without it"},
    {NB_EFFECT_WRONG, "the linear is computed without it"},
    {NB_EFFECT_WRONG, "the linear is computed without it"},
    {NB_EFFECT_WRONG, "the linear is computed without it"},
};

static const struct {
    const char *message, *expected, *remedy;
    bool dropped, repairable;
    const nb_effect *effects; /* NULL: by dropped */
} faults[] = {
    [FAULT_DOT_SCALE] =
        {"block scales of 4-bit codes are called .scale, which loaders read for FP8 and MXFP4 alone",
         ".weight_scale", "rename it to .weight_scale", true, true},
    [FAULT_NUMBER_LAST] = {"the expert's number stands behind the projection's name; loaders know it before",
                           "experts.N.PROJECTION", "rename", true, true},
    [FAULT_STACK] =
        {"experts are fused to stacks whose scales have underscore suffixes; loaders drop such scales",
         "experts.N.PROJECTION.weight, .weight_scale, …: each expert by itself",
         "export the experts one by one", true, false},
    [FAULT_ROWS] = {"the weight is stored row by row under names that no loader knows", "one tensor a weight",
                    "save the model again without the faulty conversion, or join the rows", true, false},
    [FAULT_DOUBLE] = {"a double scale that no loader reads", "no such tensor", "remove it", false, false},
    [FAULT_PREFIX] = {"the layer lacks the prefix that the other layers' names have",
                      "the same prefix for all layers", "rename", true, true},
    [FAULT_LEFTOVER] = {"a member that the linear's format has no use for", "only the members of one format",
                        "remove it; if it is the right one, the others are left over", false, false},
    [FAULT_LAYER] = {"a layer beyond the number in config.json", "layers below num_hidden_layers",
                     "correct num_hidden_layers, or remove the layer", false, false},
    [FAULT_UNUSED_HERE] = {"the config says that this layer has no such tensor",
                           "what config.json implies for this layer",
                           "check the layer types in config.json, or remove the tensor", false, false},
    [FAULT_UNKNOWN] = {"no part of the architecture reads this tensor", "the names of the architecture",
                       "remove or rename it", false, false, NULL},
    [FAULT_SCHEME] =
        {"a tensor of another scheme (AWQ, SVDQuant, zero points) beside an NVFP4 linear: kernels "
         "do not apply it",
         "what the scheme in the config stores",
         "export again as plain NVFP4; if the weights were made without it, remove it", false, false,
         left_out},
    [FAULT_BIAS] = {"a bias, and the config says that these linears have none",
                    "attention_bias or mlp_bias true",
                    "if the model was trained with it, set the key that says so; else remove it", false,
                    false, left_out},
};

/* True when t belongs to another scheme than that of the NVFP4 linear beside it and the config does not ask for it. */
static bool is_foreign(const nb_check *c, const nb_tensor_info *t, nb_buf *scratch)
{
    for (size_t k = 0; k < sizeof schemes / sizeof *schemes; k++) {
        if (!ends_with(t->name, schemes[k].suffix)) continue;
        nb_buf_clear(scratch);
        nb_buf_add(scratch, t->name, strlen(t->name) - strlen(schemes[k].suffix));
        const nb_module *m = nb_modules_find(&c->modules, nb_buf_str(scratch));
        const bool asked = schemes[k].algo && c->quant.algo && strstr(c->quant.algo, schemes[k].algo);
        return m && nb_kind_nvfp4(m->kind) && !asked;
    }
    return false;
}

static fault by_pattern(const nb_check *c, const nb_tensor_info *t, nb_buf *scratch)
{
    size_t len;
    if (strstr(t->name, "_double_scale")) return FAULT_DOUBLE;
    if (ends_with(t->name, ".weight.weight")) return FAULT_ROWS;
    if (number_last(t->name)) return FAULT_NUMBER_LAST;
    if (underscore_stack(t->name) || is_stack_codes(c, t, scratch)) return FAULT_STACK;
    if (nb_member_of(t->name, &len) == NB_MEMBER_DOT_SCALE && t->dtype == NB_DT_F8_E4M3)
        return FAULT_DOT_SCALE;
    return is_foreign(c, t, scratch) ? FAULT_SCHEME : FAULT_NONE;
}

/* A bias of a linear of the table; no row has one. */
static bool is_bias(const nb_check *c, const nb_tensor_info *t, nb_buf *scratch)
{
    int64_t l, e;
    bool skipped;
    if (!ends_with(t->name, ".bias")) return false;
    nb_buf_clear(scratch);
    nb_buf_add(scratch, t->name, strlen(t->name) - strlen(".bias"));
    const nb_arch_tensor *row = nb_arch_identify(&c->config, nb_buf_str(scratch), &l, &e, &skipped);
    return row && row->role == NB_ROLE_LINEAR;
}

static bool says_bias(const nb_check *c)
{
    return json_is_true(nb_config_get(&c->config, "attention_bias")) ||
           json_is_true(nb_config_get(&c->config, "mlp_bias"));
}

/* A member of a linear that its format does not use; the linear itself is known to be one. */
static bool is_leftover(const nb_check *c, const nb_tensor_info *t, nb_buf *scratch)
{
    size_t len;
    nb_member member = nb_member_of(t->name, &len);
    if (member == NB_MEMBER_COUNT) return false;
    nb_buf_clear(scratch);
    nb_buf_add(scratch, t->name, len);
    const nb_module *m = nb_modules_find(&c->modules, nb_buf_str(scratch));
    return m && !nb_module_uses(m, member);
}

static fault by_table(const nb_check *c, size_t i, nb_buf *scratch)
{
    const nb_tensor_info *t = nb_ckpt_at(c->ckpt, i);
    const nb_place *p = &c->places[i];
    if (!p->row) {
        for (size_t k = 0; k < sizeof companions / sizeof *companions; k++) {
            if (ends_with(t->name, companions[k])) return FAULT_NONE;
        }
        for (size_t k = 0; k < sizeof schemes / sizeof *schemes; k++) {
            if (ends_with(t->name, schemes[k].suffix)) return FAULT_NONE; /* by_pattern judged it */
        }
        if (is_bias(c, t, scratch)) return says_bias(c) ? FAULT_NONE : FAULT_BIAS;
        return FAULT_UNKNOWN;
    }
    if (p->l >= c->config.n_layers) return nb_arch_is_draft(&c->config, p->l) ? FAULT_NONE : FAULT_LAYER;
    /* A head beside tied embeddings contradicts the config, which is a rule of its own. */
    if (p->row->when && p->row->role != NB_ROLE_HEAD && !p->row->when(&c->config, (int)p->l))
        return FAULT_UNUSED_HERE;
    return is_leftover(c, t, scratch) ? FAULT_LEFTOVER : FAULT_NONE;
}

/* What stands before "layers.N." in a name; false: it has no such part. */
static bool layer_prefix(const char *name, size_t *len)
{
    for (const char *p = strstr(name, "layers."); p; p = strstr(p + 1, "layers.")) {
        size_t digits = strspn(p + 7, "0123456789");
        if ((p != name && p[-1] != '.') || !digits || p[7 + digits] != '.') continue;
        *len = (size_t)(p - name);
        return true;
    }
    return false;
}

/* What stands before "layers.N." in this folder's names, and how often. A ninth spelling is not counted. */
typedef struct prefixes {
    const char *name[8];
    size_t len[8], count[8], n;
} prefixes;

static void count_prefixes(const nb_check *c, prefixes *out)
{
    *out = (prefixes){0};
    for (size_t i = 0; i < nb_ckpt_count(c->ckpt); i++) {
        const char *name = nb_ckpt_at(c->ckpt, i)->name;
        size_t len, k = 0;
        if (!layer_prefix(name, &len) || is_other(c, i)) continue;
        while (k < out->n && (out->len[k] != len || memcmp(out->name[k], name, len) != 0)) k++;
        if (k == 8) continue;
        out->n = k == out->n ? k + 1 : out->n;
        out->name[k] = name;
        out->len[k] = len;
        out->count[k]++;
    }
}

/* True when the name's prefix is the end of one that most layers have: "layers.3." among "model.layers.N.". */
static bool lacks_prefix(const prefixes *all, const char *name)
{
    size_t len, most = 0;
    if (all->n < 2 || !layer_prefix(name, &len)) return false;
    for (size_t k = 1; k < all->n; k++) most = all->count[k] > all->count[most] ? k : most;
    const size_t full = all->len[most];
    return len < full && memcmp(all->name[most] + (full - len), name, len) == 0;
}

/* Adds the tensor to the finding of its fault, file and nearest kin; one finding a fault and file keeps the report readable. */
static void report(const nb_check *c, const nb_tensor_info *t, fault f, size_t *last, nb_findings *out)
{
    const char *file = nb_check_file_of(c, t);
    char have[96];
    if (out->bad) return;
    const nb_finding *before = *last == SIZE_MAX ? NULL : &out->items[*last];
    if (!before || !before->file || strcmp(before->file, file) != 0) {
        *last = nb_findings_add(out, "NB006", NB_SEVERITY_WARNING, "%s", faults[f].message);
        nb_findings_file(out, *last, file);
        nb_findings_bytes(out, *last, t->begin, t->end);
        nb_findings_measured(out, *last, "%s %s", nb_dtype_name(t->dtype),
                             nb_tensor_shape_text(t, have, sizeof have));
        nb_findings_expected(out, *last, "%s", faults[f].expected);
        nb_findings_remedy(out, *last, faults[f].repairable, "%s", faults[f].remedy);
        nb_findings_effects(out, *last,
                            faults[f].effects   ? faults[f].effects
                            : faults[f].dropped ? dropped
                                                : unread);
    } else {
        out->items[*last].has_bytes = false; /* of several tensors */
        nb_findings_measured(out, *last, "%zu tensors", before->n_tensors + 1);
    }
    nb_findings_tensor(out, *last, t->name);
}

nb_status nb_rule_names(const nb_check *c, nb_findings *out, nb_error *err)
{
    nb_buf scratch = {0};
    prefixes all;
    size_t last[sizeof faults / sizeof *faults];
    for (size_t k = 0; k < sizeof last / sizeof *last; k++) last[k] = SIZE_MAX;
    count_prefixes(c, &all);
    for (size_t i = 0; i < nb_ckpt_count(c->ckpt) && nb_buf_ok(&scratch); i++) {
        const nb_tensor_info *t = nb_ckpt_at(c->ckpt, i);
        fault f = by_pattern(c, t, &scratch);
        if (f == FAULT_NONE && is_other(c, i)) continue;
        if (f == FAULT_NONE && lacks_prefix(&all, t->name)) f = FAULT_PREFIX;
        if (f == FAULT_NONE && c->table) f = by_table(c, i, &scratch);
        if (f != FAULT_NONE) report(c, t, f, &last[f], out);
    }
    const bool ok = nb_buf_ok(&scratch);
    nb_buf_free(&scratch);
    return ok ? NB_OK : nb_fail_nomem(err, "a tensor's name", 0);
}
