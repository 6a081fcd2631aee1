/* Steps: lays the rows of several sequences side by side, runs the layers over them, hands out logits in tiles. */
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/pages.h"

#define LOGIT_ROWS 32 /* rows of logits held at once: never [tokens, vocabulary] */

typedef struct sequence {
    bool open;
    size_t committed, pending;
    uint64_t step; /* the last that had it */
    bool turned;   /* its rows are those of a sequence longer than turns_at */
} sequence;

struct nb_engine {
    nb_engine_options opt;
    nb_pool *pool;
    nb_exec *x;
    nb_model *m;
    nb_pages *pages;
    sequence *seqs;                      /* [max_seqs] */
    uint32_t *seq, *pos, *token, *known; /* [max_rows] the step's rows */
    nb_logit_row *at;                    /* [max_rows] which part and which of its tokens a row is */
    uint32_t *which;                     /* [max_rows] rows whose logits are wanted, and what they are */
    nb_logit_row *wanted;                /* [max_rows] */
    nb_bad_rows bad;                     /* [max_rows] of a checked step */
    size_t *first_bad;                   /* [max_seqs] by part */
    const nb_step_part *parts;           /* [n_parts] of the step that runs, with its rows in all */
    size_t n_parts, rows;
    uint64_t step;     /* how many were laid out */
    nb_tensor *logits; /* [LOGIT_ROWS, vocab] */
    float *host;       /* the larger of a tile of logits and one hidden row */
};

static nb_status take_memory(nb_engine *e, nb_error *err)
{
    size_t n = e->opt.max_rows, host = LOGIT_ROWS * e->m->vocab;
    if (e->m->hidden_cols > host) host = e->m->hidden_cols;
    e->seqs = calloc(e->opt.max_seqs, sizeof *e->seqs);
    e->seq = calloc(n, sizeof *e->seq);
    e->pos = calloc(n, sizeof *e->pos);
    e->token = calloc(n, sizeof *e->token);
    e->known = calloc(n, sizeof *e->known);
    e->at = calloc(n, sizeof *e->at);
    e->which = calloc(n, sizeof *e->which);
    e->wanted = calloc(n, sizeof *e->wanted);
    e->bad.row = calloc(n, sizeof *e->bad.row);
    e->first_bad = calloc(e->opt.max_seqs, sizeof *e->first_bad);
    e->host = calloc(host, sizeof *e->host);
    if (!e->seqs || !e->seq || !e->pos || !e->token || !e->known || !e->at || !e->which || !e->wanted ||
        !e->bad.row || !e->first_bad || !e->host)
        return nb_fail_nomem(err, "step buffers", host * sizeof *e->host);
    nb_status s = e->x->ops->tensor_new(e->x, false, LOGIT_ROWS, e->m->vocab, &e->logits, err);
    if (s != NB_OK) return s;
    const nb_work w = {.slots = e->m->experts_per_row,
                       .expert_n = e->m->expert_n,
                       .n_experts = e->m->n_experts,
                       .max_k = e->m->max_k,
                       /* a query sees at most its context, and compressed rows of it besides */
                       .max_context = 2 * e->opt.max_context + 1};
    return e->x->ops->ready(e->x, &w, err);
}

nb_status nb_engine_new(const char *path, const nb_engine_options *opt, const nb_sink *sink, nb_engine **out,
                        nb_error *err)
{
    nb_status s;
    nb_engine *e = calloc(1, sizeof *e);
    if (!e) return nb_fail_nomem(err, "the engine", sizeof *e);
    e->opt = *opt;
    if ((s = nb_pool_new(opt->threads, &e->pool, err))) goto out;
    e->opt.threads = nb_pool_threads(e->pool);
    const size_t cpus = nb_pool_cpus(e->pool);
    if (e->opt.threads > cpus)
        nb_log(sink, NB_LOG_WARN,
               "%zu threads share %zu CPU%s and wait for each other in every operator, which may make a "
               "step ten times slower: --threads %zu at most",
               e->opt.threads, cpus, cpus == 1 ? "" : "s", cpus);
    if ((s = nb_cpu_exec_new(opt->kernels, e->pool, opt->max_rows, &e->x, err))) goto out;
    e->x->arith = opt->arith;
    e->x->act_bf16 = opt->act_bf16;
    e->x->quant_bf16 = opt->quant_bf16;
    if ((s = nb_model_load(path, e->x, opt->load, sink, &e->m, err))) goto out;
    e->opt.load = NULL; /* the caller's, and used up */
    int64_t longest;
    if ((s = nb_config_int(&e->m->cfg, "max_position_embeddings", -1, 1, INT32_MAX, &longest, err))) goto out;
    if (!e->opt.max_context) {
        e->opt.max_context = (size_t)longest;
        if (opt->context_cap && e->opt.max_context > opt->context_cap) e->opt.max_context = opt->context_cap;
    }
    if (e->opt.max_context > (size_t)longest) {
        s = nb_fail(err, NB_ERR_LIMIT,
                    "a context of %zu tokens is more than the model's max_position_embeddings %lld",
                    e->opt.max_context, (long long)longest);
        nb_error_at(err, e->m->cfg.file, NULL, -1);
        nb_error_remedy(err,
                        "ask for fewer tokens: --max-model-len, shorter id lists, eval's --window, bench's "
                        "--prompt and --tokens");
        goto out;
    }
    const nb_pages_options pages = {.max_seqs = e->opt.max_seqs,
                                    .max_context = e->opt.max_context,
                                    .max_rows = e->opt.max_rows,
                                    .blocks = e->opt.kv_blocks,
                                    .prefix_cache = e->opt.prefix_cache};
    s = nb_pages_new(e->m->streams, e->m->n_streams, &pages, &e->pages, err);
    if (s == NB_ERR_NOMEM) nb_error_remedy(err, "free memory, or choose a smaller --max-model-len");
    if (s != NB_OK) goto out;
    e->opt.kv_blocks = nb_pages_blocks(e->pages);
    s = take_memory(e, err);
out:
    if (s == NB_OK)
        *out = e;
    else
        nb_engine_free(e);
    return s;
}

void nb_engine_free(nb_engine *e)
{
    if (!e) return;
    if (e->x) e->x->ops->tensor_free(e->logits);
    nb_model_free(e->m);
    nb_pages_free(e->pages);
    nb_cpu_exec_free(e->x);
    nb_pool_free(e->pool);
    free(e->seqs);
    free(e->seq);
    free(e->pos);
    free(e->token);
    free(e->known);
    free(e->at);
    free(e->which);
    free(e->wanted);
    free(e->bad.row);
    free(e->first_bad);
    free(e->host);
    free(e);
}

const nb_model *nb_engine_model(const nb_engine *e)
{
    return e->m;
}

const nb_engine_options *nb_engine_limits(const nb_engine *e)
{
    return &e->opt;
}

uint64_t nb_engine_kv_bytes(const nb_engine *e)
{
    return nb_pages_bytes(e->pages);
}

nb_pool *nb_engine_pool(nb_engine *e)
{
    return e->pool;
}

nb_pages *nb_engine_pages(nb_engine *e)
{
    return e->pages;
}

nb_status nb_seq_open(nb_engine *e, uint32_t *seq, nb_error *err)
{
    for (size_t i = 0; i < e->opt.max_seqs; i++) {
        if (e->seqs[i].open) continue;
        e->seqs[i] = (sequence){.open = true};
        *seq = (uint32_t)i;
        return NB_OK;
    }
    return nb_fail(err, NB_ERR_LIMIT, "all %zu sequences are in use", e->opt.max_seqs);
}

nb_status nb_seq_start(nb_engine *e, uint32_t seq, size_t cached, nb_error *err)
{
    if (seq >= e->opt.max_seqs || cached > nb_pages_held(e->pages, seq) * NB_BLOCK)
        return nb_fail(err, NB_ERR_ARGUMENT, "slot %u of %zu with %zu tokens", seq, e->opt.max_seqs, cached);
    e->seqs[seq] = (sequence){.open = true, .committed = cached};
    return NB_OK;
}

void nb_seq_close(nb_engine *e, uint32_t seq)
{
    nb_pages_clear(e->pages, seq);
    e->seqs[seq] = (sequence){0};
}

size_t nb_seq_length(const nb_engine *e, uint32_t seq)
{
    return e->seqs[seq].committed;
}

void nb_seq_commit(nb_engine *e, uint32_t seq, size_t n)
{
    sequence *s = &e->seqs[seq];
    s->committed += n < s->pending ? n : s->pending;
    s->pending = 0;
    nb_pages_trim(e->pages, seq, s->committed);
}

/* Tokens that the part's sequence is known to have. */
static size_t known_of(const nb_engine *e, const nb_step_part *p)
{
    const size_t upto = e->seqs[p->seq].committed + p->n;
    return p->known > upto ? p->known : upto;
}

static bool turned_by(const nb_engine *e, const nb_step_part *p)
{
    return e->m->turns_at && known_of(e, p) > e->m->turns_at;
}

/* Checks the parts and lays their rows out. Nothing has been changed when it fails. */
static nb_status lay_out(nb_engine *e, const nb_step_part *parts, size_t n, size_t *rows, nb_error *err)
{
    size_t r = 0;
    e->step++;
    for (size_t p = 0; p < n; p++) {
        sequence *s = &e->seqs[parts[p].seq];
        if (s->step == e->step)
            return nb_fail(err, NB_ERR_ARGUMENT, "sequence %u twice in one step", parts[p].seq);
        s->step = e->step;
        if (parts[p].n > e->opt.max_rows - r)
            return nb_fail(err, NB_ERR_ARGUMENT, "a step of more than %zu rows", e->opt.max_rows);
        if (parts[p].n > e->opt.max_context - s->committed) {
            nb_fail(err, NB_ERR_LIMIT, "the sequence would have %zu tokens, more than the context of %zu",
                    s->committed + parts[p].n, e->opt.max_context);
            nb_error_remedy(err, "shorten the prompt or raise --max-model-len");
            return NB_ERR_LIMIT;
        }
        if (s->committed && turned_by(e, &parts[p]) != s->turned)
            return nb_fail(
                err, NB_ERR_ARGUMENT,
                "the sequence has grown beyond %zu tokens, and its rows are those of a shorter one",
                e->m->turns_at);
        for (size_t i = 0; i < parts[p].n; i++, r++) {
            if (parts[p].tokens[i] >= e->m->vocab) {
                nb_fail(err, NB_ERR_ARGUMENT, "token id %u is outside the vocabulary of %zu",
                        parts[p].tokens[i], e->m->vocab);
                nb_error_remedy(
                    err, "the tokenizer and the weights belong to different models, or an id list is wrong");
                return NB_ERR_ARGUMENT;
            }
            e->seq[r] = parts[p].seq;
            e->pos[r] = (uint32_t)(s->committed + i);
            e->token[r] = parts[p].tokens[i];
            e->known[r] = (uint32_t)known_of(e, &parts[p]);
            e->at[r] = (nb_logit_row){(uint32_t)p, (uint32_t)i};
        }
    }
    *rows = r;
    return NB_OK;
}

static void emit_hidden(nb_engine *e, int layer, size_t rows, const nb_step_out *out)
{
    const nb_tensor *h = e->m->fwd->hidden(e->m);
    for (size_t r = 0; r < rows; r++) {
        e->x->ops->tensor_read(e->x, h, r, 1, e->host);
        out->hidden(out->ctx, layer, e->at[r].part, e->at[r].row, e->host);
    }
}

/* After the last layer: which parts have a row that is not finite, and which is the first of each. */
static void find_bad(nb_engine *e)
{
    e->x->ops->finite(e->x, e->m->fwd->hidden(e->m), 0, e->rows, e->bad.row);
    for (size_t p = 0; p < e->n_parts; p++) e->first_bad[p] = e->parts[p].n;
    for (size_t r = e->rows; r-- > 0;)
        if (e->bad.row[r]) e->first_bad[e->at[r].part] = e->at[r].row;
}

size_t nb_step_bad(const nb_engine *e, size_t part)
{
    return e->first_bad[part];
}

static void emit_logits(nb_engine *e, const nb_step_out *out)
{
    size_t n = 0;
    for (size_t r = 0; r < e->rows; r++) {
        const nb_logit_row at = e->at[r];
        const nb_step_part *p = &e->parts[at.part];
        if (p->no_logits || (!p->all_logits && at.row + 1 != p->n)) continue;
        if (out->check && at.row >= e->first_bad[at.part]) continue;
        e->wanted[n] = at;
        e->which[n++] = (uint32_t)r;
    }
    for (size_t i = 0; i < n; i += LOGIT_ROWS) {
        size_t tile = n - i < LOGIT_ROWS ? n - i : LOGIT_ROWS;
        const nb_logit_row *at = e->wanted + i;
        e->m->fwd->head(e->m, e->which + i, tile, e->logits);
        if (e->x->err.status) return;
        e->x->ops->tensor_read(e->x, e->logits, 0, tile, e->host);
        if (out->tile) out->tile(out->ctx, at, tile, e->host);
        for (size_t j = 0; out->logits && j < tile; j++)
            out->logits(out->ctx, at[j].part, at[j].row, e->host + j * e->m->vocab);
    }
}

/* After a failure nothing of the step stays. */
static nb_status give_up(nb_engine *e, nb_error *err)
{
    if (!e->x->err.status) return NB_OK;
    for (size_t p = 0; p < e->n_parts; p++) nb_seq_commit(e, e->parts[p].seq, 0);
    if (err) *err = e->x->err;
    return e->x->err.status;
}

/* Pages for the step's rows, for all parts or for none. */
static nb_status make_pages(nb_engine *e, const nb_step_part *parts, size_t n, nb_error *err)
{
    for (size_t p = 0; p < n; p++) {
        const sequence *s = &e->seqs[parts[p].seq];
        if (nb_pages_grow(e->pages, parts[p].seq, s->committed, s->committed + parts[p].n)) continue;
        while (p-- > 0) nb_pages_trim(e->pages, parts[p].seq, e->seqs[parts[p].seq].committed);
        nb_fail(err, NB_ERR_LIMIT, "no KV memory is free for the step's rows: %zu blocks of %d tokens in all",
                e->opt.kv_blocks, NB_BLOCK);
        nb_error_remedy(err, "run fewer sequences at once, or give the cache more memory");
        return NB_ERR_LIMIT;
    }
    for (size_t p = 0; p < n; p++) {
        e->seqs[parts[p].seq].turned = turned_by(e, &parts[p]);
        e->seqs[parts[p].seq].pending = parts[p].n;
    }
    return NB_OK;
}

nb_status nb_step_begin(nb_engine *e, const nb_step_part *parts, size_t n, nb_error *err)
{
    nb_status s = lay_out(e, parts, n, &e->rows, err);
    if (s != NB_OK || !e->rows) return s;
    if ((s = make_pages(e, parts, n, err))) return s;
    nb_exec *x = e->x;
    e->parts = parts;
    e->n_parts = n;
    x->rows = (nb_rows){e->rows, e->seq, e->pos, e->token, e->known};
    x->kv = nb_pages_view(e->pages);
    x->err.status = NB_OK;
    x->layer = -1;
    e->m->fwd->begin(e->m);
    return give_up(e, err);
}

nb_status nb_step_layer(nb_engine *e, int l, const nb_step_out *out, nb_error *err)
{
    e->x->layer = l;
    const nb_slot *w = nb_model_acquire(e->m, l, &e->x->err);
    if (w) e->m->fwd->layer(e->m, l, w);
    if (out && out->hidden && !e->x->err.status) emit_hidden(e, l, e->rows, out);
    return give_up(e, err);
}

void nb_step_release(nb_engine *e, int l)
{
    nb_model_release(e->m, l);
}

nb_status nb_step_end(nb_engine *e, const nb_step_out *out, nb_error *err)
{
    e->x->layer = (int)e->m->cfg.n_layers;
    e->m->fwd->end(e->m);
    if (out && out->check && !e->x->err.status) find_bad(e);
    if (out && (out->logits || out->tile)) emit_logits(e, out);
    return give_up(e, err);
}

nb_status nb_engine_step(nb_engine *e, const nb_step_part *parts, size_t n, const nb_step_out *out,
                         nb_error *err)
{
    if (out && out->check) {
        memset(e->bad.row, 0, e->opt.max_rows);
        e->bad.op = NULL;
        e->x->bad = &e->bad;
    }
    nb_status s = nb_step_begin(e, parts, n, err);
    for (int l = 0; s == NB_OK && e->rows && l < e->m->cfg.n_layers; l++) {
        s = nb_step_layer(e, l, out, err);
        nb_step_release(e, l);
    }
    if (s == NB_OK && e->rows) s = nb_step_end(e, out, err);
    e->x->bad = NULL;
    return s;
}
