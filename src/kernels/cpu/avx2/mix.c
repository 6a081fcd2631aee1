/* Weighted sums of rows: tiles of outputs stay in registers while all the rows pass by. */
#include "kernels/cpu/avx2/avx2.h"

/* `rows` outputs of V vectors each from column c on, the last of them `lanes` wide; both numbers are constants where inlined. */
static inline __attribute__((always_inline)) void tile(const float *const *a, const float *const *x, size_t n,
                                                       size_t c, float *const *y, size_t rows, size_t V,
                                                       size_t lanes)
{
    __m256 sum[8];
    for (size_t r = 0; r < rows; r++)
        for (size_t v = 0; v < V; v++)
            sum[r * V + v] = nb_load_lanes(y[r] + c + 8 * v, v + 1 < V ? 8 : lanes);
    for (size_t i = 0; i < n; i++)
        for (size_t v = 0; v < V; v++) {
            __m256 row = nb_load_lanes(x[i] + c + 8 * v, v + 1 < V ? 8 : lanes);
            for (size_t r = 0; r < rows; r++)
                sum[r * V + v] = _mm256_fmadd_ps(_mm256_set1_ps(a[r][i]), row, sum[r * V + v]);
        }
    for (size_t r = 0; r < rows; r++)
        for (size_t v = 0; v < V; v++)
            nb_store_lanes(y[r] + c + 8 * v, sum[r * V + v], v + 1 < V ? 8 : lanes);
}

static inline __attribute__((always_inline)) void band(const float *const *a, const float *const *x, size_t n,
                                                       size_t d, float *const *y, size_t rows, size_t V)
{
    size_t c = 0;
    for (; c + 8 * V <= d; c += 8 * V) tile(a, x, n, c, y, rows, V, 8);
    for (; c + 8 <= d; c += 8) tile(a, x, n, c, y, rows, 1, 8);
    if (c < d) tile(a, x, n, c, y, rows, 1, d - c);
}

void nb_avx2_mix(const float *const *a, const float *const *x, size_t n, size_t d, float *const *y,
                 size_t rows)
{
    size_t r = 0;
    for (; r + 4 <= rows; r += 4) band(a + r, x, n, d, y + r, 4, 2);
    for (; r + 2 <= rows; r += 2) band(a + r, x, n, d, y + r, 2, 4);
    if (r < rows) band(a + r, x, n, d, y + r, 1, 8);
}
