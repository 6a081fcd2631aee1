/* Grouping findings by their cause. */
#include "doctor/groups.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "doctor/report.h"

/* The length of the number that begins at p, 0: none does. Digits within a name ("layers.3", "E4M3", "0001-of-0002") are none. */
static size_t number_at(const char *text, const char *p)
{
    const char before = p > text ? p[-1] : ' ';
    if (isalnum((unsigned char)before) || strchr("_.-", before) || !isdigit((unsigned char)*p)) return 0;
    char *end;
    strtod(p, &end);
    if (isalnum((unsigned char)*end) || *end == '_' || (*end == '.' && isalnum((unsigned char)end[1])) ||
        (*end == '-' && isalnum((unsigned char)end[1])))
        return 0;
    return (size_t)(end - p);
}

/* text with each number as '#'. */
static void add_skeleton(const char *text, nb_buf *out)
{
    for (const char *p = text; *p;) {
        const size_t n = number_at(text, p);
        if (n)
            nb_buf_addc(out, '#');
        else
            nb_buf_addc(out, *p);
        p += n ? n : 1;
    }
}

/* What findings of one group have in common. */
static void add_key(const nb_finding *f, nb_buf *out)
{
    nb_buf_addf(out, "%s %d %d ", f->rule, (int)f->severity, f->repairable);
    add_skeleton(f->message, out);
    for (int i = 0; i < NB_FAMILY_COUNT; i++)
        nb_buf_addf(out, " %d", f->effect_text[i] ? (int)f->effect[i] : -1);
}

bool nb_groups_make(const nb_findings *l, nb_groups *out)
{
    nb_map seen = {0}; /* key -> the group's last finding */
    char **keys = calloc(l->count + 1, sizeof *keys);
    nb_groups g = {.l = l,
                   .next = malloc((l->count + 1) * sizeof *g.next),
                   .first = calloc(l->count + 1, sizeof *g.first)};
    bool ok = keys && g.next && g.first;
    uint32_t last;
    for (uint32_t i = 0; i < l->count && ok; i++) {
        const nb_finding *f = &l->items[i];
        nb_buf key = {0};
        add_key(f, &key);
        ok = nb_buf_ok(&key);
        keys[i] = key.data;
        g.next[i] = UINT32_MAX;
        if (!ok) break;
        g.first[i] = !nb_map_get(&seen, keys[i], key.len, &last);
        if (!g.first[i]) g.next[last] = i;
        ok = nb_map_put(&seen, keys[i], key.len, i, NULL);
    }
    for (size_t i = 0; keys && i < l->count; i++) free(keys[i]);
    free(keys);
    nb_map_free(&seen);
    if (ok)
        *out = g;
    else
        nb_groups_free(&g);
    return ok;
}

void nb_groups_free(nb_groups *g)
{
    free(g->next);
    free(g->first);
    *g = (nb_groups){0};
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static const char *field_of(const nb_finding *f, nb_field field)
{
    const char *const fields[] = {f->file, f->measured, f->expected, f->remedy, f->message};
    return fields[field];
}

/* One number over all texts of a group: its least and its greatest as they are written. */
typedef struct range {
    const char *least, *most;
    size_t least_len, most_len;
} range;

#define MAX_NUMBERS 16

/* Widens the ranges of `text`'s numbers; *n: how many, at most MAX_NUMBERS. */
static void widen(const char *text, range *r, size_t *n)
{
    *n = 0;
    for (const char *p = text; *p && *n < MAX_NUMBERS;) {
        const size_t len = number_at(text, p);
        if (len) {
            range *x = &r[(*n)++];
            const double v = strtod(p, NULL);
            if (!x->least || v < strtod(x->least, NULL)) {
                x->least = p;
                x->least_len = len;
            }
            if (!x->most || v > strtod(x->most, NULL)) {
                x->most = p;
                x->most_len = len;
            }
        }
        p += len ? len : 1;
    }
}

/* first's text with the ranges in place of its numbers. */
static void add_ranges(const char *text, const range *r, size_t n, nb_buf *out)
{
    size_t k = 0;
    for (const char *p = text; *p;) {
        const size_t len = number_at(text, p);
        if (len && k < n) {
            nb_buf_add(out, r[k].least, r[k].least_len);
            if (r[k].least_len != r[k].most_len || memcmp(r[k].least, r[k].most, r[k].most_len) != 0) {
                nb_buf_adds(out, "..");
                nb_buf_add(out, r[k].most, r[k].most_len);
            }
            k++;
        } else {
            nb_buf_add(out, p, len ? len : 1);
        }
        p += len ? len : 1;
    }
}

bool nb_group_field(const nb_groups *g, uint32_t first, nb_field field, nb_buf *out)
{
    const char *text = field_of(&g->l->items[first], field);
    range r[MAX_NUMBERS] = {0};
    nb_buf want = {0}, have = {0};
    size_t n = 0;
    bool same = true;
    if (!text) return false;
    add_skeleton(text, &want);
    for (uint32_t i = first; i != UINT32_MAX && same; i = g->next[i]) {
        const char *other = field_of(&g->l->items[i], field);
        nb_buf_clear(&have);
        if (other) add_skeleton(other, &have);
        same = other && same_text(nb_buf_str(&have), nb_buf_str(&want));
        if (same) widen(other, r, &n);
    }
    if (same) {
        add_ranges(text, r, n, out);
    } else {
        nb_buf_adds(out, "for example: ");
        nb_buf_adds(out, text);
    }
    out->bad = out->bad || !nb_buf_ok(&want) || !nb_buf_ok(&have);
    nb_buf_free(&want);
    nb_buf_free(&have);
    return true;
}

void nb_group_repair(const nb_groups *g, uint32_t first, const char *dir, nb_buf *out)
{
    static const char *const measured[] = {"NB104", "NB105", "NB108", "NB111"};
    const nb_finding *f = &g->l->items[first];
    bool data = false;
    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++)
        data = data || strcmp(f->rule, measured[i]) == 0;
    if (f->repairable)
        nb_buf_addf(out, "yes: nibble repair %s -o OUT", dir);
    else if (data)
        nb_buf_addf(out, "with texts to measure on: nibble repair %s -o OUT --data TEXTS", dir);
    else
        nb_buf_adds(out, "no: the files do not tell what should be there");
}

bool nb_group_names(const nb_groups *g, uint32_t first,
                    void (*line)(void *ctx, const char *text, size_t count), void *ctx)
{
    size_t n = 0;
    for (uint32_t i = first; i != UINT32_MAX; i = g->next[i]) n += g->l->items[i].n_tensors;
    const char **names = malloc((n + 1) * sizeof *names);
    if (!names) return false;
    n = 0;
    for (uint32_t i = first; i != UINT32_MAX; i = g->next[i]) {
        for (size_t k = 0; k < g->l->items[i].n_tensors; k++) names[n++] = g->l->items[i].tensors[k];
    }
    bool ok = nb_fold_names(names, n, line, ctx);
    free(names);
    return ok;
}

void nb_effects_each(const nb_finding *f,
                     void (*each)(void *ctx, const char *families, const char *text, nb_effect_class cls),
                     void *ctx)
{
    bool done[NB_FAMILY_COUNT] = {false};
    for (int i = 0; i < NB_FAMILY_COUNT; i++) {
        char families[96];
        if (done[i] || !f->effect_text[i]) continue;
        size_t n = (size_t)snprintf(families, sizeof families, "%s", nb_family_name((nb_family)i));
        for (int k = i + 1; k < NB_FAMILY_COUNT; k++) {
            if (f->effect[k] != f->effect[i] || !same_text(f->effect_text[k], f->effect_text[i])) continue;
            n += (size_t)snprintf(families + n, sizeof families - n, ", %s", nb_family_name((nb_family)k));
            done[k] = true;
        }
        each(ctx, families, f->effect_text[i], f->effect[i]);
    }
}

static void count_text(size_t n, const char *what, nb_buf *out)
{
    nb_buf_addf(out, "%zu %s%s", n, what, n == 1 ? "" : "s");
}

void nb_report_summary(const nb_check_result *r, nb_buf *out)
{
    const nb_findings *l = &r->findings;
    const size_t e = nb_findings_of(l, NB_SEVERITY_ERROR), w = nb_findings_of(l, NB_SEVERITY_WARNING),
                 n = nb_findings_of(l, NB_SEVERITY_NOTE);
    if (!e && !w) nb_buf_adds(out, "no fault found");
    if (e) count_text(e, "error", out);
    if (e && w) nb_buf_adds(out, ", ");
    if (w) count_text(w, "warning", out);
    if (n) nb_buf_adds(out, ", ");
    if (n) count_text(n, "note", out);
    nb_buf_addf(out, " in %zu tensors of ", r->tensors);
    count_text(r->files, "file", out);
    const bool large = r->bytes >= 1000000000;
    nb_buf_addf(out, " (%.1f %s, %s)", (double)r->bytes / (large ? 1e9 : 1e6), large ? "GB" : "MB",
                r->architecture ? r->architecture : "unknown architecture");
}
