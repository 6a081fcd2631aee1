/* Positions and the cache on the CPU: rotary embedding, storing rows, DeepSeek-V4's compressors and indexer. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/exec.h"

void nb_cpu_rope_prepare(nb_exec *x, nb_rope *r)
{
    if (x->err.status) return;
    for (size_t t = 0; t < x->rows.n; t++) {
        const bool far = r->far_inv_freq && x->rows.known && x->rows.known[t] > r->turns_at;
        const float *inv_freq = far ? r->far_inv_freq : r->inv_freq;
        for (size_t i = 0; i < r->pairs; i++) {
            /* the product is rounded to F32, as transformers' rotary embeddings do */
            float angle = (float)x->rows.pos[t] * inv_freq[i];
            r->cos[t * r->pairs + i] = cosf(angle) * r->factor;
            r->sin[t * r->pairs + i] = sinf(angle) * r->factor;
        }
    }
}

typedef struct rope_job {
    nb_exec *x;
    nb_tensor *t;
    const nb_rope *r;
    size_t heads, d, offset;
    bool interleaved;
    float sign;
} rope_job;

static void rope_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const rope_job *j = ctx;
    const nb_kernels *k = nb_cpu_of(j->x)->k;
    for (size_t t = begin; t < end; t++) {
        const float *c = j->r->cos + t * j->r->pairs, *s = j->r->sin + t * j->r->pairs;
        for (size_t h = 0; h < j->heads; h++)
            k->rope(j->t->f + t * j->t->cols + h * j->d + j->offset, c, s, j->r->pairs, j->interleaved,
                    j->sign);
        nb_cpu_round(j->x, j->t->f + t * j->t->cols, j->t->cols);
    }
}

void nb_cpu_rope(nb_exec *x, nb_tensor *t, const nb_rope *r, size_t heads, size_t d, size_t offset,
                 bool interleaved, bool inverse)
{
    if (x->err.status) return;
    rope_job j = {x, t, r, heads, d, offset, interleaved, inverse ? -1.0f : 1.0f};
    nb_cpu_rows(x, x->rows.n, heads * r->pairs * 2, rope_rows, &j);
    nb_cpu_tell(x, "rope", t, x->rows.n);
}

typedef struct store_job {
    nb_exec *x;
    const nb_kv_stream *s;
    const nb_tensor *a, *b;
    atomic_bool bad;
} store_job;

static void store_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    store_job *j = ctx;
    const nb_tensor *a = j->a, *b = j->b;
    for (size_t t = begin; t < end; t++) {
        size_t row = j->x->rows.pos[t] / j->s->decl.tokens_per_row, heads = nb_kv_heads(j->s),
               cols = a->cols / heads;
        const float *from = a->f + t * a->cols;
        for (size_t h = 0; h < heads; h++)
            memcpy(nb_kv_head(j->s, j->x->rows.seq[t], row, h), from + h * cols, cols * sizeof *from);
        if (b) /* of one head */
            memcpy(nb_kv_row(j->s, j->x->rows.seq[t], row) + a->cols, b->f + t * b->cols,
                   b->cols * sizeof *from);
        if (!j->x->bad ||
            (nb_cpu_finite(from, a->cols) && (!b || nb_cpu_finite(b->f + t * b->cols, b->cols))))
            continue;
        j->x->bad->row[t] = 1;
        atomic_store_explicit(&j->bad, true, memory_order_relaxed);
    }
}

void nb_cpu_store(nb_exec *x, size_t stream, const nb_tensor *a, const nb_tensor *b)
{
    if (x->err.status) return;
    store_job j = {.x = x, .s = &x->kv->streams[stream], .a = a, .b = b};
    if (j.s->decl.tokens_per_row > 1) /* the last of several tokens stays */
        store_rows(&j, 0, 0, x->rows.n);
    else
        nb_cpu_rows(x, x->rows.n, a->cols + (b ? b->cols : 0), store_rows, &j);
    if (j.bad) nb_cpu_bad(x, "store", NULL);
}

/* Pools one entry: softmax over the slots of each channel's gate, weighted sum of its content. */
static void pool_entry(nb_exec *x, const nb_compress_call *c, uint32_t seq, size_t w, float *e)
{
    const nb_kv_stream *in = &x->kv->streams[c->in_stream];
    size_t d = c->d, width = c->series * d, m = c->ratio;
    bool overlap = c->series == 2;
    size_t first = overlap && w == 0 ? m : 0, slots = overlap ? 2 * m : m;
    size_t base = overlap ? w * m - m : w * m; /* token of slot 0; wraps for w == 0, where slots start at m */
    for (size_t i = 0; i < d; i++) {
        float top = -INFINITY;
        for (size_t s = first; s < slots; s++) {
            size_t half = overlap && s >= m
                              ? d
                              : 0; /* the earlier window gives its first series, the entry's own its second */
            float g = nb_kv_row(in, seq, base + s)[width + half + i];
            if (g > top || isnan(g)) top = g;
        }
        float sum = 0, acc = 0;
        for (size_t s = first; s < slots; s++) {
            size_t half = overlap && s >= m ? d : 0;
            const float *row = nb_kv_row(in, seq, base + s);
            float p = expf(row[width + half + i] - top);
            sum += p;
            acc += p * row[half + i];
        }
        e[i] = acc / sum;
    }
}

typedef struct compress_job {
    nb_exec *x;
    const nb_compress_call *c;
    atomic_bool bad; /* some entry is not finite */
} compress_job;

static void compress_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    compress_job *j = ctx;
    const nb_compress_call *c = j->c;
    const nb_kernels *k = nb_cpu_of(j->x)->k;
    const nb_kv_stream *out = &j->x->kv->streams[c->out_stream];
    size_t pairs = c->rope->pairs;
    for (size_t t = begin; t < end; t++) {
        size_t pos = j->x->rows.pos[t], w = pos / c->ratio;
        if ((pos + 1) % c->ratio) continue;
        uint32_t seq = j->x->rows.seq[t];
        float *e = nb_kv_row(out, seq, w);
        pool_entry(j->x, c, seq, w, e);
        nb_cpu_round(j->x, e, c->d);
        k->rmsnorm(e, c->norm->f, c->eps, c->d, e);
        float *r = e + c->d - 2 * pairs;
        for (size_t i = 0; i < pairs; i++) {
            float angle = (float)(w * c->ratio) * c->rope->inv_freq[i];
            float cs = cosf(angle) * c->rope->factor, sn = sinf(angle) * c->rope->factor, a = r[2 * i],
                  b = r[2 * i + 1];
            r[2 * i] = a * cs - b * sn;
            r[2 * i + 1] = a * sn + b * cs;
        }
        nb_cpu_round(j->x, e, c->d);
        if (j->x->bad && !nb_cpu_finite(e, c->d)) {
            j->x->bad->row[t] = 1;
            atomic_store_explicit(&j->bad, true, memory_order_relaxed);
        }
    }
}

void nb_cpu_compress(nb_exec *x, const nb_compress_call *c)
{
    if (x->err.status) return;
    compress_job j = {.x = x, .c = c};
    nb_cpu_rows(x, x->rows.n, c->d * 64, compress_rows, &j);
    if (j.bad) nb_cpu_bad(x, "compress", c->norm);
}

typedef struct index_job {
    nb_exec *x;
    const nb_index_call *c;
} index_job;

/* Keeps the k best scores seen in a min-heap of (score, row), the worse and later row on top; NaN counts as the lowest. */
static bool worse(const float *score, int32_t a, int32_t b)
{
    float sa = score[a], sb = score[b];
    if (isnan(sa) || isnan(sb))
        return isnan(sa) && !isnan(sb) ? true : isnan(sb) && !isnan(sa) ? false : a > b;
    return sa < sb || (sa == sb && a > b);
}

static void sift_down(const float *score, int32_t *heap, size_t n, size_t i)
{
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= n) return;
        if (c + 1 < n && worse(score, heap[c + 1], heap[c])) c++;
        if (!worse(score, heap[c], heap[i])) return;
        int32_t t = heap[i];
        heap[i] = heap[c];
        heap[c] = t;
        i = c;
    }
}

static void index_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const index_job *j = ctx;
    const nb_index_call *c = j->c;
    nb_cpu_exec *cpu = nb_cpu_of(j->x);
    const nb_kv_stream *s = &j->x->kv->streams[c->key_stream];
    float *score = cpu->scores + thread * cpu->score_room;
    size_t k = c->select->cols;
    for (size_t t = begin; t < end; t++) {
        size_t all = nb_complete_rows(j->x->rows.pos[t], s->decl.tokens_per_row);
        int32_t *sel = c->select->i + t * k;
        for (size_t i = 0; i < k; i++) sel[i] = i < all ? (int32_t)i : -1;
        if (all <= k) continue;
        const float *q = c->q->f + t * c->q->cols, *hw = c->weights->f + t * c->heads;
        for (size_t w = 0; w < all; w++) {
            const float *key = nb_kv_row(s, j->x->rows.seq[t], w);
            float sum = 0;
            for (size_t h = 0; h < c->heads; h++) {
                float dot = cpu->k->dot(q + h * c->d, key, c->d);
                if (!(dot < 0)) sum += hw[h] * c->weight_scale * dot;
            }
            score[w] = sum;
        }
        for (size_t i = k / 2 + 1; i-- > 0;) sift_down(score, sel, k, i);
        for (size_t w = k; w < all; w++) {
            if (!worse(score, sel[0], (int32_t)w)) continue;
            sel[0] = (int32_t)w;
            sift_down(score, sel, k, 0);
        }
        int32_t last = sel[0]; /* the order is total: the chosen are those not worse than the worst of them */
        for (size_t w = 0, n = 0; n < k && w < all; w++)
            if (!worse(score, (int32_t)w, last)) sel[n++] = (int32_t)w;
    }
}

void nb_cpu_index(nb_exec *x, const nb_index_call *c)
{
    if (x->err.status) return;
    index_job j = {x, c};
    nb_cpu_rows(x, x->rows.n, c->heads * c->d * 64, index_rows, &j);
}
