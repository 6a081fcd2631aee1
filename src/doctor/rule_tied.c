/* NB205: tie_word_embeddings against the head that is or is not in the file. */
#include <string.h>

#include "base/buf.h"
#include "doctor/rule_values.h"

#define E(cls, text) ((nb_effect){NB_EFFECT_##cls, text})
#define CHUNK 65536

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0 && (n == m || s[n - m - 1] == '.');
}

static const nb_module *find(const nb_check *c, const char *const *names, size_t n)
{
    for (size_t i = 0; i < c->modules.count; i++) {
        const nb_module *m = &c->modules.items[i];
        const nb_tensor_info *t = nb_module_codes(m);
        if (!t || nb_tensor_skipped(c, t) || strstr(m->name, "layers.")) continue;
        for (size_t k = 0; k < n; k++) {
            if (ends_with(m->name, names[k])) return m;
        }
    }
    return NULL;
}

/* True when both hold the same bytes. A read that fails is another rule's matter: the same. */
static bool same_bytes(const nb_check *c, const nb_tensor_info *a, const nb_tensor_info *b)
{
    unsigned char x[CHUNK / 2], y[CHUNK / 2];
    const uint64_t n = a->end - a->begin;
    if (a->dtype != b->dtype || n != b->end - b->begin) return false;
    for (uint64_t at = 0; at < n; at += sizeof x) {
        const size_t k = n - at < sizeof x ? (size_t)(n - at) : sizeof x;
        if (nb_ckpt_read(c->ckpt, a, at, x, k, NULL) != NB_OK ||
            nb_ckpt_read(c->ckpt, b, at, y, k, NULL) != NB_OK)
            return true;
        if (memcmp(x, y, k) != 0) return false;
    }
    return true;
}

nb_status nb_rule_tied(const nb_check *c, nb_findings *out, nb_error *err)
{
    static const char *const heads[] = {"lm_head", "head", "output"};
    static const char *const embeds[] = {"embed_tokens", "embed", "embeddings", "wte"};
    /* Of a model with towers the outer key counts. */
    const json_t *tied = json_object_get(c->config.root, "tie_word_embeddings");
    const nb_module *head = find(c, heads, 3), *embed = find(c, embeds, 4);
    nb_buf name = {0};
    size_t i;
    if (!json_is_boolean(tied)) tied = nb_config_get(&c->config, "tie_word_embeddings");
    if (!json_is_boolean(tied) || !embed) return NB_OK;
    if (json_is_true(tied) && head && !same_bytes(c, nb_module_codes(head), nb_module_codes(embed))) {
        i = nb_findings_add(
            out, "NB205", NB_SEVERITY_ERROR,
            "tie_word_embeddings is true, and the file has a head that differs from the embedding");
        nb_findings_tensor(out, i, nb_module_codes(head)->name);
        nb_findings_measured(out, i, "tie_word_embeddings true");
        nb_findings_expected(out, i, "false, or no head");
        nb_findings_remedy(out, i, true, "set tie_word_embeddings to false");
        const nb_effect e = E(WRONG, "the embedding is taken for the head: all logits are another model's");
        nb_value_effects(out, i, e, e, e);
    } else if (json_is_false(tied) && !head && nb_check_complete(c)) {
        const char *last = nb_last_part(embed->name);
        nb_buf_addf(&name, "%s%s.weight",
                    strncmp(embed->name, "language_model.", 15) == 0 ? "language_model." : "",
                    strcmp(last, "embed") == 0 ? "head" : "lm_head");
        i = nb_findings_add(out, "NB205", NB_SEVERITY_ERROR,
                            "tie_word_embeddings is false, and the file has no head");
        nb_findings_tensor(out, i, nb_buf_str(&name));
        nb_findings_measured(out, i, "tie_word_embeddings false");
        nb_findings_expected(out, i, "true, or a head");
        nb_findings_remedy(out, i, true, "set tie_word_embeddings to true if the original model ties them");
        const nb_effect e = E(UNDEFINED, "the head keeps uninitialised memory");
        nb_value_effects(out, i, e, e, e);
    } else {
        return NB_OK;
    }
    nb_findings_file(out, i, "config.json");
    const bool ok = nb_buf_ok(&name);
    nb_buf_free(&name);
    return ok ? NB_OK : nb_fail_nomem(err, "the head's name", 0);
}
