/*
 * Reading tokenizer.json. The file can be tens of megabytes, nearly all of it the vocabulary and the merges, and its keys
 * may come in any order. So a first pass of the pull parser notes where each part lies; then the parts are read in the
 * order in which they need each other, the two large ones with the pull parser, the small ones as trees.
 *
 * "truncation" and "padding" are settings of the program that saved the file; servers ignore them, and so do we.
 */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_tree.h"
#include "text/internal.h"

#define MAX_TOKENIZER_JSON ((size_t)512 << 20)
#define MAX_CONFIG_JSON ((size_t)64 << 20)

nb_status nb_tok_json_error(const nb_json *j, const char *what, nb_error *err)
{
    if (nb_json_nomem(j)) return nb_fail_nomem(err, what, j->len);
    nb_fail(err, NB_ERR_FORMAT, "%s: %s", what, j->error);
    return NB_ERR_FORMAT;
}

nb_status nb_tok_unsupported(nb_error *err, const char *stage, const char *what)
{
    nb_fail(err, NB_ERR_UNSUPPORTED, "%s %.120s is not supported", stage, what);
    nb_error_remedy(err, "supported are BPE tokenizers: byte-level ones (GPT-2, Llama 3, Qwen, DeepSeek, "
                         "o200k, tekken, Kimi) and "
                         "those of SentencePiece's style (Llama 2, Mistral, Phi-3, Gemma)");
    return NB_ERR_UNSUPPORTED;
}

nb_status nb_component_type(const json_t *spec, const char *stage, const char **type, nb_error *err)
{
    *type = json_string_value(json_object_get(spec, "type"));
    return *type ? NB_OK : nb_fail(err, NB_ERR_FORMAT, "%s: expected an object with a type", stage);
}

/* ---- where the parts lie ---- */

typedef struct span {
    size_t begin, end; /* bytes of the file; equal: absent or null */
} span;

typedef struct parts {
    span normalizer, pre_tokenizer, post_processor, decoder, added_tokens;
    span vocab, merges;
    bool model, bpe, typed; /* there is a model; it says that it is BPE; it says its type at all */
    bool ignore_merges, fuse_unk, byte_fallback;
    nb_buf unk; /* unk_token */
    bool have_unk;
} parts;

/* The object or array (or null) that comes next. */
static nb_status read_span(nb_json *j, const char *what, nb_json_event want, span *out, nb_error *err)
{
    nb_json_event e = nb_json_next(j);
    *out = (span){0};
    if (e == NB_J_ERROR) return nb_tok_json_error(j, what, err);
    if (e == NB_J_NULL) return NB_OK;
    if (e != want)
        return nb_fail(err, NB_ERR_FORMAT, "%s: expected %s", what,
                       want == NB_J_ARRAY ? "an array" : "an object");
    size_t begin = j->pos;
    for (int depth = j->depth - 1; j->depth > depth;)
        if (nb_json_next(j) == NB_J_ERROR) return nb_tok_json_error(j, what, err);
    *out = (span){begin, j->pos + 1};
    return NB_OK;
}

/* true, false or null (false) comes next. */
static nb_status read_flag(nb_json *j, const char *what, bool *out, nb_error *err)
{
    nb_json_event e = nb_json_next(j);
    if (e == NB_J_ERROR) return nb_tok_json_error(j, what, err);
    *out = e == NB_J_TRUE;
    if (e == NB_J_TRUE || e == NB_J_FALSE || e == NB_J_NULL) return NB_OK;
    return nb_fail(err, NB_ERR_FORMAT, "%s: expected true or false", what);
}

/* A setting that must be null or "": one that our families do not use. */
static nb_status read_unused(nb_json *j, const char *what, nb_error *err)
{
    nb_json_event e = nb_json_next(j);
    if (e == NB_J_ERROR) return nb_tok_json_error(j, what, err);
    if (e == NB_J_NULL || (e == NB_J_STRING && !j->len)) return NB_OK;
    double v;
    if (e == NB_J_NUMBER && nb_json_f64(j, &v) && v == 0) return NB_OK;
    return nb_tok_unsupported(err, "model", what);
}

static bool is(const nb_json *j, const char *text)
{
    return j->len == strlen(text) && memcmp(j->str, text, j->len) == 0;
}

static nb_status read_type(nb_json *j, parts *p, nb_error *err)
{
    char type[41] = "";
    nb_json_event e = nb_json_next(j);
    if (e == NB_J_ERROR) return nb_tok_json_error(j, "model.type", err);
    if (e != NB_J_STRING) return nb_fail(err, NB_ERR_FORMAT, "model.type: expected a string");
    p->typed = true;
    if (is(j, "BPE")) return NB_OK;
    memcpy(type, j->str, j->len < 40 ? j->len : 40);
    return nb_tok_unsupported(err, "model", type);
}

static nb_status read_unk(nb_json *j, parts *p, nb_error *err)
{
    nb_json_event e = nb_json_next(j);
    if (e == NB_J_ERROR) return nb_tok_json_error(j, "model.unk_token", err);
    if (e == NB_J_NULL) return NB_OK;
    if (e != NB_J_STRING) return nb_fail(err, NB_ERR_FORMAT, "model.unk_token: expected a string");
    nb_buf_clear(&p->unk);
    nb_buf_add(&p->unk, j->str, j->len);
    p->have_unk = true;
    return nb_buf_ok(&p->unk) ? NB_OK : nb_fail_nomem(err, "model.unk_token", j->len);
}

static nb_status read_model_member(nb_json *j, parts *p, nb_error *err)
{
    if (is(j, "type")) return read_type(j, p, err);
    if (is(j, "vocab")) return read_span(j, "model.vocab", NB_J_OBJECT, &p->vocab, err);
    if (is(j, "merges")) return read_span(j, "model.merges", NB_J_ARRAY, &p->merges, err);
    if (is(j, "unk_token")) return read_unk(j, p, err);
    if (is(j, "fuse_unk")) return read_flag(j, "model.fuse_unk", &p->fuse_unk, err);
    if (is(j, "ignore_merges")) return read_flag(j, "model.ignore_merges", &p->ignore_merges, err);
    if (is(j, "dropout")) return read_unused(j, "dropout", err);
    if (is(j, "continuing_subword_prefix")) return read_unused(j, "continuing_subword_prefix", err);
    if (is(j, "end_of_word_suffix")) return read_unused(j, "end_of_word_suffix", err);
    if (is(j, "byte_fallback")) return read_flag(j, "model.byte_fallback", &p->byte_fallback, err);
    return nb_json_skip(j) ? NB_OK : nb_tok_json_error(j, "model", err);
}

static nb_status read_model(nb_json *j, parts *p, nb_error *err)
{
    nb_json_event e = nb_json_next(j);
    nb_status s = NB_OK;
    if (e == NB_J_ERROR) return nb_tok_json_error(j, "model", err);
    if (e != NB_J_OBJECT) return nb_fail(err, NB_ERR_FORMAT, "model: expected an object");
    p->model = true;
    while (!s && (e = nb_json_next(j)) == NB_J_KEY) s = read_model_member(j, p, err);
    return s || e != NB_J_ERROR ? s : nb_tok_json_error(j, "model", err);
}

static nb_status read_version(nb_json *j, nb_error *err)
{
    nb_json_event e = nb_json_next(j);
    if (e == NB_J_ERROR) return nb_tok_json_error(j, "version", err);
    return e == NB_J_STRING && is(j, "1.0") ? NB_OK
                                            : nb_tok_unsupported(err, "version", "other than \"1.0\"");
}

static nb_status read_member(nb_json *j, parts *p, nb_error *err)
{
    if (is(j, "version")) return read_version(j, err);
    if (is(j, "normalizer")) return read_span(j, "normalizer", NB_J_OBJECT, &p->normalizer, err);
    if (is(j, "pre_tokenizer")) return read_span(j, "pre_tokenizer", NB_J_OBJECT, &p->pre_tokenizer, err);
    if (is(j, "post_processor")) return read_span(j, "post_processor", NB_J_OBJECT, &p->post_processor, err);
    if (is(j, "decoder")) return read_span(j, "decoder", NB_J_OBJECT, &p->decoder, err);
    if (is(j, "added_tokens")) return read_span(j, "added_tokens", NB_J_ARRAY, &p->added_tokens, err);
    if (is(j, "model")) return read_model(j, p, err);
    return nb_json_skip(j) ? NB_OK : nb_tok_json_error(j, "tokenizer.json", err);
}

static nb_status find_parts(const char *json, size_t n, parts *p, nb_error *err)
{
    nb_json j;
    nb_status s = NB_OK;
    nb_json_init(&j, json, n);
    nb_json_event e = nb_json_next(&j);
    if (e != NB_J_ERROR && e != NB_J_OBJECT)
        s = nb_fail(err, NB_ERR_FORMAT, "tokenizer.json is not an object");
    while (!s && e != NB_J_ERROR && (e = nb_json_next(&j)) == NB_J_KEY) s = read_member(&j, p, err);
    if (!s && e != NB_J_ERROR) e = nb_json_next(&j);
    if (!s && e == NB_J_ERROR) s = nb_tok_json_error(&j, "tokenizer.json", err);
    if (s) nb_error_at(err, NULL, NULL, (int64_t)j.pos);
    nb_json_free(&j);
    return s;
}

/* ---- reading them ---- */

/* A small part as a tree; *out is NULL for an absent one. */
static nb_status tree(const char *json, span at, json_t **out, nb_error *err)
{
    *out = NULL;
    if (at.begin == at.end) return NB_OK;
    nb_status s = nb_json_tree(NULL, json + at.begin, at.end - at.begin, out, err);
    if (s && err && err->offset >= 0) err->offset += (int64_t)at.begin;
    return s;
}

/* The token for what the vocabulary lacks. One that is not there is a fault only where something can be lacking. */
static nb_status find_unk(nb_tokenizer *t, parts *p, nb_error *err)
{
    nb_buf work = {0};
    bool lacks = t->bpe.chars;
    nb_status s = NB_OK;
    for (int i = 0; i < 256; i++) {
        char c = (char)i;
        lacks = lacks || !nb_map_get(&t->vocab.by_bytes, &c, 1, NULL);
    }
    if (lacks && !nb_vocab_find(&t->vocab, nb_buf_str(&p->unk), p->unk.len, &work, &t->bpe.unk))
        s = nb_buf_ok(&work) ? nb_fail(err, NB_ERR_FORMAT, "model.unk_token is not in the vocabulary")
                             : nb_fail_nomem(err, "model.unk_token", p->unk.len);
    nb_buf_free(&work);
    return s;
}

static nb_status load_model(nb_tokenizer *t, const char *json, parts *p, nb_error *err)
{
    nb_status s;
    if (!p->model || p->vocab.begin == p->vocab.end || p->merges.begin == p->merges.end)
        return nb_fail(err, p->typed ? NB_ERR_FORMAT : NB_ERR_UNSUPPORTED,
                       "model: no vocab and merges, which BPE has%s", p->typed ? "" : ", and no type");
    size_t base = p->vocab.begin;
    s = nb_vocab_load(&t->vocab, json + base, p->vocab.end - base, err);
    t->bpe.ignore_merges = p->ignore_merges;
    t->bpe.fuse_unk = p->fuse_unk;
    t->bpe.byte_fallback = p->byte_fallback;
    t->bpe.chars = !t->pre.byte_level;
    t->bpe.unk = NB_TOK_NONE;
    if (!s && p->have_unk) s = find_unk(t, p, err);
    if (!s) {
        base = p->merges.begin;
        s = nb_bpe_load(&t->bpe, &t->vocab, json + base, p->merges.end - base, err);
    }
    if (s && err && err->offset >= 0) err->offset += (int64_t)base;
    return s;
}

static nb_status load_parts(nb_tokenizer *t, const char *json, parts *p, nb_error *err)
{
    json_t *spec = NULL;
    nb_status s = tree(json, p->normalizer, &spec, err);
    if (!s) s = nb_normaliser_load(&t->normaliser, spec, err);
    json_decref(spec);
    spec = NULL;
    if (!s) s = tree(json, p->pre_tokenizer, &spec, err);
    if (!s) s = nb_pretokeniser_load(&t->pre, spec, err);
    json_decref(spec);
    spec = NULL;
    if (!s) s = tree(json, p->post_processor, &spec, err);
    if (!s) s = nb_template_load(&t->template, spec, err);
    json_decref(spec);
    spec = NULL;
    if (!s) s = tree(json, p->decoder, &spec, err);
    if (!s) s = nb_decoder_load(&t->vocab.decoder, spec, err);
    if (!s && t->pre.byte_level != t->vocab.decoder.byte_level)
        s = nb_tok_unsupported(err, "decoder",
                               t->pre.byte_level ? "without ByteLevel, which the pre-tokenizer has,"
                                                 : "with ByteLevel, which the pre-tokenizer has not,");
    json_decref(spec);
    spec = NULL;
    if (!s) s = load_model(t, json, p, err);
    if (!s) s = tree(json, p->added_tokens, &spec, err);
    if (!s) s = nb_added_load(&t->added, &t->vocab, &t->normaliser, spec, err);
    json_decref(spec);
    return s;
}

/* ---- bos and eos ---- */

/* A token named in a config: a string, or an object with its content. -1: not named, or not in the vocabulary. */
static int64_t named_token(const nb_tokenizer *t, const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v)) v = json_object_get(v, "content");
    return json_is_string(v) ? nb_tokenizer_id(t, json_string_value(v), json_string_length(v)) : -1;
}

static nb_status parse_config(const char *json, size_t n, const char *name, json_t **out, nb_error *err)
{
    if (!json) return NB_OK;
    nb_status s = nb_json_tree(name, json, n, out, err);
    if (s || json_is_object(*out)) return s;
    nb_fail(err, NB_ERR_FORMAT, "expected an object");
    nb_error_at(err, name, NULL, -1);
    return NB_ERR_FORMAT;
}

/* tokenizer_config.json's names count; special_tokens_map.json has those that it does not mention. */
static nb_status load_names(nb_tokenizer *t, const json_t *config, const json_t *map, nb_error *err)
{
    t->bos = named_token(t, json_object_get(config, "bos_token") ? config : map, "bos_token");
    t->eos = named_token(t, json_object_get(config, "eos_token") ? config : map, "eos_token");
    if (!json_is_true(json_object_get(config, "add_bos_token")) || t->template.before.len) return NB_OK;
    if (t->bos < 0) {
        nb_fail(err, NB_ERR_FORMAT, "add_bos_token is true, but bos_token names no token");
        nb_error_at(err, "tokenizer_config.json", NULL, -1);
        return NB_ERR_FORMAT;
    }
    if (!nb_ids_add(&t->template.before, (uint32_t)t->bos))
        return nb_fail_nomem(err, "the post-processor", sizeof(uint32_t));
    return NB_OK;
}

static nb_status parse(const char *json, size_t n, const char *config_json, size_t config_n,
                       const char *map_json, size_t map_n, nb_tokenizer **out, nb_error *err)
{
    parts p = {0};
    json_t *config = NULL, *map = NULL;
    nb_status s;
    nb_tokenizer *t = calloc(1, sizeof *t);
    if (!t) return nb_fail_nomem(err, "a tokenizer", sizeof *t);
    s = find_parts(json, n, &p, err);
    if (!s) s = load_parts(t, json, &p, err);
    if (!s) s = parse_config(config_json, config_n, "tokenizer_config.json", &config, err);
    if (!s) s = parse_config(map_json, map_n, "special_tokens_map.json", &map, err);
    if (!s) s = load_names(t, config, map, err);
    json_decref(config);
    json_decref(map);
    nb_buf_free(&p.unk);
    if (s)
        nb_tokenizer_free(t);
    else
        *out = t;
    return s;
}

nb_status nb_tokenizer_parse(const char *json, size_t n, const char *config_json, size_t config_n,
                             nb_tokenizer **out, nb_error *err)
{
    return parse(json, n, config_json, config_n, NULL, 0, out, err);
}

/* A file of the folder, kept in buf. *text is NULL for one that is not there, which is an error only when needed. */
static nb_status slurp(const char *dir, const char *name, size_t max, bool needed, nb_buf *buf,
                       const char **text, nb_error *err)
{
    nb_error why = {0};
    char *path = nb_path_join(dir, name);
    *text = NULL;
    if (!path) return nb_fail_nomem(err, "a path", strlen(dir) + strlen(name) + 2);
    nb_status s = nb_file_slurp(path, max, buf, &why);
    free(path);
    if (!s) *text = nb_buf_str(buf);
    if (s == NB_ERR_MISSING && !needed) return NB_OK;
    if (s && err) *err = why;
    return s;
}

nb_status nb_tokenizer_open(const char *dir, nb_tokenizer **out, nb_error *err)
{
    nb_buf json = {0}, config = {0}, map = {0};
    const char *text, *config_text, *map_text;
    nb_status s = slurp(dir, "tokenizer.json", MAX_TOKENIZER_JSON, true, &json, &text, err);
    if (s == NB_ERR_MISSING)
        nb_error_remedy(err, "get the model's tokenizer.json; a tokenizer.model alone is not enough");
    if (!s) s = slurp(dir, "tokenizer_config.json", MAX_CONFIG_JSON, false, &config, &config_text, err);
    if (!s) s = slurp(dir, "special_tokens_map.json", MAX_CONFIG_JSON, false, &map, &map_text, err);
    if (s) goto out;
    s = parse(text, json.len, config_text, config.len, map_text, map.len, out, err);
    if (s && err) { /* the parts of tokenizer.json do not know where they come from */
        char *path = nb_path_join(dir, err->file[0] ? err->file : "tokenizer.json");
        nb_error_at(err, path, NULL, -1);
        free(path);
    }
out:
    nb_buf_free(&json);
    nb_buf_free(&config);
    nb_buf_free(&map);
    return s;
}
