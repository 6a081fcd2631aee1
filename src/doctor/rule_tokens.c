/*
 * The part of NB210 that needs a tokenizer: whether tokenizer.json loads at all, whether it is of this model, and whether the
 * tokens that the other files name are those that it has. A tokenizer of a family that this build does not know is not judged.
 */
#include <stdlib.h>
#include <string.h>

#include "doctor/rule_values.h"
#include "text/tokenizer.h"

#define E(cls, text) ((nb_effect){NB_EFFECT_##cls, text})

static size_t report(nb_findings *out, nb_severity severity, const char *file, const char *message,
                     const char *expected, const char *effect)
{
    size_t i = nb_findings_add(out, "NB210", severity, "%s", message);
    nb_findings_file(out, i, file);
    nb_findings_expected(out, i, "%s", expected);
    nb_findings_remedy(out, i, false, "take the tokenizer's files and generation_config.json from one model");
    const nb_effect e = {NB_EFFECT_WRONG, effect};
    nb_value_effects(out, i, e, e, e);
    return i;
}

/* A token as tokenizer_config.json writes it: its text, or an object that has it. NULL: none named. */
static const char *content(const json_t *token)
{
    return json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
}

/* transformers appends a token that tokenizer.json lacks, so its id lies beyond the vocabulary. */
static void judge_named(const nb_tokenizer *t, const json_t *config, nb_findings *out)
{
    static const char *const keys[] = {"eos_token", "bos_token"};
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        const char *text = content(json_object_get(config, keys[k]));
        if (!text || nb_tokenizer_id(t, text, strlen(text)) >= 0) continue;
        size_t i =
            report(out, NB_SEVERITY_WARNING, "tokenizer_config.json",
                   "a special token is named that tokenizer.json does not have", "a token of tokenizer.json",
                   "the token gets an id that the model was never trained on: answers do not end, or the "
                   "embedding has no such row");
        nb_findings_measured(out, i, "%s \"%.100s\"", keys[k], text);
    }
}

static void judge_added(const nb_tokenizer *t, const json_t *config, nb_findings *out)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)json_object_get(config, "added_tokens_decoder"), key, v)
    {
        char *end;
        const char *text = content(v);
        const unsigned long long id = strtoull(key, &end, 10);
        if (!text || *end || end == key || id >= nb_tokenizer_size(t)) continue;
        const int64_t has = nb_tokenizer_id(t, text, strlen(text));
        if (has >= 0 ? (uint64_t)has == id : !nb_tokenizer_is_special(t, (uint32_t)id)) continue;
        size_t n;
        const char *other = nb_tokenizer_bytes(t, (uint32_t)id, &n);
        size_t i = report(out, NB_SEVERITY_WARNING, "tokenizer_config.json",
                          "added_tokens_decoder and tokenizer.json give one id to two tokens",
                          "the same token in both", "special tokens are taken for others");
        nb_findings_measured(out, i, "id %llu is \"%.100s\" here and \"%.*s\" in tokenizer.json", id, text,
                             other ? (int)(n < 100 ? n : 100) : 0, other ? other : "");
        return; /* the first tells: the rest follows from it */
    }
}

static bool names_id(const json_t *ids, int64_t id)
{
    const size_t n = json_is_array(ids) ? json_array_size(ids) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_is_array(ids) ? json_array_get(ids, i) : ids;
        if (json_is_integer(v) && json_integer_value(v) == id) return true;
    }
    return false;
}

static bool some_id(const json_t *ids)
{
    return json_is_integer(ids) || json_array_size(ids);
}

/* Which tokens end an answer. */
static void judge_ends(const nb_check *c, const nb_tokenizer *t, const json_t *generation, nb_findings *out)
{
    const json_t *ids = json_object_get(generation, "eos_token_id"),
                 *own = nb_config_get(&c->config, "eos_token_id");
    const int64_t eos = nb_tokenizer_eos(t);
    if (eos < 0 && !some_id(ids) && !some_id(own)) {
        size_t i = report(out, NB_SEVERITY_WARNING, "generation_config.json",
                          "no file names a token that ends an answer", "eos_token_id",
                          "answers go on to the length limit");
        nb_findings_measured(out, i, "no eos_token_id, and no eos_token in tokenizer_config.json");
    } else if (eos >= 0 && some_id(ids) && !names_id(ids, eos) && !names_id(own, eos)) {
        char *text = json_dumps(ids, JSON_ENCODE_ANY | JSON_COMPACT);
        size_t i = report(out, NB_SEVERITY_NOTE, "generation_config.json",
                          "the tokenizer's eos_token is not among those that end an answer",
                          "eos_token_id with the id of eos_token",
                          "transformers' generate goes on where vLLM stops");
        nb_findings_measured(out, i, "eos_token_id %.100s, eos_token has id %lld", text ? text : "?",
                             (long long)eos);
        out->bad = out->bad || !text;
        free(text);
    }
}

/* Numbers that samplers refuse, request by request. */
static void judge_sampling(const json_t *generation, nb_findings *out)
{
    static const struct {
        const char *key, *expected;
        double above, most; /* above < value <= most */
    } ranges[] = {{"temperature", "a number from 0", -1e-300, 1e300},
                  {"top_p", "above 0, at most 1", 0, 1},
                  {"min_p", "0 to 1", -1e-300, 1},
                  {"repetition_penalty", "above 0", 0, 1e300}};
    for (size_t k = 0; k < sizeof ranges / sizeof *ranges; k++) {
        const json_t *v = json_object_get(generation, ranges[k].key);
        const double x = json_number_value(v);
        if (!v || json_is_null(v) || (json_is_number(v) && x > ranges[k].above && x <= ranges[k].most))
            continue;
        char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        size_t i = report(out, NB_SEVERITY_WARNING, "generation_config.json",
                          "a default of the sampler is out of its range", ranges[k].expected,
                          "servers that take their defaults from this file refuse requests");
        nb_findings_measured(out, i, "%s %.100s", ranges[k].key, text ? text : "?");
        out->bad = out->bad || !text;
        free(text);
    }
}

nb_status nb_judge_tokens(const nb_check *c, int64_t vocab, const json_t *generation, const json_t *config,
                          nb_findings *out, nb_error *err)
{
    nb_tokenizer *t = NULL;
    nb_error why = {0};
    const nb_status s = nb_tokenizer_open(c->dir, &t, &why);
    judge_sampling(generation, out);
    if (s == NB_ERR_NOMEM && err) *err = why;
    if (s == NB_ERR_NOMEM) return s;
    if (s == NB_ERR_FORMAT) {
        size_t i = report(out, NB_SEVERITY_WARNING, "tokenizer.json", "the tokenizer does not load",
                          "a vocabulary, merges and special tokens that fit each other",
                          "servers do not start without a tokenizer");
        nb_findings_measured(out, i, "%s", why.cause);
    }
    if (s != NB_OK) return NB_OK;
    if (vocab > 2 * (int64_t)nb_tokenizer_size(t)) {
        size_t i = report(out, NB_SEVERITY_WARNING, "tokenizer.json",
                          "the tokenizer has less than half of the model's vocabulary: another model's?",
                          "about vocab_size tokens", "every text becomes ids of other words");
        nb_findings_measured(out, i, "%u tokens, vocab_size %lld", nb_tokenizer_size(t), (long long)vocab);
    }
    judge_named(t, config, out);
    judge_added(t, config, out);
    judge_ends(c, t, generation, out);
    nb_tokenizer_free(t);
    return NB_OK;
}
