/* Grouping findings by their cause. */
#include "doctor/groups.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "doctor/report.h"

bool nb_groups_make(const nb_findings *l, nb_groups *out)
{
    nb_map seen = {0}; /* rule, severity, message and remedy -> the group's last finding */
    char **keys = calloc(l->count + 1, sizeof *keys);
    nb_groups g = {.l = l,
                   .next = malloc((l->count + 1) * sizeof *g.next),
                   .first = calloc(l->count + 1, sizeof *g.first)};
    bool ok = keys && g.next && g.first;
    uint32_t last;
    for (uint32_t i = 0; i < l->count && ok; i++) {
        const nb_finding *f = &l->items[i];
        nb_buf key = {0};
        nb_buf_addf(&key, "%s %d %s %s", f->rule, (int)f->severity, f->message, f->remedy ? f->remedy : "");
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
    const char *const fields[] = {f->file, f->measured, f->expected, f->remedy};
    return fields[field];
}

const char *nb_group_field(const nb_groups *g, uint32_t first, nb_field field, bool *same)
{
    const char *text = field_of(&g->l->items[first], field);
    *same = true;
    for (uint32_t i = g->next[first]; i != UINT32_MAX && *same; i = g->next[i])
        *same = same_text(text, field_of(&g->l->items[i], field));
    return text;
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
