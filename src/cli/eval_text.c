/* eval --text and --samples: perplexity of a text, exact match of teacher-forced replies. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_tree.h"
#include "cli/eval.h"
#include "engine/generation.h"
#include "engine/policy.h"
#include "engine/prompts.h"
#include "engine/sampler.h"

#define CONTEXT_CAP 8192

nb_status nb_eval_engine(const nb_eval *e, size_t n_seqs, size_t max_len, size_t chunk, nb_engine **out,
                         nb_error *err)
{
    const nb_load_options load = {.packed_cache = e->opt->packed_cache};
    nb_engine_options o = {.threads = e->opt->threads,
                           .load = &load,
                           .kernels = e->opt->kernels ? e->opt->kernels : "auto",
                           .arith = e->opt->arith,
                           .act_bf16 = e->opt->act_bf16,
                           .quant_bf16 = e->opt->quant_bf16,
                           .max_seqs = n_seqs,
                           .max_context = max_len,
                           .max_rows = n_seqs * chunk,
                           .context_cap = CONTEXT_CAP};
    nb_policy *p = NULL;
    nb_status s = nb_policy_new(e->opt->scales, e->opt->dequant, e->opt->n_dequant, &p, err);
    if (s == NB_OK) s = nb_policy_engine(e->dir, &o, p, &e->opt->sink, out, err);
    nb_policy_free(p);
    return s;
}

nb_status nb_eval_feed(nb_engine *g, const uint32_t *ids, size_t n, size_t chunk, const nb_step_out *out,
                       nb_error *err)
{
    uint32_t seq;
    nb_status s = nb_seq_open(g, &seq, err);
    if (s != NB_OK) return s;
    for (size_t i = 0; s == NB_OK && i < n; i += chunk) {
        nb_step_part p = {seq, ids + i, n - i < chunk ? n - i : chunk, true, .known = n};
        s = nb_engine_step(g, &p, 1, out, err);
        if (s == NB_OK) nb_seq_commit(g, seq, p.n);
    }
    nb_seq_close(g, seq);
    return s;
}

bool nb_eval_count(nb_eval *e, const float *logits, size_t n)
{
    bool finite = true;
    for (size_t i = 0; i < n; i++) finite = finite && isfinite(logits[i]);
    e->rows++;
    e->odd += !finite;
    return finite;
}

/* Rows of one sequence come in order; row t predicts token t + 1. */
typedef struct scorer {
    nb_eval *e;
    const uint32_t *ids;
    size_t n, from, vocab, at; /* tokens [from, n) are judged; at: rows seen */
    double nll;
    bool right;
} scorer;

static void score_row(void *ctx, size_t part, size_t row, const float *logits)
{
    scorer *s = ctx;
    size_t next = ++s->at;
    if (next < s->from || next >= s->n) return;
    uint32_t want = s->ids[next], best = nb_argmax(logits, s->vocab);
    double sum = 0, top = logits[best];
    const bool finite = nb_eval_count(s->e, logits, s->vocab);
    for (size_t i = 0; i < s->vocab; i++) sum += exp((double)logits[i] - top);
    if (best != want || !finite) s->right = false; /* beside a NaN or an infinity nothing is the largest */
    s->nll += top + log(sum) - (double)logits[want];
}

static nb_status open_tokenizer(const nb_eval *e, nb_tokenizer **t, nb_tok_scratch **w, nb_error *err)
{
    char *dir = NULL;
    nb_status s = nb_hub_resolve(e->dir, &dir, err);
    if (s == NB_OK) s = nb_tokenizer_open(dir, t, err);
    if (s == NB_OK && !(*w = nb_tok_scratch_new(*t))) s = nb_fail_nomem(err, "tokenizer memory", 0);
    free(dir);
    return s;
}

/* A number for people; what is none is a word without a sign that means nothing. */
static const char *number(double v, int digits, char *buf, size_t cap)
{
    if (isfinite(v))
        snprintf(buf, cap, "%.*f", digits, v);
    else
        snprintf(buf, cap, "%s", isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
    return buf;
}

/* The same as JSON has it: what JSON has not is a string. */
static const char *json_number(double v, char *buf, size_t cap)
{
    if (isfinite(v))
        snprintf(buf, cap, "%.9g", v);
    else
        snprintf(buf, cap, "\"%s\"", isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
    return buf;
}

nb_status nb_eval_text(nb_eval *e, nb_error *err)
{
    nb_tokenizer *t = NULL;
    nb_tok_scratch *w = NULL;
    nb_engine *g = NULL;
    nb_buf text = {0};
    nb_ids ids = {0};
    double nll = 0;
    nb_status s = open_tokenizer(e, &t, &w, err);
    if (s == NB_OK) s = nb_file_slurp(e->text_file, (size_t)1 << 30, &text, err);
    if (s == NB_OK) s = nb_tokenizer_encode(t, w, text.len ? text.data : "", text.len, false, &ids, err);
    if (s != NB_OK) goto out;
    size_t windows = ids.len / e->window;
    if (!windows) {
        s = nb_fail(err, NB_ERR_ARGUMENT, "the text has %zu tokens, less than one window of %zu", ids.len,
                    e->window);
        nb_error_at(err, e->text_file, NULL, -1);
        nb_error_remedy(err, "give a longer text or a smaller --window");
        goto out;
    }
    size_t chunk = e->chunk < e->window ? e->chunk : e->window;
    if ((s = nb_eval_engine(e, 1, e->window, chunk, &g, err))) goto out;
    size_t tokens = windows * (e->window - 1);
    for (size_t i = 0; i < windows; i++) {
        scorer sc = {.e = e,
                     .ids = ids.data + i * e->window,
                     .n = e->window,
                     .from = 1,
                     .vocab = nb_engine_model(g)->vocab};
        nb_step_out out = {.logits = score_row, .ctx = &sc};
        if ((s = nb_eval_feed(g, sc.ids, e->window, chunk, &out, err))) goto out;
        nll += sc.nll;
        if (e->opt->sink.progress)
            e->opt->sink.progress(e->opt->sink.ctx, "scoring tokens", (i + 1) * e->window,
                                  windows * e->window);
    }
    double mean = nll / (double)tokens, ppl = exp(mean);
    char p[32], q[32];
    if (e->json)
        printf("{\"perplexity\": %s, \"mean_nll\": %s, \"windows\": %zu, \"tokens\": %zu}\n",
               json_number(ppl, p, sizeof p), json_number(mean, q, sizeof q), windows, tokens);
    else
        printf("perplexity %s (mean nll %s) over %zu tokens in %zu windows of %zu\n",
               number(ppl, 4, p, sizeof p), number(mean, 6, q, sizeof q), tokens, windows, e->window);
out:
    nb_buf_free(&text);
    free(ids.data);
    nb_tok_scratch_free(w);
    nb_tokenizer_free(t);
    nb_engine_free(g);
    return s;
}

/* What judging samples needs. Zero: nothing opened. */
typedef struct judge {
    nb_eval *e;
    nb_tokenizer *t;
    nb_tok_scratch *w;
    nb_engine *g;
    nb_chat_format *format;
    nb_generation_config gen;
    size_t chunk;
    nb_ids ids; /* of the sample at hand */
} judge;

static nb_status judge_open(judge *j, nb_error *err)
{
    nb_eval *e = j->e;
    nb_status s = open_tokenizer(e, &j->t, &j->w, err);
    if (s != NB_OK) return s;
    /* No sample is longer than the context, so no step is. */
    const size_t most = e->opt->max_context ? e->opt->max_context : CONTEXT_CAP;
    j->chunk = e->chunk < most ? e->chunk : most;
    if ((s = nb_eval_engine(e, 1, e->opt->max_context, j->chunk, &j->g, err))) return s;
    const nb_model *m = nb_engine_model(j->g);
    s = nb_generation_open(nb_ckpt_dir(m->ckpt), &m->cfg, j->t, &j->gen, err);
    return s == NB_OK ? nb_prompts_format(m->ckpt, &m->cfg, &j->format, err) : s;
}

static void judge_close(judge *j)
{
    free(j->ids.data);
    nb_tok_scratch_free(j->w);
    nb_tokenizer_free(j->t);
    nb_engine_free(j->g);
    nb_chat_format_free(j->format);
}

/* A line of the samples file. */
typedef struct sample {
    const char *line;
    size_t len, begin, number; /* begin: its byte in the file; number: from 1 */
} sample;

static nb_status encode(judge *j, const char *text, size_t len, nb_error *err)
{
    return nb_tokenizer_encode(j->t, j->w, text, len, false, &j->ids, err);
}

/* The reply's end token, which it may bring itself. */
static nb_status end_reply(judge *j, size_t from, nb_error *err)
{
    nb_ids *ids = &j->ids;
    if (!j->gen.n_eos) {
        nb_status s =
            nb_fail(err, NB_ERR_MISSING, "the folder names no end token, with which a reply must end");
        nb_error_remedy(err, "add eos_token to tokenizer_config.json, as the original model has it");
        return s;
    }
    if (ids->len > from && nb_generation_is_eos(&j->gen, ids->data[ids->len - 1])) return NB_OK;
    uint32_t *p = realloc(ids->data, (ids->len + 1) * sizeof *p);
    if (!p) return nb_fail_nomem(err, "token ids", ids->len * sizeof *p);
    ids->data = p;
    ids->cap = ids->len + 1;
    p[ids->len++] = j->gen.eos[0];
    return NB_OK;
}

/* The sample as ids: prompt, then reply with the end token. *from: where the reply begins. */
static nb_status sample_ids(judge *j, const sample *at, size_t *from, nb_error *err)
{
    const char *file = j->e->samples_file;
    nb_buf chat = {0};
    json_t *o = NULL;
    nb_status s = nb_json_tree(NULL, at->line, at->len, &o, err);
    if (s != NB_OK) {
        nb_error_at(err, file, NULL, (int64_t)at->begin);
        return s;
    }
    const json_t *prompt = json_object_get(o, "prompt"), *messages = json_object_get(o, "messages"),
                 *reply = json_object_get(o, "reply");
    j->ids.len = 0;
    if (!json_is_string(reply) || json_is_string(prompt) == json_is_array(messages)) {
        s = nb_fail(err, NB_ERR_FORMAT, "line %zu: expected \"reply\" and one of \"prompt\" and \"messages\"",
                    at->number);
        nb_error_at(err, file, NULL, -1);
        goto out;
    }
    if (json_is_string(prompt)) {
        s = encode(j, json_string_value(prompt), json_string_length(prompt), err);
    } else {
        s = nb_prompt_render(j->format, o, &chat, err);
        if (s == NB_OK) s = encode(j, nb_buf_str(&chat), chat.len, err);
    }
    *from = j->ids.len;
    if (s == NB_OK) s = encode(j, json_string_value(reply), json_string_length(reply), err);
    if (s == NB_OK) s = end_reply(j, *from, err);
    if (s == NB_OK && (!*from || *from == j->ids.len)) {
        s = nb_fail(err, NB_ERR_FORMAT, "line %zu: the prompt or the reply has no tokens", at->number);
        nb_error_at(err, file, NULL, -1);
    }
out:
    json_decref(o);
    nb_buf_free(&chat);
    return s;
}

/* *right: each token of the reply is the likeliest after those before it. */
static nb_status judge_sample(judge *j, const sample *at, bool *right, nb_error *err)
{
    size_t from = 0;
    nb_status s = sample_ids(j, at, &from, err);
    if (s != NB_OK) return s;
    scorer sc = {.e = j->e,
                 .ids = j->ids.data,
                 .n = j->ids.len,
                 .from = from,
                 .vocab = nb_engine_model(j->g)->vocab,
                 .right = true};
    const nb_step_out out = {.logits = score_row, .ctx = &sc};
    s = nb_eval_feed(j->g, j->ids.data, j->ids.len - 1, j->chunk, &out, err);
    *right = sc.right;
    return s;
}

nb_status nb_eval_samples(nb_eval *e, nb_error *err)
{
    judge j = {.e = e};
    nb_buf text = {0}, verdicts = {0};
    size_t n_right = 0, n = 0;
    nb_status s = nb_file_slurp(e->samples_file, (size_t)1 << 30, &text, err);
    if (s == NB_OK) s = judge_open(&j, err);
    if (s != NB_OK) goto out;
    for (size_t at = 0, number = 1; at < text.len; number++) {
        const char *line = text.data + at, *end = memchr(line, '\n', text.len - at);
        const sample here = {line, end ? (size_t)(end - line) : text.len - at, at, number};
        bool right;
        at += here.len + 1;
        if (strspn(line, " \t\r") >= here.len) continue;
        if ((s = judge_sample(&j, &here, &right, err))) goto out;
        nb_buf_addf(&verdicts, "%s%s", n ? ", " : "", right ? "true" : "false");
        n_right += right;
        n++;
        if (e->opt->sink.progress)
            e->opt->sink.progress(e->opt->sink.ctx, "samples", at < text.len ? at : text.len, text.len);
    }
    if (!n) {
        s = nb_fail(err, NB_ERR_FORMAT, "the file has no samples");
        nb_error_at(err, e->samples_file, NULL, -1);
        goto out;
    }
    if (!nb_buf_ok(&verdicts)) {
        s = nb_fail_nomem(err, "verdicts", n);
        goto out;
    }
    const double share = (double)n_right / (double)n;
    if (e->json)
        printf("{\"exact_match\": %.9g, \"n\": %zu, \"lines\": [%s]}\n", share, n, nb_buf_str(&verdicts));
    else
        printf("exact match %.4f: %zu of %zu\n", share, n_right, n);
out:
    nb_buf_free(&text);
    nb_buf_free(&verdicts);
    judge_close(&j);
    return s;
}
