/* Passes over a row of logits: row.h says what they are for. */
#include "engine/row.h"

#include <math.h>
#include <string.h>

enum { CHUNK = NB_ROW_CHUNK };

static int32_t bits_of(float x)
{
    int32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

static float float_of(int32_t b)
{
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}

/* Integers in the order of the floats: -nan < -inf < … < -0 < 0 < … < inf < nan. Maxima of integers become vector
 * instructions, those of floats do not, because of NaN. */
static int32_t ordered(int32_t bits)
{
    return bits ^ (bits < 0 ? INT32_MAX : 0);
}

/* The largest of a chunk; false when one is NaN or +inf. */
static bool chunk_peak(const float *v, float *peak)
{
    int32_t high = INT32_MIN, low = INT32_MAX;
    for (size_t i = 0; i < CHUNK; i++) {
        int32_t b = ordered(bits_of(v[i]));
        high = b > high ? b : high;
        low = b < low ? b : low;
    }
    *peak = float_of(ordered(high));
    return high < ordered(bits_of(INFINITY)) && low >= ordered(bits_of(-INFINITY));
}

static bool legal(float x)
{
    return x < INFINITY;
}

/* What the last chunk lacks: copies it into room [CHUNK], filled with `fill`. */
static const float *whole(const float *v, size_t n, float fill, float *room)
{
    for (size_t i = 0; i < CHUNK; i++) room[i] = i < n ? v[i] : fill;
    return room;
}

size_t nb_row_scan(const float *v, size_t n, float *peak, uint32_t *best)
{
    float room[CHUNK], top = 0;
    size_t at = 0; /* where the chunk of the best one begins */
    for (size_t i = 0; i < n; i += CHUNK) {
        const float *c = n - i >= CHUNK ? v + i : whole(v + i, n - i, -INFINITY, room);
        float p;
        if (!chunk_peak(c, &p)) {
            while (legal(v[i])) i++;
            return i;
        }
        peak[i / CHUNK] = p;
        if (i == 0 || p > top) {
            top = p;
            at = i;
        }
    }
    while (v[at] != top) at++;
    *best = (uint32_t)at;
    return n;
}

/* Restores the heap of which only best[i] may be out of place: no child comes after its parent. */
static void sift(const float *v, uint32_t *best, size_t k, size_t i)
{
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= k) return;
        if (c + 1 < k && nb_row_before(v, best[c], best[c + 1])) c++;
        if (nb_row_before(v, best[c], best[i])) return;
        uint32_t t = best[i];
        best[i] = best[c];
        best[c] = t;
        i = c;
    }
}

static void make_heap(const float *v, uint32_t *best, size_t k)
{
    for (size_t i = k / 2; i-- > 0;) sift(v, best, k, i);
}

size_t nb_row_select(const float *v, size_t n, const float *peak, size_t k, uint32_t *best)
{
    if (k > n) k = n;
    if (!k) return 0;
    for (size_t i = 0; i < k; i++) best[i] = (uint32_t)i;
    make_heap(v, best, k);
    for (size_t i = k; i < n;) {
        size_t end = i / CHUNK * CHUNK + CHUNK;
        if (end > n) end = n;
        if (peak[i / CHUNK] > v[best[0]]) /* of equals the earlier are in already */
            for (; i < end; i++) {
                if (!(v[i] > v[best[0]])) continue;
                best[0] = (uint32_t)i;
                sift(v, best, k, 0);
            }
        i = end;
    }
    return k;
}

void nb_row_sort(const float *v, uint32_t *best, size_t k)
{
    make_heap(v, best, k);
    while (k > 1) {
        uint32_t t = best[--k];
        best[k] = best[0];
        best[0] = t;
        sift(v, best, k, 0);
    }
}

/*
 * e^x for x <= 0, and 0 below e^-87 and for -inf. x = m ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor series up to r^7 (the next
 * term is 5e-9); 2^m by its exponent bits. ln 2 in two parts, of which the first has few bits, so that m times it is exact. Adding
 * 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
 */
static float exp_negative(float x)
{
    const float round = 0x1.8p23f, ln2_high = 0x1.62ep-1f, ln2_low = 0x1.0bfbep-15f;
    int32_t keep = -(int32_t)(x > -87.0f); /* branches would not become vector instructions */
    float c = float_of(bits_of(x) & keep);
    float shifted = c * 1.44269504f + round, m = shifted - round;
    float r = (c - m * ln2_high) - m * ln2_low;
    float y = 1 / 5040.0f;
    y = y * r + 1 / 720.0f;
    y = y * r + 1 / 120.0f;
    y = y * r + 1 / 24.0f;
    y = y * r + 1 / 6.0f;
    y = y * r + 0.5f;
    y = y * r + 1;
    y = y * r + 1;
    y *= float_of((int32_t)(((uint32_t)bits_of(shifted) << 23) + 0x3F800000u));
    return float_of(bits_of(y) & keep);
}

/* y is the caller's own memory: no compiler need ask whether it overlaps v. */
static float chunk_exp(const float *v, float top, float temperature, float *restrict y)
{
    float lane[8] = {0};
    for (size_t i = 0; i < CHUNK; i++) y[i] = exp_negative((v[i] - top) / temperature);
    for (size_t i = 0; i < CHUNK; i += 8)
        for (size_t j = 0; j < 8; j++) lane[j] += y[i + j];
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

double nb_row_exp(const float *v, size_t n, float top, float temperature, float *out, float *sum)
{
    float room[CHUNK], y[CHUNK];
    double total = 0;
    for (size_t i = 0; i < n; i += CHUNK) {
        size_t m = n - i < CHUNK ? n - i : CHUNK;
        const float *c = m == CHUNK ? v + i : whole(v + i, m, -INFINITY, room);
        sum[i / CHUNK] = chunk_exp(c, top, temperature, y);
        memcpy(out + i, y, m * sizeof *out);
        total += sum[i / CHUNK];
    }
    return total;
}

size_t nb_row_count(const float *v, size_t n, float x)
{
    float room[CHUNK];
    size_t count = 0;
    for (size_t i = 0; i < n; i += CHUNK) {
        const float *c = n - i >= CHUNK ? v + i : whole(v + i, n - i, -INFINITY, room);
        int32_t m = 0;
        for (size_t j = 0; j < CHUNK; j++) m += c[j] >= x;
        count += (size_t)m;
        if (n - i < CHUNK && x == -INFINITY) count -= CHUNK - (n - i); /* the filling is not of the row */
    }
    return count;
}
