/* The CPU back end: owns tensors, weights and work memory, fills the operator table, and holds the small operators. */
#include "kernels/cpu/exec.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "numerics/formats.h"

const char *nb_arith_name(nb_arith a)
{
    static const char *const names[NB_ARITH_COUNT] = {"exact", "bf16", "int8", "w4a4", "w4a4-dynamic"};
    return (unsigned)a < NB_ARITH_COUNT ? names[a] : "unknown";
}

void nb_cpu_round(const nb_exec *x, float *y, size_t n)
{
    if (!x->act_bf16) return;
    for (size_t i = 0; i < n; i++) y[i] = nb_bf16_round(y[i]);
}

void nb_cpu_rows(nb_exec *x, size_t rows, size_t cost, nb_pool_fn fn, void *ctx)
{
    if (!rows) return;
    if (rows == 1 || rows * cost < 16384)
        fn(ctx, 0, 0, rows);
    else
        nb_pool_run(x->pool, rows, 1, fn, ctx);
}

nb_head_parts nb_cpu_part_heads(size_t heads, size_t most, size_t units, size_t threads)
{
    size_t n = nb_ceil_div(heads, most);
    while (n < heads && units * n < 2 * threads) n *= 2;
    size_t each = nb_ceil_div(heads, n);
    return (nb_head_parts){heads, each, nb_ceil_div(heads, each)};
}

void nb_cpu_tell_of(nb_exec *x, const char *op, const nb_tensor *out, size_t rows, const nb_tensor *p0,
                    const nb_tensor *p1, const nb_tensor *p2)
{
    if (!x->tap || x->err.status) return;
    const nb_tap t = {
        .op = op, .layer = x->layer, .out = out, .param = {p0, p1, p2}, .rows = rows, .divide = 1};
    x->tap(x->tap_ctx, x, &t);
}

void nb_cpu_tell(nb_exec *x, const char *op, const nb_tensor *out, size_t rows)
{
    nb_cpu_tell_of(x, op, out, rows, NULL, NULL, NULL);
}

/* Without its sign, a value that is not finite is the only one whose bits reach 2^31 when one exponent step is added. Sixteen at
 * a time and no early end, so that compilers make vectors of it. */
bool nb_cpu_finite(const float *v, size_t n)
{
    uint32_t any[16] = {0}, all = 0;
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (size_t j = 0; j < 16; j++) any[j] |= (nb_f32_bits(v[i + j]) & 0x7FFFFFFF) + 0x00800000;
    for (; i < n; i++) all |= (nb_f32_bits(v[i]) & 0x7FFFFFFF) + 0x00800000;
    for (size_t j = 0; j < 16; j++) all |= any[j];
    return !(all >> 31);
}

void nb_cpu_bad(nb_exec *x, const char *op, const nb_tensor *param)
{
    if (x->bad->op) return;
    x->bad->op = op;
    x->bad->layer = x->layer;
    x->bad->param = param;
}

static nb_status tensor_in(nb_slabs *slabs, bool i32, size_t rows, size_t cols, nb_tensor **out,
                           nb_error *err)
{
    size_t n;
    if (!nb_mul(rows, cols, &n) || n > SIZE_MAX / 4) return nb_fail_nomem(err, "a tensor", SIZE_MAX);
    nb_tensor *t = calloc(1, sizeof *t);
    void *data = t ? nb_slabs_take(slabs, n * 4, &t->memory) : NULL;
    if (!data) {
        free(t);
        return nb_fail_nomem(err, "a tensor", n * 4);
    }
    t->rows = rows;
    t->cols = cols;
    if (i32)
        t->i = data;
    else
        t->f = data;
    *out = t;
    return NB_OK;
}

/* Not in slabs: rows of a step lie whole powers of two apart, and in a huge page such rows share few places of the caches. */
static nb_status tensor_new(nb_exec *x, bool i32, size_t rows, size_t cols, nb_tensor **out, nb_error *err)
{
    return tensor_in(NULL, i32, rows, cols, out, err);
}

static nb_status param_new(nb_exec *x, bool i32, size_t rows, size_t cols, nb_tensor **out, nb_error *err)
{
    return tensor_in(x->streamed ? NULL : &nb_cpu_of(x)->slabs, i32, rows, cols, out, err);
}

static void tensor_free(nb_tensor *t)
{
    if (!t) return;
    nb_slab_release(t->memory);
    free(t);
}

static size_t tensor_cols(const nb_tensor *t)
{
    return t->cols;
}

static size_t tensor_bytes(const nb_tensor *t)
{
    return t->rows * t->cols * 4;
}

static void tensor_write(nb_exec *x, nb_tensor *t, const void *src)
{
    memcpy(t->f ? (void *)t->f : (void *)t->i, src, tensor_bytes(t));
}

static void tensor_read(nb_exec *x, const nb_tensor *t, size_t row, size_t rows, float *dst)
{
    memcpy(dst, t->f + row * t->cols, rows * t->cols * sizeof *dst);
}

static void weight_free(nb_weight *w)
{
    if (!w) return;
    for (size_t b = 0; w->block && b < w->blocks; b++) nb_packed_free(&w->block[b]);
    for (size_t d = 0; d < NB_MAX_DERIVED; d++) weight_free(w->derived[d]);
    free(w->block);
    free(w);
}

static size_t weight_bytes(const nb_weight *w)
{
    size_t n = 0;
    for (size_t b = 0; b < w->blocks; b++) n += nb_packed_bytes(&w->block[b]);
    return n;
}

static size_t derived_bytes(const nb_weight *w)
{
    size_t n = 0;
    for (size_t d = 0; d < NB_MAX_DERIVED && w->derived[d]; d++) n += weight_bytes(w->derived[d]);
    return n;
}

static void weight_attach(nb_weight *w, nb_weight *derived)
{
    size_t d = 0;
    while (w->derived[d]) d++;
    w->derived[d] = derived;
}

/* Packing: each thread reads and packs a contiguous range of panels. */
typedef struct pack_job {
    nb_packed *w;
    size_t row0; /* first row of this block in the whole matrix */
    size_t code_bytes, scale_bytes;
    nb_row_reader read;
    void *ctx;
    nb_error *errs; /* [threads] */
    bool *odd;      /* [threads] */
} pack_job;

static void pack_panels(void *ctx, size_t thread, size_t begin, size_t end)
{
    const pack_job *j = ctx;
    nb_error *err = &j->errs[thread];
    size_t per_panel = NB_PANEL * (j->code_bytes + j->scale_bytes);
    size_t step = 1 + ((size_t)1 << 18) /
                          per_panel; /* panels a read: about 256 KiB, which stay in the second-level cache */
    uint8_t *codes = malloc(step * NB_PANEL * j->code_bytes);
    uint8_t *scales = malloc(step * NB_PANEL * j->scale_bytes + 1);
    if (!codes || !scales) {
        nb_fail_nomem(err, "a packing buffer", step * per_panel);
        goto out;
    }
    for (size_t p = begin; p < end; p += step) {
        size_t row = p * NB_PANEL, last = (p + step < end ? p + step : end) * NB_PANEL;
        size_t rows = (last < j->w->n ? last : j->w->n) - row;
        if (j->read(j->ctx, j->row0 + row, rows, codes, scales, err) != NB_OK) goto out;
        if (nb_pack_rows(j->w, row, rows, codes, j->scale_bytes ? scales : NULL)) j->odd[thread] = true;
    }
out:
    free(codes);
    free(scales);
}

static nb_status weight_blank(nb_exec *x, nb_format format, size_t n, size_t k, size_t scale_k,
                              float multiplier, size_t blocks, nb_weight **out, nb_error *err)
{
    nb_status s = NB_OK;
    nb_weight *w = calloc(1, sizeof *w);
    if (w) w->block = calloc(blocks, sizeof *w->block);
    if (!w || !w->block) {
        s = nb_fail_nomem(err, "a weight", sizeof *w + blocks * sizeof *w->block);
        goto out;
    }
    w->blocks = blocks;
    for (size_t b = 0; b < blocks; b++) {
        s = nb_packed_alloc_in(x->streamed ? NULL : &nb_cpu_of(x)->slabs, format, n / blocks, k, scale_k,
                               &w->block[b], err);
        if (s != NB_OK) goto out;
        w->block[b].multiplier = multiplier;
    }
    *out = w;
    w = NULL;
out:
    weight_free(w);
    return s;
}

static nb_packed *weight_block(nb_weight *w, size_t form, size_t block)
{
    if (form) w = form <= NB_MAX_DERIVED ? w->derived[form - 1] : NULL;
    return w && block < w->blocks ? &w->block[block] : NULL;
}

static nb_status weight_new(nb_exec *x, nb_format format, size_t n, size_t k, size_t scale_k,
                            float multiplier, size_t blocks, size_t code_bytes, size_t scale_bytes,
                            nb_row_reader read, void *ctx, nb_weight **out, nb_error *err)
{
    nb_cpu_exec *cpu = nb_cpu_of(x);
    nb_weight *w = NULL;
    nb_status s = NB_OK;
    nb_error *errs = calloc(cpu->threads, sizeof *errs);
    bool *odd = calloc(cpu->threads, sizeof *odd);
    if (!errs || !odd) {
        s = nb_fail_nomem(err, "packing", cpu->threads * (sizeof *errs + sizeof *odd));
        goto out;
    }
    if ((s = weight_blank(x, format, n, k, scale_k, multiplier, blocks, &w, err))) goto out;
    for (size_t b = 0; b < blocks; b++) {
        nb_packed *p = &w->block[b];
        pack_job j = {p, b * (n / blocks), code_bytes, scale_bytes, read, ctx, errs, odd};
        nb_pool_run(x->pool, p->panels, 1, pack_panels, &j);
        for (size_t t = 0; t < cpu->threads; t++) {
            if (odd[t]) p->odd_scales = true;
            odd[t] = false;
            if (errs[t].status == NB_OK) continue;
            if (err) *err = errs[t];
            s = errs[t].status;
            goto out;
        }
    }
    *out = w;
    w = NULL;
out:
    weight_free(w);
    free(errs);
    free(odd);
    return s;
}

enum { SCORES = 65536 }; /* room of a thread where contexts are short */

static nb_status ready(nb_exec *x, const nb_work *w, nb_error *err)
{
    nb_cpu_exec *c = nb_cpu_of(x);
    size_t rows, xin, yout;
    c->xin_floats = NB_ROW_FLOATS(nb_round_up(w->max_k, NB_K_PAD));
    if (!nb_mul(x->max_rows, w->slots ? w->slots : 1, &rows) || !nb_add(rows, NB_FEW_ROWS, &c->xin_rows) ||
        !nb_mul(c->xin_rows, c->xin_floats, &xin) || !nb_mul(c->threads * NB_EXPERT_ROWS, w->expert_n, &yout))
        return nb_fail_nomem(err, "work memory", SIZE_MAX);
    c->expert_n = w->expert_n;
    c->xin = nb_calloc_aligned(xin, sizeof *c->xin);
    c->xscale = nb_calloc_aligned(c->xin_rows, sizeof *c->xscale);
    c->parts = malloc(nb_cpu_parts_bytes(nb_smaller(rows, w->n_experts)));
    c->yout = nb_calloc_aligned(yout, sizeof *c->yout);
    c->order = calloc(rows + 1, sizeof *c->order);
    c->first = calloc(w->n_experts + 1, sizeof *c->first);
    c->score_room = NB_CPU_ROW_FLOATS * w->max_context > SCORES ? NB_CPU_ROW_FLOATS * w->max_context : SCORES;
    /* Not aligned, which would touch all of it: only long contexts fill gigabytes. */
    c->scores = calloc(c->threads * c->score_room + 1, sizeof *c->scores);
    if (!c->xin || !c->xscale || !c->parts || !c->yout || !c->order || !c->first || !c->scores)
        return nb_fail_nomem(err, "work memory", (xin + yout) * sizeof(float));
    return NB_OK;
}

/* Small row-wise operators. */

typedef struct rms_job {
    nb_exec *x;
    const float *in, *w;
    float *y;
    size_t cols, d, w_cols;
    float eps;
} rms_job;

static void rms_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const rms_job *j = ctx;
    const nb_kernels *k = nb_cpu_of(j->x)->k;
    for (size_t r = begin; r < end; r++) {
        for (size_t c = 0; c < j->cols; c += j->d)
            k->rmsnorm(j->in + r * j->cols + c, j->w ? j->w + c % j->w_cols : NULL, j->eps, j->d,
                       j->y + r * j->cols + c);
        nb_cpu_round(j->x, j->y + r * j->cols, j->cols);
    }
}

static void rmsnorm(nb_exec *x, const nb_tensor *in, size_t rows, const nb_tensor *w, size_t d, float eps,
                    nb_tensor *y)
{
    if (x->err.status) return;
    rms_job j = {x, in->f, w ? w->f : NULL, y->f, in->cols, d, w ? w->cols : d, eps};
    nb_cpu_rows(x, rows, in->cols, rms_rows, &j);
    nb_cpu_tell_of(x, "rmsnorm", y, rows, w, NULL, NULL);
}

typedef struct pair_job {
    nb_exec *x;
    const float *a, *b;
    float *y;
    size_t cols;
} pair_job;

static void add_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const pair_job *j = ctx;
    for (size_t i = begin * j->cols; i < end * j->cols; i++) j->y[i] = j->a[i] + j->b[i];
    nb_cpu_round(j->x, j->y + begin * j->cols, (end - begin) * j->cols);
}

static void add(nb_exec *x, const nb_tensor *a, const nb_tensor *b, nb_tensor *y)
{
    if (x->err.status) return;
    pair_job j = {x, a->f, b->f, y->f, a->cols};
    nb_cpu_rows(x, x->rows.n, a->cols, add_rows, &j);
    nb_cpu_tell(x, "add", y, x->rows.n);
}

static void add_periodic(nb_exec *x, nb_tensor *t, const nb_tensor *table, size_t period)
{
    if (x->err.status) return;
    for (size_t r = 0; r < x->rows.n; r++) {
        const float *b = table->f + x->rows.pos[r] % period * t->cols;
        float *y = t->f + r * t->cols;
        for (size_t c = 0; c < t->cols; c++) y[c] += b[c];
        nb_cpu_round(x, y, t->cols);
    }
    nb_cpu_tell_of(x, "add_periodic", t, x->rows.n, table, NULL, NULL);
}

static void gather(nb_exec *x, const nb_tensor *in, const uint32_t *which, size_t n, nb_tensor *y)
{
    if (x->err.status) return;
    for (size_t i = 0; i < n; i++)
        memcpy(y->f + i * y->cols, in->f + which[i] * in->cols, in->cols * sizeof *y->f);
}

typedef struct finite_job {
    const nb_tensor *t;
    size_t row;
    uint8_t *bad;
} finite_job;

static void finite_rows(void *ctx, size_t thread, size_t begin, size_t end)
{
    const finite_job *j = ctx;
    for (size_t r = begin; r < end; r++)
        if (!nb_cpu_finite(j->t->f + (j->row + r) * j->t->cols, j->t->cols)) j->bad[r] = 1;
}

static void finite(nb_exec *x, const nb_tensor *t, size_t row, size_t rows, uint8_t *bad)
{
    if (x->err.status) return;
    finite_job j = {t, row, bad};
    nb_cpu_rows(x, rows, t->cols / 4, finite_rows, &j);
}

static const nb_ops cpu_ops = {
    .name = "cpu",
    .tensor_new = tensor_new,
    .param_new = param_new,
    .tensor_free = tensor_free,
    .tensor_cols = tensor_cols,
    .tensor_bytes = tensor_bytes,
    .tensor_write = tensor_write,
    .tensor_read = tensor_read,
    .weight_new = weight_new,
    .weight_blank = weight_blank,
    .weight_block = weight_block,
    .weight_free = weight_free,
    .weight_bytes = weight_bytes,
    .derived_bytes = derived_bytes,
    .weight_attach = weight_attach,
    .ready = ready,
    .embed = nb_cpu_embed,
    .linear = nb_cpu_linear,
    .derived = nb_cpu_derived,
    .as_input = nb_cpu_as_input,
    .rmsnorm = rmsnorm,
    .layernorm = nb_cpu_layernorm,
    .rope_prepare = nb_cpu_rope_prepare,
    .rope = nb_cpu_rope,
    .store = nb_cpu_store,
    .attend = nb_cpu_attend,
    .glu = nb_cpu_glu,
    .columns = nb_cpu_columns,
    .join = nb_cpu_join,
    .add = add,
    .add_periodic = add_periodic,
    .scale = nb_cpu_scale,
    .softcap = nb_cpu_softcap,
    .expert_bias = nb_cpu_expert_bias,
    .compress = nb_cpu_compress,
    .conv = nb_cpu_conv,
    .scan = nb_cpu_scan,
    .index = nb_cpu_index,
    .route = nb_cpu_route,
    .combine = nb_cpu_combine,
    .mhc_expand = nb_cpu_mhc_expand,
    .mhc_pre = nb_cpu_mhc_pre,
    .mhc_post = nb_cpu_mhc_post,
    .mhc_head = nb_cpu_mhc_head,
    .gather = gather,
    .finite = finite,
};

nb_status nb_cpu_exec_new(const char *kernels, nb_pool *pool, size_t max_rows, nb_exec **out, nb_error *err)
{
    nb_cpu cpu;
    nb_cpu_detect(&cpu);
    const nb_kernels *k = nb_kernels_pick(&cpu, strcmp(kernels, "auto") == 0 ? NULL : kernels);
    if (!k) {
        nb_fail(err, NB_ERR_ARGUMENT, "this machine has no '%s' kernels (or the name is unknown)", kernels);
        nb_error_remedy(err, "use --kernels auto or --kernels generic");
        return NB_ERR_ARGUMENT;
    }
    nb_cpu_exec *c = calloc(1, sizeof *c);
    if (!c) return nb_fail_nomem(err, "the CPU back end", sizeof *c);
    c->x.ops = &cpu_ops;
    c->x.pool = pool;
    c->x.max_rows = max_rows;
    c->k = k;
    c->threads = nb_pool_threads(pool);
    *out = &c->x;
    return NB_OK;
}

void nb_cpu_exec_free(nb_exec *x)
{
    if (!x) return;
    nb_cpu_exec *c = nb_cpu_of(x);
    nb_slabs_close(&c->slabs);
    free(c->xin);
    free(c->xscale);
    free(c->parts);
    free(c->yout);
    free(c->order);
    free(c->first);
    free(c->scores);
    free(c);
}

const char *nb_cpu_exec_kernels(const nb_exec *x)
{
    return ((const nb_cpu_exec *)x)->k->name;
}
