/*
 * Operators along one row: rmsnorm, rope, exps, swiglu, dot, axpy, mix. Each table against F64 within a bound that follows from
 * the operations' own rounding (ULP is half a unit in the last place), and special values against what the formula gives.
 */
#include "ops.h"

static const size_t lengths[] = {1,  2,  3,  4,  5,  7,  8,   9,   15,  16,  17,  24,
                                 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 576, 1001};

static float *normals(ops *o, size_t n, float size)
{
    float *p = ops_alloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = ops_normal(o) * size;
    return p;
}

static float *copy(const float *x, size_t n)
{
    float *p = ops_alloc(n * sizeof *p);
    if (n) memcpy(p, x, n * sizeof *p);
    return p;
}

/* All close; tol is per element (NULL: equal). */
static bool all_close(const float *got, const double *want, const double *tol, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!ops_close((double)got[i], want[i], tol ? tol[i] : 0, false)) return false;
    return true;
}

/* dot: n products and n sums, each off by one rounding: (n + 1) ULP of sum |a b|. axpy: one or two roundings. */
static void check_dot_axpy(ops *o, const nb_kernels *t)
{
    static const float sizes[] = {1, 1e15f, 1e-15f};
    for (size_t l = 0; l < COUNT(lengths); l++)
        for (size_t s = 0; s < COUNT(sizes); s++) {
            size_t n = lengths[l];
            float *a = normals(o, n, sizes[s]), *b = normals(o, n, sizes[s]), *y = normals(o, n, sizes[s]);
            double sum = 0, size = 0, *want = ops_alloc(n * sizeof *want), *tol = ops_alloc(n * sizeof *tol);
            float factor = ops_normal(o);
            for (size_t i = 0; i < n; i++) {
                sum += (double)a[i] * (double)b[i];
                size += fabs((double)a[i] * (double)b[i]);
                want[i] = (double)y[i] + (double)factor * (double)a[i];
                tol[i] = 2 * ULP * (fabs((double)y[i]) + fabs((double)factor * (double)a[i]));
            }
            if (ops_wants(o, "dot"))
                ops_check(o, ops_close((double)t->dot(a, b, n), sum, (double)(n + 1) * ULP * size, false),
                          "dot %s n %zu", t->name, n);
            t->axpy(factor, a, n, y);
            if (ops_wants(o, "axpy")) ops_check(o, all_close(y, want, tol, n), "axpy %s n %zu", t->name, n);
            free(a), free(b), free(y), free(want), free(tol);
        }
    if (ops_wants(o, "dot")) {
        float x[3] = {1, INFINITY, 2}, y[3] = {1, 1, 1}, z[3] = {1, -1, NAN};
        ops_check(o, t->dot(x, y, 0) == 0, "dot %s of nothing", t->name);
        ops_check(o, t->dot(x, y, 3) == INFINITY, "dot %s with inf", t->name);
        ops_check(o, isnan(t->dot(x, z, 3)), "dot %s with NaN", t->name);
    }
}

/* n products and sums a value; and a row alone gives the bits that it gives among others. */
static void check_mix(ops *o, const nb_kernels *t)
{
    for (size_t l = 0; l < COUNT(lengths); l++)
        for (size_t rows = 1; rows <= 9; rows++) {
            size_t d = lengths[l], n = 1 + (l * 5 + rows * 3) % 40;
            float *a[9], *x[40], *y[9];
            const float *ac[9], *xc[40];
            for (size_t i = 0; i < n; i++) xc[i] = x[i] = normals(o, d, 1);
            for (size_t r = 0; r < rows; r++) {
                ac[r] = a[r] = normals(o, n, 1);
                y[r] = normals(o, d, 1);
            }
            bool close = true, same = true;
            float *one = normals(o, d, 1), *first = copy(y[rows / 2], d);
            double *want = ops_alloc(rows * d * sizeof *want), *tol = ops_alloc(rows * d * sizeof *tol);
            for (size_t r = 0; r < rows; r++)
                for (size_t c = 0; c < d; c++) {
                    double sum = (double)y[r][c], size = fabs(sum);
                    for (size_t i = 0; i < n; i++) {
                        sum += (double)a[r][i] * (double)x[i][c];
                        size += fabs((double)a[r][i] * (double)x[i][c]);
                    }
                    want[r * d + c] = sum;
                    tol[r * d + c] = (double)(2 * n + 1) * ULP * size;
                }
            memcpy(one, y[rows / 2], d * sizeof *one);
            t->mix(ac, xc, n, d, y, rows);
            t->mix(&ac[rows / 2], xc, n, d, &one, 1);
            for (size_t r = 0; r < rows; r++) close &= all_close(y[r], want + r * d, tol + r * d, d);
            same = memcmp(one, y[rows / 2], d * sizeof *one) == 0;
            for (size_t i = 0; i < n; i++) t->axpy(a[rows / 2][i], x[i], d, first);
            ops_check(o, close, "mix %s d %zu rows %zu n %zu", t->name, d, rows, n);
            ops_check(o, same, "mix %s d %zu: row %zu of %zu alone", t->name, d, rows / 2, rows);
            ops_check(o, memcmp(first, one, d * sizeof *one) == 0, "mix %s d %zu n %zu against axpy", t->name,
                      d, n);
            for (size_t i = 0; i < n; i++) free(x[i]);
            for (size_t r = 0; r < rows; r++) free(a[r]), free(y[r]);
            free(one), free(first), free(want), free(tol);
        }
}

/* The mean of squares is off by at most (n + 2) ULP, half of that after the root; then a root, a division, two products. */
static void check_rmsnorm(ops *o, const nb_kernels *t)
{
    static const float sizes[] = {1, 1e10f, 1e-10f, 0};
    for (size_t l = 0; l < COUNT(lengths); l++)
        for (size_t s = 0; s < COUNT(sizes); s++)
            for (int weighted = 0; weighted < 2; weighted++) {
                size_t n = lengths[l];
                float *x = normals(o, n, sizes[s]), *w = normals(o, n, 1), *y = copy(x, n);
                double mean = 0, *want = ops_alloc(n * sizeof *want), *tol = ops_alloc(n * sizeof *tol);
                for (size_t i = 0; i < n; i++) mean += (double)x[i] * (double)x[i] / (double)n;
                for (size_t i = 0; i < n; i++) {
                    want[i] = (double)x[i] / sqrt(mean + 1e-6) * (weighted ? (double)w[i] : 1);
                    tol[i] = ((double)n / 2 + 8) * ULP * fabs(want[i]);
                }
                t->rmsnorm(y, weighted ? w : NULL, 1e-6f, n, y); /* in place */
                ops_check(o, all_close(y, want, tol, n), "rmsnorm %s n %zu in place", t->name, n);
                float *z = ops_alloc(n * sizeof *z);
                t->rmsnorm(x, weighted ? w : NULL, 1e-6f, n, z);
                ops_check(o, memcmp(y, z, n * sizeof *z) == 0, "rmsnorm %s n %zu: in place differs", t->name,
                          n);
                x[n / 2] = NAN;
                t->rmsnorm(x, NULL, 1e-6f, n, z);
                bool all = true;
                for (size_t i = 0; i < n; i++) all &= isnan(z[i]);
                ops_check(o, all, "rmsnorm %s n %zu with NaN", t->name, n);
                free(x), free(w), free(y), free(z), free(want), free(tol);
            }
}

/* Two products and a sum: 2 ULP of each product's size. */
static void check_rope(ops *o, const nb_kernels *t)
{
    for (size_t pairs = 1; pairs <= 40; pairs++)
        for (int kind = 0; kind < 4; kind++) {
            bool inter = kind & 1;
            float sign = kind & 2 ? -1 : 1, *x = normals(o, 2 * pairs, 1), *c = ops_alloc(pairs * 4),
                  *s = ops_alloc(pairs * 4);
            double *want = ops_alloc(2 * pairs * sizeof *want), *tol = ops_alloc(2 * pairs * sizeof *tol);
            for (size_t i = 0; i < pairs; i++) {
                double angle = ops_uniform(o) * 6.28;
                c[i] = (float)cos(angle), s[i] = (float)sin(angle);
                size_t a = inter ? 2 * i : i, b = inter ? a + 1 : i + pairs;
                double re = (double)x[a], im = (double)x[b], cs = (double)c[i], sn = (double)(sign * s[i]);
                want[a] = re * cs - im * sn, want[b] = im * cs + re * sn;
                tol[a] = tol[b] = 2 * ULP * (fabs(re) + fabs(im));
            }
            t->rope(x, c, s, pairs, inter, sign);
            ops_check(o, all_close(x, want, tol, 2 * pairs), "rope %s pairs %zu kind %d", t->name, pairs,
                      kind);
            free(x), free(c), free(s), free(want), free(tol);
        }
}

/* exp within 4 ULP of its argument's own rounding (x - max is off by one ULP of its size, which exp turns into a
 * relative error), or 0 below e^-87, the sum within n more. */
static void check_exps(ops *o, const nb_kernels *t)
{
    static const float sizes[] = {1, 30, 300};
    float max, sum;
    for (size_t l = 0; l < COUNT(lengths); l++)
        for (size_t k = 0; k < COUNT(sizes); k++) {
            size_t n = lengths[l];
            float *x = normals(o, n, sizes[k]);
            if (n > 3) x[n / 3] = -INFINITY;
            double top = -INFINITY, all = 0, most = 0;
            double *want = ops_alloc(n * sizeof *want), *tol = ops_alloc(n * sizeof *tol);
            for (size_t i = 0; i < n; i++) top = fmax(top, (double)x[i]);
            for (size_t i = 0; i < n; i++) {
                all += want[i] = exp((double)x[i] - top);
                double shift = isinf(x[i]) ? 0 : top - (double)x[i];
                most += tol[i] = shift > 87 ? want[i] + 0x1p-148 : (shift + 12) * ULP * want[i];
            }
            sum = t->exps(x, n, &max);
            ops_check(o,
                      all_close(x, want, tol, n) && (double)max == top &&
                          ops_close((double)sum, all, most + (double)n * ULP * all, false),
                      "exps %s n %zu size %g", t->name, n, (double)sizes[k]);
            free(x), free(want), free(tol);
        }
    sum = t->exps(NULL, 0, &max);
    ops_check(o, sum == 0 && max == -INFINITY, "exps %s of nothing", t->name);
    for (size_t n = 1; n <= 20; n++) {
        float x[20];
        bool zeros = true, nans = true;
        for (size_t i = 0; i < n; i++) x[i] = -INFINITY;
        sum = t->exps(x, n, &max);
        for (size_t i = 0; i < n; i++) zeros &= x[i] == 0;
        ops_check(o, zeros && sum == 0 && max == -INFINITY, "exps %s n %zu of -inf", t->name, n);
        for (size_t i = 0; i < n; i++) x[i] = i == n / 2 ? NAN : 1;
        sum = t->exps(x, n, &max);
        for (size_t i = 0; i < n; i++) nans &= isnan(x[i]);
        ops_check(o, nans && isnan(sum) && isnan(max), "exps %s n %zu with NaN", t->name, n);
    }
}

/* exp, a sum, a division, a product: 8 ULP; and below g = -88.7, where e^-g overflows, up to 89 e^-88.7 is lost. */
static void check_swiglu(ops *o, const nb_kernels *t)
{
    static const float limits[] = {0, 7, 0.5f}, sizes[] = {1, 10, 60};
    for (size_t l = 0; l < COUNT(lengths); l++)
        for (size_t k = 0; k < COUNT(sizes); k++)
            for (size_t m = 0; m < COUNT(limits); m++) {
                size_t n = lengths[l];
                float *g = normals(o, n, sizes[k]), *u = normals(o, n, sizes[k]), limit = limits[m];
                double *want = ops_alloc(n * sizeof *want), *tol = ops_alloc(n * sizeof *tol);
                for (size_t i = 0; i < n; i++) {
                    double gate = (double)g[i], up = (double)u[i];
                    if (limit > 0)
                        gate = fmin(gate, (double)limit), up = fmax(fmin(up, (double)limit), -(double)limit);
                    want[i] = gate / (1 + exp(-gate)) * up;
                    tol[i] = 8 * ULP * fabs(want[i]) + 4e-37 * fabs(up);
                }
                float *y = ops_alloc(n * sizeof *y), *y2 = copy(u, n);
                t->swiglu(g, u, limit, n, y);
                ops_check(o, all_close(y, want, tol, n), "swiglu %s n %zu size %g limit %g", t->name, n,
                          (double)sizes[k], (double)limit);
                t->swiglu(g, y2, limit, n, y2); /* over u, then over g */
                t->swiglu(g, u, limit, n, g);
                ops_check(o, memcmp(y, y2, n * 4) == 0 && memcmp(y, g, n * 4) == 0,
                          "swiglu %s n %zu in place", t->name, n);
                free(g), free(u), free(y), free(y2), free(want), free(tol);
            }
    for (size_t n = 1; n <= 17; n++) {
        float g[17], u[17], y[17];
        for (size_t i = 0; i < n; i++) g[i] = u[i] = 1;
        g[n - 1] = NAN;
        t->swiglu(g, u, 7, n, y);
        ops_check(o, isnan(y[n - 1]) && (n == 1 || !isnan(y[0])), "swiglu %s n %zu: NaN gate", t->name, n);
        g[n - 1] = 1, u[n - 1] = NAN;
        t->swiglu(g, u, 7, n, y);
        ops_check(o, isnan(y[n - 1]), "swiglu %s n %zu: NaN up", t->name, n);
        g[n - 1] = 200, u[n - 1] = 1;
        t->swiglu(g, u, 0, n, y);
        ops_check(o, y[n - 1] == 200, "swiglu %s n %zu: large gate", t->name, n);
        g[n - 1] = -200;
        t->swiglu(g, u, 0, n, y);
        ops_check(o, fabsf(y[n - 1]) < 1e-36f, "swiglu %s n %zu: very negative gate", t->name, n);
        g[n - 1] = INFINITY;
        t->swiglu(g, u, 0, n, y);
        ops_check(o, y[n - 1] == INFINITY, "swiglu %s n %zu: infinite gate", t->name, n);
    }
}

void ops_check_rows(ops *o)
{
    for (size_t i = 0; i < o->n_tables; i++) {
        if (ops_wants(o, "dot") || ops_wants(o, "axpy")) check_dot_axpy(o, o->tables[i]);
        if (ops_wants(o, "mix")) check_mix(o, o->tables[i]);
        if (ops_wants(o, "rmsnorm")) check_rmsnorm(o, o->tables[i]);
        if (ops_wants(o, "rope")) check_rope(o, o->tables[i]);
        if (ops_wants(o, "exps")) check_exps(o, o->tables[i]);
        if (ops_wants(o, "swiglu")) check_swiglu(o, o->tables[i]);
    }
}
