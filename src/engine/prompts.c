/* Texts to measure a model with, as token ids. */
#include "engine/prompts.h"

#include <stdlib.h>
#include <string.h>

#include "base/json_tree.h"

#define MEASURED_ON INT64_C(1767225600) /* 2026-01-01 */

nb_status nb_prompts_format(const nb_ckpt *c, const nb_config *cfg, nb_chat_format **out, nb_error *err)
{
    nb_error probe = {.offset = -1};
    *out = NULL;
    nb_status s = nb_chat_format_open(nb_ckpt_dir(c), cfg->arch ? cfg->arch->name : NULL, NULL, out, &probe);
    if (s == NB_ERR_MISSING) return NB_OK;
    if (s != NB_OK && err) *err = probe;
    return s;
}

nb_status nb_prompt_render(const nb_chat_format *chat, const json_t *request, nb_buf *out, nb_error *err)
{
    if (chat) return nb_chat_format_render(chat, request, MEASURED_ON, out, err);
    nb_fail(err, NB_ERR_MISSING, "the model's folder has no chat template");
    nb_error_remedy(err, "give the prompt as plain text with its special tokens spelled out");
    return NB_ERR_MISSING;
}

/* A question and its answer; without a question, prose that is read as it stands. Written for this program. */
typedef struct dialogue {
    const char *user, *assistant;
} dialogue;

static const dialogue builtin[] = {
    {"What is the capital of France?", "Paris"},
    {"What is the capital of Japan, and on which island does it lie?",
     "The capital of Japan is Tokyo. It lies on Honshu, the largest of the main islands."},
    {"748 - 76 =", "672"},
    {"12 + 30 =", "42"},
    {"Sort these numbers: 94 63 45 53 67 93 78", "45 53 63 67 78 93 94"},
    {"Repeat 60 20 91 0.", "60 20 91 0"},
    {"Write nibble in capital letters.", "NIBBLE"},
    {"Spell the word 'harbour' backwards.", "ruobrah"},
    {"Write as JSON: Jack, 5, Brussels.", "{\"name\": \"Jack\", \"age\": 5, \"city\": \"Brussels\"}"},
    {"Which of these is a fruit: hammer, pear, river, cloud?", "pear"},
    {"A shop sells pencils at 35 cents each. How much do eight pencils and a 1.20 notebook cost?",
     "Eight pencils cost 8 * 0.35 = 2.80. With the notebook that makes 2.80 + 1.20 = 4.00."},
    {"Write a C function that returns the larger of two integers.",
     "int max(int a, int b)\n{\n    return a > b ? a : b;\n}"},
    {"How do I count the lines of every Python file below this folder?",
     "find . -name '*.py' -print0 | xargs -0 wc -l"},
    {"Explain in two sentences why the sky is blue.",
     "Air scatters short wavelengths of sunlight far more strongly than long ones. So blue light reaches the "
     "eye from "
     "every direction, while the rest comes mostly straight from the sun."},
    {"Translate into German: The train to Hamburg leaves at half past seven from platform four.",
     "Der Zug nach Hamburg f\xc3\xa4hrt um halb acht von Gleis vier ab."},
    {"Traduis en anglais : Il fait froid ce matin, mais le soleil brille d\xc3\xa9j\xc3\xa0 sur les toits.",
     "It is cold this morning, but the sun is already shining on the roofs."},
    {"\xe7\x94\xa8\xe4\xb8\x80\xe5\x8f\xa5\xe8\xaf\x9d\xe4\xbb\x8b\xe7\xbb\x8d\xe9\x95\xbf\xe5\x9f\x8e\xe3"
     "\x80\x82",
     "\xe9\x95\xbf\xe5\x9f\x8e\xe6\x98\xaf\xe4\xb8\xad\xe5\x9b\xbd\xe5\x8f\xa4\xe4\xbb\xa3\xe7\x9a\x84\xe9"
     "\x98"
     "\xb2\xe5\xbe\xa1\xe5\xb7\xa5\xe7\xa8\x8b\xe3\x80\x82"},
    {"Summarise: The harbour froze in January for the first time in thirty years. Fishing boats stayed in "
     "port for "
     "three weeks, the market imported cod from the north, and prices doubled before the thaw came in "
     "February.",
     "A rare January freeze kept the boats in for three weeks, so cod was imported and prices doubled until "
     "the "
     "thaw."},
    {NULL, "The lighthouse keeper wrote one line a day. On the third of March, 1891, it read: wind from the "
           "north-west, force 9; two ships sheltering; oil for eleven nights. He did not write that he was "
           "afraid, but the letters lean further to the right than on any other page, and the ink is "
           "blotted where his hand had rested."},
    {NULL, "Table 3. Mean temperature by month (\xc2\xb0"
           "C): January 1.4, February 2.0, March 5.3, April 9.8, May 14.1, June 17.2, July 19.0, August "
           "18.6, September 15.1, October 10.6, November 5.7, December 2.5. The yearly mean is 10.1; the "
           "highest single reading was 36.8 on 9 August."},
    {NULL, "def read_rows(path):\n    with open(path, encoding=\"utf-8\") as f:\n        for number, line in "
           "enumerate(f, 1):\n            fields = line.rstrip(\"\\n\").split(\",\")\n            if "
           "len(fields) != 4:\n                raise ValueError(f\"{path}:{number}: expected 4 fields, found "
           "{len(fields)}\")\n            yield fields\n"},
};

void nb_prompts_free(nb_prompts *p)
{
    for (size_t i = 0; p->ids && i < p->n; i++) free(p->ids[i].data);
    free(p->ids);
    *p = (nb_prompts){0};
}

/* Appends one text as ids; one without tokens is left out. */
static nb_status add(nb_prompts *p, const nb_tokenizer *t, nb_tok_scratch *w, const char *text, size_t n,
                     bool special, nb_error *err)
{
    nb_ids *grown = realloc(p->ids, (p->n + 1) * sizeof *grown);
    if (!grown) return nb_fail_nomem(err, "prompts", (p->n + 1) * sizeof *grown);
    p->ids = grown;
    nb_ids ids = {0};
    nb_status s = nb_tokenizer_encode(t, w, text, n, special, &ids, err);
    if (s != NB_OK || !ids.len) {
        free(ids.data);
        return s;
    }
    p->ids[p->n++] = ids;
    p->tokens += ids.len;
    if (ids.len > p->longest) p->longest = ids.len;
    return NB_OK;
}

/* A dialogue as the chat format writes it. */
static nb_status render(const nb_chat_format *chat, const dialogue *d, nb_buf *out, nb_error *err)
{
    json_t *request =
        json_pack("{s:[{s:s, s:s}, {s:s, s:s}], s:b}", "messages", "role", "user", "content", d->user, "role",
                  "assistant", "content", d->assistant, "add_generation_prompt", 0);
    if (!request) return nb_fail_nomem(err, "a prompt", strlen(d->user));
    nb_status s = nb_prompt_render(chat, request, out, err);
    json_decref(request);
    return s;
}

nb_status nb_prompts_builtin(const nb_chat_format *chat, const nb_tokenizer *t, nb_prompts *out,
                             nb_error *err)
{
    nb_buf text = {0};
    nb_status s = NB_OK;
    nb_tok_scratch *w = nb_tok_scratch_new(t);
    if (!w) return nb_fail_nomem(err, "tokenizer memory", 0);
    for (size_t i = 0; s == NB_OK && i < sizeof builtin / sizeof *builtin; i++) {
        const dialogue *d = &builtin[i];
        bool in_chat = chat && d->user;
        nb_buf_clear(&text);
        if (in_chat && (s = render(chat, d, &text, err))) break;
        if (!in_chat) nb_buf_addf(&text, "%s%s%s", d->user ? d->user : "", d->user ? "\n" : "", d->assistant);
        s = nb_buf_ok(&text) ? add(out, t, w, nb_buf_str(&text), text.len, !in_chat, err)
                             : nb_fail_nomem(err, "a prompt", text.len);
    }
    nb_buf_free(&text);
    nb_tok_scratch_free(w);
    if (s != NB_OK) nb_prompts_free(out);
    return s;
}

static nb_status add_line(const nb_chat_format *format, const nb_tokenizer *t, nb_tok_scratch *w,
                          const char *line, size_t len, nb_prompts *out, nb_error *err)
{
    json_t *o = NULL;
    nb_buf chat = {0};
    nb_status s = nb_json_tree(NULL, line, len, &o, err);
    if (s != NB_OK) return s;
    const json_t *text = json_object_get(o, "text"), *messages = json_object_get(o, "messages");
    if (json_is_string(text) == json_is_array(messages)) {
        s = nb_fail(err, NB_ERR_FORMAT, "expected one of \"text\" (a string) and \"messages\" (an array)");
    } else if (messages) {
        s = nb_prompt_render(format, o, &chat, err);
        if (s == NB_OK) s = add(out, t, w, nb_buf_str(&chat), chat.len, false, err);
    } else {
        s = add(out, t, w, json_string_value(text), json_string_length(text), false, err);
    }
    nb_buf_free(&chat);
    json_decref(o);
    return s;
}

nb_status nb_prompts_file(const nb_chat_format *chat, const nb_tokenizer *t, const char *path,
                          nb_prompts *out, nb_error *err)
{
    nb_error local = {.offset = -1};
    if (!err) err = &local;
    nb_buf text = {0};
    nb_tok_scratch *w = NULL;
    nb_status s = nb_file_slurp(path, (size_t)1 << 30, &text, err);
    if (s != NB_OK) return s;
    if (!(w = nb_tok_scratch_new(t))) {
        s = nb_fail_nomem(err, "tokenizer memory", 0);
        goto out;
    }
    for (size_t at = 0, number = 1; at < text.len; number++) {
        const char *line = text.data + at, *end = memchr(line, '\n', text.len - at);
        size_t len = end ? (size_t)(end - line) : text.len - at;
        if (strspn(line, " \t\r\n") < len) s = add_line(chat, t, w, line, len, out, err);
        if (s != NB_OK) {
            char cause[sizeof err->cause];
            memcpy(cause, err->cause, sizeof cause);
            snprintf(err->cause, sizeof err->cause, "line %zu: %.480s", number, cause);
            nb_error_at(err, path, NULL, (int64_t)at);
            goto out;
        }
        at += len + 1;
    }
    if (!out->n) {
        s = nb_fail(err, NB_ERR_FORMAT, "the file has no text");
        nb_error_at(err, path, NULL, -1);
        nb_error_remedy(err, "write JSON lines {\"text\": \"…\"} or {\"messages\": [...]}");
    }
out:
    nb_buf_free(&text);
    nb_tok_scratch_free(w);
    if (s != NB_OK) nb_prompts_free(out);
    return s;
}
