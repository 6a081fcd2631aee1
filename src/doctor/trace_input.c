/* What a trace runs: a user's texts in the model's chat format, lists of ids, or the built-in prompts. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_tree.h"
#include "doctor/trace.h"

/* Takes room for n lists. */
static nb_status reserve(nb_prompts *p, size_t n, nb_error *err)
{
    p->ids = calloc(n, sizeof *p->ids);
    return p->ids ? NB_OK : nb_fail_nomem(err, "prompts", n * sizeof *p->ids);
}

static void count(nb_prompts *p)
{
    size_t len = p->ids[p->n++].len;
    p->tokens += len;
    if (len > p->longest) p->longest = len;
}

static nb_status bad_ids(const char *file, size_t i, nb_error *err)
{
    nb_fail(err, NB_ERR_FORMAT, "entry %zu is no non-empty array of token ids", i);
    nb_error_at(err, file, NULL, -1);
    return NB_ERR_FORMAT;
}

static nb_status read_list(const char *file, const json_t *a, nb_prompts *p, nb_error *err)
{
    size_t n = json_array_size(a);
    nb_ids *l = &p->ids[p->n];
    if (!n) return bad_ids(file, p->n, err);
    l->data = calloc(n, sizeof *l->data);
    if (!l->data) return nb_fail_nomem(err, file, n * sizeof *l->data);
    for (; l->len < n; l->len++) {
        const json_t *v = json_array_get(a, l->len);
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id > UINT32_MAX) {
            free(l->data);
            *l = (nb_ids){0};
            return bad_ids(file, p->n, err);
        }
        l->data[l->len] = (uint32_t)id;
    }
    count(p);
    return NB_OK;
}

nb_status nb_trace_ids(const char *file, nb_prompts *out, nb_error *err)
{
    nb_buf text = {0};
    json_t *root = NULL;
    nb_status s = nb_file_slurp(file, (size_t)1 << 30, &text, err);
    if (s == NB_OK) s = nb_json_tree(file, nb_buf_str(&text), text.len, &root, err);
    if (s == NB_OK && !json_array_size(root)) {
        s = nb_fail(err, NB_ERR_FORMAT, "expected a JSON array of arrays of token ids");
        nb_error_at(err, file, NULL, -1);
    }
    if (s == NB_OK) s = reserve(out, json_array_size(root), err);
    for (size_t i = 0; s == NB_OK && i < json_array_size(root); i++)
        s = read_list(file, json_array_get(root, i), out, err);
    json_decref(root);
    nb_buf_free(&text);
    return s;
}

/* One message as the model is used to it; plain text where it has no chat format. */
static nb_status encode(const nb_chat_format *chat, const nb_tokenizer *t, nb_tok_scratch *scratch,
                        const char *text, bool raw, nb_prompts *p, nb_error *err)
{
    nb_buf prompt = {0};
    json_t *request =
        chat ? json_pack("{s:[{s:s, s:s}]}", "messages", "role", "user", "content", text) : NULL;
    nb_status s = chat && !request ? nb_fail_nomem(err, "a request", strlen(text)) : NB_OK;
    if (request) s = nb_prompt_render(chat, request, &prompt, err);
    if (s == NB_OK && !nb_buf_ok(&prompt)) s = nb_fail_nomem(err, "a prompt", prompt.len);
    nb_ids *l = &p->ids[p->n];
    if (s == NB_OK)
        s = chat ? nb_tokenizer_encode(t, scratch, nb_buf_str(&prompt), prompt.len, false, l, err)
                 : nb_tokenizer_encode(t, scratch, text, strlen(text), !raw, l, err);
    if (s == NB_OK && !l->len) s = nb_fail(err, NB_ERR_ARGUMENT, "the prompt has no tokens");
    if (s == NB_OK) {
        count(p);
    } else {
        free(l->data);
        *l = (nb_ids){0};
    }
    json_decref(request);
    nb_buf_free(&prompt);
    return s;
}

nb_status nb_trace_texts(const char *path, const char *const *texts, size_t n, bool raw, nb_prompts *out,
                         nb_error *err)
{
    nb_ckpt *c = NULL;
    nb_config cfg;
    nb_tokenizer *t = NULL;
    nb_chat_format *chat = NULL;
    nb_tok_scratch *scratch = NULL;
    nb_status s;
    if ((s = nb_ckpt_open(path, NULL, NULL, &c, err)) || (s = nb_config_init(c, &cfg, err)) ||
        (s = nb_tokenizer_open(nb_ckpt_dir(c), &t, err)) ||
        (!raw && (s = nb_prompts_format(c, &cfg, &chat, err))))
        goto out;
    if (!n) {
        s = nb_prompts_builtin(chat, t, out, err);
        goto out;
    }
    if ((s = reserve(out, n, err))) goto out;
    if (!(scratch = nb_tok_scratch_new(t))) {
        s = nb_fail_nomem(err, "tokenizer memory", 0);
        goto out;
    }
    for (size_t i = 0; s == NB_OK && i < n; i++) s = encode(chat, t, scratch, texts[i], raw, out, err);
out:
    nb_tok_scratch_free(scratch);
    nb_chat_format_free(chat);
    nb_tokenizer_free(t);
    nb_ckpt_close(c);
    return s;
}
