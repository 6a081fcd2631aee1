/*
 * Findings of several rules on one tensor, each with a remedy of its own, can send their reader in a circle: a scale that is the
 * wrong way round also differs from its siblings and looks unmeasured. Where one cause explains the other, the other's remedy
 * says so. No finding is dropped: each is true.
 */
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "doctor/check.h"

typedef enum how {
    SAME, /* mending the cause mends this, too */
    THEN, /* this remedy holds, but only after the cause's */
} how;

static const struct {
    const char *cause, *symptom;
    const char *message; /* what the cause's message must hold; NULL: any */
    how mending;
} pairs[] = {
    {"NB002", "NB003", NULL, SAME}, {"NB002", "NB005", NULL, SAME},
    {"NB003", "NB005", NULL, SAME}, {"NB105", "NB005", NULL, SAME},
    {"NB106", "NB107", NULL, SAME}, {"NB106", "NB108", NULL, THEN},
    {"NB205", "NB007", NULL, SAME}, {"NB110", "NB110", "4-bit integers", SAME},
};

/* Every tensor of the findings of pairs[k].cause -> the finding. False: out of memory. */
static bool causes(const nb_findings *l, size_t k, nb_map *out)
{
    for (size_t i = 0; i < l->count; i++) {
        const nb_finding *f = &l->items[i];
        if (strcmp(f->rule, pairs[k].cause) != 0 || f->severity == NB_SEVERITY_NOTE || !f->remedy ||
            (pairs[k].message && !strstr(f->message, pairs[k].message)))
            continue;
        for (size_t t = 0; t < f->n_tensors; t++)
            if (!nb_map_put(out, f->tensors[t], strlen(f->tensors[t]), (uint32_t)i, NULL)) return false;
    }
    return true;
}

static void join(nb_findings *l, size_t symptom, const nb_finding *cause, how mending)
{
    const bool repairable = l->items[symptom].repairable;
    if (mending == SAME) {
        nb_findings_remedy(l, symptom, cause->repairable, "as %s of the same tensor says: %s", cause->rule,
                           cause->remedy);
        return;
    }
    char *old = l->items[symptom].remedy ? strdup(l->items[symptom].remedy) : NULL;
    if (!old) {
        l->bad = l->bad || l->items[symptom].remedy;
        return;
    }
    nb_findings_remedy(l, symptom, repairable, "mend %s of the same tensor first; then %s", cause->rule, old);
    free(old);
}

void nb_findings_agree(nb_findings *l)
{
    for (size_t k = 0; k < sizeof pairs / sizeof *pairs && !l->bad; k++) {
        nb_map of = {0};
        if (!causes(l, k, &of)) l->bad = true;
        for (size_t i = 0; i < l->count && of.count && !l->bad; i++) {
            const nb_finding *f = &l->items[i];
            uint32_t cause = 0;
            bool found = false;
            if (strcmp(f->rule, pairs[k].symptom) != 0 || f->severity == NB_SEVERITY_NOTE) continue;
            for (size_t t = 0; t < f->n_tensors && !found; t++)
                found = nb_map_get(&of, f->tensors[t], strlen(f->tensors[t]), &cause) && cause != i;
            if (found && (!f->remedy || strcmp(f->remedy, l->items[cause].remedy) != 0))
                join(l, i, &l->items[cause], pairs[k].mending);
        }
        nb_map_free(&of);
    }
}
