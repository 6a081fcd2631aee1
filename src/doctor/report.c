/*
 * The two reports. JSON keeps every finding as it is, for scripts. The text is for a person who wants to know what to do:
 * findings with one cause are one paragraph, however many layers and experts show it.
 */
#include "doctor/report.h"

#include <stdlib.h>
#include <string.h>

/* Lines of names in one paragraph; the JSON report has them all. */
#define MAX_LINES 24

static void json_text(const char *key, const char *text, nb_buf *out)
{
    nb_buf_addf(out, "\"%s\":", key);
    if (text)
        nb_buf_add_json(out, text, strlen(text));
    else
        nb_buf_adds(out, "null");
}

void nb_report_json_finding(const nb_finding *f, nb_buf *out)
{
    bool first = true;
    nb_buf_addf(out, "{\"rule\":\"%s\",\"severity\":\"%s\",\"tensors\":[", f->rule,
                nb_severity_name(f->severity));
    for (size_t i = 0; i < f->n_tensors; i++) {
        if (i) nb_buf_addc(out, ',');
        nb_buf_add_json(out, f->tensors[i], strlen(f->tensors[i]));
    }
    nb_buf_adds(out, "],");
    json_text("file", f->file, out);
    if (f->has_bytes)
        nb_buf_addf(out, ",\"bytes\":[%llu,%llu],", (unsigned long long)f->begin, (unsigned long long)f->end);
    else
        nb_buf_adds(out, ",\"bytes\":null,");
    json_text("measured", f->measured, out);
    nb_buf_addc(out, ',');
    json_text("expected", f->expected, out);
    nb_buf_adds(out, ",\"consequences\":{");
    for (int i = 0; i < NB_FAMILY_COUNT; i++) {
        if (!f->effect_text[i]) continue;
        nb_buf_addf(out, "%s\"%s\":{\"class\":\"%s\",", first ? "" : ",", nb_family_name((nb_family)i),
                    nb_effect_class_name(f->effect[i]));
        json_text("text", f->effect_text[i], out);
        nb_buf_addc(out, '}');
        first = false;
    }
    nb_buf_adds(out, "},");
    json_text("remedy", f->remedy, out);
    nb_buf_addf(out, ",\"repairable\":%s,", f->repairable ? "true" : "false");
    json_text("message", f->message, out);
    nb_buf_addc(out, '}');
}

void nb_report_json(const nb_check_result *r, nb_buf *out)
{
    nb_buf_adds(out, "{\"findings\":[");
    for (size_t i = 0; i < r->findings.count; i++) {
        nb_buf_adds(out, i ? ",\n" : "\n");
        nb_report_json_finding(&r->findings.items[i], out);
    }
    nb_buf_addf(
        out,
        "],\n\"summary\":{\"errors\":%zu,\"warnings\":%zu,\"notes\":%zu,\"files\":%zu,\"tensors\":%zu,"
        "\"bytes\":%llu,",
        nb_findings_of(&r->findings, NB_SEVERITY_ERROR), nb_findings_of(&r->findings, NB_SEVERITY_WARNING),
        nb_findings_of(&r->findings, NB_SEVERITY_NOTE), r->files, r->tensors, (unsigned long long)r->bytes);
    json_text("architecture", r->architecture, out);
    nb_buf_adds(out, ",\"rules\":[");
    for (size_t i = 0; i < nb_rules_count; i++) nb_buf_addf(out, "%s\"%s\"", i ? "," : "", nb_rules[i].code);
    nb_buf_adds(out, "]}}\n");
}

/* ---- text ---- */

typedef struct lines {
    nb_buf *out;
    size_t count;
} lines;

static void name_line(void *ctx, const char *text, size_t count)
{
    lines *l = ctx;
    if (l->count++ >= MAX_LINES) return;
    nb_buf_addf(l->out, "    %s", text);
    if (count > 1) nb_buf_addf(l->out, "  (%zu tensors)", count);
    nb_buf_addc(l->out, '\n');
}

/* The tensors of all findings of a group, folded. */
static bool group_names(const nb_findings *l, const uint32_t *next, uint32_t first, nb_buf *out)
{
    size_t n = 0;
    lines to = {.out = out};
    for (uint32_t i = first; i != UINT32_MAX; i = next[i]) n += l->items[i].n_tensors;
    const char **names = malloc((n + 1) * sizeof *names);
    if (!names) return false;
    n = 0;
    for (uint32_t i = first; i != UINT32_MAX; i = next[i]) {
        for (size_t k = 0; k < l->items[i].n_tensors; k++) names[n++] = l->items[i].tensors[k];
    }
    bool ok = nb_fold_names(names, n, name_line, &to);
    if (to.count > MAX_LINES)
        nb_buf_addf(out, "    … and %zu more lines; --format json names every tensor\n",
                    to.count - MAX_LINES);
    free(names);
    return ok;
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static const char *file_of(const nb_finding *f)
{
    return f->file;
}
static const char *measured_of(const nb_finding *f)
{
    return f->measured;
}
static const char *expected_of(const nb_finding *f)
{
    return f->expected;
}
static const char *remedy_of(const nb_finding *f)
{
    return f->remedy;
}

/* A field of the group's findings; where they differ, the first one's and that it is an example. */
static void group_field(const nb_findings *l, const uint32_t *next, uint32_t first, const char *label,
                        const char *(*field)(const nb_finding *f), nb_buf *out)
{
    const char *text = field(&l->items[first]);
    bool same = true;
    for (uint32_t i = next[first]; i != UINT32_MAX && same; i = next[i])
        same = same_text(text, field(&l->items[i]));
    if (text) nb_buf_addf(out, "  %-9s %s%s\n", label, same ? "" : "for example: ", text);
}

static void effects(const nb_finding *f, nb_buf *out)
{
    bool done[NB_FAMILY_COUNT] = {false};
    for (int i = 0; i < NB_FAMILY_COUNT; i++) {
        if (done[i] || !f->effect_text[i]) continue;
        nb_buf_addf(out, "  %-9s %s", "effect", nb_family_name((nb_family)i));
        for (int k = i + 1; k < NB_FAMILY_COUNT; k++) {
            if (f->effect[k] != f->effect[i] || !same_text(f->effect_text[k], f->effect_text[i])) continue;
            nb_buf_addf(out, ", %s", nb_family_name((nb_family)k));
            done[k] = true;
        }
        nb_buf_addf(out, ": %s (%s)\n", f->effect_text[i], nb_effect_class_name(f->effect[i]));
    }
}

static bool group_text(const nb_findings *l, const uint32_t *next, uint32_t first, nb_buf *out)
{
    const nb_finding *f = &l->items[first];
    nb_buf_addf(out, "%s %s  %s\n", nb_severity_name(f->severity), f->rule, f->message);
    if (!group_names(l, next, first, out)) return false;
    group_field(l, next, first, "file", file_of, out);
    if (f->has_bytes && next[first] == UINT32_MAX)
        nb_buf_addf(out, "  %-9s %llu to %llu\n", "bytes", (unsigned long long)f->begin,
                    (unsigned long long)f->end);
    group_field(l, next, first, "found", measured_of, out);
    group_field(l, next, first, "expected", expected_of, out);
    effects(f, out);
    group_field(l, next, first, "remedy", remedy_of, out);
    nb_buf_addc(out, '\n');
    return true;
}

static void count_text(size_t n, const char *what, nb_buf *out)
{
    nb_buf_addf(out, "%zu %s%s", n, what, n == 1 ? "" : "s");
}

static void closing_text(const nb_check_result *r, nb_buf *out)
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
    nb_buf_addf(out, " (%.1f %s, %s)\n", (double)r->bytes / (large ? 1e9 : 1e6), large ? "GB" : "MB",
                r->architecture ? r->architecture : "unknown architecture");
    nb_buf_addf(out, "%zu rules on names, shapes, configs and values; `nibble check --rules` lists them\n",
                nb_rules_count);
    if (!e && !r->ran)
        nb_buf_adds(
            out, "not looked at: activations. Input scales too small for real text show in `nibble check DIR "
                 "--data TEXTS`; `nibble trace DIR --as vllm-cutlass -p TEXT` shows what comes of them\n");
}

void nb_report_text(const nb_check_result *r, nb_buf *out)
{
    const nb_findings *l = &r->findings;
    nb_map groups = {0}; /* rule, message and remedy -> the group's last finding */
    char **keys = calloc(l->count + 1, sizeof *keys);
    uint32_t *next = malloc((l->count + 1) * sizeof *next), last;
    bool *first = calloc(l->count + 1, sizeof *first), ok = keys && next && first;
    for (uint32_t i = 0; i < l->count && ok; i++) {
        const nb_finding *f = &l->items[i];
        nb_buf key = {0};
        nb_buf_addf(&key, "%s %d %s %s", f->rule, (int)f->severity, f->message, f->remedy ? f->remedy : "");
        ok = nb_buf_ok(&key);
        keys[i] = key.data;
        next[i] = UINT32_MAX;
        if (!ok) break;
        first[i] = !nb_map_get(&groups, keys[i], key.len, &last);
        if (!first[i]) next[last] = i;
        ok = nb_map_put(&groups, keys[i], key.len, i, NULL);
    }
    for (uint32_t i = 0; i < l->count && ok; i++) ok = !first[i] || group_text(l, next, i, out);
    closing_text(r, out);
    for (size_t i = 0; keys && i < l->count; i++) free(keys[i]);
    free(keys);
    free(next);
    free(first);
    nb_map_free(&groups);
    out->bad = out->bad || !ok;
}

/* Text in lines of at most 100 columns; its own line ends stay. */
static void wrapped(const char *text, nb_buf *out)
{
    size_t column = 0;
    for (size_t n; *text; text += n) {
        n = strcspn(text, " \n");
        if (column && column + 1 + n > 100) {
            nb_buf_addc(out, '\n');
            column = 0;
        }
        if (column) nb_buf_addc(out, ' ');
        nb_buf_add(out, text, n);
        column += n + (column > 0);
        if (text[n] == '\n') {
            nb_buf_addc(out, '\n');
            column = 0;
        }
        n += text[n] != '\0';
    }
    nb_buf_addc(out, '\n');
}

void nb_report_rules(const char *code, bool json, nb_buf *out)
{
    if (json) nb_buf_adds(out, "{\"rules\":[");
    bool any = false;
    for (size_t i = 0; i < nb_rules_count; i++) {
        const nb_rule *r = &nb_rules[i];
        if (code && strcmp(code, r->code) != 0) continue;
        if (json) {
            nb_buf_addf(out, "%s\n{\"code\":\"%s\",\"severity\":\"%s\",", any ? "," : "", r->code,
                        nb_severity_name(r->severity));
            json_text("title", r->title, out);
            nb_buf_addc(out, ',');
            json_text("explain", r->explain, out);
            nb_buf_addc(out, '}');
        } else {
            nb_buf_addf(out, "%s  %-7s  %s\n", r->code, nb_severity_name(r->severity), r->title);
            if (code) nb_buf_addc(out, '\n');
            if (code) wrapped(r->explain, out);
        }
        any = true;
    }
    if (json) nb_buf_adds(out, "]}\n");
}
