/* Whom a router sends a row to, and with which weights, against hand computations. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cpu/exec.h"
#include "kernels/exec_bench.h"

/* The first row's experts and weights; logits and bias have `experts` values. c holds what is special. */
static void route(nb_route_call c, size_t experts, size_t slots, const float *logits, const float *bias,
                  const float *factors, const int32_t *ids, const float *weights)
{
    float in[BENCH_ROWS * 8] = {0}, got[BENCH_ROWS * 8];
    exec_bench b;
    exec_bench_open(&b, 8);
    for (size_t i = 0; i < BENCH_ROWS * experts; i++) in[i] = logits[i % experts];
    nb_tensor *l = exec_tensor(&b, false, BENCH_ROWS, experts, in),
              *t = exec_tensor(&b, true, BENCH_ROWS, slots, NULL),
              *w = exec_tensor(&b, false, BENCH_ROWS, slots, NULL);
    nb_tensor *d = bias ? exec_tensor(&b, false, 1, experts, bias) : NULL,
              *f = factors ? exec_tensor(&b, false, 1, experts, factors) : NULL;
    c.logits = l;
    c.bias = d;
    c.expert_scale = f;
    c.ids = t;
    c.weights = w;
    b.x->ops->route(b.x, &c);
    b.x->ops->tensor_read(b.x, w, 0, BENCH_ROWS, got);
    for (size_t r = 0; r < BENCH_ROWS; r++)
        for (size_t s = 0; s < slots; s++) {
            assert_int_equal(t->i[r * slots + s], ids[s]);
            assert_true(fabsf(got[r * slots + s] - weights[s]) < 1e-6f);
        }
    b.x->ops->tensor_free(l);
    b.x->ops->tensor_free(t);
    b.x->ops->tensor_free(w);
    b.x->ops->tensor_free(d);
    b.x->ops->tensor_free(f);
    exec_bench_close(&b);
}

/* logits ln 1 to ln 4: softmax 0.1, 0.2, 0.3, 0.4; the two best are 3 and 2 */
static const float logs[4] = {0, 0.6931471806f, 1.0986122887f, 1.3862943611f};

static void test_softmax(void **unused)
{
    route((nb_route_call){.score = NB_SCORE_SOFTMAX, .scaling = 1}, 4, 2, logs, NULL, NULL, (int32_t[]){3, 2},
          (float[]){4 / 7.0f, 3 / 7.0f});
    route((nb_route_call){.score = NB_SCORE_SOFTMAX, .keep = true, .scaling = 2}, 4, 2, logs, NULL, NULL,
          (int32_t[]){3, 2}, (float[]){0.8f, 0.6f});
    route((nb_route_call){.score = NB_SCORE_SOFTMAX_CHOSEN, .scaling = 1}, 4, 2, logs, NULL, NULL,
          (int32_t[]){3, 2}, (float[]){4 / 7.0f, 3 / 7.0f});
}

/* Each chosen expert's weight times its own factor, after the division by the sum. */
static void test_expert_scale(void **unused)
{
    route((nb_route_call){.score = NB_SCORE_SOFTMAX, .scaling = 1}, 4, 2, logs, NULL, (float[]){1, 1, 7, 14},
          (int32_t[]){3, 2}, (float[]){8, 3});
}

/* sigmoid(ln n) = n / (n + 1): 1/2, 2/3, 3/4, 4/5. A bias of 1 on expert 0 brings it in with its own score. */
static void test_bias_chooses_and_does_not_weigh(void **unused)
{
    route((nb_route_call){.score = NB_SCORE_SIGMOID, .scaling = 2.6f}, 4, 2, logs, (float[]){1, 0, 0, 0},
          NULL, (int32_t[]){0, 3}, (float[]){1, 1.6f});
}

/* sqrt(log(1 + n)): of 1 and 3, sqrt(ln 2) and sqrt(ln 4) = sqrt 2 times as much. */
static void test_sqrtsoftplus(void **unused)
{
    static const float l[4] = {0, -9, 1.0986122887f, -9};
    route((nb_route_call){.score = NB_SCORE_SQRTSOFTPLUS, .scaling = 1}, 4, 2, l, NULL, NULL,
          (int32_t[]){2, 0}, (float[]){0.585786438f, 0.414213562f});
}

/*
 * Eight experts in four groups, two of which count. Scores by sigmoid; the logits make 9/10 in group 0 beside 1/10, 7/10 twice in
 * group 1, 6/10 twice in group 2, 2/10 in group 3. By the sum of two: groups 1 (1.4) and 2 (1.2). By the best: groups 0 and 1.
 */
static void test_groups(void **unused)
{
    static const float odds[8] = {9, 1 / 9.0f, 7 / 3.0f, 7 / 3.0f, 1.5f, 1.5f, 0.25f, 0.25f};
    float l[8];
    for (size_t i = 0; i < 8; i++) l[i] = logf(odds[i]);
    nb_route_call c = {.score = NB_SCORE_SIGMOID, .groups = 4, .top_groups = 2, .keep = true, .scaling = 1};
    route(c, 8, 3, l, NULL, NULL, (int32_t[]){2, 3, 4}, (float[]){0.7f, 0.7f, 0.6f});
    c.group_max = true;
    route(c, 8, 3, l, NULL, NULL, (int32_t[]){0, 2, 3}, (float[]){0.9f, 0.7f, 0.7f});
    /* a bias takes part in what a group is worth: group 3 with 0.7 more each beats all others */
    c.group_max = false;
    route(c, 8, 3, l, (float[]){0, 0, 0, 0, 0, 0, 0.7f, 0.7f}, NULL, (int32_t[]){6, 7, 2},
          (float[]){0.2f, 0.2f, 0.7f});
}

/* Groups of one expert, taken for their best: the choice is the best experts of the best groups, which are those experts. */
static void test_groups_of_one(void **unused)
{
    route((nb_route_call){.score = NB_SCORE_SOFTMAX,
                          .groups = 4,
                          .top_groups = 3,
                          .group_max = true,
                          .keep = true,
                          .scaling = 1},
          4, 2, logs, NULL, NULL, (int32_t[]){3, 2}, (float[]){0.4f, 0.3f});
}

/* A logit that is no number goes last, and every row has distinct experts still. */
static void test_nan_is_the_worst(void **unused)
{
    static const float l[4] = {NAN, NAN, 0, 0};
    route((nb_route_call){.score = NB_SCORE_SIGMOID, .scaling = 1}, 4, 2, l, NULL, NULL, (int32_t[]){2, 3},
          (float[]){0.5f, 0.5f});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_expert_scale),
        cmocka_unit_test(test_bias_chooses_and_does_not_weigh),
        cmocka_unit_test(test_sqrtsoftplus),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_groups_of_one),
        cmocka_unit_test(test_nan_is_the_worst),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
