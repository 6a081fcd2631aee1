/* The list of findings. Strings are copied, so that a rule may build them anywhere. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/check.h"

const char *nb_severity_name(nb_severity s)
{
    static const char *const names[] = {"note", "warning", "error"};
    return names[s];
}

const char *nb_effect_class_name(nb_effect_class c)
{
    static const char *const names[] = {"fine", "clipped", "zero",      "wrong",
                                        "nan",  "prompt",  "undefined", "refused"};
    return names[c];
}

const char *nb_family_name(nb_family f)
{
    static const char *const names[NB_FAMILY_COUNT] = {"w4a4", "w4a16", "marlin", "llama.cpp"};
    return names[f];
}

static char *copy(nb_findings *l, const char *text)
{
    char *s = l->bad ? NULL : strdup(text);
    if (!s) l->bad = true;
    return s;
}

/* The formatted text on the heap, or NULL and a bad list. */
static char *format(nb_findings *l, const char *fmt, va_list ap)
{
    char text[NB_FINDING_TEXT];
    /* clang-tidy 14 loses track of ap on its way here; all callers have started it. */
    int n = vsnprintf(text, sizeof text, fmt, ap); /* NOLINT(clang-analyzer-valist.Uninitialized) */
    if (n >= (int)sizeof text) memcpy(text + sizeof text - 4, "...", 4);
    return copy(l, n < 0 ? "" : text);
}

static void replace(char **field, char *text)
{
    free(*field);
    *field = text;
}

/* Room for n more. False: the list is bad. */
static bool make_room(nb_findings *l, size_t n)
{
    if (l->bad || n <= l->cap - l->count) return !l->bad;
    size_t cap = l->cap ? 2 * l->cap : 16;
    while (cap - l->count < n) cap *= 2;
    nb_finding *p = cap <= SIZE_MAX / sizeof *p ? realloc(l->items, cap * sizeof *p) : NULL;
    l->bad = !p;
    if (!p) return false;
    l->items = p;
    l->cap = cap;
    return true;
}

size_t nb_findings_add(nb_findings *l, const char *rule, nb_severity severity, const char *fmt, ...)
{
    if (!make_room(l, 1)) return 0;
    nb_finding *f = &l->items[l->count];
    *f = (nb_finding){.severity = severity, .number = l->count};
    snprintf(f->rule, sizeof f->rule, "%s", rule);
    va_list ap;
    va_start(ap, fmt);
    f->message = format(l, fmt, ap);
    va_end(ap);
    return l->count++;
}

void nb_findings_tensor(nb_findings *l, size_t i, const char *name)
{
    if (l->bad) return;
    nb_finding *f = &l->items[i];
    if (f->n_tensors == f->tensors_cap) {
        size_t cap = f->tensors_cap ? 2 * f->tensors_cap : 2;
        char **p = realloc(f->tensors, cap * sizeof *p);
        if (!p) {
            l->bad = true;
            return;
        }
        f->tensors = p;
        f->tensors_cap = cap;
    }
    f->tensors[f->n_tensors] = copy(l, name);
    if (!l->bad) f->n_tensors++;
}

void nb_findings_file(nb_findings *l, size_t i, const char *file)
{
    if (!l->bad && file) replace(&l->items[i].file, copy(l, file));
}

void nb_findings_bytes(nb_findings *l, size_t i, uint64_t begin, uint64_t end)
{
    if (l->bad) return;
    l->items[i].has_bytes = true;
    l->items[i].begin = begin;
    l->items[i].end = end;
}

void nb_findings_measured(nb_findings *l, size_t i, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *text = format(l, fmt, ap);
    va_end(ap);
    if (l->bad) return;
    replace(&l->items[i].measured, text);
}

void nb_findings_expected(nb_findings *l, size_t i, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *text = format(l, fmt, ap);
    va_end(ap);
    if (l->bad) return;
    replace(&l->items[i].expected, text);
}

void nb_findings_remedy(nb_findings *l, size_t i, bool repairable, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *text = format(l, fmt, ap);
    va_end(ap);
    if (l->bad) return;
    replace(&l->items[i].remedy, text);
    l->items[i].repairable = repairable;
}

void nb_findings_effects(nb_findings *l, size_t i, const nb_effect effects[NB_FAMILY_COUNT])
{
    for (int f = 0; f < NB_FAMILY_COUNT && !l->bad; f++) {
        l->items[i].effect[f] = effects[f].cls;
        if (effects[f].text) replace(&l->items[i].effect_text[f], copy(l, effects[f].text));
    }
}

void nb_findings_move(nb_findings *l, nb_findings *from)
{
    l->bad = l->bad || from->bad;
    if (from->count && make_room(l, from->count)) {
        for (size_t i = 0; i < from->count; i++) {
            from->items[i].number = l->count;
            l->items[l->count++] = from->items[i];
        }
        from->count = 0;
    }
    nb_findings_free(from);
}

static int compare(const void *pa, const void *pb)
{
    const nb_finding *a = pa, *b = pb;
    if (a->severity != b->severity) return a->severity > b->severity ? -1 : 1;
    int by_rule = strcmp(a->rule, b->rule);
    return by_rule ? by_rule : a->number < b->number ? -1 : a->number > b->number;
}

void nb_findings_sort(nb_findings *l)
{
    if (l->count) qsort(l->items, l->count, sizeof *l->items, compare);
}

static void release(nb_finding *f)
{
    for (size_t i = 0; i < f->n_tensors; i++) free(f->tensors[i]);
    free(f->tensors);
    free(f->file);
    free(f->message);
    free(f->measured);
    free(f->expected);
    free(f->remedy);
    for (int i = 0; i < NB_FAMILY_COUNT; i++) free(f->effect_text[i]);
}

size_t nb_findings_drop(nb_findings *l, const char *rule)
{
    size_t kept = 0;
    for (size_t i = 0; i < l->count; i++) {
        if (strcmp(l->items[i].rule, rule) == 0)
            release(&l->items[i]);
        else
            l->items[kept++] = l->items[i];
    }
    size_t dropped = l->count - kept;
    l->count = kept;
    return dropped;
}

size_t nb_findings_of(const nb_findings *l, nb_severity severity)
{
    size_t n = 0;
    for (size_t i = 0; i < l->count; i++) n += l->items[i].severity == severity;
    return n;
}

void nb_findings_free(nb_findings *l)
{
    for (size_t i = 0; i < l->count; i++) release(&l->items[i]);
    free(l->items);
    *l = (nb_findings){0};
}
