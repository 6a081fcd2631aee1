/* NB210: the files that turn text into ids and back. A model without them loads and cannot be talked to. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/json_tree.h"
#include "doctor/rule_values.h"

#define E(cls, text) ((nb_effect){NB_EFFECT_##cls, text})
#define MAX_TEXT ((size_t)256 << 20)
#define MAX_DEPTH 64 /* of tags in a template */

static size_t report(nb_findings *out, const char *file, const char *message, const char *expected)
{
    size_t i = nb_findings_add(out, "NB210", NB_SEVERITY_WARNING, "%s", message);
    nb_findings_file(out, i, file);
    nb_findings_expected(out, i, "%s", expected);
    nb_findings_remedy(out, i, false, "take the file from the original model");
    const nb_effect e = E(FINE, "the weights are read as ever; chat and text need this file");
    nb_value_effects(out, i, e, e, e);
    return i;
}

/* Without a tokenizer that can be read. */
static void refuse(nb_findings *out, size_t i)
{
    const nb_effect e = E(REFUSED, "servers do not start without a tokenizer");
    nb_value_effects(out, i, e, e, e);
}

/* Reads dir/name. False: not there or not readable (a Git LFS pointer is NB008's); *err tells when memory ran out. */
static bool slurp(const nb_check *c, const char *name, nb_buf *out, nb_error *err)
{
    char *path = nb_path_join(c->dir, name);
    *err = (nb_error){0};
    if (!path) {
        nb_fail_nomem(err, name, 0);
        return false;
    }
    const nb_status s = nb_file_slurp(path, MAX_TEXT, out, err);
    free(path);
    if (s != NB_OK && s != NB_ERR_NOMEM) *err = (nb_error){0};
    return s == NB_OK && out->len;
}

/* Counts the files of dir that are there. */
static nb_status count_files(const nb_check *c, const char *const *names, size_t n, size_t *out,
                             nb_error *err)
{
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        char *path = nb_path_join(c->dir, names[i]);
        if (!path) return nb_fail_nomem(err, names[i], 0);
        *out += access(path, F_OK) == 0;
        free(path);
    }
    return NB_OK;
}

/* The largest id in tokenizer.json. False: no JSON; *at says where. A file of another layout has none: 0. */
static bool largest_id(const nb_buf *text, uint64_t *out, size_t *at, bool *nomem)
{
    nb_json j;
    nb_json_event e;
    bool vocab_next = false;
    int vocab = -1; /* depth of the object whose values are ids */
    bool id_next = false;
    *out = 0;
    nb_json_init(&j, text->data, text->len);
    while ((e = nb_json_next(&j)) != NB_J_EOF && e != NB_J_ERROR) {
        uint64_t v;
        if (e == NB_J_OBJECT && vocab_next) vocab = j.depth;
        if (e == NB_J_END && j.depth < vocab) vocab = -1;
        if (e == NB_J_NUMBER && (id_next || (vocab >= 0 && j.depth == vocab)) && nb_json_u64(&j, &v) &&
            v > *out)
            *out = v;
        vocab_next = e == NB_J_KEY && j.len == 5 && memcmp(j.str, "vocab", 5) == 0 && j.depth == 2;
        /* {"added_tokens": [{"id": 5, …}]}: an object in an array in the file's object */
        id_next = e == NB_J_KEY && j.len == 2 && memcmp(j.str, "id", 2) == 0 && j.depth == 3;
    }
    *at = j.pos;
    *nomem = e == NB_J_ERROR && nb_json_nomem(&j);
    nb_json_free(&j);
    return e == NB_J_EOF;
}

/* "for" of "{%- for x in y %}". */
static size_t tag_word(const char *p, const char **word)
{
    while (*p == '-' || *p == '+' || *p == ' ' || *p == '\n' || *p == '\t') p++;
    *word = p;
    return strspn(p, "abcdefghijklmnopqrstuvwxyz_");
}

static bool is_word(const char *w, size_t n, const char *what)
{
    return n == strlen(what) && memcmp(w, what, n) == 0;
}

/* Blocks of a Jinja template that do not close, or close out of order. NULL: none. */
static const char *unbalanced(const char *text)
{
    static const char *const opens[] = {"if", "for", "macro", "call", "filter", "block", "generation", "raw"};
    const char *open[MAX_DEPTH];
    size_t depth = 0;
    for (const char *p = strstr(text, "{%"); p; p = strstr(p, "{%")) {
        const char *w, *end = strstr(p, "%}");
        const size_t n = tag_word(p + 2, &w);
        if (!end) return "a tag {% does not end";
        p = end + 2;
        for (size_t i = 0; i < sizeof opens / sizeof *opens; i++) {
            if (is_word(w, n, opens[i])) {
                if (depth == MAX_DEPTH) return NULL; /* not judged */
                open[depth++] = opens[i];
            } else if (n > 3 && memcmp(w, "end", 3) == 0 && is_word(w + 3, n - 3, opens[i])) {
                if (!depth || strcmp(open[depth - 1], opens[i]) != 0)
                    return "a block ends that is not the one open";
                depth--;
            }
        }
        if (depth && strcmp(open[depth - 1], "raw") == 0) { /* nothing in it is a tag */
            const char *close = strstr(p, "endraw");
            if (!close) return "a block is not closed";
            const char *back = close;
            while (back > p && back[-1] != '{') back--;
            p = back > p ? back - 1 : close;
        }
    }
    return depth ? "a block is not closed" : NULL;
}

static void judge_template(const char *text, const char *file, nb_findings *out)
{
    const char *why = text ? unbalanced(text) : NULL;
    if (!why) return;
    size_t i = report(out, file, "the chat template cannot be parsed",
                      "{% if %}, {% for %} and {% macro %} closed in order");
    nb_findings_measured(out, i, "%s", why);
}

/* eos_token_id and its like: a number or an array of them. */
static void judge_ids(const json_t *o, const char *file, int64_t vocab, nb_findings *out)
{
    static const char *const keys[] = {"eos_token_id", "bos_token_id", "pad_token_id"};
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        const json_t *v = json_object_get(o, keys[k]);
        const size_t n = json_is_array(v) ? json_array_size(v) : 1;
        for (size_t i = 0; i < n && v; i++) {
            const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
            if (!json_is_integer(id) || json_integer_value(id) < vocab) continue;
            size_t f =
                report(out, file, "a special token's id is beyond the vocabulary", "ids below vocab_size");
            nb_findings_measured(out, f, "%s %lld, vocab_size %lld", keys[k],
                                 (long long)json_integer_value(id), (long long)vocab);
        }
    }
}

/* One of the small JSON files; NULL when it is not there. */
static json_t *small_json(const nb_check *c, const char *name, nb_findings *out, nb_error *err)
{
    nb_buf text = {0};
    json_t *root = NULL;
    nb_error e;
    if (slurp(c, name, &text, err)) {
        const nb_status s = nb_json_tree(name, nb_buf_str(&text), text.len, &root, &e);
        if (s == NB_ERR_NOMEM) *err = e;
        if (s == NB_ERR_FORMAT)
            nb_findings_measured(out, report(out, name, "the file is no JSON", "JSON"), "%s", e.cause);
    }
    nb_buf_free(&text);
    return root;
}

/* sound: it is JSON, all of whose ids the embedding has. */
static nb_status judge_tokenizer(const nb_check *c, int64_t vocab, bool *sound, nb_findings *out,
                                 nb_error *err)
{
    nb_buf text = {0};
    uint64_t top = 0;
    size_t at = 0;
    bool nomem = false;
    nb_error e;
    if (!slurp(c, "tokenizer.json", &text, &e)) {
        nb_buf_free(&text);
        if (e.status == NB_ERR_NOMEM && err) *err = e;
        return e.status;
    }
    const bool json = largest_id(&text, &top, &at, &nomem);
    if (!json && !nomem) {
        size_t i = report(out, "tokenizer.json", "tokenizer.json is cut off or no JSON", "JSON");
        nb_findings_bytes(out, i, at, text.len);
        refuse(out, i);
        nb_findings_measured(out, i, "it breaks at byte %zu of %zu", at, text.len);
    } else if (json && vocab && top >= (uint64_t)vocab) {
        size_t i = report(out, "tokenizer.json", "the tokenizer has ids beyond the embedding",
                          "ids below vocab_size");
        nb_findings_measured(out, i, "id %llu, vocab_size %lld", (unsigned long long)top, (long long)vocab);
    } else {
        *sound = json;
    }
    nb_buf_free(&text);
    return nomem ? nb_fail_nomem(err, "tokenizer.json", MAX_TEXT) : NB_OK;
}

nb_status nb_rule_tokenizer(const nb_check *c, nb_findings *out, nb_error *err)
{
    static const char *const files[] = {"tokenizer.json",     "tokenizer.model",        "vocab.json",
                                        "tokenizer.tiktoken", "tiktoken.model",         "tekken.json",
                                        "vocab.txt",          "spiece.model",           "qwen.tiktoken",
                                        "merges.txt",         "sentencepiece.bpe.model"};
    int64_t vocab = 0;
    size_t there = 0;
    nb_error e = {0};
    nb_buf text = {0};
    if (nb_config_int(&c->config, "vocab_size", -1, 1, (int64_t)1 << 40, &vocab, NULL) != NB_OK) vocab = 0;
    nb_status s = count_files(c, files, sizeof files / sizeof *files, &there, err);
    if (s != NB_OK) return s;
    if (!there) {
        const size_t i = report(out, NULL, "the folder has no tokenizer", "tokenizer.json");
        nb_findings_measured(out, i, "no tokenizer file");
        refuse(out, i);
    }
    bool sound = false;
    s = judge_tokenizer(c, vocab, &sound, out, err);
    if (s != NB_OK) return s;
    json_t *generation = small_json(c, "generation_config.json", out, &e);
    json_t *tokenizer = e.status == NB_OK ? small_json(c, "tokenizer_config.json", out, &e) : NULL;
    if (vocab) {
        judge_ids(generation, "generation_config.json", vocab, out);
        judge_ids(c->config.text, "config.json", vocab, out);
    }
    if (sound && e.status == NB_OK) nb_judge_tokens(c, vocab, generation, tokenizer, out, &e);
    const json_t *template = json_object_get(tokenizer, "chat_template");
    judge_template(json_string_value(template), "tokenizer_config.json", out);
    for (size_t i = 0; i < json_array_size(template); i++)
        judge_template(json_string_value(json_object_get(json_array_get(template, i), "template")),
                       "tokenizer_config.json", out);
    if (e.status == NB_OK && slurp(c, "chat_template.jinja", &text, &e))
        judge_template(nb_buf_str(&text), "chat_template.jinja", out);
    nb_buf_free(&text);
    json_decref(generation);
    json_decref(tokenizer);
    if (e.status == NB_OK) return NB_OK;
    if (err) *err = e;
    return e.status;
}
