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
            nb_buf_addf(out, ": local cosine %.4f, SNR %.1f dB, in amax %.4g, saturated ",
                        x->worst->cos_local, x->worst->snr_local_db, x->worst->in_amax);
            percent(x->worst->saturated, out);
            nb_buf_adds(out, ", flushed ");
            percent(x->worst->flushed, out);
            if (s == 0)
                nb_buf_adds(out, "\">NaN</td>");
            else if (isinf(x->worst->snr_local_db))
                nb_buf_adds(out, "\">=</td>");
            else
                nb_buf_addf(out, "\">%.0f</td>", x->worst->snr_local_db);
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
    nb_buf_adds(out, "</p>\n");
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
    nb_buf_adds(out, "<div class=scroll><svg class=bars viewBox=\"0 0 660 150\" role=img "
                     "aria-label=\"linears by local SNR\">");
    for (size_t b = 0; b <= BINS; b++) {
        double h = 95.0 * (double)bins[b] / (double)top;
        int x = 10 + 50 * (int)b;
        nb_buf_addf(out, "<rect class=\"%s\" x=%d y=%.1f width=42 height=%.1f rx=2 />", b == 0 ? "b0" : "b1",
                    x, 118 - h, h);
        if (bins[b]) nb_buf_addf(out, "<text x=%d y=%.1f>%zu</text>", x + 21, 113 - h, bins[b]);
        if (b == 0)
            nb_buf_addf(out, "<text x=%d y=135>NaN</text>", x + 21);
        else if (b == BINS)
            nb_buf_addf(out, "<text x=%d y=135>%d+</text>", x + 21, 5 * (BINS - 1));
        else
            nb_buf_addf(out, "<text x=%d y=135>%zu</text>", x + 21, 5 * (b - 1));
    }
    nb_buf_adds(out, "</svg></div>\n");
}

static void worst_table(const nb_trace *t, nb_buf *out)
{
    size_t n;
    const nb_trace_row **w = nb_trace_worst(t, &n);
    if (!w) {
        out->bad = true;
        return;
    }
    nb_buf_adds(out, "<div class=scroll><table class=rows><tr><th>module</th><th>local cosine</th><th>SNR "
                     "dB</th><th>total cosine</th><th>saturated</th><th>flushed</th><th>in amax</th><th>not "
                     "finite</th></tr>\n");
    for (size_t i = 0; i < n && i < WORST; i++) {
        const nb_trace_row *r = w[i];
        nb_buf_addf(out, "<tr%s><td>", r->bad ? " class=bad" : "");
        nb_html_escape(r->module, out);
        nb_buf_addf(out, "</td><td>%.4f</td><td>%.1f</td><td>%.4f</td><td>", r->cos_local, r->snr_local_db,
                    r->cos_total);
        percent(r->saturated, out);
        nb_buf_adds(out, "</td><td>");
        percent(r->flushed, out);
        nb_buf_addf(out, "</td><td>%.4g</td><td>%llu</td></tr>\n", r->in_amax,
                    (unsigned long long)r->nonfinite);
    }
    nb_buf_adds(out, "</table></div>\n");
    free((void *)w);
}

static const char style[] =
    ":root{--s0:#6b1f7a;--s1:#b3261e;--s2:#e0643c;--s3:#f0a860;--s4:#f3e2a9;--s5:#cfe8c5;--s6:#a5d6a0;--on:#"
    "fff}"
    "@media(prefers-color-scheme:dark){:root{--s0:#b45bc9;--s1:#c9423a;--s2:#b7552f;--s3:#94672c;"
    "--s4:#5f5a2c;--s5:#2f5236;--s6:#234a2c}}.scroll{overflow-x:"
    "auto}table{border-collapse:collapse;font-size:13px}.map td,.map "
    "th{min-width:34px;height:26px;text-align:"
    "center;padding:0 4px;border:1px solid var(--bg)}.map th{color:var(--dim);font-weight:500}.map "
    "tr>th:first-"
    "child{position:sticky;left:0;background:var(--bg)}.map .col{height:210px;vertical-align:bottom;padding-"
    "bottom:6px}.map .col span{writing-mode:vertical-rl;transform:rotate(180deg);white-space:nowrap}"
    ".s0{background:var(--s0);color:var(--on)}.s1{background:var(--s1);color:var(--on)}.s2{background:var(--"
    "s2)"
    "}.s3{background:var(--s3)}.s4{background:var(--s4)}.s5{background:var(--s5)}.s6{background:var(--s6)}"
    ".legend{color:var(--dim);font-size:13px}.legend span{display:inline-block;margin-right:12px}.legend i{"
    "display:inline-block;width:14px;height:14px;border-radius:3px;margin-right:5px;vertical-align:-2px}"
    ".bars{width:660px;height:150px}.bars rect{fill:var(--dim)}.bars .b0{fill:var(--s0)}.bars "
    "text{fill:var(--dim);font-size:12px;text-anchor:middle}.rows{width:100%}.rows th,.rows td{padding:4px "
    "10px;"
    "border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}.rows th{color:var(--dim);font-"
    "weight:500}.rows td:first-child,.rows th:first-child{text-align:left;font-family:ui-monospace,monospace}"
    ".rows .bad td:first-child{color:var(--bad)}";

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
    nb_buf_adds(out, "</div>\n<h2>Layers by operators: local SNR in dB</h2>\n");
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
