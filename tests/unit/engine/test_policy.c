/* Load policies: which linears a pattern takes, what an input scale becomes, and what is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/measure.h"
#include "engine/policy.h"
#include "tempdir.h"

#define MODELS NB_TEST_DATA "/fixtures/models/"
#define LLAMA MODELS "llama_ct"
#define DS4 MODELS "deepseek_v4_ct_nvfp4_attn"

static tempdir tmp;
static char said[1024]; /* what the engine told its sink */

static void take_line(void *ctx, nb_log_level level, const char *line)
{
    snprintf(said + strlen(said), sizeof said - strlen(said), "%s%s\n", level >= NB_LOG_WARN ? "! " : "",
             line);
}

static nb_status open_with(const char *path, nb_arith arith, const char *scales, const char *const *patterns,
                           size_t n, nb_engine **out, nb_error *err)
{
    const nb_sink sink = {.log = take_line};
    const nb_engine_options o = {
        .threads = 2, .kernels = "auto", .arith = arith, .max_seqs = 1, .max_context = 64, .max_rows = 64};
    nb_policy *p = NULL;
    *out = NULL;
    said[0] = '\0';
    nb_status s = nb_policy_new(scales, patterns, n, &p, err);
    if (s == NB_OK) s = nb_policy_engine(path, &o, p, &sink, out, err);
    nb_policy_free(p);
    return s;
}

static nb_engine *must_open(const char *path, nb_arith arith, const char *scales, const char *pattern)
{
    nb_engine *e;
    nb_error err = {0};
    if (open_with(path, arith, scales, &pattern, pattern ? 1 : 0, &e, &err) != NB_OK)
        fail_msg("%s: %s", err.tensor, err.cause);
    return e;
}

/* Calls fn for every linear of a layer. */
static void each(const nb_engine *e, void (*fn)(const nb_linear *l, const nb_linear_src *src, void *ctx),
                 void *ctx)
{
    const nb_model *m = nb_engine_model(e);
    for (size_t i = 0; i < m->cfg.arch->n_tensors * (size_t)m->cfg.n_layers; i++)
        for (size_t k = 0; k < m->layers[i].n_lin; k++) fn(&m->layers[i].lin[k], &m->layers[i].src[k], ctx);
}

typedef struct taken {
    size_t n;
    char last[256];
} taken;

static void count_taken(const nb_linear *l, const nb_linear_src *src, void *ctx)
{
    taken *t = ctx;
    if (!src->to_bf16) return;
    assert_int_equal(l->format, NB_FMT_BF16);
    t->n++;
    snprintf(t->last, sizeof t->last, "%s", l->module);
}

static taken taken_by(const char *path, const char *pattern)
{
    taken t = {0};
    nb_engine *e = must_open(path, NB_ARITH_EXACT, NULL, pattern);
    each(e, count_taken, &t);
    nb_engine_free(e);
    return t;
}

/* llama_ct: 3 layers of 7 NVFP4 linears. Stars match dots; the whole name must match. */
static void patterns(void **unused)
{
    assert_int_equal(taken_by(LLAMA, "*").n, 21);
    assert_int_equal(taken_by(LLAMA, "*attn*").n, 12);
    assert_int_equal(taken_by(LLAMA, "model.layers.1.*").n, 7);
    taken t = taken_by(LLAMA, "model.layers.?.mlp.down_proj");
    assert_int_equal(t.n, 3);
    assert_string_equal(t.last, "model.layers.2.mlp.down_proj");
    assert_int_equal(taken_by(LLAMA, "*.[kv]_proj").n, 6);
}

/* A folder in transformers' names can be spoken of in the architecture's own. */
static void canonical_names(void **unused)
{
    taken t = taken_by(DS4, "layers.0.attn.wq_a");
    assert_int_equal(t.n, 1);
    assert_string_equal(t.last, "model.layers.0.self_attn.q_a_proj");
    assert_int_equal(taken_by(DS4, "model.layers.0.self_attn.q_a_proj").n, 1);
}

static void pattern_without_a_match(void **unused)
{
    static const char *const two[] = {"*attn*", "*q_a_prj*"};
    nb_engine *e;
    nb_error err = {0};
    assert_int_equal(open_with(LLAMA, NB_ARITH_EXACT, NULL, two, 2, &e, &err), NB_ERR_ARGUMENT);
    assert_non_null(strstr(err.cause, "'*q_a_prj*'"));
    assert_null(e);
}

/* 3 q (192 x 96), 3 o (96 x 192), 6 k/v (64 x 96): 147,456 weights at 2 bytes less 9/16: 212 KB. */
static void cost_is_told(void **unused)
{
    nb_engine_free(must_open(LLAMA, NB_ARITH_EXACT, NULL, "*attn*"));
    assert_string_equal(said, "--dequant: 12 linears to BF16, 0.2 MB more memory\n");
}

/* gs = 2688 / amax, multiplier amax / 2688 (docs/formats.md). */
static void scale_of_a_maximum(void **unused)
{
    nb_input_scale s = {0};
    assert_true(nb_input_scale_of(8, &s));
    assert_true(s.gs == 336 && s.multiplier == 8 / 2688.0f);
    assert_true(nb_input_scale_of(0, &s));
    assert_true(s.gs == 1 && s.multiplier == 1);
    s.gs = 5;
    assert_false(nb_input_scale_of(-1, &s));
    assert_false(nb_input_scale_of(NAN, &s));
    assert_false(nb_input_scale_of(INFINITY, &s));
    assert_false(nb_input_scale_of(1e-40f, &s));
    assert_true(s.gs == 5);
}

/* A file with `amax` for every linear of llama_ct, named by `format` from layer and part; without the entry `without`. */
static const char *write_scales(const char *format, float amax, const char *without)
{
    static const char *const parts[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                        "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
                                        "mlp.down_proj"};
    nb_st_writer *w = NULL;
    nb_error err = {0};
    char names[21][128];
    size_t n = 0;
    const char *path = tempdir_path(&tmp, "scales.safetensors");
    assert_int_equal(nb_st_writer_open(path, &w, &err), NB_OK);
    for (int i = 0; i < 21; i++) {
        snprintf(names[n], sizeof names[n], format, i / 7, parts[i % 7]);
        if (without && strstr(names[n], without)) continue;
        assert_int_equal(nb_st_writer_declare(w, names[n++], NB_DT_F32, 0, NULL, &err), NB_OK);
    }
    assert_int_equal(nb_st_writer_begin(w, &err), NB_OK);
    for (size_t i = 0; i < n; i++) assert_int_equal(nb_st_writer_put(w, &amax, sizeof amax, &err), NB_OK);
    assert_int_equal(nb_st_writer_commit(w, &err), NB_OK);
    return path;
}

static void has_scale_of_8(const nb_linear *l, const nb_linear_src *src, void *ctx)
{
    assert_true(l->has_input && l->input_gs == 336 && l->input_multiplier == 8 / 2688.0f);
    ++*(size_t *)ctx;
}

static void scales_from_a_file(void **unused)
{
    static const char *const spellings[] = {"model.layers.%d.%s.input_amax", "layers.%d.%s.input_amax"};
    for (int i = 0; i < 2; i++) {
        size_t n = 0;
        nb_engine *e = must_open(LLAMA, NB_ARITH_W4A4, write_scales(spellings[i], 8, NULL), NULL);
        each(e, has_scale_of_8, &n);
        assert_int_equal(n, 21);
        assert_non_null(strstr(said, "input scales of 21 linears"));
        nb_engine_free(e);
    }
}

static void bad_files(void **unused)
{
    static const char format[] = "model.layers.%d.%s.input_amax";
    nb_engine *e;
    nb_error err = {0};
    const char *path = write_scales(format, 8, "1.mlp.up_proj");
    assert_int_equal(open_with(LLAMA, NB_ARITH_W4A4, path, NULL, 0, &e, &err), NB_ERR_MISSING);
    assert_string_equal(err.tensor, "model.layers.1.mlp.up_proj.input_amax");
    path = write_scales(format, -8, NULL);
    assert_int_equal(open_with(LLAMA, NB_ARITH_W4A4, path, NULL, 0, &e, &err), NB_ERR_FORMAT);
    assert_int_equal(open_with(LLAMA, NB_ARITH_W4A4, "/nonexistent/x", NULL, 0, &e, &err), NB_ERR_MISSING);
    assert_non_null(strstr(err.remedy, "warmup"));
    path = tempdir_write(&tmp, "no.safetensors", "hello, world", 12);
    assert_int_equal(open_with(LLAMA, NB_ARITH_W4A4, path, NULL, 0, &e, &err), NB_ERR_FORMAT);
}

/* A linear that is dequantised needs no scale, so the file may lack it. */
static void dequantised_needs_no_scale(void **unused)
{
    nb_engine_free(must_open(LLAMA, NB_ARITH_W4A4,
                             write_scales("model.layers.%d.%s.input_amax", 8, "self_attn"), "*attn*"));
}

typedef struct expected {
    nb_measure *m;
    size_t n, changed;
} expected;

static void has_measured_scale(const nb_linear *l, const nb_linear_src *src, void *ctx)
{
    expected *x = ctx;
    for (size_t i = 0; i < nb_measure_count(x->m); i++) {
        const nb_range *r = nb_measure_at(x->m, i);
        if (strcmp(r->linear->module, l->module) != 0 || l->format != NB_FMT_NVFP4) continue;
        assert_true(l->input_gs == 2688.0f / r->amax);
        x->changed += l->input_gs != src->input_gs;
        x->n++;
    }
}

/* The warm-up's scales are those of the built-in prompts in bf16, though the caller's own context is short. */
static void warm_up(void **unused)
{
    nb_error err = {0};
    nb_tokenizer *t = NULL;
    nb_prompts texts = {0};
    const nb_engine_options o = {
        .threads = 1, .kernels = "auto", .max_seqs = 1, .max_context = 512, .max_rows = 512};
    nb_engine *plain = NULL, *warm = must_open(LLAMA, NB_ARITH_W4A4, "warmup", NULL);
    expected x = {0};
    assert_non_null(strstr(said, "--scales warmup: input scales of 21 linears"));
    assert_int_equal(nb_engine_model(warm)->x->arith, NB_ARITH_W4A4);
    assert_int_equal(nb_engine_new(LLAMA, &o, NULL, &plain, &err), NB_OK);
    assert_int_equal(nb_tokenizer_open(LLAMA, &t, &err), NB_OK);
    assert_int_equal(nb_prompts_builtin(NULL, t, &texts, &err), NB_OK);
    assert_true(texts.longest <= 512);
    assert_int_equal(nb_measure_new(plain, false, &x.m, &err), NB_OK);
    assert_int_equal(nb_measure_run(x.m, &texts, NB_ARITH_BF16, NULL, &err), NB_OK);
    each(warm, has_measured_scale, &x);
    assert_int_equal(x.n, 21);
    assert_true(x.changed > 0);
    nb_measure_free(x.m);
    nb_prompts_free(&texts);
    nb_tokenizer_free(t);
    nb_engine_free(plain);
    nb_engine_free(warm);
}

static void dynamic(void **unused)
{
    nb_engine *e = must_open(LLAMA, NB_ARITH_W4A4, "dynamic", NULL);
    assert_int_equal(nb_engine_limits(e)->arith, NB_ARITH_W4A4_DYNAMIC);
    assert_string_equal(said, "");
    nb_engine_free(e);
}

/* An arithmetic without input scales: a warning, not silence. */
static void useless_scales_are_told(void **unused)
{
    nb_engine_free(must_open(LLAMA, NB_ARITH_BF16, "warmup", NULL));
    assert_non_null(strstr(said, "! --scales changes nothing here: arithmetic bf16"));
}

static int make(void **unused)
{
    tempdir_make(&tmp);
    return 0;
}

static int clean(void **unused)
{
    tempdir_remove(&tmp);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns),
        cmocka_unit_test(canonical_names),
        cmocka_unit_test(pattern_without_a_match),
        cmocka_unit_test(cost_is_told),
        cmocka_unit_test(scale_of_a_maximum),
        cmocka_unit_test(scales_from_a_file),
        cmocka_unit_test(bad_files),
        cmocka_unit_test(dequantised_needs_no_scale),
        cmocka_unit_test(warm_up),
        cmocka_unit_test(dynamic),
        cmocka_unit_test(useless_scales_are_told),
    };
    return cmocka_run_group_tests(tests, make, clean);
}
