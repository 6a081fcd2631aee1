/*
 * The part of NB004 that no shape shows: block scales in the 128x4 order of tensor cores (specs/nvfp4.md §4.3) where rows and
 * columns divide by 128 and 4, so that nothing is padded and the shape stays [N, K/16]. Rows of a trained weight differ in size,
 * so the scales of one row are alike; in the other order they are not. The order in which rows are more alike is the right one.
 */
#include <math.h>
#include <stdlib.h>

#include "doctor/rule_values.h"

#define E(cls, text) ((nb_effect){NB_EFFECT_##cls, text})
#define TILE 128  /* rows looked at of each linear: the first tile of either order */
#define SAMPLE 12 /* linears of a class */
#define LEAST 4   /* linears that must show it */
#define MAX_COLUMNS 4096
#define ALIKE 1.5  /* how much more alike than chance the rows must be in their right order */
#define BETTER 1.2 /* and how much more than in the other */

/* Where row m, column k of a tile lies in the swizzled order, KB columns. */
static size_t swizzled(size_t m, size_t k)
{
    return k / 4 * 512 + m % 32 * 16 + m / 32 * 4 + k % 4;
}

/* How alike the scales of a row are: the variance of the rows' means against what chance gives (1), over the logarithms of the
 * scales, columns' means taken out. */
static double likeness(const uint8_t *bytes, size_t columns, bool unswizzle)
{
    double row[TILE] = {0}, all = 0, between = 0;
    for (size_t k = 0; k < columns; k++) {
        double x[TILE], mean = 0;
        for (size_t m = 0; m < TILE; m++) {
            x[m] =
                bytes[unswizzle ? swizzled(m, k) : m * columns + k] & 0x7F; /* E4M3 is nearly a logarithm */
            mean += x[m] / TILE;
        }
        for (size_t m = 0; m < TILE; m++) {
            row[m] += (x[m] - mean) / (double)columns;
            all += (x[m] - mean) * (x[m] - mean);
        }
    }
    for (size_t m = 0; m < TILE; m++) between += row[m] * row[m];
    return all > 0 ? between * (double)columns * (double)columns / all : 0;
}

typedef struct votes {
    uint32_t looked, stored, other;
} votes;

/* Judges one linear; true when it shows the swizzled order. */
static bool vote(const nb_check *c, const nb_tensor_info *t, uint8_t *bytes, votes *v)
{
    const size_t columns = (size_t)t->shape[1];
    if (nb_ckpt_read(c->ckpt, t, 0, bytes, TILE * columns, NULL) != NB_OK) return false;
    const double as_is = likeness(bytes, columns, false), turned = likeness(bytes, columns, true);
    v->looked++;
    v->stored += as_is > ALIKE && as_is > BETTER * turned;
    const bool swz = turned > ALIKE && turned > BETTER * as_is;
    v->other += swz;
    return swz;
}

static bool fits(const nb_check *c, size_t i)
{
    const nb_tensor_info *t = nb_module_scale(&c->modules.items[i]);
    return nb_kind_nvfp4(c->modules.items[i].kind) && c->scan.modules[i].scanned && t->rank == 2 &&
           t->shape[0] >= TILE && t->shape[0] % TILE == 0 && t->shape[1] >= 8 && t->shape[1] % 4 == 0 &&
           t->shape[1] <= MAX_COLUMNS;
}

nb_status nb_rule_swizzle(const nb_check *c, nb_findings *out, nb_error *err)
{
    const size_t classes = c->modules.n_classes;
    votes *v = calloc(classes + 1, sizeof *v);
    uint32_t *count = calloc(classes + 1, sizeof *count), *step = calloc(classes + 1, sizeof *step);
    bool *shows = calloc(c->modules.count + 1, sizeof *shows);
    uint8_t *bytes = malloc((size_t)TILE * MAX_COLUMNS);
    const bool ok = v && count && step && shows && bytes;
    for (size_t i = 0; i < c->modules.count && ok; i++) count[c->modules.items[i].cls] += fits(c, i);
    for (size_t k = 0; k < classes && ok; k++) step[k] = count[k] / SAMPLE + 1;
    for (size_t k = 0; k < classes && ok; k++) count[k] = 0;
    for (size_t i = 0; i < c->modules.count && ok; i++) {
        const uint32_t k = c->modules.items[i].cls;
        if (!fits(c, i) || count[k]++ % step[k]) continue;
        shows[i] = vote(c, nb_module_scale(&c->modules.items[i]), bytes, &v[k]);
    }
    for (size_t k = 0; k < classes && ok && !out->bad; k++) {
        size_t f = SIZE_MAX;
        if (v[k].other < LEAST || 10 * v[k].stored > v[k].other || 2 * v[k].other < v[k].looked) continue;
        for (size_t i = 0; i < c->modules.count; i++) {
            const nb_tensor_info *t = shows[i] ? nb_module_scale(&c->modules.items[i]) : NULL;
            if (!t || c->modules.items[i].cls != k) continue;
            if (f != SIZE_MAX) {
                nb_findings_tensor(out, f, t->name);
                continue;
            }
            f = nb_value_finding(
                c, out, "NB004", NB_SEVERITY_ERROR, t, 0, t->end - t->begin,
                "block scales are in the 128x4 order of tensor cores (swizzled), though their "
                "shape is right");
            nb_findings_measured(
                out, f,
                "rows are alike when read in that order, and not as stored, in %u of %u linears "
                "of this kind looked at",
                v[k].other, v[k].looked);
            nb_findings_expected(out, f, "row by row: [N, K/16], linear");
            nb_findings_remedy(
                out, f, false,
                "export again without the kernel's layout, or put all block scales of these "
                "linears back into rows (specs: offset (m/128 * K/64 + k/4) * 512 + m%%32 * 16 + "
                "m%%128/32 * 4 + k%%4)");
            const nb_effect e = E(WRONG, "each block gets another block's scale: fluent nonsense, no NaN");
            nb_value_effects(out, f, e, e, e);
        }
    }
    free(bytes);
    free(shows);
    free(step);
    free(count);
    free(v);
    return ok ? NB_OK : nb_fail_nomem(err, "the order of block scales", (size_t)TILE * MAX_COLUMNS);
}
