/* What was done and refused: the lists, and the two reports of a repair. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/repair_plan.h"
#include "doctor/report.h"

static nb_repair_item *item_of(nb_repair_list *l, const char *rule, const char *text)
{
    for (size_t i = l->count; i-- > 0;) {
        if (strcmp(l->items[i].rule, rule) == 0 && strcmp(l->items[i].text, text) == 0) return &l->items[i];
    }
    if (l->count == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 8;
        nb_repair_item *p = realloc(l->items, cap * sizeof *p);
        if (!p) return NULL;
        l->items = p;
        l->cap = cap;
    }
    nb_repair_item *it = &l->items[l->count];
    *it = (nb_repair_item){.text = strdup(text)};
    if (!it->text) return NULL;
    snprintf(it->rule, sizeof it->rule, "%s", rule);
    l->count++;
    return it;
}

void nb_repair_note(nb_repair_list *l, const char *rule, const char *tensor, double error, const char *fmt,
                    ...)
{
    char text[512];
    va_list ap;
    if (l->bad) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    nb_repair_item *it = item_of(l, rule, text);
    l->bad = !it;
    if (!it) return;
    if (error >= 0) {
        it->has_error = true;
        it->error = fmax(it->error, error);
    }
    if (!tensor || (it->n && strcmp(it->tensors[it->n - 1], tensor) == 0)) return;
    if (it->n == it->cap) {
        size_t cap = it->cap ? 2 * it->cap : 4;
        char **p = realloc(it->tensors, cap * sizeof *p);
        if (!p) {
            l->bad = true;
            return;
        }
        it->tensors = p;
        it->cap = cap;
    }
    it->tensors[it->n] = strdup(tensor);
    if (it->tensors[it->n])
        it->n++;
    else
        l->bad = true;
}

void nb_repair_list_free(nb_repair_list *l)
{
    for (size_t i = 0; i < l->count; i++) {
        for (size_t k = 0; k < l->items[i].n; k++) free(l->items[i].tensors[k]);
        free(l->items[i].tensors);
        free(l->items[i].text);
    }
    free(l->items);
    *l = (nb_repair_list){0};
}

void nb_repair_result_free(nb_repair_result *r)
{
    nb_repair_list_free(&r->applied);
    nb_repair_list_free(&r->refused);
    nb_check_result_free(&r->check);
    free(r->forward);
    *r = (nb_repair_result){0};
}

static void json_items(const nb_repair_list *l, const char *text, bool error, nb_buf *out)
{
    nb_buf_addc(out, '[');
    for (size_t i = 0; i < l->count; i++) {
        const nb_repair_item *it = &l->items[i];
        nb_buf_adds(out, i ? ",\n{\"rule\":" : "\n{\"rule\":");
        if (it->rule[0])
            nb_buf_addf(out, "\"%s\"", it->rule);
        else
            nb_buf_adds(out, "null");
        nb_buf_adds(out, ",\"tensors\":[");
        for (size_t k = 0; k < it->n; k++) {
            if (k) nb_buf_addc(out, ',');
            nb_buf_add_json(out, it->tensors[k], strlen(it->tensors[k]));
        }
        nb_buf_addf(out, "],\"%s\":", text);
        nb_buf_add_json(out, it->text, strlen(it->text));
        if (error && it->has_error) nb_buf_addf(out, ",\"error\":%.9g", it->error);
        if (error && !it->has_error) nb_buf_adds(out, ",\"error\":null");
        nb_buf_addc(out, '}');
    }
    nb_buf_addc(out, ']');
}

void nb_repair_json(const nb_repair_result *r, nb_buf *out)
{
    nb_buf_adds(out, "{\"applied\":");
    json_items(&r->applied, "action", true, out);
    nb_buf_adds(out, ",\n\"refused\":");
    json_items(&r->refused, "why", false, out);
    nb_buf_addf(out, ",\n\"written\":%s,\n\"forward\":", r->written ? "true" : "false");
    if (r->forward)
        nb_buf_add_json(out, r->forward, strlen(r->forward));
    else
        nb_buf_adds(out, "null");
    nb_buf_adds(out, ",\n\"check\":");
    nb_report_json(&r->check, out);
    nb_buf_adds(out, "}\n");
}

static void line(void *ctx, const char *text, size_t count)
{
    nb_buf *out = ctx;
    nb_buf_addf(out, "    %s", text);
    if (count > 1) nb_buf_addf(out, "  (%zu)", count);
    nb_buf_addc(out, '\n');
}

static void text_items(const nb_repair_list *l, const char *word, nb_buf *out)
{
    for (size_t i = 0; i < l->count; i++) {
        const nb_repair_item *it = &l->items[i];
        nb_buf_addf(out, "%s %s%s%s", word, it->rule, it->rule[0] ? "  " : "", it->text);
        if (it->has_error && it->error > 0) nb_buf_addf(out, " (largest relative change %.3g)", it->error);
        nb_buf_addc(out, '\n');
        if (!nb_fold_names((const char *const *)it->tensors, it->n, line, out)) out->bad = true;
    }
}

void nb_repair_text(const nb_repair_result *r, nb_buf *out)
{
    text_items(&r->applied, r->dry_run ? "would mend" : "mended", out);
    text_items(&r->refused, r->dry_run ? "would refuse" : "refused", out);
    if (r->forward) nb_buf_addf(out, "forward pass: %s\n", r->forward);
    nb_buf_addf(out, "%s: %zu errors, %zu warnings, %zu notes\n",
                r->written ? "checked again" : "check of the source",
                nb_findings_of(&r->check.findings, NB_SEVERITY_ERROR),
                nb_findings_of(&r->check.findings, NB_SEVERITY_WARNING),
                nb_findings_of(&r->check.findings, NB_SEVERITY_NOTE));
    if (!r->applied.count && !r->refused.count)
        nb_buf_adds(out, "nothing to repair, so nothing was written: the folder can be used as it is\n");
    else if (!r->written && !r->dry_run)
        nb_buf_adds(out, "nothing could be mended, so nothing was written\n");
}
