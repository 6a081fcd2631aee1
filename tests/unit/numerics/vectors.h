/* Reading the vector files of tests/fixtures/numerics: floats are their 32 bits in hex, so that reading rounds nothing. */
#ifndef NB_TEST_VECTORS_H
#define NB_TEST_VECTORS_H

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "numerics/formats.h"

static inline json_t *load_vectors(const char *name)
{
    char path[512];
    json_error_t err;
    snprintf(path, sizeof path, NB_TEST_DATA "/fixtures/numerics/%s", name);
    json_t *j = json_load_file(path, 0, &err);
    if (!j) fail_msg("%s: %s", path, err.text);
    return j;
}

static inline uint32_t hex(const json_t *j)
{
    assert_non_null(json_string_value(j));
    return (uint32_t)strtoul(json_string_value(j), NULL, 16);
}

static inline float hex_float(const json_t *j)
{
    return nb_f32_from_bits(hex(j));
}

/* Hex digits to bytes; returns how many. */
static inline size_t hex_bytes(const char *s, uint8_t *out, size_t cap)
{
    size_t n = 0;
    for (; s[2 * n]; n++) {
        char pair[3] = {s[2 * n], s[2 * n + 1], 0};
        assert_true(n < cap);
        out[n] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return n;
}

#endif
