/* The public handle: an engine, a tokenizer and a chat format put together, answering one prompt at a time. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/json_tree.h"
#include "engine/generation.h"
#include "engine/policy.h"
#include "engine/prompts.h"
#include "engine/sampler.h"
#include "text/tokenizer.h"

struct nb_llm {
    nb_llm_options opt;
    nb_engine *engine;
    nb_tokenizer *tok;
    nb_tok_scratch *scratch;
    nb_sample_work *work;
    float *logits;        /* [vocab] of the newest token */
    nb_chat_format *chat; /* NULL: none, */
    nb_error no_chat;     /* and why: whoever gives whole prompts does not mind */
    nb_generation_config generation;
};

nb_status nb_llm_open(const char *path, const nb_llm_options *options, nb_llm **out, nb_error *err)
{
    nb_status s;
    nb_policy *policy = NULL;
    nb_llm *m = calloc(1, sizeof *m);
    if (!m) return nb_fail_nomem(err, "a model handle", sizeof *m);
    m->opt = *options;
    const nb_load_options load = {.packed_cache = options->packed_cache};
    nb_engine_options eo = {.threads = options->threads,
                            .kernels = options->kernels ? options->kernels : "auto",
                            .arith = options->arith,
                            .act_bf16 = options->act_bf16,
                            .quant_bf16 = options->quant_bf16,
                            .max_seqs = 1,
                            .max_context = options->max_context,
                            .max_rows = options->max_rows ? options->max_rows : 512,
                            .context_cap = 8192,
                            .load = &load};
    if ((s = nb_policy_new(options->scales, options->dequant, options->n_dequant, &policy, err))) goto out;
    if ((s = nb_policy_engine(path, &eo, policy, &m->opt.sink, &m->engine, err))) goto out;
    const nb_model *model = nb_engine_model(m->engine);
    if ((s = nb_tokenizer_open(nb_ckpt_dir(model->ckpt), &m->tok, err))) goto out;
    if ((s = nb_sample_work_new(model->vocab, &m->work, err))) goto out;
    m->scratch = nb_tok_scratch_new(m->tok);
    m->logits = calloc(model->vocab, sizeof *m->logits);
    if (!m->scratch || !m->logits) {
        s = nb_fail_nomem(err, "work memory", model->vocab * sizeof *m->logits);
        goto out;
    }
    s = nb_generation_open(nb_ckpt_dir(model->ckpt), &model->cfg, m->tok, &m->generation, err);
    if (s == NB_OK && nb_chat_format_open(nb_ckpt_dir(model->ckpt), model->cfg.arch->name, NULL, &m->chat,
                                          &m->no_chat) == NB_ERR_NOMEM) {
        s = NB_ERR_NOMEM;
        if (err) *err = m->no_chat;
    }
    size_t added;
    if (s == NB_OK) s = nb_generation_add_ends(&m->generation, m->chat, m->tok, &added, err);
out:
    nb_policy_free(policy);
    if (s == NB_OK)
        *out = m;
    else
        nb_llm_close(m);
    return s;
}

void nb_llm_close(nb_llm *m)
{
    if (!m) return;
    nb_tok_scratch_free(m->scratch);
    nb_tokenizer_free(m->tok);
    nb_sample_work_free(m->work);
    nb_chat_format_free(m->chat);
    nb_engine_free(m->engine);
    free(m->logits);
    free(m);
}

void nb_llm_describe(const nb_llm *m, nb_llm_facts *out)
{
    const nb_model *model = nb_engine_model(m->engine);
    const nb_engine_options *eo = nb_engine_limits(m->engine);
    *out = (nb_llm_facts){.architecture = model->cfg.arch->name,
                          .kernels = nb_cpu_exec_kernels(model->x),
                          .layers = model->cfg.n_layers,
                          .vocab = model->vocab,
                          .max_context = eo->max_context,
                          .threads = eo->threads,
                          .weight_bytes = model->other_bytes,
                          .kv_bytes = nb_engine_kv_bytes(m->engine)};
    _Static_assert(sizeof out->format_bytes == sizeof model->format_bytes, "one entry a format");
    memcpy(out->format_bytes, model->format_bytes, sizeof out->format_bytes);
    for (size_t i = 0; i < NB_FMT_COUNT; i++) out->weight_bytes += model->format_bytes[i];
}

nb_status nb_llm_render_chat(const nb_llm *m, const char *request, char **prompt, nb_error *err)
{
    nb_buf text = {0};
    json_t *r = NULL;
    nb_status s = nb_json_tree(NULL, request, strlen(request), &r, err);
    if (s == NB_OK && !m->chat) {
        s = m->no_chat.status;
        if (err) *err = m->no_chat;
    } else if (s == NB_OK) {
        s = nb_chat_format_render(m->chat, r, (int64_t)time(NULL), &text, err);
    }
    char *copy = s == NB_OK && nb_buf_ok(&text) ? strdup(nb_buf_str(&text)) : NULL;
    if (s == NB_OK && !copy) s = nb_fail_nomem(err, "a prompt", text.len);
    if (s == NB_OK && strlen(copy) != text.len) {
        s = nb_fail(err, NB_ERR_ARGUMENT,
                    "a message holds a NUL character, which would end the prompt there");
        nb_error_remedy(err, "remove \\u0000 from the messages");
        free(copy);
    }
    if (s == NB_OK) *prompt = copy;
    json_decref(r);
    nb_buf_free(&text);
    return s;
}

nb_status nb_llm_tokenize(nb_llm *m, const char *text, size_t n, bool add_special, uint32_t **ids,
                          size_t *n_ids, nb_error *err)
{
    nb_ids list = {0};
    nb_status s = nb_tokenizer_encode(m->tok, m->scratch, text, n, add_special, &list, err);
    if (s != NB_OK) {
        free(list.data);
        return s;
    }
    *ids = list.data;
    *n_ids = list.len;
    return NB_OK;
}

static void keep_logits(void *ctx, size_t part, size_t row, const float *logits)
{
    nb_llm *m = ctx;
    memcpy(m->logits, logits, nb_engine_model(m->engine)->vocab * sizeof *logits);
}

/* Computes what of the n tokens of the sequence is not computed yet in steps of at most max_rows; m->logits is then the last one's. */
static nb_status advance(nb_llm *m, uint32_t *seq, const uint32_t *ids, size_t n, nb_error *err)
{
    const size_t turns_at = nb_engine_model(m->engine)->turns_at, done = nb_seq_length(m->engine, *seq);
    if (turns_at && n > turns_at && done && done <= turns_at) { /* its rows are those of a shorter one */
        nb_seq_close(m->engine, *seq);
        nb_status s = nb_seq_open(m->engine, seq, err);
        if (s != NB_OK) return s;
    }
    nb_step_out out = {.logits = keep_logits, .ctx = m};
    size_t max = nb_engine_limits(m->engine)->max_rows;
    for (size_t i = nb_seq_length(m->engine, *seq); i < n;) {
        nb_step_part part = {.seq = *seq, .tokens = ids + i, .n = n - i < max ? n - i : max, .known = n};
        nb_status s = nb_engine_step(m->engine, &part, 1, i + part.n == n ? &out : NULL, err);
        if (s != NB_OK) return s;
        nb_seq_commit(m->engine, *seq, part.n);
        i += part.n;
    }
    return NB_OK;
}

/* The handle's own limits: as the server's, but a temperature may be any. */
static nb_status check_sampling(const nb_sampling *p, nb_error *err)
{
    if (!(p->temperature >= 0) || isinf(p->temperature))
        return nb_fail(err, NB_ERR_ARGUMENT, "temperature must be 0 or more, got %g", (double)p->temperature);
    if (!(p->top_p > 0 && p->top_p <= 1))
        return nb_fail(err, NB_ERR_ARGUMENT, "top_p must be in (0, 1], got %g", (double)p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return nb_fail(err, NB_ERR_ARGUMENT, "min_p must be in [0, 1], got %g", (double)p->min_p);
    return NB_OK;
}

static nb_status new_sampler(const nb_llm *m, const nb_sampling *p, nb_sampler **out, nb_error *err)
{
    nb_sample_params sp;
    nb_status s = check_sampling(p, err);
    if (s != NB_OK) return s;
    nb_sample_defaults(&sp);
    sp.temperature = p->temperature;
    sp.top_k = p->top_k;
    sp.top_p = p->top_p;
    sp.min_p = p->min_p;
    sp.seed = p->seed;
    sp.stop_ids = m->generation.eos;
    sp.n_stop_ids = m->generation.n_eos;
    return nb_sampler_new(&sp, nb_engine_model(m->engine)->vocab, NULL, 0, out, err);
}

/* Special tokens are not text, but for those that tell reasoning from answer. */
static void push_token(const nb_llm *m, nb_detok *detok, uint32_t id, nb_buf *piece)
{
    size_t n;
    const char *bytes = nb_tokenizer_bytes(m->tok, id, &n);
    bool think =
        bytes && nb_tokenizer_is_special(m->tok, id) &&
        ((n == 7 && memcmp(bytes, "<think>", 7) == 0) || (n == 8 && memcmp(bytes, "</think>", 8) == 0));
    if (think)
        nb_buf_add(piece, bytes, n);
    else
        nb_detok_push(detok, id, piece);
}

/* A piece of the answer to whom it is for. */
static nb_status hand_over(nb_buf *piece, bool (*text)(void *ctx, const char *piece, size_t n), void *ctx,
                           nb_error *err)
{
    nb_status s = NB_OK;
    if (!nb_buf_ok(piece))
        s = nb_fail_nomem(err, "text", piece->len);
    else if (piece->len && !text(ctx, piece->data, piece->len))
        s = nb_fail(err, NB_ERR_CANCELLED, "stopped by the caller");
    nb_buf_clear(piece);
    return s;
}

nb_status nb_llm_generate(nb_llm *m, const uint32_t *ids, size_t n, const nb_sampling *sampling,
                          size_t max_tokens, bool (*text)(void *ctx, const char *piece, size_t n), void *ctx,
                          nb_generation *result, nb_error *err)
{
    nb_status s;
    uint32_t seq;
    size_t n_top;
    nb_sampled next;
    nb_sampler *sampler = NULL;
    nb_buf piece = {0};
    nb_detok detok;
    uint32_t *all = NULL; /* prompt and answer */
    size_t n_all = n;
    *result = (nb_generation){.prompt_tokens = n};
    size_t room = nb_engine_limits(m->engine)->max_context;
    if (!n) return nb_fail(err, NB_ERR_ARGUMENT, "the prompt has no tokens");
    if (n > room) { /* said now, not after most of it has been computed */
        nb_fail(err, NB_ERR_LIMIT, "the prompt has %zu tokens, more than the context of %zu", n, room);
        nb_error_remedy(err, "shorten the prompt or raise --max-model-len");
        return NB_ERR_LIMIT;
    }
    all = malloc(room * sizeof *all);
    s = all ? new_sampler(m, sampling, &sampler, err) : nb_fail_nomem(err, "tokens", room * sizeof *all);
    if (s == NB_OK) s = nb_seq_open(m->engine, &seq, err);
    if (s != NB_OK) {
        nb_sampler_free(sampler);
        free(all);
        return s;
    }
    nb_detok_init(&detok, m->tok, true, true);

    double t0 = nb_now();
    memcpy(all, ids, n * sizeof *all);
    s = advance(m, &seq, all, n_all, err);
    double t1 = nb_now();
    result->prefill_seconds = t1 - t0;
    while (s == NB_OK) {
        if ((s = nb_sampler_choose(sampler, m->work, m->logits, &next, NULL, 0, &n_top, err))) break;
        result->stopped = next.stop;
        if (result->stopped) break;
        result->output_tokens++;
        if ((s = nb_sampler_push(sampler, next.chosen.id, err))) break;
        push_token(m, &detok, next.chosen.id, &piece);
        s = hand_over(&piece, text, ctx, err);
        if (s != NB_OK || result->output_tokens == max_tokens || nb_seq_length(m->engine, seq) == room) break;
        all[n_all++] = next.chosen.id;
        s = advance(m, &seq, all, n_all, err);
    }
    result->decode_seconds = nb_now() - t1;
    nb_detok_flush(&detok, &piece);
    if (s == NB_OK) s = hand_over(&piece, text, ctx, err);
    nb_buf_free(&piece);
    nb_sampler_free(sampler);
    nb_seq_close(m->engine, seq);
    free(all);
    return s;
}
