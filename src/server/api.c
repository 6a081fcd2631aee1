/* The served model as requests see it, and the routes that need no engine: /v1/models, /tokenize, /detokenize (api.h). */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/map.h"
#include "base/utf8.h"
#include "server/api_internal.h"
#include "server/api_json.h"

#define NAME_LIMIT 200 /* bytes of a client's model name that the message repeats */

static bool copy_text(char **to, const char *from)
{
    *to = from ? strdup(from) : NULL;
    return !from || *to;
}

/* Characters of the longest token: so many characters need at least one token each. */
static size_t longest_token(const nb_tokenizer *t)
{
    size_t most = 1, n;
    for (uint32_t id = 0; id < nb_tokenizer_size(t); id++) {
        const char *s = nb_tokenizer_bytes(t, id, &n);
        size_t chars = s ? nb_count_chars(s, n) : 0;
        if (chars > most) most = chars;
    }
    return most;
}

/* Which tokens are the same text: bytes that are no characters are all written as U+FFFD, and vocabularies repeat themselves. */
static bool find_same_text(nb_api *a)
{
    nb_map texts = {0};
    nb_buf odd = {0}; /* texts of the tokens that are not whole characters */
    size_t n, bytes = 0;
    bool ok = (a->same_text = calloc(a->vocab + 1, sizeof *a->same_text)) != NULL;
    for (uint32_t id = 0; id < a->vocab; id++)
        if (nb_tokenizer_bytes(a->t, id, &n)) bytes += n;
    ok = ok && nb_buf_reserve(&odd, 3 * bytes); /* what points into it must not move */
    for (uint32_t id = 0; ok && id < a->vocab; id++) {
        const char *s = nb_tokenizer_bytes(a->t, id, &n);
        size_t start = odd.len;
        uint32_t cp, first = id;
        bool whole = true;
        for (size_t i = 0, w; s && i < n; i += w ? w : 1) {
            w = nb_utf8_decode(s + i, n - i, &cp);
            whole = whole && w;
            nb_buf_add(&odd, w ? s + i : "\xEF\xBF\xBD", w ? w : 3);
        }
        const char *text = !s ? "" : whole ? s : odd.data + start;
        size_t len = odd.len - start;
        if (whole) odd.len = start;
        if (!nb_map_get(&texts, text, len, &first)) ok = nb_map_put(&texts, text, len, id, NULL);
        a->same_text[id] = first;
    }
    nb_map_free(&texts);
    nb_buf_free(&odd);
    return ok;
}

nb_status nb_api_new(const nb_api_options *opt, nb_core *core, size_t vocab, const nb_tokenizer *t,
                     const nb_chat_format *chat, const nb_generation_config *generation, nb_metrics *metrics,
                     nb_api **out, nb_error *err)
{
    if (!opt->n_names) return nb_fail(err, NB_ERR_ARGUMENT, "a served model needs a name");
    nb_api *a = calloc(1, sizeof *a);
    if (!a) return nb_fail_nomem(err, "the API", sizeof *a);
    a->opt = *opt;
    a->core = core;
    a->vocab = vocab;
    a->t = t;
    a->chat = chat;
    a->generation = generation;
    a->metrics = metrics;
    a->longest_token = longest_token(t);
    a->names = calloc(opt->n_names, sizeof *a->names);
    bool ok = a->names && copy_text(&a->root, opt->root) && copy_text(&a->folder, opt->folder) &&
              copy_text(&a->version, opt->version) && copy_text(&a->tool_parser, opt->tool_parser) &&
              copy_text(&a->reasoning_parser, opt->reasoning_parser) &&
              copy_text(&a->response_role, opt->response_role ? opt->response_role : "assistant");
    for (size_t i = 0; ok && i < opt->n_names; i++) ok = copy_text(&a->names[i], opt->names[i]);
    ok = ok && find_same_text(a);
    a->template_kwargs = json_incref((json_t *)opt->template_kwargs);
    if (!ok) {
        nb_api_free(a);
        return nb_fail_nomem(err, "the API's names", 0);
    }
    a->opt.names = (const char *const *)a->names;
    a->opt.root = a->root;
    a->opt.folder = a->folder;
    a->opt.version = a->version;
    a->opt.tool_parser = a->tool_parser;
    a->opt.reasoning_parser = a->reasoning_parser;
    a->opt.response_role = a->response_role;
    a->opt.template_kwargs = a->template_kwargs;
    *out = a;
    return NB_OK;
}

void nb_api_free(nb_api *a)
{
    if (!a) return;
    for (size_t i = 0; a->names && i < a->opt.n_names; i++) free(a->names[i]);
    free(a->names);
    free(a->same_text);
    free(a->root);
    free(a->folder);
    free(a->version);
    free(a->tool_parser);
    free(a->reasoning_parser);
    free(a->response_role);
    json_decref(a->template_kwargs);
    free(a);
}

nb_status nb_api_work_new(const nb_api *a, nb_api_work **out, nb_error *err)
{
    nb_api_work *w = calloc(1, sizeof *w);
    if (w) w->scratch = nb_tok_scratch_new(a->t);
    if (!w || !w->scratch) {
        free(w);
        return nb_fail_nomem(err, "a worker's memory", 0);
    }
    *out = w;
    return NB_OK;
}

void nb_api_work_free(nb_api_work *w)
{
    if (!w) return;
    nb_tok_scratch_free(w->scratch);
    free(w);
}

static bool is_served(const nb_api *a, const char *name)
{
    for (size_t i = 0; i < a->opt.n_names; i++)
        if (strcmp(name, a->opt.names[i]) == 0) return true;
    return false;
}

static bool unknown_model(nb_api_error *e, const char *name)
{
    size_t n = strlen(name);
    if (n > NAME_LIMIT)
        for (n = NAME_LIMIT; n && ((unsigned char)name[n] & 0xC0) == 0x80;) n--; /* whole characters */
    nb_api_error_set(e, 404, "NotFoundError", "model", "The model `%.*s` does not exist.", (int)n, name);
    return false;
}

bool nb_api_check_model(const nb_api *a, const nb_params *p, nb_api_error *e)
{
    const char *name = p->model ? json_string_value(p->model) : "";
    bool whole = !p->model || strlen(name) == json_string_length(p->model);
    return (whole && (!*name || is_served(a, name))) || unknown_model(e, name);
}

static void model_card(const nb_api *a, const char *name, nb_buf *out)
{
    long long now = (long long)time(NULL);
    nb_buf_adds(out, "{\"id\":");
    nb_out_string(out, name);
    nb_buf_addf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"vllm\",\"root\":", now);
    nb_out_string(out, a->opt.root);
    nb_buf_addf(out, ",\"parent\":null,\"max_model_len\":%zu,\"permission\":[{\"id\":\"modelperm-",
                a->opt.max_context);
    if (!nb_out_random(out, 16)) out->bad = true;
    nb_buf_addf(out,
                "\",\"object\":\"model_permission\",\"created\":%lld,\"allow_create_engine\":false,"
                "\"allow_sampling\":true,\"allow_logprobs\":true,\"allow_search_indices\":false,"
                "\"allow_view\":true,\"allow_fine_tuning\":false,\"organization\":\"*\",\"group\":null,"
                "\"is_blocking\":false}]}",
                now);
}

static bool answer_models(const nb_api *a, const char *arg, nb_buf *out, nb_api_error *e)
{
    if (arg) {
        if (!is_served(a, arg)) return unknown_model(e, arg);
        model_card(a, arg, out);
        return true;
    }
    nb_buf_adds(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < a->opt.n_names; i++) {
        nb_buf_adds(out, i ? "," : "");
        model_card(a, a->opt.names[i], out);
    }
    nb_buf_adds(out, "]}");
    return true;
}

static void write_tokens(const nb_api *a, const nb_params *p, const nb_ids *ids, nb_buf *out)
{
    nb_buf_addf(out, "{\"count\":%zu,\"max_model_len\":%zu,\"tokens\":[", ids->len, a->opt.max_context);
    for (size_t i = 0; i < ids->len; i++) nb_buf_addf(out, i ? ",%u" : "%u", ids->data[i]);
    nb_buf_adds(out, "],\"token_strs\":");
    if (!nb_bool(p->token_strs, false)) {
        nb_buf_adds(out, "null}");
        return;
    }
    nb_buf spelling = {0};
    nb_buf_addc(out, '[');
    for (size_t i = 0; i < ids->len; i++) {
        nb_buf_clear(&spelling);
        nb_tokenizer_spell(a->t, ids->data[i], &spelling);
        nb_buf_adds(out, i ? "," : "");
        nb_buf_add_json(out, nb_buf_str(&spelling), spelling.len);
    }
    out->bad |= spelling.bad;
    nb_buf_free(&spelling);
    nb_buf_adds(out, "]}");
}

static bool answer_tokenize(const nb_api *a, nb_api_work *w, const nb_params *p, nb_buf *out, nb_api_error *e)
{
    bool chat = p->route == NB_IN_TOKENIZE_CHAT, ok = false;
    nb_buf text = {0};
    nb_ids ids = {0};
    nb_error err = {0};
    if (!nb_api_check_model(a, p, e)) return false;
    if (chat) {
        if (!nb_chat_check_features(a, p, e) || !nb_chat_render(a, p, &text, e)) goto out;
    } else {
        nb_buf_add(&text, json_string_value(p->prompt), json_string_length(p->prompt));
    }
    if (!nb_buf_ok(&text)) {
        nb_api_nomem(e);
    } else if (nb_tokenizer_encode(a->t, w->scratch, nb_buf_str(&text), text.len,
                                   nb_bool(p->add_special, !chat), &ids, &err)) {
        nb_api_bad_status(e, &err);
    } else {
        write_tokens(a, p, &ids, out);
        ok = true;
    }
out:
    nb_buf_free(&text);
    free(ids.data);
    return ok;
}

static bool answer_detokenize(const nb_api *a, const nb_params *p, nb_buf *out, nb_api_error *e)
{
    nb_buf text = {0};
    nb_error err = {0};
    uint32_t *ids = NULL;
    size_t n = p->tokens.n;
    bool ok = false;
    if (!nb_api_check_model(a, p, e)) return false;
    if (!(ids = calloc(n + 1, sizeof *ids))) return nb_api_nomem(e);
    for (size_t i = 0; i < n; i++) {
        if ((uint64_t)p->tokens.v[i] >= a->vocab) {
            nb_api_bad_text(e, "Token id %lld is out of vocabulary", (long long)p->tokens.v[i]);
            goto out;
        }
        ids[i] = (uint32_t)p->tokens.v[i];
    }
    if (nb_tokenizer_decode(a->t, ids, n, false, &text, &err)) {
        nb_api_bad_status(e, &err);
        goto out;
    }
    nb_buf_adds(out, "{\"prompt\":");
    nb_buf_add_json(out, nb_buf_str(&text), text.len);
    nb_buf_addc(out, '}');
    ok = nb_buf_ok(&text) || nb_api_nomem(e);
out:
    nb_buf_free(&text);
    free(ids);
    return ok;
}

/* /tokenize takes a chat when the body has messages. */
static bool parse_tokenize(nb_params *p, const char *body, size_t n, nb_api_error *e)
{
    nb_params plain = {0};
    bool ok = nb_params_parse(&plain, NB_IN_TOKENIZE, body, n, e);
    if (!json_object_get(plain.body, "messages")) {
        *p = plain;
        return ok;
    }
    nb_params_free(&plain);
    return nb_params_parse(p, NB_IN_TOKENIZE_CHAT, body, n, e);
}

int nb_api_answer(nb_api *a, nb_api_work *w, nb_route route, const char *arg, const char *body, size_t n,
                  nb_buf *out)
{
    nb_api_error e = {0};
    nb_params p = {0};
    size_t start = out->len;
    bool ok;
    switch (route) {
    case NB_ROUTE_MODELS: ok = answer_models(a, arg, out, &e); break;
    case NB_ROUTE_TOKENIZE: ok = parse_tokenize(&p, body, n, &e) && answer_tokenize(a, w, &p, out, &e); break;
    case NB_ROUTE_DETOKENIZE:
        ok = nb_params_parse(&p, NB_IN_DETOKENIZE, body, n, &e) && answer_detokenize(a, &p, out, &e);
        break;
    default:
        nb_api_error_set(&e, 404, "Not Found", NULL, "Not Found"); /* a completion is a job */
        ok = false;
    }
    int status = ok ? 200 : e.status;
    if (!ok) {
        out->len = start;
        nb_api_error_body(&e, out);
    }
    nb_params_free(&p);
    nb_buf_free(&e.message);
    return status;
}
