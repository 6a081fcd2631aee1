/*
 * Attention. Queries that see the same rows are taken together, so that a row of the cache is read once for all heads of a group and,
 * in a prefill, for several tokens. Two ways to spread the work, with the same operations for each query:
 *
 *     many rows   a unit is a block of tokens by one KV head
 *     few rows    a long context is many rows for few queries: scores in units of rows, softmax in units of heads, output in units of
 *                 columns, so that all threads read the cache
 */
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/exec.h"

enum {
    MAX_QUERIES = 32, /* taken together */
    CHUNK = 64        /* rows that a unit of scores is */
};

typedef struct attend_job {
    nb_exec *x;
    const nb_attend_call *c;
    size_t per_kv;            /* query heads of a KV head */
    nb_head_parts parts;      /* many rows: of a KV head's query heads */
    size_t block, blocks;     /* many rows: tokens of a unit, units of a part */
    size_t longest, chunks;   /* few rows: rows of the longest list, and chunks of them */
    size_t columns, n_slices; /* few rows: columns of a unit of output, units of a head */
} attend_job;

/* The rows of the cache that tokens t0 … see together, in order: those of the sequence from `from` on, then those of the
 * compressed stream, or the selected ones. */
typedef struct row_list {
    uint32_t seq;
    size_t from, dense, n; /* dense: how many of the n are the sequence's own */
    size_t k_stream, v_stream;
    const int32_t *select; /* of the others; NULL: all in order */
} row_list;

static size_t first_seen(const nb_attend_call *c, size_t pos)
{
    return c->window && pos + 1 > c->window ? pos + 1 - c->window : 0;
}

/* Tokens [t0, t1) of one sequence; one token only where there are compressed or selected rows. */
static row_list list_of(const attend_job *j, size_t t0, size_t t1)
{
    const nb_attend_call *c = j->c;
    const nb_rows *rows = &j->x->rows;
    size_t last = rows->pos[t1 - 1];
    row_list l = {.seq = rows->seq[t0], .from = first_seen(c, rows->pos[t0])};
    if (!c->select || c->compressed) l.dense = last + 1 - l.from;
    l.k_stream = c->compressed ? c->comp_stream : c->k_stream;
    l.v_stream = c->compressed ? c->comp_stream : c->v_stream;
    l.n = l.dense;
    if (c->select) {
        l.select = c->select->i + t0 * c->select->cols;
        for (size_t i = 0; i < c->select->cols && l.select[i] >= 0; i++) l.n++;
    } else if (c->compressed) {
        l.n += nb_complete_rows(last, j->x->kv->streams[c->comp_stream].decl.tokens_per_row);
    }
    return l;
}

/* Where rows [i0, i1) of the list are, for one KV head. */
static void find_rows(const attend_job *j, const row_list *l, size_t kv, size_t i0, size_t i1,
                      const float **k_rows, const float **v_rows)
{
    const nb_attend_call *c = j->c;
    const nb_kv_stream *streams = j->x->kv->streams;
    size_t i = i0;
    for (; i < i1 && i < l->dense; i++) {
        *k_rows++ = nb_kv_row(&streams[c->k_stream], l->seq, l->from + i) + kv * c->dk;
        *v_rows++ = nb_kv_row(&streams[c->v_stream], l->seq, l->from + i) + kv * c->dv;
    }
    for (; i < i1; i++) {
        size_t row = l->select ? (size_t)l->select[i - l->dense] : i - l->dense;
        *k_rows++ = nb_kv_row(&streams[l->k_stream], l->seq, row) + kv * c->dk;
        *v_rows++ = nb_kv_row(&streams[l->v_stream], l->seq, row) + kv * c->dv;
    }
}

static const float *sink_of(const nb_attend_call *c, size_t head)
{
    return c->sink ? c->sink->f + head : NULL;
}

/* n queries from number `first` of a unit's on: number i is head h0 + i % heads of token t0 + i / heads. */
typedef struct unit {
    size_t t0, h0, heads;
    row_list list;
    const float **k_rows, **v_rows;
    float *scores;
} unit;

static void attend_some(const attend_job *j, const unit *u, size_t first, size_t n)
{
    const nb_attend_call *c = j->c;
    const nb_kernels *k = nb_cpu_of(j->x)->k;
    nb_query q[MAX_QUERIES];
    nb_attend_args a = {q, n, u->k_rows, u->v_rows, c->dk, c->dv, c->scale};
    size_t begin = SIZE_MAX, end = 0;
    for (size_t i = 0; i < n; i++) {
        size_t t = u->t0 + (first + i) / u->heads, h = u->h0 + (first + i) % u->heads;
        size_t pos = j->x->rows.pos[t];
        q[i] = (nb_query){c->q->f + t * c->q->cols + h * c->dk, c->out->f + t * c->out->cols + h * c->dv,
                          u->scores + i * u->list.n, 0, u->list.n};
        if (!c->select && !c->compressed) { /* of a block's rows each token sees its own part */
            q[i].begin = first_seen(c, pos) - u->list.from;
            q[i].end = pos + 1 - u->list.from;
        }
        if (q[i].begin < begin) begin = q[i].begin;
        if (q[i].end > end) end = q[i].end;
    }
    k->scores(&a, begin, end);
    for (size_t i = 0; i < n; i++)
        k->softmax(q[i].scores + q[i].begin, q[i].end - q[i].begin,
                   sink_of(c, u->h0 + (first + i) % u->heads));
    k->weigh(&a, 0, c->dv);
    for (size_t i = 0; i < n; i++) nb_cpu_round(j->x, q[i].out, c->dv);
}

/* Heads [h0, h1) of one KV head, tokens [t0, t1) of one sequence. */
static void attend_tokens(const attend_job *j, size_t thread, size_t kv, size_t h0, size_t h1, size_t t0,
                          size_t t1)
{
    nb_cpu_exec *cpu = nb_cpu_of(j->x);
    unit u = {.t0 = t0, .h0 = h0, .heads = h1 - h0, .list = list_of(j, t0, t1)};
    u.k_rows = cpu->ptrs + thread * 2 * cpu->max_context;
    u.v_rows = u.k_rows + cpu->max_context;
    u.scores = cpu->scores + thread * cpu->score_room;
    find_rows(j, &u.list, kv, 0, u.list.n, u.k_rows, u.v_rows);
    size_t most = u.list.n ? cpu->score_room / u.list.n : MAX_QUERIES, all = (t1 - t0) * u.heads;
    if (most > MAX_QUERIES) most = MAX_QUERIES;
    for (size_t i = 0; i < all; i += most) attend_some(j, &u, i, all - i < most ? all - i : most);
}

static void attend_blocks(void *ctx, size_t thread, size_t begin, size_t end)
{
    const attend_job *j = ctx;
    const nb_rows *rows = &j->x->rows;
    for (size_t item = begin; item < end; item++) {
        /* later tokens see more: a thread gets blocks from both ends in turn */
        size_t b = item % j->blocks;
        b = b % 2 ? j->blocks - 1 - b / 2 : b / 2;
        size_t kv = item / j->blocks / j->parts.n, h0, h1;
        nb_heads_of_part(&j->parts, kv, item / j->blocks % j->parts.n, &h0, &h1);
        size_t t1 = (b + 1) * j->block < rows->n ? (b + 1) * j->block : rows->n;
        for (size_t t = b * j->block, next; t < t1; t = next) {
            for (next = t + 1; next < t1 && rows->seq[next] == rows->seq[t];) next++;
            attend_tokens(j, thread, kv, h0, h1, t, next);
        }
    }
}

/* Few rows: the scores of token t's head h. */
static float *spread_row(const attend_job *j, size_t t, size_t h)
{
    return nb_cpu_of(j->x)->scores + (t * j->c->heads + h) * j->longest;
}

/* n queries of token t from head h on, whose scores begin at row r of the list. */
static void spread_queries(const attend_job *j, size_t t, size_t h, size_t n, size_t r, size_t end,
                           nb_query *q)
{
    const nb_attend_call *c = j->c;
    for (size_t i = 0; i < n; i++)
        q[i] =
            (nb_query){c->q->f + t * c->q->cols + (h + i) * c->dk,
                       c->out->f + t * c->out->cols + (h + i) * c->dv, spread_row(j, t, h + i) + r, 0, end};
}

static void spread_scores(void *ctx, size_t thread, size_t begin, size_t end)
{
    const attend_job *j = ctx;
    const nb_attend_call *c = j->c;
    const float *k_rows[CHUNK], *v_rows[CHUNK];
    nb_query q[MAX_QUERIES];
    for (size_t item = begin; item < end; item++) {
        size_t r = item % j->chunks * CHUNK, kv = item / j->chunks % c->kv_heads,
               t = item / j->chunks / c->kv_heads;
        row_list l = list_of(j, t, t + 1);
        if (r >= l.n) continue;
        size_t n = l.n - r < CHUNK ? l.n - r : CHUNK;
        find_rows(j, &l, kv, r, r + n, k_rows, v_rows);
        for (size_t h = 0, some; h < j->per_kv; h += some) {
            some = j->per_kv - h < MAX_QUERIES ? j->per_kv - h : MAX_QUERIES;
            spread_queries(j, t, kv * j->per_kv + h, some, r, n, q);
            nb_attend_args a = {q, some, k_rows, v_rows, c->dk, c->dv, c->scale};
            nb_cpu_of(j->x)->k->scores(&a, 0, n);
        }
    }
}

static void spread_softmax(void *ctx, size_t thread, size_t begin, size_t end)
{
    const attend_job *j = ctx;
    for (size_t item = begin; item < end; item++) {
        size_t t = item / j->c->heads, h = item % j->c->heads;
        nb_cpu_of(j->x)->k->softmax(spread_row(j, t, h), list_of(j, t, t + 1).n, sink_of(j->c, h));
    }
}

static void spread_weigh(void *ctx, size_t thread, size_t begin, size_t end)
{
    const attend_job *j = ctx;
    const nb_attend_call *c = j->c;
    nb_cpu_exec *cpu = nb_cpu_of(j->x);
    const float **k_rows = cpu->ptrs + thread * 2 * cpu->max_context, **v_rows = k_rows + cpu->max_context;
    nb_query q[MAX_QUERIES];
    for (size_t item = begin; item < end; item++) {
        size_t c0 = item % j->n_slices * j->columns, kv = item / j->n_slices % c->kv_heads,
               t = item / j->n_slices / c->kv_heads;
        size_t c1 = c0 + j->columns < c->dv ? c0 + j->columns : c->dv;
        row_list l = list_of(j, t, t + 1);
        find_rows(j, &l, kv, 0, l.n, k_rows, v_rows);
        for (size_t h = 0, some; h < j->per_kv; h += some) {
            some = j->per_kv - h < MAX_QUERIES ? j->per_kv - h : MAX_QUERIES;
            spread_queries(j, t, kv * j->per_kv + h, some, 0, l.n, q);
            nb_attend_args a = {q, some, k_rows, v_rows, c->dk, c->dv, c->scale};
            cpu->k->weigh(&a, c0, c1);
            for (size_t i = 0; i < some; i++) nb_cpu_round(j->x, q[i].out + c0, c1 - c0);
        }
    }
}

/* Whether few rows with a long context are to be spread, and if so how. */
static bool spread(attend_job *j)
{
    nb_exec *x = j->x;
    const nb_attend_call *c = j->c;
    size_t threads = nb_pool_threads(x->pool), units = x->rows.n * c->kv_heads;
    if (threads == 1 || units >= 2 * threads) return false;
    size_t all = 0;
    for (size_t t = 0; t < x->rows.n; t++) {
        size_t n = list_of(j, t, t + 1).n;
        all += n;
        if (n > j->longest) j->longest = n;
    }
    if (all * c->kv_heads * c->dk < 65536) return false; /* not worth waking the threads three times */
    if (x->rows.n * c->heads * j->longest > threads * nb_cpu_of(x)->score_room) return false;
    j->chunks = nb_ceil_div(j->longest, CHUNK);
    j->columns = 64;
    while (j->columns > 16 && units * nb_ceil_div(c->dv, j->columns) < threads) j->columns /= 2;
    j->n_slices = nb_ceil_div(c->dv, j->columns);
    return true;
}

/* Blocks of as many tokens as fit MAX_QUERIES, but fewer where that left threads without work. */
static void plan_blocks(attend_job *j)
{
    const nb_attend_call *c = j->c;
    size_t rows = j->x->rows.n, threads = nb_pool_threads(j->x->pool);
    j->parts = nb_cpu_part_heads(j->per_kv, MAX_QUERIES, rows * c->kv_heads, threads);
    j->block = c->select || c->compressed ? 1 : MAX_QUERIES / j->parts.each;
    while (j->block > 1 && nb_ceil_div(rows, j->block) * c->kv_heads * j->parts.n < 4 * threads)
        j->block /= 2;
    j->blocks = nb_ceil_div(rows, j->block);
}

void nb_cpu_attend(nb_exec *x, const nb_attend_call *c)
{
    if (x->err.status) return;
    attend_job j = {.x = x, .c = c, .per_kv = c->heads / c->kv_heads};
    if (spread(&j)) {
        size_t units = x->rows.n * c->kv_heads;
        nb_pool_share(x->pool, units * j.chunks, nb_ceil_div(units * j.chunks, 8 * nb_pool_threads(x->pool)),
                      spread_scores, &j);
        nb_pool_run(x->pool, x->rows.n * c->heads, 1, spread_softmax, &j);
        nb_pool_run(x->pool, units * j.n_slices, 1, spread_weigh, &j);
    } else {
        plan_blocks(&j);
        nb_cpu_rows(x, j.blocks * c->kv_heads * j.parts.n, j.block * j.parts.each * c->dk * 64, attend_blocks,
                    &j);
    }
    nb_cpu_tell_of(x, "attend", c->out, x->rows.n, c->sink, NULL, NULL);
}
