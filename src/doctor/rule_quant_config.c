/* NB201, NB203, NB204, NB209: what the configs say of formats, against the tensors, against what loaders accept, and against
 * each other. specs/nvfp4.md §3.3 and §3.4. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "doctor/rule_values.h"

#define E(cls, text) ((nb_effect){NB_EFFECT_##cls, text})

static size_t report(const nb_check *c, nb_findings *out, const char *rule, nb_severity severity,
                     const char *message)
{
    const size_t i = nb_findings_add(out, rule, severity, "%s", message);
    nb_findings_file(out, i, "config.json");
    nb_findings_remedy(out, i, true, "write what the tensors are into the config");
    const nb_effect e = severity == NB_SEVERITY_ERROR
                            ? E(REFUSED, "vLLM refuses the config, or makes the wrong layers of it")
                            : E(FINE, "loads");
    nb_value_effects(out, i, e, e, e);
    return i;
}

static const char *text_of(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

/* ---- NB201 ---- */

static nb_format_claim format_of(nb_kind k)
{
    switch (k) {
    case NB_KIND_NVFP4_CT:
    case NB_KIND_NVFP4_MODELOPT: return NB_CLAIM_NVFP4;
    case NB_KIND_MXFP4:
    case NB_KIND_MXFP4_BLOCKS: return NB_CLAIM_MXFP4;
    case NB_KIND_FP8: return NB_CLAIM_FP8;
    default: return NB_CLAIM_OPEN;
    }
}

/* Linears that the config gives another format than they have. */
static void judge_formats(const nb_check *c, nb_findings *out)
{
    size_t found = SIZE_MAX;
    for (size_t i = 0; i < c->modules.count; i++) {
        const nb_module *m = &c->modules.items[i];
        const nb_format_claim is = format_of(m->kind), said = c->quant.claims[i].format;
        const nb_tensor_info *t = nb_module_codes(m);
        if (is == NB_CLAIM_OPEN || said == NB_CLAIM_OPEN || said == NB_CLAIM_NONE || said == is || !t)
            continue;
        if (nb_tensor_skipped(c, t)) continue;
        if (found == SIZE_MAX) {
            found = report(c, out, "NB201", NB_SEVERITY_ERROR,
                           "the config gives linears another format than they have");
            nb_findings_measured(out, found, "the tensors are %s", nb_kind_name(m->kind));
            nb_findings_expected(out, found, "the config says %s", nb_format_claim_name(said));
        }
        nb_findings_tensor(out, found, t->name);
    }
}

static void judge_method(const nb_check *c, nb_findings *out)
{
    const nb_quant *q = &c->quant;
    const uint32_t *n = c->modules.total;
    const uint32_t ct = n[NB_KIND_NVFP4_CT], mo = n[NB_KIND_NVFP4_MODELOPT];
    const uint32_t fp4 = ct + mo + n[NB_KIND_MXFP4] + n[NB_KIND_MXFP4_BLOCKS];
    const char *message = NULL, *name = q->method_name ? q->method_name : "nothing";
    nb_severity severity = NB_SEVERITY_ERROR;
    if (!fp4 || !nb_ckpt_config(c->ckpt)) return;
    if (q->method == NB_QUANT_NONE)
        message = "the config has no quantization_config, and the weights are quantised";
    else if (q->method == NB_QUANT_UNKNOWN)
        message = "quant_method is none that loads these tensors";
    else if ((q->method == NB_QUANT_CT && mo && !ct) || (q->method == NB_QUANT_MODELOPT && ct && !mo))
        message = "quant_method names the other flavour than the tensors have";
    else if (q->method == NB_QUANT_MXFP4 && ct + mo)
        message = "quant_method says mxfp4, and linears are NVFP4";
    else if (q->method == NB_QUANT_FP8 && ct + mo && nb_quant_says(q, NB_CLAIM_NVFP4))
        severity = NB_SEVERITY_NOTE,
        message = "quant_method says fp8, and the experts are NVFP4: usual for DeepSeek-V4";
    else if (q->method == NB_QUANT_FP8 && ct + mo)
        message = "quant_method says fp8, and linears are NVFP4";
    if (!message) return;
    size_t i = report(c, out, "NB201", severity, message);
    nb_findings_measured(out, i,
                         "%u linears in NVFP4 (compressed-tensors), %u in NVFP4 (ModelOpt), %u in MXFP4", ct,
                         mo, fp4 - ct - mo);
    nb_findings_expected(out, i, "quant_method \"%s\"; the config says %.64s",
                         mo > ct ? "modelopt"
                         : ct    ? "compressed-tensors"
                                 : "mxfp4 or fp8",
                         name);
    if (severity == NB_SEVERITY_NOTE)
        nb_findings_remedy(out, i, false, "none needed: loaders look at moe_quant_algo");
}

/* Linears of the flavour that quant_method does not name, beside others that it does: a folder put together from two exports. */
static void judge_flavours(const nb_check *c, nb_findings *out)
{
    const bool ct = c->quant.method == NB_QUANT_CT;
    const nb_kind named = ct ? NB_KIND_NVFP4_CT : NB_KIND_NVFP4_MODELOPT,
                  other = ct ? NB_KIND_NVFP4_MODELOPT : NB_KIND_NVFP4_CT;
    size_t found = SIZE_MAX;
    if (!ct && c->quant.method != NB_QUANT_MODELOPT) return;
    for (size_t i = 0; i < c->modules.count && c->modules.total[named]; i++) {
        const nb_module *m = &c->modules.items[i];
        const nb_tensor_info *t = nb_module_codes(m);
        if (m->kind != other || !t || nb_tensor_skipped(c, t)) continue;
        if (found == SIZE_MAX) {
            found = report(c, out, "NB201", NB_SEVERITY_ERROR,
                           "linears are stored as the other flavour stores them, in a file of both");
            nb_findings_measured(out, found, "%u linears in %s, %u in %s", c->modules.total[named],
                                 nb_kind_name(named), c->modules.total[other], nb_kind_name(other));
            nb_findings_expected(out, found, "%s everywhere, as quant_method says", nb_kind_name(named));
            nb_findings_remedy(out, found, false, "export all layers with one tool");
        }
        nb_findings_tensor(out, found, t->name);
    }
}

/* An embedding in NVFP4: a script quantised every matrix. Loaders look rows up as floats, unless nvfp4_embed asks for more. */
static void judge_embedding(const nb_check *c, nb_findings *out)
{
    if (json_is_true(nb_config_get(&c->config, "nvfp4_embed")) ||
        json_is_true(json_object_get(c->quant.config, "nvfp4_embed")))
        return;
    for (size_t i = 0; i < c->modules.count; i++) {
        const nb_module *m = &c->modules.items[i];
        const nb_tensor_info *t = nb_module_codes(m);
        const char *last = nb_last_part(m->name);
        if (!nb_kind_nvfp4(m->kind) || !t || nb_tensor_skipped(c, t) ||
            (strcmp(last, "embed_tokens") != 0 && strcmp(last, "embed") != 0 && strcmp(last, "wte") != 0))
            continue;
        const size_t f = report(c, out, "NB201", NB_SEVERITY_ERROR,
                                "the embedding is quantised, and the config does not say nvfp4_embed");
        nb_findings_tensor(out, f, t->name);
        nb_findings_file(out, f, nb_check_file_of(c, t));
        nb_findings_measured(out, f, "%s", nb_kind_name(m->kind));
        nb_findings_expected(out, f, "BF16 or F16: servers look up rows of floats");
        nb_findings_remedy(out, f, false, "take the embedding from the original model");
    }
}

nb_status nb_rule_quant_method(const nb_check *c, nb_findings *out, nb_error *err)
{
    judge_method(c, out);
    judge_flavours(c, out);
    judge_embedding(c, out);
    judge_formats(c, out);
    return NB_OK;
}

/* ---- NB203 ---- */

static bool is_integer(const json_t *o, const char *key, json_int_t v)
{
    const json_t *j = json_object_get(o, key);
    return json_is_integer(j) && json_integer_value(j) == v;
}

static bool is_text(const json_t *o, const char *key, const char *v)
{
    const char *s = text_of(o, key);
    return s && strcmp(s, v) == 0;
}

static void refuse(const nb_check *c, nb_findings *out, const char *what, const char *found,
                   const char *expected)
{
    size_t i = report(c, out, "NB203", NB_SEVERITY_ERROR, what);
    nb_findings_measured(out, i, "%s", found);
    nb_findings_expected(out, i, "%s", expected);
}

/* A 4-bit group of compressed-tensors. */
static void judge_scheme(const nb_check *c, const char *name, const json_t *g, nb_findings *out)
{
    const json_t *w = json_object_get(g, "weights"), *in = json_object_get(g, "input_activations");
    const char *format = text_of(g, "format");
    const bool packed = format && strstr(format, "fp4-pack") != NULL;
    char where[160];
    if (!packed && !is_integer(w, "num_bits", 4)) return;
    const bool mx = format ? strcmp(format, "mxfp4-pack-quantized") == 0 : is_integer(w, "group_size", 32);
    const bool good = is_text(w, "strategy", mx ? "group" : "tensor_group") && is_text(w, "type", "float") &&
                      is_integer(w, "num_bits", 4) && is_integer(w, "group_size", mx ? 32 : 16) &&
                      !json_is_false(json_object_get(w, "symmetric"));
    if (!good) {
        char *text = json_dumps(w ? w : json_null(), JSON_COMPACT | JSON_ENCODE_ANY);
        snprintf(where, sizeof where, "config_groups.%.64s.weights is a scheme that vLLM does not accept",
                 name);
        refuse(c, out, where, text ? text : "weights",
               mx ? "strategy group, type float, num_bits 4, group_size 32, symmetric"
                  : "strategy tensor_group, type float, num_bits 4, group_size 16, symmetric");
        out->bad = out->bad || !text;
        free(text);
    }
    if (json_is_object(in) && json_is_false(json_object_get(in, "dynamic"))) {
        size_t i = report(c, out, "NB203", NB_SEVERITY_WARNING,
                          "input_activations.dynamic is false: it asks for block scales of activations, "
                          "which no file stores");
        nb_findings_measured(out, i, "config_groups.%.64s.input_activations.dynamic false", name);
        nb_findings_expected(out, i,
                             "\"local\": the global scale is stored, block scales are made at run time");
    }
}

static void judge_ct(const nb_check *c, nb_findings *out)
{
    const json_t *q = c->quant.config, *groups = json_object_get(q, "config_groups"),
                 *kv = json_object_get(q, "kv_cache_scheme");
    const char *top = text_of(q, "format"), *key;
    json_t *g;
    if (!json_object_size(groups))
        refuse(c, out, "compressed-tensors needs config_groups", "none",
               "config_groups with targets and weights");
    json_object_foreach((json_t *)groups, key, g)
    {
        const char *format = text_of(g, "format");
        judge_scheme(c, key, g, out);
        if (top && format && strcmp(top, format) != 0 && strcmp(top, "mixed-precision") != 0) {
            char found[200];
            snprintf(found, sizeof found, "format %.64s, config_groups.%.32s.format %.64s", top, key, format);
            refuse(c, out, "the top-level format is not that of the groups", found,
                   "the same, or mixed-precision");
        }
    }
    if (json_object_size(json_object_get(json_object_get(q, "transform_config"), "config_groups"))) {
        size_t i = report(c, out, "NB203", NB_SEVERITY_NOTE,
                          "transform_config names rotations: some are applied while the model runs");
        nb_findings_expected(out, i, "an engine that applies them; nibble does not, and its results differ");
        nb_findings_remedy(out, i, false, "serve it with an engine that knows transform_config");
    }
    if (json_is_object(kv) && !(is_integer(kv, "num_bits", 8) && is_text(kv, "type", "float")))
        refuse(c, out, "kv_cache_scheme is none that vLLM accepts", "another type or width",
               "type float, num_bits 8");
}

static bool known_algo(const char *algo)
{
    static const char *const known[] = {"FP8",
                                        "FP8_PER_CHANNEL_PER_TOKEN",
                                        "FP8_PB_WO",
                                        "NVFP4",
                                        "W4A16_NVFP4",
                                        "NVFP4_AWQ",
                                        "NVFP4_SVD",
                                        "W4A8_NVFP4_FP8",
                                        "MXFP8",
                                        "MXFP4",
                                        "W4A8_AWQ",
                                        "W4A8_MXFP4_FP8",
                                        "INT4_AWQ",
                                        "W4A16_AWQ",
                                        "MIXED_PRECISION"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i], algo) == 0) return true;
    }
    return false;
}

/* Keys of either ModelOpt config whose type or value loaders rely on. */
static void judge_modelopt_values(const nb_check *c, const json_t *o, const char *file, const char *list,
                                  nb_findings *out)
{
    const json_t *size = json_object_get(o, "group_size"), *names = json_object_get(o, list);
    const char *algo = text_of(o, "quant_algo");
    const bool plain = algo && strstr(algo, "NVFP4") != NULL;
    if (plain && size && !json_is_null(size) && !(json_is_integer(size) && json_integer_value(size) == 16)) {
        char *text = json_dumps(size, JSON_ENCODE_ANY);
        size_t i = report(c, out, "NB203", NB_SEVERITY_ERROR, "group_size is not that of NVFP4");
        nb_findings_file(out, i, file);
        nb_findings_measured(out, i, "%.100s", text ? text : "?");
        nb_findings_expected(out, i, "16: one block scale for 16 columns");
        out->bad = out->bad || !text;
        free(text);
    }
    if (names && !json_is_array(names)) {
        size_t i = report(c, out, "NB203", NB_SEVERITY_ERROR, "the list of modules left out is no list");
        nb_findings_file(out, i, file);
        nb_findings_measured(out, i, "%s is %s", list, json_is_string(names) ? "a string" : "no array");
        nb_findings_expected(out, i, "an array of module names; loaders read a string letter by letter");
        nb_findings_remedy(out, i, false, "write it as an array: [\"lm_head\", …]");
    }
}

static void judge_modelopt(const nb_check *c, nb_findings *out)
{
    static const char *const keys[] = {"group_size", "kv_cache_quant_algo", "exclude_modules"};
    const nb_quant *q = &c->quant;
    if (!q->algo)
        refuse(c, out, "ModelOpt's config needs quant_algo", "none", "NVFP4, W4A16_NVFP4 or MIXED_PRECISION");
    else if (!known_algo(q->algo))
        refuse(c, out, "quant_algo is unknown", q->algo, "NVFP4, W4A16_NVFP4, FP8, MIXED_PRECISION, …");
    const char *hf = text_of(q->hf, "quant_algo");
    for (size_t i = 0;
         hf && q->algo && strcmp(hf, q->algo) == 0 && strstr(hf, "NVFP4") && i < sizeof keys / sizeof *keys;
         i++) {
        if (json_object_get(q->hf, keys[i])) continue;
        size_t f =
            report(c, out, "NB203", NB_SEVERITY_ERROR, "hf_quant_config.json lacks a key that vLLM requires");
        nb_findings_file(out, f, "hf_quant_config.json");
        nb_findings_measured(out, f, "no %s", keys[i]);
        nb_findings_expected(out, f, "group_size, kv_cache_quant_algo and exclude_modules");
    }
    if (q->hf_error) refuse(c, out, q->hf_error, "no such object", "{\"quantization\": {…}}");
}

nb_status nb_rule_scheme(const nb_check *c, nb_findings *out, nb_error *err)
{
    if (c->quant.method == NB_QUANT_CT) judge_ct(c, out);
    if (c->quant.method == NB_QUANT_MODELOPT) {
        judge_modelopt(c, out);
        judge_modelopt_values(c, c->quant.config, "config.json", "ignore", out);
        judge_modelopt_values(c, c->quant.hf, "hf_quant_config.json", "exclude_modules", out);
    }
    return NB_OK;
}

/* ---- NB204 ---- */

nb_status nb_rule_overlap(const nb_check *c, nb_findings *out, nb_error *err)
{
    size_t found = SIZE_MAX;
    for (size_t i = 0; i < c->modules.count; i++) {
        const nb_claim *k = &c->quant.claims[i];
        const nb_tensor_info *t = nb_module_codes(&c->modules.items[i]);
        if (k->other < 0 || k->entry >= 0 || !t) continue;
        if (found == SIZE_MAX) {
            found = report(c, out, "NB204", NB_SEVERITY_ERROR,
                           "two config groups claim the same linears in two formats");
            nb_findings_measured(out, found, "%.64s and %.64s",
                                 nb_quant_group_name(&c->quant, (size_t)k->group),
                                 nb_quant_group_name(&c->quant, (size_t)k->other));
            nb_findings_expected(out, found, "one group a linear: which one wins depends on the loader");
        }
        nb_findings_tensor(out, found, t->name);
    }
    return NB_OK;
}

/* ---- NB209 ---- */

/* The KV cache's algorithm as either config spells it: "FP8", or an object of 8 bits. */
static const char *kv_of(const json_t *v)
{
    if (json_is_string(v)) return json_string_value(v);
    return json_is_object(v) ? is_integer(v, "num_bits", 4) ? "NVFP4" : "FP8" : NULL;
}

static bool same_names(const json_t *a, const json_t *b)
{
    for (size_t i = 0; i < json_array_size(a); i++) {
        const char *x = json_string_value(json_array_get(a, i));
        bool there = !x;
        for (size_t k = 0; k < json_array_size(b) && !there; k++) {
            const char *y = json_string_value(json_array_get(b, k));
            there = y && strcmp(x, y) == 0;
        }
        if (!there) return false;
    }
    return true;
}

static void differ(const nb_check *c, nb_findings *out, const char *key, const char *a, const char *b)
{
    size_t i = report(c, out, "NB209", NB_SEVERITY_WARNING, "config.json and hf_quant_config.json disagree");
    nb_findings_measured(out, i, "%s: config.json says %.200s, hf_quant_config.json %.200s", key,
                         a ? a : "nothing", b ? b : "nothing");
    nb_findings_expected(out, i, "the same in both: some loaders read one, some the other");
}

nb_status nb_rule_configs_agree(const nb_check *c, nb_findings *out, nb_error *err)
{
    const json_t *q = c->quant.config, *hf = c->quant.hf;
    if (!q || !hf) return NB_OK;
    const char *a = text_of(q, "quant_algo"), *b = text_of(hf, "quant_algo");
    if (a && b && strcmp(a, b) != 0) differ(c, out, "quant_algo", a, b);
    const json_t *x = json_object_get(q, "group_size"), *y = json_object_get(hf, "group_size");
    if (json_is_integer(x) && json_is_integer(y) && json_integer_value(x) != json_integer_value(y))
        differ(c, out, "group_size", "one number", "another");
    a = kv_of(json_object_get(q, "kv_cache_scheme"));
    b = kv_of(json_object_get(hf, "kv_cache_quant_algo"));
    const bool both = json_object_get(q, "kv_cache_scheme") && json_object_get(hf, "kv_cache_quant_algo");
    if (both && (!a != !b || (a && strcmp(a, b) != 0))) differ(c, out, "the KV cache's algorithm", a, b);
    x = json_object_get(q, "ignore");
    y = json_object_get(hf, "exclude_modules");
    if (json_is_array(x) && json_is_array(y) && !(same_names(x, y) && same_names(y, x)))
        differ(c, out, "modules left as they are (ignore, exclude_modules)", "one list", "another");
    return NB_OK;
}
