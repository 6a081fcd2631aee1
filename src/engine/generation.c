/* generation_config.json and the end tokens: generation.h says which fields count. */
#include "engine/generation.h"

#include <math.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/json_tree.h"
#include "text/turn_end.h"

#define EOS_REMEDY "take it from the original model; without it answers do not end"

static nb_status ill_typed(const char *file, const char *key, const char *want, const char *remedy,
                           nb_error *err)
{
    nb_fail(err, NB_ERR_FORMAT, "%s must be %s", key, want);
    nb_error_at(err, file, NULL, -1);
    nb_error_remedy(err, "%s", remedy);
    return NB_ERR_FORMAT;
}

static nb_status add_eos(nb_generation_config *g, const json_t *v, int64_t vocab, const char *file,
                         nb_error *err)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= vocab) {
        nb_fail(err, NB_ERR_FORMAT, "eos_token_id must be a token id below %lld, or a list of them",
                (long long)vocab);
        nb_error_at(err, file, NULL, -1);
        nb_error_remedy(err, EOS_REMEDY);
        return NB_ERR_FORMAT;
    }
    uint32_t id = (uint32_t)json_integer_value(v);
    if (nb_generation_is_eos(g, id)) return NB_OK;
    if (g->n_eos == NB_MAX_EOS) {
        nb_fail(err, NB_ERR_LIMIT, "eos_token_id lists more than %d tokens", NB_MAX_EOS - 1);
        nb_error_at(err, file, NULL, -1);
        return NB_ERR_LIMIT;
    }
    g->eos[g->n_eos++] = id;
    return NB_OK;
}

static nb_status find_eos(nb_generation_config *g, const json_t *file_json, const char *file,
                          const nb_config *cfg, const nb_tokenizer *t, nb_error *err)
{
    nb_status s = NB_OK;
    const json_t *eos = json_object_get(file_json, "eos_token_id");
    int64_t own = nb_tokenizer_eos(t), vocab = nb_tokenizer_size(t); /* a matrix may have more rows */
    nb_config_int(cfg, "vocab_size", -1, vocab, UINT32_MAX, &vocab, NULL);
    if (own >= 0) g->eos[g->n_eos++] = (uint32_t)own;
    g->own_eos = own;
    if (!eos || json_is_null(eos)) {
        eos = nb_config_get(cfg, "eos_token_id");
        file = cfg->file;
    }
    if (!eos || json_is_null(eos)) return NB_OK;
    if (!json_is_array(eos)) return add_eos(g, eos, vocab, file, err);
    for (size_t i = 0; s == NB_OK && i < json_array_size(eos); i++)
        s = add_eos(g, json_array_get(eos, i), vocab, file, err);
    return s;
}

static nb_status number(const json_t *root, const char *file, const char *key, double *out, nb_error *err)
{
    const json_t *v = json_object_get(root, key);
    *out = NAN;
    if (!v || json_is_null(v)) return NB_OK;
    if (!json_is_number(v)) return ill_typed(file, key, "a number", "correct it, or remove the key", err);
    *out = json_number_value(v);
    return NB_OK;
}

static nb_status whole(const json_t *root, const char *file, const char *key, int64_t least, int64_t *out,
                       nb_error *err)
{
    const json_t *v = json_object_get(root, key);
    *out = -1;
    if (!v || json_is_null(v)) return NB_OK;
    if (!json_is_integer(v) || json_integer_value(v) < least)
        return ill_typed(file, key, least > 0 ? "a whole number, at least 1" : "a whole number, at least -1",
                         "correct it, or remove the key", err);
    *out = json_integer_value(v);
    return NB_OK;
}

nb_status nb_generation_open(const char *dir, const nb_config *cfg, const nb_tokenizer *t,
                             nb_generation_config *out, nb_error *err)
{
    nb_generation_config g = {0};
    json_t *root = NULL;
    nb_buf text = {0};
    nb_error probe;
    char *path = nb_path_join(dir, "generation_config.json");
    if (!path) return nb_fail_nomem(err, "a path", 0);
    nb_status s = nb_file_slurp(path, 1 << 20, &text, &probe);
    if (s == NB_OK) {
        if ((s = nb_json_tree(path, nb_buf_str(&text), text.len, &root, err))) goto out;
        if (!json_is_object(root)) {
            s = ill_typed(path, "the file", "a JSON object", "take it from the original model", err);
            goto out;
        }
    } else if (s != NB_ERR_MISSING) { /* the file is optional */
        if (err) *err = probe;
        goto out;
    }
    if ((s = number(root, path, "temperature", &g.temperature, err))) goto out;
    if ((s = number(root, path, "top_p", &g.top_p, err))) goto out;
    if ((s = number(root, path, "min_p", &g.min_p, err))) goto out;
    if ((s = number(root, path, "repetition_penalty", &g.repetition_penalty, err))) goto out;
    if ((s = whole(root, path, "top_k", -1, &g.top_k, err))) goto out;
    if ((s = whole(root, path, "max_new_tokens", 1, &g.max_new_tokens, err))) goto out;
    if ((s = find_eos(&g, root, path, cfg, t, err))) goto out;
    *out = g;
out:
    json_decref(root);
    nb_buf_free(&text);
    free(path);
    return s;
}

nb_status nb_generation_add_ends(nb_generation_config *g, const nb_chat_format *f, const nb_tokenizer *t,
                                 size_t *added, nb_error *err)
{
    uint32_t ids[NB_TURN_ENDS];
    size_t n = 0;
    *added = 0;
    nb_status s = f ? nb_turn_ends(f, t, ids, &n, err) : NB_OK;
    for (size_t i = 0; s == NB_OK && i < n; i++) {
        if (nb_generation_is_eos(g, ids[i]) || g->n_eos == NB_MAX_EOS) continue;
        g->eos[g->n_eos++] = ids[i];
        ++*added;
    }
    return s;
}

bool nb_generation_is_eos(const nb_generation_config *g, uint32_t id)
{
    for (size_t i = 0; i < g->n_eos; i++)
        if (g->eos[i] == id) return true;
    return false;
}
