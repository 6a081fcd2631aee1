/* A tiny llama in either NVFP4 flavour that a test takes apart before it is checked, and questions about the findings. */
#ifndef NB_TESTS_DOCTOR_H
#define NB_TESTS_DOCTOR_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "checkpoint/folder.h"
#include "doctor/check.h"

#define ROPE_AND_EPS "\"architectures\":[\"LlamaForCausalLM\"],\"rms_norm_eps\":1e-5,\"rope_theta\":10000,"

/* 2 layers, hidden 32, 2 heads of 16, MLP 64, vocabulary 48. */
#define LLAMA_CONFIG                                                                                         \
    "{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"hidden_size\":32,\"num_attention_heads\":2,"        \
    "\"num_key_value_heads\":2,\"intermediate_size\":64,\"vocab_size\":48,\"tie_word_embeddings\":false,"    \
    "\"architectures\":[\"LlamaForCausalLM\"],\"rms_norm_eps\":1e-5,\"rope_theta\":10000}"

typedef struct model {
    folder_tensor t[160];
    char names[160][80];
    size_t n;
    tempdir dir;
    nb_check_result r;
    bool
        whole; /* judge config and tokenizer, too: these folders have no quantization_config and no tokenizer */
    nb_check_options options;
} model;

/* What a quantiser would write where the test gives no bytes: codes that reach 6 in every block, scales up to 448, global scales
 * of 1/1000; input scales that differ from layer to layer and expert to expert; floats of 0.0115. NULL (zeros) for everything else. */
static inline const void *model_bytes(const folder_tensor *t)
{
    enum { MOST = 1 << 17 };
    static unsigned char codes[MOST], scales[MOST], powers[MOST], floats[4 * MOST];
    static float multiplier[64], divisor[64], inputs[2][10];
    static uint16_t bf16_multiplier[64], bf16_divisor[64];
    const char *last = strrchr(t->name, '.');
    const nb_tensor_info info = {.rank = t->rank, .shape = t->shape};
    const uint64_t n = nb_tensor_elements(&info);
    if (!last || n > MOST) return NULL;
    const bool ct = strstr(last, "global_scale") != NULL;
    for (size_t i = 0; i < MOST; i++) {
        codes[i] = (unsigned char)(i % 8 == 0 ? 0x17 : 0x21 + i % 4);
        scales[i] = i % 2 ? 0x70 : 0x7E;
        powers[i] = 0x78;
    }
    for (size_t i = 0; i < 64; i++) {
        multiplier[i] = 1e-3f;
        divisor[i] = 1e3f;
        bf16_multiplier[i] = 0x3A83;
        bf16_divisor[i] = 0x447A;
    }
    const char *expert = strstr(t->name, "experts."), *layer = strstr(t->name, "layers.");
    const int e = expert ? expert[8] - '0' : layer ? layer[7] - '0' : 0;
    if (strstr(last, ".input_") && t->dtype == NB_DT_F32 && n == 1 && e >= 0 && e < 10) {
        inputs[0][e] = 2e-3f + 1e-4f * (float)e;
        inputs[1][e] = 5e2f + (float)e;
        return &inputs[ct][e];
    }
    if (ct || strcmp(last, ".weight_scale_2") == 0 || strcmp(last, ".input_scale") == 0) {
        if (t->dtype == NB_DT_F32 && n <= 64) return ct ? divisor : multiplier;
        return t->dtype == NB_DT_BF16 && n <= 64 ? (ct ? bf16_divisor : bf16_multiplier) : NULL;
    }
    if (t->dtype == NB_DT_F8_E8M0 || strstr(last, "_scales")) return powers;
    if (strstr(last, "scale")) return t->dtype == NB_DT_U8 || t->dtype == NB_DT_F8_E4M3 ? scales : NULL;
    memset(floats, 0x3C, sizeof floats); /* 0x3C3C is 0.0115 in BF16, and so is the F32 */
    if (t->dtype == NB_DT_BF16 || t->dtype == NB_DT_F32) return floats;
    return t->dtype == NB_DT_U8 || t->dtype == NB_DT_I8 ? codes : NULL;
}

/* Adds MODULE + SUFFIX. */
static inline void model_member(model *m, const char *module, const char *suffix, nb_dtype dtype, size_t rank,
                                uint64_t a, uint64_t b)
{
    assert_true(m->n < 160);
    char *name = m->names[m->n];
    if (snprintf(name, sizeof m->names[0], "%s%s", module, suffix) >= (int)sizeof m->names[0]) fail();
    m->t[m->n] = (folder_tensor){name, dtype, rank, {a, b}, NULL};
    m->t[m->n].bytes = model_bytes(&m->t[m->n]);
    m->n++;
}
static inline void model_add(model *m, const char *name, nb_dtype dtype, size_t rank, uint64_t a, uint64_t b)
{
    model_member(m, name, "", dtype, rank, a, b);
}

/* One NVFP4 linear of n by k. */
static inline void model_linear(model *m, bool ct, const char *module, uint64_t n, uint64_t k)
{
    model_member(m, module, ct ? ".weight_packed" : ".weight", NB_DT_U8, 2, n, k / 2);
    model_member(m, module, ".weight_scale", NB_DT_F8_E4M3, 2, n, k / 16);
    model_member(m, module, ct ? ".weight_global_scale" : ".weight_scale_2", NB_DT_F32, ct, 1, 0);
    model_member(m, module, ct ? ".input_global_scale" : ".input_scale", NB_DT_F32, ct, 1, 0);
}

static inline void model_llama(model *m, bool ct)
{
    static const struct {
        const char *name;
        uint64_t n, k;
    } linears[] = {{"self_attn.q_proj", 32, 32}, {"self_attn.k_proj", 32, 32}, {"self_attn.v_proj", 32, 32},
                   {"self_attn.o_proj", 32, 32}, {"mlp.gate_proj", 64, 32},    {"mlp.up_proj", 64, 32},
                   {"mlp.down_proj", 32, 64}};
    char name[80];
    m->n = 0;
    m->r = (nb_check_result){0};
    model_add(m, "model.embed_tokens.weight", NB_DT_BF16, 2, 48, 32);
    model_add(m, "lm_head.weight", NB_DT_BF16, 2, 48, 32);
    model_add(m, "model.norm.weight", NB_DT_BF16, 1, 32, 0);
    for (int l = 0; l < 2; l++) {
        snprintf(name, sizeof name, "model.layers.%d.input_layernorm.weight", l);
        model_add(m, name, NB_DT_BF16, 1, 32, 0);
        snprintf(name, sizeof name, "model.layers.%d.post_attention_layernorm.weight", l);
        model_add(m, name, NB_DT_BF16, 1, 32, 0);
        for (size_t i = 0; i < sizeof linears / sizeof *linears; i++) {
            snprintf(name, sizeof name, "model.layers.%d.%s", l, linears[i].name);
            model_linear(m, ct, name, linears[i].n, linears[i].k);
        }
    }
}

/* n experts of gate, up and down (16 by 32 and back) in one layer of an architecture that has no table. */
static inline void model_experts(model *m, bool ct, int n)
{
    char name[80];
    m->n = 0;
    m->r = (nb_check_result){0};
    for (int e = 0; e < n; e++) {
        snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.gate_proj", e);
        model_linear(m, ct, name, 16, 32);
        snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.up_proj", e);
        model_linear(m, ct, name, 16, 32);
        snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.down_proj", e);
        model_linear(m, ct, name, 32, 16);
    }
}

static inline folder_tensor *model_find(model *m, const char *name)
{
    for (size_t i = 0; i < m->n; i++) {
        if (strcmp(m->t[i].name, name) == 0) return &m->t[i];
    }
    fail_msg("the test's model has no %s", name);
    return NULL;
}

static inline void model_remove(model *m, const char *name)
{
    *model_find(m, name) = m->t[m->n - 1]; /* names stay where they are */
    m->n--;
}

static inline void model_rename(model *m, const char *from, const char *to)
{
    folder_tensor *t = model_find(m, from);
    snprintf((char *)t->name, sizeof m->names[0], "%s", to);
}

static inline void model_reshape(model *m, const char *name, nb_dtype dtype, size_t rank, uint64_t a,
                                 uint64_t b)
{
    folder_tensor *t = model_find(m, name);
    *t = (folder_tensor){t->name, dtype, rank, {a, b}, NULL};
    t->bytes = model_bytes(t);
}

/* Checks a folder that is there. */
static inline void check_folder(model *m, const char *path)
{
    nb_error e = {0};
    nb_check_result_free(&m->r);
    nb_status s = nb_check_folder_with(path, &m->options, NULL, &m->r, &e);
    if (s != NB_OK) fail_msg("%s", e.cause);
    if (m->whole) return;
    nb_findings_drop(&m->r.findings, "NB201");
    nb_findings_drop(&m->r.findings, "NB210");
}

/* Writes the model as one file, with this config.json, and checks it. */
static inline void model_check(model *m, const char *config)
{
    tempdir_make(&m->dir);
    folder_text(&m->dir, "config.json", config);
    folder_write(&m->dir, "model.safetensors", m->t, m->n);
    check_folder(m, m->dir.path);
}

static inline void model_free(model *m)
{
    nb_check_result_free(&m->r);
    tempdir_remove(&m->dir);
}

/* The finding of this rule that names the tensor (NULL: any). NULL: none. */
static inline const nb_finding *found(const model *m, const char *rule, const char *tensor)
{
    for (size_t i = 0; i < m->r.findings.count; i++) {
        const nb_finding *f = &m->r.findings.items[i];
        if (strcmp(f->rule, rule) != 0) continue;
        if (!tensor) return f;
        for (size_t k = 0; k < f->n_tensors; k++) {
            if (strcmp(f->tensors[k], tensor) == 0) return f;
        }
    }
    return NULL;
}

/* The finding must be there, with this severity; every field that a report shows must be set. */
static inline const nb_finding *must_find(const model *m, const char *rule, const char *tensor,
                                          nb_severity severity)
{
    const nb_finding *f = found(m, rule, tensor);
    if (!f) fail_msg("no finding %s of %s", rule, tensor ? tensor : "anything");
    assert_int_equal(f->severity, severity);
    assert_non_null(f->message);
    assert_non_null(f->remedy);
    return f;
}

/* Nothing above a note but what the given rule reports (NULL: nothing at all). */
static inline void must_be_alone(const model *m, const char *rule)
{
    for (size_t i = 0; i < m->r.findings.count; i++) {
        const nb_finding *f = &m->r.findings.items[i];
        if (f->severity == NB_SEVERITY_NOTE || (rule && strcmp(f->rule, rule) == 0)) continue;
        fail_msg("false alarm: %s %s: %s", f->rule, f->n_tensors ? f->tensors[0] : "", f->message);
    }
}

#endif
