/* A traced run: two engines over the same rows, the exact one always one layer ahead. */
#include "doctor/trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/trace_internal.h"

const char *nb_cause_name(nb_cause c)
{
    static const char *const names[NB_CAUSE_COUNT] = {"none",           "nan_scale",
                                                      "bad_global",     "bad_input_scale",
                                                      "missing_tensor", "nonsaturating_cast",
                                                      "overflow16",     "nan_weight",
                                                      "nan_upstream",   "clip",
                                                      "flush"};
    return names[c];
}

/* What is done to each linear of the traced model as it is loaded: the stack's doing first, then the user's. */
typedef struct loading {
    nb_stack_load *stack;
    nb_policy *policy;
    bool begun;
} loading;

static nb_status adjust(void *ctx, const nb_model *m, const nb_arch_tensor *row, int64_t layer,
                        int64_t expert, nb_linear_src *src, nb_error *err)
{
    loading *ld = ctx;
    if (!ld->begun) nb_stack_begin(ld->stack, m->ckpt);
    ld->begun = true;
    nb_status s = nb_stack_adjust(ld->stack, m->ckpt, &m->cfg, row, layer, expert, src, err);
    if (s == NB_OK && ld->policy) s = nb_policy_adjust(ld->policy, m, row, layer, expert, src, err);
    return s;
}

static nb_status open_traced(const char *path, const nb_trace_options *o, nb_engine_options eo,
                             nb_stack_load *stack, const nb_sink *sink, nb_engine **out, nb_error *err)
{
    loading ld = {.stack = stack, .policy = o->policy};
    nb_load_options load = {.stream = true, .adjust = adjust, .ctx = &ld};
    bool warmup = o->policy && nb_policy_scales(o->policy) == NB_SCALES_WARMUP;
    eo.load = &load;
    if (warmup && o->stack) {
        nb_fail(err, NB_ERR_ARGUMENT, "--scales warmup does not go with --as");
        nb_error_remedy(err, "measure first (nibble calibrate DIR -o FILE), then give --scales FILE");
        return NB_ERR_ARGUMENT;
    }
    nb_status s;
    if (warmup) {
        load = (nb_load_options){.stream = true};
        s = nb_policy_engine(path, &eo, o->policy, sink, out, err);
    } else {
        s = nb_engine_new(path, &eo, sink, out, err);
        if (s == NB_OK && o->policy) s = nb_policy_loaded(o->policy, sink, err);
    }
    if (s != NB_OK) return s;
    const nb_model *m = nb_engine_model(*out);
    nb_exec *x = m->x;
    nb_stack_begin(stack, m->ckpt);
    if (o->stack) x->arith = nb_stack_arith(stack);
    x->act_bf16 = o->act_bf16 || o->stack;
    x->quant_bf16 = o->quant_bf16 || o->stack;
    x->act_kernel = nb_stack_kernel(stack);
    x->cast_nosat = o->cast_nosat;
    return NB_OK;
}

static nb_status run_layers(nb_engine *exact, nb_engine *traced, nb_watch *w, const nb_step_part *parts,
                            size_t n, const nb_sink *sink, nb_error *err)
{
    int layers = (int)nb_engine_model(exact)->cfg.n_layers;
    nb_status s = nb_step_begin(exact, parts, n, err);
    if (s == NB_OK) s = nb_step_begin(traced, parts, n, err);
    for (int l = 0; s == NB_OK && l < layers; l++) {
        nb_watch_forget(w);
        s = nb_step_layer(exact, l, NULL, err);
        if (s == NB_OK) s = nb_step_layer(traced, l, NULL, err);
        nb_step_release(exact, l);
        nb_step_release(traced, l);
        if (sink && sink->progress)
            sink->progress(sink->ctx, "tracing layers", (uint64_t)l + 1, (uint64_t)layers);
    }
    return s;
}

static void drop_logits(void *ctx, size_t part, size_t row, const float *logits)
{
    (void)ctx;
}

static nb_status run(nb_engine *exact, nb_engine *traced, const nb_prompts *prompts, nb_trace *t,
                     const nb_sink *sink, nb_error *err)
{
    nb_watch *w = NULL;
    nb_step_out out = {.logits = drop_logits};
    nb_step_part *parts = calloc(prompts->n, sizeof *parts);
    nb_status s = parts ? nb_watch_new(exact, traced, t, &w, err)
                        : nb_fail_nomem(err, "a batch", prompts->n * sizeof *parts);
    for (size_t i = 0; s == NB_OK && i < prompts->n; i++) {
        uint32_t other;
        parts[i] =
            (nb_step_part){.tokens = prompts->ids[i].data, .n = prompts->ids[i].len, .all_logits = true};
        s = nb_seq_open(exact, &parts[i].seq, err);
        if (s == NB_OK) s = nb_seq_open(traced, &other, err); /* both count the same way */
    }
    if (s == NB_OK) s = run_layers(exact, traced, w, parts, prompts->n, sink, err);
    if (s == NB_OK) nb_watch_forget(w);
    if (s == NB_OK) s = nb_step_end(exact, &out, err);
    if (s == NB_OK) s = nb_step_end(traced, &out, err);
    nb_watch_free(w);
    free(parts);
    return s;
}

nb_status nb_trace_run(const char *path, const nb_trace_options *opt, const nb_prompts *prompts,
                       const nb_sink *sink, nb_trace *out, nb_error *err)
{
    nb_engine *exact = NULL, *traced = NULL;
    nb_stack_load stack = {.stack = opt->stack};
    nb_load_options streamed = {.stream = true};
    nb_engine_options eo = {.threads = opt->threads,
                            .kernels = opt->kernels ? opt->kernels : "auto",
                            .arith = NB_ARITH_EXACT,
                            .max_seqs = prompts->n,
                            .max_context = prompts->longest,
                            .max_rows = prompts->tokens,
                            .load = &streamed};
    nb_status s = nb_engine_new(path, &eo, NULL, &exact, err); /* warnings: those of the traced one, once */
    if (s != NB_OK) goto out;
    eo.arith = opt->arith;
    if ((s = open_traced(path, opt, eo, &stack, sink, &traced, err))) goto out;
    const nb_model *m = nb_engine_model(traced);
    out->stack = opt->stack;
    out->arith = m->x->arith;
    out->act_bf16 = m->x->act_bf16;
    out->cast_nosat = opt->cast_nosat;
    out->weight_only = stack.weight_only;
    out->n_layers = (int)m->cfg.n_layers;
    out->tokens = prompts->tokens;
    out->architecture = strdup(m->cfg.arch->name);
    if ((s = run(exact, traced, prompts, out, sink, err))) goto out;
    s = nb_trace_explain(out, &(nb_trace_context){m->ckpt, &m->cfg, &stack}, err);
out:
    nb_engine_free(traced);
    nb_engine_free(exact);
    return s;
}
