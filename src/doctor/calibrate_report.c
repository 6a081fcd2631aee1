/* What calibrate found: every linear as JSON for scripts, the worst ratios and the guessed experts as text for people. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/calibrate.h"
#include "doctor/report.h"

#define WORST 20 /* lines of the table */
/* Ratios above are reported as clipping. Up to 7/6 the largest value is no farther from the largest code, 6, than half the step
 * from 4 to 6: it is rounded like any other. (And the maximum of other texts differs by some per cent anyway.) */
#define CLIPS (7.0 / 6)
#define WASTES 0.125 /* and below as unused range: three octaves of the block scales' nine */

static void json_number(const char *key, bool there, double v, nb_buf *out)
{
    if (!there)
        nb_buf_addf(out, ",\"%s\":null", key);
    else if (isfinite(v))
        nb_buf_addf(out, ",\"%s\":%.9g", key, v);
    else
        nb_buf_addf(out, ",\"%s\":\"%s\"", key, isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
}

void nb_calibration_json(const nb_calibration *c, nb_buf *out)
{
    nb_buf_adds(out, "{\"modules\":[");
    for (size_t i = 0; i < c->n; i++) {
        const nb_calibrated *m = &c->items[i];
        nb_buf_adds(out, i ? ",\n{\"module\":" : "\n{\"module\":");
        nb_buf_add_json(out, m->module, strlen(m->module));
        json_number("amax", true, m->amax, out);
        json_number("p9999", true, m->p9999, out);
        nb_buf_addf(out, ",\"tokens\":%llu", (unsigned long long)m->tokens);
        json_number("stored_amax", m->stored, m->stored_amax, out);
        json_number("ratio", m->stored, m->ratio, out);
        nb_buf_adds(out, ",\"filled_by\":");
        if (m->filled_by)
            nb_buf_add_json(out, m->filled_by, strlen(m->filled_by));
        else
            nb_buf_adds(out, "null");
        nb_buf_addc(out, '}');
    }
    nb_buf_addf(out, "],\n\"texts\":%zu,\"tokens\":%zu,\"seconds\":%.3f}\n", c->texts, c->tokens, c->seconds);
}

typedef enum fit { FITS, TOO_WIDE, CLIPPED, NO_SCALE } fit;

static fit fit_of(const nb_calibrated *m)
{
    if (!(m->stored_amax > 0) || isinf(m->stored_amax)) return NO_SCALE;
    if (m->ratio > CLIPS) return CLIPPED;
    return m->ratio < WASTES ? TOO_WIDE : FITS;
}

/* Worse first: by kind, then by how far the ratio is from 1. */
static double badness(const nb_calibrated *m)
{
    fit f = fit_of(m);
    double far = f != NO_SCALE && m->ratio > 0 ? fabs(log(m->ratio)) : 0;
    return 1e6 * f + far;
}

static int by_badness(const void *a, const void *b)
{
    const nb_calibrated *x = *(const nb_calibrated *const *)a, *y = *(const nb_calibrated *const *)b;
    double p = badness(x), q = badness(y);
    if (p != q) return p < q ? 1 : -1;
    return x < y ? -1 : x > y; /* otherwise in the order of layers */
}

static void add_meaning(const nb_calibrated *m, nb_buf *out)
{
    switch (fit_of(m)) {
    case NO_SCALE: nb_buf_adds(out, "the stored scale is no scale"); break;
    case CLIPPED: nb_buf_addf(out, "clipped: up to %.3g times too small", m->ratio); break;
    case TOO_WIDE: nb_buf_addf(out, "%.3g times too wide: small values become zero", 1 / m->ratio); break;
    case FITS: nb_buf_adds(out, "fits"); break;
    }
}

static void table(const nb_calibration *c, const nb_calibrated **list, size_t n, nb_buf *out)
{
    size_t bad = 0, width = 6;
    qsort(list, n, sizeof *list, by_badness);
    for (size_t i = 0; i < n; i++) bad += fit_of(list[i]) != FITS;
    if (!n) {
        nb_buf_adds(out, "The checkpoint stores no input scales to compare with.\n");
        return;
    }
    nb_buf_addf(out, "%zu of %zu stored input scales do not fit these inputs%s\n", bad, n, bad ? ":" : ".");
    size_t shown = bad ? bad : n < 5 ? n : 5, lines = shown < WORST ? shown : WORST;
    for (size_t i = 0; i < lines; i++)
        if (strlen(list[i]->module) > width) width = strlen(list[i]->module);
    nb_buf_addf(out, "\n  %-*s %10s %10s %12s %9s\n", (int)width, "linear", "amax", "p99.99", "stored amax",
                "ratio");
    for (size_t i = 0; i < lines; i++) {
        const nb_calibrated *m = list[i];
        nb_buf_addf(out, "  %-*s %10.4g %10.4g %12.4g %9.3g  ", (int)width, m->module, (double)m->amax,
                    (double)m->p9999, m->stored_amax, m->ratio);
        add_meaning(m, out);
        nb_buf_addc(out, '\n');
    }
    if (lines < shown)
        nb_buf_addf(out, "  … and %zu more that do not fit (--format json has them all)\n", shown - lines);
}

static void add_name(void *ctx, const char *text, size_t count)
{
    nb_buf_addf(ctx, "  %s", text);
    if (count > 1) nb_buf_addf(ctx, " (%zu)", count);
    nb_buf_addc(ctx, '\n');
}

void nb_calibration_text(const nb_calibration *c, nb_buf *out)
{
    size_t stored = 0, filled = 0;
    const nb_calibrated **list = calloc(c->n + 1, sizeof *list);
    const char **names = calloc(c->n + 1, sizeof *names);
    if (!list || !names) {
        out->bad = true;
        goto out;
    }
    for (size_t i = 0; i < c->n; i++) {
        if (c->items[i].stored) list[stored++] = &c->items[i];
        if (c->items[i].filled_by) names[filled++] = c->items[i].module;
    }
    nb_buf_addf(out, "%zu linears measured on %zu tokens of %zu texts in %.1f s.\n", c->n, c->tokens,
                c->texts, c->seconds);
    table(c, list, stored, out);
    if (filled) {
        nb_buf_addf(
            out,
            "\n%zu expert linears saw no token; each took the largest amax of the layer's other experts:\n",
            filled);
        if (!nb_fold_names(names, filled, add_name, out)) out->bad = true;
    }
out:
    free((void *)list);
    free((void *)names);
}
