/*
 * Every cause of values that are not finite, in every tensor of three models, under eight streams: who is affected is healed or
 * fails with the culprit's name, all others get the tokens that they get alone. Nobody is ever given a token that came of a NaN.
 */
#include <math.h>

#include "engine/broken.h"
#include "engine/serve.h"

enum { STREAMS = 8 };
static uint32_t prompts[STREAMS][24];
static nb_request_spec specs[STREAMS];
static answer have[STREAMS], broken[STREAMS], mended[STREAMS];
static bool sound[STREAMS];

static void make_specs(size_t vocab)
{
    for (uint32_t i = 0; i < STREAMS; i++) {
        size_t n = 2 + i * 7 % 21;
        for (uint32_t k = 0; k < n; k++) prompts[i][k] = (k * 41 + i * 19 + 3) % (uint32_t)vocab;
        specs[i] = serve_spec(prompts[i], n, 6);
        specs[i].sampling.seed = i;
        if (i % 2) specs[i].sampling.temperature = 1;
    }
}

/* The oracle without a guard. */
static void alone_on(const char *path, nb_arith arith, answer *out, bool *ok)
{
    nb_engine *e = serve_engine(path, arith, 64, NULL);
    make_specs(nb_engine_model(e)->vocab);
    for (size_t i = 0; i < STREAMS; i++) {
        bool yes = serve_alone(e, &specs[i], &out[i]);
        if (ok) ok[i] = yes;
    }
    nb_engine_free(e);
}

static size_t affected(void)
{
    size_t n = 0;
    for (size_t i = 0; i < STREAMS; i++) n += !sound[i];
    return n;
}

typedef enum outcome { HEALED, FAILED } outcome;

/* Serves the broken folder. The tensor is what failures must name, rung what must have healed (NULL: any), repaired the folder
 * whose tokens healed requests must have (NULL: not known). Returns how many were affected. */
static size_t serve_broken(tempdir *t, nb_arith arith, const char *tensor, outcome want, const char *rung,
                           bool repaired)
{
    serve s;
    nb_core_stats stats;
    nb_guard_count counts[64];
    alone_on(t->path, arith, broken, sound);
    serve_start(&s, t->path, arith, 16);
    serve_all(&s, specs, have, STREAMS);
    size_t n = nb_core_guard(s.core, counts, 64), failed = 0;
    for (size_t i = 0; i < STREAMS; i++) {
        if (sound[i]) {
            serve_same_tokens(&have[i], &broken[i], tensor);
            continue;
        }
        if (want == HEALED) {
            if (have[i].finish == NB_FINISH_ERROR) fail_msg("%s: %s", tensor, have[i].error.cause);
            if (repaired) serve_same_tokens(&have[i], &mended[i], tensor);
            continue;
        }
        failed++;
        if (have[i].finish != NB_FINISH_ERROR) fail_msg("%s: an answer of a NaN", tensor);
        assert_int_equal(have[i].error.status, NB_ERR_FORMAT);
        if (strcmp(have[i].error.tensor, tensor) != 0 || !strstr(have[i].error.cause, "non-finite logits"))
            fail_msg("%s: named %s: %s", tensor, have[i].error.tensor, have[i].error.cause);
        /* what it got before is what it gets alone */
        assert_int_equal(have[i].n, broken[i].n);
        assert_memory_equal(have[i].tokens, broken[i].tokens, have[i].n * sizeof *have[i].tokens);
    }
    nb_core_read(s.core, &stats);
    assert_int_equal(stats.corrupted, affected());
    if (affected()) {
        assert_true(n >= 1 && s.logged >= 1);
        bool seen = false;
        for (size_t i = 0; i < n; i++) seen |= strcmp(counts[i].rung, want == FAILED ? "failed" : rung) == 0;
        if (!seen) fail_msg("%s: rung %s, expected %s", tensor, counts[0].rung, rung ? rung : "failed");
        assert_int_equal(s.logged, n); /* once a culprit and rung */
    }
    serve_stop(&s);
    return failed + (want == HEALED ? affected() : 0);
}

static bool ends(const char *s, const char *suffix)
{
    size_t a = strlen(s), b = strlen(suffix);
    return a >= b && strcmp(s + a - b, suffix) == 0;
}

static const char *const models[] = {"llama_modelopt", "deepseek_v4_modelopt", "glm_moe_dsa_modelopt",
                                     "nemotron_h_modelopt", "qwen3_next_ct"};
#define N_MODELS (sizeof models / sizeof *models)

typedef size_t (*cause)(tempdir *t, const nb_tensor_info *i);

/* Applies f to the tensors of all models that it is for; returns how many streams were affected in all. */
static size_t each_tensor(cause f)
{
    size_t n = 0;
    for (size_t m = 0; m < N_MODELS; m++) {
        char path[512];
        tempdir t;
        nb_ckpt *c = NULL;
        snprintf(path, sizeof path, SERVE_MODELS "%s", models[m]);
        broken_copy(&t, path);
        assert_int_equal(nb_ckpt_open(path, NULL, NULL, &c, NULL), NB_OK);
        for (size_t i = 0; i < nb_ckpt_count(c); i++) {
            const char *expert = strstr(nb_ckpt_at(c, i)->name, "experts.");
            if (expert && expert[8] >= '2' && expert[8] <= '9') continue; /* two experts of each layer */
            n += f(&t, nb_ckpt_at(c, i));
        }
        nb_ckpt_close(c);
        tempdir_remove(&t);
    }
    return n;
}

/* 0x7F among an NVFP4 weight's block scales: clean reads 0x7E, and the tokens are those of the folder that repair would write. */
static size_t nan_byte(tempdir *t, const nb_tensor_info *i)
{
    const uint8_t nan = 0x7F, max = 0x7E;
    uint8_t was;
    if (!ends(i->name, ".weight_scale") || i->dtype != NB_DT_F8_E4M3) return 0;
    broken_poke(t, i->name, 1, &max, 1, &was);
    alone_on(t->path, NB_ARITH_BF16, mended, NULL);
    broken_poke(t, i->name, 1, &nan, 1, NULL);
    size_t n = serve_broken(t, NB_ARITH_BF16, i->name, HEALED, "clean", true);
    broken_poke(t, i->name, 1, &was, 1, NULL);
    return n;
}

static void nan_bytes(void **unused)
{
    assert_true(each_tensor(nan_byte) > 100);
}

/* A static input scale that is NaN: each row's own scale serves instead. */
static size_t poisoned_input(tempdir *t, const nb_tensor_info *i)
{
    const float nan = (float)NAN;
    float was;
    if (!ends(i->name, ".input_scale")) return 0;
    broken_poke(t, i->name, 0, &nan, 4, &was);
    size_t n = serve_broken(t, NB_ARITH_W4A4, i->name, HEALED, "dynamic", false);
    broken_poke(t, i->name, 0, &was, 4, NULL);
    return n;
}

static void poisoned_inputs(void **unused)
{
    assert_true(each_tensor(poisoned_input) > 100);
}

/* No rung changes what an infinite global scale makes of the weight. */
static size_t infinite_global(tempdir *t, const nb_tensor_info *i)
{
    const float inf = INFINITY;
    float was;
    if (!ends(i->name, ".weight_scale_2")) return 0;
    broken_poke(t, i->name, 0, &inf, 4, &was);
    size_t n = serve_broken(t, NB_ARITH_BF16, i->name, FAILED, NULL, false);
    broken_poke(t, i->name, 0, &was, 4, NULL);
    return n;
}

static void infinite_globals(void **unused)
{
    assert_true(each_tensor(infinite_global) > 100);
}

/* A NaN in a norm, a sink, a router, a BF16 weight: what cannot be healed is named. */
static size_t nan_parameter(tempdir *t, const nb_tensor_info *i)
{
    const float f32 = (float)NAN;
    const uint16_t bf16 = 0x7FC0;
    uint8_t was[4];
    bool single = i->dtype == NB_DT_F32;
    if ((!single && i->dtype != NB_DT_BF16) || strstr(i->name, "_scale") || strstr(i->name, "embed"))
        return 0;
    size_t n = single ? 4 : 2;
    broken_poke(t, i->name, 0, single ? (const void *)&f32 : &bf16, n, was);
    size_t hit = serve_broken(t, NB_ARITH_BF16, i->name, FAILED, NULL, false);
    broken_poke(t, i->name, 0, was, n, NULL);
    return hit;
}

static void nan_parameters(void **unused)
{
    assert_true(each_tensor(nan_parameter) > 100);
}

/* One token's embedding: only streams that meet the token fail, in the prompt or when they have just said it. */
static size_t nan_embedding(tempdir *t, const nb_tensor_info *i)
{
    const uint16_t bf16 = 0x7FC0;
    uint16_t was;
    if (!strstr(i->name, "embed") || i->dtype != NB_DT_BF16) return 0;
    size_t at = 2 * (size_t)i->shape[1] * prompts[1][3] + 6;
    broken_poke(t, i->name, at, &bf16, 2, &was);
    size_t n = serve_broken(t, NB_ARITH_EXACT, i->name, FAILED, NULL, false);
    assert_true(n >= 1 && n < STREAMS);
    broken_poke(t, i->name, at, &was, 2, NULL);
    return n;
}

static void nan_embeddings(void **unused)
{
    assert_true(each_tensor(nan_embedding) >= 2);
}

static void poke_bf16(tempdir *t, const char *tensor, uint16_t value)
{
    broken_poke(t, tensor, 0, &value, 2, NULL);
}

/* Streams of a broken folder, all healed by this rung of one linear and no other. */
static void all_healed_by(const char *path, nb_arith arith, const char *rung, const char *module)
{
    serve s;
    nb_guard_count counts[8];
    alone_on(path, arith, broken, sound);
    assert_int_equal(affected(), STREAMS);
    serve_start(&s, path, arith, 16);
    serve_all(&s, specs, have, STREAMS);
    for (size_t i = 0; i < STREAMS; i++) {
        if (have[i].finish != NB_FINISH_LENGTH) fail_msg("%s", have[i].error.cause);
        assert_int_equal(have[i].n, 6);
        assert_int_equal(have[i].cached, 0); /* what was healed is not shared */
    }
    assert_int_equal(nb_core_guard(s.core, counts, 8), 1);
    assert_string_equal(counts[0].rung, rung);
    assert_string_equal(counts[0].module, module);
    assert_string_equal(counts[0].operator_name, "linear");
    assert_int_equal(counts[0].count, STREAMS);
    assert_non_null(strstr(s.last_line, module));
    serve_stop(&s);
}

/* Zeros under a scale so large that the row's own scale times it is infinite, and 0 times that a NaN; without the row's scale
 * the sum is 0. 0x4974 is 1e6 in BF16: 1e6 / 2688 * 3e38 passes F32. */
static void exact_rung(void **unused)
{
    tempdir t;
    const float huge = 3e38f;
    static const uint8_t zeros[1 << 16];
    broken_copy(&t, SERVE_MODELS "llama_modelopt");
    nb_ckpt *c = NULL;
    assert_int_equal(nb_ckpt_open(t.path, NULL, NULL, &c, NULL), NB_OK);
    const nb_tensor_info *scale = nb_ckpt_find(c, "model.layers.0.self_attn.q_proj.weight_scale");
    size_t n = scale->end - scale->begin;
    nb_ckpt_close(c);
    assert_true(n <= sizeof zeros);
    broken_poke(&t, "model.layers.0.self_attn.q_proj.weight_scale", 0, zeros, n, NULL);
    broken_poke(&t, "model.layers.0.self_attn.q_proj.weight_scale_2", 0, &huge, 4, NULL);
    for (size_t i = 0; i < 8; i++) {
        const uint16_t million = 0x4974;
        broken_poke(&t, "model.layers.0.input_layernorm.weight", 2 * i, &million, 2, NULL);
    }
    all_healed_by(t.path, NB_ARITH_W4A4_DYNAMIC, "exact", "model.layers.0.self_attn.q_proj");
    tempdir_remove(&t);
}

/* Inputs of 1e36 times codes and block scales pass F32 before the small global scale is applied; weights that have it in them do
 * not. */
static void bf16_rung(void **unused)
{
    tempdir t;
    broken_copy(&t, SERVE_MODELS "llama_lm_head");
    poke_bf16(&t, "model.norm.weight", 0x7B41); /* 1.002e36 */
    all_healed_by(t.path, NB_ARITH_EXACT, "bf16", "lm_head");
    tempdir_remove(&t);
}

/* Without the guard an affected request fails as well, and no cause is looked for. */
static void guard_off(void **unused)
{
    tempdir t;
    serve s;
    const uint8_t nan = 0x7F;
    nb_guard_count count;
    broken_copy(&t, SERVE_MODELS "llama_modelopt");
    broken_poke(&t, "model.layers.1.mlp.down_proj.weight_scale", 1, &nan, 1, NULL);
    make_specs(200);
    nb_core_options o = serve_options(&s, 16);
    o.guard = false;
    serve_start_with(&s, t.path, NB_ARITH_BF16, 16, &o);
    serve_all(&s, specs, have, STREAMS);
    for (size_t i = 0; i < STREAMS; i++) {
        assert_int_equal(have[i].finish, NB_FINISH_ERROR);
        assert_non_null(strstr(have[i].error.cause, "non-finite logits"));
        assert_int_equal(have[i].n, 0);
    }
    assert_int_equal(nb_core_guard(s.core, &count, 1), 0);
    serve_stop(&s);
    tempdir_remove(&t);
}

int main(void)
{
    serve_threads = 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nan_bytes),        cmocka_unit_test(poisoned_inputs),
        cmocka_unit_test(infinite_globals), cmocka_unit_test(nan_parameters),
        cmocka_unit_test(nan_embeddings),   cmocka_unit_test(exact_rung),
        cmocka_unit_test(bf16_rung),        cmocka_unit_test(guard_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
