/* Arguments, counting, random data. */
#include "ops.h"

#include <stdarg.h>

void ops_check(ops *o, bool ok, const char *fmt, ...)
{
    if (ok) {
        o->passed++;
        return;
    }
    if (o->failed++ >= 40) return;
    va_list ap;
    va_start(ap, fmt);
    printf("FAILED ");
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
}

void *ops_alloc(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p) {
        fprintf(stderr, "nb_ops: no memory for %zu bytes\n", bytes);
        exit(2);
    }
    return p;
}

/* splitmix64 */
uint64_t ops_random(ops *o)
{
    uint64_t z = o->seed += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

size_t ops_below(ops *o, size_t n)
{
    return n ? ops_random(o) % n : 0;
}

double ops_uniform(ops *o)
{
    return (double)(ops_random(o) >> 11) * 0x1p-53;
}

float ops_normal(ops *o)
{
    double u = 1 - ops_uniform(o), v = ops_uniform(o); /* Box and Muller */
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

bool ops_close(double got, double want, double tol, bool overflow)
{
    if (overflow && (!isfinite(got) || !isfinite(want))) return true;
    if (isnan(want)) return isnan(got);
    return got == want || fabs(got - want) <= tol;
}

static int usage(void)
{
    fprintf(stderr,
            "usage: nb_ops [--check] [--errors] [--bench] [--isa NAME] [--op NAME] [--seed N] [--threads N]\n"
            "ops: linear bf16 int8 rmsnorm rope exps attend swiglu dot axpy mix\n");
    return 64;
}

int main(int argc, char **argv)
{
    ops o = {.seed = 1};
    bool check = false, errors = false, bench = false;
    const char *isa = NULL;
    size_t threads = 0;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--check") == 0) {
            check = true;
            continue;
        }
        if (strcmp(argv[i], "--errors") == 0) {
            errors = true;
            continue;
        }
        if (strcmp(argv[i], "--bench") == 0) {
            bench = true;
            continue;
        }
        if (!value) return usage();
        if (strcmp(argv[i], "--isa") == 0)
            isa = value;
        else if (strcmp(argv[i], "--op") == 0)
            o.op = value;
        else if (strcmp(argv[i], "--seed") == 0)
            o.seed = strtoull(value, NULL, 0);
        else if (strcmp(argv[i], "--threads") == 0)
            threads = strtoull(value, NULL, 10);
        else
            return usage();
        i++;
    }
    nb_cpu cpu;
    nb_cpu_detect(&cpu);
    o.n_tables = nb_kernels_list(&cpu, o.tables, COUNT(o.tables));
    if (isa) {
        const nb_kernels *only = nb_kernels_pick(&cpu, isa);
        if (!only) {
            fprintf(stderr, "nb_ops: this machine has no kernels named %s\n", isa);
            return 64;
        }
        o.n_tables = 1; /* the reference stays, whatever is chosen */
        if (only != o.tables[0]) o.tables[o.n_tables++] = only;
    }
    printf("%s; kernels:", cpu.model[0] ? cpu.model : "unknown processor");
    for (size_t i = 0; i < o.n_tables; i++) printf(" %s", o.tables[i]->name);
    printf("; seed %llu\n", (unsigned long long)o.seed);

    int status = 0;
    if (check || !(errors || bench)) {
        ops_check_linear(&o);
        ops_check_bf16(&o);
        ops_check_int8(&o);
        ops_check_scales(&o);
        ops_check_rows(&o);
        ops_check_attend(&o);
        printf("%zu passed, %zu failed\n", o.passed, o.failed);
        if (o.failed || !o.passed) status = 1;
    }
    if (errors) {
        ops_errors(&o);
        if (o.failed) status = 1;
    }
    if (bench) {
        nb_error err;
        if (nb_pool_new(threads, &o.pool, &err) != NB_OK) {
            fprintf(stderr, "nb_ops: %s\n", err.cause);
            return 2;
        }
        if (ops_bench(&o) != 0) status = 1;
        nb_pool_free(o.pool);
    }
    return status;
}
