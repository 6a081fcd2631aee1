/* Loading: walks the architecture's table, finds each row's stored spelling, reads and packs it. Nothing is ever defaulted. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "models/model.h"
#include "models/packed_cache.h"
#include "numerics/formats.h"

typedef struct loader {
    nb_model *m;
    const nb_sink *sink;
    nb_packed_cache *cache; /* NULL: none */
    uint64_t done, total;
    size_t unusable;            /* linears whose weight's global scale is no number above zero */
    const char *first_unusable; /* one of them, the model's */
} loader;

typedef struct row_source {
    const nb_ckpt *c;
    const nb_linear_src *src;
} row_source;

static nb_status read_rows(void *ctx, size_t row, size_t rows, uint8_t *codes, void *scales, nb_error *err)
{
    const row_source *s = ctx;
    return nb_linear_read(s->c, s->src, row, rows, codes, scales, err);
}

static void progress(loader *ld, uint64_t bytes)
{
    ld->done += bytes;
    if (ld->sink && ld->sink->progress)
        ld->sink->progress(ld->sink->ctx, "loading weights", ld->done, ld->total);
}

/* "3, 4" */
static const char *dims_text(const uint64_t *dims, size_t rank, char buf[96])
{
    buf[0] = '\0';
    for (size_t i = 0, at = 0; i < rank && at < 96; i++)
        at += (size_t)snprintf(buf + at, 96 - at, "%s%llu", i ? ", " : "", (unsigned long long)dims[i]);
    return buf;
}

static nb_status missing(loader *ld, const nb_arch_tensor *row, const char *likely, int64_t l, nb_error *err)
{
    uint64_t dims[4];
    char shape[96];
    size_t rank = nb_config_shape(&ld->m->cfg, row->shape, (int)l, dims, NULL);
    bool linear = row->role == NB_ROLE_LINEAR || row->role == NB_ROLE_EMBED || row->role == NB_ROLE_HEAD;
    nb_fail(err, NB_ERR_MISSING,
            "the %s architecture needs this %s of shape [%s], and no shard has it under any known spelling",
            ld->m->cfg.arch->name, linear ? "weight" : "tensor", dims_text(dims, rank, shape));
    nb_error_at(err, nb_ckpt_dir(ld->m->ckpt), likely, -1);
    nb_error_remedy(err,
                    "download the folder again, or run `nibble check` to see everything that is missing");
    return NB_ERR_MISSING;
}

/* gpt-oss whose experts were taken apart, biases and all. likely: the absent bias of all experts. */
static nb_status biases_apart(loader *ld, const char *likely, nb_error *err)
{
    char one[288];
    const char *dot = strrchr(likely, '.');
    snprintf(one, sizeof one, "%.*s.0.down_proj.bias", dot ? (int)(dot - likely) : 0, likely);
    if (!nb_ckpt_find(ld->m->ckpt, one)) return NB_OK;
    nb_fail(err, NB_ERR_UNSUPPORTED, "each expert has a bias of its own (%s); read are those of all in one",
            one);
    nb_error_at(err, nb_ckpt_dir(ld->m->ckpt), likely, -1);
    nb_error_remedy(err, "stack them: gate_up_proj_bias [experts, 2 width], gate and up in turn, and "
                         "down_proj_bias [experts, hidden]");
    return NB_ERR_UNSUPPORTED;
}

/* A policy's way out of a quantised format: the rows dequantised, as BF16. */
static nb_status read_rows_bf16(void *ctx, size_t row, size_t rows, uint8_t *codes, void *scales,
                                nb_error *err)
{
    const row_source *s = ctx;
    size_t n = rows * s->src->k;
    float *v = malloc(n * sizeof *v);
    if (!v) return nb_fail_nomem(err, s->src->module, n * sizeof *v);
    nb_status st = nb_linear_dequantise(s->c, s->src, row, rows, v, err);
    for (size_t i = 0; st == NB_OK && i < n; i++) {
        uint16_t h = nb_bf16_encode(v[i]);
        memcpy(codes + 2 * i, &h, 2);
    }
    free(v);
    return st;
}

/* What a linear is, without its weight. */
static nb_status describe_linear(loader *ld, const nb_arch_tensor *row, int64_t l, int64_t e, nb_linear *out,
                                 nb_linear_src *src, nb_error *err)
{
    nb_model *m = ld->m;
    char module[256];
    const nb_tensor_info *unused = NULL;
    uint64_t dims[4];
    int64_t blocks = 1;
    nb_status s;
    if (!nb_arch_find(m->ckpt, &m->cfg, row, l, e, module, sizeof module, &unused))
        return missing(ld, row, module, l, err);
    if (nb_config_shape(&m->cfg, row->shape, (int)l, dims, err) != 2)
        return err ? err->status : NB_ERR_FORMAT;
    if (row->blocks && (s = nb_config_int(&m->cfg, row->blocks, (int)l, 1, 1 << 20, &blocks, err))) return s;
    if ((s = nb_linear_describe(m->ckpt, module, dims[0], dims[1], src, err))) return s;
    const bool unusable = src->format == NB_FMT_NVFP4 && !(isfinite(src->multiplier) && src->multiplier > 0);
    if (m->load.adjust && (s = m->load.adjust(m->load.ctx, m, row, l, e, src, err))) return s;
    out->module = strdup(src->module);
    if (!out->module) return nb_fail_nomem(err, "a module name", sizeof src->module);
    if (unusable && !ld->unusable++) ld->first_unusable = out->module;
    out->n = src->n;
    out->k = src->k;
    out->blocks = (size_t)blocks;
    out->format = src->to_bf16 ? NB_FMT_BF16 : src->format;
    out->fp4_input = src->format == NB_FMT_NVFP4 && (!src->to_bf16 || src->fp4_input);
    out->has_input = src->has_input;
    out->input_gs = src->input_gs;
    out->input_multiplier = src->input_multiplier;
    out->split = row->split;
    if (m->fwd->derive) out->derive = m->fwd->derive(m, row, &out->n_derived);
    if (out->k > m->max_k) m->max_k = out->k;
    for (size_t i = 0; i < out->n_derived; i++)
        if (out->derive[i].transposed && out->derive[i].rows > m->max_k) m->max_k = out->derive[i].rows;
    if (e >= 0 && out->n > m->expert_n) m->expert_n = out->n;
    return NB_OK;
}

nb_status nb_model_pack(const nb_model *m, const nb_linear *l, const nb_linear_src *src, nb_weight **out,
                        nb_error *err)
{
    row_source rs = {m->ckpt, src};
    size_t code_bytes = nb_linear_code_bytes(src, 1), scale_bytes = nb_linear_scale_bytes(src, 1);
    nb_weight *w = NULL;
    nb_status s;
    if (src->to_bf16)
        s = m->x->ops->weight_new(m->x, NB_FMT_BF16, l->n, l->k, 0, 1.0f, l->blocks, 2 * l->k, 0,
                                  read_rows_bf16, &rs, &w, err);
    else
        s = m->x->ops->weight_new(m->x, src->format, l->n, l->k, nb_linear_scale_k(src), src->multiplier,
                                  l->blocks, code_bytes, scale_bytes, read_rows, &rs, &w, err);
    if (s == NB_OK && l->n_derived) s = nb_model_derive(m, l, src, w, err);
    if (s == NB_OK)
        *out = w;
    else
        m->x->ops->weight_free(w);
    return s;
}

/* Packs the linears of one slot, or takes them from the cache if there is one. */
static nb_status pack_slot(nb_model *m, nb_packed_cache *cache, nb_slot *slot, nb_error *err)
{
    for (size_t i = 0; i < slot->n_lin; i++) {
        nb_linear *l = &slot->lin[i];
        nb_status s = cache ? nb_packed_cache_pack(cache, l, &slot->src[i], &l->w, err)
                            : nb_model_pack(m, l, &slot->src[i], &l->w, err);
        if (s != NB_OK) return s;
    }
    return NB_OK;
}

static void drop_slot(nb_model *m, nb_slot *slot)
{
    for (size_t i = 0; i < slot->n_lin; i++) {
        m->x->ops->weight_free(slot->lin[i].w);
        slot->lin[i].w = NULL;
    }
}

typedef nb_status (*new_tensor)(nb_exec *x, bool i32, size_t rows, size_t cols, nb_tensor **out,
                                nb_error *err);

/* A tensor of the model's, freed with it. */
static nb_status keep_tensor(nb_model *m, new_tensor make, bool i32, size_t rows, size_t cols,
                             nb_tensor **out, nb_error *err)
{
    nb_tensor **p = realloc(m->tensors, (m->n_tensors + 1) * sizeof *p);
    if (!p) return nb_fail_nomem(err, "a tensor list", sizeof *p);
    m->tensors = p;
    nb_status s = make(m->x, i32, rows, cols, out, err);
    if (s == NB_OK) p[m->n_tensors++] = *out;
    return s;
}

static nb_status load_float(loader *ld, const nb_arch_tensor *row, const nb_tensor_info *t,
                            const uint64_t *dims, size_t rank, nb_slot *out, nb_error *err)
{
    nb_model *m = ld->m;
    size_t cols = dims[rank - 1], rows = 1; /* a convolution's [channels, 1, taps] has a row a channel */
    for (size_t i = 0; i + 1 < rank; i++) rows *= dims[i];
    size_t n = rows * cols;
    nb_status s;
    float *v = calloc(n + 1, sizeof *v);
    if (!v) return nb_fail_nomem(err, t->name, n * sizeof *v);
    s = nb_ckpt_read_f32(m->ckpt, t, v, err);
    for (size_t i = 0; row->plus != 0 && i < n; i++) v[i] += row->plus;
    if (s == NB_OK) s = keep_tensor(m, m->x->ops->param_new, false, rows, cols, &out->t, err);
    if (s == NB_OK) m->x->ops->tensor_write(m->x, out->t, v);
    free(v);
    return s;
}

/* Integer tables hold expert ids; an id out of range would be a wild read later, so it is an error here. */
static nb_status load_index(loader *ld, const nb_arch_tensor *row, const nb_tensor_info *t,
                            const uint64_t *dims, size_t rank, nb_slot *out, nb_error *err)
{
    nb_model *m = ld->m;
    size_t cols = dims[rank - 1], rows = rank == 2 ? dims[0] : 1, n = rows * cols;
    int64_t limit;
    nb_status s = nb_config_int(&m->cfg, m->cfg.arch->n_experts_key, -1, 1, INT32_MAX, &limit, err);
    if (s != NB_OK) return s;
    int64_t *v = calloc(n + 1, sizeof *v);
    int32_t *w = calloc(n + 1, sizeof *w);
    if (!v || !w) {
        s = nb_fail_nomem(err, t->name, n * 12);
        goto out;
    }
    if ((s = nb_ckpt_read_i64(m->ckpt, t, v, err))) goto out;
    for (size_t i = 0; i < n; i++) {
        if (v[i] >= 0 && v[i] < limit) {
            w[i] = (int32_t)v[i];
            continue;
        }
        s = nb_fail(err, NB_ERR_FORMAT, "entry [%zu, %zu] is %lld, expected an expert number below %lld",
                    i / cols, i % cols, (long long)v[i], (long long)limit);
        nb_error_at(err, nb_ckpt_file_path(m->ckpt, t->file), t->name,
                    (int64_t)(t->begin + i * (nb_dtype_bits(t->dtype) / 8)));
        nb_error_remedy(err, "take this tensor from the original checkpoint");
        goto out;
    }
    if ((s = keep_tensor(m, m->x->ops->param_new, true, rows, cols, &out->t, err)) == NB_OK)
        m->x->ops->tensor_write(m->x, out->t, w);
out:
    free(v);
    free(w);
    return s;
}

static nb_status load_tensor(loader *ld, const nb_arch_tensor *row, int64_t l, nb_slot *out, nb_error *err)
{
    nb_model *m = ld->m;
    char name[256], have[96], want[96];
    const nb_tensor_info *t = NULL;
    uint64_t dims[4];
    nb_status s;
    if (!nb_arch_find(m->ckpt, &m->cfg, row, l, -1, name, sizeof name, &t)) {
        const bool bias = row->part == NB_PART_EXPERT_GATE_UP_BIAS || row->part == NB_PART_EXPERT_DOWN_BIAS;
        if (bias && (s = biases_apart(ld, name, err))) return s;
        return missing(ld, row, name, l, err);
    }
    size_t rank = nb_config_shape(&m->cfg, row->shape, (int)l, dims, err);
    if (!rank) return err ? err->status : NB_ERR_FORMAT;
    bool same = t->rank == rank || (rank == 1 && dims[0] == 1 && t->rank == 0);
    for (size_t i = 0; same && i < t->rank; i++) same = t->shape[i] == dims[i];
    if (!same) {
        nb_fail(err, NB_ERR_FORMAT, "shape is %s, but config.json makes it %s = [%s]",
                nb_tensor_shape_text(t, have, sizeof have), row->shape, dims_text(dims, rank, want));
        nb_error_at(err, nb_ckpt_file_path(m->ckpt, t->file), t->name, (int64_t)t->begin);
        nb_error_remedy(err,
                        "config.json and the weights belong to different models; take both from one place");
        return NB_ERR_FORMAT;
    }
    m->other_bytes += nb_tensor_elements(t) * 4;
    s = row->role == NB_ROLE_INDEX ? load_index(ld, row, t, dims, rank, out, err)
                                   : load_float(ld, row, t, dims, rank, out, err);
    progress(ld, t->end - t->begin);
    return s;
}

static nb_status load_slot(loader *ld, const nb_arch_tensor *row, int64_t l, nb_slot *out, nb_error *err)
{
    nb_model *m = ld->m;
    nb_status s;
    if (row->role != NB_ROLE_LINEAR && row->role != NB_ROLE_EMBED && row->role != NB_ROLE_HEAD)
        return load_tensor(ld, row, l, out, err);
    size_t experts = (size_t)nb_arch_experts(&m->cfg, row);
    bool indexed = strstr(row->name, "{e}") != NULL;
    out->lin = calloc(experts, sizeof *out->lin);
    out->src = calloc(experts, sizeof *out->src);
    if (!out->lin || !out->src)
        return nb_fail_nomem(err, "linears", experts * (sizeof *out->lin + sizeof *out->src));
    out->n_lin = experts;
    if (indexed) m->n_experts = experts;
    for (size_t e = 0; e < experts; e++)
        if ((s = describe_linear(ld, row, l, indexed ? (int64_t)e : -1, &out->lin[e], &out->src[e], err)))
            return s;
    if (m->load.stream && l >= 0) return NB_OK;
    if ((s = pack_slot(m, ld->cache, out, err))) return s;
    for (size_t e = 0; e < experts; e++) {
        const nb_linear_src *src = &out->src[e];
        m->format_bytes[out->lin[e].format] += m->x->ops->weight_bytes(out->lin[e].w);
        m->other_bytes += m->x->ops->derived_bytes(out->lin[e].w);
        progress(ld, nb_linear_code_bytes(src, src->n) +
                         (src->format == NB_FMT_FP8 ? 0 : nb_linear_scale_bytes(src, src->n)));
    }
    return NB_OK;
}

static nb_status load_all(loader *ld, nb_error *err)
{
    nb_model *m = ld->m;
    const nb_arch *a = m->cfg.arch;
    for (size_t i = 0; i < a->n_tensors; i++) {
        const nb_arch_tensor *row = &a->tensors[i];
        bool layered = strstr(row->name, "{l}") != NULL;
        for (int64_t l = 0; l < (layered ? m->cfg.n_layers : 1); l++) {
            if (row->when && !row->when(&m->cfg, layered ? (int)l : -1)) continue;
            nb_slot *slot = layered ? &m->layers[(size_t)l * a->n_tensors + i] : &m->global[i];
            nb_status s = load_slot(ld, row, layered ? l : -1, slot, err);
            if (s != NB_OK) return s;
        }
    }
    return NB_OK;
}

/* True when the model as its config describes it has a place for the stored tensor. */
static bool is_used(const nb_config *cfg, const char *name)
{
    int64_t l, e;
    bool skipped;
    const nb_arch_tensor *row = nb_arch_identify(cfg, name, &l, &e, &skipped);
    if (!row) return skipped;
    if (row->role == NB_ROLE_HEAD) return true; /* beside tied embeddings it is a copy */
    return (l < nb_arch_layers(cfg, row) || nb_arch_is_draft(cfg, l)) && e < nb_arch_experts(cfg, row) &&
           (!row->when || row->when(cfg, (int)l));
}

/* A config that asks for fewer layers, or for plain attention, loads and computes something else than the weights are for. */
static void warn_unused(const loader *ld)
{
    const nb_ckpt *c = ld->m->ckpt;
    const char *first = NULL;
    size_t unused = 0, n = nb_ckpt_count(c);
    for (size_t i = 0; i < n; i++) {
        const char *name = nb_ckpt_at(c, i)->name;
        if (is_used(&ld->m->cfg, name)) continue;
        if (!unused++) first = name;
    }
    if (unused)
        nb_log(ld->sink, NB_LOG_WARN,
               "%zu of %zu tensors have no place in the model that config.json describes, and are not used: "
               "%s%s; `nibble check` says more",
               unused, n, first, unused > 1 ? " and others" : "");
}

/* Such a model loads, since whoever looks for the fault must be able to run it; nobody shall learn of it from the answers alone. */
static void warn_unusable(const loader *ld)
{
    if (ld->unusable)
        nb_log(ld->sink, NB_LOG_WARN,
               "the weight's global scale is zero, negative, infinite or NaN in %zu linear%s: %s%s; nothing "
               "right can "
               "come of them: `nibble check` says more",
               ld->unusable, ld->unusable > 1 ? "s" : "", ld->first_unusable,
               ld->unusable > 1 ? " and others" : "");
}

static void warn_spare(const loader *ld)
{
    int64_t n;
    const char *list = nb_config_spare(&ld->m->cfg, &n);
    if (list)
        nb_log(ld->sink, NB_LOG_WARN,
               "config.json: %s has %lld entries more than num_hidden_layers says: they are not read", list,
               (long long)n);
}

static void find_parts(nb_model *m)
{
    for (size_t p = 0; p < NB_PART_COUNT; p++) m->part[p] = -1;
    for (size_t i = 0; i < m->cfg.arch->n_tensors; i++)
        if (m->cfg.arch->tensors[i].part) m->part[m->cfg.arch->tensors[i].part] = (int)i;
}

/* All that is known without weights: config, family, cache streams. */
static nb_status open_model(nb_model *m, const char *path, nb_error *err)
{
    nb_status s;
    int64_t vocab;
    if ((s = nb_ckpt_open(path, NULL, NULL, &m->ckpt, err))) return s;
    if ((s = nb_config_init(m->ckpt, &m->cfg, err))) return s;
    m->fwd = nb_forward_find(m->cfg.arch);
    if (!m->fwd) {
        s = nb_fail(err, NB_ERR_UNSUPPORTED, "architecture %s can be checked but not run by this build",
                    m->cfg.arch->name);
        nb_error_at(err, nb_ckpt_dir(m->ckpt), NULL, -1);
        return s;
    }
    find_parts(m);
    size_t n = m->cfg.arch->n_tensors;
    m->global = calloc(n, sizeof *m->global);
    m->layers = calloc(n * (size_t)m->cfg.n_layers, sizeof *m->layers);
    if (!m->global || !m->layers)
        return nb_fail_nomem(err, "the table of weights", n * (size_t)m->cfg.n_layers * sizeof *m->layers);
    if ((s = nb_config_int(&m->cfg, "vocab_size", -1, 1, INT32_MAX, &vocab, err))) return s;
    m->vocab = (size_t)vocab;
    return m->fwd->open(m, err);
}

nb_status nb_model_load(const char *path, nb_exec *x, const nb_load_options *load, const nb_sink *sink,
                        nb_model **out, nb_error *err)
{
    nb_error local = {0};
    if (!err) err = &local; /* the status is read back from it */
    nb_model *m = calloc(1, sizeof *m);
    if (!m) return nb_fail_nomem(err, "a model", sizeof *m);
    m->x = x;
    if (load) m->load = *load;
    x->streamed = m->load.stream;
    loader ld = {.m = m, .sink = sink};
    nb_status s;
    if ((s = open_model(m, path, err))) goto out;
    ld.total = nb_ckpt_bytes(m->ckpt);
    if (m->load.packed_cache && (s = nb_packed_cache_open(m->load.packed_cache, m, sink, &ld.cache, err)))
        goto out;
    if ((s = load_all(&ld, err))) goto out;
    warn_unused(&ld);
    warn_unusable(&ld);
    warn_spare(&ld);
    if (sink && sink->progress) sink->progress(sink->ctx, "loading weights", ld.total, ld.total);
    if (ld.cache && (s = nb_packed_cache_keep(ld.cache, err))) goto out;
    s = m->fwd->prepare(m, err);
out:
    nb_packed_cache_free(ld.cache);
    if (s == NB_OK)
        *out = m;
    else
        nb_model_free(m);
    return s;
}

/* The widest input of a linear, and what derived forms take in F32: which are BF16 the weights' values say. */
static nb_status outline_linears(nb_model *m, nb_error *err)
{
    const nb_arch *a = m->cfg.arch;
    for (size_t i = 0; i < a->n_tensors; i++) {
        const nb_arch_tensor *row = &a->tensors[i];
        size_t n = 0;
        const nb_derive *forms = m->fwd->derive ? m->fwd->derive(m, row, &n) : NULL;
        if (row->role != NB_ROLE_LINEAR && row->role != NB_ROLE_HEAD) continue;
        for (int64_t l = 0; l < nb_arch_layers(&m->cfg, row); l++) {
            uint64_t dims[4];
            if (row->when && !row->when(&m->cfg, (int)l)) continue;
            size_t rank = nb_config_shape(&m->cfg, row->shape, (int)l, dims, err);
            if (!rank) return NB_ERR_FORMAT;
            if (dims[rank - 1] > m->max_k) m->max_k = dims[rank - 1];
            for (size_t f = 0; f < n; f++)
                m->derived_bytes +=
                    (uint64_t)forms[f].groups * forms[f].rows * dims[rank - 1] * sizeof(float);
        }
    }
    return NB_OK;
}

nb_status nb_model_outline(const char *path, size_t max_rows, nb_model **out, nb_error *err)
{
    nb_exec x = {.max_rows = max_rows}; /* all that opening asks of it; no ops: tensors are counted */
    nb_model *m = calloc(1, sizeof *m);
    if (!m) return nb_fail_nomem(err, "a model", sizeof *m);
    m->x = &x;
    nb_status s = open_model(m, path, err);
    if (s == NB_OK) s = m->fwd->prepare(m, err);
    if (s == NB_OK) s = outline_linears(m, err);
    m->x = NULL;
    if (s == NB_OK)
        *out = m;
    else
        nb_model_free(m);
    return s;
}

static void free_slots(nb_model *m, nb_slot *slots, size_t n)
{
    for (size_t i = 0; slots && i < n; i++) {
        drop_slot(m, &slots[i]);
        for (size_t e = 0; e < slots[i].n_lin; e++) free((void *)slots[i].lin[e].module);
        free(slots[i].lin);
        free(slots[i].src);
    }
    free(slots);
}

nb_status nb_model_judge_config(const nb_config *cfg, nb_error *err)
{
    nb_exec x = {.max_rows = 1}; /* open takes nothing else of it */
    nb_model m = {.cfg = *cfg, .fwd = nb_forward_find(cfg->arch), .x = &x};
    if (!m.fwd) return NB_OK;
    find_parts(&m);
    const nb_status s = m.fwd->open(&m, err);
    if (m.fwd->close && m.state) m.fwd->close(&m);
    free(m.state);
    free(m.streams);
    return s;
}

void nb_model_free(nb_model *m)
{
    if (!m) return;
    if (m->fwd && m->fwd->close && m->state) m->fwd->close(m);
    free(m->state);
    if (m->cfg.arch) {
        free_slots(m, m->global, m->cfg.arch->n_tensors);
        free_slots(m, m->layers, m->cfg.arch->n_tensors * (size_t)m->cfg.n_layers);
    }
    for (size_t i = 0; m->x && i < m->n_tensors; i++)
        m->x->ops->tensor_free(m->tensors[i]); /* an outline has none */
    free(m->tensors);
    free(m->streams);
    nb_ckpt_close(m->ckpt);
    free(m);
}

const nb_slot *nb_model_acquire(nb_model *m, int l, nb_error *err)
{
    size_t n = m->cfg.arch->n_tensors;
    nb_slot *slots = &m->layers[(size_t)l * n];
    for (size_t i = 0; m->load.stream && i < n; i++) {
        if (pack_slot(m, NULL, &slots[i], err) == NB_OK) continue;
        nb_model_release(m, l);
        return NULL;
    }
    return slots;
}

void nb_model_release(nb_model *m, int l)
{
    size_t n = m->cfg.arch->n_tensors;
    for (size_t i = 0; m->load.stream && i < n; i++) drop_slot(m, &m->layers[(size_t)l * n + i]);
}

nb_status nb_model_stream(nb_model *m, nb_stream_decl decl, size_t *index, nb_error *err)
{
    nb_stream_decl *p = realloc(m->streams, (m->n_streams + 1) * sizeof *p);
    if (!p) return nb_fail_nomem(err, "a stream declaration", sizeof *p);
    m->streams = p;
    p[m->n_streams] = decl;
    *index = m->n_streams++;
    return NB_OK;
}

nb_status nb_model_tensor(nb_model *m, bool i32, size_t rows, size_t cols, nb_tensor **out, nb_error *err)
{
    uint64_t bytes;
    if (!m->x->ops) {
        if (__builtin_mul_overflow((uint64_t)rows * 4, (uint64_t)cols, &bytes) ||
            __builtin_add_overflow(m->run_bytes, bytes, &m->run_bytes))
            return nb_fail_nomem(err, "the run's tensors", SIZE_MAX);
        *out = NULL;
        return NB_OK;
    }
    return keep_tensor(m, m->x->ops->tensor_new, i32, rows, cols, out, err);
}
