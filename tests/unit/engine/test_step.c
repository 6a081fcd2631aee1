/* Steps: every position's logits against transformers' (fixtures), and the determinism rule: chunks, batches, threads, discarded
 * rows and kernels of one machine never change a bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/safetensors.h"
#include "engine/engine.h"

#define MODELS NB_TEST_DATA "/fixtures/models/"
enum { MAX_T = 256 };

typedef struct prompt {
    uint32_t ids[MAX_T];
    size_t n;
} prompt;

/* Reads p{i}.input_ids and, where want is given, p{i}.logits of a fixture's expected file. */
static void read_expected(const char *model, int i, prompt *p, float **want)
{
    char path[512], name[32];
    nb_safetensors *st = NULL;
    nb_error err;
    int64_t ids[MAX_T];
    snprintf(path, sizeof path, MODELS "%s/expected.safetensors", model);
    assert_int_equal(nb_safetensors_open(path, &st, &err), NB_OK);
    snprintf(name, sizeof name, "p%d.input_ids", i);
    const nb_tensor_info *t = nb_safetensors_find(st, name);
    assert_non_null(t);
    p->n = nb_tensor_elements(t);
    assert_true(p->n <= MAX_T);
    assert_int_equal(nb_safetensors_read(st, t, 0, ids, p->n * 8, &err), NB_OK);
    for (size_t k = 0; k < p->n; k++) p->ids[k] = (uint32_t)ids[k];
    if (want) {
        snprintf(name, sizeof name, "p%d.logits", i);
        t = nb_safetensors_find(st, name);
        assert_non_null(t);
        *want = malloc(nb_tensor_elements(t) * sizeof(float));
        assert_non_null(*want);
        assert_int_equal(nb_safetensors_read(st, t, 0, *want, nb_tensor_elements(t) * sizeof(float), &err),
                         NB_OK);
    }
    nb_safetensors_close(st);
}

typedef struct sink {
    float *out[4]; /* by part */
    size_t base[4], vocab;
} sink;

static void take(void *ctx, size_t part, size_t row, const float *v)
{
    sink *s = ctx;
    memcpy(s->out[part] + (s->base[part] + row) * s->vocab, v, s->vocab * sizeof *v);
}

static nb_engine *open_loaded(const char *model, nb_arith arith, const char *kernels, size_t threads,
                              const nb_load_options *load)
{
    char path[512];
    nb_engine *e = NULL;
    nb_error err = {0};
    nb_engine_options o = {.threads = threads,
                           .kernels = kernels,
                           .arith = arith,
                           .max_seqs = 4,
                           .max_context = MAX_T,
                           .max_rows = 3 * MAX_T,
                           .load = load};
    snprintf(path, sizeof path, MODELS "%s", model);
    if (nb_engine_new(path, &o, NULL, &e, &err) != NB_OK) {
        char line[1024];
        nb_error_format(&err, line, sizeof line);
        fail_msg("%s", line);
    }
    return e;
}

static nb_engine *open_engine(const char *model, nb_arith arith, const char *kernels, size_t threads)
{
    return open_loaded(model, arith, kernels, threads, NULL);
}

static float *run(nb_engine *e, const prompt *p, size_t chunk)
{
    sink s = {.vocab = nb_engine_model(e)->vocab};
    nb_step_out out = {.logits = take, .ctx = &s};
    uint32_t seq;
    s.out[0] = calloc(p->n * s.vocab, sizeof(float));
    assert_non_null(s.out[0]);
    assert_int_equal(nb_seq_open(e, &seq, NULL), NB_OK);
    for (size_t i = 0; i < p->n; i += chunk) {
        nb_step_part part = {seq, p->ids + i, p->n - i < chunk ? p->n - i : chunk, true};
        assert_int_equal(nb_engine_step(e, &part, 1, &out, NULL), NB_OK);
        nb_seq_commit(e, seq, part.n);
        s.base[0] += part.n;
    }
    nb_seq_close(e, seq);
    return s.out[0];
}

static const char *const models[] = {
    "llama_modelopt", "llama_mixed",          "deepseek_v4_modelopt", "deepseek_v4_ct_nvfp4_attn",
    "qwen3_next_ct",  "nemotron_h_modelopt",  "minimax_m2_modelopt",  "qwen2_ct",
    "deepseek_v3_ct", "glm_moe_dsa_modelopt", "gemma3_modelopt",      "gemma4_moe_ct",
    "gpt_oss_bf16"};
#define N_MODELS (sizeof models / sizeof *models)

static void test_logits_are_the_reference(void **unused)
{
    for (size_t m = 0; m < N_MODELS; m++) {
        nb_engine *e = open_engine(models[m], NB_ARITH_EXACT, "auto", 2);
        for (int i = 0; i < 3; i++) {
            prompt p;
            float *want, worst = 0;
            read_expected(models[m], i, &p, &want);
            float *have = run(e, &p, MAX_T);
            for (size_t k = 0; k < p.n * nb_engine_model(e)->vocab; k++) {
                float d = fabsf(have[k] - want[k]);
                if (!(d <= worst)) worst = d;
            }
            if (!(worst <= 1e-3f)) fail_msg("%s prompt %d: logits differ by %g", models[m], i, (double)worst);
            free(have);
            free(want);
        }
        nb_engine_free(e);
    }
}

static void same(const float *a, const float *b, size_t n, const char *what)
{
    if (memcmp(a, b, n * sizeof *a) != 0) fail_msg("%s changed a bit", what);
}

static void test_nothing_changes_a_bit(void **unused)
{
    for (size_t m = 0; m < N_MODELS; m++) {
        for (int a = 0; a < NB_ARITH_COUNT; a++) {
            prompt p;
            read_expected(models[m], 2, &p, NULL);
            nb_engine *two = open_engine(models[m], (nb_arith)a, "auto", 2),
                      *one = open_engine(models[m], (nb_arith)a, "auto", 1);
            size_t n = p.n * nb_engine_model(one)->vocab;
            float *whole = run(two, &p, MAX_T);
            for (size_t chunk = 1; chunk <= 64; chunk = chunk == 1 ? 7 : chunk == 7 ? 64 : 65) {
                float *part = run(two, &p, chunk);
                same(whole, part, n, "the chunking");
                free(part);
            }
            float *single = run(one, &p, MAX_T);
            same(whole, single, n, "the number of threads");
            free(single);
            free(whole);
            nb_engine_free(one);
            nb_engine_free(two);
        }
    }
}

static void test_batched_with_others(void **unused)
{
    for (size_t m = 0; m < N_MODELS; m++) {
        prompt p[3];
        nb_engine *e = open_engine(models[m], NB_ARITH_BF16, "auto", 2);
        sink s = {.vocab = nb_engine_model(e)->vocab};
        nb_step_out out = {.logits = take, .ctx = &s};
        nb_step_part parts[3];
        float *alone[3];
        for (int i = 0; i < 3; i++) {
            read_expected(models[m], i, &p[i], NULL);
            alone[i] = run(e, &p[i], MAX_T);
        }
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t seq;
            s.out[i] = calloc(p[i].n * s.vocab, sizeof(float));
            assert_int_equal(nb_seq_open(e, &seq, NULL), NB_OK);
            parts[i] = (nb_step_part){seq, p[i].ids, p[i].n, true};
        }
        assert_int_equal(nb_engine_step(e, parts, 3, &out, NULL), NB_OK);
        for (int i = 0; i < 3; i++) {
            same(alone[i], s.out[i], p[i].n * s.vocab, "the batch");
            free(alone[i]);
            free(s.out[i]);
        }
        nb_engine_free(e);
    }
}

/* Rows that were computed and discarded, or committed in part, leave no trace. */
static void test_discarded_rows(void **unused)
{
    for (size_t m = 0; m < N_MODELS; m++) {
        prompt p;
        read_expected(models[m], 2, &p, NULL);
        nb_engine *e = open_engine(models[m], NB_ARITH_EXACT, "auto", 2);
        size_t vocab = nb_engine_model(e)->vocab;
        float *whole = run(e, &p, MAX_T);
        sink s = {.vocab = vocab};
        nb_step_out out = {.logits = take, .ctx = &s};
        uint32_t seq, noise[20];
        for (uint32_t i = 0; i < 20; i++) noise[i] = (i * 37 + 5) % (uint32_t)vocab;
        s.out[0] = calloc(p.n * vocab, sizeof(float));
        assert_int_equal(nb_seq_open(e, &seq, NULL), NB_OK);
        for (size_t i = 0; i < p.n; i += 5) {
            nb_step_part guess = {seq, noise, 20, false};
            assert_int_equal(nb_engine_step(e, &guess, 1, NULL, NULL), NB_OK);
            nb_seq_commit(e, seq, 0);
            nb_step_part part = {seq, p.ids + i, p.n - i < 9 ? p.n - i : 9,
                                 true}; /* nine computed, five kept */
            assert_int_equal(nb_engine_step(e, &part, 1, NULL, NULL), NB_OK);
            nb_seq_commit(e, seq, 0);
            part.n = p.n - i < 5 ? p.n - i : 5;
            assert_int_equal(nb_engine_step(e, &part, 1, &out, NULL), NB_OK);
            nb_seq_commit(e, seq, 5);
            s.base[0] += part.n;
        }
        same(whole, s.out[0], p.n * vocab, "a discarded row");
        free(s.out[0]);
        free(whole);
        nb_engine_free(e);
    }
}

static void test_streamed_weights(void **unused)
{
    for (size_t m = 0; m < N_MODELS; m++) {
        prompt p;
        read_expected(models[m], 0, &p, NULL);
        nb_engine *kept = open_engine(models[m], NB_ARITH_W4A4_DYNAMIC, "auto", 2);
        nb_engine *streamed =
            open_loaded(models[m], NB_ARITH_W4A4_DYNAMIC, "auto", 2, &(nb_load_options){.stream = true});
        float *a = run(kept, &p, MAX_T), *b = run(streamed, &p, 5);
        same(a, b, p.n * nb_engine_model(kept)->vocab, "streaming the weights");
        free(a);
        free(b);
        nb_engine_free(kept);
        nb_engine_free(streamed);
    }
}

typedef struct watch {
    size_t linears, expert_rows, others;
    int last_layer;
    float first; /* of the last output seen */
} watch;

static void see(void *ctx, nb_exec *x, const nb_tap *t)
{
    watch *w = ctx;
    if (t->linear)
        w->linears++;
    else
        w->others++;
    if (t->pick) w->expert_rows += t->rows;
    assert_true(t->layer >= w->last_layer);
    assert_int_equal(t->in != NULL, t->linear != NULL);
    assert_true(t->rows > 0);
    w->last_layer = t->layer;
    float row[4096];
    x->ops->tensor_read(x, t->out, t->pick ? t->pick[0] : 0, 1, row);
    w->first = row[0];
}

/* Three layers, hash-routed and scored, with and without compression and an indexer. Linears of a layer: 5 attention (wq_a, wkv,
 * wq_b, wo_a, wo_b), the gate, 3 shared; 2 of a compressor, 2 + 2 of an indexer with its own; then the head. Expert rows: two
 * slots through w1, w3 and w2 of three layers. */
static void test_taps_see_everything(void **unused)
{
    prompt p;
    watch w = {.last_layer = -1};
    read_expected("deepseek_v4_modelopt", 0, &p, NULL);
    nb_engine *e = open_engine("deepseek_v4_modelopt", NB_ARITH_EXACT, "auto", 2);
    float *plain = run(e, &p, MAX_T);
    nb_exec *x = nb_engine_model(e)->x;
    x->tap = see;
    x->tap_ctx = &w;
    float *watched = run(e, &p, MAX_T);
    same(plain, watched, p.n * nb_engine_model(e)->vocab, "watching");
    assert_int_equal(w.expert_rows, 3 * 3 * 2 * p.n);
    size_t dense = 3 * 9 + 2 * 2 + 4 + 1; /* two compressed layers, one of them indexed, and the head */
    assert_true(w.linears >= dense + 3 * 3 * 2 &&
                w.linears <= dense + 3 * 3 * 6); /* two to six experts of a layer had rows */
    assert_true(w.others > 3 * 10);
    assert_int_equal(w.last_layer, 3);
    free(plain);
    free(watched);
    nb_engine_free(e);
}

static void test_limits(void **unused)
{
    nb_engine *e = open_engine("llama_modelopt", NB_ARITH_EXACT, "generic", 1);
    nb_error err;
    uint32_t seq, other, ids[MAX_T + 1] = {0};
    assert_int_equal(nb_seq_open(e, &seq, &err), NB_OK);
    nb_step_part part = {seq, ids, MAX_T + 1, false};
    assert_int_equal(nb_engine_step(e, &part, 1, NULL, &err), NB_ERR_LIMIT);
    ids[3] = 100000;
    part.n = 5;
    assert_int_equal(nb_engine_step(e, &part, 1, NULL, &err), NB_ERR_ARGUMENT);
    assert_non_null(strstr(err.cause, "100000"));
    for (int i = 0; i < 3; i++) assert_int_equal(nb_seq_open(e, &other, &err), NB_OK);
    assert_int_equal(nb_seq_open(e, &other, &err), NB_ERR_LIMIT);
    nb_engine_free(e);
}

static void test_w4a4_without_input_scale_is_named(void **unused)
{
    nb_engine *e = open_engine("llama_nvfp4a16", NB_ARITH_W4A4, "auto", 1);
    nb_error err;
    uint32_t seq, id = 1;
    assert_int_equal(nb_seq_open(e, &seq, NULL), NB_OK);
    nb_step_part part = {seq, &id, 1, false};
    assert_int_equal(nb_engine_step(e, &part, 1, NULL, &err), NB_ERR_MISSING);
    assert_string_equal(err.tensor, "model.layers.0.self_attn.q_proj");
    assert_int_equal(nb_seq_length(e, seq), 0);
    nb_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_are_the_reference),
        cmocka_unit_test(test_nothing_changes_a_bit),
        cmocka_unit_test(test_batched_with_others),
        cmocka_unit_test(test_discarded_rows),
        cmocka_unit_test(test_streamed_weights),
        cmocka_unit_test(test_taps_see_everything),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_w4a4_without_input_scale_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
