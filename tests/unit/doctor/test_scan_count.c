/* The counting loops of the pass over the weights: each fast one against the reference, block for block. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "doctor/scan_count.h"

enum { MOST = 4096 };
static unsigned char codes[8 * MOST], scales[MOST];

static uint32_t state = 1;
static uint32_t random_number(uint32_t below)
{
    state = state * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)state * below >> 32);
}

/* One block in `every` is odd: dead (zeros of both signs), uniform, nearly either, or under any scale byte at all. Where odd ones
 * are rare the others all have a code of 6, as quantisers leave them; else some have few large codes, or none. */
static void fill(uint32_t every)
{
    const bool quantised = every >= 300;
    for (size_t i = 0; i < MOST; i++) {
        unsigned char *b = codes + 8 * i;
        for (size_t k = 0; k < 8; k++) b[k] = (unsigned char)random_number(256);
        if (!quantised && random_number(3) == 0) {
            for (size_t k = 0; k < 8; k++) b[k] &= 0xBD;
            if (random_number(2)) b[random_number(8)] = (unsigned char)(0x60 + random_number(32));
        } else if (quantised) {
            b[i % 8] = (unsigned char)(0x70 + random_number(16));
        }
        scales[i] = (unsigned char)(0x08 + random_number(0x76));
        if (random_number(every)) continue;
        switch (random_number(5)) {
        case 0: scales[i] = (unsigned char)random_number(256); break;
        case 1: memset(b, 0x11 * (int)random_number(16), 8); break;
        case 2: memset(b, (int)random_number(256), 8); break;
        case 3: /* dead, but for one code at times */
            for (size_t k = 0; k < 8; k++) b[k] = (unsigned char)(random_number(4) * 8 & 0x88);
            if (random_number(2)) b[random_number(8)] ^= (unsigned char)(1 << random_number(8));
            break;
        default: scales[i] = (unsigned char)(0x78 + random_number(8) + 0x80 * random_number(2)); break;
        }
    }
}

static void same_mark(const char *what, nb_mark a, nb_mark b)
{
    if (a.count != b.count || (a.count && a.first != b.first))
        fail_msg("%s: %llu from %llu, the reference has %llu from %llu", what, (unsigned long long)b.count,
                 (unsigned long long)b.first, (unsigned long long)a.count, (unsigned long long)a.first);
}

/* What comes of blocks [first, first + n). */
static nb_block_values values(nb_count_16_fn f, size_t first, size_t n)
{
    nb_counts c = {0};
    nb_block_values v = {0};
    f(codes + 8 * first, scales + first, n, &c);
    nb_counts_fold(&v, &c, true, codes + 8 * first, scales + first, first, n);
    return v;
}

static void compare(nb_count_16_fn f, size_t first, size_t n)
{
    const nb_block_values a = values(nb_count_16_generic, first, n), b = values(f, first, n);
    same_mark("NaN", a.nan, b.nan);
    same_mark("sign", a.sign, b.sign);
    same_mark("zero", a.zero, b.zero);
    same_mark("subnormal", a.subnormal, b.subnormal);
    assert_int_equal(a.blocks, b.blocks);
    assert_int_equal(a.live, b.live);
    assert_int_equal(a.uniform, b.uniform);
    assert_int_equal(a.top, b.top);
    assert_int_equal(a.dead_odd, b.dead_odd);
    assert_int_equal(a.normal, b.normal);
    assert_int_equal(a.normal_6, b.normal_6);
    assert_int_equal(a.normal_4, b.normal_4);
    assert_int_equal(a.full, b.full);
    assert_int_equal(a.full_mixed, b.full_mixed);
    for (size_t k = 0; k < NB_NEAR; k++) assert_int_equal(a.near[k], b.near[k]);
}

static void fast_counts_are_those_of_the_reference(void **unused)
{
    static const uint32_t every[] = {1, 3, 40, 300, 5000, 1u << 31};
    nb_cpu cpu;
    nb_cpu_detect(&cpu);
    for (size_t i = 0; i < sizeof every / sizeof *every; i++) {
        for (int round = 0; round < 20; round++) {
            const size_t first = random_number(64), n = random_number(MOST - 63);
            fill(every[i]);
            compare(nb_count_16_best(), first, n);
            if (cpu.avx2) compare(nb_count_16_avx2, first, n);
            if (cpu.avx512) compare(nb_count_16_avx512, first, n);
        }
    }
}

/* Six blocks by hand: codes in the low nibble first. 7 stands for 6, 6 for 4. */
static void the_reference_by_hand(void **unused)
{
    static const unsigned char by_hand[6 * 8] = {
        [0] = 0x07,  [7] = 0x10,                                      /* 6 and 0.5 */
        [8] = 0x6E,  [9] = 0x01,                                      /* -4, 4 and 0.5 */
        [16] = 0x77, [17] = 0x10,                                     /* two of 6 */
        [24] = 0x88,                                                  /* -0: dead */
        [32] = 0x11, 0x11,        0x11, 0x11, 0x11, 0x11, 0x11, 0x11, /* sixteen of 0.5 */
        [40] = 0x7F, [47] = 0x70                                      /* -6, 6 and 6, nothing smaller */
    };
    static const unsigned char under[6] = {0x79, 0x7B, 0x7E, 0x39, 0x03, 0x7E};
    memcpy(codes, by_hand, sizeof by_hand);
    memcpy(scales, under, sizeof under);
    const nb_block_values v = values(nb_count_16_generic, 0, 6);
    assert_int_equal(v.blocks, 6);
    assert_int_equal(v.live, 5);
    assert_int_equal(v.uniform, 1);
    assert_int_equal(v.top, 0x7E);
    assert_int_equal(v.dead_odd, 1);
    assert_int_equal(v.normal, 2);
    assert_int_equal(v.normal_6, 1);
    assert_int_equal(v.normal_4, 1);
    assert_int_equal(v.full, 2);
    assert_int_equal(v.full_mixed, 1);
    const uint64_t near[NB_NEAR] = {[2] = 1, [4] = 1}; /* 0x7B, 0x79 */
    assert_memory_equal(v.near, near, sizeof near);
    assert_int_equal(v.subnormal.count, 1);
    assert_int_equal(v.subnormal.first, 4);
}

/* Bits that stand in every exponent often, then random numbers alone, of which one in 256 or fewer is bad. */
static void fast_counts_of_bad_floats(void **unused)
{
    static const nb_dtype types[] = {NB_DT_F8_E4M3, NB_DT_F16, NB_DT_BF16, NB_DT_F32, NB_DT_F64};
    static uint64_t words[MOST]; /* aligned to any element */
    unsigned char *const bytes = (unsigned char *)words;
    const uint16_t bf16[] = {0x3F80, 0x7F80, 0xFFC0, 0x7F7F, 0xFF80}; /* 1, inf, NaN, largest, -inf */
    nb_cpu cpu;
    assert_int_equal(nb_count_bad_generic((const unsigned char *)bf16, 5, NB_DT_BF16), 3);
    nb_cpu_detect(&cpu);
    for (int round = 0; round < 40 && cpu.avx2; round++) {
        for (size_t i = 0; i < sizeof words; i++)
            bytes[i] = (unsigned char)(random_number(256) | (round % 2 ? 0 : random_number(2) * 0x7F));
        for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
            const size_t size = nb_dtype_bits(types[k]) / 8, first = random_number(40),
                         n = random_number((uint32_t)(sizeof words / size) - 40);
            assert_int_equal(nb_count_bad_avx2(bytes + first * size, n, types[k]),
                             nb_count_bad_generic(bytes + first * size, n, types[k]));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(fast_counts_of_bad_floats),
                                       cmocka_unit_test(fast_counts_are_those_of_the_reference),
                                       cmocka_unit_test(the_reference_by_hand)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
