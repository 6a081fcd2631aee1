/*
 * A trace as one self-contained page: the verdict, a map of layers by operators coloured by what each loses against exact on the
 * same input, how the losses are spread, and the worst linears. No script, no network; light or dark as the reader's system is.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "doctor/html.h"
#include "doctor/trace_internal.h"

#define WORST 25
#define STEPS 6
#define BINS 12

/* The column of a row: its name without the layer, all experts as one. */
static void column_of(const nb_trace_row *r, char *buf, size_t cap)
{
    const char *s = r->module, *layer = strstr(s, "layers.");
    size_t n = 0;
    if (layer) {
        s = layer + strlen("layers.");
        while (*s && *s != '.') s++;
        s += *s == '.';
    }
    for (; *s && n + 2 < cap; s++) {
        bool number = *s >= '0' && *s <= '9' && s > r->module && s[-1] == '.';
        if (number) {
            buf[n++] = '*';
            while (s[1] >= '0' && s[1] <= '9') s++;
        } else {
            buf[n++] = *s;
        }
    }
    buf[n] = '\0';
    if (!n) snprintf(buf, cap, "%s", r->op); /* what belongs to the layer as a whole */
}

typedef struct cell {
    const nb_trace_row *worst;
    size_t count;
} cell;

typedef struct grid {
    nb_map columns;
    char **names;
    size_t n, cap, layers;
    cell *cells; /* [n][layers + 1]: the last row is what lies outside the layers */
} grid;

static double loss_of(const nb_trace_row *r)
{
    return r->nonfinite || isnan(r->snr_local_db) ? -INFINITY : r->snr_local_db;
}

/* Finds or makes r's column; false: out of memory. */
static bool column(grid *g, const nb_trace_row *r, uint32_t *at)
{
    char name[256];
    column_of(r, name, sizeof name);
    if (nb_map_get(&g->columns, name, strlen(name), at)) return true;
    if (g->n == g->cap) {
        size_t cap = g->cap ? 2 * g->cap : 32;
        char **names = realloc(g->names, cap * sizeof *names);
        if (names) g->names = names;
        cell *cells = realloc(g->cells, cap * (g->layers + 1) * sizeof *cells);
        if (cells) g->cells = cells;
        if (!names || !cells) return false;
        g->cap = cap;
    }
    *at = (uint32_t)g->n;
    memset(g->cells + g->n * (g->layers + 1), 0, (g->layers + 1) * sizeof *g->cells);
    g->names[g->n] = strdup(name);
    if (!g->names[g->n]) return false;
    g->n++;
    return nb_map_put(&g->columns, g->names[*at], strlen(g->names[*at]), *at, NULL);
}

static bool fill(grid *g, const nb_trace *t)
{
    g->layers = (size_t)t->n_layers;
    for (size_t i = 0; i < t->n; i++) /* a probe may know layers that no forward pass was asked for */
        if (t->rows[i].layer >= (int)g->layers && t->probe) g->layers = (size_t)t->rows[i].layer + 1;
    for (size_t i = 0; i < t->n; i++) {
        const nb_trace_row *r = &t->rows[i];
        uint32_t at = 0;
        if (!r->has_in && !r->nonfinite) continue; /* exact by construction: nothing to see */
        if (!column(g, r, &at) || !g->cells) return false;
        bool inside = r->layer >= 0 && r->layer < (int)g->layers;
        cell *c = &g->cells[at * (g->layers + 1) + (inside ? (size_t)r->layer : g->layers)];
        if (!c->worst || loss_of(r) < loss_of(c->worst)) c->worst = r;
        c->count++;
    }
    return true;
}

/* A number that may be none: NaN has no sign worth reading. */
static void number(const char *fmt, double v, nb_buf *out)
{
    if (isnan(v))
        nb_buf_adds(out, "NaN");
    else if (isinf(v))
        nb_buf_adds(out, v < 0 ? "-∞" : "∞");
    else
        nb_buf_addf(out, fmt, v);
}

/* 0: not finite; 1 … STEPS: from lost to as good as exact. */
static int shade(const nb_trace_row *r)
{
    static const double from[STEPS] = {-INFINITY, 6, 12, 16, 25, 40};
    double snr = loss_of(r);
    int s = 0;
    if (r->nonfinite || isnan(r->snr_local_db)) return 0;
    while (s < STEPS && snr >= from[s]) s++;
    return s;
}

static void percent(double v, nb_buf *out)
{
    nb_buf_addf(out, v == 0 ? "0" : v < 0.001 ? "%.3f %%" : "%.1f %%", 100 * v);
}

static void map_table(const grid *g, nb_buf *out)
{
    nb_buf_adds(out, "<div class=scroll><table class=map><tr><th></th>");
    for (size_t c = 0; c < g->n; c++) {
        nb_buf_adds(out, "<th class=col><span>");
        nb_html_escape(g->names[c], out);
        nb_buf_adds(out, "</span></th>");
    }
    nb_buf_adds(out, "</tr>\n");
    for (size_t l = 0; l <= g->layers; l++) {
        bool any = false;
        for (size_t c = 0; c < g->n; c++) any |= g->cells[c * (g->layers + 1) + l].worst != NULL;
        if (!any) continue;
        if (l < g->layers)
            nb_buf_addf(out, "<tr><th>%zu</th>", l);
        else
            nb_buf_adds(out, "<tr><th>end</th>");
        for (size_t c = 0; c < g->n; c++) {
            const cell *x = &g->cells[c * (g->layers + 1) + l];
            if (!x->worst) {
                nb_buf_adds(out, "<td></td>");
                continue;
            }
            int s = shade(x->worst);
            nb_buf_addf(out, "<td class=s%d title=\"", s);
            nb_html_escape(x->worst->module, out);
            if (x->count > 1) nb_buf_addf(out, " (worst of %zu)", x->count);
            nb_buf_adds(out, ": local cosine ");
            number("%.4f", x->worst->cos_local, out);
            nb_buf_adds(out, ", SNR ");
            number("%.1f", x->worst->snr_local_db, out);
            nb_buf_adds(out, " dB, in amax ");
            number("%.4g", x->worst->in_amax, out);
            nb_buf_adds(out, ", saturated ");
            percent(x->worst->saturated, out);
            nb_buf_adds(out, ", flushed ");
            percent(x->worst->flushed, out);
            if (s == 0)
                nb_buf_adds(out, "\">NaN</td>");
            else if (isinf(x->worst->snr_local_db))
                nb_buf_adds(out, "\">=</td>");
            else
                nb_buf_addf(out, fabs(x->worst->snr_local_db) < 9.95 ? "\">%.1f</td>" : "\">%.0f</td>",
                            x->worst->snr_local_db);
        }
        nb_buf_adds(out, "</tr>\n");
    }
    nb_buf_adds(out, "</table></div>\n");
}

static void legend(nb_buf *out)
{
    static const char *const texts[STEPS + 1] = {"not finite", "below 6 dB", "6 to 12",    "12 to 16",
                                                 "16 to 25",   "25 to 40",   "40 and more"};
    nb_buf_adds(out, "<p class=legend>");
    for (int i = 0; i <= STEPS; i++) nb_buf_addf(out, "<span><i class=s%d></i>%s</span> ", i, texts[i]);
    nb_buf_adds(out, "<span><i class=s6>=</i>equal to exact</span></p>\n");
}

/* How the local losses of linears are spread, 5 dB a bar. */
static void histogram(const nb_trace *t, nb_buf *out)
{
    size_t bins[BINS + 1] = {0}, top = 1;
    for (size_t i = 0; i < t->n; i++) {
        const nb_trace_row *r = &t->rows[i];
        if (!r->has_in) continue;
        double snr = loss_of(r);
        size_t b = r->nonfinite || isnan(r->snr_local_db) ? 0
                   : snr < 0                              ? 1
                   : snr >= 5 * (BINS - 1)                ? BINS
                                                          : 1 + (size_t)(snr / 5);
        if (++bins[b] > top) top = bins[b];
    }
    nb_buf_adds(out, "<p class=sub>Bars of 5 dB; below each the number where it begins.</p>\n"
                     "<div class=bars role=img aria-label=\"linears by local SNR\">");
    for (size_t b = 0; b <= BINS; b++) {
        nb_buf_addf(out, "<div%s><b>", b ? "" : " class=b0");
        if (bins[b]) nb_buf_addf(out, "%zu", bins[b]);
        nb_buf_addf(out, "</b><i style=\"height:%.1fpx\"></i><span>", 96.0 * (double)bins[b] / (double)top);
        if (b == 0)
            nb_buf_adds(out, "NaN");
        else
            nb_buf_addf(out, "%zu%s", 5 * (b - 1), b == BINS ? "+" : "");
        nb_buf_adds(out, "</span></div>");
    }
    nb_buf_adds(out, "</div>\n");
}

static void worst_table(const nb_trace *t, nb_buf *out)
{
    size_t n;
    const nb_trace_row **w = nb_trace_worst(t, &n);
    if (!w) {
        out->bad = true;
        return;
    }
    nb_buf_adds(out, "<div class=scroll><table class=rows><tr><th>module</th><th>SNR dB</th><th>local "
                     "cosine</th><th>saturated</th><th>flushed</th><th>in amax</th><th>total "
                     "cosine</th><th>not finite</th></tr>\n");
    for (size_t i = 0; i < n && i < WORST; i++) {
        const nb_trace_row *r = w[i];
        nb_buf_addf(out, "<tr%s><td>", r->bad ? " class=bad" : "");
        nb_html_escape(r->module, out);
        nb_buf_adds(out, "</td><td>");
        number("%.1f", r->snr_local_db, out);
        nb_buf_adds(out, "</td><td>");
        number("%.4f", r->cos_local, out);
        nb_buf_adds(out, "</td><td>");
        percent(r->saturated, out);
        nb_buf_adds(out, "</td><td>");
        percent(r->flushed, out);
        nb_buf_adds(out, "</td><td>");
        number("%.4g", r->in_amax, out);
        nb_buf_adds(out, "</td><td>");
        number("%.4f", r->cos_total, out);
        nb_buf_addf(out, "</td><td>%llu</td></tr>\n", (unsigned long long)r->nonfinite);
    }
    nb_buf_adds(out, "</table></div>\n");
    free((void *)w);
}

/* What check said of the folder: rule, what is wrong, where. */
static void findings_list(const nb_findings *l, nb_buf *out)
{
    if (!l->count) return;
    nb_buf_adds(out, "<h2>What nibble check says of the folder</h2>\n<ul class=findings>");
    for (size_t i = 0; i < l->count && i < WORST; i++) {
        const nb_finding *f = &l->items[i];
        nb_buf_addf(out, "<li><b class=%s>%s %s</b> ", nb_severity_name(f->severity),
                    nb_severity_name(f->severity), f->rule);
        nb_html_escape(f->message, out);
        if (f->n_tensors) {
            nb_buf_adds(out, "<br><code>");
            nb_html_escape(f->tensors[0], out);
            nb_buf_adds(out, "</code>");
            if (f->n_tensors > 1) nb_buf_addf(out, " and %zu more", f->n_tensors - 1);
        }
        nb_buf_adds(out, "</li>\n");
    }
    if (l->count > WORST) nb_buf_addf(out, "<li>and %zu more</li>\n", l->count - WORST);
    nb_buf_adds(out, "</ul>\n");
}

static const char style[] =
    ":root{--s0:#6b1f7a;--s1:#b3261e;--s2:#ee8a62;--s3:#f3b874;--s4:#f3e2a9;--s5:#d6ebcd;--s6:#a5d6a0;--on:#"
    "fff}"
    "@media(prefers-color-scheme:dark){:root{--s0:#a04bb5;--s1:#bd3a33;--s2:#a54a26;--s3:#85601f;--s4:#"
    "57532a;"
    "--s5:#33503a;--s6:#1f4428}}"
    ".legend{color:var(--dim);margin:0 0 12px;font-size:13px}code{font:13px ui-monospace,monospace}"
    ".findings{margin:0;padding:0;list-style:none}.findings li{padding:6px 0;border-bottom:1px solid "
    "var(--line);overflow-wrap:anywhere}.error{color:var(--bad)}.warning{color:var(--warn)}"
    ".note{color:var(--dim)}"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}"
    ".map td,.map th{min-width:36px;height:26px;text-align:center;padding:0 4px;border:1px solid var(--bg)}"
    ".map th{color:var(--dim);font-weight:500}"
    ".map tr>th:first-child{position:sticky;left:0;background:var(--bg)}"
    ".map .col{vertical-align:bottom;padding-bottom:6px}"
    ".map .col span{writing-mode:vertical-rl;transform:rotate(180deg);white-space:nowrap}"
    ".s0{background:var(--s0);color:var(--on)}.s1{background:var(--s1);color:var(--on)}"
    ".s2{background:var(--s2)}.s3{background:var(--s3)}.s4{background:var(--s4)}.s5{background:var(--s5)}"
    ".s6{background:var(--s6)}"
    ".legend span{display:inline-block;margin-right:12px}"
    ".legend i{display:inline-block;width:16px;height:16px;border-radius:3px;margin-right:5px;"
    "vertical-align:middle;font:13px/16px system-ui,sans-serif;text-align:center;color:var(--fg)}"
    ".bars{display:flex;gap:4px;max-width:640px;align-items:flex-end;color:var(--dim)}"
    ".bars div{flex:1;min-width:0;text-align:center}.bars b,.bars i,.bars span{display:block}"
    ".bars b{font-weight:400;font-size:12px}.bars i{background:var(--dim);border-radius:2px 2px 0 0}"
    ".bars .b0 i{background:var(--s0)}"
    ".bars span{font-size:12px;border-top:1px solid var(--line);padding-top:3px}"
    ".rows{width:100%}.rows th,.rows td{padding:4px 10px;border-bottom:1px solid var(--line);"
    "text-align:right;white-space:nowrap}.rows th{color:var(--dim);font-weight:500}"
    ".rows td:first-child,.rows th:first-child{text-align:left}"
    ".rows td:first-child{font-family:ui-monospace,monospace}.rows .bad td:first-child{color:var(--bad)}"
    "@media(max-width:600px){main{padding:14px 12px 40px}.rows th,.rows td{padding:4px 6px}"
    ".rows td:first-child{white-space:normal;overflow-wrap:anywhere;min-width:150px;font-size:12px}"
    ".rows th{white-space:normal}}";

void nb_trace_html(const nb_trace *t, const char *title, nb_buf *out)
{
    const nb_trace_fault *f = &t->fault;
    grid g = {0};
    bool ok = fill(&g, t);
    nb_html_begin("trace", "Trace of", title, style, out);
    nb_buf_addf(out, "<p class=sub>%s%s, arithmetic %s, activations %s%s, %zu %s</p>\n",
                t->stack ? "as " : "", t->stack ? nb_stack_name(t->stack) : "nibble", nb_arith_name(t->arith),
                t->act_bf16 ? "bf16" : "f32", t->cast_nosat ? ", cast without saturation" : "", t->tokens,
                t->probe ? "random rows a linear" : "tokens");
    nb_buf_addf(out, "<div class=\"verdict%s\">", f->cause ? " bad" : "");
    nb_html_escape(t->verdict, out);
    if (f->cause) {
        nb_buf_addf(out, "<dl><dt>cause</dt><dd>%s</dd>", nb_cause_name(f->cause));
        if (f->tensor[0]) {
            nb_buf_adds(out, "<dt>tensor</dt><dd>");
            nb_html_escape(f->tensor, out);
            nb_buf_adds(out, "</dd>");
        }
        if (f->offset >= 0) {
            nb_buf_adds(out, "<dt>where</dt><dd>");
            nb_html_escape(f->file, out);
            nb_buf_addf(out, ", byte %lld</dd>", (long long)f->offset);
        }
        nb_buf_adds(out, "</dl>");
    }
    nb_buf_adds(out, "</div>\n");
    findings_list(&t->findings, out);
    nb_buf_adds(out, "<h2>Layers by operators: local SNR in dB</h2>\n");
    legend(out);
    map_table(&g, out);
    nb_buf_adds(out, "<h2>Linears by local SNR in dB</h2>\n");
    histogram(t, out);
    nb_buf_adds(out, "<h2>The worst linears</h2>\n");
    worst_table(t, out);
    nb_html_end(out);
    for (size_t i = 0; i < g.n; i++) free(g.names[i]);
    free(g.names);
    free(g.cells);
    nb_map_free(&g.columns);
    out->bad = out->bad || !ok;
}
