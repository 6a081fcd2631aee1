/* A trace as JSON for scripts and as text for people. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/report.h"
#include "doctor/trace_internal.h"

/* A number, or one of the strings "nan", "inf", "-inf". */
static void number(const char *key, double v, nb_buf *out)
{
    if (isfinite(v))
        nb_buf_addf(out, "\"%s\":%.9g,", key, v);
    else
        nb_buf_addf(out, "\"%s\":\"%s\",", key, isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
}

static void text(const char *key, const char *v, nb_buf *out)
{
    nb_buf_addf(out, "\"%s\":", key);
    if (v)
        nb_buf_add_json(out, v, strlen(v));
    else
        nb_buf_adds(out, "null");
    nb_buf_addc(out, ',');
}

static void json_row(const nb_trace_row *r, nb_buf *out)
{
    nb_buf_addf(out, "{\"layer\":%d,", r->layer);
    text("module", r->module, out);
    text("operator", r->op, out);
    if (r->expert >= 0) nb_buf_addf(out, "\"expert\":%lld,", (long long)r->expert);
    nb_buf_addf(out, "\"tokens\":%zu,", r->rows);
    if (r->has_in)
        number("in_amax", r->in_amax, out);
    else
        text("in_amax", NULL, out);
    number("out_amax", r->out_amax, out);
    nb_buf_addf(out, "\"nonfinite\":%llu,", (unsigned long long)r->nonfinite);
    number("clipped", r->clipped, out);
    number("flushed", r->flushed, out);
    number("saturated", r->saturated, out);
    number("cos_local", r->cos_local, out);
    number("snr_local_db", r->snr_local_db, out);
    number("cos_total", r->cos_total, out);
    number("snr_total_db", r->snr_total_db, out);
    nb_buf_addf(out, "\"bad\":%s}", r->bad ? "true" : "false");
}

void nb_trace_json(const nb_trace *t, nb_buf *out)
{
    const nb_trace_fault *f = &t->fault;
    nb_buf_addc(out, '{');
    text("arith", nb_arith_name(t->arith), out);
    text("act_dtype", t->act_bf16 ? "bf16" : "f32", out);
    text("as", nb_stack_name(t->stack), out);
    text("cast", t->cast_nosat ? "nosat" : "sat", out);
    nb_buf_adds(out, "\n\"first_bad\":");
    if (f->cause) {
        const nb_trace_row *r = &t->rows[f->row];
        nb_buf_addf(out, "{\"layer\":%d,", r->layer);
        text("module", r->module, out);
        text("operator", r->op, out);
        text("cause", nb_cause_name(f->cause), out);
        text("tensor", f->tensor[0] ? f->tensor : NULL, out);
        text("file", f->file[0] ? f->file : NULL, out);
        if (f->offset >= 0)
            nb_buf_addf(out, "\"offset\":%lld},\n", (long long)f->offset);
        else
            nb_buf_adds(out, "\"offset\":null},\n");
    } else {
        nb_buf_adds(out, "null,\n");
    }
    text("verdict", t->verdict, out);
    nb_buf_adds(out, "\n\"rows\":[");
    for (size_t i = 0; i < t->n; i++) {
        nb_buf_adds(out, i ? ",\n" : "\n");
        json_row(&t->rows[i], out);
    }
    nb_buf_adds(out, "],\n\"findings\":[");
    for (size_t i = 0; i < t->findings.count; i++) {
        nb_buf_adds(out, i ? ",\n" : "\n");
        nb_report_json_finding(&t->findings.items[i], out);
    }
    nb_buf_adds(out, "]}\n");
}

static int worse_first(const void *a, const void *b)
{
    const nb_trace_row *x = *(const nb_trace_row *const *)a, *y = *(const nb_trace_row *const *)b;
    if (!x->nonfinite != !y->nonfinite) return x->nonfinite ? -1 : 1;
    double p = isnan(x->snr_local_db) ? -INFINITY : x->snr_local_db,
           q = isnan(y->snr_local_db) ? -INFINITY : y->snr_local_db;
    return p < q ? -1 : p > q ? 1 : x < y ? -1 : x > y;
}

const nb_trace_row **nb_trace_worst(const nb_trace *t, size_t *n)
{
    const nb_trace_row **v = malloc((t->n + 1) * sizeof *v);
    *n = 0;
    for (size_t i = 0; v && i < t->n; i++)
        if (t->rows[i].has_in) v[(*n)++] = &t->rows[i];
    if (v) qsort((void *)v, *n, sizeof *v, worse_first);
    return v;
}

#define WORST 12

/* The command that leads on from a cause. */
static const char *next_step(nb_cause c)
{
    switch (c) {
    case NB_CAUSE_CLIP:
    case NB_CAUSE_FLUSH:
    case NB_CAUSE_NONSATURATING_CAST:
    case NB_CAUSE_BAD_INPUT_SCALE:
    case NB_CAUSE_MISSING_TENSOR:
        return "nibble calibrate DIR -o ranges, then try --scales ranges, then nibble repair DIR -o OUT "
               "--scales ranges";
    case NB_CAUSE_OVERFLOW16:
        return "another kernel family (--as), or nibble repair DIR -o OUT --dequant PATTERN";
    case NB_CAUSE_NAN_UPSTREAM: return "nibble check DIR: the fault is before the operators that are watched";
    default:
        return "nibble check DIR names every such byte; nibble repair DIR -o OUT mends what the file proves";
    }
}

void nb_trace_text(const nb_trace *t, nb_buf *out)
{
    const nb_trace_fault *f = &t->fault;
    size_t n;
    const nb_trace_row **worst = nb_trace_worst(t, &n);
    if (!worst) {
        out->bad = true;
        return;
    }
    nb_buf_addf(out, "%s\n\n", t->verdict);
    if (f->cause) {
        nb_buf_addf(out, "  %-9s %s\n", "cause", nb_cause_name(f->cause));
        nb_buf_addf(out, "  %-9s %s\n", "next", next_step(f->cause));
        if (f->tensor[0]) nb_buf_addf(out, "  %-9s %s\n", "tensor", f->tensor);
        if (f->offset >= 0)
            nb_buf_addf(out, "  %-9s %s, byte %lld\n", "where", f->file, (long long)f->offset);
        nb_buf_addc(out, '\n');
    }
    nb_buf_addf(out, "  the worst linears (%s, activations %s%s%s)\n", nb_arith_name(t->arith),
                t->act_bf16 ? "bf16" : "f32", t->stack ? ", as " : "",
                t->stack ? nb_stack_name(t->stack) : "");
    nb_buf_adds(out, "  local cos   SNR dB  total cos  saturated  flushed   in amax  not finite  module\n");
    for (size_t i = 0; i < n && i < WORST; i++) {
        const nb_trace_row *r = worst[i];
        nb_buf_addf(out, "  %9.4f %8.1f  %9.4f  %8.1f%%  %6.1f%%  %8.4g  %10llu  %s\n", r->cos_local,
                    r->snr_local_db, r->cos_total, 100 * r->saturated, 100 * r->flushed, r->in_amax,
                    (unsigned long long)r->nonfinite, r->module);
    }
    size_t errors = nb_findings_of(&t->findings, NB_SEVERITY_ERROR),
           warnings = nb_findings_of(&t->findings, NB_SEVERITY_WARNING);
    nb_buf_addf(out, "\n  %zu operators watched", t->n);
    if (errors || warnings)
        nb_buf_addf(out, "; check finds %zu errors and %zu warnings in the folder (nibble check)", errors,
                    warnings);
    nb_buf_addc(out, '\n');
    free((void *)worst);
}
