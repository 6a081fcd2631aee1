/* The weight quantisers give the bytes that stand in the fixtures, which torch and numpy made by the tools' formulas: ModelOpt
 * and llm-compressor (BF16 observer) on the llama fixtures, both flavours in plain F32 on the demo model, MXFP4 and FP8. */
#include "numerics/vectors.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "numerics/nvfp4.h"

/* A safetensors file read whole: header as JSON, data behind it. Only for trusted fixtures. */
typedef struct store {
    json_t *header;
    uint8_t *bytes, *data;
} store;

static store open_store_at(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("cannot open %s", path);
    fseek(f, 0, SEEK_END);
    size_t size = (size_t)ftell(f);
    rewind(f);
    store s = {.bytes = malloc(size)};
    assert_non_null(s.bytes);
    assert_int_equal(fread(s.bytes, 1, size, f), size);
    fclose(f);
    uint64_t n;
    memcpy(&n, s.bytes, 8);
    s.header = json_loadb((const char *)s.bytes + 8, n, 0, NULL);
    assert_non_null(s.header);
    s.data = s.bytes + 8 + n;
    return s;
}

static store open_store(const char *path)
{
    char full[512];
    snprintf(full, sizeof full, NB_TEST_DATA "/fixtures/%s", path);
    return open_store_at(full);
}

static void close_store(store *s)
{
    json_decref(s->header);
    free(s->bytes);
}

typedef struct tensor {
    const uint8_t *data;
    size_t n, k; /* 1, 1 for scalars */
    const char *dtype;
} tensor;

static tensor get(const store *s, const char *module, const char *suffix)
{
    char name[256];
    snprintf(name, sizeof name, "%s%s", module, suffix);
    const json_t *t = json_object_get(s->header, name), *shape = json_object_get(t, "shape");
    if (!t) fail_msg("no tensor %s", name);
    return (tensor){
        .data = s->data + json_integer_value(json_array_get(json_object_get(t, "data_offsets"), 0)),
        .n = json_array_size(shape) == 2 ? (size_t)json_integer_value(json_array_get(shape, 0)) : 1,
        .k = json_array_size(shape) == 2 ? (size_t)json_integer_value(json_array_get(shape, 1)) : 1,
        .dtype = json_string_value(json_object_get(t, "dtype"))};
}

static float *bf16_matrix(const store *s, const char *module, size_t *n, size_t *k)
{
    tensor t = get(s, module, ".weight");
    assert_string_equal(t.dtype, "BF16");
    *n = t.n, *k = t.k;
    float *w = malloc(t.n * t.k * sizeof *w);
    assert_non_null(w);
    for (size_t i = 0; i < t.n * t.k; i++) {
        uint16_t h;
        memcpy(&h, t.data + 2 * i, 2);
        w[i] = nb_bf16_decode(h);
    }
    return w;
}

static float amax_of(const store *s, const char *const *siblings)
{
    float m = 0;
    for (; *siblings; siblings++) {
        size_t n, k;
        float *w = bf16_matrix(s, *siblings, &n, &k);
        for (size_t i = 0; i < n * k; i++) m = fmaxf(m, fabsf(w[i]));
        free(w);
    }
    return m;
}

typedef enum flavour { MODELOPT, CT, CT_BF16_OBSERVER } flavour;

/* Quantises module of src (amax shared with siblings, a list that ends in NULL) and compares with module `as` of dst. */
static void check(const store *src, const char *module, const char *const *siblings, const store *dst,
                  const char *as, flavour f)
{
    size_t n, k;
    float *w = bf16_matrix(src, module, &n, &k), global, amax = siblings ? amax_of(src, siblings) : 0;
    uint8_t *codes = malloc(n * k / 2), *scales = malloc(n * k / 16);
    assert_true(codes && scales);
    if (f == MODELOPT)
        nb_nvfp4_quantise_modelopt(w, n, k, amax, codes, scales, &global);
    else
        nb_nvfp4_quantise_ct(w, n, k, amax, f == CT_BF16_OBSERVER, codes, scales, &global);
    tensor want = get(dst, as, f == MODELOPT ? ".weight" : ".weight_packed");
    assert_int_equal(want.n, n);
    assert_int_equal(want.k, k / 2);
    assert_memory_equal(&global,
                        get(dst, as, f == MODELOPT ? ".weight_scale_2" : ".weight_global_scale").data, 4);
    assert_memory_equal(scales, get(dst, as, ".weight_scale").data, n * k / 16);
    assert_memory_equal(codes, want.data, n * k / 2);
    free(w), free(codes), free(scales);
}

static const char *const qkv[] = {"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj",
                                  "model.layers.0.self_attn.v_proj", NULL};
static const char *const gate_up[] = {"model.layers.1.mlp.gate_proj", "model.layers.1.mlp.up_proj", NULL};
static const char *const lone[] = {"model.layers.2.self_attn.o_proj", "model.layers.2.mlp.down_proj", NULL};

static void check_llama(const store *bf16, const store *dst, flavour f)
{
    for (size_t i = 0; qkv[i]; i++) check(bf16, qkv[i], qkv, dst, qkv[i], f);
    for (size_t i = 0; gate_up[i]; i++) check(bf16, gate_up[i], gate_up, dst, gate_up[i], f);
    for (size_t i = 0; lone[i]; i++) check(bf16, lone[i], NULL, dst, lone[i], f);
}

static void llama_compressed_tensors(void **state)
{
    store bf16 = open_store("models/llama_bf16/model.safetensors"),
          ct = open_store("models/llama_ct/model.safetensors");
    check_llama(&bf16, &ct, CT_BF16_OBSERVER);
    close_store(&bf16), close_store(&ct);
}

static void llama_modelopt(void **state)
{
    store bf16 = open_store("models/llama_bf16/model.safetensors");
    store dst = open_store("models/llama_modelopt/model-00002-of-00002.safetensors");
    check_llama(&bf16, &dst, MODELOPT);
    close_store(&bf16), close_store(&dst);
}

/* The demo model's BF16 weights are not in the repository; NB_FIXTURES names the folder beside which they lie. */
static bool open_demo(store *s)
{
    const char *fixtures = getenv("NB_FIXTURES");
    char path[512];
    snprintf(path, sizeof path, "%s/../demo-model/bf16/model.safetensors", fixtures ? fixtures : "");
    FILE *f = fixtures ? fopen(path, "rb") : NULL;
    if (!f) return false;
    fclose(f);
    *s = open_store_at(path);
    return true;
}

static const char *const q_kv[] = {"model.layers.1.attn.wq_a", "model.layers.1.attn.wkv", NULL};
static const char *const w13[] = {"model.layers.1.ffn.experts.3.w1", "model.layers.1.ffn.experts.3.w3", NULL};

static void demo_modelopt(void **state)
{
    store bf16;
    if (!open_demo(&bf16)) skip();
    store dst = open_store("demo/modelopt/model-00001-of-00002.safetensors");
    for (size_t i = 0; q_kv[i]; i++) check(&bf16, q_kv[i], q_kv, &dst, q_kv[i] + strlen("model."), MODELOPT);
    for (size_t i = 0; w13[i]; i++) check(&bf16, w13[i], w13, &dst, w13[i] + strlen("model."), MODELOPT);
    check(&bf16, "model.layers.1.attn.wo_a", NULL, &dst, "layers.1.attn.wo_a", MODELOPT);
    close_store(&bf16), close_store(&dst);
}

static void demo_compressed_tensors(void **state)
{
    store bf16;
    if (!open_demo(&bf16)) skip();
    store dst = open_store("demo/compressed-tensors/model.safetensors");
    check(&bf16, q_kv[0], q_kv, &dst, "model.layers.1.self_attn.q_a_proj", CT);
    check(&bf16, q_kv[1], q_kv, &dst, "model.layers.1.self_attn.kv_proj", CT);
    check(&bf16, w13[1], w13, &dst, "model.layers.1.mlp.experts.3.up_proj", CT);
    check(&bf16, "model.layers.1.attn.wo_b", NULL, &dst, "model.layers.1.self_attn.o_b_proj", CT);
    close_store(&bf16), close_store(&dst);
}

static void mxfp4_of_deepseek_v4(void **state)
{
    store bf16 = open_store("models/deepseek_v4_bf16/model.safetensors");
    store dst = open_store("models/deepseek_v4_mxfp4/model.safetensors");
    for (unsigned e = 0; e < 6; e++) {
        char module[64];
        size_t n, k;
        snprintf(module, sizeof module, "layers.1.ffn.experts.%u.w2", e);
        float *w = bf16_matrix(&bf16, module, &n, &k), *back = malloc(n * k * sizeof *back);
        uint8_t *codes = malloc(n * k / 2), *scales = malloc(n * k / 32);
        assert_true(codes && scales && back);
        nb_mxfp4_quantise(w, n, k, codes, scales);
        assert_memory_equal(codes, get(&dst, module, ".weight").data, n * k / 2);
        assert_memory_equal(scales, get(&dst, module, ".scale").data, n * k / 32);
        /* Nearest of 0 .5 1 1.5 2 3 4 6 with the largest between 3.5 and 7: at most one step of 2, halved, off. */
        nb_mxfp4_dequantise(codes, scales, n, k, back);
        for (size_t i = 0; i < n * k; i++)
            assert_true(fabsf(back[i] - w[i]) <= nb_e8m0_decode(scales[i / 32]) * 1.0f);
        free(w), free(back), free(codes), free(scales);
    }
    close_store(&bf16), close_store(&dst);
}

static void fp8_of_llama(void **state)
{
    store bf16 = open_store("models/llama_bf16/model.safetensors");
    store dst = open_store("models/llama_mixed/model.safetensors");
    const char *module = "model.layers.1.self_attn.o_proj";
    size_t n, k;
    float *w = bf16_matrix(&bf16, module, &n, &k), scale;
    uint8_t *codes = malloc(n * k);
    assert_non_null(codes);
    nb_fp8_quantise(w, n, k, n, k, codes, &scale);
    assert_memory_equal(&scale, get(&dst, module, ".weight_scale").data, 4);
    assert_memory_equal(codes, get(&dst, module, ".weight").data, n * k);
    free(w), free(codes);
    close_store(&bf16), close_store(&dst);
}

/* Blocks of 2 x 2 over [3, 3]: amax 448, 2, 4, none. A block of zeros keeps a usable scale. */
static void fp8_blocks_may_be_partial(void **state)
{
    const float w[9] = {448, 1, -2, 3, 0, 1, 4, -1, 0};
    const uint8_t want[9] = {0x7E, 0x38, 0xFE, 0x44, 0x00, 0x76, 0x7E, 0xEE, 0x00};
    uint8_t codes[9];
    float scale[4], back[9];
    nb_fp8_quantise(w, 3, 3, 2, 2, codes, scale);
    assert_true(scale[0] == 1 && scale[1] == 2 / 448.0f && scale[2] == 4 / 448.0f && scale[3] == 1);
    assert_memory_equal(codes, want, 9);
    nb_fp8_dequantise(codes, scale, 3, 3, 2, 2, back);
    for (size_t i = 0; i < 9; i++) assert_true(fabsf(back[i] - w[i]) <= 1e-6f * fabsf(w[i]));
}

/* Nothing to scale by: the scales stay finite and everything comes back as zero. */
static void zeros_stay_zeros(void **state)
{
    float w[32] = {0}, back[32], global;
    uint8_t codes[16], scales[2];
    for (int f = 0; f < 3; f++) {
        if (f == 0)
            nb_nvfp4_quantise_modelopt(w, 2, 16, 0, codes, scales, &global);
        else
            nb_nvfp4_quantise_ct(w, 2, 16, 0, f == 2, codes, scales, &global);
        assert_true(global == 1);
        assert_int_equal(scales[0], f ? 0x20 : 0x38); /* 0.125 of compressed-tensors, 1.0 of ModelOpt */
        nb_nvfp4_dequantise(codes, scales, global, 2, 16, back);
        for (size_t i = 0; i < 32; i++) assert_true(back[i] == 0);
    }
    nb_mxfp4_quantise(w, 1, 32, codes, scales);
    nb_mxfp4_dequantise(codes, scales, 1, 32, back);
    for (size_t i = 0; i < 32; i++) assert_true(back[i] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_compressed_tensors),
        cmocka_unit_test(llama_modelopt),
        cmocka_unit_test(demo_modelopt),
        cmocka_unit_test(demo_compressed_tensors),
        cmocka_unit_test(mxfp4_of_deepseek_v4),
        cmocka_unit_test(fp8_of_llama),
        cmocka_unit_test(fp8_blocks_may_be_partial),
        cmocka_unit_test(zeros_stay_zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
