/*
 * Folding names that differ in numbers only: 768 experts' scales are one line in a report. A line with ranges stands for every
 * combination of its numbers, so it is used only where every combination is there; else the class is split by its
 * first number until that is so. Lines that then differ in their last part only become one: "layers.0-2.attn.wq_a.{weight,weight_scale}".
 */
#include <stdlib.h>
#include <string.h>

#include "doctor/report.h"

#define MAX_NUMBERS 4 /* further numbers in a name are taken as text */

typedef struct folded {
    const char *name;
    uint32_t number[MAX_NUMBERS];
    size_t at[MAX_NUMBERS]; /* where in text each number stands */
    size_t n;
    char *text; /* the name with '#' for each number */
} folded;

/* Cuts the numeric components out of a name. False: out of memory. */
static bool parse(const char *name, folded *out)
{
    *out = (folded){.name = name, .text = malloc(strlen(name) + 1)};
    if (!out->text) return false;
    char *p = out->text;
    for (const char *s = name; *s;) {
        size_t len = strcspn(s, "."), digits = strspn(s, "0123456789");
        /* A leading zero would be lost: text then. */
        if (digits && digits == len && digits < 9 && out->n < MAX_NUMBERS && (*s != '0' || digits == 1)) {
            out->at[out->n] = (size_t)(p - out->text);
            out->number[out->n++] = (uint32_t)strtoul(s, NULL, 10);
            *p++ = '#';
        } else {
            memcpy(p, s, len);
            p += len;
        }
        s += len;
        if (*s) *p++ = *s++;
    }
    *p = '\0';
    return true;
}

/* 0: the names are of one class. A '#' that the name itself holds is told apart by its place. */
static int compare_class(const folded *a, const folded *b)
{
    int c = strcmp(a->text, b->text);
    if (!c) c = a->n < b->n ? -1 : a->n > b->n;
    return c ? c : memcmp(a->at, b->at, sizeof a->at);
}

static int compare(const void *pa, const void *pb)
{
    const folded *a = pa, *b = pb;
    int c = compare_class(a, b);
    for (size_t i = 0; !c && i < a->n; i++)
        c = a->number[i] < b->number[i] ? -1 : a->number[i] > b->number[i];
    return c;
}

static int by_value(const void *pa, const void *pb)
{
    const uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;
    return a < b ? -1 : a > b;
}

/* The distinct values of number i among n names, ascending, into v (room for n). */
static size_t distinct(const folded *f, size_t n, size_t i, uint32_t *v)
{
    size_t count = 0;
    for (size_t k = 0; k < n; k++) v[k] = f[k].number[i];
    qsort(v, n, sizeof *v, by_value);
    for (size_t k = 0; k < n; k++) {
        if (!k || v[k] != v[count - 1]) v[count++] = v[k];
    }
    return count;
}

static void add_ranges(const uint32_t *v, size_t n, nb_buf *out)
{
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && v[end] == v[end - 1] + 1;) end++;
        nb_buf_addf(out, "%s%u", i ? "," : "", v[i]);
        if (end - i > 1) nb_buf_addf(out, "-%u", v[end - 1]);
    }
}

typedef struct folder {
    void (*line_fn)(void *ctx, const char *text, size_t count);
    void *ctx;
    uint32_t *values; /* scratch */
    nb_buf line;      /* being made */
    /* Lines that wait for more of their kind: what they share, their last parts, how many, how many names each stands for. */
    nb_buf stem, parts;
    size_t n_parts, each;
    nb_buf whole;
} folder;

/* Hands over what waits. */
static void flush(folder *o)
{
    if (!o->n_parts) return;
    nb_buf_clear(&o->whole);
    nb_buf_adds(&o->whole, nb_buf_str(&o->stem));
    if (o->n_parts > 1) nb_buf_addc(&o->whole, '{');
    nb_buf_adds(&o->whole, nb_buf_str(&o->parts));
    if (o->n_parts > 1) nb_buf_addc(&o->whole, '}');
    o->line_fn(o->ctx, nb_buf_str(&o->whole), o->n_parts * o->each);
    o->n_parts = 0;
}

/* Takes the finished line, which stands for n names. */
static void take(folder *o, size_t n)
{
    const char *text = nb_buf_str(&o->line), *dot = strrchr(text, '.'), *last = dot ? dot + 1 : text;
    const size_t stem = (size_t)(last - text);
    const bool joins =
        o->n_parts && o->each == n && o->stem.len == stem && memcmp(nb_buf_str(&o->stem), text, stem) == 0;
    if (!joins) {
        flush(o);
        nb_buf_clear(&o->stem);
        nb_buf_clear(&o->parts);
        nb_buf_add(&o->stem, text, stem);
        o->each = n;
    }
    if (joins) nb_buf_addc(&o->parts, ',');
    nb_buf_adds(&o->parts, last);
    o->n_parts++;
}

/* n names of one text, sorted, that agree in the first `fixed` numbers. */
static void emit(folder *o, const folded *f, size_t n, size_t fixed)
{
    size_t grid = 1;
    for (size_t i = fixed; i < f->n; i++) grid *= distinct(f, n, i, o->values);
    if (grid != n) {
        for (size_t i = 0, end; i < n; i = end) {
            for (end = i + 1; end < n && f[end].number[fixed] == f[i].number[fixed];) end++;
            emit(o, f + i, end - i, fixed + 1);
        }
        return;
    }
    nb_buf_clear(&o->line);
    size_t k = 0;
    for (size_t at = 0; f->text[at]; at++) {
        if (k >= f->n || at != f->at[k]) {
            nb_buf_addc(&o->line, f->text[at]);
            continue;
        }
        size_t count = distinct(f, n, k++, o->values);
        add_ranges(o->values, count, &o->line);
    }
    take(o, n);
}

bool nb_fold_names(const char *const *names, size_t n,
                   void (*line)(void *ctx, const char *text, size_t count), void *ctx)
{
    folder o = {.line_fn = line, .ctx = ctx};
    folded *f = calloc(n + 1, sizeof *f);
    o.values = malloc((n + 1) * sizeof *o.values);
    bool ok = f && o.values;
    for (size_t i = 0; i < n && ok; i++) ok = parse(names[i], &f[i]);
    if (ok && n) qsort(f, n, sizeof *f, compare);
    size_t kept = 0; /* a name given twice counts once */
    for (size_t i = 0; i < n && ok; i++) {
        if (kept && compare(&f[kept - 1], &f[i]) == 0) {
            free(f[i].text);
            f[i].text = NULL;
            continue;
        }
        folded t = f[i];
        f[i].text = NULL;
        f[kept++] = t;
    }
    for (size_t i = 0, end; i < kept && ok; i = end) {
        for (end = i + 1; end < kept && compare_class(&f[end], &f[i]) == 0;) end++;
        emit(&o, f + i, end - i, 0);
    }
    flush(&o);
    ok = ok && nb_buf_ok(&o.line) && nb_buf_ok(&o.whole) && nb_buf_ok(&o.stem) && nb_buf_ok(&o.parts);
    for (size_t i = 0; f && i < n; i++) free(f[i].text);
    free(f);
    free(o.values);
    nb_buf_free(&o.line);
    nb_buf_free(&o.whole);
    nb_buf_free(&o.stem);
    nb_buf_free(&o.parts);
    return ok;
}
