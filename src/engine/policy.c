/* Load policies: which linears become BF16, and where input scales come from. */
#include "engine/policy.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/map.h"
#include "engine/measure.h"
#include "numerics/nvfp4.h"

#define WARMUP_CONTEXT 512 /* tokens of a built-in prompt, more than any has */

typedef struct pattern {
    char *glob;
    size_t matched;
} pattern;

struct nb_policy {
    nb_scales scales;
    nb_safetensors *file; /* NB_SCALES_FILE */
    char *path;
    nb_map
        canonical; /* the file's entries by the canonical names of the architecture, made when it is known */
    char **names;  /* the map's keys */
    size_t n_names;
    pattern *dequant;
    size_t n_dequant;
    size_t n_bf16;       /* linears dequantised */
    int64_t extra_bytes; /* what that takes beyond the stored form */
    size_t n_scaled;     /* linears scaled from the file */
};

nb_status nb_policy_new(const char *scales, const char *const *dequant, size_t n_dequant, nb_policy **out,
                        nb_error *err)
{
    static const char *const names[] = {"checkpoint", "warmup", "dynamic"};
    nb_status s = NB_OK;
    nb_policy *p = calloc(1, sizeof *p);
    if (!p) return nb_fail_nomem(err, "a load policy", sizeof *p);
    p->scales = scales ? NB_SCALES_FILE : NB_SCALES_CHECKPOINT;
    for (int i = 0; scales && i < 3; i++)
        if (strcmp(scales, names[i]) == 0) p->scales = (nb_scales)i;
    p->dequant = calloc(n_dequant + 1, sizeof *p->dequant);
    if (!p->dequant) {
        s = nb_fail_nomem(err, "patterns", n_dequant * sizeof *p->dequant);
        goto out;
    }
    for (; p->n_dequant < n_dequant; p->n_dequant++) {
        p->dequant[p->n_dequant].glob = strdup(dequant[p->n_dequant]);
        if (p->dequant[p->n_dequant].glob) continue;
        s = nb_fail_nomem(err, "a pattern", strlen(dequant[p->n_dequant]));
        goto out;
    }
    if (p->scales != NB_SCALES_FILE) goto out;
    if (!(p->path = strdup(scales))) {
        s = nb_fail_nomem(err, "a path", strlen(scales));
        goto out;
    }
    s = nb_safetensors_open(scales, &p->file, err);
    if (s == NB_ERR_MISSING)
        nb_error_remedy(err, "--scales is checkpoint, warmup, dynamic, or a file from nibble calibrate -o");
out:
    if (s == NB_OK)
        *out = p;
    else
        nb_policy_free(p);
    return s;
}

void nb_policy_free(nb_policy *p)
{
    if (!p) return;
    for (size_t i = 0; i < p->n_dequant; i++) free(p->dequant[i].glob);
    free(p->dequant);
    for (size_t i = 0; i < p->n_names; i++) free(p->names[i]);
    free(p->names);
    nb_map_free(&p->canonical);
    nb_safetensors_close(p->file);
    free(p->path);
    free(p);
}

nb_scales nb_policy_scales(const nb_policy *p)
{
    return p->scales;
}

bool nb_input_scale_of(float amax, nb_input_scale *out)
{
    float gs = NB_NVFP4_RANGE / amax;
    if (!(amax >= 0) || isinf(amax) || (amax > 0 && isinf(gs))) return false;
    *out = amax > 0 ? (nb_input_scale){gs, amax / NB_NVFP4_RANGE} : (nb_input_scale){1, 1};
    return true;
}

static bool quantised(nb_format f)
{
    return f == NB_FMT_NVFP4 || f == NB_FMT_MXFP4 || f == NB_FMT_FP8;
}

/* Ranges measured on a folder with other spellings (the BF16 original, another flavour) serve as well: finds what each entry of
 * the file is called in the architecture's own names. */
static nb_status index_file(nb_policy *p, const nb_config *cfg, nb_error *err)
{
    static const char suffix[] = ".input_amax";
    char module[256], name[256];
    size_t n = nb_safetensors_count(p->file);
    p->names = calloc(n + 1, sizeof *p->names);
    if (!p->names || !nb_map_reserve(&p->canonical, n))
        return nb_fail_nomem(err, p->path, n * sizeof *p->names);
    for (size_t i = 0; i < n; i++) {
        const char *stored = nb_safetensors_at(p->file, i)->name;
        size_t len = strlen(stored), cut = sizeof suffix - 1;
        int64_t l, e;
        bool skipped;
        if (len <= cut || len - cut >= sizeof module || strcmp(stored + len - cut, suffix) != 0) continue;
        memcpy(module, stored, len - cut);
        module[len - cut] = '\0';
        const nb_arch_tensor *row = nb_arch_identify(cfg, module, &l, &e, &skipped);
        if (!row) continue;
        nb_arch_name(row, l, e, name, sizeof name);
        char *key = strdup(name);
        if (!key) return nb_fail_nomem(err, "a module name", strlen(name));
        p->names[p->n_names++] = key;
        if (!nb_map_put(&p->canonical, key, strlen(key), (uint32_t)i, NULL))
            return nb_fail_nomem(err, p->path, n * sizeof *p->names);
    }
    return NB_OK;
}

/* Takes src's input scale from the file, where it stands under the stored name or another spelling of it. Not needed: a table that is
 * looked up by row, unless it is the head too. */
static nb_status scale_from_file(nb_policy *p, const nb_config *cfg, const char *canonical, bool needed,
                                 nb_linear_src *src, nb_error *err)
{
    char name[320];
    float amax;
    nb_input_scale in;
    uint32_t at;
    nb_status s;
    if (!p->names && (s = index_file(p, cfg, err))) return s;
    snprintf(name, sizeof name, "%s.input_amax", src->module);
    const nb_tensor_info *t = nb_safetensors_find(p->file, name);
    if (!t && nb_map_get(&p->canonical, canonical, strlen(canonical), &at))
        t = nb_safetensors_at(p->file, at);
    if (!t && !needed) return NB_OK;
    if (!t) {
        nb_fail(err, NB_ERR_MISSING, "the file of scales has no measured maximum of this linear's input");
        nb_error_at(err, p->path, name, -1);
        nb_error_remedy(err, "calibrate this folder: nibble calibrate DIR -o FILE");
        return NB_ERR_MISSING;
    }
    if (t->dtype != NB_DT_F32 || nb_tensor_elements(t) != 1) {
        nb_fail(err, NB_ERR_FORMAT, "dtype %s with %llu elements, expected one F32 number",
                nb_dtype_name(t->dtype), (unsigned long long)nb_tensor_elements(t));
        nb_error_at(err, p->path, t->name, (int64_t)t->begin);
        return NB_ERR_FORMAT;
    }
    s = nb_safetensors_read(p->file, t, 0, &amax, sizeof amax, err);
    if (s != NB_OK) return s;
    if (!nb_input_scale_of(amax, &in)) {
        nb_fail(err, NB_ERR_FORMAT, "%g is not the maximum of an input's magnitude", (double)amax);
        nb_error_at(err, p->path, t->name, (int64_t)t->begin);
        return NB_ERR_FORMAT;
    }
    src->has_input = true;
    src->input_gs = in.gs;
    src->input_multiplier = in.multiplier;
    p->n_scaled++;
    return NB_OK;
}

nb_status nb_policy_adjust(void *ctx, const nb_model *m, const nb_arch_tensor *row, int64_t layer,
                           int64_t expert, nb_linear_src *src, nb_error *err)
{
    nb_policy *p = ctx;
    char canonical[256];
    bool hit = false;
    nb_arch_name(row, layer, expert, canonical, sizeof canonical);
    for (size_t i = 0; i < p->n_dequant; i++) {
        if (fnmatch(p->dequant[i].glob, src->module, 0) != 0 &&
            fnmatch(p->dequant[i].glob, canonical, 0) != 0)
            continue;
        p->dequant[i].matched++;
        hit = true;
    }
    if (hit && quantised(src->format) && !src->to_bf16) {
        src->to_bf16 = true;
        p->n_bf16++;
        p->extra_bytes += 2 * (int64_t)(src->n * src->k) - (int64_t)nb_linear_code_bytes(src, src->n) -
                          (int64_t)nb_linear_scale_bytes(src, src->n);
    }
    if (p->scales != NB_SCALES_FILE || src->format != NB_FMT_NVFP4 || src->to_bf16) return NB_OK;
    return scale_from_file(p, &m->cfg, canonical, row->role != NB_ROLE_EMBED, src, err);
}

nb_status nb_policy_loaded(const nb_policy *p, const nb_sink *sink, nb_error *err)
{
    for (size_t i = 0; i < p->n_dequant; i++) {
        if (p->dequant[i].matched) continue;
        nb_fail(err, NB_ERR_ARGUMENT, "--dequant '%s' matches no linear of this model", p->dequant[i].glob);
        nb_error_remedy(err, "patterns match whole module names: '*attn*', 'layers.0.*'");
        return NB_ERR_ARGUMENT;
    }
    if (p->n_dequant)
        nb_log(sink, NB_LOG_INFO, "--dequant: %zu linears to BF16, %.1f MB more memory", p->n_bf16,
               (double)p->extra_bytes / 1e6);
    if (p->scales == NB_SCALES_FILE)
        nb_log(sink, NB_LOG_INFO, "--scales: input scales of %zu linears from %s", p->n_scaled, p->path);
    return NB_OK;
}

/* Measures the built-in prompts in bf16, which reads no input scale, and gives every NVFP4 linear its own scale. */
static nb_status warm_up(nb_engine *e, const nb_sink *sink, nb_error *err)
{
    const nb_model *model = nb_engine_model(e);
    nb_tokenizer *t = NULL;
    nb_chat_format *chat = NULL;
    nb_measure *m = NULL;
    nb_prompts prompts = {0};
    double start = nb_now();
    size_t n = 0;
    nb_status s = nb_tokenizer_open(nb_ckpt_dir(model->ckpt), &t, err);
    if (s == NB_OK) s = nb_prompts_format(model->ckpt, &model->cfg, &chat, err);
    if (s == NB_OK) s = nb_prompts_builtin(chat, t, &prompts, err);
    if (s == NB_OK) s = nb_measure_new(e, false, &m, err);
    if (s == NB_OK) s = nb_measure_run(m, &prompts, NB_ARITH_BF16, sink, err);
    if (s == NB_OK) s = nb_measure_fill(m, err);
    for (size_t i = 0; s == NB_OK && i < nb_measure_count(m); i++) {
        const nb_range *r = nb_measure_at(m, i);
        nb_input_scale in;
        if (r->linear->format != NB_FMT_NVFP4) continue;
        if (!nb_input_scale_of(r->amax, &in)) {
            s = nb_fail(err, NB_ERR_FORMAT, "its input's maximum %g gives no scale", (double)r->amax);
            nb_error_at(err, nb_ckpt_dir(model->ckpt), r->linear->module, -1);
            break;
        }
        r->linear->has_input = true;
        r->linear->input_gs = in.gs;
        r->linear->input_multiplier = in.multiplier;
        n++;
    }
    if (s == NB_OK)
        nb_log(sink, NB_LOG_INFO,
               "--scales warmup: input scales of %zu linears from %zu prompts of %zu tokens, %.2f s", n,
               prompts.n, prompts.tokens, nb_now() - start);
    nb_measure_free(m);
    nb_prompts_free(&prompts);
    nb_chat_format_free(chat);
    nb_tokenizer_free(t);
    return s;
}

nb_status nb_policy_engine(const char *path, const nb_engine_options *opt, nb_policy *p, const nb_sink *sink,
                           nb_engine **out, nb_error *err)
{
    nb_engine *e = NULL;
    nb_engine_options o = *opt;
    nb_load_options load = opt->load ? *opt->load : (nb_load_options){0};
    if (!p) return nb_engine_new(path, opt, sink, out, err);
    load.adjust = nb_policy_adjust;
    load.ctx = p;
    o.load = &load;
    bool w4a4 = o.arith == NB_ARITH_W4A4;
    bool same = p->scales == NB_SCALES_DYNAMIC && o.arith == NB_ARITH_W4A4_DYNAMIC;
    if (p->scales != NB_SCALES_CHECKPOINT && !w4a4 && !same)
        nb_log(sink, NB_LOG_WARN, "--scales changes nothing here: arithmetic %s uses no stored input scale",
               nb_arith_name(o.arith));
    if (p->scales == NB_SCALES_DYNAMIC && w4a4) o.arith = NB_ARITH_W4A4_DYNAMIC;
    bool warm = p->scales == NB_SCALES_WARMUP && w4a4;
    if (warm && o.max_context && o.max_context < WARMUP_CONTEXT) {
        o.max_context = 0; /* as much as the model takes, up to the cap */
        o.context_cap = WARMUP_CONTEXT;
    }
    nb_status s = nb_engine_new(path, &o, sink, &e, err);
    if (s == NB_OK) s = nb_policy_loaded(p, sink, err);
    if (s == NB_OK && warm) s = warm_up(e, sink, err);
    if (s == NB_OK)
        *out = e;
    else
        nb_engine_free(e);
    return s;
}
