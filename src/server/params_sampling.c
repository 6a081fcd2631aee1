/* vLLM's SamplingParams: merges the model's defaults, checks every limit in its order (vllm/sampling_params.py, as
 * specs/http_api.md lists them) and makes the sampler's parameters of it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/api_internal.h"
#include "server/api_json.h"
#include "server/params_types.h"

#define MAX_N 16384                          /* VLLM_MAX_N_SEQUENCES */
#define MAX_BAD_WORDS (NB_MAX_BAD_WORDS / 2) /* each in two forms */
#define MAX_STOP_BYTES 4096
#define LEAST_TEMPERATURE 0.01
#define GREEDY_BELOW 1e-5

static double pick(nb_opt_real v, double model, double otherwise)
{
    return v.set ? v.v : isnan(model) ? otherwise : model;
}

static bool bad_real(nb_api_error *e, const char *name, double v, const char *must)
{
    char text[NB_VALUE_TEXT];
    nb_value_real(v, text);
    return nb_api_bad(e, name, text, "%s %s, got %s.", name, must, text);
}

static bool bad_int(nb_api_error *e, const char *name, int64_t v, const char *must)
{
    char text[NB_VALUE_TEXT];
    nb_value_int(v, text);
    return nb_api_bad(e, name, text, "%s %s, got %s.", name, must, text);
}

/* NaN fails every comparison: it is outside whatever the range. */
static bool check_values(const nb_api *a, const nb_params *p, nb_sample_params *s, nb_api_error *e)
{
    const nb_generation_config *g = a->generation;
    int64_t n = p->n.set ? p->n.v : 1, top_k = p->top_k.set ? p->top_k.v : g->top_k;
    double presence = p->presence_penalty.set ? p->presence_penalty.v : 0;
    double frequency = p->frequency_penalty.set ? p->frequency_penalty.v : 0;
    double repetition = pick(p->repetition_penalty, g->repetition_penalty, 1);
    double temperature = pick(p->temperature, g->temperature, 1);
    double top_p = pick(p->top_p, g->top_p, 1), min_p = pick(p->min_p, g->min_p, 0);
    if (n < 1) return bad_int(e, "n", n, "must be at least 1");
    if (n > MAX_N)
        return nb_api_bad_text(e,
                               "n must be at most %d, got %lld. To increase this limit, set the "
                               "VLLM_MAX_N_SEQUENCES environment variable.",
                               MAX_N, (long long)n);
    if (!(presence >= -2 && presence <= 2))
        return bad_real(e, "presence_penalty", presence, "must be in [-2, 2]");
    if (!(frequency >= -2 && frequency <= 2))
        return bad_real(e, "frequency_penalty", frequency, "must be in [-2, 2]");
    if (!(repetition > 0 && (float)repetition > 0 && (float)repetition < INFINITY))
        return bad_real(e, "repetition_penalty", repetition, "must be finite and greater than zero");
    if (temperature < 0) return bad_real(e, "temperature", temperature, "must be non-negative");
    if (!(temperature <= 2)) return bad_real(e, "temperature", temperature, "must be in [0, 2]");
    if (!(top_p > 0 && top_p <= 1)) return bad_real(e, "top_p", top_p, "must be in (0, 1]");
    if (top_k < -1) return bad_int(e, "top_k", top_k, "must be 0 (disable), or at least 1");
    if (!(min_p >= 0 && min_p <= 1)) return bad_real(e, "min_p", min_p, "must be in [0, 1]");
    if (temperature < GREEDY_BELOW && n > 1)
        return nb_api_bad_text(e, "n must be 1 when using greedy sampling, got %lld.", (long long)n);
    s->presence_penalty = (float)presence;
    s->frequency_penalty = (float)frequency;
    s->repetition_penalty = (float)repetition;
    s->temperature = 0;
    if (temperature < GREEDY_BELOW) return true; /* greedy: the three below stay off */
    s->temperature = (float)(temperature < LEAST_TEMPERATURE ? LEAST_TEMPERATURE : temperature);
    s->top_p =
        (float)top_p > 0 ? (float)top_p : 1e-30F; /* a tiny double must not become 0, which is no top_p */
    s->min_p = (float)min_p;
    s->top_k = top_k <= 0 || (uint64_t)top_k >= a->vocab ? 0 : (uint32_t)top_k;
    return true;
}

static bool check_count(const nb_api *a, const char *what, int64_t k, nb_api_error *e)
{
    int64_t most = a->opt.max_logprobs;
    if (most < 0) return true;
    if (k == -1) k = (int64_t)a->vocab;
    if (k <= most) return true;
    return nb_api_bad(e, what[0] == 'p' ? "prompt_logprobs" : "logprobs", NULL,
                      "Requested %s logprobs of %lld, which is greater than max allowed: %lld", what,
                      (long long)k, (long long)most);
}

static bool check_logprobs(const nb_api *a, const nb_params *p, nb_sample_params *s, nb_api_error *e)
{
    bool wanted = p->route == NB_IN_CHAT ? nb_bool(p->want_logprobs, false) : p->logprobs.set;
    int64_t k = p->logprobs.set ? p->logprobs.v : 0;
    if (wanted && !check_count(a, "sample", k, e)) return false;
    if (p->prompt_logprobs.set && !check_count(a, "prompt", p->prompt_logprobs.v, e)) return false;
    s->logprobs = !wanted ? -1 : k == -1 || (uint64_t)k >= a->vocab ? NB_LOGPROBS_ALL : (int)k;
    return true;
}

static bool check_stop(const nb_params *p, nb_api_error *e)
{
    bool one = json_is_string(p->stop);
    for (size_t i = 0; i < (one ? 1 : json_array_size(p->stop)); i++) {
        size_t len = json_string_length(one ? p->stop : json_array_get(p->stop, i));
        if (!len) return nb_api_bad(e, "stop", NULL, "stop cannot contain an empty string.");
        if (len > MAX_STOP_BYTES) /* each sequence holds a table of it, nine bytes a byte */
            return nb_api_bad(e, "stop", NULL, "stop cannot contain a string of more than %d bytes, got %zu.",
                              MAX_STOP_BYTES, len);
    }
    return true;
}

static int by_id(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Sorts and drops what comes again, so that no list is longer than the vocabulary. Returns how many are left. */
static size_t unique(uint32_t *ids, size_t n)
{
    size_t kept = 0;
    if (n) qsort(ids, n, sizeof *ids, by_id);
    for (size_t i = 0; i < n; i++)
        if (!kept || ids[kept - 1] != ids[i]) ids[kept++] = ids[i];
    return kept;
}

static bool add_stop_ids(const nb_api *a, const nb_params *p, nb_sampling_set *s, nb_api_error *e)
{
    const nb_generation_config *g = a->generation;
    size_t n = 0, most;
    if (!nb_add(g->n_eos, p->stop_token_ids.n, &most) || !nb_mul(most + 1, sizeof *s->stop_ids, &most) ||
        !(s->stop_ids = malloc(most)))
        return nb_api_nomem(e);
    for (size_t i = 0; i < g->n_eos && !nb_bool(p->ignore_eos, false); i++)
        if (g->eos[i] < a->vocab) s->stop_ids[n++] = g->eos[i];
    /* An id that no token has cannot come, so that vLLM takes it, too. */
    for (size_t i = 0; i < p->stop_token_ids.n; i++)
        if (p->stop_token_ids.v[i] >= 0 && (uint64_t)p->stop_token_ids.v[i] < a->vocab)
            s->stop_ids[n++] = (uint32_t)p->stop_token_ids.v[i];
    s->p.stop_ids = s->stop_ids;
    s->p.n_stop_ids = unique(s->stop_ids, n);
    return true;
}

static bool add_bias(const nb_api *a, const nb_params *p, nb_sampling_set *s, nb_api_error *e)
{
    const char *key;
    json_t *v;
    nb_buf no_int = {0}, outside = {0};
    size_t n = json_object_size(p->logit_bias);
    bool ok = true;
    if (!n) return true;
    s->bias_ids = calloc(n, sizeof *s->bias_ids);
    s->bias = calloc(n, sizeof *s->bias);
    size_t *at = calloc(a->vocab, sizeof *at); /* 1 + where an id is in the list: "1" and "01" are one */
    if (!s->bias_ids || !s->bias || !at) {
        free(at);
        return nb_api_nomem(e);
    }
    json_object_foreach((json_t *)p->logit_bias, key, v)
    {
        int64_t id;
        nb_field_errors none = {0};
        double bias = 0;
        if (!nb_text_int(key, strlen(key), &id)) {
            json_t *text = json_string(key);
            nb_buf_adds(&no_int, no_int.len ? ", " : "");
            if (text) nb_out_python(&no_int, text, 40);
            json_decref(text);
            continue;
        }
        if (id < 0 || (uint64_t)id >= a->vocab) {
            nb_buf_addf(&outside, "%s%lld", outside.len ? ", " : "", (long long)id);
            continue;
        }
        nb_get_real(&none, "", v, &bias); /* its type was checked */
        if (!at[id]) at[id] = ++s->p.n_bias;
        s->bias_ids[at[id] - 1] = (uint32_t)id;
        s->bias[at[id] - 1] = (float)(!(bias >= -100) ? -100 : bias > 100 ? 100 : bias);
    }
    free(at);
    s->p.bias_ids = s->bias_ids;
    s->p.bias = s->bias;
    if (no_int.len || no_int.bad)
        ok = nb_api_bad(e, "logit_bias", NULL,
                        "logit_bias contains key(s) that cannot be converted to integer token IDs: [%.400s]",
                        nb_buf_str(&no_int));
    else if (outside.len || outside.bad)
        ok = nb_api_bad(
            e, "logit_bias", NULL,
            "token_id(s) [%.400s] in logit_bias contain out-of-vocab token ids. Vocabulary size: %zu",
            nb_buf_str(&outside), a->vocab);
    nb_buf_free(&no_int);
    nb_buf_free(&outside);
    return ok;
}

static bool add_allowed(const nb_api *a, const nb_params *p, nb_sampling_set *s, nb_api_error *e)
{
    const nb_int_list *l = &p->allowed_token_ids;
    if (!l->set) return true;
    if (!l->n) return nb_api_bad(e, "allowed_token_ids", NULL, "allowed_token_ids is not None and empty!");
    if (!(s->allowed = calloc(l->n, sizeof *s->allowed))) return nb_api_nomem(e);
    for (size_t i = 0; i < l->n; i++) {
        if (l->v[i] < 0 || (uint64_t)l->v[i] >= a->vocab)
            return nb_api_bad(e, "allowed_token_ids", NULL,
                              "allowed_token_ids contains out-of-vocab token id!");
        s->allowed[i] = (uint32_t)l->v[i];
    }
    s->p.allowed = s->allowed;
    s->p.n_allowed = unique(s->allowed, l->n);
    return true;
}

/* Whether a ends with the n ids of b from `at` on: who bans those bans a. */
static bool ends_with(const nb_ids *a, const nb_ids *b, size_t at, size_t n)
{
    return n && n <= a->len && memcmp(a->data + (a->len - n), b->data + at, n * sizeof *b->data) == 0;
}

/* What banned words are gathered with. */
typedef struct bad_words {
    const nb_api *a;
    nb_tok_scratch *scratch;
    nb_sampling_set *s;
    nb_ids all, word;
    nb_buf text;
} bad_words;

/* One word: as it begins a text, and as it follows one, with a space before it, unless the first form is the second's end. vLLM leaves
 * the second out wherever it has not as many tokens, and the word then comes in spite of it. */
static bool add_bad_word(bad_words *b, const char *w, size_t len, nb_api_error *e)
{
    size_t first = 0, first_len = 0;
    nb_error err = {0};
    if (!len) return nb_api_bad(e, "bad_words", NULL, "bad_words cannot contain an empty string.");
    while (len && strchr(" \t\n\v\f\r", *w) && *w) w++, len--;
    for (int space = 0; space < 2; space++) {
        nb_buf_clear(&b->text);
        nb_buf_adds(&b->text, space ? " " : "");
        nb_buf_add(&b->text, w, len);
        b->word.len = 0;
        if (!nb_buf_ok(&b->text)) return nb_api_nomem(e);
        if (nb_tokenizer_encode(b->a->t, b->scratch, nb_buf_str(&b->text), b->text.len, false, &b->word,
                                &err))
            return nb_api_bad_status(e, &err);
        if (!b->word.len || (space && ends_with(&b->word, &b->all, first, first_len))) continue;
        if (b->word.len > b->a->opt.max_context)
            return nb_api_bad(e, "bad_words", NULL,
                              "bad_words has an entry of %zu tokens, which no answer within the context of "
                              "%zu can hold.",
                              b->word.len, b->a->opt.max_context);
        uint32_t *grown = realloc(b->all.data, (b->all.len + b->word.len) * sizeof *grown);
        if (!grown) return nb_api_nomem(e);
        b->all.data = grown;
        memcpy(grown + b->all.len, b->word.data, b->word.len * sizeof *grown);
        first = b->all.len;
        first_len = b->word.len;
        b->all.len += b->word.len;
        b->s->bad_len[b->s->p.n_bad++] = b->word.len;
    }
    return true;
}

static bool add_bad_words(const nb_api *a, nb_tok_scratch *scratch, const nb_params *p, nb_sampling_set *s,
                          nb_api_error *e)
{
    bad_words b = {.a = a, .scratch = scratch, .s = s};
    const size_t n = json_array_size(p->bad_words);
    if (!n) return true;
    if (n > MAX_BAD_WORDS)
        return nb_api_bad(e, "bad_words", NULL, "Too many bad words: at most %d are allowed.", MAX_BAD_WORDS);
    if (!(s->bad_len = calloc(2 * n, sizeof *s->bad_len))) return nb_api_nomem(e);
    bool ok = true;
    for (size_t i = 0; ok && i < n; i++) {
        const json_t *v = json_array_get(p->bad_words, i);
        ok = add_bad_word(&b, json_string_value(v), json_string_length(v), e);
    }
    s->bad = b.all.data;
    s->p.bad = s->bad;
    s->p.bad_len = s->bad_len;
    free(b.word.data);
    nb_buf_free(&b.text);
    return ok;
}

bool nb_params_sampling(const nb_api *a, nb_tok_scratch *scratch, const nb_params *p, nb_sampling_set *s,
                        nb_api_error *e)
{
    nb_sample_defaults(&s->p);
    return check_values(a, p, &s->p, e) && check_stop(p, e) && check_logprobs(a, p, &s->p, e) &&
           add_stop_ids(a, p, s, e) && add_bias(a, p, s, e) && add_allowed(a, p, s, e) &&
           add_bad_words(a, scratch, p, s, e);
}

void nb_sampling_free(nb_sampling_set *s)
{
    free(s->stop_ids);
    free(s->bias_ids);
    free(s->allowed);
    free(s->bad);
    free(s->bias);
    free(s->bad_len);
}
