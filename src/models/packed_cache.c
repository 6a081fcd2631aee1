/* The cache of packed weights: one pass over the index when a file is opened, one read of each weight that it has, one write at the
 * end of a load that found some missing. */
#include "models/packed_cache.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/mem.h"

#define MAGIC "nibble packed 1\n"
#define MAGIC_ANY 14 /* bytes of it that every version has */
#define PIECE ((size_t)64 << 10)

/* Both as they stand in the file: little-endian, without padding. */
typedef struct header {
    char magic[16];
    uint64_t bytes, weights, pieces; /* bytes: of the file */
    uint64_t source[2];
    uint64_t index_hash; /* of the index, seeded with the hash of all before this member */
} header;

typedef struct entry {
    uint64_t key[2], at;
    uint32_t pieces;
    uint8_t forms, format[NB_MAX_DERIVED + 1]; /* format: nb_format of form 0, 1, … */
} entry;
_Static_assert(sizeof(header) == 64 && sizeof(entry) == 32, "no padding");

/* A weight of this run. */
typedef struct weight {
    uint64_t key[2];
    nb_weight *w;
    size_t forms;
} weight;

struct nb_packed_cache {
    nb_model *m;
    nb_sink sink;
    char *path;
    uint64_t source[2];
    nb_file file; /* closed: nothing to read */
    header head;
    entry *entries; /* [head.weights] */
    uint64_t *hash; /* [head.pieces] */
    size_t piece;   /* the first of the next weight's */
    weight *made;   /* [n_made] of `room` */
    size_t n_made, room, n_packed;
    bool told; /* of damage */
    uint64_t written;
    nb_error *errs; /* [threads] */
};

/* ---- Pieces ---- */

typedef struct piece_job {
    nb_packed *w;
    size_t panels;       /* of a piece */
    const nb_file *file; /* NULL: only hash */
    uint64_t at;
    uint64_t *hash; /* [pieces of w] */
    nb_error *errs;
    atomic_bool odd;
} piece_job;

static size_t piece_panels(const nb_packed *w)
{
    return 1 + PIECE / (w->code_bytes + w->scale_bytes);
}

static size_t count_pieces(const nb_packed *w)
{
    return nb_ceil_div(w->panels, piece_panels(w));
}

static uint64_t hash_panels(const nb_packed *w, size_t panel, size_t panels)
{
    const uint64_t codes = XXH3_64bits(w->codes + panel * w->code_bytes, panels * w->code_bytes);
    return w->scales
               ? XXH3_64bits_withSeed(w->scales + panel * w->scale_bytes, panels * w->scale_bytes, codes)
               : codes;
}

static nb_status read_piece(piece_job *j, size_t piece, size_t panel, size_t panels, nb_error *err)
{
    nb_packed *w = j->w;
    const uint64_t codes = j->at + panel * w->code_bytes,
                   scales = j->at + w->panels * w->code_bytes + panel * w->scale_bytes;
    nb_status s = nb_file_read(j->file, codes, w->codes + panel * w->code_bytes, panels * w->code_bytes, err);
    if (s == NB_OK && w->scales)
        s = nb_file_read(j->file, scales, w->scales + panel * w->scale_bytes, panels * w->scale_bytes, err);
    if (s != NB_OK) return s;
    if (hash_panels(w, panel, panels) != j->hash[piece]) {
        s = nb_fail(err, NB_ERR_FORMAT, "%zu bytes from here on are not those that were written",
                    panels * w->code_bytes);
        nb_error_at(err, j->file->path, NULL, (int64_t)codes);
        return s;
    }
    if (nb_packed_odd(w, panel, panels)) atomic_store(&j->odd, true);
    return NB_OK;
}

static void do_pieces(void *ctx, size_t thread, size_t begin, size_t end)
{
    piece_job *j = ctx;
    for (size_t p = begin; p < end; p++) {
        const size_t panel = p * j->panels, left = j->w->panels - panel,
                     panels = left < j->panels ? left : j->panels;
        if (!j->file)
            j->hash[p] = hash_panels(j->w, panel, panels);
        else if (read_piece(j, p, panel, panels, &j->errs[thread]) != NB_OK)
            return;
    }
}

/* Reads w's bytes from `at` on, and compares their hashes. */
static nb_status read_block(nb_packed_cache *c, nb_packed *w, uint64_t at, uint64_t *hash, nb_error *err)
{
    const size_t threads = nb_pool_threads(c->m->x->pool);
    piece_job j = {
        .w = w, .panels = piece_panels(w), .file = &c->file, .at = at, .hash = hash, .errs = c->errs};
    memset(c->errs, 0, threads * sizeof *c->errs);
    nb_pool_run(c->m->x->pool, count_pieces(w), 1, do_pieces, &j);
    w->odd_scales = atomic_load(&j.odd);
    for (size_t t = 0; t < threads; t++) {
        if (c->errs[t].status == NB_OK) continue;
        *err = c->errs[t];
        return err->status;
    }
    return NB_OK;
}

/* ---- Who is who ---- */

/* Name, size, time and header of each shard, as they are behind the descriptors that weights are read from: by name another file may
 * stand there since. */
static nb_status identify(const nb_ckpt *ckpt, uint64_t out[2], nb_error *err)
{
    nb_buf text = {0};
    nb_status s = NB_OK;
    for (uint32_t i = 0; i < nb_ckpt_files(ckpt) && s == NB_OK; i++) {
        const nb_file *f = nb_ckpt_file(ckpt, i);
        struct stat st = {0};
        uint64_t n = 0;
        if ((s = nb_file_read(f, 0, &n, sizeof n, err)) == NB_OK && n > NB_SAFETENSORS_MAX_HEADER) {
            s = nb_fail(err, NB_ERR_FORMAT, "the header's length changed while the model was loaded");
            nb_error_at(err, f->path, NULL, 0);
        }
        char *head = s == NB_OK ? malloc((size_t)n + 1) : NULL;
        if (s == NB_OK && !head) s = nb_fail_nomem(err, f->path, (size_t)n + 1);
        if (s == NB_OK) s = nb_file_read(f, sizeof n, head, (size_t)n, err);
        if (s == NB_OK && fstat(f->fd, &st) != 0)
            s = nb_fail(err, NB_ERR_IO, "%s cannot be examined", f->path);
        if (s == NB_OK)
            nb_buf_addf(&text, "%s\n%lld %lld.%09ld %llx\n", nb_ckpt_file_name(ckpt, i),
                        (long long)st.st_size, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec,
                        (unsigned long long)XXH3_64bits(head, (size_t)n));
        free(head);
    }
    if (s == NB_OK && !nb_buf_ok(&text)) s = nb_fail_nomem(err, "the names of the model's files", text.len);
    const XXH128_hash_t h = XXH3_128bits(text.data, text.len);
    out[0] = h.low64;
    out[1] = h.high64;
    nb_buf_free(&text);
    return s;
}

/* Everything that packing l depends on. */
static nb_status key_of(const nb_packed_cache *c, const nb_linear *l, const nb_linear_src *src,
                        uint64_t out[2], nb_error *err)
{
    nb_buf text = {0};
    uint32_t multiplier;
    memcpy(&multiplier, &src->multiplier, sizeof multiplier);
    nb_buf_addf(&text, "%llx %llx %s\n%d %d %d %zu %zu %zu %08x %zu %zu %zu %zu %zu\n",
                (unsigned long long)c->source[0], (unsigned long long)c->source[1], src->module,
                (int)src->scheme, (int)src->format, (int)src->to_bf16, l->n, l->k, l->blocks, multiplier,
                src->rows_per, src->cols_per, src->first, src->gap, src->ld);
    for (size_t i = 0; i < l->n_derived; i++)
        nb_buf_addf(&text, "%zu %zu %zu %d\n", l->derive[i].groups, l->derive[i].from, l->derive[i].rows,
                    (int)l->derive[i].transposed);
    if (src->scale_map) nb_buf_add(&text, src->scale_map, 256);
    const nb_status s = nb_buf_ok(&text) ? NB_OK : nb_fail_nomem(err, src->module, text.len);
    const XXH128_hash_t h = XXH3_128bits(text.data, text.len);
    out[0] = h.low64;
    out[1] = h.high64;
    nb_buf_free(&text);
    return s;
}

/* ---- Reading ---- */

static uint64_t index_hash(const header *h, const entry *entries, const uint64_t *hash)
{
    uint64_t seed = XXH3_64bits(h, offsetof(header, index_hash));
    seed = XXH3_64bits_withSeed(entries, h->weights * sizeof *entries, seed);
    return XXH3_64bits_withSeed(hash, h->pieces * sizeof *hash, seed);
}

/* The file stays where it is, to be replaced, and is not read. */
static void disregard(nb_packed_cache *c, const char *why)
{
    nb_log(&c->sink, NB_LOG_WARN, "%s %s: weights are packed from the checkpoint, and it is written anew",
           c->path, why);
    nb_file_close(&c->file);
}

/* Whether the header speaks of this file. */
static const char *judge_header(const nb_packed_cache *c)
{
    const header *h = &c->head;
    const uint64_t size = c->file.size;
    if (memcmp(h->magic, MAGIC, sizeof h->magic) != 0) return "is of another version of nibble";
    if (h->bytes != size) return "is cut short, or has grown";
    const uint64_t left = size - sizeof *h;
    if (h->weights > left / sizeof(entry) ||
        h->pieces > (left - h->weights * sizeof(entry)) / sizeof(uint64_t))
        return "is damaged";
    if (memcmp(h->source, c->source, sizeof h->source) != 0)
        return "was made of other files, or they have changed since";
    return NULL;
}

static nb_status read_index(nb_packed_cache *c, nb_error *err)
{
    header *h = &c->head;
    nb_status s = c->file.size < sizeof *h ? NB_OK : nb_file_read(&c->file, 0, h, sizeof *h, err);
    if (s != NB_OK) return s;
    if (memcmp(h->magic, MAGIC, MAGIC_ANY) != 0) {
        s = nb_fail(err, NB_ERR_ARGUMENT, "this is no cache of packed weights, and is not written over");
        nb_error_at(err, c->path, NULL, 0);
        nb_error_remedy(err, "name another file with --packed-cache, or remove this one");
        return s;
    }
    const char *why = judge_header(c);
    if (why) {
        disregard(c, why);
        return NB_OK;
    }
    const size_t entries = (size_t)h->weights * sizeof(entry), hashes = (size_t)h->pieces * sizeof(uint64_t);
    c->entries = malloc(entries + 1);
    c->hash = malloc(hashes + 1);
    if (!c->entries || !c->hash) return nb_fail_nomem(err, c->path, entries + hashes);
    if (nb_file_read(&c->file, sizeof *h, c->entries, entries, NULL) != NB_OK ||
        nb_file_read(&c->file, sizeof *h + entries, c->hash, hashes, NULL) != NB_OK) {
        disregard(c, "has an index that cannot be read");
        return NB_OK;
    }
    uint64_t pieces = 0;
    for (uint64_t i = 0; i < h->weights; i++) pieces += c->entries[i].pieces;
    if (index_hash(h, c->entries, c->hash) != h->index_hash || pieces != h->pieces)
        disregard(c, "is damaged");
    return NB_OK;
}

nb_status nb_packed_cache_open(const char *path, nb_model *m, const nb_sink *sink, nb_packed_cache **out,
                               nb_error *err)
{
    nb_packed_cache *c = calloc(1, sizeof *c);
    if (!c) return nb_fail_nomem(err, "the cache of packed weights", sizeof *c);
    nb_status s = NB_OK;
    const size_t threads = nb_pool_threads(m->x->pool);
    c->m = m;
    c->file.fd = -1;
    if (sink) c->sink = *sink;
    c->path =
        strcmp(path, "auto") == 0 ? nb_path_join(nb_ckpt_dir(m->ckpt), NB_PACKED_CACHE_NAME) : strdup(path);
    c->errs = calloc(threads, sizeof *c->errs);
    if (!c->path || !c->errs) {
        s = nb_fail_nomem(err, "the cache of packed weights", threads * sizeof *c->errs);
        goto out;
    }
    if (m->load.stream) {
        s = nb_fail(err, NB_ERR_ARGUMENT, "weights that are read layer by layer have no cache");
        goto out;
    }
    if ((s = identify(m->ckpt, c->source, err))) goto out;
    s = nb_file_open(c->path, &c->file, err);
    if (s == NB_OK) s = read_index(c, err);
    if (s == NB_ERR_MISSING) s = NB_OK; /* it will be written */
out:
    if (s == NB_OK)
        *out = c;
    else
        nb_packed_cache_free(c);
    return s;
}

/* One form of a weight as the entry has it; *piece and *at are moved behind it. */
static nb_status read_form(nb_packed_cache *c, const entry *e, size_t form, const nb_linear *l,
                           const nb_linear_src *src, size_t *piece, uint64_t *at, nb_weight **out,
                           nb_error *err)
{
    const nb_ops *op = c->m->x->ops;
    const float multiplier = src->to_bf16 ? 1.0f : src->multiplier;
    const nb_format format = (nb_format)e->format[form];
    size_t n = l->n, k = l->k, blocks = l->blocks,
           scale_k = format == src->format && !form ? nb_linear_scale_k(src) : 0;
    nb_weight *w = NULL;
    nb_packed *b;
    if (form) {
        nb_derive_shape(&l->derive[form - 1], src->k, &n, &k);
        blocks = l->derive[form - 1].groups;
    }
    nb_status s = op->weight_blank(c->m->x, format, n, k, scale_k, multiplier, blocks, &w, err);
    for (size_t i = 0; s == NB_OK && (b = op->weight_block(w, 0, i)); i++) {
        const size_t pieces = count_pieces(b);
        if (pieces > e->pieces - *piece) {
            s = nb_fail(err, NB_ERR_FORMAT, "its index gives this weight fewer bytes than it has");
            nb_error_at(err, c->path, src->module, -1);
            break;
        }
        s = read_block(c, b, *at, c->hash + c->piece + *piece, err);
        *piece += pieces;
        *at += nb_packed_bytes(b);
    }
    if (s == NB_OK)
        *out = w;
    else
        op->weight_free(w);
    return s;
}

static nb_status read_weight(nb_packed_cache *c, const entry *e, const nb_linear *l, const nb_linear_src *src,
                             nb_weight **out, nb_error *err)
{
    const nb_ops *op = c->m->x->ops;
    nb_weight *w = NULL, *form = NULL;
    size_t piece = 0;
    uint64_t at = e->at;
    nb_status s = read_form(c, e, 0, l, src, &piece, &at, &w, err);
    for (size_t i = 1; s == NB_OK && i < e->forms; i++) {
        if ((s = read_form(c, e, i, l, src, &piece, &at, &form, err)) == NB_OK) op->weight_attach(w, form);
    }
    if (s == NB_OK)
        *out = w;
    else
        op->weight_free(w);
    return s;
}

/* Whether the entry can be this weight: a right key says so, and what is used of a wrong file must not harm. */
static bool fits(const entry *e, const uint64_t key[2], const nb_linear *l, const nb_linear_src *src)
{
    const nb_format own = src->to_bf16 ? NB_FMT_BF16 : src->format;
    bool ok = memcmp(e->key, key, sizeof e->key) == 0 && e->forms == l->n_derived + 1 && e->format[0] == own;
    for (size_t i = 1; ok && i < e->forms; i++)
        ok = e->format[i] == NB_FMT_BF16 || e->format[i] == NB_FMT_F32;
    return ok;
}

static nb_status note(nb_packed_cache *c, const uint64_t key[2], nb_weight *w, size_t forms, nb_error *err)
{
    if (c->n_made == c->room) {
        const size_t room = c->room ? 2 * c->room : 256;
        weight *p = realloc(c->made, room * sizeof *p);
        if (!p) return nb_fail_nomem(err, "the list of packed weights", room * sizeof *p);
        c->made = p;
        c->room = room;
    }
    c->made[c->n_made++] = (weight){.key = {key[0], key[1]}, .w = w, .forms = forms};
    return NB_OK;
}

nb_status nb_packed_cache_pack(nb_packed_cache *c, const nb_linear *l, const nb_linear_src *src,
                               nb_weight **out, nb_error *err)
{
    uint64_t key[2];
    nb_weight *w = NULL;
    nb_error why = {0};
    nb_status s = key_of(c, l, src, key, err);
    if (s != NB_OK) return s;
    const entry *e = c->file.fd >= 0 && c->n_made < c->head.weights ? &c->entries[c->n_made] : NULL;
    if (e && fits(e, key, l, src)) {
        s = read_weight(c, e, l, src, &w, &why);
        if (s == NB_ERR_NOMEM) {
            if (err) *err = why;
            return s;
        }
        if (s != NB_OK && !c->told) {
            char line[1024];
            nb_error_format(&why, line, sizeof line);
            nb_log(&c->sink, NB_LOG_WARN,
                   "the cache of packed weights is damaged and will be written anew: %s", line);
            c->told = true;
        }
    }
    if (e) c->piece += e->pieces;
    if (!w) {
        if ((s = nb_model_pack(c->m, l, src, &w, err))) return s;
        c->n_packed++;
    }
    s = note(c, key, w, l->n_derived + 1, err);
    if (s == NB_OK)
        *out = w;
    else
        c->m->x->ops->weight_free(w);
    return s;
}

/* ---- Writing ---- */

/* Calls fn for every block of every weight, in the order of the file. */
static nb_status each_block(nb_packed_cache *c,
                            nb_status (*fn)(nb_packed_cache *c, size_t i, size_t form, nb_packed *b,
                                            void *ctx, nb_error *err),
                            void *ctx, nb_error *err)
{
    nb_status s = NB_OK;
    nb_packed *b;
    for (size_t i = 0; i < c->n_made && s == NB_OK; i++)
        for (size_t form = 0; form < c->made[i].forms && s == NB_OK; form++)
            for (size_t n = 0; s == NB_OK && (b = c->m->x->ops->weight_block(c->made[i].w, form, n)); n++)
                s = fn(c, i, form, b, ctx, err);
    return s;
}

/* Fills the index but for hashes and places; counts pieces and bytes in head. */
static nb_status outline_block(nb_packed_cache *c, size_t i, size_t form, nb_packed *b, void *ctx,
                               nb_error *err)
{
    entry *e = &c->entries[i];
    memcpy(e->key, c->made[i].key, sizeof e->key);
    e->forms = (uint8_t)c->made[i].forms;
    e->format[form] = (uint8_t)b->format;
    e->pieces += (uint32_t)count_pieces(b);
    c->head.pieces += count_pieces(b);
    return NB_OK;
}

/* Hashes the block and gives it the next place. */
static nb_status place_block(nb_packed_cache *c, size_t i, size_t form, nb_packed *b, void *ctx,
                             nb_error *err)
{
    piece_job j = {.w = b, .panels = piece_panels(b), .hash = c->hash + c->piece};
    nb_pool_run(c->m->x->pool, count_pieces(b), 1, do_pieces, &j);
    if (!c->entries[i].at) c->entries[i].at = c->head.bytes;
    c->head.bytes += nb_packed_bytes(b);
    c->piece += count_pieces(b);
    return NB_OK;
}

static nb_status make_index(nb_packed_cache *c, nb_error *err)
{
    free(c->entries);
    free(c->hash);
    c->hash = NULL;
    c->piece = 0;
    c->head = (header){.magic = MAGIC, .weights = c->n_made, .source = {c->source[0], c->source[1]}};
    c->entries = calloc(c->n_made + 1, sizeof *c->entries);
    if (!c->entries) return nb_fail_nomem(err, "the cache's index", c->n_made * sizeof *c->entries);
    nb_status s = each_block(c, outline_block, NULL, err);
    c->hash = calloc((size_t)c->head.pieces + 1, sizeof *c->hash);
    if (!c->hash) return nb_fail_nomem(err, "the cache's index", (size_t)c->head.pieces * sizeof *c->hash);
    c->head.bytes = nb_round_up(
        sizeof c->head + c->n_made * sizeof(entry) + (size_t)c->head.pieces * sizeof(uint64_t), NB_ALIGN);
    if (s == NB_OK) s = each_block(c, place_block, NULL, err);
    c->head.index_hash = index_hash(&c->head, c->entries, c->hash);
    return s;
}

static nb_status put_block(nb_packed_cache *c, size_t i, size_t form, nb_packed *b, void *ctx, nb_error *err)
{
    nb_status s = nb_writer_put(ctx, b->codes, b->panels * b->code_bytes, err);
    if (s == NB_OK && b->scales) s = nb_writer_put(ctx, b->scales, b->panels * b->scale_bytes, err);
    c->written += nb_packed_bytes(b);
    if (s == NB_OK && c->sink.progress)
        c->sink.progress(c->sink.ctx, "keeping packed weights", c->written, c->head.bytes);
    return s;
}

/* What was packed must be what the identity says. */
static nb_status unchanged(const nb_packed_cache *c, nb_error *err)
{
    uint64_t source[2];
    nb_status s = identify(c->m->ckpt, source, err);
    if (s == NB_OK && memcmp(source, c->source, sizeof source) != 0) {
        s = nb_fail(err, NB_ERR_IO, "the model's files changed while they were loaded");
        nb_error_at(err, nb_ckpt_dir(c->m->ckpt), NULL, -1);
        nb_error_remedy(err, "start again when they are complete");
    }
    return s;
}

static nb_status write_file(nb_packed_cache *c, nb_error *err)
{
    static const char zeros[NB_ALIGN];
    c->written = 0;
    const size_t entries = c->n_made * sizeof(entry), hashes = (size_t)c->head.pieces * sizeof(uint64_t),
                 index = sizeof c->head + entries + hashes;
    nb_writer *w = NULL;
    nb_status s = nb_writer_open(c->path, &w, err);
    if (s != NB_OK) return s;
    s = nb_writer_put(w, &c->head, sizeof c->head, err);
    if (s == NB_OK) s = nb_writer_put(w, c->entries, entries, err);
    if (s == NB_OK) s = nb_writer_put(w, c->hash, hashes, err);
    if (s == NB_OK) s = nb_writer_put(w, zeros, nb_round_up(index, NB_ALIGN) - index, err);
    if (s == NB_OK) s = each_block(c, put_block, w, err);
    if (s == NB_OK) s = unchanged(c, err);
    if (s != NB_OK) {
        nb_writer_abort(w);
        return s;
    }
    s = nb_writer_commit(w, err);
    if (s == NB_OK && c->sink.progress)
        c->sink.progress(c->sink.ctx, "keeping packed weights", c->head.bytes, c->head.bytes);
    return s;
}

nb_status nb_packed_cache_keep(nb_packed_cache *c, nb_error *err)
{
    const double start = nb_now();
    nb_error why = {0};
    if (c->file.fd >= 0 && !c->n_packed && c->n_made == c->head.weights) {
        nb_log(&c->sink, NB_LOG_INFO, "%zu packed weights from %s", c->n_made, c->path);
        return NB_OK;
    }
    nb_file_close(&c->file);
    nb_status s = make_index(c, err);
    if (s != NB_OK) return s;
    if (write_file(c, &why) == NB_OK) {
        nb_log(&c->sink, NB_LOG_INFO, "%s: %.1f MB of packed weights kept for the next start, %.2f s",
               c->path, (double)c->head.bytes / 1e6, nb_now() - start);
    } else {
        char line[1024];
        nb_error_format(&why, line, sizeof line);
        nb_log(&c->sink, NB_LOG_WARN, "packed weights are not kept, the next start packs them again: %s",
               line);
    }
    return NB_OK;
}

void nb_packed_cache_free(nb_packed_cache *c)
{
    if (!c) return;
    nb_file_close(&c->file);
    free(c->path);
    free(c->entries);
    free(c->hash);
    free(c->made);
    free(c->errs);
    free(c);
}
