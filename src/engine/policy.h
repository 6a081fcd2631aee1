/*
 * Load policies: the ways out of an NVFP4 file with bad input scales, as options of every verb that runs a model.
 *
 *     --dequant PATTERN   linears whose name matches are dequantised to BF16 when they are loaded: no input scale is used
 *     --scales SOURCE     where w4a4 takes the input scales of NVFP4 linears from:
 *                           checkpoint  as stored
 *                           warmup      from the largest inputs that built-in prompts cause, measured in bf16 after loading
 *                           dynamic     from each live row (this is arithmetic w4a4-dynamic)
 *                           FILE        from a file that `nibble calibrate` wrote
 */
#ifndef NB_ENGINE_POLICY_H
#define NB_ENGINE_POLICY_H

#include "engine/engine.h"

typedef enum nb_scales {
    NB_SCALES_CHECKPOINT,
    NB_SCALES_WARMUP,
    NB_SCALES_DYNAMIC,
    NB_SCALES_FILE
} nb_scales;

typedef struct nb_policy nb_policy;

/* scales: "checkpoint" (or NULL), "warmup", "dynamic", or the path of a file, which is opened here. Patterns are copied: globs in
 * which * and ? match any character, dots too; a pattern matches a linear by its stored module name or by the canonical one of
 * the architecture's table ("layers.0.attn.wq_a"). Free with nb_policy_free. */
nb_status nb_policy_new(const char *scales, const char *const *dequant, size_t n_dequant, nb_policy **out,
                        nb_error *err);
void nb_policy_free(nb_policy *p);
nb_scales nb_policy_scales(const nb_policy *p);

/* The hook of nb_load_options (ctx: the policy): sets to_bf16 and, from a file, the input scale of NVFP4 linears. A linear that
 * the file lacks is NB_ERR_MISSING, an amax that is no range NB_ERR_FORMAT. Counts what it matched and what it costs. */
nb_status nb_policy_adjust(void *ctx, const nb_model *m, const nb_arch_tensor *row, int64_t layer,
                           int64_t expert, nb_linear_src *src, nb_error *err);

/* After loading: NB_ERR_ARGUMENT naming a pattern that matched no linear; else tells sink what --dequant costs in memory. */
nb_status nb_policy_loaded(const nb_policy *p, const nb_sink *sink, nb_error *err);

/* The input scale that an activation maximum stands for: gs = 2688 / amax and multiplier amax / 2688 (docs/formats.md); both
 * are 1 for an input that is always zero. False, and *out untouched, when amax is negative, not finite, or so small that gs
 * is not finite. */
typedef struct nb_input_scale {
    float gs, multiplier;
} nb_input_scale;
bool nb_input_scale_of(float amax, nb_input_scale *out);

/* nb_engine_new under a policy (NULL: none): loads through its hook, measures the warm-up, and says on sink what each costs. The
 * policy must outlive only this call. opt->load must be NULL or have no hook of its own. With scales from a warm-up or a file
 * and an arithmetic that uses no input scales, a warning says so. */
nb_status nb_policy_engine(const char *path, const nb_engine_options *opt, nb_policy *p, const nb_sink *sink,
                           nb_engine **out, nb_error *err);

#endif
