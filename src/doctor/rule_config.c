/*
 * NB200 and NB212: whether config.json names a model that this build knows, and whether its keys make a model. What the forward pass
 * would refuse is asked of the forward pass, so that check never calls a config sound that run does not take.
 */
#include <ctype.h>
#include <string.h>

#include "doctor/rule_values.h"
#include "models/model.h"

static const nb_effect unbuilt[NB_FAMILY_COUNT] = {
    {NB_EFFECT_REFUSED, "the model cannot be built from this config"},
    {NB_EFFECT_REFUSED, "the model cannot be built from this config"},
    {NB_EFFECT_REFUSED, "the model cannot be built from this config"},
    {NB_EFFECT_REFUSED, "the model cannot be built from this config"},
};
static const nb_effect guessed[NB_FAMILY_COUNT] = {
    {NB_EFFECT_WRONG, "computed with another number than the model was trained with, in some loaders"},
    {NB_EFFECT_WRONG, "computed with another number than the model was trained with, in some loaders"},
    {NB_EFFECT_WRONG, "computed with another number than the model was trained with, in some loaders"},
    {NB_EFFECT_WRONG, "computed with another number than the model was trained with, in some loaders"},
};
static const nb_effect guessed_class[NB_FAMILY_COUNT] = {
    {NB_EFFECT_WRONG, "vLLM builds what architectures names, transformers what model_type names"},
    {NB_EFFECT_WRONG, "vLLM builds what architectures names, transformers what model_type names"},
    {NB_EFFECT_WRONG, "vLLM builds what architectures names, transformers what model_type names"},
    {NB_EFFECT_WRONG, "the converter goes by architectures"},
};
static const nb_effect absent[NB_FAMILY_COUNT] = {
    {NB_EFFECT_WRONG, "computed without biases"},
    {NB_EFFECT_WRONG, "computed without biases"},
    {NB_EFFECT_UNDEFINED, "vLLM's parameters keep uninitialised memory"},
    {NB_EFFECT_REFUSED, "no GGUF can be made of it"},
};

/* "llama" of "LlamaForCausalLM", without case and underscores; the "_text" of a text model alone is not in its class. */
static bool same_family(const char *type, const char *class)
{
    while (*type && *class && strcmp(type, "_text") != 0) {
        if (*type == '_' || *type == '-') {
            type++;
        } else if (*class == '_') {
            class ++;
        } else if (tolower((unsigned char)*type) == tolower((unsigned char)*class)) {
            type++;
            class ++;
        } else {
            return false;
        }
    }
    return !*type || strcmp(type, "_text") == 0;
}

/* vLLM builds the class that architectures names, transformers that of model_type. */
static void judge_class(const nb_check *c, nb_findings *out)
{
    const json_t *list = json_object_get(c->config.root, "architectures");
    const char *class = json_string_value(json_array_get(list, 0));
    const char *type =
        json_string_value(json_object_get(c->config.root, "model_type")); /* of a wrapper: its own */
    if (!type) type = c->config.model_type;
    if (!c->table || (class && same_family(type, class))) return;
    if (list && !class && !json_is_null(list) && !json_is_array(list)) return;
    const bool none = !class;
    size_t i = nb_findings_add(out, "NB200", none ? NB_SEVERITY_NOTE : NB_SEVERITY_WARNING, "%s",
                               none ? "config.json has no architectures: vLLM and SGLang need it"
                                    : "model_type and architectures name different models");
    nb_findings_file(out, i, "config.json");
    nb_findings_measured(out, i, "model_type %.100s, architectures %.100s", type, none ? "none" : class);
    nb_findings_expected(out, i, "the class of %.100s", type);
    nb_findings_remedy(out, i, false, "take both keys from the original model's config.json");
    if (!none) nb_findings_effects(out, i, guessed_class);
}

nb_status nb_rule_config_known(const nb_check *c, nb_findings *out, nb_error *err)
{
    (void)err;
    judge_class(c, out);
    if (c->table || !nb_ckpt_config(c->ckpt) || c->config.arch)
        return NB_OK; /* unreadable: told when opened */
    size_t i = nb_findings_add(
        out, "NB200", NB_SEVERITY_NOTE,
        "the architecture is not known to this build: rules that need its table were left out");
    nb_findings_file(out, i, "config.json");
    nb_findings_measured(out, i, "%s", c->config_error.cause);
    nb_findings_expected(out, i, "an architecture that this build has a table for");
    nb_findings_remedy(out, i, false, "nothing is wrong with the folder because of this");
    return NB_OK;
}

/* A number that transformers has a default for; so a model without the key is built, with whatever the default is. */
static bool defaulted(const nb_error *why)
{
    static const char *const keys[] = {
        "rms_norm_eps",          "\"rope_theta\"", "rope_parameters.rope_theta",
        "routed_scaling_factor", "swiglu_limit",   "hc_eps"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys && why->status == NB_ERR_MISSING; i++) {
        if (strstr(why->cause, keys[i])) return true;
    }
    return false;
}

static bool reported(const nb_findings *l, const char *rule)
{
    for (size_t i = 0; i < l->count; i++) {
        if (strcmp(l->items[i].rule, rule) == 0) return true;
    }
    return false;
}

/* A value that may be right elsewhere. */
static void note_not_run(const nb_error *why, nb_findings *out)
{
    size_t i = nb_findings_add(out, "NB200", NB_SEVERITY_NOTE,
                               "the config asks for something that this build checks but does not run");
    nb_findings_file(out, i, "config.json");
    nb_findings_measured(out, i, "%s", why->cause);
    nb_findings_expected(out, i, "what the forward pass here computes");
    nb_findings_remedy(
        out, i, false,
        "compare it with the original model's config.json; run, trace and calibrate refuse it");
}

/* rope_scaling is what releases and older loaders have, rope_parameters what transformers 5 writes; each reads its own. Both
 * belong to the same rotation where they name the same type. */
static void judge_rope_spellings(const nb_check *c, nb_findings *out)
{
    static const char *const keys[] = {"factor",          "original_max_position_embeddings",
                                       "beta_fast",       "beta_slow",
                                       "low_freq_factor", "high_freq_factor"};
    static const char *const places[] = {"rope_parameters", "rope_parameters.compress"};
    const json_t *a = nb_config_get(&c->config, "rope_scaling");
    for (size_t i = 0; i < sizeof places / sizeof *places && json_is_object(a); i++) {
        const json_t *b = nb_config_get(&c->config, places[i]);
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            const json_t *x = json_object_get(a, keys[k]), *y = json_object_get(b, keys[k]);
            if (!json_is_number(x) || !json_is_number(y) || json_number_value(x) == json_number_value(y))
                continue;
            size_t f = nb_findings_add(out, "NB212", NB_SEVERITY_WARNING,
                                       "config.json gives one number of the rotary positions in two values");
            nb_findings_file(out, f, "config.json");
            nb_findings_measured(out, f, "rope_scaling.%s %g, %s.%s %g", keys[k], json_number_value(x),
                                 places[i], keys[k], json_number_value(y));
            nb_findings_expected(out, f, "the same in both: loaders read one or the other");
            nb_findings_remedy(out, f, false, "take the value from the original model's config.json");
            nb_findings_effects(out, f, guessed);
            return;
        }
    }
}

/* Entries behind the last layer's: loaders pass them over. */
static void judge_lists(const nb_check *c, nb_findings *out)
{
    int64_t n;
    const char *list = c->table ? nb_config_spare(&c->config, &n) : NULL;
    if (!list) return;
    size_t i =
        nb_findings_add(out, "NB212", NB_SEVERITY_NOTE, "%s has entries that belong to no layer", list);
    nb_findings_file(out, i, "config.json");
    nb_findings_measured(out, i, "%lld more than num_hidden_layers", (long long)n);
    nb_findings_expected(out, i, "one for each of %lld layers", (long long)c->config.n_layers);
    nb_findings_remedy(out, i, false, "compare num_hidden_layers with the original model's config.json");
}

/* True for a linear of the attention, whatever its block is called: Nemotron-H's is a "mixer". */
static bool is_attention(const char *module)
{
    static const char *const linears[] = {"q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj"};
    const char *last = nb_last_part(module);
    for (size_t i = 0; i < sizeof linears / sizeof *linears; i++) {
        if (strcmp(last, linears[i]) == 0) return true;
    }
    return strstr(module, "att") != NULL;
}

/* attention_bias true, and no linear of the attention has a bias. */
static void judge_biases(const nb_check *c, nb_findings *out)
{
    const char *like = NULL;
    if (!json_is_true(nb_config_get(&c->config, "attention_bias")) || !nb_check_complete(c)) return;
    for (size_t i = 0; i < c->modules.count; i++) {
        const nb_module *m = &c->modules.items[i];
        if (!is_attention(m->name)) continue;
        if (m->member[NB_MEMBER_BIAS]) return;
        if (!like && nb_module_codes(m) && nb_module_codes(m)->rank == 2) like = m->name;
    }
    size_t i = nb_findings_add(out, "NB007", NB_SEVERITY_ERROR,
                               "attention_bias is true, and the file has no bias of an attention linear");
    nb_findings_file(out, i, "config.json");
    nb_findings_measured(out, i, "no tensor named like %s.bias", like ? like : "self_attn.q_proj");
    nb_findings_expected(out, i, "biases, or attention_bias false");
    nb_findings_remedy(out, i, false, "take both from the same revision of the original model");
    nb_findings_effects(out, i, absent);
}

nb_status nb_rule_config_keys(const nb_check *c, nb_findings *out, nb_error *err)
{
    nb_error why = c->config_error;
    judge_rope_spellings(c, out);
    judge_biases(c, out);
    judge_lists(c, out);
    if (!c->config.arch) return NB_OK;
    if (c->table) {
        const nb_status s = nb_model_judge_config(&c->config, &why);
        if (s == NB_ERR_NOMEM && err) *err = why;
        if (s == NB_OK || s == NB_ERR_NOMEM) return s;
        if (s == NB_ERR_FORMAT && reported(out, "NB007")) return NB_OK; /* sizes that tensors contradict */
        if (s == NB_ERR_UNSUPPORTED) {
            note_not_run(&why, out);
            return NB_OK;
        }
    }
    const bool soft = c->table && defaulted(&why);
    size_t i =
        nb_findings_add(out, "NB212", soft ? NB_SEVERITY_WARNING : NB_SEVERITY_ERROR, "%s",
                        soft ? "config.json lacks a number that other loaders replace by a default"
                             : "config.json lacks a key that the architecture needs, or its value cannot be");
    nb_findings_file(out, i, "config.json");
    nb_findings_measured(out, i, "%s", why.cause);
    nb_findings_expected(out, i, "the keys of the %s architecture, in either spelling", c->config.arch->name);
    nb_findings_remedy(out, i, false, "%s",
                       why.remedy[0] ? why.remedy : "copy the key from the original model's config.json");
    nb_findings_effects(out, i, soft ? guessed : unbuilt);
    return NB_OK;
}
