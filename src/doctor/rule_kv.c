/* NB207 of the config, NB208: drafting layers and KV-cache scales, named in the config or in the file and not in both. */
#include <math.h>
#include <string.h>

#include "base/buf.h"
#include "doctor/rule_values.h"

#define E(cls, text) ((nb_effect){NB_EFFECT_##cls, text})

/* ---- NB207 ---- */

static int64_t layer_of(const char *name)
{
    for (const char *p = strstr(name, "layers."); p; p = strstr(p + 1, "layers.")) {
        int64_t v = 0;
        const char *d = p + 7;
        if (p != name && p[-1] != '.') continue;
        for (; *d >= '0' && *d <= '9' && v < (INT64_MAX - 9) / 10; d++) v = 10 * v + (*d - '0');
        if (d != p + 7) return v;
    }
    return -1;
}

static bool is_draft(const nb_check *c, const char *name)
{
    return strncmp(name, "mtp.", 4) == 0 || strstr(name, ".mtp.") || strstr(name, "mtp_layers.") ||
           (c->config.n_layers && layer_of(name) >= c->config.n_layers);
}

nb_status nb_rule_draft_config(const nb_check *c, nb_findings *out, nb_error *err)
{
    int64_t wanted = 0;
    size_t drafts = 0, found = SIZE_MAX;
    if (nb_config_int(&c->config, "num_nextn_predict_layers", -1, 0, 1000, &wanted, NULL) != NB_OK)
        wanted = 0;
    for (size_t i = 0; i < nb_ckpt_count(c->ckpt); i++) drafts += is_draft(c, nb_ckpt_at(c->ckpt, i)->name);
    if (wanted > 0 && !drafts && nb_check_complete(c)) {
        size_t i = nb_findings_add(out, "NB207", NB_SEVERITY_WARNING,
                                   "num_nextn_predict_layers names drafting layers, and the file has none");
        nb_findings_file(out, i, "config.json");
        nb_findings_measured(out, i, "num_nextn_predict_layers %lld", (long long)wanted);
        nb_findings_expected(out, i, "0, or tensors mtp.* or a layer after the last");
        nb_findings_remedy(out, i, true, "set it to 0, or copy the drafting layers from the original model");
        const nb_effect e = E(FINE, "without drafting nothing reads them");
        nb_value_effects(out, i, e, e, e);
    }
    if (drafts && !wanted && nb_config_get(&c->config, "num_nextn_predict_layers")) {
        size_t i = nb_findings_add(out, "NB207", NB_SEVERITY_NOTE,
                                   "the file has drafting layers, and num_nextn_predict_layers is 0");
        nb_findings_file(out, i, "config.json");
        nb_findings_measured(out, i, "%zu tensors", drafts);
        nb_findings_expected(out, i, "their number, for those who draft");
        nb_findings_remedy(out, i, false, "none needed: servers do not draft then");
    }
    for (size_t i = 0; i < c->modules.count && drafts; i++) {
        const nb_module *m = &c->modules.items[i];
        if (!nb_kind_nvfp4(m->kind) || !nb_module_codes(m) || !is_draft(c, m->name) ||
            !nb_tensor_skipped(c, nb_module_codes(m)) || c->quant.claims[i].entry < 0)
            continue;
        if (found == SIZE_MAX) {
            found = nb_findings_add(out, "NB207", NB_SEVERITY_WARNING,
                                    "drafting layers are quantised, and the config leaves them out");
            nb_findings_file(out, found, nb_check_file_of(c, nb_module_codes(m)));
            nb_findings_measured(out, found, "%s under an entry \"%.200s\"", nb_kind_name(m->kind),
                                 nb_quant_entry(&c->quant, (size_t)c->quant.claims[i].entry));
            nb_findings_expected(out, found, "float weights");
            nb_findings_remedy(out, found, true, "take the entry off the list");
            const nb_effect e = E(FINE, "without drafting nothing reads them");
            nb_value_effects(out, found, e, e, e);
        }
        nb_findings_tensor(out, found, nb_module_codes(m)->name);
    }
    return NB_OK;
}

/* ---- NB208 ---- */

static bool is_kv_scale(const char *name)
{
    const size_t n = strlen(name);
    return n > 8 && (strcmp(name + n - 8, ".k_scale") == 0 || strcmp(name + n - 8, ".v_scale") == 0);
}

/* The algorithm that the configs name for the cache; NULL: none. */
static const char *kv_algo(const nb_check *c)
{
    const json_t *a = json_object_get(c->quant.config, "kv_cache_scheme");
    const json_t *b = json_object_get(c->quant.hf, "kv_cache_quant_algo");
    if (!a || json_is_null(a)) a = json_object_get(c->quant.config, "kv_cache_quant_algo");
    if (json_is_string(a)) return json_string_value(a);
    if (json_is_object(a)) return "FP8";
    return json_string_value(b);
}

static size_t report(const nb_check *c, nb_findings *out, const char *file, const char *message)
{
    size_t i = nb_findings_add(out, "NB208", NB_SEVERITY_WARNING, "%s", message);
    nb_findings_file(out, i, file);
    const nb_effect e = E(FINE, "the weights are read as ever; this concerns a quantised KV cache alone");
    nb_value_effects(out, i, e, e, e);
    return i;
}

static void judge_values(const nb_check *c, const nb_tensor_info *t, nb_findings *out)
{
    float v;
    if (nb_tensor_elements(t) != 1 || nb_ckpt_read_f32(c->ckpt, t, &v, NULL) != NB_OK) return;
    /* A multiplier amax / 448: above 1 the maximum passes 448, which no cache of sane values does a hundredfold. */
    if (nb_scale_usable(v) && v < 100) return;
    size_t i = report(c, out, nb_check_file_of(c, t), "a KV-cache scale is no multiplier");
    nb_findings_tensor(out, i, t->name);
    nb_findings_bytes(out, i, t->begin, t->end);
    nb_findings_measured(out, i, "%g", (double)v);
    nb_findings_expected(out, i, "amax / 448: a positive number, about 0.01 to 1");
    nb_findings_remedy(out, i, false, "remove the scale (loaders then take 1), or calibrate the cache again");
}

/* Where every attention layer keeps its scales, told from one that has them: under k_proj (ModelOpt) or beside it. */
static void judge_absent(const nb_check *c, bool inside, nb_buf *name, nb_findings *out)
{
    size_t found = SIZE_MAX;
    for (size_t i = 0; i < c->modules.count && nb_buf_ok(name); i++) {
        const nb_module *m = &c->modules.items[i];
        const char *last = nb_last_part(m->name);
        if (strcmp(last, "k_proj") != 0 || !nb_module_codes(m) || nb_tensor_skipped(c, nb_module_codes(m)))
            continue;
        for (int v = 0; v < 2; v++) {
            const char *letter = v ? "v" : "k";
            nb_buf_clear(name);
            nb_buf_add(name, m->name, (size_t)(last - m->name));
            nb_buf_addf(name, inside ? "%s_proj.%s_scale" : "%.0s%s_scale", letter, letter);
            if (!nb_buf_ok(name) || !nb_check_absent(c, nb_buf_str(name))) continue;
            if (found == SIZE_MAX) {
                found = report(c, out, nb_check_file_of(c, nb_module_codes(m)),
                               "layers lack a KV-cache scale that others have");
                nb_findings_measured(out, found, "none; the config names %s", kv_algo(c));
                nb_findings_expected(out, found, "k_scale and v_scale in every layer");
                nb_findings_remedy(out, found, false,
                                   "loaders take 1 for it: right only by chance; calibrate the cache again");
            }
            nb_findings_tensor(out, found, nb_buf_str(name));
        }
    }
}

nb_status nb_rule_kv(const nb_check *c, nb_findings *out, nb_error *err)
{
    const char *algo = kv_algo(c);
    size_t n = 0, inside = 0, unnamed = SIZE_MAX;
    nb_buf name = {0};
    for (size_t i = 0; i < nb_ckpt_count(c->ckpt); i++) {
        const nb_tensor_info *t = nb_ckpt_at(c->ckpt, i);
        if (!is_kv_scale(t->name)) continue;
        n++;
        inside += strstr(t->name, "_proj.") != NULL;
        judge_values(c, t, out);
        if (algo || !c->quant.config) continue;
        if (unnamed == SIZE_MAX) {
            unnamed = report(c, out, nb_check_file_of(c, t),
                             "KV-cache scales are stored, and the config names no algorithm");
            nb_findings_measured(out, unnamed, "no kv_cache_scheme, no kv_cache_quant_algo");
            nb_findings_expected(out, unnamed, "FP8, or no scales");
            nb_findings_remedy(out, unnamed, true, "name the algorithm (FP8), or remove the scales");
        }
        nb_findings_tensor(out, unnamed, t->name);
    }
    if (algo && n) judge_absent(c, 2 * inside > n, &name, out);
    const bool ok = nb_buf_ok(&name);
    nb_buf_free(&name);
    return ok ? NB_OK : nb_fail_nomem(err, "a tensor's name", 0);
}
