/*
 * The sampler: masks and penalties, then greedy or one draw. Rows without masks and penalties are read in place; else they are copied,
 * and only the tokens concerned change. A row is never sorted: top-k is a heap of k, top-p finds by a histogram of probabilities
 * where the cut lies and puts only that bin in order.
 */
#include "engine/sampler.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/sample_work.h"

/* A token of prompt or output. */
typedef struct seen {
    uint32_t id, output; /* how often in the output */
} seen;

enum { FIRST_SEEN = 64 }; /* tokens that there is room for at first */

struct nb_sampler {
    nb_sample_params p; /* its arrays are the ones below */
    size_t vocab, output;
    uint32_t *stop_ids, *bias_ids, *allowed, *bad;
    float *bias;
    size_t *bad_len;
    uint32_t *tail; /* [tail_cap] the last output tokens, oldest first: what a bad word can begin with */
    size_t n_tail, tail_cap;
    bool penalties;
    seen *seen; /* [seen_cap] each token once */
    size_t n_seen, seen_cap;
    uint32_t *slot; /* [2 seen_cap] a hash table of 1 + where in seen; 0: nothing */
};

nb_status nb_sample_work_new(size_t vocab, nb_sample_work **out, nb_error *err)
{
    size_t chunks = nb_ceil_div(vocab, NB_ROW_CHUNK);
    nb_sample_work *w = calloc(1, sizeof *w);
    if (!w) return nb_fail_nomem(err, "a sampler", sizeof *w);
    w->vocab = vocab;
    w->row = calloc(vocab, sizeof *w->row);
    w->q = calloc(vocab, sizeof *w->q);
    w->id = calloc(vocab, sizeof *w->id);
    w->best = calloc(vocab, sizeof *w->best);
    w->peak = calloc(chunks, sizeof *w->peak);
    w->sum = calloc(chunks, sizeof *w->sum);
    if (!w->row || !w->q || !w->id || !w->best || !w->peak || !w->sum) {
        nb_sample_work_free(w);
        return nb_fail_nomem(err, "a sampler", 4 * vocab * sizeof *w->row);
    }
    *out = w;
    return NB_OK;
}

void nb_sample_work_free(nb_sample_work *w)
{
    if (!w) return;
    free(w->row);
    free(w->q);
    free(w->id);
    free(w->best);
    free(w->peak);
    free(w->sum);
    free(w);
}

/* A copy of n items; NULL when there are none, or memory is out: then *ok is false. */
static void *copy_of(const void *from, size_t n, size_t size, bool *ok)
{
    void *p = n ? calloc(n, size) : NULL;
    if (p)
        memcpy(p, from, n * size);
    else if (n)
        *ok = false;
    return p;
}

/* The slot that has id, or the one that it would get. seen_cap is a power of two, so half of them are free, and steps of 1, 2, 3, …
 * come by each. With steps of 1 alone the ids of a prompt could be chosen so that they fill one row, which every further one walks. */
static uint32_t *slot_of(const nb_sampler *s, uint32_t id)
{
    const size_t mask = 2 * s->seen_cap - 1;
    size_t i = (id * UINT64_C(0x9E3779B97F4A7C15) >> 32) & mask;
    for (size_t step = 1; s->slot[i] && s->seen[s->slot[i] - 1].id != id; step++) i = (i + step) & mask;
    return &s->slot[i];
}

static bool make_room(nb_sampler *s)
{
    if (s->slot && s->n_seen < s->seen_cap) return true;
    const size_t cap =
        s->seen_cap ? 2 * s->seen_cap : FIRST_SEEN; /* at most twice the vocabulary, of uint32_t ids */
    uint32_t *slot = calloc(2 * cap, sizeof *slot);
    seen *p = slot ? realloc(s->seen, cap * sizeof *p) : NULL;
    if (!p) {
        free(slot);
        return false;
    }
    free(s->slot);
    s->slot = slot;
    s->seen = p;
    s->seen_cap = cap;
    for (size_t i = 0; i < s->n_seen; i++) *slot_of(s, p[i].id) = (uint32_t)i + 1;
    return true;
}

/* The entry of id, which is made if there is none. NULL: no memory. */
static seen *see(nb_sampler *s, uint32_t id)
{
    if (!s->slot && !make_room(s)) return NULL;
    uint32_t *slot = slot_of(s, id);
    if (!*slot) {
        if (!make_room(s)) return NULL;
        slot = slot_of(s, id);
        s->seen[s->n_seen++] = (seen){.id = id};
        *slot = (uint32_t)s->n_seen;
    }
    return &s->seen[*slot - 1];
}

nb_status nb_sampler_new(const nb_sample_params *p, size_t vocab, const uint32_t *prompt, size_t n_prompt,
                         nb_sampler **out, nb_error *err)
{
    size_t n_bad = 0, longest = 1;
    for (size_t i = 0; i < p->n_bad; i++) {
        n_bad += p->bad_len[i];
        if (p->bad_len[i] > longest) longest = p->bad_len[i];
    }
    nb_sampler *s = calloc(1, sizeof *s);
    if (!s) return nb_fail_nomem(err, "a sampler", sizeof *s);
    s->p = *p;
    s->vocab = vocab;
    s->tail_cap = longest - 1;
    if (p->temperature > 0 && p->temperature < 0.01f) s->p.temperature = 0.01f;
    bool ok = true;
    s->stop_ids = copy_of(p->stop_ids, p->n_stop_ids, sizeof *p->stop_ids, &ok);
    s->bias_ids = copy_of(p->bias_ids, p->n_bias, sizeof *p->bias_ids, &ok);
    s->bias = copy_of(p->bias, p->n_bias, sizeof *p->bias, &ok);
    s->allowed = copy_of(p->allowed, p->allowed ? p->n_allowed : 0, sizeof *p->allowed, &ok);
    s->bad = copy_of(p->bad, n_bad, sizeof *p->bad, &ok);
    s->bad_len = copy_of(p->bad_len, p->n_bad, sizeof *p->bad_len, &ok);
    if (ok && s->tail_cap) ok = (s->tail = calloc(s->tail_cap, sizeof *s->tail));
    s->penalties = nb_sample_penalises(p);
    for (size_t i = 0; ok && s->penalties && i < n_prompt; i++) ok = see(s, prompt[i]);
    if (!ok) {
        const size_t bytes =
            (n_bad + p->n_allowed + 2 * p->n_bias + p->n_stop_ids + n_prompt) * sizeof *s->bad;
        nb_sampler_free(s);
        return nb_fail_nomem(err, "a sequence's sampler", bytes);
    }
    *out = s;
    return NB_OK;
}

void nb_sampler_free(nb_sampler *s)
{
    if (!s) return;
    free(s->stop_ids);
    free(s->bias_ids);
    free(s->bias);
    free(s->allowed);
    free(s->bad);
    free(s->bad_len);
    free(s->tail);
    free(s->seen);
    free(s->slot);
    free(s);
}

nb_status nb_sampler_push(nb_sampler *s, uint32_t id, nb_error *err)
{
    if (s->penalties) {
        seen *t = see(s, id);
        if (!t) return nb_fail_nomem(err, "the tokens of an answer", 2 * s->seen_cap * sizeof *t);
        t->output++;
    }
    s->output++;
    if (!s->tail_cap) return NB_OK;
    if (s->n_tail == s->tail_cap) {
        s->n_tail--;
        memmove(s->tail, s->tail + 1, s->n_tail * sizeof *s->tail);
    }
    s->tail[s->n_tail++] = id;
    return NB_OK;
}

size_t nb_sampler_output(const nb_sampler *s)
{
    return s->output;
}

static bool is_stop(const nb_sampler *s, uint32_t id)
{
    for (size_t i = 0; i < s->p.n_stop_ids; i++)
        if (s->stop_ids[i] == id) return true;
    return false;
}

static bool changes_logits(const nb_sampler *s)
{
    return s->allowed || s->p.n_bad || s->output < s->p.min_tokens || s->p.n_bias || s->penalties;
}

/* Masks the last token of each bad word whose other tokens are the newest of the output. */
static void mask_bad_words(const nb_sampler *s, float *row)
{
    const uint32_t *word = s->bad;
    for (size_t i = 0; i < s->p.n_bad; word += s->bad_len[i++]) {
        size_t prefix = s->bad_len[i] - 1;
        if (prefix > s->n_tail) continue;
        if (!prefix || memcmp(s->tail + s->n_tail - prefix, word, prefix * sizeof *word) == 0)
            row[word[prefix]] = -INFINITY;
    }
}

/* vllm/model_executor/layers/utils.py, apply_penalties: repetition first, the others from its result. */
static void penalise(const nb_sampler *s, float *row)
{
    float rep = s->p.repetition_penalty;
    for (size_t i = 0; i < s->n_seen; i++) {
        const uint32_t id = s->seen[i].id, n = s->seen[i].output;
        float l = row[id];
        /* a tiny penalty makes a logit huge, but never the infinity that stands for a broken model */
        if (rep != 1) l = fminf(l > 0 ? l / rep : l * rep, FLT_MAX);
        l -= s->p.frequency_penalty * (float)n;
        if (n) l -= s->p.presence_penalty;
        row[id] = l;
    }
}

static void change_logits(const nb_sampler *s, const float *logits, float *row)
{
    if (s->allowed) {
        for (size_t i = 0; i < s->vocab; i++) row[i] = -INFINITY;
        for (size_t i = 0; i < s->p.n_allowed; i++) row[s->allowed[i]] = logits[s->allowed[i]];
    } else {
        memcpy(row, logits, s->vocab * sizeof *row);
    }
    mask_bad_words(s, row);
    if (s->output < s->p.min_tokens)
        for (size_t i = 0; i < s->p.n_stop_ids; i++)
            if (s->stop_ids[i] < s->vocab) row[s->stop_ids[i]] = -INFINITY;
    for (size_t i = 0; i < s->p.n_bias; i++) row[s->bias_ids[i]] += fminf(fmaxf(s->bias[i], -100), 100);
    if (s->penalties) penalise(s, row);
}

/* Candidates: w->q [n], in the order of their tokens. Their tokens are w->id [n], or all of the vocabulary when ids is false. */
typedef struct candidates {
    size_t n;
    bool ids;
    double mass; /* the sum of q */
} candidates;

/* The k best of the row and those that equal the k-th, their logits in w->q. */
static candidates keep_top_k(nb_sample_work *w, const float *row, size_t k)
{
    size_t n = 0;
    nb_row_select(row, w->vocab, w->peak, k, w->best);
    float least = row[w->best[0]];
    for (size_t i = 0; i < w->vocab; i += NB_ROW_CHUNK) {
        if (w->peak[i / NB_ROW_CHUNK] < least) continue;
        size_t end = w->vocab - i < NB_ROW_CHUNK ? w->vocab : i + NB_ROW_CHUNK;
        for (size_t j = i; j < end; j++) {
            if (row[j] < least) continue;
            w->q[n] = row[j];
            w->id[n++] = (uint32_t)j;
        }
    }
    return (candidates){.n = n, .ids = true};
}

/* Leaves those that are not less likely than `least`, and of those that equal it the first ones up to index `last`. */
static void drop_below(nb_sample_work *w, candidates *c, float least, uint32_t last)
{
    size_t n = 0;
    double mass = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (w->q[i] < least || (w->q[i] == least && i > last)) continue;
        if (n % NB_ROW_CHUNK == 0) w->sum[n / NB_ROW_CHUNK] = 0;
        w->sum[n / NB_ROW_CHUNK] += w->q[i];
        mass += w->q[i];
        w->id[n] = c->ids ? w->id[i] : (uint32_t)i;
        w->q[n++] = w->q[i];
    }
    *c = (candidates){.n = n, .ids = true, .mass = mass};
}

/* q in [0, 1], in the order of q. */
static size_t bin_of(float q)
{
    uint32_t bits;
    memcpy(&bits, &q, sizeof bits);
    return bits >> 19;
}

/* Leaves the fewest most probable whose mass reaches top_p of all. */
static void keep_top_p(nb_sample_work *w, candidates *c, float top_p)
{
    memset(w->mass, 0, sizeof w->mass);
    for (size_t i = 0; i < c->n; i++) w->mass[bin_of(w->q[i])] += w->q[i];
    double all = 0, have = 0;
    for (size_t b = 0; b < NB_MASS_BINS; b++) all += w->mass[b];
    size_t bin = NB_MASS_BINS - 1, n = 0;
    while (bin && have + w->mass[bin] < top_p * all) have += w->mass[bin--];
    /* the cut is inside this bin: take its members in order */
    for (size_t i = 0; i < c->n; i++)
        if (bin_of(w->q[i]) == bin) w->best[n++] = (uint32_t)i;
    nb_row_sort(w->q, w->best, n);
    uint32_t last = 0;
    for (size_t i = 0; i < n; i++) {
        last = w->best[i];
        have += w->q[last];
        if (have >= top_p * all) break;
    }
    drop_below(w, c, w->q[last], last);
}

/* A uniform number in [0, 1) for one draw: splitmix64 of (seed, step). */
static double uniform(uint64_t seed, uint64_t step)
{
    uint64_t z = seed + (step + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* The candidate at u in [0, 1) of the mass: first its chunk, then itself. Sums are rounded: what falls off an end gets the last one
 * before it that can be drawn at all. */
static uint32_t draw(const nb_sample_work *w, const candidates *c, double u)
{
    size_t chunks = nb_ceil_div(c->n, NB_ROW_CHUNK), chunk = 0;
    u *= c->mass;
    for (size_t k = 0; k < chunks; k++) {
        if (!(w->sum[k] > 0)) continue;
        chunk = k;
        if (u < w->sum[k]) break;
        u -= w->sum[k];
    }
    size_t i = chunk * NB_ROW_CHUNK, end = c->n - i < NB_ROW_CHUNK ? c->n : i + NB_ROW_CHUNK, at = i;
    for (; i < end; i++) {
        if (!(w->q[i] > 0)) continue;
        at = i;
        if (u < w->q[i]) break;
        u -= w->q[i];
    }
    return c->ids ? w->id[at] : (uint32_t)at;
}

static uint32_t sample(const nb_sampler *s, nb_sample_work *w, const float *row, uint32_t best)
{
    const nb_sample_params *p = &s->p;
    candidates c = {.n = w->vocab};
    if (p->top_k && p->top_k < w->vocab) c = keep_top_k(w, row, p->top_k);
    c.mass = nb_row_exp(c.ids ? w->q : row, c.n, row[best], p->temperature, w->q, w->sum);
    if (p->min_p > 0) drop_below(w, &c, p->min_p, UINT32_MAX);
    if (p->top_p < 1) keep_top_p(w, &c, p->top_p);
    return draw(w, &c, uniform(p->seed, s->output));
}

nb_status nb_sampler_choose(const nb_sampler *s, nb_sample_work *w, const float *logits, nb_sampled *out,
                            nb_logprob *top, size_t cap, size_t *n_top, nb_error *err)
{
    uint32_t best;
    double norm = 0;
    const float *row = logits;
    bool logprobs = s->p.logprobs != -1;
    *n_top = 0;
    nb_status st = nb_sample_scan(w, logits, &best, err);
    if (st != NB_OK) return st;
    if (logprobs) {
        norm = nb_logprobs_norm(w, logits, best);
        *n_top = nb_logprobs_top(w, logits, norm, s->p.logprobs, top, cap);
    }
    if (changes_logits(s)) {
        change_logits(s, logits, w->row);
        row = w->row;
        nb_row_scan(row, w->vocab, w->peak, &best);
        if (row[best] == -INFINITY)
            return nb_fail(err, NB_ERR_ARGUMENT,
                           "allowed_token_ids, bad_words and min_tokens leave no token to choose from");
    }
    uint32_t id = s->p.temperature == 0 ? best : sample(s, w, row, best);
    *out = (nb_sampled){.chosen.id = id, .stop = s->output >= s->p.min_tokens && is_stop(s, id)};
    if (logprobs) out->chosen = nb_logprobs_one(w, logits, norm, id);
    return NB_OK;
}

uint32_t nb_argmax(const float *v, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (v[i] > v[best]) best = i;
    return (uint32_t)best;
}
