/*
 * The op tester: each inner loop of each instruction set against the plain reference and against F64, over shapes that do not
 * divide and data that hurts; and the same program as a benchmark. Needs libc alone, so that it runs on machines with nothing
 * installed. Bounds are stated beside each check.
 */
#ifndef NB_TESTS_OPS_H
#define NB_TESTS_OPS_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "kernels/cpu/kernels.h"

typedef struct ops {
    const nb_kernels *tables[8]; /* generic first */
    size_t n_tables;
    const char *op; /* NULL: all */
    uint64_t seed;
    size_t passed, failed;
    nb_pool *pool; /* bench */
} ops;

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define ULP 0x1p-24 /* half a unit in the last place of 1: the relative error of one F32 operation */

/* Counts one check; prints a failed one (the first 40). */
void ops_check(ops *o, bool ok, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static inline bool ops_wants(const ops *o, const char *op)
{
    return !o->op || strcmp(o->op, op) == 0;
}

/* malloc that ends the program: nothing here can go on without memory. The size is exact, so that a sanitizer sees an over-read. */
void *ops_alloc(size_t bytes);

/* A reproducible stream; normal() has variance 1. */
uint64_t ops_random(ops *o);
size_t ops_below(ops *o, size_t n); /* 0 to n - 1; 0 when n is 0 */
double ops_uniform(ops *o);
float ops_normal(ops *o);

/* got is within tol of want; both NaN, or equal infinities, will do. overflow: F32 may have left its range on the way, so
 * that a result that is not finite is right as well. */
bool ops_close(double got, double want, double tol, bool overflow);

void ops_check_linear(ops *o);
void ops_check_bf16(ops *o);
void ops_check_int8(ops *o);
void ops_check_scales(ops *o); /* the operators int8 and bf16 */
void ops_check_rows(ops *o);
void ops_check_attend(ops *o);
void ops_errors(ops *o); /* prints them, and checks them against what they can be at most */
int ops_bench(ops *o);

#endif
