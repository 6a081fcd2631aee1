/* Two folders compared. The table of each folder's modules says which tensors are one linear. */
#include "doctor/diff.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/linear.h"
#include "doctor/modules.h"

#define ROWS 64
#define CHUNK ((size_t)1 << 20)

typedef struct side {
    nb_ckpt *ckpt;
    nb_modules modules;
} side;

static void ignore_problem(void *ctx, nb_problem_kind kind, const nb_error *what)
{
    (void)ctx;
    (void)kind;
    (void)what;
}

static nb_diff_tensor *add(nb_diff *d, const char *name)
{
    if (d->count == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : 256;
        nb_diff_tensor *p = realloc(d->items, cap * sizeof *p);
        if (!p) return NULL;
        d->items = p;
        d->cap = cap;
    }
    nb_diff_tensor *t = &d->items[d->count];
    *t = (nb_diff_tensor){.name = strdup(name)};
    if (!t->name) return NULL;
    d->count++;
    return t;
}

void nb_diff_free(nb_diff *d)
{
    for (size_t i = 0; i < d->count; i++) free(d->items[i].name);
    free(d->items);
    for (size_t i = 0; i < d->n_files; i++) {
        free(d->files[i].key);
        free(d->files[i].a);
        free(d->files[i].b);
    }
    free(d->files);
    *d = (nb_diff){0};
}

/* Sums over pairs of values. */
typedef struct sums {
    double dot, aa, bb, max;
    bool odd; /* something was not finite */
} sums;

static void add_values(sums *s, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const double x = a[i], y = b[i], d = fabs(x - y);
        s->dot += x * y;
        s->aa += x * x;
        s->bb += y * y;
        s->odd = s->odd || !isfinite(x) || !isfinite(y);
        if (d > s->max || isnan(d)) s->max = d;
    }
}

static void finish(const sums *s, nb_diff_tensor *t)
{
    t->values = true;
    t->max_abs = s->max;
    if (s->odd)
        t->cosine = NAN;
    else if (s->aa == 0 || s->bb == 0)
        t->cosine = s->aa == s->bb;
    else
        t->cosine = fmin(1, s->dot / sqrt(s->aa * s->bb));
}

static uint64_t bytes_of(const nb_tensor_info *t)
{
    return t->end - t->begin;
}

static bool same_form(const nb_tensor_info *a, const nb_tensor_info *b)
{
    if (a->dtype != b->dtype || a->rank != b->rank) return false;
    for (size_t i = 0; i < a->rank; i++)
        if (a->shape[i] != b->shape[i]) return false;
    return true;
}

static nb_status compare_bytes(const side *x, const side *y, const nb_tensor_info *a, const nb_tensor_info *b,
                               nb_diff_tensor *out, nb_error *err)
{
    nb_status s = NB_OK;
    if (!same_form(a, b)) {
        out->bytes_changed = bytes_of(a) > bytes_of(b) ? bytes_of(a) : bytes_of(b);
        return NB_OK;
    }
    unsigned char *p = malloc(2 * CHUNK);
    if (!p) return nb_fail_nomem(err, "comparing tensors", 2 * CHUNK);
    for (uint64_t at = 0, n = bytes_of(a); at < n && s == NB_OK; at += CHUNK) {
        size_t k = n - at < CHUNK ? (size_t)(n - at) : CHUNK;
        s = nb_ckpt_read(x->ckpt, a, at, p, k, err);
        if (s == NB_OK) s = nb_ckpt_read(y->ckpt, b, at, p + CHUNK, k, err);
        for (size_t i = 0; i < k && s == NB_OK; i++) out->bytes_changed += p[i] != p[CHUNK + i];
    }
    free(p);
    return s;
}

static bool is_float(const nb_tensor_info *t)
{
    return t->dtype == NB_DT_BF16 || t->dtype == NB_DT_F16 || t->dtype == NB_DT_F32 || t->dtype == NB_DT_F64;
}

/* Two float tensors of equal number of elements, by value. */
static nb_status compare_floats(const side *x, const side *y, const nb_tensor_info *a,
                                const nb_tensor_info *b, nb_diff_tensor *out, nb_error *err)
{
    const size_t step = CHUNK / sizeof(float);
    float *p = malloc(2 * CHUNK);
    nb_status s = p ? NB_OK : nb_fail_nomem(err, "comparing tensors", 2 * CHUNK);
    sums sum = {0};
    for (uint64_t at = 0, n = nb_tensor_elements(a); at < n && s == NB_OK; at += step) {
        size_t k = n - at < step ? (size_t)(n - at) : step;
        s = nb_ckpt_read_floats(x->ckpt, a, at, k, p, err);
        if (s == NB_OK) s = nb_ckpt_read_floats(y->ckpt, b, at, k, p + step, err);
        if (s == NB_OK) add_values(&sum, p, p + step, k);
    }
    free(p);
    if (s == NB_OK) finish(&sum, out);
    return s;
}

/* Two linears by their dequantised values; values stay unknown when one cannot be read as a linear. */
static nb_status compare_linears(const side *x, const side *y, const char *module, nb_diff_tensor *out,
                                 nb_error *err)
{
    nb_linear_src a = {0}, b = {0};
    nb_error why;
    nb_status s = nb_linear_describe(x->ckpt, module, 0, 0, &a, &why);
    if (s == NB_OK) s = nb_linear_describe(y->ckpt, module, 0, 0, &b, &why);
    if (s != NB_OK || a.n != b.n || a.k != b.k) {
        if (s != NB_ERR_NOMEM && s != NB_ERR_IO) return NB_OK;
        if (err) *err = why;
        return s;
    }
    sums sum = {0};
    float *p = a.k < SIZE_MAX / ROWS / 16 ? malloc(2 * ROWS * a.k * sizeof *p) : NULL;
    if (!p) return nb_fail_nomem(err, "comparing linears", 2 * ROWS * a.k * sizeof *p);
    for (size_t row = 0; row < a.n && s == NB_OK; row += ROWS) {
        const size_t rows = a.n - row < ROWS ? a.n - row : ROWS;
        s = nb_linear_dequantise(x->ckpt, &a, row, rows, p, err);
        if (s == NB_OK) s = nb_linear_dequantise(y->ckpt, &b, row, rows, p + ROWS * a.k, err);
        if (s == NB_OK) add_values(&sum, p, p + ROWS * a.k, rows * a.k);
    }
    free(p);
    if (s == NB_OK) finish(&sum, out);
    return s;
}

/* The module whose codes t is; NULL: t is something else. */
static const nb_module *linear_of(const side *s, const nb_tensor_info *t, nb_buf *name)
{
    size_t len;
    if (nb_member_of(t->name, &len) == NB_MEMBER_COUNT) return NULL;
    nb_buf_clear(name);
    nb_buf_add(name, t->name, len);
    const nb_module *m = nb_buf_ok(name) ? nb_modules_find(&s->modules, nb_buf_str(name)) : NULL;
    return m && nb_module_codes(m) == t && t->rank == 2 ? m : NULL;
}

/* What stands for t in the other folder: the codes of the same linear, else the tensor of the same name. */
static const nb_tensor_info *partner(const side *from, const side *to, const nb_tensor_info *t, nb_buf *name,
                                     const nb_module **linear)
{
    *linear = linear_of(from, t, name);
    const nb_module *m = *linear ? nb_modules_find(&to->modules, (*linear)->name) : NULL;
    const nb_tensor_info *codes = m ? nb_module_codes(m) : NULL;
    return codes ? codes : nb_ckpt_find(to->ckpt, t->name);
}

static nb_status open_side(const char *path, side *s, nb_error *err)
{
    nb_status st = nb_ckpt_open(path, ignore_problem, NULL, &s->ckpt, err);
    return st == NB_OK ? nb_modules_build(s->ckpt, &s->modules, err) : st;
}

static nb_status compare(const side *x, const side *y, const nb_tensor_info *t, nb_buf *name, nb_diff *d,
                         nb_error *err)
{
    const nb_module *m;
    const nb_tensor_info *u = partner(x, y, t, name, &m);
    nb_diff_tensor *out = add(d, t->name);
    nb_status s = NB_OK;
    if (!out) return nb_fail_nomem(err, "a list of tensors", d->count * sizeof *out);
    if (!u) {
        out->only = 'a';
        out->bytes_changed = bytes_of(t);
    } else {
        s = compare_bytes(x, y, t, u, out, err);
        if (s == NB_OK && m)
            s = compare_linears(x, y, m->name, out, err);
        else if (s == NB_OK && is_float(t) && is_float(u) && nb_tensor_elements(t) == nb_tensor_elements(u))
            s = compare_floats(x, y, t, u, out, err);
    }
    d->changed += out->bytes_changed > 0 || out->only;
    return s;
}

nb_status nb_diff_folders(const char *a, const char *b, const nb_sink *sink, nb_diff *out, nb_error *err)
{
    side x = {0}, y = {0};
    nb_diff d = {0};
    nb_buf name = {0};
    uint64_t done = 0;
    nb_status s = open_side(a, &x, err);
    if (s == NB_OK) s = open_side(b, &y, err);
    for (size_t i = 0; s == NB_OK && i < nb_ckpt_count(x.ckpt); i++) {
        const nb_tensor_info *t = nb_ckpt_at(x.ckpt, i);
        s = compare(&x, &y, t, &name, &d, err);
        done += bytes_of(t);
        if (sink && sink->progress) sink->progress(sink->ctx, "comparing", done, nb_ckpt_bytes(x.ckpt));
    }
    for (size_t i = 0; s == NB_OK && i < nb_ckpt_count(y.ckpt); i++) {
        const nb_tensor_info *t = nb_ckpt_at(y.ckpt, i);
        const nb_module *m;
        if (partner(&y, &x, t, &name, &m)) continue;
        nb_diff_tensor *only = add(&d, t->name);
        if (!only) {
            s = nb_fail_nomem(err, "a list of tensors", d.count * sizeof *only);
            break;
        }
        only->only = 'b';
        only->bytes_changed = bytes_of(t);
        d.changed++;
    }
    if (sink && sink->progress && x.ckpt)
        sink->progress(sink->ctx, "comparing", nb_ckpt_bytes(x.ckpt), nb_ckpt_bytes(x.ckpt));
    if (s == NB_OK) s = nb_diff_small_files(nb_ckpt_dir(x.ckpt), nb_ckpt_dir(y.ckpt), &d, err);
    if (s == NB_OK && !nb_buf_ok(&name)) s = nb_fail_nomem(err, "a tensor's name", name.len);
    if (s == NB_OK) {
        *out = d;
        d = (nb_diff){0};
    }
    nb_diff_free(&d);
    nb_buf_free(&name);
    nb_modules_free(&x.modules);
    nb_modules_free(&y.modules);
    nb_ckpt_close(x.ckpt);
    nb_ckpt_close(y.ckpt);
    return s;
}

static void number(const char *key, bool known, double v, nb_buf *out)
{
    nb_buf_addf(out, ",\"%s\":", key);
    if (!known)
        nb_buf_adds(out, "null");
    else if (isfinite(v))
        nb_buf_addf(out, "%.17g", v);
    else
        nb_buf_adds(out, isnan(v) ? "\"nan\"" : "\"inf\"");
}

void nb_diff_json(const nb_diff *d, nb_buf *out)
{
    nb_buf_adds(out, "{\"tensors\":[");
    for (size_t i = 0; i < d->count; i++) {
        const nb_diff_tensor *t = &d->items[i];
        nb_buf_adds(out, i ? ",\n{\"name\":" : "\n{\"name\":");
        nb_buf_add_json(out, t->name, strlen(t->name));
        number("cosine", t->values, t->cosine, out);
        number("max_abs", t->values, t->max_abs, out);
        nb_buf_addf(out, ",\"bytes_changed\":%llu", (unsigned long long)t->bytes_changed);
        if (t->only) nb_buf_addf(out, ",\"only\":\"%c\"", t->only);
        nb_buf_addc(out, '}');
    }
    nb_buf_addc(out, ']');
    nb_diff_files_json(d, out);
    nb_buf_addf(out, ",\n\"changed\":%zu}\n", d->changed);
}

void nb_diff_text(const nb_diff *d, nb_buf *out)
{
    if (d->changed) nb_buf_addf(out, "%10s  %11s  %12s  tensor\n", "cosine", "max |a-b|", "bytes");
    for (size_t i = 0; i < d->count; i++) {
        const nb_diff_tensor *t = &d->items[i];
        if (!t->bytes_changed && !t->only) continue;
        if (t->values)
            nb_buf_addf(out, "%10.6f  %11.4g", t->cosine, t->max_abs);
        else
            nb_buf_addf(out, "%10s  %11s", "-", "-");
        nb_buf_addf(out, "  %12llu  %s%s\n", (unsigned long long)t->bytes_changed, t->name,
                    t->only == 'a'   ? "  (in the first alone)"
                    : t->only == 'b' ? "  (in the second alone)"
                                     : "");
    }
    nb_diff_files_text(d, out);
    nb_buf_addf(out, "%zu of %zu tensors differ", d->changed, d->count);
    nb_buf_adds(out, d->n_files ? "; so do the files named above\n"
                                : "; configs, tokenizer and template are the same\n");
}
