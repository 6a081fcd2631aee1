/* A CPU back end with rows of one sequence, tensors and F32 weights for tests of single operators. */
#ifndef NB_TESTS_EXEC_BENCH_H
#define NB_TESTS_EXEC_BENCH_H

#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"

enum { BENCH_ROWS = 40 }; /* more than any operator takes for few */

typedef struct exec_bench {
    nb_pool *pool;
    nb_exec *x;
    uint32_t seq[BENCH_ROWS], pos[BENCH_ROWS];
} exec_bench;

/* BENCH_ROWS rows at positions 0, 1, … of sequence 0. */
static inline void exec_bench_open_on(exec_bench *b, size_t threads, size_t max_k)
{
    memset(b, 0, sizeof *b);
    assert_int_equal(nb_pool_new(threads, &b->pool, NULL), NB_OK);
    assert_int_equal(nb_cpu_exec_new("auto", b->pool, BENCH_ROWS, &b->x, NULL), NB_OK);
    assert_int_equal(b->x->ops->ready(b->x, &(nb_work){.max_k = max_k, .max_context = BENCH_ROWS}, NULL),
                     NB_OK);
    for (uint32_t i = 0; i < BENCH_ROWS; i++) b->pos[i] = i;
    b->x->rows = (nb_rows){BENCH_ROWS, b->seq, b->pos, b->seq};
}

static inline void exec_bench_open(exec_bench *b, size_t max_k)
{
    exec_bench_open_on(b, 2, max_k);
}

static inline void exec_bench_close(exec_bench *b)
{
    nb_cpu_exec_free(b->x);
    nb_pool_free(b->pool);
}

static inline nb_tensor *exec_tensor(exec_bench *b, bool i32, size_t rows, size_t cols, const void *values)
{
    nb_tensor *t = NULL;
    assert_int_equal(b->x->ops->tensor_new(b->x, i32, rows, cols, &t, NULL), NB_OK);
    if (values) b->x->ops->tensor_write(b->x, t, values);
    return t;
}

typedef struct exec_matrix {
    const float *v;
    size_t k;
} exec_matrix;

static inline nb_status exec_matrix_rows(void *ctx, size_t row, size_t rows, uint8_t *codes, void *scales,
                                         nb_error *err)
{
    const exec_matrix *m = ctx;
    memcpy(codes, m->v + row * m->k, rows * m->k * sizeof(float));
    return NB_OK;
}

/* v [n][k], cut into `blocks` diagonal blocks of n / blocks rows. */
static inline nb_weight *exec_weight(exec_bench *b, const float *v, size_t n, size_t k, size_t blocks)
{
    exec_matrix m = {v, k};
    nb_weight *w = NULL;
    assert_int_equal(b->x->ops->weight_new(b->x, NB_FMT_F32, n, k, 0, 1, blocks, k * sizeof(float), 0,
                                           exec_matrix_rows, &m, &w, NULL),
                     NB_OK);
    return w;
}

/* Small multiples of 1/16: sums of a few hundred products are exact in F32. */
static inline float exec_draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)(*state >> 8 & 0x3F) / 16 - 2;
}

#endif
