/* One line beside every run: what other stacks would make of the same file. A checkpoint that answers here may give NaN there. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "doctor/check.h"

static const char *const stacks[NB_FAMILY_COUNT] = {"W4A4 kernels (vLLM, FlashInfer on Blackwell)",
                                                    "weight-only kernels", "Marlin", "llama.cpp"};

/* How bad an outcome is to meet unawares: a refusal tells, clipping does little, NaN ends everything. */
static int weight(nb_effect_class c)
{
    static const int weights[] = {
        [NB_EFFECT_FINE] = 0, [NB_EFFECT_REFUSED] = 1,   [NB_EFFECT_CLIPPED] = 2, [NB_EFFECT_WRONG] = 3,
        [NB_EFFECT_ZERO] = 4, [NB_EFFECT_UNDEFINED] = 5, [NB_EFFECT_PROMPT] = 6,  [NB_EFFECT_NAN] = 7};
    return weights[c];
}

static const char *outcome(nb_effect_class c)
{
    switch (c) {
    case NB_EFFECT_CLIPPED: return "clip its activations";
    case NB_EFFECT_ZERO: return "give zeros";
    case NB_EFFECT_WRONG: return "give wrong numbers";
    case NB_EFFECT_NAN: return "give NaN";
    case NB_EFFECT_PROMPT: return "give NaN for some prompts";
    case NB_EFFECT_UNDEFINED: return "use uninitialised memory";
    case NB_EFFECT_REFUSED: return "refuse it";
    default: return NULL;
    }
}

bool nb_cli_health_line(const char *dir, char *line, size_t cap)
{
    nb_check_result r = {0};
    if (nb_check_folder(dir, NULL, &r, NULL) != NB_OK)
        return false; /* the verb itself says what is wrong with the folder */
    const nb_finding *worst = NULL;
    size_t family = 0;
    for (size_t i = 0; i < r.findings.count; i++) {
        const nb_finding *f = &r.findings.items[i];
        for (size_t k = 0; f->severity == NB_SEVERITY_ERROR && k < NB_FAMILY_COUNT; k++) {
            if (!f->effect_text[k] || !outcome(f->effect[k]) ||
                (worst && weight(worst->effect[family]) >= weight(f->effect[k])))
                continue;
            worst = f;
            family = k;
        }
    }
    size_t tensors = 0; /* of all findings of that rule with that outcome */
    for (size_t i = 0; worst && i < r.findings.count; i++) {
        const nb_finding *f = &r.findings.items[i];
        if (strcmp(f->rule, worst->rule) == 0 && f->effect[family] == worst->effect[family])
            tensors += f->n_tensors;
    }
    if (worst)
        snprintf(line, cap, "%s would %s with this file (%s, %zu tensor%s): nibble check %s", stacks[family],
                 outcome(worst->effect[family]), worst->rule, tensors, tensors == 1 ? "" : "s", dir);
    nb_check_result_free(&r);
    return worst != NULL;
}

void nb_cli_health(const char *dir, bool quiet)
{
    char line[1024];
    if (!quiet && nb_cli_health_line(dir, line, sizeof line)) fprintf(stderr, "note: %s\n", line);
}
