/* calibrate: measures activation ranges over texts, layer by layer, and writes them down. */
#include "doctor/calibrate.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "checkpoint/safetensors.h"
#include "doctor/texts.h"
#include "engine/measure.h"
#include "numerics/nvfp4.h"

static const char filled_rule[] = "largest amax of the layer's other experts";

static nb_status take(nb_measure *m, nb_calibration *out, nb_error *err)
{
    size_t n = nb_measure_count(m);
    out->items = calloc(n + 1, sizeof *out->items);
    if (!out->items) return nb_fail_nomem(err, "calibration results", n * sizeof *out->items);
    for (; out->n < n; out->n++) {
        const nb_range *r = nb_measure_at(m, out->n);
        nb_calibrated *c = &out->items[out->n];
        *c = (nb_calibrated){.module = strdup(r->linear->module),
                             .amax = r->amax,
                             .p9999 = nb_range_p9999(r),
                             .tokens = r->rows,
                             .stored = r->src->format == NB_FMT_NVFP4 && r->src->has_input,
                             .filled_by = r->filled ? filled_rule : NULL};
        if (!c->module) return nb_fail_nomem(err, "a module name", strlen(r->linear->module));
        if (!c->stored) continue;
        c->stored_amax = (double)r->src->input_multiplier * (double)NB_NVFP4_RANGE;
        c->ratio = (double)c->amax / c->stored_amax;
    }
    return NB_OK;
}

/* The integers first: every tensor is then aligned to its own size. */
static nb_status write_file(nb_st_writer *w, const nb_calibration *c, nb_error *err)
{
    static const char *const member[] = {"tokens", "input_amax", "input_p9999"};
    nb_status s = NB_OK;
    char name[320];
    for (int k = 0; k < 3; k++) {
        for (size_t i = 0; s == NB_OK && i < c->n; i++) {
            snprintf(name, sizeof name, "%s.%s", c->items[i].module, member[k]);
            s = nb_st_writer_declare(w, name, k ? NB_DT_F32 : NB_DT_I64, 0, NULL, err);
        }
    }
    if (s == NB_OK) s = nb_st_writer_begin(w, err);
    for (int k = 0; k < 3; k++) {
        for (size_t i = 0; s == NB_OK && i < c->n; i++) {
            const nb_calibrated *m = &c->items[i];
            int64_t tokens = (int64_t)m->tokens;
            const void *from = k == 0 ? (const void *)&tokens : k == 1 ? &m->amax : &m->p9999;
            s = nb_st_writer_put(w, from, k ? sizeof m->amax : sizeof tokens, err);
        }
    }
    return s;
}

/* A file of that name is replaced only when it is one of these: `-o model.safetensors` must not cost a model. */
static nb_status may_replace(const char *path, const nb_sink *sink, nb_error *err)
{
    struct stat st;
    nb_safetensors *f = NULL;
    bool ranges = false;
    if (lstat(path, &st) != 0) return NB_OK; /* new, or the writer says what is wrong */
    nb_status s = S_ISREG(st.st_mode) ? nb_safetensors_open(path, &f, err) : NB_ERR_ARGUMENT;
    if (s == NB_ERR_NOMEM) return s;
    for (size_t i = 0; s == NB_OK && i < nb_safetensors_count(f) && !ranges; i++) {
        const char *name = nb_safetensors_at(f, i)->name, *last = strrchr(name, '.');
        ranges = last && strcmp(last, ".input_amax") == 0;
    }
    nb_safetensors_close(f);
    if (ranges) {
        nb_log(sink, NB_LOG_INFO, "%s: the ranges that it holds will be replaced", path);
        return NB_OK;
    }
    nb_fail(err, NB_ERR_ARGUMENT,
            S_ISDIR(st.st_mode) ? "this is a folder" : "this exists and holds no ranges");
    nb_error_at(err, path, NULL, -1);
    nb_error_remedy(err, "give another file to write");
    return NB_ERR_ARGUMENT;
}

nb_status nb_calibrate(const char *dir, const nb_calibrate_options *opt, const nb_sink *sink,
                       nb_calibration *out, nb_error *err)
{
    nb_prompts texts = {0};
    nb_engine *e = NULL;
    nb_measure *m = NULL;
    nb_st_writer *w = NULL;
    const nb_engine_options eo = {
        .threads = opt->threads, .kernels = opt->kernels, .arith = opt->arith, .act_bf16 = opt->act_bf16};
    double start = nb_now();
    *out = (nb_calibration){0};
    if (opt->arith != NB_ARITH_EXACT && opt->arith != NB_ARITH_BF16)
        return nb_fail(err, NB_ERR_ARGUMENT, "calibrate measures in exact or bf16, not in %s",
                       nb_arith_name(opt->arith));
    nb_status s = may_replace(opt->out, sink, err); /* before the work, not after it */
    if (s == NB_OK) s = nb_writer_try(opt->out, err);
    if (s == NB_OK) s = nb_st_writer_open(opt->out, &w, err);
    if (s == NB_OK) s = nb_texts_read(dir, opt->data, NULL, &texts, err);
    if (s == NB_OK) s = nb_texts_engine(dir, &texts, opt->rows, &eo, sink, &e, err);
    if (s == NB_OK) s = nb_measure_new(e, true, &m, err);
    if (s == NB_OK) s = nb_measure_run(m, &texts, opt->arith, sink, err);
    if (s == NB_OK) s = nb_measure_fill(m, err);
    if (s == NB_OK) s = take(m, out, err);
    if (s == NB_OK) s = write_file(w, out, err);
    if (s == NB_OK) {
        s = nb_st_writer_commit(w, err);
        w = NULL;
    }
    out->texts = texts.n;
    out->tokens = texts.tokens;
    out->seconds = nb_now() - start;
    nb_st_writer_abort(w);
    nb_measure_free(m);
    nb_engine_free(e);
    nb_prompts_free(&texts);
    if (s != NB_OK) nb_calibration_free(out);
    return s;
}

void nb_calibration_free(nb_calibration *c)
{
    for (size_t i = 0; i < c->n; i++) free(c->items[i].module);
    free(c->items);
    *c = (nb_calibration){0};
}
