/*
 * Derived forms of kv_b_proj against the linear itself, on the fixture models: the value half applied to c is what the linear gives
 * for the value, and a query taken through the key half meets c as it would meet the key. Whatever a load hook makes of the linear
 * holds for its forms, also when layers are streamed and when the weight is packed once more.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "models/model.h"

enum { ROWS = 3, HEADS = 4, NOPE = 32, V = 32, RANK = 32, OUT = HEADS * (NOPE + V) };

typedef enum change { NOTHING, TO_BF16, SAME_SCALES, TWICE } change;

static uint8_t one_scale[256];

static nb_status adjust(void *ctx, const nb_model *m, const nb_arch_tensor *row, int64_t layer,
                        int64_t expert, nb_linear_src *src, nb_error *err)
{
    const change *c = ctx;
    if (row->part != NB_PART_KV_B) return NB_OK;
    if (*c == TO_BF16) src->to_bf16 = true;
    if (*c == SAME_SCALES) src->scale_map = one_scale;
    if (*c == TWICE) src->multiplier *= 2;
    return NB_OK;
}

typedef struct bench {
    nb_pool *pool;
    nb_exec *x;
    nb_model *m;
    uint32_t zero[ROWS];
    float c[ROWS * RANK], q[ROWS * HEADS * NOPE], kv[ROWS * OUT];
} bench;

static void open_bench(bench *b, const char *name, const nb_load_options *load)
{
    char path[512];
    *b = (bench){0};
    snprintf(path, sizeof path, NB_TEST_DATA "/fixtures/models/%s", name);
    assert_int_equal(nb_pool_new(2, &b->pool, NULL), NB_OK);
    assert_int_equal(nb_cpu_exec_new("auto", b->pool, ROWS, &b->x, NULL), NB_OK);
    assert_int_equal(nb_model_load(path, b->x, load, NULL, &b->m, NULL), NB_OK);
    assert_int_equal(b->x->ops->ready(b->x, &(nb_work){.max_k = b->m->max_k, .max_context = 1}, NULL), NB_OK);
    b->x->rows = (nb_rows){ROWS, b->zero, b->zero, b->zero};
    for (size_t i = 0; i < ROWS * RANK; i++) b->c[i] = sinf((float)i);
    for (size_t i = 0; i < ROWS * HEADS * NOPE; i++) b->q[i] = cosf((float)i);
}

static void close_bench(bench *b)
{
    nb_model_free(b->m);
    nb_cpu_exec_free(b->x);
    nb_pool_free(b->pool);
}

/* One product; form 2: with the linear itself. */
static void multiply(bench *b, const nb_linear *l, size_t form, const float *in, size_t cols, float *out,
                     size_t n)
{
    const nb_ops *op = b->x->ops;
    nb_tensor *x = NULL, *y = NULL;
    assert_int_equal(op->tensor_new(b->x, false, ROWS, cols, &x, NULL), NB_OK);
    assert_int_equal(op->tensor_new(b->x, false, ROWS, n, &y, NULL), NB_OK);
    op->tensor_write(b->x, x, in);
    if (form == 2)
        op->linear(b->x, &(nb_linear_call){.w = &l, .count = 1, .x = x, .y = &y});
    else
        op->derived(b->x,
                    &(nb_derived_call){
                        .of = l, .form = form, .x = x, .y = y, .x_step = cols / HEADS, .y_step = n / HEADS});
    assert_int_equal(b->x->err.status, NB_OK);
    op->tensor_read(b->x, y, 0, ROWS, out);
    op->tensor_free(x);
    op->tensor_free(y);
}

/* Both halves of l against its own product. */
static void compare(bench *b, const nb_linear *l)
{
    float copies[ROWS * HEADS * RANK], value[ROWS * HEADS * V], latent[ROWS * HEADS * RANK];
    assert_int_equal(l->n_derived, 2);
    for (size_t i = 0; i < ROWS * HEADS; i++)
        memcpy(copies + i * RANK, b->c + i / HEADS * RANK, RANK * sizeof *copies);
    multiply(b, l, 2, b->c, RANK, b->kv, OUT);
    multiply(b, l, 1, copies, HEADS * RANK, value, HEADS * V);
    multiply(b, l, 0, b->q, HEADS * NOPE, latent, HEADS * RANK);
    for (size_t i = 0; i < ROWS * HEADS; i++) {
        const float *key = b->kv + i * (NOPE + V);
        double want = 0, got = 0;
        for (size_t j = 0; j < V; j++) assert_true(fabsf(value[i * V + j] - key[NOPE + j]) < 1e-5f);
        for (size_t j = 0; j < NOPE; j++) want += (double)b->q[i * NOPE + j] * (double)key[j];
        for (size_t j = 0; j < RANK; j++) got += (double)latent[i * RANK + j] * (double)copies[i * RANK + j];
        assert_true(fabs(want - got) < 1e-4);
    }
}

/* kv_b's sums under each change differ, so that equal forms are not equal for nothing. */
static double run(const char *name, change what, bool stream)
{
    bench b;
    nb_load_options load = {.stream = stream, .adjust = adjust, .ctx = &what};
    memset(one_scale, 0x38, sizeof one_scale);
    open_bench(&b, name, &load);
    const nb_slot *w = nb_model_acquire(b.m, 1, NULL);
    assert_non_null(w);
    const nb_slot *kv_b = nb_at(b.m, w, NB_PART_KV_B);
    compare(&b, kv_b->lin);
    double sum = 0;
    for (size_t i = 0; i < ROWS * OUT; i++) sum += fabs((double)b.kv[i]);
    /* packed once more, as the guard does */
    nb_linear_src src = *kv_b->src;
    nb_linear again = *kv_b->lin;
    src.to_bf16 = true;
    assert_int_equal(nb_model_pack(b.m, kv_b->lin, &src, &again.w, NULL), NB_OK);
    compare(&b, &again);
    b.x->ops->weight_free(again.w);
    nb_model_release(b.m, 1);
    close_bench(&b);
    return sum;
}

static void test_forms(void **unused)
{
    double plain = run("deepseek_v3_ct", NOTHING, false), bf16 = run("deepseek_v3_ct", TO_BF16, false);
    assert_true(run("deepseek_v3_ct", NOTHING, true) == plain);
    assert_true(bf16 != plain && fabs(bf16 - plain) < 0.01 * plain);
    assert_true(fabs(run("deepseek_v3_ct", SAME_SCALES, false) - plain) > 0.1 * plain);
    assert_true(fabs(run("deepseek_v3_ct", TWICE, true) - 2 * plain) < 1e-3 * plain);
    run("deepseek_v3_modelopt", NOTHING, false); /* stored in BF16 */
    run("glm4_moe_lite_modelopt", NOTHING, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
