/* Prompts to ids: the bounds that vLLM sets on their length (renderers/params.py, input_processor.py), in its words. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/api_internal.h"
#include "server/api_json.h"
#include "server/params_types.h"

void nb_prompt_free(nb_prompt *p)
{
    free(p->ids.data);
    nb_buf_free(&p->text);
}

static const char *max_tokens_name(const nb_params *p)
{
    return p->max_completion_tokens.set ? "max_completion_tokens" : "max_tokens";
}

/* The model's context holds that many output tokens at all; truncation stays within it. */
static bool check_wanted(const nb_api *a, const nb_params *p, int64_t wanted, nb_api_error *e)
{
    char text[NB_VALUE_TEXT];
    if (wanted > 0 && (uint64_t)wanted > a->opt.max_context)
        return nb_api_bad(e, max_tokens_name(p), nb_value_int(wanted, text),
                          "%s=%s cannot be greater than max_model_len=max_total_tokens=%zu. Please request "
                          "fewer output tokens.",
                          max_tokens_name(p), text, a->opt.max_context);
    if (p->truncate.set && p->truncate.v > 0 && (uint64_t)p->truncate.v > a->opt.max_context)
        return nb_api_bad(e, "truncate_prompt_tokens", nb_value_int(p->truncate.v, text),
                          "truncate_prompt_tokens value (%s) is greater than max_model_len (%zu). Please, "
                          "select a smaller truncation size.",
                          text, a->opt.max_context);
    return true;
}

static void truncate_ids(const nb_api *a, const nb_params *p, int64_t wanted, nb_ids *ids)
{
    size_t room = a->opt.max_context - (size_t)(wanted > 0 ? wanted : 0);
    size_t keep = p->truncate.v < 0 ? room : (size_t)p->truncate.v;
    bool right = p->truncation_side && strcmp(json_string_value(p->truncation_side), "right") == 0;
    if (!p->truncate.set || ids->len <= keep) return;
    if (!right) memmove(ids->data, ids->data + (ids->len - keep), keep * sizeof *ids->data);
    ids->len = keep;
}

bool nb_prompt_check(const nb_api *a, const nb_params *p, int64_t wanted, nb_prompt *out, nb_api_error *e)
{
    size_t max = a->opt.max_context, output = wanted > 0 ? (size_t)wanted : 0;
    if (!check_wanted(a, p, wanted, e)) return false;
    truncate_ids(a, p, wanted, &out->ids);
    size_t n = out->ids.len;
    if (!n) return nb_api_bad_text(e, "The decoder prompt cannot be empty");
    if (n > max - output)
        return nb_api_bad(
            e, "input_tokens", NULL,
            "This model's maximum context length is %zu tokens. However, you requested %zu "
            "output tokens and your prompt contains %zu input tokens, for a total of %zu tokens. "
            "Please reduce the length of the input prompt or the number of requested output "
            "tokens.",
            max, output, n, n + output);
    if (n == max)
        return nb_api_bad_text(
            e,
            "The decoder prompt (length %zu) plus the number of requested output tokens "
            "(at least 1) is longer than the maximum model length of %zu. Please reduce the "
            "length of the prompt.",
            n, max);
    return true;
}

bool nb_prompt_tokenise(const nb_api *a, nb_api_work *w, const nb_params *p, const char *text, size_t n,
                        bool add_special, int64_t wanted, nb_prompt *out, nb_api_error *e)
{
    nb_error err = {0};
    size_t most;
    if (!check_wanted(a, p, wanted, e)) return false;
    size_t input = a->opt.max_context - (size_t)(wanted > 0 ? wanted : 0);
    if (!p->truncate.set && nb_mul(input, a->longest_token, &most) && n > most) {
        size_t chars = nb_count_chars(text, n);
        if (chars > most)
            return nb_api_bad(
                e, "input_text", NULL,
                "This model's maximum context length is %zu tokens. However, you requested %zu "
                "output tokens and your prompt contains %zu characters (more than %zu characters, "
                "which is the upper bound for %zu input tokens). Please reduce the length of the "
                "input prompt or the number of requested output tokens.",
                a->opt.max_context, a->opt.max_context - input, chars, most, input);
    }
    nb_status s = nb_tokenizer_encode(a->t, w->scratch, text, n, add_special, &out->ids, &err);
    if (s != NB_OK) return nb_api_bad_status(e, &err);
    return nb_prompt_check(a, p, wanted, out, e);
}

static bool is_one(const json_t *prompt)
{
    const json_t *first = json_array_get(prompt, 0);
    return json_is_string(prompt) || !(json_is_string(first) || json_is_array(first));
}

size_t nb_completion_count(const nb_params *p)
{
    return is_one(p->prompt) ? 1 : json_array_size(p->prompt);
}

static bool read_ids(const nb_api *a, const nb_params *p, const json_t *list, int64_t wanted, nb_prompt *out,
                     nb_api_error *e)
{
    nb_error err = {0};
    size_t n = json_array_size(list), bytes;
    if (!nb_mul(n + 1, sizeof *out->ids.data, &bytes) || !(out->ids.data = malloc(bytes)))
        return nb_api_nomem(e);
    out->ids.cap = n + 1;
    for (; out->ids.len < n; out->ids.len++) {
        nb_field_errors none = {0}; /* types were checked */
        int64_t id = -1;
        nb_get_int(&none, "", json_array_get(list, out->ids.len), 0, INT64_MAX, &id);
        nb_field_errors_free(&none);
        if (id < 0 || (uint64_t)id >= a->vocab)
            return nb_api_bad_text(e, "Token id %lld is out of vocabulary", (long long)id);
        out->ids.data[out->ids.len] = (uint32_t)id;
    }
    if (!nb_prompt_check(a, p, wanted, out, e)) return false;
    if (nb_bool(p->echo, false) &&
        nb_tokenizer_decode(a->t, out->ids.data, out->ids.len, false, &out->text, &err))
        return nb_api_bad_status(e, &err);
    return nb_buf_ok(&out->text) || nb_api_nomem(e);
}

bool nb_completion_prompts(const nb_api *a, nb_api_work *w, const nb_params *p, nb_prompt **out, size_t *n,
                           nb_api_error *e)
{
    size_t count = nb_completion_count(p);
    int64_t wanted = p->max_tokens.set ? p->max_tokens.v : 16;
    nb_prompt *list = calloc(count, sizeof *list);
    if (!list) return nb_api_nomem(e);
    *out = list;
    *n = count;
    for (size_t i = 0; i < count; i++) {
        const json_t *v = is_one(p->prompt) ? p->prompt : json_array_get(p->prompt, i);
        if (!json_is_string(v)) {
            if (!read_ids(a, p, v, wanted, &list[i], e)) return false;
            continue;
        }
        const char *s = json_string_value(v);
        size_t len = json_string_length(v);
        if (nb_bool(p->echo, false)) nb_buf_add(&list[i].text, s, len);
        if (!nb_buf_ok(&list[i].text)) return nb_api_nomem(e);
        if (!nb_prompt_tokenise(a, w, p, s, len, nb_bool(p->add_special, true), wanted, &list[i], e))
            return false;
    }
    return true;
}
