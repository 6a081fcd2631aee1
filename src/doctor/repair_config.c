/*
 * NB201 to NB211 and --dequant: config.json and hf_quant_config.json made to say what the tensors are. Only the entries at fault
 * change. Where several formats lie in one file and no group names them, what the exporter meant cannot be told, and nothing is
 * written.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json_tree.h"
#include "doctor/quant.h"
#include "doctor/repair_plan.h"

#define MAX_CONFIG ((size_t)64 << 20)

nb_status nb_fix_config(nb_plan *p, const nb_finding *f, nb_error *err)
{
    (void)err;
    bool stored = false;
    for (size_t i = 0; i < f->n_tensors; i++) stored = stored || nb_ckpt_find(p->ckpt, f->tensors[i]);
    const char *why = NULL;
    if (strcmp(f->rule, "NB202") == 0) {
        p->fix_ignore = p->drop_unused = true;
    } else if (strcmp(f->rule, "NB205") == 0) {
        if (stored)
            p->fix_tie = true;
        else
            why =
                "the head is not in the file: whether it is tied to the embedding or was lost cannot be told";
    } else if (strcmp(f->rule, "NB207") == 0) {
        if (!stored)
            p->fix_drafts = true;
        else
            why = "loaders expect drafting layers in BF16: repair --dequant 'PATTERN' makes them so";
    } else {
        p->fix_scheme = true;
    }
    if (why) {
        nb_repair_note(&p->refused, f->rule, f->n_tensors ? f->tensors[0] : NULL, -1, "%s", why);
        return NB_OK;
    }
    for (size_t i = 0; i < p->n_config_rules; i++)
        if (strcmp(p->config_rules[i], f->rule) == 0) return NB_OK;
    if (p->n_config_rules < sizeof p->config_rules / sizeof *p->config_rules)
        memcpy(p->config_rules[p->n_config_rules++], f->rule, sizeof f->rule);
    return NB_OK;
}

/* What a module will be. */
typedef enum state { STATE_NONE, STATE_FLOAT, STATE_NVFP4, STATE_OTHER } state;

typedef struct facts {
    size_t ct, modelopt, other; /* quantised linears by format */
    size_t inputs;              /* NVFP4 ones that have an input scale */
} facts;

static state state_of(const nb_plan *p, const nb_module *m)
{
    const nb_tensor_info *w = nb_module_codes(m);
    if (nb_plan_dequantised(p, m)) return STATE_FLOAT;
    if (nb_kind_nvfp4(m->kind)) return STATE_NVFP4;
    if (m->kind == NB_KIND_FLOAT) return w && w->rank == 2 ? STATE_FLOAT : STATE_NONE;
    return m->kind == NB_KIND_NONE || m->kind == NB_KIND_OTHER ? STATE_NONE : STATE_OTHER;
}

static facts look(const nb_plan *p)
{
    facts f = {0};
    for (size_t i = 0; i < p->modules.count; i++) {
        const nb_module *m = &p->modules.items[i];
        const state s = state_of(p, m);
        f.other += s == STATE_OTHER;
        if (s != STATE_NVFP4) continue;
        f.ct += m->kind == NB_KIND_NVFP4_CT;
        f.modelopt += m->kind == NB_KIND_NVFP4_MODELOPT;
        f.inputs += nb_module_input(m) != NULL;
    }
    for (size_t i = 0; i < p->n_edits; i++) {
        const nb_edit *e = p->edits[i];
        f.inputs += !e->from && e->content == NB_CONTENT_VALUE && strstr(e->name, ".input") != NULL;
    }
    return f;
}

/* The two configs, as they are (NULL: not there) and as they are to be. */
typedef struct configs {
    nb_plan *p;
    nb_quant quant;
    facts facts;
    nb_buf text, hf_text;  /* config.json, hf_quant_config.json */
    json_t *config, *hf;   /* quantization_config; hf's "quantization" */
    const char *why;       /* the scheme cannot be written because … */
    bool all;              /* one group claims every linear now: the lists must name each that is float */
    bool bad;              /* out of memory */
    size_t dropped, added; /* entries of ignore lists */
} configs;

static void set(configs *c, json_t *o, const char *key, json_t *value)
{
    if (json_object_set_new(o, key, value) != 0) c->bad = true;
}

/* A copy of v (NULL: none). jansson's may lack members when memory ran out on the way, so it is compared. */
static json_t *copy_of(configs *c, const json_t *v)
{
    json_t *copy = v ? json_deep_copy(v) : NULL;
    if (v && (!copy || !json_equal(copy, v))) c->bad = true;
    return copy;
}

static const char *text_at(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* ---- the ignore lists ---- */

static bool is_embedding(const char *name)
{
    const char *last = strrchr(name, '.');
    return strncmp(last ? last + 1 : name, "embed", 5) == 0;
}

/* Adds name to the array unless it is there. */
static void add_entry(configs *c, json_t *list, const char *name)
{
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v)
    {
        if (json_is_string(v) && strcmp(json_string_value(v), name) == 0) return;
    }
    if (json_array_append_new(list, json_string(name)) != 0) c->bad = true;
    c->added++;
}

static void drop_entry(configs *c, json_t *list, const char *name)
{
    for (size_t i = json_array_size(list); i-- > 0;) {
        const char *v = json_string_value(json_array_get(list, i));
        if (!v || strcmp(v, name) != 0) continue;
        json_array_remove(list, i);
        c->dropped++;
    }
}

static json_t *list_of(json_t *o)
{
    static const char *const keys[] = {"ignore", "exclude_modules", "modules_to_not_convert",
                                       "ignored_layers"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *l = json_object_get(o, keys[i]);
        if (json_is_array(l)) return l;
    }
    return NULL;
}

/* Entries that name an NVFP4 linear go, float linears that the scheme would claim come. all: name every float linear, for a
 * list that is made anew. */
static void fix_list(configs *c, json_t *list, bool all)
{
    const nb_quant *q = &c->quant;
    const nb_plan *p = c->p;
    bool *drop = calloc(q->n_entries + 1, sizeof *drop);
    if (!drop || !list) {
        c->bad = c->bad || !drop;
        free(drop);
        return;
    }
    for (size_t i = 0; i < q->n_entries && p->drop_unused; i++) drop[i] = !nb_quant_entry_used(q, i);
    for (size_t i = 0; i < p->modules.count && p->drop_unused; i++) {
        const nb_claim *cl = &q->claims[i];
        const state s = state_of(p, &p->modules.items[i]);
        if (s == STATE_NVFP4 && cl->entry >= 0) drop[cl->entry] = true;
        if (s == STATE_FLOAT && cl->entry < 0 && cl->suffix >= 0) drop[cl->suffix] = true;
    }
    for (size_t i = 0; i < q->n_entries; i++)
        if (drop[i]) drop_entry(c, list, nb_quant_entry(q, i));
    for (size_t i = 0; i < p->modules.count; i++) {
        const nb_module *m = &p->modules.items[i];
        const nb_claim *cl = &q->claims[i];
        if (state_of(p, m) != STATE_FLOAT || is_embedding(m->name)) continue;
        const bool listed = cl->entry >= 0 && !drop[cl->entry];
        const bool claimed = (cl->format != NB_CLAIM_NONE && cl->format != NB_CLAIM_OPEN) ||
                             (cl->entry >= 0 && drop[cl->entry]);
        if (nb_plan_dequantised(p, m) ? !listed || m->kind == NB_KIND_FP8
                                      : all || (p->drop_unused && claimed && !listed))
            add_entry(c, list, m->name);
    }
    free(drop);
}

/* Takes entries of quantized_layers away under which nothing is quantised any more. */
static void fix_layers(configs *c, json_t *o)
{
    json_t *layers = json_object_get(o, "quantized_layers"), *v;
    const char *key;
    void *tmp;
    json_object_foreach_safe(layers, tmp, key, v)
    {
        const size_t n = strlen(key);
        bool left = false, any = false;
        for (size_t i = 0; i < c->p->modules.count && !left; i++) {
            const nb_module *m = &c->p->modules.items[i];
            if (strncmp(m->name, key, n) != 0 || (m->name[n] != '.' && m->name[n])) continue;
            const state s = state_of(c->p, m);
            left = s == STATE_NVFP4 || s == STATE_OTHER;
            any = any || nb_plan_dequantised(c->p, m);
        }
        if (any && !left) json_object_del(layers, key);
    }
}

/* ---- the scheme ---- */

/* A group's arguments of NVFP4; what else an exporter wrote there (observers) stays. */
static void nvfp4_arguments(configs *c, json_t *o, bool ct, json_t *dynamic)
{
    set(c, o, "num_bits", json_integer(4));
    set(c, o, "type", json_string("float"));
    set(c, o, "group_size", json_integer(16));
    set(c, o, "dynamic", dynamic);
    json_object_del(o, "block_structure");
    if (!ct) return;
    set(c, o, "strategy", json_string("tensor_group"));
    set(c, o, "symmetric", json_true());
    set(c, o, "scale_dtype", json_string("torch.float8_e4m3fn"));
}

static json_t *object_at(configs *c, json_t *o, const char *key)
{
    json_t *v = json_object_get(o, key);
    if (!json_is_object(v)) {
        set(c, o, key, json_object());
        v = json_object_get(o, key);
    }
    return v;
}

static void nvfp4_group(configs *c, json_t *g, bool ct)
{
    if (!json_is_object(g)) {
        c->why = "one config group is no object: what was meant cannot be told";
        return;
    }
    nvfp4_arguments(c, object_at(c, g, "weights"), ct, json_false());
    if (c->facts.inputs)
        nvfp4_arguments(c, object_at(c, g, "input_activations"), ct,
                        ct ? json_string("local") : json_false());
    else if (ct)
        set(c, g, "input_activations", json_null());
    else
        json_object_del(g, "input_activations");
    if (ct) set(c, g, "format", json_string("nvfp4-pack-quantized"));
}

/* One group for all linears; the ignore list names those that are none of it. */
static void single_group(configs *c, bool ct)
{
    json_t *groups = json_object(), *g = json_object(), *targets = json_array();
    if (!groups || !g || !targets || json_array_append_new(targets, json_string("Linear")) != 0)
        c->bad = true;
    set(c, g, "targets", targets);
    nvfp4_group(c, g, ct);
    set(c, groups, "group_0", g);
    c->all = true;
    set(c, c->config, "config_groups", groups);
}

/* How many modules a group claims, as its first or its second claim. */
static void claimed_by(const configs *c, int32_t group, size_t *nvfp4, size_t *other, size_t *shared)
{
    *nvfp4 = *other = *shared = 0;
    for (size_t i = 0; i < c->p->modules.count; i++) {
        const nb_claim *cl = &c->quant.claims[i];
        const state s = state_of(c->p, &c->p->modules.items[i]);
        if (cl->group != group && cl->other != group) continue;
        *nvfp4 += s == STATE_NVFP4;
        *other += s == STATE_OTHER;
        *shared += s == STATE_NVFP4 && cl->group >= 0 && cl->other >= 0;
    }
}

static bool says_nvfp4(const json_t *g)
{
    const json_t *w = json_object_get(g, "weights");
    return json_integer_value(json_object_get(w, "num_bits")) == 4 &&
           strcmp(text_at(w, "type"), "float") == 0 &&
           json_integer_value(json_object_get(w, "group_size")) == 16;
}

static void ct_groups(configs *c)
{
    const nb_quant *q = &c->quant;
    json_t *groups = json_object_get(c->config, "config_groups"), *g;
    bool homeless = false;
    for (size_t i = 0; i < c->p->modules.count; i++)
        homeless =
            homeless || (state_of(c->p, &c->p->modules.items[i]) == STATE_NVFP4 && q->claims[i].group < 0);
    if (homeless || !json_object_size(groups)) {
        if (c->facts.other)
            c->why =
                "linears of several formats, and no config group names each: what was meant cannot be told";
        else
            single_group(c, true);
        return;
    }
    for (size_t i = 0; i < q->n_groups; i++) {
        size_t nvfp4, other, shared;
        claimed_by(c, (int32_t)i, &nvfp4, &other, &shared);
        g = json_object_get(groups, nb_quant_group_name(q, i));
        if (!nvfp4 || !g) continue;
        if (shared && !says_nvfp4(g))
            json_object_del(
                groups, nb_quant_group_name(q, i)); /* the other group that claims them says what they are */
        else if (!other)
            nvfp4_group(c, g, true);
        else if (!says_nvfp4(g))
            c->why = "one config group names linears of several formats: what was meant cannot be told";
    }
}

static void ct_scheme(configs *c)
{
    const char *key, *format = NULL;
    json_t *g;
    bool mixed = false;
    set(c, c->config, "quant_method", json_string("compressed-tensors"));
    json_object_del(c->config, "quant_algo");
    ct_groups(c);
    json_object_foreach(json_object_get(c->config, "config_groups"), key, g)
    {
        const char *f = text_at(g, "format");
        mixed = mixed || (format && strcmp(format, f) != 0);
        format = f;
    }
    if (format && *format) set(c, c->config, "format", json_string(mixed ? "mixed-precision" : format));
    if (!json_object_get(c->config, "quantization_status"))
        set(c, c->config, "quantization_status", json_string("compressed"));
}

/* NVFP4 entries of quantized_layers and moe_quant_algo become weight-only. */
static void weight_only_layers(configs *c, json_t *o)
{
    const char *key;
    json_t *v;
    json_object_foreach(json_object_get(o, "quantized_layers"), key, v)
    {
        if (strcmp(text_at(v, "quant_algo"), "NVFP4") == 0)
            set(c, v, "quant_algo", json_string("W4A16_NVFP4"));
    }
    if (strcmp(text_at(o, "moe_quant_algo"), "NVFP4") == 0)
        set(c, o, "moe_quant_algo", json_string("W4A16_NVFP4"));
}

static void modelopt_scheme(configs *c, bool fresh)
{
    const char *const algo = c->facts.inputs ? "NVFP4" : "W4A16_NVFP4";
    const bool layers = json_object_size(json_object_get(c->config, "quantized_layers")) ||
                        json_object_size(json_object_get(c->hf, "quantized_layers"));
    const bool says_mixed = strcmp(text_at(c->config, "quant_algo"), "MIXED_PRECISION") == 0 ||
                            strcmp(text_at(c->hf, "quant_algo"), "MIXED_PRECISION") == 0;
    const bool mixed = c->facts.other || (layers && says_mixed);
    if (mixed && !(layers && says_mixed)) {
        c->why =
            "linears of several formats, and no quantized_layers names each: what was meant cannot be told";
        return;
    }
    if (mixed && !c->facts.inputs && strcmp(text_at(c->config, "quant_method"), "fp8") == 0) {
        c->why = "quant_method fp8 has no word for weight-only experts: measure input scales, or convert the "
                 "folder";
        return;
    }
    const char *key;
    json_t *g;
    json_object_foreach(json_object_get(c->config, "config_groups"), key, g)
    {
        if (!c->facts.other || says_nvfp4(g)) nvfp4_group(c, g, false);
    }
    if (c->config) {
        const char *method = text_at(c->config, "quant_method");
        if (!mixed)
            set(c, c->config, "quant_method", json_string("modelopt"));
        else if (strcmp(method, "fp8") != 0 && strncmp(method, "modelopt", 8) != 0)
            c->why = "linears of several formats under an unknown quant_method: which loader is meant cannot "
                     "be told";
        set(c, c->config, "quant_algo", json_string(mixed ? "MIXED_PRECISION" : algo));
        if (mixed && !c->facts.inputs) weight_only_layers(c, c->config);
        if (fresh) set(c, c->config, "group_size", json_integer(16));
    }
    if (!c->hf) return;
    set(c, c->hf, "quant_algo", json_string(mixed ? "MIXED_PRECISION" : algo));
    if (mixed && !c->facts.inputs) weight_only_layers(c, c->hf);
    set(c, c->hf, "group_size", json_integer(16));
    if (!json_object_get(c->hf, "kv_cache_quant_algo")) set(c, c->hf, "kv_cache_quant_algo", json_null());
    if (!json_object_get(c->hf, "exclude_modules")) {
        json_t *own = list_of(c->config);
        set(c, c->hf, "exclude_modules", own ? copy_of(c, own) : json_array());
        if (!own) fix_list(c, json_object_get(c->hf, "exclude_modules"), true);
    }
}

static void scheme(configs *c)
{
    const bool fresh = !c->config && !c->hf;
    if (!c->facts.ct && !c->facts.modelopt) {
        c->why = "no NVFP4 linear is in the file; this repair writes the config of NVFP4 models alone";
    } else if (c->facts.ct && c->facts.modelopt) {
        c->why = "linears of both flavours are in the file; no loader reads such a mixture";
    } else if (fresh && c->facts.other) {
        c->why = "linears of several formats, and no config that names them: what was meant cannot be told";
    } else if (json_object_get(json_object_get(nb_ckpt_config(c->p->ckpt), "text_config"),
                               "quantization_config")) {
        c->why = "quantization_config lies in text_config; this repair knows it at the top alone";
    }
    if (c->why) return;
    if (fresh || (!c->config && c->facts.ct)) {
        c->config = json_object();
        json_t *list = json_array();
        if (!c->config || !list) c->bad = true;
        set(c, c->config, "ignore", list);
        fix_list(c, list, true);
        if (c->facts.modelopt) single_group(c, false);
    }
    if (c->facts.ct)
        ct_scheme(c);
    else
        modelopt_scheme(c, fresh);
}

/* True when compressed-tensors' targets name none of the file's NVFP4 linears, or not all. */
static bool no_target(const configs *c)
{
    for (size_t i = 0; i < c->p->modules.count && c->quant.method == NB_QUANT_CT; i++) {
        const nb_claim *cl = &c->quant.claims[i];
        if (state_of(c->p, &c->p->modules.items[i]) == STATE_NVFP4 && cl->group < 0 && cl->entry < 0)
            return true;
    }
    return false;
}

/* ---- files ---- */

/* The JSON as text, indented to stand as a value in an object. Read back and compared: jansson's text may be cut short when memory
 * ran out. */
static bool dump(const json_t *v, nb_buf *out)
{
    json_t *back = NULL;
    char *text = json_dumps(v, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    bool ok = text && nb_json_tree(NULL, text, strlen(text), &back, NULL) == NB_OK && json_equal(back, v);
    for (const char *p = text; ok && *p; p++) {
        nb_buf_addc(out, *p);
        if (*p == '\n') nb_buf_adds(out, "  ");
    }
    json_decref(back);
    free(text);
    return ok && nb_buf_ok(out);
}

/* Replaces the value of key in the text, in place. */
static nb_status splice(nb_buf *text, const char *file, const char *key, const char *value, nb_error *err)
{
    nb_buf out = {0};
    if (!nb_json_splice(nb_buf_str(text), text->len, key, value, &out)) {
        nb_buf_free(&out);
        nb_fail(err, NB_ERR_FORMAT, "the file is no JSON object");
        nb_error_at(err, file, NULL, -1);
        return NB_ERR_FORMAT;
    }
    if (!nb_buf_ok(&out)) {
        nb_buf_free(&out);
        return nb_fail_nomem(err, file, text->len);
    }
    nb_buf_free(text);
    *text = out;
    return NB_OK;
}

static nb_status splice_json(nb_buf *text, const char *file, const char *key, const json_t *v, nb_error *err)
{
    nb_buf value = {0};
    nb_status s =
        dump(v, &value) ? splice(text, file, key, nb_buf_str(&value), err) : nb_fail_nomem(err, file, 0);
    nb_buf_free(&value);
    return s;
}

/* Reads a file of the folder if it is there. */
static nb_status read_text(const nb_plan *p, const char *name, nb_buf *out, nb_error *err)
{
    char *path = nb_path_join(p->dir, name);
    nb_status s = path ? NB_OK : nb_fail_nomem(err, "a file's path", strlen(p->dir));
    if (s == NB_OK && access(path, F_OK) == 0) s = nb_file_slurp(path, MAX_CONFIG, out, err);
    free(path);
    return s;
}

static void note(nb_plan *p, const configs *c, bool changed)
{
    for (size_t i = 0; i < p->n_config_rules; i++) {
        const char *rule = p->config_rules[i];
        const bool list = strcmp(rule, "NB202") == 0,
                   key = strcmp(rule, "NB205") == 0 || strcmp(rule, "NB207") == 0;
        if (c->why && !list && !key)
            nb_repair_note(&p->refused, rule, NULL, -1, "%s", c->why);
        else if (!changed)
            nb_repair_note(
                &p->refused, rule, NULL, -1, "%s",
                list ? "the lists name what is not quantised; linears that loaders fuse must have one "
                       "format: repair --dequant their siblings"
                     : "the config already says what the tensors are");
        else if (list)
            nb_repair_note(&p->applied, rule, NULL, 0, "ignore lists: %zu entries taken out, %zu added",
                           c->dropped, c->added);
        else if (strcmp(rule, "NB205") == 0)
            nb_repair_note(&p->applied, rule, NULL, 0,
                           "tie_word_embeddings set to false: the file has a head of its own");
        else if (strcmp(rule, "NB207") == 0)
            nb_repair_note(&p->applied, rule, NULL, 0,
                           "num_nextn_predict_layers set to 0: the file has no such layer");
        else
            nb_repair_note(&p->applied, rule, NULL, 0,
                           "quantisation config rewritten to what the tensors are");
    }
}

/* The changed texts go to the plan. */
static nb_status keep(configs *c, const json_t *config_before, const json_t *hf_before, nb_error *err)
{
    nb_plan *p = c->p;
    nb_status s = NB_OK;
    bool config_changed = c->config && !json_equal(c->config, config_before),
         hf_changed = c->hf && !json_equal(c->hf, hf_before);
    if (config_changed) s = splice_json(&c->text, "config.json", "quantization_config", c->config, err);
    if (s == NB_OK && p->fix_tie) s = splice(&c->text, "config.json", "tie_word_embeddings", "false", err);
    if (s == NB_OK && p->fix_drafts)
        s = splice(&c->text, "config.json", "num_nextn_predict_layers", "0", err);
    if (s == NB_OK && hf_changed)
        s = splice_json(&c->hf_text, "hf_quant_config.json", "quantization", c->hf, err);
    if (s != NB_OK) return s;
    config_changed = config_changed || p->fix_tie || p->fix_drafts;
    if (config_changed) {
        p->files[p->n_files++] = (nb_new_file){"config.json", c->text};
        c->text = (nb_buf){0};
    }
    if (hf_changed) {
        p->files[p->n_files++] = (nb_new_file){"hf_quant_config.json", c->hf_text};
        c->hf_text = (nb_buf){0};
    }
    note(p, c, config_changed || hf_changed);
    return NB_OK;
}

nb_status nb_plan_config(nb_plan *p, nb_error *err)
{
    configs c = {.p = p};
    if (!p->fix_scheme && !p->fix_ignore && !p->fix_tie && !p->fix_drafts) return NB_OK;
    nb_status s = nb_quant_build(p->ckpt, &p->modules, &c.quant, err);
    if (s == NB_OK) s = read_text(p, "config.json", &c.text, err);
    if (s == NB_OK) s = read_text(p, "hf_quant_config.json", &c.hf_text, err);
    if (s != NB_OK) goto out;
    if (!c.text.len) {
        s = nb_fail(err, NB_ERR_MISSING, "there is no config.json to rewrite");
        nb_error_at(err, p->dir, NULL, -1);
        goto out;
    }
    c.facts = look(p);
    c.config = copy_of(&c, c.quant.config);
    c.hf = copy_of(&c, c.quant.hf);
    if (p->fix_scheme || (p->drop_unused && no_target(&c))) scheme(&c);
    if (c.why) {
        c.all = false; /* a half-made scheme is worth nothing */
        json_decref(c.config);
        json_decref(c.hf);
        c.config = copy_of(&c, c.quant.config);
        c.hf = copy_of(&c, c.quant.hf);
    }
    if (p->fix_ignore || c.all) {
        json_t *config_list = c.config ? list_of(c.config) : NULL, *hf_list = c.hf ? list_of(c.hf) : NULL;
        fix_list(&c, config_list, c.all);
        const size_t dropped = c.dropped, added = c.added;
        fix_list(&c, hf_list, c.all);
        if (config_list) { /* the lists say the same: count one of them */
            c.dropped = dropped;
            c.added = added;
        }
        fix_layers(&c, c.config);
        fix_layers(&c, c.hf);
    }
    s = c.bad ? nb_fail_nomem(err, "the config", c.text.len) : keep(&c, c.quant.config, c.quant.hf, err);
out:
    json_decref(c.config);
    json_decref(c.hf);
    nb_buf_free(&c.text);
    nb_buf_free(&c.hf_text);
    nb_quant_free(&c.quant);
    return s;
}
