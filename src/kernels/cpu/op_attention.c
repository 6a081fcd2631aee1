/*
 * Attention. Queries that see the same rows are taken together, so that a row of the cache is read once for all heads of a group and,
 * in a prefill, for several tokens. A query's rows are cut at fixed places into tiles; each tile gives the largest score, a sum of
 * weights and a weighted sum of values, and these are put together in order. So there are two ways to share the work, with the same
 * operations for each query:
 *
 *     many rows   a unit is a block of tokens by one KV head, tile after tile
 *     few rows    a long context is many rows for few queries: a unit is one tile of them, all KV heads of a tile one after another,
 *                 so that threads stream through the cache; what the tiles gave is put together afterwards
 */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/exec.h"

enum {
    MAX_QUERIES = 128, /* taken together */
    TILE = 256,        /* rows */
    SLICE = 256,       /* columns of the output at a time */
    PAD = 16,          /* floats between queries: 1 KB apart they would share few places of the cache */
    SPREAD = 8,        /* units a thread from which on tiles are not shared: a prefill's, a large batch's */
    FULL = 8,          /* queries that are worth a pass over their rows; where each thread has them, … */
    SHORT = 5          /* … tiles below which they are not shared: a window and what is selected */
};

typedef struct attend_job {
    nb_exec *x;
    const nb_attend_call *c;
    size_t per_kv;        /* query heads of a KV head */
    nb_head_parts parts;  /* of a KV head's query heads */
    size_t block, blocks; /* many rows: tokens of a unit, units of a part */
    size_t tiles;         /* few rows: of the longest list */
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

/* Tiles are cut at multiples of TILE of a stream's own rows, or of the selected ones, so that a row's tile is the same for all who see it. */
static size_t n_tiles(const row_list *l)
{
    size_t dense = l->dense ? (l->from + l->dense - 1) / TILE - l->from / TILE + 1 : 0;
    return dense + nb_ceil_div(l->n - l->dense, TILE);
}

/* Tile i of the list is its rows [*begin, *end). */
static void find_tile(const row_list *l, size_t i, size_t *begin, size_t *end)
{
    size_t offset = l->from % TILE, dense = l->dense ? (offset + l->dense - 1) / TILE + 1 : 0;
    if (i < dense) {
        *begin = i ? i * TILE - offset : 0;
        *end = (i + 1) * TILE - offset < l->dense ? (i + 1) * TILE - offset : l->dense;
    } else {
        *begin = l->dense + (i - dense) * TILE;
        *end = *begin + TILE < l->n ? *begin + TILE : l->n;
    }
}

/* Where a head's part of rows [row, row + n) is. */
static void find_rows(const nb_kv_stream *s, uint32_t seq, size_t row, size_t n, size_t head,
                      const float **rows)
{
    size_t step = s->decl.cols / nb_kv_heads(s);
    for (size_t i = 0; i < n;) {
        const float *p = nb_kv_head(s, seq, row + i, head);
        size_t page = NB_PAGE_ROWS - (row + i) % NB_PAGE_ROWS;
        for (; page && i < n; page--, i++, p += step) rows[i] = p;
    }
}

/* The same for rows [begin, end) of the list, which are one tile's, and one KV head; k: keys. */
static void find_list(const attend_job *j, const row_list *l, size_t kv, size_t begin, size_t end, bool k,
                      const float **rows)
{
    const nb_attend_call *c = j->c;
    const nb_kv_stream *streams = j->x->kv->streams;
    size_t n = end - begin;
    if (begin < l->dense) {
        find_rows(&streams[k ? c->k_stream : c->v_stream], l->seq, l->from + begin, n, kv, rows);
        return;
    }
    const nb_kv_stream *s = &streams[k ? l->k_stream : l->v_stream];
    if (!l->select)
        find_rows(s, l->seq, begin - l->dense, n, kv, rows);
    else
        for (size_t i = 0; i < n; i++)
            rows[i] = nb_kv_head(s, l->seq, (size_t)l->select[begin - l->dense + i], kv);
}

/* What is known of a query after some of its rows: weights are e^(score - max), and the output so far is their sum of values. */
typedef struct softmax_state {
    float max, sum;
} softmax_state;
#define NOTHING ((softmax_state){-INFINITY, 0})

/* How a query's state and output s become those of more rows, whose own are t: out = out * was + more * is. */
typedef struct step {
    float was, is;
    bool skip, first; /* nothing is new; nothing was there */
} step;

static float larger_or_nan(float a, float b)
{
    return isnan(a) || a > b ? a : b;
}

static step put_together(softmax_state *s, const softmax_state *t)
{
    step p = {1, 1, .skip = t->max == -INFINITY, .first = s->max == -INFINITY};
    if (p.skip) return p;
    if (p.first) {
        *s = *t;
        return p;
    }
    float max = larger_or_nan(s->max, t->max);
    p.was = expf(s->max - max);
    p.is = expf(t->max - max);
    *s = (softmax_state){max, s->sum * p.was + t->sum * p.is};
    return p;
}

static void add_part(const step *p, const float *restrict part, size_t n, float *restrict out)
{
    if (p->skip) return;
    if (p->first) {
        memcpy(out, part, n * sizeof *out);
        return;
    }
    const float was = p->was, is = p->is;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) /* by a constant number, or the compiler makes no vectors of it */
        for (size_t k = 0; k < 16; k++) out[i + k] = out[i + k] * was + part[i + k] * is;
    for (; i < n; i++) out[i] = out[i] * was + part[i] * is;
}

/* The output of head h: a sink joins maximum and sum, and has no value. Without any weight: zeros. */
static void finish(const attend_job *j, const softmax_state *s, size_t h, float *out)
{
    const nb_attend_call *c = j->c;
    float sum = s->sum, scale = 1;
    if (c->sink) {
        float sink = c->sink->f[h], max = larger_or_nan(s->max, sink);
        scale = expf(s->max - max);
        sum = sum * scale + expf(sink - max);
    }
    scale /= sum;
    if (s->max == -INFINITY)
        memset(out, 0, c->dv * sizeof *out);
    else
        for (size_t i = 0; i < c->dv; i++) out[i] *= scale;
    nb_cpu_round(j->x, out, c->dv);
}

/* n queries (at most MAX_QUERIES) over one list: number i is head h0 + i % heads of token t0 + i / heads. */
typedef struct unit {
    size_t t0, n, kv, h0, heads;
    row_list list;
} unit;

/* Room for one tile of a unit. */
typedef struct tile {
    nb_query q[MAX_QUERIES];
    softmax_state state[MAX_QUERIES];
    const float *k_rows[TILE + NB_AHEAD], *v_rows[TILE + NB_AHEAD];
    float scores[MAX_QUERIES * (TILE + PAD)];
} tile;

/* The first keys of a tile, NB_AHEAD of them. */
static void first_keys(const attend_job *j, const unit *u, size_t number, const float **rows)
{
    size_t begin, end;
    find_tile(&u->list, number, &begin, &end);
    if (end - begin > NB_AHEAD) end = begin + NB_AHEAD;
    find_list(j, &u->list, u->kv, begin, end, true, rows);
    for (size_t i = end - begin; i < NB_AHEAD; i++) rows[i] = rows[0];
}

/* Weights and states of one tile, before another of `next` (NULL: none); what is left is weigh() of what it returns, after the queries'
 * outs are set. */
static nb_attend_args weights(const attend_job *j, const unit *u, size_t number, const unit *next,
                              size_t next_number, tile *w)
{
    const nb_attend_call *c = j->c;
    const nb_kernels *k = nb_cpu_of(j->x)->k;
    nb_attend_args a = {w->q, u->n, w->k_rows, w->v_rows, c->dk, c->dv, c->scale};
    size_t r0, r1, begin = TILE, end = 0;
    find_tile(&u->list, number, &r0, &r1);
    for (size_t i = 0; i < u->n; i++) {
        size_t t = u->t0 + i / u->heads, h = u->h0 + i % u->heads, pos = j->x->rows.pos[t];
        nb_query *q = &w->q[i];
        *q = (nb_query){c->q->f + t * c->q->cols + h * c->dk, NULL, w->scores + i * (TILE + PAD), 0, r1 - r0};
        if (!c->select && !c->compressed) { /* of a block's rows each token sees its own part */
            size_t first = first_seen(c, pos) - u->list.from, last = pos + 1 - u->list.from;
            q->begin = first > r0 ? (first < r1 ? first : r1) - r0 : 0;
            q->end = last < r1 ? (last > r0 ? last : r0) - r0 : r1 - r0;
        }
        if (q->begin >= q->end) continue;
        if (q->begin < begin) begin = q->begin;
        if (q->end > end) end = q->end;
    }
    w->v_rows[0] = NULL; /* until it is found, since no tile is empty: the analyser cannot know */
    find_list(j, &u->list, u->kv, r0, r1, true, w->k_rows);
    find_list(j, &u->list, u->kv, r0, r1, false, w->v_rows);
    for (size_t i = 0; i < NB_AHEAD; i++) w->k_rows[r1 - r0 + i] = w->v_rows[i < r1 - r0 ? i : 0];
    if (next)
        first_keys(j, next, next_number, w->v_rows + r1 - r0);
    else
        for (size_t i = 0; i < NB_AHEAD; i++) w->v_rows[r1 - r0 + i] = w->v_rows[0];
    if (begin < end) k->scores(&a, begin, end);
    for (size_t i = 0; i < u->n; i++) {
        nb_query *q = &w->q[i];
        size_t n = q->begin < q->end ? q->end - q->begin : 0;
        w->state[i].sum = k->exps(q->scores + q->begin, n, &w->state[i].max);
    }
    return a;
}

static float *out_of(const attend_job *j, const unit *u, size_t i)
{
    const nb_attend_call *c = j->c;
    return c->out->f + (u->t0 + i / u->heads) * c->out->cols + (u->h0 + i % u->heads) * c->dv;
}

static void attend_unit(const attend_job *j, const unit *u)
{
    const nb_attend_call *c = j->c;
    size_t tiles = n_tiles(&u->list);
    tile w;
    float part[MAX_QUERIES * (SLICE + PAD)];
    softmax_state states[MAX_QUERIES];
    step steps[MAX_QUERIES];
    for (size_t i = 0; i < u->n; i++) states[i] = NOTHING;
    for (size_t number = 0; number < tiles; number++) {
        nb_attend_args a = weights(j, u, number, number + 1 < tiles ? u : NULL, number + 1, &w);
        for (size_t i = 0; i < u->n; i++) steps[i] = put_together(&states[i], &w.state[i]);
        for (size_t col = 0, end; col < c->dv; col = end) {
            end = col + SLICE < c->dv ? col + SLICE : c->dv;
            for (size_t i = 0; i < u->n; i++)
                w.q[i].out = tiles == 1 ? out_of(j, u, i) + col : part + i * (SLICE + PAD);
            nb_cpu_of(j->x)->k->weigh(&a, col, end);
            for (size_t i = 0; tiles > 1 && i < u->n; i++)
                add_part(&steps[i], part + i * (SLICE + PAD), end - col, out_of(j, u, i) + col);
        }
    }
    for (size_t i = 0; i < u->n; i++) finish(j, &states[i], u->h0 + i % u->heads, out_of(j, u, i));
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
            attend_unit(j, &(unit){t, (next - t) * (h1 - h0), kv, h0, h1 - h0, list_of(j, t, next)});
        }
    }
}

/* Few rows: what a tile gave for token t's head h, a state and dv values. */
static float *part_of(const attend_job *j, size_t t, size_t h, size_t number)
{
    return nb_cpu_of(j->x)->scores + ((t * j->c->heads + h) * j->tiles + number) * (j->c->dv + 2);
}

/* The tile of item `item`; false: its token has fewer. */
static bool spread_unit(const attend_job *j, size_t item, unit *u, size_t *number)
{
    size_t groups = j->c->kv_heads * j->parts.n, group = item % groups, t = item / groups / j->tiles, h1;
    *u = (unit){.t0 = t, .kv = group / j->parts.n, .list = list_of(j, t, t + 1)};
    nb_heads_of_part(&j->parts, u->kv, group % j->parts.n, &u->h0, &h1);
    u->n = u->heads = h1 - u->h0;
    *number = item / groups % j->tiles;
    return *number < n_tiles(&u->list);
}

static void spread_tiles(void *ctx, size_t thread, size_t begin, size_t end)
{
    const attend_job *j = ctx;
    tile w;
    unit u, after = {0};
    size_t number, after_number = 0;
    bool more = spread_unit(j, begin, &u, &number);
    for (size_t item = begin; item < end; item++, u = after, number = after_number) {
        bool is = more;
        more = item + 1 < end && spread_unit(j, item + 1, &after, &after_number);
        if (!is) continue;
        nb_attend_args a = weights(j, &u, number, more ? &after : NULL, after_number, &w);
        for (size_t i = 0; i < u.n; i++) {
            float *part = part_of(j, u.t0, u.h0 + i, number);
            memcpy(part, &w.state[i], sizeof w.state[i]);
            w.q[i].out = part + 2;
        }
        nb_cpu_of(j->x)->k->weigh(&a, 0, j->c->dv);
    }
}

static void spread_sums(void *ctx, size_t thread, size_t begin, size_t end)
{
    const attend_job *j = ctx;
    const nb_attend_call *c = j->c;
    for (size_t item = begin; item < end; item++) {
        size_t t = item / c->heads, h = item % c->heads;
        row_list l = list_of(j, t, t + 1);
        float *out = c->out->f + t * c->out->cols + h * c->dv;
        softmax_state s = NOTHING;
        for (size_t number = 0, tiles = n_tiles(&l); number < tiles; number++) {
            const float *part = part_of(j, t, h, number);
            step p = put_together(&s, &(softmax_state){part[0], part[1]});
            add_part(&p, part + 2, c->dv, out);
        }
        finish(j, &s, h, out);
    }
}

/* Whether few rows with a long context are to be spread, and if so how. */
static bool spread(attend_job *j)
{
    nb_exec *x = j->x;
    const nb_attend_call *c = j->c;
    size_t threads = nb_pool_threads(x->pool), all = 0, floats;
    size_t groups = x->rows.n * c->kv_heads, units = groups * nb_ceil_div(j->per_kv, MAX_QUERIES);
    if (threads == 1 || units >= SPREAD * threads) return false;
    for (size_t t = 0; t < x->rows.n; t++) {
        row_list l = list_of(j, t, t + 1);
        all += l.n;
        if (n_tiles(&l) > j->tiles) j->tiles = n_tiles(&l);
    }
    nb_head_parts whole = nb_cpu_part_heads(j->per_kv, MAX_QUERIES, groups, threads);
    bool busy = whole.each >= FULL && groups * whole.n >= threads;
    if (j->tiles < (busy ? SHORT : 2) || all * c->kv_heads * c->dk < 65536)
        return false; /* not worth waking the threads twice */
    j->parts = nb_cpu_part_heads(j->per_kv, MAX_QUERIES, groups * j->tiles, threads);
    return nb_mul(x->rows.n * c->heads * j->tiles, c->dv + 2, &floats) &&
           floats <= threads * nb_cpu_of(x)->score_room;
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
        size_t units = x->rows.n * c->kv_heads * j.parts.n * j.tiles;
        nb_pool_share(x->pool, units, nb_ceil_div(units, 8 * nb_pool_threads(x->pool)), spread_tiles, &j);
        nb_pool_run(x->pool, x->rows.n * c->heads, 1, spread_sums, &j);
    } else {
        plan_blocks(&j);
        size_t units = j.blocks * c->kv_heads * j.parts.n, cost = j.block * j.parts.each * c->dk * 64;
        if (j.block >= FULL) /* tokens: a prefill, whose units are long, and threads may be held up */
            nb_pool_share(x->pool, units, 1, attend_blocks, &j);
        else
            nb_cpu_rows(x, units, cost, attend_blocks, &j);
    }
    nb_cpu_tell_of(x, "attend", c->out, x->rows.n, c->sink, NULL, NULL);
}
