/*
 * Findings as one self-contained page: the sum on top, then a card for each cause with its tensors, its numbers, what each family of
 * kernels makes of it and the remedy. No script, no network; light or dark as the reader's system is.
 */
#include "doctor/groups.h"
#include "doctor/html.h"
#include "doctor/report.h"

#define OPEN_LINES 12 /* folded lines of names that are shown at once; the rest opens on a click */

static const char style[] =
    ".card{border:1px solid var(--line);border-left:5px solid var(--dim);border-radius:6px;padding:12px "
    "16px;margin:16px 0;"
    "overflow-wrap:anywhere}.card.error{border-left-color:var(--bad)}.card.warning{border-left-color:var(--"
    "warn)}"
    ".card h2{margin:0 0 6px}.card .kind{color:var(--dim);font-weight:500}.error .kind{color:var(--bad)}"
    ".warning .kind{color:var(--warn)}ul{margin:6px 0 0;padding:0;list-style:none;font:13px/1.5 "
    "ui-monospace,monospace}"
    "li i{color:var(--dim);font-style:normal}details summary{color:var(--dim);cursor:pointer;font-size:13px}"
    ".effects{border-collapse:collapse;margin:12px 0 0;width:100%;font-size:14px}.effects td{border-top:1px "
    "solid var(--line);"
    "padding:4px 16px 4px 0;vertical-align:top}.effects td:first-child{white-space:nowrap;color:var(--dim)}"
    ".cls{font-weight:600;color:var(--bad)}.cls.fine{color:var(--ok)}.remedy{margin:12px 0 0}.remedy "
    "b{font-weight:600}"
    "@media(max-width:560px){dl{grid-template-columns:1fr}dd{margin-bottom:6px}.effects "
    "td:first-child{white-space:normal}}";

typedef struct names {
    nb_buf *out;
    size_t count;
} names;

static void name_line(void *ctx, const char *text, size_t count)
{
    names *n = ctx;
    if (n->count++ == OPEN_LINES) nb_buf_adds(n->out, "</ul><details><summary>more tensors</summary><ul>");
    nb_buf_adds(n->out, "<li>");
    nb_html_escape(text, n->out);
    if (count > 1) nb_buf_addf(n->out, " <i>%zu tensors</i>", count);
    nb_buf_adds(n->out, "</li>");
}

static void field_line(const nb_groups *g, uint32_t first, const char *label, nb_field field, nb_buf *out)
{
    nb_buf text = {0};
    if (nb_group_field(g, first, field, &text)) {
        nb_buf_addf(out, "<dt>%s</dt><dd>", label);
        nb_html_escape(nb_buf_str(&text), out);
        nb_buf_adds(out, "</dd>");
    }
    out->bad = out->bad || !nb_buf_ok(&text);
    nb_buf_free(&text);
}

static void effect_line(void *ctx, const char *families, const char *text, nb_effect_class cls)
{
    nb_buf_adds(ctx, "<tr><td>");
    nb_html_escape(families, ctx);
    nb_buf_addf(ctx, "</td><td><span class=\"cls%s\">%s</span>: ", cls == NB_EFFECT_FINE ? " fine" : "",
                nb_effect_class_name(cls));
    nb_html_escape(text, ctx);
    nb_buf_adds(ctx, "</td></tr>");
}

static bool card(const nb_groups *g, uint32_t first, const char *dir, nb_buf *out)
{
    const nb_finding *f = &g->l->items[first];
    const nb_rule *r = nb_rule_find(f->rule);
    names n = {.out = out};
    nb_buf text = {0};
    nb_buf_addf(out, "<section class=\"card %s\"><h2><span class=kind title=\"",
                nb_severity_name(f->severity));
    if (r) nb_html_escape(r->title, out);
    nb_buf_addf(out, "\">%s %s</span> ", nb_severity_name(f->severity), f->rule);
    nb_group_field(g, first, NB_FIELD_MESSAGE, &text);
    nb_html_escape(nb_buf_str(&text), out);
    nb_buf_clear(&text);
    nb_buf_adds(out, "</h2><ul>");
    if (!nb_group_names(g, first, name_line, &n)) {
        nb_buf_free(&text);
        return false;
    }
    nb_buf_adds(out, n.count > OPEN_LINES ? "</ul></details><dl>" : "</ul><dl>");
    field_line(g, first, "file", NB_FIELD_FILE, out);
    if (f->has_bytes && g->next[first] == UINT32_MAX)
        nb_buf_addf(out, "<dt>bytes</dt><dd>%llu to %llu</dd>", (unsigned long long)f->begin,
                    (unsigned long long)f->end);
    field_line(g, first, "found", NB_FIELD_MEASURED, out);
    field_line(g, first, "expected", NB_FIELD_EXPECTED, out);
    nb_buf_adds(out, "</dl><table class=effects>");
    nb_effects_each(f, effect_line, out);
    nb_buf_adds(out, "</table>");
    if (nb_group_field(g, first, NB_FIELD_REMEDY, &text)) {
        nb_buf_adds(out, "<p class=remedy><b>Remedy</b> ");
        nb_html_escape(nb_buf_str(&text), out);
        nb_buf_adds(out, "</p>");
    }
    if (f->severity != NB_SEVERITY_NOTE) {
        nb_buf_clear(&text);
        nb_group_repair(g, first, dir, &text);
        nb_buf_adds(out, "<p class=remedy><b>Repair</b> ");
        nb_html_escape(nb_buf_str(&text), out);
        nb_buf_adds(out, "</p>");
    }
    out->bad = out->bad || !nb_buf_ok(&text);
    nb_buf_free(&text);
    nb_buf_adds(out, "</section>\n");
    return true;
}

void nb_report_html(const nb_check_result *r, nb_buf *out)
{
    nb_groups g = {0};
    nb_buf sum = {0};
    bool ok = nb_groups_make(&r->findings, &g);
    nb_report_summary(r, &sum);
    nb_html_begin("check", "Check of", r->dir, style, out);
    nb_buf_addf(
        out, "<p class=sub>%zu rules on names, shapes, configs and values%s</p>\n<div class=\"verdict%s\">",
        nb_rules_count, r->ran ? ", and input scales against activations" : "",
        nb_findings_of(&r->findings, NB_SEVERITY_ERROR) ? " bad" : "");
    nb_html_escape(nb_buf_str(&sum), out);
    nb_buf_adds(out, "</div>\n");
    for (uint32_t i = 0; i < r->findings.count && ok; i++) ok = !g.first[i] || card(&g, i, r->dir, out);
    nb_html_end(out);
    out->bad = out->bad || !ok || sum.bad;
    nb_groups_free(&g);
    nb_buf_free(&sum);
}
