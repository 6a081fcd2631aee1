/*
 * Two of the reports. JSON keeps every finding as it is, for scripts. The text is for a person who wants to know what to do:
 * findings with one cause are one paragraph, however many layers and experts show it.
 */
#include "doctor/report.h"

#include <string.h>

#include "doctor/groups.h"

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

static void field_line(const nb_groups *g, uint32_t first, const char *label, nb_field field, nb_buf *out)
{
    nb_buf text = {0};
    if (nb_group_field(g, first, field, &text)) nb_buf_addf(out, "  %-9s %s\n", label, nb_buf_str(&text));
    out->bad = out->bad || !nb_buf_ok(&text);
    nb_buf_free(&text);
}

static void effect_line(void *ctx, const char *families, const char *text, nb_effect_class cls)
{
    nb_buf_addf(ctx, "  %-9s %s: %s (%s)\n", "effect", families, text, nb_effect_class_name(cls));
}

static bool group_text(const nb_groups *g, uint32_t first, const char *dir, nb_buf *out)
{
    const nb_finding *f = &g->l->items[first];
    lines to = {.out = out};
    nb_buf_addf(out, "%s %s  ", nb_severity_name(f->severity), f->rule);
    nb_group_field(g, first, NB_FIELD_MESSAGE, out);
    nb_buf_addc(out, '\n');
    if (!nb_group_names(g, first, name_line, &to)) return false;
    if (to.count > MAX_LINES)
        nb_buf_addf(out, "    … and %zu more lines; --format json names every tensor\n",
                    to.count - MAX_LINES);
    field_line(g, first, "file", NB_FIELD_FILE, out);
    if (f->has_bytes && g->next[first] == UINT32_MAX)
        nb_buf_addf(out, "  %-9s %llu to %llu\n", "bytes", (unsigned long long)f->begin,
                    (unsigned long long)f->end);
    field_line(g, first, "found", NB_FIELD_MEASURED, out);
    field_line(g, first, "expected", NB_FIELD_EXPECTED, out);
    nb_effects_each(f, effect_line, out);
    field_line(g, first, "remedy", NB_FIELD_REMEDY, out);
    if (f->severity != NB_SEVERITY_NOTE) {
        nb_buf_addf(out, "  %-9s ", "repair");
        nb_group_repair(g, first, dir, out);
        nb_buf_addc(out, '\n');
    }
    nb_buf_addc(out, '\n');
    return true;
}

void nb_report_text(const nb_check_result *r, nb_buf *out)
{
    nb_groups g = {0};
    bool ok = nb_groups_make(&r->findings, &g);
    for (uint32_t i = 0; i < r->findings.count && ok; i++) ok = !g.first[i] || group_text(&g, i, r->dir, out);
    nb_report_summary(r, out);
    nb_buf_addf(out, "\n%zu rules on names, shapes, configs and values; `nibble check --rules` lists them\n",
                nb_rules_count);
    if (!nb_findings_of(&r->findings, NB_SEVERITY_ERROR) && !r->ran)
        nb_buf_adds(
            out, "not looked at: activations. Input scales too small for real text show in `nibble check DIR "
                 "--data TEXTS`; `nibble trace DIR --as vllm-cutlass -p TEXT` shows what comes of them\n");
    nb_groups_free(&g);
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
