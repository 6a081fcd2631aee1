/*
 * Where each tensor belongs in the architecture's table. Names that differ in numbers alone ("layers.3.mlp.experts.17.w1.weight")
 * belong to one row, whose layer and expert are always the same of these numbers: the table is searched once for each such form,
 * and not for each of 200,000 tensors.
 */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/map.h"
#include "doctor/check.h"

#define MAX_NUMBERS 4
#define PROBE 999999000 /* PROBE + i stands for a name's number i; no layer and no expert is called so */

typedef struct form {
    char *key;      /* the name with '#' for each number */
    nb_place place; /* row NULL: names of this form are looked up one by one */
} form;

typedef struct forms {
    const nb_config *cfg;
    form *items;
    size_t n, cap;
    nb_map by_key;
    nb_buf key, probe;
} forms;

/* Writes the name's form and stores the numbers: parts that are written as exporters write indices. Returns how many. */
static size_t numbers_of(const char *name, int64_t value[MAX_NUMBERS], nb_buf *key)
{
    size_t n = 0;
    nb_buf_clear(key);
    for (const char *p = name; *p;) {
        const size_t part = strcspn(p, "."), digits = strspn(p, "0123456789");
        if (digits && digits == part && digits < 10 && (digits == 1 || *p != '0') && n < MAX_NUMBERS) {
            value[n++] = strtoll(p, NULL, 10);
            nb_buf_addc(key, '#');
        } else {
            nb_buf_add(key, p, part);
        }
        p += part;
        if (*p) nb_buf_addc(key, *p++);
    }
    return n;
}

/* Adds the form of f->key. No table has a number in its names but layer and expert, so that PROBE's do as well as any. */
static const form *add_form(forms *f)
{
    long long number = PROBE;
    if (f->n == f->cap) {
        const size_t cap = 2 * f->cap + 64;
        form *more = realloc(f->items, cap * sizeof *more);
        if (!more) return NULL;
        f->items = more;
        f->cap = cap;
    }
    nb_buf_clear(&f->probe);
    for (const char *p = nb_buf_str(&f->key); *p; p++) {
        if (*p == '#')
            nb_buf_addf(&f->probe, "%lld", number++);
        else
            nb_buf_addc(&f->probe, *p);
    }
    form *new = &f->items[f->n];
    nb_place *at = &new->place;
    if (!nb_buf_ok(&f->probe) || !(new->key = strdup(nb_buf_str(&f->key)))) return NULL;
    at->row = nb_arch_identify(f->cfg, nb_buf_str(&f->probe), &at->l, &at->e, &at->skipped);
    f->n++;
    return nb_map_put(&f->by_key, new->key, f->key.len, (uint32_t)(f->n - 1), NULL) ? new : NULL;
}

static int64_t index_of(int64_t probed, const int64_t *value, size_t n)
{
    return probed >= PROBE && probed < PROBE + (int64_t)n ? value[probed - PROBE] : probed;
}

/* False: out of memory. */
static bool find_place(forms *f, const char *name, nb_place *out)
{
    int64_t value[MAX_NUMBERS];
    uint32_t at;
    const size_t n = strchr(name, '#') ? 0 : numbers_of(name, value, &f->key);
    const form *known = NULL;
    if (n) {
        if (!nb_buf_ok(&f->key)) return false;
        const bool seen = nb_map_get(&f->by_key, nb_buf_str(&f->key), f->key.len, &at);
        if (!(known = seen ? &f->items[at] : add_form(f))) return false;
    }
    if (!known || !known->place.row) {
        out->row = nb_arch_identify(f->cfg, name, &out->l, &out->e, &out->skipped);
        return true;
    }
    *out = known->place;
    out->l = index_of(out->l, value, n);
    out->e = index_of(out->e, value, n);
    return true;
}

nb_status nb_places_find(const nb_ckpt *c, const nb_config *cfg, nb_place **out, nb_error *err)
{
    const size_t n = nb_ckpt_count(c);
    forms f = {.cfg = cfg};
    nb_place *places = calloc(n + 1, sizeof *places);
    bool ok = places;
    for (size_t i = 0; i < n && ok; i++) ok = find_place(&f, nb_ckpt_at(c, i)->name, &places[i]);
    for (size_t i = 0; i < f.n; i++) free(f.items[i].key);
    free(f.items);
    nb_map_free(&f.by_key);
    nb_buf_free(&f.key);
    nb_buf_free(&f.probe);
    if (!ok) {
        free(places);
        return nb_fail_nomem(err, "the tensors' places", n * sizeof *places);
    }
    *out = places;
    return NB_OK;
}
