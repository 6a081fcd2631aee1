/*
 * The pass over the weights. A unit is a range of one linear's blocks or of one tensor's elements; threads take units in file
 * order and read and count (scan_count.h) in buffers of their own.
 */
#include "doctor/scan.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "doctor/scan_count.h"

#define CHUNK                                                                                                \
    ((size_t)256 << 10) /* bytes of codes or elements read at a time: stays in the second-level cache */
#define UNIT ((uint64_t)8 << 20) /* bytes of codes or elements in a unit */
#define SCALARS 256              /* modules whose global scales are read at a time */
#define MAX_THREADS 8

typedef enum unit_kind { UNIT_NVFP4, UNIT_MXFP4, UNIT_E8M0, UNIT_FLOAT } unit_kind;

typedef struct unit {
    unit_kind kind;
    uint32_t index;    /* of the module, or of the tensor (UNIT_FLOAT) */
    uint64_t first, n; /* blocks, or elements */
} unit;

typedef struct scanner {
    const nb_ckpt *c;
    const nb_modules *modules;
    nb_scan *out;
    unit *units;
    size_t n_units, cap;
    uint64_t total, done; /* bytes */
    unsigned char *buffers;
    const nb_chores *chores;
    atomic_size_t next, next_chore, next_scalars;
    pthread_mutex_t lock; /* of *out, done and the sink */
    const nb_sink *sink;
    nb_count_16_fn count_16;
    nb_count_bad_fn count_bad;
} scanner;

static size_t first_bad(const unsigned char *p, size_t n, nb_dtype d)
{
    const size_t size = nb_dtype_bits(d) / 8;
    size_t i = 0;
    while (i < n && !nb_count_bad_generic(p + i * size, 1, d)) i++;
    return i;
}

/* ---- units ---- */

static void merge(nb_block_values *to, const nb_block_values *v)
{
    to->blocks += v->blocks;
    to->live += v->live;
    to->uniform += v->uniform;
    nb_mark_add(&to->nan, v->nan.count, v->nan.first);
    nb_mark_add(&to->sign, v->sign.count, v->sign.first);
    nb_mark_add(&to->zero, v->zero.count, v->zero.first);
    nb_mark_add(&to->subnormal, v->subnormal.count, v->subnormal.first);
    to->top = v->top > to->top ? v->top : to->top;
    to->dead_odd += v->dead_odd;
    to->normal += v->normal;
    to->normal_6 += v->normal_6;
    to->normal_4 += v->normal_4;
    to->full += v->full;
    to->full_mixed += v->full_mixed;
    for (size_t k = 0; k < NB_NEAR; k++) to->near[k] += v->near[k];
}

static nb_status scan_blocks(const scanner *s, const unit *u, unsigned char *codes, unsigned char *scales,
                             nb_block_values *v, nb_error *err)
{
    const nb_module *m = &s->modules->items[u->index];
    const nb_tensor_info *w = nb_module_codes(m), *sc = nb_module_scale(m);
    const bool nvfp4 = u->kind == UNIT_NVFP4, lone = u->kind == UNIT_E8M0;
    const size_t per = nvfp4 ? 8 : 16, step = lone ? CHUNK / 8 : CHUNK / per;
    nb_counts c = {.any = true};
    for (uint64_t at = 0; at < u->n; at += step) {
        const size_t n = u->n - at < step ? (size_t)(u->n - at) : step;
        nb_status st = nb_ckpt_read(s->c, sc, u->first + at, scales, n, err);
        if (st == NB_OK && !lone) st = nb_ckpt_read(s->c, w, (u->first + at) * per, codes, n * per, err);
        if (st != NB_OK) return st;
        nb_counts_clear(&c);
        if (nvfp4)
            s->count_16(codes, scales, n, &c);
        else
            nb_count_32(lone ? NULL : codes, scales, n, &c);
        nb_counts_fold(v, &c, nvfp4, lone ? NULL : codes, scales, u->first + at, n);
    }
    return NB_OK;
}

static nb_status scan_elements(const scanner *s, const unit *u, unsigned char *buffer, nb_mark *bad,
                               nb_error *err)
{
    const nb_tensor_info *t = nb_ckpt_at(s->c, u->index);
    const size_t size = nb_dtype_bits(t->dtype) / 8, step = CHUNK / size;
    for (uint64_t at = 0; at < u->n; at += step) {
        const size_t n = u->n - at < step ? (size_t)(u->n - at) : step;
        nb_status st = nb_ckpt_read(s->c, t, (u->first + at) * size, buffer, n * size, err);
        if (st != NB_OK) return st;
        const size_t some = s->count_bad(buffer, n, t->dtype);
        if (!some) continue;
        const uint64_t first =
            bad->count ? bad->first : (u->first + at + first_bad(buffer, n, t->dtype)) * size;
        nb_mark_add(bad, some, first);
    }
    return NB_OK;
}

static uint64_t bytes_of(const scanner *s, const unit *u)
{
    switch (u->kind) {
    case UNIT_NVFP4: return u->n * 9;
    case UNIT_MXFP4: return u->n * 17;
    case UNIT_E8M0: return u->n;
    default: return u->n * (nb_dtype_bits(nb_ckpt_at(s->c, u->index)->dtype) / 8);
    }
}

static void do_chores(scanner *s)
{
    for (size_t i; s->chores && (i = atomic_fetch_add(&s->next_chore, 1)) < s->chores->count;)
        s->chores->run(s->chores->ctx, i);
}

/* The last bytes read of some file: scalars lie side by side, and one read serves many. */
typedef struct window {
    uint32_t file;
    uint64_t begin;
    size_t n; /* 0: nothing was read */
    unsigned char bytes[512];
} window;

static bool read_scalar(const nb_ckpt *c, const nb_tensor_info *t, window *w, float *out)
{
    if (!t || nb_tensor_elements(t) != 1) return false;
    if (t->dtype != NB_DT_F32) return nb_ckpt_read_f32(c, t, out, NULL) == NB_OK;
    if (w->file != t->file || t->begin < w->begin || t->end > w->begin + w->n) {
        const nb_file *file = nb_ckpt_file(c, t->file);
        const uint64_t left = file->size - t->begin;
        const size_t n = left < sizeof w->bytes ? (size_t)left : sizeof w->bytes;
        w->n = 0;
        if (nb_file_read(file, t->begin, w->bytes, n, NULL) != NB_OK)
            return nb_ckpt_read_f32(c, t, out, NULL) == NB_OK; /* the file has shrunk, maybe behind t */
        w->file = t->file;
        w->begin = t->begin;
        w->n = n;
    }
    memcpy(out, w->bytes + (t->begin - w->begin), sizeof *out);
    return true;
}

/* Thousands of small reads: worth all threads. */
static void read_scalars(scanner *s)
{
    const size_t count = s->modules->count;
    window w = {0};
    for (size_t first; (first = atomic_fetch_add(&s->next_scalars, SCALARS)) < count;) {
        for (size_t i = first; i < count && i < first + SCALARS; i++) {
            const nb_module *m = &s->modules->items[i];
            nb_block_values *v = &s->out->modules[i];
            v->has_weight = read_scalar(s->c, nb_module_global(m), &w, &v->weight);
            v->has_input = nb_kind_nvfp4(m->kind) && read_scalar(s->c, nb_module_input(m), &w, &v->input);
        }
    }
}

static void work(void *ctx, size_t thread, size_t begin, size_t end)
{
    scanner *s = ctx;
    unsigned char *codes = s->buffers + thread * (CHUNK + CHUNK / 8), *scales = codes + CHUNK;
    do_chores(s);
    read_scalars(s);
    for (size_t i; (i = atomic_fetch_add(&s->next, 1)) < s->n_units;) {
        const unit *u = &s->units[i];
        nb_block_values v = {0};
        nb_mark bad = {0};
        nb_error err;
        nb_status st = u->kind == UNIT_FLOAT ? scan_elements(s, u, codes, &bad, &err)
                                             : scan_blocks(s, u, codes, scales, &v, &err);
        pthread_mutex_lock(&s->lock);
        if (st != NB_OK)
            s->out->error = s->out->error.status == NB_OK ? err : s->out->error;
        else if (u->kind == UNIT_FLOAT)
            nb_mark_add(&s->out->bad[u->index], bad.count, bad.first);
        else
            merge(&s->out->modules[u->index], &v);
        if (st != NB_OK && u->kind != UNIT_FLOAT) s->out->modules[u->index].scanned = false;
        s->done += bytes_of(s, u);
        if (s->sink && s->sink->progress && s->done < s->total)
            s->sink->progress(s->sink->ctx, "checking values", s->done, s->total);
        pthread_mutex_unlock(&s->lock);
    }
}

/* ---- the list of units ---- */

static bool add_units(scanner *s, unit_kind kind, size_t index, uint64_t n, uint64_t per_item)
{
    const uint64_t step = UNIT / per_item;
    for (uint64_t first = 0; first < n; first += step) {
        if (s->n_units == s->cap) {
            size_t cap = s->cap ? 2 * s->cap : 256, bytes;
            unit *p = nb_mul(cap, sizeof *p, &bytes) ? realloc(s->units, bytes) : NULL;
            if (!p) return false;
            s->units = p;
            s->cap = cap;
        }
        unit *u = &s->units[s->n_units++];
        *u = (unit){kind, (uint32_t)index, first, n - first < step ? n - first : step};
        s->total += bytes_of(s, u);
    }
    return true;
}

static bool add_module(scanner *s, size_t i)
{
    const nb_module *m = &s->modules->items[i];
    const nb_tensor_info *w = nb_module_codes(m), *sc = nb_module_scale(m);
    nb_block_values *v = &s->out->modules[i];
    uint64_t n, k;
    if (nb_kind_nvfp4(m->kind)) {
        if (!nb_module_shape(m, &n, &k) || !sc || sc->dtype != NB_DT_F8_E4M3 || w->dtype != NB_DT_U8)
            return true;
        v->scanned = true;
        return add_units(s, UNIT_NVFP4, i, nb_tensor_elements(sc), 8);
    }
    const bool e8m0 = sc && (sc->dtype == NB_DT_F8_E8M0 || sc->dtype == NB_DT_U8);
    if ((m->kind == NB_KIND_MXFP4 || m->kind == NB_KIND_MXFP4_BLOCKS) && e8m0 && w &&
        (w->dtype == NB_DT_U8 || w->dtype == NB_DT_I8) && w->end - w->begin == 16 * (sc->end - sc->begin)) {
        v->scanned = true;
        return add_units(s, UNIT_MXFP4, i, nb_tensor_elements(sc), 16);
    }
    if (sc && sc->dtype == NB_DT_F8_E8M0 && (m->kind == NB_KIND_FP8 || m->kind == NB_KIND_MXFP4))
        return add_units(s, UNIT_E8M0, i, nb_tensor_elements(sc), 1);
    return true;
}

/* Scalars that rules of their own look at. */
static bool is_scalar_scale(const nb_tensor_info *t)
{
    size_t len;
    switch (nb_member_of(t->name, &len)) {
    case NB_MEMBER_GLOBAL:
    case NB_MEMBER_SCALE_2:
    case NB_MEMBER_INPUT_GLOBAL:
    case NB_MEMBER_INPUT: return true;
    default: break;
    }
    len = strlen(t->name);
    return len > 8 &&
           (strcmp(t->name + len - 8, ".k_scale") == 0 || strcmp(t->name + len - 8, ".v_scale") == 0);
}

static bool add_tensor(scanner *s, size_t i)
{
    const nb_tensor_info *t = nb_ckpt_at(s->c, i);
    size_t len;
    switch (t->dtype) {
    case NB_DT_BF16:
    case NB_DT_F16:
    case NB_DT_F32:
    case NB_DT_F64:
        if (is_scalar_scale(t)) return true;
        break;
    case NB_DT_F8_E4M3:
        if (nb_member_of(t->name, &len) != NB_MEMBER_WEIGHT) return true;
        break;
    default: return true;
    }
    return add_units(s, UNIT_FLOAT, i, nb_tensor_elements(t), nb_dtype_bits(t->dtype) / 8);
}

nb_status nb_scan_run(const nb_ckpt *c, const nb_modules *modules, nb_pool *pool, const nb_chores *chores,
                      const nb_sink *sink, nb_scan *out, nb_error *err)
{
    scanner s = {.c = c,
                 .modules = modules,
                 .out = out,
                 .chores = chores,
                 .sink = sink,
                 .count_16 = nb_count_16_best(),
                 .count_bad = nb_count_bad_best()};
    const size_t threads = nb_pool_threads(pool) < MAX_THREADS ? nb_pool_threads(pool) : MAX_THREADS;
    *out = (nb_scan){0};
    pthread_mutex_init(&s.lock, NULL);
    out->modules = calloc(modules->count + 1, sizeof *out->modules);
    out->bad = calloc(nb_ckpt_count(c) + 1, sizeof *out->bad);
    s.buffers = nb_calloc_aligned(threads, CHUNK + CHUNK / 8);
    bool ok = out->modules && out->bad && s.buffers;
    for (size_t i = 0; ok && i < modules->count; i++) ok = add_module(&s, i);
    for (size_t i = 0; ok && i < nb_ckpt_count(c); i++) ok = add_tensor(&s, i);
    if (ok) nb_pool_run(pool, threads, 1, work, &s);
    do_chores(&s);
    out->bytes = s.total;
    if (ok && sink && sink->progress && s.total)
        sink->progress(sink->ctx, "checking values", s.total, s.total);
    if (!ok) nb_scan_free(out);
    pthread_mutex_destroy(&s.lock);
    free(s.buffers);
    free(s.units);
    return ok ? NB_OK : nb_fail_nomem(err, "the values of the weights", s.cap * sizeof *s.units);
}

void nb_scan_free(nb_scan *s)
{
    free(s->modules);
    free(s->bad);
    *s = (nb_scan){0};
}
