/* Arithmetic int8 with AVX-VNNI: vpdpbusd multiplies bytes and adds four products to a lane of 32 bits, from the bias on. */
#include "kernels/cpu/avx2/decode.h"
#include "kernels/cpu/avxvnni/avxvnni.h"

enum { FOLDS = false };

NB_INLINE __m256i add_products(__m256i sum, const __m256i u[4], const __m256i s[4])
{
    NB_UNROLL
    for (size_t i = 0; i < 4; i++) sum = _mm256_dpbusd_avx_epi32(sum, u[i], s[i]);
    return sum;
}

#include "kernels/cpu/avx2/int8_loops.h"

void nb_avxvnni_linear_i8(const nb_packed *w, const float *x, size_t ldx, size_t rows, float *y, size_t ldy,
                          size_t p0, size_t p1)
{
    linear_i8(w, x, ldx, rows, y, ldy, p0, p1);
}
