/* NB206: linears that do not divide for the tensor-parallel size that --tp gives. */
#include <string.h>

#include "doctor/rule_values.h"

#define E(cls, text) ((nb_effect){NB_EFFECT_##cls, text})

/* What the rows or columns of one part must be multiples of. */
#define W4A4_STEP 32   /* CUTLASS, FlashInfer: N and K */
#define MARLIN_STEP 64 /* N */
#define BLOCK 16       /* one block scale; less cannot be cut at all */

/* Down and output projections are cut by columns, everything else by rows. */
static bool by_columns(const nb_check *c, const char *module)
{
    static const char *const last[] = {"down_proj", "w2", "o_proj", "o_b_proj", "wo_b", "out_proj"};
    int64_t l, e;
    bool skipped;
    const nb_arch_tensor *row = c->table ? nb_arch_identify(&c->config, module, &l, &e, &skipped) : NULL;
    if (row) return row->split == NB_SPLIT_ROW;
    for (size_t i = 0; i < sizeof last / sizeof *last; i++) {
        if (strcmp(nb_last_part(module), last[i]) == 0) return true;
    }
    return false;
}

nb_status nb_rule_parallel(const nb_check *c, nb_findings *out, nb_error *err)
{
    const uint64_t tp = c->options.tp;
    size_t found[2] = {SIZE_MAX, SIZE_MAX};
    for (size_t i = 0; i < c->modules.count && tp; i++) {
        const nb_module *m = &c->modules.items[i];
        uint64_t n, k;
        if (!nb_kind_nvfp4(m->kind) || !nb_module_shape(m, &n, &k)) continue;
        const bool columns = by_columns(c, m->name);
        /* A part of whole blocks is needed in either direction: scales are swizzled by rows and stored by 16 columns. */
        const bool rows_bad = n % (tp * BLOCK) != 0, columns_bad = columns && k % (tp * BLOCK) != 0;
        if (!rows_bad && !columns_bad) continue;
        size_t *f = &found[columns_bad];
        if (*f == SIZE_MAX) {
            const uint64_t v = columns_bad ? k : n;
            *f = nb_findings_add(out, "NB206", NB_SEVERITY_WARNING,
                                 "%s do not divide by %llu parts of whole blocks",
                                 columns_bad ? "columns" : "rows", (unsigned long long)tp);
            nb_findings_file(out, *f, nb_check_file_of(c, nb_module_codes(m)));
            nb_findings_measured(out, *f, "%llu %s over %llu: %.4g each", (unsigned long long)v,
                                 columns_bad ? "columns" : "rows", (unsigned long long)tp,
                                 (double)v / (double)tp);
            nb_findings_expected(out, *f, "multiples of %d for W4A4, %d rows for Marlin, at least of %d",
                                 W4A4_STEP, MARLIN_STEP, BLOCK);
            nb_findings_remedy(out, *f, false,
                               "use fewer GPUs for tensor parallelism, or expert or pipeline parallelism");
            nb_value_effects(out, *f, E(REFUSED, "the kernel refuses such parts, or pads every one of them"),
                             E(FINE, "nibble cuts nothing"),
                             E(REFUSED, "the kernel refuses such parts, or pads every one of them"));
        }
        nb_findings_tensor(out, *f, nb_module_codes(m)->name);
    }
    return NB_OK;
}
