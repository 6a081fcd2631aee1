/* Reading the claims. Patterns are compiled once; exact names, which are most, are looked up in a map. */
#include "doctor/quant.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/buf.h"
#include "base/json_tree.h"

#define MAX_CONFIG ((size_t)64 << 20)
#define MATCH_LIMIT 100000 /* of PCRE2: a pattern that needs more matches nothing */

typedef enum pattern_kind { PATTERN_EXACT, PATTERN_REGEX, PATTERN_GLOB, PATTERN_CLASS } pattern_kind;

struct nb_name_pattern {
    const char *text; /* borrowed from the JSON */
    pattern_kind kind;
    pcre2_code *code; /* PATTERN_REGEX; NULL: it does not compile */
    bool used;
};

struct nb_quant_group {
    const char *name;
    const json_t *json;
    nb_name_pattern *targets;
    size_t n_targets;
    nb_format_claim format;
    bool weight_only;
    nb_map exact; /* target -> index */
};

const char *nb_format_claim_name(nb_format_claim f)
{
    static const char *const names[] = {"an unknown format", "no quantisation", "NVFP4", "MXFP4", "FP8",
                                        "another format"};
    return names[f];
}

/* ---- patterns ---- */

/* How loaders read a name in a list: compressed-tensors knows `re:`, ModelOpt wildcards; of others either may be meant. */
static bool compile(nb_name_pattern *p, const char *text, nb_quant_method method)
{
    *p = (nb_name_pattern){.text = text, .kind = PATTERN_EXACT};
    if (method != NB_QUANT_MODELOPT && strncmp(text, "re:", 3) == 0) {
        int error;
        PCRE2_SIZE at;
        p->kind = PATTERN_REGEX;
        p->code = pcre2_compile((PCRE2_SPTR)(text + 3), PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &at, NULL);
        return p->code || error != PCRE2_ERROR_HEAP_FAILED;
    }
    if (method != NB_QUANT_CT && strpbrk(text, "*?[")) p->kind = PATTERN_GLOB;
    return true;
}

/* Python's re.match: anchored at the start only. */
static bool regex_matches(const nb_name_pattern *p, const char *name, pcre2_match_data *data,
                          pcre2_match_context *limits)
{
    return p->code &&
           pcre2_match(p->code, (PCRE2_SPTR)name, strlen(name), 0, PCRE2_ANCHORED, data, limits) >= 0;
}

/* True when part stands in name between dots or ends. */
static bool has_part(const char *name, const char *part)
{
    const size_t n = strlen(part);
    for (const char *p = n ? strstr(name, part) : NULL; p; p = strstr(p + 1, part)) {
        if ((p == name || p[-1] == '.') && (p[n] == '\0' || p[n] == '.')) return true;
    }
    return false;
}

/* True when name is "model." or the like and then entry. A prefix has no numbers: "mlp.gate" names a part of every layer. */
static bool lacks_prefix(const char *name, const char *entry)
{
    const size_t n = strlen(name), m = strlen(entry);
    if (n <= m + 1 || name[n - m - 1] != '.' || strcmp(name + n - m, entry) != 0 || !strchr(entry, '.'))
        return false;
    return strcspn(name, "0123456789") >= n - m - 1;
}

static bool glob_matches(const char *glob, const char *name)
{
    const size_t n = strlen(glob);
    if (fnmatch(glob, name, 0) == 0) return true;
    /* A glob that names a parent excludes what lies under it. */
    char wider[512];
    if (n + 3 > sizeof wider) return false;
    snprintf(wider, sizeof wider, "%s.*", glob);
    return fnmatch(wider, name, 0) == 0;
}

typedef struct matcher {
    pcre2_match_data *data;
    pcre2_match_context *limits;
} matcher;

/* How an entry of an exclusion list names a module: not, by its end alone (the prefix is missing), or rightly. */
typedef enum naming { NAMING_NONE, NAMING_END, NAMING_FULL } naming;

static naming entry_names(const nb_name_pattern *p, const char *name, bool ct, const matcher *m)
{
    switch (p->kind) {
    case PATTERN_REGEX: return regex_matches(p, name, m->data, m->limits) ? NAMING_FULL : NAMING_NONE;
    case PATTERN_GLOB: return glob_matches(p->text, name) ? NAMING_FULL : NAMING_NONE;
    default: break;
    }
    if (strcmp(p->text, name) == 0) return NAMING_FULL;
    if (lacks_prefix(name, p->text)) return NAMING_END;
    return !ct && has_part(name, p->text) ? NAMING_FULL : NAMING_NONE;
}

/* ---- the configs ---- */

static const char *text_of(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

static nb_format_claim claim_of_algo(const char *algo, bool *weight_only)
{
    static const struct {
        const char *name;
        nb_format_claim format;
        bool weight_only;
    } algos[] = {
        {"NVFP4", NB_CLAIM_NVFP4, false},         {"W4A16_NVFP4", NB_CLAIM_NVFP4, true},
        {"NVFP4_AWQ", NB_CLAIM_NVFP4, false},     {"NVFP4_SVD", NB_CLAIM_NVFP4, false},
        {"W4A8_NVFP4_FP8", NB_CLAIM_NVFP4, true}, {"FP8", NB_CLAIM_FP8, false},
        {"FP8_PB_WO", NB_CLAIM_FP8, true},        {"FP8_PER_CHANNEL_PER_TOKEN", NB_CLAIM_FP8, false},
        {"W4A8_MXFP4_FP8", NB_CLAIM_MXFP4, true}, {"MXFP4", NB_CLAIM_MXFP4, true},
        {"MXFP8", NB_CLAIM_OTHER, false},
    };
    for (size_t i = 0; algo && i < sizeof algos / sizeof *algos; i++) {
        if (strcmp(algos[i].name, algo) != 0) continue;
        *weight_only = algos[i].weight_only;
        return algos[i].format;
    }
    return NB_CLAIM_OPEN;
}

static nb_format_claim claim_of_group(const nb_quant *q, const json_t *g)
{
    const json_t *w = json_object_get(g, "weights"), *bits = json_object_get(w, "num_bits");
    const char *format = text_of(g, "format");
    if (!format && q->method == NB_QUANT_CT) format = text_of(q->config, "format");
    if (format && strcmp(format, "nvfp4-pack-quantized") == 0) return NB_CLAIM_NVFP4;
    if (format && strcmp(format, "mxfp4-pack-quantized") == 0) return NB_CLAIM_MXFP4;
    if (format && strcmp(format, "float-quantized") == 0) return NB_CLAIM_FP8;
    if (!json_is_integer(bits)) return NB_CLAIM_OPEN;
    const char *type = text_of(w, "type");
    if (!type || strcmp(type, "float") != 0) return NB_CLAIM_OTHER;
    if (json_integer_value(bits) == 8) return NB_CLAIM_FP8;
    if (json_integer_value(bits) != 4) return NB_CLAIM_OTHER;
    return json_integer_value(json_object_get(w, "group_size")) == 32 ? NB_CLAIM_MXFP4 : NB_CLAIM_NVFP4;
}

static nb_quant_method method_of(const nb_quant *q)
{
    const char *m = q->method_name;
    if (!q->config) return q->hf ? NB_QUANT_MODELOPT : NB_QUANT_NONE;
    if (!m) return NB_QUANT_UNKNOWN;
    if (strcmp(m, "compressed-tensors") == 0) return NB_QUANT_CT;
    if (strncmp(m, "modelopt", 8) == 0) return NB_QUANT_MODELOPT;
    if (strcmp(m, "fp8") == 0) return NB_QUANT_FP8;
    return strcmp(m, "mxfp4") == 0 ? NB_QUANT_MXFP4 : NB_QUANT_UNKNOWN;
}

/* The lists of names not to quantise, whatever the producer calls them. */
static const json_t *exclusions(const nb_quant *q)
{
    static const char *const keys[] = {"ignore", "exclude_modules", "modules_to_not_convert",
                                       "ignored_layers"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *l = json_object_get(q->config, keys[i]);
        if (json_is_array(l)) return l;
    }
    const json_t *l = json_object_get(q->hf, "exclude_modules");
    return json_is_array(l) ? l : NULL;
}

static bool read_entries(nb_quant *q)
{
    const json_t *l = exclusions(q);
    const size_t n = json_array_size(l);
    if (!n) return true;
    q->entries = calloc(n, sizeof *q->entries);
    if (!q->entries) return false;
    for (size_t i = 0; i < n; i++) {
        const char *text = json_string_value(json_array_get(l, i));
        if (!text) continue;
        if (!compile(&q->entries[q->n_entries], text, q->method)) return false;
        q->n_entries++;
    }
    return true;
}

/* One group from a JSON array of targets, or from a single name. */
static bool add_group(nb_quant *q, const char *name, const json_t *json, const json_t *targets,
                      const char *target, nb_format_claim format, bool weight_only)
{
    const size_t n = target ? 1 : json_array_size(targets);
    struct nb_quant_group *g = &q->groups[q->n_groups++];
    *g = (struct nb_quant_group){.name = name, .json = json, .format = format, .weight_only = weight_only};
    g->targets = calloc(n + 1, sizeof *g->targets);
    if (!g->targets) return false;
    for (size_t i = 0; i < n; i++) {
        const char *text = target ? target : json_string_value(json_array_get(targets, i));
        if (!text) continue;
        nb_name_pattern *p = &g->targets[g->n_targets];
        if (!compile(p, text, NB_QUANT_CT)) return false;
        if (p->kind == PATTERN_EXACT && !strchr(text, '.') && strcasestr(text, "linear"))
            p->kind = PATTERN_CLASS;
        if (p->kind == PATTERN_EXACT &&
            !nb_map_put(&g->exact, text, strlen(text), (uint32_t)g->n_targets, NULL))
            return false;
        g->n_targets++;
    }
    return true;
}

static bool read_groups(nb_quant *q)
{
    const json_t *groups = json_object_get(q->config, "config_groups");
    const json_t *layers = json_object_get(q->config, "quantized_layers");
    const bool ct = q->method == NB_QUANT_CT;
    const char *key;
    json_t *v;
    if (!layers) layers = json_object_get(q->hf, "quantized_layers");
    if (ct) layers = NULL;
    const size_t n = json_object_size(groups) + json_object_size(layers);
    if (!n) return true;
    q->groups = calloc(n, sizeof *q->groups);
    if (!q->groups) return false;
    /* ModelOpt's config_groups repeat what the algorithm says; quantized_layers is what its loaders read. */
    json_object_foreach((json_t *)layers, key, v)
    {
        bool weight_only = false;
        const nb_format_claim f = claim_of_algo(text_of(v, "quant_algo"), &weight_only);
        if (!add_group(q, "quantized_layers", v, NULL, key, f, weight_only)) return false;
    }
    json_object_foreach((json_t *)groups, key, v)
    {
        const json_t *in = json_object_get(v, "input_activations");
        if ((ct || !json_object_size(layers)) && !add_group(q, key, v, json_object_get(v, "targets"), NULL,
                                                            claim_of_group(q, v), !in || json_is_null(in)))
            return false;
    }
    return true;
}

static nb_status read_hf(const nb_ckpt *c, nb_quant *q, nb_error *err)
{
    nb_buf text = {0};
    char *path = nb_path_join(nb_ckpt_dir(c), "hf_quant_config.json");
    if (!path) return nb_fail_nomem(err, "hf_quant_config.json", 0);
    nb_status s = nb_file_slurp(path, MAX_CONFIG, &text, err);
    if (s == NB_OK) {
        s = nb_json_tree(path, nb_buf_str(&text), text.len, &q->hf_root, err);
        if (s == NB_OK) q->hf = json_object_get(q->hf_root, "quantization");
        if (s == NB_ERR_FORMAT || (s == NB_OK && !json_is_object(q->hf))) {
            q->hf = NULL;
            q->hf_error = "hf_quant_config.json is no JSON object with \"quantization\"";
        }
    }
    nb_buf_free(&text);
    free(path);
    return s == NB_ERR_NOMEM ? s : NB_OK; /* a file that cannot be read claims nothing */
}

/* ---- claims ---- */

static bool is_embedding(const char *name)
{
    const char *last = strrchr(name, '.');
    last = last ? last + 1 : name;
    return strncmp(last, "embed", 5) == 0 || strcmp(last, "wte") == 0 || strcmp(last, "embeddings") == 0;
}

static bool is_linear(const nb_module *m)
{
    const nb_tensor_info *w = nb_module_codes(m);
    return w && w->rank == 2 && !is_embedding(m->name);
}

/* CT: exact, regex, then class names. quantized_layers: exact, or a parent. */
static bool group_claims(const nb_quant *q, const struct nb_quant_group *g, const nb_module *m,
                         const matcher *match)
{
    const bool parents = q->method != NB_QUANT_CT;
    if (nb_map_get(&g->exact, m->name, strlen(m->name), NULL)) return true;
    for (size_t i = 0; i < g->n_targets; i++) {
        const nb_name_pattern *p = &g->targets[i];
        if (p->kind == PATTERN_REGEX && regex_matches(p, m->name, match->data, match->limits)) return true;
        if (p->kind == PATTERN_CLASS && is_linear(m)) return true;
        if (p->kind == PATTERN_EXACT && parents && strncmp(m->name, p->text, strlen(p->text)) == 0 &&
            m->name[strlen(p->text)] == '.')
            return true;
    }
    return false;
}

static void claim(nb_quant *q, const nb_module *m, nb_claim *out, const matcher *match)
{
    const bool ct = q->method == NB_QUANT_CT;
    *out = (nb_claim){.format = NB_CLAIM_OPEN, .entry = -1, .suffix = -1, .group = -1, .other = -1};
    for (size_t i = 0; i < q->n_entries; i++) {
        const naming n = entry_names(&q->entries[i], m->name, ct, match);
        if (n == NAMING_NONE) continue;
        q->entries[i].used = true;
        if (n == NAMING_FULL && out->entry < 0) out->entry = (int32_t)i;
        if (n == NAMING_END) out->suffix = (int32_t)i;
    }
    for (size_t i = 0; i < q->n_groups; i++) {
        const struct nb_quant_group *g = &q->groups[i];
        if (!group_claims(q, g, m, match)) continue;
        if (out->group < 0) {
            out->group = (int32_t)i;
            out->format = g->format;
            out->weight_only = g->weight_only;
        } else if (g->format != out->format) {
            out->other = (int32_t)i;
        }
    }
    if (q->method == NB_QUANT_MODELOPT && (!q->algo || strcmp(q->algo, "MIXED_PRECISION") != 0))
        out->format = claim_of_algo(q->algo, &out->weight_only);
    else if (q->method != NB_QUANT_CT && q->method != NB_QUANT_MODELOPT)
        out->format = NB_CLAIM_OPEN;
    else if (out->group < 0 && q->n_groups)
        out->format = NB_CLAIM_NONE;
    if (out->entry >= 0 && (ct || q->method == NB_QUANT_MODELOPT)) out->format = NB_CLAIM_NONE;
}

/* Entries that name no module may still name a tensor, or a part without weights of its own. */
static void look_further(const nb_ckpt *c, nb_quant *q, const matcher *m, nb_buf *parent)
{
    for (size_t i = 0; i < q->n_entries; i++) {
        nb_name_pattern *p = &q->entries[i];
        for (size_t k = 0; k < nb_ckpt_count(c) && !p->used && nb_buf_ok(parent); k++) {
            const char *name = nb_ckpt_at(c, k)->name, *dot = strrchr(name, '.');
            nb_buf_clear(parent);
            nb_buf_add(parent, name, dot ? (size_t)(dot - name) : strlen(name));
            p->used = entry_names(p, name, false, m) != NAMING_NONE ||
                      entry_names(p, nb_buf_str(parent), false, m) != NAMING_NONE;
        }
    }
}

nb_status nb_quant_build(const nb_ckpt *c, const nb_modules *modules, nb_quant *out, nb_error *err)
{
    nb_quant q = {0};
    nb_buf scratch = {0};
    matcher m = {pcre2_match_data_create(1, NULL), pcre2_match_context_create(NULL)};
    nb_status s = NB_OK;
    bool ok = m.data && m.limits;
    if (ok) pcre2_set_match_limit(m.limits, MATCH_LIMIT);
    if (ok) s = read_hf(c, &q, err);
    if (s != NB_OK) goto out;
    const json_t *config = json_object_get(nb_ckpt_config(c), "quantization_config");
    if (!config)
        config = json_object_get(json_object_get(nb_ckpt_config(c), "text_config"), "quantization_config");
    q.config = json_is_object(config) ? config : NULL;
    q.method_name = text_of(q.config, "quant_method");
    q.method = method_of(&q);
    q.algo = text_of(q.config, "quant_algo");
    if (!q.algo) q.algo = text_of(q.hf, "quant_algo");
    ok = ok && read_entries(&q) && read_groups(&q);
    if (ok) q.claims = calloc(modules->count + 1, sizeof *q.claims);
    ok = ok && q.claims;
    for (size_t i = 0; ok && i < modules->count; i++) claim(&q, &modules->items[i], &q.claims[i], &m);
    if (ok) look_further(c, &q, &m, &scratch);
    ok = ok && nb_buf_ok(&scratch);
    if (!ok) s = nb_fail_nomem(err, "the config's claims", modules->count * sizeof *q.claims);
out:
    nb_buf_free(&scratch);
    pcre2_match_data_free(m.data);
    pcre2_match_context_free(m.limits);
    if (s == NB_OK)
        *out = q;
    else
        nb_quant_free(&q);
    return s;
}

void nb_quant_free(nb_quant *q)
{
    for (size_t i = 0; i < q->n_entries; i++) pcre2_code_free(q->entries[i].code);
    for (size_t i = 0; i < q->n_groups; i++) {
        for (size_t k = 0; k < q->groups[i].n_targets; k++) pcre2_code_free(q->groups[i].targets[k].code);
        free(q->groups[i].targets);
        nb_map_free(&q->groups[i].exact);
    }
    free(q->entries);
    free(q->groups);
    free(q->claims);
    json_decref(q->hf_root);
    *q = (nb_quant){0};
}

const char *nb_quant_entry(const nb_quant *q, size_t i)
{
    return q->entries[i].text;
}

const char *nb_quant_entry_broken(const nb_quant *q, size_t i)
{
    const nb_name_pattern *p = &q->entries[i];
    return p->kind == PATTERN_REGEX && !p->code ? "the regular expression does not compile" : NULL;
}

bool nb_quant_entry_used(const nb_quant *q, size_t i)
{
    return q->entries[i].used;
}

const char *nb_quant_group_name(const nb_quant *q, size_t i)
{
    return q->groups[i].name;
}

const json_t *nb_quant_group_json(const nb_quant *q, size_t i)
{
    return q->groups[i].json;
}

bool nb_quant_says(const nb_quant *q, nb_format_claim format)
{
    bool weight_only;
    if (q->algo && claim_of_algo(q->algo, &weight_only) == format) return true;
    const char *moe = text_of(q->config, "moe_quant_algo");
    if (moe && claim_of_algo(moe, &weight_only) == format) return true;
    for (size_t i = 0; i < q->n_groups; i++) {
        if (q->groups[i].format == format) return true;
    }
    return false;
}
